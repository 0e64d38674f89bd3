"""Torchvision's folders in a mount: their loader knows which files come next, and the mount is told.

What a data set reads for a sample is its own affair. Of `torchvision.datasets.ImageFolder` and others that are made of it, it is known: the file that `samples` has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.utils.data import Subset

from foreload import mount


def followed(dataset: Any, order: Any, had: int) -> Any:
    """A loader's sampler or batch sampler; where the data set's files lie in a mount, one that tells it which come next.

    Args:
        dataset: The data set.
        order: The sampler.
        had: How often it was asked before the pass goes on.
    """
    paths = _paths(dataset)
    return order if paths is None else mount.follow(order, paths, had=had)


def _paths(dataset: Any) -> Callable[[Any], str] | None:
    """The file that is read for a sample, if that is known."""
    if type(dataset) is Subset:
        indices, below = dataset.indices, _paths(dataset.dataset)
        return None if below is None else lambda sample: below(indices[sample])
    folder: Any = getattr(sys.modules.get("torchvision.datasets"), "DatasetFolder", None)
    if folder is None or getattr(type(dataset), "__getitem__", None) is not folder.__getitem__:
        return None
    return lambda sample: str(dataset.samples[sample][0])
