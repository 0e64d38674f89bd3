"""The program that serves a mount: started, found again, and ended."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foreload.errors import (
    CorruptError,
    DeniedError,
    ForeloadError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)

PROGRAM = Path(__file__).parents[1] / "_bin" / "foreload-mount"
_LISTED = Path("/proc/self/mounts")
#: What the list of mounts has before the URL.
_NAMED = "foreload:"
#: What its exit status says when it fails: the codes of all commands.
_FAILED: dict[int, type[ForeloadError]] = {
    2: InvalidError,
    3: NotFoundError,
    4: DeniedError,
    5: UnavailableError,
    6: CorruptError,
}
#: So much of what it says when it fails.
_SAID = 4000


def command(target: str, settings: Mapping[str, Any]) -> list[str]:
    """The program, with its arguments."""
    return [str(PROGRAM), target, json.dumps(settings)]


def serve(
    target: str, settings: Mapping[str, Any], given: Sequence[int] = (), say: Callable[[str], object] | None = None
) -> int:
    """Serves until it is unmounted, or a signal says so (SIGTERM, SIGINT as of Ctrl-C, SIGHUP): the program's exit status. Called by the main thread. If this process is killed, the program ends, too.

    Args:
        target: The directory, or an address.
        settings: What the program reads.
        given: Descriptors that it gets.
        say: Is told what it says when it serves.
    """
    running: subprocess.Popen[str] | None = None
    is_over = False

    def ends(_number: int, _frame: object) -> None:
        nonlocal is_over
        is_over = True
        if running is not None:
            running.terminate()

    # Whoever ends this process means the program: of a terminal's Ctrl-C it hears itself, too, and a second time is no harm.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, ends)
    try:
        words = command(target, {**settings, "parent": os.getpid()})
        running = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, pass_fds=given)
        if is_over:
            running.terminate()
        assert running.stdout is not None
        if (line := running.stdout.readline().strip()) and say is not None:
            say(line)
        status = running.wait()
        # As a shell says it of what a signal has ended.
        return status if status >= 0 else 128 - status
    except BaseException:
        if running is not None:
            running.terminate()
            running.wait()
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def start(target: str, settings: Mapping[str, Any], log: Path, given: Sequence[int] = ()) -> int:
    """Has a program of its own serve a mount; its process when it is there. As [`begin`][foreload._mount.program.begin]."""
    return begin(target, settings, log, given)[0]


def begin(target: str, settings: Mapping[str, Any], log: Path, given: Sequence[int] = ()) -> tuple[int, str]:
    """Has a program of its own serve; its process, and what it says when it does.

    Args:
        target: The directory, or an address.
        settings: What the program reads.
        log: What it says goes there.
        given: Descriptors that it gets.

    Raises:
        ForeloadError: It ended instead, with what it said.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as said:
        before = said.tell()
        running = subprocess.Popen(
            command(target, settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,
            cwd="/",
            pass_fds=given,
        )
    assert running.stdout is not None
    with running.stdout as out:
        line = out.readline()
    if line.strip():
        return running.pid, line.decode().strip()
    running.wait()
    text = log.read_bytes()[before:][-_SAID:].decode(errors="replace")
    lines = [line.removeprefix("foreload-mount: ") for line in text.strip().splitlines()]
    why = "; ".join(lines[-2:]) or f"status {running.returncode}"
    raise _FAILED.get(running.returncode, ForeloadError)(f"{target}: {why} (log: {log})")


def is_mounted(target: str) -> bool:
    """Whether something of ours is mounted there."""
    return any(place == target and name.startswith(_NAMED) for name, place in _mounts(_LISTED))


def left(listed: Path = _LISTED) -> list[str]:
    """Where mounts of ours are of which the program has ended."""
    return [place for name, place in _mounts(listed) if name.startswith(_NAMED) and not _answers(place)]


def _answers(place: str) -> bool:
    try:
        os.statvfs(place)
    except OSError as error:
        return error.errno != errno.ENOTCONN
    return True


def _mounts(listed: Path) -> list[tuple[str, str]]:
    lines = listed.read_text().splitlines()
    return [(_unescaped(words[0]), _unescaped(words[1])) for words in (line.split() for line in lines)]


def _unescaped(text: str) -> str:
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        text = text.replace(f"\\{code}", character)
    return text


def unmount(target: str, patience_s: float = 40.0) -> None:
    """Unmounts what is mounted there, also where its program has ended, and waits until what was closed is written. What somebody has open there is closed soon after.

    Raises:
        InvalidError: Nothing of ours is mounted there.
        ForeloadError: It could not be unmounted, or its program has not ended within so many seconds.
    """
    # As the list of mounts has it.
    place = os.path.realpath(Path(target).expanduser())
    if not is_mounted(place):
        raise InvalidError(f"{place}: nothing of foreload is mounted there")
    pid = _program_of(place)
    if _unmounted(place) is True:
        if pid is not None and not _has_ended(pid, patience_s):
            raise ForeloadError(f"{place} is unmounted, and process {pid} still writes what was closed there")
        return
    # Somebody has it open: its program knows what to do then.
    if pid is not None and ended(pid, patience_s) and not is_mounted(place):
        return
    said = _unmounted(place, "-l")
    if is_mounted(place):
        raise ForeloadError(f"{place}: {said}")


def _program_of(place: str) -> int | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(json.loads((Path(place) / ".foreload" / "stats").read_text())["pid"])
    return None


def _unmounted(place: str, *lazily: str) -> bool | str:
    """Whether it worked, or why it didn't."""
    fusermount = ["-u", *(["-z"] if lazily else []), place]
    said = ""
    for words in (["fusermount3", *fusermount], ["fusermount", *fusermount], ["umount", *lazily, place]):
        if shutil.which(words[0]) is None:
            continue
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return True
        said = (done.stderr or done.stdout).strip()
    return said


def ended(pid: int, within_s: float = 10.0) -> bool:
    """Has a program end, which unmounts; whether it has."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    return _has_ended(pid, within_s)


def _has_ended(pid: int, within_s: float) -> bool:
    until = time.monotonic() + within_s
    while _lives(pid):
        if time.monotonic() >= until:
            return False
        time.sleep(0.05)
    return True


def _lives(pid: int) -> bool:
    # A child of this process' own that has ended is there until it is waited for.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return Path(f"/proc/{pid}").exists()
