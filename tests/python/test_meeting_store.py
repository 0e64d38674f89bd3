"""Torch's store, as the place where nodes meet: who connects to it, and who keeps it."""

from __future__ import annotations

import importlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from foreload._node import meeting


def test_a_store_is_connected_to_once_and_anew_when_it_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks up the name of each that connects, and where names are slow all wait for that."""
    torch_meeting: Any = importlib.import_module("foreload.torch._meeting")
    distributed: Any = torch_meeting.distributed
    made, kind = [], distributed.TCPStore

    def connect(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return kind(*args, **kwargs)

    monkeypatch.setattr(distributed, "TCPStore", connect)
    monkeypatch.setattr(torch_meeting, "_reached", {})
    for name, value in {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)

    def gone(_whom: str) -> None:
        raise meeting.AloneError("gone")

    for is_named in (True, False):
        kept = kind("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = kept.port
        place = ("127.0.0.1", port) if is_named else None
        monkeypatch.setenv("MASTER_PORT", str(port))
        made.clear()
        found = [torch_meeting.store(place, False, lambda what: what(), gone) for _ in range(3)]
        found[0].set("a", "b")
        assert found[0] is found[1] is found[2]
        assert len(made) == 1
        assert kept.get("a") == b"b"
        del kept
        if is_named:
            with pytest.raises(meeting.AloneError, match="gone"):
                torch_meeting.store(place, False, lambda what: what(), gone)
        again = kind("127.0.0.1", port, is_master=True, wait_for_workers=False)
        other = torch_meeting.store(place, False, lambda what: what(), gone)
        assert other is not found[0]
        assert len(made) == 2
        assert not other.check(["a"])
        del again


def test_loaders_of_two_threads_keep_one_store(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_meeting: Any = importlib.import_module("foreload.torch._meeting")
    monkeypatch.setattr(torch_meeting, "_kept", {})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    at_once, kind = threading.Barrier(4), torch_meeting.distributed.TCPStore

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.2)
        return kind(*args, **kwargs)

    monkeypatch.setattr(torch_meeting.distributed, "TCPStore", slow)

    def keep(_: int) -> Any:
        at_once.wait()
        return torch_meeting._keep("127.0.0.1", port)

    with ThreadPoolExecutor(4) as pool:
        assert len({id(kept) for kept in pool.map(keep, range(4))}) == 1
