"""`foreload attach`: a program that runs already, with what it maps fetched ahead of it, from outside."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import failure, options, output
from foreload.cli.run import Mmap, Window

if TYPE_CHECKING:
    from rich.console import Console

    from foreload._core import Attached

#: How often statistics are written, in seconds.
_TELL_S = 0.25

Pid = Annotated[int, typer.Argument(metavar="PID", min=1, max=2**31 - 1, help="The program's process.")]
Stats = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write what was done there, and again while it goes on: a line of JSON for each of the program's processes.",
    ),
]


def attach(pid: Pid, mmap: Mmap, window: Window = None, stats: Stats = None, as_json: options.AsJson = False) -> None:
    """Fetches what a running program maps ahead of it, until it ends or Ctrl-C. Nothing enters the program."""
    from foreload import _core
    from foreload._mapped import preload
    from foreload._settings.sizes import parse_bytes

    options.check_writable(stats, "--stats")
    nbytes = None if window is None else parse_bytes(window, "--window")
    attached = _core.Attached(pid, preload.named(mmap), nbytes)
    report = _Report(attached, stats)
    if not report.tell():
        failure.say(f"process {pid} maps no file that --mmap means yet; waiting for one")
    try:
        while attached.go(_TELL_S):
            report.tell()
    finally:
        lines = report.tell()
    value = {"pid": pid, "processes": lines}
    output.emit(value, lambda console: _draw(console, pid, lines), as_json=as_json)


class _Report:
    """What was done so far, for whoever wants to know."""

    def __init__(self, attached: "Attached", stats: Path | None) -> None:
        self._attached = attached
        self._stats = stats
        self._told: str | None = None

    def tell(self) -> list[dict[str, Any]]:
        """Says what there is to say, and writes the statistics if they have changed."""
        for note in self._attached.notes():
            failure.say(note)
        lines: list[dict[str, Any]] = json.loads(self._attached.report())
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        if self._stats is not None and text != self._told:
            output.write_files([(self._stats, text, "the statistics")])
            self._told = text
        return lines


def _draw(console: "Console", pid: int, lines: list[dict[str, Any]]) -> None:
    touched, used, asked = (
        output.human_bytes(sum(line[name] for line in lines)) for name in ("touched_bytes", "used_bytes", "asked_bytes")
    )
    console.print(
        f"process {pid} has ended: it touched {touched}, of which {used} had been asked for; {asked} were asked for in all"
    )
