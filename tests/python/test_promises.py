"""Promises of docs/concepts/semantics.md that are seen only from outside: what altered bytes end as, memory, and rest."""

from __future__ import annotations

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
from foreload import _agent, errors
from foreload.cli.opening import reopen
from foreload.torch import DataLoader
from small import until

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench import machine


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
            until(lambda: gets() > 50)
            asking.send_signal(signal.SIGINT)
        time.sleep(0.3)
        before = gets()
        time.sleep(0.5)
        assert gets() == before < count


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


@pytest.mark.parametrize("keeps", [False, True])
def test_memory_stays_near_the_budget_over_ten_times_as_much_data(
    home: Any, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    budget, bytes_each, count = 48 << 20, 400_000, 1200
    with Bucket(synthetic=(f"much:{count}x{bytes_each}",), profile="fast") as much:
        for name, value in much.environment().items():
            monkeypatch.setenv(name, value)
        loader = DataLoader(fl.open("s3://bench/much"), 8, shuffle=True, seed=1, cache=fl.Cache(ram=f"{budget}"))
        batches = iter(loader)
        next(batches)
        ours = (os.getpid(), _agent.connect(str(home.cache_dir)).pid)
        before = machine.memory_bytes(ours[:1])
        most, kept = 0, []
        for number, batch in enumerate(batches):
            if number % 10 == 0:
                most = max(most, machine.memory_bytes(ours) - before)
            if keeps:
                kept.append(batch)
    assert count * bytes_each > 9 * budget
    # Least the half: what is measured is the memory that the budget is about.
    assert most > budget // 2
    # Besides the budget: the agent itself, and the loop's own two batches. What the loop keeps is seen, too.
    assert (most < budget + (24 << 20)) is not keeps


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="takes two processors")
def test_the_agent_uses_the_processors_of_all_its_clients(home: Any) -> None:
    """Launchers bind each rank to its own; whichever comes first starts the agent."""
    here = os.sched_getaffinity(0)
    one = {min(here)}
    os.sched_setaffinity(0, one)
    try:
        pid = _agent.connect(str(home.cache_dir)).pid
        assert {frozenset(os.sched_getaffinity(thread)) for thread in _threads(pid)} == {frozenset(one)}
        line = f"import os; os.sched_setaffinity(0, {here}); from foreload import _agent; _agent.connect({str(home.cache_dir)!r})"
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
        used = _cpu_s(agent)
        time.sleep(1)
        return _cpu_s(agent) == used

    # Not at once: it still reads ahead. Three seconds without one tick of the clock that counts.
    until(lambda: rests() and rests() and rests(), 30)
