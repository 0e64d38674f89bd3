"""Which nodes share their caches: a setting, which opens nothing."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foreload._settings import environment as _environment
from foreload._settings import numbers as _numbers
from foreload.errors import InvalidError

#: Characters of a secret: fewer can be guessed.
_LEAST_SECRET = 16
#: Nodes that may share.
_MOST_NODES = 65_534


@dataclass(frozen=True)
class Peers:
    """The nodes of a run share their caches: each sample leaves the bucket once, as far as all of them together can hold it, and comes from a node after that.

    The nodes find each other through the store of torch's launcher (torchrun, or the default process group where there is one), or where `meet` says. Each keeps
    a part of the data set, and is asked for it by the others over HTTP, sealed with a secret that all of them know. What a node can't be had from comes
    from the bucket.

    Attributes:
        secret: What the nodes seal requests and answers with: at least 16 characters, the same on all of them. Default: the variable `FORELOAD_SECRET`, or the content of the file that
            `FORELOAD_SECRET_FILE` names.
        host: This node's address, as the others reach it. Default: `FORELOAD_HOST`, otherwise the one from which this node reaches torch's master.
        wait_s: How long a node waits for the others before it goes on without them, in seconds.
        meet: Where the nodes find each other if not through torch's store: `"host:port"` of the machine of rank 0, whose process listens there, or a communicator
            of mpi4py whose rank 0 is data rank 0. All its ranks make the setting then, because rank 0 tells the others its address. Default: `FORELOAD_MEET`.
        tls: Whether what they send each other is encrypted (TLS 1.3, with a key that follows from the secret), which costs both about as much CPU time again. All nodes say the same.
        group: How many nodes share with each other, at most: nodes are divided evenly into groups of neighbours, by their addresses, each of which keeps the data set for itself and reads it from the
            bucket once. So a node has fewer others to be connected to, and traffic stays near. Default: all nodes share. `foreload plan` proposes a number. All nodes say the same.

    Raises:
        InvalidError: There is no secret, it is too short, or an address is none.

    Example:
        >>> Peers(secret="known to these nodes only", host="10.0.0.7").address()
        '10.0.0.7'
    """

    secret: str | None = field(default=None, repr=False)
    host: str | None = None
    wait_s: float = 60.0
    meet: Any = None
    tls: bool = False
    group: int | None = None

    def __post_init__(self) -> None:
        self.word()
        self.address()
        if hasattr(self.meet, "bcast"):
            # A setting is copied and pickled, and a communicator is neither.
            object.__setattr__(self, "meet", _told_by_the_first(self.meet, self.address()))
        self.place()
        if not isinstance(self.tls, bool):
            raise InvalidError(f"Peers(tls={self.tls!r}): give True or False")
        _numbers.amount("Peers(wait_s=...)", self.wait_s, most=86_400)
        if self.group is not None:
            _numbers.count("Peers(group=...)", self.group, 2, _MOST_NODES)

    def word(self) -> str:
        """The secret."""
        found, what = self.secret, "Peers(secret=...)"
        if found is None:
            found, what = _environment.get("FORELOAD_SECRET"), "the variable FORELOAD_SECRET"
        if found is None and (name := _environment.get("FORELOAD_SECRET_FILE")):
            what = f"the file {name}, which FORELOAD_SECRET_FILE names,"
            try:
                found = Path(name).expanduser().read_text("utf-8").strip()
            except (OSError, ValueError, RuntimeError) as error:
                raise InvalidError(f"{what} can't be read: {error}") from None
        if found is None:
            raise InvalidError(
                "Cache(peers=...): nodes that share their caches need a secret. Set FORELOAD_SECRET to the same on all nodes, such as what "
                "`openssl rand -hex 32` prints, or give Peers(secret=...)"
            )
        if not isinstance(found, str) or len(found.strip()) < _LEAST_SECRET:
            raise InvalidError(
                f"{what} has fewer than {_LEAST_SECRET} characters, blanks around it not counted: anyone could guess it"
            )
        return found

    def address(self) -> str | None:
        """The address that was named, if one was."""
        named, what = self.host, "Peers(host=...)"
        if named is None:
            named, what = _environment.get("FORELOAD_HOST"), "the variable FORELOAD_HOST"
        if named is None:
            return None
        try:
            address = ipaddress.ip_address(named)
        except ValueError:
            raise InvalidError(f"{what}: {named!r} is no address, such as 10.0.0.7") from None
        if address.is_multicast or address.is_unspecified or str(address) == "255.255.255.255":
            raise InvalidError(f"{what}: {named!r} is no single machine's address, such as 10.0.0.7")
        return str(address)

    def place(self) -> tuple[str, int] | None:
        """The host and the port where the nodes find each other, if they were named."""
        named, what = self.meet, "Peers(meet=...)"
        if named is None:
            named, what = _environment.get("FORELOAD_MEET"), "the variable FORELOAD_MEET"
        if named is None:
            return None
        host, _, port = named.rpartition(":") if isinstance(named, str) else ("", "", "")
        if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 1 << 16:
            raise InvalidError(f"{what}: {named!r} is no place to meet, such as node0:29512")
        return host.removeprefix("[").removesuffix("]"), int(port)


def _told_by_the_first(ranks: Any, address: str | None) -> str:
    """Where the first rank of a communicator will listen."""
    place = None
    if ranks.Get_rank() == 0:
        host = address or socket.gethostname()
        with contextlib.closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as probe:
            probe.bind(("", 0))
            place = f"{host}:{probe.getsockname()[1]}"
    return str(ranks.bcast(place))
