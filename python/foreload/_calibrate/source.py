"""Measures a source: with 1, 4, 16, ... requests in flight, through the agent as training reads it.

What one connection carries and what an answer takes before its first byte are told apart by the sizes of the samples.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from foreload import _core
from foreload._calibrate.reading import BATCH, MB, forever, pass_through, rounded, run_over
from foreload._data.dataset import Dataset
from foreload._run.run import Run
from foreload._settings.memory import available_bytes
from foreload._settings.sizes import format_bytes
from foreload.errors import ForeloadError, InvalidError, StalledWarning

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Requests in flight. The last one only when the one before was not yet slower than it could be.
LEVELS = (1, 4, 16, 64, 256, 1024)
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


def measure(dataset: Dataset, seconds: float, say: Callable[[str], None], notes: list[str]) -> dict[str, Any]:
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
        "throughput_mb_s": {1: rounded(best.mb_s)},
        "latency_s": rounded(alone.latency_s) if alone.latency_s else None,
        "latency_sigma": rounded(alone.latency_sigma) if alone.latency_sigma is not None else None,
        "connection_mb_s": rounded(alone.connection_mb_s) if alone.connection_mb_s else None,
        "requests_in_flight": _core.MOST_IN_FLIGHT,
        "mean_request_mb": rounded(alone.mb_s / alone.requests_per_s) if alone.requests_per_s else None,
        "mb_s_by_requests": {level.connections: rounded(level.mb_s) for level in levels},
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
    run = run_over(dataset, batch, pass_through(passing), settings=settings)
    with _patiently():
        return _watched(run, connections, flying, batch, seconds)


def _watched(run: Run, connections: int, flying: int, batch: int, seconds: float) -> Level:
    """A run's throughput, and what single requests take, after the connections are there."""
    batches = forever(run)
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
        connections, total / MB / took, samples * per_sample / took, gauges.get("bucket_latency_s", 0.0), None, None
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
    batch = max(1, min(connections // 4, int(BATCH / mean)))
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
    latency = each - size / MB / rate if rate else each
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
    return 1 / slope / MB
