"""Nodes that share their caches, under real torchrun: an agent for each node, the nodes of one machine told apart by their cache directories."""

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
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload.torch import DataLoader
from small import number_of, until

SECRET = "known to these nodes only"

PROGRAM = """
import json, logging, os, sys, time, zlib
from pathlib import Path
import foreload as fl
from foreload.torch import DataLoader

logging.basicConfig(level=logging.INFO)
rank, place = int(os.environ["RANK"]), Path(os.environ["PLACE"])
def look(raw, meta):
    return meta.sample, zlib.crc32(raw)
data = fl.open("s3://data/fixed")
peers = rank != int(os.environ.get("ALONE", "-1")) and fl.Peers(wait_s=float(os.environ["WAIT"]))
cache = fl.Cache(ram=os.environ["BUDGET"], peers=peers)
loader = DataLoader(data, 5, shuffle=True, seed=5, decode=look, collate_fn=lambda pairs: [value for value, _ in pairs], num_workers=int(os.environ["WORKERS"]), cache=cache)
with open(place / f"rank{rank}.log", "w") as log:
    for epoch in range(int(os.environ["EPOCHS"])):
        for batch in loader:
            print(json.dumps([epoch, batch]), file=log, flush=True)
            time.sleep(float(os.environ["PAUSE"]))
# Others ask for what is here until they are through, too.
(place / f"end{rank}").touch()
end = time.monotonic() + 60
while not all((place / f"end{other}").exists() for other in range(int(os.environ["WORLD_SIZE"]))) and time.monotonic() < end:
    time.sleep(0.02)
(place / f"stats{rank}.json").write_text(json.dumps(loader.stats()))
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Nodes:
    """Nodes of a run, each with a torchrun of its own."""

    def __init__(self, place: Path, nodes: int, ranks: int, **settings: str) -> None:
        self.place, self.nodes, self.ranks = place, nodes, ranks
        self.settings = {"BUDGET": "16MB", "WAIT": "60", "WORKERS": "0", "EPOCHS": "3", "PAUSE": "0", **settings}
        self.homes = [Path(tempfile.mkdtemp(prefix="fl-", dir="/tmp")) for _ in range(nodes)]
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, **more: str) -> None:
        program, port = self.place / "train.py", free_port()
        program.write_text(PROGRAM)
        for node, home in enumerate(self.homes):
            environment = {
                **os.environ,
                **self.settings,
                **more,
                "PLACE": str(self.place),
                "FORELOAD_CACHE_DIR": str(home / "cache"),
                "FORELOAD_RUNTIME_DIR": str(home),
                "FORELOAD_LINGER_S": "1",
                "FORELOAD_SECRET": SECRET,
                "OMP_NUM_THREADS": "1",
            }
            run = ["-m", "torch.distributed.run", "--nnodes", str(self.nodes), "--nproc-per-node", str(self.ranks)]
            run += ["--rdzv-backend", "c10d", "--rdzv-id", "peers", "--rdzv-endpoint", f"127.0.0.1:{port}"]
            run += ["--local-addr", "127.0.0.1", "--monitor-interval", "0.1"]
            with (self.place / f"output{node}").open("wb") as output:
                command = [sys.executable, *run, str(program)]
                self.running.append(subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT))

    def output(self) -> str:
        return "\n".join((self.place / f"output{node}").read_text() for node in range(self.nodes))

    def wait(self) -> list[dict[str, Any]]:
        """The counters of each rank's job."""
        for process in self.running:
            assert process.wait(120) == 0, self.output()
        world = self.nodes * self.ranks
        return [json.loads((self.place / f"stats{rank}.json").read_text()) for rank in range(world)]

    def agent(self, node: int) -> int:
        """The process of a node's agent."""
        found = subprocess.run(
            ["pgrep", "-f", f"foreload-agent.*{self.homes[node]}/"], capture_output=True, text=True, check=False
        )
        return int(found.stdout.split()[0]) if found.stdout.split() else 0

    def close(self) -> None:
        for process in self.running:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()
        for home in self.homes:
            until(lambda home=home: f" {home}/" not in Path("/proc/net/unix").read_text(), 30)  # type: ignore[misc]
            log = home / "cache" / "agent.log"
            text = log.read_text() if log.exists() else ""
            shutil.rmtree(home, ignore_errors=True)
            assert "REPLAY DIFFERS" not in text, text
            assert "panicked" not in text, text

    def look(self) -> int:
        """Compares ids and bytes of all batches with the plan; the samples that were read."""
        data, world, read = fl.open("s3://data/fixed"), self.nodes * self.ranks, 0
        plan = DataLoader(data, 5, shuffle=True, seed=5, dp_rank=0, dp_size=world).run.plan
        sums = [zlib.crc32(_bytes(data, sample)) for sample in range(len(data))]
        for rank in range(world):
            lines = (self.place / f"rank{rank}.log").read_text().splitlines()
            assert len(lines) == int(self.settings["EPOCHS"]) * plan.batches
            for at, line in enumerate(lines):
                epoch, batch = json.loads(line)
                assert [sample for sample, _ in batch] == plan.batch(epoch, at % plan.batches, rank)
                assert [found for _, found in batch] == [sums[sample] for sample, _ in batch]
                read += len(batch)
        return read


def _bytes(data: Any, sample: int) -> bytes:
    import random

    return random.Random(number_of(data.key(sample))).randbytes(30_000)


@pytest.fixture
def nodes(home: Any, tmp_path: Path) -> Iterator[Any]:
    made: list[Nodes] = []

    def make(count: int, ranks: int, **settings: str) -> Nodes:
        made.append(Nodes(tmp_path, count, ranks, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(("count", "ranks", "workers"), [(2, 1, 0), (2, 2, 0), (3, 1, 2)])
def test_nodes_that_hold_the_data_set_together_ask_the_bucket_for_each_sample_once(
    nodes: Any, count: int, ranks: int, workers: int
) -> None:
    run = nodes(count, ranks, WORKERS=str(workers))
    run.start()
    stats = run.wait()
    read = run.look()
    # The ranks of a node have one job.
    each = stats[::ranks]
    samples = len(fl.open("s3://data/fixed"))
    assert sum(one["samples"] for one in each) == read
    # On a busy machine an answer may take longer than a node waits for it; then the bucket is asked as well.
    late = sum(one["peer_failures"] + one["peer_misses"] for one in each)
    assert samples <= sum(one["requests"] - one["hedges"] for one in each) <= samples + late, stats
    assert late < samples // 10, stats
    assert all(one["peer_hits"] > 0 for one in each), stats
    assert run.output().count(f"{count} nodes share their caches") == count


def test_a_node_whose_agent_is_killed_costs_time_and_nothing_else(nodes: Any) -> None:
    run = nodes(2, 1, PAUSE="0.02", EPOCHS="6")
    run.start()
    log = run.place / "rank0.log"
    until(lambda: log.exists() and log.read_text().count("\n") > 20, 60)
    time.sleep(0.2)
    os.kill(run.agent(1), signal.SIGKILL)
    stats = run.wait()
    run.look()
    # The new agent says where it is, and the other node hears of it when its next epoch begins.
    assert run.output().count("2 nodes share their caches") == 3
    assert stats[0]["peer_failures"] < 200, stats


def test_a_node_whose_agent_hangs_holds_the_others_up_for_seconds_and_not_longer(nodes: Any) -> None:
    run = nodes(2, 1, PAUSE="0.01", EPOCHS="60")
    run.start()
    log = run.place / "rank0.log"

    def lines() -> int:
        return log.read_text().count("\n") if log.exists() else 0

    until(lambda: lines() > 100, 60)
    before, begun = lines(), time.monotonic()
    time.sleep(2)
    healthy = (lines() - before) / (time.monotonic() - begun)
    agent = run.agent(1)
    os.kill(agent, signal.SIGSTOP)
    try:
        # Whoever is silent for two seconds is asked no more.
        time.sleep(3)
        before, begun = lines(), time.monotonic()
        time.sleep(2)
        without = (lines() - before) / (time.monotonic() - begun)
    finally:
        os.kill(agent, signal.SIGCONT)
    stats = run.wait()
    run.look()
    assert without > healthy / 2, f"{without} batches/s without the other node, {healthy} with it"
    assert stats[0]["peer_failures"] > 0, stats


def test_a_node_that_others_do_not_come_to_goes_on_alone(nodes: Any) -> None:
    run = nodes(2, 1, WAIT="2", EPOCHS="2")
    # The second rank has nobody to share with.
    run.start(ALONE="1")
    stats = run.wait()
    run.look()
    assert "shares its cache with no other: rank 1 did not come in time" in run.output()
    assert [one["peer_hits"] for one in stats] == [0, 0]
