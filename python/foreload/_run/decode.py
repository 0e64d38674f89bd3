"""From bytes to what the training loop sees: the user's `decode` and `transform`.

`decode(data, meta)` gets a sample's bytes, a read-only memoryview of shared memory, and a `Meta` that names the sample; `transform(x)` gets what
it returned. They run in a few threads of this process (most decoders release the interpreter's lock), or in the loader's worker
processes. Randomness belongs to the sample: `meta.seed` depends on the loader's seed, the epoch and the sample alone, so that a
resumed run draws what the uninterrupted one would have drawn, whatever the number of workers.
"""

from __future__ import annotations

import copy
import inspect
import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foreload import _core
from foreload._node.source import Source
from foreload._run.failed import Failed, attempted
from foreload._run.patience import Patience
from foreload._run.readings import Readings, sample_seed
from foreload._settings import numbers as _numbers
from foreload._settings.failures import Failures
from foreload._settings.memory import keep_freed_memory
from foreload.errors import DecodeError, ForeloadError, InvalidError

if TYPE_CHECKING:
    from foreload._run.stream import Stream

_LOG = logging.getLogger("foreload")
_MOST_THREADS = 1024
_DRAWS = (
    "decode draws from the global random numbers, and in threads such draws would come in another order each time: the loop itself decodes, as under "
    "torch's loader. Draw from meta.rng() instead, or take worker processes (num_workers=)"
)
_DRAWS_CHOSEN = (
    "decode draws from the global random numbers: in threads such draws come in another order each time. Draw from meta.rng() instead, or take "
    "worker processes (num_workers=) or threads=0"
)
#: What stands for a sample that was left out.
_SKIPPED: Any = object()


def global_states() -> tuple[object, ...]:
    """The states of the generators that everybody shares: Python's and NumPy's."""
    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2:]


class Meta:
    """What `decode` may know about a sample.

    Attributes:
        sample: Its number.
        label: Its label, or None.
        epoch: The epoch it is read in; 0 where nobody says.
    """

    __slots__ = ("_seed", "_source", "epoch", "label", "sample")

    def __init__(
        self, source: Source, sample: int, label: int | None, epoch: int, seed: int | Callable[[], int]
    ) -> None:
        self._source, self.sample, self.label, self.epoch, self._seed = source, sample, label, epoch, seed

    @property
    def seed(self) -> int:
        """The seed for its randomness."""
        if not isinstance(self._seed, int):
            self._seed = self._seed()
        return self._seed

    @property
    def key(self) -> str:
        """The key of its object, or in a shard WebDataset's `__key__`."""
        return self._source.opened().index.key(self.sample)

    @property
    def stream(self) -> str | None:
        """The name of its stream, where the data set is a `Mixture`."""
        return self._source.stream_of(self.sample)

    @property
    def fields(self) -> list[tuple[str, int, int]]:
        """Its parts: (name, first byte, bytes)."""
        return self._source.opened().index.fields(self.sample)

    def part(self, data: memoryview, name: str) -> memoryview:
        """One part of a sample of several, such as `jpg`.

        Raises:
            KeyError: It has no such part.
        """
        for known, first, length in self.fields:
            if known == name:
                return data[first : first + length]
        raise KeyError(f"{self.key} has no part {name!r}, only {[known for known, *_ in self.fields]}")

    def rng(self) -> np.random.Generator:
        """A generator for this reading of this sample."""
        return np.random.Generator(np.random.PCG64(self.seed))


class Decoder:
    """Applies `decode` and `transform`.

    Args:
        source: The data set.
        decode: The user's decoder; it may leave out the second argument.
        transform: Applied to what `decode` returns, or to the bytes.
        seed: The loader's seed.
        failures: What to do with a sample that fails.
        draw: Answers with a random number that stands for the epoch where nobody says which it is.
        states: Answers with the states of the global generators, to be compared.
        detach: Called with what comes of a sample and the sample's memory: answers with the same, but for what must not outlive that memory or
            be written to there.
    """

    def __init__(
        self,
        source: Source,
        decode: Callable[..., Any] | None,
        transform: Callable[[Any], Any] | None,
        seed: int = 0,
        failures: Failures | None = None,
        draw: Callable[[], int] = int,
        states: Callable[[], object] = global_states,
        detach: Callable[[Any, memoryview], Any] | None = None,
    ) -> None:
        for name, given in (("decode", decode), ("transform", transform)):
            if given is not None and not callable(given):
                raise InvalidError(f"{name}={given!r} can't be called")
        self.source, self.decode, self.transform, self.seed = source, decode, transform, seed
        self.failures = failures or Failures()
        self._draw = draw
        self.seeders: tuple[Callable[[int], object], ...] = ()
        #: Whether `decode` is a data set of the user's: it runs where torch would run it, and its errors pass as they are.
        self.is_data_set = False
        self._takes_meta = decode is not None and _takes_two(decode)
        #: Of a part of a data set: by which number each of its samples is known to the decoder.
        self._numbers: NDArray[np.int64] | None = None
        self.states, self.detach = states, detach
        #: Whether the first sample that this process decoded in a thread drew from the global generators; None: none was yet.
        self.draws: bool | None = None

    def counting(self, failures: Failures) -> Decoder:
        """The same, with failures of its own."""
        twin = copy.copy(self)
        twin.failures = failures
        return twin

    def of_chosen(self, samples: NDArray[np.int64]) -> Decoder:
        """The same for a part of the data set, whose samples it knows by their numbers in the whole.

        Args:
            samples: Those numbers, in the part's order.
        """
        twin = copy.copy(self)
        vars(twin)["_numbers"] = samples if self._numbers is None else self._numbers[samples]
        return twin

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to apply."""
        return self.decode is not None or self.transform is not None

    def seed_globally(self, *seeders: Callable[[int], object]) -> None:
        """From now on seeds the global generators for each sample: for worker processes, which decode one sample at a time."""
        self.seeders = (random.seed, lambda seed: np.random.seed(seed & 0xFFFFFFFF), *seeders)

    def __call__(self, data: Any, sample: int, label: int | None, epoch: int | None, reading: int = 0) -> Any:
        """Decodes one sample.

        Args:
            data: Its bytes.
            sample: Its number.
            label: Its label.
            epoch: The epoch; None: nobody says. Then the global generators are left as they are, and the sample's own seed is drawn when it
                is asked for.
            reading: Which reading of it in that epoch (`Readings`).

        Raises:
            DecodeError: It fails, and is not to be skipped.
        """
        if self._numbers is not None:
            sample = int(self._numbers[sample])
        if epoch is None:
            meta = Meta(self.source, sample, label, 0, lambda: sample_seed(self.seed, self._draw(), sample))
        else:
            meta = Meta(self.source, sample, label, epoch, sample_seed(self.seed, epoch, sample, reading))
            for seeder in self.seeders:
                seeder(meta.seed)
        raw = data
        try:
            if self.decode is not None:
                data = self.decode(data, meta) if self._takes_meta else self.decode(data)
            if self.transform is not None:
                data = self.transform(data)
            if self.detach is not None:
                data = self.detach(data, raw)
        except ForeloadError as error:
            return self._failed(error)
        except Exception as error:
            if self.is_data_set and not self.failures.skips:
                self._noted(error, sample)
                raise
            return self._failed(self._explain(error, meta), error)
        self.failures.succeeded()
        return data

    def _noted(self, error: Exception, sample: int) -> None:
        """Says which sample an error of the user's data set is of."""
        of = f"sample {sample} ({self.source.where_of(sample)})"
        if isinstance(error, StopIteration):
            # In a generator it would be the end.
            raise RuntimeError(f"{of}: __getitem__ raised StopIteration") from error  # noqa: TRY004
        error.add_note(of)

    def _failed(self, error: ForeloadError, cause: BaseException | None = None) -> Any:
        error.__cause__ = cause
        self.failures.failed(error)
        return _SKIPPED

    def _explain(self, error: Exception, meta: Meta) -> DecodeError:
        title = f"sample {meta.sample} ({self.source.where_of(meta.sample)})"
        return DecodeError(f"decoding {title} failed: {type(error).__name__}: {error}", meta.sample)


def _takes_two(decode: Callable[..., Any]) -> bool:
    """Whether a decoder is meant to be given `meta`: as a second argument that it can't do without, or one of that name."""
    try:
        parameters = list(inspect.signature(decode).parameters.values())
    except (TypeError, ValueError):  # a built-in that doesn't tell
        return False
    if any(each.kind is each.VAR_POSITIONAL for each in parameters[:2]):
        return True
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len(places) > 1 and (places[1].default is places[1].empty or places[1].name == "meta")


class Pairs(list[tuple[Any, int]]):
    """A decoded batch: (what decode returned, label) of each sample that wasn't skipped."""


#: From a decoded batch to what the loop gets, or to the same batch if the loop has to make it.
Make = Callable[[Pairs], Any]
#: What a batch consists of before: views of the bytes, samples, labels; and which reading each is (`Readings`).
Columns = tuple[Sequence[Any], Sequence[int], Sequence[int | None]]
Raw = tuple[Sequence[Any], Sequence[int], Sequence[int | None], Sequence[int]]


def raw_of(delivery: _core.Delivery, readings: Readings) -> Raw:
    """A delivery as it is decoded."""
    columns = columns_of(delivery)
    return (*columns, readings.numbers(len(columns[1])))


def copies_of(delivery: _core.Delivery) -> list[bytes]:
    """Copies of a delivery's bytes, into memory that the batch before was in."""
    copies = delivery.to_bytes()
    keep_freed_memory(sum(map(len, copies)))
    return copies


def columns_of(delivery: _core.Delivery) -> Columns:
    """A delivery as columns; copies of its bytes where so much memory is held already that a decoder which keeps its input would stall the loader."""
    return copies_of(delivery) if delivery.copy else delivery.views(), delivery.samples, delivery.labels


def decoded(raw: Raw, epoch: int | None, decoder: Decoder) -> Any:
    """Decodes a batch here and now."""
    rows = zip(*raw, strict=True)
    return _kept(
        (decoder(memoryview(view), sample, label, epoch, reading), label) for view, sample, label, reading in rows
    )


def threads_of(given: int | None, decoder: Decoder) -> int:
    """How many threads decode where there are no worker processes.

    Args:
        given: What the user says; 0: the loop itself decodes. None: as many as there are CPUs, at most 8, for decoders release the
            interpreter's lock for part of their time only; for a data set of the user's, which may not bear threads, 0.
        decoder: What they apply.

    Raises:
        InvalidError: It is no number of threads.
    """
    if given is not None:
        return _numbers.count("threads", given, most=_MOST_THREADS)
    return min(8, os.cpu_count() or 1) if decoder.is_needed and not decoder.is_data_set else 0


def decoded_batches(
    stream: Stream,
    beyond: Container[int],
    decoder: Decoder,
    threads: int,
    timeout_s: float | None,
    *,
    chosen: bool,
    elsewhere: Callable[[], Make | None] = lambda: None,
) -> Iterator[tuple[int, Any]]:
    """Decodes the batches of a pass in this process.

    Args:
        stream: The pass.
        beyond: Batches of it that are left out, because the loop has had them.
        decoder: What to apply.
        threads: How many threads do; 0: the loop itself.
        timeout_s: Longest wait for a batch; None: no end.
        chosen: Whether the user said how many threads. Otherwise the loop decodes what draws from the global generators: in threads the draws
            would come in another order each time.
        elsewhere: Asked in the loop, when a batch begins to be decoded in threads, for what makes the loop's of it in another thread, one batch after the
            other; None: nothing may.

    Yields:
        Numbers and decoded batches, or what was made of them.
    """
    patience = stream.run.patience(stream.epoch, timeout_s)
    first = None
    if threads and decoder.draws is None:
        first = _first(_undecoded(stream, beyond), stream.epoch, decoder, patience)
        if decoder.draws:
            _LOG.warning(_DRAWS_CHOSEN if chosen else _DRAWS)
    if threads and (chosen or not decoder.draws):
        return in_threads(stream, beyond, decoder, threads, patience, first, elsewhere=elsewhere)
    return in_the_loop(_undecoded(stream, beyond), stream.epoch, decoder, patience, first)


#: A batch that came, and what its first sample was decoded to.
First = tuple[int, "Raw | Failed", Any]


def _undecoded(stream: Stream, beyond: Container[int]) -> Iterator[tuple[int, Raw | Failed]]:
    batches = (item for item in stream if item[0] not in beyond)
    return (
        (number, found if isinstance(found, Failed) else raw_of(found, stream.readings(number)))
        for number, found in batches
    )


def _first(
    batches: Iterator[tuple[int, Raw | Failed]], epoch: int, decoder: Decoder, patience: Patience
) -> First | None:
    """The next batch, with its first sample decoded in a thread while nothing else is: does that draw from the global generators?"""
    found = next(batches, None)
    if found is None:
        return None
    number, raw = found
    if isinstance(raw, Failed):
        return number, raw, None
    views, samples, labels, readings = raw
    if not samples:
        return number, raw, None
    pool, before = ThreadPoolExecutor(1, thread_name_prefix="foreload-decode"), decoder.states()
    try:
        task = pool.submit(attempted, decoder, memoryview(views[0]), samples[0], labels[0], epoch, readings[0])
        value = patience.result(task, number, samples[0])
    finally:
        pool.shutdown(wait=False)
    decoder.draws = decoder.states() != before
    return (number, value, None) if isinstance(value, Failed) else (number, raw, value)


def in_the_loop(
    batches: Iterator[tuple[int, Raw | Failed]],
    epoch: int,
    decoder: Decoder,
    patience: Patience,
    first: First | None = None,
) -> Iterator[tuple[int, Pairs | Failed]]:
    """Decodes batches where they are asked for, and reports it if that takes long."""

    def timed(number: int, view: Any, sample: int, label: int | None, reading: int) -> Any:
        begun = time.monotonic()
        value = decoder(memoryview(view), sample, label, epoch, reading)
        patience.decoded(time.monotonic() - begun, number, sample)
        return value

    def rows(number: int, raw: Raw | Failed, *known: Any) -> Pairs | Failed:
        if isinstance(raw, Failed):
            return raw
        rest = ((timed(number, *row), row[2]) for row in islice(zip(*raw, strict=True), len(known), None))
        made: Pairs | Failed = attempted(_kept, chain(zip(known, raw[2], strict=False), rest))
        return made

    if first is not None:
        number, raw, *known = first
        del first
        patience.begin()
        yield number, rows(number, raw, *known)
        del raw, known
    for number, raw in batches:
        patience.begin()
        yield number, rows(number, raw)


class _Batch:
    """A batch that threads decode.

    Args:
        number: Its number.
        tasks: What comes of each sample, the sample, and its label.
        made: What comes of them all, where another thread makes it.
        failed: What comes in its place.
    """

    def __init__(
        self,
        number: int,
        tasks: list[tuple[Future[Any], int, int | None]],
        made: Future[Any] | None = None,
        failed: Failed | None = None,
    ) -> None:
        self.number, self.tasks, self.made, self.failed = number, tasks, made, failed


class _Work:
    """Batches that threads decode: the one that is due, and those after it that have come."""

    def __init__(
        self,
        stream: Stream,
        beyond: Container[int],
        decoder: Decoder,
        threads: int,
        ahead: int,
        elsewhere: Callable[[], Make | None],
    ) -> None:
        self._stream, self._beyond, self._decoder, self._ahead = stream, beyond, decoder, ahead
        self._elsewhere = elsewhere
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="foreload-decode")
        # One, so that batches are made in their order.
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="foreload-collate")
        self._batches: deque[_Batch] = deque()

    def begin(self, number: int, raw: Raw | Failed, *known: Any) -> None:
        """Has a batch decoded, of which the first sample may be known."""
        if isinstance(raw, Failed):
            self._batches.append(_Batch(number, [], failed=raw))
            return
        tasks: list[tuple[Future[Any], int, int | None]] = []
        for view, sample, label, reading in zip(*raw, strict=True):
            if known and not tasks:
                task: Future[Any] = Future()
                task.set_result(known[0])
            else:
                # An error in the future itself would hold the future by its traceback, and in the end the pass.
                of_sample = (memoryview(view), sample, label, self._stream.epoch, reading)
                task = self._pool.submit(attempted, self._decoder, *of_sample)
            tasks.append((task, sample, label))
        make = self._elsewhere()
        self._batches.append(_Batch(number, tasks, None if make is None else self._maker.submit(_made, tasks, make)))

    def _begin_what_came(self) -> None:
        """Waits for nothing: the batch that is due doesn't wait for the one after it, nor for its error."""
        while len(self._batches) < self._ahead and not self._stream.is_over:
            try:
                delivery = self._stream.look_ahead(any_size=True)
            except ForeloadError:
                # Met again where the loop asks.
                return
            if delivery is None:
                break
            number = self._stream.pass_on()
            if number not in self._beyond:
                self.begin(number, raw_of(delivery, self._stream.readings(number)))
        self._stream.flush()

    def next(self, patience: Patience) -> tuple[int, Any] | None:
        """The batch that is due; None: it was the last one."""
        if not self._batches:
            found = next(_undecoded(self._stream, self._beyond), None)
            if found is None:
                return None
            self.begin(*found)
            # Only the tasks hold the samples' memory now.
            del found
        batch = self._batches.popleft()
        return batch.number, batch.failed or self._finished(batch, patience)

    def _finished(self, batch: _Batch, patience: Patience) -> Any:
        def values() -> Iterator[tuple[Any, int | None]]:
            for task, sample, label in batch.tasks:
                self._begin_what_came()
                yield patience.result(task, batch.number, sample), label

        if batch.made is None:
            return _kept(values())
        # The tasks are gone as soon as the batch is made.
        for _ in values():
            pass
        self._begin_what_came()
        return patience.made(batch.made, batch.number)

    def end(self) -> None:
        """Nothing more is begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._maker.shutdown(wait=False, cancel_futures=True)
        self._batches.clear()


def _made(tasks: list[tuple[Future[Any], int, int | None]], make: Make) -> Any:
    """What comes of a batch when its samples are decoded, which nobody holds from then on."""
    pairs = _kept((task.result(), label) for task, _, label in tasks)
    tasks.clear()
    return pairs if isinstance(pairs, Failed) else make(pairs)


def in_threads(
    stream: Stream,
    beyond: Container[int],
    decoder: Decoder,
    threads: int,
    patience: Patience,
    first: First | None = None,
    ahead: int = 2,
    elsewhere: Callable[[], Make | None] = lambda: None,
) -> Iterator[tuple[int, Any]]:
    """Decodes batches in threads, in order, and those ahead of the consumer that have come.

    Args:
        stream: The pass.
        beyond: Batches of it that are left out.
        decoder: What to apply.
        threads: How many threads.
        patience: How long to wait for them.
        first: A batch that was taken from the stream already.
        ahead: Batches in work beyond the one that is waited for.
        elsewhere: As of `decoded_batches`.

    Yields:
        Numbers and decoded batches, or what was made of them.
    """
    work = _Work(stream, beyond, decoder, threads, ahead, elsewhere)
    try:
        if first is not None:
            work.begin(*first)
            del first
        patience.begin()
        while (batch := work.next(patience)) is not None:
            yield batch
            del batch
            patience.begin()
    finally:
        work.end()


def _kept(pairs: Iterator[tuple[Any, int | None]]) -> Pairs | Failed:
    kept = Pairs()
    for value, label in pairs:
        if isinstance(value, Failed):
            return value
        if value is not _SKIPPED:
            kept.append((value, -1 if label is None else label))
    return kept
