"""torchdata's StatefulDataLoader over our Dataset and Sampler: its state, taken at any step, goes on exactly."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import digits
import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import foreload.mmap
from foreload.torch import Dataset, Sampler

pytestmark = pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning")


def make(data: Any, **keywords: Any) -> Any:
    return StatefulDataLoader(
        Dataset(data, decode=digits.decode, cache=digits.CACHE),
        sampler=Sampler(data, seed=1, batch_size=digits.BATCH),
        batch_size=digits.BATCH,
        **keywords,
    )


def rows(loader: Any, epochs: int) -> list[list[int]]:
    return [images["sample"].tolist() for _ in range(epochs) for images, _ in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [1, 7, 18, 19, 20, 26, 38])
def test_a_state_goes_on_where_it_was_taken(data: Any, workers: int, at: int) -> None:
    plain = make(data)
    whole = [batch for epoch in range(3) for batch in digits.epoch_of(plain.sampler, epoch)]
    loader, found, state = make(data, num_workers=workers), [], None
    while state is None:
        for images, _ in loader:
            found.append(images["sample"].tolist())
            if len(found) == at:
                state = loader.state_dict()
                break
    other = make(data, num_workers=workers)
    other.load_state_dict(state)
    while len(found) < len(whole):
        found += rows(other, 1)
    assert found == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_taken_after_an_epoch_goes_on_with_the_next(data: Any, workers: int) -> None:
    plain = make(data)
    loader = make(data, num_workers=workers)
    rows(loader, 1)
    other = make(data, num_workers=workers)
    other.load_state_dict(loader.state_dict())
    assert [rows(other, 1) for _ in range(2)] == [digits.epoch_of(plain.sampler, epoch) for epoch in (1, 2)]


SAMPLERS: dict[str, Any] = {
    "with a state": lambda: StatefulDistributedSampler(range(40), 2, 1, seed=3),  # type: ignore[arg-type] # it has a length
    "without": lambda: RandomSampler(range(40), generator=torch.Generator().manual_seed(4)),
}


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [1, 3])
def test_a_sampler_that_is_wrapped_goes_on_as_by_itself(tmp_path: Path, kind: str, workers: int, at: int) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(40))

    def found(wrap: Any) -> list[Any]:
        loaders = [StatefulDataLoader(range(40), 4, sampler=wrap(SAMPLERS[kind]()), num_workers=workers) for _ in "12"]
        first = iter(loaders[0])
        head = [batch.tolist() for batch in islice(first, at)]
        loaders[1].load_state_dict(loaders[0].state_dict())
        return head + [[batch.tolist() for batch in loaders[1]] for _ in range(2)]

    assert found(lambda sampler: foreload.mmap.wrap_sampler(sampler, path)) == found(lambda sampler: sampler)
