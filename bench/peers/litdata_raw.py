"""LitData's StreamingRawDataset: unconverted objects, a batch's downloads at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from litdata import StreamingRawDataset
from litdata.streaming import downloader
from torch.utils.data import DataLoader

from bench.peers import Task, scratch_of

# It knows no setting for buckets that speak plain HTTP, as the test bucket does.
downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True

SETTINGS = {
    "num_workers": 8,
    "batch_size": 64,
    "shuffle": True,
    "max_prefetch": 16,
    "sample": "bytes",
    "endpoint and keys": "from the environment",
}


def samples(task: Task) -> Iterator[int]:
    """Each sample's size."""
    dataset = StreamingRawDataset(task.url, cache_dir=str(scratch_of(task, "raw")))
    loader: Any = DataLoader(dataset, batch_size=task.batch, num_workers=8, shuffle=True, collate_fn=list)
    for batch in loader:
        yield from map(len, batch)
