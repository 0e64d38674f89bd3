#!/usr/bin/env python3
"""Paper 000's experiment on real processes: three nodes, two epochs, an object for each sample and about 50 ms for each GET.

    python -m bench.papers.deli [--workload mnist|cifar] [--trials 3] [--full] [--only NAME ...] [--json FILE] [--plot FILE]

Each node is a process with an agent of its own. It takes its samples one after the other, as the paper's data set does, and computes (sleeps) after each
batch for as long as the paper's models did. What is compared: local files, direct reads, a cache without prefetching, the paper's prefetching (policy
`deli`) with several fetch sizes, caches and thresholds, and our default, without and with peers.

A tenth of the samples is the usual size, with caches, fetch sizes and batches scaled; `--full` takes all of them, for hours. Loading time is what a loop
waits for its samples; a miss is a sample that it waited for longer than a lookup takes (`MISS_S`). Trials that mostly wait run side by side; what is fast
runs alone. Needs torch, and what `make bench` installs.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import statistics
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, DistributedSampler

import foreload as fl
import foreload.torch
from bench import machine
from bench.papers import processes, published
from bench.papers.processes import Node
from bench.stage import ROOT, Bucket
from foreload import cost
from foreload.torch import DataLoader

NODES, EPOCHS, BATCH = 3, 2, 512
#: A wait that is longer was for a GET: those take 30 ms and more, a sample in memory far less than one.
MISS_S = 0.01
#: What the authors measured for a GET: 53.5 and 54.9 ms on average.
PROFILE = {"first_byte_ms": 51.5, "first_byte_sigma": 0.3}


@dataclass(frozen=True)
class Workload:
    """What the paper trains on: 70 % of a data set.

    Attributes:
        name: Its scenario's name.
        samples: Of all nodes.
        size: Bytes of an object.
        compute_s: What a node computes for each sample.
    """

    name: str
    samples: int
    size: int
    compute_s: float


WORKLOADS = {
    "mnist": Workload("deli-mnist", 42_000, 280, 14.7 / 14_000),
    "cifar": Workload("deli-cifar", 35_000, 2_200, 147.2 / 11_667),
}


@dataclass(frozen=True)
class Setup:
    """One way to load.

    Attributes:
        name: What it is called.
        door: `disk`, `direct`, `deli` or `default`.
        cache: Samples that a node keeps; 0: all.
        fetch: Samples of a fetch; 0: none are fetched ahead.
        threshold: Samples left at which the next fetch begins.
        peers: Whether nodes share.
    """

    name: str
    door: str
    cache: int = 0
    fetch: int = 0
    threshold: int = 0
    peers: bool = False

    @property
    def is_slow(self) -> bool:
        """Whether it mostly waits, so that others can run beside it."""
        return self.door in ("direct", "deli")


def setups(workload: Workload, scale: int) -> list[Setup]:
    """Those of the paper and ours, scaled."""
    found = [Setup("disk", "disk"), Setup("direct", "direct")]
    for run in published.DELI[workload.name]:
        cache, fetch, threshold = (round(run[name] / scale) for name in ("cache", "fetch", "threshold"))
        told = f"cache {cache or 'unlimited'}" + (f", fetch {fetch}, threshold {threshold}" if fetch else ", no fetch")
        found.append(Setup(told, "deli", cache, fetch, threshold))
    return [*found, Setup("default", "default"), Setup("default, peers", "default", peers=True)]


class Files(Dataset[bytes]):
    """Local files."""

    def __init__(self, directory: str) -> None:
        self.paths = sorted(Path(directory).iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        return self.paths[index].read_bytes()


class Direct(Dataset[bytes]):
    """One GET for each sample, over one connection."""

    def __init__(self, endpoint: str, keys: Sequence[str]) -> None:
        self.keys = keys
        self.connection = http.client.HTTPConnection(urllib.parse.urlsplit(endpoint).netloc, timeout=60)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> bytes:
        self.connection.request("GET", f"/bench/{self.keys[index]}")
        answer = self.connection.getresponse()
        body = answer.read()
        assert answer.status == 200, answer.status
        return body


@dataclass(frozen=True)
class Task:
    """What a node does; see `loads`."""

    setup: Setup
    workload: Workload
    seed: int
    samples: int
    batch: int
    endpoint: str
    directory: str


def _passes(task: Task, node: Node) -> tuple[Callable[[int], Iterator[Any]], Callable[[], dict[str, Any]]]:
    """How an epoch is begun, and what a loader has counted."""
    setup = task.setup
    if setup.door in ("disk", "direct"):
        data: Any = Files(task.directory)
        if setup.door == "direct":
            opened = fl.open("s3://bench/deli", storage_options=_options(task))
            data = Direct(task.endpoint, [f"deli/{opened.key(number)}" for number in range(task.samples)])
        sampler: Any = DistributedSampler(data, NODES, node.rank, seed=task.seed)

        def begin(epoch: int) -> Iterator[Any]:
            sampler.set_epoch(epoch)
            return (data[index] for index in sampler)

        return begin, dict
    opened = fl.open("s3://bench/deli", storage_options=_options(task))
    cache = fl.Cache(ram="512MB", peers=fl.Peers(meet=node.meet) if setup.peers else False)
    order: dict[str, Any] = {"shuffle": True, "seed": task.seed, "epochs": EPOCHS}
    if setup.door == "default":
        ours = DataLoader(opened, 1, raw="bytes", cache=cache, **order)
        return lambda _: iter(ours), ours.stats
    # The paper's shape: torch's loader asks for one sample, and for the next when it has that one.
    dataset = foreload.torch.Dataset(opened, raw="bytes", cache=cache)
    numbers = {"cache": setup.cache, "fetch": setup.fetch, "threshold": setup.threshold}
    course = foreload.torch.Sampler(dataset, batch_size=1, policy={"deli": numbers}, **order)
    stock: Any = TorchLoader(dataset, 1, sampler=course, collate_fn=list)
    return lambda _: iter(stock), course.run().stats


def _options(task: Task) -> dict[str, str]:
    return {"endpoint_url": task.endpoint, "anonymous": "true", "region": "us-east-1", "allow_http": "true"}


def loads(task: Task, node: Node) -> dict[str, Any]:
    """A node: reads its epochs, and says what it waited and missed in each."""
    begin, stats = _passes(task, node)
    epochs = []
    for epoch in range(EPOCHS):
        waits: list[float] = []
        asked = time.perf_counter()
        for _ in begin(epoch):
            waits.append(time.perf_counter() - asked)
            if len(waits) % task.batch == 0:
                time.sleep(task.batch * task.workload.compute_s)
            asked = time.perf_counter()
        missed = sum(wait > MISS_S for wait in waits)
        epochs.append({"load_s": sum(waits), "miss": missed / len(waits), "samples": len(waits)})
    return {"epochs": epochs, "stats": {k: v for k, v in stats().items() if isinstance(v, (int, float))}}


def trial(workload: Workload, setup: Setup, number: int, scale: int) -> dict[str, Any]:
    """One run of three nodes over a bucket of their own: means over nodes, GETs and dollars of all."""
    samples = workload.samples // scale
    with tempfile.TemporaryDirectory(prefix="deli-") as directory:
        for sample in range(samples if setup.door == "disk" else 0):
            (Path(directory) / f"{sample:08}").write_bytes(random.Random(sample).randbytes(workload.size))
        with Bucket(synthetic=[f"deli:{samples}x{workload.size}"], anonymous=True) as bucket:
            bucket.set_profile(PROFILE)
            task = Task(setup, workload, number, samples, BATCH // scale, bucket.endpoint, directory)
            begun = time.monotonic()
            answers = processes.run(NODES, lambda node: loads(task, node))
            seconds = time.monotonic() - begun
            counted = bucket.counters()["requests"]
    epochs = [
        {what: statistics.mean(answer["epochs"][epoch][what] for answer in answers) for what in ("load_s", "miss")}
        for epoch in range(EPOCHS)
    ]
    usage = cost.Usage(
        nodes=NODES,
        hours=seconds / 3600,
        class_a_requests=counted.get("list", 0),
        class_b_requests=counted.get("get", 0) + counted.get("head", 0),
    )
    bill = cost.price(usage, "gcs")
    return {
        "epochs": epochs,
        "seconds": seconds,
        "requests": counted,
        "gets_per_sample": counted.get("get", 0) / samples,
        "dollars": {"requests": bill.requests, "machines": bill.instances},
        "nodes": answers,
    }


def measure(workload: Workload, chosen: list[Setup], trials: int, scale: int) -> dict[str, list[dict[str, Any]]]:
    """All trials of all setups: those that wait side by side, a trial of each at a time; the others alone."""
    results: dict[str, list[dict[str, Any]]] = {}
    for setup in chosen:
        with ThreadPoolExecutor(trials if setup.is_slow else 1) as pool:
            runs = [pool.submit(trial, workload, setup, number, scale) for number in range(trials)]
            results[setup.name] = [run.result() for run in runs]
        print(line(setup.name, results[setup.name]), flush=True)
    return results


def mean(runs: list[dict[str, Any]], what: str, epoch: int) -> float:
    """Over trials."""
    return statistics.mean(run["epochs"][epoch][what] for run in runs)


def deviation(runs: list[dict[str, Any]], what: str, epoch: int) -> float:
    """Between trials."""
    return statistics.pstdev(run["epochs"][epoch][what] for run in runs)


def line(name: str, runs: list[dict[str, Any]]) -> str:
    """A row of what is printed."""
    cells = [f"{name:45}"]
    for epoch in range(EPOCHS):
        cells.append(f"{mean(runs, 'load_s', epoch):8.2f} s ± {deviation(runs, 'load_s', epoch):5.2f}")
        cells.append(f"{100 * mean(runs, 'miss', epoch):5.1f} %")
    cells.append(f"{statistics.mean(run['gets_per_sample'] for run in runs):6.3f} GETs a sample")
    cells.append(f"${statistics.mean(sum(run['dollars'].values()) for run in runs):.4f}")
    return "  ".join(cells)


def less(results: dict[str, list[dict[str, Any]]], name: str) -> float | None:
    """Per cent less loading time than direct reads, over both epochs."""
    if name not in results or "direct" not in results:
        return None
    took = [sum(mean(results[which], "load_s", epoch) for epoch in range(EPOCHS)) for which in (name, "direct")]
    return 100 * (1 - took[0] / took[1])


def fifty(workload: Workload, scale: int) -> str:
    """The name of the paper's best: fetch and threshold are half of a cache of 2,048."""
    return next(s.name for s in setups(workload, scale) if s.cache == round(2048 / scale) and s.fetch == s.threshold)


def main() -> None:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=[*WORKLOADS], default="cifar")
    parser.add_argument("--trials", type=int, default=3, help="repetitions (3)")
    parser.add_argument("--full", action="store_true", help="all samples, not a tenth of them")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="setups whose name begins so")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draws what the paper's figures 3 to 9 show")
    arguments = parser.parse_args()
    workload, scale = WORKLOADS[arguments.workload], 1 if arguments.full else 10
    chosen = [
        setup
        for setup in setups(workload, scale)
        if not arguments.only or any(setup.name.startswith(name) for name in arguments.only)
    ]
    if not chosen:
        sys.exit(f"--only names none of: {'; '.join(setup.name for setup in setups(workload, scale))}")
    print(f"{workload.name}, {workload.samples // scale:,} samples, {NODES} nodes, {arguments.trials} trials")
    print("loading time and misses of epochs 1 and 2, means over nodes and trials\n")
    results = measure(workload, chosen, arguments.trials, scale)
    saved = {"published 50/50": published.SAVED[workload.name]}
    for name in (fifty(workload, scale), "default", "default, peers"):
        if (per_cent := less(results, name)) is not None:
            saved[name] = per_cent
    print("\nless loading time than direct reads: " + "; ".join(f"{k}: {v:.1f} %" for k, v in saved.items()))
    report = {
        "command": "python -m bench.papers.deli " + " ".join(sys.argv[1:]),
        "commit": machine.commit(ROOT),
        "machine": machine.describe(),
        "workload": {**asdict(workload), "samples": workload.samples // scale},
        "profile": PROFILE,
        "published": list(published.DELI[workload.name]),
        "published_direct_load_s": published.BUCKET_LOAD_S[workload.name],
        "less_loading_time_per_cent": saved,
        "setups": {setup.name: asdict(setup) for setup in chosen},
        "results": results,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.plot:
        draw(report, arguments.plot)


def draw(report: dict[str, Any], path: Path) -> None:
    """The paper's figures 3 to 9 as one picture: measured here in colour, published (scaled) in grey."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    results, known = report["results"], report["setups"]
    figure, axes = plt.subplots(2, 3, figsize=(16, 9), constrained_layout=True)
    names = list(results)
    ax = axes[0][0]
    for epoch in range(EPOCHS):
        values = [mean(results[name], "load_s", epoch) for name in names]
        errors = [deviation(results[name], "load_s", epoch) for name in names]
        places = [place + 0.4 * epoch for place in range(len(names))]
        ax.barh(places, values, 0.4, xerr=errors, label=f"epoch {epoch + 1}")
    ax.set_yticks([place + 0.2 for place in range(len(names))], names, fontsize=7)
    ax.set_title("Fig. 3: loading time, seconds", loc="left")
    ax.invert_yaxis()
    ax.legend()
    _scatter(axes[0][1], results, known)
    # An unlimited cache keeps what its node has read.
    whole = report["workload"]["samples"] // NODES

    def place(setup: dict[str, Any], what: str) -> int:
        return setup[what] or (whole if what == "cache" else 0)

    common = statistics.mode(setup["fetch"] for setup in known.values() if setup["cache"] and setup["fetch"])
    panels = [
        (axes[0][2], "Fig. 5: cache alone; the last is unlimited", "cache", lambda s: s["door"] == "deli" and not s["fetch"]),
        (axes[1][0], "Fig. 6: fetch size, cache unlimited", "fetch", lambda s: s["fetch"] and not s["cache"]),
        (axes[1][1], f"Fig. 7: cache, fetch size {common}, threshold 0", "cache", lambda s: s["fetch"] == common and s["cache"] and not s["threshold"]),
        (axes[1][2], f"Fig. 8, 9: threshold, fetch size {common}, twice the cache", "threshold", lambda s: s["fetch"] == common and s["cache"] > 1.5 * common),
    ]  # fmt: skip
    for ax, title, what, is_in in panels:
        shown = sorted((s for s in known.values() if is_in(s)), key=lambda s, what=what: place(s, what))
        for epoch in range(EPOCHS):
            values = [100 * mean(results[s["name"]], "miss", epoch) for s in shown]
            errors = [100 * deviation(results[s["name"]], "miss", epoch) for s in shown]
            ax.errorbar(
                [place(s, what) for s in shown], values, errors, marker="o", capsize=3, label=f"epoch {epoch + 1}"
            )
        ax.set_title(title, loc="left")
        ax.set_ylabel("misses, per cent")
        ax.set_ylim(bottom=0)
        with contextlib.suppress(ValueError):
            ax.legend()
    figure.suptitle(f"{report['workload']['name']}: {report['workload']['samples']:,} samples, {NODES} nodes")
    figure.savefig(path, dpi=120)


def _scatter(ax: Any, results: dict[str, Any], known: dict[str, Any]) -> None:
    """Loading time over misses, of all runs that fetch ahead."""
    for name, runs in results.items():
        if known[name]["fetch"]:
            for run in runs:
                ax.plot(
                    [100 * epoch["miss"] for epoch in run["epochs"]],
                    [epoch["load_s"] for epoch in run["epochs"]],
                    "o",
                    color="#0072B2",
                    alpha=0.5,
                )
    ax.set_title("Fig. 4: loading time over misses", loc="left")
    ax.set_xlabel("misses, per cent")
    ax.set_ylabel("seconds")


if __name__ == "__main__":
    main()
