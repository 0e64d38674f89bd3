"""A disk tier that doesn't answer: a sample waits for it until the load's deadline, and comes from the bucket then."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload.torch import DataLoader
from small import until

FILL = """
import sys
import foreload as fl
from foreload.torch import DataLoader
cache = fl.Cache(ram="16MB", staging="4MB", batches="11MB", disk=sys.argv[1] + ":64MB")
loader = DataLoader(fl.open("s3://data/fixed"), 8, shuffle=True, seed=1, cache=cache)
for _ in range(int(sys.argv[2])):
    for _ in loader:
        pass
loader.run.attachment().job()
"""


class Hung:
    """Files that nobody can open: each open waits until the lease is given back, or for /proc/sys/fs/lease-break-time (45 s)."""

    def __init__(self, directory: Path) -> None:
        self.files = [os.open(path, os.O_RDWR) for path in directory.glob("*.seg")]
        for file in self.files:
            until(lambda file=file: self._take(file))

    @staticmethod
    def _take(file: int) -> bool:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        return True

    def answer(self) -> None:
        while self.files:
            os.close(self.files.pop())


@pytest.fixture
def unbroken() -> Iterator[None]:
    """Who holds a lease is told with a signal that somebody wants the file."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, before)


def test_a_disk_that_hangs_is_waited_for_until_the_deadline(home: Any, unbroken: None, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    # The second agent seals what the first one left, so that the third reads footers alone.
    for epochs in (2, 0):
        subprocess.run([sys.executable, "-c", FILL, str(tier), str(epochs)], check=True, timeout=120)
        until(lambda: not home.is_served(), 20)
    data = fl.open("s3://data/fixed")
    truth = [data.read(sample) for sample in range(len(data))]
    cache = fl.Cache(ram="16MB", staging="4MB", batches="11MB", disk=f"{tier}:64MB")
    tuning = fl.Tuning(load_timeout_s=1)
    loader = DataLoader(data, 8, shuffle=True, seed=1, cache=cache, tuning=tuning, policy="naive")
    # From here on the agent knows what the files hold. Without reading ahead it has none of them open.
    loader.run.attachment().job()
    assert loader.stats()["gauges"]["disk_bytes"] > 3_000_000
    hung = Hung(tier)
    assert hung.files
    try:
        begun = time.monotonic()
        found = [value for values, _ in loader for value in values]
        assert time.monotonic() - begun < 30
    finally:
        hung.answer()
    samples = [sample for batch in range(len(loader)) for sample in loader.run.plan.batch(0, batch, 0)]
    assert found == [truth[sample] for sample in samples]
    assert "it doesn't answer" in home.log()
    assert [value for values, _ in loader for value in values] == [
        truth[sample] for batch in range(len(loader)) for sample in loader.run.plan.batch(1, batch, 0)
    ]
