"""How results look: JSON for scripts, tables for people, progress on standard error.

A verb builds one plain value and hands it to `emit` together with a function that draws it. Nothing else prints to standard output,
so that `--json` is always exactly one JSON value.
"""

import io
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreload._settings.written import beside

if TYPE_CHECKING:
    from rich.console import Console

#: Where a table has no number: an en dash.
NONE = "\N{EN DASH}"


def console(*, stderr: bool = False) -> "Console":
    """A terminal, or a file that gets plain text as wide as it needs."""
    from rich.console import Console

    # Whoever closed it (`>&-`) wants to see nothing.
    stream = (sys.stderr if stderr else sys.stdout) or io.StringIO()
    # A pipe has no width: rich's guess of 80 would cut keys and URLs that somebody wants to grep.
    return Console(file=stream, width=None if stream.isatty() else 200, highlight=False, soft_wrap=not stream.isatty())


def emit(value: Any, draw: "Callable[[Console], None]", *, as_json: bool) -> None:
    """Prints a result.

    Args:
        value: The result in JSON's types.
        draw: Shows it on a terminal.
        as_json: Which of the two is wanted.
    """
    if as_json:
        # Here, where a full disk is one line, and not when the process ends.
        print(json.dumps(value, ensure_ascii=False), flush=True)
    else:
        draw(console())


def write_files(files: Sequence[tuple[Path, str, str]]) -> None:
    """Writes text files: all of them, or where one can't be, none; what was there before stays.

    Args:
        files: Path, text, and what it is, for the message.

    Raises:
        OSError: One can't be written; the message names it.
    """
    with ExitStack() as places:
        # They take their names in the other order: the first first.
        for path, text, what in reversed(files):
            try:
                places.enter_context(beside(path)).write_text(text, encoding="utf-8")
            except OSError as error:
                raise OSError(error.errno, f"{what} can't be written: {error.strerror}", str(path)) from None


def facts(target: "Console", title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Shows names and values below a title."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    target.print(Text(title, style="bold"))
    target.print(table)


def grid(target: "Console", columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Shows a table; columns whose name begins with `>` are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:
        # As text, because keys may hold what rich reads as markup.
        table.add_row(*(Text(cell) for cell in row))
    target.print(table)


def human_bytes(size: float) -> str:
    """A size for people.

    Example:
        >>> human_bytes(1_500_000_000)
        '1.5 GB'
    """
    from foreload._settings.sizes import format_bytes

    return format_bytes(size)


def human_count(number: float) -> str:
    """A number with its thousands apart.

    Example:
        >>> human_count(1281167)
        '1,281,167'
    """
    return f"{number:,.0f}"


def counted(number: int, noun: str) -> str:
    """A number of things, with the noun in the form that it takes.

    Example:
        >>> counted(1, "epoch"), counted(1200, "node")
        ('1 epoch', '1,200 nodes')
    """
    return f"{human_count(number)} {noun}{'' if number == 1 else 's'}"


def human_seconds(seconds: float) -> str:
    """A duration for people.

    Example:
        >>> human_seconds(0.0042), human_seconds(75), human_seconds(7260)
        ('4.2 ms', '1 min 15 s', '2 h 1 min')
    """
    # Rounded to three digits, a little less than a second is one.
    if seconds < 0.0009995:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
