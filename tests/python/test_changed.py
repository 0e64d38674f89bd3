"""Loaders and samplers that are changed after they were made: as under torch's own loader, or refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.utils import data as torch_data
from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader
from small import COUNT

TINY = fl.Cache(ram="32MB")


def seeded(seed: int = 4) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def set_(**changes: Any) -> Callable[[Any], None]:
    def change(sampler: Any) -> None:
        for name, value in changes.items():
            setattr(sampler, name, value)

    return change


NUMBERS = range(COUNT)
#: A sampler, and what is done to it between passes.
CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "seeded anew": (lambda: RandomSampler(NUMBERS, generator=seeded()), lambda it: it.generator.manual_seed(9)),
    "another generator": (lambda: RandomSampler(NUMBERS, generator=seeded()), lambda it: set_(generator=seeded(7))(it)),  # noqa: PLW0108 (one of its own for each)
    "rank": (lambda: DistributedSampler(NUMBERS, 2, 0, seed=3), set_(rank=1)),  # type: ignore[arg-type] # it has a length
    "seed": (lambda: DistributedSampler(NUMBERS, 2, 0, seed=3), set_(seed=5)),  # type: ignore[arg-type]
    "shuffle": (lambda: DistributedSampler(NUMBERS, 2, 0, seed=3), set_(shuffle=False)),  # type: ignore[arg-type]
    "indices": (lambda: SubsetRandomSampler(range(30), seeded()), set_(indices=range(10, 40))),
}


def passes(loader: Any, sampler: Any, change: Any, *, before: bool) -> list[list[list[int]]]:
    found = []
    for number in range(4):
        if number == (0 if before else 2):
            change(sampler)
        found.append([[int(each) for each in batch[0]] for batch in loader])
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_sampler_that_is_changed_is_obeyed(data: Any, kind: str, before: bool, workers: int) -> None:
    make, change = CHANGES[kind]
    theirs, ours = make(), make()
    plain: Any = torch_data.DataLoader(
        torch_data.TensorDataset(torch.arange(COUNT)), 8, sampler=theirs, num_workers=workers
    )
    options = {"decode": lambda raw, about: about.sample, "cache": TINY, "num_workers": workers}
    wanted = passes(plain, theirs, change, before=before)
    assert passes(DataLoader(data, 8, sampler=ours, **options), ours, change, before=before) == wanted


@pytest.mark.parametrize("kind", ["seeded anew", "seed", "shuffle"])
def test_a_sampler_that_is_changed_within_an_epoch_that_is_gone_on_in_is_refused(data: Any, kind: str) -> None:
    make, change = CHANGES[kind]

    def made(sampler: Any) -> Any:
        return DataLoader(data, 8, sampler=sampler, cache=TINY)

    loader = made(make())
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state, sampler = loader.state_dict(), make()
    again = made(sampler)
    again.load_state_dict(state)
    change(sampler)
    with pytest.raises(errors.StateError, match="was changed"):
        next(iter(again))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_that_is_set_later_is_that_of_the_next_pass(data: Any, workers: int) -> None:
    loader: Any = DataLoader(data, 8, num_workers=workers, cache=TINY)
    batches = iter(loader)
    assert isinstance(next(batches), list)
    loader.collate_fn = lambda items: ("mine", len(items))
    assert isinstance(next(batches), list)
    assert next(iter(loader)) == ("mine", 8)


def test_a_batch_sampler_that_is_changed_or_replaced_is_refused(data: Any) -> None:
    def larger(loader: Any) -> None:
        loader.batch_sampler.batch_size = 9

    def another(loader: Any) -> None:
        object.__setattr__(loader, "batch_sampler", [[0, 1]])

    for change in (larger, another):
        loader: Any = DataLoader(data, 8, cache=TINY)
        next(iter(loader))
        change(loader)
        with pytest.raises(errors.InvalidError, match="batch_sampler="):
            next(iter(loader))


def test_a_distributed_checkpoint_has_a_state_whole_or_it_is_refused(data: Any, tmp_path: Path) -> None:
    def made() -> Any:
        sampler = WeightedRandomSampler(torch.ones(40), 40, generator=seeded())  # type: ignore[arg-type] # torch takes it
        return DataLoader(data, 4, sampler=sampler, decode=lambda raw, about: about.sample, cache=TINY)

    loader = made()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    dcp.save({"loader": pickle.dumps(loader.state_dict())}, checkpoint_id=tmp_path / "whole")
    dcp.save({"loader": loader}, checkpoint_id=tmp_path / "parts")
    found: dict[str, Any] = {"loader": b""}
    dcp.load(found, checkpoint_id=tmp_path / "whole")
    again = made()
    again.load_state_dict(pickle.loads(found["loader"]))
    assert [batch[0].tolist() for batch in again] == [batch[0].tolist() for batch in batches]
    with pytest.raises(errors.StateError, match=r"torch\.distributed\.checkpoint"):
        dcp.load({"loader": made()}, checkpoint_id=tmp_path / "parts")
