"""Torch's arguments and protocols, one by one: what ours do beside what the installed torch's do. The guide's table names these tests."""

from __future__ import annotations

import ast
import copy
import inspect
import os
import pickle
import re
import sys
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data.distributed import DistributedSampler

import foreload as fl
from foreload.torch import DataLoader, Dataset, Sampler
from small import COUNT

TINY = fl.Cache(ram="32MB")
HERE = Path(__file__).parent


def value_of(sample: int) -> torch.Tensor:
    return torch.tensor([sample, 7 * sample])


def decode(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    return value_of(meta.sample)


class Plain(torch_data.Dataset[Any]):
    """The same samples in memory."""

    def __init__(self, data: Any) -> None:
        self.labels = data.labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, sample: int) -> tuple[torch.Tensor, int]:
        return value_of(range(len(self.labels))[sample]), self.labels[sample]


class Pair:
    """A loader of ours, and torch's with the same arguments."""

    def __init__(self, data: Any, make: Callable[[], dict[str, Any]], **keywords: Any) -> None:
        self.ours = DataLoader(data, decode=decode, cache=TINY, **make(), **keywords)
        self.theirs: Any = torch_data.DataLoader(Plain(data), **make())

    def each(self, look: Callable[[Any], Any]) -> None:
        """Both answer the same."""
        mine, theirs = plain(look(self.ours)), plain(look(self.theirs))
        assert mine == theirs


def plain(value: Any) -> Any:
    """As lists, which can be compared."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def refuses(make: Callable[[], Any]) -> str:
    with pytest.raises((ValueError, TypeError, RuntimeError)) as raised:
        make()
    return next(kind.__name__ for kind in (ValueError, TypeError, RuntimeError) if isinstance(raised.value, kind))


@pytest.mark.parametrize("size", [1, 7, COUNT, 500, 10**9, sys.maxsize, None], ids=repr)
@pytest.mark.parametrize("drop_last", [False, True])
def test_batch_size_and_drop_last_cut_an_epoch_as_torch_does(data: Any, size: Any, drop_last: bool) -> None:
    if size is None:
        for kind in (DataLoader, torch_data.DataLoader):
            assert refuses(lambda kind=kind: kind(data, batch_size=None, drop_last=True)) == "ValueError"  # type: ignore[misc]
        drop_last = False
    if drop_last and size >= 500:
        # Torch has epochs of nothing; ours says so.
        with pytest.raises(fl.errors.InvalidError, match=f"don't fill a global batch of {min(size, 1 << 20)}"):
            len(DataLoader(data, size, drop_last=True))
        return
    pair = Pair(data, lambda: {"batch_size": size, "drop_last": drop_last})
    pair.each(len)
    # Without batches torch's items are what the data set has, a tuple; ours are.
    pair.each(lambda loader: [plain(list(batch)) for batch in loader] if size != 1 else len(list(loader)))


#: What torch refuses, and ours with it.
WRONG: dict[str, dict[str, Any]] = {
    "batch_size": {"batch_size": 0},
    "batch_size below": {"batch_size": -1},
    "shuffle": {"shuffle": True, "sampler": [1]},
    "sampler": {"sampler": [1], "batch_sampler": [[1]]},
    "batch_sampler": {"batch_sampler": [[1]], "batch_size": 2},
    "batch_sampler, drop_last": {"batch_sampler": [[1]], "drop_last": True},
    "num_workers": {"num_workers": -1},
    "timeout": {"timeout": -1},
    "prefetch_factor": {"prefetch_factor": 2},
    "prefetch_factor below": {"prefetch_factor": -1, "num_workers": 1},
    "persistent_workers": {"persistent_workers": True},
    "multiprocessing_context": {"multiprocessing_context": "fork"},
    "multiprocessing_context, unknown": {"multiprocessing_context": "none", "num_workers": 1},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_torch_refuses_is_refused(data: Any, name: str) -> None:
    found = [
        refuses(lambda kind=kind: kind(data, **WRONG[name]))  # type: ignore[misc]
        for kind in (DataLoader, torch_data.DataLoader)
    ]
    assert found == ["ValueError"] * 2


GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "defaults": dict,
    "batch_size": lambda: {"batch_size": 3},
    "none": lambda: {"batch_size": None},
    "batch_sampler": lambda: {"batch_sampler": [[1, 2]]},
    "workers": lambda: {"num_workers": 1, "prefetch_factor": 3, "persistent_workers": True, "in_order": False},
    "context": lambda: {"num_workers": 1, "multiprocessing_context": "spawn", "timeout": 5},
    "pin": lambda: {"pin_memory": True, "pin_memory_device": ""},
    "functions": lambda: {"collate_fn": plain, "worker_init_fn": plain, "drop_last": True},
}
ATTRIBUTES = (
    "batch_size",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


@pytest.mark.parametrize("name", GIVEN)
def test_a_loaders_attributes_are_torchs(data: Any, name: str) -> None:
    pair = Pair(data, GIVEN[name])
    for attribute in ATTRIBUTES:
        pair.each(lambda loader, attribute=attribute: getattr(loader, attribute))  # type: ignore[misc]
    pair.each(lambda loader: loader.multiprocessing_context and loader.multiprocessing_context.get_start_method())
    pair.each(lambda loader: [type(getattr(loader.batch_sampler, name, None)) for name in ("batch_size", "drop_last")])
    for attribute in ("batch_size", "drop_last", "sampler", "batch_sampler", "dataset", "persistent_workers"):
        for loader in (pair.ours, pair.theirs):
            with pytest.raises(ValueError, match="should not be set"):
                setattr(loader, attribute, None)


def who(batch: list[Any]) -> tuple[int, int, int]:
    """Who collates: a worker's number of how many, or nobody; and the process."""
    info = torch_data.get_worker_info()
    return (-1, 0, os.getpid()) if info is None else (info.id, info.num_workers, os.getpid())


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_workers_are_asked_as_torch_asks_them(data: Any, workers: int) -> None:
    pair = Pair(data, lambda: {"batch_size": 16, "num_workers": workers, "collate_fn": who})
    pair.each(lambda loader: [batch[:2] for batch in loader])
    if not workers:
        assert {process for *_, process in pair.ours} == {os.getpid()}


@pytest.mark.parametrize("persistent", [False, True])
def test_persistent_workers_live_through_all_epochs_and_others_do_not(data: Any, persistent: bool) -> None:
    pair = Pair(data, lambda: {"batch_size": 50, "num_workers": 2, "collate_fn": who, "persistent_workers": persistent})
    pair.each(lambda loader: len({process for _ in range(2) for *_, process in loader}))


def begun(worker: int) -> None:
    info = torch_data.get_worker_info()
    assert info is not None
    assert info.id == worker
    os.environ["FORELOAD_TEST_BEGUN"] = f"{worker} of {info.num_workers}"


def environment(batch: list[Any]) -> str | None:
    return os.environ.get("FORELOAD_TEST_BEGUN")


def test_worker_init_fn_is_called_in_each_worker(data: Any) -> None:
    pair = Pair(data, lambda: {"batch_size": 50, "num_workers": 2, "collate_fn": environment, "worker_init_fn": begun})
    pair.each(list)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_are_started_as_multiprocessing_context_says(data: Any, method: str) -> None:
    pair = Pair(data, lambda: {"batch_size": 100, "num_workers": 1, "multiprocessing_context": method})
    pair.each(list)


def nap(batch: list[Any]) -> int:
    import time

    time.sleep(60)
    return 0


def test_a_time_out_of_workers_is_torchs(data: Any) -> None:
    pair = Pair(data, lambda: {"batch_size": 50, "num_workers": 1, "collate_fn": nap, "timeout": 0.5})
    pair.each(lambda loader: refuses(lambda: next(iter(loader))))


def test_pin_memory_without_an_accelerator_is_a_warning(data: Any) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is one")

    def said(loader: Any) -> tuple[list[str], list[bool]]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            pinned = [values.is_pinned() for values, _ in loader]
        # Torch's words, which differ a little from release to release.
        return [
            re.split(r" but |,", str(each.message))[0] for each in found if "pin_memory" in str(each.message)
        ], pinned

    Pair(data, lambda: {"batch_size": 50, "pin_memory": True}).each(said)


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_pass_draws_one_seed_as_under_torchs_loader(data: Any, seeded: bool, workers: int) -> None:
    def after(loader: Any) -> list[Any]:
        torch.manual_seed(6)
        generator = torch.default_generator if loader.generator is None else loader.generator
        states = []
        for _ in range(2):
            list(loader)
            states.append(generator.get_state().tolist())
        return states

    def make() -> dict[str, Any]:
        return {
            "batch_size": 100,
            "num_workers": workers,
            "generator": torch.Generator().manual_seed(4) if seeded else None,
        }

    Pair(data, make).each(after)


def test_batches_may_come_out_of_order(data: Any) -> None:
    pair = Pair(data, lambda: {"batch_size": 16, "num_workers": 2, "in_order": False})
    pair.each(lambda loader: sorted(plain(list(loader)), key=str))


def test_batches_are_collated_as_torch_collates_them(data: Any) -> None:
    for collate in (None, list, torch_data.default_collate, lambda batch: {"x": [value for value, _ in batch]}):
        pair = Pair(data, lambda collate=collate: {"batch_size": 50, "collate_fn": collate})  # type: ignore[misc]
        pair.each(lambda loader: list(islice(loader, 2)))


# ---- protocols ---------------------------------------------------------------------------------------------------------


def test_a_data_set_is_one_of_torchs(data: Any) -> None:
    mine, theirs = Dataset(data, decode=decode, cache=TINY), Plain(data)
    assert isinstance(mine, torch_data.Dataset)
    assert len(mine) == len(theirs)
    for sample in (0, 5, -1, -COUNT):
        assert plain(mine[sample]) == plain(theirs[sample])
    for kind in (mine, theirs):
        with pytest.raises(IndexError):
            kind[COUNT]
    assert [plain(item) for item in mine] == [plain(theirs[sample]) for sample in range(COUNT)]
    assert plain(mine.__getitems__([3, 3, 1])) == [plain(theirs[sample]) for sample in (3, 3, 1)]
    for again in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert plain(again[4]) == plain(theirs[4])
    joined = mine + mine
    assert isinstance(joined, torch_data.ConcatDataset)
    assert plain(joined[COUNT + 1]) == plain((theirs + theirs)[COUNT + 1])


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_sampler_is_one_of_torchs(data: Any, world: int, drop_last: bool) -> None:
    found = []
    for rank in range(world):
        mine: Any = Sampler(data, world, rank, seed=5, drop_last=drop_last, order="torch-distributed")
        theirs: Any = DistributedSampler(Plain(data), world, rank, seed=5, drop_last=drop_last)
        assert isinstance(mine, DistributedSampler)
        for name in ("num_replicas", "rank", "epoch", "drop_last", "num_samples", "total_size", "shuffle", "seed"):
            assert getattr(mine, name) == getattr(theirs, name), name
        assert len(mine) == len(theirs)
        for epoch in (0, 3):
            mine.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert mine.epoch == theirs.epoch == epoch
            found.append((list(mine), list(theirs)))
    for one, other in found:
        assert one == other


@pytest.mark.parametrize("workers", [0, 1])
def test_a_pass_is_an_iterator_as_torchs_is(data: Any, workers: int) -> None:
    pair = Pair(data, lambda: {"batch_size": 100, "num_workers": workers})

    def look(loader: Any) -> Any:
        batches = iter(loader)
        assert iter(batches) is batches
        seen = [len(batches), plain(next(batches)), plain(list(batches))]
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(batches)
        return seen

    pair.each(look)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("had", [0, 1, 4, 5])
@pytest.mark.parametrize("kind", ["sampler", "batch_sampler", "distributed", "none"])
def test_a_state_goes_on_with_what_torch_would_have_given(data: Any, kind: str, had: int, workers: int) -> None:
    def make() -> dict[str, Any]:
        some: Any = range(COUNT)
        drawn = torch_data.RandomSampler(some, generator=torch.Generator().manual_seed(2))
        orders: dict[str, dict[str, Any]] = {
            "sampler": {"sampler": torch_data.WeightedRandomSampler([1.0] * COUNT, 250, generator=drawn.generator)},
            "batch_sampler": {"batch_sampler": torch_data.BatchSampler(drawn, 50, drop_last=False)},
            "distributed": {"sampler": DistributedSampler(some, 1, 0, seed=2)},
            "none": {},
        }
        size = {} if kind == "batch_sampler" else {"batch_size": 50}
        return {"num_workers": workers, **size, **orders[kind]}

    whole, first = Pair(data, make), Pair(data, make).ours
    right = plain(list(whole.theirs))
    assert plain(list(islice(first, had))) == right[:had]
    again = Pair(data, make).ours
    again.load_state_dict(first.state_dict())
    if had < len(right):
        assert again.state_dict() == first.state_dict()
        assert plain(list(again)) == right[had:]


# ---- the guide ---------------------------------------------------------------------------------------------------------


def tests_here() -> dict[str, str]:
    """The source of each test in Python, by name; of those with another library, all of the file, which makes the loaders in one place."""
    found = {}
    for file in (*HERE.glob("test_*.py"), *HERE.parent.glob("integrations/test_*.py")):
        text = file.read_text()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] = text if file.parent != HERE else ast.get_source_segment(text, node) or ""
    return found


def rows_of(title: str) -> dict[str, tuple[str, list[str]]]:
    """A table of the guide: by its first column, what it says, and the tests that it names."""
    guide = (HERE.parents[1] / "docs/guide/torch.md").read_text()
    table = guide.partition(f"\n### {title}\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (.+?) \| (.*) \| (.*) \|$", table, re.MULTILINE)[2:]
    return {name: (text, re.findall(r"`(test_\w+)`", names)) for name, text, names in rows}


@pytest.mark.parametrize("title", ["Torch's arguments", "Torch's protocols"])
def test_each_row_of_the_guide_names_a_test_that_compares_with_torch(title: str) -> None:
    rows, tests = rows_of(title), tests_here()
    assert rows
    for name, (_, named) in rows.items():
        assert named, name
        assert set(named) <= set(tests), name
        # By name, or by what the tests call the loader beside ours.
        words = r"torch_data\.|DistributedSampler|\bPair\(|\bstock|\bPlain|theirs|StatefulDataLoader"
        assert any(re.search(words, tests[test]) for test in named), name


def test_the_guide_has_each_of_torchs_arguments_and_of_what_a_loader_offers() -> None:
    arguments = list(inspect.signature(torch_data.DataLoader).parameters)
    assert [name.strip("`") for name in rows_of("Torch's arguments")] == arguments
    protocols = " ".join(rows_of("Torch's protocols"))
    offered = {"DataLoader": torch_data.DataLoader, "Sampler": torch_data.Sampler, "Dataset": torch_data.Dataset}
    for kind, theirs in offered.items():
        public = {
            name
            for name, value in vars(theirs).items()
            if callable(value)
            and (not name.startswith("_") or name in ("__iter__", "__len__", "__getitem__", "__add__"))
        }
        for name in public:
            assert f"`{kind}.{name}`" in protocols, f"{kind}.{name}"
