"""Small measurements that need a process of their own: `python -m bench.probes VERB ARGUMENTS`, which prints a line of JSON."""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import random
import signal
import socket
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import machine
from bench.client import Job, doors, retire


def cold_start() -> dict[str, Any]:
    """Starts an agent."""
    from foreload._node import agent as _agent

    directory = _agent.cache_directory()
    begun = time.perf_counter()
    agent = _agent.connect(directory)
    agent.call('{"call": "status"}')
    found = {"ms": (time.perf_counter() - begun) * 1e3}
    retire()
    return found


def round_trip(job: str, pause_s: float = 0.0, calls: int = 5000) -> dict[str, Any]:
    """Asks for single samples that are in memory.

    Args:
        job: What is read before, a `Job` as JSON.
        pause_s: Between two calls; both processes sleep meanwhile.
        calls: How many.

    Returns:
        `us` and `p99_us` of a call; `cpu_us` of both processes for one, with its pause; `bare_us` of a byte that goes and comes, after such pauses too.
    """
    loader, run = doors(Job(**json.loads(job)))
    for _ in loader:
        pass
    attachment = run.attachment()
    pid, times = attachment.agent().pid, []
    cpu_s = time.process_time() + machine.cpu_seconds(pid)
    for number in range(calls):
        if pause_s:
            time.sleep(pause_s)
        begun = time.perf_counter()
        attachment.samples(run.rank, [number % 256])
        times.append(time.perf_counter() - begun)
    cpu_s = time.process_time() + machine.cpu_seconds(pid) - cpu_s
    retire()
    times.sort()
    return {
        "us": statistics.median(times) * 1e6,
        "p99_us": times[len(times) * 99 // 100] * 1e6,
        "cpu_us": cpu_s / calls * 1e6,
        "bare_us": bare_round_trip(pause_s, calls),
    }


def bare_round_trip(pause_s: float, calls: int) -> float:
    """Microseconds in which a byte goes to another process, which waits for it, and back: what the machine itself takes."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        while byte := theirs.recv(1):
            theirs.send(byte)
        os._exit(0)
    theirs.close()
    times = []
    for _ in range(calls):
        if pause_s:
            time.sleep(pause_s)
        begun = time.perf_counter()
        ours.send(b".")
        ours.recv(1)
        times.append(time.perf_counter() - begun)
    ours.close()
    os.waitpid(child, 0)
    return statistics.median(times) * 1e6


def first_batch(job: str) -> dict[str, Any]:
    """Opens a data set and takes a batch."""
    import foreload
    from foreload.torch import DataLoader

    read = Job(**json.loads(job))
    begun = time.perf_counter()
    samples = foreload.open(read.url, storage_options=read.options)
    opened = time.perf_counter()
    next(iter(DataLoader(samples, batch_size=read.batch, shuffle=True, seed=read.seed)))
    found = {
        "open_s": opened - begun,
        "batch_s": time.perf_counter() - begun,
        "origin": samples.origin,
        "samples": len(samples),
    }
    retire()
    return found


def _resident(process: int | str = "self", row: str = "VmRSS") -> int:
    """Bytes that a process holds, or held at most (`VmHWM`)."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{row}:"))


def order(samples: int) -> dict[str, Any]:
    """Makes an order and takes its first batch."""
    from foreload._settings.order import Order, kind_of, tail_of

    before, begun = _resident(), time.perf_counter()
    kind = kind_of("keyed", 1, shuffle=True)
    tail = tail_of(1, 256, drop_last=False, uneven=None)
    batch = Order("0" * 32, samples, kind, 1, 256, tail).plan(1).batch(0, 0, 0)
    assert len(set(batch)) == 256
    return {"seconds": time.perf_counter() - begun, "bytes": max(0, _resident() - before)}


def write(path: str, size: int, part: int = 4 << 20, threads: int = 4) -> dict[str, Any]:
    """Writes a file around the page cache, as many parts at a time as there are threads."""
    block = mmap.mmap(-1, part)
    block.write(random.Random(0).randbytes(part))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    begun = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        written = sum(pool.map(lambda at: os.pwrite(file, block, at), range(0, size, part)))
    seconds = time.perf_counter() - begun
    os.close(file)
    return {"bytes": written, "seconds": seconds}


def split(index: str, url: str) -> dict[str, Any]:
    """Splits a data set in two and opens both parts."""
    import foreload as fl

    data = fl.open(url, index=index)
    samples, agent = len(data), data.source.opened().agent_pid
    idle = _resident(), _resident(agent)
    begun = time.perf_counter()
    parts = data.split({"train": 0.9, "val": 0.1}, seed=1)
    sizes = {name: len(part) for name, part in parts.items()}
    seconds = time.perf_counter() - begun
    assert sizes == {"train": round(samples * 0.9), "val": round(samples * 0.1)}, sizes
    found = {
        "seconds": seconds,
        "samples": samples,
        "client_bytes": _resident(row="VmHWM") - idle[0],
        "agent_bytes": _resident(agent, "VmHWM") - idle[1],
        "client_kept_bytes": _resident() - idle[0],
        "agent_kept_bytes": _resident(agent) - idle[1],
    }
    retire()
    return found


def _hold(recipe: Any, rank: int, held: Any) -> None:
    views = recipe.attachment().samples(rank, list(range(64))).views()
    held.set()
    time.sleep(600)
    del views


def killed(job: str) -> dict[str, Any]:
    """Kills a process that holds samples, and waits until the agent has them back."""
    loader, run = doors(Job(**{**json.loads(job), "workers": 0, "persistent": False}))
    for _ in loader:
        pass

    def leases() -> int:
        return int(run.stats()["gauges"]["leases"])

    idle = leases()
    held = multiprocessing.get_context("fork").Event()
    holder = multiprocessing.get_context("fork").Process(target=_hold, args=(run.recipe, run.rank, held))
    holder.start()
    assert held.wait(30)
    assert leases() > idle, "the other process holds nothing"
    assert holder.pid is not None
    begun = time.perf_counter()
    os.kill(holder.pid, signal.SIGKILL)
    while leases() > idle:
        if time.perf_counter() - begun > 20:
            raise TimeoutError("the memory of a killed process did not come back")
    found = {"ms": (time.perf_counter() - begun) * 1e3}
    holder.join()
    retire()
    return found


def interrupted(job: str) -> dict[str, Any]:
    """Waits for a batch that never comes, until Ctrl-C."""
    # What a shell starts in the background ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    loader, _ = doors(Job(**json.loads(job)))
    print("{}", flush=True)
    try:
        next(iter(loader))
    except KeyboardInterrupt:
        return {"at": time.monotonic()}
    raise AssertionError("the bucket answered")


_VERBS: dict[str, Any] = {
    "cold-start": cold_start,
    "round-trip": round_trip,
    "first-batch": first_batch,
    "order": order,
    "split": split,
    "write": write,
    "killed": killed,
    "interrupted": interrupted,
}


if __name__ == "__main__":
    print(json.dumps(_VERBS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
