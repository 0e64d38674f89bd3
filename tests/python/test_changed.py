"""Loaders and samplers that are changed after they were made: as under torch's own loader, or refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.utils import data as torch_data
from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader, Sampler
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


@pytest.mark.one_in(2)
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


@pytest.mark.parametrize("taken", [1, 2])
def test_a_distributed_sampler_that_is_set_to_the_next_epoch_is_obeyed_after_a_batch(data: Any, taken: int) -> None:
    def found(kind: Any, whole: Any, **options: Any) -> list[list[list[int]]]:
        sampler = DistributedSampler(whole, 2, 0, seed=3)
        loader, passes = kind(whole, 8, sampler=sampler, **options), []
        for epoch in range(4):
            sampler.set_epoch(epoch)
            batches = iter(loader)
            passes.append([[int(each) for each in next(batches)[0]] for _ in range(taken)])
        return passes

    theirs = found(torch_data.DataLoader, torch_data.TensorDataset(torch.arange(COUNT)))
    assert found(DataLoader, data, decode=lambda raw, about: about.sample, cache=TINY) == theirs


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


def of_four(loader: Any) -> None:
    loader.batch_sampler.batch_size = 4


def without_rest(loader: Any) -> None:
    loader.batch_sampler.drop_last = True


def others(loader: Any) -> None:
    loader.batch_sampler.sampler = [7, 2, 2]


def lists(loader: Any) -> None:
    object.__setattr__(loader, "batch_sampler", [[3, 1], [4], [0, 39]])


def plain_or_ours(data: Any, kind: Any, size: int, **options: Any) -> Any:
    """A loader of the samples' numbers: torch's, or ours."""
    if issubclass(kind, DataLoader):
        return kind(data, size, decode=lambda raw, about: about.sample, cache=TINY, **options)
    return kind(torch_data.TensorDataset(torch.arange(COUNT)), size, **options)


def read(loader: Any) -> list[list[int]]:
    return [[int(each) for each in batch[0]] for batch in loader]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("begun", ["", "read", "left"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("change", [of_four, without_rest, others, lists])
@pytest.mark.parametrize("is_given", [False, True])
def test_a_batch_sampler_that_is_changed_or_replaced_is_obeyed(
    data: Any, is_given: bool, change: Any, options: dict[str, Any], begun: str
) -> None:
    found = []
    for kind in (torch_data.DataLoader, DataLoader):
        sampler = {"sampler": range(COUNT - 1, 0, -1)} if is_given else {}
        loader = plain_or_ours(data, kind, 9, **sampler, **options)
        if begun:
            batches = iter(loader)
            next(batches)
            list(batches if begun == "read" else ())
        change(loader)
        found.append([len(loader), read(loader), read(loader)])
    assert found[0] == found[1]


def test_a_state_goes_on_in_the_batches_of_a_batch_sampler_that_was_changed(data: Any) -> None:
    whole = plain_or_ours(data, DataLoader, 9, shuffle=True)
    of_four(whole)
    wanted = read(whole) + read(whole)
    epoch = -(-COUNT // 4)
    assert sorted(chain.from_iterable(wanted[:epoch])) == list(range(COUNT))
    for had in (1, 3, epoch, epoch + 2):
        first = plain_or_ours(data, DataLoader, 9, shuffle=True)
        of_four(first)
        got = []
        while len(got) < had:
            batches = iter(first)
            while len(got) < had and (batch := next(batches, None)) is not None:
                got.append([int(each) for each in batch[0]])
        again = plain_or_ours(data, DataLoader, 9, shuffle=True)
        of_four(again)
        again.load_state_dict(first.state_dict())
        rest = read(again)
        if len(got) + len(rest) < len(wanted):
            rest += read(again)
        assert got + rest == wanted, had


@pytest.mark.parametrize("is_ours", [True, False])
def test_epochs_go_on_where_a_batch_sampler_is_changed_between_them(data: Any, is_ours: bool) -> None:
    def made(size: int) -> Any:
        order = {"sampler": Sampler(data, seed=6)} if is_ours else {"shuffle": True, "seed": 6}
        return plain_or_ours(data, DataLoader, size, **order)

    def flat(loader: Any) -> list[int]:
        return list(chain.from_iterable(read(loader)))

    changed, plain = made(9), made(9)
    wanted = [flat(plain) for _ in range(4)]
    found = [flat(changed) for _ in range(2)]
    of_four(changed)
    assert found + [flat(changed) for _ in range(2)] == wanted


def test_a_batch_sampler_that_is_changed_within_an_epoch_that_is_gone_on_in_is_refused(data: Any) -> None:
    loader, again = (plain_or_ours(data, DataLoader, 9) for _ in range(2))
    next(iter(loader))
    again.load_state_dict(loader.state_dict())
    of_four(again)
    with pytest.raises(errors.StateError, match="batch sampler was changed"):
        next(iter(again))


class Endless:
    """A batch sampler's batches without an end, as YOLOv5 and Ultralytics have it."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Any:
        while True:
            yield from iter(self.sampler)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", ["none", "distributed", "shuffled"])
def test_a_loader_that_never_ends_reads_as_torchs(data: Any, sampler: str, workers: int) -> None:
    def made(kind: Any) -> Any:
        class Infinite(kind):  # type: ignore[misc] # a class that is chosen
            def __init__(self, *arguments: Any, **keywords: Any) -> None:
                super().__init__(*arguments, **keywords)
                object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
                self.iterator = super().__iter__()

            def __len__(self) -> int:
                return len(self.batch_sampler.sampler)

            def __iter__(self) -> Any:
                for _ in range(len(self)):
                    yield next(self.iterator)

        some: Any = range(COUNT)
        order = {
            "none": {},
            "distributed": {"sampler": DistributedSampler(some, 2, 1, seed=3)},
            "shuffled": {"sampler": RandomSampler(some, generator=seeded())},
        }[sampler]
        return plain_or_ours(data, Infinite, 7, num_workers=workers, **order)

    theirs, ours = made(torch_data.DataLoader), made(DataLoader)
    for _ in range(3):
        assert read(ours) == read(theirs)


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
