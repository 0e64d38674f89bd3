"""Whether a dict is a checkpoint at all: whose it is, and where it goes on, is `Run.resume`'s to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foreload.errors import StateError

#: What each state has (`docs/reference/file-formats.md`); the rest is for messages.
_NUMBERS = ("version", "epoch", "position", "global_batch")
_TEXTS = ("order", "sequence")


def check_state(state: Any, *more: str) -> None:
    """Refuses what no loader's `state_dict()` answers.

    Args:
        state: What was given as a state.
        more: Further numbers that it must have.

    Raises:
        StateError: Something is missing, or isn't what it should be.
    """
    if not isinstance(state, Mapping) or "sequence" not in state:
        raise StateError("not the state of a foreload loader; give what its state_dict() answered")
    missing = [name for name in (*_NUMBERS, *_TEXTS, *more) if name not in state]
    if missing:
        raise StateError(f"the state has no {', '.join(missing)}; give the whole of what state_dict() answered")
    for name in (*_NUMBERS, *more):
        value = state[name]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            raise StateError(f"the state is damaged: its {name} is {value!r}, and would be a number from 0")
    for name in _TEXTS:
        if not isinstance(state[name], str):
            raise StateError(f"the state is damaged: its {name} is {state[name]!r}, and would be text")
