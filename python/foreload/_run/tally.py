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

    def as_dict(self) -> dict[str, Any]:
        """For `stats()`."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}
