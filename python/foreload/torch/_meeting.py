"""Torch's store, as the place where the nodes of a run meet (`foreload._node.meeting`).

| the run has | they meet in |
| --- | --- |
| a place that was named, `Peers(meet=...)` or `FORELOAD_MEET` | a store that the process of rank 0 keeps there |
| a default process group: `init_process_group`, Lightning, Ray Train | its store |
| torchrun alone | the store of torchrun's own process |
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from torch import distributed

from foreload._node import meeting as _meeting
from foreload._node.meeting import AloneError
from foreload._settings import environment as _environment

#: What a store that is there may take to say so.
_ANSWER = dt.timedelta(seconds=10)
#: Stores that this process keeps for the others, by its number and the port.
_kept: dict[tuple[int, int], Any] = {}
_keeping = threading.Lock()
#: Connections to stores that others keep, by this process' number, the host and the port. A store looks up the name of each that connects, which may take it seconds.
_reached: dict[tuple[int, str, int], Any] = {}


def store(
    place: tuple[str, int] | None,
    is_host: bool,
    ask: Callable[[Callable[[], Any]], Any],
    rest: Callable[[str], None],
) -> Any:
    """The store that the ranks of a run have in common.

    Args:
        place: The host and port that were named for it, if they were.
        is_host: Whether this process keeps it there.
        ask: Calls what may not come back.
        rest: Called while somebody is waited for, whom it is told; raises once that takes too long.

    Raises:
        AloneError: There is none.
    """
    if not distributed.is_available():
        raise AloneError("this build of torch has no torch.distributed")
    if place is not None:
        if is_host:
            return ask(lambda: _keep(*place))
        known = ask(lambda: _known(*place))
        if known is not None:
            return known
        while not _is_there(*place):
            rest(f"rank 0 at {place[0]}:{place[1]}")
        return ask(lambda: _reach(*place))
    if distributed.is_initialized():
        with contextlib.suppress(AttributeError, RuntimeError):
            return distributed.distributed_c10d._get_default_store()  # noqa: SLF001 (torch has no public name for it)
    host, port = _environment.get("MASTER_ADDR"), _environment.number("MASTER_PORT")
    if host is None or port is None or _environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        if _environment.get("TORCHELASTIC_RUN_ID") is not None:
            raise AloneError(
                "torchrun was told to keep its store for itself (TORCH_DISABLE_SHARE_RDZV_TCP_STORE, or a rendezvous that has none): call "
                "torch.distributed.init_process_group() before the loader's first pass"
            )
        raise AloneError(
            "start the ranks with torchrun, call torch.distributed.init_process_group() before the loader's first pass, or name a port of rank 0's machine "
            "with FORELOAD_MEET=host:port or Peers(meet=...)"
        )
    return ask(lambda: _known(host, port) or _reach(host, port))


def _keep(host: str, port: int) -> Any:
    """The store of this process at a port: made once, it is there as long as the process."""
    name = (os.getpid(), port)
    # Loaders of two threads may begin together.
    with _keeping:
        if name not in _kept:
            kind: Any = distributed
            try:
                _kept[name] = kind.TCPStore(host, port, is_master=True, timeout=_ANSWER, wait_for_workers=False)
            except Exception as error:  # noqa: BLE001 (what it raises differs between its kinds)
                raise AloneError(
                    f"rank 0 can't keep the nodes' store at {host}:{port}, which FORELOAD_MEET or Peers(meet=...) names: {error}"
                ) from None
        return _kept[name]


def _known(host: str, port: int) -> Any:
    """The connection that there is already, if it answers."""
    name = (os.getpid(), host, port)
    # What doesn't answer, now or in time, is never asked again.
    known = _reached.pop(name, None)
    if known is not None:
        with contextlib.suppress(Exception):
            known.check(["foreload"])
            _reached[name] = known
            return known
    return None


def _reach(host: str, port: int) -> Any:
    """The store that another process keeps."""
    kind: Any = distributed
    try:
        found = kind.TCPStore(host, port, is_master=False, timeout=_ANSWER, wait_for_workers=False)
    except Exception as error:  # noqa: BLE001 (what a store raises when its host is gone differs between its kinds)
        raise AloneError(f"torch's store at {host}:{port} doesn't answer: {error}") from None
    _reached[os.getpid(), host, port] = found
    return found


def _is_there(host: str, port: int) -> bool:
    """Whether somebody listens. Torch's own way of waiting for that says nothing, and can't be interrupted."""
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


_meeting.stores[:] = [store]
