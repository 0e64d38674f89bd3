"""Samplers that are read as they go: those without an end, with epochs too long to be listed, or with another number of samples each time.

What such a sampler yields is cut into laps of equally many samples, which plan and agent number like the epochs of any list that is supplied. The loop
draws so far ahead that the lap after the one it is in is known, and no further: memory stays what two laps need, however long the pass. The last lap of a
pass is filled up with its last sample, which nobody asks for. Reading ahead ends with the second lap, and with the pass: what the next one yields is not known.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreload import _core
from foreload._data import dataset as _dataset
from foreload._node.ranks import Ranks, Word
from foreload._run.failed import Failed
from foreload._run.readings import Readings
from foreload._run.run import Run
from foreload._run.stream import Stream
from foreload._settings.cache import Cache
from foreload.errors import InvalidError
from foreload.torch import _given, _lists

# A pass over a sampler and the stream of its batches are parts of the run.

#: Samples of a lap, or so many batches where those are large: at 100 KB each, 400 MB that are read ahead.
_LAP, _LAP_BATCHES = 4096, 8
#: Batches whose place in the pass is remembered, for states: more than can be on their way to the loop.
_REMEMBERED = 1 << 14
#: So many empty batches on end are no sampler's order.
_EMPTY = 1 << 16
#: Batches that a `Stream` asks for beyond the one that is due.
_AHEAD = 2


class Reading:
    """A pass over a sampler.

    Args:
        run: The run.
        epoch: What the loader calls the pass.
        batches: Its batches, as the sampler yields them.
        first: So many of them the loop has had; they are drawn again.
    """

    def __init__(self, run: Flow, epoch: int, batches: Iterator[list[int]], first: int) -> None:
        # The run has this pass, and is to go with its last loader, not when the next circle is looked for.
        self._run: Flow = weakref.proxy(run)
        self._batches, self.epoch = batches, epoch
        #: Samples in the batches that the loop has had, and by batch the digest of those before it.
        had = list(islice(batches, first))
        self.had = sum(map(len, had))
        self._digests = {first: _lists.digest(had)}
        #: The number of the next batch to be drawn; samples that were drawn, and of them those that no lap was made of yet.
        self.end, self._position = first, 0
        self._waiting: list[int] = []
        #: Laps that were made, and by which number the agent knows each of the latest: passes may overlap.
        self._made = 0
        self._laps: dict[int, int] = {}
        #: By batch: where it begins, and its samples.
        self._starts: dict[int, int] = {first: 0}
        self._samples: dict[int, list[int]] = {}
        self.is_ended = False
        self.error: Exception | None = None

    def reach(self, number: int) -> bool:
        """Draws until a batch is known and the lap after its own; whether there is such a batch."""
        empty = 0
        while not self.is_ended and (number >= self.end or self._made < self._lap_of(number) + 2):
            empty = 0 if self._draw() else empty + 1
            if empty > _EMPTY:
                raise InvalidError(f"batch_sampler yields empty batches and nothing else, {_EMPTY} on end")
        return number < self.end

    def _lap_of(self, number: int) -> int:
        """The lap in which a batch ends."""
        return max(0, self._starts[number + 1] - 1) // self._run.length

    def _draw(self) -> bool:
        try:
            batch = next(self._batches, None)
            _lists.check_samples(batch or [], self._run.order.samples)
        except Exception as error:  # noqa: BLE001 (raised at its batch, as under torch's loader)
            batch, self.error = None, error
        if batch is None:
            self.is_ended = True
            if self._waiting:
                self._supply([*self._waiting, *[self._waiting[-1]] * (self._run.length - len(self._waiting))])
            return False
        number, self.end = self.end, self.end + 1
        self._position += len(batch)
        self._samples[number], self._starts[number + 1] = batch, self._position
        self._digests[number + 1] = _lists.digest([batch], self._digests[number])
        for places in (self._starts, self._digests):
            places.pop(number - _REMEMBERED, None)
        self._waiting += batch
        while len(self._waiting) >= self._run.length:
            self._supply(self._waiting[: self._run.length])
            del self._waiting[: self._run.length]
        return bool(batch)

    def fail(self) -> None:
        """Raises what the sampler raised in place of the batch that is due."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _supply(self, samples: list[int]) -> None:
        self._laps[self._made] = self._run.supply(samples)
        self._made += 1

    def samples(self, number: int) -> list[int]:
        """A batch's samples."""
        return self._samples[number]

    def forget(self, before: int) -> None:
        """Nobody asks for the samples of batches before this one any more."""
        self._samples = {number: batch for number, batch in self._samples.items() if number >= before}
        first = self._starts[before] // self._run.length
        self._laps = {lap: number for lap, number in self._laps.items() if lap >= first}

    def name(self, number: int) -> tuple[int, int]:
        """Where a batch begins: lap and position."""
        lap, position = divmod(self._starts[number], self._run.length)
        # Nobody asks for what is behind the end.
        return self._laps.get(lap, 0), position

    def reads(self, number: int) -> list[tuple[int, int]]:
        """The names of a batch's reads."""
        places = (divmod(at, self._run.length) for at in range(self._starts[number], self._starts[number + 1]))
        return [(self._laps[lap], position) for lap, position in places]

    def digest(self, number: int) -> int | None:
        """Names the samples of all batches before one; None: that is long ago, or to come."""
        return self._digests.get(number)

    def position(self, number: int) -> int:
        """Samples of the pass before a batch."""
        return self.had + self._starts.get(number, self._position)

    def readings(self, number: int) -> Readings:
        """Which readings a batch's samples are."""
        return self._run.lists.readings(self.position(number))

    def samples_in(self, number: int) -> int:
        """Samples in a batch."""
        first = self._starts.get(number)
        return 0 if first is None else self._starts.get(number + 1, first) - first


class Flow(Run):
    """A run whose sampler is read as it goes."""

    def __init__(
        self, dataset: _dataset.Dataset, lists: _lists.Lists, cache: Cache, word: Word, **keywords: Any
    ) -> None:
        self.lists = lists
        #: Samples of a lap.
        self.length = max(_LAP, _LAP_BATCHES * (lists.batch_size or 1))
        self.reading: Reading | None = None
        self.next_lap = 0
        self._laps: dict[int, NDArray[np.uint64]] = {}
        self._at = (0, 0)
        keywords["settings"] = {"epochs": None}
        order = _given.order_of(dataset, self.length, 1)
        super().__init__(dataset, order, Ranks(0, 1, (0,), word.of(shared=False)), cache, **keywords)

    def _without_end(self) -> Run:
        self.epochs = None
        return self

    def read(self, epoch: int, batches: Iterator[list[int]], first: int, resumed: _lists.Resumed | None) -> None:
        """A pass begins.

        Raises:
            StateError: The batches that the loop has had have other sizes than when the state was saved.
        """
        self.reading = Reading(self, epoch, batches, first)
        if resumed is not None:
            resumed.check(epoch, self.reading.had)
            resumed.check_list(self.lists.place, self.reading.digest(first) or 0)
        self.reading.reach(first)
        self._at = self.reading.name(first)

    def supply(self, samples: list[int]) -> int:
        """Tells the agent a lap; its number."""
        lap, self.next_lap = self.next_lap, self.next_lap + 1
        # The one that is read, the one after, and one that another process still asks for.
        self._laps = {known: kept for known, kept in self._laps.items() if known >= lap - 2}
        self._laps[lap] = np.array(samples, np.uint64)
        self.attachment().supply(lap, self._laps[lap])
        return lap

    def restore(self) -> None:
        """Supplies a new agent with what is known."""
        for lap, samples in self._laps.items():
            self.attachment().supply(lap, samples)

    def state(self, epoch: int, batches: int, beyond: Iterable[int] = ()) -> dict[str, Any]:
        """A checkpoint: batches and samples that the loop has had."""
        reading = self.reading
        state = {**super().state(epoch, 0, beyond), "batches": batches}
        # Of a pass that is read as it goes nobody knows the end.
        for name in ("positions", "list"):
            state.pop(name, None)
        if reading is not None and reading.epoch == epoch:
            state["position"], digest = reading.position(batches), reading.digest(batches)
            if digest is not None:
                state["list"] = digest
            if reading.is_ended and batches == reading.end:
                # The epoch is over.
                state["positions"] = state["position"]
        return state

    def keep_up(self, epoch: int, batch: int) -> None:
        """Tells the agent where a pass of other processes stands, should it be a new one."""
        if self.reading is not None:
            self._at = self.reading.name(batch)
        super().keep_up(epoch, batch)

    def lap(self, epoch: int) -> int:  # noqa: ARG002 (there is one pass at a time)
        """By which number agent and plan know what is read now."""
        return self._at[0]

    def position(self, epoch: int, batch: int) -> int:  # noqa: ARG002
        """Where in its lap the batch is that is read now."""
        return self._at[1]

    def samples_in(self, epoch: int, batch: int) -> int:  # noqa: ARG002
        """Samples in a batch."""
        return 0 if self.reading is None else self.reading.samples_in(batch)

    def __len__(self) -> int:
        reading = self.reading
        return reading.end if reading is not None and reading.is_ended else (1 << 63) - 1


class FlowStream(Stream):
    """Batches of one pass; the sampler is drawn from in the loop alone."""

    run: Flow

    def __init__(self, run: Flow, epoch: int, first: int, **keywords: Any) -> None:
        reading = run.reading
        assert reading is not None, "a pass begins before its stream"
        self._reading = reading
        reading.reach(first + _AHEAD)
        super().__init__(run, epoch, first, **keywords)
        self._look()

    def _look(self) -> None:
        self._reading.forget(self._next)
        self._reading.reach(self._next + _AHEAD)
        self._count = min(self._reading.end, self._next + _AHEAD + 1)

    def _start(self, batch: int) -> _core.Job:
        if batch >= self._reading.end:
            return self._attachment.job()
        return self._attachment.start(self.run.rank, *self._reading.name(batch), self._token)

    def __next__(self) -> tuple[int, _core.Delivery | Failed]:
        if self.is_ours and self._next >= self._count:
            # The last lap is not read to its end.
            self._attachment.leave(self.run.rank, self._token)
            self._reading.fail()
        found = super().__next__()
        self._look()
        return found

    def pass_on(self) -> int:
        """Hands out the batch that `look_ahead` showed; its number."""
        number = super().pass_on()
        self._look()
        return number

    def _want(self, job: _core.Job, batch: int) -> int:
        if self._overtaken:
            return super()._want(job, batch)
        return job.want_reads(self.run.rank, self._reading.reads(batch))

    def _samples(self, batch: int) -> list[int]:
        return self._reading.samples(batch)

    def readings(self, batch: int) -> Readings:
        """Which readings a batch's samples are."""
        return self._reading.readings(batch)._replace(again=self.again)
