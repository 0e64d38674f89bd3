"""A data set whose results are kept: what `wrap(..., deterministic=True)` makes.

It is a map-style data set like any other, for torch's machinery: worker processes run it ahead of the loop, in the sampler's order. A result becomes a
record (`_record`) that all processes of the node find, and later runs (`_node.results`); a sample that has one isn't made again. Now and then one is made
all the same, and compared. What draws random numbers comes behind, as `then`.
"""

from __future__ import annotations

import logging
import operator
import os
import random
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils import data

from foreload._node import agent as _agent
from foreload._node.results import Fate, Results
from foreload._node.table import Name
from foreload._settings.cache import Cache, fixed
from foreload.errors import CorruptError, InvalidError, name_sample
from foreload.torch._randomness import unnoticed
from foreload.torch._record import UnknownTypeError, decode, encode

_LOG = logging.getLogger("foreload")
T = TypeVar("T", covariant=True)

#: Columns of the counts, by their names in `stats()`; behind them, in the first row, which log lines have been written.
_COLUMNS = ("answered", "answered_bytes", "made", "kept", "kept_bytes", "compared", "damaged", "unknown")
_FAILED, _FULL, _UNKNOWN, _DAMAGED = range(len(_COLUMNS), len(_COLUMNS) + 4)
#: Processes that count by themselves; workers beyond share a row, and may lose a count.
_ROWS = 129
_NOTHING = object()


class Kept(data.Dataset[T]):
    """A data set as it is, whose results are kept.

    Args:
        dataset: The data set.
        name: What it is called with what is kept.
        then: Applied to each result, kept or not.
        check: Of so many samples one is made again and compared, and the first that a process finds and that it makes; 0: none.
        cache: Budgets.
    """

    def __init__(
        self, dataset: Any, name: str, *, then: Callable[[Any], Any] | None, check: int, cache: Cache | None
    ) -> None:
        #: The data set itself.
        self.dataset = dataset
        self._name, self._then, self._check = name, then, check
        self._samples = len(dataset)
        self._counts: torch.Tensor = torch.zeros((_ROWS, _DAMAGED + 1), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        # As long as it lives, other loaders leave it its memory.
        self._cache = fixed(cache)
        place = _agent.cache_directory(None)
        self._results = Results(Name(name, self._samples), self._cache.disks(), self._cache.ram_bytes(), place)
        self._tell_failures()
        #: Whose turn it is to be compared: a process, and what it has had none of yet.
        self._dice: tuple[int, random.Random, set[str]] = 0, random.Random(), set()  # noqa: S311 (no secret)
        self._is_made = True

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, sample: Any) -> Any:
        item = self._result(sample)
        return item if self._then is None else self._then(item)

    def counts(self) -> dict[str, int]:
        """How many results were found (`answered`) or made, kept for others, made again and compared, found damaged, and of a type that isn't kept."""
        return dict(zip(_COLUMNS, self._counts.sum(0).tolist(), strict=False))

    def __getattr__(self, name: str) -> Any:
        """What the data set has besides."""
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """What is the data set's could change what is kept."""
        if "_is_made" in self.__dict__ and name not in self.__dict__ and hasattr(self.dataset, name):
            raise InvalidError(
                f"wrap: {name} is the data set's, and its results are kept: set it first, and wrap with another name="
            )
        super().__setattr__(name, value)

    def _result(self, sample: Any) -> Any:
        try:
            at = operator.index(sample)
        except TypeError:
            return self.dataset[sample]
        if not 0 <= at < self._samples:
            return self.dataset[sample]
        record, item, is_damaged = self._found(at)
        try:
            if item is not _NOTHING:
                self._count(answered=1, answered_bytes=len(record or b""))
                if self._is_turn("answered"):
                    self._compare(at, record)
                return item
            # What is drawn behind doesn't depend on whether it was kept.
            with unnoticed():
                return self._made(at, record, is_damaged=is_damaged)
        except InvalidError as error:
            name_sample(error)
            raise

    def _found(self, at: int) -> tuple[bytes | None, Any, bool]:
        """A sample's record, what it is, and whether it is damaged."""
        record = None
        try:
            record = self._results.get(at)
            return record, _NOTHING if record is None else decode(record), False
        except UnknownTypeError:
            # What the data set makes tells whether it's the same.
            return record, _NOTHING, False
        except CorruptError as error:
            self._count(damaged=1)
            self._tell_once(_DAMAGED, "%s; it is made again. Others are counted", error)
            return None, _NOTHING, True

    def _made(self, at: int, record: bytes | None, *, is_damaged: bool) -> Any:
        """A sample that the data set makes, and that is kept from now on."""
        item = self.dataset[at]
        self._count(made=1)
        made = self._encoded(item)
        if record is not None:
            # Of a class that this process didn't know.
            self._check_same(at, record, made)
        elif made is not None:
            if self._is_turn("made"):
                self._compare(at, made)
            fate = self._results.put(at, made, anew=is_damaged)
            if fate is Fate.KEPT:
                self._count(kept=1, kept_bytes=len(made))
            elif fate is Fate.FULL:
                self._tell_once(
                    _FULL,
                    "the budgets have no room for more results of %s; those that are kept stay, the others are made each time",
                    self._name,
                )
            self._tell_failures()
        return item

    def _encoded(self, item: Any) -> bytes | None:
        try:
            return encode(item)
        except InvalidError as error:
            self._count(unknown=1)
            self._tell_once(_UNKNOWN, "%s isn't kept, and made each time: %s", self._name, error)
            return None

    def _is_turn(self, what: str) -> bool:
        """Whether a sample is compared: the first of its kind in each process, and some. Nobody else's random numbers are drawn for it."""
        if self._dice[0] != os.getpid():
            # Seeded by the system.
            self._dice = os.getpid(), random.Random(), {"answered", "made"}  # noqa: S311 (no secret)
        _, dice, firsts = self._dice
        is_first = what in firsts
        firsts.discard(what)
        return self._check > 0 and (is_first or dice.randrange(self._check) == 0)

    def _compare(self, at: int, record: bytes | None) -> None:
        """Makes a sample once more, with random numbers of its own, so that one that draws differs."""
        with unnoticed():
            random.seed()
            np.random.seed()
            torch.default_generator.seed()
            made = self._encoded(self.dataset[at])
        self._count(compared=1)
        self._check_same(at, record, made)

    def _check_same(self, at: int, record: bytes | None, made: bytes | None) -> None:
        if record != made:
            raise InvalidError(
                f"wrap: sample {at} of {self._name} was made twice, and the two differ: it isn't deterministic, or data or code have changed since results "
                "were kept. If it draws random numbers, wrap what comes before them, and give the rest as then=: wrap(dataset, deterministic=True, "
                "name=..., then=augment). If it has changed, give another name=, or remove what is kept by `foreload cache clear`",
                at,
            )

    def _count(self, **by: int) -> None:
        worker = data.get_worker_info()
        row = self._counts.numpy()[0 if worker is None else 1 + worker.id % (_ROWS - 1)]
        for name, value in by.items():
            row[_COLUMNS.index(name)] += value

    def _tell_failures(self) -> None:
        failures = self._results.failures
        if failures:
            self._tell_once(_FAILED, "no more results of %s are kept there: %s", self._name, ", ".join(failures))
            failures.clear()

    def _tell_once(self, what: int, text: str, *of: Any) -> None:
        """Writes a log line, in one process."""
        told = self._counts.numpy()[0]
        if not told[what]:
            told[what] = 1
            _LOG.warning("wrap: " + text, *of)
