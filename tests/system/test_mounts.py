"""A loader over a slow mount: each epoch exact; a mount that dies or falls silent ends in an error, in time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket import SlowFs

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader
from small import CLASSES, content

pytestmark = pytest.mark.needs("fuse")

COUNT = 120
TINY = fl.Cache(ram="16MB")


def large(number: int) -> bytes:
    """All of them together are three times what `TINY` holds: nobody has read them before a mount ends."""
    return bytes([number]) * 400_000


@pytest.fixture
def slow(home: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SlowFs]:
    """`CLASS/NUMBER.bin` of odd sizes, or of those that a test asks for, 5 ms away."""
    body = getattr(request, "param", content)
    for number in range(COUNT):
        path = tmp_path / "files" / CLASSES[number % 3] / f"{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body(number))
    target = tmp_path / "mount"
    target.mkdir()
    mounted = SlowFs(tmp_path / "files", target, delay_ms=5)
    yield mounted
    mounted._process.send_signal(signal.SIGCONT)
    mounted.stop()
    subprocess.run(["umount", "-l", str(target)], check=False, capture_output=True)


def expected(data: Any, loader: Any, epoch: int, body: Callable[[int], bytes] = content) -> list[bytes]:
    run = loader.run
    samples = [sample for batch in range(len(run)) for sample in run.plan.batch(epoch, batch, 0)]
    return [body(int(Path(data.key(sample)).stem)) for sample in samples]


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_over_a_slow_mount_are_exact(slow: SlowFs, workers: int) -> None:
    data = fl.open(slow.target)
    loader = DataLoader(data, 7, shuffle=True, seed=1, num_workers=workers, cache=TINY)
    for epoch in range(2):
        assert [value for values, _ in loader for value in values] == expected(data, loader, epoch)


@pytest.mark.parametrize("slow", [large], indirect=True)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_mount_that_is_killed_in_an_epoch_is_an_error_in_time(slow: SlowFs, workers: int) -> None:
    data = fl.open(slow.target)
    loader = DataLoader(
        data, 2, shuffle=True, num_workers=workers, cache=TINY, tuning=fl.Tuning(load_timeout_s=3), timeout=60
    )
    iterator = iter(loader)
    next(iterator)
    slow._process.kill()
    begun = time.monotonic()
    with pytest.raises((errors.ForeloadError, RuntimeError), match=r"(?s)mount/.*\.bin"):
        list(iterator)
    assert time.monotonic() - begun < 15


@pytest.mark.parametrize("slow", [large], indirect=True)
@pytest.mark.filterwarnings("ignore::foreload.errors.StalledWarning")
def test_a_mount_that_falls_silent_is_reported_and_is_an_error_in_time(
    slow: SlowFs, caplog: pytest.LogCaptureFixture
) -> None:
    data = fl.open(slow.target)
    tuning = fl.Tuning(load_timeout_s=3, stall_s=0.5)
    loader = DataLoader(data, 2, shuffle=True, cache=TINY, tuning=tuning)
    iterator = iter(loader)
    next(iterator)
    os.kill(slow._process.pid, signal.SIGSTOP)
    begun = time.monotonic()
    with (
        pytest.warns(errors.StalledWarning, match="a read from the file system is under way"),
        pytest.raises(errors.ForeloadError, match="mount/"),
    ):
        list(iterator)
    assert time.monotonic() - begun < 15
    os.kill(slow._process.pid, signal.SIGCONT)
    # The next pass is the next epoch, over a mount that answers again.
    assert [value for values, _ in loader for value in values] == expected(data, loader, 1, large)


def test_a_mount_that_pauses_delays_and_changes_nothing(slow: SlowFs) -> None:
    data = fl.open(slow.target)
    loader = DataLoader(data, 7, shuffle=True, cache=TINY)
    iterator = iter(loader)
    found = list(next(iterator)[0])
    os.kill(slow._process.pid, signal.SIGSTOP)
    time.sleep(2)
    os.kill(slow._process.pid, signal.SIGCONT)
    found += [value for values, _ in iterator for value in values]
    assert found == expected(data, loader, 0)
