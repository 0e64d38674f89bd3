"""The environment variables that the package reads, all of them.

`FORELOAD_RAM`, `FORELOAD_DISK` (default budgets, as `Cache` takes them), `FORELOAD_SECRET`, `FORELOAD_SECRET_FILE`, `FORELOAD_HOST`, `FORELOAD_MEET` (as `Peers`
takes them), `FORELOAD_CACHE_DIR` (where indexes and logs go); those of torchrun (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `TORCHELASTIC_RUN_ID`, `MASTER_ADDR`, `MASTER_PORT`) and of other launchers
(`_launcher`); and those of the clouds that name endpoints and credentials. The clouds' are read here and not by the agent alone, because an agent that still runs
was started with the variables of an earlier shell.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from foreload import _core
from foreload.errors import InvalidError

#: The clouds' variables begin with these; which of them are options, and under what names, the store knows.
_CLOUDS = ("AWS_", "GOOGLE_", "AZURE_", "SSL_CERT_FILE")


def get(name: str) -> str | None:
    """A variable, if it is set to something."""
    return os.environ.get(name) or None


def number(name: str) -> int | None:
    """A variable that holds a number."""
    text = get(name)
    return int(text) if text is not None and text.isdigit() else None


def as_text(options: Mapping[str, Any]) -> dict[str, str]:
    """Options as the agent takes them; what is None isn't given."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }


def storage_options(url: str, given: Mapping[str, str]) -> dict[str, str]:
    """Adds what the environment says about a store to the options that were given, which win.

    Args:
        url: The data set's URL.
        given: Options of the caller.

    Returns:
        All of them, under one name each.

    Raises:
        InvalidError: Nobody knows an option, or half a pair of keys is given.
    """
    variables = {name: value for name, value in os.environ.items() if name.startswith(_CLOUDS) and value.isprintable()}
    return canonical(url, given, variables)


def canonical(url: str, given: Mapping[str, str], variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Options for a store under one name each, with what variables add.

    Raises:
        InvalidError: Nobody knows an option, or half a pair of keys is given.
    """
    try:
        return _core.storage_options(url, dict(given), dict(variables or {}))
    except ValueError as error:
        raise InvalidError(str(error)) from None
