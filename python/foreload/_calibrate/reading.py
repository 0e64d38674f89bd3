"""How a measurement reads: a run of its own over a data set, with memory that nothing stays in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from foreload._data.dataset import Dataset
from foreload._node import ranks as _ranks
from foreload._run.failed import Failed
from foreload._run.run import Run
from foreload._run.stream import Stream
from foreload._settings.cache import Cache
from foreload._settings.order import Order

if TYPE_CHECKING:
    pass


MB = 1 << 20
#: A batch of large samples; small ones are handed over a fourth of the requests at a time.
BATCH = 8 << 20


def pass_through(nbytes: int) -> Cache:
    """Memory in which everything passes and nothing stays."""
    ram = max(16 << 20, nbytes + max(nbytes // 4, 1 << 20))
    return Cache(ram=ram, batches=ram - nbytes, staging=nbytes)


def run_over(
    dataset: Dataset, batch: int, cache: Cache, epochs: int | None = None, settings: dict[str, Any] | None = None
) -> Run:
    order = Order(dataset.digest, len(dataset), "keyed", 1, batch, "uneven")
    return Run(dataset, order, _ranks.find(0, 1), cache, uneven=True, epochs=epochs, settings=settings)


def epoch_of(run: Run, epoch: int) -> Iterator[list[tuple[int, str]]]:
    """Length and origin of each batch's samples, their bytes taken over as a loop does."""
    for _, delivery in Stream(run, epoch, 0):
        if isinstance(delivery, Failed):
            delivery.fail()
        yield [(len(bytes(view)), view.via) for view in delivery.views()]


def forever(run: Run) -> Iterator[list[tuple[int, str]]]:
    epoch = 0
    while True:
        yield from epoch_of(run, epoch)
        epoch += 1


def rounded(value: float) -> float:
    """Three digits are more than such a measurement has."""
    return float(f"{value:.4g}")
