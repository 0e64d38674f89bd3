"""An emulated accelerator.

It is a rank that takes batches from `foreload.torch.DataLoader`, sleeps for as long as the real one would compute, and waits for the others at the end of each
step, as an all-reduce makes it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Task:
    """What all accelerators of a run do.

    Attributes:
        url: The data set.
        options: Its `storage_options`.
        world: Accelerators.
        batch: Samples of a step and accelerator.
        compute_s: Seconds of a step.
        epochs: Epochs.
        ram: The node's memory budget; empty: the default.
        disk: Its disk tier, as `DIRECTORY:SIZE`; empty: none.
        checks: Whether every byte is looked at, too.
        session: A name for the run.
    """

    url: str
    world: int
    batch: int
    compute_s: float
    options: dict[str, str] = field(default_factory=dict)
    epochs: int = 2
    ram: str = ""
    disk: str = ""
    checks: bool = False
    session: str = "mlperf"


def run(rank: int, task: Task, barrier: Any, answers: Any) -> None:
    """Goes through all epochs, and puts `(rank, what each epoch was like)` or `(rank, what went wrong)` among the answers."""
    try:
        answers.put((rank, _epochs(rank, task, barrier)))
    except BaseException as error:  # noqa: BLE001 (the others must not wait for this one)
        barrier.abort()
        answers.put((rank, f"{type(error).__name__}: {error}"))


def _epochs(rank: int, task: Task, barrier: Any) -> list[dict[str, float]]:
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": task.world, "LOCAL_WORLD_SIZE": task.world}
    os.environ.update({name: str(value) for name, value in ranks.items()}, TORCHELASTIC_RUN_ID=task.session)
    import torch

    import foreload as fl
    from foreload.torch import DataLoader

    torch.set_num_threads(1)
    budget = {name: value for name, value in (("ram", task.ram), ("disk", task.disk)) if value}
    data = fl.open(task.url, format="flat", storage_options=task.options)
    loader: Any = DataLoader(
        data,
        task.batch,
        shuffle=True,
        seed=1,
        drop_last=True,
        epochs=task.epochs,
        cache=fl.Cache(**budget),  # type: ignore[arg-type] # both are text
        collate_fn=_looked_at if task.checks else _counted,
    )
    found = []
    for _ in range(task.epochs):
        barrier.wait()
        begun = time.perf_counter()
        first, steps, size = begun, 0, 0
        for bytes_ in loader:
            if not steps:
                first = time.perf_counter()
            steps, size = steps + 1, size + bytes_
            time.sleep(task.compute_s)
            barrier.wait()
        ended = time.perf_counter()
        # The first step's input is no part of the utilisation, but of the rate.
        found.append(
            {
                "steps": steps,
                "bytes": size,
                "au": steps * task.compute_s / (ended - first),
                "seconds": ended - begun,
                "first_batch_s": first - begun,
            }
        )
    return found


def _counted(batch: list[tuple[bytes, int]]) -> int:
    return sum(len(sample) for sample, _ in batch)


def _looked_at(batch: list[tuple[bytes, int]]) -> int:
    import zlib

    for sample, _ in batch:
        zlib.crc32(sample)
    return _counted(batch)
