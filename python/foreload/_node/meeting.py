"""How the nodes of a run find each other.

Each node's first rank has the agent answer others, and says where in torch's store. The node of rank 0 makes a list of all, each tells its agent of them, and when all have, reading begins:
so nothing is read before it is known who keeps it. The node's other ranks wait for the first, which tells the agent. Nobody waits for longer than was asked for: a node that others don't come to goes on
alone.

A store outlives its ranks where torchrun starts them again, on other nodes even. So each node says a number of its own that nobody knew before, and heeds only a list that has it.

Where samples go to the nodes that keep them, or nodes keep what each of them reads most often, all ranks agree in the same way, before that, on which node each of them is (`Assignment`). Nobody goes
on without the others then: ranks that deal differently would read samples twice. So there are two boards, and who waits at one of them looks at the other: a rank that was told something else is there.

| the store has | who says it |
| --- | --- |
| `node/R`: ranks, address and room of the node whose first rank is R | that rank, and once more when its agent was replaced |
| `list`: all nodes, and what they are to be told by | rank 0 |
| `told/R`: that | the agent of R's node knows of all the others: before, it has nothing for them |
| `go`: that | rank 0: all agents do |
| `moved` | whose agent was replaced, for the others to look again when their next pass begins |
| `how/R` | what rank R was told decides who keeps what; anew each second, while it waits |
| `foreload/at/R`, for all jobs | what it waits to read; the same |
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import logging
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from foreload._node import launcher as _launcher
from foreload._node.ranks import Ranks
from foreload._settings import environment as _environment
from foreload._settings.peers import Peers
from foreload.errors import InvalidError

_LOG = logging.getLogger("foreload")
#: Where the nodes meet: made by whoever knows torch, of the place that was named, whether this process keeps it, what asks in time, and what waits;
#: `AloneError` where there is none.
stores: list[Callable[[tuple[str, int] | None, bool, Callable[..., Any], Callable[[str], None]], Any]] = []
#: How often is looked whether somebody has come.
_LOOK_S = 0.02
#: Who has given up is believed after so long, in seconds.
_GRACE_S = 5.0
#: Where ranks agree on which node each of them is.
_ASSIGN = "/assign"
#: What is said of them.
_GAVE_UP = "has given up"
#: How often is said who is waited for, in seconds.
_SAY_S = 10.0
#: Who waits says so as often, in seconds.
_BEAT_S = 1.0
#: Ranks that are looked at for what they wait for.
_LOOKS_AT = 256
#: A store that says nothing for so long has lost its host, in seconds.
_ANSWER_S = 10.0
#: So long a pass waits to hear whether a node has moved, in seconds: mostly none has.
_SOON_S = 1.0

#: Calls the agent about the job: what, and with which fields.
Call = Callable[..., dict[str, Any]]
#: What all nodes say, and who moved last.
_Found = tuple[list[dict[str, Any]], dict[str, Any] | None]


@dataclass
class _OneOfMany:
    """A process among those of a job, on whichever nodes they are.

    Attributes:
        peers: The setting.
        ranks: This process' place.
        name: The job's, the same on all nodes.
        place: The agent's cache directory.
        what: What is read, for messages.
        how: What decides who keeps what, the same on all ranks, in words.
        reads: What is read, and in which order, the same on all ranks, in words.
    """

    peers: Peers
    ranks: Ranks
    name: str
    place: str
    what: str = "what is read"
    how: str = "the default policy"
    reads: str = ""

    def _board(self, wait_s: float, part: str = "") -> _Board:
        """Where the others are met.

        Args:
            wait_s: How long is waited for them.
            part: What about, if not the caches.
        """
        is_host = self.ranks.rank == 0
        board = _Board(self.name + part, self.what, wait_s, self.ranks.world, self.peers.place(), is_host=is_host)
        board.beside(self.name + ("" if part else _ASSIGN), self.ranks.rank, self.how, self.reads)
        return board

    def _host(self) -> str:
        """This machine's address, as the others reach it."""
        return self.peers.address() or _towards_first(self.peers.place())

    def _own(self, host: str, ranks: list[int]) -> dict[str, Any]:
        """What the others are told of this node, or of some ranks on it."""
        return {
            # The same when its ranks start again, whichever they are then, so that it remains the home of what it keeps.
            "id": _node_number(host.removeprefix("[").removesuffix("]"), self.place),
            "ranks": ranks,
            "nonce": secrets.token_hex(8),
            # Enough to see that two differ, and too little to guess them by.
            "secret": _number(self.peers.word()) % (1 << 20),
            "tls": self.peers.tls,
            "group": self.peers.group,
            "how": self.how,
        }


@dataclass
class Meeting(_OneOfMany):
    """Where the nodes of one job meet."""

    _process: int = field(default_factory=os.getpid)
    #: What all nodes said when they met; none: they haven't.
    _nodes: list[dict[str, Any]] = field(default_factory=list)
    _address: str = ""
    _was_told: bool = False
    _moved: dict[str, Any] | None = None
    _is_alone: bool = False
    _has_met: bool = False
    #: What a look at where the others are now has found, once it has.
    _look: queue.SimpleQueue[_Found | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_look": None}

    def meet(self, call: Call) -> None:
        """Tells the agent of the other nodes, once all of them are there.

        Args:
            call: Calls the agent about the job.
        """
        # Workers come when their loader has met the others.
        if os.getpid() != self._process or self._is_alone:
            return
        first = min(self.ranks.local)
        try:
            board = self._board(self.peers.wait_s)
            if self.ranks.rank != first:
                # One whose agent was replaced has waited before, and the first may have ended.
                while not self._has_met and not call("met")["has"]:
                    board.rest(f"rank {first}, the first of this node,", first)
                self._has_met = True
                return
            try:
                self._share(board, call, first)
                self._say_who_is_there(call)
            except (InvalidError, AloneError) as error:
                # Others need not wait for it.
                board.put(f"node/{first}", {"ranks": list(self.ranks.local), "alone": str(error)})
                raise
            finally:
                # In a restart that finds a store with all that ranks of before have said, only the agent knows who is there.
                call("met", has=True)
        except (InvalidError, AloneError) as error:
            self._is_alone = True
            if self._was_told:
                # Nobody is asked any more.
                with contextlib.suppress(InvalidError):
                    call("peers", me=0, members=[], **self._trust())
            _LOG.warning("%s: this node shares its cache with no other: %s", self.what, error)

    def _say_who_is_there(self, call: Call) -> None:
        """That nodes share, and whom of them this one can't ask."""
        nodes = _sharing(self._nodes)
        found = call("reach")
        group = f", as one of {len(nodes)} nodes in groups of {self.peers.group} at most" if self.peers.group else ""
        text = "%s: %d nodes share their caches, and keep up to %d bytes together%s"
        _LOG.info(text, self.what, found["nodes"], found["keeps_bytes"], group)
        silent = dict(found["silent"])
        numbers = _numbers(nodes)
        told = [
            f"rank {_first(node)} at {node['address']} ({silent[numbers[node['address']]]})"
            for node in nodes
            if numbers[node["address"]] in silent
        ]
        if told:
            more = f", and {len(told) - 3} more" if len(told) > 3 else ""
            _LOG.warning(
                "%s: this node doesn't reach %d of the %d others that it shares with, and reads from the bucket what they keep: %s%s. Open the ports between the nodes; an address that "
                "others can't use is set with FORELOAD_HOST or Peers(host=...)",
                self.what,
                len(told),
                found["nodes"] - 1,
                ", ".join(told[:3]),
                more,
            )

    def _share(self, board: _Board, call: Call, first: int) -> None:
        """Meets the others."""
        found = call("listen", host=self._host(), **self._trust())
        own = {
            **self._own(found["address"].rpartition(":")[0], list(self.ranks.local)),
            "address": found["address"],
            "keeps_bytes": found["keeps_bytes"],
        }
        board.put(f"node/{first}", own)
        self._address = found["address"]
        if self._nodes:
            # What is being looked for is older.
            self._look = None
            board.put("moved", {"nonce": own["nonce"]})
            self._look_again(board, call)
            return
        self._moved = board.look("moved")
        self._nodes = _agree(board, self.ranks.world, own, lambda nodes: self._tell(call, nodes))

    def meet_again(self, call: Call) -> None:
        """Tells the agent where the other nodes are now: the agent of one may have been replaced since.

        Waits for nobody, and for a store that is silent a second at most. What that says later is told as the next pass begins.

        Args:
            call: Calls the agent about the job.
        """
        if os.getpid() != self._process or not self._nodes:
            return
        look, patience_s = self._look, 0.0
        if look is None:
            look, patience_s = queue.SimpleQueue(), _SOON_S
            self._look = look
            threading.Thread(target=self._look_out, args=(look,), name="foreload-looks", daemon=True).start()
        try:
            found = look.get(timeout=patience_s) if patience_s else look.get_nowait()
        except queue.Empty:
            return
        self._look = None
        if found is not None:
            with contextlib.suppress(InvalidError):
                self._go_on(call, *found)

    def _look_out(self, look: queue.SimpleQueue[_Found | None]) -> None:
        found = None
        with contextlib.suppress(AloneError, InvalidError):
            found = self._find(self._board(0.0))
        look.put(found)

    def _look_again(self, board: _Board, call: Call) -> None:
        found = self._find(board)
        if found is not None:
            self._go_on(call, *found)

    def _find(self, board: _Board) -> _Found | None:
        """Where all are now, if one has moved."""
        moved = board.look("moved")
        if moved == self._moved:
            return None
        return [board.look(f"node/{_first(node)}") or node for node in self._nodes], moved

    def _go_on(self, call: Call, nodes: list[dict[str, Any]], moved: dict[str, Any] | None) -> None:
        self._tell(call, nodes)
        self._nodes, self._moved = nodes, moved

    def _tell(self, call: Call, nodes: list[dict[str, Any]]) -> None:
        numbers = _numbers(nodes)
        # Two of one agent are one node.
        members = {
            numbers[node["address"]]: {"address": node["address"], "keeps_bytes": node["keeps_bytes"]}
            for node in _sharing(nodes)
        }
        self._was_told = True
        call(
            "peers",
            me=numbers[self._address],
            members=[{"id": number, **member} for number, member in members.items()],
            group=self.peers.group or 0,
            **self._trust(),
        )

    def _trust(self) -> dict[str, Any]:
        """How nodes know each other."""
        return {"secret": self.peers.word(), "tls": self.peers.tls}


@dataclass
class Assignment(_OneOfMany):
    """Which node each rank of a job is on, where that decides who reads what, or who keeps it."""

    _nodes: list[int] = field(default_factory=list)

    def agree(self) -> list[int]:
        """What tells the node of each rank from others, by rank; waits for all ranks, once.

        Raises:
            InvalidError: They don't all come, or can't meet.
        """
        if not self._nodes:
            rank = self.ranks.rank
            own = self._own(self._host(), [rank])
            try:
                board = self._board(self.peers.wait_s, _ASSIGN)
                # A store outlives its ranks under a launcher alone, which says how many processes there are.
                if _launcher.place() is None and board.look(f"node/{rank}") is not None:
                    raise _twice(own)
                try:
                    board.put(f"node/{rank}", own)
                    told = _agree(board, self.ranks.world, own, lambda _: None)
                except (InvalidError, AloneError) as error:
                    board.put(f"node/{rank}", {"ranks": [rank], "alone": str(error)})
                    raise
            except AloneError as error:
                raise InvalidError(
                    f"{self.what}: {self.how} needs all ranks to agree on who reads what, or keeps it, before the first batch: {error}"
                ) from None
            self._nodes = [node["id"] for node in told]
        return self._nodes


class AloneError(Exception):
    """The others can't be met: a node goes on by itself."""


class SilentError(AloneError):
    """The store says nothing."""


def _agree(
    board: _Board, world: int, own: dict[str, Any], tell: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """What all have said, in the order of their ranks, when all know that all know it.

    Args:
        board: Where `own` was said.
        world: The number of ranks.
        own: What this one has said; who has rank 0 makes the list.
        tell: Is told of a list before that is the one that counts.

    Raises:
        AloneError: They can't be met, or were told otherwise. What a start before this one was told is in no list that counts.
    """
    nodes = _lead(board, world, own, tell) if 0 in own["ranks"] else _follow(board, own, tell)
    for node in nodes:
        if node["how"] != nodes[0]["how"]:
            raise _otherwise(0, nodes[0]["how"], _first(node), node["how"])
    return nodes


def _lead(
    board: _Board, world: int, own: dict[str, Any], tell: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """Makes the list, and waits until all know it."""
    while True:
        nodes = _gather(board, world)
        if own not in nodes:
            raise _twice(own)
        word = secrets.token_hex(8)
        board.put(f"nodes/{word}", nodes)
        board.put("list", word)
        tell(nodes)
        waiting = [node for node in nodes if 0 not in node["ranks"]]
        while True:
            waiting = [node for node in waiting if board.look(f"told/{_first(node)}") != word]
            if not waiting:
                board.put("go", word)
                return nodes
            # What a start before this one had left may have been listed.
            if any(board.look(f"node/{_first(node)}") != node for node in waiting):
                break
            board.rest(f"rank {_first(waiting[0])}", _first(waiting[0]))


def _gather(board: _Board, world: int) -> list[dict[str, Any]]:
    """What all say, in the order of their ranks."""
    while True:
        nodes: list[dict[str, Any]] = []
        left = set(range(world))
        while left and (node := board.look_for_node(min(left))) is not None:
            nodes.append(node)
            left -= {min(left), *node["ranks"]}
        for node in nodes:
            if node["secret"] != nodes[0]["secret"]:
                raise AloneError(
                    f"rank 0 and rank {_first(node)} have different secrets: set FORELOAD_SECRET to the same on all nodes"
                )
            if node["tls"] != nodes[0]["tls"]:
                raise AloneError(f"rank 0 and rank {_first(node)} differ in Peers(tls=...): give all nodes the same")
            if node["group"] != nodes[0]["group"]:
                raise AloneError(f"rank 0 and rank {_first(node)} differ in Peers(group=...): give all nodes the same")
        if not left:
            return nodes
        board.rest(f"rank {min(left)}", min(left))


def _follow(board: _Board, own: dict[str, Any], tell: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
    """Waits for a list with what this one has said, and until all others know it."""
    known = told = None
    nodes: list[dict[str, Any]] = []
    while told is None or board.look("go") != told:
        word = board.look("list")
        if word is not None and word != known:
            known = word
            listed = board.get(f"nodes/{word}", "rank 0")
            if own in listed:
                tell(listed)
                board.put(f"told/{_first(own)}", word)
                told, nodes = word, listed
        board.look_for_node(0)
        if board.look(f"node/{_first(own)}") != own:
            raise _twice(own)
        board.rest("rank 0, or one that it waits for,", 0)
    return nodes


def _twice(own: dict[str, Any]) -> AloneError:
    return AloneError(
        f"another process is data rank {_first(own)}, too: nodes share what they keep where each data rank has one process"
    )


def _otherwise(one: int, ones: str, other: int, others: str) -> AloneError:
    return AloneError(f"rank {one} reads with {ones}, and rank {other} with {others}: give all ranks the same")


def ask(what: Callable[[], Any]) -> Any:
    """Asks the store, in a thread: where its host is silent its own answer never comes, and no signal ends the wait for it.

    Raises:
        SilentError: It says nothing in time.
        AloneError: It failed.
    """
    told: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def say() -> None:
        try:
            told.put((what(), None))
        except Exception as error:  # noqa: BLE001 (what a store raises when its host is gone differs between its kinds)
            told.put((None, error))

    threading.Thread(target=say, name="foreload-meets", daemon=True).start()
    try:
        found, error = told.get(timeout=_ANSWER_S)
    except queue.Empty:
        raise SilentError(f"torch's store doesn't answer for {_ANSWER_S:g} s") from None
    if isinstance(error, AloneError):
        raise error
    if error is not None:
        raise AloneError(
            f"torch's store doesn't answer, as when the process that keeps it, mostly rank 0, has ended; what that says is the reason: {error}"
        )
    return found


class _Board:
    """Torch's store, under names of our own, for some time."""

    def __init__(
        self, name: str, what: str, wait_s: float, ranks: int, place: tuple[str, int] | None, *, is_host: bool
    ) -> None:
        if not stores:
            raise AloneError("nodes find each other through torch's store: import foreload.torch")
        self._begun, self._wait_s, self._what = time.monotonic(), wait_s, what
        self._told_s, self._ranks = self._begun, ranks
        self._elsewhere: dict[int, Any] = {}
        # Who this is isn't said while the store is looked for.
        self._rank: int | None = None
        self._beat_s, self._seen = self._begun, dict[int, Any]()
        # All ask one store.
        self._pause_s = _LOOK_S * max(1.0, ranks / 256)
        self._store, self._name = stores[0](place, is_host, ask, self.rest), f"foreload/{name}"

    def beside(self, name: str, rank: int, how: str, reads: str) -> None:
        """Where ranks are met that don't come here because they read otherwise.

        Args:
            name: The other board's.
            rank: This process'.
            how: How those read that come here.
            reads: What they read.
        """
        self._beside, self._rank, self._how, self._reads = f"foreload/{name}", rank, how, reads
        self._beat()

    def _beat(self) -> None:
        """Says how this rank reads, in words that nobody has said before: it is here."""
        self._beat_s = time.monotonic()
        self.put(f"how/{self._rank}", {"how": self._how, "nonce": secrets.token_hex(4)})
        self._put(f"foreload/at/{self._rank}", {"reads": self._reads, "nonce": secrets.token_hex(4)})

    def put(self, key: str, value: Any) -> None:
        self._put(f"{self._name}/{key}", value)

    def _put(self, name: str, value: Any) -> None:
        ask(lambda: self._store.set(name, json.dumps(value)))

    def look(self, key: str) -> Any:
        """What somebody has said, or None."""
        return self._look(f"{self._name}/{key}")

    def _look_beside(self, rank: int) -> None:
        """Whether a rank is at the other board. What it has left at this one tells nothing: that may be of a start before this one.

        Raises:
            AloneError: It is, and so will not come here.
        """
        there = self._look(f"{self._beside}/how/{rank}")
        # What a start before this one has left doesn't change any more.
        known = self._seen.setdefault(rank, there)
        if there != known and there["how"] != self._how:
            # It has looked here by then, and sees that this one is here, too.
            time.sleep(_BEAT_S)
            self._beat()
            raise _otherwise(rank, there["how"], self._rank or 0, self._how)

    def _look(self, name: str) -> Any:
        found = ask(lambda: self._store.get(name) if self._store.check([name]) else b"null")
        return json.loads(found)

    def get(self, key: str, who: str) -> Any:
        """What somebody says; waits for it. A store's own way of waiting can't be interrupted."""
        while (found := self.look(key)) is None:
            self.rest(who, 0)
        return found

    def look_for_node(self, first: int) -> Any:
        """What a node says, or None.

        Raises:
            AloneError: It goes on alone, and is not about to start again.
        """
        node = self.look(f"node/{first}")
        if node is None or "alone" not in node:
            return node
        # It may be what a start before this one has left: then it says something else soon.
        if time.monotonic() - self._begun > _GRACE_S:
            why = node["alone"]
            raise AloneError(why if _GAVE_UP in why else f"rank {first} {_GAVE_UP}: {why}")
        return None

    def rest(self, who: str, rank: int | None = None) -> None:
        """Before it is looked again.

        Args:
            who: Is waited for.
            rank: Which rank that is, if it may be at the other board.

        Raises:
            AloneError: It is, or it was waited for long enough.
        """
        now = time.monotonic()
        if self._rank is not None and now - self._beat_s > _BEAT_S:
            self._beat()
            if rank is not None:
                self._look_beside(rank)
        if now >= self._begun + self._wait_s:
            raise AloneError(
                f"{who} did not come in {self._wait_s:g} s{self._who_is_elsewhere()}. Give all ranks the same arguments, and peers with them; or more time, Peers(wait_s=...)"
            )
        if now - self._told_s > min(_SAY_S, self._wait_s / 3):
            self._told_s = now
            elsewhere = self._who_is_elsewhere()
            if now - self._begun > _SAY_S:
                _LOG.warning(
                    "%s: waiting for %s, to share caches with its node, for %.0f s so far, and up to %g s%s",
                    self._what,
                    who.rstrip(","),
                    now - self._begun,
                    self._wait_s,
                    elsewhere,
                )
        time.sleep(self._pause_s)

    def _who_is_elsewhere(self) -> str:
        """Names a rank that waits to read something else, if one has said so since this was asked the last time: another seed, say."""
        found = ""
        if self._rank is None:
            # The store is looked for still.
            return found
        for rank in range(min(self._ranks, _LOOKS_AT)):
            said = self._look(f"foreload/at/{rank}")
            before = self._elsewhere.setdefault(rank, said)
            self._elsewhere[rank] = said
            if not found and said != before and said["reads"] != self._reads:
                found = f"; rank {rank} waits to read {said['reads']}, and rank {self._rank} {self._reads}"
        return found


def _sharing(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that haven't given up since all met."""
    return [node for node in nodes if "alone" not in node]


def _numbers(nodes: list[dict[str, Any]]) -> dict[str, int]:
    """By its address, the number of each agent: what it says, unless another one has said that before, as of two containers on one machine's network."""
    found: dict[str, int] = {}
    for node in _sharing(nodes):
        if node["address"] not in found:
            number, at = node["id"], 0
            while number in found.values():
                at += 1
                number = node["id"] ^ _number(str(node["id"]), str(at)) % (1 << 32)
            found[node["address"]] = number
    return found


def _first(node: dict[str, Any]) -> int:
    return int(min(node["ranks"]))


def _node_number(host: str, place: str) -> int:
    """A number of 64 bits for a node: those of neighbours, by their addresses, are neighbours, as nodes of one cache group are."""
    return (int(ipaddress.ip_address(host)) % (1 << 32)) << 32 | _number(host, place) % (1 << 32)


def _number(*words: str) -> int:
    """A number of 64 bits for some words."""
    return int.from_bytes(hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest(), "big")


def _towards_first(place: tuple[str, int] | None) -> str:
    """This machine's address as the others see it: that from which it would send to where they meet, or to torch's master.

    Raises:
        InvalidError: It has none.
    """
    host = (place[0] if place else None) or _environment.get("MASTER_ADDR") or "localhost"
    own = _sends_from(host)
    if ipaddress.ip_address(own).is_loopback and host != "localhost" and not _is_loopback(host):
        # It is this machine, whose own name is often an address that nobody else reaches: then that of its way out (RFC 5737; nothing is sent).
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
