"""One epoch of one rank, as batches in memory.

A `Stream` asks the agent for a few batches ahead, takes them in order, measures how long the consumer waited, and logs what the agent has to say. An agent
that ended is replaced, and the stream goes on where it was.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from foreload import _core
from foreload._node import agent as _agent
from foreload._run.failed import Failed
from foreload._run.position import Cursor, Had
from foreload._run.readings import Readings
from foreload._run.run import Run
from foreload._settings.failures import Failures
from foreload.errors import (
    BugError,
    CancelledError,
    ChangedError,
    ClosedError,
    CorruptError,
    DeniedError,
    ForeloadError,
    ForkedError,
    InvalidError,
    NoMemoryError,
    NotFoundError,
    TimedOutError,
    WaitingError,
)

_LOG = logging.getLogger("foreload")
#: Batches asked for beyond the one that is waited for. The agent reads ahead by itself; this hides the way to it and back.
_AHEAD = 2
#: An agent that ends again before so many batches have come, within so many seconds, is ended by something that goes on.
_PROGRESS, _PROGRESS_S = 8, 60.0
#: Larger batches are not made ahead: 64 MiB take 15 ms, and a third copy beside the loop's two would cost more memory than that is worth.
_AHEAD_BYTES = 64 << 20
#: A sample can't be had, and may be left out.
_BAD = (CorruptError, ChangedError, NotFoundError, NoMemoryError)
#: Errors of the pass: no other batch of it comes.
_OVER = (TimedOutError, ForkedError, CancelledError, BugError)


class Stream(Iterator[tuple[int, "_core.Delivery | Failed"]]):
    """The batches of this rank from a position to the end of the epoch, `Failed` in the place of one that can't be had.

    Args:
        run: The run.
        epoch: The epoch.
        first: The first batch.
        timeout_s: Longest wait for one batch; None: as long as the agent tries.
        failures: What to do with samples that can't be read.
        again: How many passes of the same epoch came before.
    """

    def __init__(
        self,
        run: Run,
        epoch: int,
        first: int,
        *,
        timeout_s: float | None = None,
        failures: Failures | None = None,
        again: int = 0,
    ) -> None:
        self.run, self.epoch, self._lap = run, epoch, run.lap(epoch)
        #: How many passes of the same epoch came before.
        self.again = again
        self._process = os.getpid()
        self._timeout_s = timeout_s
        self._failures = failures or Failures()
        late = f"no batch within timeout={timeout_s} s (epoch {epoch}, batch {first}, rank {run.rank}): the agent doesn't answer"
        with _agent.within(timeout_s, late):
            self._begin(run, first)

    def _begin(self, run: Run, first: int) -> None:
        run.agree()
        self._attachment = run.attachment()
        self._next, self._asked, self._count = first, first, len(run)
        self._wants: deque[tuple[_core.Job, int]] = deque()
        self._ready: _core.Delivery | None = None
        self._reconnected_at: tuple[int, float] | None = None
        #: Names this pass at its attachment, without keeping it alive.
        self._token = object()
        #: Whether another pass over the same loader has begun: the agent follows that one, and answers this one by the samples' numbers.
        self._overtaken = False
        # The job that was started: another one, of an agent that came after, knows nothing of this pass.
        try:
            self._job = self._start(first)
        except ClosedError as error:
            # The agent ended between two passes, which only a call could tell: once more, with a new one.
            _LOG.warning("%s; going on at epoch %d, batch %d", _agent.ending(error), self.epoch, first)
            run.restore()
            self._job = self._start(first)

    def _start(self, batch: int) -> _core.Job:
        where = (self.run.rank, self._lap, self.run.position(self.epoch, batch))
        return self._attachment.start(*where, self._token)

    @property
    def is_ours(self) -> bool:
        """Whether this process began it: false after a fork."""
        return self._process == os.getpid()

    def __next__(self) -> tuple[int, _core.Delivery | Failed]:
        if not self.is_ours:
            raise ForkedError("a pass over a loader belongs to the process that began it; begin another one here")
        if self._next >= self._count:
            self._attachment.agent().flush()
            raise StopIteration
        delivery: _core.Delivery | Failed
        try:
            delivery = self._take()
        except ClosedError as error:
            delivery = self._reconnect(error)
        except _OVER:
            raise
        except ForeloadError as error:
            delivery = self._failed(error)
        self._next += 1
        return self._next - 1, delivery

    def _failed(self, error: ForeloadError) -> Failed:
        """Goes on with the batch after the one that is due."""
        self._asked = max(self._asked, self._next + 1)
        while len(self._wants) >= self._asked - self._next:
            self._withdraw(*self._wants.popleft())
        return Failed(error)

    @property
    def is_over(self) -> bool:
        """Whether all batches were handed out."""
        return self._next >= self._count

    def look_ahead(self, *, any_size: bool = False) -> _core.Delivery | None:
        """The next batch if it has come, and, unless `any_size`, is not too large to have beside the loop's; it is not handed out before `pass_on`."""
        self._ask(self._next + _AHEAD)
        if self._ready is None and self._wants:
            job, want = self._wants[0]
            found = job.take_ready(want)
            if found is not None:
                self._wants.popleft()
                self._ready = found
        found = self._ready
        return found if found is not None and (any_size or found.nbytes <= _AHEAD_BYTES) else None

    def pass_on(self) -> int:
        """Hands out the batch that `look_ahead` showed; its number."""
        self.run.dataset.source.renew()
        self._ready = None
        self._next += 1
        return self._next - 1

    def readings(self, batch: int) -> Readings:
        """Which readings a batch's samples are, for their randomness."""
        return self.run.readings(self.epoch, batch)._replace(again=self.again)

    def flush(self) -> None:
        """Sends what was asked for and what was given back."""
        self._attachment.agent().flush()

    def _ask(self, end: int) -> None:
        """Asks for the batches before `end`, as far as that wasn't done."""
        while self._asked < min(self._count, end):
            self._wants.append((self._job, self._want(self._job, self._asked)))
            self._asked += 1

    def _want(self, job: _core.Job, batch: int) -> int:
        if self._overtaken:
            return job.want_samples(self.run.rank, self._samples(batch))
        return job.want_batch(self.run.rank, self._lap, batch)

    def _samples(self, batch: int) -> list[int]:
        return self.run.plan.batch(self._lap, batch, self.run.rank)

    def _take(self) -> _core.Delivery:
        self.run.dataset.source.renew()
        self._ask(self._next + 1 + _AHEAD)
        if self._ready is not None:
            delivery, self._ready = self._ready, None
            return delivery
        try:
            return self._answer()
        except DeniedError:
            if self.run.dataset.source.credentials is None:
                raise
            self.run.dataset.source.renew_now()
        except _BAD as error:
            return self._without(error)
        except (CancelledError, InvalidError):
            self._overtaken = True
        try:
            return self._again([])
        except _BAD as error:
            return self._without(error)

    def _answer(self) -> _core.Delivery:
        """What the oldest want brings; one that is interrupted remains, and is waited for or withdrawn later."""
        try:
            delivery = self._wait(*self._wants[0])
        except ForeloadError:
            self._wants.popleft()
            raise
        self._wants.popleft()
        return delivery

    def _wait(self, job: _core.Job, want: int) -> _core.Delivery:
        where = f" (epoch {self.epoch}, batch {self._next}, rank {self.run.rank})"
        try:
            return self._attachment.take(job, want, self._timeout_s, lambda: self._samples(self._next), where)
        except WaitingError:
            self._withdraw(job, want)
            raise TimedOutError(f"no batch within timeout={self._timeout_s} s{where}") from None

    def _without(self, error: ForeloadError) -> _core.Delivery:
        """Fetches the batch again without the samples that can't be had."""
        bad: list[int] = []
        while True:
            too_small = isinstance(error, NoMemoryError) and not self._attachment.is_too_large(error)
            if error.sample is None or error.sample in bad or too_small:
                raise error
            self._failures.failed(error)
            bad.append(error.sample)
            try:
                return self._again(bad)
            except _BAD as another:
                error = another

    def _again(self, bad: list[int]) -> _core.Delivery:
        samples = [sample for sample in self._samples(self._next) if sample not in bad]
        return self._wait(self._job, self._job.want_samples(self.run.rank, samples))

    def _reconnect(self, error: ClosedError) -> _core.Delivery:
        """Goes on with a new agent: if that ends before it has brought some batches, something ends it."""
        now, before = time.monotonic(), self._reconnected_at
        if before is not None:
            came, took_s = self._next - before[0], now - before[1]
            if came == 0 or (came < _PROGRESS and took_s < _PROGRESS_S):
                raise ClosedError(f"{error}; it is the second one that ended within {came} batches and {took_s:.0f} s")
        self._reconnected_at = self._next, now
        _LOG.warning("%s; going on at epoch %d, batch %d", _agent.ending(error), self.epoch, self._next)
        self._wants.clear()
        self._ready, self._asked = None, self._next
        self.run.restore()
        self._job = self._attachment.job() if self._overtaken else self._start(self._next)
        return self._take()

    @staticmethod
    def _withdraw(job: _core.Job, want: int) -> None:
        if job.is_usable():
            job.withdraw(want)

    def close(self) -> None:
        """Gives back what was asked for and not taken."""
        for job, want in self._wants:
            try:
                self._withdraw(job, want)
            except ForeloadError:
                break
        self._wants.clear()
        self._ready = None
        if not self.is_over and self.is_ours:
            self._attachment.leave(self.run.rank, self._token)

    def __del__(self) -> None:
        # At the interpreter's end the connection closes, which gives back everything. One that was interrupted while it was made has nothing.
        if not sys.is_finalizing() and hasattr(self, "_token"):
            self.close()


class _LeftOut:
    """The type of `LEFT_OUT`; from a worker process it comes as the same object."""

    def __reduce__(self) -> str:
        return "LEFT_OUT"


#: Stands for a batch of which every sample was skipped.
LEFT_OUT = _LeftOut()


def next_had(
    batches: Iterator[tuple[int, Any]], had: Had, cursor: Cursor, run: Run, epoch: int, *, several: Callable[[], bool]
) -> tuple[int, Any] | None:
    """The next batch that is not left out, which the loop has had from now on.

    Args:
        batches: Numbers and batches of a pass.
        had: What the loop has had of it.
        cursor: Where the loader stands.
        run: The run.
        epoch: The pass' epoch.
        several: Whether other ranks have other batches. Then none may be left out: a rank that takes fewer steps than the others leaves
            them waiting for ever.

    Returns:
        Its number, and the batch; None: the pass is over.

    Raises:
        InvalidError: A batch would be left out, and there are several ranks.
        ClosedError: An error has ended the pass before.
    """
    if had.broken is not None:
        raise ClosedError(had.broken)
    failed = len(had.failed)
    try:
        return _next_had(batches, had, cursor, run, epoch, several)
    except BaseException as error:
        if len(had.failed) == failed:
            # What iterates over a generator that has raised takes it for the end.
            had.broken = (
                f"this pass over the loader was ended by an error ({type(error).__name__}: {error}); begin another one"
            )
        raise


def _next_had(
    batches: Iterator[tuple[int, Any]], had: Had, cursor: Cursor, run: Run, epoch: int, several: Callable[[], bool]
) -> tuple[int, Any] | None:
    for number, batch in batches:
        if type(batch) is Failed:
            had.failed.append(number)
            batch.fail()
        if batch is LEFT_OUT and several():
            raise InvalidError(
                f"every sample of batch {number} of epoch {epoch} was skipped on rank {run.rank}, and one of several ranks can't take fewer steps "
                "than the others: give a larger batch_size, or repair the samples that the log names"
            )
        had.add(number)
        cursor.consumed(epoch, had.batches, had.beyond)
        if batch is not LEFT_OUT:
            return number, batch
    if had.failed:
        had.add(had.failed[-1])
        cursor.consumed(epoch, had.batches, had.beyond)
    cursor.ended()
    return None
