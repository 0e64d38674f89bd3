"""Torch's own loader, made for comparison: `foreload bench --loader torch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader


def stock_loader(
    dataset: Any, batch_size: int, *, seed: int, num_workers: int, collate_fn: Callable[[list[Any]], Any]
) -> DataLoader[Any]:
    """A shuffling loader of torch's, set up as its documentation recommends.

    Args:
        dataset: A map-style data set.
        batch_size: Samples per batch.
        seed: The shuffle's.
        num_workers: Worker processes; they live through all epochs.
        collate_fn: From samples to a batch.

    Returns:
        The loader.
    """
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        num_workers=num_workers,
        collate_fn=collate_fn,
        generator=torch.Generator().manual_seed(seed),
        persistent_workers=num_workers > 0,
    )
