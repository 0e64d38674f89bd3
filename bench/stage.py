"""What figures are measured on: the test bucket on one CPU, the client on another, and fresh caches for every run.

A `Stage` starts servers and clients and runs the yardstick, so that a figure's function says only what is compared with what. Its
scratch directory, the agents' sockets and their caches go when it is closed.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import machine
from bench.client import Job

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from bucket import Bucket, SlowFs, bare  # noqa: E402 (the tests' own helpers, which are no package)
from cluster import Nodes  # noqa: E402
from fabric import Fabric  # noqa: E402
from servers import Versity  # noqa: E402

__all__ = ["ROOT", "Bucket", "Fabric", "Nodes", "Reader", "SlowFs", "Stage", "Versity", "bare"]

#: What the profile `cloud` allows, as crates/testkit has it.
CLOUD = {"first_byte_s": 0.030, "sigma": 0.3, "connection_bytes_per_s": 35e6, "total_bytes_per_s": 1e9}
#: The same in words.
CLOUD_IN_WORDS = (
    "cloud: 30 ms to the first byte (lognormal, sigma 0.3), 35 MB/s a connection, 1 GB/s in all, 30 ms to connect"
)
#: The share of it that the yardstick must reach for a run to count.
GATE = 0.85
#: Connections of the yardstick, and requests in flight of everything that is compared with it.
CONNECTIONS = 64


def allowed_per_s(connections: int, size: int) -> float:
    """Requests per second that the profile `cloud` allows."""
    first_byte = CLOUD["first_byte_s"] * math.exp(CLOUD["sigma"] ** 2 / 2)
    return min(connections / (first_byte + size / CLOUD["connection_bytes_per_s"]), CLOUD["total_bytes_per_s"] / size)


@dataclass
class Reader:
    """A client that ran.

    Attributes:
        epochs: What it said of each epoch.
        opened_s: What came before the first: starting the agent, and opening the data set.
        peak_bytes: Most memory of its processes together, where that was sampled.
        workers: Most worker processes seen.
        said: What it wrote to stderr, in lines.
    """

    epochs: list[dict[str, Any]]
    opened_s: float = 0.0
    peak_bytes: int = 0
    workers: int = 0
    said: list[str] = field(default_factory=list)

    @property
    def first(self) -> dict[str, Any]:
        """Its first epoch."""
        return self.epochs[0]

    @property
    def last(self) -> dict[str, Any]:
        """Its last epoch."""
        return self.epochs[-1]


@dataclass
class Stage:
    """Where figures are measured.

    Attributes:
        quick: Whether to go through the motions with little data; such numbers mean nothing.
        pairs: Interleaved repetitions of each comparison.
        peers: Which peers to measure beside.
        say: Told what is going on.
        touched_bytes: Memory that is written to and given back just before each run of a client (`machine.touch`); 0: none.
    """

    quick: bool = False
    pairs: int = 5
    peers: tuple[str, ...] = ()
    say: Callable[[str], None] = print
    touched_bytes: int = 0
    #: Where peers are installed, if not here.
    peer_python: str = field(default_factory=lambda: os.environ.get("FORELOAD_BENCH_PYTHON", sys.executable))

    def __post_init__(self) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="foreload-bench-"))
        self.cpus = sorted(os.sched_getaffinity(0))
        self.server_cpu, self.client_cpu = self.cpus[0], self.cpus[-1]
        self._numbers = itertools.count()
        self._gate: dict[str, float] | None = None

    def close(self) -> None:
        """Removes everything."""
        shutil.rmtree(self.scratch, ignore_errors=True)

    def amount(self, full: int, quick: int) -> int:
        """A size: of the figure, or of going through the motions."""
        return quick if self.quick else full

    def bucket(self, *synthetic: str, profile: str = "cloud", **keywords: Any) -> Bucket:
        """A test bucket on the server's CPU."""
        return Bucket(profile=profile, synthetic=synthetic, **{"cpus": [self.server_cpu], **keywords})

    def bare(self, verb: str, *options: str, bucket: Bucket | None = None, pinned: bool = True) -> dict[str, Any]:
        """The yardstick on the client's CPU."""
        if "--fresh" in options:
            self.touch()
        return bare(verb, *options, bucket=bucket, cpu=self.client_cpu if pinned else None)[-1]

    def touch(self) -> None:
        """Has the host give the memory that the next run needs, where that is asked for."""
        if self.touched_bytes and not self.quick:
            machine.touch(self.touched_bytes)

    def directory(self) -> Path:
        """A new directory."""
        path = self.scratch / str(next(self._numbers))
        path.mkdir()
        return path

    @contextmanager
    def surroundings(self) -> Iterator[dict[str, str]]:
        """An environment with a cache of its own, and so with an agent of its own."""
        home = self.directory()
        self.touch()
        yield self.environment(home)
        shutil.rmtree(home, ignore_errors=True)

    def environment(self, home: Path) -> dict[str, str]:
        """The environment of a client whose caches and sockets are in a directory."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("FORELOAD_", "AWS_"))}
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {
            **own,
            "FORELOAD_CACHE_DIR": str(home / "cache"),
            "FORELOAD_RUNTIME_DIR": str(home),
            "FORELOAD_LINGER_S": "2",
            "PYTHONPATH": paths,
        }

    def pinned(self, *command: str) -> list[str]:
        """A command on the client's CPU."""
        return ["taskset", "-c", str(self.client_cpu), *command]

    def module(self, name: str, *arguments: str, pinned: bool = False) -> dict[str, Any]:
        """Runs a module of ours in surroundings of its own.

        Args:
            name: The module.
            arguments: Its arguments.
            pinned: Whether it runs on the client's CPU alone.

        Returns:
            The last line that it prints, which is JSON.

        Raises:
            RuntimeError: It failed; the message has what it printed last.
        """
        command = [sys.executable, "-m", name, *arguments]
        with self.surroundings() as environment:
            ran = subprocess.run(
                self.pinned(*command) if pinned else command,
                env=environment,
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
        if ran.returncode:
            raise RuntimeError(f"{name} {' '.join(arguments[:1])} failed: {ran.stderr.strip()[-1500:]}")
        found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return found

    def read(
        self,
        job: Job,
        *,
        pinned: bool = True,
        cpus: Sequence[int] = (),
        samples_memory: bool = False,
        environment: dict[str, str] | None = None,
    ) -> Reader:
        """Runs a client with a cold cache.

        Args:
            job: What it reads.
            pinned: Whether it runs on the client's CPU alone.
            cpus: Instead: the CPUs that it runs on.
            samples_memory: Whether to watch its memory.
            environment: That of an earlier client, whose agent is gone and whose cache directory is still there.

        Raises:
            RuntimeError: It failed; the message has what it printed last.
        """
        with self.surroundings() if environment is None else nullcontext(environment) as around:
            command = [sys.executable, "-m", "bench.client", job.json()]
            if cpus:
                command = ["taskset", "-c", ",".join(map(str, cpus)), *command]
            elif pinned:
                command = self.pinned(*command)
            process = subprocess.Popen(
                command, env=around, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            return self._follow(process, samples_memory)

    def _follow(self, process: subprocess.Popen[str], samples_memory: bool) -> Reader:
        assert process.stdout is not None
        assert process.stderr is not None
        errors: list[str] = []
        drain = threading.Thread(target=lambda: errors.extend(process.stderr or []), daemon=True)
        drain.start()
        reader, agent = Reader([]), 0
        over = threading.Event()
        watch: threading.Thread | None = None
        for line in process.stdout:
            found = json.loads(line)
            if "pid" not in found:
                reader.epochs.append(found)
                continue
            agent, reader.opened_s = found["agent"], found["opened_s"]
            if samples_memory:
                watch = threading.Thread(target=self._watch, args=(reader, found["pid"], agent, over), daemon=True)
                watch.start()
        status = process.wait()
        over.set()
        drain.join()
        if watch is not None:
            watch.join()
        if agent:
            machine.wait_gone(agent)
        if status != 0:
            raise RuntimeError(f"the client ended with {status}: {''.join(errors[-15:]).strip()}")
        reader.said = [line.rstrip() for line in errors]
        return reader

    @staticmethod
    def _watch(reader: Reader, pid: int, agent: int, over: threading.Event) -> None:
        while not over.wait(0.05):
            workers = machine.children(pid)
            reader.workers = max(reader.workers, len(workers))
            reader.peak_bytes = max(
                reader.peak_bytes, machine.memory_bytes([pid, *workers, *([agent] if agent else [])])
            )

    def gate(self) -> dict[str, float]:
        """The yardstick's share of what the profile allows, by connections; measured once."""
        if self._gate is None:
            self._gate = {}
            with self.bucket("gate:4000x110000") as bucket:
                for connections in (16, 64):
                    count = self.amount(connections * 40, connections * 8)
                    found = self.bare(
                        "get",
                        "--synthetic=gate:4000x110000",
                        "--shuffle",
                        f"--limit={count}",
                        f"--connections={connections}",
                        bucket=bucket,
                    )
                    # The first requests wait for their connections, which the profile delays too.
                    self._gate[str(connections)] = found["samples_per_s"] / allowed_per_s(connections, 110_000)
        return self._gate

    def gated(self) -> str | None:
        """Why runs on this machine don't count now, if they don't."""
        shares = self.gate()
        missed = [f"{share:.2f} at {connections} connections" for connections, share in shares.items() if share < GATE]
        return f"the yardstick reached only {' and '.join(missed)} of what the profile allows" if missed else None


def options_of(bucket: Bucket) -> dict[str, str]:
    """A test bucket as `storage_options`."""
    found = {
        "endpoint_url": bucket.endpoint,
        "access_key_id": bucket.access_key,
        "secret_access_key": bucket.secret_key,
        "region": bucket.region,
        "allow_http": "true",
    }
    return {**found, "ca_file": bucket.ca_file} if bucket.ca_file else found


def interleaved(pairs: int, *measures: Callable[[], float]) -> list[list[float]]:
    """Runs measures in turn, the order changing from round to round.

    Args:
        pairs: Rounds.
        measures: Each answers with its value.

    Returns:
        The values of each measure.
    """
    found: list[list[float]] = [[0.0] * pairs for _ in measures]
    for round_ in range(pairs):
        order = list(enumerate(measures))
        for which, measure in order if round_ % 2 == 0 else reversed(order):
            found[which][round_] = measure()
            time.sleep(0.05)
    return found


def ratios(over: list[float], under: list[float]) -> list[float]:
    """Pairwise ratios."""
    return [a / b for a, b in zip(over, under, strict=True)]
