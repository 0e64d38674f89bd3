"""Nodes that share their caches: four of them in network namespaces, each with a torchrun and an agent of its own (`tests/cluster.py`).

What nodes send each other goes over cables with a rate; the bucket and torch's store are reached on a second network. All run on this machine's CPUs, so seconds say less
than requests, bytes and shares. Ids and CRCs of every batch are compared with the plan and with what the bucket gives to a plain HTTP client, in every run.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.registry import Result
from bench.stage import Bucket, Fabric, Nodes, Stage, options_of

NODES = 4
#: Sizes of samples: of the runs that count, of the one that asks for pace, and of an image as they are in ImageNet.
SIZE, SMALL, USUAL = 64_000, 30_000, 110_000
SHARES = (0.25, 0.5, 0.75)
CAP_MBIT = 200
#: Memory for samples that pass through, and for batches, where the caches have sizes of their own.
PASSING = 8 << 20
#: What a step takes in the runs with a pace.
STEP_S = 0.02


class _Set:
    """A set of objects, and what they are, read without Foreload."""

    def __init__(self, bucket: Bucket, name: str, count: int) -> None:
        self.url, self.count, self.bucket = f"s3://bench/{name}", count, bucket
        self.name = name
        self.sums = [zlib.crc32(self.read(number)) for number in range(count)]

    def read(self, number: int) -> bytes:
        """An object, as it is."""
        with urllib.request.urlopen(f"{self.bucket.endpoint}/bench/{self.name}/{number:08}.bin", timeout=20) as answer:
            return bytes(answer.read())

    def copy(self, to: Path) -> None:
        """All objects as files."""
        for number in range(self.count):
            (to / f"{number:08}.bin").write_bytes(self.read(number))


class _Rig:
    """The fabric, the bucket and a run at a time."""

    def __init__(self, stage: Stage, fabric: Fabric, bucket: Bucket) -> None:
        self.stage, self.fabric, self.bucket = stage, fabric, bucket
        self.environment = {**bucket.environment(), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}

    def run(self, data: _Set, meanwhile: Callable[[Nodes], None] | None = None, **work: Any) -> dict[str, Any]:
        """A run; its ids and bytes are right when this returns."""
        run = Nodes(
            self.stage.directory(), NODES, fabric=self.fabric, environment=self.environment, url=data.url, **work
        )
        try:
            self.bucket.reset()
            run.start()
            if meanwhile is not None:
                meanwhile(run)
            stats = run.wait(600)
            if run.work.stock:
                return {"lines": _lines(run)}
            if run.work.whole:
                run.look_at_all(data.sums, _plan(data, self.bucket, run.work.whole, ranks=1))
            else:
                run.look(data.sums, _plan(data, self.bucket, run.work.batch))
            return {
                "gets": self.bucket.counters()["requests"]["get"],
                "stats": stats,
                "kept_bytes": int(kept[1]) if (kept := re.search(r"keep up to ([0-9]+) bytes", run.output())) else 0,
                "lines": _lines(run),
            }
        finally:
            run.close()


def _lines(run: Nodes) -> list[list[dict[str, Any]]]:
    """What each rank says of its batches, but for what was in them."""
    return [[{k: v for k, v in line.items() if k != "batch"} for line in run.lines(rank)] for rank in range(NODES)]


def _plan(data: _Set, bucket: Bucket, batch: int, ranks: int = NODES) -> Any:
    import foreload as fl
    from foreload.torch import DataLoader

    opened = fl.open(data.url, storage_options=options_of(bucket))
    return DataLoader(opened, batch, shuffle=True, seed=5, drop_last=ranks == 1, dp_rank=0, dp_size=ranks).run.plan


def nodes(stage: Stage) -> Result:
    """Requests, hits, pace and faults of four nodes."""
    result = Result()
    count, epochs = stage.amount(4_000, 400), 4
    result.settings = {
        "nodes": f"{NODES} network namespaces on {len(stage.cpus)} CPUs, a rank each under torchrun",
        "data": f"{count:,} objects of {SIZE // 1000} KB, {count:,} of {SMALL // 1000} KB in the runs with a pace, and of {USUAL // 1000} KB in one that counts CPU time",
        "cables": f"{CAP_MBIT} Mbit/s each way in the run that is bound by them, otherwise as fast as the machine",
        "bucket": "no delays, on a second network",
        "pace": f"{STEP_S * 1000:g} ms for each batch of 32",
        "compared": "ids and CRC-32 of all batches of all runs, with the plan and with what plain HTTP reads",
    }
    with Fabric(NODES) as fabric:
        bucket = Bucket(
            synthetic=[f"nodes:{count}x{SIZE}", f"small:{count}x{SMALL}", f"usual:{count}x{USUAL}"],
            anonymous=True,
            options=["--address", fabric.bucket],
        )
        try:
            rig = _Rig(stage, fabric, bucket)
            whole = _Set(bucket, "nodes", count)
            _requests(stage, rig, whole, epochs, result)
            _policies(stage, rig, whole, epochs, result)
            _local(stage, rig, whole, epochs, result)
            _pace(stage, rig, _Set(bucket, "small", count), result)
            _cpu(stage, rig, whole, SIZE, result)
            _cpu(stage, rig, _Set(bucket, "usual", count), USUAL, result)
            _cable(stage, rig, whole, result)
        finally:
            bucket.stop()
    return result


def _requests(stage: Stage, rig: _Rig, data: _Set, epochs: int, result: Result) -> None:
    least = 16 << 20
    total = data.count * SIZE
    rounds = min(stage.pairs, 3)
    fits = [rig.run(data, batch=32, epochs=epochs, ram=f"{max(least, total // 2)}") for _ in range(rounds)]
    result.read("fits: GETs / samples", *(found["gets"] / data.count for found in fits))
    result.raw["fits"] = [found["stats"] for found in fits]
    for share in SHARES:
        # What is kept is the share; what passes through comes on top.
        beside = {"staging": str(PASSING), "batches": str(PASSING)}
        ram = int(share * total / NODES) + 2 * PASSING
        runs = [rig.run(data, batch=32, epochs=epochs, ram=str(ram), **beside) for _ in range(rounds)]
        hits = [1 - (found["gets"] - data.count) / ((epochs - 1) * data.count) for found in runs]
        result.read(f"q = {share} of caches: hits - q", *(found - share for found in hits))
        result.raw[f"q = {share} of caches"] = [found["stats"] for found in runs]
    for share in SHARES:
        ram = max(least, int(share * total / NODES))
        runs = [rig.run(data, batch=32, epochs=epochs, ram=str(ram)) for _ in range(rounds)]
        hits = [1 - (found["gets"] - data.count) / ((epochs - 1) * data.count) for found in runs]
        result.read(f"q = {share}: hits - q", *(found - ram * NODES / total for found in hits))
        # What passes through needs memory, too; what is left for keeping is what nodes tell each other.
        kept = [found["kept_bytes"] / total for found in runs]
        result.read(f"q = {share}: hits - what is kept", *(a - b for a, b in zip(hits, kept, strict=True)))
        planned = _planned(data.count, ram, epochs)
        predicted = (planned.source_bytes, planned.mb_by_source.peer * (1 << 20))
        measured = [(found["gets"] * SIZE, sum(one["peer_bytes"] for one in found["stats"])) for found in runs]
        for at, where in enumerate(("the bucket", "nodes")):
            name = f"q = {share}: bytes from {where}, predicted / measured - 1"
            result.read(name, *(predicted[at] / each[at] - 1 for each in measured))
        result.raw[f"q = {share}"] = {"ram_bytes": ram, "kept": kept, "stats": [found["stats"] for found in runs]}


def _policies(stage: Stage, rig: _Rig, data: _Set, epochs: int, result: Result) -> None:
    """What leaves the bucket where the nodes hold three quarters of the data together, under our default and under what others do."""
    kept = 3 * data.count // (4 * NODES)
    ram = kept * SIZE + 2 * PASSING
    halves = {"fetch": kept // 2, "threshold": kept // 2, "cache": kept}
    ways: dict[str, dict[str, Any]] = {
        "nodes share": {},
        "frequency (paper 001), nodes share": {"policy": "frequency"},
        "a cache per node": {"peers": False},
        "deli (paper 000), a cache per node": {"policy": {"deli": halves}, "peers": False},
    }
    work = {"batch": 32, "epochs": epochs, "ram": str(ram), "staging": str(PASSING), "batches": str(PASSING)}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(min(stage.pairs, 3)):
        for name, how in ways.items():
            found[name].append(rig.run(data, **work, **how)["gets"] / (epochs * data.count))
    for name, gets in found.items():
        result.read(f"three quarters kept, {name}: GETs / reads", *gets)


def _planned(count: int, ram: int, epochs: int, *, network_mb_s: float = 1000.0, step_s: float = 0.05) -> Any:
    """What `foreload.plan` says of a run, told nothing but the network's speed and the step's."""
    import foreload as fl
    from foreload.speeds import Speeds

    speeds = Speeds(network_mb_s=network_mb_s)
    batch = 32 * NODES
    return fl.plan(
        [SIZE] * count, ram=str(ram), nodes=NODES, batch=batch, step_time=step_s, epochs=epochs, calibration=speeds
    )


def _spans(lines: list[list[dict[str, Any]]], first: int) -> tuple[float, float]:
    """The time from the end of epoch `first - 1` to the last batch, and what was waited in it, over all ranks: seconds."""
    waited = sum(line["waited"] for rank in lines for line in rank if line["epoch"] >= first)
    spent = sum(rank[-1]["t"] - max(line["t"] for line in rank if line["epoch"] < first) for rank in lines)
    return spent, waited


def _cable(stage: Stage, rig: _Rig, data: _Set, result: Result) -> None:
    """All but a quarter of each epoch comes over a cable that limits it."""
    rates, late = [], []
    ram = data.count * SIZE // 2
    predicted = _planned(data.count, ram, 4, network_mb_s=CAP_MBIT * 1e6 / 8 / (1 << 20), step_s=0.001)
    for node in range(NODES):
        rig.fabric.cap(node, CAP_MBIT)
    for _ in range(min(stage.pairs, 3)):
        found = rig.run(data, batch=32, epochs=4, ram=str(ram))
        spent, _ = _spans(found["lines"], 1)
        late.append(predicted.epoch_s * 3 / (spent / NODES) - 1)
        samples = sum(one["samples"] for one in found["stats"])
        remote = sum(one["peer_hits"] for one in found["stats"]) / samples
        rates.append(samples * 3 / 4 * SIZE * remote / spent / (CAP_MBIT * 1e6 / 8))
    result.read("epoch 2 on: bytes from nodes / cable", *rates)
    result.read("epoch 2 on over the cable: time, predicted / measured - 1", *late)


def _local(stage: Stage, rig: _Rig, data: _Set, epochs: int, result: Result) -> None:
    """Samples go to the nodes that keep them: what still comes from others."""
    work = {"whole": 32 * NODES, "epochs": epochs, "ram": str(max(16 << 20, data.count * SIZE // 2)), "assign": "local"}
    away, gets = [], []
    for _ in range(min(stage.pairs, 3)):
        found = rig.run(data, **work)
        samples = sum(one["samples"] for one in found["stats"])
        away.append(sum(one["peer_hits"] for one in found["stats"]) / samples)
        gets.append(found["gets"] / data.count)
    result.read("assign='local': samples from nodes, of all", *away)
    result.read("assign='local': GETs / samples", *gets)


def _pace(stage: Stage, rig: _Rig, data: _Set, result: Result) -> None:
    """Steps of a fixed time: whether nodes keep up, and what is left when one of them fails."""
    work = {"batch": 32, "pause_s": STEP_S, "ram": str(max(16 << 20, data.count * SMALL // 2))}
    shares: list[float] = []
    local: list[float] = []
    stock: list[float] = []
    # Both with a worker; and both where the loop itself compares the bytes, in its step, so that a wait is the loader's alone.
    worker: list[float] = []
    late: list[float] = []
    stock_late: list[float] = []
    files = stage.directory()
    data.copy(files)
    # The same with samples that go to the nodes that keep them, and what the machine allows: torch's loader, which finds all files in the page cache.
    ways: list[tuple[list[float], dict[str, Any]]] = [
        (shares, {}),
        (local, {"assign": "local"}),
        (stock, {"stock": str(files), "workers": 1}),
        (worker, {"workers": 1}),
        (late, {"late": True}),
        (stock_late, {"stock": str(files), "workers": 1, "late": True}),
    ]
    for _ in range(min(stage.pairs, 3)):
        for found, how in ways:
            how = {**how, "whole": 32 * NODES} if "assign" in how else how
            spent, waited = _spans(rig.run(data, epochs=6, **work, **how)["lines"], 1)
            found.append(waited / spent)
    result.read("epoch 2 on: waiting share, 20 ms steps", *shares)
    result.read("the same, assign='local'", *local)
    result.read("the same, torch's loader with a worker over files of its own", *stock)
    result.read("the same with a worker, as torch's", *worker)
    result.read("the same, where a batch is compared once the loop has it", *late)
    result.read(
        "torch's loader with a worker over files of its own, where a batch is compared once the loop has it",
        *stock_late,
    )
    # Whom it happens to is node 3; the others are measured.
    faults: dict[str, tuple[Callable[[Nodes], None], Callable[[Nodes], None]]] = {
        "killed": (lambda run: run.signal(3, signal.SIGKILL), lambda _: None),
        "hung": (lambda run: run.signal(3, signal.SIGSTOP), lambda run: run.signal(3, signal.SIGCONT)),
        "cut off": (lambda _: rig.fabric.pull(3), lambda _: rig.fabric.plug(3)),
        "20 Mbit/s": (lambda _: rig.fabric.cap(3, 20), lambda _: rig.fabric.cap(3, 10_000)),
        "two and two": (lambda _: rig.fabric.part([0, 1], [2, 3]), lambda _: rig.fabric.join([0, 1], [2, 3])),
    }
    spell_s, reads = stage.amount(5, 2), stage.amount(120_000, 32_000)
    for name, (begin, end) in faults.items():
        times: dict[str, float] = {}

        def meanwhile(run: Nodes, begin: Any = begin, end: Any = end, times: dict[str, float] = times) -> None:
            run.reach(80, timeout_s=120)
            time.sleep(2)
            times["begin"] = time.monotonic()
            begin(run)
            time.sleep(spell_s)
            end(run)
            times["end"] = time.monotonic()

        first, sustained, longest = [], [], []
        for _ in range(min(stage.pairs, 3)):
            found = rig.run(data, meanwhile, epochs=max(6, reads // data.count), **work)
            at = times["begin"]
            others = [[line["t"] for line in rank] for rank in found["lines"][:3]]

            def rate(start: float, stop: float, others: list[list[float]] = others) -> float:
                return statistics.mean(sum(start <= t < stop for t in rank) for rank in others) / (stop - start)

            healthy = rate(at - 2, at)
            first.append(rate(at + 1, at + 2) / healthy)
            sustained.append(rate(at + 1, at + spell_s) / healthy)
            longest.append(max(b - a for rank in others for a, b in itertools.pairwise(rank) if at - 1 < a < at + 6))
        result.read(f"{name}: pace in the second second / before", *first)
        result.read(f"{name}: pace from then on / before", *sustained)
        result.read(f"{name}: longest wait", *longest, unit="s")


def _cpu(stage: Stage, rig: _Rig, data: _Set, size: int, result: Result) -> None:
    """What all agents take, serving, reading, planning and handing out, for each GB that comes from nodes."""
    found: list[float] = []
    across: list[float] = []
    epochs = 5
    each = -(-data.count // (32 * NODES))

    def meanwhile(run: Nodes) -> None:
        run.reach(each + 1, timeout_s=180)
        begun = _ticks(run)
        run.reach(each * epochs, timeout_s=180)
        found.append(_ticks(run) - begun)

    for _ in range(min(stage.pairs, 3)):
        raw = _raw()
        stats = rig.run(data, meanwhile, batch=32, epochs=epochs, ram=str(data.count * size // 2))["stats"]
        gigabytes = sum(one["peer_bytes"] for one in stats) * (epochs - 1) / epochs / 1e9
        across.append(found[-1] / gigabytes / _raw_across(rig.fabric))
        found[-1] /= gigabytes * (raw["send"] + raw["receive"])
    name = f"CPU of the agents / plain TCP over the same network, {size // 1000} KB"
    result.read(name, *across)
    result.read(f"CPU of the agents / plain TCP{'' if size == SIZE else f', {size // 1000} KB'}", *found)


def _ticks(run: Nodes) -> float:
    """CPU seconds of all agents so far."""
    fields = [Path(f"/proc/{run.agent(node)}/stat").read_text().rsplit(")", 1)[1].split() for node in range(NODES)]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def _raw() -> dict[str, float]:
    """CPU seconds that a GB takes over plain TCP on loopback, in both processes together."""
    code = "import socket,sys\ns=socket.create_server(('127.0.0.1',0))\nprint(s.getsockname()[1],flush=True)\nc,_=s.accept()\nb=bytearray(1<<18)\nwhile c.recv_into(b): pass"
    receiver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert receiver.stdout is not None
    before = os.times()
    with socket.create_connection(("127.0.0.1", int(receiver.stdout.readline()))) as sender:
        piece = memoryview(bytes(110_000))
        for _ in range(20_000):
            sender.sendall(piece)
    receiver.wait()
    after = os.times()
    gigabytes = 20_000 * 110_000 / 1e9
    return {
        "send": (after.user - before.user + after.system - before.system) / gigabytes,
        "receive": (after.children_user - before.children_user + after.children_system - before.children_system)
        / gigabytes,
    }


def _raw_across(fabric: Fabric) -> float:
    """The same from one namespace to another, where more of the kernel is on the way."""
    receive = "import socket,sys,time\ns=socket.create_server((sys.argv[1],0))\nprint(s.getsockname()[1],flush=True)\nc,_=s.accept()\nt=time.process_time()\nb=bytearray(1<<18)\nwhile c.recv_into(b): pass\nprint(time.process_time()-t)"
    send = "import socket,sys,time\nc=socket.create_connection((sys.argv[1],int(sys.argv[2])))\nt=time.process_time()\np=memoryview(bytes(110_000))\nfor _ in range(20_000): c.sendall(p)\nprint(time.process_time()-t)"
    receiver = fabric.popen(1, [sys.executable, "-c", receive, fabric.data(1)], stdout=subprocess.PIPE, text=True)
    port = receiver.stdout.readline().strip()
    sender = fabric.popen(0, [sys.executable, "-c", send, fabric.data(1), port], stdout=subprocess.PIPE, text=True)
    spent = sum(float(process.communicate(timeout=120)[0]) for process in (sender, receiver))
    return spent / (20_000 * 110_000 / 1e9)
