"""Torch's iterator over worker processes, which says so when one of them keeps the loop waiting.

Torch waits for a worker that lives for as long as that takes, without a word. One that was forked while another thread held a lock of the interpreter's
waits for ever (Python before 3.12 in `PyOS_AfterFork_Child`, and libraries of C and C++ whose locks nobody resets), before it has run a line of Python.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from pathlib import Path
from typing import Any

from torch.utils.data import _utils
from torch.utils.data import dataloader as _torchs
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL

from foreload.errors import StalledWarning

# Torch's iterators have no public name.
# ruff: noqa: SLF001
_LOG = logging.getLogger("foreload")
#: Longer waits for a batch are reported, each time that they last so long again: the agent's own default.
STALL_S = 10.0
#: The same where the agent reports what it is waited for: what remains is a worker that doesn't ask it.
MUTE_S = 30.0


def report(message: str) -> None:
    """Says what is waited for."""
    _LOG.warning("%s", message)
    warnings.warn(message, StalledWarning, stacklevel=2)


def _is_stopped(pid: int | None) -> bool:
    """Whether a process was stopped by a signal or a debugger, where the system says so."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")


class _Ending:
    """Stands in for the event that tells workers to end, once it is to be set: it waits for no worker that was killed, and ends those that can't be told.

    Workers take the event's lock whenever they look at it, and one that is killed then keeps it: torch would wait for the lock for ever.
    """

    #: Whoever lives gives the lock back in microseconds.
    lock_s = 1.0

    def __init__(self, event: Any, workers: list[Any], queues: list[Any]) -> None:
        self._event, self._workers, self._queues = event, workers, queues
        self._is_set = False

    def set(self) -> None:
        """Tells the workers, and ends those that don't hear it."""
        if self._is_set:
            return
        self._is_set = True
        lock = self._event._cond
        is_told = lock.acquire(True, self.lock_s)
        if is_told:
            lock.release()
            self._event.set()
        # After that: a worker that is terminated may have the lock.
        for worker, queue in zip(self._workers, self._queues, strict=False):
            closing = getattr(queue, "_close", None)
            # The collector closes queues before it ends what is in a cycle with them. Nothing can be told to these workers, and torch waits 5 s for each.
            is_closed = closing is not None and not closing.still_active()
            if is_closed or not is_told:
                worker.terminate()

    def is_set(self) -> bool:
        """Whether the workers were told."""
        return self._is_set


class Waiting(_torchs._MultiProcessingDataLoaderIter):
    """Torch's iterator over workers, with reports."""

    #: Waits of so many seconds are reported.
    stall_s = STALL_S
    #: The process whose workers they are.
    _of_process: int | None = None

    def __init__(self, loader: Any) -> None:
        self._of_process = os.getpid()
        super().__init__(loader)

    def _shutdown_workers(self) -> None:
        utils: Any = _utils
        # Torch does nothing then, either.
        is_exiting = utils is None or utils.python_exit_status is not False
        # A forked process has a copy of the iterators that there were, and in one that is in a cycle, as after an error, its collector ends workers which are
        # not its own. Torch's way to do so takes locks that a worker which was killed has kept: a new worker could hang there.
        if is_exiting or self._of_process != os.getpid():
            return
        if not getattr(self, "_shutdown", True):
            ending: Any = _Ending(self._workers_done_event, self._workers, self._index_queues)
            self._workers_done_event = ending
        super()._shutdown_workers()

    def begin_wait(self) -> None:
        """The loop asks for a batch."""
        self._waits_since, self._report_s = time.monotonic(), self.stall_s

    @property
    def heard(self) -> set[int]:
        """Workers that have sent something."""
        found: set[int] = self.__dict__.setdefault("_heard", set())
        return found

    def _try_get_data(self, timeout: float = MP_STATUS_CHECK_INTERVAL) -> Any:
        found = super()._try_get_data(timeout)  # type: ignore[no-untyped-call] # torch's
        if found[0]:
            number = found[1][0] if isinstance(found[1], tuple) and found[1] else None
            sender = self._task_info.get(number, ())[:1]
            self.heard.update(sender)
            for task, waiting in self._task_info.items():
                if len(waiting) == 1 and waiting == sender and task < number:
                    self._lost(task, *sender)
            return found
        waited_s = time.monotonic() - self._waits_since
        if waited_s >= self._report_s:
            self._report_s = waited_s + self.stall_s
            worker = self._task_info.get(self._rcvd_idx, (None,))[0]
            sender = "" if worker is None else f" from worker {worker} (pid {self._workers[worker].pid})"
            report(f"waiting for {waited_s:.1f} s for {self.awaited()}{sender}{self._cause(worker)}")
        return found

    def _lost(self, task: int, worker: int) -> None:
        # A worker's batches come in order. Torch would wait for this one for ever, or leave it out where an iterable data set has ended.
        raise RuntimeError(
            f"batch {task} of worker {worker} (pid {self._workers[worker].pid}) was lost on its way: what the worker wrote to stderr says why. Can it be pickled? "
            "Are there file descriptors (ulimit -n) and shared memory left?"
        )

    def _cause(self, worker: int | None) -> str:
        if worker is None:
            return self.cause()
        if _is_stopped(self._workers[worker].pid):
            return f": that process is stopped; `kill -CONT {self._workers[worker].pid}` lets it go on"
        if worker in self.heard or type(self._workers[worker]).__name__ != "ForkProcess":
            return self.cause()
        # It has sent nothing yet.
        return (
            f"{self.cause()}, or the worker has hung since it was forked beside threads of this process, against which "
            "multiprocessing_context='forkserver' helps"
        )

    def awaited(self) -> str:
        """What the loop waits for, in words."""
        raise NotImplementedError

    def cause(self) -> str:
        """What may take so long, in words."""
        raise NotImplementedError


class _MultiProcessingDataLoaderIter(Waiting):
    """For a data set of ours, under torch's name, which profiles show."""

    stall_s = MUTE_S

    def _next_data(self) -> Any:
        self.begin_wait()
        return super()._next_data()  # type: ignore[no-untyped-call] # torch's

    def awaited(self) -> str:
        """What the loop waits for, in words."""
        return f"batch {self._rcvd_idx} of this pass"

    def cause(self) -> str:
        """What may take so long, in words."""
        return ": its decoding or the collate function takes long"


#: The iterator over workers of a loader whose data set is one of ours.
OURS = _MultiProcessingDataLoaderIter
