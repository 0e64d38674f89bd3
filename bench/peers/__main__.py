"""Runs one adapter: `python -m bench.peers NAME TASK`; prints a line of JSON."""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from typing import Any

from bench import machine
from bench.peers import Task


def cpu_seconds() -> float:
    """Of this process and of all that it started."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + sum(
        map(machine.cpu_seconds, machine.children(os.getpid()))
    )


def measure(adapter: Any, task: Task) -> dict[str, Any]:
    """Reads until the data or the time is over. The rate counts from the first batch on, so that a peer's start-up doesn't weigh on it."""
    found: dict[str, Any] = {"settings": adapter.SETTINGS}
    if hasattr(adapter, "convert"):
        begun = time.perf_counter()
        adapter.convert(task)
        found["convert_s"] = time.perf_counter() - begun
    begun, used = time.perf_counter(), cpu_seconds()
    samples = size = first = 0
    started = begun
    for length in adapter.samples(task):
        now = time.perf_counter()
        if not samples:
            started = now
        # The batch that came first had no time of its own.
        first += now - started < 0.001
        samples, size = samples + 1, size + length
        if now - started > task.seconds:
            break
    ended = time.perf_counter()
    return {
        **found,
        "first_s": started - begun,
        "samples": samples,
        "bytes": size,
        "seconds": ended - begun,
        "samples_per_s": (samples - first) / max(ended - started, 1e-9),
        "cpu_s": cpu_seconds() - used,
    }


def main() -> None:
    """Runs the adapter and leaves without waiting for its threads and workers."""
    name, task = sys.argv[1], json.loads(sys.argv[2])
    task["shards"] = tuple(task["shards"])
    adapter = importlib.import_module(f"bench.peers.{name}")
    found = measure(adapter, Task(**task))
    print(json.dumps({"peer": name, **found}), flush=True)
    for child in machine.children(os.getpid()):
        os.kill(child, 9)
    os._exit(0)


if __name__ == "__main__":
    main()
