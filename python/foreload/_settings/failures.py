"""What to do with a sample that can't be read or decoded.

The default is to raise. `skip` leaves such samples out, names each in the log, and gives up when too many come in a row, because then it is
not the samples that are broken.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

from foreload.errors import ForeloadError, InvalidError

_LOG = logging.getLogger("foreload")


@dataclass(frozen=True)
class skip:  # noqa: N801 (reads as a verb: `on_error=foreload.skip(max_consecutive=10)`)
    """Leaves samples out that are damaged, gone, replaced, larger than the memory, or can't be decoded.

    What may not be read, and a store that fails, are errors all the same: they are seldom the trouble of one sample.

    Attributes:
        max_consecutive: How many may follow each other, in each process that decodes. 100: a damaged shard, but not a wrong `decode`.
    """

    max_consecutive: int = 100


#: What `on_error` takes.
OnError = Literal["raise"] | skip


@dataclass
class Failures:
    """Counts failures, and decides about each.

    Attributes:
        rule: What the loader was told.
    """

    rule: OnError = "raise"
    _skipped: int = 0
    _in_a_row: int = 0
    #: Samples left out by each worker process, in memory that all of them share.
    _shared: Any = None
    _worker: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.rule != "raise" and not isinstance(self.rule, skip):
            raise InvalidError(f"on_error={self.rule!r}: give 'raise' or foreload.skip(max_consecutive=...)")

    @property
    def skips(self) -> bool:
        """Whether failures are left out at all."""
        return self.rule != "raise"

    @property
    def skipped(self) -> int:
        """Samples left out so far, in this process and in its workers."""
        return self._skipped + (0 if self._shared is None else int(self._shared.sum()))

    def share(self, counts: Any) -> None:
        """Lets worker processes count where this process sees it.

        Args:
            counts: A tensor in shared memory, with a number for each worker.
        """
        self._shared = counts

    def count_as(self, worker: int) -> None:
        """This process is a worker."""
        self._worker = worker

    def failed(self, error: ForeloadError) -> None:
        """Takes note of a failure.

        Raises:
            ForeloadError: The failure, if it is not to be skipped.
        """
        with self._lock:
            self._in_a_row += 1
            if not isinstance(self.rule, skip) or self._in_a_row > self.rule.max_consecutive:
                raise error
            if self._worker is None or self._shared is None:
                self._skipped += 1
            else:
                self._shared[self._worker] += 1
        # The text and not the error, whose traceback would keep the batch alive in handlers that keep records.
        _LOG.warning("skipped: %s", str(error))

    def succeeded(self) -> None:
        """Takes note of a success."""
        self._in_a_row = 0

    def left_out(self, samples: int) -> bool:
        """Takes note of a batch that nothing decodes, of which so many samples came: whether it is to be left out."""
        if samples:
            self.succeeded()
        return not samples and self.skips

    def __getstate__(self) -> dict[str, object]:
        return {"rule": self.rule, "_shared": self._shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc] # the state is the constructor's arguments
