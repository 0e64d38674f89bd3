"""Batches that can't be made, and passes that go on after them.

An error is raised at the batch that it is of, and a loop that catches it goes on with the next batch, as under torch's loader. So what makes batches
hands on `Failed` in the place of one, for a generator that raises has ended, and `foreload._run.stream.next_had` raises it at last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from foreload.errors import TimedOutError


class Failed:
    """What comes in the place of a batch.

    Args:
        error: What is raised there.
    """

    def __init__(self, error: Exception) -> None:
        self._error: Exception | None = error

    def fail(self) -> NoReturn:
        """Raises it, once, and lets go of it: its traceback leads to whoever holds this."""
        error, self._error = self._error, None
        assert error is not None, "a batch is handed out once"
        try:
            raise error
        finally:
            del error


def _stopped(error: StopIteration) -> RuntimeError:
    # Made here: in the frame that the error's traceback leads to, it would be a circle, and hold the pass until it is collected.
    stopped = RuntimeError("what makes the batch raised StopIteration, a collate_fn or a data set")
    stopped.__cause__ = error
    return stopped


def attempted(make: Callable[..., Any], *given: Any) -> Any:
    """What a function makes, or what is to be raised in its place. A time-out is of the pass, which what takes too long holds up."""
    try:
        return make(*given)
    except TimedOutError:
        raise
    except StopIteration as error:
        # The loop would take it for the end of the pass.
        return Failed(_stopped(error))
    except Exception as error:  # noqa: BLE001 (raised where the loop asks)
        return Failed(error)
