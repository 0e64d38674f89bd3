"""The thread that reads ahead, as Python has it: its errors name files, and a forked child leaves its parent's alone.

The thread is in the native half. A child that is forked has the parent's object and not its thread: whatever the thread was at, it will never end there, and
may have held the object's lock. So the child touches none of them, not even to free it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path

from foreload import _core
from foreload.errors import ForkedError, InvalidError

_live: weakref.WeakSet[Ahead] = weakref.WeakSet()
#: What a parent had, in a forked child.
_inherited: list[_core.ReadAhead | None] = []
_hooked = False


class Ahead:
    """Ranges of files, fetched in their order.

    Args:
        files: The files.
        ranges: What of them: the file's number, first byte, bytes.
        window: Bytes under way at most.
        allowed: So many ranges may be asked for until `allow` says more; None: all.

    Raises:
        InvalidError: A number is none.
        OSError: A file can't be read, or a range isn't in it.
    """

    def __init__(
        self, files: Sequence[Path], ranges: Sequence[tuple[int, int, int]], window: int, allowed: int | None = None
    ) -> None:
        global _hooked  # noqa: PLW0603 (registered once a process family, when it is first needed, so that importing does nothing)
        self.files = list(files)
        named = ", ".join(map(str, files))
        try:
            self._native: _core.ReadAhead | None = _core.ReadAhead(self.files, list(ranges), window, allowed)
        except OverflowError:
            raise InvalidError(f"{named}: a range has a number below 0 or above 2^64") from None
        except OSError as error:
            raise (error if str(files[0]) in str(error) else OSError(f"{named}: {error}")) from None
        if not _hooked:
            os.register_at_fork(after_in_child=_leave)
            _hooked = True
        _live.add(self)

    @property
    def _own(self) -> _core.ReadAhead:
        if self._native is None:
            named = ", ".join(map(str, self.files))
            raise ForkedError(
                f"{named}: what is fetched ahead is the parent process' affair; begin it here, or wait there"
            )
        return self._native

    def progress(self) -> tuple[int, bool, str | None]:
        """Bytes that are there, whether it is over, and why it failed.

        Raises:
            ForkedError: It is a forked child's parent's.
        """
        return self._own.progress()

    def wait(self, seconds: float) -> tuple[int, bool, str | None]:
        """The same, when it is over, but after so long at the latest.

        Raises:
            ForkedError: It is a forked child's parent's.
        """
        return self._own.wait(seconds)

    def allow(self, ranges: int) -> None:
        """So many ranges, counted from the first, may be asked for. In a forked child nothing."""
        if self._native is not None:
            self._native.allow(ranges)

    def stop(self) -> None:
        """Asks for nothing more. In a forked child nothing."""
        if self._native is not None:
            self._native.stop()

    def leave(self) -> None:
        """In a forked child, before anything else: it is the parent's."""
        _inherited.append(self._native)
        self._native = None


def _leave() -> None:
    for ahead in _live:
        ahead.leave()
