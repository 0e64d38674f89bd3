"""This process' connection to the agent.

One connection for each cache directory, made when it is first needed, and made anew in a forked child and after the agent died: a
connection must not be used by two processes. Nothing here is carried from process to process; what is, names only the cache directory.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from foreload import _core
from foreload.errors import ClosedError, TimedOutError

T = TypeVar("T")

_PROGRAM = Path(__file__).parents[1] / "_bin" / "foreload-agent"
_agents: dict[tuple[int, str], _core.Agent] = {}
_lock = threading.Lock()
_hooked = False


def program() -> Path:
    """The agent's program."""
    return _PROGRAM


def cache_directory(given: str | os.PathLike[str] | None = None) -> str:
    """The cache directory, as it is passed to other processes."""
    return str(Path(given or _core.cache_dir()).expanduser().absolute())


def connect(cache_dir: str) -> _core.Agent:
    """This process' connection, starting an agent where there is none.

    Args:
        cache_dir: What `cache_directory` answered.

    Returns:
        A connection that was usable a moment ago.

    Raises:
        ClosedError: No agent can be started; the message has the end of its log.
    """
    global _hooked  # noqa: PLW0603 (registered once a process family, at the first connection, so that importing does nothing)
    key = (os.getpid(), cache_dir)
    with _lock:
        if not _hooked:
            os.register_at_fork(after_in_child=_forget)
            _hooked = True
        agent = _agents.get(key)
        if agent is None or not agent.is_usable():
            agent = _agents[key] = _core.Agent(_PROGRAM, cache_dir)
        return agent


def once_more(ask: Callable[[], T]) -> T:
    """What `ask` answers; asked again, of a new agent, where the one before had ended, which only a call can tell.

    Raises:
        ClosedError: The new one ended too.
    """
    try:
        return ask()
    except ClosedError:
        return ask()


def ending(error: ClosedError) -> str:
    """How an agent ended, without the remedy: for who goes on by himself."""
    return str(error).partition(". Start the loader again")[0]


@contextlib.contextmanager
def within(seconds: float | None, message: str) -> Iterator[None]:
    """Within it this thread's calls of the agent, together, take at most so long.

    Args:
        seconds: How long; None: as long as they take.
        message: What an error says then.

    Raises:
        TimedOutError: They take longer.
    """
    if seconds is None:
        yield
        return
    deadline = time.monotonic() + seconds
    _core.give_up_after(seconds)
    try:
        yield
    except TimedOutError as error:
        raise (error if time.monotonic() < deadline else TimedOutError(message)) from None
    finally:
        _core.give_up_after(None)


def _forget() -> None:
    """In a forked child: the parent's connections and whoever held the lock stay behind."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _agents.clear()
