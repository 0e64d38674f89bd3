"""Files that a user asks for: there when they are whole, and otherwise as they were.

A picture or a table is written beside its place and renamed, so that a full disk leaves neither half a file nor the loss of the one before.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path


@contextmanager
def written(path: str | PathLike[str], what: str) -> Iterator[Path]:
    """A place to write a file, which takes the file's name once the block has ended well.

    Args:
        path: The file.
        what: What it will hold, for the message: "the plot".

    Yields:
        A path in the same directory, with the same suffix.

    Raises:
        OSError: It can't be written; of the error's own class, and names the file and what was to be in it.
    """
    # Behind a link, it is the file that is replaced.
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
    try:
        yield beside
        if target.exists():
            beside.chmod(target.stat().st_mode & 0o7777)
        beside.replace(target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"{reason}, while {what} was written", str(path)) from None
    finally:
        # After a rename there is none.
        with contextlib.suppress(OSError):
            beside.unlink()
