"""WebDataset over tar shards, shuffled as far as its buffer goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import webdataset

from bench.peers import Task

SETTINGS = {
    "batch_size": 64,
    "shuffle": "shards, and a buffer of 1000 samples",
    "source": "pipe:curl, as its documentation does",
    "conversion": "none: the shards are there",
}


def samples(task: Task) -> Iterator[int]:
    """Each sample's size."""
    prefix, count = task.shards
    urls = [f"pipe:curl -s -L {task.endpoint}/bench/{prefix}/{number:08}.tar" for number in range(count)]
    dataset = (
        webdataset.WebDataset(urls, shardshuffle=count, seed=task.seed)
        .shuffle(1000, seed=task.seed)
        .to_tuple("bin")
        .batched(task.batch, collation_fn=list)
    )
    loader: Any = webdataset.WebLoader(dataset, batch_size=None, num_workers=task.workers)
    for batch in loader:
        for (data,) in batch:
            yield len(data)
