"""A generator that a loader, its sampler and other loaders draw from: every pass after a resume is what it would have been, also under workers that live on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils import data as torchs
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

import foreload as fl
from foreload.torch import DataLoader
from small import COUNT

TINY = fl.Cache(ram="32MB")
SIZE, EPOCHS = 10, 3


class Eager:
    """A batch sampler that draws as soon as an iterator is made of it."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[list[int]]:
        drawn = torch.randperm(COUNT, generator=self.generator).tolist()
        return iter([drawn[at : at + SIZE] for at in range(0, COUNT, SIZE)])


SAMPLERS: dict[str, Callable[[torch.Generator | None], dict[str, Any]]] = {
    "random": lambda own: {"batch_size": SIZE, "sampler": RandomSampler(range(COUNT), generator=own)},
    "subset": lambda own: {"batch_size": SIZE, "sampler": SubsetRandomSampler(range(COUNT), generator=own)},
    "weighted": lambda own: {
        "batch_size": SIZE,
        "sampler": WeightedRandomSampler([1.0] * COUNT, COUNT, generator=own),
    },
    "batches": lambda own: {
        "batch_sampler": BatchSampler(SubsetRandomSampler(range(COUNT), generator=own), SIZE, drop_last=False)
    },
    "eager": lambda own: {"batch_sampler": Eager(own)},
}
WORKERS = [(0, False), (1, False), (1, True)]


def numbers(batches: Any) -> list[list[int]]:
    return [found.tolist() for found, _ in batches]


class InMemory(torchs.Dataset[Any]):
    """The samples' numbers, without any data."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index), 0


def number(_: memoryview, meta: fl.Meta) -> torch.Tensor:
    return torch.tensor(meta.sample)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("workers", "lives_on"), WORKERS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_every_epoch_after_a_resume_is_what_it_would_have_been(
    data: Any, kind: str, shared: bool, workers: int, lives_on: bool
) -> None:
    def loader() -> Any:
        own = torch.Generator().manual_seed(7) if shared else None
        keywords = {"num_workers": workers, "persistent_workers": lives_on, "decode": number, "cache": TINY}
        return DataLoader(data, generator=own, **SAMPLERS[kind](own), **keywords)

    torch.manual_seed(11)
    straight = loader()
    whole, saved = [], [(straight.state_dict(), torch.get_rng_state())]
    for _ in range(EPOCHS):
        for found, _ in straight:
            whole.append(found.tolist())
            saved.append((straight.state_dict(), torch.get_rng_state()))
    each = len(whole) // EPOCHS
    for at in (0, 2, each, each + 1, 2 * each):
        state, stood = saved[at]
        torch.manual_seed(99)
        resumed = loader()
        resumed.load_state_dict(state)
        torch.set_rng_state(stood)
        passes = EPOCHS - at // each
        assert [batch for _ in range(passes) for batch in numbers(resumed)] == whole[at:], at


@pytest.mark.parametrize(
    ("before", "after"), [((1, True), (0, False)), ((0, False), (1, True)), ((1, False), (1, True))]
)
def test_workers_that_live_on_may_be_others_after_a_resume(
    data: Any, before: tuple[int, bool], after: tuple[int, bool]
) -> None:
    def loader(workers: int, lives_on: bool) -> Any:
        own = torch.Generator().manual_seed(7)
        keywords = {"num_workers": workers, "persistent_workers": lives_on, "decode": number, "cache": TINY}
        return DataLoader(data, generator=own, **SAMPLERS["subset"](own), **keywords)

    straight = loader(*before)
    whole, saved = [], []
    for _ in range(EPOCHS):
        for found, _ in straight:
            whole.append(found.tolist())
            saved.append(straight.state_dict())
    each = len(whole) // EPOCHS
    for at in (2, each, each + 1):
        resumed = loader(*after)
        resumed.load_state_dict(saved[at - 1])
        assert [batch for _ in range(EPOCHS - at // each) for batch in numbers(resumed)] == whole[at:], at


@pytest.mark.parametrize("at", [1, 3])
def test_another_loader_that_shares_it_goes_on_too(data: Any, at: int) -> None:
    def loaders() -> tuple[Any, Any]:
        own = torch.Generator().manual_seed(7)
        train = DataLoader(data, generator=own, decode=number, cache=TINY, **SAMPLERS["subset"](own))
        val = DataLoader(InMemory(), SIZE, shuffle=True, generator=own)
        return train, val

    train, val = loaders()
    head, saved = [], None
    for found, _ in train:
        head.append(found.tolist())
        if len(head) == at:
            saved = train.state_dict()
    later = [numbers(val), numbers(train), numbers(val)]
    train, val = loaders()
    train.load_state_dict(saved)
    assert numbers(train) == head[at:]
    assert [numbers(val), numbers(train), numbers(val)] == later


@pytest.mark.parametrize(("workers", "lives_on"), WORKERS)
def test_batches_that_are_drawn_at_once_are_torchs(data: Any, workers: int, lives_on: bool) -> None:
    keywords: dict[str, Any] = {"num_workers": workers, "persistent_workers": lives_on}
    ours, theirs = Eager(torch.Generator().manual_seed(3)), Eager(torch.Generator().manual_seed(3))
    loader = DataLoader(data, batch_sampler=ours, cache=TINY, decode=number, **keywords)
    reference: Any = torchs.DataLoader(InMemory(), batch_sampler=theirs, **keywords)
    assert [numbers(loader) for _ in range(EPOCHS)] == [numbers(reference) for _ in range(EPOCHS)]


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0)])
def test_they_are_the_same_with_other_workers_after_a_resume(data: Any, before: int, after: int) -> None:
    def loader(workers: int) -> Any:
        batches = Eager(torch.Generator().manual_seed(3))
        return DataLoader(data, batch_sampler=batches, num_workers=workers, cache=TINY, decode=number)

    straight = loader(before)
    whole, saved = [], [straight.state_dict()]
    for _ in range(EPOCHS):
        for found, _ in straight:
            whole.append(found.tolist())
            saved.append(straight.state_dict())
    each = len(whole) // EPOCHS
    for at in (0, 2, each, each + 1):
        resumed = loader(after)
        resumed.load_state_dict(saved[at])
        assert [batch for _ in range(EPOCHS - at // each) for batch in numbers(resumed)] == whole[at:], at


def test_a_rank_whose_generator_is_seeded_otherwise_keeps_its_own(data: Any) -> None:
    def loader(seed: int) -> Any:
        return DataLoader(data, SIZE, generator=torch.Generator().manual_seed(seed), seed=0, shuffle=True, cache=TINY)

    first = loader(1)
    next(iter(first))
    other = loader(2)
    stood = other.generator.get_state()
    other.load_state_dict(first.state_dict())
    assert torch.equal(other.generator.get_state(), stood)


@pytest.mark.parametrize("kind", ["subset", "eager"])
def test_what_is_foreseen_of_a_shared_generator_is_what_comes(
    data: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = torch.Generator().manual_seed(7)
    loader = DataLoader(data, generator=own, decode=number, cache=TINY, **SAMPLERS[kind](own))
    for _ in range(EPOCHS):
        numbers(loader)
    assert "another order than a copy" not in caplog.text


def test_a_state_of_an_earlier_release_is_taken_to_be_of_a_loader_like_this_one(data: Any) -> None:
    def loader() -> Any:
        keywords: dict[str, Any] = {"num_workers": 1, "persistent_workers": True, "decode": number, "cache": TINY}
        return DataLoader(data, SIZE, sampler=SubsetRandomSampler(range(COUNT)), **keywords)

    torch.manual_seed(11)
    straight = loader()
    numbers(straight)
    passes = iter(straight)
    head = [next(passes)[0].tolist()]
    state, stood = straight.state_dict(), torch.get_rng_state()
    head += numbers(passes)
    later = numbers(straight)
    state = {name: value for name, value in state.items() if name not in ("seeded", "asks", "names")}
    torch.manual_seed(99)
    resumed = loader()
    resumed.load_state_dict(state)
    torch.set_rng_state(stood)
    assert numbers(resumed) == head[1:]
    assert numbers(resumed) == later


@pytest.mark.parametrize("training", ["ours", "theirs", "theirs by a sampler"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_script_that_restores_torchs_generator_goes_on_in_every_loader(
    data: Any, training: str, shuffle: bool, workers: int
) -> None:
    """Training and validation, of which one at least is torch's to load; and a model that draws from the generator between them."""

    def loaders() -> tuple[Any, Any]:
        given: dict[str, dict[str, Any]] = {
            "ours": {"dataset": data, "shuffle": True, "seed": 3, "decode": number, "cache": TINY},
            "theirs": {"dataset": InMemory(), "shuffle": True},
            "theirs by a sampler": {"dataset": InMemory(), "sampler": SubsetRandomSampler(range(COUNT))},
        }
        train: Any = DataLoader(batch_size=SIZE, num_workers=workers, **given[training])
        return train, DataLoader(InMemory(), 2 * SIZE, shuffle=shuffle, num_workers=workers)

    def epoch(train: Any, val: Any) -> list[Any]:
        trained = [(found.tolist(), torch.rand(3).tolist()) for found, _ in train]
        return [trained, numbers(val), torch.rand(3).tolist()]

    torch.manual_seed(11)
    train, val = loaders()
    epoch(train, val)
    states, stood = (train.state_dict(), val.state_dict()), torch.get_rng_state()
    straight = [epoch(train, val) for _ in range(EPOCHS)]
    torch.manual_seed(99)
    train, val = loaders()
    train.load_state_dict(states[0])
    val.load_state_dict(states[1])
    torch.set_rng_state(stood)
    assert [epoch(train, val) for _ in range(EPOCHS)] == straight


@pytest.mark.parametrize("lives_on", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_batches_that_are_drawn_at_once_go_on_over_other_data_too(begun: bool, lives_on: bool) -> None:
    def loader() -> Any:
        own = torch.Generator().manual_seed(3)
        return DataLoader(
            InMemory(), batch_sampler=Eager(own), generator=own, num_workers=1, persistent_workers=lives_on
        )

    straight = loader()
    numbers(straight)
    passes = iter(straight) if begun else iter(())
    head = [found.tolist() for found, _ in islice(passes, 1)]
    state = straight.state_dict()
    rest = [numbers(passes)] if begun else []
    later = [numbers(straight) for _ in range(EPOCHS)]
    assert len(head) == begun
    resumed = loader()
    resumed.load_state_dict(state)
    assert [numbers(resumed) for _ in range(len(rest) + EPOCHS)] == rest + later
