"""An agent that says nothing, stopped here by a signal: every wait for it is reported while it lasts, and goes on afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader

COUNT = 40
#: The agent stands still for so long; it is reported after 10 s.
STOPPED_S, REPORTED_S = 13.0, 12.0


@pytest.fixture
def files(home: Any, tmp_path: Path) -> Path:
    for number in range(COUNT):
        (tmp_path / "first" / f"{number:02}").parent.mkdir(exist_ok=True)
        (tmp_path / "first" / f"{number:02}").write_bytes(bytes([number] * 100))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a").write_bytes(b"x")
    return tmp_path


def loader_of(files: Path) -> tuple[DataLoader, int]:
    """A loader, and the agent's process."""
    data = fl.open(str(files / "first"))
    return DataLoader(data, 2, cache=fl.Cache(ram="44MB")), data.source.opened().agent.pid


def stopped(agent: int) -> None:
    """Stops it, for a process of its own to go on with it: nothing here need work for that."""
    os.kill(agent, signal.SIGSTOP)
    subprocess.Popen(["sh", "-c", f"sleep {STOPPED_S}; kill -CONT {agent}"])


def rest(batches: Iterator[Any]) -> list[int]:
    return [int(sample[0]) for samples, _ in batches for sample in samples]


WAITS: dict[str, Callable[[DataLoader, Iterator[Any], Path], Any]] = {
    "the loop": lambda loader, batches, files: rest(batches) == list(range(4, COUNT)),
    "open": lambda loader, batches, files: len(fl.open(str(files / "other"))) == 1,
    "stats": lambda loader, batches, files: loader.stats()["samples"] >= 4,
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_for_a_stopped_agent_is_reported_and_goes_on(
    files: Path, wait: str, caplog: pytest.LogCaptureFixture
) -> None:
    loader, agent = loader_of(files)
    batches = iter(loader)
    assert [next(batches)[0][0][0] for _ in range(2)] == [0, 2]
    stopped(agent)
    begun, told = time.monotonic(), []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: told.append((time.monotonic() - begun, message))
        assert WAITS[wait](loader, batches, files)
    assert time.monotonic() - begun >= STOPPED_S - 1
    ((after_s, message),) = told
    assert isinstance(message, errors.StalledWarning)
    assert after_s < REPORTED_S
    assert f"process {agent}, " in str(message)
    assert f"`kill -CONT {agent}`" in str(message)
    assert str(message) in caplog.messages


def test_a_report_that_is_an_error_ends_the_wait(files: Path) -> None:
    loader, agent = loader_of(files)
    batches = iter(loader)
    next(batches)
    stopped(agent)
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.StalledWarning)
        with pytest.raises(errors.StalledWarning, match="it is stopped"):
            loader.stats()
    assert loader.stats()["samples"] >= 2


@pytest.mark.parametrize("own", [False, True])
def test_a_time_out_ends_the_wait_for_an_agent_that_was_stopped_before_the_pass(files: Path, own: bool) -> None:
    data = fl.open(str(files / "first"))
    sampler = list(range(COUNT)) if own else None
    agent = data.source.opened().agent.pid
    os.kill(agent, signal.SIGSTOP)
    try:
        loader = DataLoader(data, 2, sampler=sampler, cache=fl.Cache(ram="44MB"), timeout=2)
        begun = time.monotonic()
        with pytest.raises(TimeoutError, match=r"timeout=2 s \(epoch 0, batch 0"):
            next(iter(loader))
        assert time.monotonic() - begun < 8
    finally:
        os.kill(agent, signal.SIGCONT)
    assert rest(iter(DataLoader(data, 2, cache=fl.Cache(ram="44MB")))) == list(range(COUNT))
