"""Torch's own loader, for data sets that know nothing of Foreload, with a state.

Everything is torch's: arguments, errors, order, workers, random numbers. Torch's iterators are subclassed where they ask their sampler for the next
index, wait for a worker and hand a batch over, so that a `Progress` knows where the loop stands. That is what `state_dict` answers, and what a
resumed pass begins from. Batches pass through untouched.
"""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from torch.utils import data
from torch.utils.data import dataloader as _torchs
from torch.utils.data._utils.worker import _IterableDatasetStopIteration

from foreload.errors import StateError
from foreload.torch import _feed, _mounted, _samplers
from foreload.torch._kept import Kept
from foreload.torch._progress import Progress, is_iterable, own_now, place_planned, put_back_own, random_now, workers_in
from foreload.torch._waits import STALL_S, Waiting, report
from foreload.torch._worker import Ending

_LOG = logging.getLogger("foreload")
# Torch's iterators and a loader's progress are parts of the loader.
# ruff: noqa: SLF001

T = TypeVar("T", covariant=True)


class ForeignLoader(data.DataLoader[T]):
    """Torch's loader, which says where it stands; arguments are torch's."""

    _progress: Progress | None = None
    _passes = 0
    #: A state that the next pass goes on from.
    _loaded: dict[str, Any] | None = None
    #: Without workers: whether the data set was set to that, and what then reads an iterable one.
    _is_set = False
    _reader: _feed.Feed | None = None
    #: Batches of a reader's from one state of an iterable data set to the next.
    snapshot_every_n_steps = 1

    def __init__(self, dataset: Any, *arguments: Any, **keywords: Any) -> None:
        #: How each pass went.
        self._tallies: list[Any] = []
        super().__init__(dataset, *arguments, **keywords)

    def state_dict(self) -> dict[str, Any]:
        """Where the loop stands. Plain numbers and strings, besides what a data set or sampler says that has a `state_dict` itself.

        Raises:
            StateError: With `in_order=False` nobody knows which batches of an iterable data set the loop has had, unless that has a state.
        """
        if self._loaded is not None:
            loaded = copy.deepcopy(self._loaded)
            if loaded["_iterator_finished"]:
                # Others may have drawn from a generator that they share with this loader.
                loaded["random"]["own"].update(own_now(self))
            return loaded
        progress = self._progress
        if progress is not None:
            is_mixed = self._is_iterable and self.num_workers > 1 and not self.in_order and not progress.workers
            if is_mixed and progress.had and not progress.is_over:
                raise StateError(
                    "in_order=False: nobody knows which batches of an iterable data set without state_dict the loop has had; save the state between passes, "
                    "use in_order=True, or give the data set a state"
                )
            if isinstance(self._iterator, _MultiProcessingDataLoaderIter):
                self._iterator.hear_beginnings()
            return progress.state(self)
        unbegun = {**Progress(self, 0, None).state(self), "_iterator_finished": True}
        if not self.num_workers and _feed.has_state(self.dataset) and not hasattr(self.dataset, "__next__"):
            unbegun.update(copy.deepcopy(_feed.state_of(self.dataset, is_iterable=self._is_iterable)))
        return {**unbegun, "random": random_now(self)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next pass goes on where the state was saved.

        Raises:
            StateError: It is no state of such a loader, or of another number of workers, where each has a state of its own.
        """
        self._is_set, self._reader = False, None
        if not state_dict:
            self._loaded = None
            return
        if not isinstance(state_dict, dict) or state_dict.get("loader") != "torch":
            raise StateError(
                f"not the state of a loader over a {type(self.dataset).__name__}; give what state_dict() of such a loader answered"
            )
        snapshot = state_dict.get("_snapshot", {})
        is_needed = bool(snapshot.get("_worker_snapshots")) or (self._is_iterable and state_dict["_num_yielded"] > 0)
        if is_needed and snapshot.get("_num_workers", 0) != self.num_workers:
            raise StateError(
                f"the state was saved with num_workers={snapshot.get('_num_workers', 0)}, each of which has a state of its own; this loader has "
                f"num_workers={self.num_workers}"
            )
        # Its workers end, unless somebody reads on in that pass.
        self._iterator = None
        self._loaded = copy.deepcopy(state_dict)
        lightning = _lightning()
        if lightning is not None:
            _end_pass(self._loaded, seeded=self.persistent_workers, is_last=lightning.is_last)
        if self._loaded["_iterator_finished"] or "ahead" in self._loaded["random"]:
            # At once: whoever shares a generator with this loader, and draws from it before its pass begins, did so then, too.
            put_back_own(self, self._loaded, now=True)
        epoch = state_dict["sampler"]["epoch"]
        if epoch is not None:
            _samplers.set_epoch(self._index_sampler, epoch)
        # Now, so that an epoch that is set before the pass is heard.
        place_planned(self._index_sampler, self._loaded)
        if not self.num_workers:
            self._set_data(self._loaded, is_over=self._loaded["_iterator_finished"])

    def stats(self) -> dict[str, Any]:
        """How it went: each pass on this rank, and what was kept of a data set that `wrap` was told to be deterministic."""
        passes = {"epochs": [tally.as_dict() for tally in self._tallies]}
        return passes | ({"results": self.dataset.counts()} if isinstance(self.dataset, Kept) else {})

    def set_epoch(self, epoch: int) -> None:
        """Sets sampler and data set to an epoch, those that have any."""
        _samplers.set_epoch(self._index_sampler, epoch)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    @property
    def _is_iterable(self) -> bool:
        return is_iterable(self)

    def _new_pass(self, *, is_seeded: bool = False) -> Progress:
        loaded, self._loaded = self._loaded, None
        before = self._progress
        if loaded is None and before is not None and before.has_failed:
            # It failed before it had anything of a state that was loaded: that is gone on from yet.
            loaded = before.loaded
            if loaded is not None:
                place_planned(self._index_sampler, loaded)
        number = self._passes if loaded is None else loaded["epoch"]
        try:
            progress = Progress(self, number, loaded, is_kept=self.persistent_workers, is_seeded=is_seeded)
        except BaseException:
            self._loaded = loaded
            raise
        self._progress, self._passes = progress, number + 1
        if loaded is not None and progress.resumed is None and not loaded["_iterator_finished"]:
            _LOG.warning(
                "the sampler is set to epoch %s, and the state that was loaded is of epoch %s after batch %d: it is not gone on with",
                progress.told,
                loaded["sampler"]["epoch"],
                loaded["_num_yielded"],
            )
        self._tallies.append(progress.tally)
        return progress

    def __iter__(self) -> Any:
        """A pass."""
        if self._progress is not None and self._progress.has_failed and self._is_iterable:
            # Workers that live on are set to a state when they start.
            self._iterator = None
        return super().__iter__()

    def _get_iterator(self) -> Any:
        """Torch's iterator; it goes on from a state that was loaded."""
        loaded, before = self._loaded, (self._progress, self._passes)
        progress = self._new_pass()
        if progress.loaded is None and before[0] is not None and not self.num_workers:
            progress.hear_of_before(before[0].left(), is_of_this=False)
        try:
            return self._begin(progress, progress.loaded)
        except BaseException:
            # Interrupted, or a worker can't be started: what the pass took of a state that was loaded, and drew, it gives back.
            (self._progress, self._passes), self._loaded = before, loaded
            self._tallies.pop()
            progress.go_back()
            raise

    def _begin(self, progress: Progress, loaded: dict[str, Any] | None) -> Any:
        if self.num_workers:
            self.check_worker_number_rationality()
            with progress.making():
                iterator: Any = _MultiProcessingDataLoaderIter(progress.seeding(self), progress, loaded)
        else:
            if not (self._is_set and loaded):
                # Outside, because what the data set sets may be everybody's generators.
                self._set_data(loaded, is_over=progress.resumed is None)
            reader, self._reader, self._is_set = self._reader, None, False
            with progress.making():
                iterator = _SingleProcessDataLoaderIter(progress.seeding(self), progress, reader)
            iterator.begin()
        resumed = progress.resumed
        if self._is_iterable and resumed is not None:
            if not iterator.goes_on:
                _skip(iterator, progress)
            iterator._num_yielded = progress.had
        return iterator

    def _set_data(self, loaded: dict[str, Any] | None, *, is_over: bool) -> None:
        """Without workers: sets the data set to a state, and makes what reads an iterable one."""
        reader = None
        if self._is_iterable and not isinstance(self.dataset, data.IterDataPipe):
            reader = self._feed_of({} if loaded is None else workers_in(loaded), is_over=is_over)
            reader.place()
        elif loaded is not None and "dataset_state" in loaded:
            _feed.go_on(self.dataset, loaded)
        self._is_set, self._reader = True, reader

    def _feed_of(self, states: dict[int, dict[str, Any]], *, is_over: bool) -> _feed.Feed:
        return _feed.Feed(self.dataset, states, is_over=is_over, each=self.snapshot_every_n_steps)


def _end_pass(state: dict[str, Any], *, seeded: bool, is_last: bool) -> None:
    """Makes a state in which the loop has had the last batch of a pass one between passes, as if nobody ever asked for what comes after that batch.

    Args:
        state: The state, changed in place.
        seeded: Whether workers live on, so that the next pass draws no seed.
        is_last: Whether the loop says that it was the last one, whatever the sampler has.
    """
    random, had, batches = state["random"], state["_num_yielded"], state.get("batches")
    is_last = is_last or (batches is not None and had >= batches)
    if is_last and not state["_iterator_finished"] and "ahead" in random:
        state |= {"_iterator_finished": True, "epoch": state["epoch"] + 1}
        state["random"] = {"own": random["ahead"]["own"], "seeded": seeded, "seed": random.get("seed")}


class _Lightning(NamedTuple):
    """What Lightning says of the state that it loads: whether the loop has had the last batch of the epoch, which it may have limited."""

    is_last: bool


def _lightning() -> _Lightning | None:
    """What Lightning says, if it calls. It counts an epoch's batches itself, and when it goes on after the last one, what it asks for is the next epoch."""
    frame: Any = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("foreload."):
        frame = frame.f_back
    found = None
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(("lightning.", "pytorch_lightning.")):
        epoch = getattr(frame.f_locals.get("self"), "epoch_loop", None)
        said = getattr(getattr(epoch, "batch_progress", None), "is_last_batch", False)
        found = _Lightning(is_last=bool(said) or (found is not None and found.is_last))
        frame = frame.f_back
    return found


def _skip(iterator: Iterator[Any], progress: Progress) -> None:
    """Reads again what the loop has had. As many batches as failed then may fail now.

    Raises:
        StateError: There is less.
    """
    batches, failed = progress.had, progress.failed
    progress.had = progress.failed = 0
    if batches:
        _LOG.warning(
            "neither the data set nor its iterator has state_dict and load_state_dict: reading %d batches again to go on after them",
            batches,
        )
    for _ in range(batches + failed):
        try:
            next(iterator)
        except StopIteration:
            raise StateError(
                f"the data set ends after {progress.had} batches, and the state was saved after {batches}: it is not the one that was saved, or not its epoch"
            ) from None
        except Exception:
            if not failed:
                raise
            failed -= 1


class _Order:
    """A sampler that tells a pass when an iterator of it is made, and a mount which files are read in it."""

    def __init__(self, progress: Progress, order: Any, dataset: Any) -> None:
        self._progress, self._sampler, self._dataset = progress, order, dataset

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        self._progress.begins_to_draw()
        return iter(_mounted.followed(self._dataset, self._sampler, self._progress.skips))


class _Counting(_torchs._BaseDataLoaderIter):
    """What both of torch's iterators are given: a `Progress` that follows them."""

    _progress: Progress
    _order: Any = None

    @property
    def _index_sampler(self) -> Any:
        """What torch asks for an iterator of the sampler."""
        return _Order(self._progress, self._order, self._dataset)

    @_index_sampler.setter
    def _index_sampler(self, order: Any) -> None:
        self._order = order

    def _next_index(self) -> Any:
        return self._progress.next_index(self._sampler_iter)

    def _next_data(self) -> Any:
        progress = self._progress
        begun, samples = time.perf_counter(), progress.samples
        try:
            batch = self._read()
        except StopIteration:
            progress.is_over, progress.has_failed = True, False
            self._count()
            raise
        except BaseException:
            progress.fails()
            raise
        # One whose reading fails is lost to a loop that goes on, as torch has it: the next one comes next. Until then a state is of before it.
        self._count()
        if self._is_iterable:
            progress.has_had()
        progress.tally.yielded(progress.samples - samples, time.perf_counter() - begun)
        return batch

    def _count(self) -> None:
        if not self._is_iterable:
            self._progress.has_had_all_but(self._outstanding())

    @property
    def _is_iterable(self) -> bool:
        return bool(self._dataset_kind == _torchs._DatasetKind.Iterable)

    def _read(self) -> Any:
        """What torch answers with."""
        raise NotImplementedError

    def _outstanding(self) -> list[int]:
        """The batches that were asked for, and that the loop hasn't had."""
        return []

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            seed, self._progress = self._base_seed, loader._new_pass(is_seeded=True)
            self._progress.seed = seed
        super()._reset(loader, first_iter)

    @property
    def _base_seed(self) -> Any:
        """What torch seeds its workers with; workers that have lived on since an earlier pass were seeded then."""
        return self._progress.seed

    @_base_seed.setter
    def _base_seed(self, drawn: Any) -> None:
        progress = self._progress
        progress.seed = drawn if progress.seed is None else progress.seed


class _SingleProcessDataLoaderIter(_Counting, _torchs._SingleProcessDataLoaderIter):
    """Torch's iterator without workers, under torch's name, which profiles show."""

    def __init__(self, loader: ForeignLoader[Any], progress: Progress, feed: _feed.Feed | None) -> None:
        self._progress = progress
        self.goes_on = progress.resumed is not None and bool(progress.workers)
        super().__init__(loader if feed is None else _fed(loader, feed))
        self._dataset, self._feed = loader.dataset, feed

    def begin(self) -> None:
        """Goes on where a state says."""
        progress, feed = self._progress, self._feed
        if feed is None:
            if _feed.has_state(self._dataset):
                progress.standing = functools.partial(_feed.state_of, self._dataset)
            return
        feed.begin()
        if feed.is_stated:
            progress.standing, feed.is_new = feed.begun, not progress.workers
        if feed.first is not None and feed.first.begun is not None:
            progress.begun[0] = feed.first.begun

    def _read(self) -> Any:
        begun = time.monotonic()
        feed = self._feed
        try:
            batch = _torchs._SingleProcessDataLoaderIter._next_data(self)  # type: ignore[no-untyped-call] # torch's
        except StopIteration:
            if feed is not None and feed.is_stated and feed.ended:
                self._progress.heard(feed.stated(None))
            raise
        if isinstance(batch, _feed.Stated):
            self._progress.heard(batch)
            batch = batch.batch
        took_s = time.monotonic() - begun
        if took_s >= STALL_S:
            report(
                f"batch {self._progress.had} took {took_s:.1f} s to read, by {_what(self._dataset)} in this process, where no time-out ends it"
            )
        return batch


class _MultiProcessingDataLoaderIter(_Counting, Waiting):
    """Torch's iterator over workers, under torch's name, which profiles show."""

    #: The pass that is left, while the workers' last batches of it come.
    _left: Progress | None = None
    #: Workers that say where they stand at the end of their share, after which of torch's numbers.
    _ends: Mapping[int, tuple[int, _feed.Stated]] = MappingProxyType({})

    def __init__(self, loader: ForeignLoader[Any], progress: Progress, loaded: dict[str, Any] | None) -> None:
        self._progress = progress
        #: The batches' numbers by torch's numbers of what it asks workers for.
        self._numbers: dict[int, int] = {}
        self.begin_wait()
        self.goes_on = bool(progress.workers)
        snapshot = (loaded or {}).get("_snapshot", {})
        if progress.resumed is not None and snapshot.get("_num_workers") == loader.num_workers:
            progress.last_worker = snapshot["_last_yielded_worker_id"]
        is_anew = is_iterable(loader) and not self.goes_on
        self._first_worker = 0 if is_anew else (progress.last_worker + 1) % loader.num_workers
        twin = copy.copy(_staged(loader, progress))
        vars(twin)["worker_init_fn"] = Ending(twin.worker_init_fn)
        super().__init__(twin)
        self._dataset = loader.dataset

    @property  # type: ignore[override] # an attribute in torch
    def _worker_queue_idx_cycle(self) -> Iterator[int]:
        """Whom torch asks next; after a resume, the worker after the one that sent the last batch."""
        return self._cycle

    @_worker_queue_idx_cycle.setter
    def _worker_queue_idx_cycle(self, cycle: Iterator[int]) -> None:
        first, self._first_worker = self._first_worker, 0
        self._cycle = itertools.islice(cycle, first, None)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        before = self._progress
        # What they are ahead with when a pass is left is dropped, and read all the same.
        waiting = () if first_iter else self._task_info.values()
        for ahead in [ahead for _, *found in waiting for ahead in found]:
            self._hear(before, ahead)
        for _, ended in self._ends.values():
            before.heard(ended)
        self._ends = {}
        self._left = None if first_iter else before
        try:
            super()._reset(loader, first_iter)
        finally:
            self._left = None
        if before is not self._progress:
            # They live on, and so does what they were told.
            self._progress.hear_of_before(before.left(), is_of_this=False)

    def _get_data(self) -> Any:
        found = super()._get_data()  # type: ignore[no-untyped-call] # torch's
        task, data = found
        said = data.found if isinstance(data, _feed.Ended) else data
        if self._left is not None:
            self._hear(self._left, said)
        elif isinstance(said, _feed.Stated):
            if said.first is not None and said.first.begun is not None:
                self._progress.begun[said.worker] = said.first.begun
            if said is not data:
                self._ends = {**self._ends, said.worker: (task, said)}
                self._hear_ends()
        return found

    def _hear_ends(self) -> None:
        """Hears of ends whose workers' batches the loop has had."""
        for worker, (end, said) in list(self._ends.items()):
            if all(found[0] != worker or task >= end for task, found in self._task_info.items()):
                self._progress.heard(said)
                self._ends = {other: ended for other, ended in self._ends.items() if other != worker}

    def hear_beginnings(self) -> None:
        """Waits for the first batch of each worker of which nothing was heard in this pass and whose iterator says where it began."""
        progress = self._progress
        while not progress.is_over and any(
            (progress.workers[worker]["fetcher_state"] or {}).get("dataset_iter_state") is not None
            and self._workers_num_tasks_of(worker)
            for worker in progress.unheard - set(progress.begun)
        ):
            task, found = self._get_data()
            self._tasks_outstanding -= 1
            if isinstance(found, _IterableDatasetStopIteration):
                # As torch has it, where they live on.
                self._workers_status[found.worker_id] = False
                self._try_put_index()
            else:
                self._task_info[task] += (found,)

    def _workers_num_tasks_of(self, worker: int) -> int:
        return sum(len(found) == 1 and found[0] == worker for found in self._task_info.values())

    @staticmethod
    def _hear(progress: Progress, data: Any) -> None:
        if isinstance(data, _feed.Stated):
            progress.heard(data)

    def _next_index(self) -> Any:
        index = super()._next_index()
        self._numbers[self._send_idx] = self._progress.drawn - 1
        return index

    def _outstanding(self) -> list[int]:
        self._numbers = {task: self._numbers[task] for task in self._task_info}
        return list(self._numbers.values())

    def _read(self) -> Any:
        self.begin_wait()
        return _torchs._MultiProcessingDataLoaderIter._next_data(self)  # type: ignore[no-untyped-call] # torch's

    def _process_data(self, data: Any, *of: Any) -> Any:
        data = super()._process_data(data, *of)  # type: ignore[no-untyped-call] # torch's
        worker = of[0] if of else -1
        self._hear(self._progress, data)
        if isinstance(data, _feed.Stated):
            worker, data = data.worker, data.batch
        self._progress.last_worker = worker
        self._hear_ends()
        return data

    def awaited(self) -> str:
        """What the loop waits for, in words."""
        number = self._numbers.get(self._rcvd_idx, self._progress.had)
        samples = self._progress.asked.get(number)
        return f"batch {number}{'' if samples is None else f' (samples {samples!r:.60})'}"

    def cause(self) -> str:
        """What may take so long, in words."""
        return f": {_what(self._dataset)} takes long"


def _staged(loader: ForeignLoader[Any], progress: Progress) -> Any:
    """A loader as its workers get it: with what sends their states along, where there are any."""
    dataset: Any = loader.dataset
    states = dict(progress.workers)
    if isinstance(dataset, data.IterDataPipe):
        return loader
    feed = loader._feed_of(dict(states), is_over=progress.resumed is None) if is_iterable(loader) else None
    if feed is None and not _feed.has_state(dataset):
        return loader
    twin = _fed(loader, feed)
    vars(twin)["worker_init_fn"] = _feed.Begin(loader.worker_init_fn, feed, states)
    return twin


def _fed(loader: ForeignLoader[Any], feed: _feed.Feed | None) -> Any:
    """A loader whose batches come with where their reader stands."""
    twin = copy.copy(loader)
    vars(twin).update(
        dataset=loader.dataset if feed is None else feed,
        collate_fn=_feed.Collate(loader.collate_fn, feed),
    )
    return twin


def _what(dataset: Any) -> str:
    return f"{type(dataset).__name__} or the collate function"
