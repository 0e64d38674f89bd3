#!/usr/bin/env python3
"""Paper 004's figures of a bucket that is mounted: its Figs. 2 to 4, how a read grows with its object, and its Table 1 as a demand.

    python -m bench.papers.objects [--trials 3] [--quick] [--json FILE] [--plot FILE]

*requests* (Figs. 2, 3): how fast requests of one size are, one after the other and twenty at a time, and how long one takes. *objects* (section 5): one reader of an object that nobody has read, by its size, with chunks by size and with the
paper's (52 MB, 20 connections). *cache* (Fig. 4): objects that nobody has read and the same once more, one and five of them. *demand* (Table 1): which workloads, on how many GPUs, these rates feed. The bucket has the cloud's profile and a CPU of its own;
mount, agent and reader share the other one. Needs FUSE.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import machine
from bench.rows.mount import _files, _Rig
from bench.stage import Stage

MB = 1_000_000
#: Table 1: MB/s that a workload reads with so many V100 GPUs.
DEMAND = {
    "ResNet-152": {1: 28.8, 2: 58.3, 4: 107.4, 8: 180.6},
    "ResNet-50": {1: 62.9, 2: 136.9, 4: 224.4, 8: 370.6},
    "VGG-11": {1: 77.0, 2: 122.9, 4: 174.4, 8: 208.9},
    "AlexNet": {1: 246.1, 2: 423.9, 4: 570.1, 8: 526.4},
    "Speech LSTM": {1: 17.8, 2: 29.4, 4: 64.3, 8: 107.0},
}
#: Published, in MB/s: one connection; one object and several, not cached and cached; the same by HTTP.
PUBLISHED = {
    "one connection": 35,
    "one object, cold": 544,
    "five objects, cold": 1000,
    "one object, cached": 5519,
    "five objects, cached": 30505,
    "by HTTP": 1158,
}
REQUESTS = [4_096, 65_536, 1_048_576, 4 * 1_048_576, 16 * 1_048_576, 52 * MB]
OBJECTS = [1 * MB, 4 * MB, 16 * MB, 64 * MB, 200 * MB, 500 * MB, 1000 * MB]
CONNECTIONS = (1, 20)


def _rule(stage: Stage, size: int, connections: int) -> str:
    """An object that is asked for in so many requests of one size that it takes a while, and in no more."""
    whole = max(size * connections, min(size * 60 * connections, stage.amount(600 * MB, 20 * MB)))
    return f"r{whole}:1x{whole}"


def _requests(stage: Stage, rig: _Rig, sizes: list[int]) -> Iterator[tuple[str, int, float]]:
    for size in sizes:
        for connections in CONNECTIONS:
            options = [
                f"--synthetic={_rule(stage, size, connections)}",
                f"--part={size}",
                f"--connections={connections}",
            ]
            rate = float(stage.bare("get", *options, bucket=rig.bucket)["mb_per_s"])
            yield f"{connections} at a time", size, rate


def _objects(rig: _Rig, sizes: list[int]) -> Iterator[tuple[str, int, float]]:
    ways: dict[str, dict[str, Any]] = {"chunks by size": {}, "the paper's chunks": {"preset": "paper", "ram": "1300MB"}}
    for name, fields in ways.items():
        for size in sizes:
            with rig.mounted(f"o{size}", **fields) as target:
                yield name, size, rig.read("one", _files(target)) / MB


def _cache(rig: _Rig, one: int, five: int) -> Iterator[tuple[str, float]]:
    for name, prefix, reader in (("one object", f"o{one}", "one"), ("five objects", f"five{five}", "several")):
        with rig.mounted(prefix) as target:
            files = _files(target)
            yield f"{name}, cold", rig.read(reader, files) / MB
            # What isn't in the page cache by now is there the second time.
            rig.read(reader, files)
            yield f"{name}, cached", rig.read(reader, files) / MB


def measure(stage: Stage) -> dict[str, Any]:
    """All of them, once: MB/s."""
    requests = [stage.amount(size, min(size, 1 * MB)) for size in REQUESTS]
    objects = [stage.amount(size, min(size, 4 * MB)) for size in OBJECTS]
    five = stage.amount(200 * MB, 2 * MB)
    wholes = {f"o{size}:1x{size}" for size in objects}
    for size in requests:
        for connections in CONNECTIONS:
            wholes.add(_rule(stage, size, connections))
    found: dict[str, Any] = {"requests": {}, "objects": {}, "cache": {}}
    with stage.bucket(*sorted(wholes), f"five{five}:5x{five}") as bucket:
        rig = _Rig(stage, bucket)
        for name, size, rate in _requests(stage, rig, sorted(set(requests))):
            found["requests"].setdefault(name, {})[size] = rate
        for name, size, rate in _objects(rig, sorted(set(objects))):
            found["objects"].setdefault(name, {})[size] = rate
        found["cache"] = dict(_cache(rig, objects[-1], five))
        whole = f"five{five}:5x{five}"
        options = [f"--synthetic={whole}", f"--part={8 << 20}", "--connections=64"]
        found["cache"]["by HTTP"] = float(stage.bare("get", *options, bucket=bucket)["mb_per_s"])
    return found


def merged(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of several."""
    first = trials[0]
    return {
        name: merged([trial[name] for trial in trials])
        if isinstance(first[name], dict)
        else statistics.median(trial[name] for trial in trials)
        for name in first
    }


def demand(rates: dict[str, float]) -> list[list[str]]:
    """Table 1's cells, and by what each is fed."""
    ways = [("1", "one object, cold"), ("5", "five objects, cold"), ("c", "one object, cached")]
    lines = []
    for workload, by_gpus in DEMAND.items():
        cells = []
        for wanted in by_gpus.values():
            by = next((mark for mark, way in ways if rates[way] >= wanted), "-")
            cells.append(f"{wanted:.0f} {by}")
        lines.append([workload, *cells])
    return lines


def shown(found: dict[str, Any]) -> str:
    """As tables."""
    lines = []
    for part, title in (("requests", "requests of one size (Fig. 2)"), ("objects", "one object, cold, by its size")):
        names = list(found[part])
        lines += ["", f"| MB/s: {title} | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
        for size in found[part][names[0]]:
            label = f"{size / MB:g} MB" if size >= MB else f"{size / 1024:g} KiB"
            lines.append(f"| {label} | {' | '.join(f'{found[part][name][size]:.3g}' for name in names)} |")
    lines += ["", "| one request after the other (Fig. 3) | ms |", "| --- | --- |"]
    for size, rate in found["requests"]["1 at a time"].items():
        lines.append(f"| {size / 1024:g} KiB | {size / rate / 1000:.3g} |")
    lines += ["", "| MB/s (Fig. 4) | here | published |", "| --- | --- | --- |"]
    for name, rate in found["cache"].items():
        lines.append(f"| {name} | {rate:.0f} | {PUBLISHED.get(name, '')} |")
    lines += ["", "| Table 1: MB/s, and what feeds it | 1 GPU | 2 | 4 | 8 |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(cells)} |" for cells in demand(found["cache"])]
    lines += ["", "1: one object that nobody has read; 5: five of them; c: one that was read before; -: none of these."]
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """As plots."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(12, 9), constrained_layout=True)
    for name, rates in found["requests"].items():
        axes[0][0].loglog(list(rates), list(rates.values()), marker="o", label=name)
    axes[0][0].set(title="Fig. 2: requests of one size", xlabel="bytes", ylabel="MB/s")
    single = found["requests"]["1 at a time"]
    axes[0][1].loglog(list(single), [size / rate / 1000 for size, rate in single.items()], marker="o")
    axes[0][1].set(title="Fig. 3: one request", xlabel="bytes", ylabel="ms")
    for name, rates in found["objects"].items():
        axes[1][0].loglog(list(rates), list(rates.values()), marker="o", label=name)
    axes[1][0].set(title="One object, cold, by its size", xlabel="bytes", ylabel="MB/s")
    names = list(found["cache"])
    axes[1][1].barh(names[::-1], [found["cache"][name] for name in names][::-1], label="here")
    axes[1][1].plot(
        [PUBLISHED.get(name, 0) for name in names][::-1], names[::-1], "k|", markersize=20, label="published"
    )
    axes[1][1].set(title="Fig. 4: not cached and cached", xlabel="MB/s", xscale="log")
    for axis in (axes[0][0], axes[1][0], axes[1][1]):
        axis.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measures, and says what came out."""
    parser = argparse.ArgumentParser(prog="python -m bench.papers.objects", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--trials", type=int, default=3, help="medians of so many (3)")
    parser.add_argument("--quick", action="store_true", help="little data; numbers that mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all numbers")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draws them")
    given = parser.parse_args()
    stage = Stage(quick=given.quick)
    try:
        trials = [measure(stage) for _ in range(1 if given.quick else given.trials)]
    finally:
        stage.close()
    found = merged(trials)
    print(shown(found))
    if given.json:
        given.json.write_text(json.dumps({"medians": found, "trials": trials, "machine": machine.describe()}, indent=1))
    if given.plot:
        draw(found, given.plot)


if __name__ == "__main__":
    main()
