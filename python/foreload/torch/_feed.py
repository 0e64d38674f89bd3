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
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as _worker_of_torchs
from torch.utils.data._utils.pin_memory import pin_memory as _pin

from foreload.errors import StateError

#: What torch's worker sends when its data set has no more. There `Begin` puts a `Feed` in its place.
_EndOfTorchs = _worker_of_torchs._IterableDatasetStopIteration  # noqa: SLF001


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
        _set(dataset, state["dataset_state"], "data set")
    return (state["fetcher_state"] or {}).get("dataset_iter_state")


def _set(what: Any, state: Any, role: str) -> None:
    if not has_state(what):
        raise StateError(
            f"the state holds one of the {role}, and a {type(what).__name__} has no state_dict and load_state_dict: it is not the {role} that was saved"
        )
    # It may keep what it is given and go on in it; here the state stays what it was.
    what.load_state_dict(copy.deepcopy(state))


def _info() -> Any:
    return get_worker_info()


def _worker() -> int:
    """The worker that this is; without workers 0."""
    info = _info()
    return 0 if info is None else info.id


#: Of a reader's state, what its data set and iterator say; and all that it may have.
PARTS = ("dataset_state", "fetcher_state")
STATE = (*PARTS, "left", "failed", "end", "begins_anew")


def _read(iterator: Any, state: dict[str, Any]) -> None:
    """Asks for what the loop had asked for since a state. As many errors as it met there are none of ours.

    Raises:
        StopIteration: There is less.
        Exception: What else the data set raises.
    """
    failed = state.get("failed", 0)
    # Not with `for`, which asks it for an iterator first.
    for _ in range(state.get("left", 0)):
        try:
            next(iterator)
        except StopIteration:
            raise
        except Exception:
            if not failed:
                raise
            failed -= 1


def _ends_there(iterator: Any, state: dict[str, Any]) -> bool:
    """Whether a pass that is over has no more left than it had: less than a batch, of which the loop had all or none."""
    with contextlib.suppress(StopIteration):
        _read(iterator, state)
        next(iterator)
        return False
    return True


class Stated:
    """A batch and where its reader stood after it.

    Args:
        batch: The batch; None where there was none left.
        state: The reader's state; None: it is what was `read` on from the last that was sent. It is sent by a thread while the data set goes on, so it
            is a copy.
        read: What was asked for since the state before (`left`), and how much of that failed.
        worker: Which worker it is of; without workers 0.
        first: The state after the pass' first sample, with the first batch; where the data set's iterator says where it is, as it began.
    """

    __slots__ = ("batch", "first", "read", "state", "worker")

    def __init__(
        self,
        batch: Any,
        state: dict[str, Any] | None,
        *,
        read: dict[str, int] | None = None,
        worker: int = 0,
        first: First | None = None,
    ) -> None:
        self.batch, self.state, self.read, self.worker, self.first = batch, state, read or {}, worker, first

    def pin_memory(self, device: Any = None) -> Stated:
        """What torch's pinning thread calls."""
        self.batch = _pin(self.batch, device)  # type: ignore[no-untyped-call] # torch's
        return self


@dataclass(frozen=True)
class Ended(_EndOfTorchs):
    """What torch's worker says when its share is read, with where it stands, if it says so."""

    found: Stated | None


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
        #: What was asked for since then, how much of that failed, and batches.
        self._left = self._failed = self._batches = 0
        #: How the pass began, until that is told.
        self.first: First | None = None
        #: Without workers, where nothing is known of a pass before: where it stood before it was asked for anything.
        self.is_new = False
        self._unread: dict[str, Any] | None = None

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
    #: Why it can't go on where a state says.
    _error: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        """A pass of a reader's."""
        self.ended, self._stood, self._left, self._failed, self._batches = False, None, 0, 0, 0
        self._unread = None
        state, self._error = self._states.pop(_worker(), None), None
        if self._is_here:
            self.iterator = iter(self.dataset)
            return self if self.is_stated else self.iterator
        if state is not None:
            try:
                self._placed = (self._place(state), state)
            except Exception as error:  # noqa: BLE001 (raised when it is read)
                self._error = error
        self.iterator = iter(self.dataset)
        try:
            self.begin()
        except Exception as error:  # noqa: BLE001
            # Torch's worker tells errors of reading only.
            self._error = error
        return self if self.is_stated or self._error is not None else self.iterator

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
            if not _ends_there(self._set_to(where), state):
                where = go_on(self.dataset, state["end"])
                if where is not None:
                    self._set_to(where)
        elif "left" in state or where is not None:
            with contextlib.suppress(StopIteration):
                _read(self._set_to(where), state)
        return None

    def _go_on(self, where: Any, state: dict[str, Any]) -> None:
        """Has an iterator go on within a pass."""
        if where is not None:
            _set(self.iterator, where, "data set's iterator")
        if "end" in state:
            if not _ends_there(self.iterator, state):
                self.iterator = self._set_to(go_on(self.dataset, state["end"]))
            self.ended = True
        else:
            self.ended = bool((state["fetcher_state"] or {}).get("fetcher_ended"))
            with contextlib.suppress(StopIteration):
                _read(self.iterator, state)
        self._stood = {name: state[name] for name in PARTS}
        self._left, self._failed = state.get("left", 0), state.get("failed", 0)

    def _set_to(self, where: Any) -> Any:
        iterator: Any = iter(self.dataset)
        if where is not None:
            _set(iterator, where, "data set's iterator")
        return iterator

    def __next__(self) -> Any:
        if self._error is not None:
            raise self._error
        if self.ended:
            raise StopIteration
        if self.is_new and self._unread is None:
            self._unread = self._now()
        try:
            found = next(self.iterator)
        except StopIteration:
            self.ended = True
            raise
        except BaseException:
            self._count()
            self._failed += 1
            raise
        self._count()
        return found

    def _count(self) -> None:
        if self._stood is not None:
            self._left += 1
            return
        # Of a share that is shorter than a batch there is no other.
        self._stood = self._now()
        if self.first is not None:
            self.first = self.first._replace(stood=self._stood)

    def stated(self, batch: Any) -> Stated:
        """A batch with where the reader stands after it."""
        read, before, first, self.first = {"left": self._left, "failed": self._failed}, self._stood, self.first, None
        self._batches += 1
        if self.ended:
            state: dict[str, Any] | None = self._now()
            if before is not None:
                state = {**read, "end": state} | {name: before[name] for name in PARTS}
        elif self._batches % self._each:
            state = None
        else:
            state = self._stood = self._now()
            self._left = self._failed = 0
        return Stated(batch, state, read=read, worker=_worker(), first=first)

    def says_it_ends(self, worker: int) -> Ended:
        """What torch's worker sends when there is no more to read."""
        return Ended(worker, self.stated(None) if self.is_stated else None)

    def begun(self) -> dict[str, Any]:
        """Without workers: where it stood when the pass had begun and nothing of it was asked for."""
        return self.state() if self._unread is None else self._unread

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
            # Torch's worker makes one when its data set has no more.
            vars(_worker_of_torchs)["_IterableDatasetStopIteration"] = self._feed.says_it_ends
        if self._init is not None:
            self._init(worker)
        if self._feed is None and worker in self._states:
            go_on(info.dataset, self._states[worker])


class Collate:
    """A collate function whose batches come with their reader's state.

    Args:
        collate: The loader's.
        feed: The data set, where it is iterable.
    """

    def __init__(self, collate: Callable[[Any], Any], feed: Feed | None) -> None:
        self._collate, self._feed = collate, feed

    def __call__(self, data: Any) -> Any:
        feed = self._feed
        if feed is None:
            state = state_of(_info().dataset)
            return Stated(self._collate(data), copy.deepcopy(state), worker=_worker())
        batch = self._collate(data)
        return feed.stated(batch) if feed.is_stated else batch
