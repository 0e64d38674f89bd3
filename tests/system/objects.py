"""What the objects of the system tests' bucket hold."""

from __future__ import annotations

import random


def fixed(number: int) -> bytes:
    """What an object of `fixed` holds."""
    return random.Random(number).randbytes(30_000)
