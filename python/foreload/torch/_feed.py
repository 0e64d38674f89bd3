"""Data sets that have a state, read by torch's own readers: what goes with their batches.

Torch's workers run unchanged. Where the data set, or an iterator of it, has `state_dict` and `load_state_dict`, a worker's collate function sends its
state along with each batch (`Stated`), so that the loader knows where each worker stood after the last batch that the loop has had. An iterable
data set is handed to the workers, or without any to torch's reader in this process, as a `Feed`, which goes on from a state, and says when its end is
reached; nobody else sees it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory as _pin


class _End:
    """The type of `END`; from a worker process it comes as the same object."""

    def __reduce__(self) -> str:
        return "END"


#: Follows the last item of a worker's data set, and stands for a batch without any other.
END = _End()


def has_state(value: Any) -> bool:
    """Whether something says where it stands. A network's state is none of a data set's, should one be both."""
    if isinstance(value, torch.nn.Module):
        return False
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def state_of(dataset: Any, iterator: Any = None, *, ended: bool = False, is_iterable: bool = False) -> dict[str, Any]:
    """Where a data set stands, and an iterator of it; the layout is torchdata's."""
    own = has_state(dataset) and iterator is not dataset
    state: dict[str, Any] = {"dataset_state": dataset.state_dict() if own else None, "fetcher_state": None}
    if is_iterable:
        where = iterator.state_dict() if has_state(iterator) else None
        state["fetcher_state"] = {"dataset_iter_state": where, "fetcher_ended": ended}
    return state


def go_on(dataset: Any, state: dict[str, Any]) -> Any:
    """The state of a data set's iterator, and where it has one itself, the data set set to it."""
    if state["dataset_state"] is not None:
        dataset.load_state_dict(state["dataset_state"])
    return (state["fetcher_state"] or {}).get("dataset_iter_state")


def _info() -> Any:
    return get_worker_info()


def _worker() -> int:
    """The worker that this is; without workers 0."""
    info = _info()
    return 0 if info is None else info.id


#: Of a reader's state, what its data set and iterator say; and all that it may have.
PARTS = ("dataset_state", "fetcher_state")
STATE = (*PARTS, "left", "end", "begins_anew")


def _ends_after(iterator: Any, left: int) -> bool:
    """Whether a pass that is over has as many samples left as it had: less than a batch, of which the loop had all or none. An error at its end it had, too."""
    # Not with `for`, which asks it for an iterator first.
    with contextlib.suppress(Exception):
        for _ in range(left + 1):
            next(iterator)
        return False
    return True


def _read(iterator: Any, left: int) -> None:
    """Reads samples that the loop has had."""
    # Not with `for`, which asks it for an iterator first.
    with contextlib.suppress(StopIteration):
        for _ in range(left):
            next(iterator)


class Stated:
    """A batch and where its reader stood after it.

    Args:
        batch: The batch; `END`: there was none left.
        state: The reader's state; None: it is `left` samples on from the last that was sent. It is sent by a thread while the data set goes on, so it is
            a copy.
        left: Samples since the state before.
        worker: Which worker it is of; without workers 0.
        first: The state after the pass' first sample, with the first batch; where the data set's iterator says where it is, as it began.
    """

    __slots__ = ("batch", "first", "left", "state", "worker")

    def __init__(
        self, batch: Any, state: dict[str, Any] | None, *, left: int = 0, worker: int = 0, first: First | None = None
    ) -> None:
        self.batch, self.state, self.left, self.worker, self.first = batch, state, left, worker, first

    def pin_memory(self, device: Any = None) -> Stated:
        """What torch's pinning thread calls."""
        if self.batch is not END:
            self.batch = _pin(self.batch, device)  # type: ignore[no-untyped-call] # torch's
        return self


class First(NamedTuple):
    """How a pass began."""

    #: Where the reader stood when it did, if its iterator says that itself.
    begun: dict[str, Any] | None
    #: And after its first sample.
    stood: dict[str, Any] | None


class Feed:
    """Stands for an iterable data set where it is read: in a worker process, or without workers in this one.

    A reader's state is one of the data set and its iterator, with how many samples were read since (`left`). Of a pass that it has come to the `end` of, or
    that the loop has left before the reader sent anything of the next (`begins_anew`), it is the one of before the last batch, or of after the pass' first
    sample: what a data set says of itself at its end may stand for a pass of which nothing is left, or for a new one, and one that begins anew only when it is
    asked for its first sample says nothing of that before. Reading on from before leads where it led. A data set whose place goes on from pass to pass has
    more left at an end then, and its state of the end is where the next pass begins.

    Args:
        dataset: The data set.
        states: Each reader's, to go on from, by worker.
        is_over: Whether these are of the end of a pass.
        each: Batches from one state to the next.
    """

    def __init__(self, dataset: Any, states: dict[int, dict[str, Any]], *, is_over: bool, each: int = 1) -> None:
        self.dataset, self._states, self._is_over, self._each = dataset, states, is_over, each
        self.iterator: Any = None
        self.ended = False
        #: Where the reader stood in this pass when that was looked at last.
        self._stood: dict[str, Any] | None = None
        #: Samples, and batches, since then.
        self._left = self._batches = 0
        #: How the pass began, until that is told.
        self.first: First | None = None

    def __repr__(self) -> str:
        return repr(self.dataset)

    @property
    def is_stated(self) -> bool:
        """Whether there is a state to send."""
        return has_state(self.dataset) or has_state(self.iterator)

    def place(self) -> None:
        """Without workers: sets the data set to the state before the pass begins, so that what is told to it in between is heard. Then `begin` follows."""
        self._is_here = True
        state = self._states.pop(0, None)
        if state is not None:
            self._placed = (self._place(state), state)

    #: Whether it is read in this process; what was set to a state, and that.
    _is_here = False
    _placed: tuple[Any, dict[str, Any]] | None = None

    def __iter__(self) -> Iterator[Any]:
        """A pass of a reader's."""
        self.ended, self._stood, self._left, self._batches = False, None, 0, 0
        state = self._states.pop(_worker(), None)
        if state is not None:
            self._placed = (self._place(state), state)
        iterator: Any = iter(self.dataset)
        self.iterator = iterator
        if not self._is_here:
            self.begin()
        return self if self.is_stated else iterator

    def begin(self) -> None:
        """Goes on where a state says: apart from torch's making its reader, for what an iterator sets may be everybody's random numbers."""
        placed, self._placed = self._placed, None
        if placed is not None and not self._is_new(placed[1]):
            self._go_on(*placed)
        if self.is_stated:
            # One without a state may begin only when it is asked for its first sample.
            self.first = First(self._now() if has_state(self.iterator) else None, None)

    def _is_new(self, state: dict[str, Any]) -> bool:
        return self._is_over or bool(state.get("begins_anew"))

    def _place(self, state: dict[str, Any]) -> Any:
        """Sets the data set to a state. Where that is of a pass before the one that begins, it is read to where it was left; else what it says of an iterator."""
        where = go_on(self.dataset, state)
        if not self._is_new(state):
            return where
        if "end" in state:
            if not _ends_after(self._set_to(where), state["left"]):
                where = go_on(self.dataset, state["end"])
                if where is not None:
                    self._set_to(where)
        elif "left" in state or where is not None:
            _read(self._set_to(where), state.get("left", 0))
        return None

    def _go_on(self, where: Any, state: dict[str, Any]) -> None:
        """Has an iterator go on within a pass."""
        if where is not None:
            self.iterator.load_state_dict(where)
        if "end" in state:
            if not _ends_after(self.iterator, state["left"]):
                self.iterator = self._set_to(go_on(self.dataset, state["end"]))
            self.ended = True
        else:
            _read(self.iterator, state.get("left", 0))
            self.ended = bool((state["fetcher_state"] or {}).get("fetcher_ended"))
        self._stood, self._left = {name: state[name] for name in PARTS}, state.get("left", 0)

    def _set_to(self, where: Any) -> Any:
        iterator: Any = iter(self.dataset)
        if where is not None:
            iterator.load_state_dict(where)
        return iterator

    def __next__(self) -> Any:
        if self.ended:
            raise StopIteration
        try:
            found = next(self.iterator)
        except StopIteration:
            self.ended = True
            return END
        if self._stood is None:
            # Of a share that is shorter than a batch there is no other.
            self._stood = self._now()
            if self.first is not None:
                self.first = self.first._replace(stood=self._stood)
        else:
            self._left += 1
        return found

    def stated(self, batch: Any) -> Stated:
        """A batch with where the reader stands after it."""
        left, before, first, self.first = self._left, self._stood, self.first, None
        self._batches += 1
        if self.ended:
            state: dict[str, Any] | None = self._now()
            if before is not None:
                state = {"left": left, "end": state} | {name: before[name] for name in PARTS}
        elif self._batches % self._each:
            state = None
        else:
            state = self._stood = self._now()
            self._left = 0
        return Stated(batch, state, left=left, worker=_worker(), first=first)

    def state(self) -> dict[str, Any]:
        """Where it stands."""
        return state_of(self.dataset, self.iterator, ended=self.ended, is_iterable=True)

    def _now(self) -> dict[str, Any]:
        return copy.deepcopy(self.state())


class Begin:
    """A worker's first step: the data set goes on where it stood, and then the user's.

    Args:
        init: The loader's `worker_init_fn`.
        feed: The data set, where it is iterable.
        states: Each worker's, of a map-style data set.
    """

    def __init__(
        self, init: Callable[[int], None] | None, feed: Feed | None, states: dict[int, dict[str, Any]]
    ) -> None:
        self._init, self._feed, self._states = init, feed, states

    def __call__(self, worker: int) -> None:
        info = _info()
        if self._feed is not None:
            # The user's functions ask for their own data set.
            object.__setattr__(info, "dataset", self._feed.dataset)
        if self._init is not None:
            self._init(worker)
        if self._feed is None and worker in self._states:
            go_on(info.dataset, self._states[worker])


class Collate:
    """A collate function whose batches come with the worker's state.

    Args:
        collate: The loader's.
        feed: The data set, where it is iterable.
        batch_size: Samples in a batch; None: samples come one at a time.
        drop_last: Whether a batch with fewer is left out: here, because torch's reader would leave out the end with it.
    """

    def __init__(
        self, collate: Callable[[Any], Any], feed: Feed | None, batch_size: int | None, *, drop_last: bool
    ) -> None:
        self._collate, self._feed, self._batch_size, self._drop_last = collate, feed, batch_size, drop_last

    def __call__(self, data: Any) -> Any:
        feed = self._feed
        if feed is None:
            state = state_of(_info().dataset)
            return Stated(self._collate(data), copy.deepcopy(state), worker=_worker())
        size = self._batch_size
        if not feed.is_stated:
            if size is not None and self._drop_last and len(data) < size:
                # As torch's reader ends.
                raise StopIteration
            return self._collate(data)
        if size is None:
            batch = END if data is END else self._collate(data)
        else:
            if data and data[-1] is END:
                data = data[:-1]
            is_none = not data or (self._drop_last and len(data) < size)
            batch = END if is_none else self._collate(data)
        return feed.stated(batch)
