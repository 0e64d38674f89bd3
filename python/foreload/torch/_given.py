"""Runs over orders that the user's own sampler decides.

Torch's samplers whose order the plan can compute are recognised (`_samplers`), so that reading ahead crosses the border between epochs. Of any
other, epochs are listed (`_lists`) and supplied to plan and agent.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from foreload import _core
from foreload._data import dataset as _dataset
from foreload._node.ranks import Ranks, Word
from foreload._run.position import numbers_in
from foreload._run.readings import Readings
from foreload._run.run import Run, check_belongs
from foreload._run.stream import Stream
from foreload._settings.cache import Cache
from foreload._settings.order import Order
from foreload._settings.state import check_state
from foreload.errors import InvalidError, StateError
from foreload.torch._lists import Lists, Resumed, check_samples, digest, place_in_state, samples_of


class _Order(Order):
    """An order that is supplied: a state of it is of the sampler, however long its epochs are."""

    @cached_property
    def sequence(self) -> str:
        """Names the data set alone."""
        return Order(self.dataset, self.samples, _lists_of(1), self.seed, 1, self.tail).sequence


def order_of(dataset: _dataset.Dataset, length: int, global_batch: int) -> Order:
    """The plan's order for lists of a length."""
    return _Order(dataset.digest, len(dataset), _lists_of(length), 0, global_batch, {"pad": {"multiple": 1}})


def _lists_of(length: int) -> dict[str, Any]:
    return {"supplied": {"length": length}}


def unread(dataset: _dataset.Dataset, size: int | None, epoch: int) -> dict[str, Any]:
    """The state of a loader at the beginning of an epoch, before its sampler was asked for anything.

    Args:
        dataset: The data set.
        size: Samples of a batch, if the sampler doesn't yield batches.
        epoch: The epoch.
    """
    order = order_of(dataset, 1, size or 1)
    state = {"version": 1, "order": "", "sequence": order.sequence, "epoch": epoch, "position": 0, "batches": 0}
    told = {"kind": order.name, "seed": order.seed, "samples": order.samples, "dataset": order.dataset}
    return {**state, "global_batch": order.global_batch, **told}


def resume(state: Any, dataset: _dataset.Dataset, size: int | None, here: int) -> tuple[Resumed, list[int]]:
    """Where a state goes on, which nobody needs to ask the sampler for.

    Args:
        state: The state.
        dataset: The data set.
        size: Samples of a batch; None: the sampler decides.
        here: How many ranks there are.

    Returns:
        Epoch, batches and samples that the loop has had, and the batches beyond them that it has had, too.

    Raises:
        StateError: It is damaged, or belongs to another run.
    """
    check_state(state)
    check_belongs(state, order_of(dataset, 1, 1))
    check_state(state, "batches")
    epoch, batches, position = state["epoch"], state["batches"], state["position"]
    if "positions" in state and position >= state["positions"]:
        return Resumed(epoch + 1, 0, 0), []
    if size is not None and position != batches * size:
        if state.get("beyond"):
            raise StateError(
                f"the state was saved with in_order=False, when batches {state['beyond']} had come before batch {batches}: it goes on only with batches of "
                f"the same size, not of {size} samples"
            )
        batches, rest = divmod(position, size)
        if rest:
            saved_on = place_in_state(state)[1] if "of" in state else here
            if saved_on != here:
                raise StateError(
                    f"the state was saved on one of {saved_on} ranks after {position} samples of its own, and no batch of {size} begins there on one of "
                    f"{here}: go on with {saved_on} ranks and their batch size, or save states between epochs. A sampler that is known to deal all of the "
                    "data set, such as a DistributedSampler given as sampler=, goes on with any number of ranks"
                )
            raise StateError(
                f"the state was saved after {position} samples; with batches of {size} no batch begins there. Choose a batch_size that divides {position}"
            )
    beyond = numbers_in(state.get("beyond", ""), 1 << 62)
    resumed = Resumed(epoch, batches, position)
    if "list" in state:
        # Of the samples, however they are cut into batches.
        check_state(state, "list")
        resumed.place, resumed.digest = place_in_state(state), state["list"]
        if "length" in state:
            check_state(state, "length")
            resumed.length = state["length"]
    return resumed, [number for number in beyond if number >= batches]


class GivenRun(Run):
    """A run whose epochs are supplied as they become known.

    Plan and agent number the lists that they are given (`lap`), each once: an epoch may have another list the next time.
    """

    def __init__(
        self, dataset: _dataset.Dataset, lists: Lists, first: list[list[int]], cache: Cache, word: Word, **keywords: Any
    ) -> None:
        sizes = {len(batch) for batch in first[:-1]} or {len(first[0])}
        self.regular = len(sizes) == 1 and 0 < len(first[-1]) <= max(sizes)
        self.lists = lists
        self._length = sum(map(len, first))
        #: By epoch: the list's lap, and the batches.
        self._laps: dict[int, tuple[int, list[list[int]]]] = {}
        #: Passes that are read, whose lists are needed however many began since.
        self.under_way: weakref.WeakSet[Any] = weakref.WeakSet()
        self._digested = (-1, 0, 0)
        global_batch = sizes.pop() if self.regular else 1
        order = order_of(dataset, self._length, global_batch)
        # Laps are not epochs: the agent reads ahead what it was given.
        keywords["settings"] = {"epochs": None}
        super().__init__(dataset, order, Ranks(0, 1, (0,), word.of(shared=False)), cache, **keywords)

    def _without_end(self) -> Run:
        # The agent knows of no end: it has what it was given.
        self.epochs = None
        return self

    @property
    def batches(self) -> dict[int, list[list[int]]]:
        """The lists that are known, by epoch."""
        return {epoch: batches for epoch, (_, batches) in self._laps.items()}

    def lap(self, epoch: int) -> int:
        """By which number agent and plan know an epoch's list."""
        return self._laps[epoch][0]

    def supply(self, epoch: int, batches: list[list[int]]) -> None:
        """Tells plan and agent what an epoch reads.

        Raises:
            InvalidError: It has another number of samples than the first, or other batches where those were equal.
        """
        lap, known = self._laps.get(epoch, (-1, None))
        last = max((lap for lap, _ in self._laps.values()), default=-1)
        # The agent keeps the latest two.
        if known == batches and lap >= last - 1:
            return
        misfit = self.misfit(epoch, batches)
        if misfit is not None:
            raise InvalidError(misfit)
        ends = [number for batch in batches if batch for number in (min(batch), max(batch))]
        check_samples(ends, self.order.samples)
        samples = samples_of(batches)
        lap = last + 1
        # The one before may be read yet, and what was foreseen wrongly lies between.
        read = {each.epoch for each in self.under_way}
        self._laps = {known: kept for known, kept in self._laps.items() if kept[0] >= lap - 2 or known in read}
        self._laps[epoch] = (lap, batches)
        self.plan.supply(lap, samples)
        self.attachment().supply(lap, samples)

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
        for lap, batches in self._laps.values():
            self.attachment().supply(lap, samples_of(batches))

    def state(self, epoch: int, batches: int, beyond: Iterable[int] = ()) -> dict[str, Any]:
        """A checkpoint; of unequal batches the samples are counted."""
        state = super().state(epoch, batches, beyond)
        if not self.regular and epoch in self._laps:
            state["position"] = self.position(epoch, batches)
        if epoch in self._laps:
            state["list"] = self._digest(epoch, batches)
        return {**state, "batches": batches}

    def _digest(self, epoch: int, batches: int) -> int:
        """Of what was read; only of what came since it was asked for the last time."""
        lap, lists = self._laps[epoch]
        known, had, before = self._digested
        if known != lap or had > batches:
            had, before = 0, 0
        found = digest(lists[had:batches], before)
        self._digested = (lap, batches, found)
        return found

    def readings(self, epoch: int, batch: int) -> Readings:
        """Which readings a batch's samples are: a sampler may yield a sample several times."""
        first = batch * self.order.global_batch if self.regular else self.position(epoch, batch)
        return self.lists.readings(first)

    def position(self, epoch: int, batch: int) -> int:
        """Where the plan has a batch: of unequal ones it counts the samples."""
        return batch if self.regular else sum(map(len, self._laps[epoch][1][:batch]))

    def samples_in(self, epoch: int, batch: int) -> int:
        """Samples in a batch."""
        _, batches = self._laps.get(epoch, (0, []))
        return super().samples_in(epoch, batch) if self.regular else sum(map(len, batches[batch : batch + 1]))

    def __len__(self) -> int:
        return (
            super().__len__() if self.regular else max((len(batches) for _, batches in self._laps.values()), default=0)
        )


class Held:
    """Keeps the list of a pass that is read elsewhere, for as long as it lives."""

    def __init__(self, run: Run, epoch: int) -> None:
        self.epoch = epoch
        if isinstance(run, GivenRun):
            run.under_way.add(self)


class GivenStream(Stream):
    """Batches of unequal sizes, asked for by their reads."""

    def __init__(self, run: GivenRun, epoch: int, first: int, **keywords: Any) -> None:
        self._lists = run.batches[epoch]
        super().__init__(run, epoch, first, **keywords)
        run.under_way.add(self)
        self._count = len(self._lists)

    def _want(self, job: _core.Job, batch: int) -> int:
        if self._overtaken:
            return super()._want(job, batch)
        first = self.run.position(self.epoch, batch)
        reads = [(self._lap, first + at) for at in range(len(self._lists[batch]))]
        return job.want_reads(self.run.rank, reads)

    def _samples(self, batch: int) -> list[int]:
        return self._lists[batch]
