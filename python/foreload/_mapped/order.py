"""A sampler's order with what it names fetched ahead: what `foreload.mmap.wrap_sampler` answers with.

The sampler is asked sample by sample, as it would be without this, so that its order, its state and what it draws from are what they would be. What it is going to name says a
[double](double.py) of it, a part of an epoch at a time; of a sampler with code of its own, a copy that its owner makes. Where the sampler names something else, as it does when
somebody draws from its generator meanwhile, nothing more is fetched ahead in that epoch.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

from foreload._mapped.double import NoDoubleError, double, is_array
from foreload.errors import ForeloadError

#: So many samples of an epoch are looked up at a time, and the next ones when so many are left.
_PART, _OVERLAP = 1 << 14, 1 << 8


class Going(Protocol):
    """What has to be told how far the reader is.

    Attributes:
        every: Each so many samples is enough.
    """

    every: int

    def reached(self, nth: int) -> None:
        """The reader begins with this sample, counted from 0."""

    def stop(self) -> None:
        """Nothing more is read."""


#: Begins to fetch what samples name, in this order; the second argument says whether it is an epoch's begin. Where it can't, the program reads on without it: a name may never be
#: come to, and what is wrong with a file the program hears itself.
Begin = Callable[[Sequence[Any], bool], Going]


def _warn(why: str) -> None:
    warnings.warn(f"nothing more is fetched ahead in this epoch: {why}", RuntimeWarning, stacklevel=5)


class _How(NamedTuple):
    """How a sampler is followed: see `Ordered`."""

    begin: Begin
    foresee: Callable[[Any], Any]
    tuples_are_names: bool
    part: int
    had: int
    warn: Callable[[str], None]

    def names(self, each: Any) -> list[Any]:
        """What a sampler yields, as samples."""
        if isinstance(each, tuple):
            return [each] if self.tuples_are_names else list(each)
        if isinstance(each, list):
            return each
        if is_array(each) and each.ndim == 1:
            return list(each.tolist())
        return [each]


class Ordered:
    """A sampler's order, with the pages of what it names fetched ahead.

    Args:
        sampler: A sampler, or a batch sampler.
        begin: Begins to fetch what samples name, in this order.
        foresee: Makes of the sampler what names what it will, without a change to it. None: it is one whose code is known.
        tuples_are_names: Whether a tuple is a sample's name; else it is a batch.
        part: So many samples of an epoch are looked up at a time.
        had: What is named so often first was read before this, and isn't again.
        warn: Is told why nothing more is fetched ahead.
    """

    _OWN = frozenset(("_sampler", "_how"))

    def __init__(
        self,
        sampler: Any,
        begin: Begin,
        foresee: Callable[[Any], Any] | None = None,
        tuples_are_names: bool = False,
        part: int = _PART,
        had: int = 0,
        warn: Callable[[str], None] = _warn,
    ) -> None:
        self._sampler = sampler
        self._how = _How(begin, foresee or double, tuples_are_names, part, had, warn)

    def __len__(self) -> int:
        return len(self._sampler)

    def __bool__(self) -> bool:
        return bool(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in Ordered._OWN:
            raise AttributeError(name)
        return getattr(self._sampler, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # An epoch's number, say.
        if name in Ordered._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._sampler, name, value)

    def __iter__(self) -> Iterator[Any]:
        return _Followed(self._sampler, self._how)


class _Followed(Iterator[Any]):
    """A sampler's iterator, which is followed. What the iterator has besides, such as a state, this has, too."""

    def __init__(self, sampler: Any, how: _How) -> None:
        self._going, self._sampler, self._how = iter(sampler), sampler, how
        self._foreseen: _Foreseen | None = None

    def __next__(self) -> Any:
        # A sampler draws when it is asked first, and not before.
        if self._foreseen is None:
            self._foreseen = _Foreseen(self._sampler, self._how)
        try:
            each = next(self._going)
        except BaseException:
            self._foreseen.ends()
            raise
        self._foreseen.comes(each)
        return each

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._going, name)

    def close(self) -> None:
        """The epoch is left."""
        if self._foreseen is not None:
            self._foreseen.ends()
        if (close := getattr(self._going, "close", None)) is not None:
            close()

    def __del__(self) -> None:
        # Of one that could not be made there is nothing.
        if (foreseen := self.__dict__.get("_foreseen")) is not None:
            foreseen.ends()


class _Part:
    """Samples that were looked up together."""

    def __init__(self, first: int, count: int, going: Going) -> None:
        self.first, self.end, self.going = first, first + count, going


class _Foreseen:
    """What a sampler is going to name in an epoch."""

    def __init__(self, sampler: Any, how: _How) -> None:
        self._how = how
        self._parts: deque[_Part] = deque()
        self._coming: deque[Any] = deque()
        self._going: Iterator[Any] | None = None
        self._foreseen = self._nth = self._due = 0
        self._had = how.had
        try:
            going = iter(how.foresee(sampler))
            deque(islice(going, how.had), 0)
            self._going = going
        except NoDoubleError as why:
            self._how.warn(
                f"what {type(sampler).__name__} is going to name can't be known, for {why}; where a copy of it names it, "
                "and copying and asking it changes nothing else, foresee=copy.deepcopy says so"
            )
        except Exception as error:  # noqa: BLE001 (a sampler may raise anything, and whoever asks it itself hears of it)
            self._how.warn(f"asked ahead, {type(sampler).__name__} says {type(error).__name__}: {error}")
        self._look()

    def _look(self) -> None:
        """Looks up the next part."""
        if self._going is None:
            return
        part: list[Any] = []
        try:
            part.extend(islice(self._going, 1))
            # Of batches fewer make a part; there may be nothing in them, for ever.
            of_each = max(1, len(self._how.names(part[0]))) if part else 1
            part.extend(islice(self._going, max(0, self._how.part // of_each - 1)))
            # A sampler may fill the same list again and again.
            part = [list(each) if type(each) is list else each for each in part] if of_each > 1 else part
        except Exception as error:  # noqa: BLE001 (as above)
            self._going = None
            self._how.warn(f"asked ahead, the sampler says {type(error).__name__}: {error}")
        if not part:
            self._going = None
            return
        try:
            is_plain = all(type(each) is int for each in part)
            names = part if is_plain else [name for each in part for name in self._how.names(each)]
            going = self._how.begin(names, self._foreseen == 0)
        except Exception as error:  # noqa: BLE001 (what makes names of samples may raise anything, for one that is never come to)
            self.ends()
            self._how.warn(
                str(error) if isinstance(error, (ForeloadError, OSError)) else f"{type(error).__name__}: {error}"
            )
            return
        self._parts.append(_Part(self._foreseen, len(names), going))
        self._foreseen += len(names)
        self._coming.extend(part)

    def comes(self, each: Any) -> None:
        """The sampler has named this."""
        if self._had > 0:
            self._had -= 1
            return
        if not self._coming:
            return
        other = self._coming.popleft()
        count = 1 if type(each) is int and each == other else self._common(each, other)
        if count is None:
            self.ends()
            self._how.warn("the sampler names something else than foreseen: is its generator drawn from elsewhere?")
            return
        # To say where it is costs a reader that finds all in memory a hundredth of its time.
        if self._nth >= self._due:
            self._reached()
        self._nth += count
        if self._foreseen - self._nth <= _OVERLAP:
            self._look()

    def _common(self, each: Any, other: Any) -> int | None:
        """How many samples both name, if they name the same."""
        try:
            names = self._how.names(each)
            return len(names) if names == self._how.names(other) else None
        except Exception:  # noqa: BLE001 (what samplers name may compare, and be read, as it likes: arrays do)
            return None

    def _reached(self) -> None:
        part = self._parts[0]
        while self._nth >= part.end and len(self._parts) > 1:
            part.going.stop()
            self._parts.popleft()
            part = self._parts[0]
        part.going.reached(self._nth - part.first)
        self._due = min(self._nth + part.going.every, part.end)

    def ends(self) -> None:
        """Nothing more is read."""
        self._going = None
        self._coming.clear()
        while self._parts:
            self._parts.popleft().going.stop()
