"""LitData's StreamingDataset over chunks made by its `optimize`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
from litdata import StreamingDataLoader, StreamingDataset, optimize
from litdata.streaming import downloader

from bench.peers import Task, scratch_of

# It knows no setting for buckets that speak plain HTTP, as the test bucket does.
downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True

SETTINGS = {
    "batch_size": 64,
    "shuffle": True,
    "chunk_bytes": "64MB",
    "max_cache_size": "100GB",
    "batch_decode": "all",
}


def convert(task: Task) -> None:
    """Writes chunks and uploads them."""
    client = boto3.client("s3", endpoint_url=task.endpoint, region_name=task.region)

    def read(key: str) -> bytes:
        data: bytes = client.get_object(Bucket="bench", Key=key)["Body"].read()
        return data

    chunks = scratch_of(task, "chunks")
    optimize(
        read,
        inputs=task.keys(),
        output_dir=str(chunks),
        chunk_bytes="64MB",
        num_workers=1,
        start_method="fork",
        verbose=False,
    )
    client.create_bucket(Bucket="litdata")
    for path in chunks.iterdir():
        client.upload_file(str(path), "litdata", f"chunks/{path.name}")


def as_bytes(batch: list[memoryview]) -> list[bytes]:
    """What a worker can hand over: views can't be pickled."""
    return list(map(bytes, batch))


def samples(task: Task) -> Iterator[int]:
    """Each sample's size."""
    # Endpoint and keys come from the environment.
    cache = scratch_of(task, "cache")
    # A chunk that two workers share is not mapped but read whole for each decode window that a sample falls out of: by default, windows of 152
    # such samples under a shuffle in blocks of 256, hence hundreds of times. There are as many shared chunks as workers, less one.
    dataset = StreamingDataset(
        "s3://litdata/chunks", cache_dir=str(cache), shuffle=True, max_cache_size="100GB", batch_decode="all"
    )
    loader: Any = StreamingDataLoader(dataset, batch_size=task.batch, num_workers=task.workers, collate_fn=as_bytes)
    for batch in loader:
        yield from map(len, batch)
