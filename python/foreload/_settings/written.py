"""Files that a user asks for: there when they are whole, and otherwise as they were.

A picture or a table is written beside its place and renamed, so that a full disk leaves neither half a file nor the loss of the one before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path


@contextmanager
def beside(path: str | PathLike[str]) -> Iterator[Path]:
    """A place to write a file, which takes the file's name once the block has ended well.

    A pipe, a device, and a file in a closed directory are that place themselves.

    Args:
        path: The file.

    Yields:
        A path in the same directory, with the same suffix.

    Raises:
        OSError: The file can't be replaced.
    """
    # Behind a link, it is the file that is replaced; what /dev/stdout leads to may have no name.
    asked, target = Path(path), Path(os.path.realpath(path))
    if (asked.exists() and not asked.is_file()) or not os.access(target.parent, os.W_OK):
        yield asked
        return
    scratch = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
    try:
        yield scratch
        if target.exists():
            shutil.copymode(target, scratch)
        scratch.replace(target)
    finally:
        # After a rename there is none.
        with contextlib.suppress(OSError):
            scratch.unlink()


@contextmanager
def written(path: str | PathLike[str], what: str) -> Iterator[Path]:
    """As `beside`, with errors for people.

    Args:
        path: The file.
        what: What it will hold, for the message: "the plot".

    Yields:
        Where to write it.

    Raises:
        OSError: It can't be written; of the error's own class, and names the file and what was to be in it.
    """
    try:
        with beside(path) as place:
            yield place
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"{reason}, while {what} was written", str(path)) from None
