"""A store that errs, a store that is away, and a store that is new: what of the healthy rate is left, and how soon all of it is there.

A loader that takes one error for congestion loses most of its rate to a handful of them, and one that gives up after a second loses the run.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from bench.client import Job
from bench.registry import Result
from bench.rows.throughput import rate
from bench.stage import CLOUD_IN_WORDS, Reader, Stage, interleaved, options_of, ratios

#: Bytes of an object.
SIZE = 110_000
#: What a share of the GETs meets instead of an answer.
ERRORS: dict[str, dict[str, Any]] = {
    "1 % of 503": {"kind": "status", "status": 503, "share": 0.01},
    "1 % of 500": {"kind": "status", "status": 500, "share": 0.01},
    "1 % reset": {"kind": "reset", "share": 0.01},
    "1 % truncated": {"kind": "truncate", "share": 0.01},
    "10 % of 503": {"kind": "status", "status": 503, "share": 0.10},
}
#: How a store is away.
OUTAGES = ("503", "refused", "silent")
#: How long, and how long a batch takes: seconds.
AWAY_S, STEP_S = 20.0, 0.02
#: A memory through which all is passed that is read, so that nothing waits for memory that nobody has used, and little can be read ahead.
TIGHT = "1GB"


def errors(stage: Stage) -> Result:
    """The rate of a cold epoch in which a share of the GETs fails, over that of one in which none does."""
    count = stage.amount(40_000, 1_000)
    result = Result(invalid=stage.gated())
    with stage.bucket(f"errors:{count}x{SIZE}") as bucket:
        job = Job("s3://bench/errors", options_of(bucket), ram="")
        cases = [(name, "") for name in ("healthy", *ERRORS)] + [("healthy", TIGHT), ("10 % of 503", TIGHT)]
        runs: dict[tuple[str, str], list[Any]] = {case: [] for case in cases}

        def measure(case: tuple[str, str]) -> float:
            name, ram = case
            bucket.clear_faults()
            if name in ERRORS:
                bucket.add_fault(**ERRORS[name])
            return rate(replace(job, ram=ram), stage, runs[case], pinned=False)

        found = interleaved(stage.pairs, *(lambda case=case: measure(case) for case in cases))
        rates = dict(zip(cases, found, strict=True))
    for name, ram in cases:
        told = f"{name}, memory of {ram}" if ram else name
        result.read(told, *rates[name, ram], unit="samples/s")
        if name != "healthy":
            result.read(f"{told}: rate / healthy", *ratios(rates[name, ram], rates["healthy", ram]))
            result.read(f"{told}: samples lost", *[count - run["samples"] for run in runs[name, ram]])
            result.read(f"{told}: retries", *[float(run["stats"]["retries"]) for run in runs[name, ram]])
        result.raw[told] = runs[name, ram]
    result.settings = {
        "profile": CLOUD_IN_WORDS,
        "data": f"{count:,} objects of {SIZE:,} bytes, shuffled, cold",
        "loader": "defaults, but for the memory where it is named; all CPUs, of which the server takes one",
        "errors": "drawn for each GET, repeats included; a reset comes instead of the head, a truncated body ends in its middle",
    }
    return result


@dataclass
class _Store:
    """A bucket on a port of its own, which can be away in three ways."""

    stage: Stage
    rule: str

    def __post_init__(self) -> None:
        self.bucket = self.stage.bucket(self.rule)
        self.port = self.bucket.endpoint.rsplit(":", 1)[1]

    def leave(self, how: str) -> None:
        if how == "503":
            self.bucket.add_fault("status", status=503, on=["get", "head", "list"])
        elif how == "silent":
            os.kill(self.bucket.pid, signal.SIGSTOP)
        else:
            self.bucket.stop()

    def come_back(self, how: str) -> None:
        if how == "503":
            self.bucket.clear_faults()
        elif how == "silent":
            os.kill(self.bucket.pid, signal.SIGCONT)
        else:
            self.bucket = self.stage.bucket(self.rule, options=["--port", self.port])


def outage(stage: Stage) -> Result:
    """A run whose store is away for a while: how soon it goes on, what it lost, and how often it says so."""
    away_s = 4.0 if stage.quick else AWAY_S
    count = 64 * int((away_s + 15) / STEP_S / 2)
    result = Result(invalid=stage.gated())
    waits: dict[str, list[float]] = {how: [] for how in OUTAGES}
    paces: dict[str, list[float]] = {how: [] for how in OUTAGES}
    lost: dict[str, list[float]] = {how: [] for how in OUTAGES}
    said: dict[str, list[float]] = {how: [] for how in OUTAGES}
    for round_ in range(stage.pairs):
        for how in OUTAGES if round_ % 2 == 0 else reversed(OUTAGES):
            store = _Store(stage, f"outage:{count}x{SIZE}")
            try:
                reader, back = _through(stage, store, how, away_s)
            finally:
                store.bucket.stop()
            first = reader.first
            times = [first["began"] + at - back for at in first["times"]]
            after = [at for at in times if at > 0]
            # A loader that had fetched more than the outage took never waited.
            waits[how].append(after[0] if after else 0.0)
            paces[how].append(sum(1 < at <= 3 for at in after) * STEP_S / 2)
            lost[how].append(count - first["samples"])
            warnings = [line for line in reader.said if "Warning" in line]
            said[how].append(len(warnings))
            result.raw.setdefault(how, []).append({"times": times, "said": reader.said, "stats": first["stats"]})
    for how in OUTAGES:
        result.read(f"{how}: from its end to the next batch", *waits[how], unit="s")
        result.read(f"{how}: samples lost", *lost[how])
        result.read(f"{how}: warnings", *said[how])
        result.read(f"{how}: pace in the second and third second after, over the loop's own", *paces[how])
    result.settings = {
        "profile": CLOUD_IN_WORDS,
        "data": f"{count:,} objects of {SIZE:,} bytes, shuffled, cold; batches of 64, {STEP_S * 1000:g} ms each",
        "loader": "memory of 256 MB, otherwise defaults; all CPUs, of which the server takes one",
        "outage": f"{away_s:g} s, from two seconds after the first GET: every request is answered with 503; the server is gone and its port refuses; the server is stopped and nobody answers",
        "warnings": "lines of stderr that name one",
    }
    return result


def _through(stage: Stage, store: _Store, how: str, away_s: float) -> tuple[Reader, float]:
    """Reads while the store goes away and comes back; the client, and the time at which the store was back."""
    job = Job("s3://bench/outage", options_of(store.bucket), compute_s=STEP_S, timeline=True)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(stage.read, job, pinned=False)
        deadline = time.monotonic() + 60
        while not store.bucket.counters()["requests"].get("get") and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(2)
        store.leave(how)
        time.sleep(away_s)
        store.come_back(how)
        back = time.time()
        return reading.result(), back


def ramp(stage: Stage) -> Result:
    """How long a loader takes from its first request to nine tenths of its rate, on a store that it has met and on one that it hasn't."""
    count = stage.amount(40_000, 2_000)
    result = Result(invalid=stage.gated())
    found: dict[str, list[float]] = {}
    with stage.bucket(f"ramp:{count}x{SIZE}") as bucket:
        for ram in ("", TIGHT):
            job = Job("s3://bench/ramp", options_of(bucket), ram=ram, timeline=True)
            for _ in range(stage.pairs):
                with stage.surroundings() as environment:
                    for which in ("that is new", "that was met before"):
                        run = stage.read(job, pinned=False, environment=environment).first
                        name = f"a store {which}{f', memory of {ram}' if ram else ''}: to 0.9 of the rate"
                        found.setdefault(name, []).append(until(run["times"], 0.9))
                        result.raw.setdefault(name, []).append(run)
    for name, times in found.items():
        result.read(name, *times, unit="s")
    result.settings = {
        "profile": CLOUD_IN_WORDS,
        "data": f"{count:,} objects of {SIZE:,} bytes, shuffled, cold",
        "loader": "defaults, but for the memory where it is named; all CPUs, of which the server takes one",
        "rate": "that of the later half of the epoch; it is reached where the batches of the next quarter of a second come at 0.9 of it",
        "first request": "the loop begins then: listing and starting the agent come before",
        "met before": "by another agent, with the same cache directory; nothing that it read is there any more",
    }
    return result


def until(times: list[float], share: float, window_s: float = 0.25) -> float:
    """When the rate of batches first reaches a share of that of the later half.

    Args:
        times: When each batch came, ascending; seconds.
        share: Of the rate.
        window_s: The time over which the rate is looked at.

    Returns:
        Seconds; where the rate is never reached, the last batch's time.
    """
    half = len(times) // 2
    sustained = (len(times) - 1 - half) / (times[-1] - times[half])
    starts: list[float] = [0.0, *times]
    last = 0
    for number, start in enumerate(starts):
        while last < len(times) and times[last] <= start + window_s:
            last += 1
        if last - number >= share * sustained * window_s:
            return start
    return times[-1]
