"""What can go wrong, as exceptions that say what the caller can do about it.

Each class derives from `ForeloadError` and from the built-in that it resembles, so that code which knows nothing of Foreload
catches what it expects (`except FileNotFoundError`). The native half knows kinds, which are words, and asks `of` for the
exception of a kind. All of them survive pickling, because a worker of a loader sends its exception to its parent.
"""

from __future__ import annotations

import logging
import re
import warnings

__all__ = [
    "BugError",
    "CancelledError",
    "ChangedError",
    "ClosedError",
    "CorruptError",
    "DecodeError",
    "DeniedError",
    "ForeloadError",
    "ForkedError",
    "InvalidError",
    "NoMemoryError",
    "NotFoundError",
    "StalledWarning",
    "StateError",
    "TimedOutError",
    "UnavailableError",
    "WaitingError",
    "name_sample",
    "of",
    "report",
]


#: Names the sample in the text of an error, which is all that torch sends from a worker to its parent.
_NAMED = re.compile(r"^\[sample (\d+)\]$", re.MULTILINE)


class ForeloadError(Exception):
    """Any error of Foreload.

    Args:
        message: What happened, to which sample and object, and what helps.
        sample: The sample's number, where one is concerned.

    Attributes:
        kind: The word for it that the agent and the logs use.
        sample: The sample's number, or None.
    """

    kind = "error"

    def __init__(self, message: str, sample: int | None = None) -> None:
        super().__init__(message)
        if sample is None and (named := _NAMED.search(message)):
            sample = int(named[1])
        self.sample = sample


def name_sample(error: ForeloadError) -> None:
    """Lets an error keep its sample on a way on which only its text and traceback travel."""
    if error.sample is not None:
        error.add_note(f"[sample {error.sample}]")


class InvalidError(ForeloadError, ValueError):
    """The call can't work as it was made; change it."""

    kind = "invalid"


class StateError(InvalidError):
    """A checkpoint that belongs to another run than this loader's."""


class NotFoundError(ForeloadError, FileNotFoundError):
    """The bucket, prefix or object doesn't exist."""

    kind = "not-found"


class DeniedError(ForeloadError, PermissionError):
    """The store refuses: credentials are missing, wrong, expired or not sufficient."""

    kind = "denied"


class UnavailableError(ForeloadError, ConnectionError):
    """The store didn't answer in time, after all retries."""

    kind = "unavailable"


class TimedOutError(ForeloadError, TimeoutError):
    """Something took longer than the caller allowed."""

    kind = "timeout"


class WaitingError(TimedOutError):
    """Nothing has come within the time of one look; the wait itself may go on."""

    kind = "waiting"


class CorruptError(ForeloadError, ValueError):
    """The bytes are not what the index, the object's header or the checksum says."""

    kind = "corrupt"


class ChangedError(CorruptError):
    """The object was replaced since it was indexed: index it again (`refresh=True`)."""

    kind = "changed"


class DecodeError(ForeloadError, ValueError):
    """A sample's bytes came, and `decode` or `transform` failed on them; the cause is chained."""

    kind = "decode"


class NoMemoryError(ForeloadError, MemoryError):
    """A sample or batch doesn't fit the memory budget."""

    kind = "no-memory"


class CancelledError(ForeloadError):
    """The loader was started anew while this was under way."""

    kind = "cancelled"


class ClosedError(ForeloadError, ConnectionError):
    """The agent, the job or a worker is gone."""

    kind = "closed"


class ForkedError(ForeloadError, RuntimeError):
    """A connection was used that belongs to the parent process."""

    kind = "forked"


class BugError(ForeloadError, RuntimeError):
    """A mistake of Foreload; please report it with the message."""

    kind = "bug"


class StalledWarning(RuntimeWarning):
    """A loader has waited longer than it should; the message says for what."""


_LOG = logging.getLogger("foreload")


def report(kind: str, message: str) -> None:
    """Logs what the agent, or the connection to it, wants somebody to read, and warns of stalls.

    The native half calls it too, while it waits.

    Args:
        kind: A word of the agent's.
        message: The message.
    """
    if kind in ("stalled", "starved"):
        _LOG.warning("%s", message)
        warnings.warn(message, StalledWarning, stacklevel=3)
    else:
        _LOG.warning("%s: %s", kind, message)


_CLASSES: dict[str, type[ForeloadError]] = {
    known.kind: known
    for known in (
        InvalidError,
        NotFoundError,
        DeniedError,
        UnavailableError,
        TimedOutError,
        WaitingError,
        CorruptError,
        ChangedError,
        DecodeError,
        NoMemoryError,
        CancelledError,
        ClosedError,
        ForkedError,
        BugError,
    )
}


def of(kind: str, message: str, sample: int | None = None) -> ForeloadError:
    """Makes the exception of a kind.

    Args:
        kind: A word of the agent's, such as `not-found`.
        message: The message.
        sample: The sample's number, where one is concerned.

    Returns:
        An instance of the class for it; of `ForeloadError` itself for a kind that a newer agent invented.

    Example:
        >>> error = of("not-found", "s3://bucket/cat.jpg doesn't exist", 17)
        >>> isinstance(error, FileNotFoundError), error.sample
        (True, 17)
    """
    return _CLASSES.get(kind, ForeloadError)(message, sample)
