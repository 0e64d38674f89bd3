"""What comes first: the first batch of a loader that begins elsewhere, and not all that was to be read ahead from where it was; and one loader's batches while another's hang."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bucket import Bucket

import foreload as fl
from foreload.torch import DataLoader

COUNT, SIZE, BATCH = 20_000, 2_000, 32
#: All of it takes forty seconds.
BYTES_PER_S = 1_000_000
SOON_S = 5.0


@pytest.fixture
def slow(home: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with Bucket(synthetic=[f"many:{COUNT}x{SIZE}"], anonymous=True) as bucket:
        for name, value in bucket.environment().items():
            monkeypatch.setenv(name, value)
        fl.open("s3://bench/many")
        bucket.set_profile({"first_byte_ms": 10, "total_bytes_per_s": BYTES_PER_S})
        yield bucket


def another_epoch(loader: Any) -> None:
    loader.set_epoch(5)


def the_next_pass(loader: Any) -> None:
    pass


def far_on(loader: Any) -> None:
    loader.load_state_dict({**loader.state_dict(), "position": 450 * BATCH})


def far_on_and_back(loader: Any) -> None:
    far_on(loader)
    next(iter(loader))
    loader.load_state_dict({**loader.state_dict(), "position": 100 * BATCH})


@pytest.mark.parametrize("ram", ["100MB", "8MB"])
@pytest.mark.parametrize("begins", [another_epoch, the_next_pass, far_on, far_on_and_back])
def test_the_first_batch_comes_before_what_was_to_be_read_ahead_elsewhere(
    slow: Bucket, begins: Callable[[Any], None], ram: str
) -> None:
    data = fl.open("s3://bench/many")
    loader = DataLoader(data, BATCH, shuffle=True, seed=1, cache=fl.Cache(ram=ram))
    batches = iter(loader)
    for _ in range(10):
        next(batches)
    # What is read ahead waits in thousands.
    time.sleep(1.0)
    begins(loader)
    del batches
    begun = time.monotonic()
    next(iter(loader))
    assert time.monotonic() - begun < SOON_S
    assert slow.counters()["requests"]["get"] < COUNT / 2


def test_what_hangs_for_one_loader_holds_up_no_other_of_the_same_agent(
    home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Bucket(synthetic=[f"hangs:{COUNT}x{SIZE}", "well:400x100000"], anonymous=True) as bucket:
        for name, value in bucket.environment().items():
            monkeypatch.setenv(name, value)
        bucket.set_profile({"first_byte_ms": 20})
        one, other = (
            DataLoader(fl.open(f"s3://bench/{name}"), 8, shuffle=True, seed=1, cache=fl.Cache(ram="50MB"))
            for name in ("hangs", "well")
        )
        batches = iter(one)
        next(batches)
        bucket.add_fault("hang", matching="hangs/", on=["get"])
        # All that may be under way is what hangs.
        time.sleep(3.0)
        begun = time.monotonic()
        assert sum(len(batch[0]) for batch in other) == 400
        assert time.monotonic() - begun < SOON_S
