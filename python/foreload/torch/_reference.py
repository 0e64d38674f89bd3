"""Compares the plan's torch orders with the installed torch, once a process and kind, on a few samples.

The plan computes what torch's samplers draw (`order="torch"`). Should a torch release draw differently, this says so before the first batch,
and the loader lets torch draw each epoch, which takes memory for the list and reads ahead no further than the next epoch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from foreload._settings.order import Order

_SAMPLES, _SEED = 23, 7


def agrees(kind: str | dict[str, Any]) -> bool:
    """Whether torch draws what the plan computes for a kind, if it is one of torch's. Warns where it doesn't."""
    if kind == "torch_distributed":
        return _agrees(True, "")
    return not isinstance(kind, dict) or "torch_random" not in kind or _agrees(False, kind["torch_random"]["draws"])


@cache
def _agrees(distributed: bool, draws: str) -> bool:
    kind: str | dict[str, Any] = "torch_distributed" if distributed else {"torch_random": {"draws": draws}}
    plan = Order("0" * 32, _SAMPLES, kind, _SEED, _SAMPLES, {"pad": {"multiple": 1}}).plan(1)
    same = all(plan.batch(epoch, 0, 0) == expected for epoch, expected in enumerate(_drawn(distributed, draws)))
    if not same:
        warnings.warn(
            f"torch {torch.__version__} draws another order than the one that order='torch' foresees: torch draws each epoch itself, "
            "and reading ahead ends with the next one; order='keyed' has no such limit",
            RuntimeWarning,
            stacklevel=2,
        )
    return same


def sampler_of(samples: int, world: int, rank: int, seed: int, draws: str) -> Any:
    """Torch's own sampler for what a loader was asked for."""
    items: Any = range(samples)
    return DistributedSampler(items, world, rank, seed=seed) if world > 1 else _Random(samples, seed, draws)


class _Random:
    """Epochs of torch's `RandomSampler` under a loader, each of which can be drawn again.

    Args:
        samples: How many.
        seed: The generator's.
        draws: What else draws from it, as the plan calls it.
    """

    def __init__(self, samples: int, seed: int, draws: str) -> None:
        self._samples, self._seed, self._draws = samples, seed, draws
        self._wanted = self._drawn = 0
        self._generator = torch.Generator().manual_seed(seed)

    def set_epoch(self, epoch: int) -> None:
        """The next pass is of this epoch."""
        self._wanted = epoch
        if epoch < self._drawn:
            self._drawn = 0
            self._generator.manual_seed(self._seed)

    def __deepcopy__(self, _: Any) -> _Random:
        """One that draws the same; a generator can't be copied."""
        return _Random(self._samples, self._seed, self._draws)

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[int]:
        while self._drawn < self._wanted:
            self._draw()
        return iter(self._draw())

    def _draw(self) -> list[int]:
        if self._draws == "loader_each_epoch" or (self._draws == "loader_once" and not self._drawn):
            # The seed of the loader's workers.
            torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        self._drawn += 1
        return list(RandomSampler(range(self._samples), generator=self._generator))


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
