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
    """Reads until the data or the time is over."""
    found: dict[str, Any] = {"settings": adapter.SETTINGS}
    if hasattr(adapter, "convert"):
        begun = time.perf_counter()
        adapter.convert(task)
        found["convert_s"] = time.perf_counter() - begun
    samples = size = 0
    first_s = 0.0
    begun, used = time.perf_counter(), cpu_seconds()
    for length in adapter.samples(task):
        first_s = first_s or time.perf_counter() - begun
        samples, size = samples + 1, size + length
        if time.perf_counter() - begun > task.seconds:
            break
    return {
        **found,
        "samples": samples,
        "bytes": size,
        "seconds": time.perf_counter() - begun,
        "first_s": first_s,
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
