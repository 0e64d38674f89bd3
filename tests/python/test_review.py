"""What a new user and an adversary found: each test is a way in which a loader once hung, failed or misled."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreload as fl
from foreload import errors
from foreload._node import agent as _agent
from foreload.torch import DataLoader


class Unsized:
    """A batch sampler without a length."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1, 2], [3], [4, 5])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("decode", [None, len])
@pytest.mark.timeout(60)
def test_samples_of_nearly_the_whole_budget_pass_through(home: Any, tmp_path: Path, workers: int, decode: Any) -> None:
    # What was consumed must be given back even by processes that have nothing more to ask.
    for number in range(6):
        (tmp_path / str(number)).write_bytes(np.random.default_rng(number).bytes(15_000_000))
    loader = DataLoader(
        fl.open(tmp_path), 1, decode=decode, num_workers=workers, timeout=30, cache=fl.Cache(ram="16MiB", batches="1MB")
    )
    values = [data[0] if decode is None else int(data[0]) for data, _ in loader]
    if decode is None:
        assert values == [np.random.default_rng(number).bytes(15_000_000) for number in range(6)]
    else:
        assert values == [15_000_000] * 6


@pytest.mark.timeout(60)
def test_a_decoder_may_keep_what_it_gets(home: Any, tmp_path: Path) -> None:
    # More than the budget: what exceeds a share of it is copied.
    for number in range(300):
        (tmp_path / f"{number:03}").write_bytes(random.Random(number).randbytes(100_000))
    loader = DataLoader(
        fl.open(tmp_path), 10, decode=lambda raw: raw, collate_fn=list, timeout=20, cache=fl.Cache(ram="20MB")
    )
    kept = [raw for batch in list(loader) for raw, _ in batch]
    assert [bytes(raw) for raw in kept] == [random.Random(number).randbytes(100_000) for number in range(300)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_sampler_needs_no_length(data: Any, workers: int) -> None:
    loader = DataLoader(data, batch_sampler=Unsized(), num_workers=workers)
    assert [len(labels) for _, labels in loader] == [3, 1, 2]


def test_an_agent_killed_before_collating_costs_nothing(home: Any) -> None:
    loader = DataLoader(fl.open("s3://data/fixed"), 16, raw="tensor", cache=fl.Cache(ram="48MB"))
    batches = []
    for at, (tensor, _) in enumerate(loader):
        batches.append(np.asarray(tensor).copy())
        if at == 3:
            for agent in _agent._agents.values():
                os.kill(agent.pid, signal.SIGKILL)
    again = [np.asarray(tensor).copy() for tensor, _ in DataLoader(fl.open("s3://data/fixed"), 16, raw="tensor")]
    assert len(batches) == len(again)
    assert all(map(np.array_equal, batches, again))


def test_an_empty_url_is_not_the_working_directory(home: Any) -> None:
    with pytest.raises(errors.InvalidError, match="empty"):
        fl.open("")
