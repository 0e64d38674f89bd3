"""States at the borders of passes, under changed ranks, and with generators that others share: what follows is what followed, or it is refused."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader
from small import COUNT, until

TINY = fl.Cache(ram="32MB")
SIZE = 8


def drawn(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    """The sample, and draws that belong to its reading."""
    return torch.tensor([meta.sample, int(meta.rng().integers(1 << 40))])


def rows(batches: Any) -> list[tuple[int, ...]]:
    return [tuple(row) for values, *_ in batches for row in values.tolist()]


class Own(Sampler[int]):
    """An order of one's own that follows `set_epoch`."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 60

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(self.epoch).sample(range(COUNT), 60))


def fresh() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def dealt(samples: int = COUNT, ranks: int = 1, rank: int = 0) -> DistributedSampler[int]:
    return DistributedSampler(range(samples), ranks, rank, seed=3)  # type: ignore[arg-type] # it has a length


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffle": lambda: {"shuffle": True, "batch_size": SIZE},
    "distributed": lambda: {"sampler": dealt(), "batch_size": SIZE},
    "a part": lambda: {"sampler": dealt(80), "batch_size": SIZE},
    "in a batch sampler": lambda: {"batch_sampler": BatchSampler(dealt(), SIZE, drop_last=False)},
    "own": lambda: {"sampler": Own(), "batch_size": SIZE},
    "weighted": lambda: {
        "sampler": WeightedRandomSampler([1.0] * COUNT, 60, generator=fresh()),
        "batch_size": SIZE,
    },
    "subset": lambda: {"sampler": SubsetRandomSampler(range(60), generator=fresh()), "batch_size": SIZE},
}


def loader_of(data: Any, kind: str, workers: int = 0) -> Any:
    return DataLoader(data, decode=drawn, num_workers=workers, cache=TINY, **KINDS[kind]())


@pytest.mark.parametrize("kind", KINDS)
def test_the_loop_of_the_guide_reads_each_epoch_once_after_a_state_between_them(data: Any, kind: str) -> None:
    def run(state: dict[str, Any] | None) -> list[Any]:
        loader, found = loader_of(data, kind), []
        if state is not None:
            loader.load_state_dict(state)
        for epoch in range(loader.state_dict()["epoch"], 3):
            loader.set_epoch(epoch)
            found.append((epoch, rows(loader), loader.state_dict()))
        return found

    whole = run(None)
    resumed = run(whole[0][2])
    assert [(epoch, read) for epoch, read, _ in resumed] == [(epoch, read) for epoch, read, _ in whole[1:]]


@pytest.mark.parametrize("by", ["the loader", "the sampler"])
@pytest.mark.parametrize("kind", ["shuffle", "distributed", "in a batch sampler", "own"])
def test_an_epoch_whose_last_batch_was_had_has_nothing_left(data: Any, kind: str, by: str) -> None:
    """A script keeps its own number of the epoch, and saves within the loop."""

    def setter(loader: Any) -> Any:
        sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
        return sampler if by == "the sampler" and kind != "shuffle" else loader

    def run(first: int, state: dict[str, Any] | None) -> tuple[list[Any], dict[str, Any]]:
        loader, found, saved = loader_of(data, kind), [], {}
        if state is not None:
            loader.load_state_dict(state)
        for epoch in range(first, 3):
            setter(loader).set_epoch(epoch)
            read = []
            for batch in loader:
                read.append(batch)
                saved[epoch] = loader.state_dict()
            found.append(rows(read))
        return found, saved

    whole, saved = run(0, None)
    assert run(0, saved[0])[0] == [[], *whole[1:]]
    assert run(1, saved[0])[0] == whole[1:]


def test_an_epoch_that_was_over_can_be_read_again(data: Any) -> None:
    loader = loader_of(data, "shuffle")
    read = rows(loader)
    again = loader_of(data, "shuffle")
    again.load_state_dict(loader.state_dict())
    again.set_epoch(0)
    assert rows(again) == []
    again.set_epoch(0)
    assert rows(again) == read


def test_a_numpy_loader_has_nothing_left_either(data: Any) -> None:
    def loader() -> Any:
        return fl.NumpyLoader(data, SIZE, shuffle=True, epochs=3, cache=TINY)

    first = loader()
    for _ in first:
        state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    second.set_epoch(0)
    assert list(second) == []
    assert second.state_dict()["epoch"] == 1
    assert len(list(second)) == len(first)


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1), (2, 3)])
@pytest.mark.parametrize("kind", ["a part", "in a batch sampler"])
def test_a_state_of_other_ranks_is_refused_where_the_sampler_deals_unknown(
    data: Any, kind: str, ranks: tuple[int, int]
) -> None:
    def loader(world: int, size: int) -> Any:
        sampler = dealt(96 if kind == "a part" else COUNT, world)
        given: dict[str, Any] = {"sampler": sampler, "batch_size": size}
        if kind != "a part":
            given = {"batch_sampler": BatchSampler(sampler, size, drop_last=False)}
        return DataLoader(data, dp_rank=0, dp_size=world, cache=TINY, **given)

    before, after = ranks
    first = loader(before, 12 // before)
    batches = iter(first)
    next(batches)
    next(batches)
    second = loader(after, 12 // after)
    second.load_state_dict(first.state_dict())
    with pytest.raises(errors.StateError, match=f"dealt among {before}|where one|no batch begins|sampler's first"):
        next(iter(second))


def test_a_sampler_that_deals_nothing_goes_on_with_other_ranks(data: Any) -> None:
    def loader(world: int) -> Any:
        sampler = SubsetRandomSampler(range(60), generator=fresh())
        return DataLoader(data, 6, sampler=sampler, dp_rank=0, dp_size=world, decode=drawn, cache=TINY)

    first = loader(1)
    batches = iter(first)
    begun = [next(batches) for _ in range(3)]
    state = first.state_dict()
    second = loader(2)
    second.load_state_dict(state)
    assert [row[0] for row in rows(begun) + rows(second)] == [row[0] for row in rows(loader(1))]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_script_that_restores_torchs_generator_goes_on_in_every_later_pass(data: Any, workers: int) -> None:
    def loader() -> Any:
        sampler = RandomSampler(range(COUNT), replacement=True, num_samples=40)
        return DataLoader(data, SIZE, sampler=sampler, num_workers=workers, decode=drawn, cache=TINY)

    torch.manual_seed(11)
    first = loader()
    read, saved = [], []
    for _ in range(3):
        for batch in first:
            read.append(rows([batch]))
            saved.append((first.state_dict(), torch.get_rng_state()))
    for at in (1, 6, 8):
        state, stood = saved[at]
        torch.manual_seed(99)
        second = loader()
        second.load_state_dict(state)
        torch.set_rng_state(stood)
        rest = [rows([batch]) for _ in range(3 - len(read[: at + 1]) // 5) for batch in second]
        assert rest == read[at + 1 :], at


def test_a_generator_that_loader_and_sampler_share_stands_where_it_stood(data: Any) -> None:
    def loader() -> Any:
        generator = fresh()
        return DataLoader(
            data, SIZE, sampler=RandomSampler(range(COUNT), generator=generator), generator=generator, cache=TINY
        )

    whole = loader()
    passes, states = [], [whole.state_dict()]
    for _ in range(3):
        passes.append([label for _, labels in whole for label in labels.tolist()])
        states.append(whole.state_dict())
    for at, state in enumerate(states[:3]):
        resumed = loader()
        resumed.load_state_dict(state)
        assert [[label for _, labels in resumed for label in labels.tolist()] for _ in range(at, 3)] == passes[at:]


class Endless(Sampler[int]):
    """Says no length, and draws from something that no state knows."""

    def __init__(self, seed: int) -> None:
        hidden = [np.random.default_rng(seed)]
        self.draw = lambda: int(hidden[0].integers(COUNT))

    def __iter__(self) -> Iterator[int]:
        while True:
            yield self.draw()


def test_a_sampler_that_is_read_as_it_goes_is_refused_where_it_draws_otherwise(data: Any) -> None:
    def loader(seed: int) -> Any:
        return DataLoader(data, SIZE, sampler=Endless(seed), cache=TINY)

    first = loader(1)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = first.state_dict()
    assert "list" in state
    same, other = loader(1), loader(2)
    same.load_state_dict(state)
    next(iter(same))
    other.load_state_dict(state)
    with pytest.raises(errors.StateError, match="others than those that were read before"):
        next(iter(other))
    assert first._course.run().state(0, 3, [4])["beyond"] == "4"


class Drawing(Sampler[int]):
    """Draws from generators of its own, which aren't called so."""

    def __init__(self) -> None:
        self.numpy, self.plain = np.random.default_rng(1), random.Random(2)
        self.legacy = np.random.RandomState(3)
        self.inner = RandomSampler(range(20), generator=fresh())

    def __len__(self) -> int:
        return 50

    def __iter__(self) -> Iterator[int]:
        found = [int(self.numpy.integers(COUNT)) for _ in range(10)] + self.plain.sample(range(COUNT), 10)
        return iter([*found, *self.legacy.randint(0, COUNT, 10).tolist(), *self.inner])


def test_generators_among_a_samplers_attributes_stand_where_they_stood(data: Any) -> None:
    def loader() -> Any:
        return DataLoader(data, SIZE, sampler=Drawing(), decode=drawn, cache=TINY)

    whole = loader()
    passes: list[list[Any]] = []
    states = []
    for _ in range(3):
        passes.append([])
        for batch in whole:
            passes[-1].append(rows([batch]))
            states.append(whole.state_dict())
    for at, state in enumerate(states):
        resumed = loader()
        resumed.load_state_dict(state)
        epoch, batch = divmod(at, len(passes[0]))
        expected = [passes[epoch][batch + 1 :], *passes[epoch + 1 :]]
        found = [[rows([each]) for each in resumed] for _ in range(3 - epoch - (not expected[0]))]
        assert found == [each for each in expected if each], at


def test_a_distributed_sampler_that_nobody_sets_goes_on_with_the_epoch_it_reads(data: Any) -> None:
    whole = loader_of(data, "distributed")
    passes, states = [], []
    for _ in range(3):
        passes.append(rows(whole))
        states.append(whole.state_dict())
    assert [row[0] for row in passes[0]] == [row[0] for row in passes[2]]
    resumed = loader_of(data, "distributed")
    resumed.load_state_dict(states[0])
    twice = loader_of(data, "distributed")
    twice.load_state_dict(resumed.state_dict())
    for loader in (resumed, twice):
        assert [rows(loader), rows(loader)] == passes[1:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loaded_state_may_be_saved_again_before_it_is_gone_on_with(data: Any, workers: int) -> None:
    first = loader_of(data, "distributed", workers)
    rows(first)
    batches = iter(first)
    begun = rows(next(batches) for _ in range(3))
    state = first.state_dict()
    expected = rows(batches)
    assert state["again"] == 1
    assert begun
    second = loader_of(data, "distributed", workers)
    second.load_state_dict(state)
    iter(second)
    third = loader_of(data, "distributed", workers)
    third.load_state_dict(second.state_dict())
    assert rows(third) == expected


class Uneven(Sampler[list[int]]):
    """Batches of many sizes, from a generator, that say no length."""

    def __init__(self) -> None:
        self.generator = fresh()

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(COUNT, generator=self.generator).tolist()
        while order:
            size = 1 + order[0] % 7
            yield order[:size]
            del order[:size]


@pytest.mark.parametrize("workers", [0, 2])
def test_passes_over_uneven_batches_may_be_nested(data: Any, workers: int) -> None:
    def loader() -> Any:
        return DataLoader(data, batch_sampler=Uneven(), num_workers=workers, decode=drawn, cache=TINY)

    apart = loader()
    expected = [rows(apart) for _ in range(4)]
    nested = loader()
    outer = iter(nested)
    begun = rows([next(outer)])
    found = [rows(nested) for _ in range(3)]
    assert [begun + rows(outer), *found] == expected


@pytest.mark.parametrize(("workers", "threads"), [(0, 0), (0, 2), (2, 0)])
def test_a_collate_function_that_raises_stop_iteration_ends_nothing(data: Any, workers: int, threads: int) -> None:
    def collate(batch: list[Any]) -> Any:
        return next(iter(())) if any(label == 2 for _, label in batch) else batch

    loader = DataLoader(data, 4, collate_fn=collate, decode=bytes, num_workers=workers, threads=threads, cache=TINY)
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(loader)


EXITS = {
    "an iterator": "it = iter(loader); next(it)",
    "a cycle": "import itertools; it = itertools.cycle(loader); next(it)",
    "a circle": "it = iter(loader); next(it); it.me = it",
    "an exit": "it = iter(loader); next(it); import sys; sys.exit(0)",
}


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("end", EXITS)
def test_a_script_ends_quietly_with_a_pass_that_is_open(home: Any, end: str, threads: int) -> None:
    script = (
        "import foreload as fl\nfrom foreload.torch import DataLoader\n"
        f"loader = DataLoader(fl.open('s3://data/fixed'), 8, decode=len, threads={threads}, cache=fl.Cache(ram='32MB'))\n{EXITS[end]}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_agents_may_die_as_long_as_batches_come_between(home: Any) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 4, decode=drawn, cache=fl.Cache(ram="3MB"))
    expected, read = rows(loader), []
    for at, batch in enumerate(loader):
        read.append(batch)
        if at in (5, 15, 25):
            agent = data.source.opened().agent.pid
            os.kill(agent, signal.SIGKILL)
            until(lambda agent=agent: not os.path.exists(f"/proc/{agent}/exe"))  # noqa: PTH110
    assert [row[0] for row in rows(read)] == [row[0] for row in expected]


def test_a_mixture_is_not_split(data: Any) -> None:
    mixture = fl.Mixture([fl.Stream(data, name="one"), fl.Stream(data, name="two")])
    with pytest.raises(errors.InvalidError, match="for the streams of a mixture"):
        mixture.split({"train": 0.9, "val": 0.1})
