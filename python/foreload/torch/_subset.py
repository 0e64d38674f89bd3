"""Which data sets are ours, among them subsets and concatenations of torch's.

Torch's `Subset`, `random_split` and `ConcatDataset` say which samples of a data set they have, in which order. Where all are of one and the same data
set of ours, that is a data set of ours, too, and is read as planned. A class of the user's that derives from them may do anything with the items, and is
none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils import data

from foreload._data import dataset as _dataset
from foreload._data.mixture import Mixture
from foreload.torch.dataset import Dataset


def ours(dataset: Any) -> _dataset.Dataset | Dataset[Any] | None:
    """The data set of ours that this is; None: it is none."""
    found = _found(dataset)
    if found is None:
        return None
    whole, samples = found
    if samples is None:
        return whole
    if not len(samples) or isinstance(getattr(whole, "data", whole), Mixture):
        return None
    return whole.chosen(samples) if isinstance(whole, Dataset) else whole.select(samples)


def samples_in(dataset: Any) -> NDArray[np.int64] | None:
    """Which samples of a data set of ours torch's subset or concatenation has at the moment; None: it is neither, or has others, too."""
    found = None if isinstance(dataset, (Dataset, _dataset.Dataset)) else _found(dataset)
    return None if found is None else found[1]


def change_in(dataset: Any, samples: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    """Which samples torch's subset or concatenation has now that had these; None: the same, or it wasn't one.

    Args:
        dataset: The subset.
        samples: What `samples_in` said of it.
    """
    if samples is None:
        return None
    now = samples_in(dataset)
    now = np.empty(0, np.int64) if now is None else now
    return None if np.array_equal(now, samples) else now


def _found(dataset: Any) -> tuple[_dataset.Dataset | Dataset[Any], NDArray[np.int64] | None] | None:
    """A data set of ours and the samples of it that this one has; None for the samples: all."""
    if isinstance(dataset, (Dataset, _dataset.Dataset)):
        return dataset, None
    if type(dataset) is data.Subset:
        found, chosen = _found(dataset.dataset), _numbers(dataset.indices)
        return None if found is None or chosen is None else _of(found, chosen)
    if type(dataset) is data.ConcatDataset:
        parts = [_found(part) for part in dataset.datasets]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or any(whole is not known[0][0] for whole, _ in known):
            return None
        return known[0][0], np.concatenate([_all(whole) if samples is None else samples for whole, samples in known])
    return None


def _of(
    found: tuple[_dataset.Dataset | Dataset[Any], NDArray[np.int64] | None], chosen: NDArray[np.int64]
) -> tuple[_dataset.Dataset | Dataset[Any], NDArray[np.int64]] | None:
    whole, samples = found
    count = len(whole) if samples is None else len(samples)
    if len(chosen) and not -count <= chosen.min() <= chosen.max() < count:
        # Torch says so when such a sample is read.
        return None
    chosen = np.where(chosen < 0, chosen + count, chosen)
    return whole, chosen if samples is None else samples[chosen]


def _all(whole: _dataset.Dataset | Dataset[Any]) -> NDArray[np.int64]:
    return np.arange(len(whole), dtype=np.int64)


def _numbers(indices: Any) -> NDArray[np.int64] | None:
    try:
        found = np.asarray(indices)
    except (TypeError, ValueError):
        return None
    if not found.size:
        return np.empty(0, np.int64)
    is_list = found.ndim == 1 and np.issubdtype(found.dtype, np.integer)
    return found.astype(np.int64) if is_list else None
