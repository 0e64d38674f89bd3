"""Runs of several nodes under real launchers, mostly torchrun, for tests and benchmarks: an agent for each node.

The nodes are one machine's processes, told apart by their cache directories, or each in a namespace of a `fabric.Fabric`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fabric import Fabric

SECRET = "known to these nodes only"
#: What each rank runs.
TRAINEE = str(Path(__file__).with_name("trainee.py"))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait(true: Callable[[], Any], timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@dataclass(frozen=True)
class Work:
    """What each rank does.

    Attributes:
        place: The directory of logs.
        url: What is read.
        batch: Samples a batch and rank.
        whole: Samples of all ranks' batches together, instead; the last batch is dropped then.
        epochs: How many.
        pause_s: What a step takes besides.
        ram: A node's memory.
        staging, batches: Of it, what passes through and what batches have; empty: the defaults.
        disk: A directory of tiers, one for each node; None: none.
        disk_bytes: A tier's size.
        peers: Whether nodes share their caches.
        wait_s: How long they wait for each other.
        alone: A rank that doesn't share.
        workers: Worker processes of a rank.
        trains: Whether images are decoded, and a model learns from them, under DDP.
        saves: Whether all ranks go in step, the loader's state is saved after each batch, and loaded at the beginning.
        beside: How many of the samples are another data set, which another loader reads before each epoch, as a validation does; into `besideN.log`.
        dies: After so many batches in all, the last rank kills itself, once; 0: never.
        communicator: Whether the nodes find each other through mpi4py's.
        apart: Whether each rank is a node of its own, on whichever machine its launcher knows it to be.
        tls: Whether nodes encrypt what they send each other.
        assign: As the loader's.
        policy: As the loader's.
        late: Whether a batch is compared once the loop has it, and not while it waits for it.
        group: How many nodes share with each other at most; 0: all.
        torchs: Whether torch's own loader reads, by our data set and sampler.
        stock: A directory, of which torch's own loader reads files instead, into the same batches as without `assign`; empty: none.
    """

    place: str
    url: str = "s3://data/fixed"
    batch: int = 5
    whole: int = 0
    epochs: int = 3
    pause_s: float = 0.0
    ram: str = "16MB"
    staging: str = ""
    batches: str = ""
    disk: str | None = None
    disk_bytes: str = "64MB"
    peers: bool = True
    wait_s: float = 60.0
    alone: int = -1
    workers: int = 0
    trains: bool = False
    saves: bool = False
    beside: int = 0
    dies: int = 0
    communicator: bool = False
    apart: bool = False
    tls: bool = False
    assign: str | None = None
    policy: Any = None
    group: int = 0
    late: bool = False
    torchs: bool = False
    stock: str = ""


class Nodes:
    """Nodes of a run, each with a torchrun of its own.

    Args:
        place: A directory for logs.
        nodes: How many.
        ranks: Of each.
        fabric: Where they are; None: all on this machine's own network.
        environment: More of it.
        work: What a rank does (`Work`).
    """

    def __init__(
        self,
        place: Path,
        nodes: int,
        ranks: int = 1,
        *,
        fabric: Fabric | None = None,
        environment: dict[str, str] | None = None,
        **work: Any,
    ) -> None:
        self.place, self.nodes, self.ranks, self.fabric = place, nodes, ranks, fabric
        self.work = Work(place=str(place), **work)
        self.environment = environment or {}
        # Short, for a socket's address has 107 bytes.
        self.homes = [Path(tempfile.mkdtemp(prefix="fl-", dir="/tmp")) for _ in range(nodes)]
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self._restarts = 0

    def start(
        self, *, max_restarts: int = 0, at_least: int | None = None, but: Sequence[int] = (), **work: Any
    ) -> None:
        """Starts all of them.

        Args:
            max_restarts: How often torchrun starts the ranks again.
            at_least: With so many nodes the run begins and goes on; None: with all.
            but: Nodes that come later.
            work: What differs from what the run does otherwise.
        """
        self.work = replace(self.work, **work)
        self._store = f"127.0.0.1:{_free_port()}" if self.fabric is None else f"{self.fabric.control(0)}:29500"
        self._restarts, self._least = max_restarts, at_least or self.nodes
        for node in set(range(self.nodes)) - set(but):
            self.start_node(node)

    def start_node(self, node: int) -> None:
        """Starts one of them, again perhaps."""
        environment = {**os.environ, **self.own(node)}
        address = "127.0.0.1"
        if self.fabric is not None:
            address = self.fabric.control(node)
            environment |= {"FORELOAD_HOST": self.fabric.data(node), "GLOO_SOCKET_IFNAME": "control"}
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", f"{self._least}:{self.nodes}"]
        command += ["--nproc-per-node", str(self.ranks), "--max-restarts", str(self._restarts)]
        command += ["--rdzv-backend", "c10d", "--rdzv-id", "peers", "--rdzv-endpoint", self._store]
        conf = f"is_host={int(node == 0)},last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
        command += ["--rdzv-conf", conf, "--local-addr", address, "--monitor-interval", "0.1"]
        self.run(node, [*command, TRAINEE], environment)

    def own(self, node: int) -> dict[str, str]:
        """What a node's processes have in their environment."""
        home = self.homes[node]
        return {
            **self.environment,
            "TRAINEE": json.dumps(asdict(self.work)),
            "FORELOAD_CACHE_DIR": str(home / "cache"),
            "FORELOAD_RUNTIME_DIR": str(home),
            "FORELOAD_LINGER_S": "60" if self._restarts else "1",
            "FORELOAD_SECRET": SECRET,
            "OMP_NUM_THREADS": "1",
        }

    def run(self, node: int, command: Sequence[str], environment: dict[str, str]) -> None:
        """Runs a node's processes, or with them those of others."""
        command = command if self.fabric is None else self.fabric.inside(node, command)
        with (self.place / f"output{node}").open("ab") as output:
            self.running[node] = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)

    def kill_node(self, node: int) -> None:
        """As if its power failed: launcher, ranks and agent."""
        launcher = self.running.pop(node)
        ranks = subprocess.run(["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=False)
        for process in (launcher.pid, *map(int, ranks.stdout.split())):
            os.kill(process, signal.SIGKILL)
        launcher.wait()
        self.signal(node, signal.SIGKILL)

    def output(self) -> str:
        """What they said."""
        return "\n".join(path.read_text() for path in sorted(self.place.glob("output*")))

    @property
    def world(self) -> int:
        """The ranks of all nodes."""
        return self.nodes * self.ranks

    def wait(self, timeout_s: float = 120) -> list[dict[str, Any]]:
        """Waits until all are through; the counters of each rank's job.

        Raises:
            RuntimeError: One failed or took longer; the message has what they said.
        """
        end = time.monotonic() + timeout_s
        for process in self.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            if process.returncode != 0:
                raise RuntimeError(f"a node ended with {process.returncode}: {self.output()[-6000:]}")
        self.running.clear()
        return [json.loads(path.read_text()) for path in sorted(self.place.glob("stats*.json"))]

    def lines(self, rank: int) -> list[dict[str, Any]]:
        """What a rank has said of its batches so far."""
        log = self.place / f"rank{rank}.log"
        text = log.read_text() if log.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def had(self, rank: int) -> int:
        """Batches that a rank has had."""
        log = self.place / f"rank{rank}.log"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def worlds(self) -> list[int]:
        """How many ranks there were, one number after the other."""
        found: list[int] = []
        for line in self.lines(0):
            if found[-1:] != [line["world"]]:
                found.append(line["world"])
        return found

    def reach(self, batches: int, *, ranks: list[int] | None = None, timeout_s: float = 60) -> None:
        """Waits until ranks have had so many batches."""
        who = range(self.world) if ranks is None else ranks
        if not _wait(lambda: all(self.had(rank) >= batches for rank in who), timeout_s):
            had = [self.had(rank) for rank in who]
            raise RuntimeError(f"not {batches} batches in {timeout_s} s, but {had}: {self.output()[-3000:]}")

    def agent(self, node: int) -> int:
        """The process of a node's agent; 0: there is none."""
        command = ["pgrep", "-f", f"foreload-agent.*{self.homes[node]}/"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return int(found.stdout.split()[0]) if found.stdout.split() else 0

    def signal(self, node: int, number: int) -> None:
        """Sends a node's agent a signal."""
        os.kill(self.agent(node), number)

    def close(self) -> None:
        """Ends what still runs.

        Raises:
            AssertionError: An agent outlived its clients, panicked, or didn't keep to its plan.
        """
        for process in self.running.values():
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()
        for node, home in enumerate(self.homes):
            if agent := self.agent(node):
                os.kill(agent, signal.SIGCONT)
                if self.work.saves:
                    # It waits for ranks that are started again.
                    os.kill(agent, signal.SIGTERM)
            assert _wait(lambda node=node: not self.agent(node), 30), f"the agent of node {node} doesn't end"  # type: ignore[misc]
            log = home / "cache" / "agent.log"
            text = log.read_text() if log.exists() else ""
            shutil.rmtree(home, ignore_errors=True)
            assert "REPLAY DIFFERS" not in text, text
            assert "panicked" not in text, text

    def look(self, sums: list[int], plan: Any) -> int:
        """Compares ids and bytes of all batches with the plan; the samples that were read.

        Args:
            sums: The CRC-32 of each sample.
            plan: The plan of a loader with the same arguments.

        Raises:
            AssertionError: One differs.
        """
        read = 0
        for rank in range(self.world):
            lines = self.lines(rank)
            assert len(lines) == self.work.epochs * plan.batches, f"rank {rank}: {len(lines)} batches"
            for at, line in enumerate(lines):
                samples = _samples(line, sums)
                assert samples == plan.batch(line["epoch"], at % plan.batches, rank), f"rank {rank}, batch {at}"
                read += len(samples)
        return read

    def look_at_all(self, sums: list[int], plan: Any) -> set[int]:
        """Compares the batches of all ranks together with the plan, where nodes came and went; the numbers of ranks that there were.

        Args:
            sums: The CRC-32 of each sample.
            plan: The plan of one rank that reads batches as large as all ranks' together.

        Raises:
            AssertionError: One differs, or is missing.
        """
        parts: dict[tuple[int, int, int], dict[int, list[int]]] = {}
        for log in self.place.glob("rank*.log"):
            rank = int(log.stem.removeprefix("rank"))
            for line in self.lines(rank):
                # What was read after the last state that was saved is read once more.
                found = parts.setdefault((line["epoch"], line["at"], line["world"]), {})
                samples = _samples(line, sums)
                assert found.setdefault(rank, samples) == samples, f"rank {rank} has read {line} otherwise before"
        whole: set[tuple[int, int]] = set()
        for (epoch, at, world), found in parts.items():
            if len(found) == world:
                samples = [sample for rank in sorted(found) for sample in found[rank]]
                expected = plan.batch(epoch, at, 0)
                assert sorted(samples) == sorted(expected), f"epoch {epoch}, batch {at} of {world} ranks"
                whole.add((epoch, at))
        missing = {(epoch, at) for epoch in range(self.work.epochs) for at in range(plan.batches)} - whole
        assert not missing, f"{len(missing)} batches were never read by all ranks, such as {min(missing)}"
        return {world for _, _, world in parts}


def _samples(line: dict[str, Any], sums: list[int]) -> list[int]:
    """The samples of a batch, whose bytes are theirs."""
    samples = [sample for sample, _ in line["batch"]]
    assert [crc for _, crc in line["batch"]] == [sums[sample] for sample in samples], line
    return samples
