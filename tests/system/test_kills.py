"""kill -9 of trainer, worker, agent, and of all at once: nothing is left behind, and the next run goes on from the disk tier."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
import traces
from foreload._node import agent as _agent
from foreload.torch import DataLoader
from small import COUNT, until

PROGRAM = """
import json, os, sys, time
import foreload as fl
from foreload._node import agent as _agent
from foreload.torch import DataLoader
data = fl.open("s3://data/fixed")
cache = fl.Cache(ram="16MB", staging="4MB", batches="11MB", disk=os.environ["TIER"] + ":64MB")
method = os.environ.get("METHOD", "fork")
loader = DataLoader(
    data, 8, shuffle=True, seed=1, num_workers=2, multiprocessing_context=method, persistent_workers=True, cache=cache
)
print(json.dumps({"agent": _agent.connect(data.source.cache_dir).pid}), flush=True)
for epoch in range(1_000_000):
    for _ in loader:
        time.sleep(0.01)
    print(json.dumps({"epoch": epoch}), flush=True)
"""


class Trainer:
    """A process that trains for ever, with two workers, in a process group of its own."""

    def __init__(self, tier: Path, method: str = "fork") -> None:
        environment = {**os.environ, "TIER": str(tier), "METHOD": method}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.agent = self.told()["agent"]

    def told(self) -> Any:
        """The next thing it says."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def workers(self) -> list[int]:
        """The processes that decode."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children]

    def end(self) -> None:
        """Waits for it."""
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    return tmp_path / "tier"


def nothing_is_left(home: Any, shared: set[Path]) -> None:
    until(lambda: not traces.processes(home), 30)
    assert not [path for path in shared if path.exists()]
    assert not home.is_served()


def goes_on_from_the_disk(tier: Path, bucket: Any) -> None:
    bucket.reset()
    data = fl.open("s3://data/fixed")
    cache = fl.Cache(ram="16MB", staging="4MB", batches="11MB", disk=f"{tier}:64MB")
    loader = DataLoader(data, 8, shuffle=True, seed=1, num_workers=2, cache=cache)
    samples = [sample for batch in range(len(loader)) for sample in loader.run.plan.batch(0, batch, 0)]
    found = [value for values, _ in loader for value in values]
    gets = bucket.counters()["requests"].get("get", 0)
    assert found == [data.read(sample) for sample in samples]
    assert gets < COUNT // 2, "what was kept on disk, and not in memory, is found there"


# Otherwise than by fork, multiprocessing's resource tracker would be killed with the workers, and leave the names of its semaphores.
@pytest.mark.parametrize(
    ("whom", "method"),
    [
        ("trainer", "fork"),
        ("trainer", "forkserver"),
        ("trainer", "spawn"),
        ("trainer and workers", "fork"),
        ("all", "fork"),
    ],
)
def test_a_killed_run_leaves_nothing_and_the_next_goes_on_from_the_disk(
    home: Any, bucket: Any, tier: Path, whom: str, method: str
) -> None:
    trainer = Trainer(tier, method)
    assert trainer.told()["epoch"] == 0
    assert trainer.told()["epoch"] == 1
    assert len(traces.processes(home)) >= 4
    shared = traces.shared(home)
    assert bool(shared) == (method != "fork"), "semaphores have names until the resource tracker deletes them"
    if whom == "trainer":
        os.kill(trainer.process.pid, signal.SIGKILL)
    elif whom == "trainer and workers":
        os.killpg(trainer.process.pid, signal.SIGKILL)
    else:
        os.kill(trainer.agent, signal.SIGKILL)
        os.killpg(trainer.process.pid, signal.SIGKILL)
    trainer.end()
    nothing_is_left(home, shared)
    goes_on_from_the_disk(tier, bucket)


STOCK = """
import sys, time
import foreload as fl
from foreload.torch import Dataset, Sampler
from torch.utils.data import DataLoader
data = fl.open("s3://data/fixed")
reader = Dataset(data, cache=fl.Cache(ram="48MB"))
# Of more workers than batches some are never asked; the others' batches fill the pipe, and nobody takes them.
loader = DataLoader(reader, 64, sampler=Sampler(data), collate_fn=list, num_workers=3, multiprocessing_context=sys.argv[1])
batches = iter(loader)
next(batches)
print("ready", flush=True)
time.sleep(1000)
"""
OURS = """
import sys, time
import foreload as fl
from foreload.torch import DataLoader
loader = DataLoader(fl.open("s3://data/fixed").select(range(2)), 1, num_workers=4, multiprocessing_context=sys.argv[1])
batches = iter(loader)
next(batches)
print("ready", flush=True)
time.sleep(1000)
"""

ANYBODYS = """
import sys, time
from foreload.torch import DataLoader
loader = DataLoader(list(range(8)), 1, num_workers=4, multiprocessing_context=sys.argv[1])
batches = iter(loader)
next(batches)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("program", [STOCK, OURS, ANYBODYS])
def test_workers_that_are_not_asked_or_not_heard_end_with_their_trainer_too(
    home: Any, program: str, method: str
) -> None:
    with subprocess.Popen([sys.executable, "-c", program, method], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "ready\n"
        shared = traces.shared(home)
        trainer.kill()
    nothing_is_left(home, shared)


def test_a_killed_worker_ends_its_trainer_and_leaves_nothing(home: Any, bucket: Any, tier: Path) -> None:
    trainer = Trainer(tier)
    assert trainer.told()["epoch"] == 0
    shared = traces.shared(home)
    os.kill(trainer.workers()[-1], signal.SIGKILL)
    trainer.process.wait(30)
    assert trainer.process.returncode == 1, "torch's loader says that a worker was killed"
    trainer.end()
    nothing_is_left(home, shared)
    goes_on_from_the_disk(tier, bucket)


def test_a_killed_agent_is_replaced_and_the_run_goes_on(home: Any, tier: Path) -> None:
    trainer = Trainer(tier)
    try:
        assert trainer.told()["epoch"] == 0
        shared = traces.shared(home)
        os.kill(trainer.agent, signal.SIGKILL)
        begun = time.monotonic()
        assert [trainer.told()["epoch"] for _ in range(3)] == [1, 2, 3]
        assert time.monotonic() - begun < 60
        assert _agent.connect(str(home.cache_dir)).pid != trainer.agent
        _agent._agents.clear()
    finally:
        os.killpg(trainer.process.pid, signal.SIGKILL)
    trainer.end()
    nothing_is_left(home, shared)


def test_a_panic_ends_the_agent_and_the_next_one_goes_on(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORELOAD_UNSTABLE_PANIC", "s3://data/none")
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 8, shuffle=True, seed=1, cache=fl.Cache(ram="16MB"))
    batches = iter(loader)
    found = list(next(batches)[0])
    first = _agent.connect(str(home.cache_dir)).pid
    # The agent that comes after it inherits another environment.
    monkeypatch.delenv("FORELOAD_UNSTABLE_PANIC")
    told = []

    def ask() -> None:
        try:
            fl.open("s3://data/none")
        except Exception as error:  # noqa: BLE001 (compared below)
            told.append(type(error))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(30)
    assert told == [fl.errors.NotFoundError], "who asked the agent that panicked is answered by the next one"
    assert _agent.connect(str(home.cache_dir)).pid != first
    for values, _ in batches:
        found += values
    assert found == [data.read(sample) for batch in range(len(loader)) for sample in loader.run.plan.batch(0, batch, 0)]
    assert "panicked" in home.log()
    # The fixture takes any other panic for a failure.
    os.truncate(home.cache_dir / "agent.log", 0)


def test_an_agent_that_is_killed_and_nobody_needs_leaves_only_names(home: Any, tier: Path) -> None:
    """Its socket's name stays in the runtime directory, and a new agent takes its place."""
    data = fl.open("s3://data/fixed")
    whole = data.read(0)
    os.kill(_agent.connect(str(home.cache_dir)).pid, signal.SIGKILL)
    until(lambda: not home.is_served())
    assert fl.open("s3://data/fixed").read(0) == whole
    names = list(home.runtime_dir.iterdir())
    for _ in range(3):
        os.kill(_agent.connect(str(home.cache_dir)).pid, signal.SIGKILL)
        until(lambda: not home.is_served())
        assert fl.open("s3://data/fixed").read(0) == whole
    assert len(list(home.runtime_dir.iterdir())) == len(names), "names don't gather"


def test_a_pass_that_is_left_as_a_worker_is_killed_leaves_no_descriptor(home: Any) -> None:
    """Torch's news of the killed worker may come while the pass is being closed."""
    data = fl.open("s3://data/fixed")
    settings: Any = {"shuffle": True, "num_workers": 3, "cache": fl.Cache(ram="16MB")}
    loader = DataLoader(data, 8, **settings)
    counts = []
    for _ in range(12):
        iterator = iter(loader)
        with contextlib.suppress(RuntimeError):
            next(iterator)
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            own = Path("/proc/self/cmdline").read_bytes()
            workers = [int(child) for child in children if Path(f"/proc/{child}/cmdline").read_bytes() == own]
            os.kill(workers[0], signal.SIGKILL)
        with contextlib.suppress(RuntimeError):
            del iterator
        gc.collect()
        # A queue's thread, which was told to end, holds two descriptors until it has.
        until(lambda: not any(thread.name == "QueueFeederThread" for thread in threading.enumerate()))
        counts.append((len(list(Path("/proc/self/fd").iterdir())), threading.active_count()))
    assert counts[-1][0] <= counts[1][0] + 1, counts
    assert counts[-1][1] <= counts[1][1], counts
