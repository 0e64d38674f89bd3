"""Measures what the performance model needs to know about this machine and its source.

`calibrate` reads a sample of a data set with 1, 4, 16, ... requests in flight, writes and reads a disk tier, and delivers from memory, all
through the agent as training does, so that what is measured is what a run gets. The answer is the sections of a calibration file
(`foreload.speeds`). It is an experiment: it takes some seconds, reads the bucket, and fills a scratch directory that it removes.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foreload import _agent, _core
from foreload import ranks as _ranks
from foreload._decode import Decoder
from foreload._failed import Failed
from foreload._memory import available_bytes
from foreload._order import Order
from foreload._run import Run, Stream
from foreload._sizes import format_bytes
from foreload._source import Progress
from foreload.arrays import NumpyLoader
from foreload.cache import Cache
from foreload.dataset import Dataset
from foreload.dataset import open as open_dataset
from foreload.errors import ForeloadError, InvalidError, NotFoundError, StalledWarning

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray

__all__ = ["LEVELS", "Level", "calibrate", "check_room", "decoding_mb_s", "machine", "source_level"]

_MB = 1 << 20
#: Requests in flight. The last one only when the one before was not yet slower than it could be.
LEVELS = (1, 4, 16, 64, 256)
#: Four times the requests that bring less than this are not worth trying more.
_STILL_CLIMBING = 1.5
#: Samples that the source is asked for; enough for any machine, few enough to open at once.
_MOST_SAMPLES = 8192
#: From so many requests for a sample on, each sample is a request of its own.
_ONE_EACH = 0.9
#: Sizes that differ less, as a share of their mean, tell no rate from latency.
_ALIKE = 0.1
#: Fewer requests don't tell how much they differ.
_FEW = 8
#: A connection's rate is worth so many times the time that a level has.
_LONGER = 3
#: A batch of large samples; small ones are handed over a fourth of the requests at a time.
_BATCH = 8 << 20
#: Between two batches of a loop: a quick step.
_PAUSE_S = 0.01
#: Bytes of a scratch sample: a photograph.
_SCRATCH_SAMPLE = 128 << 10


@dataclass(frozen=True)
class Level:
    """The source with a fixed number of requests in flight.

    Attributes:
        connections: Requests in flight.
        mb_s: Throughput.
        requests_per_s: Requests answered.
        latency_s: Mean time to the first byte.
        latency_sigma: Sigma of its lognormal distribution; None where single requests weren't seen, or few.
        connection_mb_s: What one request gets after that; None where it can't be told.
        shared: Whether samples shared requests.
    """

    connections: int
    mb_s: float
    requests_per_s: float
    latency_s: float
    latency_sigma: float | None
    connection_mb_s: float | None
    shared: bool = False


def calibrate(
    dataset: Dataset | None = None,
    *,
    disk: str | PathLike[str] | None = None,
    decode: Callable[..., Any] | None = None,
    seconds: float = 2.0,
    scratch_bytes: int = 256 << 20,
    cache_dir: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measures this machine.

    Args:
        dataset: Where to measure the source; None: not at all.
        disk: A directory on the drive that a disk tier will be on; None: not at all.
        decode: What will turn bytes into arrays: `decode(data, meta)`; None: not at all. It needs a data set.
        seconds: How long each measurement goes on.
        scratch_bytes: Written for memory and disk; a drive's own cache should not hold it.
        cache_dir: As in `foreload.open`.
        progress: Called with a step's name, how many are done, and of how many.

    Returns:
        The sections of a calibration file, for `foreload.speeds.text`; `failed`, what couldn't be measured and why; and `notes`, what to know about
        the rest.

    Raises:
        InvalidError: The data set has no bytes, or `check_room` raises it.
        NotFoundError: There is no such directory.
    """
    check_room(disk, scratch_bytes, cache_dir)
    if dataset is not None and dataset.nbytes == 0:
        raise InvalidError(
            f"{dataset.url}: its samples are empty, so nothing can be measured on them; name another data set"
        )
    steps = 1 + (disk is not None) + (len(LEVELS) if dataset is not None else 0) + (decode is not None)
    done = 0

    def say(step: str) -> None:
        nonlocal done
        if progress is not None:
            progress(step, done, steps)
        done += 1

    found: dict[str, Any] = {"dated": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "foreload": _core.__version__}
    found |= {"notes": [], "failed": {}, "machine": machine()}
    with _part("the source", found):
        if dataset is not None:
            found["source"] = _source(dataset, seconds, say, found["notes"])
    with _part("decoding", found):
        if dataset is not None and decode is not None:
            say("decoding")
            rate = decoding_mb_s(dataset, decode, seconds)
            found["cluster"] = {"preprocess_mb_s": _round(rate), "threads": len(os.sched_getaffinity(0))}
    with _part("memory", found), _scratch(scratch_bytes, cache_dir) as local:
        say("memory")
        copies, fills = _round(_copy_mb_s()), _round(_fill_mb_s(scratch_bytes))
        found["tier"] = [{"kind": "ram", "read_mb_s": copies, "write_mb_s": fills}]
        with _part("what a loop takes over", found):
            found["loop"] = {"mb_s": _round(_loop_mb_s(local, seconds))}
        with _part("the disk", found):
            if disk is not None:
                say("disk")
                write, read = _disk_mb_s(local, Path(disk))
                found["tier"].append({"kind": "disk", "read_mb_s": _round(read), "write_mb_s": _round(write)})
    return found


@contextmanager
def _part(name: str, found: dict[str, Any]) -> Iterator[None]:
    """One part of the measurements: without it, the others are still worth having."""
    try:
        yield
    except (ForeloadError, OSError) as error:
        found["failed"][name] = " ".join(str(error).split())


def check_room(
    disk: str | PathLike[str] | None, scratch_bytes: int, cache_dir: str | PathLike[str] | None = None
) -> None:
    """Refuses what can't be measured, before anything is: a drive that isn't there, or more scratch than drives and memory hold.

    Args:
        disk: As in `calibrate`.
        scratch_bytes: As in `calibrate`.
        cache_dir: As in `calibrate`.

    Raises:
        NotFoundError: The directory doesn't exist.
        InvalidError: It is none or closed, or there is too little room.
    """
    needs = [_existing(Path(_agent.cache_directory(cache_dir)))]
    if disk is not None:
        needs.append(_directory(Path(disk)))
    for path in needs:
        # Both may be on one drive.
        here = sum(other.stat().st_dev == path.stat().st_dev for other in needs)
        free = shutil.disk_usage(path).free
        if here * scratch_bytes + _core.KEEP_FREE_BYTES > free:
            most = max(0, free - _core.KEEP_FREE_BYTES) // here
            raise InvalidError(
                f"--scratch: {format_bytes(scratch_bytes)} don't fit: {path} has {format_bytes(free)} free, of which "
                f"{format_bytes(most)} can be used (1 GiB stays free); give less, or free some"
            )
    left = available_bytes()
    if scratch_bytes > left // 2:
        raise InvalidError(
            f"--scratch: {format_bytes(scratch_bytes)} don't fit into half of the {format_bytes(left)} of memory that are left, "
            "where they are measured too; give less"
        )


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above it that is there."""
    return next((each for each in (path, *path.parents) if each.is_dir()), Path("/"))


def _directory(path: Path) -> Path:
    """A directory that can be written.

    Raises:
        NotFoundError: It doesn't exist.
        InvalidError: It is none, or closed.
    """
    if not path.exists():
        # Made here, it would be on whatever drive is above.
        raise NotFoundError(f"--disk: there is no directory {path}; make it, or mount its drive")
    if not path.is_dir():
        raise InvalidError(f"--disk: {path} is no directory; name one on the drive")
    if not os.access(path, os.W_OK | os.X_OK):
        raise InvalidError(f"--disk: {path} can't be written: permission denied")
    return path


def machine() -> dict[str, Any]:
    """What the machine is, without its name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory = int(Path("/proc/meminfo").read_text(encoding="utf-8").split()[1]) / _MB
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _source(dataset: Dataset, seconds: float, say: Callable[[str], None], notes: list[str]) -> dict[str, Any]:
    part = _asked_for(dataset)
    levels: list[Level] = []
    for connections in LEVELS:
        if len(levels) > 1 and levels[-1].mb_s < _STILL_CLIMBING * levels[-2].mb_s:
            break
        say(f"source, {connections} in flight")
        problem = None
        # Half as many where they don't fit. Few requests follow each other in a short time, and latency comes from them.
        for fewer in (connections, connections // 2):
            if fewer > (levels[-1].connections if levels else 0):
                try:
                    levels.append(source_level(part, fewer, seconds * max(1, 4 // fewer)))
                    break
                except (ForeloadError, OSError) as error:
                    problem = problem or error
        if problem is not None and not levels:
            raise problem
        if problem is not None:
            most = levels[-1].connections
            notes.append(
                f"source.throughput_mb_s is what {most} request{'s' * (most > 1)} in flight get{'s' * (most == 1)}, and more may get more; {connections} "
                f"couldn't be measured: {problem}"
            )
            break
    best, alone = max(levels, key=lambda level: level.mb_s), levels[0]
    if alone.connection_mb_s is None:
        notes.append(_unknown_rate(part, shared=alone.shared))
    return {
        "url": dataset.url,
        "throughput_mb_s": {1: _round(best.mb_s)},
        "latency_s": _round(alone.latency_s) if alone.latency_s else None,
        "latency_sigma": _round(alone.latency_sigma) if alone.latency_sigma is not None else None,
        "connection_mb_s": _round(alone.connection_mb_s) if alone.connection_mb_s else None,
        "requests_in_flight": _core.MOST_IN_FLIGHT,
        "mean_request_mb": _round(alone.mb_s / alone.requests_per_s) if alone.requests_per_s else None,
        "mb_s_by_requests": {level.connections: _round(level.mb_s) for level in levels},
    }


def _asked_for(dataset: Dataset) -> Dataset:
    """Samples enough of a data set; not the empty ones, for which nothing is asked."""
    chosen = np.flatnonzero(dataset.lengths)
    if len(chosen) > _MOST_SAMPLES:
        chosen = np.sort(np.random.default_rng(0).choice(chosen, _MOST_SAMPLES, replace=False))
    return dataset if len(chosen) == len(dataset) else dataset.select(chosen)


def _unknown_rate(dataset: Dataset, *, shared: bool) -> str:
    """What it means that a connection's rate can't be told, and what helps."""
    if shared:
        return (
            "source.connection_mb_s is left out, and latency_s is the engine's estimate up to a first byte: samples share requests, so none was timed by "
            "itself; calibrate on a data set of more samples, or write both"
        )
    size, _ = _requests(dataset.lengths)
    alike = size.std() < _ALIKE * size.mean()
    why = "requests are too much alike in size" if alike else "requests of one size differ too much in time"
    remedy = "calibrate on samples of different sizes" if alike else "calibrate for longer (--seconds)"
    return (
        f"source.connection_mb_s is left out: {why} to tell it from latency. So latency_s is all the time of a request of mean_request_mb, and what "
        f"asks for more bytes at a time takes longer than plans say: {remedy}, or write connection_mb_s and a latency_s without it"
    )


def source_level(dataset: Dataset, connections: int, seconds: float) -> Level:
    """Reads with a fixed number of requests in flight, keeping nothing.

    Args:
        dataset: The data set, without empty samples; it is read again from its start if it is too short.
        connections: Requests in flight.
        seconds: How long, after the connections are there; up to three times as long with one, where that tells its rate from latency.

    Returns:
        What was measured.

    Raises:
        InvalidError: So many requests take more memory than there is, or so much of the data set that it would be read from there.
    """
    flying, batch, passing = _passage(dataset, connections)
    settings = {
        "concurrency": {"start": connections, "least": connections, "most": connections},
        "hedge_per_cent": 0,
    }
    run = _run(dataset, batch, _passing(passing), settings=settings)
    with _patiently():
        return _watched(run, connections, flying, batch, seconds)


def _watched(run: Run, connections: int, flying: int, batch: int, seconds: float) -> Level:
    """A run's throughput, and what single requests take, after the connections are there."""
    batches = _forever(run)
    warm = 2 * flying
    while warm > 0:
        warm -= len(next(batches))
    before, begun = run.stats(), time.perf_counter()
    last, most = begun, seconds
    answers: list[tuple[int, int, float]] = []
    # Large samples come in bursts of as many as are loaded at a time.
    few = 3 * flying if connections > 1 else 0
    while (took := last - begun) < most or (len(answers) * batch < few and took < _LONGER * seconds):
        # What still lay in memory was asked for in an earlier epoch.
        lengths, now = [length for length, via in next(batches) if via == "bucket"], time.perf_counter()
        answers.append((sum(lengths), len(lengths), now - last))
        last = now
        if connections == 1 and last - begun >= most and most < _LONGER * seconds and _may_tell(answers):
            most += seconds
    after = run.stats()
    # Requests count when they are sent; what is delivered in the same time is as much, but for what is under way.
    per_sample = (after["requests"] - before["requests"]) / max(1, after["bucket_reads"] - before["bucket_reads"])
    total, samples = sum(nbytes for nbytes, *_ in answers), sum(count for _, count, _ in answers)
    if run.dataset.nbytes > _core.PART_BYTES * len(run.dataset):
        # Of what is delivered, much was under way or lay there before.
        total = after["requested_bytes"] - before["requested_bytes"]
        samples = after["bucket_reads"] - before["bucket_reads"]
    if not total:
        raise InvalidError(f"nothing came from the source within {took:.2g} s; give more --seconds")
    # Where samples share requests, the engine's own estimate has to do.
    gauges = after["gauges"] or {}
    level = Level(
        connections, total / _MB / took, samples * per_sample / took, gauges.get("bucket_latency_s", 0.0), None, None
    )
    known = _alone(answers)
    if connections > 1 or per_sample <= _ONE_EACH or not known:
        return replace(level, shared=per_sample <= _ONE_EACH)
    latency_s, sigma, connection = _per_request(known)
    return replace(level, latency_s=latency_s, latency_sigma=sigma, connection_mb_s=connection)


@contextmanager
def _patiently() -> Iterator[None]:
    """Large samples on one connection take long, which is no stall to tell of."""
    log = logging.getLogger("foreload")

    def is_news(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("waiting for ")

    log.addFilter(is_news)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StalledWarning)
            yield
    finally:
        log.removeFilter(is_news)


def _passage(dataset: Dataset, connections: int) -> tuple[int, int, int]:
    """How many samples so many requests load at a time, how many make a batch, and the bytes in which they pass.

    Raises:
        InvalidError: There are too few.
    """
    lengths = dataset.lengths
    mean = float(lengths.mean())
    # A large sample comes in several requests at a time.
    flying = math.ceil(connections / max(1, math.floor(mean / _core.PART_BYTES)))
    batch = max(1, min(connections // 4, int(_BATCH / mean)))
    # Beside what is loaded, a batch that the loop has and two that come; and any two batches.
    count = 2 if connections == 1 and mean > _core.PART_BYTES else flying + 3 * batch
    least = int(1.1 * max(count * (mean + 64), float(np.sort(lengths)[-2 * batch :].sum()))) + 4096
    what = f"{connections} request{'s' * (connections > 1)} in flight need{'s' * (connections == 1)} {format_bytes(least)} of memory to pass through"
    if least > dataset.nbytes // 2:
        # Too much of it would be in memory when it is needed again.
        have = f"{len(dataset)} sample{'s' * (len(dataset) > 1)} of {format_bytes(mean)}"
        raise InvalidError(f"{what}, more than half of the data set ({have}); calibrate on a larger one")
    left = available_bytes()
    if least > left // 2:
        raise InvalidError(f"{what}, more than half of the {format_bytes(left)} that are left; free some")
    roomy = min(max(48 << 20, int(4 * flying * mean)), dataset.nbytes // 4, left // 2)
    # One after the other they need no more, and the less there is the less is found in it again.
    return flying, batch, least if connections == 1 else max(least, roomy)


def _requests(lengths: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bytes of a sample's requests, on average, and how many they are."""
    count = np.maximum(1.0, np.ceil(lengths / _core.PART_BYTES))
    return lengths / count, count


def _alone(answers: Sequence[tuple[int, int, float]]) -> list[tuple[int, float]]:
    """Bytes and seconds of those that brought one sample."""
    return [(nbytes, took) for nbytes, count, took in answers if count == 1]


def _may_tell(answers: Sequence[tuple[int, int, float]]) -> bool:
    """Whether requests differ in size, and not yet enough of them ended to tell a connection's rate."""
    known = _alone(answers)
    if len(known) < 2:
        return True
    lengths, took = np.array(known, dtype=np.float64).T
    size, count = _requests(lengths)
    return bool(size.std() >= _ALIKE * size.mean()) and _rate(size, took / count) is None


def _per_request(answers: Sequence[tuple[int, float]]) -> tuple[float, float | None, float | None]:
    """Mean seconds before the first byte, sigma of their lognormal distribution, and MB/s after it, of requests made one after the other.

    A straight line through them. Where there is none, because sizes are alike or noise is larger than what they make of a difference, all of the time
    is latency and there is no rate: when a body begins and ends, seen from here, says little, because most come in one piece.

    Args:
        answers: Bytes and seconds of each sample, larger ones in several requests.
    """
    lengths, took = np.array(answers, dtype=np.float64).T
    size, count = _requests(lengths)
    each = took / count
    rate = _rate(size, each)
    latency = each - size / _MB / rate if rate else each
    mean = float(latency.mean())
    if len(answers) < _FEW:
        return mean, None, rate
    # A mean of several differs less than one of them.
    return mean, math.sqrt(math.log1p(float(latency.var() * count.mean()) / mean**2)), rate


def _rate(size: NDArray[np.float64], took: NDArray[np.float64]) -> float | None:
    """MB/s beyond a request's latency, from bytes and seconds; None where that is noise."""
    spread = float(size.std())
    if len(size) < _FEW or spread < _ALIKE * size.mean():
        return None
    slope = float(np.cov(size, took)[0, 1]) / spread**2
    noise = float((took - slope * size).std()) / (spread * len(size) ** 0.5)
    # Three deviations; and less than there was time for.
    if slope < 3 * noise or slope * size.mean() >= took.mean():
        return None
    return 1 / slope / _MB


def decoding_mb_s(dataset: Dataset, decode: Callable[..., Any], seconds: float) -> float:
    """What one thread decodes.

    Args:
        dataset: Where the samples come from; a few dozen are read.
        decode: The function.
        seconds: How long it is called.
    """
    call = Decoder(dataset.source, decode, None)
    samples = list(range(0, len(dataset), -(-len(dataset) // 64)))
    data = [dataset.read(sample) for sample in samples]
    nbytes, begun = 0, time.perf_counter()
    while (took := time.perf_counter() - begun) < seconds:
        for sample, each in zip(samples, data, strict=True):
            call(memoryview(each), sample, dataset.label(sample), 0)
            nbytes += len(each)
    return nbytes / _MB / took


def _copy_mb_s() -> float:
    """Memory's speed at copying, as reading a sample from the RAM tier does it."""
    source = np.ones(32 << 20, np.uint8)
    target = np.empty_like(source)
    rates = []
    for _ in range(5):
        begun = time.perf_counter()
        np.copyto(target, source)
        rates.append(source.nbytes / _MB / (time.perf_counter() - begun))
    return float(np.median(rates))


def _fill_mb_s(nbytes: int) -> float:
    """How fast fresh memory is written, as the arena's is: the kernel has to find and clear it."""
    piece = bytes(128 << 10)
    count = max(1, nbytes // len(piece))
    memory = os.memfd_create("foreload-calibrate")
    try:
        begun = time.perf_counter()
        for number in range(count):
            os.pwrite(memory, piece, number * len(piece))
        return count * len(piece) / _MB / (time.perf_counter() - begun)
    finally:
        os.close(memory)


def _loop_mb_s(local: Dataset, seconds: float) -> float:
    """What the loop's own thread takes over when everything lies in memory.

    With a pause after each batch, as training makes them: caches are cold then, and threads have to wake up.
    """
    loader = NumpyLoader(local, 64, cache=Cache(ram=4 * local.nbytes + (64 << 20)), shuffle=True, shard=(0, 1))
    nbytes, took = 0, 0.0
    end = time.perf_counter() + seconds
    for epoch in itertools.count():
        batches = iter(loader)
        while True:
            begun = time.perf_counter()
            batch = next(batches, None)
            waited = time.perf_counter() - begun
            if batch is None:
                break
            # The first epoch reads the disk.
            if epoch:
                nbytes, took = nbytes + sum(map(len, batch[0])), took + waited
            del batch
            time.sleep(_PAUSE_S)
        if epoch and time.perf_counter() > end:
            break
    return nbytes / _MB / took


def _disk_mb_s(local: Dataset, directory: Path) -> tuple[float, float]:
    """Writing and reading a disk tier, with the page cache dropped in between."""
    with tempfile.TemporaryDirectory(prefix="foreload-calibrate-", dir=directory) as name:
        # Far less memory than data: what stays in it is neither written nor read.
        passing = min(56 << 20, local.nbytes // 4)
        cache = replace(_passing(passing), disk=f"{name}:{2 * local.nbytes + (64 << 20)}")
        run = _run(local, max(1, passing // (8 * _SCRATCH_SAMPLE)), cache, epochs=8)
        begun = time.perf_counter()
        for _ in _epoch(run, 0):
            pass
        kept, ended = _settled(run)
        write = kept * (local.nbytes / len(local)) / _MB / (ended - begun)
        # What wasn't kept in the first pass, because writing was behind, is by now.
        epoch = 1
        while kept < 0.95 * len(local) and epoch < 4:
            for _ in _epoch(run, epoch):
                pass
            kept, epoch = _settled(run)[0], epoch + 1
        _drop_page_cache(Path(name))
        before, begun = run.stats()["disk_bytes"], time.perf_counter()
        for _ in _epoch(run, epoch):
            pass
        read = (run.stats()["disk_bytes"] - before) / _MB / (time.perf_counter() - begun)
        run.attachment().settle()
    return write, read


def _settled(run: Run) -> tuple[int, float]:
    """Waits until nothing is being written any more; how many samples were, and when the last one was."""
    kept, since = -1, time.perf_counter()
    while True:
        now = int(run.stats()["written_samples"])
        if now != kept:
            kept, since = now, time.perf_counter()
        elif time.perf_counter() - since > 0.2:
            return kept, since
        time.sleep(0.01)


def _drop_page_cache(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def _passing(nbytes: int) -> Cache:
    """Memory in which everything passes and nothing stays."""
    ram = max(16 << 20, nbytes + max(nbytes // 4, 1 << 20))
    return Cache(ram=ram, batches=ram - nbytes, staging=nbytes)


def _run(
    dataset: Dataset, batch: int, cache: Cache, epochs: int | None = None, settings: dict[str, Any] | None = None
) -> Run:
    order = Order(dataset.digest, len(dataset), "keyed", 1, batch, "uneven")
    return Run(dataset, order, _ranks.find(0, 1), cache, uneven=True, epochs=epochs, settings=settings)


def _epoch(run: Run, epoch: int) -> Iterator[list[tuple[int, str]]]:
    """Length and origin of each batch's samples, their bytes taken over as a loop does."""
    for _, delivery in Stream(run, epoch, 0):
        if isinstance(delivery, Failed):
            delivery.fail()
        yield [(len(bytes(view)), view.via) for view in delivery.views()]


def _forever(run: Run) -> Iterator[list[tuple[int, str]]]:
    epoch = 0
    while True:
        yield from _epoch(run, epoch)
        epoch += 1


@contextmanager
def _scratch(nbytes: int, cache_dir: str | PathLike[str] | None) -> Iterator[Dataset]:
    """A data set of random bytes in the cache directory."""
    here = _agent.cache_directory(cache_dir)
    Path(here).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="calibrate-", dir=here) as directory:
        random = np.random.default_rng(0)
        for number in range(max(128, nbytes // _SCRATCH_SAMPLE)):
            Path(directory, f"{number:06}.bin").write_bytes(random.bytes(_SCRATCH_SAMPLE))
        yield open_dataset(directory, "flat", cache_dir=here)


def _round(value: float) -> float:
    """Three digits are more than such a measurement has."""
    return float(f"{value:.4g}")
