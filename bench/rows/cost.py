"""What reading costs the client's CPU, and what handing over to Python costs."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

from bench import peers
from bench.client import Job, fixed
from bench.registry import Result
from bench.rows.throughput import settings_of
from bench.stage import CONNECTIONS, ROOT, Bucket, Stage, interleaved, options_of, ratios


def per_sample_us(record: dict[str, Any], *parts: str) -> float:
    """CPU time of some of a client's processes for each sample."""
    return float(sum(record["cpu_s"][part] for part in parts) / record["samples"] * 1e6)


def cpu(stage: Stage) -> Result:
    """The agent's CPU and the whole bytes path's, over the yardstick's and obstore's."""
    count = stage.amount(10_000, 1000)
    rule = f"cpu:{count}x110000"
    result = Result(invalid=stage.gated())
    for tls in (False, True):
        with stage.bucket(rule, tls=tls) as bucket:
            runs = _CpuRuns(stage, bucket, rule, count)
            bare, new, agent, path, fresh = interleaved(
                stage.pairs, runs.yardstick, runs.new_yardstick, runs.driver, runs.whole, runs.fresh
            )
            obstore = [] if tls else _obstore(stage, bucket, count)
        kind = "TLS" if tls else "plain"
        result.read(f"driver / yardstick, {kind}", *ratios(agent, bare))
        result.read(f"driver / yardstick, {kind}, into fresh memory", *ratios(fresh, bare))
        result.read(f"driver / yardstick, {kind}, both into fresh memory", *ratios(fresh, new))
        for label, values in (("yardstick", bare), ("driver", agent), ("bytes path", path)):
            result.read(f"{label}, {kind}", *values, unit="us/sample")
        if not tls:
            result.read("bytes path - yardstick", *[a - b for a, b in zip(path, bare, strict=True)], unit="us/sample")
        if obstore:
            result.read("obstore", *obstore, unit="us/sample")
            result.read("bytes path / obstore", *[value / statistics.median(obstore) for value in path])
        result.raw[kind] = runs.records
    result.settings = settings_of(
        stage,
        data=rule,
        driver="the agent, while a consumer takes views and drops them; 64 MB of RAM, used again and again, as the yardstick's buffers are",
        fresh="the same with room for all: every page is new",
        bytes="agent and python of DataLoader(num_workers=0), as bytes",
        obstore="64 reads at a time in asyncio, each turned into bytes; python's whole CPU",
    )
    return result


class _CpuRuns:
    """Microseconds for each sample, of one run each."""

    def __init__(self, stage: Stage, bucket: Bucket, rule: str, count: int) -> None:
        self.stage, self.bucket, self.rule, self.count = stage, bucket, rule, count
        self.records: dict[str, list[Any]] = {"yardstick": [], "new": [], "view": [], "bytes": [], "fresh": []}

    def yardstick(self, name: str = "yardstick", *more: str) -> float:
        options = [f"--synthetic={self.rule}", "--shuffle", f"--connections={CONNECTIONS}", *more]
        self.records[name].append(self.stage.bare("get", *options, bucket=self.bucket))
        return float(self.records[name][-1]["cpu_s"] / self.count * 1e6)

    def new_yardstick(self) -> float:
        return self.yardstick("new", "--fresh")

    def driver(self) -> float:
        return per_sample_us(self._read("view", "view"), "agent")

    def fresh(self) -> float:
        return per_sample_us(self._read("fresh", "view", str(2 * self.count * 110_000)), "agent")

    def whole(self) -> float:
        return per_sample_us(self._read("bytes", "bytes"), "agent", "python", "workers")

    def _read(self, name: str, raw: str, ram: str = "64MB") -> dict[str, Any]:
        job = Job("s3://bench/cpu", options_of(self.bucket), raw=raw, ram=ram, attach=fixed(CONNECTIONS))
        found: dict[str, Any] = self.stage.read(job).last
        self.records[name].append(found)
        return found


def _obstore(stage: Stage, bucket: Bucket, count: int) -> list[float]:
    reports = [peers.run(stage, "obstore", bucket, "cpu", count, seconds=30) for _ in range(1 if stage.quick else 3)]
    return [report["cpu_s"] / report["samples"] * 1e6 for report in reports if not report.get("error")]


def handover(stage: Stage) -> Result:
    """From the memory tier to Python: in this process, through torch's workers, and back when somebody dies."""
    count = stage.amount(4000, 600)
    result = Result()
    runs: dict[str, list[Any]] = {name: [] for name in ("bytes", "arena", "torch", "pickle", "ours")}
    with stage.bucket(f"hot:{count}x150000", f"warm:{count}x110000", profile="fast") as bucket:
        base: dict[str, Any] = {
            "options": options_of(bucket),
            "epochs": 4,
            "open_end": True,
            "ram": str(count * 150_000 * 2),
        }
        jobs = {
            "bytes": Job("s3://bench/warm", **base),
            "arena": Job("s3://bench/hot", door="stock", workers=2, persistent=True, raw="tensor", **base),
            "torch": Job(
                "s3://bench/hot", door="stock", workers=2, persistent=True, raw="view", collate="torch", **base
            ),
            "pickle": Job(
                "s3://bench/hot", door="stock", workers=2, persistent=True, raw="view", collate="pickle", **base
            ),
            "ours": Job("s3://bench/hot", workers=2, persistent=True, raw="tensor", **base),
        }

        def reader(name: str) -> Any:
            def measure() -> float:
                later = stage.read(jobs[name], pinned=False).epochs[1:]
                runs[name] += later
                # Starting torch's workers is torch's business, and the same for all.
                return float(
                    max((epoch["samples"] - 64) / (epoch["seconds"] - epoch["first_batch_s"]) for epoch in later)
                )

            return measure

        _, arena, torch, pickle, ours = interleaved(stage.pairs, *map(reader, jobs))
        freed = [probe(stage, "killed", {"job": jobs["arena"].json()})["ms"] for _ in range(stage.pairs)]
    result.read("in-process bytes", *[per_sample_us(run, "python", "agent") for run in runs["bytes"]], unit="us/sample")
    result.read("stock loader / torch's shared memory", *ratios(arena, torch))
    result.read("stock loader / pickled bytes", *ratios(arena, pickle))
    result.read("our loader / torch's shared memory", *ratios(ours, torch))
    result.read("our loader / pickled bytes", *ratios(ours, pickle))
    result.read("killed worker's memory back", *freed, unit="ms")
    for workers in (0, 2):
        name = f"Ctrl-C, {workers} workers"
        result.read(name, *[interrupted(stage, workers) for _ in range(stage.pairs)], unit="ms")
    rates = {"stock loader": arena, "our loader": ours, "torch's shared memory": torch, "pickled bytes": pickle}
    for label, values in rates.items():
        result.read(label, *values, unit="samples/s")
    result.settings = {
        "in-process": f"DataLoader(num_workers=0), bytes, {count} samples of 110,000 bytes in memory; CPU of python and agent, epochs 2 to 4",
        "stock loader": f"torch's DataLoader, 2 forked workers that stay, batch 64, {count} samples of 150,000 bytes as uint8; from the first batch on; the best of epochs 2 to 4",
        "our loader": "the same with foreload.torch.DataLoader, whose default collation is in the agent's memory",
        "torch's shared memory": "the same with a collate_fn that stacks into torch's shared memory",
        "pickled bytes": "the same with a collate_fn that answers with a list of bytes",
        "Ctrl-C": "from SIGINT to KeyboardInterrupt in the loop, which waits for a bucket that doesn't answer",
        "CPUs": "both, for all",
    }
    result.raw = runs
    return result


def probe(stage: Stage, verb: str, arguments: dict[str, Any], *, pinned: bool = False) -> dict[str, Any]:
    """Runs a probe in surroundings of its own and returns what it found."""
    return stage.module("bench.probes", verb, json.dumps(arguments), pinned=pinned)


def interrupted(stage: Stage, workers: int) -> float:
    """Milliseconds from SIGINT until the loop has it, while it waits for a bucket that doesn't answer."""
    hang = {"kind": "hang", "on": ["get"]}
    with stage.bucket("hang:100x1000", profile="fast", faults=[hang]) as bucket, stage.surroundings() as environment:
        job = Job("s3://bench/hang", options_of(bucket), door="stock" if workers else "loader", workers=workers)
        command = [sys.executable, "-m", "bench.probes", "interrupted", json.dumps({"job": job.json()})]
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(1.0)
        sent = time.monotonic()
        # As a terminal does it: to the workers too.
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        if not out:
            raise RuntimeError(f"nothing came of SIGINT: {errors[-1000:]}")
        return float((json.loads(out.splitlines()[0])["at"] - sent) * 1e3)
