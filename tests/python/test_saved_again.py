"""A state that a resumed loader saves again, and states of workers that live on: what follows is what would have come without them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import data as torchs
from torch.utils.data import BatchSampler, RandomSampler, Subset, WeightedRandomSampler

import foreload as fl
from foreload.errors import StateError
from foreload.torch import DataLoader, Dataset
from small import COUNT

TINY = fl.Cache(ram="32MB")
SIZE, EPOCHS = 10, 4


class InMemory(torchs.Dataset[Any]):
    """Numbers."""

    def __init__(self, count: int = COUNT) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)


class Counting(torchs.IterableDataset[Any]):
    """Numbers from a place that it says, dealt out among workers."""

    def __init__(self, count: int) -> None:
        self.count, self.at = count, 0

    def __iter__(self) -> Iterator[int]:
        info = torchs.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        while first + self.at * step < self.count:
            self.at += 1
            yield first + (self.at - 1) * step
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Beginning(Counting):
    """The same, from the beginning unless it was told a place just before; hundreds are the epoch."""

    epoch, is_told = 0, False

    def __iter__(self) -> Iterator[int]:
        if not self.is_told:
            self.at = 0
        self.is_told = False
        # Also shares that differ.
        info: Any = torchs.get_worker_info()
        for number in range(info.id + self.at * info.num_workers, self.count - 5 * info.id, info.num_workers):
            self.at += 1
            yield number + 100 * self.epoch
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch, self.is_told = state["at"], state["epoch"], True


class Walk:
    """An iterator that says where it is and in which epoch."""

    def __init__(self, numbers: list[int], epoch: int) -> None:
        self.numbers, self.at, self.epoch = numbers, 0, epoch

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> int:
        if self.at == len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.numbers[self.at - 1] + 100 * self.epoch

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class Walking(torchs.IterableDataset[Any]):
    """Has no state; its iterators have."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, -1

    def __iter__(self) -> Iterator[int]:
        info: Any = torchs.get_worker_info()
        self.epoch += 1
        return Walk(list(range(info.id, self.count - 5 * info.id, info.num_workers)), self.epoch)


class Own(torchs.IterableDataset[Any]):
    """Its own iterator, which counts its passes where it is asked for one."""

    at, epoch = 0, -1

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Own:
        self.at, self.epoch = 0, self.epoch + 1
        return self

    def __next__(self) -> int:
        info: Any = torchs.get_worker_info()
        found = info.id + self.at * info.num_workers
        if found >= self.count - 5 * info.id:
            raise StopIteration
        self.at += 1
        return found + 100 * self.epoch

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class Windowed(Counting):
    """A stream without an end in windows of five, each a pass; a place in it says the window."""

    def __iter__(self) -> Iterator[int]:
        info: Any = torchs.get_worker_info()
        while True:
            self.at += 1
            yield info.id + info.num_workers * (self.at - 1)
            if self.at % 5 == 0:
                return


class Dealt(Counting):
    """The same in passes of six from wherever it is, so that its place doesn't say how much of a pass is left."""

    def __iter__(self) -> Iterator[int]:
        info: Any = torchs.get_worker_info()
        for _ in range(6):
            self.at += 1
            yield info.id + info.num_workers * (self.at - 1)


class Failing(Beginning):
    """One whose shares end with an error."""

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        raise ArithmeticError("the end")


class InBlocks(torchs.Sampler[int]):
    """Shuffles blocks of eight, each when it is reached, with everybody's random numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        for first in range(0, self.count, 8):
            yield from (first + torch.randperm(min(8, self.count - first))).tolist()


class Again:
    """A batch sampler without an end, as Ultralytics' and timm's are."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.batches)


def number(_: memoryview, meta: fl.Meta) -> torch.Tensor:
    return torch.tensor(meta.sample)


def numbers(found: Any) -> list[int]:
    """A batch's samples; over data of ours labels come with them."""
    batch: list[int] = (found[0] if isinstance(found, list) else found).tolist()
    return batch


def ids(loader: Any) -> list[list[int]]:
    return [numbers(found) for found in loader]


def plain(state: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint file has it."""
    found: dict[str, Any] = json.loads(json.dumps(state))
    return found


def gone_through(loader: Any, passes: int) -> tuple[list[list[list[int]]], list[tuple[int, int, dict[str, Any]]]]:
    """All batches of some passes, and the state after each batch and each pass, with how many batches of which pass it is of."""
    whole: list[list[list[int]]] = []
    saved = []
    for _ in range(passes):
        whole.append([])
        for found in loader:
            whole[-1].append(numbers(found))
            saved.append((len(whole) - 1, len(whole[-1]), plain(loader.state_dict())))
        saved.append((len(whole), 0, plain(loader.state_dict())))
    return whole, saved


@pytest.mark.one_in(4)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("workers", "lives_on"), [(0, False), (1, True), (2, False), (2, True)])
@pytest.mark.parametrize("count", [24, 27])
def test_workers_that_live_on_say_where_they_stand_at_the_end_of_an_epoch(
    count: int, workers: int, lives_on: bool, drop_last: bool
) -> None:
    def loader() -> Any:
        return DataLoader(Counting(count), 6, num_workers=workers, persistent_workers=lives_on, drop_last=drop_last)

    whole, saved = gone_through(loader(), 3)
    assert whole[0] == whole[1] == whole[2]
    assert len(whole[0]) >= 4 - workers
    for epoch, had, state in saved:
        resumed = loader()
        resumed.load_state_dict(state)
        left = [whole[epoch][had:], *whole[epoch + 1 :]] if epoch < 3 else []
        assert [ids(resumed) for _ in left] == left, (epoch, had)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", [Beginning, Walking, Own])
@pytest.mark.parametrize(("count", "workers"), [(24, 2), (29, 2), (29, 3), (13, 2), (7, 2), (3, 1)])
def test_what_a_data_set_says_at_its_end_is_not_what_is_gone_on_from(
    kind: Any, count: int, workers: int, drop_last: bool
) -> None:
    def loader() -> Any:
        return DataLoader(kind(count), 4, num_workers=workers, persistent_workers=True, drop_last=drop_last)

    whole, saved = gone_through(loader(), 4)
    assert whole[1] == [[number + 100 for number in batch] for batch in whole[0]]
    for epoch, had, state in saved:
        if kind is Walking and not had:
            # Between passes there is nothing that says which epoch it is.
            continue
        resumed = loader()
        resumed.load_state_dict(state)
        left = [whole[epoch][had:], *whole[epoch + 1 : epoch + 1 if kind is Walking else 4]] if epoch < 4 else []
        assert [ids(resumed) for _ in left] == left, (epoch, had)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("lives_on", [False, True])
@pytest.mark.parametrize("kind", [Windowed, Dealt])
@pytest.mark.parametrize(("size", "workers"), [(5, 1), (5, 2), (4, 2), (3, 1), (3, 2), (1, 2), (7, 2)])
def test_a_data_set_whose_place_goes_on_from_pass_to_pass(
    kind: Any, size: int, workers: int, lives_on: bool, drop_last: bool
) -> None:
    def loader() -> Any:
        return DataLoader(kind(0), size, num_workers=workers, persistent_workers=lives_on, drop_last=drop_last)

    whole, saved = gone_through(loader(), 3)
    for epoch, had, state in saved:
        # After a window's last sample the data set itself says the next one, whether or not its end was heard.
        at_an_end = 5 % size == 0 and had > (5 // size - 1) * workers
        if had and (kind is Dealt or at_an_end):
            continue
        resumed = loader()
        resumed.load_state_dict(state)
        left = [whole[epoch][had:], *whole[epoch + 1 : 3]] if epoch < 3 else []
        assert [ids(resumed) for _ in left] == left, (epoch, had)


def caught(loader: Any) -> list[Any]:
    """A pass of a loop that goes on after errors."""
    found: list[Any] = []
    batches = iter(loader)
    while True:
        try:
            found.append(numbers(next(batches)))
        except StopIteration:
            return found
        except ArithmeticError as error:
            found.append(type(error))


@pytest.mark.parametrize("count", [24, 13])
def test_an_error_at_the_end_of_a_share_is_of_the_pass_that_is_over(count: int) -> None:
    def loader() -> Any:
        return DataLoader(Failing(count), 4, num_workers=2, persistent_workers=True)

    straight = loader()
    whole = [caught(straight)]
    states = [plain(straight.state_dict())]
    batches = iter(straight)
    first = numbers(next(batches))
    states.append(plain(straight.state_dict()))
    whole.append([first, *caught(batches)])
    for had, state in enumerate(states):
        resumed = loader()
        resumed.load_state_dict(state)
        assert caught(resumed) == whole[1][had:]


@pytest.mark.parametrize(("kind", "workers"), [(Counting, 0), (Counting, 2), (InMemory, 0), (InMemory, 2)])
def test_a_resumed_pass_of_which_each_batch_failed_was_gone_through(kind: Any, workers: int) -> None:
    def collate(batch: list[int]) -> torch.Tensor:
        found = torch.tensor(batch)
        if found.max() > 15:
            raise ArithmeticError("not these")
        return found

    def loader() -> Any:
        return DataLoader(kind(24), 4, num_workers=workers, collate_fn=collate)

    straight = loader()
    batches = iter(straight)
    whole = [numbers(next(batches)) for _ in range(4)]
    state = plain(straight.state_dict())
    whole += caught(batches)
    resumed = loader()
    resumed.load_state_dict(state)
    assert caught(resumed) == whole[4:] == [ArithmeticError] * 2
    assert caught(resumed) == whole


@pytest.mark.parametrize("workers", [(0, 0, 0), (0, 2, 2), (0, 2, 0), (2, 0, 2)])
@pytest.mark.parametrize("is_ours", [False, True])
def test_resumed_twice_with_other_workers(data: Any, is_ours: bool, workers: tuple[int, int, int]) -> None:
    def loader(workers: int) -> Any:
        own = {"decode": number, "cache": TINY} if is_ours else {}
        sampler = RandomSampler(range(COUNT))
        return DataLoader(data if is_ours else InMemory(), SIZE, num_workers=workers, sampler=sampler, **own)

    torch.manual_seed(7)
    straight = loader(0)
    torch.manual_seed(7)
    whole = [ids(straight) for _ in range(3)]
    torch.manual_seed(7)
    first, had, state = loader(workers[0]), [], {}
    for found in first:
        had.append(numbers(found))
        if len(had) == 2:
            state, stood = plain(first.state_dict()), torch.get_rng_state()
            break
    for count in workers[1:]:
        torch.manual_seed(99)
        resumed = loader(count)
        resumed.load_state_dict(state)
        torch.set_rng_state(stood)
        for found in resumed:
            had.append(numbers(found))
            if len(had) == 4:
                state, stood = plain(resumed.state_dict()), torch.get_rng_state()
                break
    assert had == whole[0]
    assert [ids(resumed) for _ in range(2)] == whole[1:]


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("kind", ["random", "weighted", "batches", "with the loader"])
@pytest.mark.parametrize("at", ["last", "end"])
def test_saved_again_after_somebody_drew_from_a_shared_generator(data: Any, kind: str, at: str, is_ours: bool) -> None:
    def loaders() -> tuple[Any, Any]:
        shared = torch.Generator().manual_seed(3)
        weighted = WeightedRandomSampler([1.0] * COUNT, COUNT, generator=shared)
        own: dict[str, Any] = {
            "random": {"batch_size": SIZE, "sampler": RandomSampler(range(COUNT), generator=shared)},
            "weighted": {"batch_size": SIZE, "sampler": weighted},
            "batches": {"batch_sampler": BatchSampler(weighted, SIZE, drop_last=False)},
            "with the loader": {"batch_size": SIZE, "sampler": weighted, "generator": shared},
        }[kind]
        ours = {"decode": number, "cache": TINY} if is_ours else {}
        train = DataLoader(data if is_ours else InMemory(), **own, **ours)
        return train, torchs.DataLoader(InMemory(9), 4, shuffle=True, generator=shared)

    train, val = loaders()
    whole, state = [], {}
    for epoch in range(EPOCHS):
        whole.append([])
        for found in train:
            whole[-1].append(numbers(found))
            if epoch == 1 and at == "last":
                state = plain(train.state_dict())
        if epoch == 1 and at == "end":
            state = plain(train.state_dict())
        ids(val)
    train, val = loaders()
    train.load_state_dict(state)
    if at == "last" and not is_ours:
        assert ids(train) == []
    ids(val)
    again = plain(train.state_dict())
    train, val = loaders()
    train.load_state_dict(again)
    assert ids(train) == whole[2]


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_others_than_workers_were_asked_for_are_refused(workers: int, draws: bool) -> None:
    """A sampler that draws as it goes, beside a loop that draws, too: what was asked for ahead can't be drawn again."""

    def loader() -> Any:
        return DataLoader(InMemory(32), 4, num_workers=workers, sampler=InBlocks(32))

    torch.manual_seed(1)
    straight, whole, saved = loader(), [], []
    for found in straight:
        whole.append(numbers(found))
        torch.rand(int(draws))
        saved.append((plain(straight.state_dict()), torch.get_rng_state()))
    refused = 0
    for had, (state, stood) in enumerate(saved, 1):
        resumed = loader()
        resumed.load_state_dict(state)
        torch.set_rng_state(stood)
        try:
            rest = []
            for found in resumed:
                rest.append(numbers(found))
                torch.rand(int(draws))
            assert rest == whole[had:], had
        except StateError:
            refused += 1
    assert bool(refused) == draws


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_without_an_end_goes_on_in_its_pass(data: Any, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is listed here goes beyond what the loop draws; as it stands, it takes seconds, four times.
    monkeypatch.setattr("foreload.torch._course._LISTED_BATCHES", 1 << 12)

    def loader() -> Any:
        part = Subset(Dataset(data, decode=number, cache=TINY), range(10))
        batches = Again(BatchSampler(RandomSampler(part), 4, drop_last=False))
        return DataLoader(part, batch_sampler=batches, num_workers=workers)

    def some(loader: Any, count: int) -> list[list[int]]:
        passing = iter(loader)
        return [numbers(next(passing)) for _ in range(count)]

    torch.manual_seed(0)
    whole = some(loader(), 14)
    torch.manual_seed(0)
    first = loader()
    assert some(first, 2) == whole[:2]
    state, stood = plain(first.state_dict()), torch.get_rng_state()
    resumed = loader()
    torch.manual_seed(99)
    resumed.load_state_dict(state)
    torch.set_rng_state(stood)
    assert some(resumed, 12) == whole[2:]


class Forever(torchs.IterableDataset[Any]):
    """Numbers without an end, each worker's its own, from a place that it says."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        worker: Any = torchs.get_worker_info()
        while True:
            self.at += 1
            yield 1000 * worker.id + self.at - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Numbering(InMemory):
    """Which reading of its worker's each is."""

    read = 0

    def __getitem__(self, index: int) -> Any:
        worker: Any = torchs.get_worker_info()
        self.read += 1
        return torch.tensor(1000 * worker.id + self.read - 1)

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read = state["read"]


@pytest.mark.parametrize("had", [1, 2, 3])
@pytest.mark.parametrize("kind", [Forever, Numbering])
def test_workers_that_live_on_say_what_they_were_ahead_with_in_a_pass_that_was_left(kind: Any, had: int) -> None:
    def loader() -> Any:
        return DataLoader(kind(), 2, num_workers=2, persistent_workers=True)

    straight = loader()
    for number, _ in enumerate(straight):
        if number == 2:
            break
    whole, state = [], {}
    for found in straight:
        whole.append(numbers(found))
        if len(whole) == had:
            state = plain(straight.state_dict())
        if len(whole) == 8:
            break
    resumed = loader()
    resumed.load_state_dict(state)
    rest = iter(resumed)
    assert [numbers(next(rest)) for _ in range(8 - had)] == whole[had:]
