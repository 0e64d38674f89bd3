"""What a worker process does besides reading, and what a batch carries through it besides itself.

A worker ends with the trainer that started it. Torch's own look at this sees that a parent has changed, which a fork server's workers never see,
and a worker whose batch nobody takes from a full pipe never looks. So a thread waits for the trainer's end.

Torch hands batches over without saying which they are, and with `in_order=False` they come as they are finished. So a worker wraps each in a
`Numbered`, and the parent counts what the loop has had by these numbers. The loader puts `Collate` before the user's collate function
in the workers only; nobody else sees it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory as _pin

from foreload._run.failed import attempted
from foreload._run.stream import LEFT_OUT
from foreload.torch._batch import Found


class Numbered:
    """A batch and its number in the epoch.

    Args:
        number: The number.
        batch: The batch.
    """

    __slots__ = ("batch", "number")

    def __init__(self, number: int, batch: Any) -> None:
        self.number, self.batch = number, batch

    def pin_memory(self, device: Any = None) -> Numbered:
        """What torch's pinning thread calls."""
        return Numbered(self.number, _pin(self.batch, device))  # type: ignore[no-untyped-call] # torch's

    def opened(self) -> tuple[int, Any]:
        """Both; this object lets go of the batch."""
        batch, self.batch = self.batch, None
        return self.number, attempted(batch.reraise) if isinstance(batch, ExceptionWrapper) else batch


def failure() -> ExceptionWrapper:
    """The error that is being handled, as torch's workers send one."""
    info: Any = get_worker_info()
    return ExceptionWrapper(where=f"in DataLoader worker process {info.id}")  # type: ignore[no-untyped-call] # torch's


class Begin:
    """A worker's first step: the data set's, then the user's.

    Args:
        init: The loader's `worker_init_fn`.
    """

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        info.dataset.settle(worker)
        if self._init is not None:
            self._init(worker)


class Ending:
    """The first step of a worker over anybody's data set: it ends with its trainer.

    Args:
        init: The loader's `worker_init_fn`.
    """

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        end_with_the_trainer()
        if self._init is not None:
            self._init(worker)


def end_with_the_trainer() -> None:
    """Ends this process when the one that started it has ended, however it did."""
    trainer = multiprocessing.parent_process()
    if trainer is None or trainer.pid is None:
        return
    try:
        # Not the sentinel, which closes also when the trainer merely forgets its worker.
        end: int = os.pidfd_open(trainer.pid)
    except ProcessLookupError:
        os._exit(1)
    except OSError:
        # Linux before 5.3, or a sandbox without the call.
        end = trainer.sentinel
    with contextlib.suppress(RuntimeError):  # no thread to be had
        threading.Thread(target=_end_after, args=(end,), name="foreload-trainer", daemon=True).start()


def _end_after(end: int) -> None:
    connection.wait([end])
    # Nobody is left to hear of errors, and what this process held goes back with its connections.
    os._exit(1)


class Collate:
    """A collate function whose batches are numbered, over what our data set answers a `Turn` with.

    Args:
        collate: The loader's collate function.
        is_default: Whether it is torch's, so that the batch can be collated into the agent's memory.
        single: Whether samples come one at a time.
    """

    def __init__(self, collate: Callable[[Any], Any], *, is_default: bool, single: bool) -> None:
        self._collate, self._is_default, self._single = collate, is_default, single

    def __call__(self, found: Found | ExceptionWrapper) -> Numbered:
        info: Any = get_worker_info()
        dataset = info.dataset
        if isinstance(found, ExceptionWrapper):
            made: Any = found
        elif dataset.failures.skips and not len(found):
            made = LEFT_OUT
        else:
            try:
                made = self._made(found)
            except Exception:  # noqa: BLE001 (raised where the loop asks)
                made = failure()
        # The number of the turn that the data set has just read.
        return Numbered(dataset.turn, made)

    def _made(self, found: Found) -> Any:
        if self._single:
            return self._collate(found.items()[0])
        return found.collated(parcel=True) if self._is_default else self._collate(found.items())
