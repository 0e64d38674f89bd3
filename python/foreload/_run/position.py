"""Where a loader stands: which batches of which epoch its consumer has had, in order and beyond, and what it begins next.

A `Cursor` counts them for a loader that hands out batches; a checkpoint holds the same as numbers (`foreload._run.run`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from foreload._settings import numbers as _numbers
from foreload._settings.state import MOST_EPOCH
from foreload.errors import (
    StateError,
)

_LOG = logging.getLogger("foreload")


class Had:
    """The batches of an epoch that a loop has had, in whatever order they come.

    Attributes:
        batches: All before this one.
        beyond: And these.
        failed: And these, if the loop goes on after the errors that it got in their place.
        broken: Why the pass can't go on; None: it can.
    """

    def __init__(self, batches: int, beyond: Iterable[int] = ()) -> None:
        self.batches, self.beyond = batches, set(beyond)
        self.failed: list[int] = []
        self.broken: str | None = None

    def add(self, batch: int) -> None:
        """One more."""
        self.beyond.update((batch, *self.failed))
        self.failed.clear()
        while self.batches in self.beyond:
            self.beyond.remove(self.batches)
            self.batches += 1


class Cursor:
    """Where a loader stands, and where its next pass begins.

    Each pass is one epoch. One that is left early is over: the next pass is the next epoch, unless the state was loaded or the epoch set.
    Where ranks deal an epoch among them, a pass of which the loop took one batch at most was a look, which one rank may take and the others
    not: the next pass begins where that one did.
    """

    def __init__(self) -> None:
        self.epoch, self.batch = 0, 0
        #: Batches after `batch` that the loop has had.
        self.beyond: frozenset[int] = frozenset()
        #: Whether several ranks deal an epoch among them.
        self.is_dealt = False
        #: How often a state was loaded or an epoch set.
        self.placed = 0
        self._next = (0, 0)
        self._next_beyond: frozenset[int] = frozenset()
        #: Where the pass began that was the last one, and how many batches the loop has had of it; None: it was whole, or the
        #: next one was placed since.
        self._begun: tuple[tuple[int, int], frozenset[int]] | None = None
        self._taken, self._looks = 0, 0
        #: The epoch that was over where the loaded state was saved, and whether the next pass is what is left of it: nothing.
        self._over: int | None = None
        self._is_rest = False
        #: The epoch before where a loaded state is of its end, for the states of a loader that hasn't begun another one since.
        self._behind: int | None = None
        #: The epoch that was set last, which later passes go on from; and the same of the state that the next pass goes on from.
        self._set: int | None = None
        self._set_then: int | None = None
        #: Whether whoever reads sets epochs here, and not at a sampler of his own, which says itself how often it was read.
        self.is_told = True

    def begin(self) -> tuple[int, int]:
        """A pass begins: its epoch and first batch; `beyond` is to be left out."""
        self._over = self._behind = self._set_then = None
        self._looks = self._looks + 1 if self._forget_look() else 0
        if self._looks == 2:
            _LOG.warning(
                "passes that are left after one batch don't count as epochs where several ranks read: this one is of epoch %d again; "
                "call set_epoch for another",
                self._next[0],
            )
        self._begun, self._taken = (self._next, self._next_beyond), 0
        self.epoch, self.batch = self._next
        self.beyond, self._next_beyond = self._next_beyond, frozenset()
        self._next = (self.epoch + 1, 0)
        return self.epoch, self.batch

    def _forget_look(self) -> bool:
        """Goes back to where the last pass began if that was a look."""
        begun, self._begun = self._begun, None
        if not self.is_dealt or begun is None or self._taken > 1:
            return False
        self._next, self._next_beyond = begun
        return True

    def consumed(self, epoch: int, batches: int, beyond: Iterable[int] = ()) -> None:
        """The loop has had so many batches of an epoch, and some beyond."""
        self.epoch, self.batch, self.beyond = epoch, batches, frozenset(beyond)
        self._taken += 1

    def ended(self) -> None:
        """The loop has had the whole pass."""
        self._begun = None

    def confirmed(self) -> None:
        """The next pass was set to the epoch that comes anyway: one that was left after a batch is no look at it."""
        self._begun = None
        self.placed += 1

    def set_epoch(self, epoch: int, *, again: bool = False) -> None:
        """The next pass is of this epoch; one that is to be resumed goes on where it was, which may be its end.

        Args:
            epoch: The epoch.
            again: Whether it is read once more if the state that was loaded was saved at its end.

        Raises:
            InvalidError: It is no epoch.
        """
        epoch = _numbers.count("epoch", epoch, 0, MOST_EPOCH)
        self._set = epoch
        if self._set_then is not None and self.is_told:
            # That one was set when the state was saved, and passes had gone on from it: Lightning reads a short loader several times in an epoch of its own.
            if epoch == self._set_then:
                self.placed += 1
                return
            self._over = None
        self._is_rest = epoch == self._over and not again
        if self._is_rest:
            _LOG.info("set_epoch(%d): the state that was loaded was saved at its end, so nothing is left of it", epoch)
            self.placed += 1
            return
        is_between = self._begun is None
        self._forget_look()
        self.placed += 1
        if epoch != self._next[0]:
            if self._next[1]:
                _LOG.warning(
                    "set_epoch(%d): the state that was loaded, epoch %d after batch %d, is not gone on with",
                    epoch,
                    *self._next,
                )
            self._next, self._next_beyond = (epoch, 0), frozenset()
            if is_between:
                self.epoch, self.batch = self._next
                self.beyond = frozenset()

    def stamp(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state of here. One that was loaded, and is saved anew, still says which epoch was over; one of an epoch that nobody set, which was set last."""
        is_behind = self._behind is not None and self._next == (self._behind + 1, 0)
        found = {**state, "over": self._behind} if is_behind else state
        has_gone_on = self.is_told and self._set not in (None, self._behind if is_behind else state["epoch"])
        return {**found, "set": self._set} if has_gone_on else found

    def rest_is_read(self) -> None:
        """What was left of an epoch that was over, nothing, has been read elsewhere."""
        self._is_rest, self._over = False, None

    def takes_rest(self) -> bool:
        """Whether the pass that begins is what is left of an epoch that was over: then it has no batch, and the next one goes on."""
        is_rest, self._is_rest = self._is_rest, False
        self._over = None if is_rest else self._over
        return is_rest

    def load(self, epoch: int, batch: int, beyond: Iterable[int] = (), *, of: Mapping[str, Any] | None = None) -> None:
        """The next pass goes on here.

        Args:
            epoch: The epoch.
            batch: Its first batch.
            beyond: Batches after that one that are left out.
            of: The state: where that is of the epoch before, that was over.

        Raises:
            StateError: It is damaged.
        """
        over = epoch if of is None else of.get("over", of["epoch"])
        told = None if of is None else of.get("set")
        for name, value in {"over": over, "set": 0 if told is None else told}.items():
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_EPOCH:
                raise StateError(f"the state is damaged: its {name} is {value!r:.60}, and would be an epoch")
        self._set = self._set_then = told
        self._over = self._behind = over if over < epoch else None
        self._is_rest = False
        self._begun = None
        self.placed += 1
        self.epoch, self.batch = self._next = (epoch, batch)
        self.beyond = self._next_beyond = frozenset(beyond)

    @property
    def is_rest(self) -> bool:
        """Whether the next pass is what is left of an epoch that was over: nothing."""
        return self._is_rest

    @property
    def is_under_way(self) -> bool:
        """Whether the loop has had a part of an epoch since the pass began."""
        return self._next != (self.epoch, self.batch) and bool(self.batch or self.beyond)

    @property
    def upcoming(self) -> tuple[int, int]:
        """Epoch and first batch of the next pass."""
        return self._next


_SPAN = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)


def spans_of(numbers: Iterable[int]) -> str:
    """Numbers in a short form.

    Example:
        >>> spans_of([9, 4, 5, 6])
        '4-6,9'
    """
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in spans)


def numbers_in(spans: str, end: int) -> list[int]:
    """What `spans_of` was given, sorted.

    Args:
        spans: The short form.
        end: Numbers from here on are left out: the batches of this run may end earlier than those of the run that saved them.

    Raises:
        StateError: It is none, which only a damaged state has.

    Example:
        >>> numbers_in("4-6,9,20", 12)
        [4, 5, 6, 9]
    """
    pairs = [_SPAN.fullmatch(span) for span in spans.split(",")] if isinstance(spans, str) and spans else []
    ends = [(int(pair[1]), int(pair[2] or pair[1])) for pair in pairs if pair]
    flat = [number for pair in ends for number in pair]
    if not isinstance(spans, str) or None in pairs or flat != sorted(flat):
        raise StateError(
            f"the state is damaged: its beyond is {spans!r:.60}, and would be numbers of batches, as in '4-6,9'"
        )
    return [number for first, last in ends for number in range(first, min(last + 1, end))]
