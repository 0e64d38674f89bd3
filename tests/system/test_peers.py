"""Nodes that share their caches, under real torchrun: an agent for each node, the nodes of one machine told apart by their cache directories."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket
from cluster import Nodes

import foreload as fl
from foreload.torch import DataLoader
from objects import fixed
from small import number_of, until


def sums(data: Any) -> list[int]:
    return [zlib.crc32(fixed(number_of(data.key(sample)))) for sample in range(len(data))]


def synthetic_sums(bucket: Bucket, name: str, samples: int) -> list[int]:
    """The checksums of synthetic objects, as the bucket itself gives them."""
    addresses = [f"{bucket.endpoint}/bench/{name}/{number:08}.bin" for number in range(samples)]
    return [zlib.crc32(urllib.request.urlopen(address, timeout=20).read()) for address in addresses]


def look(run: Nodes) -> int:
    """Compares ids and bytes of all batches with the plan; the samples that were read."""
    data = fl.open("s3://data/fixed")
    return run.look(sums(data), DataLoader(data, 5, shuffle=True, seed=5, dp_rank=0, dp_size=run.world).run.plan)


@pytest.fixture
def nodes(home: Any, tmp_path: Path) -> Iterator[Any]:
    made: list[Nodes] = []

    def make(count: int, ranks: int, **work: Any) -> Nodes:
        made.append(Nodes(tmp_path, count, ranks, **work))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("count", "ranks", "workers", "tls"), [(2, 1, 0, False), (2, 2, 0, True), (3, 1, 2, False), (3, 1, 0, True)]
)
def test_nodes_that_hold_the_data_set_together_ask_the_bucket_for_each_sample_once(
    nodes: Any, count: int, ranks: int, workers: int, tls: bool
) -> None:
    run = nodes(count, ranks, workers=workers, tls=tls)
    run.start()
    stats = run.wait()
    read = look(run)
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
    # Each names all others, and what they say that they gave is what was had.
    assert all(len(one["nodes"]) == count - 1 for one in stats), stats
    had = sum(node["samples"] for one in each for node in one["nodes"])
    assert abs(had - sum(one["served"] for one in each)) <= samples // 50, stats
    assert all(
        node["samples"] and node["latency_s"] > 0 and not node["is_avoided"] for one in each for node in one["nodes"]
    )


def test_what_others_keep_stays_here_too_as_long_as_there_is_room(nodes: Any) -> None:
    run = nodes(2, 1, ram="64MB", epochs=6)
    run.start()
    stats = run.wait()
    look(run)
    # Each has asked once for what the other keeps, and has it in memory from then on.
    samples = len(fl.open("s3://data/fixed"))
    assert 0 < sum(one["peer_hits"] for one in stats) <= samples * 1.05, stats


@pytest.mark.parametrize(("disk_bytes", "asks"), [("64MB", (0.5, 1.05)), ("5MB", (1.2, 6.0))])
def test_a_node_whose_disk_has_room_for_all_asks_others_once(
    nodes: Any, tmp_path: Path, disk_bytes: str, asks: tuple[float, float]
) -> None:
    run = nodes(2, 1, ram="8MB", disk=str(tmp_path / "tiers"), disk_bytes=disk_bytes, epochs=6)
    run.start()
    stats = run.wait()
    look(run)
    samples = len(fl.open("s3://data/fixed"))
    asked = sum(one["peer_hits"] + one["peer_misses"] for one in stats) / samples
    assert asks[0] <= asked <= asks[1], stats


def test_top_on_one_node_shows_the_job_on_all(nodes: Any) -> None:
    run = nodes(3, 1, pause_s=0.05, epochs=30)
    run.start()
    run.reach(30)
    environment = {**os.environ, **run.own(1)}
    command = [sys.executable, "-m", "foreload", "top", "--once", "--nodes", "--json"]
    told = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60).stdout)
    (job,) = told["jobs"]
    found = {rank: node for node in job["group"] for rank in node["report"]["ranks"]}
    assert sorted(found) == [0, 1, 2]
    assert found[1]["address"] is None
    assert all(node["report"]["stats"]["samples"] >= 100 for node in found.values()), found
    run.signal(2, signal.SIGSTOP)
    try:
        told = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60).stdout)
    finally:
        run.signal(2, signal.SIGCONT)
    silent = [node["silence"] for node in told["jobs"][0]["group"] if node["report"] is None]
    assert len(silent) == 1, told
    assert silent[0], told


def test_two_loaders_of_a_run_share_what_each_reads(nodes: Any) -> None:
    run = nodes(2, 1, beside=37, epochs=4)
    run.start()
    stats = run.wait()
    look(run)
    data = fl.open("s3://data/fixed")
    expected = sums(data)
    for epoch in range(4):
        read = [json.loads((run.place / f"beside{rank}.log").read_text().splitlines()[epoch]) for rank in range(2)]
        assert {sample for each in read for sample, _ in each} == set(range(37))
        assert all(crc == expected[sample] for each in read for sample, crc in each)
    assert all(one["peer_hits"] > 0 for one in stats), stats
    assert sum(one["peer_failures"] for one in stats) == 0, stats
    assert run.output().count("2 nodes share their caches") == 4


def test_a_node_whose_agent_is_killed_costs_time_and_nothing_else(nodes: Any) -> None:
    run = nodes(2, 1, pause_s=0.02, epochs=6)
    run.start()
    run.reach(20)
    time.sleep(0.2)
    run.signal(1, signal.SIGKILL)
    stats = run.wait()
    look(run)
    # The new agent says where it is, and the other node hears of it when its next epoch begins.
    assert run.output().count("2 nodes share their caches") == 3
    assert stats[0]["peer_failures"] < 200, stats


def test_a_node_whose_agent_hangs_holds_the_others_up_for_seconds_and_not_longer(nodes: Any) -> None:
    run = nodes(2, 1, pause_s=0.01, epochs=60)
    run.start()
    run.reach(100, ranks=[0])

    def rate() -> float:
        before, begun = run.had(0), time.monotonic()
        time.sleep(2)
        return (run.had(0) - before) / (time.monotonic() - begun)

    healthy = rate()
    run.signal(1, signal.SIGSTOP)
    try:
        # Whoever is silent for two seconds is asked no more.
        time.sleep(3)
        without = rate()
    finally:
        run.signal(1, signal.SIGCONT)
    stats = run.wait()
    look(run)
    assert without > healthy / 2, f"{without} batches/s without the other node, {healthy} with it"
    # Whether an answer is late, or the bucket's was sooner.
    assert stats[0]["peer_failures"] + stats[0]["hedges"] > 0, (stats[0]["peer_failures"], stats[0]["hedges"])


def test_a_node_that_others_do_not_come_to_goes_on_alone(nodes: Any) -> None:
    run = nodes(2, 1, wait_s=2, epochs=2)
    # The second rank has nobody to share with.
    run.start(alone=1)
    stats = run.wait()
    look(run)
    assert "shares its cache with no other: rank 1 did not come in 2 s" in run.output()
    assert [one["peer_hits"] for one in stats] == [0, 0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("assign", "policy"), [(None, None), ("local", None), (None, "frequency")])
def test_ranks_that_die_and_nodes_that_go_and_come_go_on_where_they_were_and_find_their_caches(
    nodes: Any, bucket: Any, assign: str | None, policy: str | None
) -> None:
    run = nodes(5, 1, whole=60, epochs=60, pause_s=0.1, saves=True, dies=12, assign=assign, policy=policy)
    data = fl.open("s3://data/fixed")
    bucket.reset()
    # Four nodes begin; a rank dies and is started again; then a node is lost, and two others come.
    # (Torch's own groups take addresses of the start before out of a store that launchers share.)
    run.environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    run.start(max_restarts=9, at_least=3, but=[4])
    until(lambda: run.worlds() == [4] and run.had(0) >= 24, 120)
    assert bucket.counters()["requests"]["get"] <= len(data) * 1.1, (
        "what was there before the rank died is there after it"
    )
    run.kill_node(2)
    until(lambda: run.worlds()[-1] == 3, 90)
    run.start_node(2)
    run.start_node(4)
    until(lambda: run.worlds()[-1] == 5, 90)
    run.wait(120)
    plan = DataLoader(data, 60, shuffle=True, seed=5, drop_last=True, dp_rank=0, dp_size=1).run.plan
    assert run.look_at_all(sums(data), plan) == {3, 4, 5}
    assert "5 nodes share their caches" in run.output()
    assert "shares its cache with no other" not in run.output()


@pytest.mark.parametrize(("count", "ranks", "workers"), [(3, 1, 0), (2, 2, 2)])
def test_nodes_that_read_what_they_keep_have_the_same_global_batches_and_ask_each_other_for_little(
    nodes: Any, count: int, ranks: int, workers: int
) -> None:
    run = nodes(count, ranks, whole=36, epochs=6, workers=workers, assign="local")
    run.start()
    stats = run.wait()[::ranks]
    data = fl.open("s3://data/fixed")
    plan = DataLoader(data, 36, shuffle=True, seed=5, drop_last=True, dp_rank=0, dp_size=1).run.plan
    assert run.look_at_all(sums(data), plan) == {count * ranks}
    read = sum(one["samples"] for one in stats)
    assert read == 6 * plan.positions
    # Dealt out like cards, all but a share of one node would come from others.
    assert 0 < sum(one["peer_hits"] for one in stats) < read * (1 - 1 / count) / 2, stats
    late = sum(one["peer_failures"] + one["peer_misses"] for one in stats)
    assert sum(one["requests"] - one["hedges"] for one in stats) <= len(data) + late, stats


def most_frequent(plan: Any, nodes: int, ranks: int, epochs: int) -> list[list[int]]:
    """By node: the samples that it reads, the most frequent first, and of those as frequent what it reads first."""
    reads: list[dict[int, int]] = [{} for _ in range(nodes)]
    for epoch in range(epochs):
        for batch in range(plan.batches):
            for rank in range(nodes * ranks):
                own = reads[rank // ranks]
                for sample in plan.batch(epoch, batch, rank):
                    own[sample] = own.get(sample, 0) + 1
    # Equal counts stay in the order of their first reads.
    return [sorted(own, key=lambda sample, own=own: -own[sample]) for own in reads]


@pytest.mark.parametrize(
    ("count", "ranks", "ram", "workers", "torchs"),
    [
        (3, 1, "16MB", 0, False),
        (2, 2, "16MB", 0, False),
        (2, 1, "64MB", 0, False),
        # Its workers are there before the ranks have agreed on their nodes.
        (2, 1, "16MB", 2, True),
    ],
)
def test_nodes_that_keep_what_they_read_most_often_ask_the_bucket_for_what_no_node_keeps(
    nodes: Any, monkeypatch: pytest.MonkeyPatch, count: int, ranks: int, ram: str, workers: int, torchs: bool
) -> None:
    samples, epochs, world = 1200, 5, count * ranks
    with Bucket(synthetic=[f"many:{samples}x30KB"], anonymous=True) as bucket:
        for name, value in bucket.environment().items():
            monkeypatch.setenv(name, value)
        run = nodes(
            count,
            ranks,
            url="s3://bench/many",
            whole=24,
            epochs=epochs,
            ram=ram,
            staging="4MB",
            batches="1MB",
            policy="frequency",
            workers=workers,
            torchs=torchs,
        )
        run.start()
        stats = run.wait()[::ranks]
        data = fl.open("s3://bench/many")
        plan = DataLoader(data, 24 // world, shuffle=True, seed=5, drop_last=True, dp_rank=0, dp_size=world).run.plan
        whole = DataLoader(data, 24, shuffle=True, seed=5, drop_last=True, dp_rank=0, dp_size=1).run.plan
        expected = synthetic_sums(bucket, "many", samples)
    assert run.look_at_all(expected, whole) == {world}
    (room,) = {int(found) // count for found in re.findall(r"keep up to (\d+) bytes together", run.output())}
    kept = {sample for own in most_frequent(plan, count, ranks, epochs) for sample in own[: room // 30_016]}
    batches = [
        plan.batch(epoch, batch, rank)
        for epoch in range(epochs)
        for batch in range(plan.batches)
        for rank in range(world)
    ]
    others = sum(sample not in kept for batch in batches for sample in batch)
    late = sum(one["peer_failures"] + one["peer_misses"] for one in stats)
    found = sum(one["requests"] - one["hedges"] for one in stats)
    # What is kept comes once; of the rest some is there still when the next epoch begins.
    assert len(kept) + 0.8 * others <= found <= len(kept) + others + late, (found, len(kept), others, late, stats)
    assert (others == 0) == (ram == "64MB"), (room, len(kept), found)


@pytest.mark.parametrize("policy", [None, "frequency"])
def test_what_memory_and_disks_hold_leaves_the_bucket_once_however_little_memory_is_left(
    nodes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, policy: str | None
) -> None:
    samples = 600
    with Bucket(synthetic=[f"many:{samples}x10-60KB"], anonymous=True) as bucket:
        for name, value in bucket.environment().items():
            monkeypatch.setenv(name, value)
        run = nodes(
            2,
            1,
            url="s3://bench/many",
            batch=6,
            epochs=5,
            ram="14MB",
            disk=str(tmp_path / "tiers"),
            disk_bytes="40MB",
            policy=policy,
        )
        run.start()
        stats = run.wait()
        plan = DataLoader(fl.open("s3://bench/many"), 6, shuffle=True, seed=5, dp_rank=0, dp_size=2).run.plan
        read = run.look(synthetic_sums(bucket, "many", samples), plan)
    assert sum(one["samples"] for one in stats) == read
    assert all(one["peer_hits"] > 0 for one in stats), stats
    # Nodes wait for each other's memory, and nobody is turned away for what is on its way from the other one.
    assert sum(one["peer_misses"] for one in stats) <= samples // 100, stats
    late = sum(one["peer_failures"] + one["peer_misses"] for one in stats)
    assert samples <= sum(one["requests"] - one["hedges"] for one in stats) <= samples + late, stats


@pytest.mark.parametrize("assign", [None, "local"])
def test_each_cache_group_asks_the_bucket_once_and_no_node_of_another(nodes: Any, assign: str | None) -> None:
    run = nodes(5, 1, whole=60, epochs=4, assign=assign, group=3)
    run.start()
    stats = run.wait()
    data = fl.open("s3://data/fixed")
    plan = DataLoader(data, 60, shuffle=True, seed=5, drop_last=True, dp_rank=0, dp_size=1).run.plan
    assert run.look_at_all(sums(data), plan) == {5}
    # Five nodes are a group of three and one of two.
    assert sorted(len(one["nodes"]) for one in stats) == [1, 1, 2, 2, 2]
    late = sum(one["peer_failures"] + one["peer_misses"] for one in stats)
    found = sum(one["requests"] - one["hedges"] for one in stats)
    # In four epochs a group of two reads 0.87 of the samples, and one of three nearly all.
    assert 1.7 * len(data) <= found <= 2 * len(data) + late, stats
    # Where ranks read what their nodes keep, a node may need nothing of others.
    assert assign or all(one["peer_hits"] > 0 for one in stats), stats
    told = "of 5 nodes in groups of 3 at most"
    assert run.output().count(told) == 5


def test_an_agent_that_is_killed_changes_nothing_of_who_reads_what(nodes: Any) -> None:
    run = nodes(2, 2, whole=20, pause_s=0.05, epochs=8, assign="local", workers=1)
    run.start()
    run.reach(10)
    run.signal(1, signal.SIGKILL)
    run.wait()
    data = fl.open("s3://data/fixed")
    plan = DataLoader(data, 20, shuffle=True, seed=5, drop_last=True, dp_rank=0, dp_size=1).run.plan
    assert run.look_at_all(sums(data), plan) == {4}


def test_ranks_that_do_not_agree_on_who_reads_what_read_nothing(nodes: Any) -> None:
    run = nodes(2, 1, wait_s=3, epochs=2, assign="local")
    run.start(alone=1)
    with pytest.raises(RuntimeError, match="a node ended with 1"):
        run.wait()
    told = "assign='local' needs all ranks to agree on who reads what, or keeps it, before the first batch: rank 1 did not come in 3 s"
    assert told in run.output()
    assert run.had(0) == 0
