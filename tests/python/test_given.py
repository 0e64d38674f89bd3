"""Orders of the user's own samplers: the plan doesn't know them, so jobs of equal plans may have other lists."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data import RandomSampler, SubsetRandomSampler

import foreload as fl
from foreload._node import agent as _agent
from foreload.torch import DataLoader


@pytest.fixture
def lingering(home: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An agent whose jobs wait for somebody else, as long as they do by default."""
    monkeypatch.setenv("FORELOAD_LINGER_S", "60")
    yield
    _agent.connect(str(home.cache_dir)).call('{"call": "retire"}')


def test_each_fold_of_a_cross_validation_gets_its_own_samples(home: Any, lingering: None) -> None:
    data = fl.open("s3://data/fixed")
    truth = [data.read(sample) for sample in range(120)]

    def read(fold: range) -> list[bytes]:
        loader = DataLoader(data, 5, sampler=SubsetRandomSampler(fold), cache=fl.Cache(ram="16MB"))
        return [value for _ in range(2) for values, _ in loader for value in values]

    for fold in (range(20), range(100, 120), range(40, 60)):
        assert sorted(read(fold)) == sorted(2 * truth[fold.start : fold.stop])
        gc.collect()


SCRIPT = """
import sys
import foreload as fl
import torch
from foreload.torch import DataLoader
from torch.utils.data import RandomSampler

class Noted(RandomSampler):
    def __iter__(self):
        self.drawn = list(super().__iter__())
        return iter(self.drawn)

torch.manual_seed(int(sys.argv[1]))
data = fl.open("s3://data/fixed")
sampler = Noted(data)
loader = DataLoader(data, 8, sampler=sampler, num_workers=int(sys.argv[2]), cache=fl.Cache(ram="16MB"))
found = [value for values, _ in loader for value in values]
assert found == [data.read(sample) for sample in sampler.drawn]
print("right", sampler.drawn[:10])
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_script_that_is_started_again_gets_what_its_own_sampler_draws(
    home: Any, lingering: None, workers: int
) -> None:
    def run(seed: int) -> str:
        words = [sys.executable, "-c", SCRIPT, str(seed), str(workers)]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout

    first, second = run(1), run(2)
    assert first.startswith("right")
    assert second.startswith("right")
    assert first != second


def test_a_list_that_differs_from_the_one_that_is_known_is_an_error(home: Any) -> None:
    data = fl.open("s3://data/fixed")
    sampler = SubsetRandomSampler(range(20), generator=torch.Generator().manual_seed(1))
    loader = DataLoader(data, 5, sampler=sampler, cache=fl.Cache(ram="16MB"))
    batches = iter(loader)
    next(batches)
    attachment = loader.run.attachment()
    known = np.array([sample for batch in loader.run.batches[0] for sample in batch], np.uint64)
    attachment.supply(0, known)
    with pytest.raises(fl.errors.InvalidError, match="epoch 0 already has its order"):
        attachment.supply(0, np.ascontiguousarray(known[::-1]))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_somebody_takes_apart_has_its_sampler_drawn_from_by_him_alone(data: Any, workers: int) -> None:
    """As Accelerate's `prepare` does: another loader over the same data set and sampler, which draws from torch's own generator."""

    def read(taken: bool) -> list[list[int]]:
        torch.manual_seed(3)
        loader: Any = DataLoader(
            data, 8, sampler=RandomSampler(data), cache=fl.Cache(ram="32MB"), decode=lambda raw, meta: meta.sample
        )
        parts = {"sampler": loader.sampler, "batch_size": 8, "num_workers": workers}
        theirs: Any = torch_data.DataLoader(loader.dataset if taken else range(len(data)), **parts)
        return [[int(number) for number in (batch[0] if taken else batch)] for batch in theirs]

    assert read(True) == read(False)
