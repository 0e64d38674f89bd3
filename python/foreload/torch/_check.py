"""What a loader's arguments must be together, looked at before anything is made of them.

Torch's constructor would refuse some of it in words of its own machinery; and what nothing would come of, because another argument decides
it, is refused too: a keyword that is ignored trains on something else than it says.
"""

from __future__ import annotations

from typing import Any

from foreload._order import check_shuffle
from foreload.errors import InvalidError
from foreload.torch._batch import FORMS
from foreload.torch.dataset import Dataset

#: What a `foreload.torch.Dataset` decides, and what it is where nobody says.
_OF_DATASETS = {"decode": None, "transform": None, "raw": "bytes", "cache": None, "on_error": "raise"}


def data_keywords(dataset: Any, num_workers: int, **given: Any) -> None:
    """Looks at what concerns the data.

    Args:
        dataset: What the loader is given to read.
        num_workers: Worker processes.
        given: The keywords that a `foreload.torch.Dataset` takes too.

    Raises:
        InvalidError: One can't be obeyed.
    """
    if not isinstance(num_workers, int) or num_workers < 0:
        raise InvalidError(f"num_workers={num_workers!r}: give 0 (threads of this process decode) or more")
    if given["raw"] not in FORMS:
        raise InvalidError(f"raw={given['raw']!r}: give one of {', '.join(FORMS)}")
    if not isinstance(dataset, Dataset):
        return
    # The same again is what frameworks give that make a loader anew from its attributes.
    ignored = [
        name for name, default in _OF_DATASETS.items() if given[name] != default and given[name] != dataset.given[name]
    ]
    if ignored:
        raise InvalidError(
            f"DataLoader: {', '.join(f'{name}=' for name in ignored)} would be ignored, since the data set is a "
            f"{type(dataset).__name__} and decides that itself; give it to the Dataset (or to wrap), or give the loader what foreload.open answered"
        )


def order_keywords(
    order: str, batch_size: int | None, shuffle: bool, sampler: Any, batch_sampler: Any, drop_last: bool
) -> None:
    """Looks at what concerns the order.

    Raises:
        InvalidError: Two arguments exclude each other.
    """
    if shuffle and (sampler is not None or batch_sampler is not None):
        raise InvalidError("shuffle=True and a sampler exclude each other: the sampler is the order")
    if batch_sampler is not None and (batch_size not in (None, 1) or sampler is not None or drop_last):
        raise InvalidError(
            "batch_sampler and batch_size, sampler or drop_last exclude each other: the batch sampler says which samples each batch has"
        )
    if sampler is None and batch_sampler is None:
        check_shuffle(order, shuffle)
