"""Runs one adapter: `python -m bench.peers convert|read NAME TASK`; prints a line of JSON."""

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
    """Reads until the data or the time is over: the rate of all of it, and that of the later half, without start-up and what was fetched meanwhile."""
    begun, used = time.perf_counter(), cpu_seconds()
    size, times = 0, []
    for length in adapter.samples(task):
        times.append(time.perf_counter())
        size += length
        if times[-1] - times[0] > task.seconds:
            break
    half = (times[0] + times[-1]) / 2
    later = sum(at > half for at in times)
    return {
        "settings": adapter.SETTINGS,
        "workers": task.workers,
        "first_s": times[0] - begun,
        "samples": len(times),
        "bytes": size,
        "seconds": times[-1] - begun,
        "epoch_per_s": len(times) / (times[-1] - begun),
        "samples_per_s": later / max(times[-1] - half, 1e-9),
        "cpu_s": cpu_seconds() - used,
    }


def main() -> None:
    """Runs the adapter and leaves without waiting for its threads and workers."""
    verb, name, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    task = Task(**{**given, "shards": tuple(given["shards"])})
    adapter = importlib.import_module(f"bench.peers.{name}")
    if verb == "convert":
        begun = time.perf_counter()
        adapter.convert(task)
        found = {"seconds": time.perf_counter() - begun}
    else:
        found = measure(adapter, task)
    print(json.dumps({"peer": name, **found}), flush=True)
    for child in machine.children(os.getpid()):
        os.kill(child, 9)
    os._exit(0)


if __name__ == "__main__":
    main()
