#!/usr/bin/env python3
"""The papers' simulated experiments, one command each: published figures beside ours, and why they differ.

    python bench/papers/run.py scenario-1 | scenario-2 | scenario-3-openimages | scenario-3-places | scenario-4 | scenario-5
    python bench/papers/run.py what-if | sc21 | accesses | lemma-1 | deli | table-ii | thousand-nodes
    python bench/papers/run.py all            everything (about ten minutes)

Scenarios are the TOML files in `scenarios/`; the simulator is the program `foreload-sim`, built with
`cargo build --release -p foreload-sim`. Nothing but the standard library is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import published

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENDS = ("sent", "received")
SCENARIOS = [p.stem for p in sorted((HERE / "scenarios").glob("scenario-*.toml"))]


class Simulator:
    """The `foreload-sim` program."""

    def __init__(self, program: Path | None) -> None:
        #: What it was asked and what it answered, in order.
        self.answers: list[dict[str, Any]] = []
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        self.program = program or target / "release" / "foreload-sim"
        if program is None:
            # A moment where it is up to date.
            subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "foreload-sim"], cwd=ROOT, check=True)

    def run(self, scenario: str, policies: list[str] = [], sets: dict[str, Any] = {}) -> dict[str, Any]:  # noqa: B006
        """The report of a shipped scenario; no policies mean all."""
        command = [str(self.program), str(HERE / "scenarios" / f"{scenario}.toml"), "--json"]
        for policy in policies:
            command += ["--policy", policy]
        # What is published beside them was made with the array-based models.
        for key, value in {"drive": "fast", **sets}.items():
            command += ["--set", f"{key}={value}"]
        return self._json(command)

    def ask(self, what: str) -> dict[str, Any]:
        """A report that needs no scenario."""
        return self._json([str(self.program), what])

    def _json(self, command: list[str]) -> dict[str, Any]:
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        except OSError as error:
            sys.exit(f"--sim {self.program} can't be run: {error.strerror}")
        if done.returncode != 0:
            sys.exit(done.stderr)
        report: dict[str, Any] = json.loads(done.stdout)
        words = [word.removeprefix(f"{ROOT}/") for word in command[1:]]
        self.answers.append({"arguments": words, "report": report})
        return report


def heading(text: str) -> None:
    """Prints a title."""
    print(f"\n{text}\n{'=' * len(text)}")


def table(rows: list[list[str]]) -> None:
    """Prints rows of cells, the first one as heads; numbers stand right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def scenario(sim: Simulator, name: str, policies: list[str]) -> None:
    """Sec. 6.1 of paper 001: all policies on one scenario (one group of bars of its Fig. 7)."""
    report = sim.run(name, policies)
    heading(f"{name}: {report['dataset_mb'] / 1024:.1f} GB, lower bound {report['lower_bound_hours']:.4f} h")
    rows = [["policy", "hours", "/bound", "stall h", "ram %", "disk %", "peer %", "source %", "reads all", "in order"]]
    for r in report["results"]:
        if not r["supported"]:
            rows.append([r["policy"], "cannot", *[""] * 8])
            continue
        mb = r["mb_by_source"]
        total = sum(mb.values()) or 1.0
        shares = [f"{100 * mb[k] / total:.1f}" for k in ("ram", "disk", "peer", "source")]
        flags = ["yes" if r[k] else "no" for k in ("reads_whole_dataset", "keeps_order")]
        ratio = r["hours"] / report["lower_bound_hours"]
        rows.append([r["policy"], f"{r['hours']:.4f}", f"{ratio:.3f}", f"{r['stall_hours']:.4f}", *shares, *flags])
    table(rows)
    for r in report["results"]:
        if name == "thousand-nodes" and r.get("fabric"):
            between_nodes(r["policy"], r["fabric"], report["nodes"])
    hours = {r["policy"]: r["hours"] for r in report["results"] if r["supported"]}
    for line in published.scenario(name, hours, report["lower_bound_hours"]):
        print(f"- {line}")
    if name == "scenario-3-openimages" and "frequency" in hours:
        joined = sim.run(name, ["frequency"], {"source.overlap": "join"})["results"][0]["hours"]
        print(
            f"- overlap = join, so that a sample that somebody reads from the source is not read by others at the same time: frequency {joined:.3f} h"
        )
    if name == "scenario-1":
        literal = sim.run(name, ["naive", "frequency"], {"source.share": "literal"})["results"]
        print(f"- share = literal: naive / frequency = {literal[0]['hours'] / literal[1]['hours']:.2f}")


def between_nodes(policy: str, fabric: dict[str, Any], nodes: int) -> None:
    """Traffic between the nodes: bytes, hot spots, incast, connections, and the cache groups that the tool proposes."""
    mean = fabric["peer_mb"] / nodes or float("nan")
    busiest = {
        end: f"{fabric[f'most_{end}_mb']:.0f} MB ({fabric[f'most_{end}_mb'] / mean:.3f} x the mean)" for end in ENDS
    }
    queues = f"{1000 * fabric['most_queued_s']:.3f} ms at a sender's tier or network"
    print(f"\nBetween the nodes, {policy}")
    print(
        f"- {fabric['peer_mb'] / 1024:.1f} GB; the busiest node sends {busiest['sent']} and receives {busiest['received']}"
    )
    print(f"- longest queues: {queues}, {1000 * fabric['most_received_queue_s']:.3f} ms at a receiver (incast)")
    print(
        f"- {fabric['connections_per_node']} connections per node; proposed: cache groups of {fabric['cache_group_nodes']} nodes, "
        f"for which the source gives {fabric['cache_group_source_mb'] / 1024:.1f} GB"
    )


def what_if(sim: Simulator) -> None:
    """Sec. 6.2 of paper 001: staging sizes, and the grid of RAM and slower storage (its Fig. 8)."""
    name, policy = "scenario-3-openimages", "frequency"
    heading("What-if study (001 sec. 6.2): scenario 3, policy frequency, hours")
    rows = [["staging MB", "shared, with tiers", "shared, none", "literal, with tiers", "literal, none"]]
    bare = {"tier.ram.capacity_mb": 0, "tier.disk.capacity_mb": 0}
    for staging in (1024, 2048, 4096):
        cells = [str(staging)]
        for share in ("shared", "literal"):
            for tiers in ({}, bare):
                sets = {"source.share": share, "tier.staging.capacity_mb": staging, **tiers}
                cells.append(f"{sim.run(name, [policy], sets)['results'][0]['hours']:.3f}")
        rows.append(cells)
    table(rows)
    for line in published.WHAT_IF:
        print(f"- {line}")
    for share in ("shared", "literal"):
        for policy in ("frequency", "foreload"):
            print(f"\nAdded RAM (down) and slower storage, 100 MB/s (across), staging 4 GB, {share}, {policy}: hours")
            disks = (0, 20, 40, 80)
            grid = [["RAM GB", *[f"+{d} GB" for d in disks]]]
            for ram in (0, 10, 20, 40):
                cells = [str(ram)]
                for disk in disks:
                    sets = {
                        "source.share": share,
                        "tier.staging.capacity_mb": 4096,
                        "tier.ram.capacity_mb": ram * 1024,
                        "tier.disk.capacity_mb": disk * 1024,
                        "tier.disk.read_mb_s": 100,
                    }
                    cells.append(f"{sim.run(name, [policy], sets)['results'][0]['hours']:.3f}")
                grid.append(cells)
            table(grid)


def accesses(sim: Simulator) -> None:
    """Sec. 3.2 of paper 001: samples that one worker reads more than 275 times."""
    report = sim.ask("--accesses")
    heading("Access counts (001 sec. 3.2): N=4, E=1000, F=10000, delta=0.1")
    counts = [n for run in report["monte_carlo"] for n in run]
    mean = sum(counts) / len(counts)
    table(
        [
            ["figure", "published", "reproduced"],
            ["expected, event X > 275", "about 323", f"{report['expected']:.2f}"],
            ["the sum as printed, from 275", "", f"{report['expected_as_printed']:.2f}"],
            ["Monte Carlo", "329", f"{mean:.1f} ({min(counts)}..{max(counts)}, {len(counts)} workers)"],
        ]
    )
    print(f"- {published.ACCESSES}")


def lemma_1(sim: Simulator) -> None:
    """Lemma 1 of paper 001 on simulated epochs."""
    heading("Lemma 1 (001 sec. 3.2), checked on every sample and worker of 100 simulated epochs")
    rows = [["workers", "pairs checked", "contradictions"]]
    for check in sim.ask("--accesses")["lemma_1"]:
        held = check["pairs"] is not None
        rows.append([str(check["workers"]), str(check["pairs"] or "-"), "none" if held else "found"])
    table(rows)


def deli(sim: Simulator) -> None:
    """Paper 000: miss rates and data-loading times."""
    for workload in ("deli-mnist", "deli-cifar"):
        heading(f"DELI (000 sec. V): {workload}, epochs 1 and 2")
        rows = [
            ["cache", "fetch", "threshold", "miss measured", "miss simulated", "load s measured", "load s simulated"]
        ]
        for run in published.DELI[workload]:
            sets = {f"deli.{k}_samples": run[k] for k in ("cache", "fetch", "threshold")}
            r = sim.run(workload, ["deli"], sets)["results"][0]
            cells = [str(run["cache"] or "all"), str(run["fetch"] or "none"), str(run["threshold"])]
            cells += [pair(run["miss"], 3), pair(r["miss_rate"], 3), pair(run["load_s"], 0), pair(r["load_s"], 0)]
            rows.append(cells)
        table(rows)
        bucket = published.BUCKET_LOAD_S[workload]
        ours = sim.run(workload, ["deli"])["results"][0]["load_s"]
        saved = 100 * (1 - sum(ours) / sum(bucket))
        print(
            f"- 50/50 against reading the bucket directly: published {published.SAVED[workload]} %, here {saved:.1f} % less loading time"
        )
    for line in published.DELI_NOTES:
        print(f"- {line}")


def pair(values: list[float] | None, digits: int) -> str:
    """Both epochs of a figure."""
    return "" if values is None else " ".join(f"{v:.{digits}f}" for v in values)


def table_ii(sim: Simulator) -> None:
    """Paper 000, Table II: dollars."""
    heading("Cost (000 Table II): printed / computed, in dollars for two epochs on three nodes")
    report = sim.ask("--table-ii")
    rows = [["workload, method", *report["columns"]]]
    exact = cells_in_all = 0
    for row in report["rows"]:
        cells = [f"{row['workload']}: {row['method']}"]
        for printed, computed in zip(row["printed"], row["computed"], strict=True):
            if printed is None:
                cells.append("n/a")
                continue
            same = round(computed, 2) == printed
            exact, cells_in_all = exact + same, cells_in_all + 1
            cells.append(f"{printed:.2f} / {computed:.4f}{' ' if same else '*'}")
        rows.append(cells)
    table(rows)
    print(f"- {exact} of {cells_in_all} cells are exact, the others (*) differ by a cent")
    print(f"- {published.TABLE_II}")


def main() -> None:
    """Runs what was asked for."""
    studies = {"what-if": what_if, "accesses": accesses, "lemma-1": lemma_1, "deli": deli, "table-ii": table_ii}
    bars = {"sc21": "sc21-imagenet22k", "thousand-nodes": "thousand-nodes", **{s: s for s in SCENARIOS}}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="+", choices=[*bars, *studies, "all"])
    parser.add_argument("--policy", action="append", default=[], help="only these, for scenarios")
    parser.add_argument("--sim", type=Path, help="the foreload-sim program")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes what was simulated, with the commit")
    arguments = parser.parse_args()
    sim = Simulator(arguments.sim)
    chosen = [*bars, *studies] if "all" in arguments.experiment else arguments.experiment
    results: dict[str, Any] = {}
    for name in chosen:
        sim.answers = []
        if name in bars:
            scenario(sim, bars[name], arguments.policy)
        else:
            studies[name](sim)
        results[name] = sim.answers
    if arguments.json is not None:
        git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
        found = {
            "commit": commit,
            "command": " ".join(["bench/papers/run.py", *arguments.experiment]),
            "experiments": results,
        }
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
