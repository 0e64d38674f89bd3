"""Runs of several nodes under real torchrun, for tests and benchmarks: an agent for each node.

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
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fabric import Fabric
from trainee import Work

SECRET = "known to these nodes only"


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


class Nodes:
    """Nodes of a run, each with a torchrun of its own.

    Args:
        place: A directory for logs.
        nodes: How many.
        ranks: Of each.
        fabric: Where they are; None: all on this machine's own network.
        environment: More of it.
        work: What a rank does (`trainee.Work`).
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
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *, max_restarts: int = 0, **work: Any) -> None:
        """Starts all of them; `work` differs from what the run does otherwise."""
        self.work = replace(self.work, **work)
        store = f"127.0.0.1:{_free_port()}" if self.fabric is None else f"{self.fabric.control(0)}:29500"
        for node, home in enumerate(self.homes):
            environment = {
                **os.environ,
                **self.environment,
                "TRAINEE": json.dumps(asdict(self.work)),
                "FORELOAD_CACHE_DIR": str(home / "cache"),
                "FORELOAD_RUNTIME_DIR": str(home),
                "FORELOAD_LINGER_S": "1",
                "FORELOAD_SECRET": SECRET,
                "OMP_NUM_THREADS": "1",
            }
            address = "127.0.0.1"
            if self.fabric is not None:
                address = self.fabric.control(node)
                environment |= {"FORELOAD_HOST": self.fabric.data(node), "GLOO_SOCKET_IFNAME": "control"}
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(self.nodes)]
            command += ["--nproc-per-node", str(self.ranks), "--max-restarts", str(max_restarts)]
            command += ["--rdzv-backend", "c10d", "--rdzv-id", "peers", "--rdzv-endpoint", store]
            command += ["--local-addr", address, "--monitor-interval", "0.1"]
            command += [str(Path(__file__).with_name("trainee.py"))]
            command = command if self.fabric is None else self.fabric.inside(node, command)
            with (self.place / f"output{node}").open("ab") as output:
                self.running.append(
                    subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
                )

    def output(self) -> str:
        """What they said."""
        return "\n".join((self.place / f"output{node}").read_text() for node in range(self.nodes))

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
        for process in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            if process.returncode != 0:
                raise RuntimeError(f"a node ended with {process.returncode}: {self.output()[-6000:]}")
        self.running.clear()
        return [json.loads((self.place / f"stats{rank}.json").read_text()) for rank in range(self.world)]

    def lines(self, rank: int) -> list[dict[str, Any]]:
        """What a rank has said of its batches so far."""
        log = self.place / f"rank{rank}.log"
        text = log.read_text() if log.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def had(self, rank: int) -> int:
        """Batches that a rank has had."""
        log = self.place / f"rank{rank}.log"
        return log.read_bytes().count(b"\n") if log.exists() else 0

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
        for process in self.running:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()
        for node, home in enumerate(self.homes):
            if agent := self.agent(node):
                os.kill(agent, signal.SIGCONT)
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
                samples, found = [sample for sample, _ in line["batch"]], [crc for _, crc in line["batch"]]
                assert samples == plan.batch(line["epoch"], at % plan.batches, rank), f"rank {rank}, batch {at}"
                assert found == [sums[sample] for sample in samples], f"rank {rank}, batch {at}"
                read += len(samples)
        return read
