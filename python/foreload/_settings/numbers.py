"""Numbers that a user gives: finite, and in a range that holds anything real.

What goes to the simulator or to a bill is checked here under the name that the user knows, because a number that is none would come back as
a report without numbers.
"""

from __future__ import annotations

import math
import numbers
import operator

from foreload.errors import InvalidError

#: Counts and bytes take 64 bits on the way.
MOST_COUNT = (1 << 64) - 1


def amount(what: str, value: float, least: float = 0.0, most: float = 1e15) -> float:
    """Checks a number.

    Args:
        what: Its name, for the message.
        value: The number.
        least: What it must be at least.
        most: What it may be at most.

    Returns:
        The same.

    Raises:
        InvalidError: It isn't a number, isn't finite, or is outside.

    Example:
        >>> amount("--disk-gb", 375)
        375
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidError(f"{what}: {value!r} is not a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidError(f"{what} must be a finite number, not {value}")
    if not least <= value <= most:
        raise InvalidError(f"{what}: {value} is not between {least:g} and {most:g}")
    return value


def real(what: str, value: float) -> float:
    """As `amount`, but NumPy's numbers are taken too, and become plain ones."""
    is_foreign = isinstance(value, numbers.Real) and not isinstance(value, (int, float))
    return amount(what, float(value) if is_foreign else value)


def count(what: str, value: int, least: int = 0, most: int = MOST_COUNT) -> int:
    """Checks a whole number; otherwise as `amount`."""
    try:
        whole = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = None
    if whole is None:
        raise InvalidError(f"{what}: {value!r} is not a whole number")
    if not least <= whole <= most:
        raise InvalidError(f"{what}: {whole} is not between {least:,} and {most:,}")
    return whole
