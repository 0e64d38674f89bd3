"""What can be tuned about how the agent fetches.

`Tuning` is a setting: a plain, frozen value. What isn't set keeps the agent's default, which `docs/reference/settings.md` lists; most of it
adapts to what is measured, so that there is seldom a reason to set it.
"""

from __future__ import annotations

import math
import numbers
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreload import _core
from foreload.errors import InvalidError

_DELI = ("fetch", "threshold", "cache")
#: A load takes milliseconds at the very best; shorter limits are another unit by mistake.
_LEAST_LOAD_S = 0.01
#: More than a network card feeds.
_MOST_THREADS = 64


@dataclass(frozen=True)
class Tuning:
    """How the agent fetches for a loader.

    Attributes:
        concurrency: Requests in flight: a number that stays, or (at first, at least, at most) between which it adapts.
        hedge_per_cent: Twins for each hundred requests, sent where a late one would stall the loop; 0: none.
        load_timeout_s: Longest time of a load, repetitions included, in seconds; one whose bytes keep coming, at 4 KB/s or faster, has more.
        stall_s: Waits longer than this are reported with their cause, in seconds.
        bucket: (latency in seconds, bytes per second of one request) to assume instead of measuring.
        metrics_log: A file that gets one line of JSON for each second of activity, and one for each epoch of a rank.
        io_threads: Threads of the agent that fetch; 1: its own. The agent, which all jobs of a node share, has as many as the job that asks for most.

    Example:
        >>> Tuning(concurrency=64, stall_s=5).fields()
        {'concurrency': {'start': 64, 'least': 64, 'most': 64}, 'stall_s': 5}
    """

    concurrency: int | tuple[int, int, int] | None = None
    hedge_per_cent: int | None = None
    load_timeout_s: float | None = None
    stall_s: float | None = None
    bucket: tuple[float, float] | None = None
    metrics_log: str | os.PathLike[str] | None = None
    io_threads: int | None = None

    def __post_init__(self) -> None:
        self._check_concurrency()
        threads = self.io_threads
        if threads is not None and not (_is_whole(threads) and 1 <= threads <= _MOST_THREADS):
            raise InvalidError(f"Tuning(io_threads={threads!r}): give a whole number from 1 to {_MOST_THREADS}")
        hedge = self.hedge_per_cent
        if hedge is not None and not (_is_whole(hedge) and 0 <= hedge <= 100):
            raise InvalidError(f"Tuning(hedge_per_cent={hedge!r}): give a whole number from 0 (no twins) to 100")
        for name, least in (("load_timeout_s", _LEAST_LOAD_S), ("stall_s", 0.0)):
            value = getattr(self, name)
            if value is not None and not (_is_positive(value) and value >= least):
                raise InvalidError(f"Tuning({name}={value!r}): give more than {least:g} seconds")
        if self.bucket is not None and not (
            isinstance(self.bucket, (tuple, list)) and len(self.bucket) == 2 and all(map(_is_positive, self.bucket))
        ):
            raise InvalidError(
                f"Tuning(bucket={self.bucket!r}): give (latency in seconds, bytes per second of one request), both above 0, such as (0.03, 40e6)"
            )

        if self.metrics_log is not None and not isinstance(self.metrics_log, (str, os.PathLike)):
            raise InvalidError(f"Tuning(metrics_log={self.metrics_log!r}): give the path of a file")

    def _check_concurrency(self) -> None:
        numbers = self._concurrency() or (1, 1, 1)
        fits = len(numbers) == 3 and all(map(_is_whole, numbers)) and 1 <= numbers[1] <= numbers[0] <= numbers[2]
        if not fits:
            raise InvalidError(
                f"Tuning(concurrency={self.concurrency!r}): give a number that stays, or (at first, at least, at most), from 1 on"
            )

    def _concurrency(self) -> tuple[int, int, int] | None:
        given: Any = self.concurrency
        return given if given is None or isinstance(given, (tuple, list)) else (given, given, given)  # type: ignore[return-value]

    def check_files(self) -> None:
        """Looks whether the metrics log can be written: the agent, which writes it, could only say so in a log of its own.

        Raises:
            InvalidError: It can't.
        """
        if self.metrics_log is None:
            return
        path = Path(self.metrics_log).expanduser().absolute()
        why = None
        if path.is_dir():
            why = "it is a directory; name a file in it"
        elif path.exists():
            why = None if os.access(path, os.W_OK) else "this user can't write to it"
        elif not path.parent.is_dir():
            why = f"there is no directory {path.parent}; make it first"
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            why = f"this user can't write to {path.parent}"
        if why is not None:
            raise InvalidError(f"Tuning(metrics_log={str(path)!r}): {why}")

    def fields(self) -> dict[str, Any]:
        """What was set, as fields of the agent's `attach` call."""
        concurrency = _plain(self._concurrency())
        log = None if self.metrics_log is None else str(Path(self.metrics_log).expanduser().absolute())
        fields = {
            "concurrency": concurrency and dict(zip(("start", "least", "most"), concurrency, strict=True)),
            "io_threads": _plain(self.io_threads),
            "hedge_per_cent": _plain(self.hedge_per_cent),
            "timeout_s": _plain(self.load_timeout_s),
            "stall_s": _plain(self.stall_s),
            "bucket": self.bucket and dict(zip(("latency_s", "bytes_per_s"), _plain(self.bucket), strict=True)),
            "metrics_log": log,
        }
        return {name: value for name, value in fields.items() if value is not None}


def _is_whole(number: Any) -> bool:
    return isinstance(number, numbers.Integral) and not isinstance(number, bool) and number < 1 << 32


def _is_positive(number: Any) -> bool:
    return isinstance(number, numbers.Real) and not isinstance(number, bool) and 0 < float(number) < math.inf


def _plain(number: Any) -> Any:
    """NumPy's numbers as Python's, which can be written down for the agent."""
    if isinstance(number, (tuple, list)):
        return tuple(map(_plain, number))
    return number if number is None or isinstance(number, (int, float)) else number.item()


def check_tuning(tuning: Tuning | None) -> None:
    """Refuses what is no tuning, and one that can't be followed here.

    Raises:
        InvalidError: It is so.
    """
    if tuning is not None and not isinstance(tuning, Tuning):
        raise InvalidError(f"tuning={tuning!r}: give foreload.Tuning(...)")
    (tuning or Tuning()).check_files()


def check_policy(policy: Any) -> None:
    """Refuses what the engine doesn't run.

    Args:
        policy: What a loader was given as `policy=`.

    Raises:
        InvalidError: There is no such policy outside the simulator.
    """
    if policy is None or (isinstance(policy, str) and policy in _core.RUN_POLICIES):
        return
    deli = policy.get("deli") if isinstance(policy, dict) and len(policy) == 1 else None
    if isinstance(deli, dict) and set(deli) == set(_DELI) and all(_is_whole(n) and n >= 0 for n in deli.values()):
        return
    raise InvalidError(
        f"policy={policy!r}: a loader runs {', '.join(_core.RUN_POLICIES)}, or {{'deli': {{'fetch': F, 'threshold': T, 'cache': C}}}}; others are for the simulator"
    )
