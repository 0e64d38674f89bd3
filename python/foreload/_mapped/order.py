"""A sampler's order with what it names fetched ahead: what `foreload.mmap.wrap_sampler` answers with.

What an epoch reads has to be known before it is read, so the sampler is asked for all of it when the epoch begins. For whoever looks at the sampler that makes
a difference, which is undone: a sampler's state (`state_dict`) is that at the sample which was handed out last, and what torch's own samplers draw from is, after an
epoch that was left early, where it would be.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Protocol

#: Of torch, which isn't imported here: samplers whose only state is their generator.
_DRAWS_ALONE = "torch.utils.data.sampler"


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


class Ordered:
    """A sampler's order, with the pages of what it names fetched ahead.

    Args:
        sampler: A sampler, or a batch sampler.
        begin: Begins to fetch what samples name, in this order.
    """

    def __init__(self, sampler: Any, begin: Callable[[Sequence[Any]], Going]) -> None:
        self.sampler, self._begin = sampler, begin

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def __iter__(self) -> Iterator[Any]:
        drawn, is_over = _Drawn(self.sampler), False
        order = self._order()
        drawn.ends()
        is_batched = bool(order) and isinstance(order[0], (list, tuple))
        going = self._begin(list(chain.from_iterable(order)) if is_batched else order)
        nth = handed_out = due = 0
        try:
            for each in order:
                # To say so costs a reader that finds all in memory a hundredth of its time.
                if nth >= due:
                    going.reached(nth)
                    due = nth + going.every
                nth += len(each) if is_batched else 1
                handed_out += 1
                self._handed_out()
                yield each
            self._ended()
            is_over = True
        finally:
            going.stop()
            if not is_over:
                drawn.only(handed_out)

    def _order(self) -> list[Any]:
        return list(self.sampler)

    def _handed_out(self) -> None:
        pass

    def _ended(self) -> None:
        pass


class Stateful(Ordered):
    """The same of a sampler with a state.

    Its state within an epoch is the sampler's own after the epoch's first sample, and how many were handed out since.
    """

    _first: Any = None
    _since = 0
    _skipped = 0

    def _order(self) -> list[Any]:
        going, self._since = iter(self.sampler), self._skipped - 1
        first = list(islice(going, 1))
        self._first = copy.deepcopy(self.sampler.state_dict()) if first else None
        skipped, self._skipped = self._skipped, 0
        return [*first, *going][skipped:]

    def _handed_out(self) -> None:
        self._since += 1

    def _ended(self) -> None:
        self._first = None

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state at what was handed out last."""
        if self._first is None:
            return {"sampler": self.sampler.state_dict(), "since": self._skipped}
        return {"sampler": copy.deepcopy(self._first), "since": self._since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on after what had been handed out last; also with a state of the sampler's own."""
        is_ours = isinstance(state, dict) and state.keys() == {"sampler", "since"}
        self.sampler.load_state_dict(copy.deepcopy(state["sampler"]) if is_ours else state)
        self._skipped, self._first = state["since"] if is_ours else 0, None


def ordered(sampler: Any, begin: Callable[[Sequence[Any]], Going]) -> Ordered:
    """Wraps a sampler."""
    has_state = all(callable(getattr(sampler, name, None)) for name in ("state_dict", "load_state_dict"))
    return (Stateful if has_state else Ordered)(sampler, begin)


class _Drawn:
    """What a sampler has drawn from its generator for a whole epoch."""

    def __init__(self, sampler: Any) -> None:
        self._sampler, self._generator = sampler, _generator(sampler)
        self._before = self._state()

    def _state(self) -> Any:
        return None if self._generator is None else self._generator.get_state()

    def ends(self) -> None:
        """All of it is drawn."""
        self._after = self._state()

    def only(self, count: int) -> None:
        """So many of them were handed out: the generator gets to where they alone had brought it, unless somebody has drawn from it since."""
        if self._generator is not None and self._state().equal(self._after):
            self._generator.set_state(self._before)
            for _ in islice(self._sampler, count):
                pass


def _generator(sampler: Any) -> Any:
    """What torch's own samplers draw from, one that wraps another included; None: nothing that is known."""
    while type(sampler).__module__ == _DRAWS_ALONE:
        if hasattr(found := getattr(sampler, "generator", None), "set_state"):
            return found
        sampler = getattr(sampler, "sampler", None)
    return None
