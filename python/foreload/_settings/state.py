"""Whether a dict is a checkpoint at all: whose it is, and where it goes on, is `Run.resume`'s to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foreload.errors import StateError

#: What each state has (`docs/reference/file-formats.md`); the rest is for messages.
_NUMBERS = ("version", "epoch", "position", "global_batch")
_TEXTS = ("order", "sequence")
#: Epochs are 32 bits in the plan, and the one after must be one too.
MOST_EPOCH = (1 << 32) - 2


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
    # Older releases' states don't say where their epoch ended.
    for name in (*_NUMBERS, *("positions",) * ("positions" in state), *more):
        value, most = state[name], MOST_EPOCH if name == "epoch" else (1 << 63) - 1
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise StateError(f"the state is damaged: its {name} is {value!r}, and would be a number from 0")
    for name in _TEXTS:
        if not isinstance(state[name], str):
            raise StateError(f"the state is damaged: its {name} is {state[name]!r}, and would be text")
