"""A TCP relay: `relay.py ADDRESS PORT TARGET_PORT` listens there and passes bytes on to a server on loopback.

The test bucket listens on loopback only; this carries it to an address that a link leads to. It ends when its stdin is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _main(address: str, port: int, target: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(_pass(reader, inner_writer), _pass(inner_reader, writer))

    await asyncio.start_server(serve, address, port, backlog=256)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    # Connections that hang are not waited for.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
