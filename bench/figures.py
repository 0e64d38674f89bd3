"""The table of figures: `make figures`, or `python -m bench.figures [ONLY...] [--json] [--quick]`.

Each figure of the table is a claim with bars (`registry.Figure`); this module lists them all, measures those that were asked for, prints the
table and writes `bench/results/DATE-ID.json` and `.md`. `--quick` goes through the motions with little data and writes nothing:
such numbers mean nothing, so nothing passes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import machine, peers
from bench.registry import UNMEASURED, Bar, Figure, Reading, Result, verdict, verdicts
from bench.rows import cost, faults, proofs, reuse, startup, throughput
from bench.rows.cold import FIRST_MOST, cold
from bench.rows.forms import forms
from bench.rows.gateway import gateway
from bench.rows.mapped import mapped, unmodified
from bench.rows.mlperf import retinanet
from bench.rows.mount import OTHERS, mount
from bench.rows.nodes import SHARES, nodes
from bench.rows.shards import shards
from bench.rows.threads import threads
from bench.stage import ROOT, Stage

RESULTS = ROOT / "bench" / "results"
_SHARES = [f"{sizes}, q = {share}" for sizes in ("equal", "variable") for share in ("0.1", "0.25", "0.5", "0.9")]


def _cold_bars(least: float) -> dict[str, Bar]:
    """The bars of a cold epoch; the yardstick with as many connections as when they were set keeps its own verdict."""
    bounds = ("bound", f"bound with up to {FIRST_MOST} connections")
    return {
        f"{place}: loader / {bound}": Bar(least=least) for place in ("one core", "whole machine") for bound in bounds
    }


FIGURES = [
    Figure(
        "w1",
        "10,000 objects of about 110 KB in random order, cold, 64 connections",
        {
            "loader / yardstick": Bar(least=0.90),
            "stock loader + ours / yardstick": Bar(least=0.75),
            "loader / best peer on the same objects": Bar(least=1.0),
        },
        throughput.w1,
    ),
    *(
        Figure(
            f"cold-{size // 1000}k",
            f"a cold epoch over {count:,} objects of {size // 1000} KB, default settings",
            _cold_bars(least),
            cold(count, size),
        )
        for count, size, least in ((40_000, 110_000, 0.90), (12_000, 323_000, 0.90), (60_000, 10_000, 0.85))
    ),
    Figure(
        "cold-hard",
        "the same over 20,000 objects of 110 KB, TLS, from a bucket that starts slowly, refuses, closes and has a tail",
        _cold_bars(0.90),
        cold(20_000, 110_000, hard=True),
    ),
    Figure(
        "errors",
        "a cold epoch while a share of the GETs fails, over a healthy one",
        {f"{name}: rate / healthy": Bar(least=0.80 if "10 %" in name else 0.95) for name in faults.ERRORS}
        | {f"{name}: samples lost": Bar(most=0) for name in faults.ERRORS},
        faults.errors,
    ),
    Figure(
        "outage",
        "a store that is away for 20 s",
        {
            f"{how}: {what}": bar
            for how in faults.OUTAGES
            for what, bar in (
                ("from its end to the next batch", Bar(most=1.0)),
                ("samples lost", Bar(most=0)),
                ("warnings", Bar(least=1, most=1)),
            )
        },
        faults.outage,
    ),
    Figure(
        "ramp",
        "from the first request to nine tenths of the rate",
        {
            "a store that is new: to 0.9 of the rate": Bar(most=1.0),
            "a store that was met before: to 0.9 of the rate": Bar(most=0.3),
        },
        faults.ramp,
    ),
    Figure(
        "gateway",
        "a cold epoch over 10,000 objects of 60 to 160 KB from versitygw, default settings",
        {"loader / yardstick at its best": Bar(least=0.90)},
        gateway,
    ),
    Figure(
        "retinanet",
        "RetinaNet-shaped accelerators (B200) that a client core feeds at AU >= 85 % in every epoch, unverified",
        {"one core: accelerators / core": Bar(least=2)},
        retinanet,
    ),
    Figure(
        "threads",
        "I/O threads of the agent, against a server with CPUs of its own",
        {
            f"{kind}: {number} threads / 1": Bar(least=least)
            for kind in ("plain", "TLS")
            for number, least in ((2, 1.8), (8, 6.0))
        },
        threads,
    ),
    Figure(
        "w4",
        "an epoch over 20 tar shards of 100 MB, shuffled, RAM 512 MB, disk >= data, cold",
        {
            "requests / samples": Bar(most=1 / 20),
            "bytes fetched / data": Bar(most=1.02),
            "MB/s / yardstick": Bar(least=0.90),
        },
        throughput.w4,
    ),
    Figure(
        "shards",
        "a shuffled epoch over 20 new tar shards of 100 MB, from before `open`, RAM 512 MB, disk >= data",
        {
            f"{place}, {name}: {what}": bar
            for place in ("one core", "whole machine")
            for name in ("no index", "saved index")
            for what, bar in (
                ("MB/s / link", Bar(least=0.80)),
                ("requests / samples", Bar(most=1 / 20)),
                ("bytes / data", Bar(most=1.02)),
            )
        },
        shards,
    ),
    Figure(
        "forms",
        "a shuffled epoch from nothing over 16 tar shards of 66 MB, beside loaders over their own forms of the same samples",
        {f"foreload, tar shards / {peer}": Bar(least=1.0) for peer in peers.CONVERTED},
        forms,
    ),
    Figure(
        "nodes",
        "four nodes that share their caches: requests, hits, pace, and what is left of it when one of them fails",
        {
            "fits: GETs / samples": Bar(most=1.01),
            **{f"q = {share}: hits - q": Bar(least=-0.01) for share in SHARES},
            **{f"q = {share} of caches: hits - q": Bar(least=-0.01) for share in SHARES},
            **{
                f"q = {share}: bytes from {where}, predicted / measured - 1": Bar(least=-0.03, most=0.03)
                for share in SHARES
                for where in ("the bucket", "nodes")
            },
            "epoch 2 on: waiting share, 20 ms steps": Bar(most=0.01),
            "epoch 2 on: bytes from nodes / cable": Bar(least=0.8),
            "epoch 2 on over the cable: time, predicted / measured - 1": Bar(least=-0.15, most=0.15),
            **{
                f"{fault}: pace in the second second / before": Bar(least=0.5)
                for fault in ("killed", "hung", "cut off", "20 Mbit/s", "two and two")
            },
            **{f"{fault}: pace from then on / before": Bar(least=0.6) for fault in ("hung", "20 Mbit/s")},
            "CPU of the agents / plain TCP": Bar(most=1.3),
            "CPU of the agents / plain TCP, 110 KB": Bar(most=1.3),
        },
        nodes,
    ),
    Figure(
        "mapped",
        "mapped files on a store of 5 ms: weights that are loaded whole, and records in an order that is known",
        {
            **{
                f"{what}, {who}: {reading}": bar
                for what in ("weights", "weights by eight bytes")
                for who in ("1 process", "4 processes")
                for reading, bar in (
                    ("bare read / prefetch", Bar(least=0.9)),
                    ("8 MiB window / prefetch", Bar(least=1.0)),
                    ("bytes fetched / file", Bar(most=1.05)),
                )
            },
            **{
                f"{what}, 4 processes, until all have loaded: bare read / prefetch": Bar(least=0.9)
                for what in ("weights", "weights by eight bytes")
            },
            "every 8th record, index saved: kernel / known order": Bar(least=20),
            "every 8th record, index saved: 8 MiB window / known order": Bar(least=8),
            "every 8th record: bytes fetched / useful": Bar(most=1.05),
            **{
                f"random records, index saved: {window} / known order": Bar(least=20)
                for window in ("kernel", "8 MiB window")
            },
            **{
                f"random records, index included: {window} / known order": Bar(least=12)
                for window in ("kernel", "8 MiB window")
            },
            "random records: bytes fetched / useful": Bar(most=1.05),
            "random records, warm: known order / kernel": Bar(most=1.05),
            # Beside it, of sixteen times as many: the fixed cost of beginning is none of a twentieth of a second.
            "all records in random order, warm: known order / kernel": Bar(most=1.05),
            "random records, second epoch: first / second": Bar(least=0.95),
            "weights, store's rate the limit: kernel / prefetch": Bar(least=0.97),
        },
        mapped,
    ),
    Figure(
        "mapped-run",
        "mapped files on a store of 5 ms, read by programs as they are under `foreload run --mmap`",
        {
            **{f"weights, {who}: bare read / run": Bar(least=0.9) for who in ("1 process", "4 processes")},
            "weights, 4 processes, until all have loaded: bare read / run": Bar(least=0.9),
            **{f"weights, {who}: 8 MiB window / run": Bar(least=1.0) for who in ("1 process", "4 processes")},
            **{f"weights, {who}: bytes fetched / file": Bar(most=1.05) for who in ("1 process", "4 processes")},
            "records in order: kernel / run": Bar(least=8),
            "records in order: 8 MiB window / run": Bar(least=0.95),
            "records in order: bytes fetched / useful": Bar(most=1.05),
            "every 8th record: kernel / run": Bar(least=5),
            "every 8th record: 8 MiB window / run": Bar(least=2.5),
            "every 8th record: bytes fetched / useful": Bar(most=2.3),
            "random records: kernel / run": Bar(least=1.0),
            "random records: bytes fetched / by the kernel": Bar(most=1.15),
            "records in order, warm: run / kernel": Bar(most=1.05),
            **{
                f"{what}, {limit}": Bar(least=least)
                for what in ("records in order", "every 8th record")
                for limit, least in (
                    ("second epoch: first / second", 0.95),
                    ("store's rate the limit: kernel / run", 0.97),
                )
            },
            "detection only: share of a core": Bar(most=0.01),
            "detection only: bytes fetched / by the kernel": Bar(most=1.0),
            # Student's t for 95 % and 20 pairs.
            "detection only: its mean lies so many standard errors from 0": Bar(most=2.093),
        },
        unmodified,
    ),
    Figure(
        "mount",
        "a bucket as a directory: 1 GB, five of 200 MB, and 10,000 small files",
        {
            "1 GB, cold: mount / the smaller of 15x one connection and 0.85 of the yardstick": Bar(least=1.0),
            "five of 200 MB, cold: mount / yardstick": Bar(least=0.90),
            "five of 200 MB, cold, 300 MB/s in all: mount / yardstick": Bar(least=0.90),
            "200 MB, cold: chunks by size / chunks of 52 MB": Bar(least=3.0),
            **{
                f"1 GB, warm, {who}: mount / local page cache": Bar(least=0.8) for who in ("one reader", "four readers")
            },
            **{
                f"1 GB, warm, a copy, {who}: mount / local page cache": Bar(least=0.8)
                for who in ("one reader", "four readers")
            },
            "1 GB, warm, a copy: reads that came to the mount": Bar(most=0),
            "a fixed chunk: GETs more than chunks": Bar(most=0),
            "the second read: requests": Bar(most=0),
            "the second `ls -l` of 10,000 objects: requests": Bar(most=0),
            "memory of 100,000 names: MB": Bar(most=51.2),
            **{f"{what}, order told: mount / loader": Bar(least=0.8) for what in ("small files", "files of 323 KB")},
            **{f"small files, order not told: mount / {name}": Bar(least=1.0) for name in OTHERS},
            **{f"1 GB, cold: mount / {name}": Bar(least=1.0) for name in OTHERS},
        },
        mount,
    ),
    Figure("w2", "one object of 1 GB as a sample", {"views / yardstick": Bar(least=0.90)}, throughput.w2),
    Figure("w3", "five objects of 200 MB as samples", {"views / yardstick": Bar(least=0.90)}, throughput.w3),
    Figure(
        "slowfs",
        "W1's sizes from a slow file system, epoch 1",
        {
            "loader / yardstick": Bar(least=0.90),
            "loader / torch, 2 workers": Bar(least=1.0),
            "loader / torch, 8 workers": Bar(least=1.0),
        },
        throughput.slowfs,
    ),
    Figure(
        "epoch2-ram",
        "epoch 2, data fits RAM",
        {
            "requests in epoch 2": Bar(most=0),
            "stall share": Bar(most=0.01),
            "samples/s / torch, 2 workers, cached files": Bar(least=3.0),
            "samples/s / torch at its best, cached files": Bar(least=3.0),
        },
        reuse.ram,
    ),
    Figure(
        "epoch2-disk",
        "epoch 2, data fits the disk but not RAM, page cache dropped",
        {
            "requests in epoch 2": Bar(most=0),
            "samples/s / O_DIRECT at depth 32": Bar(least=0.8),
            "samples/s / O_DIRECT at its best depth": Bar(least=0.9),
            "bytes/s from the device / O_DIRECT at its best depth": Bar(least=0.9),
            "bytes read from the device / bytes from disk": Bar(least=1.0, most=1.05),
            "bytes read from the device / bytes read from files, since the page cache was dropped": Bar(
                least=1.0, most=1.05
            ),
        },
        reuse.disk,
    ),
    Figure(
        "hits",
        "byte hits of later epochs with a cache for a fraction q of the data; LRU beside",
        {name: Bar(most=0.01) for shares in _SHARES for name in (f"off by, {shares}", f"LRU off by, {shares}")},
        reuse.hits,
    ),
    Figure(
        "cpu",
        "client CPU from a cloud bucket, one I/O thread",
        {
            "driver / yardstick, plain": Bar(most=1.5),
            "driver / yardstick, TLS": Bar(most=1.3),
            "driver / yardstick, plain, into fresh memory": Bar(most=1.5),
            "driver / yardstick, TLS, into fresh memory": Bar(most=1.3),
            "bytes path - yardstick": Bar(most=60),
            "bytes path / obstore": Bar(most=0.5),
        },
        cost.cpu,
    ),
    Figure(
        "handover",
        "from RAM to Python",
        {
            "in-process bytes": Bar(most=15),
            "stock loader / torch's shared memory": Bar(least=3.0),
            "stock loader / pickled bytes": Bar(least=3.0),
            "our loader / torch's shared memory": Bar(least=3.0),
            "our loader / pickled bytes": Bar(least=3.0),
            "killed worker's memory back": Bar(most=200),
            "Ctrl-C, 0 workers": Bar(most=200),
            "Ctrl-C, 2 workers": Bar(most=200),
        },
        cost.handover,
    ),
    Figure(
        "start",
        "first batch with a saved index of 10^6 objects; an order over 10^9 samples",
        {"first batch": Bar(most=2.0), "order over 10^9 samples": Bar(most=1.0), "its memory": Bar(most=50)},
        startup.start,
    ),
    Figure("split", "`split` of 10^8 samples in two", {"split": Bar(most=10.0)}, startup.split),
    Figure(
        "rss",
        "memory beyond the budget, at a data set of ten times the budget",
        {
            f"{what}beyond the budget, {workers} workers": Bar(most=64)
            for what in ("", "full caches, ")
            for workers in (0, 2)
        },
        startup.rss,
    ),
    Figure(
        "agent",
        "starting an agent; waking a client",
        {"cold start": Bar(most=150), "wake-up": Bar(most=50), "wake-up after 5 ms of sleep": Bar(most=80)},
        startup.agent,
    ),
    Figure(
        "exactly-once",
        "each sample once an epoch; the same remainder after every restore",
        {
            "plan: tests passed": Bar(least=1),
            "plan: tests failed": Bar(most=0),
            "python: tests passed": Bar(least=1),
            "python: tests failed": Bar(most=0),
        },
        proofs.exactly_once,
    ),
    Figure("scheduler", "the scheduler's CPU for each sample", {"worst case": Bar(most=700)}, proofs.scheduler),
]


def measured(figure: Figure, stage: Stage) -> Result:
    """Measures a figure; a failure is a result too, and passes nothing."""
    before = machine.load()
    size = 1 << 30
    fresh_gb_s = 0.0 if stage.quick else size / machine.touch(size) / 1e9
    try:
        result = figure.measure(stage)
    except Exception as error:  # noqa: BLE001 (the next figure is measured all the same)
        stage.say(traceback.format_exc())
        result = Result(invalid=f"it failed: {type(error).__name__}: {error}", is_broken=True)
    if stage.quick and not result.is_broken:
        result.invalid = "a quick run"
    result.load_before, result.repetitions = before, stage.pairs
    result.fresh_gb_s, result.touched_gb = fresh_gb_s, stage.touched_bytes / 1e9
    return result


def command(figure: Figure, result: Result) -> str:
    """What measures a figure as it was measured."""
    if not result.touched_gb:
        return figure.command
    return f"python -m bench.figures --only {figure.id} --touch {result.touched_gb:g}"


def report(figure: Figure, result: Result) -> dict[str, Any]:
    """A figure as its results file has it."""
    return {
        "id": figure.id,
        "claim": figure.claim,
        "verdict": verdict(figure, result),
        "bars": {
            name: {"bar": str(bar), "verdict": verdicts(figure, result)[name]} for name, bar in figure.bars.items()
        },
        "invalid": result.invalid,
        "command": command(figure, result),
        "repetitions": result.repetitions,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(ROOT),
        "machine": machine.describe(),
        "load_before": result.load_before,
        "fresh_gb_s": result.fresh_gb_s,
        "touched_gb": result.touched_gb,
        "settings": result.settings,
        "readings": [reading.as_dict() for reading in result.readings],
        "notes": result.notes,
        "raw": result.raw,
    }


def rows(figure: Figure, result: Result) -> list[tuple[str, str, str, str, str]]:
    """A figure's lines: what, median, spread, bar, verdict; those with a bar first."""
    found: dict[str, Reading] = {reading.name: reading for reading in result.readings if reading.values}
    judged = verdicts(figure, result)
    lines = []
    for name in [*figure.bars, *[name for name in found if name not in figure.bars]]:
        reading = found.get(name)
        value = f"{reading.median:.4g} {reading.unit}".strip() if reading else "-"
        spread = f"{min(reading.values):.4g} .. {max(reading.values):.4g} ({len(reading.values)})" if reading else ""
        lines.append((name, value, spread, str(figure.bars.get(name, "")), judged.get(name, "")))
    return lines


def as_markdown(figure: Figure, result: Result, whole: dict[str, Any]) -> str:
    """A figure's results for readers."""
    lines = [
        f"# {figure.id}: {figure.claim}",
        "",
        f"**{whole['verdict']}**" + (f" ({result.invalid})" if result.invalid else ""),
    ]
    lines += [
        "",
        f"`{whole['command']}` on {whole['date']}, commit {whole['commit']}, {result.repetitions} repetitions",
        "",
    ]
    lines += ["| reading | median | min .. max (runs) | bar | verdict |", "| --- | --- | --- | --- | --- |"]
    lines += ["| " + " | ".join(row) + " |" for row in rows(figure, result)]
    lines += [
        "",
        "Machine: "
        + ", ".join(f"{name} {value}" for name, value in whole["machine"].items())
        + f", load before {whole['load_before']:.2f}, fresh memory {whole['fresh_gb_s']:.2g} GB/s",
        "",
    ]
    lines += [
        f"- {name}: {json.dumps(value) if not isinstance(value, str) else value}"
        for name, value in result.settings.items()
    ]
    if result.touched_gb:
        lines.append(
            f"- memory: {result.touched_gb:.3g} GB were written to and given back just before each run of a client"
        )
    lines += [f"- {note}" for note in result.notes]
    return "\n".join(lines) + "\n"


def write(figure: Figure, result: Result, directory: Path = RESULTS) -> None:
    """Writes a figure's results; what another commit brought on the same day stays beside them."""
    whole = report(figure, result)
    name = f"{whole['date'][:10]}-{figure.id}" + ("-touched" if result.touched_gb else "")
    former = directory / f"{name}.json"
    if former.exists() and json.loads(former.read_text())["commit"] != whole["commit"]:
        name += f"-{whole['commit'][:7]}"
    texts = {"json": json.dumps(whole, indent=1) + "\n", "md": as_markdown(figure, result, whole)}
    for kind, text in texts.items():
        (directory / f"{name}.{kind}").write_text(machine.without_paths(text, ROOT))


def table(results: list[tuple[Figure, Result]]) -> Table:
    """All figures for the terminal."""
    colours = {"pass": "green", "fail": "red", UNMEASURED: "yellow"}
    shown = Table("figure", "reading", "median", "min .. max (runs)", "bar", "verdict")
    for figure, result in results:
        label = figure.id
        if result.invalid:
            shown.add_row(label, f"[yellow]{result.invalid}[/]", "", "", "", UNMEASURED)
            label = ""
        for name, value, spread, bar, judged in rows(figure, result):
            if not bar and not judged:
                continue
            shown.add_row(label, name, value, spread, bar, f"[{colours.get(judged, 'white')}]{judged}[/]")
            label = ""
        shown.add_section()
    return shown


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints; fails if any figure did, or couldn't be measured for an error."""
    known = [figure.id for figure in FIGURES]
    parser = argparse.ArgumentParser(prog="python -m bench.figures", description="Measures the table of figures.")
    parser.add_argument("ids", nargs="*", metavar="ONLY", help=f"figures to measure: {' '.join(known)}; none: all")
    parser.add_argument("--only", default="", help="the same, separated by commas")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="little data; numbers that mean nothing")
    parser.add_argument("--pairs", type=int, default=5, help="interleaved repetitions (5)")
    parser.add_argument(
        "--touch",
        type=float,
        default=0.0,
        metavar="GB",
        help="memory to write to and give back before each run of a client, where a virtual machine's host hands it out slowly (none); "
        "such results have names of their own",
    )
    parser.add_argument(
        "--peers",
        default="all",
        help="peers beside w1 and forms: all, objects (those that read the same), none, or names",
    )
    given = parser.parse_args(arguments)
    chosen = [*given.ids, *filter(None, given.only.split(","))] or known
    if unknown := set(chosen) - set(known):
        parser.error(f"no figure is called {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    names = {"objects": peers.OBJECTS, "all": peers.ALL, "none": ()}.get(given.peers) or tuple(
        filter(None, given.peers.replace("none", "").split(","))
    )
    console = Console(stderr=given.json)
    stage = Stage(given.quick, 1 if given.quick else given.pairs, names, console.print, int(given.touch * 1e9))
    results = []
    try:
        for figure in FIGURES:
            if figure.id in chosen:
                console.print(f"[dim]{figure.id}: {figure.claim}[/]")
                results.append((figure, measured(figure, stage)))
                if not given.quick:
                    write(*results[-1])
    finally:
        stage.close()
    if given.json:
        print(json.dumps([report(*found) for found in results]))
    else:
        console.print(table(results))
    return int(any(result.is_broken or verdict(figure, result) == "fail" for figure, result in results))


if __name__ == "__main__":
    sys.exit(main())
