"""A bucket that is mounted, and what another client sees in it."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bucket import Bucket

from foreload._mount import program
from foreload._mount.options import Options

MIB = 1 << 20
#: The least that stores take.
PART = 5 * MIB


@contextmanager
def mounted(home: Any, store: Bucket, url: str = "s3://bench", **fields: Any) -> Iterator[Path]:
    """The bucket, mounted until the end."""
    target = home.cache_dir / fields.pop("at", "mounted")
    target.mkdir(parents=True, exist_ok=True)
    given = {"endpoint_url": store.environment()["AWS_ENDPOINT_URL"]}
    keys = store.boto3()
    given.update(access_key_id=keys["aws_access_key_id"], secret_access_key=keys["aws_secret_access_key"])
    settings = Options(**{"ram": "256MB", **fields}).settings(url, given, str(home.cache_dir))
    pid = program.start(str(target), settings, home.cache_dir / "mount.log")
    try:
        yield target
    finally:
        ended = program.ended(pid)
        subprocess.run(["umount", "-l", str(target)], check=False, capture_output=True)
        assert ended, "it doesn't end"
        assert not program.is_mounted(str(target))


def writable(home: Any, store: Bucket, **fields: Any) -> Any:
    """The same, to be written to, in parts as small as stores take."""
    return mounted(home, store, **{"allow_write": True, "part": "5MiB", **fields})


def content(size: int, seed: int = 0) -> bytes:
    """Bytes that another seed doesn't give."""
    return random.Random(seed).randbytes(size)


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether it does in time."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@contextmanager
def small_objects() -> Iterator[Bucket]:
    """A bucket with five objects in `bench/small`."""
    with Bucket(profile="fast", synthetic=["unused:1x1"]) as running:
        for nth in range(5):
            put(running, f"small/{nth}", content(1100, nth))
        yield running


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def objects(store: Bucket) -> dict[str, bytes]:
    """What the bucket has, as another client reads it."""
    import boto3

    client = boto3.client("s3", **store.boto3())
    found = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="bench"):
        for each in page.get("Contents", []):
            found[each["Key"]] = client.get_object(Bucket="bench", Key=each["Key"])["Body"].read()
    return found


def put(store: Bucket, key: str, body: bytes) -> None:
    import boto3

    boto3.client("s3", **store.boto3()).put_object(Bucket="bench", Key=key, Body=body)


def drop(store: Bucket, key: str) -> None:
    import boto3

    boto3.client("s3", **store.boto3()).delete_object(Bucket="bench", Key=key)


def fails_with(attempt: Callable[[], Any]) -> int | None:
    """The number of the error that it ends with."""
    try:
        attempt()
    except OSError as error:
        return error.errno
    return None


def stats(target: Path) -> dict[str, int]:
    """What the mount says of itself."""
    found: dict[str, int] = json.loads((target / ".foreload" / "stats").read_text())
    return found


def requests(store: Bucket) -> dict[str, int]:
    return {"get": 0, **store.counters()["requests"]}


def agent_of(home: Any) -> int:
    found = [
        int(each.name)
        for each in Path("/proc").iterdir()
        if each.name.isdigit()
        and _command(each)[:2] == ["foreload-agent", "serve"]
        and str(home.cache_dir) in _command(each)
    ]
    assert len(found) == 1
    return found[0]


def _command(process: Path) -> list[str]:
    try:
        words = (process / "cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []
    return [Path(words[0]).name, *words[1:]]
