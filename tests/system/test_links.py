"""A bucket behind a link that goes dark in the middle of an epoch: packets vanish, and nobody is told.

The bucket runs in a network namespace at the other end of a virtual cable. The link goes dark when each end is told a wrong
hardware address of the other: frames are sent and dropped, in both directions, without a reset.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket, binary

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader

pytestmark = [
    pytest.mark.needs("root", "netns"),
    pytest.mark.filterwarnings("ignore::foreload.errors.StalledWarning"),
]

COUNT, SIZE = 400, 50_000
NOBODY = "02:00:00:00:00:99"


class Link:
    """A cable with a bucket behind it.

    Attributes:
        bucket: The bucket.
    """

    def __init__(self, scratch: Path) -> None:
        number = os.getpid()
        self.space, self.near, self.far = f"fl{number}", f"fla{number}"[:15], f"flb{number}"[:15]
        # From the block that is meant for tests of networks.
        block = number % 16384
        base = f"198.18.{block // 64 % 256}.{block % 64 * 4}".rsplit(".", 1)
        self.here, self.there = f"{base[0]}.{int(base[1]) + 1}", f"{base[0]}.{int(base[1]) + 2}"
        ip("netns", "add", self.space)
        ip("link", "add", self.near, "type", "veth", "peer", "name", self.far, "netns", self.space)
        ip("addr", "add", f"{self.here}/30", "dev", self.near)
        ip("link", "set", self.near, "up")
        for words in (("addr", "add", f"{self.there}/30", "dev", self.far), ("link", "set", self.far, "up")):
            ip("-n", self.space, *words)
        ip("-n", self.space, "link", "set", "lo", "up")
        wrapper = scratch / "testbucket"
        wrapper.write_text(f'#!/bin/sh\nexec ip netns exec {self.space} {binary()} "$@"\n')
        wrapper.chmod(0o755)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FORELOAD_TESTBUCKET", str(wrapper))
            self.bucket = Bucket(synthetic=[f"far:{COUNT}x{SIZE}"], options=["--address", self.there])

    def dark(self) -> None:
        """From now on packets vanish."""
        ip("neigh", "replace", self.there, "lladdr", NOBODY, "dev", self.near, "nud", "permanent")
        ip("-n", self.space, "neigh", "replace", self.here, "lladdr", NOBODY, "dev", self.far, "nud", "permanent")

    def light(self) -> None:
        """They arrive again."""
        ip("neigh", "del", self.there, "dev", self.near)
        ip("-n", self.space, "neigh", "del", self.here, "dev", self.far)

    def cut(self) -> None:
        """Takes everything down."""
        self.bucket.stop()
        ip("link", "del", self.near)
        ip("netns", "del", self.space)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    made = Link(tmp_path_factory.mktemp("link"))
    yield made
    made.cut()


@pytest.fixture
def far(link: Link, home: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The data set behind the link."""
    for name, value in link.bucket.environment().items():
        monkeypatch.setenv(name, value)
    return fl.open("s3://bench/far")


def make(data: Any, **keywords: Any) -> Any:
    tuning = fl.Tuning(**{"stall_s": 0.5, "concurrency": 4, **keywords.pop("tuning", {})})
    return DataLoader(data, 8, shuffle=True, seed=1, tuning=tuning, **{"cache": fl.Cache(ram="16MB"), **keywords})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_link_that_comes_back_is_reported_and_changes_nothing(
    link: Link, far: Any, home: Any, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    loader = make(far, num_workers=workers)
    whole = [far.read(sample) for batch in range(len(loader)) for sample in loader.run.plan.batch(0, batch, 0)]
    iterator = iter(loader)
    found = list(next(iterator)[0])
    link.dark()
    begun = time.monotonic()
    lit = threading.Timer(4, link.light)
    lit.start()
    found += [value for values, _ in iterator for value in values]
    lit.join()
    assert found == whole
    assert "a GET to the bucket is under way" in home.log() + caplog.text
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("workers", [0, 2])
def test_a_link_that_stays_dark_is_reported_with_its_cause_and_is_an_error_in_time(
    link: Link, far: Any, home: Any, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    loader = make(far, num_workers=workers, tuning={"load_timeout_s": 5})
    iterator = iter(loader)
    next(iterator)
    link.dark()
    begun = time.monotonic()
    try:
        with pytest.raises(errors.TimedOutError, match=r"(?s)far/"):
            list(iterator)
        # What is under way ends after 5 s and is tried once more; then what waited for its turn has its own two tries.
        assert time.monotonic() - begun < 25
    finally:
        link.light()
    assert "a GET to the bucket is under way" in home.log() + caplog.text
    assert sum(len(values) for values, _ in make(far, cache=fl.Cache(ram="20MB"))) == COUNT, (
        "the next pass finds the link well"
    )
