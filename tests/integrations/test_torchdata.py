"""torchdata's StatefulDataLoader over our Dataset and Sampler: its state, taken at any step, goes on exactly."""

from __future__ import annotations

from typing import Any

import digits
import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

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
