"""Torch's subsets and concatenations of our data sets that change after their loader was made, and what a loader shows of them: as under torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data import ConcatDataset, Subset, random_split

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader, Dataset

TINY = fl.Cache(ram="32MB")


def number(raw: memoryview, meta: fl.Meta) -> int:
    return meta.sample


class Numbers(torch_data.Dataset[Any]):
    """The same samples in memory."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[int, int]:
        if not 0 <= at < self.count:
            raise IndexError(at)
        return at, 0


def grow(part: Any) -> None:
    part.indices.append(100)


def assign(part: Any) -> None:
    part.indices = list(range(50, 70))


def in_place(part: Any) -> None:
    part.indices[3] = 77


def shrink(part: Any) -> None:
    part.indices = part.indices[:5]


def read(loader: Any) -> tuple[int, list[list[int]]]:
    return len(loader), [[int(each) for each in values] for values, _ in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("as_dataset", [True, False])
@pytest.mark.parametrize("change", [grow, assign, in_place, shrink])
def test_a_subset_that_is_changed_is_read_as_it_is(
    data: Any, change: Callable[[Any], None], as_dataset: bool, workers: int
) -> None:
    theirs, found = Subset(Numbers(len(data)), list(range(10))), []
    whole = Dataset(data, decode=len) if as_dataset else data
    ours: Any = Subset(whole, list(range(10)))
    lengths = [len(bytes(each)) for each in data]
    # Our data set knows its samples by their bytes: in a subset they have the subset's numbers.
    loader: Any = DataLoader(ours, 4, num_workers=workers, **({} if as_dataset else {"decode": len, "cache": TINY}))
    plain: Any = torch_data.DataLoader(theirs, 4, num_workers=workers)
    for passes in range(3):
        if passes:
            change(theirs)
            change(ours)
        wanted = read(plain)
        found = read(loader)
        assert found[0] == wanted[0]
        assert found[1] == [[lengths[at] for at in batch] for batch in wanted[1]]


def test_a_concatenation_that_gets_another_part_is_read_with_it(data: Any) -> None:
    lengths = [len(each) for each in data]

    def both(whole: Any) -> Any:
        return ConcatDataset([Subset(whole, [1, 2]), Subset(whole, [5])])

    def change(concatenation: Any) -> None:
        concatenation.datasets[1].indices = [5, 6, 7]
        concatenation.cumulative_sizes = concatenation.cumsum(concatenation.datasets)

    found = []
    for kind, whole in (
        (torch_data.DataLoader, Numbers(len(data))),
        (DataLoader, Dataset(data, decode=len, cache=TINY)),
    ):
        parts = both(whole)
        loader: Any = kind(parts, 2)
        before = read(loader)
        change(parts)
        found.append([before, read(loader)])
    theirs, ours = found
    assert ours == [(count, [[lengths[at] for at in batch] for batch in batches]) for count, batches in theirs]


def test_a_subset_that_is_changed_within_an_epoch_that_is_gone_on_in_is_refused(data: Any) -> None:
    part: Any = Subset(Dataset(data, decode=len, cache=TINY), list(range(20)))
    loader = DataLoader(part, 4, shuffle=True, seed=3)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    again = DataLoader(part, 4, shuffle=True, seed=3)
    again.load_state_dict(state)
    part.indices.append(30)
    with pytest.raises(errors.StateError, match="Subset were changed"):
        next(iter(again))
    with pytest.raises(errors.StateError, match="another run"):
        DataLoader(part, 4, shuffle=True, seed=3).load_state_dict(state)


def test_a_subset_that_is_emptied_says_so(data: Any) -> None:
    part: Any = Subset(Dataset(data, decode=len, cache=TINY), list(range(20)))
    loader = DataLoader(part, 4)
    assert len(list(loader)) == 5
    part.indices = []
    with pytest.raises(errors.InvalidError, match="make a loader of it anew"):
        list(loader)


@pytest.mark.parametrize(
    "make", [lambda it: it, lambda it: Subset(it, [3, 1]), lambda it: ConcatDataset([it, Subset(it, [3])])]
)
def test_a_loader_shows_the_data_set_that_it_was_given(data: Any, make: Callable[[Any], Any]) -> None:
    given = make(Dataset(data, decode=len, cache=TINY))
    for kind in (torch_data.DataLoader, DataLoader):
        loader: Any = kind(given, 4)
        assert loader.dataset is given
        list(loader)
        assert loader.dataset is given


def test_a_subset_of_what_open_answered_is_seen_through(data: Any) -> None:
    train, _ = random_split(data, [150, 53])
    loader: Any = DataLoader(train, 4, decode=len, cache=TINY)
    assert loader.dataset.indices is train.indices
    assert loader.dataset.dataset is data
    loader.dataset.indices = [4, 5, 6, 7, 8]
    assert train.indices == [4, 5, 6, 7, 8]
    assert read(loader)[1] == [[len(data[at]) for at in batch] for batch in ([4, 5, 6, 7], [8])]
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = loader.dataset.nothing_of_that_name


def test_a_library_that_took_the_sampler_sees_that_the_subset_changed(data: Any) -> None:
    lengths = [len(each) for each in data]

    def taken(loader: Any) -> Any:
        return torch_data.DataLoader(loader.dataset, 4, sampler=loader.sampler)

    theirs, ours = (
        Subset(Numbers(len(data)), list(range(10))),
        Subset(Dataset(data, decode=len, cache=TINY), list(range(10))),
    )
    both = [taken(torch_data.DataLoader(theirs, 4)), taken(DataLoader(ours, 4))]
    for change in (None, assign, shrink, grow):
        for part in (theirs, ours):
            if change is not None:
                change(part)
        wanted, found = (read(loader) for loader in both)
        assert found == (wanted[0], [[lengths[at] for at in batch] for batch in wanted[1]]), change


def test_a_worker_sees_the_subset_that_the_loader_was_given(data: Any) -> None:
    seen: Any = torch.zeros(4, dtype=torch.int64).share_memory_()

    def begin(number: int) -> None:
        found: Any = torch_data.get_worker_info().dataset  # type: ignore[union-attr] # there is one here
        seen[0], seen[1] = len(found.indices), len(found.dataset)

    for whole in (Dataset(data, decode=len, cache=TINY), data):
        seen.zero_()
        list(
            DataLoader(Subset(whole, [1, 2, 3]), 2, num_workers=1, worker_init_fn=begin, multiprocessing_context="fork")
        )
        assert seen[:2].tolist() == [3, len(data)]


@pytest.mark.parametrize("name", ["decode", "transform"])
def test_what_would_have_no_effect_can_not_be_set(data: Any, name: str) -> None:
    with pytest.raises(errors.InvalidError, match=name):
        setattr(Dataset(data), name, len)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("order", ["keyed", "torch"])
def test_who_takes_the_sampler_gets_all_samples_whatever_the_loader_drops(data: Any, order: str, shuffle: bool) -> None:
    """Lightning predicts so: with a batch sampler of its own over the loader's sampler."""
    loader: Any = DataLoader(data, 16, shuffle=shuffle, drop_last=True, order=order, cache=TINY, decode=number)
    theirs: Any = torch_data.DataLoader(Numbers(len(data)), 16, shuffle=shuffle, drop_last=True)
    for kind, (made, samples) in {"ours": (loader, data), "theirs": (theirs, None)}.items():
        batches = torch_data.BatchSampler(made.sampler, 16, drop_last=False)
        assert len(made.sampler) == len(data), kind
        assert sorted(int(at) for batch in batches for at in batch) == list(range(len(data))), kind
        if samples is not None:
            whole = DataLoader(samples, batch_sampler=batches, cache=TINY, decode=number)
            assert sorted(int(at) for values, _ in whole for at in values) == list(range(len(data)))
    assert len(list(loader)) == len(loader) == len(theirs) == len(data) // 16


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_subset_that_is_changed_is_read_as_it_is_by_workers_however_they_start(data: Any, context: str) -> None:
    part: Any = Subset(Dataset(data, decode=len, cache=TINY), list(range(10)))
    loader = DataLoader(part, 4, num_workers=1, multiprocessing_context=context)
    for change in (None, assign, shrink):
        if change is not None:
            change(part)
        assert read(loader)[1] == [
            [len(data[at]) for at in part.indices[first : first + 4]] for first in range(0, len(part), 4)
        ]


@pytest.mark.parametrize("change", [grow, assign, shrink])
def test_two_ranks_share_a_subset_that_is_changed_and_go_on_in_it(data: Any, change: Callable[[Any], None]) -> None:
    whole = Dataset(data.select(range(203)), decode=number, cache=TINY)
    parts: list[Any] = [Subset(whole, list(range(10))) for _ in range(2)]

    def made(rank: int) -> Any:
        return DataLoader(parts[rank], 2, shuffle=True, seed=3, dp_rank=rank, dp_size=2)

    loaders = [made(rank) for rank in range(2)]
    first = [read(loader) for loader in loaders]
    assert first[0][0] == first[1][0]
    for part in parts:
        change(part)
    iterators = [iter(loader) for loader in loaders]
    begun = [[int(at) for at in next(batches)[0]] for batches in iterators]
    states = [loader.state_dict() for loader in loaders]
    rest = [[int(at) for values, _ in batches for at in values] for batches in iterators]
    # A count that two don't divide repeats one.
    seen = [at for some in (*begun, *rest) for at in some]
    assert set(seen) == set(parts[0].indices)
    assert len(seen) == len(parts[0]) + len(parts[0]) % 2
    for rank, state in enumerate(states):
        again = made(rank)
        again.load_state_dict(state)
        assert [at for batch in read(again)[1] for at in batch] == rest[rank]
