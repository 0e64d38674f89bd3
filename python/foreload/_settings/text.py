"""Text files that a user names: what is wrong with one is said with its name.

Scenarios, price sheets and calibrations are read here, so that a missing, empty or binary one gives the same message everywhere.
"""

from __future__ import annotations

import stat
from os import PathLike
from pathlib import Path

from foreload.errors import InvalidError, NotFoundError

#: Scenarios and sheets have kilobytes; a curve with a point for each of 65,534 nodes has two megabytes.
_MOST_BYTES = 16 << 20


def read_text(path: str | PathLike[str], what: str) -> str:
    """Reads a text file.

    Args:
        path: Where it is.
        what: What it should hold, for the message: "the scenario".

    Returns:
        The text; never blank.

    Raises:
        NotFoundError: There is no such file.
        InvalidError: It is no regular file, more than 16 MiB, empty, or not text.
    """
    file = Path(path)
    try:
        mode = file.stat().st_mode
        # A device may never end, and a pipe may never begin.
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise InvalidError(f"{what} {path} is no regular file; name one, or save what it gives")
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise InvalidError(f"{what} {path} has more than {_MOST_BYTES >> 20} MiB, so it is something else")
        text = content.decode("utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"{what} {path} doesn't exist") from None
    except IsADirectoryError:
        raise InvalidError(f"{what} {path} is a directory; name a file") from None
    except UnicodeDecodeError as error:
        raise InvalidError(f"{what} {path} isn't text: byte {error.start} is no UTF-8") from None
    if not text.strip():
        raise InvalidError(f"{what} {path} is empty")
    return text
