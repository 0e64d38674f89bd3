"""Mapped files in the lives that training has: with workers, ranks and restarts, in files that change, and where the machine gives little.

Bytes and numbers of samples are compared with what the packages lmdb and safetensors read, and with the sampler by itself.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import gc
import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from home import Home
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import foreload.mmap as fm
from foreload import torch as fl_torch
from foreload._mapped import order
from foreload._mapped.double import NoDoubleError, double
from foreload._node import agent as _agent
from foreload.errors import ForkedError
from mapping import COUNT, SOON, Mapped, fetched, key, printed, record, slowly, started, value, write
from small import until

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of all sizes."""
    path = tmp_path_factory.mktemp("values") / "data.mdb"
    write(path, ((n, value(n)) for n in range(COUNT)))
    return path


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 MB of large ones."""
    path = tmp_path_factory.mktemp("records") / "data.mdb"
    write(path, ((n, record(n)) for n in range(60)))
    return path


# -- workers ---------------------------------------------------------------------------------------------------------


class Indexed:
    """Records by their places."""

    def __init__(self, path: Path) -> None:
        self.index = fm.LmdbIndex(path)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, n: int) -> tuple[int, bytes]:
        first, length = self.index.range(key(n))
        with self.index.path.open("rb") as file:
            return n, os.pread(file.fileno(), length, first)


class Plain:
    """The same from nowhere."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, n: int) -> tuple[int, bytes]:
        return n, value(n)


def seeded(seed: int = 4) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def passes(loader: Any, rounds: Iterable[int | None] = (None, None, 2, None)) -> list[list[Any]]:
    """What passes find; of those with a number the first batches alone."""
    return [list(islice(iter(loader), batches)) for batches in rounds]


def ours() -> tuple[list[str], list[str], int]:
    """Threads that fetch, other processes' names, and how many descriptors are open."""
    threads = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            threads.append((task / "comm").read_text().strip())
    children = [process.name for process in multiprocessing.active_children()]
    return [name for name in threads if name == "foreload-pages"], children, len(list(Path("/proc/self/fd").iterdir()))


def left(before: tuple[list[str], list[str], int]) -> bool:
    """Whether there is more than before."""
    gc.collect()
    threads, children, descriptors = ours()
    return bool(threads or children) or descriptors > before[2]


@pytest.mark.parametrize("kind", [Mapped, Indexed])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.one_in(2)
def test_workers_find_what_they_find_without_it(values: Path, method: str, persistent: bool, kind: Any) -> None:
    plain: Any = DataLoader(Plain(), 7, sampler=RandomSampler(Plain(), generator=seeded()), collate_fn=list)
    wanted = passes(plain)

    def found() -> list[list[Any]]:
        # So few that there is something left to fetch when an epoch is left.
        sampler = fm.wrap_sampler(RandomSampler(Plain(), generator=seeded()), values, key, ahead=4)
        options: dict[str, Any] = {"persistent_workers": persistent, "prefetch_factor": 3}
        loader: Any = DataLoader(
            kind(values), 7, sampler=sampler, collate_fn=list, num_workers=2, multiprocessing_context=method, **options
        )
        return passes(loader)

    # What is made once for a process, such as its connection and the server that forks, is made.
    warm: Any = DataLoader(kind(values), 60, collate_fn=list, num_workers=1, multiprocessing_context=method)
    list(warm)
    fm.wrap_sampler([], values)
    del warm
    gc.collect()
    before = ours()
    assert found() == wanted
    until(lambda: not left(before), 20)


class Mine(RandomSampler):
    """Of torch's own, and not torch's."""


class ByOne:
    """Draws for each sample, from its own or from everybody's."""

    def __init__(self, draw: Callable[[], int]) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        yield from (self.draw() for _ in range(COUNT))


class Mixed:
    """Changes a list of its own, and lists in it, with each pass."""

    def __init__(self) -> None:
        self.buckets = [list(range(at, at + 10)) for at in range(0, COUNT, 10)]
        self.dice = random.Random(3)

    def __iter__(self) -> Iterator[list[int]]:
        self.dice.shuffle(self.buckets)
        for bucket in self.buckets:
            self.dice.shuffle(bucket)
            yield list(bucket)


def by_one(dice: Any) -> ByOne:
    return ByOne(functools.partial(dice.randrange, COUNT))


SAMPLERS: dict[str, Callable[[], Any]] = {
    "of one's own": lambda: Mine(Plain(), generator=seeded()),
    "of one's own, with repeats": lambda: Mine(Plain(), replacement=True, generator=seeded()),
    "random": lambda: RandomSampler(Plain(), generator=seeded()),
    "with repeats": lambda: RandomSampler(Plain(), replacement=True, num_samples=90, generator=seeded()),
    "more than all": lambda: RandomSampler(Plain(), num_samples=COUNT + 30, generator=seeded()),
    "subset": lambda: SubsetRandomSampler(range(3, 90), seeded()),
    "weighted": lambda: WeightedRandomSampler([1.0] * COUNT, 70, generator=seeded()),
    "unseeded": lambda: RandomSampler(Plain()),
    "unseeded, with repeats": lambda: RandomSampler(Plain(), replacement=True, num_samples=90),
    "unseeded subset": lambda: SubsetRandomSampler(range(3, 90)),
    "unseeded weighted": lambda: WeightedRandomSampler([1.0] * COUNT, 70),
    "unseeded batches": lambda: BatchSampler(RandomSampler(Plain()), 7, drop_last=False),
    "distributed": lambda: DistributedSampler(Plain(), 2, 1, seed=3),
    "batches": lambda: BatchSampler(RandomSampler(Plain(), generator=seeded()), 7, drop_last=False),
    "whole batches": lambda: BatchSampler(RandomSampler(Plain(), generator=seeded()), 7, drop_last=True),
}


@pytest.mark.parametrize("breaks", [1, 5, 12])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_epochs_after_one_that_was_left_are_those_without_it(values: Path, kind: str, breaks: int) -> None:
    make = SAMPLERS[kind]

    def orders(sampler: Any) -> list[Any]:
        torch.manual_seed(9)
        return [*passes(sampler, (None, breaks, None, breaks, breaks, None)), torch.rand(1).item()]

    # That nothing is fetched ahead, for it isn't what was foreseen, is an error here.
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = orders(fm.wrap_sampler(make(), values, key))
    assert found == orders(make())


def test_who_draws_from_the_same_generator_changes_what_a_plain_one_would(values: Path) -> None:
    """An order that isn't what was foreseen is followed all the same, and said to be."""

    def order(wrap: Callable[[Any], Any]) -> list[int]:
        dice, found = random.Random(7), []
        for n in wrap(by_one(dice)):
            found.append(n)
            dice.random()
        return found

    with pytest.warns(RuntimeWarning, match="something else than foreseen"):
        found = order(lambda sampler: fm.wrap_sampler(sampler, values, key, foresee=copy.deepcopy))
    assert found == order(lambda sampler: sampler)


#: What is shared, and changed with each sample.
DICE, LOG = random.Random(8), list[int]()

OTHERS: dict[str, Callable[[], Any]] = {
    "by one": lambda: by_one(random.Random(5)),
    "by one of all": lambda: by_one(random),
    "of numpy": lambda: ByOne(functools.partial(np.random.default_rng(3).integers, COUNT)),
    "lists in lists": Mixed,
    "of a module": lambda: by_one(DICE),
    "with side effects": lambda: ByOne(lambda: LOG.append(n := DICE.randrange(COUNT)) or n),  # type: ignore[func-returns-value]
}


@pytest.mark.filterwarnings("ignore:nothing more is fetched:RuntimeWarning")
@pytest.mark.parametrize("foresee", [None, copy.deepcopy, lambda _: iter([5, 6])], ids=["unknown", "copied", "wrong"])
@pytest.mark.parametrize("kind", OTHERS)
def test_a_sampler_with_code_of_its_own_is_asked_as_it_would_be(values: Path, kind: str, foresee: Any) -> None:
    if foresee is copy.deepcopy and kind in ("by one of all", "of a module", "with side effects"):
        pytest.skip("what a copy of it does changes something else")

    def orders(sampler: Any) -> list[Any]:
        torch.manual_seed(9)
        random.seed(9)
        DICE.seed(9)
        LOG.clear()
        return [passes(sampler, (None, 5, None, 1)), list(LOG), random.random(), torch.rand(1).item(), DICE.random()]

    assert orders(fm.wrap_sampler(OTHERS[kind](), values, key, foresee=foresee)) == orders(OTHERS[kind]())


def test_what_a_copy_names_is_fetched_ahead(values: Path) -> None:
    seen: list[Any] = []
    wrapped = fm.wrap_sampler(Walk(), values, lambda n: seen.append(n) or key(n), foresee=copy.deepcopy)  # type: ignore[func-returns-value]
    first = next(iter(wrapped))
    assert len(seen) == COUNT
    assert seen[0] == first


class Strange(RandomSampler):
    """Of torch's own, with another number of samples."""

    @property
    def num_samples(self) -> int:
        return 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: Strange(Plain()),
        lambda: SubsetRandomSampler(collections.UserList(range(9))),
        lambda: BatchSampler(Strange(Plain()), 2, False),
        lambda: map(int, range(5)),
    ],
)  # fmt: skip
def test_what_may_be_code_is_not_run_twice(values: Path, make: Callable[[], Any]) -> None:
    with pytest.raises(NoDoubleError):
        double(make())
    with pytest.warns(RuntimeWarning, match="can't be known"):
        list(fm.wrap_sampler(make(), values, key))


class Endless:
    def __iter__(self) -> Iterator[int]:
        while True:
            yield from range(COUNT)


def test_one_without_an_end_is_followed_part_by_part(values: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_OVERLAP", 8)
    wrapped = order.Ordered(Endless(), fm._Parts(values, key, 4, "").begin, copy.copy, part=30)
    assert list(islice(iter(wrapped), 5 * COUNT)) == list(range(COUNT)) * 5


@pytest.mark.parametrize("shape", [tuple, np.array, torch.tensor], ids=["tuples", "arrays", "tensors"])
def test_names_and_batches_of_any_shape_are_handed_out_as_they_are(values: Path, shape: Any) -> None:
    items = [shape([n, n + 1]) for n in range(0, COUNT - 1, 2)]
    named = (lambda name: key(name[0])) if shape is tuple else key
    found = list(fm.wrap_sampler(items, values, named))
    assert all(one is other for one, other in zip(found, items, strict=True))
    if shape is tuple:
        numbers = fm.wrap_sampler([(1, 2), (0, 3)], values)
        assert list(numbers) == [(1, 2), (0, 3)]


class Odd:
    """What can't be compared."""

    __hash__ = None  # type: ignore[assignment] # as arrays have none

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        raise TypeError("ambiguous")


@pytest.mark.filterwarnings("ignore:nothing more is fetched:RuntimeWarning")
def test_names_that_cannot_be_compared_are_handed_out(values: Path) -> None:
    names = [Odd(n) for n in range(5)]
    assert [name.n for name in fm.wrap_sampler(names, values, lambda name: key(name.n))] == list(range(5))


def test_an_iterator_s_own_state_is_there(values: Path) -> None:
    class Counted:
        def __iter__(self) -> Iterator[int]:
            return Counting()

    class Counting:
        at = 0

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            self.at += 1
            return self.at

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

    going = iter(fm.wrap_sampler(Counted(), values, key, foresee=lambda _: range(1, 50)))
    assert [next(going) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert going.state_dict() == {"at": 5}


class Behind:
    """A class behind torch's in the order of classes."""

    @property
    def generator(self) -> torch.Generator:
        return self.__dict__["shared"]

    @generator.setter
    def generator(self, other: torch.Generator) -> None:
        self.__dict__["shared"] = other


class WithBehind(RandomSampler, Behind):
    pass


def test_what_a_class_behind_torch_s_or_somebody_else_puts_there_is_not_run_twice(
    values: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoDoubleError):
        double(WithBehind(Plain(), generator=seeded()))
    calls = []

    @functools.wraps(RandomSampler.__iter__)
    def other(self: Any) -> Iterator[int]:
        calls.append(self)
        return iter([3, 1])

    monkeypatch.setattr(RandomSampler, "__iter__", other)
    with pytest.warns(RuntimeWarning, match="can't be known"):
        assert list(fm.wrap_sampler(RandomSampler(Plain()), values, key)) == [3, 1]
    assert len(calls) == 1


class Unread(list[int]):
    """A batch that can't be counted."""

    def __len__(self) -> int:
        raise TypeError("no length")


@pytest.mark.filterwarnings("ignore:nothing more is fetched:RuntimeWarning")
def test_batches_that_cannot_be_read_are_handed_out(values: Path) -> None:
    batches = [[1, 2], Unread([3]), [4]]
    assert [each is other for each, other in zip(fm.wrap_sampler(batches, values, key), batches, strict=True)] == [
        True
    ] * 3


@pytest.mark.filterwarnings("ignore:nothing more is fetched:RuntimeWarning")
def test_what_raises_ahead_is_the_program_s_when_it_comes_to_it(values: Path) -> None:
    def named(n: int) -> bytes:
        if n > 7:
            raise TypeError("no such number")
        return key(n)

    going = iter(fm.wrap_sampler(range(10), values, named))
    assert list(islice(going, 5)) == list(range(5))

    class Again:
        """Goes on after its end."""

        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            self.at += 1
            if self.at % 5 == 0:
                raise StopIteration
            return self.at

    going = iter(fm.wrap_sampler(Again(), values, key, foresee=lambda _: range(1, 50)))
    assert [list(going) for _ in range(3)] == [[1, 2, 3, 4], [6, 7, 8, 9], [11, 12, 13, 14]]


def test_attributes_are_the_sampler_s(values: Path) -> None:
    inner = DistributedSampler(Plain(), 2, 0)
    batches = fm.wrap_sampler(BatchSampler(inner, 7, drop_last=False), values, key)
    batches.sampler.set_epoch(3)
    assert (batches.sampler, inner.epoch, batches.batch_size, bool(fm.wrap_sampler(Walk(), values))) == (
        inner,
        3,
        7,
        True,
    )
    walk = Walk()
    wrapped = fm.wrap_sampler(walk, values, key)
    wrapped.passes = 7
    assert (walk.passes, wrapped.passes) == (7, 7)


def test_who_has_drawn_since_keeps_what_was_drawn(values: Path) -> None:
    generator = seeded()
    old = iter(fm.wrap_sampler(RandomSampler(Plain(), generator=generator), values, key))
    next(old)
    torch.rand(3, generator=generator)
    state = generator.get_state()
    old.close()
    assert generator.get_state().equal(state)


class Walk:
    """A sampler with a state, whose passes all differ."""

    def __init__(self) -> None:
        self.at, self.passes, self.goes_on = 0, 0, False

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        if not self.goes_on:
            self.at = 0
        self.goes_on = False
        order = random.Random(self.passes).sample(range(COUNT), COUNT)
        while self.at < COUNT:
            self.at += 1
            yield order[self.at - 1]
        self.passes += 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.passes, self.goes_on = state["at"], state["passes"], True


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("at", [1, 2, 50, COUNT - 1, COUNT])
def test_a_state_goes_on_as_the_sampler_s_own(values: Path, at: int, before: int) -> None:
    """Also one that is taken of a resumed epoch, and one of the sampler by itself."""

    def found(wrap: Callable[[Any], Any]) -> list[Any]:
        orders, state = [], None
        for steps in (at, 3):
            sampler = wrap(Walk())
            if state is not None:
                sampler.load_state_dict(state)
                assert pickle.loads(pickle.dumps(sampler.state_dict())) == state
            orders += [list(sampler) for _ in range(before if state is None else 0)]
            going = iter(sampler)
            orders.append(list(islice(going, steps)))
            state = pickle.loads(pickle.dumps(sampler.state_dict()))
        sampler = wrap(Walk())
        sampler.load_state_dict(state)
        return [*orders, list(sampler), list(sampler)]

    wrap = lambda sampler: fm.wrap_sampler(sampler, values, key)  # noqa: E731
    assert found(wrap) == found(lambda sampler: sampler)
    alone = Walk()
    list(islice(iter(alone), at))
    wrapped = wrap(Walk())
    wrapped.load_state_dict(alone.state_dict())
    again = Walk()
    again.load_state_dict(alone.state_dict())
    assert list(wrapped) == list(again)


def test_what_has_no_state_gets_none(values: Path) -> None:
    assert not hasattr(fm.wrap_sampler(range(3), values), "state_dict")


@pytest.mark.parametrize("sampler", [Walk, SAMPLERS["random"], SAMPLERS["distributed"]])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_ours_goes_on_where_its_state_was_taken(values: Path, workers: int, sampler: Any) -> None:
    def loader(data: Any, wrap: Callable[[Any], Any]) -> Any:
        return fl_torch.DataLoader(data, 7, sampler=wrap(sampler()), num_workers=workers, collate_fn=list)

    def found(data: Any, wrap: Callable[[Any], Any]) -> list[Any]:
        first = loader(data, wrap)
        batches = iter(first)
        head = list(islice(batches, 4))
        state = pickle.loads(pickle.dumps(first.state_dict()))
        del batches
        second = loader(data, wrap)
        second.load_state_dict(state)
        return [head, *passes(second, (None, None))]

    mapped = Mapped(values)
    wrapped = found(mapped, lambda plain: fm.wrap_sampler(plain, values, key))
    if mapped.env is not None:
        mapped.env.close()
    assert wrapped == found(Plain(), lambda plain: plain)


def test_a_forked_child_leaves_what_its_parent_fetches_alone(tmp_path: Path) -> None:
    """Its lock may be taken by the thread that the child doesn't have."""
    path = tmp_path / "some.bin"
    path.write_bytes(bytes(1 << 20))
    for _ in range(100):
        ahead = fm.prefetch(path, ranges=[(n % (1 << 20), 1) for n in range(30_000)])
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            with contextlib.suppress(BaseException):
                ahead.stop()
                repr(ahead)
                with pytest.raises(ForkedError, match=r"some\.bin"):
                    ahead.wait()
                del ahead
                gc.collect()
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert ahead.wait(20)


# -- ranks -----------------------------------------------------------------------------------------------------------

RANK = """
    import json, lmdb, sys, zlib
    from torch.utils.data import DataLoader, DistributedSampler
    import foreload.mmap as fm
    path, rank, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    class Records:
        env = None
        def __len__(self): return 60
        def __getitem__(self, n):
            self.env = self.env or lmdb.open(path, subdir=False, readonly=True, lock=False)
            with self.env.begin() as transaction:
                return n, zlib.crc32(transaction.get(b"%08d" % n))
    sampler = DistributedSampler(Records(), ranks, rank, seed=3)
    wrapped = fm.wrap_sampler(sampler, path, lambda n: b"%08d" % n)
    found = []
    for epoch in range(2):
        wrapped.set_epoch(epoch)
        loader = DataLoader(Records(), 4, sampler=wrapped, num_workers=2, collate_fn=list)
        found.append([each for batch in loader for each in batch])
    print(json.dumps(found))
"""


@pytest.mark.needs("fuse")
@pytest.mark.parametrize("ranks", [2, 1])
def test_two_processes_fetch_a_file_once(records: Path, ranks: int) -> None:
    """Each its own half, or each all of it."""
    with slowly(records.parent) as mounted:
        before = fetched(mounted)
        path = mounted.target / records.name
        programs = [started(RANK, path, rank % ranks, ranks) for rank in range(2)]
        said = [json.loads(printed(program)) for program in programs]
        took = fetched(mounted) - before
    for rank, found in enumerate(said):
        sampler = DistributedSampler(range(60), ranks, rank % ranks, seed=3)  # type: ignore[arg-type] # it has a length
        for epoch in range(2):
            sampler.set_epoch(epoch)
            assert found[epoch] == [[n, zlib.crc32(record(n))] for n in sampler]
    assert took <= 1.05 * records.stat().st_size


# -- restarts --------------------------------------------------------------------------------------------------------

LIFE = """
    import lmdb, sys, zlib
    from torch.utils.data import DataLoader, RandomSampler
    import torch
    import foreload.mmap as fm
    from foreload._node import agent
    path = sys.argv[1]
    key = lambda n: b"%08d" % n
    class Records:
        env = None
        def __len__(self): return 60
        def __getitem__(self, n):
            self.env = self.env or lmdb.open(path, subdir=False, readonly=True, lock=False)
            with self.env.begin() as transaction:
                return n, zlib.crc32(transaction.get(key(n)))
    print("begun", agent.connect(agent.cache_directory()).pid, flush=True)
    index = fm.LmdbIndex(path)
    print("indexed", index._data.origin, flush=True)
    sampler = RandomSampler(Records(), generator=torch.Generator().manual_seed(5))
    wrapped = fm.wrap_sampler(sampler, path, key)
    for batch in DataLoader(Records(), 4, sampler=wrapped, num_workers=2, collate_fn=list):
        for n, crc in batch:
            first, length = index.range(key(n))
            with open(path, "rb") as file:
                file.seek(first)
                assert zlib.crc32(file.read(length)) == crc
            print(n, crc, flush=True)
    print("done", flush=True)
"""


def processes(session: int) -> list[int]:
    """Those of a session, but for agents."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_agent = b"foreload-agent" in (place / "cmdline").read_bytes()
            is_zombie = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if os.getsid(int(place.name)) == session and not is_agent and not is_zombie:
                found.append(int(place.name))
    return found


@pytest.mark.needs("fuse")
@pytest.mark.parametrize("with_agent", [False, True])
@pytest.mark.parametrize("after", ["begun", "indexed", "lines"])
def test_a_process_that_was_killed_starts_again(records: Path, home: Home, after: str, with_agent: bool) -> None:
    with slowly(records.parent, 20 if after == "begun" else 2) as mounted:
        path = mounted.target / records.name
        killed = started(LIFE, path, start_new_session=True)
        assert killed.stdout is not None
        agent = int(killed.stdout.readline().split()[1])
        for _ in range({"begun": 0, "indexed": 1, "lines": 14}[after]):
            assert killed.stdout.readline()
        for pid in [killed.pid, *([agent] if with_agent else [])]:
            os.kill(pid, signal.SIGKILL)
        killed.communicate(timeout=SOON)
        assert killed.returncode == -signal.SIGKILL
        _, origin, *lines = printed(started(LIFE, path)).split("\n", 2)
        until(lambda: not processes(killed.pid), 20)
    if after != "begun":
        assert origin == "indexed cache"
    order = RandomSampler(range(60), generator=seeded(5))  # type: ignore[arg-type] # it has a length
    assert lines[0] == "".join(f"{n} {zlib.crc32(record(n))}\n" for n in order) + "done\n"


def forget() -> None:
    """Ends this process' connection, and so the agent."""
    _agent._agents.clear()
    gc.collect()


def places(path: Path) -> dict[bytes, tuple[int, int]]:
    index = fm.LmdbIndex(path)
    return {index.key(n): index.at(n) for n in range(len(index))}


def damages(good: bytes) -> Iterator[bytes]:
    dice = random.Random(7)
    yield b""
    yield dice.randbytes(len(good))
    yield good + b"more"
    yield from (good[: len(good) * share // 7] for share in range(1, 7))
    for _ in range(12):
        at = dice.randrange(len(good))
        yield good[:at] + bytes([good[at] ^ 1 << dice.randrange(8)]) + good[at + 1 :]


def test_a_damaged_index_is_made_again(values: Path, home: Home) -> None:
    right = places(values)
    (saved,) = (home.cache_dir / "indexes").glob("*.flx")
    good = saved.read_bytes()
    for bad in damages(good):
        forget()
        until(lambda: not home.is_served(), 20)
        saved.write_bytes(bad)
        assert places(values) == right
        assert saved.read_bytes() == good
    forget()
    until(lambda: not home.is_served(), 20)
    saved.unlink()
    saved.mkdir()
    assert places(values) == right


def test_an_index_that_is_cut_short_while_it_is_used_stays(values: Path, home: Home) -> None:
    index = fm.LmdbIndex(values)
    wanted = [index.at(n) for n in range(COUNT)]
    (saved,) = (home.cache_dir / "indexes").glob("*.flx")
    os.truncate(saved, 0)
    assert [index.at(n) for n in range(COUNT)] == wanted


AT_ONCE = """
    import json, sys
    import foreload.mmap as fm
    print("ready", flush=True)
    sys.stdin.readline()
    index = fm.LmdbIndex(sys.argv[1])
    print(json.dumps([[index.key(n).decode(), *index.at(n)] for n in range(len(index))]))
"""


@pytest.mark.needs("fuse")
def test_processes_that_index_a_file_at_once_find_the_same(values: Path) -> None:
    with slowly(values.parent) as mounted:
        path = mounted.target / values.name
        programs = [started(AT_ONCE, path, stdin=subprocess.PIPE) for _ in range(4)]
        for program in programs:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
        for program in programs:
            assert program.stdin is not None
            program.stdin.write("go\n")
            program.stdin.flush()
        said = [json.loads(printed(program)) for program in programs]
    data = values.read_bytes()
    for found in said:
        assert [data[first : first + length] for _, first, length in found] == [value(n) for n in range(COUNT)]
        assert [name for name, *_ in found] == [key(n).decode() for n in range(COUNT)]
