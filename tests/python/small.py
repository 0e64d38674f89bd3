"""The small data set of the Python tests, waiting, and whether a process lives."""

from __future__ import annotations

import io
import random
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CLASSES = ("cat", "dog", "eel")
COUNT = 203


def content(number: int) -> bytes:
    """The bytes of a sample: of any length from nothing on, each different."""
    length = random.Random(number).choice([0, 1, 37, 1000, 4096, 20_000, 70_001])
    return random.Random(number + 10_000).randbytes(length) if number % 17 else b""


def number_of(key: str) -> int:
    """The number in an object's key."""
    return int(Path(key).stem)


def tar_shard(path: Path, members: Mapping[str, bytes]) -> None:
    """Writes a tar shard of these members, in this order."""
    with tarfile.open(path, "w") as archive:
        for name, body in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))


def lives(process: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def until(true: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """Waits for a condition; its value."""
    end = time.monotonic() + timeout_s
    while not (value := true()):
        assert time.monotonic() < end, f"not within {timeout_s} s"
        time.sleep(0.01)
    return value
