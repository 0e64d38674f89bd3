"""Torch's store, as the place where the nodes of a run meet (`foreload._node.meeting`)."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from typing import Any

from torch import distributed

from foreload._node import meeting as _meeting
from foreload._node.meeting import AloneError
from foreload._settings import environment as _environment


def store(end: float) -> Any:
    """The store of the default process group, or of torchrun.

    Args:
        end: Until when its host may be waited for, by the monotonic clock.

    Raises:
        AloneError: There is neither.
    """
    if not distributed.is_available():
        raise AloneError("this build of torch has no torch.distributed")
    if distributed.is_initialized():
        with contextlib.suppress(AttributeError, RuntimeError):
            return distributed.distributed_c10d._get_default_store()  # noqa: SLF001 (torch has no public name for it)
    host, port = _environment.get("MASTER_ADDR"), _environment.number("MASTER_PORT")
    if host is None or port is None or _environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise AloneError(
            "start the ranks with torchrun, or call torch.distributed.init_process_group() before the loader's first pass"
        )
    left = dt.timedelta(seconds=max(1.0, end - time.monotonic()))
    kind: Any = distributed
    try:
        return kind.TCPStore(host, port, is_master=False, timeout=left, wait_for_workers=False)
    except Exception as error:  # noqa: BLE001 (what a store raises when its host is gone differs between its kinds)
        raise AloneError(f"torch's store at {host}:{port} doesn't answer: {error}") from None


_meeting.stores[:] = [store]
