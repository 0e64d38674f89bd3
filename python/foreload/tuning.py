"""What can be tuned about how the agent fetches.

`Tuning` is a setting: a plain, frozen value. What isn't set keeps the agent's default, which `docs/reference/settings.md` lists; most of it
adapts to what is measured, so that there is seldom a reason to set it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreload.errors import InvalidError


@dataclass(frozen=True)
class Tuning:
    """How the agent fetches for a loader.

    Attributes:
        concurrency: Requests in flight: a number that stays, or (at first, at least, at most) between which it adapts.
        hedge_per_cent: Twins for each hundred requests, sent where a late one would stall the loop; 0: none.
        load_timeout_s: Longest time of a load, repetitions included, in seconds.
        stall_s: Waits longer than this are reported with their cause, in seconds.
        bucket: (latency in seconds, bytes per second of one request) to assume instead of measuring.
        metrics_log: A file that gets one line of JSON for each second of activity.

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

    def __post_init__(self) -> None:
        start, least, most = self._concurrency() or (1, 1, 1)
        if not 1 <= least <= start <= most:
            raise InvalidError(f"Tuning(concurrency={self.concurrency}): give (at first, at least, at most), from 1 on")
        for name in ("load_timeout_s", "stall_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidError(f"Tuning({name}={value}): give more than 0 seconds")

    def _concurrency(self) -> tuple[int, int, int] | None:
        given = self.concurrency
        return (given, given, given) if isinstance(given, int) else given

    def fields(self) -> dict[str, Any]:
        """What was set, as fields of the agent's `attach` call."""
        concurrency = self._concurrency()
        log = None if self.metrics_log is None else str(Path(self.metrics_log).expanduser().absolute())
        fields = {
            "concurrency": concurrency and dict(zip(("start", "least", "most"), concurrency, strict=True)),
            "hedge_per_cent": self.hedge_per_cent,
            "timeout_s": self.load_timeout_s,
            "stall_s": self.stall_s,
            "bucket": self.bucket and dict(zip(("latency_s", "bytes_per_s"), self.bucket, strict=True)),
            "metrics_log": log,
        }
        return {name: value for name, value in fields.items() if value is not None}
