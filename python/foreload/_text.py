"""Text files that a user names: what is wrong with one is said with its name.

Scenarios, price sheets and calibrations are read here, so that a missing, empty or binary one gives the same message everywhere.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from foreload.errors import InvalidError, NotFoundError


def read_text(path: str | PathLike[str], what: str) -> str:
    """Reads a text file.

    Args:
        path: Where it is.
        what: What it should hold, for the message: "the scenario".

    Returns:
        The text; never blank.

    Raises:
        NotFoundError: There is no such file.
        InvalidError: It is a directory, empty, or not text.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"{what} {path} doesn't exist") from None
    except IsADirectoryError:
        raise InvalidError(f"{what} {path} is a directory; name a file") from None
    except UnicodeDecodeError as error:
        raise InvalidError(f"{what} {path} isn't text: byte {error.start} is no UTF-8") from None
    if not text.strip():
        raise InvalidError(f"{what} {path} is empty")
    return text
