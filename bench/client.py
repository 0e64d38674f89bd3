"""The process that is measured: reads a data set with Foreload and says what that took.

`python -m bench.client JOB` with a `Job` as JSON. It prints a line of JSON with the processes' numbers, then one for each epoch. Whoever starts it
decides on which CPU it runs; the agent and the workers that it starts run there too.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import machine


@dataclass
class Job:
    """What to read, through which door, and what to do with it.

    Attributes:
        url: The data set.
        options: Its `storage_options`.
        format: Its format.
        index: A saved index of it.
        spool: Bytes on disk for what a scan of shards reads; empty: the default. With `0`, all of an epoch comes from the bucket.
        door: `loader` (foreload.torch.DataLoader), `stock` (torch's DataLoader over our Dataset and Sampler), `files` (torch's DataLoader over
            local files, without Foreload), `memory` (bytes that lie in memory, without any loader), `idle` (everything is imported and nothing read).
        workers: Worker processes.
        persistent: Whether workers stay from epoch to epoch.
        batch: Samples in a batch.
        raw: In which form the data comes.
        collate: How a worker hands a batch over: `default`, `torch` (tensors in torch's shared memory), `pickle` (a list of bytes).
        consume: What the loop does: `count` samples, `sum` every byte.
        compute_s: How long a batch is computed on.
        epochs: Epochs to read.
        open_end: Whether the run goes on after them, so that it reads ahead into the next.
        ram: The memory budget; empty: the default.
        disk: The disk tier, as `DIRECTORY:SIZE`.
        batches: Of the memory, what is for collated batches.
        staging: Of the memory, what passes through.
        attach: More fields of the job, such as `concurrency` and `policy`.
        drops: A directory whose page cache is dropped before each epoch but the first.
        seed: Of the shuffle.
        timeline: Whether to say when each batch came.
    """

    url: str = ""
    options: dict[str, str] = field(default_factory=dict)
    format: str = "auto"
    index: str = ""
    spool: str = ""
    door: str = "loader"
    workers: int = 0
    persistent: bool = False
    batch: int = 64
    raw: str = "bytes"
    collate: str = "default"
    consume: str = "count"
    compute_s: float = 0.0
    epochs: int = 1
    open_end: bool = False
    ram: str = "256MB"
    disk: str = ""
    batches: str | None = None
    staging: str | None = None
    attach: dict[str, Any] = field(default_factory=dict)
    drops: str = ""
    seed: int = 1
    timeline: bool = False

    def json(self) -> str:
        """As the command takes it."""
        return json.dumps(asdict(self))


def fixed(connections: int) -> dict[str, Any]:
    """A fixed number of requests in flight, as the yardstick has."""
    return {"concurrency": {"start": connections, "least": connections, "most": connections}}


class Files:
    """Local files under torch's own loader, as its tutorials do it.

    Args:
        directory: Where they are.
        as_tensor: Whether a sample is a uint8 tensor, not bytes.
    """

    def __init__(self, directory: str, *, as_tensor: bool) -> None:
        self.paths = sorted(str(path) for path in Path(directory).rglob("*") if path.is_file())
        self.as_tensor = as_tensor

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        data = Path(self.paths[index]).read_bytes()
        if not self.as_tensor:
            return data, 0
        import torch

        return torch.frombuffer(bytearray(data), dtype=torch.uint8), 0


class InMemory:
    """Bytes of files that lie in memory: what the consumer takes by itself, where a loader took nothing.

    Args:
        directory: Where the files are.
        batch: Samples in a batch.
        seed: Of the shuffle.
    """

    def __init__(self, directory: str, batch: int, seed: int) -> None:
        self.data = [path.read_bytes() for path in sorted(Path(directory).rglob("*")) if path.is_file()]
        self.batch, self.random = batch, random.Random(seed)

    def __iter__(self) -> Iterator[Any]:
        order = self.random.sample(self.data, len(self.data))
        for first in range(0, len(order), self.batch):
            yield order[first : first + self.batch], 0


class Nothing:
    """A data set that reads nothing, for what workers weigh by themselves."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        return index


def in_torch_memory(batch: Any) -> Any:
    """Collates as torch does: a tensor in fresh shared memory."""
    import torch

    with warnings.catch_warnings():
        # A view can't be written to, and isn't.
        warnings.simplefilter("ignore")
        rows = [torch.frombuffer(data, dtype=torch.uint8) for data, _ in batch]
    size = sum(row.numel() for row in rows)
    storage = rows[0]._typed_storage()._new_shared(size)  # type: ignore[no-untyped-call] # as torch's own default_collate does
    return torch.stack(rows, out=rows[0].new(storage).resize_(len(rows), rows[0].numel())), 0


def pickled(batch: Any) -> Any:
    """Collates into a list of bytes, which travels through the pipe."""
    return [bytes(data) for data, _ in batch], 0


_COLLATES: dict[str, Callable[[Any], Any] | None] = {"default": None, "torch": in_torch_memory, "pickle": pickled}


def doors(job: Job) -> tuple[Any, Any]:
    """The loader, and the run behind it where there is one."""
    import torch
    from torch.utils import data

    torch.set_num_threads(1)
    keywords: dict[str, Any] = {
        "batch_size": job.batch,
        "num_workers": job.workers,
        "collate_fn": _COLLATES[job.collate],
        "persistent_workers": job.persistent,
    }
    if job.door == "idle":
        import foreload.torch

        return data.DataLoader(Nothing(), **keywords), None  # type: ignore[arg-type]
    if job.door == "memory":
        return InMemory(job.url, job.batch, job.seed), None
    if job.door == "files":
        generator = torch.Generator().manual_seed(job.seed)
        files: Any = Files(job.url, as_tensor=job.raw == "tensor")
        return data.DataLoader(files, shuffle=True, generator=generator, **keywords), None
    import foreload
    from foreload.torch import DataLoader, Dataset, Sampler

    if job.spool:
        # The agent inherits it.
        os.environ["FORELOAD_SPOOL"] = job.spool
    samples = foreload.open(job.url, job.format, index=job.index or None, storage_options=job.options)
    cache = foreload.Cache(ram=job.ram or None, disk=job.disk, batches=job.batches, staging=job.staging)
    epochs = None if job.open_end else job.epochs
    raw: Any = job.raw
    if job.door == "loader":
        loader: Any = DataLoader(samples, shuffle=True, seed=job.seed, epochs=epochs, raw=raw, cache=cache, **keywords)
        run = loader.run
    else:
        dataset = Dataset(samples, raw=raw, cache=cache)
        sampler = Sampler(dataset, shuffle=True, seed=job.seed, epochs=epochs, batch_size=job.batch)
        loader, run = data.DataLoader(dataset, sampler=sampler, **keywords), sampler.run()
    # Experiments set what users don't: a fixed number of requests in flight, another policy.
    run.recipe.attach.update(job.attach)
    return loader, run


def samples_of(batch: Any) -> Any:
    """The data of a batch: a sequence of buffers or a tensor."""
    return batch[0] if isinstance(batch, (list, tuple)) and len(batch) == 2 else batch


def count(data: Any) -> tuple[int, int]:
    """How many samples, and of how many bytes."""
    if hasattr(data, "numel"):
        return len(data), data.numel()
    return len(data), sum(len(sample) for sample in data)


def total(data: Any) -> tuple[int, int]:
    """The same after adding up every byte."""
    import numpy as np

    found = 0
    for sample in data:
        array = sample.numpy() if hasattr(sample, "numpy") else np.frombuffer(sample, np.uint8)
        found += int(array.sum(dtype=np.uint32))
    return count(data)


class Usage:
    """CPU time of this process, its workers and its agent.

    Args:
        agent: The agent's process; 0: there is none.
    """

    def __init__(self, agent: int) -> None:
        own, reaped = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        self.seconds = {
            "python": own.ru_utime + own.ru_stime,
            "workers": reaped.ru_utime + reaped.ru_stime,
            "agent": machine.cpu_seconds(agent) if agent else 0.0,
        }

    def since(self, before: Usage) -> dict[str, float]:
        """What was used in between."""
        return {name: value - before.seconds[name] for name, value in self.seconds.items()}


def epoch(job: Job, loader: Any, agent: int) -> dict[str, Any]:
    """Reads an epoch."""
    consume = {"count": count, "sum": total}[job.consume]
    usage, before, written = Usage(agent), machine.file_bytes(agent), machine.written_bytes(agent)
    samples = size = batches = 0
    waited_s = first_s = 0.0
    times: list[float] = []
    began, begun = time.time(), time.perf_counter()
    ended = begun
    iterator = iter(loader)
    while True:
        asked = time.perf_counter()
        batch = next(iterator, None)
        if batch is None:
            break
        answered = time.perf_counter()
        waited_s += answered - asked
        first_s = first_s or answered - begun
        if job.timeline:
            times.append(answered - begun)
        found = consume(samples_of(batch))
        samples, size, batches = samples + found[0], size + found[1], batches + 1
        del batch
        if job.compute_s:
            time.sleep(job.compute_s)
        ended = time.perf_counter()
    del iterator
    return {
        **({"began": began, "times": times} if job.timeline else {}),
        "seconds": ended - begun,
        "stall_s": waited_s,
        "first_batch_s": first_s,
        "batches": batches,
        "samples": samples,
        "bytes": size,
        "cpu_s": Usage(agent).since(usage),
        "file_bytes": machine.file_bytes(agent)[0] - before[0],
        "device_bytes": machine.file_bytes(agent)[1] - before[1],
        "written_bytes": machine.written_bytes(agent) - written,
    }


def run(job: Job) -> Iterator[dict[str, Any]]:
    """All epochs; the first answer says which processes there are."""
    if job.door in ("loader", "stock"):
        import foreload.torch  # noqa: F401 (what importing takes is no part of opening)
    begun = time.perf_counter()
    loader, plan = doors(job)
    agent = 0
    if plan is not None:
        agent = plan.attachment().agent().pid
    yield {"pid": os.getpid(), "agent": agent, "opened_s": time.perf_counter() - begun}
    if job.door == "idle":
        iterator = iter(loader)
        next(iterator)
        time.sleep(1.0)
        yield {"samples": 0}
        return
    before: dict[str, float] = {}
    for number in range(job.epochs):
        if job.drops and number:
            machine.drop_page_cache(Path(job.drops))
        found = epoch(job, loader, agent)
        if plan is not None:
            stats = {name: value for name, value in plan.stats().items() if isinstance(value, (int, float))}
            found["stats"] = {name: value - before.get(name, 0) for name, value in stats.items()}
            before = stats
        yield {"epoch": number, **found}


def retire() -> None:
    """Tells the agent to end with this process."""
    from foreload._node import agent as _agent

    for agent in list(_agent._agents.values()):
        agent.call(json.dumps({"call": "retire"}))


def main() -> None:
    """Runs the job in the first argument."""
    job = Job(**json.loads(sys.argv[1]))
    for line in run(job):
        print(json.dumps(line), flush=True)
    if job.door in ("loader", "stock"):
        retire()


if __name__ == "__main__":
    main()
