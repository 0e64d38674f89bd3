"""LMDB files that are written through a map: that they were written shows, from when they are opened on.

A file's time tells whether it is the one that was indexed. What is written through a map changes it only with the first change of a page since that was written to
the disk, so that a writer which leaves the disk to the kernel could replace values unseen. Each transaction of LMDB changes one of the first two pages: when these are
written first, the next one shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

#: The first two pages, as long as they may be.
_FIRST_PAGES = 128 << 10
#: What `sync_file_range` is to do.
_WRITE_AND_WAIT = 7
_SUFFIXES = (".mdb", ".lmdb")


def settle(path: str | None, form: str) -> None:
    """Has the next transaction show.

    Args:
        path: Where a data set is that is about to be opened; None: not on this machine.
        form: Its format.
    """
    if path is None or form not in ("lmdb", "auto"):
        return
    # What can't be opened, or has no such call, is another's to tell.
    with contextlib.suppress(OSError, AttributeError):
        for file in _files(Path(path), form):
            _write(file)


def _files(path: Path, form: str) -> Iterator[Path]:
    if path.is_file():
        yield from [path] if form == "lmdb" or path.suffix in _SUFFIXES else []
    elif form == "lmdb":
        yield from (file for file in path.iterdir() if file.suffix in _SUFFIXES)
    elif (path / "data.mdb").is_file():
        yield path / "data.mdb"


def _write(file: Path) -> None:
    import ctypes  # for those who have no such file

    write = ctypes.CDLL(None).sync_file_range
    write.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    with file.open("rb") as opened:
        write(opened.fileno(), 0, _FIRST_PAGES, _WRITE_AND_WAIT)
