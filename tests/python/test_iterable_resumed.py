"""What a resumed pass over iterable data needs: the place before its first batch, its workers' seed, batches of the same size, and the same data."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import data as torchs

from foreload.errors import StateError
from foreload.torch import DataLoader
from test_iterable_states import Eager, Reading, Stepping, caught, share
from test_saved_again import Counting, plain


class Plain(torchs.IterableDataset[Any]):
    """Has no state."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(share(self.count))


class Spoiler:
    """A collate function that fails for some samples."""

    def __init__(self, *bad: int, error: type[BaseException] = OSError) -> None:
        self.bad, self.error = set(bad), error

    def __call__(self, samples: Any) -> list[int]:
        found = [samples] if isinstance(samples, int) else list(samples)
        if self.bad & set(found):
            raise self.error("spoilt")
        return found


@pytest.mark.parametrize("each", [1, 100])
@pytest.mark.parametrize("asked", ["not", "before", "begun"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", [Eager, Reading, Counting, Stepping])
def test_a_new_run_whose_first_batch_fails_without_workers(
    kind: Any, error: type[BaseException], asked: str, each: int
) -> None:
    def loader(*bad: int) -> Any:
        return DataLoader(kind(10), 2, collate_fn=Spoiler(*bad, error=error), snapshot_every_n_steps=each)

    whole = list(loader())
    failing = loader(whole[0][1])
    if asked == "before":
        failing.state_dict()
    batches = iter(failing)
    if asked == "begun":
        failing.state_dict()
    with pytest.raises(error, match="spoilt"):
        next(batches)
    state = plain(failing.state_dict())
    for resumed in (loader(), failing):
        resumed.collate_fn.bad.clear()
        resumed.load_state_dict(state)
        assert list(resumed) == whole


class Packing(torchs.IterableDataset[Any]):
    """Packs documents into blocks of four tokens, and keeps the list that it is given for its own."""

    def __init__(self, count: int) -> None:
        self.count, self.document = count, 0
        self.rest: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        documents = list(share(self.count))
        while self.document < len(documents):
            number = documents[self.document]
            if len(self.rest) < 4:
                self.rest.extend(10 * number + at for at in range(1 + number % 5))
                self.document += 1
            while len(self.rest) >= 4:
                block = tuple(self.rest[:4])
                del self.rest[:4]
                yield block
        # What is left over begins the next pass.
        self.document = 0

    def state_dict(self) -> dict[str, Any]:
        return {"document": self.document, "rest": self.rest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.document, self.rest = state["document"], state["rest"]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [None, 1, 3, 4, 5])
@pytest.mark.parametrize("documents", [12, 14])
def test_a_data_set_that_goes_on_in_the_list_it_is_given(
    documents: int, size: int | None, workers: int, is_kept: bool
) -> None:
    def loader() -> Any:
        options = {"num_workers": workers, "persistent_workers": is_kept and workers > 0}
        return DataLoader(Packing(documents), size, collate_fn=list, **options)

    states, reference = [], loader()
    first = []
    for batch in reference:
        first.append(batch)
        states.append(plain(reference.state_dict()))
    second, third = list(reference), list(reference)
    if documents == 12 and (workers == 0 or is_kept):
        assert first != second, "what was left over began the second pass"
    for had, state in enumerate(states, 1):
        resumed = loader()
        resumed.load_state_dict(state)
        assert list(resumed) == first[had:]
        again = loader()
        again.load_state_dict(plain(resumed.state_dict()))
        assert [list(again), list(again)] == [second, third], had
        assert list(resumed) == second


class BySeed(torchs.IterableDataset[Any]):
    """A worker's share in an order that its seed says."""

    def __iter__(self) -> Iterator[int]:
        numbers, info = list(share(14)), torchs.get_worker_info()
        random.Random(0 if info is None else info.seed).shuffle(numbers)
        yield from numbers


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("has_generator", [False, True])
def test_workers_have_the_seed_that_they_had(workers: int, is_kept: bool, has_generator: bool) -> None:
    def loader(base: Any = DataLoader) -> Any:
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(1) if has_generator else None
        own: dict[str, Any] = {"num_workers": workers, "persistent_workers": is_kept, "generator": generator}
        return base(BySeed(), 2, collate_fn=list, **own)

    reference = loader(torchs.DataLoader)
    whole = [list(reference) for _ in range(4)]
    straight, states = loader(), []
    for epoch in range(3):
        batches = iter(straight)
        states.append((epoch, 0, plain(straight.state_dict())))
        for had, batch in enumerate(batches, 1):
            assert batch == whole[epoch][had - 1]
            states.append((epoch, had, plain(straight.state_dict())))
        states.append((epoch + 1, 0, plain(straight.state_dict())))
    for epoch, had, state in states[::2]:
        resumed = loader()
        resumed.load_state_dict(state)
        assert list(resumed) == whole[epoch][had:], (epoch, had)
        if epoch < 3 and (has_generator or is_kept):
            assert list(resumed) == whole[epoch + 1], (epoch, had)


def gone_through(batches: Any) -> list[int]:
    return sorted(number for batch in batches for number in batch)


@pytest.mark.parametrize(("size", "other"), [(2, 3), (4, 2), (2, None), (None, 2)])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_another_size_need_a_state(size: int | None, other: int | None, workers: int) -> None:
    def loader(kind: Any, size: int | None) -> Any:
        return DataLoader(kind(12), size, num_workers=workers, collate_fn=Spoiler())

    states = {}
    for kind in (Plain, Counting):
        straight = loader(kind, size)
        batches = iter(straight)
        states[kind] = [plain(straight.state_dict())]
        had = [next(batches) for _ in range(2)]
        states[kind].append(plain(straight.state_dict()))
    resumed = loader(Plain, other)
    resumed.load_state_dict(states[Plain][0])
    assert gone_through(resumed) == gone_through(loader(Plain, other))
    resumed.load_state_dict(states[Plain][1])
    for _ in range(2):
        with pytest.raises(StateError, match=f"batch_size={size}, and this loader has batch_size={other}"):
            iter(resumed)
    stated = loader(Counting, other)
    stated.load_state_dict(states[Counting][1])
    assert gone_through([*had, *stated]) == gone_through(loader(Counting, other))


@pytest.mark.parametrize("heals", [False, True])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_that_failed_without_a_state_are_passed_over(workers: int, heals: bool) -> None:
    def loader(*bad: int) -> Any:
        return DataLoader(Plain(30), 2, num_workers=workers, collate_fn=Spoiler(*bad))

    bad = (0, 4, 5, 15, 29)
    for steps in range(1, 16):
        straight = loader(*bad)
        batches = iter(straight)
        had = caught(batches, steps)
        state = plain(straight.state_dict())
        del batches, straight
        resumed = loader(*(() if heals else bad))
        resumed.load_state_dict(state)
        # Of a batch that failed last nothing was had: it comes again.
        while had and isinstance(had[-1], str):
            had.pop()
        there = caught(iter(loader(*(() if heals else bad))))
        assert caught(iter(resumed)) == there[len(had) :], steps


def first(loader: Any, state: Any) -> Any:
    """The first batch of a resumed pass."""
    loader.load_state_dict(state)
    return next(iter(loader))


@pytest.mark.parametrize("workers", [0, 1])
def test_other_data_than_was_saved_is_a_state_error(workers: int) -> None:
    def loader(kind: Any, count: int) -> Any:
        return DataLoader(kind(count), 2, num_workers=workers, collate_fn=list)

    for kind, match in ((Plain, "ends after 1 batches"), (Counting, "no state_dict")):
        straight = loader(kind, 20)
        batches = iter(straight)
        next(batches), next(batches)
        state = plain(straight.state_dict())
        resumed = loader(Plain, 2)
        with pytest.raises(StateError, match=match):
            first(resumed, state)


class Stuck:
    """Can't be sent from a worker to the loop."""

    def __reduce__(self) -> Any:
        raise TypeError("not this one")


class Unsendable:
    """A collate function, one of whose batches can't be sent."""

    def __call__(self, samples: list[int]) -> Any:
        return Stuck() if 5 in samples else samples


@pytest.mark.one_in(3)
@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("lives_on", [False, True])
@pytest.mark.parametrize("kind", [Plain, Counting, range])
def test_a_batch_that_is_lost_on_its_way_is_an_error(kind: Any, lives_on: bool, start: str, capfd: Any) -> None:
    own: dict[str, Any] = {"num_workers": 1, "persistent_workers": lives_on, "multiprocessing_context": start}
    loader = DataLoader(kind(24), 2, collate_fn=Unsendable(), **own)
    batches = iter(loader)
    assert [next(batches) for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError, match=r"batch 2 of worker 0 \(pid \d+\) was lost on its way"):
        next(batches)
    del batches, loader
    gc.collect()
    if start != "forkserver":
        # The server's stderr is that of the test which started it.
        assert "not this one" in capfd.readouterr().err


@pytest.mark.parametrize("lives_on", [False, True])
def test_a_loop_that_ended_with_a_worker_s_error_leaves_nothing_to_wait_for(lives_on: bool) -> None:
    def fail() -> list[Any]:
        loader = DataLoader(
            Plain(40), 2, num_workers=2, persistent_workers=lives_on, prefetch_factor=4, collate_fn=Spoiler(4)
        )
        batches: Any = iter(loader)
        workers = list(batches._workers)
        with pytest.raises(OSError, match="spoilt"):
            list(batches)
        return workers

    gc.collect()
    workers = fail()
    begun = time.monotonic()
    gc.collect()
    # Torch's own takes 5 s for each worker.
    assert time.monotonic() - begun < 4
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize("lives_on", [False, True])
@pytest.mark.parametrize("kind", [Plain, range])
def test_a_worker_that_was_killed_with_a_lock_keeps_nobody(kind: Any, lives_on: bool) -> None:
    """Workers take the lock of torch's event whenever they look at it, and one that is killed then never gives it back."""
    loader = DataLoader(kind(40), 2, num_workers=2, persistent_workers=lives_on, collate_fn=list)
    batches: Any = iter(loader)
    next(batches)
    workers = list(batches._workers)
    assert batches._workers_done_event._cond.acquire(True, 1)
    begun = time.monotonic()
    batches._shutdown_workers()
    assert time.monotonic() - begun < 4
    assert not any(worker.is_alive() for worker in workers)


def test_a_forked_process_ends_no_workers_of_its_parent() -> None:
    loader = DataLoader(Plain(40), 2, num_workers=1, persistent_workers=True, collate_fn=list)
    batches: Any = iter(loader)
    assert next(batches) == [0, 1]
    child = os.fork()
    if not child:
        batches._shutdown_workers()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert list(batches) == [[n, n + 1] for n in range(2, 40, 2)]
