"""A rank may look at a batch that the others don't look at."""

from __future__ import annotations

from typing import Any

import pytest

import foreload as fl
from foreload.torch import DataLoader


def number(raw: memoryview, meta: fl.Meta) -> int:
    return meta.sample


def torchs(data: Any, rank: int, workers: int = 0) -> Any:
    return DataLoader(
        data, 24, shuffle=True, seed=2, decode=number, num_workers=workers, dp_rank=rank, dp_size=2, epochs=4
    )


def numpys(data: Any, rank: int, workers: int = 0) -> Any:
    return fl.NumpyLoader(data, 24, shuffle=True, seed=2, decode=number, shard=(rank, 2))


def ids(loader: Any) -> list[list[int]]:
    return [[int(sample) for sample in samples] for samples, _ in loader]


@pytest.mark.parametrize(("make", "workers"), [(torchs, 0), (torchs, 2), (numpys, 0)])
def test_a_look_of_one_rank_is_no_epoch(data: Any, make: Any, workers: int) -> None:
    whole = [[ids(loader) for _ in range(3)] for loader in (make(data, 0), make(data, 1))]
    looked, other = make(data, 0, workers), make(data, 1)
    first = [int(sample) for sample in next(iter(looked))[0]]
    assert first == whole[0][0][0]
    for epoch in range(2):
        assert [ids(looked), ids(other)] == [share[epoch] for share in whole]
        assert looked.state_dict() == other.state_dict()
    # Within a run, twice, before the epoch is set, and where a state goes on.
    next(iter(looked))
    next(iter(looked))
    looked.set_epoch(2)
    assert ids(looked) == whole[0][2]
    for loader, look in ((make(data, 0), True), (make(data, 1), False)):
        loader.load_state_dict({**other.state_dict(), "epoch": 1, "position": 2 * 48})
        if look:
            next(iter(loader))
            loader.set_epoch(1)
        assert ids(loader) == whole[0 if look else 1][1][2:]


def test_alone_a_pass_that_is_left_is_over(data: Any) -> None:
    whole, looked = (DataLoader(data, 24, shuffle=True, decode=number) for _ in range(2))
    epochs = [ids(whole) for _ in range(2)]
    next(iter(looked))
    assert ids(looked) == epochs[1]
