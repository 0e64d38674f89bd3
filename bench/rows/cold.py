"""A whole cold epoch with default settings, beside the yardstick at whichever number of connections serves it best.

The loader chooses everything itself: requests in flight, read-ahead, memory (half of what the machine leaves). Its rate is that of the epoch from the first
request to the last batch, with the search for the knee in it. The bound is the link, or the yardstick where a core is slower than that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

from bench.client import Job
from bench.registry import Result
from bench.rows.throughput import rate
from bench.stage import CLOUD, CLOUD_IN_WORDS, Stage, interleaved, options_of, ratios

#: Connections that the yardstick is given: up to what the loader may open.
CONNECTIONS = (64, 128, 256, 512, 1024, 2048, 4096)
#: Up to how many it was given when the bars were set; this reading stays beside the other.
FIRST_MOST = 1024


#: Requests a second that the hard profile serves; it answers 503 to more (what AWS documents for GETs of a prefix).
RATE = 5500


def _beside(result: Result, place: str, link: float, ours: list[float], bare: list[list[float]]) -> None:
    """Reads the loader's rates over the bound: with the yardstick at its best, and at its best of the first sweep."""
    fewer = [rates for number, rates in zip(CONNECTIONS, bare, strict=True) if number <= FIRST_MOST]
    for bound, rates in (("bound", bare), (f"bound with up to {FIRST_MOST} connections", fewer)):
        best = [min(link, each) for each in max(rates, key=median)]
        result.read(f"{place}: loader / {bound}", *ratios(ours, best))


def cold(count: int, size: int, *, hard: bool = False) -> Callable[[Stage], Result]:
    """The figure for so many objects of so many bytes.

    Args:
        count: Objects.
        size: Bytes of each.
        hard: Whether connections start slowly, speak TLS and are closed after 100 requests, one response of a thousand takes a second more, and what
            exceeds `RATE` is refused. The loader is measured without twins then, too.
    """

    def measure(stage: Stage) -> Result:
        samples = stage.amount(count, count // 20)
        rule = f"cold:{samples}x{size}"
        link = CLOUD["total_bytes_per_s"] / size
        server: dict[str, Any] = {}
        if hard:
            link = min(link, RATE)
            server = {"profile": "cloud-hard", "tls": True, "faults": [{"kind": "rate_limit", "per_s": RATE}]}
        result = Result(invalid=stage.gated())
        with stage.bucket(rule, **server) as bucket:
            job = Job("s3://bench/cold", options_of(bucket), ram="")
            for place, pinned in (("one core", True), ("whole machine", False)):
                runs: dict[str, list[Any]] = {
                    "loader": [],
                    "no twins": [],
                    **{str(number): [] for number in CONNECTIONS},
                }

                def yardstick(number: int, pinned: bool = pinned, runs: dict[str, list[Any]] = runs) -> float:
                    options = [f"--synthetic={rule}", "--shuffle", f"--connections={number}"]
                    runs[str(number)].append(stage.bare("get", *options, bucket=bucket, pinned=pinned))
                    return float(runs[str(number)][-1]["samples_per_s"])

                def loader(pinned: bool = pinned, runs: dict[str, list[Any]] = runs) -> float:
                    return rate(job, stage, runs["loader"], pinned=pinned)

                def alone(pinned: bool = pinned, runs: dict[str, list[Any]] = runs) -> float:
                    without = replace(job, attach={"hedge_per_cent": 0})
                    return rate(without, stage, runs["no twins"], pinned=pinned) if hard else 0.0

                ours, single, *bare = interleaved(
                    stage.pairs, loader, alone, *(lambda number=number: yardstick(number) for number in CONNECTIONS)
                )
                _beside(result, place, link, ours, bare)
                result.read(f"{place}: loader", *ours, unit="samples/s")
                if hard:
                    result.read(f"{place}: loader without twins", *single, unit="samples/s")
                    for name in ("hedges", "hedges_won", "retries"):
                        result.read(f"{place}: {name}", *[float(run["stats"][name]) for run in runs["loader"]])
                for number, values in zip(CONNECTIONS, bare, strict=True):
                    result.read(f"{place}: yardstick, {number} connections", *values, unit="samples/s")
                result.raw[place] = runs
        result.read("link", link, unit="samples/s")
        result.settings = {
            "profile": CLOUD_IN_WORDS
            + (f", slow start, TLS, closes after 100 requests, 0.1 % take 1 s more, {RATE} GETs/s" if hard else ""),
            "data": rule,
            "loader": "defaults: no setting is given but the batch of 64 and one epoch; all of the data fits its memory",
            "time": "from the first request to the last batch; starting the agent and listing come before",
            "bound": "the link, or the yardstick with the connections that serve it best (median), whichever is less",
            "one core": f"CPU {stage.client_cpu}: agent, python; the yardstick too. The server has CPU {stage.server_cpu}",
            "whole machine": "all CPUs for the client, of which the server takes one",
            "repetitions": stage.pairs,
        }
        return result

    return measure
