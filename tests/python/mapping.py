"""Files to map, large and small, behind a slow store; and programs that read them."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import lmdb
from bucket import SlowFs

COUNT = 120
#: Within pages of the tree, pages of their own, and many of them.
SIZES = (0, 1, 37, 1800, 2500, 40_000, 196_608)
RECORD = 196_608
SOON = 60


def key(n: int) -> bytes:
    return b"%08d" % n


def value(n: int, version: int = 0) -> bytes:
    return random.Random(n * 1000 + version).randbytes(SIZES[(n + version) % len(SIZES)])


def record(n: int) -> bytes:
    return random.Random(n).randbytes(RECORD)


def write(path: Path, entries: Iterable[tuple[int, bytes]], without: Iterable[int] = ()) -> None:
    """Puts and deletes, in one transaction."""
    with (
        lmdb.open(str(path), subdir=False, map_size=1 << 30, lock=False) as env,
        env.begin(write=True) as transaction,
    ):
        for n in without:
            transaction.delete(key(n))
        for n, data in entries:
            transaction.put(key(n), data)


@contextlib.contextmanager
def slowly(directory: Path, delay_ms: float = 2.0) -> Iterator[SlowFs]:
    """A directory behind a slow store, with nothing of it in memory."""
    target = Path(tempfile.mkdtemp(prefix="fl-slow-"))
    try:
        with SlowFs(directory, target, delay_ms=delay_ms, mb_s=400, options=["--keep-cache"]) as mounted:
            yield mounted
    finally:
        target.rmdir()


def fetched(mounted: SlowFs) -> int:
    """Bytes that the store has read."""
    return int(Path(f"/proc/{mounted.pid}/io").read_text().split("rchar: ")[1].split("\n")[0])


def started(code: str, *words: object, **more: Any) -> subprocess.Popen[str]:
    """A Python program."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def printed(program: subprocess.Popen[str]) -> str:
    """What it has printed at its end."""
    out, errors = program.communicate(timeout=SOON)
    assert program.returncode == 0, errors
    return out


class Mapped:
    """Records as a program has them that maps the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.env: lmdb.Environment | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "env": None}

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, n: int) -> tuple[int, bytes]:
        if self.env is None:
            self.env = lmdb.open(str(self.path), subdir=False, readonly=True, lock=False)
        with self.env.begin() as transaction:
            return n, bytes(transaction.get(key(n)))
