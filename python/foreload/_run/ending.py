"""Passes that are open when the interpreter ends.

A script that ends with an iterator in a variable leaves it to the interpreter, which takes modules apart before objects: what closes a pass would
find the names gone that it uses. So open passes are closed before that.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import Any

_OPEN: weakref.WeakSet[Any] = weakref.WeakSet()
_registered_in: int | None = None


def close_at_exit(batches: Iterator[Any]) -> None:
    """Closes a pass' batches when the interpreter ends, if somebody still has them then."""
    global _registered_in  # noqa: PLW0603 (once in each process)
    if _registered_in != os.getpid():
        _OPEN.clear()
        atexit.register(_close)
        _registered_in = os.getpid()
    _OPEN.add(batches)


def _close() -> None:
    if _registered_in != os.getpid():
        return
    for batches in list(_OPEN):
        # One that is being read is in another thread's hands.
        with contextlib.suppress(Exception):
            batches.close()
