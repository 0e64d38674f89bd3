"""Figures: what is claimed, the bar that machine and reader can check, what was measured, and the verdict.

A `Figure` names its bars before anything runs, so that a bar without a reading is `not measured`, never passed. A `Result` holds readings
(one value for each repetition; the median counts), the settings they were taken with, and whatever raw numbers explain them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.stage import Stage

PASS, FAIL, UNMEASURED = "pass", "fail", "not measured"


@dataclass(frozen=True)
class Bar:
    """Bounds of a reading, both included.

    Attributes:
        least: The median must not be below.
        most: It must not be above.
    """

    least: float | None = None
    most: float | None = None

    def met(self, value: float) -> bool:
        """Whether a value is within."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        bounds = [
            f">= {self.least:g}" if self.least is not None else "",
            f"<= {self.most:g}" if self.most is not None else "",
        ]
        return " ".join(bound for bound in bounds if bound)


@dataclass(frozen=True)
class Reading:
    """One quantity, measured several times.

    Attributes:
        name: What it is; a bar of the same name applies to it.
        values: One for each repetition, in order.
        unit: Its unit; a ratio has none.
    """

    name: str
    values: list[float]
    unit: str = ""

    @property
    def median(self) -> float:
        """What is compared with the bar."""
        return statistics.median(self.values)

    def as_dict(self) -> dict[str, Any]:
        """For the results file."""
        spread = {"median": self.median, "min": min(self.values), "max": max(self.values)} if self.values else {}
        return {"name": self.name, "unit": self.unit, **spread, "values": self.values}


@dataclass
class Result:
    """What a measurement brought.

    Attributes:
        readings: The quantities, those with a bar and those beside them.
        settings: What was compared with what, in words and numbers.
        raw: Everything else that was recorded.
        notes: What a reader must know.
        invalid: Why the run doesn't count, if it doesn't.
        is_broken: Whether it ended with an error.
        load_before: Processes that wanted a CPU in the minute before.
        fresh_gb_s: How fast a core could write to memory that was new, just before; it may have been new to the host, too.
        touched_gb: Memory that was touched before each run of a client.
        repetitions: How often what is compared was run in turn; a reading says how many values it has.
    """

    readings: list[Reading] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    invalid: str | None = None
    is_broken: bool = False
    load_before: float = 0.0
    fresh_gb_s: float = 0.0
    touched_gb: float = 0.0
    repetitions: int = 0

    def read(self, name: str, *values: float, unit: str = "") -> None:
        """Adds a reading."""
        self.readings.append(Reading(name, list(values), unit))


@dataclass(frozen=True)
class Figure:
    """A claim and how it is measured.

    Attributes:
        id: Its short name, for `ONLY=`.
        claim: What is claimed, in a sentence.
        bars: By the names of readings.
        measure: Measures it.
    """

    id: str
    claim: str
    bars: dict[str, Bar]
    measure: Callable[[Stage], Result]

    @property
    def command(self) -> str:
        """How to measure it again."""
        return f"make figures ONLY={self.id}"


def verdicts(figure: Figure, result: Result) -> dict[str, str]:
    """The verdict on each bar of a figure."""
    medians = {reading.name: reading.median for reading in result.readings if reading.values}
    found = {}
    for name, bar in figure.bars.items():
        if result.invalid is not None or name not in medians:
            found[name] = UNMEASURED
        else:
            found[name] = PASS if bar.met(medians[name]) else FAIL
    return found


def verdict(figure: Figure, result: Result) -> str:
    """The verdict on a figure: it fails with any bar, and passes only with all of them."""
    found = set(verdicts(figure, result).values())
    return FAIL if FAIL in found else UNMEASURED if UNMEASURED in found or not found else PASS
