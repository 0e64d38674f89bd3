"""Which nodes share their caches: a setting, which opens nothing."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from foreload._settings import environment as _environment
from foreload._settings import numbers as _numbers
from foreload.errors import InvalidError

#: Characters of a secret: fewer can be guessed.
_LEAST_SECRET = 16


@dataclass(frozen=True)
class Peers:
    """The nodes of a run share their caches: each sample leaves the bucket once, as far as all of them together can hold it, and comes from a node after that.

    The nodes find each other through the store of torch's launcher (torchrun, or the default process group where there is one). Each keeps a part of the data
    set, and is asked for it by the others over plain HTTP, signed with a secret that all of them know. What a node can't be had from comes from the bucket.

    Attributes:
        secret: What the nodes sign with: at least 16 characters, the same on all of them. Default: the variable `FORELOAD_SECRET`, or the content of the file that
            `FORELOAD_SECRET_FILE` names.
        host: This node's address, as the others reach it. Default: `FORELOAD_HOST`, otherwise the one from which this node reaches torch's master.
        wait_s: How long a node waits for the others before it goes on without them, in seconds.

    Raises:
        InvalidError: There is no secret, it is too short, or the address is none.

    Example:
        >>> Peers(secret="known to these nodes only", host="10.0.0.7").address()
        '10.0.0.7'
    """

    secret: str | None = field(default=None, repr=False)
    host: str | None = None
    wait_s: float = 60.0

    def __post_init__(self) -> None:
        self.word()
        self.address()
        _numbers.amount("Peers(wait_s=...)", self.wait_s, most=86_400)

    def word(self) -> str:
        """The secret."""
        found, what = self.secret, "Peers(secret=...)"
        if found is None:
            found, what = _environment.get("FORELOAD_SECRET"), "the variable FORELOAD_SECRET"
        if found is None and (name := _environment.get("FORELOAD_SECRET_FILE")):
            what = f"the file {name}, which FORELOAD_SECRET_FILE names,"
            try:
                found = Path(name).read_text("utf-8").strip()
            except (OSError, ValueError) as error:
                raise InvalidError(f"{what} can't be read: {error}") from None
        if found is None:
            raise InvalidError(
                "Cache(peers=...): nodes that share their caches need a secret. Set FORELOAD_SECRET to the same on all nodes, such as what "
                "`openssl rand -hex 32` prints, or give Peers(secret=...)"
            )
        if not isinstance(found, str) or len(found) < _LEAST_SECRET:
            raise InvalidError(f"{what} has fewer than {_LEAST_SECRET} characters: anyone could guess it")
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
