"""LitData's StreamingRawDataset: unconverted objects, a batch's downloads at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from litdata import StreamingRawDataset
from torch.utils.data import DataLoader

from bench.peers import Task, scratch_of

SETTINGS = {"num_workers": 8, "batch_size": 64, "shuffle": True, "max_prefetch": 16, "sample": "bytes"}


def storage_options(task: Task) -> dict[str, Any]:
    """As LitData takes them."""
    return {
        "key": task.access_key,
        "secret": task.secret_key,
        "client_kwargs": {"endpoint_url": task.endpoint, "region_name": task.region},
    }


def samples(task: Task) -> Iterator[int]:
    """Each sample's size."""
    dataset = StreamingRawDataset(
        task.url, cache_dir=str(scratch_of(task, "raw")), storage_options=storage_options(task)
    )
    loader: Any = DataLoader(dataset, batch_size=task.batch, num_workers=8, shuffle=True, collate_fn=list)
    for batch in loader:
        yield from map(len, batch)
