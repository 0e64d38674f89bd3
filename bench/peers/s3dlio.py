"""s3dlio, MLPerf Storage's client: its iterable data set, the reading done by its own threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from s3dlio.torch import ObjectStoreIterableDataset
from torch.utils.data import DataLoader

from bench.peers import Task

SETTINGS = {"torch's num_workers": 0, "its num_workers": 64, "prefetch": 64, "shuffle": True, "return_type": "bytes"}


def samples(task: Task) -> Iterator[int]:
    """Each sample's size."""
    dataset = ObjectStoreIterableDataset.from_prefix(
        task.url, batch_size=64, prefetch=64, num_workers=64, shuffle=True, seed=task.seed, return_type="bytes"
    )
    loader: Any = DataLoader(dataset, batch_size=task.batch, num_workers=0, collate_fn=list)
    for batch in loader:
        yield from map(len, batch)
