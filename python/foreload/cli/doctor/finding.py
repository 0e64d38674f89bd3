"""What a check found: its name, how bad it is, the facts, and what helps."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: What was looked at.
        level: `ok`; `note`: worth knowing; `warn`: slower or riskier than need be; `fail`: it won't work.
        detail: The facts.
        remedy: What to do, where something is to be done.
    """

    name: str
    level: Level
    detail: str
    remedy: str = ""


def guarded(name: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Runs a check; one that breaks is a finding as well, so that the others are still reported."""
    try:
        yield from check()
    except Exception as error:  # noqa: BLE001 (whatever a machine does to a check belongs into the report)
        yield Finding(name, "warn", f"this check itself failed: {type(error).__name__}: {error}", "report it, please")
