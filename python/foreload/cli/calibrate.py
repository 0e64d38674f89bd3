"""`foreload calibrate`: measures this machine and a bucket, for `foreload plan` and `foreload simulate`.

`foreload._calibrate.calibration` measures; this opens the data set, finds the decoder that is named, and writes the file.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import failure, options, output
from foreload.cli.opening import open_dataset
from foreload.cli.progress import reporter

if TYPE_CHECKING:
    from rich.console import Console

#: Longer measurements don't get better.
_MOST_SECONDS = 600.0

Url = Annotated[
    str | None,
    typer.Argument(
        metavar="[URL]", help="A data set, to measure its source; without one, only this machine.", show_default=False
    ),
]
DiskDirectory = Annotated[
    Path | None, typer.Option("--disk", metavar="DIR", help="Also measure a disk tier in this directory.")
]
Decode = Annotated[
    str | None, typer.Option("--decode", metavar="MODULE:FUNCTION", help="Also measure this decode(bytes, meta).")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the calibration (TOML) here.")]
Seconds = Annotated[
    float,
    typer.Option("--seconds", callback=options.number(0.05, _MOST_SECONDS), help="How long each measurement goes on."),
]
Scratch = Annotated[str, typer.Option("--scratch", help="Written to measure memory and disk, removed afterwards.")]


def calibrate(
    url: Url = None,
    disk: DiskDirectory = None,
    out: Out = None,
    decode: Decode = None,
    seconds: Seconds = 2.0,
    scratch: Scratch = "256MB",
    format: options.Format = "auto",  # noqa: A002 (as in `foreload.open`)
    index: options.SavedIndex = None,
    endpoint_url: options.EndpointUrl = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.Option = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Measures source, memory, disk and decoding on this machine, and writes what `plan --calibration` takes."""
    from foreload import speeds
    from foreload._calibrate import calibration
    from foreload._settings.sizes import parse_bytes

    options.check_writable(out, "--out")
    scratch_bytes = parse_bytes(scratch, "--scratch")
    # Before the data set is listed.
    calibration.check_room(disk, scratch_bytes)
    if decode is not None and url is None:
        raise typer.BadParameter("decoding is measured on a data set's samples: name its URL", param_hint="--decode")
    function = None if decode is None else named(decode)
    given = options.storage_options(endpoint_url, profile, anonymous, option)
    dataset = None if url is None else open_dataset(url, given, quiet=quiet, format=format, index=index)
    with reporter(quiet=quiet) as progress:
        found = calibration.calibrate(
            dataset,
            disk=disk,
            decode=function,
            seconds=seconds,
            scratch_bytes=scratch_bytes,
            progress=progress,
        )
    text = speeds.text(found)
    problem = None if out is None else _unwritten(out, text)
    output.emit(found, lambda console: _draw(console, text, None if problem else out), as_json=as_json)
    for part, why in found["failed"].items():
        failure.say(f"{part} couldn't be measured: {why}")
    if problem is not None:
        failure.say(f"{problem}; it is on standard output")
    if problem is not None or found["failed"]:
        failure.leave(failure.Code.FAILED)


def _unwritten(path: Path, text: str) -> str | None:
    """Writes the calibration; what prevents it. What was measured for a minute is printed then, not lost."""
    try:
        output.write_files([(path, text, "the calibration")])
    except OSError as error:
        return failure.message_of(error)
    return None


def named(name: str) -> Callable[..., Any]:
    """A function by its module and name; modules of the working directory too.

    Raises:
        BadParameter: There is no such function.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise typer.BadParameter(f"{name!r} is not of the form MODULE:FUNCTION", param_hint="--decode")
    sys.path.insert(0, "")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise typer.BadParameter(f"{name!r}: {error}; write MODULE:FUNCTION", param_hint="--decode") from None
    finally:
        sys.path.remove("")
    if not callable(function):
        raise typer.BadParameter(f"{name!r} is no function", param_hint="--decode")
    return function  # type: ignore[no-any-return] # whatever the user's module has


def _draw(console: "Console", text: str, out: Path | None) -> None:
    from rich.text import Text

    console.print(Text(text.rstrip()))
    if out is not None:
        console.print(f"written to {out}")
