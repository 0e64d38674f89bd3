"""A run that is disturbed in every way for a while: every epoch exact, and memory, descriptors and threads stay within bounds.

The run consists of legs. Each leg makes a loader with a random number of workers, loads the state of the leg before, and goes a random number
of steps while the bucket answers with 503s, resets, truncations, silence and flipped bits, and workers and agents are killed. A leg may end
with an error that says why; then the next one goes on from the last batch that was delivered. `FORELOAD_CHAOS_S` says for how many
seconds (60), `FORELOAD_CHAOS_SEED` which random numbers; both are printed, with the seed to repeat.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import foreload as fl
from command import Command
from foreload import errors
from foreload._node import agent as _agent
from foreload.torch import DataLoader
from small import COUNT, content, number_of, until

SECONDS = float(os.environ.get("FORELOAD_CHAOS_S", "60"))
SEED = int(os.environ.get("FORELOAD_CHAOS_SEED", random.SystemRandom().randrange(1 << 32)))
BATCH = 8

#: Faults that a store shows; those of `attempts` are over when they are tried again.
FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "status", "status": 503, "share": 0.3, "attempts": 1},
    {"kind": "status", "status": 500, "share": 0.1},
    {"kind": "reset", "share": 0.2, "attempts": 2},
    {"kind": "truncate", "share": 0.2, "attempts": 1, "at": 0.5},
    {"kind": "hang", "share": 0.02, "attempts": 1},
    {"kind": "stall", "share": 0.02, "attempts": 1, "at": 0.5},
    {"kind": "flip", "share": 0.1, "attempts": 1, "at": 0.5},
    {"kind": "short", "share": 0.1, "attempts": 1},
    {"kind": "slow", "share": 0.2, "delay_ms": 30},
)
#: How a leg may end early. What the bucket does for good and what was killed is said; anything else is a defect.
ENDINGS = (errors.UnavailableError, errors.CorruptError, errors.TimedOutError, errors.ClosedError)


def head(raw: memoryview, meta: fl.Meta) -> tuple[int, bytes]:
    return meta.sample, bytes(raw)


def collate(items: list[Any]) -> list[tuple[int, bytes]]:
    return [item for item, _ in items]


class Run:
    """The disturbed run.

    Args:
        data: The data set, with checksums.
        bucket: Its bucket.
        dice: What decides everything.
        tier: A directory for a disk tier.
    """

    def __init__(self, data: Any, bucket: Any, dice: random.Random, tier: Path) -> None:
        self.data, self.bucket, self.dice, self.tier = data, bucket, dice, tier
        self.state: dict[str, Any] | None = None
        self.found: dict[int, list[int]] = {}
        self.legs = 0
        self.events: Counter[str] = Counter()

    def loader(self) -> Any:
        # Each leg's budget is its own, so that no leg takes over what another one's job has kept.
        disk = f"{self.tier}:4MB" if self.dice.random() < 0.5 else ()
        cache = fl.Cache(ram=(16 << 20) + 4096 * self.legs, disk=disk)
        tuning = fl.Tuning(load_timeout_s=6, stall_s=60)
        workers = self.dice.choice([0, 0, 1, 2, 3])
        self.events[f"{workers} workers"] += 1
        return DataLoader(
            self.data,
            BATCH,
            shuffle=True,
            seed=5,
            decode=head,
            collate_fn=collate,
            num_workers=workers,
            cache=cache,
            tuning=tuning,
            timeout=60,
        )

    def leg(self) -> None:
        """One loader's part."""
        self.legs += 1
        for fault in self.dice.sample(FAULTS, self.dice.randrange(4)):
            self.bucket.add_fault(**fault)
            self.events[fault["kind"]] += 1
        loader = self.loader()
        if self.state is not None:
            loader.load_state_dict(self.state)
        steps, victim = self.dice.randrange(1, 2 * len(loader)), self.dice.choice(["", "", "", "agent", "worker"])
        try:
            self.go(loader, steps, self.dice.randrange(steps), victim)
        except ENDINGS as error:
            self.events[type(error).__name__] += 1
        except RuntimeError as error:
            # What torch says of a worker that was killed.
            if victim != "worker" or "DataLoader worker" not in str(error):
                raise
            self.events["worker was missed"] += 1
        self.bucket.clear_faults()
        self.is_quiet(loader)

    def go(self, loader: Any, steps: int, when: int, victim: str) -> None:
        iterator: Iterator[Any] = iter(loader)
        try:
            for step in range(steps):
                if step == when and victim:
                    self.kill(victim)
                batch = next(iterator, None)
                self.state = loader.state_dict()
                if batch is None:
                    iterator = iter(loader)
                    continue
                self.deliver(loader, batch)
        finally:
            del iterator

    def deliver(self, loader: Any, batch: list[tuple[int, bytes]]) -> None:
        epoch = loader._cursor.epoch
        for sample, data in batch:
            assert data == content(number_of(self.data.key(sample))), f"sample {sample}"
        self.found.setdefault(epoch, []).extend(sample for sample, _ in batch)
        planned = [sample for part in range(len(loader)) for sample in loader.run.plan.batch(epoch, part, 0)]
        assert self.found[epoch] == planned[: len(self.found[epoch])], f"epoch {epoch}"

    def kill(self, whom: str) -> None:
        # Workers are forks of this process.
        own = psutil.Process().cmdline()
        children = [child for child in psutil.Process().children() if child.cmdline() == own]
        if whom == "agent":
            os.kill(_agent.connect(self.data.source.cache_dir).pid, signal.SIGKILL)
        elif children:
            os.kill(self.dice.choice(children).pid, signal.SIGKILL)
        self.events[f"{whom} killed"] += 1

    def is_quiet(self, loader: Any) -> None:
        """The leg holds nothing any more."""
        gc.collect()

        def quiet() -> bool:
            with contextlib.suppress(errors.ClosedError):
                gauges = loader.run.attachment().call("stats")["gauges"]
                return bool(gauges["leases"] == 0 and gauges["leased_bytes"] == 0)
            return False

        until(quiet, 20)


def sizes(pid: int) -> dict[str, int]:
    """What a process has of everything that could leak."""
    process = psutil.Process(pid)
    memory = process.memory_info()
    return {
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "megabytes": (memory.rss - memory.shared) >> 20,
    }


@pytest.mark.timeout(SECONDS + 300)
def test_a_disturbed_run_is_exact_and_nothing_grows(
    home: Any,
    bucket: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Recording grows without bound, which is what is looked for here.
    monkeypatch.delenv("FORELOAD_UNSTABLE_RECORD")
    monkeypatch.setenv("FORELOAD_LINGER_S", "2")
    assert Command(capsys, monkeypatch)("index", "s3://data/train", "--checksum") == 0
    data = fl.open("s3://data/train", storage_options={"read_timeout": "1", "connect_timeout": "1"})
    run = Run(data, bucket, random.Random(SEED), tmp_path / "tier")
    print(f"FORELOAD_CHAOS_SEED={SEED} FORELOAD_CHAOS_S={SECONDS:.0f}")
    begun = time.monotonic()
    warm: dict[str, int] = {}
    highest: Counter[str] = Counter()
    try:
        while time.monotonic() - begun < SECONDS:
            run.leg()
            agent = sizes(_agent.connect(data.source.cache_dir).pid)
            for name, value in agent.items():
                highest[f"agent's {name}"] = max(highest[f"agent's {name}"], value)
            if run.legs == 8:
                warm = sizes(os.getpid())
    finally:
        whole = sum(len(samples) == COUNT for samples in run.found.values())
        ours = sizes(os.getpid())
        print(f"{run.legs} legs, {whole} epochs whole; {dict(run.events)}; {dict(highest)}; ours {warm} -> {ours}")
    epochs = sorted(run.found)
    assert epochs == list(range(len(epochs)))
    assert all(len(run.found[epoch]) == COUNT for epoch in epochs[:-1]), "no epoch lost a sample"
    assert highest["agent's descriptors"] < 200
    assert highest["agent's threads"] < 100
    assert highest["agent's megabytes"] < 200
    if warm:
        assert ours["descriptors"] <= warm["descriptors"] + 8
        assert ours["threads"] <= warm["threads"] + 4
        assert ours["megabytes"] <= warm["megabytes"] + 64


def test_a_lost_a_doubled_and_an_altered_sample_are_noticed(home: Any, bucket: Any, tmp_path: Path) -> None:
    data = fl.open("s3://data/train")
    run = Run(data, bucket, random.Random(1), tmp_path)
    loader = run.loader()
    first, second = list(loader)[:2]
    run.deliver(loader, first)
    for wrong in (first, second[1:], [(second[0][0], second[0][1] + b"x"), *second[1:]]):
        before = {epoch: list(samples) for epoch, samples in run.found.items()}
        with pytest.raises(AssertionError, match=r"sample|epoch"):
            run.deliver(loader, wrong)
        run.found = before
    run.deliver(loader, second)
