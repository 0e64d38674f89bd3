"""What a batch carries through a worker process besides itself.

Torch hands batches over without saying which they are, and with `in_order=False` they come as they are finished. So a worker wraps each in a
`Numbered`, and the parent counts what the loop has had by these numbers. The loader puts `Collate` before the user's collate function
in the workers only; nobody else sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory as _pin

from foreload._run import LEFT_OUT


class Numbered:
    """A batch and its number in the epoch.

    Args:
        number: The number.
        batch: The batch.
    """

    __slots__ = ("batch", "number")

    def __init__(self, number: int, batch: Any) -> None:
        self.number, self.batch = number, batch

    def pin_memory(self, device: Any = None) -> Numbered:
        """What torch's pinning thread calls."""
        return Numbered(self.number, _pin(self.batch, device))  # type: ignore[no-untyped-call] # torch's

    def opened(self) -> tuple[int, Any]:
        """Both; this object lets go of the batch."""
        batch, self.batch = self.batch, None
        return self.number, batch


class Collate:
    """A collate function whose batches are numbered.

    Args:
        collate: The loader's collate function.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Numbered:
        worker: Any = get_worker_info()
        dataset = worker.dataset
        nothing = samples is LEFT_OUT or (dataset.failures.skips and isinstance(samples, list) and not samples)
        # The number of the turn that the data set has just read.
        return Numbered(dataset.turn, LEFT_OUT if nothing else self._collate(samples))
