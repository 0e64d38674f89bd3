"""How far a verb is, on standard error: a bar on a terminal, a line every few seconds anywhere else.

A verb calls what `reporter` returns with a step, how much of it is done, and of how much. Standard output stays the result's.
"""

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: Between two lines.
_SECONDS = 5.0


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
    """A line every few seconds; none where all is over before the first."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._at: tuple[str, float, float | None] | None = None
        self._begun = 0.0
        # Steps may be long or short, and report seldom; the clock is what lines depend on.
        self._thread = threading.Thread(target=self._run, name="foreload-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def __call__(self, step: str, done: float, total: float | None) -> None:
        """Takes a report, for the next line."""
        if self._at is None or self._at[0] != step:
            self._begun = time.monotonic()
        self._at = (step, done, total)

    def _run(self) -> None:
        while not self._ended.wait(_SECONDS):
            if self._at is not None:
                step, done, total = self._at
                share = f"{done / total:.0%}" if total else f"{done:,.0f}"
                took = time.monotonic() - self._begun
                print(f"foreload: {step}: {share} after {took:.0f} s", file=sys.stderr, flush=True)


def reporter(*, quiet: bool = False) -> Reporter:
    """What fits standard error.

    Args:
        quiet: Report nothing.
    """
    if quiet:
        return Reporter()
    return Bar() if sys.stderr is not None and sys.stderr.isatty() else Lines()
