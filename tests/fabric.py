"""Machines on networks of their own, for tests and benchmarks: network namespaces on two bridges.

The first network carries what nodes send each other: its cables have a rate, can be pulled, and can be cut between groups of nodes. The second one,
which nothing disturbs, leads to the bucket and carries what torch's processes say to each other. Addresses are from the block that is set aside for
tests of networks (RFC 2544). Needs root, `ip` and `tc` of iproute2, and the right to make namespaces.

Example:
    with Fabric(4, mbit=200) as fabric:
        bucket = Bucket(options=["--address", fabric.bucket])
        process = fabric.popen(0, ["python", "train.py"], env={**os.environ, "FORELOAD_HOST": fabric.data(0)})
        fabric.pull(2)
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self


def _run(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {ran.stderr.strip()}")


class Fabric:
    """Some machines on two networks.

    Args:
        nodes: How many machines.
        mbit: What a cable of the first network carries in each direction, in megabits per second; None: as much as comes.

    Raises:
        RuntimeError: The machine doesn't let it make namespaces, bridges or queues.
    """

    def __init__(self, nodes: int, *, mbit: float | None = None) -> None:
        number = os.getpid()
        self._block = number % 128
        self._name = f"fl{number % 100_000}"
        self.nodes = nodes
        self._data, self._control = f"{self._name}d", f"{self._name}c"
        try:
            for bridge, address in ((self._data, self._address(0, 254)), (self._control, self.bucket)):
                _run("ip", "link", "add", bridge, "type", "bridge")
                _run("ip", "addr", "add", f"{address}/24", "dev", bridge)
                _run("ip", "link", "set", bridge, "up")
            for node in range(nodes):
                self._add(node)
                if mbit is not None:
                    self.cap(node, mbit)
        except BaseException:
            self.close()
            raise

    def _address(self, first: int, host: int) -> str:
        return f"198.19.{first + self._block}.{host}"

    @property
    def bucket(self) -> str:
        """Where a bucket has to listen, for all nodes to reach it."""
        return self._address(128, 254)

    def data(self, node: int) -> str:
        """A node's address on the first network."""
        return self._address(0, node + 1)

    def control(self, node: int) -> str:
        """A node's address on the second network, whose device is `control` there."""
        return self._address(128, node + 1)

    def space(self, node: int) -> str:
        """A node's namespace."""
        return f"{self._name}n{node}"

    def _port(self, network: str, node: int) -> str:
        return f"{self._name}{network[0]}{node}"

    def _add(self, node: int) -> None:
        space = self.space(node)
        _run("ip", "netns", "add", space)
        _run("ip", "-n", space, "link", "set", "lo", "up")
        cables = (("data", self._data, self.data(node)), ("control", self._control, self.control(node)))
        for network, bridge, address in cables:
            port = self._port(network, node)
            _run("ip", "link", "add", port, "type", "veth", "peer", "name", network, "netns", space)
            _run("ip", "link", "set", port, "master", bridge, "up")
            _run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", network)
            _run("ip", "-n", space, "link", "set", network, "up")

    def inside(self, node: int, command: Iterable[str]) -> list[str]:
        """A command as it runs on a node."""
        return ["ip", "netns", "exec", self.space(node), *command]

    def popen(self, node: int, command: Iterable[str], **keywords: Any) -> subprocess.Popen[Any]:
        """Starts a process on a node; the keywords are those of `subprocess.Popen`."""
        return subprocess.Popen(self.inside(node, command), **keywords)

    def cap(self, node: int, mbit: float) -> None:
        """What a node's cable of the first network carries in each direction from now on, in megabits per second."""
        bucket = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "128kb", "latency", "20ms"]
        _run("tc", "qdisc", "replace", "dev", self._port("data", node), *bucket)
        _run("tc", "-n", self.space(node), "qdisc", "replace", "dev", "data", *bucket)

    def pull(self, node: int) -> None:
        """Pulls a node's cable of the first network out: what is sent vanishes."""
        _run("ip", "link", "set", self._port("data", node), "down")

    def plug(self, node: int) -> None:
        """Plugs it in again."""
        _run("ip", "link", "set", self._port("data", node), "up")

    def part(self, one: Sequence[int], other: Sequence[int]) -> None:
        """What nodes of one group send those of the other on the first network vanishes."""
        self._routes("replace", one, other)

    def join(self, one: Sequence[int], other: Sequence[int]) -> None:
        """It arrives again."""
        self._routes("del", one, other)

    def _routes(self, verb: str, one: Sequence[int], other: Sequence[int]) -> None:
        for here, there in ((one, other), (other, one)):
            for node in here:
                for hidden in there:
                    _run("ip", "-n", self.space(node), "route", verb, "blackhole", f"{self.data(hidden)}/32")

    def close(self) -> None:
        """Takes everything down. Processes that run on a node keep its namespace until they end."""
        for node in range(self.nodes):
            with contextlib.suppress(RuntimeError):
                _run("ip", "netns", "del", self.space(node))
            for network in ("data", "control"):
                with contextlib.suppress(RuntimeError):
                    _run("ip", "link", "del", self._port(network, node))
        for bridge in (self._data, self._control):
            with contextlib.suppress(RuntimeError):
                _run("ip", "link", "del", bridge)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
