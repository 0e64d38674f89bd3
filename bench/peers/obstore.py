"""obstore: object_store for Python; 64 reads in flight in asyncio."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Any

import obstore
from obstore.store import S3Store

from bench.peers import Task

SETTINGS = {"in flight": 64, "sample": "bytes(await (await get_async(store, key)).bytes_async())"}


def samples(task: Task) -> Iterator[int]:
    """Each sample's size."""
    store: Any = S3Store(
        "bench",
        endpoint=task.endpoint,
        access_key_id=task.access_key,
        secret_access_key=task.secret_key,
        region=task.region,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    sizes: queue.SimpleQueue[list[int] | None] = queue.SimpleQueue()
    keys = iter(task.keys())

    async def reader() -> None:
        for key in keys:
            response = await obstore.get_async(store, key)
            sizes.put([len(bytes(await response.bytes_async()))])

    async def read() -> None:
        await asyncio.gather(*[reader() for _ in range(64)])
        sizes.put(None)

    threading.Thread(target=asyncio.run, args=(read(),), daemon=True).start()
    while (found := sizes.get()) is not None:
        yield from found
