"""Sizes as people write them: `"500GB"`, `"1.5 TiB"`, `64 << 20`.

The one parser of the package. GB is 10^9 bytes and GiB is 2^30, as on a disk's label; the unit may be in any case.
"""

from __future__ import annotations

import operator
import re

from foreload.errors import InvalidError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40, "PI": 2**50}
#: An exbibyte: sums of a few still take 64 bits.
_MOST = 1 << 60
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([kmgtp]?i?)b?\s*", re.IGNORECASE)


def parse_bytes(size: int | str, what: str = "a size") -> int:
    """Reads a size.

    Args:
        size: A number of bytes, or a number with a unit.
        what: What the size is of, for the message.

    Returns:
        The number of bytes.

    Raises:
        InvalidError: It is not a size.

    Example:
        >>> parse_bytes("1.5GB"), parse_bytes("64 MiB"), parse_bytes(17)
        (1500000000, 67108864, 17)
    """
    # NumPy's whole numbers are such, too.
    whole = operator.index(size) if hasattr(size, "__index__") and not isinstance(size, bool) else -1
    if 0 <= whole <= _MOST:
        return whole
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    factor = {**_UNITS, **_BINARY}.get(found[2].upper()) if found else None
    if found is None or factor is None:
        raise InvalidError(f"{what}: {size!r} is no size; write a number of bytes, or for example '32GB' or '512MiB'")
    if float(found[1]) * factor > _MOST:
        raise InvalidError(f"{what}: {size!r} is more than any machine holds")
    return int(float(found[1]) * factor) if "." in found[1] else int(found[1]) * factor


def format_bytes(size: float) -> str:
    """Writes a size.

    Example:
        >>> format_bytes(1_500_000_000), format_bytes(17)
        ('1.5 GB', '17 B')
    """
    for unit in ("P", "T", "G", "M", "K"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.3g} {unit}B"
    return f"{size:.0f} B"
