"""Worker processes of torch's whose data set has a state: what goes with their batches.

Torch's workers run unchanged. Where the data set, or an iterator of it, has `state_dict` and `load_state_dict`, a worker's collate function sends its
state along with each batch (`Stated`), so that the loader knows where each worker stood after the last batch that the loop has had. An iterable
data set is handed to the workers as a `Feed`, which goes on from a state, and says when its end is reached; nobody else sees it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

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


#: Of a worker's state, what its data set and iterator say.
_PARTS = ("dataset_state", "fetcher_state")


def _ends_after(iterator: Any, left: int) -> bool:
    """Whether a pass that is over has as many samples left as it had: less than a batch, of which the loop had all or none. An error at its end it had, too."""
    # Not with `for`, which asks it for an iterator first.
    with contextlib.suppress(Exception):
        for _ in range(left + 1):
            next(iterator)
        return False
    return True


class Stated:
    """A batch and where its worker stood after it.

    Args:
        batch: The batch; `END`: there was none left.
        state: The worker's state, which is copied: it is sent by a thread, while the data set goes on.
        begun: Where it stood when the pass began, with its first batch and where the data set's iterator says so itself.
    """

    __slots__ = ("batch", "begun", "state")

    def __init__(self, batch: Any, state: dict[str, Any], begun: dict[str, Any] | None = None) -> None:
        self.batch, self.state, self.begun = batch, copy.deepcopy(state), begun

    def pin_memory(self, device: Any = None) -> Stated:
        """What torch's pinning thread calls."""
        if self.batch is not END:
            self.batch = _pin(self.batch, device)  # type: ignore[no-untyped-call] # torch's
        return self


class Feed:
    """Stands for an iterable data set in worker processes.

    A worker's state of a pass that it has come to the end of is the one of before its last batch, or of its first sample, with how many samples were `left`:
    what a data set says of itself at the `end` may stand for a pass of which nothing is left, or for a new one. Reading on from before leads where it led.
    A data set whose place goes on from pass to pass has more left then, and its state of the end is where the next pass begins.

    Args:
        dataset: The data set.
        states: Each worker's, to go on from.
        is_over: Whether these are of the end of a pass.
    """

    def __init__(self, dataset: Any, states: dict[int, dict[str, Any]], *, is_over: bool) -> None:
        self.dataset, self._states, self._is_over = dataset, states, is_over
        self.iterator: Any = None
        self.ended = False
        #: Where the worker stood after the batch before, in this pass.
        self._stood: dict[str, Any] | None = None
        #: Samples since then.
        self._left = 0
        #: Where it stood when the pass began, until that is told.
        self._begun: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return repr(self.dataset)

    @property
    def is_stated(self) -> bool:
        """Whether there is a state to send."""
        return has_state(self.dataset) or has_state(self.iterator)

    def __iter__(self) -> Iterator[Any]:
        """A pass of a worker's."""
        info = _info()
        self.ended, self._stood, self._left = False, None, 0
        iterator: Iterator[Any] = self._placed(self._states.pop(info.id, None))
        self.iterator = iterator
        if not self.is_stated:
            return iterator
        # One without a state may begin only when it is asked for its first sample.
        self._begun = copy.deepcopy(self._now()) if has_state(self.iterator) else None
        return self

    def _placed(self, state: dict[str, Any] | None) -> Any:
        if state is None:
            return iter(self.dataset)
        where = go_on(self.dataset, state)
        is_new = self._is_over or bool(state.get("begins_anew"))
        ends = "left" in state
        iterator = None
        if where is not None or ends or not is_new:
            iterator = self._set_to(where)
        if ends and not _ends_after(iterator, state["left"]):
            where = go_on(self.dataset, state["end"])
            iterator = None if where is None else self._set_to(where)
        if is_new:
            return iter(self.dataset)
        self.ended = ends or bool((state["fetcher_state"] or {}).get("fetcher_ended"))
        self._stood = state
        return iterator

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
            self._stood = copy.deepcopy(self._now())
        else:
            self._left += 1
        return found

    def stated(self, batch: Any) -> Stated:
        """A batch with where the worker stands after it."""
        state, before = self._now(), self._stood if self.ended else None
        if before is not None:
            state = {"left": self._left, "end": state} | {name: before[name] for name in _PARTS}
        begun, self._begun = self._begun, None
        found = Stated(batch, {"worker_id": _info().id, **state}, begun)
        if not self.ended:
            self._stood, self._left = found.state, 0
        return found

    def _now(self) -> dict[str, Any]:
        return state_of(self.dataset, self.iterator, ended=self.ended, is_iterable=True)


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
            return Stated(self._collate(data), {"worker_id": _info().id, **state_of(_info().dataset)})
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
