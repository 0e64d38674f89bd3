"""Values as TOML writes them: for calibration files, and for overrides of scenarios."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def inline(value: object) -> str:
    """A value in one line.

    Example:
        >>> inline({1: 66.0, "a key": [True, "x"]})
        '{ 1 = 66.0, "a key" = [true, "x"] }'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's strings are TOML's, but for one character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(str(key))} = {inline(each)}" for key, each in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(inline, value)) + "]"
    return str(value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else inline(name)
