#!/usr/bin/env python3
"""Paper 003's experiments on real processes: a program that maps an LMDB file on a slow store, and computes on each record (its Figs. 7 and 8).

    python -m bench.papers.mapped [--records 4000] [--trials 3] [--compute-ms 2] [--parts four sweep processes] [--json FILE] [--plot FILE]

*four*: the paper's four configurations (baseline, detection only, prefetch, warm cache), with its own mechanism (`--detector mprotect`), the same with guard pages, and ours (`poll`). *sweep*: distances between checkpoints, and
sizes that are fetched at a time. *processes*: two processes that read one file, each a contiguous half, or each every other record (its section 2.3). The store is mounted anew for each run, so that nothing is in memory; of a warm one
the second run on a mount counts. Computing is a sleep. All runs must find the same records. Needs FUSE, lmdb, and what `make bench` installs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import machine
from bench.stage import ROOT, SlowFs
from foreload._mapped import preload

RECORD_BYTES, MIB = 196_608, 1 << 20
#: The store: each open and read, each read's own bandwidth, and that of all together.
DELAY_MS, REQUEST_MB_S, MB_S = 5.0, 100, 400.0
#: The paper names 8 and 10 MiB, and 50; of its six pairs the others aren't in the text. A distance is a quarter of a size at most.
SWEEP = [(8, 50), (10, 50), (8, 100), (25, 100), (10, 200), (50, 200)]


@dataclass(frozen=True)
class Way:
    """One way to read.

    Attributes:
        name: What it is called.
        detector: Of `foreload run`; none: the program alone.
        fetches: Whether anything is fetched ahead.
        warm: Whether all is in memory.
        distance: MiB between checkpoints.
        size: MiB that are fetched at a time.
    """

    name: str
    detector: str | None = None
    fetches: bool = True
    warm: bool = False
    distance: int = 8
    size: int = 50


def ways() -> list[Way]:
    """The four configurations, with each detector that works here."""
    detectors = ["mprotect", *(["guard"] if preload.has_guard_pages() else []), "poll"]
    return [
        Way("baseline"),
        *(Way(f"{each}, detection only", each, fetches=False) for each in detectors),
        *(Way(f"{each}, prefetch", each) for each in detectors),
        Way("warm cache", warm=True),
    ]


# -- the program -----------------------------------------------------------------------------------------------------


def read(path: str, order: str, nth: int, of: int, compute_s: float) -> None:
    """Says `ready`, waits for a line, reads its records and computes on each, and says how long that took and what it found."""
    import lmdb

    with lmdb.open(path, subdir=False, readonly=True, lock=False) as env:
        count = env.stat()["entries"]
        mine = range(nth * count // of, (nth + 1) * count // of) if order == "contiguous" else range(nth, count, of)
        print("ready", flush=True)
        sys.stdin.readline()
        begun, found = time.perf_counter(), 0
        with env.begin(buffers=True) as transaction:
            for number in mine:
                found += zlib.crc32(transaction.get(b"%08d" % number))
                time.sleep(compute_s)
    print(json.dumps({"seconds": time.perf_counter() - begun, "found": found}), flush=True)


# -- runs ------------------------------------------------------------------------------------------------------------


class Rig:
    """The file, and a store that is mounted for each run."""

    def __init__(self, scratch: Path, records: int, compute_s: float) -> None:
        """Writes the file."""
        import lmdb
        import numpy as np

        self.source, self.target, self.stats = scratch / "source", scratch / "target", scratch / "stats"
        self.compute_s, self.bytes = compute_s, records * RECORD_BYTES
        self.found: int | None = None
        self.source.mkdir()
        self.target.mkdir()
        dice, room = np.random.default_rng(1), 2 * self.bytes + (64 << 20)
        with lmdb.open(str(self.source / "data.mdb"), subdir=False, map_size=room, lock=False) as env:
            for begin in range(0, records, 100):
                with env.begin(write=True) as transaction:
                    for number in range(begin, min(begin + 100, records)):
                        transaction.put(b"%08d" % number, dice.bytes(RECORD_BYTES))

    @contextmanager
    def _mounted(self) -> Iterator[Callable[[], int]]:
        options = ["--keep-cache", f"--request-mb-s={REQUEST_MB_S}"]
        with SlowFs(self.source, self.target, delay_ms=DELAY_MS, mb_s=MB_S, options=options) as store:

            def read_bytes() -> int:
                said = Path(f"/proc/{store.pid}/io").read_text()
                return int(said.split("rchar: ")[1].split("\n")[0])

            yield read_bytes

    def _environment(self, way: Way) -> dict[str, str]:
        if way.detector is None:
            return dict(os.environ)
        if way.detector == "poll":
            window = None if way.fetches else 0
            return preload.environment(["*.mdb"], detector="poll", window=window, stats=self.stats)
        size = way.size * MIB if way.fetches else 0
        return preload.environment(
            ["*.mdb"], detector=way.detector, distance=way.distance * MIB, size=size, stats=self.stats
        )

    def run(self, way: Way, order: str = "contiguous", processes: int = 1) -> dict[str, Any]:
        """Seconds until all processes are through, what was fetched over what is there, and what the library says of itself."""
        with self._mounted() as read_bytes:
            for _ in range(1 + way.warm):
                before = read_bytes()
                self.stats.write_text("")
                seconds, found = self._once(way, order, processes)
            fetched = read_bytes() - before
        if self.found is None:
            self.found = found
        if found != self.found:
            raise RuntimeError(f"{way.name}, {order}: other records were found than before")
        lines = [json.loads(line) for line in self.stats.read_text().splitlines()]
        if way.detector is not None and (len(lines) < processes or any(line["off"] for line in lines)):
            raise RuntimeError(f"{way.name}: the library wasn't at work: {lines}")
        return {"seconds": seconds, "fetched": fetched / self.bytes, "library": lines}

    def _once(self, way: Way, order: str, processes: int) -> tuple[float, int]:
        environment, path = self._environment(way), str(self.target / "data.mdb")
        module = [
            sys.executable,
            "-m",
            "bench.papers.mapped",
            "--reader",
            path,
            "--compute-ms",
            f"{self.compute_s * 1000}",
        ]
        running = [
            subprocess.Popen(
                [*module, "--order", order, "--part", str(nth), str(processes)],
                env=environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for nth in range(processes)
        ]
        try:
            for each in running:
                assert each.stdout is not None
                if each.stdout.readline() != "ready\n":
                    raise RuntimeError("a reader couldn't begin")
            begun = time.perf_counter()
            for each in running:
                assert each.stdin is not None
                each.stdin.write("\n")
                each.stdin.flush()
            said = [json.loads(each.communicate(timeout=600)[0]) for each in running]
            seconds = time.perf_counter() - begun
        finally:
            for each in running:
                each.kill()
                each.wait()
        return said[0]["seconds"] if processes == 1 else seconds, sum(each["found"] for each in said)


@dataclass(frozen=True)
class Run:
    """What is measured at a time: its part and name, and how it is read."""

    part: str
    name: str
    way: Way
    order: str = "contiguous"
    processes: int = 1


def planned(parts: list[str]) -> list[Run]:
    """All runs of these parts."""
    both = (Way("baseline"), Way("mprotect", "mprotect"), Way("poll", "poll"))
    four = [Run("four", way.name, way) for way in ways()]
    sweep = [
        Run("sweep", f"distance {distance}, size {size}", Way("", "mprotect", distance=distance, size=size))
        for distance, size in SWEEP
    ]
    processes = [
        Run("processes", f"{order}, {way.name}", way, order, 2) for order in ("contiguous", "skipping") for way in both
    ]
    return [run for run in (*four, *sweep, *processes) if run.part in parts]


def measure(rig: Rig, parts: list[str], trials: int) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """All of them, in turn."""
    results: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for trial in range(trials):
        for run in planned(parts):
            found = rig.run(run.way, run.order, run.processes)
            results.setdefault(run.part, {}).setdefault(run.name, []).append(found)
            print(
                f"{trial + 1}/{trials} {run.part}: {run.name}: {found['seconds']:.2f} s, fetched {found['fetched']:.2f}",
                flush=True,
            )
    return results


# -- what comes out --------------------------------------------------------------------------------------------------


def middle(runs: list[dict[str, Any]], what: str = "seconds") -> float:
    """The median over trials."""
    return statistics.median(run[what] for run in runs)


def table(results: dict[str, dict[str, list[dict[str, Any]]]]) -> Iterator[str]:
    """Medians, each against the baseline and the warm cache."""
    four = results.get("four", {})
    base, warm = four.get("baseline"), four.get("warm cache")
    for part, by_name in results.items():
        yield f"\n{part}: seconds (least to most), bytes fetched / there" + (
            ", over warm" if warm and part != "processes" else ""
        )
        for name, runs in by_name.items():
            seconds = [run["seconds"] for run in runs]
            line = f"  {name:28} {middle(runs):7.2f} ({min(seconds):.2f} to {max(seconds):.2f}) {middle(runs, 'fetched'):6.2f}"
            if warm and part != "processes":
                line += f" {middle(runs) / middle(warm):6.3f}"
            if base and part == "four":
                line += f"   {middle(runs) / middle(base) - 1:+.0%} against the baseline"
            yield line


def draw(report: dict[str, Any], path: Path) -> None:
    """A panel for each part: bars of medians, whiskers from the least to the most."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    titles = {
        "four": "the four configurations (paper 003, Fig. 7)",
        "sweep": "distance and size, MiB: mprotect, prefetch (Fig. 8)",
        "processes": "two processes on one file",
    }
    parts = report["results"]
    figure, axes = plt.subplots(1, len(parts), figsize=(6 * len(parts), 5), constrained_layout=True, squeeze=False)
    warm = parts.get("four", {}).get("warm cache")
    for ax, (part, by_name) in zip(axes[0], parts.items(), strict=True):
        middles = [middle(runs) for runs in by_name.values()]
        least = [at - min(run["seconds"] for run in runs) for at, runs in zip(middles, by_name.values(), strict=True)]
        most = [max(run["seconds"] for run in runs) - at for at, runs in zip(middles, by_name.values(), strict=True)]
        ax.bar(range(len(middles)), middles, yerr=[least, most], capsize=3)
        ax.set_xticks(range(len(middles)), list(by_name), rotation=35, ha="right", fontsize=8)
        if warm and part == "sweep":
            ax.axhline(middle(warm), color="gray", linestyle="--", linewidth=1, label="warm cache")
            ax.legend(fontsize=8)
        ax.set_title(titles[part], loc="left", fontsize=10)
    axes[0][0].set_ylabel("seconds")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Measures, or is one of the readers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000, help=f"records of {RECORD_BYTES:,} bytes (4,000)")
    parser.add_argument("--trials", type=int, default=3, help="repetitions, interleaved (3)")
    parser.add_argument("--compute-ms", type=float, default=2.0, help="what a record is computed on (2)")
    parser.add_argument("--parts", nargs="*", default=["four", "sweep", "processes"], help="what is measured (all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draws them")
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    parser.add_argument("--order", default="contiguous", help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, nargs=2, default=[0, 1], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        read(arguments.reader, arguments.order, *arguments.part, arguments.compute_ms / 1000)
        return
    with tempfile.TemporaryDirectory(prefix="mapped-") as scratch:
        rig = Rig(Path(scratch), arguments.records, arguments.compute_ms / 1000)
        results = measure(rig, arguments.parts, arguments.trials)
    print("\n".join(table(results)))
    report = {
        "command": "python -m bench.papers.mapped " + " ".join(sys.argv[1:]),
        "commit": machine.commit(ROOT),
        "machine": machine.describe(),
        "settings": {
            "store": f"FUSE, {DELAY_MS:g} ms for each open and read, {REQUEST_MB_S} MB/s for each read and {MB_S:g} MB/s in all; mounted anew for each run; the kernel's window 128 KiB",
            "data": f"an LMDB file of {arguments.records:,} records of {RECORD_BYTES:,} bytes, read in order",
            "compute_ms": arguments.compute_ms,
            "mprotect, guard": "distance 8 MiB and size 50 MiB, unless said otherwise",
            "poll": "the defaults of `foreload run`",
            "processes": "two that begin together, until both are through",
        },
        "results": results,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.plot:
        draw(report, arguments.plot)


if __name__ == "__main__":
    main()
