"""Promises of docs/concepts/semantics.md that are seen only from outside: what altered bytes end as, memory, and rest."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket

import foreload as fl
from foreload import errors
from foreload._node import agent as _agent
from foreload.cli.opening import reopen
from foreload.torch import DataLoader
from small import until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def altering(bucket: Any) -> Iterator[Any]:
    """The bucket, which may alter bytes for the time of a test."""
    yield bucket
    bucket.clear_faults()


def test_bytes_that_never_match_their_checksum_are_a_corrupt_error(home: Any, altering: Any) -> None:
    data = reopen(fl.open("s3://data/fixed"), update=False, checksum=True)
    altering.add_fault("flip", matching="fixed/cat/00000.bin", at=0.5)
    with pytest.raises(errors.CorruptError, match=r"00000\.bin.*checksum"):
        list(DataLoader(data, 7, cache=fl.Cache(ram="16MB")))


def test_a_checksum_of_bytes_that_were_damaged_on_their_way_is_mended_as_the_error_says(
    home: Any, altering: Any
) -> None:
    altering.add_fault("flip", matching="fixed/cat/00000.bin", at=0.5)
    data = reopen(fl.open("s3://data/fixed"), update=False, checksum=True)
    altering.clear_faults()
    with pytest.raises(errors.CorruptError, match="foreload index --update --checksum"):
        list(DataLoader(data, 7, cache=fl.Cache(ram="16MB")))
    data = reopen(fl.open("s3://data/fixed"), update=True, checksum=True)
    assert sum(len(values) for values, _ in DataLoader(data, 7, cache=fl.Cache(ram="16MB"))) == len(data)


def test_checksums_are_no_longer_made_when_who_asked_has_left(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # They take half a minute: more than even a busy machine needs to hear it.
    count = 20_000
    with Bucket(synthetic=(f"many:{count}x1000",), faults=({"kind": "slow", "on": ["get"], "delay_ms": 300},)) as many:
        for name, value in many.environment().items():
            monkeypatch.setenv(name, value)

        def gets() -> int:
            return int(many.counters()["requests"].get("get", 0))

        words = [
            sys.executable,
            "-c",
            "from foreload.cli import main; main()",
            "index",
            "s3://bench/many",
            "--checksum",
        ]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as asking:
            until(lambda: gets() > 50, 60)
            asking.send_signal(signal.SIGINT)

        def settled() -> bool:
            before = gets()
            time.sleep(0.5)
            return gets() == before

        until(settled, 20)
        assert gets() < count


def test_memory_that_is_not_there_is_warned_of_and_not_counted_on(home: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 7, shuffle=True, seed=1, cache=fl.Cache(ram="1TB"))
    with caplog.at_level("WARNING", logger="foreload"):
        batches = iter(loader)
        found = list(next(batches)[0])
    [warned] = [record.message for record in caplog.records if "of memory" in record.message]
    assert warned.startswith("the loader asks for 1000000 MB of memory")
    found += [value for values, _ in batches for value in values]
    assert found == [data.read(sample) for batch in range(len(loader)) for sample in loader.run.plan.batch(0, batch, 0)]


def test_without_a_checksum_an_alteration_that_keeps_length_and_etag_is_delivered(home: Any, altering: Any) -> None:
    data = fl.open("s3://data/fixed")
    altering.add_fault("flip", matching="fixed/cat/00000.bin", at=0.5)
    delivered = bytes(next(iter(DataLoader(data, 1, cache=fl.Cache(ram="16MB"))))[0][0])
    stored = random.Random(0).randbytes(30_000)
    assert len(delivered) == len(stored)
    assert delivered != stored


# A process of its own: what other tests' forked children share with this one counts as this one's when they end.
MEMORY_OF_AN_EPOCH = """
import os, sys
import foreload as fl
from bench import machine
from foreload._node import agent
from foreload.torch import DataLoader

budget, keeps, cache_dir = int(sys.argv[1]), sys.argv[2] == "True", sys.argv[3]
batches = iter(DataLoader(fl.open("s3://bench/much"), 8, shuffle=True, seed=1, cache=fl.Cache(ram=f"{budget}")))
next(batches)
ours = (os.getpid(), agent.connect(cache_dir).pid)
before = machine.memory_bytes(ours[:1])
most, kept = 0, []
for number, batch in enumerate(batches):
    if number % 10 == 0:
        most = max(most, machine.memory_bytes(ours) - before)
    if keeps:
        kept.append(batch)
print(most)
"""


@pytest.mark.parametrize("keeps", [False, True])
def test_memory_stays_near_the_budget_over_ten_times_as_much_data(home: Any, keeps: bool) -> None:
    budget, bytes_each, count = 48 << 20, 400_000, 1200
    with Bucket(synthetic=(f"much:{count}x{bytes_each}",), profile="fast") as much:
        ran = subprocess.run(
            [sys.executable, "-c", MEMORY_OF_AN_EPOCH, str(budget), str(keeps), str(home.cache_dir)],
            env=dict(os.environ) | much.environment(),
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
    most = int(ran.stdout)
    assert count * bytes_each > 9 * budget
    # Least the half: what is measured is the memory that the budget is about.
    assert most > budget // 2
    # Besides the budget: the agent itself, and the loop's own two batches. What the loop keeps is seen, too.
    assert (most < budget + (24 << 20)) is not keeps


@pytest.mark.parametrize(
    ("tier", "policy", "least", "most"),
    # A part of a disk tier is its segments' own, and of one so small 8 %; what a busy disk isn't fast enough to take comes later.
    [("memory", None, 0.48, 0.56), ("disk", None, 0.4, 0.56), ("memory", "lru", 0.1, 0.25)],
)
def test_of_later_epochs_the_share_that_is_kept_is_not_fetched_again(
    home: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str, policy: Any, least: float, most: float
) -> None:
    """Half of the data is; by the requests that the bucket had. LRU, which loses what it would need next, finds 1/2 + 1/2 ln 1/2 of it."""
    count, bytes_each = 800, 60_032
    half, staging, batches = count * bytes_each // 2, 1 << 20, 1 << 20
    with Bucket(synthetic=(f"half:{count}x{bytes_each}",)) as bucket:
        for name, value in bucket.environment().items():
            monkeypatch.setenv(name, value)
        sizes = {"staging": str(staging), "batches": str(batches)}
        cache = fl.Cache(ram=str(half + staging + batches), **sizes)
        if tier == "disk":
            cache = fl.Cache(ram="16MB", staging="15MB", batches="1MB", disk=f"{tmp_path}/tier:{half}")
        tuning = fl.Tuning(hedge_per_cent=0)
        loader = DataLoader(
            fl.open("s3://bench/half"), 8, shuffle=True, seed=1, cache=cache, policy=policy, tuning=tuning
        )
        gets = []
        for _ in range(4):
            assert sum(len(values) for values, _ in loader) == count
            gets.append(bucket.counters()["requests"]["get"])
    found = 1 - (gets[-1] - gets[1]) / (2 * count)
    assert least < found < most


BILLION = """
import json
import os
from pathlib import Path
from foreload._settings.order import Order, kind_of, tail_of

def resident():
    return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")).split()[1]) << 10

def order(samples):
    return Order("0" * 32, samples, kind_of("keyed", 1, shuffle=True), 1, 256, tail_of(1, 256, drop_last=False, uneven=None)).plan(2)

order(1 << 17).batch(0, 0, 0)
before = resident()
plan, had = order(10**9), set()
for epoch in (0, 7):
    for batch in (0, 1, 10**9 // 256 // 2, 10**9 // 256 - 1):
        for rank in range(2):
            found = plan.batch(epoch, batch, rank)
            assert all(0 <= sample < 10**9 for sample in found) and len(set(found)) == len(found), found
            had.update((epoch, sample) for sample in found)
print(resident() - before, len(had))
"""


def test_an_order_of_a_billion_samples_takes_no_memory() -> None:
    """Measured, over batches from the first to the last; an index of so many samples has no room in a test."""
    done = subprocess.run([sys.executable, "-c", BILLION], check=True, capture_output=True, text=True, timeout=60)
    grown, had = map(int, done.stdout.split())
    assert had == 8 * 256
    assert grown < 1 << 20


def _cpu_ns(pid: int) -> int:
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="takes two processors")
def test_the_agent_uses_the_processors_of_all_its_clients(home: Any) -> None:
    """Launchers bind each rank to its own; whichever comes first starts the agent."""
    here = os.sched_getaffinity(0)
    one = {min(here)}
    os.sched_setaffinity(0, one)
    try:
        pid = _agent.connect(str(home.cache_dir)).pid
        assert {frozenset(os.sched_getaffinity(thread)) for thread in _threads(pid)} == {frozenset(one)}
        line = f"import os; os.sched_setaffinity(0, {here}); from foreload._node import agent; agent.connect({str(home.cache_dir)!r})"
        subprocess.run([sys.executable, "-c", line], check=True)
        assert {frozenset(os.sched_getaffinity(thread)) for thread in _threads(pid)} == {frozenset(here)}
    finally:
        os.sched_setaffinity(0, here)


def _threads(pid: int) -> list[int]:
    return [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]


def test_an_agent_without_work_uses_no_cpu(home: Any) -> None:
    loader = DataLoader(fl.open("s3://data/fixed"), 8, cache=fl.Cache(ram="16MB"))
    batches = iter(loader)
    next(batches)
    agent = _agent.connect(str(home.cache_dir)).pid

    def rests() -> bool:
        used = _cpu_ns(agent)
        time.sleep(1)
        return _cpu_ns(agent) == used

    # Not at once: it still reads ahead. Three seconds without a nanosecond.
    until(lambda: rests() and rests() and rests(), 30)


def test_many_loaders_leave_nothing_behind_in_the_agent(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a test's agent writes down of its steps grows with them.
    monkeypatch.delenv("FORELOAD_UNSTABLE_RECORD")
    data = fl.open("s3://data/fixed")
    agent = _agent.connect(str(home.cache_dir))
    process = Path(f"/proc/{agent.pid}")

    def held() -> tuple[int, int]:
        descriptors = []
        for path in (process / "fd").iterdir():
            # It may be closed while we look.
            with contextlib.suppress(FileNotFoundError):
                descriptors.append(str(path.readlink()))
        # Connections to the bucket come and go.
        kept = [name for name in descriptors if not name.startswith("socket:")]
        return len(kept), len(list((process / "task").iterdir()))

    def heap_bytes() -> int:
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        return int(status["RssAnon"].split()[0]) << 10

    # Each has a plan of its own, every third is left in mid-epoch, and every other has another budget.
    before, bytes_before = (0, 0), 0
    for number in range(90):
        cache = fl.Cache(ram="16MB" if number % 2 else "24MB")
        loader = DataLoader(data, 8 + number % 5, shuffle=True, seed=number, cache=cache)
        for at, _ in enumerate(loader):
            if number % 3 == 0 and at == 4:
                break
        del loader
        if number == 29:
            before, bytes_before = held(), heap_bytes()
    # A job lingers for a moment.
    until(lambda: not json.loads(agent.call('{"call": "status"}'))["jobs"])
    # A thread for what blocks lives on for ten seconds after its last task.
    until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)), 20)
    # It takes 7 to 9 MB, after ten loaders as after hundreds.
    assert heap_bytes() - bytes_before < 4 << 20
    # Nothing that it could replay.
    os.kill(agent.pid, signal.SIGKILL)
    until(lambda: not home.is_served())
