"""Options that several verbs have, and the storage options they add up to."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/prefix, gs://, az://, https://, or a directory.")]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="How samples lie in objects: auto, folder, flat, tar, lmdb, manifest.",
        rich_help_panel="Data set",
    ),
]
SavedIndex = Annotated[
    str | None, typer.Option("--index", metavar="FILE|URL", help="Use this saved index.", rich_help_panel="Data set")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Don't say on standard error how far it is.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]
EndpointUrl = Annotated[
    str | None,
    typer.Option(
        "--endpoint-url", metavar="URL", help="The service's address, such as a MinIO's.", rich_help_panel="Store"
    ),
]
Profile = Annotated[str | None, typer.Option("--profile", metavar="NAME", help="AWS profile.", rich_help_panel="Store")]
Anonymous = Annotated[
    bool, typer.Option("--anonymous", help="Don't sign requests: for public buckets.", rich_help_panel="Store")
]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="KEY=VALUE",
        help="Any storage option, such as region=eu-west-1; repeatable.",
        rich_help_panel="Store",
    ),
]


def pairs(given: list[str] | None, what: str) -> dict[str, str]:
    """Reads `key=value` words.

    Raises:
        BadParameter: A word is not of that form.

    Example:
        >>> pairs(["region=eu-west-1", "proxy=http://p?a=b"], "--option")
        {'region': 'eu-west-1', 'proxy': 'http://p?a=b'}
    """
    found: dict[str, str] = {}
    for word in given or []:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{word!r} is not of the form key=value", param_hint=what)
        found[key.strip()] = value
    return found


def number(least: float, most: float = 1e15) -> Callable[[typer.CallbackParam, float | None], float | None]:
    """What checks an option's number, as its callback.

    Typer's own `min` and `max` say of what isn't finite that it is too small or too large.

    Args:
        least: What it must be at least.
        most: What it may be at most.
    """

    def check(parameter: typer.CallbackParam, value: float | None) -> float | None:
        from foreload._settings import numbers as _numbers

        return None if value is None else _numbers.amount(parameter.opts[0], value, least, most)

    return check


def check_writable(path: Path | None, what: str) -> None:
    """Refuses a file that can't be written, before the work that fills it.

    Raises:
        BadParameter: Its directory doesn't exist or is closed, or it is a directory or a device itself.
    """
    if path is None:
        return
    directory = path.absolute().parent
    if path.is_dir():
        problem = f"{path} is a directory; name a file in it"
    elif path.exists() and not path.is_file():
        problem = f"{path} is no regular file, and would be replaced by one"
    elif not directory.is_dir():
        problem = f"{path} can't be written: there is no directory {directory}"
    elif not os.access(path if path.exists() else directory, os.W_OK):
        problem = f"{path} can't be written: {_refusal(directory)}"
    else:
        return
    raise typer.BadParameter(problem, param_hint=what)


def _refusal(directory: Path) -> str:
    """Why a directory that exists takes no file."""
    read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
    return "its file system is mounted read-only" if read_only else "permission denied"


def storage_options(
    endpoint_url: str | None = None,
    profile: str | None = None,
    anonymous: bool = False,
    option: list[str] | None = None,
) -> dict[str, str]:
    """What the command line says about the store; the environment is added where the data set is opened.

    Example:
        >>> storage_options("http://localhost:9000", option=["region=eu-west-1"])
        {'region': 'eu-west-1', 'endpoint_url': 'http://localhost:9000'}
    """
    found = pairs(option, "--option")
    if endpoint_url is not None:
        found["endpoint_url"] = endpoint_url
    if profile is not None:
        found["profile"] = profile
    if anonymous:
        found["anonymous"] = "true"
    return found
