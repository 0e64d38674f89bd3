"""How the nodes of a run find each other.

Each node's first rank has the agent answer others, and says where in torch's store; then it waits for the other nodes, and tells its agent of all of them. The node's other
ranks wait for that, so that nothing is read before it is known who keeps it. Nobody waits for longer than was asked for: a node that others don't come to goes on alone.

| the store has | who says it |
| --- | --- |
| `rank/R`: the first rank of R's node | each rank that isn't a node's first |
| `rank/R`: address and room of a node | its first rank R, and once more when its agent was replaced |
| `told/R` | the agent of the node whose first rank is R knows of all the others: before that it has nothing for them |
| `ready/R` | all agents do, or that node has given up |
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from foreload._node.ranks import Ranks
from foreload._settings import environment as _environment
from foreload._settings.peers import Peers
from foreload.errors import InvalidError

_LOG = logging.getLogger("foreload")
#: Where the nodes meet: made by whoever knows torch, of the time until which somebody may be waited for; `AloneError` where there is none.
stores: list[Callable[[float], Any]] = []
#: How often is looked whether somebody has come.
_LOOK_S = 0.02


@dataclass
class Meeting:
    """Where the nodes of one job meet.

    Attributes:
        peers: The setting.
        ranks: This process' place.
        name: The job's, the same on all nodes.
    """

    peers: Peers
    ranks: Ranks
    name: str
    _process: int = field(default_factory=os.getpid)
    #: What the agent was told last.
    _members: list[dict[str, Any]] = field(default_factory=list)

    def meet(self, call: Callable[..., dict[str, Any]]) -> None:
        """Tells the agent of the other nodes, once all of them are there.

        Args:
            call: Calls the agent about the job.
        """
        # Workers come when their loader has met the others.
        if os.getpid() != self._process:
            return
        first = min(self.ranks.local)
        try:
            board = _Board(self.name, time.monotonic() + self.peers.wait_s)
            if self.ranks.rank != first:
                board.put(f"rank/{self.ranks.rank}", {"first": first})
                board.get(f"ready/{first}")
                return
            try:
                found = call("listen", host=self.peers.address() or _towards_master(), secret=self.peers.word())
                own = {"first": first, "address": found["address"], "keeps_bytes": found["keeps_bytes"]}
                board.put(f"rank/{first}", own)
                firsts = {int(board.get(f"rank/{rank}")["first"]) for rank in range(self.ranks.world)}
                self._tell(call, board, sorted(firsts))
                board.put(f"told/{first}", {})
                for other in firsts:
                    board.get(f"told/{other}")
                _LOG.info("%d nodes share their caches", len(firsts))
            finally:
                board.put(f"ready/{first}", {})
        except (InvalidError, AloneError) as error:
            _LOG.warning("this node shares its cache with no other: %s", error)

    def meet_again(self, call: Callable[..., dict[str, Any]]) -> None:
        """Tells the agent where the other nodes are now: the agent of one may have been replaced since. Waits for nobody.

        Args:
            call: Calls the agent about the job.
        """
        if os.getpid() == self._process and self._members:
            with contextlib.suppress(AloneError):
                self._tell(call, _Board(self.name, time.monotonic()), [member["id"] for member in self._members])

    def _tell(self, call: Callable[..., dict[str, Any]], board: _Board, firsts: list[int]) -> None:
        nodes = [board.get(f"rank/{first}") for first in firsts]
        members = [{"id": node["first"], **{k: node[k] for k in ("address", "keeps_bytes")}} for node in nodes]
        if members != self._members:
            call("peers", me=min(self.ranks.local), members=members, secret=self.peers.word())
            self._members = members


class AloneError(Exception):
    """The others can't be met: a node goes on by itself."""


class _Board:
    """Torch's store, under names of our own, until a time."""

    def __init__(self, name: str, end: float) -> None:
        if not stores:
            raise AloneError("nodes find each other through torch's store: import foreload.torch")
        self._store, self._name, self._end = stores[0](end), f"foreload/{name}", end

    def put(self, key: str, value: dict[str, Any]) -> None:
        try:
            self._store.set(f"{self._name}/{key}", json.dumps(value))
        except Exception as error:  # noqa: BLE001 (what a store raises when its host is gone differs between its kinds)
            raise AloneError(f"torch's store doesn't answer: {error}") from None

    def get(self, key: str) -> dict[str, Any]:
        """What somebody says; waits for it."""
        name = f"{self._name}/{key}"
        try:
            # A store's own way of waiting can't be interrupted.
            while not (is_there := self._store.check([name])) and time.monotonic() < self._end:
                time.sleep(_LOOK_S)
            found = self._store.get(name) if is_there else b"null"
        except Exception as error:  # noqa: BLE001
            raise AloneError(f"torch's store doesn't answer: {error}") from None
        value: dict[str, Any] | None = json.loads(found)
        if value is None:
            kind, _, number = key.partition("/")
            raise AloneError(
                f"{f'rank {number}' if kind == 'rank' else 'the first rank of this node'} did not come in time"
            )
        return value


def _towards_master() -> str:
    """This machine's address as the others see it: that from which it would send to torch's master.

    Raises:
        InvalidError: It has none.
    """
    host = _environment.get("MASTER_ADDR") or "localhost"
    own = _sends_from(host)
    if ipaddress.ip_address(own).is_loopback and host != "localhost" and not _is_loopback(host):
        # The master is this machine, whose own name is often an address that nobody else reaches: then that of its way out (RFC 5737; nothing is sent).
        own = _sends_from("192.0.2.1")
    return own


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _sends_from(host: str) -> str:
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # Nothing is sent.
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise InvalidError(f"no address of this machine leads to {host}: {error}; give Peers(host=...)") from None
