"""MosaicML Streaming over MDS shards made by its writer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from bench.peers import Task, scratch_of

SETTINGS = {
    "batch_size": 64,
    "shuffle": True,
    "shuffle_algo": "py1e",
    "size_limit": "64mb",
}


def convert(task: Task) -> None:
    """Writes shards and uploads them."""
    client = boto3.client("s3", endpoint_url=task.endpoint, region_name=task.region)
    shards = scratch_of(task, "mds")
    keys = task.keys()
    with MDSWriter(out=str(shards), columns={"data": "bytes"}, size_limit="64mb", exist_ok=True) as writer:
        for key in keys:
            writer.write({"data": client.get_object(Bucket="bench", Key=key)["Body"].read()})
    client.create_bucket(Bucket="mds")
    for path in shards.iterdir():
        client.upload_file(str(path), "mds", f"shards/{path.name}")


def collate(rows: list[dict[str, Any]]) -> list[bytes]:
    """A batch as a list of bytes."""
    return [row["data"] for row in rows]


def samples(task: Task) -> Iterator[int]:
    """Each sample's size."""
    # What an earlier process left, as its documentation recommends.
    clean_stale_shared_memory()
    local = scratch_of(task, "local")
    dataset = StreamingDataset(
        remote="s3://mds/shards", local=str(local / "shards"), shuffle=True, batch_size=task.batch
    )
    # It connected to read the index, and workers that are forked would read from that connection in turn: over plain HTTP a shard's answer goes to
    # another worker, and nobody goes on until its time-out of 60 s.
    for stream in dataset.streams:
        stream._downloader.clean_up()
    loader: Any = DataLoader(dataset, batch_size=task.batch, num_workers=task.workers, collate_fn=collate)
    for batch in loader:
        yield from map(len, batch)
