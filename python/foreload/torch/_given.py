"""Orders that the user's own sampler decides.

Torch's samplers whose order the plan can compute are recognised, so that reading ahead crosses the border between epochs. Of any other,
an epoch is listed when its pass begins and supplied to the plan. Its next epoch is listed early only on a deep copy that draws from a
generator of its own or depends on `set_epoch`, so that the user's random numbers are never consumed before their time.
"""

from __future__ import annotations

import copy
import logging
import operator
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from foreload import _core
from foreload import dataset as _dataset
from foreload._order import Order
from foreload._run import Run, Stream
from foreload._state import check_state
from foreload.cache import Cache
from foreload.errors import InvalidError, StateError
from foreload.ranks import Ranks, Word

_LOG = logging.getLogger("foreload")


class Lists:
    """The epochs of a sampler, as lists of batches.

    Args:
        sampler: A sampler or batch sampler.
        batch_size: Samples in a batch; None: the sampler yields batches.
        drop_last: Whether to leave out a last batch that isn't full.
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int | None, drop_last: bool) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last
        self._ahead: tuple[int, list[list[int]], Any] | None = None

    def draw(self, epoch: int) -> list[list[int]]:
        """The batches of the epoch that begins now: the sampler's next pass."""
        _set_epoch(self.sampler, epoch)
        return self._batches(iter(self.sampler))

    def peek(self, epoch: int) -> list[list[int]] | None:
        """The batches of the epoch after the one that was drawn last, if they can be had without touching the sampler."""
        twin = _twin(self.sampler)
        if twin is None:
            return None
        _set_epoch(twin, epoch)
        return self._batches(iter(twin))

    def _batches(self, items: Iterator[Any]) -> list[list[int]]:
        if self.batch_size is None:
            return [_numbers(_batch(batch)) for batch in items]
        samples = _numbers(items)
        batches = [samples[at : at + self.batch_size] for at in range(0, len(samples), self.batch_size)]
        return batches[:-1] if self.drop_last and batches and len(batches[-1]) < self.batch_size else batches


def _batch(found: Any) -> Iterable[Any]:
    if not isinstance(found, Iterable):
        raise InvalidError(
            f"batch_sampler yields {found!r}, which is no batch: give lists of samples' numbers, or sampler="
        )
    return found


def _numbers(items: Iterable[Any]) -> list[int]:
    # What the sampler's own code raises stays what it is.
    found = list(items)
    try:
        return list(map(operator.index, found))
    except TypeError as error:
        raise InvalidError(f"the sampler yields something that is no sample's number: {error}") from error


def _set_epoch(sampler: Any, epoch: int) -> None:
    for part in (sampler, getattr(sampler, "sampler", None)):
        if part is not None and hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def _twin(sampler: Any) -> Any:
    parts = [part for part in (sampler, getattr(sampler, "sampler", None)) if part is not None]
    own = any(hasattr(part, "set_epoch") or getattr(part, "generator", None) is not None for part in parts)
    sequential = type(parts[-1]) is SequentialSampler
    if not own and not sequential:
        return None
    try:
        return copy.deepcopy(sampler)
    except Exception:  # noqa: BLE001 (whatever a sampler's own copying raises)
        return None


def known(sampler: Any) -> dict[str, Any] | None:
    """The plan's own kind for one of torch's samplers: kind, seed, ranks; None: it has none."""
    if type(sampler) is SequentialSampler:
        return {"kind": "sequential", "seed": 0, "world": 1, "rank": 0, "trims": False}
    if type(sampler) is DistributedSampler:
        kind = "torch_distributed" if sampler.shuffle else "sequential"
        return {
            "kind": kind,
            "seed": sampler.seed,
            "world": sampler.num_replicas,
            "rank": sampler.rank,
            "trims": sampler.drop_last,
        }
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.generator is not None:
        generator = sampler.generator
        whole = sampler.num_samples == len(sampler.data_source)
        if whole and is_fresh(generator):
            return {
                "kind": {"torch_random": {"draws": "sampler_only"}},
                "seed": generator.initial_seed(),
                "world": 1,
                "rank": 0,
                "trims": False,
            }
    return None


def is_fresh(generator: torch.Generator) -> bool:
    """Whether nothing was drawn from a generator since it was seeded."""
    twin = torch.Generator(device=generator.device).manual_seed(generator.initial_seed())
    return bool(torch.equal(twin.get_state(), generator.get_state()))


def _samples_of(batches: list[list[int]]) -> NDArray[np.uint64]:
    return np.fromiter(chain.from_iterable(batches), np.uint64, sum(map(len, batches)))


class GivenRun(Run):
    """A run whose epochs are supplied as they become known."""

    def __init__(
        self, dataset: _dataset.Dataset, lists: Lists, first: list[list[int]], cache: Cache, word: Word, **keywords: Any
    ) -> None:
        if not any(first):
            raise InvalidError("the sampler yields nothing; give one that yields samples, or none")
        sizes = {len(batch) for batch in first[:-1]} or {len(first[0])}
        self.regular = len(sizes) == 1 and 0 < len(first[-1]) <= max(sizes)
        self.lists = lists
        self._length = sum(map(len, first))
        self.batches: dict[int, list[list[int]]] = {}
        #: Of unequal batches, where a state was saved: epoch, batches, and the samples in them.
        self._resumed: tuple[int, int, int] | None = None
        global_batch = sizes.pop() if self.regular else 1
        kind = {"supplied": {"length": self._length}}
        order = Order(dataset.digest, len(dataset), kind, 0, global_batch, {"pad": {"multiple": 1}})
        super().__init__(dataset, order, Ranks(0, 1, (0,), word.of(shared=False)), cache, **keywords)

    def supply(self, epoch: int, batches: list[list[int]]) -> None:
        """Tells plan and agent what an epoch reads.

        Raises:
            InvalidError: It has another number of samples than the first, or other batches where those were equal.
        """
        if self.batches.get(epoch) == batches:
            return
        misfit = self.misfit(epoch, batches)
        if misfit is not None:
            raise InvalidError(misfit)
        ends = [number for batch in batches if batch for number in (min(batch), max(batch))]
        wrong = next((number for number in ends if not 0 <= number < self.order.samples), None)
        if wrong is not None:
            raise InvalidError(f"the sampler yields {wrong}: samples are numbered from 0 to {self.order.samples - 1}")
        samples = _samples_of(batches)
        self.batches = {known: kept for known, kept in self.batches.items() if known >= epoch - 1}
        self.batches[epoch] = batches
        self.plan.supply(epoch, samples)
        self.attachment().supply(epoch, samples)

    def misfit(self, epoch: int, batches: list[list[int]]) -> str | None:
        """Why an epoch is none of this run's, which was made for the first one that was seen; None: it is one."""
        length, size = sum(map(len, batches)), self.order.global_batch
        if length != self._length:
            return f"the sampler yields {length} samples in epoch {epoch} and {self._length} before; make a loader for each length"
        if self.regular and any(len(batch) != min(size, length - at * size) for at, batch in enumerate(batches)):
            return f"the batch sampler yields batches of {size} samples at first, and of other sizes in epoch {epoch}; make a loader for each size"
        return None

    def restore(self) -> None:
        """Supplies a new agent with what is known."""
        for epoch, batches in self.batches.items():
            self.attachment().supply(epoch, _samples_of(batches))

    def state(self, epoch: int, batches: int, beyond: Iterable[int] = ()) -> dict[str, Any]:
        """A checkpoint; of unequal batches the samples are counted."""
        state = super().state(epoch, batches, beyond)
        if not self.regular and epoch in self.batches:
            state["position"] = sum(map(len, self.batches[epoch][:batches]))
        elif self._resumed is not None and self._resumed[:2] == (epoch, batches):
            state["position"] = self._resumed[2]
        return {**state, "batches": batches}

    def _position(self, state: dict[str, Any]) -> tuple[int, int]:
        """Epoch and batch where a checkpoint goes on; the sampler must be what it was when the epoch began."""
        check_state(state, *(() if self.regular else ("batches",)))
        epoch, batch = super()._position(state)
        self._resumed = None
        if self.regular or epoch != state["epoch"]:
            return epoch, batch
        self._resumed = (epoch, int(state["batches"]), int(state["position"]))
        return self._resumed[:2]

    def check_resumed(self, epoch: int) -> None:
        """Refuses to go on in an epoch that isn't cut as it was when the state was saved: samples would come twice, or never.

        Raises:
            StateError: It isn't.
        """
        if self._resumed is None or self._resumed[0] != epoch:
            return
        _, batches, position = self._resumed
        self._resumed = None
        samples = sum(map(len, self.batches[epoch][:batches]))
        if samples != position:
            raise StateError(
                f"the state was saved after {batches} batches with {position} samples, and the sampler's first {batches} of epoch {epoch} have {samples}: "
                "give the batch sampler that the state was saved with"
            )

    def position(self, epoch: int, batch: int) -> int:
        """Where the plan has a batch: of unequal ones it counts the samples."""
        return batch if self.regular else sum(map(len, self.batches[epoch][:batch]))

    def __len__(self) -> int:
        return super().__len__() if self.regular else max(map(len, self.batches.values()), default=0)


class GivenStream(Stream):
    """Batches of unequal sizes, asked for by their reads."""

    def __init__(self, run: GivenRun, epoch: int, first: int, **keywords: Any) -> None:
        self._lists = run.batches[epoch]
        super().__init__(run, epoch, first, **keywords)
        self._count = len(self._lists)

    def _want(self, job: _core.Job, batch: int) -> int:
        if self._overtaken:
            return super()._want(job, batch)
        first = self.run.position(self.epoch, batch)
        reads = [(self.epoch, first + at) for at in range(len(self._lists[batch]))]
        return job.want_reads(self.run.rank, reads)

    def _samples(self, batch: int) -> list[int]:
        return self._lists[batch]
