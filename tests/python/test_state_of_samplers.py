"""Samplers with generators wherever they keep them, over data sets of ours and of anybody: a resumed pass is what it would have been, or it is refused."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, TensorDataset

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader, Sampler
from small import COUNT

TINY = fl.Cache(ram="32MB")


class Drawing:
    """A sampler of no class of torch's, with a generator under some name."""

    def __init__(self, generator: Any, name: str = "rng", count: int = COUNT) -> None:
        self._name, self.count = name, count
        setattr(self, name, generator)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        own = getattr(self, self._name)
        if isinstance(own, torch.Generator):
            return iter(torch.randperm(self.count, generator=own).tolist())
        if isinstance(own, random.Random):
            return iter(own.sample(range(self.count), self.count))
        return iter(own.permutation(self.count).tolist())


class Within:
    """A sampler that takes its samples from others, which it has under some name, alone or in a list."""

    def __init__(self, name: str, inner: Any) -> None:
        self._name = name
        setattr(self, name, inner)

    def _all(self) -> list[Any]:
        found = getattr(self, self._name)
        return found if isinstance(found, list) else [found]

    def __len__(self) -> int:
        return sum(map(len, self._all()))

    def __iter__(self) -> Iterator[int]:
        return (number for inner in self._all() for number in reversed(list(inner)))


def a_torch() -> torch.Generator:
    return torch.Generator().manual_seed(4)


class Several(Drawing):
    """One that draws from the second of several generators, or by a method."""

    def __init__(self, several: Any, which: Any) -> None:
        self.several, self.which, self.count = several, which, COUNT

    def __iter__(self) -> Iterator[int]:
        found = self.several[self.which]
        return iter((found if callable(found) else found.permutation)(self.count).tolist())


class Slotted(Drawing):
    """One without a dict."""

    __slots__ = ("rng",)


class Holder:
    """An object that is no sampler, and has a generator."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng


class Held(Drawing):
    """One that draws from a generator of an object that it holds."""

    def __init__(self, holder: Holder) -> None:
        self.holder, self.count = holder, COUNT

    def __iter__(self) -> Iterator[int]:
        return iter(self.holder.rng.permutation(self.count).tolist())


def of_class() -> Any:
    """A sampler whose class has the generator."""

    class Shared(Drawing):
        rng = np.random.default_rng(4)

        def __init__(self) -> None:
            self._name, self.count = "rng", COUNT

    return Shared()


def of_function() -> Any:
    """A sampler whose code draws from a variable of the function around it, within a comprehension."""
    rng = random.Random(4)

    class Around(Drawing):
        def __init__(self) -> None:
            self.count = COUNT

        def __iter__(self) -> Iterator[int]:
            return iter([at for _, at in sorted((rng.random(), at) for at in range(self.count))])

    return Around()


MODULES = np.random.default_rng(4)


class OfModule(Drawing):
    """One that draws from a variable of its module."""

    def __init__(self) -> None:
        self.count = COUNT

    def __iter__(self) -> Iterator[int]:
        return iter(MODULES.permutation(self.count).tolist())


def of_module() -> Any:
    """One such, whose generator is as new."""
    MODULES.bit_generator.state = np.random.default_rng(4).bit_generator.state
    return OfModule()


SAMPLERS: dict[str, Callable[[], Any]] = {
    "torch's": lambda: Drawing(a_torch(), "g"),
    "NumPy's": lambda: Drawing(np.random.default_rng(4)),
    "NumPy's old": lambda: Drawing(np.random.RandomState(4)),
    "Python's": lambda: Drawing(random.Random(4)),
    "within": lambda: Within("inner", Drawing(np.random.default_rng(4))),
    "within a private one": lambda: Within("_base", Within("source", Drawing(a_torch(), "g"))),
    "torch's own within": lambda: Within("base", RandomSampler(range(COUNT), generator=a_torch())),
    "generators in a list": lambda: Several([None, np.random.default_rng(4)], 1),
    "generators in a dict": lambda: Several({"a": np.random.default_rng(4)}, "a"),
    "a generator's method": lambda: Several((np.random.default_rng(4).permutation,), 0),
    "of an object": lambda: Held(Holder(np.random.default_rng(4))),
    "of its class": of_class,
    "of the function around it": of_function,
    "of its module": of_module,
    "in a slot": lambda: Slotted(np.random.default_rng(4)),
    "in a list": lambda: Within(
        "parts", [Drawing(np.random.default_rng(n), count=COUNT // 2 - 3 * n) for n in range(2)]
    ),
}


def loader_of(data: Any, sampler: Any, size: int = 8, **keywords: Any) -> Any:
    if isinstance(data, fl.Dataset):
        keywords |= {"cache": TINY, "decode": lambda raw, meta: meta.sample}
    return DataLoader(data, size, sampler=sampler, **keywords)


def numbers(batches: Any) -> list[list[int]]:
    return [[int(number) for number in batch[0]] for batch in batches]


@pytest.fixture(params=["ours", "anybody's"])
def any_data(request: pytest.FixtureRequest, data: Any) -> Any:
    return data if request.param == "ours" else TensorDataset(torch.arange(COUNT))


@pytest.mark.parametrize("at", ["within", "between"])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_generators_stand_where_they_stood_whatever_has_them(any_data: Any, kind: str, at: str) -> None:
    loader = loader_of(any_data, SAMPLERS[kind]())
    list(loader)
    state = loader.state_dict()
    passes: list[list[list[int]]] = [[], []]
    for number in range(2):
        for batch in loader:
            passes[number] += numbers([batch])
            if at == "within" and not number and len(passes[0]) == 3:
                state = loader.state_dict()
    if at == "within":
        del passes[0][:3]
    again = loader_of(any_data, SAMPLERS[kind]())
    again.load_state_dict(state)
    assert [numbers(again), numbers(again)] == passes


class Hidden(Drawing):
    """One whose generator nobody finds."""

    def __init__(self) -> None:
        own = np.random.default_rng(4)
        super().__init__(type("Box", (), {"permutation": staticmethod(own.permutation)})())


def test_whoever_draws_from_something_unknown_is_refused_within_a_pass(any_data: Any) -> None:
    loader = loader_of(any_data, Hidden())
    list(loader)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    again = loader_of(any_data, Hidden())
    again.load_state_dict(loader.state_dict())
    with pytest.raises(errors.StateError, match="draws from something that the state doesn't know"):
        list(again)


class Share:
    """A sampler that deals by itself, and nobody knows it."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.generator, self.rank, self.num_replicas = a_torch(), rank, ranks

    def __len__(self) -> int:
        return len(range(self.rank, COUNT, self.num_replicas))

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(COUNT, generator=self.generator).tolist()[self.rank :: self.num_replicas])


@pytest.mark.parametrize("size", [16, 8])
def test_a_sampler_that_deals_by_itself_is_refused_on_another_number_of_ranks(any_data: Any, size: int) -> None:
    loader = loader_of(any_data, Share(1, 2))
    batches = iter(loader)
    for _ in range(3):
        next(batches)

    def go_on() -> None:
        again = loader_of(any_data, Share(0, 1), size)
        again.load_state_dict(loader.state_dict())
        list(again)

    with pytest.raises(errors.StateError, match="go on with 2 ranks"):
        go_on()
    same = loader_of(any_data, Share(1, 2))
    same.load_state_dict(loader.state_dict())
    assert numbers(same) == numbers(batches)


@pytest.mark.parametrize("samples", [36, 37, 40])
def test_of_an_epoch_whose_last_batch_was_had_nothing_is_left_on_fewer_ranks(samples: int) -> None:
    values: Any = TensorDataset(torch.arange(samples))
    two: Any = DistributedSampler(values, 2, 0, seed=5)
    loader: Any = DataLoader(values, 6, sampler=two)
    two.set_epoch(0)
    states = [loader.state_dict() for _ in loader]
    one: Any = DistributedSampler(values, 1, 0, seed=5)
    again: Any = DataLoader(values, 12, sampler=one)
    again.load_state_dict(states[-1])
    one.set_epoch(0)
    assert not list(again)
    one.set_epoch(1)
    assert sorted(number for batch in numbers(again) for number in batch) == list(range(samples))
    if samples == 36:
        again.load_state_dict(states[0])
        one.set_epoch(0)
        assert len(list(again)) == 2


@pytest.mark.parametrize("order", ["l", "s", "ls", "sl", "sL", "lL", "sLs", ""])
def test_our_sampler_goes_on_where_the_loaders_state_says_whoever_sets_the_epoch(data: Any, order: str) -> None:
    def made() -> Any:
        return loader_of(data, Sampler(data, seed=2))

    loader = made()
    read: list[list[int]] = []
    state: dict[str, Any] = {}
    for epoch in range(3):
        if order:
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            read += numbers([batch])
            if epoch == 1 and len(read) == len(loader) + 3:
                state = loader.state_dict()
    again = made()
    for step in order if "L" in order else f"L{order}":
        if step == "L":
            again.load_state_dict(state)
        else:
            {"l": again, "s": again.sampler}[step].set_epoch(1)
    assert numbers(again) == read[len(loader) + 3 : 2 * len(loader)]
    if order:
        again.sampler.set_epoch(2)
    assert numbers(again) == read[2 * len(loader) :]


def test_a_batch_sampler_over_a_sampler_that_draws_is_resumed(any_data: Any) -> None:
    def made() -> Any:
        order = BatchSampler(Within("inner", Drawing(np.random.default_rng(4))), 8, drop_last=False)
        keywords: dict[str, Any] = {"cache": TINY, "decode": lambda raw, meta: meta.sample}
        return DataLoader(any_data, batch_sampler=order, **(keywords if isinstance(any_data, fl.Dataset) else {}))

    loader = made()
    list(loader)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    again = made()
    again.load_state_dict(loader.state_dict())
    assert numbers(again) == numbers(batches)


class Lazy:
    """A sampler that draws from everybody's generator, sample by sample."""

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        return (int(torch.randint(COUNT, ())) for _ in range(COUNT))


@pytest.mark.parametrize("begins", ["where the loop left off", "elsewhere"])
def test_a_sampler_that_draws_batch_by_batch_goes_on_where_everybodys_generator_stands(begins: str) -> None:
    values: Any = TensorDataset(torch.arange(COUNT))
    torch.manual_seed(3)
    loader: Any = DataLoader(values, 8, sampler=Lazy())
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state, stood = loader.state_dict(), torch.get_rng_state()
    rest = numbers(batches)
    again: Any = DataLoader(values, 8, sampler=Lazy())
    torch.manual_seed(4)
    if begins == "where the loop left off":
        torch.set_rng_state(stood)
    again.load_state_dict(state)
    if begins == "elsewhere":
        with pytest.raises(errors.StateError, match=r"draws batch by batch .* restore them \(torch.set_rng_state\)"):
            list(again)
    else:
        assert numbers(again) == rest


BATCHES: dict[str, Callable[[], Any]] = {
    "tensors": lambda: [torch.tensor(range(first, first + 8)) for first in range(0, 48, 8)],
    "arrays": lambda: np.array_split(np.random.default_rng(4).permutation(COUNT), 9),
    "a matrix": lambda: np.random.default_rng(4).permutation(200).reshape(25, 8),
    "a matrix of torch's": lambda: torch.randperm(200, generator=a_torch()).reshape(25, 8),
    "objects": lambda: [[object(), object()]] * 4,
}


@pytest.mark.parametrize("kind", BATCHES)
def test_batches_may_be_of_any_type_as_under_torchs_loader(kind: str) -> None:
    class Named:
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, name: Any) -> list[int]:
            return [int(operator.index(name)) if hasattr(name, "__index__") else 1]

    values: Any = Named()
    plain = numbers(torch.utils.data.DataLoader(values, batch_sampler=BATCHES[kind]()))
    loader: Any = DataLoader(values, batch_sampler=BATCHES[kind]())
    batches = iter(loader)
    first = numbers(next(batches) for _ in range(3))
    again: Any = DataLoader(values, batch_sampler=BATCHES[kind]())
    again.load_state_dict(loader.state_dict())
    assert first + numbers(batches) == plain
    assert first + numbers(again) == plain


@pytest.mark.parametrize("loads", ["train", "train first", "train last"])
@pytest.mark.parametrize("at", [1, 5])
def test_two_loaders_with_one_generator_go_on_together(loads: str, at: int) -> None:
    def made() -> tuple[Any, Any]:
        shared = a_torch()
        train: Any = TensorDataset(torch.arange(20))
        check: Any = TensorDataset(torch.arange(6))
        return DataLoader(train, 4, shuffle=True, generator=shared), DataLoader(check, 2, generator=shared)

    train, check = made()
    read: list[list[int]] = []
    states: list[Any] = []
    for _ in range(3):
        for batch in train:
            read += numbers([batch])
            if len(read) == at:
                states = [train.state_dict(), check.state_dict()]
        list(check)
    again, checking = made()
    pairs = [(again, states[0]), (checking, states[1])]
    for loader, state in {"train": pairs[:1], "train first": pairs, "train last": pairs[::-1]}[loads]:
        loader.load_state_dict(state)
    found: list[list[int]] = []
    for _ in range(3):
        found += numbers(again)
        list(checking)
    assert found == read[at:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [1, 3, 4])
def test_who_draws_within_a_pass_from_a_generator_that_it_shares_goes_on_too(
    any_data: Any, workers: int, at: int
) -> None:
    def made() -> tuple[Any, Any]:
        shared = np.random.default_rng(4)
        pair = (Drawing(shared, count=40), Drawing(shared, count=6))
        return tuple(loader_of(any_data, sampler, num_workers=workers) for sampler in pair)  # type: ignore[return-value] # two

    def read(train: Any, check: Any, had: int) -> list[Any]:
        found: list[Any] = []
        for epoch in range(3):
            for batch in train:
                had += 1
                found += numbers([batch])
                if had == 2:
                    list(check)
                if epoch == 0 and had == at:
                    states.append((train.state_dict(), check.state_dict()))
            found += numbers(check)
        return found

    states: list[Any] = []
    plain = read(*made(), 0)
    again, checking = made()
    for loader, state in zip((again, checking), states[0], strict=True):
        loader.load_state_dict(state)
    states = [None]
    assert read(again, checking, at) == plain[at:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [1, 3, 9, 10])
def test_what_workers_were_asked_for_ahead_is_drawn_once(workers: int, at: int) -> None:
    # Torch's sampler draws at the end of a pass, too, and one with replacement draws in between.
    def made() -> Any:
        generator = a_torch()
        values: Any = TensorDataset(torch.arange(40))
        sampler = RandomSampler(range(40), replacement=True, generator=generator)
        return DataLoader(values, 4, sampler=sampler, num_workers=workers, generator=generator)

    loader = made()
    batches = iter(loader)
    first = numbers(next(batches) for _ in range(at))
    state = loader.state_dict()
    rest = numbers(batches) + numbers(loader)
    again = made()
    again.load_state_dict(state)
    assert len(first) == at
    assert numbers(again) + numbers(again) == rest


class Numbered(torch.utils.data.Sampler[int]):
    """One that has its epoch under a name of its own."""

    def __init__(self) -> None:
        self.turn = 0

    def set_epoch(self, epoch: int) -> None:
        self.turn = epoch

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(20, generator=torch.Generator().manual_seed(self.turn)).tolist())


class Around(Numbered):
    """One whose epoch another one has."""

    def __init__(self) -> None:
        self.inner = Numbered()

    def set_epoch(self, epoch: int) -> None:
        self.inner.turn = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)


class Reseeded(Numbered):
    """One that keeps a seed and no epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.turn = 1000 + epoch


@pytest.mark.parametrize("kind", [Numbered, Around, Reseeded])
@pytest.mark.parametrize("is_set", [True, False])
@pytest.mark.parametrize("at", [(0, 2), (0, 5), (1, 3), (1, 5)])
def test_a_sampler_may_have_its_epoch_anywhere(data: Any, kind: Any, is_set: bool, at: tuple[int, int]) -> None:
    def read(loader: Any, first: int, state: Any = None) -> tuple[list[Any], Any]:
        if state is not None:
            loader.load_state_dict(state)
        found, saved = [], None
        for epoch in range(first, 3):
            if is_set:
                loader.sampler.set_epoch(epoch)
            for number, batch in enumerate(loader, 1):
                found += numbers([batch])
                saved = loader.state_dict() if (epoch, number) == at else saved
        return found, saved

    plain, state = read(loader_of(data, kind(), 4), 0)
    # Who sets no epochs goes on behind a pass that was over.
    first = at[0] if is_set or at[1] < 5 else at[0] + 1
    assert read(loader_of(data, kind(), 4), first, state)[0] == plain[5 * at[0] + at[1] :]


class Advancing(Numbered):
    """One that sets itself to the next epoch when it has begun one."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.turn, self.epoch = self.epoch, self.epoch + 1
        return super().__iter__()


@pytest.mark.parametrize("is_set", [True, False])
@pytest.mark.parametrize("kind", ["of its own", "batches", "ours", "ours changed"])
def test_a_sampler_that_sets_itself_to_the_next_epoch_goes_on_in_the_one_that_was_left(
    data: Any, kind: str, is_set: bool
) -> None:
    def made() -> Any:
        if kind == "of its own":
            return loader_of(data, Advancing(), 4)
        if kind == "ours changed":
            loader = loader_of(data, Sampler(data, seed=1), 9)
            loader.batch_sampler.batch_size = 4
            return loader
        own: Any = Advancing() if kind == "batches" else Sampler(data, seed=1)
        given = {"batch_sampler": BatchSampler(own, 4, False), "decode": lambda raw, meta: meta.sample, "cache": TINY}
        return DataLoader(data, **given)

    def read(loader: Any, had: int, most: int) -> list[list[int]]:
        """What comes after so many batches, until there were so many."""
        found: list[list[int]] = []
        while had + len(found) < most:
            if is_set:
                loader.set_epoch((had + len(found)) // len(loader))
            for batch in loader:
                found += numbers([batch])
                if had + len(found) == most:
                    break
        return found

    epoch = len(made())
    plain = read(made(), 0, 2 * epoch)
    for had in (1, epoch - 1, epoch, epoch + 2):
        first, again = made(), made()
        read(first, 0, had)
        again.load_state_dict(first.state_dict())
        assert read(again, had, 2 * epoch) == plain[had:], had


@pytest.mark.parametrize("by", ["plan", "sampler"])
def test_a_state_of_an_epochs_last_batch_is_the_same_when_it_is_saved_again(data: Any, by: str) -> None:
    def made() -> Any:
        return loader_of(data, Numbered(), 4) if by == "sampler" else DataLoader(data, 64, shuffle=True, cache=TINY)

    loader = made()
    for _ in loader:
        state = loader.state_dict()
    for _ in range(3):
        loader = made()
        loader.load_state_dict(state)
        state = loader.state_dict()
    assert state["epoch"] == 1
    loader.set_epoch(0)
    assert [len(list(loader)), len(list(loader))] == [0, len(loader)]


class Stateful(torch.utils.data.Sampler[int]):
    """One that says where it stands."""

    def __init__(self, count: int) -> None:
        self.count, self.at, self.turn = count, 0, 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.turn)).tolist()
        while self.at < self.count:
            self.at += 1
            yield order[self.at - 1]
        self.at, self.turn = 0, self.turn + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "turn": self.turn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.turn = state["at"], state["turn"]


@pytest.mark.parametrize("count", [20, 18])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [2, 5, 7])
def test_a_sampler_that_says_where_it_stands_is_asked(any_data: Any, workers: int, at: int, count: int) -> None:
    def made() -> Any:
        return loader_of(any_data, Stateful(count), 4, num_workers=workers)

    loader, plain, state = made(), [], None
    for _ in range(3):
        for batch in loader:
            plain += numbers([batch])
            state = loader.state_dict() if len(plain) == at else state
    again = made()
    again.load_state_dict(state)
    # What is left of an epoch that was over is a pass without batches, over data that aren't ours.
    passes = 3 - at // 5 + (at == 5 and not isinstance(any_data, fl.Dataset))
    assert [batch for _ in range(passes) for batch in numbers(again)] == plain[at:]


class Turning(torch.utils.data.IterableDataset[int]):
    """An iterable data set with a state, of which each worker has a share."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        while self.at * info.num_workers + info.id < 24:
            self.at += 1
            yield (self.at - 1) * info.num_workers + info.id
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("lives_on", [True, False])
@pytest.mark.parametrize("at", [1, 2, 7, 8, 13])
def test_a_worker_that_has_sent_nothing_in_this_pass_begins_it(at: int, lives_on: bool) -> None:
    def made() -> Any:
        return DataLoader(Turning(), 4, num_workers=2, persistent_workers=lives_on)

    loader, plain, state = made(), [], None
    for _ in range(3):
        for batch in loader:
            plain.append(batch.tolist())
            state = loader.state_dict() if len(plain) == at else state
    again = made()
    again.load_state_dict(state)
    assert [batch.tolist() for _ in range(3 - at // 6) for batch in again] == plain[at:]


class AtOnce(Drawing):
    """One that draws when an iterator of it is made, as torch does twice with workers."""

    def __init__(self) -> None:
        self.rng, self.count = random.Random(4), 12

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.sample(range(self.count), self.count))


@pytest.mark.parametrize("workers", [(0, 0), (0, 2), (2, 0), (2, 2)])
@pytest.mark.parametrize("at", [3, 12, 15])
def test_a_sampler_that_draws_at_once_is_drawn_from_once(workers: tuple[int, int], at: int) -> None:
    def made(count: int) -> Any:
        data: Any = TensorDataset(torch.arange(12))
        return DataLoader(data, None, sampler=AtOnce(), num_workers=count, persistent_workers=count > 0)

    def read(loader: Any, passes: int) -> list[int]:
        nonlocal state
        found: list[int] = []
        for _ in range(passes):
            for batch in loader:
                found.append(int(batch[0]))
                state = loader.state_dict() if len(found) == at else state
        return found

    state: Any = None
    plain = read(made(workers[0]), 3)
    again, saved = made(workers[1]), state
    again.load_state_dict(saved)
    rest = read(again, 4 - at // 12 if at == 12 else 3 - at // 12)
    # How often torch draws for a later pass depends on its workers.
    end = len(plain) if workers[0] == workers[1] else 12 * -(-at // 12)
    assert rest[: end - at] == plain[at:end]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("restores", ["never", "before", "after"])
def test_who_draws_before_a_pass_goes_on_from_a_generator_that_it_shares_goes_on_too(
    any_data: Any, workers: int, restores: str
) -> None:
    def made() -> tuple[torch.Generator, Any, Any]:
        shared = a_torch()
        pair = (Drawing(shared, count=40), Drawing(shared, count=6))
        train, check = (loader_of(any_data, sampler, num_workers=workers) for sampler in pair)
        return shared, train, check

    shared, train, check = made()
    batches = iter(train)
    for _ in range(3):
        next(batches)
    state, stood = train.state_dict(), shared.get_state()
    plain = [numbers(check), numbers(batches), numbers(train), numbers(check)]
    shared, train, check = made()
    if restores == "before":
        shared.set_state(stood)
    train.load_state_dict(state)
    if restores == "after":
        shared.set_state(stood)
    assert [numbers(check), numbers(train), numbers(train), numbers(check)] == plain


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("now", "at"), [(8, 3), (24, 2), (40, 2), (36, 3)])
def test_a_pass_that_is_longer_or_shorter_than_it_was_is_not_gone_on_with(
    any_data: Any, workers: int, now: int, at: int
) -> None:
    def made(count: int) -> Any:
        return loader_of(any_data, list(range(count)), num_workers=workers)

    loader = made(32)
    batches = iter(loader)
    for _ in range(at):
        next(batches)
    state, rest = loader.state_dict(), numbers(batches)
    again = made(32)
    again.load_state_dict(state)
    assert numbers(again) == rest
    other = made(now)
    other.load_state_dict(state)
    with pytest.raises(errors.StateError, match=r"long|yields|samples"):
        numbers(other)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [np.array, torch.tensor, tuple])
def test_a_sampler_may_be_any_row_of_numbers(any_data: Any, kind: Any, workers: int) -> None:
    row = kind(list(range(3, 60, 2)))
    loader = loader_of(any_data, row, num_workers=workers)
    batches = iter(loader)
    first = numbers([next(batches)])
    state, rest = loader.state_dict(), numbers(batches)
    assert [number for batch in first + rest for number in batch] == list(range(3, 60, 2))
    again = loader_of(any_data, row, num_workers=workers)
    again.load_state_dict(state)
    assert numbers(again) == rest


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("decode", [None, lambda raw, meta: meta.sample])
def test_of_an_empty_batch_nothing_is_made(data: Any, decode: Any, workers: int) -> None:
    options: dict[str, Any] = {"batch_sampler": [[0, 1], [], [3]], "decode": decode, "cache": TINY}
    batches = iter(DataLoader(data, num_workers=workers, **options))
    next(batches)
    with pytest.raises(errors.InvalidError, match="no samples"):
        next(batches)
    assert [len(batch) for batch in DataLoader(data, num_workers=workers, collate_fn=list, **options)] == [2, 0, 1]


class FailingOnce(Drawing):
    """One that fails when it is asked for its pass, before or after it draws."""

    fails = ""

    def __iter__(self) -> Iterator[int]:
        fails, self.fails = self.fails, ""
        if fails == "before":
            raise OSError("once")
        drawn = list(super().__iter__())
        if fails == "after":
            raise OSError("once")
        return iter(drawn)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("fails", ["before", "after"])
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("had", [0, 2, 25])
def test_a_pass_that_can_not_begin_leaves_the_state_as_it_was(
    any_data: Any, workers: int, fails: str, batches: bool, had: int
) -> None:
    def made() -> tuple[Any, Any]:
        sampler: Any = FailingOnce(a_torch(), count=200)
        keywords: dict[str, Any] = {"num_workers": workers}
        if not batches:
            return sampler, loader_of(any_data, sampler, **keywords)
        if isinstance(any_data, fl.Dataset):
            keywords |= {"cache": TINY, "decode": lambda raw, meta: meta.sample}
        return sampler, DataLoader(any_data, batch_sampler=BatchSampler(sampler, 8, False), **keywords)

    loader = made()[1]
    wanted = numbers(loader) + numbers(loader)
    first = made()[1]
    passing = iter(first)
    for _ in range(had):
        next(passing)
    sampler, again = made()
    again.load_state_dict(first.state_dict())
    sampler.fails = fails
    with pytest.raises(OSError, match="once"):
        next(iter(again))
    other = made()[1]
    other.load_state_dict(again.state_dict())
    # With its last batch in hand, of an epoch nothing is left; of ours the next one comes.
    end = 25 if had < 25 else 50 if isinstance(any_data, fl.Dataset) else had
    assert numbers(other) == wanted[had:end]
    assert numbers(again) == wanted[had:end]
