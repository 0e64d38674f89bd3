"""A loader over any data set of torch's gives what torch's own gives, and goes on exactly where a state was saved."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data.distributed import DistributedSampler

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader, Dataset, Sampler, _feed, _foreign, _waits
from small import content, number_of

TINY = fl.Cache(ram="32MB")
COUNT = 23


class Drawing(torch_data.Dataset[Any]):
    """A user's class, whose items draw from everybody's generators."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, at: int) -> Any:
        drawn = torch.rand(()).item(), random.random(), np.random.rand()
        return at, torch.tensor(drawn)


class Numbers(torch_data.IterableDataset[int]):
    """Shared out among workers, without a state."""

    def __iter__(self) -> Iterator[int]:
        info = torch_data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        yield from range(first, COUNT, step)


class Stated(torch_data.IterableDataset[int]):
    """The same with a state, an epoch in it, and a first worker that ends before the others."""

    def __init__(self) -> None:
        self.at, self.epoch, self.goes_on = 0, 0, False

    def __iter__(self) -> Iterator[int]:
        info = torch_data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        if not self.goes_on:
            self.at = 0
        self.goes_on = False
        numbers = list(range(first, COUNT if first else 8, step))
        while self.at < len(numbers):
            self.at += 1
            yield 100 * self.epoch + numbers[self.at - 1]
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch, self.goes_on = state["at"], state["epoch"], True


def as_it_is(value: Any) -> Any:
    return value


def named(raw: memoryview, meta: fl.Meta) -> tuple[int, bytes]:
    return meta.sample, bytes(raw)


DATA_SETS: dict[str, Callable[[], Any]] = {
    "tensors": lambda: torch_data.TensorDataset(torch.arange(COUNT)),
    "list": lambda: list(range(COUNT)),
    "subset": lambda: torch_data.Subset(Drawing(), range(5, COUNT)),
    "concatenation": lambda: torch_data.ConcatDataset([list(range(10)), list(range(50, 59))]),
    "own class": Drawing,
    "iterable": Numbers,
    "iterable with a state": Stated,
}
ORDERS: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "shuffle": lambda _data, generator: {"batch_size": 4, "shuffle": True, "generator": generator},
    "sampler": lambda data, generator: {
        "batch_size": 4,
        "sampler": torch_data.RandomSampler(data, replacement=True, num_samples=30, generator=generator),
    },
    "batch sampler": lambda data, generator: {
        "batch_sampler": torch_data.BatchSampler(
            torch_data.SubsetRandomSampler(range(len(data) - 1), generator=generator), 5, drop_last=True
        )
    },
    "one by one": lambda _data, generator: {"batch_size": None, "shuffle": True, "generator": generator},
}
CASES = [(name, order) for name in DATA_SETS for order in (["in order"] if name.startswith("iterable") else ORDERS)]


def made(kind: Any, name: str, order: str, *, own: bool, **keywords: Any) -> Any:
    """A loader of a kind; its generator is its own, or everybody's."""
    dataset = DATA_SETS[name]()
    generator = torch.Generator().manual_seed(3) if own else None
    chosen = ORDERS[order](dataset, generator) if order in ORDERS else {"batch_size": 4}
    return kind(dataset, **{**chosen, **keywords})


def seeded(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("name", "order"), CASES)
def test_batches_and_random_numbers_are_torchs(name: str, order: str, workers: int) -> None:
    for own in (False, True):
        found = []
        for kind in (torch_data.DataLoader, DataLoader):
            seeded(5)
            loader = made(kind, name, order, own=own, num_workers=workers, persistent_workers=own and workers > 0)
            assert isinstance(loader, torch_data.DataLoader)
            found.append(repr([list(loader), list(loader), torch.rand(2), random.random(), np.random.rand()]))
        assert found[0] == found[1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("name", "order"), [case for case in CASES if case[0] not in ("subset", "own class")])
def test_a_state_of_any_step_goes_on_with_the_same_batches(name: str, order: str, workers: int) -> None:
    keywords = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = made(DataLoader, name, order, own=True, **keywords)
    states = [loader.state_dict()]
    batches: list[list[Any]] = []
    for _ in range(2):
        batches.append([])
        for batch in loader:
            batches[-1].append(batch)
            states.append(loader.state_dict())
        states.append(loader.state_dict())
    length = len(batches[0])
    expected = [*batches[0], *batches[1]]
    # One step of the second pass with workers, whose processes cost a second.
    steps = [*range(len(states) - 1)] if not workers else [0, 1, length - 1, length, length + 1, length + 3]
    for step in steps:
        had = step - (step > length)
        seeded(99)
        loader = made(DataLoader, name, order, own=True, **keywords)
        loader.load_state_dict(json.loads(json.dumps(states[step])))
        rest = list(loader)
        if had < length or step == length:
            rest += list(loader)
        assert repr(rest) == repr(expected[had:]), step


def test_a_workers_state_is_of_its_batch_while_the_data_set_goes_on() -> None:
    class Living(Stated):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[int] = []

        def __iter__(self) -> Iterator[int]:
            for number in super().__iter__():
                self.seen.append(number)
                yield number

        def state_dict(self) -> Any:
            return {"seen": self.seen}

    feed = _feed.Feed(Living(), {}, is_over=False)
    items = iter(feed)
    found = _feed.Collate(as_it_is, feed)([next(items), next(items)])
    next(items)
    assert found.state is not None
    assert (found.batch, found.state["dataset_state"]) == ([0, 1], {"seen": [0, 1]})


@pytest.mark.parametrize("workers", [0, 2])
def test_everybodys_generator_is_drawn_from_again(workers: int) -> None:
    seeded(1)
    loader = DataLoader(list(range(COUNT)), 4, shuffle=True, num_workers=workers)
    passing = iter(loader)
    next(passing)
    state, rest = loader.state_dict(), list(passing)
    here = torch.random.get_rng_state()
    after = loader.state_dict()
    following = list(loader)
    seeded(2)
    loader = DataLoader(list(range(COUNT)), 4, shuffle=True, num_workers=workers)
    loader.load_state_dict(state)
    before = torch.random.get_rng_state()
    assert repr(list(loader)) == repr(rest)
    assert torch.equal(torch.random.get_rng_state(), before)
    loader.load_state_dict(after)
    assert repr(list(loader)) == repr(following)
    # Whoever brought the generator back himself finds it as after the uninterrupted run.
    torch.random.set_rng_state(here)
    loader.load_state_dict(after)
    list(loader)
    now = torch.random.get_rng_state()
    torch.random.set_rng_state(here)
    list(torch_data.DataLoader(list(range(COUNT)), 4, shuffle=True, num_workers=workers))
    assert torch.equal(torch.random.get_rng_state(), now)


def test_a_state_of_a_distributed_sampler_goes_on_with_other_ranks_and_batches() -> None:
    def loaders(ranks: int, batch_size: int) -> list[Any]:
        samplers = [DistributedSampler(range(96), ranks, rank, seed=4) for rank in range(ranks)]
        for sampler in samplers:
            sampler.set_epoch(2)
        return [DataLoader(list(range(96)), batch_size, sampler=sampler) for sampler in samplers]

    whole = loaders(1, 4)[0]
    order = [number for batch in whole for number in batch.tolist()]
    first = loaders(2, 4)
    states = []
    for loader in first:
        passing = iter(loader)
        for _ in range(3):
            next(passing)
        states.append(loader.state_dict())
    assert states[0] == states[1]
    then = loaders(3, 2)
    rests = []
    for loader in then:
        loader.load_state_dict(states[0])
        rests.append([batch.tolist() for batch in loader])
    found = [number for step in zip(*rests, strict=True) for batch in step for number in batch]
    assert sorted(found) == sorted(order[24:])
    odd = loaders(5, 4)[0]
    odd.load_state_dict(states[0])
    with pytest.raises(errors.StateError, match="divides 24"):
        next(iter(odd))


def test_a_sampler_of_ours_says_itself_where_a_foreign_data_set_goes_on(data: Any) -> None:
    keys = [data.key(sample) for sample in range(len(data))]

    def loader(rank: int, ranks: int) -> Any:
        return DataLoader(keys, 7, sampler=Sampler(data, ranks, rank, seed=1, batch_size=7), collate_fn=as_it_is)

    whole = [key for batch in loader(0, 1) for key in batch]
    two = loader(1, 2)
    passing = iter(two)
    for _ in range(2):
        next(passing)
    four = loader(0, 4)
    four.load_state_dict(two.state_dict())
    assert next(iter(four)) == whole[28:56:4]


def test_batches_that_come_out_of_order_are_not_given_again() -> None:
    class Slow(torch_data.Dataset[int]):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, at: int) -> int:
            if at == 0:
                time.sleep(1.0)
            return at

    loader = DataLoader(Slow(), None, num_workers=2, in_order=False)
    passing = iter(loader)
    had = [int(next(passing)) for _ in range(4)]
    assert 0 not in had
    state = loader.state_dict()
    del passing
    for workers in (0, 2):
        loader = DataLoader(Slow(), None, num_workers=workers)
        loader.load_state_dict(state)
        assert sorted([*had, *map(int, loader)]) == list(range(10))


class Seat(torch_data.Sampler[int]):
    """A sampler with a state, which alone knows where it is: each pass begins elsewhere."""

    def __init__(self) -> None:
        self.at = self.first = 0

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        while self.at < COUNT:
            self.at += 1
            yield (self.first + self.at - 1) % COUNT
        self.at, self.first = 0, self.first + 5

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "first": self.first}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.first = state["at"], state["first"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_says_where_it_stands_is_asked(workers: int) -> None:
    def loader() -> Any:
        return DataLoader(list(range(COUNT)), 4, sampler=Seat(), num_workers=workers)

    first = loader()
    list(first)
    passing = iter(first)
    for _ in range(2):
        next(passing)
    state = first.state_dict()
    assert state["sampler"]["sampler"] == {"at": 8, "first": 5}
    del passing
    second = loader()
    second.load_state_dict(state)
    passing = iter(second)
    # Before the first batch is had, the state is the one that was loaded.
    third = loader()
    third.load_state_dict(second.state_dict())
    for resumed in (passing, third):
        assert torch.cat(list(resumed)).tolist() == [*range(13, COUNT), *range(5)]
    assert torch.cat(list(third)).tolist() == [*range(10, COUNT), *range(10)]


def test_a_state_that_nobody_knows_is_refused() -> None:
    loader = DataLoader(Numbers(), 4, num_workers=2, in_order=False)
    passing = iter(loader)
    loader.state_dict()
    next(passing)
    with pytest.raises(errors.StateError, match="in_order=False"):
        loader.state_dict()
    list(passing)
    loader.state_dict()


def test_a_networks_state_is_none_of_a_data_sets() -> None:
    class Both(torch.nn.Linear):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, at: int) -> int:
            return at

    loader = DataLoader(Both(2, 2), None, num_workers=2)
    assert list(loader) == [0, 1, 2]
    assert json.dumps(loader.state_dict())


def test_a_state_of_another_epoch_is_not_gone_on_with(caplog: pytest.LogCaptureFixture) -> None:
    sampler = DistributedSampler(range(COUNT), 1, 0, seed=4)
    loader = DataLoader(list(range(COUNT)), 4, sampler=sampler)
    passing = iter(loader)
    next(passing)
    loader.load_state_dict(loader.state_dict())
    loader.set_epoch(3)
    found = list(loader)
    assert "not gone on with" in caplog.text
    assert torch.cat(found).tolist() == list(sampler)


def test_an_iterable_data_sets_workers_are_as_many_as_before() -> None:
    loader = DataLoader(Numbers(), 4, num_workers=2)
    passing = iter(loader)
    next(passing)
    state = loader.state_dict()
    del passing
    with pytest.raises(errors.StateError, match="num_workers=2"):
        DataLoader(Numbers(), 4).load_state_dict(state)
    with pytest.raises(errors.StateError, match="not the state of a loader over a list"):
        DataLoader([1, 2]).load_state_dict({"sequence": "a"})


def plain(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


class Failing(torch_data.Dataset[int]):
    """One of whose items fails once, in whatever process."""

    def __init__(self, error: type[BaseException], at: int = 9) -> None:
        self.error, self.at = error, at
        self.fails = torch.ones(1).share_memory_()  # type: ignore[no-untyped-call] # torch's

    def __len__(self) -> int:
        return 20

    def __getitem__(self, at: int) -> int:
        if at == self.at and self.fails[0]:
            self.fails[0] = 0
            raise self.error("once")
        return at


@pytest.mark.parametrize(
    ("error", "workers"), [(ValueError, 0), (KeyboardInterrupt, 0), (SystemExit, 0), (ValueError, 1), (ValueError, 2)]
)
@pytest.mark.parametrize("size", [4, None])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_state_after_a_failure_goes_on_with_the_batch_that_failed(
    error: type[BaseException], workers: int, size: int | None, goes_on: bool
) -> None:
    def made() -> Any:
        return DataLoader(
            Failing(error), size, shuffle=True, generator=torch.Generator().manual_seed(3), num_workers=workers
        )

    whole = plain(DataLoader(range(20), size, shuffle=True, generator=torch.Generator().manual_seed(3)))
    first, again = made(), made()
    batches, had = iter(first), []
    with pytest.raises(error, match="once"):
        had.extend(batches)
    failed = len(had)
    if goes_on:
        # The batch is lost, as under torch's loader.
        had.append(next(batches))
    again.load_state_dict(first.state_dict())
    assert plain(had) == whole[:failed] + whole[failed + 1 : failed + 1 + goes_on]
    again.dataset.fails[0] = 0
    assert plain(again) == whole[failed + 2 * goes_on :]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_slow_item_is_reported(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(torch_data.Dataset[int]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, at: int) -> int:
            time.sleep(0.3 * at)
            return at

    monkeypatch.setattr(_foreign, "STALL_S", 0.05)
    monkeypatch.setattr(_waits.Waiting, "stall_s", 0.05)
    # So often torch looks whether its workers live, by a constant of its own.
    waits = _foreign._torchs._MultiProcessingDataLoaderIter._try_get_data
    monkeypatch.setattr(
        _foreign._torchs._MultiProcessingDataLoaderIter, "_try_get_data", lambda self, _timeout: waits(self, 0.02)
    )
    loader = DataLoader(Slow(), None, num_workers=workers)
    with pytest.warns(errors.StalledWarning, match="batch 1.*Slow or the collate function"):
        assert list(loader) == [0, 1]
    tally = loader.stats()["epochs"][0]
    assert (tally["batches"], tally["samples"]) == (2, 2)
    assert tally["stall_s"] > 0.2


@pytest.mark.parametrize(
    "keyword",
    [
        {"decode": as_it_is},
        {"raw": "tensor"},
        {"cache": TINY},
        {"order": "sequential"},
        {"dp_rank": 0, "dp_size": 2},
        {"on_error": fl.skip()},
        {"threads": 2},
    ],
)
def test_a_keyword_that_means_nothing_there_is_refused(keyword: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidError, match=rf"{next(iter(keyword))}=.*list.*: \w+"):
        DataLoader([1, 2], **keyword)


def test_what_is_no_data_set_is_refused() -> None:
    with pytest.raises(errors.InvalidError, match=r"foreload.open\("):
        DataLoader("s3://bucket/train")
    with pytest.raises(errors.InvalidError, match="give one"):
        DataLoader([1, 2], seed=1, generator=torch.Generator())


def test_a_seed_is_the_generators() -> None:
    expected = torch_data.DataLoader(list(range(COUNT)), shuffle=True, generator=torch.Generator().manual_seed(8))
    assert repr(list(DataLoader(list(range(COUNT)), shuffle=True, seed=8))) == repr(list(expected))


def test_a_subclass_is_of_either_kind(data: Any) -> None:
    class Mine(DataLoader[Any]):
        def __init__(self, dataset: Any) -> None:
            super().__init__(dataset, 4)

    assert torch.cat(list(Mine(list(range(9))))).tolist() == list(range(9))
    assert Mine(data).run.plan.batches == 51
    with pytest.raises(AttributeError, match="none of Foreload's"):
        _ = Mine([1]).run


def parts(whole: Dataset) -> dict[str, Any]:
    """Torch's parts of a data set of ours, and which samples they have."""
    subset = torch_data.Subset(whole, [9, 3, 3, -1, *range(40, 80)])
    return {
        "subset": subset,
        "nested": torch_data.Subset(subset, range(1, 30)),
        "split": torch_data.random_split(whole, [0.7, 0.3], torch.Generator().manual_seed(1))[1],
        "concatenation": torch_data.ConcatDataset([subset, torch_data.Subset(whole, [0, 1]), subset]),
    }


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["subset", "nested", "split", "concatenation"])
def test_a_part_of_ours_is_planned_and_gives_torchs_items(data: Any, name: str, workers: int) -> None:
    part = parts(Dataset(data, decode=named, cache=TINY))[name]
    theirs = torch_data.DataLoader(part, 8, collate_fn=as_it_is)
    expected = [[(number, label) for (number, _), label in batch] for batch in theirs]
    loader = DataLoader(part, 8, num_workers=workers, collate_fn=as_it_is)
    assert loader.run.plan.batches == len(loader) == len(expected)
    batches = list(loader)
    assert [[(number, label) for (number, _), label in batch] for batch in batches] == expected
    for batch in batches:
        assert all(raw == content(number_of(data.key(number))) for (number, raw), _ in batch)
    sampler = torch_data.SubsetRandomSampler([5, 1, 2, 2], generator=torch.Generator().manual_seed(1))
    found = [item[0][0] for batch in DataLoader(part, 2, sampler=sampler, collate_fn=as_it_is) for item in batch]
    assert sorted(found) == sorted(part[at][0][0] for at in (5, 1, 2, 2))


def test_a_shuffled_part_goes_on_with_other_ranks(data: Any) -> None:
    part = torch_data.Subset(data, range(160))
    whole = [raw for values, _ in DataLoader(part, 8, shuffle=True, seed=3, cache=TINY) for raw in values]
    assert sorted(whole) == sorted(content(number_of(data.key(sample))) for sample in range(160))
    loader = DataLoader(part, 8, shuffle=True, seed=3, cache=TINY)
    passing = iter(loader)
    for _ in range(4):
        next(passing)
    rests = []
    for rank in range(2):
        other = DataLoader(part, 4, shuffle=True, seed=3, cache=TINY, dp_rank=rank, dp_size=2)
        other.load_state_dict(loader.state_dict())
        rests.append([values for values, _ in other])
    steps = zip(*rests, strict=True)
    assert [sorted(raw for values in step for raw in values) for step in steps] == [
        sorted(whole[first : first + 8]) for first in range(32, 160, 8)
    ]


def test_a_part_that_may_be_anything_is_torchs(data: Any) -> None:
    class Own(torch_data.Subset[Any]):
        def __getitem__(self, at: Any) -> Any:
            return -1

        def __getitems__(self, at: list[int]) -> Any:
            return [-1 for _ in at]

    whole = Dataset(data, decode=named, cache=TINY)
    others = torch_data.ConcatDataset([whole, Dataset(data, decode=as_it_is, cache=TINY)])
    for foreign in (Own(whole, [1, 2]), others, torch_data.Subset(whole, []), torch_data.Subset(whole, [999])):
        with pytest.raises(AttributeError):
            _ = DataLoader(foreign, 2).run
    assert torch.cat(list(DataLoader(Own(whole, [1, 2]), 2))).tolist() == [-1, -1]
    found = [
        item[0][0]
        for batch in DataLoader(others, 50, collate_fn=lambda batch: batch[:1])
        for item in batch
        if isinstance(item[0], tuple)
    ]
    assert found == [0, 50, 100, 150, 200]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("sets", [False, True])
def test_our_sampler_over_anybodys_data_goes_on_after_an_epochs_last_batch(
    data: Any, sets: bool, drops: bool, workers: int
) -> None:
    samples = [(at, 0) for at in range(len(data))]

    def made() -> Any:
        return DataLoader(samples, 24, sampler=Sampler(data, seed=3), num_workers=workers, drop_last=drops)

    def passes(loader: Any, number: int = 3) -> list[list[list[int]]]:
        found = []
        for epoch in range(number):
            if sets:
                loader.set_epoch(epoch)
            found.append([values.tolist() for values, _ in loader])
        return found

    wanted = passes(made())
    loader = made()
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    state = loader.state_dict()
    # Saved after the loop, the next pass is the next epoch.
    assert list(batches) == []
    after = made()
    after.load_state_dict(loader.state_dict())
    assert passes(after) == ([[], *wanted[1:]] if sets else [*wanted[1:], passes_of(made(), 3)])
    # Its own epoch is set once, and passes go on from there.
    again = made()
    again.load_state_dict(state)
    again.set_epoch(0)
    assert [[values.tolist() for values, _ in again] for _ in range(3)] == [[], *wanted[1:]]
    for _ in range(2):
        again = made()
        again.load_state_dict(state)
        assert passes(again) == [[], *wanted[1:]]
        # Saved again after what was left of the epoch: the next pass is the next epoch.
        again = made()
        again.load_state_dict(state)
        assert passes(again, 1) == [[]]
        after = made()
        after.load_state_dict(again.state_dict())
        assert passes(after) == ([[], *wanted[1:]] if sets else [*wanted[1:], passes_of(made(), 3)])


def passes_of(loader: Any, epoch: int) -> list[list[int]]:
    loader.set_epoch(epoch)
    return [values.tolist() for values, _ in loader]


@pytest.mark.parametrize("whose", ["anybody's", "ours"])
def test_another_epoch_that_is_set_after_a_state_of_our_sampler_is_read_from_its_beginning(
    data: Any, whose: str
) -> None:
    samples = [(at, 0) for at in range(len(data))]

    def made() -> Any:
        options = (
            {} if whose == "anybody's" else {"decode": lambda raw, meta: meta.sample, "cache": fl.Cache(ram="32MB")}
        )
        return DataLoader(samples if whose == "anybody's" else data, 24, sampler=Sampler(data, seed=3), **options)

    loader = made()
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = loader.state_dict()
    for epoch, first in ((0, 2), (1, 0), (4, 0)):
        again = made()
        again.load_state_dict(state)
        again.set_epoch(epoch)
        assert [[int(at) for at in values] for values, _ in again] == [
            [int(at) for at in values] for values in passes_of_any(made(), epoch)
        ][first:]
    # The sampler alone, under torch's own loader, whose batches may end within one of its hints'.
    sampler = Sampler(data, seed=3)
    sampler.load_state_dict({**Sampler(data, seed=3).state_dict(), "position": 16})
    sampler.set_epoch(1)
    fresh = Sampler(data, seed=3)
    fresh.set_epoch(1)
    assert list(sampler) == list(fresh)


def passes_of_any(loader: Any, epoch: int) -> list[Any]:
    loader.set_epoch(epoch)
    return [values for values, _ in loader]
