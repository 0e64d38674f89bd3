"""What every training script does means what it means with torch's loader: set an epoch, give a sampler, look at a batch, collate."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.utils import data as torch_data

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader, Dataset
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


# ---- samplers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["keyed", "torch"])
@pytest.mark.parametrize("place", [{}, {"dp_rank": 1, "dp_size": 2}], ids=str)
@pytest.mark.parametrize("epochs", [[0, 0], [3, 3], [3, 2]], ids=str)
def test_an_epoch_may_come_again(data: Any, order: str, place: dict[str, int], epochs: list[int]) -> None:
    loader = DataLoader(data, 16, shuffle=True, order=order, decode=head, cache=TINY, timeout=30, **place)  # type: ignore[arg-type]
    for epoch in epochs:
        loader.set_epoch(epoch)
        plan, rank = loader.run.plan, loader.run.rank
        assert numbers(loader) == [plan.batch(epoch, batch, rank) for batch in range(len(loader))]
