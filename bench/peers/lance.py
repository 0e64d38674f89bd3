"""LanceDB's StreamingDataset over a table made by its writer.

It has threads where others have workers: each split fetches by itself, so that `task.workers` is the number of splits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import lancedb
import pyarrow as pa
from lancedb.streaming import StreamingDataLoader, StreamingDataset

from bench.peers import Task

#: Rows that the writer is given at once.
ROWS = 250
SCHEMA = pa.schema([pa.field("data", pa.binary())])
SETTINGS = {
    "num_workers": 0,
    "num_splits": "as many as workers of others",
    "read_batch_size": 64,
    "io_queue_depth": 4,
    "batch_size": 64,
    "shuffle": True,
}


def database(task: Task) -> Any:
    """A connection to the bucket of tables."""
    options = {
        "endpoint": task.endpoint,
        "allow_http": "true",
        "aws_access_key_id": task.access_key,
        "aws_secret_access_key": task.secret_key,
        "region": task.region,
    }
    return lancedb.connect("s3://lance/tables", storage_options=options)


def convert(task: Task) -> None:
    """Writes a table of one binary column into the bucket."""
    client = boto3.client("s3", endpoint_url=task.endpoint, region_name=task.region)
    client.create_bucket(Bucket="lance")
    keys = task.keys()

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, len(keys), ROWS):
            rows = [client.get_object(Bucket="bench", Key=key)["Body"].read() for key in keys[first : first + ROWS]]
            yield pa.record_batch([pa.array(rows, pa.binary())], schema=SCHEMA)

    database(task).create_table("samples", batches(), schema=SCHEMA)


def sizes(rows: pa.RecordBatch) -> list[int]:
    """Each row's size, once its bytes are Python's."""
    return list(map(len, rows["data"].to_pylist()))


def samples(task: Task) -> Iterator[int]:
    """Each sample's size."""
    table = database(task).open_table("samples")
    dataset = StreamingDataset(
        table, num_splits=task.workers, shuffle=True, shuffle_seed=task.seed, read_batch_size=64, transform=sizes
    )
    loader: Any = StreamingDataLoader(dataset, batch_size=task.batch, collate_fn=list)
    for batch in loader:
        yield from batch
