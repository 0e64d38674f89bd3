"""What becomes of an exception: one line with what helps, and an exit code that a script can act on.

`FORELOAD_DEBUG=1` shows the traceback instead. With `--json` the same is printed as one object, so that a script always reads
JSON. The codes are a promise: docs/reference/cli.md lists them.
"""

import contextlib
import enum
import json
import os
import sys
import traceback
from typing import NoReturn


class Code(enum.IntEnum):
    """Exit codes."""

    DONE = 0
    #: What was asked for failed: a check of `doctor`, or something without a code of its own.
    FAILED = 1
    #: The command line, an option or a file's contents can't work; change it.
    USAGE = 2
    #: The bucket, prefix, object or file doesn't exist.
    NOT_FOUND = 3
    #: Credentials or permissions are missing, wrong or not sufficient.
    DENIED = 4
    #: The store or the agent doesn't answer; the same command can succeed later.
    UNAVAILABLE = 5
    #: The data is damaged, or no longer what was indexed.
    CORRUPT = 6
    INTERRUPTED = 130


def code_of(error: BaseException) -> Code:
    """The exit code for an exception.

    Example:
        >>> code_of(FileNotFoundError("no such bucket")).value
        3
    """
    kind = getattr(error, "kind", "")
    if kind in {"corrupt", "changed", "decode"}:
        return Code.CORRUPT
    by_type: list[tuple[type[BaseException] | tuple[type[BaseException], ...], Code]] = [
        (KeyboardInterrupt, Code.INTERRUPTED),
        (FileNotFoundError, Code.NOT_FOUND),
        (PermissionError, Code.DENIED),
        ((TimeoutError, ConnectionError), Code.UNAVAILABLE),
        ((ValueError, IsADirectoryError, NotADirectoryError), Code.USAGE),
    ]
    return next((code for types, code in by_type if isinstance(error, types)), Code.FAILED)


def message_of(error: BaseException) -> str:
    """The line for an exception: what happened, and what helps where the exception itself doesn't say.

    Example:
        >>> message_of(ModuleNotFoundError("No module named 'torch'", name="torch"))
        "this needs torch, which isn't installed (pip install torch)"
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("foreload"):
        name = error.name.partition(".")[0]
        return f"this needs {name}, which isn't installed (pip install {_PACKAGES.get(name, name)})"
    if isinstance(error, OSError) and error.strerror and not hasattr(error, "kind"):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = " ".join(str(error).split())
    if hasattr(error, "kind") or isinstance(error, (ValueError, OSError)):
        return text or type(error).__name__
    return f"{type(error).__name__}: {text} (FORELOAD_DEBUG=1 shows where)"


#: What to install for a module that is not called like its package, or that an extra of ours brings.
_PACKAGES = {
    "PIL": "'foreload[images]'",
    "boto3": "'foreload[s3]'",
    "botocore": "'foreload[s3]'",
    "matplotlib": "'foreload[plot]'",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
}


def report(error: BaseException, *, as_json: bool) -> Code:
    """Prints an exception for the user.

    Args:
        error: What was raised.
        as_json: Whether standard output must be one JSON object.

    Returns:
        The code to exit with.
    """
    code = code_of(error)
    if os.environ.get("FORELOAD_DEBUG", "") not in {"", "0"}:
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        kind = getattr(error, "kind", code.name.lower().replace("_", "-"))
        # Standard output may be what failed: full, or closed.
        with contextlib.suppress(OSError, ValueError):
            print(
                json.dumps({"error": {"kind": kind, "message": message_of(error), "exit_code": int(code)}}), flush=True
            )
    say(message_of(error))
    return code


def say(message: str) -> None:
    """Tells the user in a line on standard error."""
    print(f"foreload: {message}", file=sys.stderr)


def leave(code: Code) -> NoReturn:
    """Ends the verb with a code, after it has printed its result."""
    import typer

    raise typer.Exit(code)
