"""How an epoch of a run went: batches, samples, and what the loop waited."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class EpochTally:
    """How one epoch went, on this rank.

    Attributes:
        epoch: The epoch.
        batches: Batches handed to the loop.
        samples: Samples in them.
        stall_s: Time the loop waited for them.
        first_batch_s: Of it, for the first.
        wall_s: From the first request to the last batch.
    """

    epoch: int
    batches: int = 0
    samples: int = 0
    stall_s: float = 0.0
    first_batch_s: float = 0.0
    wall_s: float = 0.0
    _begun: float = field(default_factory=time.perf_counter, repr=False)
    _is_over: bool = field(default=False, repr=False)

    def yielded(self, samples: int, waited_s: float) -> None:
        """Counts a batch that goes to the loop."""
        now = time.perf_counter()
        if not self.batches:
            self.first_batch_s = waited_s
            # The loop waits from before the epoch is known.
            self._begun = min(self._begun, now - waited_s)
        self.batches += 1
        self.samples += samples
        self.stall_s += waited_s
        self.wall_s = now - self._begun

    def ended(self) -> bool:
        """Notes that the epoch was read to its end; False: that is known."""
        was_over, self._is_over = self._is_over, True
        return not was_over

    @property
    def au(self) -> float | None:
        """Accelerator utilisation: the loop's own time between batches, as a share of all time but the wait for the first batch.

        As MLPerf Storage defines it (rules, section "AU"): compute time over the time that the steps took, the first step's input excluded. What the loop does
        after the last batch belongs to no step between batches. None with fewer than two batches.
        """
        steps_s = self.wall_s - self.first_batch_s
        return (self.wall_s - self.stall_s) / steps_s if self.batches > 1 and steps_s > 0 else None

    def as_dict(self) -> dict[str, Any]:
        """For `stats()`."""
        counted = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        share = self.stall_s / self.wall_s if self.wall_s > 0 else None
        return {**counted, "stall_share": share, "au": self.au}
