"""How long the first things take, and how much memory a run holds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import Any

from bench.client import Job
from bench.registry import Result
from bench.rows.cost import probe
from bench.stage import ROOT, Stage, options_of


def start(stage: Stage) -> Result:
    """The first batch with a saved index of a million objects; an order over a billion samples."""
    count = stage.amount(1_000_000, 20_000)
    result, home = Result(), stage.directory()
    environment = stage.environment(home)
    with stage.bucket(f"many:{count}x1000", profile="fast") as bucket:

        def first_batch() -> dict[str, Any]:
            job = Job("s3://bench/many", options_of(bucket))
            command = [sys.executable, "-m", "bench.probes", "first-batch", json.dumps({"job": job.json()})]
            ran = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
            if ran.returncode:
                raise RuntimeError(ran.stderr[-1500:])
            found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
            return found

        listed = first_batch()
        bucket.set_profile("cloud")
        saved = [first_batch() for _ in range(stage.pairs)]
    orders = [probe(stage, "order", {"samples": 10**9}) for _ in range(stage.pairs)]
    result.read("first batch", *[found["batch_s"] for found in saved], unit="s")
    result.read("open alone", *[found["open_s"] for found in saved], unit="s")
    result.read("listing the first time", listed["open_s"], unit="s")
    result.read("order over 10^9 samples", *[found["seconds"] for found in orders], unit="s")
    result.read("its memory", *[found["bytes"] / 1e6 for found in orders], unit="MB")
    result.settings = {
        "objects": count,
        "first batch": "from before open, which starts the agent and finds the index in the cache directory, to 64 samples from the bucket (cloud)",
        "order": "from the specification to the first batch's samples; growth of the process",
    }
    result.raw = {"listed": listed, "saved": saved, "orders": orders}
    if any(found["origin"] != "cache" for found in saved):
        result.invalid = f"the index was not found where it was saved: {[found['origin'] for found in saved]}"
    return result


def split(stage: Stage) -> Result:
    """Dividing a hundred million samples, and what it holds meanwhile."""
    count = stage.amount(100_000_000, 1_000_000)
    result, home = Result(), stage.directory()
    index, files = home / "index.flx", home / "files"
    made = ["cargo", "run", "--quiet", "--release", "-p", "foreload-store", "--example", "synthetic"]
    subprocess.run([*made, "--", str(index), str(count), str(files)], cwd=ROOT, check=True)
    found = [probe(stage, "split", {"index": str(index), "url": str(files)}) for _ in range(stage.pairs)]
    result.read("split", *[one["seconds"] for one in found], unit="s")
    for name in ("client", "agent"):
        result.read(f"{name}, most memory", *[one[f"{name}_bytes"] / 1e9 for one in found], unit="GB")
        result.read(f"{name}, kept", *[one[f"{name}_kept_bytes"] / 1e9 for one in found], unit="GB")
    result.settings = {
        "data": f"an index of {count} samples in files of 4,096, all hole, {index.stat().st_size / 1e6:.0f} MB",
        "split": "from the call to both parts open at the agent: 90 % and 10 %",
        "memory": "of each process, beyond what it held when the whole was open; resident, shared pages included",
    }
    result.raw = {"runs": found}
    shutil.rmtree(home)
    return result


def agent(stage: Stage) -> Result:
    """Starting an agent, and waking a client that waits for it."""
    result = Result()
    with stage.bucket("wake:256x1000", profile="fast") as bucket:
        job = Job("s3://bench/wake", options_of(bucket), ram="64MB").json()
        colds = [probe(stage, "cold-start", {})["ms"] for _ in range(stage.amount(max(10, stage.pairs), 2))]
        trips, slept = [], []
        for _ in range(stage.pairs):
            trips.append(probe(stage, "round-trip", {"job": job}))
            slept.append(probe(stage, "round-trip", {"job": job, "pause_s": 0.005, "calls": 1000}))
    result.read("cold start", *colds, unit="ms")
    result.read("wake-up", *[found["us"] for found in trips], unit="us")
    result.read("bare socket pair", *[found["bare_us"] for found in trips], unit="us")
    result.read("CPU of a call", *[found["cpu_us"] for found in trips], unit="us")
    result.read("wake-up after 5 ms of sleep", *[found["us"] for found in slept], unit="us")
    result.read("bare socket pair after 5 ms of sleep", *[found["bare_us"] for found in slept], unit="us")
    result.read("CPU of a call after 5 ms of sleep", *[found["cpu_us"] for found in slept], unit="us")
    result.settings = {
        "cold start": "from the call to a connection that has been answered; nothing ran before",
        "wake-up": "median round trip for one sample in memory, call after call: the client spins for up to 50 us before it sleeps, and mostly needn't",
        "after 5 ms of sleep": "the same with a pause before each call, so that the agent and the CPU are asleep when it comes",
        "CPU of a call": "of client and agent, spinning and pauses included",
        "bare socket pair": "median round trip of one byte between two processes that wait for it: what the machine takes without us",
    }
    return result


#: What each process may hold besides the budget.
_SPARE_MB, _WORKER_MB = 64.0, 16.0


def _over_least_idle(result: Result, case: str, budget: int) -> None:
    """The strictest reading: over the least that the processes held without loading, and nothing is allowed for workers."""
    runs = result.raw[case]
    least = min(run["idle"] for run in runs)
    result.read(
        f"{case}: over the least of the idle runs", *[(run["loaded"] - least - budget) / 1e6 for run in runs], unit="MB"
    )


def rss(stage: Stage) -> Result:
    """Memory of all processes beyond the budget, at ten times as much data."""
    budget = stage.amount(256_000_000, 64_000_000)
    count = 10 * budget // 110_000
    result = Result()
    with stage.bucket(f"big:{count}x110000", profile="fast") as bucket:
        for workers in (0, 2):
            door = "stock" if workers else "loader"
            job = Job("s3://bench/big", options_of(bucket), door=door, workers=workers, ram=str(budget))
            idle = Job(door="idle", workers=workers)
            beyond = []
            for _ in range(max(1, stage.pairs - 2)):
                loaded, bare = (
                    stage.read(job, pinned=False, samples_memory=True),
                    stage.read(idle, pinned=False, samples_memory=True),
                )
                if loaded.last["samples"] != count:
                    raise RuntimeError(f"{loaded.last['samples']} samples instead of {count}")
                beyond.append((loaded.peak_bytes - bare.peak_bytes - budget) / 1e6 - _WORKER_MB * workers)
                result.raw.setdefault(f"{workers} workers", []).append(
                    {"loaded": loaded.peak_bytes, "idle": bare.peak_bytes}
                )
            result.read(f"beyond the budget, {workers} workers", *beyond, unit="MB")
            _over_least_idle(result, f"{workers} workers", budget)
        for workers in (0, 2):
            full = Job(
                "s3://bench/big",
                options_of(bucket),
                door="stock" if workers else "loader",
                workers=workers,
                persistent=bool(workers),
                raw="tensor",
                consume="sum",
                epochs=3,
                open_end=True,
                ram=str(budget),
            )
            beyond = []
            for _ in range(max(1, stage.pairs - 2)):
                tier = stage.directory()
                loaded = stage.read(replace(full, disk=f"{tier}:{2 * budget}"), pinned=False, samples_memory=True)
                bare = stage.read(Job(door="idle", workers=workers), pinned=False, samples_memory=True)
                shutil.rmtree(tier)
                kept = loaded.last["stats"]["ram_hits"] * 110_000 / budget
                if not stage.quick and kept < 0.3:
                    raise RuntimeError(f"only {kept:.2f} of the budget held what an epoch found in it")
                beyond.append((loaded.peak_bytes - bare.peak_bytes - budget) / 1e6 - _WORKER_MB * workers)
                result.raw.setdefault(f"full caches, {workers} workers", []).append(
                    {"loaded": loaded.peak_bytes, "idle": bare.peak_bytes, "kept": kept, "epochs": loaded.epochs}
                )
            result.read(f"full caches, beyond the budget, {workers} workers", *beyond, unit="MB")
            _over_least_idle(result, f"full caches, {workers} workers", budget)
    result.settings = {
        "budget": budget,
        "full caches": "three epochs with a disk tier of twice the budget, uint8 tensors that are collated and added up",
        "data": f"{count} samples of 110,000 bytes: ten times the budget",
        "measured": "highest sum of PSS of python, workers and agent, and of shared memory that none of them has mapped, 20 times a second, minus that of the same processes without loading, minus the budget "
        f"and {_WORKER_MB:g} MB for each worker",
        "bar": f"{_SPARE_MB:g} MB",
    }
    return result
