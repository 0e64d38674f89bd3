"""Four nodes on networks of their own, whose links and agents fail in every way while they read: each has what its plan says, byte for byte."""

from __future__ import annotations

import signal
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket
from cluster import Nodes
from fabric import Fabric
from PIL import Image

import foreload as fl
from foreload.torch import DataLoader
from objects import fixed
from small import number_of

pytestmark = [pytest.mark.needs("root", "netns"), pytest.mark.timeout(300)]

NODES, BATCH = 4, 5


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    with Fabric(NODES, mbit=400) as made:
        yield made


@pytest.fixture
def bucket(fabric: Fabric, tmp_path: Path) -> Iterator[Bucket]:
    root = tmp_path / "bucket"
    for name in ("fixed", "pictures"):
        (root / "data" / name).mkdir(parents=True)
    for number in range(203):
        (root / "data" / "fixed" / f"{number:05}.bin").write_bytes(fixed(number))
    for number in range(100):
        colours = Image.frombytes("RGB", (8, 8), fixed(number)[:192])
        colours.resize((96, 96), Image.Resampling.BICUBIC).save(root / "data" / "pictures" / f"{number:05}.jpg")
    with Bucket(directory=root, options=["--address", fabric.bucket]) as running:
        yield running


def faults_of(run: Nodes, fabric: Fabric) -> list[tuple[str, Callable[[], None], Callable[[], None]]]:
    """What can happen to a link or an agent: its name, how it begins, and how it ends."""
    return [
        ("a cable is pulled", lambda: fabric.pull(1), lambda: fabric.plug(1)),
        ("a slow cable", lambda: fabric.cap(2, 2), lambda: fabric.cap(2, 400)),
        ("an agent hangs", lambda: run.signal(3, signal.SIGSTOP), lambda: run.signal(3, signal.SIGCONT)),
        ("two and two", lambda: fabric.part([0, 1], [2, 3]), lambda: fabric.join([0, 1], [2, 3])),
        ("an agent is killed", lambda: run.signal(0, signal.SIGKILL), lambda: None),
    ]


def test_whatever_happens_to_a_link_or_an_agent_each_rank_has_its_own_samples(
    fabric: Fabric, bucket: Bucket, home: Any, tmp_path: Path
) -> None:
    run = Nodes(tmp_path, NODES, fabric=fabric, batch=BATCH, epochs=80, pause_s=0.02, workers=0)
    data = fl.open("s3://data/fixed")
    bucket.reset()
    try:
        run.start()
        run.reach(40, timeout_s=120)
        assert bucket.counters()["requests"]["get"] <= len(data) * 1.1
        for name, begin, end in faults_of(run, fabric):
            begin()
            before = [run.had(rank) for rank in range(NODES)]
            time.sleep(1.5)
            end()
            # Nobody is held up for longer than the two seconds in which a peer may be silent.
            run.reach(max(before) + 11, timeout_s=20)
            print(name, before, [run.had(rank) for rank in range(NODES)])
        stats = run.wait(240)
        plan = DataLoader(data, BATCH, shuffle=True, seed=5, dp_rank=0, dp_size=NODES).run.plan
        run.look([zlib.crc32(fixed(number_of(data.key(sample)))) for sample in range(len(data))], plan)
    finally:
        run.close()
    assert all(one["peer_hits"] for one in stats), stats
    assert all(one["failures"] == 0 for one in stats), stats
    assert sum(one["peer_failures"] for one in stats) > 0, stats


def losses(run: Nodes, sums: list[int], plan: Any) -> dict[tuple[int, int], float]:
    """The mean loss of all ranks, by epoch and batch, once all batches are right."""
    assert run.look_at_all(sums, plan) == {run.world}
    return {(line["epoch"], line["at"]): line["loss"] for line in run.lines(0)}


def test_a_model_learns_the_same_on_one_two_and_four_nodes_whatever_happens(
    fabric: Fabric, bucket: Bucket, home: Any, tmp_path: Path
) -> None:
    """DDP, whose collectives have the other network."""
    data = fl.open("s3://data/pictures")
    sums = [zlib.crc32(data.read(sample)) for sample in range(len(data))]
    plan = DataLoader(data, 20, shuffle=True, seed=5, drop_last=True, dp_rank=0, dp_size=1).run.plan
    found = []
    for count, pause_s in ((1, 0.0), (2, 0.0), (4, 0.1)):
        place = tmp_path / f"nodes{count}"
        place.mkdir()
        run = Nodes(
            place, count, fabric=fabric, url="s3://data/pictures", whole=20, epochs=12, trains=True, pause_s=pause_s
        )
        try:
            run.start()
            for _, begin, end in faults_of(run, fabric) if count == NODES else ():
                run.reach(max(run.had(rank) for rank in range(count)) + 5, timeout_s=60)
                begin()
                time.sleep(1)
                end()
            stats = run.wait(200)
            found.append(losses(run, sums, plan))
        finally:
            run.close()
        assert count == 1 or all(one["peer_hits"] for one in stats), stats
    assert len(found[0]) == 12 * plan.batches
    for several in found[1:]:
        assert several == pytest.approx(found[0], rel=1e-4)
    first, last = (found[0][epoch, 0] for epoch in (0, 11))
    assert last < first, "it learns"
