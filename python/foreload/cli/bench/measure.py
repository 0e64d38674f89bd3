"""Drives a loader through epochs and notes when its batches came."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EpochResult:
    """One epoch.

    Attributes:
        samples: Samples that came.
        nbytes: Their bytes.
        seconds: From asking for the first batch to having the last.
        first_batch_s: Of it, until the first batch.
        latencies_s: Time the loop waited, by batch.
    """

    samples: int
    nbytes: int
    seconds: float
    first_batch_s: float
    latencies_s: tuple[float, ...]

    def as_value(self) -> dict[str, Any]:
        """In JSON's types, with the latencies as percentiles."""
        return {
            "samples": self.samples,
            "bytes": self.nbytes,
            "seconds": self.seconds,
            "samples_per_s": self.samples / self.seconds,
            "bytes_per_s": self.nbytes / self.seconds,
            "batches": len(self.latencies_s),
            "first_batch_s": self.first_batch_s,
            "p50_s": percentile(self.latencies_s, 0.5),
            "p99_s": percentile(self.latencies_s, 0.99),
            "stall_s": sum(self.latencies_s),
        }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values doesn't exceed; 0 for none.

    Example:
        >>> percentile([3.0, 1.0, 2.0], 0.5)
        2.0
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else 0.0


def epoch(loader: Iterable[Any], limit: int | None = None, compute_s: float = 0.0) -> EpochResult:
    """One pass over a loader whose batches begin with a list of bytes.

    Args:
        loader: The loader.
        limit: Batches after which to stop.
        compute_s: Seconds to idle after each batch, as training would.

    Returns:
        What was measured.
    """
    samples = nbytes = 0
    latencies: list[float] = []
    begun = time.perf_counter()
    batches = iter(loader)
    while limit is None or len(latencies) < limit:
        asked = time.perf_counter()
        batch = next(batches, None)
        waited = time.perf_counter() - asked
        if batch is None:
            break
        latencies.append(waited)
        samples += len(batch[0])
        nbytes += sum(map(len, batch[0]))
        if compute_s:
            time.sleep(compute_s)
    seconds = time.perf_counter() - begun
    return EpochResult(samples, nbytes, seconds, latencies[0] if latencies else 0.0, tuple(latencies))
