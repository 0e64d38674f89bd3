"""States of iterable data sets, wherever these keep them and whenever they begin anew: what follows is what would have come without the state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torchs

from foreload.errors import InvalidError
from foreload.torch import DataLoader
from test_saved_again import Beginning, Counting, Own, Walking, gone_through, ids, numbers, plain
from test_saved_again import Walk as Step


def share(count: int) -> range:
    """A worker's numbers; shares differ."""
    info = torchs.get_worker_info()
    return range(count) if info is None else range(info.id, count - 3 * info.id, info.num_workers)


class Eager(torchs.IterableDataset[Any]):
    """Begins anew when it is asked for an iterator, unless it was set to a place just before; hundreds are the epoch."""

    def __init__(self, count: int) -> None:
        self.count, self.at, self.epoch, self.is_told, self.asked = count, 0, -1, False, 0

    def begin(self) -> None:
        if not self.is_told:
            self.at, self.epoch = 0, self.epoch + 1
        self.is_told = False

    def __iter__(self) -> Iterator[int]:
        self.begin()
        return self.read()

    def read(self) -> Iterator[int]:
        numbers = share(self.count)
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1] + 100 * self.epoch

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch, self.is_told = state["at"], state["epoch"], True


class Lazy(Eager):
    """The same, when it is asked for the first sample."""

    def __iter__(self) -> Iterator[int]:
        self.begin()
        yield from self.read()


class Example(torchs.IterableDataset[Any]):
    """As the documentation of torchdata has one: a start that is taken once."""

    def __init__(self, count: int) -> None:
        self.count, self.at, self.start = count, 0, 0

    def __iter__(self) -> Iterator[int]:
        start, self.start = self.start, 0
        for at, found in enumerate(share(self.count)[start:], start):
            self.at = at
            yield found

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.at + 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start, self.at = state["next"], state["next"] - 1


class Reading(Counting):
    """Its place goes on, also after a pass that was left."""


KINDS = [(kind, workers) for kind in (Eager, Lazy, Example, Reading) for workers in range(4)]
KINDS += [(kind, workers) for kind in (Beginning, Own, Walking) for workers in range(1, 4)]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("left_after", [1, 2, 5])
@pytest.mark.parametrize(("kind", "workers"), KINDS)
def test_a_state_of_a_pass_that_follows_one_that_was_left(kind: Any, workers: int, left_after: int) -> None:
    def loader() -> Any:
        return DataLoader(kind(24), 2, num_workers=workers, persistent_workers=workers > 0)

    straight = loader()
    for had, _ in enumerate(straight, 1):
        if had == left_after:
            break
    second, states = [], []
    batches = iter(straight)
    states.append(plain(straight.state_dict()))
    for batch in batches:
        second.append(numbers(batch))
        states.append(plain(straight.state_dict()))
    for had in range(min(6, len(second))):
        resumed = loader()
        resumed.load_state_dict(states[had])
        assert ids(resumed) == second[had:], had


@pytest.mark.one_in(8)
@pytest.mark.parametrize("each", [1, 2, 3, 100])
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", [Eager, Lazy, Example, Counting])
@pytest.mark.parametrize("size", [3, None])
def test_a_state_at_each_step_whatever_the_steps_between_two_that_are_asked_for(
    kind: Any, workers: int, each: int, size: int | None
) -> None:
    def loader() -> Any:
        own: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
        return DataLoader(kind(20), size, snapshot_every_n_steps=each, collate_fn=torch.tensor, **own)

    def batch(found: Any) -> list[int]:
        return [int(number) for number in found.reshape(-1)]

    straight, whole, states = loader(), [], []
    for epoch in range(2):
        whole.append([])
        for found in straight:
            whole[-1].append(batch(found))
            states.append((epoch, len(whole[-1]), plain(straight.state_dict())))
    if not workers and each == 100 and kind in (Eager, Lazy):
        # Before the run's first sample, after the first and at the end of each pass; and each time that the test asks it does not.
        assert straight.dataset.asked <= 7
    for epoch, had, state in states[:: 1 if size else 4]:
        resumed = loader()
        resumed.load_state_dict(state)
        assert [batch(found) for found in resumed] == whole[epoch][had:], (epoch, had)
        if epoch == 0 and kind is not Example:
            assert [batch(found) for found in resumed] == whole[1]


@pytest.mark.parametrize("steps", [-1, 1.5, True, "2"])
def test_what_are_no_steps_is_refused(steps: Any) -> None:
    with pytest.raises(InvalidError, match="snapshot_every_n_steps"):
        DataLoader(Counting(4), 2, snapshot_every_n_steps=steps)


class Shuffled(torchs.IterableDataset[Any]):
    """In an order of its epoch's, which it is told."""

    def __init__(self) -> None:
        self.epoch = self.at = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = list(range(24))
        random.Random(self.epoch).shuffle(order)
        info = torchs.get_worker_info()
        order = order if info is None else order[info.id :: info.num_workers]
        while self.at < len(order):
            self.at += 1
            yield order[self.at - 1] + 100 * self.epoch
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by", ["loader", "data set"])
def test_an_epoch_that_is_set_after_a_state_was_loaded_is_obeyed(by: str, workers: int) -> None:
    def run(loader: Any, epochs: range) -> Iterator[list[list[int]]]:
        for epoch in epochs:
            (loader if by == "loader" else loader.dataset).set_epoch(epoch)
            yield ids(loader)

    straight = DataLoader(Shuffled(), 6, num_workers=workers)
    whole, states = [], []
    for found in run(straight, range(3)):
        whole.append(found)
        states.append(plain(straight.state_dict()))
    for epochs, state in enumerate(states[:2], 1):
        resumed = DataLoader(Shuffled(), 6, num_workers=workers)
        resumed.load_state_dict(state)
        assert list(run(resumed, range(epochs, 3))) == whole[epochs:]


class Damaged(Eager):
    """One sample fails the first time that somebody asks for it."""

    def __init__(self, count: int, error: type[BaseException] | None) -> None:
        super().__init__(count)
        self.error = error

    def read(self) -> Iterator[int]:
        for number in super().read():
            if number == 13 and self.error is not None:
                raise self.error
            yield number


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("fails", ["sample", "batch"])
def test_a_state_that_is_saved_after_an_error_is_at_the_batch_that_failed_without_workers(
    fails: str, error: type[BaseException], each: int
) -> None:
    def loader(error: type[BaseException] | None) -> Any:
        def collate(batch: list[int]) -> torch.Tensor:
            if error is not None and fails == "batch" and 13 in batch:
                raise error
            return torch.tensor(batch)

        data = Damaged(24, error if fails == "sample" else None)
        return DataLoader(data, 4, collate_fn=collate, snapshot_every_n_steps=each)

    failing = loader(error)
    batches = iter(failing)
    had = [numbers(next(batches)) for _ in range(3)]
    with pytest.raises(error):
        next(batches)
    resumed = loader(None)
    resumed.load_state_dict(plain(failing.state_dict()))
    assert had + ids(resumed) == ids(loader(None))


def test_an_error_while_a_state_is_loaded_leaves_it_to_the_next_pass() -> None:
    class Hindered(Lazy):
        is_hindered = False

        def load_state_dict(self, state: dict[str, Any]) -> None:
            if self.is_hindered:
                raise OSError("not now")
            super().load_state_dict(state)

    straight = DataLoader(Hindered(20), 3)
    batches = iter(straight)
    next(batches)
    state, left = plain(straight.state_dict()), [numbers(batch) for batch in batches]
    data = Hindered(20)
    resumed = DataLoader(data, 3)
    data.is_hindered = True
    with pytest.raises(OSError, match="not now"):
        resumed.load_state_dict(state)
    with pytest.raises(OSError, match="not now"):
        iter(resumed)
    data.is_hindered = False
    assert ids(resumed) == left


class Stepping(torchs.IterableDataset[Any]):
    """Has no state; its iterators have."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return Step(list(share(self.count)), 0)


@pytest.mark.parametrize("kind", [Lazy, Stepping])
@pytest.mark.parametrize(("workers", "lives_on"), [(0, False), (1, False), (1, True), (2, True)])
def test_a_state_of_a_resumed_pass_that_begins_again_since_its_first_batch_failed(
    kind: Any, workers: int, lives_on: bool
) -> None:
    def loader(fails: list[int]) -> Any:
        def collate(batch: list[int]) -> torch.Tensor:
            if fails and 9 in batch:
                raise OSError("not now")
            return torch.tensor(batch)

        own: dict[str, Any] = {"num_workers": workers, "persistent_workers": lives_on}
        return DataLoader(kind(20), 3, collate_fn=collate, **own)

    straight = loader([])
    batches = iter(straight)
    for _ in range(3):
        next(batches)
    state, left = plain(straight.state_dict()), [numbers(batch) for batch in batches]
    fails = [9]
    resumed = loader(fails)
    resumed.load_state_dict(state)
    with pytest.raises(OSError, match="not now"):
        next(iter(resumed))
    fails.clear()
    batches = iter(resumed)
    again = plain(resumed.state_dict())
    assert [numbers(batch) for batch in batches] == left
    third = loader([])
    third.load_state_dict(again)
    assert ids(third) == left


class Bare(Eager):
    """Its state is no dictionary."""

    form: Any = staticmethod(torch.tensor)

    def state_dict(self) -> Any:
        return self.form([self.at, self.epoch])

    def load_state_dict(self, state: Any) -> None:
        self.at, self.epoch, self.is_told = int(state[0]), int(state[1]), True


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("form", [torch.tensor, np.array, tuple, list])
def test_a_state_may_be_anything(form: Any, workers: int) -> None:
    class Formed(Bare):
        pass

    Formed.form = staticmethod(form)

    def loader() -> Any:
        return DataLoader(Formed(20), 3, num_workers=workers, multiprocessing_context="fork" if workers else None)

    whole, straight = ids(loader()), loader()
    for had, _ in enumerate(straight, 1):
        if had == 3:
            break
    resumed = loader()
    resumed.load_state_dict(straight.state_dict())
    assert ids(resumed) == whole[3:]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("count", [24, 13, 7, 2])
@pytest.mark.parametrize("kind", [Eager, Lazy, Example])
def test_a_state_at_each_step_of_several_passes_without_workers(kind: Any, count: int, drop_last: bool) -> None:
    def loader() -> Any:
        return DataLoader(kind(count), 4, drop_last=drop_last)

    whole, saved = gone_through(loader(), 3)
    for epoch, had, state in saved:
        resumed = loader()
        resumed.load_state_dict(state)
        left = [whole[epoch][had:], *whole[epoch + 1 :]] if epoch < 3 else []
        assert [ids(resumed) for _ in left] == left, (epoch, had)


class Walk:
    """An iterator that goes on after a number that fails, whose place the data set keeps."""

    def __init__(self, data: Any) -> None:
        self.data, self.numbers = data, share(data.count)

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> int:
        if self.data.at >= len(self.numbers):
            self.data.at = 0
            raise StopIteration
        self.data.at += 1
        if self.numbers[self.data.at - 1] in self.data.bad:
            raise OSError("bad")
        return self.numbers[self.data.at - 1]


class Spoilt(torchs.IterableDataset[Any]):
    """Some of its numbers always fail."""

    def __init__(self, count: int, bad: set[int]) -> None:
        self.count, self.bad, self.at = count, bad, 0

    def __iter__(self) -> Iterator[int]:
        return Walk(self)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class SpoiltStream(Spoilt):
    """The same; its iterators end with what fails, and its place goes on."""

    def __iter__(self) -> Iterator[int]:
        yield from Walk(self)


def caught(batches: Iterator[Any], most: int = 1000) -> list[Any]:
    """What a loop has that goes on after errors."""
    found: list[Any] = []
    while len(found) < most:
        try:
            found.append(torch.as_tensor(next(batches)).reshape(-1).tolist())
        except OSError:
            found.append("failed")
        except StopIteration:
            break
    return found


@pytest.mark.one_in(6)
@pytest.mark.parametrize("each", [1, 4, 1000])
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("bad", [{7}, {0}, {7, 8, 20}, {28}])
def test_a_state_of_a_loop_that_went_on_after_errors(bad: set[int], workers: int, each: int) -> None:
    def loader() -> Any:
        own: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
        return DataLoader(Spoilt(30, bad), 3, snapshot_every_n_steps=each, **own)

    straight, whole, states = loader(), [], []
    batches = iter(straight)
    while found := caught(batches, 1):
        whole += found
        # A worker's of which the last batch failed is that of before it.
        states.append(plain(straight.state_dict()) if found != ["failed"] else None)
    assert "failed" in whole
    second = caught(iter(straight))
    for had, state in enumerate(states, 1):
        is_settled = not workers or "failed" not in whole[max(0, had - workers) : had]
        if state is not None and is_settled:
            resumed = loader()
            resumed.load_state_dict(state)
            assert caught(iter(resumed)) == whole[had:], had
    again = loader()
    batches = iter(again)
    assert caught(batches) == whole
    state = plain(again.state_dict())
    assert caught(iter(again)) == second
    resumed = loader()
    resumed.load_state_dict(state)
    assert caught(iter(resumed)) == second


@pytest.mark.one_in(4)
@pytest.mark.parametrize("is_stated", [False, True])
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("kind", [Spoilt, SpoiltStream])
def test_a_run_without_a_state_is_torchs_whatever_fails_and_is_left(
    kind: Any, size: int | None, workers: int, is_stated: bool
) -> None:
    class Silent(kind):  # type: ignore[misc]
        state_dict = load_state_dict = None

    def run(loader: Any) -> list[list[Any]]:
        return [caught(iter(loader), most) for most in (3, 3, 2, 1000, 1, 1000)]

    data, own = (kind if is_stated else Silent), {"num_workers": workers, "persistent_workers": workers > 0}
    assert run(DataLoader(data(22, {8, 13}), size, **own)) == run(torchs.DataLoader(data(22, {8, 13}), size, **own))


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_data_set_fails_with_when_it_goes_on_is_raised(workers: int) -> None:
    class Gone(Lazy):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise OSError("the file is gone")

    straight = DataLoader(Gone(20), 3, num_workers=workers)
    for _ in straight:
        break
    resumed = DataLoader(Gone(20), 3, num_workers=workers)
    resumed.load_state_dict(plain(straight.state_dict()))
    with pytest.raises(OSError, match="the file is gone"):
        ids(resumed)
