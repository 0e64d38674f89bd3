"""Amazon's connector: its map-style data set under the stock DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from s3torchconnector import S3ClientConfig, S3MapDataset
from torch.utils.data import DataLoader

from bench.peers import Task

SETTINGS = {
    "num_workers": 8,
    "batch_size": 64,
    "shuffle": True,
    "data set": "S3MapDataset.from_prefix, sequential reader",
    "sample": "bytes",
}


def read(reader: Any) -> bytes:
    """A sample's bytes."""
    data: bytes = reader.read()
    return data


def samples(task: Task) -> Iterator[int]:
    """Each sample's size."""
    config = S3ClientConfig(force_path_style=True)
    dataset = S3MapDataset.from_prefix(
        task.url, region=task.region, endpoint=task.endpoint, transform=read, s3client_config=config
    )
    loader: Any = DataLoader(dataset, batch_size=task.batch, num_workers=8, shuffle=True, collate_fn=list)
    for batch in loader:
        yield from map(len, batch)
