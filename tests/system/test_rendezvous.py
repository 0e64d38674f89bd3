"""Nodes find each other without torchrun and without a process group: at a place that was named. mpirun and Ray are in `tests/integrations/test_launchers.py`."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import TRAINEE, Nodes

import foreload as fl
from foreload.torch import DataLoader
from objects import fixed
from small import number_of, until


@pytest.fixture
def nodes(home: Any, tmp_path: Path) -> Iterator[Any]:
    made: list[Nodes] = []

    def make(count: int, **work: Any) -> Nodes:
        made.append(Nodes(tmp_path, count, **work))
        return made[-1]

    yield make
    for each in made:
        each.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(run: Nodes, node: int, meet: str) -> None:
    """Starts a node's only rank, as a script in which each machine's own lines were set by hand."""
    told = {"RANK": str(node), "WORLD_SIZE": str(run.nodes), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    environment = {**os.environ, **run.own(node), **told, "FORELOAD_MEET": meet}
    run.run(node, [sys.executable, TRAINEE], environment)


def look(run: Nodes) -> int:
    data = fl.open("s3://data/fixed")
    sums = [zlib.crc32(fixed(number_of(data.key(sample)))) for sample in range(len(data))]
    return run.look(sums, DataLoader(data, 5, shuffle=True, seed=5, dp_rank=0, dp_size=run.world).run.plan)


@pytest.mark.parametrize("late", [0, 2], ids=["the-first-is-late", "another-is-late"])
def test_nodes_meet_at_a_place_that_was_named(nodes: Any, late: int) -> None:
    run, meet = nodes(3), f"localhost:{free_port()}"
    for node in {0, 1, 2} - {late}:
        start(run, node, meet)
    time.sleep(2)
    assert all(run.had(rank) == 0 for rank in range(3)), "nothing is read before it is known who keeps it"
    start(run, late, meet)
    stats = run.wait()
    read = look(run)
    assert sum(one["samples"] for one in stats) == read
    samples = len(fl.open("s3://data/fixed"))
    late_answers = sum(one["peer_failures"] + one["peer_misses"] for one in stats)
    assert sum(one["requests"] - one["hedges"] for one in stats) <= samples + late_answers, stats
    assert all(one["peer_hits"] > 0 for one in stats), stats
    assert run.output().count("3 nodes share their caches") == 3


def test_a_place_that_nobody_can_keep_is_named(nodes: Any) -> None:
    """Its port is another program's, which says nothing to whoever comes."""
    run = nodes(2, wait_s=3)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(64)
        meet = f"127.0.0.1:{other.getsockname()[1]}"
        start(run, 0, meet)
        start(run, 1, meet)
        run.wait()
    look(run)
    assert f"rank 0 can't keep the nodes' store at {meet}, which FORELOAD_MEET or Peers(meet=...) names" in run.output()
    assert run.output().count("this node shares its cache with no other") == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_who_waits_for_a_place_can_be_interrupted(nodes: Any, workers: int) -> None:
    run, meet = nodes(2, workers=workers), f"127.0.0.1:{free_port()}"
    start(run, 1, meet)
    until(lambda: "this process is rank 1 of 2" in run.output(), 60)
    time.sleep(1)
    run.running[1].send_signal(signal.SIGINT)
    assert run.running.pop(1).wait(10) != 0
    assert "KeyboardInterrupt" in run.output()
