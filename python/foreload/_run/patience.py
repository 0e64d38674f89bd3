"""How long a loop waits for `decode`, in a loader without worker processes.

The agent watches what it fetches, and a `Stream` ends a wait for it at the loader's time-out. What came is then decoded here, in threads or by
the loop itself, which no agent sees: a wait for a thread is reported and ended here, with the sample's name. The loop's own call of
`decode` can't be ended; it is reported when it returns.
"""

from __future__ import annotations

import logging
import time
import warnings
from concurrent.futures import Future, wait
from typing import Any

from foreload import _core
from foreload._node.source import Source
from foreload.errors import StalledWarning, TimedOutError

_LOG = logging.getLogger("foreload")


class Patience:
    """Waits for decoders, and says so where it takes long.

    Args:
        source: The data set, for the samples' names.
        where: Epoch and rank, for messages.
        timeout_s: Longest wait for a batch; None: no end.
        stall_s: Longer waits are reported, each time that they last so long again. Default: the agent's.
    """

    def __init__(
        self, source: Source, where: str, timeout_s: float | None = None, stall_s: float | None = None
    ) -> None:
        self._source, self._where, self._timeout_s = source, where, timeout_s
        self._stall_s = stall_s or _core.STALL_S
        self.begin()

    def begin(self) -> None:
        """The loop asks for a batch."""
        self._begun, self._report_s = time.monotonic(), min(self._stall_s, self._timeout_s or self._stall_s)

    def result(self, future: Future[Any], batch: int, sample: int) -> Any:
        """What a thread makes of a sample.

        Raises:
            TimedOutError: It takes too long.
        """
        while not self._comes(future):
            self._tell(self._name(sample), "decoded", batch, sample)
        return future.result()

    def made(self, future: Future[Any], batch: int) -> Any:
        """What a thread makes of the decoded samples of a batch.

        Raises:
            TimedOutError: It takes too long.
        """
        while not self._comes(future):
            self._tell("the batch", "collated", batch)
        return future.result()

    def _comes(self, future: Future[Any]) -> bool:
        """Whether it is there, at the latest when something is to be said."""
        waited_s = time.monotonic() - self._begun
        end_s = self._report_s if self._timeout_s is None else min(self._report_s, self._timeout_s)
        return future.done() or bool(wait([future], max(0.0, end_s - waited_s)).done)

    def _tell(self, what: str, how: str, batch: int, sample: int | None = None) -> None:
        waited_s, end_s = time.monotonic() - self._begun, self._timeout_s
        if end_s is not None and waited_s >= end_s:
            raise TimedOutError(
                f"no batch within timeout={end_s} s: {what} is still being {how} ({self._where}, batch {batch})", sample
            )
        if waited_s >= self._report_s:
            self._report(f"waiting for {waited_s:.1f} s for {what} to be {how} ({self._where}, batch {batch})")
            self._report_s = waited_s + self._stall_s

    def decoded(self, took_s: float, batch: int, sample: int) -> None:
        """The loop itself has decoded a sample of the batch."""
        total_s = time.monotonic() - self._begun
        if total_s >= self._report_s:
            self._report(
                f"decoding has taken {total_s:.1f} s of the loop, {took_s:.1f} s of it for {self._name(sample)} ({self._where}, batch {batch}); "
                "the loop itself decodes, which no time-out ends: give threads= or num_workers="
            )
            self._report_s = total_s + self._stall_s

    def _name(self, sample: int) -> str:
        return f"sample {sample} ({self._source.where_of(sample)})"

    @staticmethod
    def _report(message: str) -> None:
        _LOG.warning("%s", message)
        warnings.warn(message, StalledWarning, stacklevel=2)
