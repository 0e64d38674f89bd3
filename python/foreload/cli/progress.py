"""How far a verb is, on standard error: a bar on a terminal, now and then a line anywhere else.

A verb calls what `reporter` returns with a step, how much of it is done, and of how much. Standard output stays the result's.
"""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: Between two lines of one step.
_SECONDS = 10.0


class Reporter:
    """Reports nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the reports."""

    def __call__(self, step: str, done: float, total: float | None) -> None:
        """Takes a report: the step, how much of it is done, of how much."""


class Bar(Reporter):
    """A progress bar that appears at the first report, and only on a terminal."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, step: str, done: float, total: float | None) -> None:
        """Moves the step's bar, which its first report adds."""
        if self._progress is None:
            self._progress = self._start()
        if step not in self._tasks:
            self._tasks[step] = self._progress.add_task(step, total=total)
        self._progress.update(self._tasks[step], completed=done, total=total)

    def _start(self) -> "Progress":
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        from foreload.cli.output import console

        target = console(stderr=True)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f}%"),
            TimeElapsedColumn(),
        )
        progress = Progress(*columns, console=target, transient=True, disable=not target.is_terminal)
        progress.start()
        return progress


class Lines(Reporter):
    """A line when a step begins, one every ten seconds while it lasts, and one when it ends."""

    def __init__(self) -> None:
        self._step: str | None = None
        self._over: str | None = None
        self._begun = self._last = 0.0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._end()

    def __call__(self, step: str, done: float, total: float | None) -> None:
        """Writes a line if it is time for one."""
        now = time.monotonic()
        if step == self._over:
            return
        if step != self._step:
            self._end()
            self._step, self._begun, self._last = step, now, now
            self._say("")
        elif now - self._last >= _SECONDS:
            self._last = now
            share = f"{done / total:.0%}" if total else f"{done:,.0f}"
            self._say(f": {share} after {now - self._begun:.0f} s")
        if total and done >= total:
            self._end()

    def _end(self) -> None:
        if self._step is not None:
            self._say(f": done in {time.monotonic() - self._begun:.1f} s")
            self._step, self._over = None, self._step

    def _say(self, rest: str) -> None:
        print(f"foreload: {self._step}{rest}", file=sys.stderr, flush=True)


def reporter(*, quiet: bool = False) -> Reporter:
    """What fits standard error.

    Args:
        quiet: Report nothing.
    """
    if quiet:
        return Reporter()
    return Bar() if sys.stderr.isatty() else Lines()
