"""The command's verbs, and what happens when one fails.

Verb modules import typer and the standard library alone at their top, so that gathering them here costs little.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from foreload.cli.agent import agent
from foreload.cli.attach import attach
from foreload.cli.bench import bench
from foreload.cli.cache import cache
from foreload.cli.calibrate import calibrate
from foreload.cli.cost import cost
from foreload.cli.doctor import doctor
from foreload.cli.explain import explain
from foreload.cli.failure import report
from foreload.cli.index import index
from foreload.cli.mount import mount, serve, unmount
from foreload.cli.plan import plan
from foreload.cli.preview import preview
from foreload.cli.run import run
from foreload.cli.simulate import simulate
from foreload.cli.top import top

app = typer.Typer(
    name="foreload",
    help="Training data, already there: feeds training from a bucket at local speed, in the exact shuffled order.",
    epilog="Every verb takes --json. Exit codes and variables: docs/reference/cli.md.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Data sets": (index, preview, explain),
    "Files": (mount, unmount, serve),
    "Planning": (plan, simulate, cost, calibrate),
    "This machine": (bench, doctor, top),
}
for _panel, _verbs in _PANELS.items():
    for _verb in _verbs:
        app.command(rich_help_panel=_panel)(_verb)
# What stands behind the program is the program's.
app.command(rich_help_panel="This machine", context_settings={"allow_interspersed_args": False})(run)
app.command(rich_help_panel="This machine")(attach)
app.add_typer(agent, name="agent", rich_help_panel="This machine")
app.add_typer(cache, name="cache", rich_help_panel="This machine")


def _version(wanted: bool) -> None:
    if wanted:
        from foreload import __version__

        typer.echo(f"foreload {__version__}")
        raise typer.Exit


@app.callback()
def _everywhere(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Training data, already there: feeds training from a bucket at local speed, in the exact shuffled order."""


def main() -> None:
    """Runs the command; the process' entry point."""
    try:
        app(prog_name="foreload")
    except Exception as error:  # noqa: BLE001 (the last one who can say it in a line)
        code = report(error, as_json="--json" in sys.argv[1:])
        if isinstance(error, OSError) and sys.stdout is not None:
            # What it didn't take would be tried once more when the process ends, with a traceback.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(code)
