"""Compares the plan's torch orders with the installed torch, once a process and kind, on a few samples.

The plan computes what torch's samplers draw (`order="torch"`). Should a torch release draw differently, this says so before the first batch,
and the loader's user can hand over torch's own sampler (`sampler=`) instead.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from foreload._order import Order
from foreload.errors import BugError

_SAMPLES, _SEED = 23, 7


def check(kind: str | dict[str, Any], draws: str) -> None:
    """Compares.

    Raises:
        BugError: They differ.
    """
    _check(kind == "torch_distributed", draws)


@cache
def _check(distributed: bool, draws: str) -> None:
    kind: str | dict[str, Any] = "torch_distributed" if distributed else {"torch_random": {"draws": draws}}
    plan = Order("0" * 32, _SAMPLES, kind, _SEED, _SAMPLES, {"pad": {"multiple": 1}}).plan(1)
    for epoch, expected in enumerate(_drawn(distributed, draws)):
        if plan.batch(epoch, 0, 0) != expected:
            raise BugError(
                f"torch {torch.__version__} draws another order than the one that order='torch' reproduces; "
                "use order='keyed', or give torch's sampler itself as sampler=..."
            )


def _drawn(distributed: bool, draws: str) -> list[list[int]]:
    items: Any = list(range(_SAMPLES))
    if distributed:
        sampler: Any = DistributedSampler(items, 1, 0, seed=_SEED)
        epochs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append(list(sampler))
        return epochs
    generator = torch.Generator().manual_seed(_SEED)
    if draws == "sampler_only":
        return [list(each) for each in [RandomSampler(items, generator=generator)] * 2]
    if draws == "loader_once":
        # One iterator draws one base seed; passes of a persistent one draw no more.
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        sampler = RandomSampler(items, generator=generator)
        return [list(sampler), list(sampler)]
    loader: Any = DataLoader(items, _SAMPLES, shuffle=True, generator=generator, collate_fn=list)
    return [batch for _ in range(2) for batch in loader]
