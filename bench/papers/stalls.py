#!/usr/bin/env python3
"""Paper 001's measurement on real processes: stall time over the number of nodes, reading a slow file system that all of them share (its Figs. 9 to 11).

    python -m bench.papers.stalls [--nodes 1 2 4] [--trials 3] [--step-ms 20] [--json FILE] [--plot FILE]

Each node is a process with an agent of its own, and all go in step, as data-parallel training does; a step is a sleep. What is compared: torch's
`DataLoader` over the files with one and with four workers, our loader where each node has a cache of its own, paper 001's placement (`frequency`), and
ours with peers. A node's memory holds half of the data set, so that two nodes hold all of it together. Stall time is what the loops wait for batches: the
mean over nodes, for the first epoch and for the mean of the later ones. Needs FUSE, torch, and what `make bench` installs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

import foreload as fl
from bench import machine
from bench.papers import processes
from bench.papers.deli import Files
from bench.papers.processes import Node
from bench.stage import ROOT, SlowFs
from foreload.torch import DataLoader

COUNT, SIZE, BATCH, EPOCHS = 2_000, 110_000, 32, 3
#: The file system: all nodes together, and each open and read.
MB_S, DELAY_MS = 200.0, 5.0


@dataclass(frozen=True)
class Loader:
    """One way to load.

    Attributes:
        name: What it is called.
        workers: Of torch's own loader; 0: ours.
        policy: Of ours; empty: the default.
        peers: Whether nodes share.
    """

    name: str
    workers: int = 0
    policy: str = ""
    peers: bool = False


LOADERS = [
    Loader("torch, 1 worker", 1),
    Loader("torch, 4 workers", 4),
    Loader("ours, a cache per node"),
    Loader("frequency (paper 001), a cache per node", policy="frequency"),
    Loader("frequency (paper 001), peers", policy="frequency", peers=True),
    Loader("ours, peers", peers=True),
]


@dataclass(frozen=True)
class Task:
    """What a node does."""

    loader: Loader
    directory: str
    step_s: float
    ram: int


def _epochs(task: Task, node: Node) -> Iterator[Any]:
    """The loop's iterator of each epoch."""
    if task.loader.workers:
        files = Files(task.directory)
        sampler: Any = DistributedSampler(files, node.nodes, node.rank, seed=1, drop_last=True)
        stock: Any = data.DataLoader(
            files, BATCH, sampler=sampler, num_workers=task.loader.workers, collate_fn=list, persistent_workers=True,
            drop_last=True,
        )  # fmt: skip
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            yield iter(stock)
        return
    loader = DataLoader(
        fl.open(task.directory),
        BATCH,
        shuffle=True,
        drop_last=True,
        seed=1,
        epochs=EPOCHS,
        raw="bytes",
        cache=fl.Cache(ram=str(task.ram), peers=fl.Peers(meet=node.meet) if task.loader.peers else False),
        policy=task.loader.policy or None,
    )
    for _ in range(EPOCHS):
        yield iter(loader)


def stalls(task: Task, node: Node) -> list[float]:
    """A node: what it waited for its batches in each epoch, seconds."""
    found = []
    for batches in _epochs(task, node):
        waited = 0.0
        while True:
            node.step.wait()
            asked = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            del batch
            time.sleep(task.step_s)
        found.append(waited)
    return found


def trial(loader: Loader, directory: str, nodes: int, step_s: float) -> dict[str, float]:
    """One run: stall time of the first epoch, and the mean of the later ones; means over nodes, seconds."""
    task = Task(loader, directory, step_s, COUNT * SIZE // 2)
    answers = processes.run(nodes, lambda node: stalls(task, node))
    means = [statistics.mean(answer[epoch] for answer in answers) for epoch in range(EPOCHS)]
    return {"first": means[0], "later": statistics.mean(means[1:])}


def main() -> None:
    """Measures all loaders on all numbers of nodes, in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 2, 4], help="numbers of nodes (1 2 4)")
    parser.add_argument("--trials", type=int, default=3, help="repetitions, interleaved (3)")
    parser.add_argument("--step-ms", type=float, default=20.0, help="what a batch is computed on (20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draws stall time over nodes")
    arguments = parser.parse_args()
    results: dict[str, dict[int, list[dict[str, float]]]] = {
        loader.name: {nodes: [] for nodes in arguments.nodes} for loader in LOADERS
    }
    with tempfile.TemporaryDirectory(prefix="stalls-") as scratch:
        source, target = Path(scratch) / "source", Path(scratch) / "target"
        source.mkdir()
        target.mkdir()
        for number in range(COUNT):
            (source / f"{number:05}.bin").write_bytes(random.Random(number).randbytes(SIZE))
        with SlowFs(source, target, delay_ms=DELAY_MS, mb_s=MB_S):
            for _ in range(arguments.trials):
                for nodes in arguments.nodes:
                    for loader in LOADERS:
                        found = trial(loader, str(target), nodes, arguments.step_ms / 1000)
                        results[loader.name][nodes].append(found)
                        print(
                            f"{nodes} nodes, {loader.name}: {found['first']:.2f} s, later {found['later']:.2f} s",
                            flush=True,
                        )
    print(f"\nstall time of an epoch, seconds: the first, and later ones (medians of {arguments.trials})")
    for name, by_nodes in results.items():
        cells = [
            f"{nodes}: {middle(runs, 'first'):6.2f} {middle(runs, 'later'):6.2f}" for nodes, runs in by_nodes.items()
        ]
        print(f"{name:42} " + "   ".join(cells))
    report = {
        "command": "python -m bench.papers.stalls " + " ".join(sys.argv[1:]),
        "commit": machine.commit(ROOT),
        "machine": machine.describe(),
        "settings": {
            "file system": f"FUSE, {DELAY_MS:g} ms for each open and read, {MB_S:g} MB/s for all nodes together",
            "data": f"{COUNT:,} files of {SIZE:,} bytes, shuffled, {EPOCHS} epochs, batches of {BATCH} on each node",
            "step_ms": arguments.step_ms,
            "memory": "of a node: half of the data",
            "cpus": os.cpu_count(),
        },
        "results": results,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.plot:
        draw(report, arguments.plot)


def middle(runs: list[dict[str, float]], what: str) -> float:
    """The median over trials."""
    return statistics.median(run[what] for run in runs)


def draw(report: dict[str, Any], path: Path) -> None:
    """Stall time over nodes, one panel for the first epoch and one for the later ones."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(13, 5), constrained_layout=True, sharey=True)
    for ax, what, title in zip(axes, ("first", "later"), ("first epoch", "later epochs"), strict=True):
        for at, (name, by_nodes) in enumerate(report["results"].items()):
            width = 0.8 / len(report["results"])
            places = [place + at * width for place in range(len(by_nodes))]
            ax.bar(places, [max(1e-3, middle(runs, what)) for runs in by_nodes.values()], width, label=name)
        ax.set_xticks([place + 0.4 for place in range(len(by_nodes))], [f"{nodes} nodes" for nodes in by_nodes])
        ax.set_yscale("log")
        ax.set_title(title, loc="left")
    axes[0].set_ylabel("stall time of an epoch, seconds")
    axes[1].legend(fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
