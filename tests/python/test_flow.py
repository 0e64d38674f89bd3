"""Samplers that are read as they go, and when a sampler of the user's draws: as under torch's loader, with memory that has a bound."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils import data as torch_data

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader, _flow
from small import COUNT, until

TINY = fl.Cache(ram="32MB")


def head(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    return torch.tensor([meta.sample, meta.epoch])


def samples(batch: Any) -> list[int]:
    """The samples of a batch of ours, or of torch's loader that makes lists."""
    return batch if isinstance(batch, list) and isinstance(batch[0], int) else batch[0][:, 0].tolist()


def stock(**given: Any) -> Any:
    return torch_data.DataLoader(range(COUNT), collate_fn=list, **given)  # type: ignore[arg-type] # it has all it takes


def ours(data: Any, **given: Any) -> Any:
    return DataLoader(data, **{"decode": head, "cache": TINY, **given})


class Endless:
    """As detectron2's TrainingSampler: one permutation after the other."""

    def __init__(self, seed: int = 3) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(COUNT, generator=self.generator).tolist()


class EndlessBatches:
    """Batches of any sizes, without an end."""

    def __iter__(self) -> Iterator[list[int]]:
        for step in itertools.count():
            yield [(step * 31 + at) % COUNT for at in range(1 + step % 7)]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Laps of few samples, so that a test goes through many."""
    monkeypatch.setattr(_flow, "_LAP", 64)
    monkeypatch.setattr("foreload.torch._course._LISTED_UNSIZED", 200)
    monkeypatch.setattr("foreload.torch._course._LISTED", 1000)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["samples", "batches"])
def test_a_sampler_without_an_end_is_read_as_it_goes(data: Any, workers: int, kind: str) -> None:
    def order() -> dict[str, Any]:
        return {"sampler": Endless(), "batch_size": 16} if kind == "samples" else {"batch_sampler": EndlessBatches()}

    mine, theirs = ours(data, num_workers=workers, **order()), stock(**order())
    for _ in range(2 if kind == "batches" else 1):
        # Of one sampler's random numbers the second pass gets others, because they were drawn ahead.
        assert [samples(batch) for batch in islice(mine, 150)] == list(islice(theirs, 150))
    with pytest.raises(TypeError):
        len(theirs)
    with pytest.raises(TypeError):
        len(mine)


class Rounds:
    """Three batches, says it, and begins again and again, as Ultralytics' and timm's do; it counts what was drawn."""

    drawn = 0

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[int]]:
        for step in itertools.count():
            self.drawn += 1
            yield [(step * 31 + at) % COUNT for at in range(4)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_goes_on_beyond_its_length_begins_at_once(
    data: Any, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foreload.torch._course._LISTED", 1 << 22)
    monkeypatch.setattr("foreload.torch._course._LISTED_BATCHES", 1 << 10)
    rounds = Rounds()
    mine, theirs = ours(data, num_workers=workers, batch_sampler=rounds), stock(batch_sampler=Rounds())
    assert [samples(batch) for batch in islice(mine, 20)] == list(islice(theirs, 20))
    assert rounds.drawn < 1 << 11
    assert len(mine) == len(theirs) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_very_long_epoch_begins_at_once(data: Any, workers: int) -> None:
    def order() -> Any:
        generator = torch.Generator().manual_seed(1)
        return torch_data.RandomSampler(range(COUNT), replacement=True, num_samples=10**10, generator=generator)

    mine, theirs = (
        ours(data, batch_size=16, num_workers=workers, sampler=order()),
        stock(batch_size=16, sampler=order()),
    )
    assert len(mine) == len(theirs) == 10**10 // 16
    assert [samples(batch) for batch in islice(mine, 60)] == list(islice(theirs, 60))
    assert mine.state_dict()["position"] == 60 * 16


def test_memory_does_not_grow_with_the_pass(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_flow, "_REMEMBERED", 40)
    loader = ours(data, batch_size=32, sampler=Endless())
    batches = iter(loader)
    most = []
    for _ in range(2):
        for _ in islice(batches, 100):
            pass
        run: Any = loader.run
        kept = [each for owner in (run, run.reading) for each in vars(owner).values()]
        most.append(max(len(each) for each in kept if isinstance(each, (dict, list))))
        assert sum(map(len, run.reading._samples.values())) < 4 * run.length
    assert most[1] <= most[0] + 2 <= 600


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("had", [0, 1, 37])
def test_a_state_of_an_endless_sampler_goes_on(data: Any, workers: int, had: int) -> None:
    for order in ({"sampler": Endless, "batch_size": 16}, {"batch_sampler": EndlessBatches}):

        def loader(order: dict[str, Any] = order) -> Any:
            made = {name: value() if callable(value) else value for name, value in order.items()}
            return ours(data, num_workers=workers, **made)

        whole = [samples(batch) for batch in islice(loader(), had + 20)]
        one = loader()
        assert [samples(batch) for batch in islice(one, had)] == whole[:had]
        state = one.state_dict()
        assert state["position"] == sum(map(len, whole[:had]))
        again = loader()
        again.load_state_dict(state)
        assert again.state_dict() == state
        if not had:
            continue
        assert [samples(batch) for batch in islice(again, 20)] == whole[had:]


class Lengths:
    """A sampler whose epochs have another length each."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = iter(lengths)

    def __iter__(self) -> Iterator[int]:
        return iter(range(next(self.lengths)))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_may_have_any_lengths_and_none(data: Any, workers: int, persistent: bool) -> None:
    lengths = 0, 50, 0, 50, 33, 200
    given: dict[str, Any] = {"num_workers": workers, "persistent_workers": persistent and workers > 0}
    for begin in (0, 1):
        mine = ours(data, batch_size=16, sampler=Lengths(*lengths[begin:]), **given)
        theirs = stock(batch_size=16, sampler=Lengths(*lengths[begin:]))
        for _ in lengths[begin:]:
            assert [samples(batch) for batch in mine] == list(theirs)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("given", [{"sampler": []}, {"batch_sampler": []}], ids=str)
def test_a_sampler_that_yields_nothing_is_an_empty_epoch(data: Any, given: dict[str, Any], workers: int) -> None:
    mine, theirs = ours(data, num_workers=workers, **given), stock(**given)
    assert len(mine) == len(theirs) == 0
    for _ in range(2):
        assert list(mine) == list(theirs) == []
    state = mine.state_dict()
    again = ours(data, **given)
    again.load_state_dict(state)
    assert list(again) == []


def next_of(batches: Iterator[Any]) -> Any:
    """The next batch; None: the sampler has failed."""
    try:
        return next(batches)
    except RuntimeError as error:
        assert "of the sampler" in str(error)  # noqa: PT017 (several are raised)
        return None


class Breaks:
    def __iter__(self) -> Iterator[int]:
        yield from range(330)
        raise RuntimeError("of the sampler")


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_sampler_raises_is_raised_at_its_batch(data: Any, workers: int) -> None:
    found = []
    for loader in (
        ours(data, batch_size=16, sampler=(Wrapped()), num_workers=workers),
        stock(batch_size=16, sampler=Wrapped()),
    ):
        batches, had = iter(loader), []
        while (batch := next_of(batches)) is not None:
            had.append(samples(batch))
        found.append(had)
    # With workers torch's loader asks the sampler ahead, and raises as early.
    assert found[0] == found[1][: len(found[0])]
    assert workers or found[0] == found[1]


class Wrapped(Breaks):
    def __iter__(self) -> Iterator[int]:
        return (sample % COUNT for sample in super().__iter__())


def test_a_sample_that_is_none_is_an_error_at_its_batch(data: Any) -> None:
    sampler = itertools.chain([1] * 500, [COUNT], [1] * 500)
    batches = iter(ours(data, batch_size=16, sampler=sampler))
    assert [samples(batch) for batch in islice(batches, 31)] == [[1] * 16] * 31
    with pytest.raises(errors.InvalidError, match=f"yields {COUNT}"):
        next(batches)


def test_batches_without_samples_that_never_end_are_refused(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_flow, "_EMPTY", 1000)
    with pytest.raises(errors.InvalidError, match="empty batches"):
        next(iter(ours(data, batch_sampler=itertools.repeat([]))))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_with_its_loader(data: Any, workers: int) -> None:
    """And with it the agent's memory: not when Python looks for circles. A thread that collates a batch ends with that."""
    gc.collect()
    gc.disable()
    try:
        loader = ours(data, num_workers=workers, sampler=Endless(), batch_size=16)
        for _ in islice(loader, 20):
            pass
        run = weakref.ref(loader.run)
        del loader
        until(lambda: run() is None)
    finally:
        gc.enable()


def test_passes_over_an_endless_sampler_may_overlap(data: Any) -> None:
    loader = ours(data, batch_sampler=EndlessBatches())
    right = list(islice(stock(batch_sampler=EndlessBatches()), 120))
    one, other = iter(loader), iter(loader)
    pairs = [(samples(next(one)), samples(next(other))) for _ in range(120)]
    assert pairs == [(batch, batch) for batch in right]


# ---- when a sampler draws ----------------------------------------------------------------------------------------------

UNSEEDED: dict[str, Callable[[], dict[str, Any]]] = {
    "random": lambda: {"sampler": torch_data.RandomSampler(range(COUNT))},
    "subset": lambda: {"sampler": torch_data.SubsetRandomSampler(range(100))},
    "weighted": lambda: {"sampler": torch_data.WeightedRandomSampler([1.0] * COUNT, 100)},
    "batches": lambda: {
        "batch_sampler": torch_data.BatchSampler(torch_data.RandomSampler(range(COUNT)), 16, drop_last=False),
        "batch_size": 1,
    },
    "long": lambda: {"sampler": torch_data.RandomSampler(range(COUNT), replacement=True, num_samples=10**9)},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", UNSEEDED)
def test_everybodys_random_numbers_stand_where_torchs_loader_leaves_them(data: Any, name: str, workers: int) -> None:
    def steps(loader: Callable[[], Any], reads: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(11)
        made = loader()
        seen = [torch.get_rng_state()]
        if hasattr(made, "state_dict"):
            made.load_state_dict(made.state_dict())
            made.stats()
            assert made.state_dict()["position"] == 0
        seen.append(torch.get_rng_state())
        for _ in range(2):
            for batch in islice(made, 5):
                seen += [reads(batch), torch.get_rng_state()]
                if hasattr(made, "state_dict"):
                    made.state_dict()
        return seen

    given = {"batch_size": 16, "num_workers": workers}
    mine = steps(lambda: ours(data, **{**given, **UNSEEDED[name]()}), samples)
    theirs = steps(lambda: stock(**{**given, **UNSEEDED[name]()}), list)
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
