"""`NumpyLoader`: batches of NumPy arrays, for JAX and for loops of one's own. It imports no framework."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from foreload import _core
from foreload._data.dataset import Dataset
from foreload._node import ranks as _ranks
from foreload._run.ahead import Ahead
from foreload._run.decode import Decoder, copies_of, decoded_batches, threads_of
from foreload._run.ending import close_at_exit
from foreload._run.failed import Failed, attempted
from foreload._run.position import Cursor, Had
from foreload._run.run import Run, check_run
from foreload._run.stream import LEFT_OUT, Stream, next_had
from foreload._run.tally import EpochTally
from foreload._settings import numbers as _numbers
from foreload._settings.cache import Cache, fixed
from foreload._settings.failures import Failures, OnError
from foreload._settings.order import Order, check_shuffle, tail_of
from foreload._settings.tuning import Tuning
from foreload.errors import InvalidError

#: A batch: what `decode` returned, stacked (without `decode`: a list of bytes), and the labels (-1 where there is none).
Batch = Any


class NumpyLoader:
    """Loads batches of a data set, epoch after epoch.

    Each pass over it is one epoch. With `epochs`, `iter(loader)` may also be kept and stepped through the whole run (`repeat=True`).

    Args:
        dataset: What `foreload.open` answered.
        batch_size: Samples in a batch of this rank.
        shuffle: Whether to shuffle.
        seed: What the shuffle depends on.
        epochs: Epochs in the run, if known: nothing is read ahead beyond them.
        drop_last: Whether to leave out a last batch that isn't full.
        decode: From bytes to an array: `decode(data, meta)`, or `decode(data)`.
        transform: Applied to what `decode` returns.
        collate: From [(x, label), ...] to a batch. Default: arrays are stacked.
        cache: Budgets.
        order: `keyed`, `torch`, `sequential`, ...
        shard: (this rank, ranks), such as `(jax.process_index(), jax.process_count())`. Default: from torchrun's environment.
        uneven: What to do where the ranks can't share the last batch equally; see `foreload.torch.DataLoader`.
        threads: Threads that decode; 0: none, the loop decodes. Default: as many as there are CPUs, at most 8; none for a `decode` that draws from
            the global random numbers.
        on_error: `"raise"`, or `foreload.skip(...)`.
        timeout: Longest wait for a batch in seconds; None or 0: as long as the store's own deadline.
        policy: The plan's policy, for experiments.
        tuning: How the agent fetches, where that isn't left to it.
        repeat: Whether one iterator goes through all epochs.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epochs: int | None = None,
        drop_last: bool = False,
        decode: Callable[..., Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        collate: Callable[[list[tuple[Any, int]]], Batch] | None = None,
        cache: Cache | None = None,
        order: str = "keyed",
        shard: tuple[int, int] | None = None,
        uneven: str | None = None,
        threads: int | None = None,
        on_error: OnError = "raise",
        timeout: float | None = None,
        policy: Any = None,
        tuning: Tuning | None = None,
        repeat: bool = False,
    ) -> None:
        if not isinstance(dataset, Dataset):
            raise InvalidError(f"NumpyLoader: {dataset!r} was not made by foreload.open")
        check_shuffle(order, shuffle)
        batch_size, seed, epochs = check_run(batch_size, seed, epochs, policy, tuning)
        if timeout is not None:
            timeout = _numbers.real("timeout", timeout)
        if collate is not None and not callable(collate):
            raise InvalidError(f"collate={collate!r} can't be called")
        shared: Any = () if shard is None else tuple(shard) if isinstance(shard, Iterable) else (shard,)
        if shard is not None and len(shared) != 2:
            raise InvalidError(f"shard={shard!r}: give (this process' data rank, data ranks)")
        self.dataset = dataset
        self._shared, self._batch_size, self._cache = shared, batch_size, fixed(cache)
        self._ordered: dict[str, Any] = {"name": order, "shuffle": shuffle}
        self._seed = seed
        self._tail: dict[str, Any] = {"drop_last": drop_last, "uneven": uneven}
        self._keywords: dict[str, Any] = {
            "uneven": uneven == "weights",
            "epochs": epochs,
            "policy": policy,
            "tuning": tuning,
            "skip_large": on_error != "raise",
        }
        self._run = self._planned()
        self._failures = Failures(on_error)
        self._decoder = Decoder(dataset.source, decode, transform, seed, self._failures)
        self._collate = collate or stack
        self._threads, self._chose_threads = threads_of(threads, self._decoder), threads is not None
        self._timeout_s, self._repeat = timeout or None, repeat
        self._cursor = Cursor()
        self._cursor.is_dealt = self._run.ranks.world > 1
        self._tallies: list[EpochTally] = []
        if repeat and epochs is None:
            raise InvalidError("repeat=True needs epochs=..., or the iterator would never end")

    def _planned(self) -> Run:
        place = _ranks.find(*self._shared)
        global_batch, samples = self._batch_size * place.world, len(self.dataset)
        kind = self.dataset.order_kind(world=place.world, **self._ordered)
        tail = tail_of(place.world, global_batch, **self._tail)
        order = Order(self.dataset.digest, samples, kind, self._seed, global_batch, tail)
        return Run(self.dataset, order, place, self._cache, **self._keywords)

    def __getstate__(self) -> dict[str, Any]:
        """A copy has a job of its own, and its place is that of the process that it comes to."""
        return {**self.__dict__, "_run": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Goes on where the loader stood that it was copied from."""
        self.__dict__.update(state)
        self._run = self._planned()

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return len(self._run)

    def set_epoch(self, epoch: int) -> None:
        """The next pass reads this epoch; without it, each pass reads the next."""
        self._cursor.set_epoch(epoch)

    def __iter__(self) -> NumpyIterator:
        """Starts a pass: the next epoch, or where a loaded state says."""
        if self._repeat and self._tallies:
            raise InvalidError("repeat=True: the one iterator was made already")
        return NumpyIterator(self)

    def state_dict(self) -> dict[str, Any]:
        """Where the loop stands, in plain numbers and strings."""
        cursor = self._cursor
        return cursor.stamp(self._run.state(cursor.epoch, cursor.batch, cursor.beyond))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next pass goes on where the state was saved, whatever the number of ranks.

        Raises:
            StateError: The state belongs to another run.
        """
        self._cursor.load(*self._run.resume(state), of=state)

    def stats(self) -> dict[str, Any]:
        """How it went: each epoch on this rank, and the job's counters on this node."""
        return {
            "epochs": [tally.as_dict() for tally in self._tallies],
            "skipped": self._failures.skipped,
            **self._run.stats(),
        }

    def _batches(self, stream: Stream, beyond: frozenset[int]) -> Iterator[tuple[int, Any]]:
        failures = self._failures
        if not self._decoder.is_needed:

            def made(found: _core.Delivery | Failed) -> Any:
                if isinstance(found, Failed):
                    return found
                return LEFT_OUT if failures.left_out(len(found)) else _undecoded(found)

            ready = Ahead(stream, made)
            yield from (item for item in ready if item[0] not in beyond) if beyond else ready
            return
        for number, rows in decoded_batches(
            stream, beyond, self._decoder, self._threads, self._timeout_s, chosen=self._chose_threads
        ):
            if isinstance(rows, Failed):
                yield number, rows
            else:
                yield number, LEFT_OUT if failures.skips and not rows else attempted(self._collate, rows)


class NumpyIterator(Iterator[Batch]):
    """One pass over a `NumpyLoader`, or with `repeat` the whole run; made by it."""

    # It is the loader's other half, and uses what belongs to both.
    # ruff: noqa: SLF001

    def __init__(self, loader: NumpyLoader) -> None:
        self._loader = loader
        self._batches: Iterator[tuple[int, Any]] | None = None
        self._tally = EpochTally(0)
        self._had = Had(0)
        self._is_empty = False

    def _begin(self) -> Iterator[tuple[int, Any]]:
        """The pass begins with its first batch, so that an epoch may be set and a state loaded until then."""
        loader = self._loader
        epoch, batch = loader._cursor.begin()
        loader._run = loader._run.going_on(epoch)
        self._tally = EpochTally(epoch)
        loader._tallies.append(self._tally)
        stream = Stream(loader._run, epoch, batch, timeout_s=loader._timeout_s, failures=loader._failures)
        self._had = Had(batch, loader._cursor.beyond)
        return loader._batches(stream, loader._cursor.beyond)

    def __next__(self) -> Batch:
        loader = self._loader
        begun = time.perf_counter()
        if self._batches is None:
            if loader._repeat and loader._cursor.upcoming == (loader._run.epochs, 0):
                # The state was saved when the run was over.
                raise StopIteration
            self._is_empty = self._is_empty or loader._cursor.takes_rest()
            if self._is_empty:
                raise StopIteration
            self._batches = self._begin()
            close_at_exit(self._batches)
        run, epoch = loader._run, self._tally.epoch
        run.attachment().report_notices()
        found = next_had(self._batches, self._had, loader._cursor, run, epoch, several=lambda: run.ranks.world > 1)
        if found is None:
            run.log(self._tally)
            if loader._repeat and loader._cursor.upcoming[0] < (loader._run.epochs or 0):
                self._batches = None
                return next(self)
            raise StopIteration
        number, batch = found
        self._tally.yielded(run.samples_in(epoch, number), time.perf_counter() - begun)
        return batch

    def get_state(self) -> bytes:
        """Where this pass stands, as Grain's iterators say it."""
        return json.dumps(self._loader.state_dict()).encode()

    def set_state(self, state: bytes) -> None:
        """Goes on where a state was taken."""
        self._loader.load_state_dict(json.loads(state))
        self._batches = None


def _undecoded(delivery: _core.Delivery) -> Batch:
    return copies_of(delivery), np.frombuffer(delivery.label_bytes(), dtype="<i8")


def stack(rows: Sequence[tuple[Any, int]]) -> tuple[Any, Any]:
    """The default collate: arrays of equal shape become one array, anything else a list."""
    values, labels = [value for value, _ in rows], np.array([label for _, label in rows], dtype=np.int64)
    first = values[0] if values else None
    if not isinstance(first, (np.ndarray, np.number, int, float)):
        return values, labels
    arrays = [np.asarray(value) for value in values]
    return np.stack(arrays) if len({array.shape for array in arrays}) == 1 else values, labels
