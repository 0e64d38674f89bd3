"""Which reading of a sample a batch has: its randomness, and what a resumed run draws of a sampler of the user's."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data import DistributedSampler, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader
from small import COUNT

TINY = fl.Cache(ram="32MB")


def drawn(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    """A decoder: the sample, and two draws that belong to its reading."""
    return torch.tensor([meta.sample, int(meta.rng().integers(1 << 40)), meta.seed])


def rows(batches: Any) -> list[tuple[int, ...]]:
    return [tuple(row) for values, _ in batches for row in values.tolist()]


@pytest.mark.parametrize("size", [7, 50])
def test_each_reading_of_a_repeated_sample_has_draws_of_its_own(data: Any, size: int) -> None:
    def read(workers: int) -> list[tuple[int, ...]]:
        sampler = [3, 5] * 20
        return rows(DataLoader(data, size, sampler=sampler, decode=drawn, num_workers=workers, cache=TINY))

    found = read(0)
    assert [row[0] for row in found] == [3, 5] * 20
    assert len(set(found)) == len({row[1:] for row in found}) == 40
    assert read(2) == found


def test_batches_of_unequal_sizes_have_the_readings_that_their_places_say(data: Any) -> None:
    def read(batches: list[list[int]], workers: int) -> list[tuple[int, ...]]:
        return rows(DataLoader(data, batch_sampler=batches, decode=drawn, num_workers=workers, cache=TINY))

    uneven = read([[3], [3, 3, 3], [3, 3], [3]], 0)
    assert len(set(uneven)) == 7
    assert read([[3], [3, 3, 3], [3, 3], [3]], 2) == uneven == read([[3, 3, 3, 3], [3, 3, 3]], 0)


def test_ranks_that_read_the_same_sample_draw_differently(data: Any) -> None:
    def read(rank: int) -> list[tuple[int, ...]]:
        keywords = {"dp_rank": rank, "dp_size": 2}
        return rows(DataLoader(data, 5, sampler=list(range(20)), decode=drawn, cache=TINY, **keywords))

    first, second = read(0), read(1)
    assert [row[0] for row in first] == [row[0] for row in second] == list(range(20))
    assert not set(first) & set(second)


@pytest.mark.parametrize("workers", [0, 2])
def test_passes_of_one_epoch_that_nobody_set_anew_draw_differently_and_go_on_so(data: Any, workers: int) -> None:
    def loader() -> Any:
        sampler = DistributedSampler(range(COUNT), 2, 1)  # type: ignore[arg-type] # it has a length
        return DataLoader(data, 16, sampler=sampler, decode=drawn, num_workers=workers, cache=TINY)

    whole = loader()
    passes = [rows(whole) for _ in range(3)]
    assert [row[0] for row in passes[0]] == [row[0] for row in passes[1]]
    assert not set(passes[0]) & set(passes[1]) | set(passes[1]) & set(passes[2])
    broken = loader()
    rows(broken)
    batches = iter(broken)
    begun = rows(next(batches) for _ in range(3))
    state = broken.state_dict()
    assert state["again"] == 1
    resumed = loader()
    resumed.load_state_dict(state)
    assert begun + rows(resumed) == passes[1]
    resumed.sampler.set_epoch(4)
    other = rows(resumed)
    whole.sampler.set_epoch(4)
    assert rows(whole) == other


SAMPLERS = {
    "subset": lambda: SubsetRandomSampler(range(60), generator=torch.Generator().manual_seed(2)),
    "weighted": lambda: WeightedRandomSampler([1.0, 2.0] * 30, 60, generator=torch.Generator().manual_seed(3)),
    "replaced": lambda: RandomSampler(
        range(60), replacement=True, num_samples=60, generator=torch.Generator().manual_seed(4)
    ),
    "everybody's": lambda: WeightedRandomSampler([1.0, 2.0] * 30, 60),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_with_a_generator_goes_on_with_what_it_had_drawn(data: Any, name: str, workers: int) -> None:
    def loader() -> Any:
        return DataLoader(data, 6, sampler=SAMPLERS[name](), decode=drawn, num_workers=workers, cache=TINY)

    torch.manual_seed(11)
    whole = loader()
    passes = [rows(whole), rows(whole), rows(whole)]
    torch.manual_seed(11)
    broken = loader()
    assert rows(broken) == passes[0]
    batches = iter(broken)
    begun = rows(next(batches) for _ in range(3))
    state = broken.state_dict()
    torch.manual_seed(99)
    resumed = loader()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert begun + rows(resumed) == passes[1]
    if name != "everybody's":
        assert rows(resumed) == passes[2]
        between = resumed.state_dict()
        after = loader()
        after.load_state_dict(between)
        assert rows(after) == rows(resumed)


class OwnDraws(Sampler[int]):
    """Draws from something that no state knows."""

    def __init__(self, seed: int) -> None:
        hidden = [random.Random(seed)]
        self.draw = lambda: hidden[0].sample(range(COUNT), 60)

    def __len__(self) -> int:
        return 60

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw())


def test_a_sampler_that_draws_otherwise_than_before_is_refused(data: Any) -> None:
    first = DataLoader(data, 6, sampler=OwnDraws(1), cache=TINY)
    batches = iter(first)
    for _ in range(4):
        next(batches)
    state = first.state_dict()
    same, other = (DataLoader(data, 6, sampler=OwnDraws(seed), cache=TINY) for seed in (1, 2))
    same.load_state_dict(state)
    assert len(list(same)) == 6
    other.load_state_dict(state)
    with pytest.raises(errors.StateError, match="others than those that were read before"):
        next(iter(other))


def test_a_state_of_a_rank_whose_generator_was_seeded_otherwise_is_refused(data: Any) -> None:
    def loader(rank: int) -> Any:
        sampler = SubsetRandomSampler(range(60), generator=torch.Generator().manual_seed(rank))
        return DataLoader(data, 6, sampler=sampler, dp_rank=rank, dp_size=2, cache=TINY)

    first = loader(0)
    next(iter(first))
    second = loader(1)
    second.load_state_dict(first.state_dict())
    with pytest.raises(errors.StateError, match="saved on rank 0 of 2"):
        next(iter(second))


@pytest.mark.parametrize(
    "change",
    [{"again": -1}, {"random": 3}, {"of": None}, {"of": [0, "1"]}, {"list": "x"}, {"random": {"order": {"seed": 2}}}],
)
def test_a_damaged_state_is_refused(data: Any, change: dict[str, Any]) -> None:
    def loader() -> Any:
        return DataLoader(data, 6, sampler=SAMPLERS["subset"](), cache=TINY)

    first = loader()
    next(iter(first))

    def resumed() -> None:
        second = loader()
        second.load_state_dict(first.state_dict() | change)
        next(iter(second))

    with pytest.raises(errors.StateError, match="damaged"):
        resumed()


@dataclasses.dataclass(frozen=True)
class Item:
    """What a decoder of the user's makes."""

    pixels: Any
    name: str = ""


SHAPES: dict[str, Any] = {
    "array": lambda array: array,
    "dict": lambda array: {"pixels": array, "more": [array[:4]]},
    "tuple": lambda array: (array, "text"),
    "dataclass": Item,
}


def arrays_in(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Item):
        yield from arrays_in(value.pixels)
    else:
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
            yield from arrays_in(each)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_arrays_over_a_samples_bytes_may_be_written_to(data: Any, shape: str, workers: int) -> None:
    def decode(raw: memoryview) -> Any:
        return SHAPES[shape](np.frombuffer(raw, np.uint8))

    def read(write: bool, **keywords: Any) -> list[bytes]:
        found = []
        loader = DataLoader(data, decode=decode, num_workers=workers, cache=TINY, **keywords)
        for batch in loader:
            items = [batch] if keywords["batch_size"] is None else batch
            for value, _ in items:
                for array in arrays_in(value):
                    found.append(array.tobytes())
                    if write:
                        torch.as_tensor(array).fill_(7)
        return found

    for keywords in ({"batch_size": None, "collate_fn": list}, {"batch_size": 9, "collate_fn": list}):
        plain = read(False, **keywords)
        # What is written to a batch is nobody else's.
        assert read(True, **keywords) == plain == read(False, **keywords)


def test_negative_numbers_count_from_the_end(data: Any) -> None:
    loader = DataLoader(data, 3, sampler=[0, -1, 2], decode=drawn, cache=TINY)
    assert [row[0] for row in rows(loader)] == [0, COUNT - 1, 2]


def test_the_loop_decodes_unless_threads_are_asked_for(data: Any) -> None:
    def threads(**keywords: Any) -> set[str]:
        found = set()

        def decode(raw: memoryview) -> int:
            found.add(threading.current_thread().name)
            return 0

        list(DataLoader(data, 16, decode=decode, cache=TINY, **keywords))
        return found

    assert threads() == threads(threads=0) == {threading.current_thread().name}
    assert threading.current_thread().name not in threads(threads=2)


def test_two_shuffles_without_seeds_side_by_side_are_told(data: Any, caplog: pytest.LogCaptureFixture) -> None:
    def said(*seeds: int | None) -> bool:
        caplog.clear()
        list(zip(*(DataLoader(data, 50, shuffle=True, seed=seed, cache=TINY) for seed in seeds), strict=True))
        return "are read side by side" in caplog.text

    assert said(None, None)
    assert not said(1, 2)
    assert not said(None, 2)
    caplog.clear()
    for _ in range(2):
        list(DataLoader(data, 50, shuffle=True, cache=TINY))
    assert not caplog.text

    def fails(raw: memoryview, meta: fl.Meta) -> int:
        raise ValueError(meta.sample)

    with pytest.raises(ValueError) as failed:  # noqa: PT011 (a failed pass is over, although its exception is kept)
        list(DataLoader(data, 50, shuffle=True, decode=fails, cache=TINY))
    list(DataLoader(data, 50, shuffle=True, cache=TINY))
    assert failed.value.args
    assert "side by side" not in caplog.text


def test_what_torch_cannot_stack_is_torchs_error(data: Any) -> None:
    def decode(raw: memoryview, meta: fl.Meta) -> Any:
        return None if meta.sample == 2 else torch.zeros(3)

    with pytest.raises(TypeError, match="NoneType"):
        next(iter(DataLoader(data, 4, decode=decode, cache=TINY)))
    with pytest.raises(TypeError, match="NoneType"):
        next(iter(torch_data.DataLoader([None if at == 2 else torch.zeros(3) for at in range(4)], 4)))  # type: ignore[arg-type]
