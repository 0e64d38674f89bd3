"""What every training script does means what it means with torch's loader: set an epoch, give a sampler, look at a batch, collate."""

from __future__ import annotations

import copy
import inspect
import json
import os
import pickle
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data.distributed import DistributedSampler

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader, Dataset, Sampler
from small import COUNT, content, number_of

TINY = fl.Cache(ram="32MB")


def content_of(data: Any, sample: int) -> bytes:
    return content(number_of(data.key(sample)))


def head(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    return torch.tensor([meta.sample, meta.epoch])


def large(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    return torch.full((20_000,), meta.sample)


def drawn_by_meta(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    return torch.tensor([meta.sample, int(meta.rng().integers(1 << 40))])


def numbers(loader: Any) -> list[list[int]]:
    return [batch[0][:, 0].tolist() for batch in loader]


def jobs(data: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(data.source.opened().agent.call('{"call": "status"}'))["jobs"]
    return found


# ---- torch's own loader without a sampler of ours -----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(("form", "decode"), [("bytes", None), ("tensor", None), ("bytes", large)])
def test_torchs_own_loader_with_workers_needs_no_sampler_of_ours(
    data: Any, method: str, form: Any, decode: Any
) -> None:
    samples = Dataset(data, raw=form, decode=decode, cache=TINY)
    loader: Any = torch_data.DataLoader(samples, 16, num_workers=2, multiprocessing_context=method)
    for first, (values, labels) in zip(range(0, COUNT, 16), loader, strict=True):
        chosen = range(first, min(first + 16, COUNT))
        assert labels.tolist() == data.labels[list(chosen)].tolist()
        if decode is not None:
            assert values[:, -1].tolist() == list(chosen)
        else:
            assert [bytes(value) if form == "bytes" else bytes(value.numpy()) for value in values] == [
                content_of(data, sample) for sample in chosen
            ]


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_sampler_each_epoch_has_its_own_randomness_and_a_seed_repeats_it(data: Any, workers: int) -> None:
    def epochs() -> list[list[list[int]]]:
        torch.manual_seed(3)
        samples = Dataset(data, decode=drawn_by_meta, cache=TINY)
        loader: Any = torch_data.DataLoader(samples, 32, num_workers=workers)
        return [[row for values, _ in loader for row in values.tolist()] for _ in range(2)]

    first, second = epochs()
    assert [sample for sample, _ in first] == [sample for sample, _ in second] == list(range(COUNT))
    assert not {number for _, number in first} & {number for _, number in second}
    assert len({number for _, number in first}) == COUNT
    assert epochs() == [first, second]


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_is_drawn_for_who_asks_for_nothing(data: Any, workers: int) -> None:
    torch.manual_seed(3)
    list(torch_data.DataLoader(Dataset(data, decode=head, cache=TINY), 32, num_workers=workers))
    ours = torch.rand(1)
    torch.manual_seed(3)
    list(torch_data.DataLoader(range(COUNT), 32, num_workers=workers))  # type: ignore[arg-type] # it has all it takes
    assert torch.equal(ours, torch.rand(1))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_all_workers_of_a_loader_read_one_job_and_each_sample_once(home: Any, bucket: Any, method: str) -> None:
    data = fl.open("s3://data/fixed")
    samples = Dataset(data, cache=TINY)
    loader: Any = torch_data.DataLoader(
        samples, 16, shuffle=True, num_workers=2, multiprocessing_context=method, persistent_workers=True
    )
    before = bucket.counters()["requests"]["get"]
    for _ in range(2):
        batches = iter(loader)
        found = [value for _ in range(3) for value in next(batches)[0]]
        assert [(job["clients"], job["ram_bytes"]) for job in jobs(data)] == [(2, 32_000_000)]
        found += [value for values, _ in batches for value in values]
        assert len(set(found)) == COUNT
    assert bucket.counters()["requests"]["get"] - before == COUNT
    del batches, loader


def test_a_look_at_a_sample_leaves_a_data_sets_budget_its_own(data: Any) -> None:
    assert data[0].bytes == content_of(data, 0)
    others = [Dataset(data, cache=fl.Cache(ram=ram)) for ram in ("40MB", "24MB")]
    assert [samples[1][0] for samples in others] == [content_of(data, 1)] * 2
    assert sorted(job["ram_bytes"] for job in jobs(data)) == [24_000_000, 40_000_000, 64 << 20]


@pytest.mark.parametrize("sampler_first", [False, True])
def test_the_default_budget_is_the_same_whichever_of_data_set_and_sampler_is_made_first(
    data: Any, monkeypatch: pytest.MonkeyPatch, sampler_first: bool
) -> None:
    monkeypatch.delenv("FORELOAD_RAM", raising=False)
    monkeypatch.setattr("foreload._settings.cache.available_bytes", lambda: 16 << 30)
    monkeypatch.setattr("foreload._settings.cache._promised", [])
    # Each is to live while the other is made.
    sampler = Sampler(data, 1, 0) if sampler_first else None
    samples = Dataset(data)
    sampler = sampler or Sampler(data, 1, 0)
    assert sampler.run().cache.ram_bytes() == samples.cache.ram_bytes() == 8 << 30


def test_a_data_set_is_indexed_as_any_other(data: Any) -> None:
    samples = Dataset(data, cache=TINY)
    assert samples[-1] == samples[COUNT - 1] == (content_of(data, COUNT - 1), data.label(COUNT - 1))
    assert len(list(iter(samples))) == COUNT
    for wrong in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError):
            samples[wrong]
        with pytest.raises(IndexError):
            samples.__getitems__([0, wrong])
    with pytest.raises(errors.InvalidError, match="whole numbers"):
        samples[1.5]  # type: ignore[index] # it is wrong


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["subset", "split", "joined"])
def test_parts_and_sums_of_it_are_read_as_of_any_other(data: Any, workers: int, kind: str) -> None:
    samples = Dataset(data, decode=large, cache=TINY)
    parts: dict[str, Any] = {
        "subset": lambda: torch_data.Subset(samples, range(5, 50)),
        "split": lambda: torch_data.random_split(samples, [50, COUNT - 50], torch.Generator().manual_seed(1))[0],
        "joined": lambda: torch_data.ConcatDataset([samples, samples]),
    }
    part = parts[kind]()
    right = [*range(COUNT), *range(COUNT)] if kind == "joined" else list(part.indices)
    loader: Any = torch_data.DataLoader(part, 16, num_workers=workers)
    assert [sample for values, _ in loader for sample in values[:, 0].tolist()] == right


# ---- collating ---------------------------------------------------------------------------------------------------------


def longest_first(batch: list[Any]) -> tuple[list[bytes], torch.Tensor]:
    assert type(batch) is list
    assert all(isinstance(pair, tuple) for pair in batch)
    batch.sort(key=lambda pair: -len(pair[0]))
    last = batch.pop()
    values = [value for value, _ in reversed([*batch, last])]
    return values, torch.tensor(len(values))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [DataLoader, torch_data.DataLoader])
def test_a_collate_function_may_do_with_its_list_what_it_likes(data: Any, workers: int, kind: Any) -> None:
    samples = Dataset(data, cache=TINY)
    loader = kind(samples, 16, num_workers=workers, collate_fn=longest_first)
    for first, (values, count) in zip(range(0, COUNT, 16), loader, strict=True):
        right = [content_of(data, sample) for sample in range(first, min(first + 16, COUNT))]
        right.sort(key=lambda value: -len(value))
        assert values == right[::-1]
        assert count == len(right)


@pytest.mark.parametrize(
    "collate",
    [
        lambda batch: (torch.zeros(len(batch), 2), torch.tensor(7)),
        lambda batch: (np.zeros(3), np.int64(1)),
        lambda batch: (np.zeros(3),),
        lambda batch: {"x": np.zeros(3)},
        lambda batch: 5,
    ],
)
def test_samples_are_counted_whatever_a_batch_is(data: Any, collate: Any) -> None:
    for loader in (
        DataLoader(data, 16, collate_fn=collate, cache=TINY),
        DataLoader(data, batch_sampler=[[1, 2, 3], [4], [5, 6]], collate_fn=collate, cache=TINY),
        fl.NumpyLoader(data, 16, collate=collate, cache=TINY),
    ):
        given = isinstance(loader, DataLoader) and loader.batch_size is None
        assert len(list(loader)) == (3 if given else 13)
        assert loader.stats()["epochs"][0]["samples"] == (6 if given else COUNT)


def test_workers_say_what_torch_refuses_to_collate(data: Any) -> None:
    def decode(raw: memoryview) -> torch.Tensor:
        return torch.ones(9000, requires_grad=True)

    with pytest.raises(RuntimeError, match="automatic differentiation"):
        next(iter(DataLoader(data, 4, decode=decode, num_workers=1, cache=TINY, timeout=30)))


def with_a_default(raw: memoryview, flip: bool = False) -> torch.Tensor:
    assert flip is False
    return torch.tensor([len(raw)])


def with_meta(raw: memoryview, meta: fl.Meta | None = None) -> torch.Tensor:
    assert meta is not None
    return torch.tensor([len(raw)])


class Method:
    def decode(self, raw: memoryview, quality: int = 3, *more: Any) -> torch.Tensor:
        assert (quality, more) == (3, ())
        return torch.tensor([len(raw)])


def wrapped(*given: Any) -> torch.Tensor:
    assert isinstance(given[1], fl.Meta)
    return torch.tensor([len(given[0])])


@pytest.mark.parametrize(
    "decode", [with_a_default, with_meta, Method().decode, wrapped, lambda raw: torch.tensor([len(raw)])]
)
def test_meta_is_for_decoders_that_ask_for_it(data: Any, decode: Any) -> None:
    values, _ = next(iter(DataLoader(data, 16, decode=decode, cache=TINY)))
    assert values[:, 0].tolist() == data.lengths[:16].tolist()


# ---- samplers ----------------------------------------------------------------------------------------------------------


class Own(DistributedSampler[Any]):
    """A subclass, as people have them: the plan doesn't know it."""


def stock_epochs(sampler: Any, epochs: list[int | None], batch_size: int = 16) -> list[list[list[int]]]:
    loader: Any = torch_data.DataLoader(range(COUNT), batch_size, sampler=sampler, collate_fn=list)  # type: ignore[arg-type]
    found = []
    for epoch in epochs:
        if epoch is not None:
            sampler.set_epoch(epoch)
        found.append(list(loader))
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [DistributedSampler, Own])
@pytest.mark.parametrize("epochs", [[5, 6, 7], [None, None], [3, 3, None, 1], [0, 1, 5]], ids=str)
def test_a_samplers_epoch_is_the_one_it_was_set_to(
    data: Any, workers: int, kind: Any, epochs: list[int | None]
) -> None:
    sampler = kind(range(COUNT), 2, 1, seed=3)
    loader = DataLoader(data, 16, sampler=sampler, decode=head, num_workers=workers, cache=TINY)
    found = []
    for epoch in epochs:
        if epoch is not None:
            loader.sampler.set_epoch(epoch)  # type: ignore[union-attr] # it is torch's
        found.append(numbers(loader))
    assert found == stock_epochs(kind(range(COUNT), 2, 1, seed=3), epochs)


@pytest.mark.parametrize("order", ["keyed", "torch"])
@pytest.mark.parametrize("place", [{}, {"dp_rank": 1, "dp_size": 2}], ids=str)
@pytest.mark.parametrize("epochs", [[0, 0], [3, 3], [3, 2]], ids=str)
def test_an_epoch_may_come_again(data: Any, order: str, place: dict[str, int], epochs: list[int]) -> None:
    loader = DataLoader(data, 16, shuffle=True, order=order, decode=head, cache=TINY, timeout=30, **place)  # type: ignore[arg-type]
    for epoch in epochs:
        loader.set_epoch(epoch)
        plan, rank = loader.run.plan, loader.run.rank
        assert numbers(loader) == [plan.batch(epoch, batch, rank) for batch in range(len(loader))]


def test_a_loaders_own_sampler_is_set_as_torchs_is(data: Any) -> None:
    loader = DataLoader(data, 16, shuffle=True, order="torch-distributed", seed=3, decode=head, cache=TINY)
    right = stock_epochs(DistributedSampler(range(COUNT), 1, 0, seed=3), [5, 6])  # type: ignore[arg-type]
    loader.sampler.set_epoch(5)  # type: ignore[union-attr] # it is ours
    assert loader.sampler.epoch == 5  # type: ignore[union-attr]
    assert [numbers(loader), numbers(loader)] == right


@pytest.mark.parametrize("kind", [DistributedSampler, Own])
@pytest.mark.parametrize("sets_epoch", [False, True])
def test_a_state_goes_on_in_the_samplers_epoch(data: Any, kind: Any, sets_epoch: bool) -> None:
    def loader() -> Any:
        return DataLoader(data, 16, sampler=kind(range(COUNT), 2, 1, seed=3), decode=head, cache=TINY)

    first = loader()
    first.sampler.set_epoch(4)
    batches = iter(first)
    begun = [next(batches)[0][:, 0].tolist() for _ in range(2)]
    second = loader()
    second.load_state_dict(first.state_dict())
    if sets_epoch:
        second.sampler.set_epoch(4)
    assert [begun + numbers(second)] == stock_epochs(kind(range(COUNT), 2, 1, seed=3), [4])
    second.set_epoch(6)
    assert [numbers(second)] == stock_epochs(kind(range(COUNT), 2, 1, seed=3), [6])


def test_a_state_that_is_not_gone_on_with_is_said(data: Any, caplog: pytest.LogCaptureFixture) -> None:
    loader = DataLoader(data, 16, shuffle=True, cache=TINY)
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(loader.state_dict())
    loader.set_epoch(0)
    assert not caplog.text
    loader.set_epoch(2)
    assert "epoch 0 after batch 1, is not gone on with" in caplog.text


PARTS: dict[str, Any] = {
    "sequential": lambda: torch_data.SequentialSampler(range(10)),
    "random": lambda: torch_data.RandomSampler(range(10), generator=torch.Generator().manual_seed(1)),
    "some": lambda: torch_data.RandomSampler(range(COUNT), num_samples=12, generator=torch.Generator().manual_seed(1)),
    "more": lambda: torch_data.RandomSampler(range(COUNT), num_samples=250, generator=torch.Generator().manual_seed(1)),
    "distributed": lambda: DistributedSampler(range(10), 2, 1),  # type: ignore[arg-type]
    "in order": lambda: DistributedSampler(range(11), 2, 1, shuffle=False),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", PARTS)
def test_a_samplers_length_is_obeyed(data: Any, name: str) -> None:
    stock: Any = torch_data.DataLoader(range(COUNT), 4, sampler=PARTS[name](), collate_fn=list)  # type: ignore[arg-type]
    ours = DataLoader(data, 4, sampler=PARTS[name](), decode=head, cache=TINY)
    assert len(ours) == len(stock)
    for _ in range(2):
        assert numbers(ours) == list(stock)


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_draws_before_its_sampler_as_torchs_does(data: Any, workers: int, seeded: bool) -> None:
    def loader(kind: Any, samples: Any, **given: Any) -> Any:
        generator = torch.Generator().manual_seed(4) if seeded else None
        sampler = torch_data.RandomSampler(range(COUNT), generator=generator)
        return kind(samples, 16, sampler=sampler, generator=generator, num_workers=workers, **given)

    torch.manual_seed(9)
    stock = loader(torch_data.DataLoader, range(COUNT), collate_fn=list)
    right, after = [list(stock) for _ in range(2)], torch.rand(1)
    torch.manual_seed(9)
    ours = loader(DataLoader, data, decode=head, cache=TINY)
    assert [numbers(ours) for _ in range(2)] == right
    assert torch.equal(torch.rand(1), after)


def test_a_generator_that_is_shared_is_said(data: Any, caplog: pytest.LogCaptureFixture) -> None:
    generator = torch.Generator().manual_seed(4)
    loader = DataLoader(data, 50, shuffle=True, order="torch", generator=generator, decode=head, cache=TINY)
    right = [*numbers(DataLoader(data, 50, shuffle=True, order="torch", seed=4, decode=head, cache=TINY))]
    assert numbers(loader) == right
    numbers(loader)
    assert "somebody else" not in caplog.text
    for _ in range(2):
        torch.rand(1, generator=generator)
        numbers(loader)
    assert caplog.text.count("somebody else draws") == 1


class Fickle:
    """A sampler that has `set_epoch`, and draws from everybody's random numbers."""

    def __init__(self, data_source: Any) -> None:
        self.data_source, self.epoch = data_source, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(COUNT).tolist())


class Heavy:
    """A data set that can't be copied."""

    def __len__(self) -> int:
        return COUNT

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("copied")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_of_everybodys_random_numbers_is_not_listed_early(data: Any, workers: int) -> None:
    def epochs(loader: Any, read: Any) -> list[Any]:
        np.random.seed(3)
        found = []
        for epoch in range(3):
            loader.sampler.set_epoch(epoch)
            found.append((read(loader), np.random.rand()))
        return found

    stock: Any = torch_data.DataLoader(range(COUNT), 16, sampler=Fickle(Heavy()), collate_fn=list)  # type: ignore[arg-type]
    ours = DataLoader(data, 16, sampler=Fickle(Heavy()), decode=head, num_workers=workers, threads=0, cache=TINY)  # type: ignore[arg-type]
    assert epochs(ours, numbers) == epochs(stock, list)


class Adaptive(torch_data.Sampler[int]):
    """A sampler whose weights the loop changes."""

    def __init__(self, model: Any) -> None:
        self.weights, self.model, self.generator = torch.ones(COUNT), model, torch.Generator().manual_seed(1)

    def __len__(self) -> int:
        return 100

    def __iter__(self) -> Iterator[int]:
        return iter(torch.multinomial(self.weights, 100, True, generator=self.generator).tolist())


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_what_a_sampler_yields_at_last_is_read(
    data: Any, workers: int, persistent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Model(torch.nn.Module):
        def __deepcopy__(self, memo: Any) -> Any:
            raise AssertionError("copied")

    def epochs(loader: Any, read: Any) -> list[Any]:
        found = []
        for epoch in range(4):
            found.append(read(loader))
            loader.sampler.weights[: 50 * epoch] = 0
        return found

    stock: Any = torch_data.DataLoader(range(COUNT), 16, sampler=Adaptive(Model()), collate_fn=list)  # type: ignore[arg-type]
    ours = DataLoader(
        data,
        16,
        sampler=Adaptive(Model()),
        decode=head,
        num_workers=workers,
        persistent_workers=persistent,
        cache=TINY,
    )
    assert epochs(ours, numbers) == epochs(stock, list)
    assert caplog.text.count("yields another order than a copy") == 1


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("given", [{}, {"drop_last": True}, {"sharding": "external"}, {"epochs": 9}], ids=str)
@pytest.mark.parametrize("order", ["torch", "keyed"])
def test_our_sampler_is_obeyed_by_our_loader(data: Any, given: dict[str, Any], order: str, drop_last: bool) -> None:
    def sampler() -> Any:
        return Sampler(data, 7, 2, seed=3, order=order, **given)

    ours = DataLoader(data, 4, sampler=sampler(), drop_last=drop_last, decode=head, cache=TINY)
    alone = sampler()
    stock: Any = torch_data.DataLoader(range(COUNT), 4, sampler=alone, drop_last=drop_last, collate_fn=list)  # type: ignore[arg-type]
    assert len(ours) == len(stock)
    assert numbers(ours) == list(stock)
    ours.sampler.set_epoch(5)  # type: ignore[union-attr] # it is ours
    alone.set_epoch(5)
    assert numbers(ours) == list(stock)
    assert numbers(ours) == list(stock), "and each pass is of the next epoch"


def test_a_state_of_our_sampler_is_obeyed_by_our_loader(data: Any) -> None:
    def sampler() -> Any:
        return Sampler(data, 1, 0, seed=3, batch_size=8)

    alone = sampler()
    alone.set_epoch(2)
    whole = list(alone)
    state = alone.state_dict(consumed=20)
    for size in (4, 16):
        resumed = sampler()
        resumed.load_state_dict({**state, "epoch": 2})
        loader = DataLoader(data, size, sampler=resumed, decode=head, cache=TINY)
        if size == 4:
            assert [sample for batch in numbers(loader) for sample in batch] == whole[20:]
        else:
            with pytest.raises(errors.StateError, match="batch_size"):
                next(iter(loader))


# ---- copies ------------------------------------------------------------------------------------------------------------


def as_array(raw: memoryview, meta: fl.Meta) -> Any:
    return np.array([meta.sample, meta.epoch])


def by_pickle(loader: Any) -> Any:
    return pickle.loads(pickle.dumps(loader))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, by_pickle])
@pytest.mark.parametrize("kind", ["ours", "sampler", "torch's", "torch's, workers", "numpy"])
def test_a_copy_of_a_loader_goes_on_where_it_stood_with_a_job_of_its_own(data: Any, kind: str, duplicate: Any) -> None:
    def loader() -> Any:
        if kind == "numpy":
            return fl.NumpyLoader(data, 16, shuffle=True, decode=as_array, cache=TINY)
        if kind.startswith("torch's"):
            samples = Dataset(data, decode=head, cache=TINY)
            workers = 2 if "workers" in kind else 0
            return torch_data.DataLoader(samples, 16, sampler=Sampler(samples, 1, 0, seed=2), num_workers=workers)
        sampler = DistributedSampler(range(COUNT), 2, 1) if kind == "sampler" else None  # type: ignore[arg-type]
        return DataLoader(data, 16, shuffle=sampler is None, sampler=sampler, decode=head, cache=TINY)

    whole = loader()
    epochs = [numbers(whole) for _ in range(3)]
    one, unused = loader(), duplicate(loader())
    assert numbers(one) == numbers(unused) == epochs[0]
    another = duplicate(one)
    found: list[list[list[int]]] = [[], []]
    for pair in zip(one, another, strict=True):
        for batches, batch in zip(found, pair, strict=True):
            batches.append(batch[0][:, 0].tolist())
    assert found == [epochs[1], epochs[1]]
    assert numbers(duplicate(another)) == epochs[2]


# ---- decoding ----------------------------------------------------------------------------------------------------------


class Drawn:
    """Draws from everybody's random numbers, as torchvision's transforms do."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, raw: Any = None) -> torch.Tensor:
        if self.kind == "torch":
            return torch.rand(1)
        return torch.tensor([random.random() if self.kind == "random" else np.random.rand()])

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, sample: int) -> torch.Tensor:
        return self()


@pytest.mark.parametrize("kind", ["torch", "random", "numpy"])
def test_draws_from_everybodys_random_numbers_come_as_under_torchs_loader(
    data: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def epochs(loader: Any) -> list[torch.Tensor]:
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        return [batch if isinstance(batch, torch.Tensor) else batch[0] for _ in range(2) for batch in loader]

    stock: Any = torch_data.DataLoader(Drawn(kind), 16)  # type: ignore[arg-type] # it has all it takes
    right = torch.cat(epochs(stock))
    ours = DataLoader(data, 16, decode=Drawn(kind), cache=TINY)
    for _ in range(2):
        assert torch.equal(torch.cat(epochs(ours)), right)
    assert "decode draws" not in caplog.text
    list(DataLoader(data, 16, decode=Drawn(kind), threads=2, cache=TINY))
    assert caplog.text.count("or threads=0") == 1


def test_who_draws_from_nobodys_random_numbers_is_decoded_in_threads(data: Any) -> None:
    found: list[tuple[int, str]] = []

    def decode(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
        found.append((meta.sample, threading.current_thread().name))
        return torch.tensor([meta.sample, int(meta.rng().integers(9))])

    assert numbers(DataLoader(data, 16, decode=decode, threads=2, cache=TINY)) == [
        list(range(first, min(first + 16, COUNT))) for first in range(0, COUNT, 16)
    ]
    assert sorted(sample for sample, _ in found) == list(range(COUNT)), "each sample once"
    assert all(name.startswith("foreload-decode") for _, name in found)


@pytest.mark.parametrize("threads", [None, 0, 2])
@pytest.mark.parametrize("decode", [None, head])
def test_errors_come_in_order(home: Any, tmp_path: Path, decode: Any, threads: int | None) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}").write_bytes(b"%d" % number)
    data = fl.open(tmp_path, format="flat")
    (tmp_path / "17").unlink()
    batches = iter(DataLoader(data, 4, decode=decode, threads=threads, cache=TINY))
    assert len([next(batches) for _ in range(4)]) == 4
    with pytest.raises(FileNotFoundError, match="17"):
        next(batches)


def test_an_overtaken_pass_leaves_out_what_it_is_to_leave_out(home: Any, tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}").write_bytes(b"%d" % number)
    data = fl.open(tmp_path, format="flat")
    loader = DataLoader(data, 4, shuffle=True, on_error=fl.skip(), cache=TINY)
    order = [sample for batch in (loader.run.plan.batch(0, number, 0) for number in range(10)) for sample in batch]
    (tmp_path / f"{order[17]:02}").unlink()
    first = iter(loader)
    found = list(next(first)[0])
    second = iter(loader)
    next(second)
    found += [value for values, _ in first for value in values]
    assert found == [b"%d" % sample for sample in order if sample != order[17]]


@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_exception_costs_no_batch(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([None, None, "stalled", "stalled"])

    def report(_: Any) -> None:
        if next(said, None):
            raise errors.StalledWarning

    monkeypatch.setattr("foreload._node.job.Attachment.report_notices", report)
    loader = DataLoader(data, 16, decode=head, cache=TINY)
    found, batches = [], iter(loader)
    while len(found) < COUNT:
        try:
            found += next(batches)[0][:, 0].tolist()
        except errors.StalledWarning:
            assert loader.state_dict()["position"] == len(found)
    assert found == list(range(COUNT))


def test_a_batch_does_not_wait_for_those_after_it(home: Any, bucket: Any) -> None:
    data = fl.open("s3://data/fixed")
    bucket.add_fault("hang", matching=data.key(9).rpartition("/")[2])
    try:
        batches = iter(DataLoader(data, 4, decode=head, timeout=15, cache=TINY))
        assert [next(batches)[0][:, 0].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    finally:
        bucket.clear_faults()


WRITES = """
import warnings
import torch
import foreload as fl
from foreload.torch import DataLoader, Dataset
warnings.simplefilter("ignore")
data = fl.open("s3://data/fixed")
cache = fl.Cache(ram="32MB")
def decode(raw):
    return {"x": (torch.frombuffer(raw, dtype=torch.uint8), 1)}
def check(items):
    for number, (item, _) in enumerate(items):
        item["x"][0].add_(1)
        right = bytes((byte + 1) % 256 for byte in data.read(number))
        assert bytes(item["x"][0].numpy()) == right
def collate(items):
    for item, _ in items:
        item["x"][0].add_(1).sub_(1)
    return items
single = iter(DataLoader(data, batch_size=None, decode=decode, cache=cache))
check([next(single) for _ in range(3)])
check(next(iter(DataLoader(data, 3, collate_fn=list, decode=decode, cache=cache))))
check(next(iter(DataLoader(data, 3, collate_fn=collate, decode=decode, cache=cache, num_workers=1))))
check(next(iter(torch.utils.data.DataLoader(Dataset(data, decode=decode, cache=cache), 3, collate_fn=collate, num_workers=1))))
assert [data.read(number) for number in range(3)] == [data[number].bytes for number in range(3)]
print("right")
"""


def test_a_decoded_tensor_may_be_written_to(home: Any) -> None:
    done = subprocess.run([sys.executable, "-c", WRITES], check=False, capture_output=True, text=True, timeout=100)
    assert done.stdout == "right\n", (done.returncode, done.stderr)


# ---- ranks -------------------------------------------------------------------------------------------------------------

RANK = """
import json, sys, torch
import foreload as fl
from foreload.torch import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
kind, rank = sys.argv[1], int(sys.argv[2])
data = fl.open("s3://data/fixed")
class Own(DistributedSampler):
    pass
sampler = (Own if kind == "own" else DistributedSampler)(range(len(data)), 2, rank, seed=1)
cache = fl.Cache(ram="64MB")
if kind == "torch's loader":
    loader = torch.utils.data.DataLoader(Dataset(data, cache=cache), 8, sampler=sampler, num_workers=2)
else:
    loader = DataLoader(data, 8, sampler=sampler, cache=cache)
sampler.set_epoch(2)
batches = iter(loader)
found = [value for _ in range(3) for value in next(batches)[0]]
print("begun", flush=True)
sys.stdin.readline()
status = json.loads(data.source.opened().agent.call('{"call": "status"}'))["jobs"]
print(json.dumps([(job["clients"], job["ram_bytes"]) for job in status]), flush=True)
sys.stdin.readline()
found += [value for values, _ in batches for value in values]
right = list(sampler)
assert found == [data.read(sample) for sample in right], "other samples"
print("right", flush=True)
"""


@pytest.mark.parametrize(
    ("kind", "jobs_of"),
    [
        ("torch's sampler", [[2, 64_000_000]]),
        ("torch's loader", [[4, 64_000_000]]),
        ("own", [[1, 32_000_000], [1, 32_000_000]]),
    ],
)
def test_the_ranks_of_a_node_have_one_budget(home: Any, kind: str, jobs_of: list[list[int]]) -> None:
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, kind, str(rank)],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]

    def said() -> list[str]:
        return [rank.stdout.readline().strip() for rank in ranks]  # type: ignore[union-attr] # it is a pipe

    def go() -> None:
        for rank in ranks:
            rank.stdin.write("\n")  # type: ignore[union-attr]
            rank.stdin.flush()  # type: ignore[union-attr]

    try:
        assert said() == ["begun", "begun"]
        go()
        assert [json.loads(line) for line in said()] == [jobs_of, jobs_of]
        go()
        assert said() == ["right", "right"]
    finally:
        for rank in ranks:
            rank.communicate(timeout=30)


def test_loaders_and_data_sets_are_generic_as_torchs_are(data: Any) -> None:
    class Mine(Dataset[torch.Tensor]):
        pass

    def make() -> DataLoader[torch.Tensor]:
        return DataLoader[torch.Tensor](Mine(data, cache=TINY), 16)

    assert len(make()) == len(torch_data.DataLoader(range(COUNT), 16))  # type: ignore[arg-type] # it has all it takes


def test_the_guides_table_has_torchs_arguments_in_torchs_order_with_torchs_defaults() -> None:
    guide = (Path(__file__).parents[2] / "docs/guide/torch.md").read_text()
    table = guide.partition("### Torch's arguments\n")[2].partition("\n### ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))
    torchs, ours = (inspect.signature(kind).parameters for kind in (torch_data.DataLoader, DataLoader))
    assert list(rows) == list(torchs) == list(ours)[: len(torchs)]
    for name, text in rows.items():
        assert ours[name].default == torchs[name].default or not text.startswith("as in torch"), name


def test_a_sampler_of_lists_is_told_its_name(data: Any) -> None:
    lists = torch_data.BatchSampler(torch_data.SequentialSampler(range(COUNT)), 4, drop_last=False)
    with pytest.raises(errors.InvalidError, match="yields lists is a batch_sampler="):
        next(iter(DataLoader(data, batch_size=None, sampler=lists, cache=TINY)))  # type: ignore[arg-type]
