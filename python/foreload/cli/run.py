"""`foreload run`: a program as it is, with what it maps fetched ahead of it."""

import errno
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from foreload.cli import options
from foreload.errors import ForeloadError, InvalidError, NotFoundError

Mmap = Annotated[
    list[str],
    typer.Option(
        "--mmap",
        metavar="GLOB",
        help="Files that are read by mapping, such as '*.safetensors' or '/data/**/*.mdb'; repeatable.",
    ),
]
Detector = Annotated[
    str,
    typer.Option(
        metavar="poll|mprotect|guard|off",
        help="How the program's progress is found out: by its page table, by pages that it can't touch unseen (paper 003's way, which not every program bears), or not at all.",
    ),
]
Window = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="poll: bytes that are fetched ahead at most, for each stream of reads. Default: 32 MiB; 0: only looks.",
    ),
]
Distance = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="mprotect, guard: bytes from one checkpoint to the next, a quarter of --size at most. Default: 8 MiB.",
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="mprotect, guard: bytes that are fetched at a time. Default: 50 MiB; 0: only looks."
    ),
]
Stats = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write what was done there: a line of JSON for each process.")
]
Words = Annotated[list[str], typer.Argument(metavar="CMD [ARGS]...", help="The program.")]


def run(
    words: Words,
    mmap: Mmap,
    detector: Detector = "poll",
    window: Window = None,
    distance: Distance = None,
    size: Size = None,
    stats: Stats = None,
    as_json: Annotated[bool, typer.Option("--json", help="A failure to start it as one JSON object.")] = False,  # noqa: ARG001 (`main` looks for it)
) -> None:
    """Runs a program and fetches what it maps ahead of it, without a change to it. Its exit status is the program's."""
    from foreload._mapped import preload
    from foreload._settings.sizes import parse_bytes

    def parse(text: str | None, name: str) -> int | None:
        return None if text is None else parse_bytes(text, name)

    options.check_writable(stats, "--stats")
    variables = preload.environment(
        mmap,
        detector=detector,
        window=parse(window, "--window"),
        distance=parse(distance, "--distance"),
        size=parse(size, "--size"),
        stats=stats,
    )
    program = shutil.which(words[0])
    if program is None:
        raise _missing(words[0])
    preload.check_program(Path(program))
    if stats is not None:
        stats.write_text("")
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # Python ignores these for itself, and what is ignored stays so in the program: `yes | head -1` would never end.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execve(program, words, variables)  # noqa: S606 (the program takes our place)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # A script that doesn't say by what it is run, as shells and execvp do it.
        os.execve("/bin/sh", ["/bin/sh", program, *words[1:]], variables)  # noqa: S606 (as above)


def _missing(word: str) -> ForeloadError:
    """Why there is no such program."""
    place = Path(word)
    if "/" not in word or not place.exists():
        return NotFoundError(f"{word}: no such program")
    return InvalidError(
        f"{word} is a directory" if place.is_dir() else f"{word} may not be executed: chmod +x makes it so"
    )
