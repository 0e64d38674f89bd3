"""Ctrl-C while worker processes are started.

Python runs hooks in the parent after each fork, `logging`'s among them, and an exception raised in a hook is printed and dropped: a Ctrl-C that comes
during a fork is lost. So it is noted while workers are started, and raised when they are. The workers themselves answer to it as ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class _Note:
    """Stands in for Python's handler of SIGINT, in the main thread of one process."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Notes Ctrl-C meanwhile and raises it at the end. Handlers other than Python's own are left alone.

    Raises:
        KeyboardInterrupt: It came.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    note = _Note()
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if note.came:
        raise KeyboardInterrupt


def _answer_again() -> None:
    if isinstance(signal.getsignal(signal.SIGINT), _Note):
        signal.signal(signal.SIGINT, signal.default_int_handler)


os.register_at_fork(after_in_child=_answer_again)
