"""The next batch is made by a thread while the loop computes.

Making a batch takes a fraction of a millisecond even from memory: its bytes are copied, its labels become a tensor, the batch after it is asked
for. Behind a step of a few milliseconds all of that runs from cold caches and would be most of what the loop waits for. So each pass has a
thread that does it for one batch, which must have come already: the thread never waits for anything but its next turn. What has not come is
waited for, and errors are met, where the loop asks. The loop's `next` then takes what is finished; only one of the two touches the stream at a
time. A forked child has no such thread, and its passes are refused (`Stream`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from foreload import _core
from foreload._run.failed import Failed
from foreload._run.stream import Stream
from foreload.errors import ForeloadError

#: Longest wait for the thread when a pass is dropped; it takes as long as one batch does.
_END_S = 5.0


class _Turns:
    """What the loop and the thread hand to each other: work one way, its result the other."""

    def __init__(self) -> None:
        # Locks that the other side releases: semaphores are Python code, and it is their time that this saves.
        self.given, self.done = threading.Lock(), threading.Lock()
        self.given.acquire()
        self.done.acquire()
        self.work: Callable[[], Any] | None = None
        self.made: Any = None
        self.error: BaseException | None = None


class Ahead(Iterator[tuple[int, Any]]):
    """The batches of a stream, each made while the loop is busy with the one before.

    Args:
        stream: The stream.
        make: Turns what was delivered, or came in its place, into a batch; called in either thread, never in both at once.
        elsewhere: Asked in the loop for what does the same in the thread; None: this time nothing may.
    """

    def __init__(
        self,
        stream: Stream,
        make: Callable[[_core.Delivery | Failed], Any],
        elsewhere: Callable[[], Callable[[_core.Delivery | Failed], Any] | None] | None = None,
    ) -> None:
        self._stream, self._make = stream, make
        self._elsewhere = elsewhere or (lambda: make)
        self._turns = _Turns()
        self._thread: threading.Thread | None = None
        self._busy = False

    def __next__(self) -> tuple[int, Any]:
        made = self._finished() if self._busy and self._stream.is_ours else None
        if made is None:
            try:
                number, delivery = next(self._stream)
            except StopIteration:
                # Here and not when this is dropped: a Ctrl-C that is raised in `__del__` is lost.
                self.close()
                raise
            batch = self._make(delivery)
            del delivery
        else:
            number, batch = self._stream.pass_on(), made[0]
        if not self._stream.is_over:
            self._begin()
        return number, batch

    def _begin(self) -> None:
        stream, make = self._stream, self._elsewhere()
        if make is None:
            return
        if self._thread is None:
            thread = threading.Thread(target=_serve, args=(self._turns,), name="foreload-ahead", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # No thread to be had: the loop makes its batches itself.
                return
            self._thread = thread
        self._turns.work = lambda: _made(stream, make)
        self._busy = True
        self._turns.given.release()

    def _finished(self) -> tuple[Any] | None:
        turns = self._turns
        turns.done.acquire()
        self._busy = False
        made, error = turns.made, turns.error
        turns.made = turns.error = None
        if error is not None:
            try:
                raise error
            finally:
                # Its traceback has this frame, and the samples of the batch in another.
                del error
        return made  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends the thread; a batch that nobody took is dropped."""
        thread, self._thread = self._thread, None
        if thread is None or not self._stream.is_ours or sys.is_finalizing():
            return
        turns, elsewhere = self._turns, thread is not threading.current_thread()
        if self._busy and elsewhere:
            turns.done.acquire(timeout=_END_S)
        self._busy = False
        turns.work = turns.made = turns.error = None
        turns.given.release()
        if elsewhere:
            thread.join(_END_S)

    def __del__(self) -> None:
        self.close()


def _serve(turns: _Turns) -> None:
    while True:
        turns.given.acquire()
        work, turns.work = turns.work, None
        if work is None:
            return
        try:
            turns.made = work()
        except BaseException as error:  # noqa: BLE001 (raised where the loop asks)
            turns.error = error
        # The loop may be the last to have the stream.
        del work
        turns.done.release()


def _made(stream: Stream, make: Callable[[_core.Delivery | Failed], Any]) -> tuple[Any] | None:
    """The next batch, if it has come."""
    try:
        delivery = stream.look_ahead()
    except ForeloadError:
        # Met again where the loop asks.
        return None
    if delivery is None:
        return None
    made = (make(delivery),)
    stream.flush()
    return made
