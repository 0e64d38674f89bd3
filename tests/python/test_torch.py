"""The loader gives what torch's would, in torch's words, with and without workers."""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data.distributed import DistributedSampler

import foreload as fl
from foreload import errors
from foreload._run.tally import EpochTally
from foreload.torch import DataLoader, Dataset, Sampler, _reference
from small import COUNT, content, number_of

TINY = fl.Cache(ram="32MB")


def expected(data: Any, samples: list[int]) -> list[bytes]:
    return [content(number_of(data.key(sample))) for sample in samples]


def head(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    """A decoder: sixteen numbers of the sample and how it is read."""
    return torch.tensor([meta.sample, meta.epoch, len(raw), meta.seed % 1000] * 4)


class ByIndex(torch_data.Dataset[int]):
    """What torch's loader shuffles in these tests: the numbers themselves."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, at: int) -> int:
        return at


def numbers(loader: Any) -> list[list[int]]:
    return [batch[0][:, 0].tolist() for batch in loader]


def test_a_data_set_says_its_size(data: Any) -> None:
    assert Dataset(data).nbytes == data.nbytes == sum(len(raw) for raw in expected(data, list(range(COUNT))))


@pytest.mark.parametrize("workers", [0, 2])
def test_raw_batches_are_bytes_and_labels(data: Any, workers: int) -> None:
    loader = DataLoader(data, 32, shuffle=True, seed=4, num_workers=workers, cache=TINY)
    for epoch in range(2):
        batches = list(loader)
        assert len(batches) == len(loader) == 7
        for batch, (values, labels) in enumerate(batches):
            samples = loader.run.plan.batch(epoch, batch, 0)
            assert values == expected(data, samples)
            assert labels.dtype == torch.int64
            assert labels.tolist() == data.labels[samples].tolist()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("form", ["tensor", "view"])
def test_raw_batches_come_in_other_forms(data: Any, workers: int, form: Any) -> None:
    if form == "view" and workers:
        with pytest.raises(errors.InvalidError, match="view"):
            DataLoader(data, 32, num_workers=workers, raw=form)
        return
    loader = DataLoader(data, 32, num_workers=workers, raw=form, cache=TINY)
    for batch, (values, _) in enumerate(loader):
        found = [bytes(value.numpy()) if form == "tensor" else bytes(value) for value in values]
        assert found == expected(data, loader.run.plan.batch(0, batch, 0))


@pytest.mark.parametrize("workers", [0, 1])
def test_equally_long_samples_make_one_tensor_that_may_be_written(home: Any, workers: int) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 20, raw="tensor", num_workers=workers, cache=TINY)
    kept = []
    for values, _ in loader:
        assert values.shape[1:] == (30_000,)
        values += 1
        kept.append(values)
    whole = torch.cat(kept)
    assert len(whole) == COUNT
    for row in (0, 77, COUNT - 1):
        assert bytes((whole[row] - 1).numpy()) == data.read(row)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("threads", [0, 3])
def test_decoded_batches_are_collated_as_torch_does(data: Any, workers: int, threads: int) -> None:
    loader = DataLoader(data, 32, shuffle=True, decode=head, num_workers=workers, threads=threads, cache=TINY)
    values, labels = next(iter(loader))
    samples = loader.run.plan.batch(0, 0, 0)
    assert values[:, 0].tolist() == samples
    assert values[:, 2].tolist() == data.lengths[samples].tolist()
    assert labels.tolist() == data.labels[samples].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_nested_values_are_collated(data: Any, workers: int) -> None:
    def decode(raw: memoryview) -> dict[str, Any]:
        return {"big": np.full((60, 60), len(raw), np.float32), "small": torch.ones(3), "name": "x", "number": 1.5}

    values, _ = next(iter(DataLoader(data, 8, decode=decode, num_workers=workers, cache=TINY)))
    assert values["big"].shape == (8, 60, 60)
    assert values["big"][:, 0, 0].tolist() == data.lengths[:8].tolist()
    assert values["small"].shape == (8, 3)
    assert values["name"] == ["x"] * 8
    assert values["number"].dtype == torch.float64


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_function_of_ones_own_sees_pairs(data: Any, workers: int) -> None:
    def collate(batch: list[Any]) -> tuple[list[int], int, bool]:
        values, labels = zip(*batch, strict=True)
        return [len(value) for value in values], sum(labels), isinstance(values[0], bytes) and len(batch[0]) == 2

    loader = DataLoader(data, 50, collate_fn=collate, num_workers=workers, cache=TINY)
    lengths, labels, right = next(iter(loader))
    assert (lengths, labels, right) == (data.lengths[:50].tolist(), data.labels[:50].sum(), True)
    as_they_are = DataLoader(data, 5, collate_fn=list, num_workers=workers, cache=TINY)
    assert [tuple(pair) for pair in next(iter(as_they_are))] == list(
        zip(expected(data, list(range(5))), data.labels[:5].tolist(), strict=True)
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_torchs_order_is_torchs_bit_for_bit(data: Any, workers: int, drop_last: bool, persistent: bool) -> None:
    if persistent and not workers:
        pytest.skip("torch refuses persistent workers without workers")
    stock: Any = torch_data.DataLoader(
        ByIndex(),
        16,
        shuffle=True,
        drop_last=drop_last,
        num_workers=workers,
        persistent_workers=persistent,
        generator=torch.Generator().manual_seed(11),
    )
    ours = DataLoader(
        data,
        16,
        shuffle=True,
        drop_last=drop_last,
        num_workers=workers,
        persistent_workers=persistent,
        order="torch",
        seed=11,
        decode=head,
        cache=TINY,
    )
    assert len(ours) == len(stock)
    for _ in range(3):
        assert numbers(ours) == [batch.tolist() for batch in stock]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2])
def test_another_torchs_order_is_drawn_by_torch(
    data: Any, workers: int, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_reference, "_drawn", lambda *_: [[1, 0]])
    _reference._agrees.cache_clear()
    keywords: dict[str, Any] = {"shuffle": True, "order": "torch", "seed": 11, "decode": head, "cache": TINY}
    place = {"dp_rank": world - 1, "dp_size": world}

    def loader() -> Any:
        return DataLoader(data, 16, num_workers=workers, **keywords, **place)

    try:
        ours = loader()
        with pytest.warns(RuntimeWarning, match="torch draws each epoch itself"):
            epochs = [numbers(ours) for _ in range(3)]
        iterator = iter(ours)
        next(iterator)
        resumed = loader()
        resumed.load_state_dict(ours.state_dict())
        assert numbers(resumed) == numbers(iterator)
    finally:
        _reference._agrees.cache_clear()
    if world == 1:
        stock: Any = torch_data.DataLoader(ByIndex(), 16, shuffle=True, generator=torch.Generator().manual_seed(11))
        assert epochs == [[batch.tolist() for batch in stock] for _ in range(3)]
    else:
        sampler: Any = DistributedSampler(ByIndex(), 2, 1, seed=11)
        stock = torch_data.DataLoader(ByIndex(), 16, sampler=sampler)
        for epoch, found in enumerate(epochs):
            sampler.set_epoch(epoch)
            assert found == [batch.tolist() for batch in stock]


def test_more_workers_than_cpus_are_no_warning(data: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(data, 64, num_workers=len(os.sched_getaffinity(0)) + 1, cache=TINY)
        next(iter(loader))


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_come_one_at_a_time(data: Any, workers: int) -> None:
    stock: Any = torch_data.DataLoader(
        Dataset(data, cache=TINY), None, sampler=torch_data.SequentialSampler(ByIndex()), num_workers=workers
    )
    loader = DataLoader(data, None, num_workers=workers, cache=TINY)
    found = list(loader)
    assert len(loader) == COUNT
    assert found == list(stock)
    assert [value for value, _ in found] == expected(data, list(range(COUNT)))
    # Decoded, shuffled and resumed.
    decoding = DataLoader(data, None, shuffle=True, decode=head, num_workers=workers, cache=TINY)
    iterator = iter(decoding)
    first = [next(iterator)[0][0].item() for _ in range(5)]
    resumed = DataLoader(data, None, shuffle=True, decode=head, num_workers=workers, cache=TINY)
    resumed.load_state_dict(decoding.state_dict())
    rest = [value[0].item() for value, _ in resumed]
    assert first + rest == [decoding.run.plan.sample_at(0, position) for position in range(COUNT)]
    with pytest.raises(errors.InvalidError, match="batch_size=1"):
        DataLoader(data, None, cache=TINY, drop_last=True)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("given", [False, True])
def test_passes_over_one_loader_may_overlap(data: Any, workers: int, given: bool) -> None:
    order: dict[str, Any] = {"shuffle": True}
    if given:
        order = {"sampler": torch_data.RandomSampler(ByIndex(), generator=torch.Generator().manual_seed(1))}
        next(iter(order["sampler"]))
    loader = DataLoader(data, 16, decode=head, num_workers=workers, cache=TINY, timeout=30, **order)
    pairs = [(one[0], other[0]) for one, other in zip(loader, loader, strict=True)]
    assert len(pairs) == 13
    for which in (0, 1):
        values = torch.cat([pair[which] for pair in pairs])
        assert sorted(values[:, 0].tolist()) == list(range(COUNT))
        assert values[:, 1].unique().tolist() == [which]
    # And the next pass is one of its own again.
    assert sorted(sample for batch in numbers(loader) for sample in batch) == list(range(COUNT))


def test_a_generator_stands_for_its_seed(data: Any) -> None:
    stock: Any = torch_data.DataLoader(ByIndex(), 16, shuffle=True, generator=torch.Generator().manual_seed(5))
    ours = DataLoader(
        data, 16, shuffle=True, generator=torch.Generator().manual_seed(5), order="torch", decode=head, cache=TINY
    )
    assert numbers(ours) == [batch.tolist() for batch in stock]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [2, 3])
def test_torchs_distributed_order_is_torchs_bit_for_bit(data: Any, world: int, drop_last: bool) -> None:
    for rank in range(world):
        sampler: Any = DistributedSampler(ByIndex(), world, rank, seed=3)
        stock: Any = torch_data.DataLoader(ByIndex(), 8, sampler=sampler, drop_last=drop_last)
        ours = DataLoader(
            data,
            8,
            shuffle=True,
            seed=3,
            order="torch",
            dp_rank=rank,
            dp_size=world,
            drop_last=drop_last,
            decode=head,
            cache=TINY,
        )
        assert len(ours) == len(stock)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            assert numbers(ours) == [batch.tolist() for batch in stock]


def samplers() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(2)
    used = torch.Generator().manual_seed(2)
    torch.rand(1, generator=used)
    weights = torch.linspace(0, 1, COUNT)
    return {
        "sequential": lambda: torch_data.SequentialSampler(ByIndex()),
        "random": lambda: torch_data.RandomSampler(
            ByIndex(), generator=generator.clone_state() if hasattr(generator, "clone_state") else generator
        ),
        "used": lambda: torch_data.RandomSampler(ByIndex(), generator=used.clone_state()),
        "weighted": lambda: torch_data.WeightedRandomSampler(weights.tolist(), 150, generator=generator.clone_state()),
        "subset": lambda: torch_data.SubsetRandomSampler(range(40, 90), generator=generator.clone_state()),
        "distributed": lambda: DistributedSampler(ByIndex(), 3, 1, seed=9),
        "list": lambda: [5, 3, 3, 100, 7, 5],
    }


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", samplers())
def test_any_sampler_is_obeyed(data: Any, name: str, workers: int) -> None:
    make = samplers()[name]
    stock: Any = torch_data.DataLoader(ByIndex(), 16, sampler=make(), collate_fn=list)
    ours = DataLoader(data, 16, sampler=make(), decode=head, num_workers=workers, cache=TINY)
    for epoch in range(3):
        if name == "distributed":
            stock.sampler.set_epoch(epoch)
            ours.sampler.set_epoch(epoch)  # type: ignore[union-attr] # it is torch's
        assert numbers(ours) == list(stock)
    assert len(ours) == len(stock)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_unequal_sizes_are_obeyed(data: Any, workers: int) -> None:
    batches = [[1, 2, 3], [4], [9, 8, 7, 6, 5, 4, 3], [200, 200]]
    ours = DataLoader(data, batch_sampler=batches, decode=head, num_workers=workers, cache=TINY)
    for _ in range(2):
        assert numbers(ours) == batches
    assert len(ours) == 4


class Shrinking:
    """A batch sampler whose epochs have ever fewer batches, of the same samples."""

    def __init__(self, *sizes: list[int]) -> None:
        self.sizes, self.epoch = sizes, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        samples = iter(range(12))
        return iter([[next(samples) for _ in range(size)] for size in self.sizes[self.epoch]])


@pytest.mark.parametrize("workers", [0, 2])
def test_each_epoch_of_a_batch_sampler_has_its_own_number_of_batches(data: Any, workers: int) -> None:
    sizes = [1, 3, 2, 5, 1], [4, 7, 1], [2, 1, 1, 1, 4, 3], [12]
    loader = DataLoader(data, batch_sampler=Shrinking(*sizes), num_workers=workers, decode=head, cache=TINY, epochs=4)
    for epoch, right in enumerate(sizes):
        loader.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr] # it is ours
        assert [len(batch) for batch in numbers(loader)] == right


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_equal_batches_may_be_followed_by_others(data: Any, workers: int, persistent: bool) -> None:
    """The plan cuts each epoch as the first: what is cut otherwise is read without it."""
    sizes = [4, 4, 4], [6, 6], [4, 4, 4]
    batches, persists = Shrinking(*sizes), persistent and workers > 0
    loader = DataLoader(
        data, batch_sampler=batches, num_workers=workers, persistent_workers=persists, decode=head, cache=TINY
    )
    stock: Any = torch_data.DataLoader(ByIndex(), batch_sampler=batches, collate_fn=list)
    for epoch in range(3):
        batches.set_epoch(epoch)
        assert numbers(loader) == [[int(sample) for sample in batch] for batch in batches]
        assert len(numbers(loader)) == len(list(stock))


def test_a_users_random_numbers_are_not_drawn_early(data: Any) -> None:
    """The loop draws, too, and has the numbers that it has with torch's loader: between passes and in one that it leaves."""

    def passes(loader: Any, limit: int) -> list[Any]:
        torch.manual_seed(0)
        drawn: list[Any] = [torch.rand(1).item()]
        for _ in range(3):
            for at, batch in enumerate(loader):
                drawn += [samples_of(batch), torch.rand(1).item()]
                if at == limit:
                    break
            drawn.append(torch.rand(1).item())
        return drawn

    def samples_of(batch: Any) -> list[int]:
        return (batch if isinstance(batch, torch.Tensor) else batch[0][:, 0]).tolist()

    for limit in (100, 4):
        stock = torch_data.DataLoader(ByIndex(), 16, sampler=torch_data.RandomSampler(ByIndex()))
        ours = DataLoader(data, 16, sampler=torch_data.RandomSampler(ByIndex()), decode=head, cache=TINY)
        assert passes(ours, limit) == passes(stock, limit)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_each_sample_comes_once_an_epoch(data: Any, workers: int, batch_size: int) -> None:
    loader = DataLoader(data, batch_size, shuffle=True, num_workers=workers, decode=head, cache=TINY)
    for _ in range(2):
        assert Counter(sample for batch in numbers(loader) for sample in batch) == dict.fromkeys(range(COUNT), 1)


@pytest.mark.parametrize("uneven", [None, "pad", "weights"])
def test_ranks_have_equally_many_batches_and_share_all_samples(data: Any, uneven: str | None) -> None:
    loaders = [
        DataLoader(
            data, 16, shuffle=True, dp_rank=rank, dp_size=4, uneven=uneven, decode=head, cache=fl.Cache(ram="16MB")
        )
        for rank in range(4)
    ]
    assert len({len(loader) for loader in loaders}) == 1
    seen: Counter[int] = Counter()
    weights = []
    for loader in loaders:
        for batch in loader:
            if loader.loss_weight:
                seen.update(batch[0][:, 0].tolist())
        weights.append(loader.loss_weight)
    repeated = {None: 1, "pad": 53, "weights": 0}[uneven]
    assert set(seen) == set(range(COUNT))
    assert seen.total() == COUNT + repeated
    assert sum(weights) == pytest.approx(4)


def test_a_batch_that_ranks_cannot_share_is_refused_with_the_remedy(data: Any) -> None:
    with pytest.raises(errors.InvalidError, match="batch_size"):
        len(DataLoader(data, 0))
    with pytest.raises(errors.InvalidError, match="dp_size"):
        len(DataLoader(data, 8, dp_rank=1))
    with pytest.raises(errors.InvalidError, match="uneven"):
        len(DataLoader(data, 8, uneven="maybe"))
    with pytest.raises(errors.InvalidError, match="order"):
        len(DataLoader(data, 8, order="best"))
    with pytest.raises(errors.InvalidError, match="policy"):
        DataLoader(data, 8, policy="bogus")
    with pytest.raises(errors.InvalidError, match="policy"):
        fl.NumpyLoader(data, 8, policy="bogus")
    with pytest.raises(errors.InvalidError, match="exclude"):
        DataLoader(data, 8, shuffle=True, sampler=[1])


def test_a_negative_number_of_workers_is_refused(data: Any) -> None:
    with pytest.raises(errors.InvalidError, match="num_workers=-1"):
        DataLoader(data, 8, num_workers=-1)


@pytest.mark.parametrize(("sampler", "words"), [([1, -204], "yields -204"), ([1.5], "float"), ([999], "999")])
def test_a_sampler_that_yields_no_samples_is_refused(data: Any, sampler: list[Any], words: str) -> None:
    with pytest.raises(errors.InvalidError, match=words):
        list(DataLoader(data, 8, sampler=sampler, cache=TINY))


def test_weights_and_a_torch_order_that_drops_after_padding_exclude_each_other(data: Any) -> None:
    def made(**options: Any) -> Any:
        return DataLoader(data, 8, drop_last=True, uneven="weights", cache=TINY, **options)

    with pytest.raises(errors.InvalidError, match="leave one of the two out"):
        len(made(order="torch", shuffle=True, dp_rank=0, dp_size=2))
    for options in ({"shuffle": True, "dp_rank": 0, "dp_size": 2}, {"order": "torch", "shuffle": True}):
        assert len(made(**options)) > 0


def test_a_damaged_state_of_a_sampler_is_refused(data: Any) -> None:
    sampler = Sampler(data)
    for wrong in ({"position": -1}, {"position": None}):
        with pytest.raises(errors.StateError, match="position"):
            sampler.load_state_dict({**sampler.state_dict(), **wrong})
    loader = DataLoader(data, batch_sampler=[[1, 2, 3], [4]], cache=TINY)
    state = loader.state_dict()
    del state["batches"]
    loader = DataLoader(data, batch_sampler=[[1], [2, 3, 4]], cache=TINY)
    with pytest.raises(errors.StateError, match="batches"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    "given",
    [
        {"decode": head},
        {"transform": head},
        {"raw": "tensor"},
        {"raw": "bogus"},
        {"cache": fl.Cache(ram="16MB")},
        {"on_error": fl.skip()},
    ],
)
def test_keywords_that_the_dataset_decides_are_refused(data: Any, given: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidError, match=next(iter(given))):
        DataLoader(Dataset(data, cache=TINY), 8, **given)


def test_a_loader_made_anew_from_its_attributes_may_repeat_its_keywords(data: Any) -> None:
    loader = DataLoader(data, 16, decode=head, on_error=fl.skip(), cache=TINY)
    again = DataLoader(loader.dataset, 16, decode=loader.decode, on_error=loader.on_error, cache=loader.cache)  # type: ignore[arg-type]
    assert numbers(again) == numbers(loader)


@pytest.mark.parametrize(
    "given",
    [
        {"batch_sampler": [[1], [2]], "batch_size": 8},
        {"batch_sampler": [[1], [2]], "drop_last": True},
        {"batch_sampler": [[1], [2]], "sampler": [1]},
        {"batch_sampler": [[1], [2]], "shuffle": True},
        {"order": "sequential", "shuffle": True},
        {"order": "contiguous", "shuffle": True},
    ],
)
def test_arguments_that_exclude_each_other_are_refused(data: Any, given: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidError, match="exclude"):
        DataLoader(data, cache=TINY, **given)
    if "order" in given:
        with pytest.raises(errors.InvalidError, match="exclude"):
            fl.NumpyLoader(data, cache=TINY, **given)


def test_epochs_follow_each_other_unless_set(data: Any) -> None:
    loader = DataLoader(data, 64, shuffle=True, decode=head, cache=TINY)
    epochs = [numbers(loader) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    for epoch in (2, 0, 1):
        loader.set_epoch(epoch)
        assert numbers(loader) == epochs[epoch]
    # Like Lightning: the iterator first, then the epoch.
    iterator = iter(loader)
    loader.set_epoch(1)
    assert numbers(iterator) == epochs[1]
    assert numbers(loader) == epochs[2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_pass_may_be_left_early(data: Any, workers: int, persistent: bool) -> None:
    if persistent and not workers:
        pytest.skip("torch refuses persistent workers without workers")
    loader = DataLoader(
        data, 8, shuffle=True, decode=head, num_workers=workers, persistent_workers=persistent, cache=TINY
    )
    whole = DataLoader(data, 8, shuffle=True, decode=head, cache=TINY)
    for epoch in range(4):
        for at, (values, _) in enumerate(loader):
            assert values[:, 0].tolist() == whole.run.plan.batch(epoch, at, 0)
            if at == epoch * 3:
                break
    assert numbers(loader) == [whole.run.plan.batch(4, batch, 0) for batch in range(len(whole))]


@pytest.mark.parametrize("given", ["sampler", "order"])
def test_a_pass_that_is_left_early_counts_as_a_whole_one(data: Any, given: str) -> None:
    """Where torch's `RandomSampler` has a generator of its own, its next order there depends on how far the last one was drawn."""

    def make(kind: Any, samples: Any, **ours: Any) -> Any:
        generator = torch.Generator().manual_seed(9)
        if given == "order":
            return kind(samples, 20, shuffle=True, generator=generator, **ours)
        return kind(samples, 20, sampler=torch_data.RandomSampler(range(COUNT), generator=generator), **ours)

    theirs = make(torch_data.DataLoader, ByIndex())
    whole = [torch.cat(list(theirs)).tolist() for _ in range(3)]
    loader = make(DataLoader, data, decode=head, **({"order": "torch"} if given == "order" else {}))
    assert [number for batch in numbers(loader) for number in batch] == whole[0]
    assert next(iter(loader))[0][:, 0].tolist() == whole[1][:20]
    assert [number for batch in numbers(loader) for number in batch] == whole[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_delivered_outlives_the_loader_and_then_goes_back(home: Any, workers: int) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 32, raw="tensor", num_workers=workers, cache=fl.Cache(ram="64MB", batches="24MB"))
    kept = [values for values, _ in loader]
    copies = [values.clone() for values in kept]
    assert all(torch.equal(*pair) for pair in zip(kept, copies, strict=True))
    recipe = loader.run.recipe
    attachment = recipe.attachment()
    del loader
    gc.collect()
    assert all(torch.equal(*pair) for pair in zip(kept, copies, strict=True))
    del kept
    gc.collect()
    gauges = attachment.call("stats")["gauges"]
    assert (gauges["leases"], gauges["leased_bytes"], gauges["requests"]) == (0, 0, 0)


def test_a_list_of_all_batches_does_not_stall(home: Any) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 32, raw="view", cache=fl.Cache(ram="16MB", staging="4MB"), timeout=20)
    batches = [batch for _ in range(3) for batch in loader]
    assert len(batches) == 21


def test_a_collate_function_may_keep_views(home: Any) -> None:
    data = fl.open("s3://data/fixed")
    cache = fl.Cache(ram="16MB", staging="4MB")
    loader = DataLoader(data, 32, raw="view", cache=cache, collate_fn=list, timeout=20)
    kept = [pair for _ in range(4) for batch in loader for pair in batch]
    whole = [data.read(sample) for sample in range(COUNT)]
    assert [bytes(value) for value, _ in kept] == whole * 4


def test_stats_tell_hits_and_stalls(home: Any) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 16, shuffle=True, cache=TINY)
    for _ in range(3):
        list(loader)
    stats = loader.stats()
    assert [epoch["batches"] for epoch in stats["epochs"]] == [13] * 3
    assert stats["samples"] == 3 * COUNT
    assert stats["bucket_reads"] == COUNT
    assert stats["ram_hits"] == 2 * COUNT
    assert all(0 <= epoch["first_batch_s"] <= epoch["stall_s"] <= epoch["wall_s"] + 1e-6 for epoch in stats["epochs"])
    assert all(0 <= epoch["au"] <= 1 and 0 <= epoch["stall_share"] <= 1 for epoch in stats["epochs"])


def test_utilisation_is_the_loop_s_share_of_all_but_the_first_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([105.0, 107.0, 110.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    tally = EpochTally(3, _begun=100.0)
    assert (tally.au, tally.as_dict()["stall_share"]) == (None, None)
    # Five seconds for the first batch; then 2 s of work and no wait, and 1 s of work and 2 of waiting.
    tally.yielded(8, 5.0)
    assert tally.au is None, "no step has a time yet"
    tally.yielded(8, 0.0)
    assert tally.au == 1.0
    tally.yielded(8, 2.0)
    assert tally.au == pytest.approx(3 / 5)
    assert tally.as_dict()["stall_share"] == pytest.approx(7 / 10)


@pytest.mark.parametrize("kind", ["plain", "workers", "persistent", "given", "arrays", "torch's"])
def test_epochs_beyond_the_announced_ones_are_a_warning(data: Any, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A look at the first batch is a pass, and must not end a training in its last epoch."""
    given: dict[str, Any] = {"epochs": 2, "cache": TINY}
    if kind == "arrays":
        loader: Any = fl.NumpyLoader(data, 64, shuffle=True, **given)
    elif kind == "torch's":
        loader = torch_data.DataLoader(Dataset(data, cache=TINY), 64, sampler=Sampler(data, epochs=2, batch_size=64))
    else:
        order = {"sampler": torch_data.RandomSampler(ByIndex())} if kind == "given" else {"shuffle": True}
        workers = 2 if kind in ("workers", "persistent") else 0
        loader = DataLoader(data, 64, num_workers=workers, persistent_workers=kind == "persistent", **order, **given)
    next(iter(loader))
    for _ in range(3):
        found = [value for values, _ in loader for value in values]
        assert sorted(found) == sorted(expected(data, list(range(COUNT))))
    assert caplog.text.count("epochs=2 were announced, and this is epoch 2") == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_broken_samples_are_named_or_skipped(data: Any, workers: int) -> None:
    def decode(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
        if meta.sample in (3, 50):
            raise OSError("not a picture")
        return torch.tensor([meta.sample])

    with pytest.raises((errors.DecodeError), match=r"sample 3 .*not a picture") as caught:
        list(DataLoader(data, 16, decode=decode, num_workers=workers, cache=TINY))
    assert caught.value.sample == 3
    if not workers:
        assert isinstance(caught.value.__cause__, OSError)
    skipping = DataLoader(data, 16, decode=decode, num_workers=workers, on_error=fl.skip(), cache=TINY)
    found = [sample for batch in numbers(skipping) for sample in batch]
    assert found == [sample for sample in range(COUNT) if sample not in (3, 50)]
    assert skipping.stats()["skipped"] == 2
    with pytest.raises(errors.DecodeError):
        list(
            DataLoader(
                data, 16, decode=lambda raw: 1 / 0, on_error=fl.skip(max_consecutive=5), num_workers=workers, cache=TINY
            )
        )


def broken(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    if meta.sample % 3 == 1:
        raise OSError("not a picture")
    return torch.tensor([meta.sample])


@pytest.mark.parametrize("kind", ["ours", "threadless", "workers", "one at a time", "workers, one at a time", "arrays"])
@pytest.mark.parametrize("decode", [broken, None])
def test_a_batch_whose_samples_are_all_skipped_is_left_out(home: Any, tmp_path: Path, kind: str, decode: Any) -> None:
    """Read one by one, a third of the samples are broken; undecoded, their files are gone."""
    for number in range(12):
        (tmp_path / f"{number:02}").write_bytes(bytes([number]))
    data = fl.open(tmp_path)
    if decode is None:
        for number in range(1, 12, 3):
            (tmp_path / f"{number:02}").unlink()
    # Of no two in a row: each success ends a row.
    given: dict[str, Any] = {"decode": decode, "on_error": fl.skip(max_consecutive=1), "cache": TINY}
    size = None if "one" in kind else 1
    if kind == "arrays":
        loader: Any = fl.NumpyLoader(data, 1, **given)
    else:
        threads = 0 if kind == "threadless" else None
        loader = DataLoader(data, size, num_workers=2 if "workers" in kind else 0, threads=threads, **given)
    found, positions = [], []
    for value, _ in loader:
        one = value if size is None else value[0]
        found.append(one[0] if decode is None else int(one))
        positions.append(loader.state_dict()["position"])
    assert found == [number for number in range(12) if number % 3 != 1]
    assert positions == [number + 1 for number in found], "what was left out was consumed"
    assert loader.stats()["skipped"] == 4
    assert loader.stats()["epochs"][0]["batches"] == 8
    # A state from before a batch that is left out, too.
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "position": 10})
    assert len(list(loader)) == 1
    assert loader.state_dict()["position"] == 12


@pytest.mark.parametrize("wrong", ["x", None, 1.5, -1, 1 << 32])
def test_what_is_no_epoch_is_refused(data: Any, wrong: Any) -> None:
    for loader in (DataLoader(data, 8, cache=TINY), fl.NumpyLoader(data, 8, cache=TINY), Sampler(data)):
        with pytest.raises(errors.InvalidError, match="epoch"):
            loader.set_epoch(wrong)
        loader.set_epoch(np.int64(3))  # type: ignore[arg-type] # it becomes a plain number
        state = loader.state_dict()
        loader.load_state_dict(state)
        with pytest.raises(errors.StateError, match="epoch"):
            loader.load_state_dict({**state, "epoch": wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": "8"},
        {"batch_size": 1.5},
        {"batch_size": 0},
        {"batch_size": 10**30},
        {"seed": "x"},
        {"seed": 1 << 65},
        {"epochs": "3"},
        {"epochs": -1},
        {"threads": -1},
        {"timeout": -1},
        {"timeout": "3"},
        {"cache": "10GB"},
        {"tuning": 3},
        {"decode": 5},
        {"transform": "x"},
        {"num_workers": True},
        {"generator": 3},
        {"device_mesh": 4},
        {"dp_rank": "0", "dp_size": 2},
        {"sampler": 5},
        {"batch_sampler": 5},
        {"batch_sampler": [1, 2, 3]},
        {"sampler": list},
        {"collate_fn": 5},
        {"dp_rank": 0, "dp_size": 1 << 40},
        {"local_ranks": 0},
        {"local_ranks": [0.0]},
    ],
    ids=str,
)
def test_arguments_that_can_not_be_are_refused_by_name(data: Any, wrong: dict[str, Any]) -> None:
    name = next(iter(wrong))
    with pytest.raises(errors.InvalidError, match="dp_size" if "dp_rank" in wrong and wrong["dp_rank"] == 0 else name):
        list(DataLoader(data, **wrong))
    if name in ("batch_size", "seed", "epochs", "threads", "timeout", "cache", "tuning", "decode", "transform"):
        with pytest.raises(errors.InvalidError, match=name):
            fl.NumpyLoader(data, **wrong)


def test_numpys_numbers_are_numbers(data: Any) -> None:
    common = {"batch_size": np.int64(50), "seed": np.int64(-3), "epochs": np.uint8(1), "timeout": np.float32(30)}
    given: dict[str, Any] = {**common, "shuffle": True, "cache": TINY, "threads": np.int32(1)}
    plain = {**given, "batch_size": 50, "seed": -3, "epochs": 1, "timeout": 30.0, "threads": 1}
    more = {"dp_rank": np.int64(0), "dp_size": np.int64(2), "local_ranks": np.array([0]), "num_workers": np.int64(0)}
    place: dict[str, Any] = more
    ours = DataLoader(data, **given, **place, decode=head)
    assert numbers(ours) == numbers(DataLoader(data, **plain, dp_rank=0, dp_size=2, decode=head))
    arrays = [[labels.tolist() for _, labels in fl.NumpyLoader(data, **some)] for some in (given, plain)]
    assert arrays[0] == arrays[1]
    with pytest.raises(errors.InvalidError, match=r"made by foreload\.open"):
        fl.NumpyLoader(data.url)


def test_a_sampler_may_be_iterable_by_getitem_alone(data: Any) -> None:
    class Some:
        def __init__(self, items: Any) -> None:
            self.items = items

        def __getitem__(self, at: int) -> Any:
            return self.items[at]

    assert numbers(DataLoader(data, 2, sampler=Some([3, 1, 2]), decode=head, cache=TINY)) == [[3, 1], [2]]  # type: ignore[arg-type]
    assert numbers(DataLoader(data, batch_sampler=Some([[3], [1, 2]]), decode=head, cache=TINY)) == [[3], [1, 2]]  # type: ignore[arg-type]


def test_what_a_sampler_decides_is_said_to_have_no_effect(data: Any, caplog: pytest.LogCaptureFixture) -> None:
    DataLoader(data, 8, sampler=torch_data.RandomSampler(data), dp_rank=1, dp_size=2)
    assert "dp_size" in caplog.text
    assert "order" not in caplog.text
    DataLoader(data, 8, sampler=torch_data.SequentialSampler(data), order="torch")
    assert "order='torch'" in caplog.text
    caplog.clear()
    shares = torch_data.DistributedSampler(data, 2, 1)
    DataLoader(data, 8, sampler=shares, order="torch", dp_rank=1, dp_size=2)
    DataLoader(data, 8, sampler=Sampler(data), order="torch", dp_rank=1, dp_size=2)
    DataLoader(data, 8, shuffle=True, order="torch", dp_rank=1, dp_size=2)
    assert not caplog.text


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_can_only_be_left_out_by_one_rank_and_by_our_loader(data: Any, workers: int) -> None:
    given: dict[str, Any] = {"decode": broken, "on_error": fl.skip(), "cache": TINY}
    two = DataLoader(data, 1, num_workers=workers, dp_rank=1, dp_size=2, **given)
    with pytest.raises(errors.InvalidError, match=r"batch 0 of epoch 0 was skipped on rank 1.*larger batch_size"):
        next(iter(two))
    assert two.state_dict()["position"] == 0
    stock: Any = torch_data.DataLoader(Dataset(data, **given), 1, num_workers=workers)
    with pytest.raises(errors.InvalidError, match=r"can't leave a batch out"):
        list(stock)
    if not workers:
        with pytest.raises(errors.InvalidError, match="rank 1"):
            next(iter(fl.NumpyLoader(data, 1, shard=(1, 2), **given)))
    limited = DataLoader(
        data, 2, decode=lambda raw: 1 / 0, on_error=fl.skip(max_consecutive=9), num_workers=workers, cache=TINY
    )
    with pytest.raises(errors.DecodeError):
        list(limited)


@pytest.mark.parametrize("workers", [0, 2])
def test_randomness_belongs_to_the_sample(data: Any, workers: int) -> None:
    def decode(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
        return torch.tensor([meta.sample, int(meta.rng().integers(1 << 30))])

    def drawn(workers: int, batch_size: int) -> dict[int, int]:
        loader = DataLoader(data, batch_size, shuffle=True, seed=8, decode=decode, num_workers=workers, cache=TINY)
        loader.set_epoch(1)
        return {sample: number for values, _ in loader for sample, number in values.tolist()}

    assert drawn(workers, 16) == drawn(0, 50)


def test_transforms_in_workers_draw_the_same_whatever_the_workers(data: Any) -> None:
    def drawn(workers: int) -> dict[int, float]:
        loader = DataLoader(
            data,
            16,
            shuffle=True,
            decode=lambda raw, meta: meta.sample,
            transform=lambda s: torch.tensor([s, torch.randint(1 << 30, ()).item()]),
            num_workers=workers,
            cache=TINY,
        )
        return {sample: number for values, _ in loader for sample, number in values.tolist()}

    assert drawn(1) == drawn(3)


def test_torchs_attributes_are_torchs(data: Any) -> None:
    loader = DataLoader(data, 16, shuffle=True, drop_last=True, num_workers=2, prefetch_factor=3)
    assert isinstance(loader, torch_data.DataLoader)
    assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.prefetch_factor) == (16, True, 2, 3)
    assert isinstance(loader.sampler, DistributedSampler)
    again = type(loader)(loader.dataset, batch_size=16, shuffle=loader.shuffle, seed=loader.seed, drop_last=True)
    assert len(again) == len(loader) == COUNT // 16


# ---- torch's own loader ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("form", ["bytes", "tensor"])
def test_torchs_own_loader_gets_the_same_batches(data: Any, workers: int, form: Any) -> None:
    ours = DataLoader(data, 16, shuffle=True, seed=6, cache=TINY)
    stock: Any = torch_data.DataLoader(
        Dataset(data, raw=form, cache=TINY),
        sampler=Sampler(data, shuffle=True, seed=6),
        batch_size=16,
        num_workers=workers,
    )
    assert len(stock) == len(ours)
    for _ in range(2):
        for (values, labels), (right, right_labels) in zip(stock, ours, strict=True):
            found = values if form == "bytes" else [bytes(value.numpy()) for value in values]
            assert found == right
            assert torch.equal(labels, right_labels)


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_own_loader_decodes_with_epochs(data: Any, workers: int) -> None:
    stock: Any = torch_data.DataLoader(
        Dataset(data, decode=head, cache=TINY), sampler=Sampler(data, seed=6), batch_size=16, num_workers=workers
    )
    for epoch in range(2):
        rows = torch.cat([values for values, _ in stock])
        assert sorted(rows[:, 0].tolist()) == list(range(COUNT))
        assert set(rows[:, 1].tolist()) == {epoch}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shared", [False, True])
def test_torchs_loader_and_ours_read_one_data_set_side_by_side(data: Any, workers: int, shared: bool) -> None:
    samples = Dataset(data, decode=head, cache=TINY)
    sampler = Sampler(data, seed=3)
    stock: Any = torch_data.DataLoader(samples, 16, sampler=sampler, num_workers=workers)
    given: dict[str, Any] = {} if shared else {"decode": head, "cache": TINY}
    ours = DataLoader(samples if shared else data, 20, shuffle=True, seed=5, num_workers=workers, **given)
    raw = DataLoader(data, 50, cache=TINY)
    for epoch in range(2):
        passes = [iter(loader) for loader in (stock, ours, raw)]
        found: list[list[int]] = [[], [], []]
        for _ in range(max(map(len, (stock, ours)))):
            for into, values in zip(found, (next(each, None) for each in passes), strict=True):
                if values is not None:
                    assert into is found[2] or values[0][:, 1].unique().tolist() == [epoch]
                    into += values[0][:, 0].tolist() if into is not found[2] else [len(one) for one in values[0]]
        assert found[0] == [sample for batch in range(4) for sample in sampler.run().plan.batch(epoch, batch, 0)]
        assert found[1] == [sample for batch in range(11) for sample in ours.run.plan.batch(epoch, batch, 0)]
        assert found[2] == data.lengths.tolist()


def test_samplers_of_one_data_set_are_told_apart(data: Any) -> None:
    sets = [Dataset(data, cache=TINY) for _ in range(2)]
    samplers = [Sampler(each, seed=seed) for seed, each in enumerate(sets)]
    recipes = [each.place()[0] for each in sets]
    assert [sampler.run().recipe for sampler in samplers] == recipes
    assert recipes[0] is not recipes[1]


def test_a_sampler_shares_out_like_torchs(data: Any) -> None:
    sampled = [list(Sampler(data, 3, rank, seed=1, order="torch")) for rank in range(3)]
    stock = [list(DistributedSampler(ByIndex(), 3, rank, seed=1)) for rank in range(3)]
    assert sampled == stock
    trimmed = [Sampler(data, 3, rank, seed=1, drop_last=True) for rank in range(3)]
    assert [len(list(one)) for one in trimmed] == [len(one) for one in trimmed] == [67, 67, 67]


def test_without_a_sampler_samples_are_read_when_asked_for(data: Any, caplog: pytest.LogCaptureFixture) -> None:
    stock: Any = torch_data.DataLoader(Dataset(data, cache=TINY), batch_size=16, shuffle=True, num_workers=0)
    found = [value for values, _ in stock for value in values]
    assert sorted(found) == sorted(expected(data, list(range(COUNT))))
    assert "Sampler" in caplog.text
    sample = Dataset(data, cache=TINY)[7]
    assert sample == (expected(data, [7])[0], data.label(7))


def test_no_warnings_come_from_a_plain_run(data: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(DataLoader(data, 64, shuffle=True, decode=lambda raw: np.frombuffer(raw, np.uint8)[:0], cache=TINY))
