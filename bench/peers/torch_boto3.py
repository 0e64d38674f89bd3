"""The stock DataLoader over boto3: what most people write first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
from torch.utils.data import DataLoader

from bench.peers import Task

SETTINGS = {"num_workers": 8, "batch_size": 64, "client": "one boto3 client a worker", "sample": "bytes"}


class Objects:
    """Objects, each read when it is asked for."""

    def __init__(self, task: Task) -> None:
        self.task, self.keys, self.client = task, task.keys(), None  # type: Task, list[str], Any

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> bytes:
        if self.client is None:
            self.client = boto3.client("s3", endpoint_url=self.task.endpoint, region_name=self.task.region)
        data: bytes = self.client.get_object(Bucket="bench", Key=self.keys[index])["Body"].read()
        return data


def samples(task: Task) -> Iterator[int]:
    """Each sample's size."""
    loader: Any = DataLoader(Objects(task), batch_size=task.batch, num_workers=8, collate_fn=list)  # type: ignore[arg-type]
    for batch in loader:
        yield from map(len, batch)
