"""Accelerate with torch's loader over our Dataset and Sampler, and with our loader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import digits
import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.nn.functional import cross_entropy

from foreload.torch import DataLoader, Dataset, Sampler

pytestmark = pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning")


def stock(data: Any, **keywords: Any) -> Any:
    return torch.utils.data.DataLoader(
        Dataset(data, decode=digits.decode, cache=digits.CACHE),
        sampler=Sampler(data, seed=1, sharding="external"),
        batch_size=digits.BATCH,
        **keywords,
    )


def ours(data: Any, **keywords: Any) -> Any:
    return DataLoader(data, digits.BATCH, shuffle=True, seed=1, decode=digits.decode, cache=digits.CACHE, **keywords)


def pass_over(loader: Any) -> list[list[int]]:
    return [images["sample"].tolist() for images, _ in loader]


@pytest.mark.parametrize("make", [stock, ours])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_prepared_loader_trains_on_each_epoch_as_planned(data: Any, make: Any, workers: int) -> None:
    plain = make(data, num_workers=workers)
    plan = [digits.epoch_of(plain if make is ours else plain.sampler, epoch) for epoch in range(3)]
    accelerator = Accelerator(cpu=True)
    model = digits.network()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5), plain)
    losses: list[float] = []
    trained: list[list[list[int]]] = []
    for epoch in range(3):
        trained.append([])
        for images, labels in loader:
            loss = cross_entropy(model(images["pixels"]), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
            trained[epoch].append(images["sample"].tolist())
    if make is ours:
        assert trained == plan
    else:
        assert [digits.flat(epoch) for epoch in trained] == [digits.flat(epoch) for epoch in plan]
    assert sum(losses[-5:]) < sum(losses[:5]) / 2


@pytest.mark.parametrize("how", ["stock", "ours"])
def test_two_ranks_share_each_epoch(ranks: Callable[..., list[str]], how: str) -> None:
    told = [json.loads(line) for line in ranks("accelerate_program.py", how)]
    assert told[0]["weights"] == told[1]["weights"]
    for epoch in range(2):
        shares = [digits.flat(one["trained"][epoch]) for one in told]
        assert set(shares[0]) | set(shares[1]) == set(range(digits.COUNT))
        assert len(shares[0]) == len(shares[1])
        assert len(shares[0] + shares[1]) - digits.COUNT < 2 * digits.BATCH
    assert told[0]["trained"][0] != told[0]["trained"][1], "the second epoch has another order"


@pytest.mark.parametrize("at", [7, 19, 26])
def test_a_saved_state_goes_on_at_the_batch_with_our_loader(data: Any, tmp_path: Path, at: int) -> None:
    plan = [batch for epoch in range(3) for batch in digits.epoch_of(ours(data), epoch)]
    accelerator = Accelerator(cpu=True)
    loader = ours(data)
    accelerator.prepare(digits.network())
    accelerator.register_for_checkpointing(loader)
    found: list[list[int]] = []
    while len(found) < at:
        for images, _ in loader:
            found.append(images["sample"].tolist())
            if len(found) == at:
                break
    accelerator.save_state(str(tmp_path / "state"))

    resumed = Accelerator(cpu=True)
    loader = ours(data, num_workers=2)
    resumed.prepare(digits.network())
    resumed.register_for_checkpointing(loader)
    resumed.load_state(str(tmp_path / "state"))
    while len(found) < len(plan):
        found += pass_over(loader)
    assert found == plan


@pytest.mark.parametrize("make", [stock, ours])
def test_skipped_first_batches_are_skipped(data: Any, make: Any) -> None:
    accelerator = Accelerator(cpu=True)
    plain = make(data)
    plan = digits.flat(digits.epoch_of(plain if make is ours else plain.sampler, 0))
    skipped = accelerator.skip_first_batches(accelerator.prepare(plain), 5)
    assert digits.flat(pass_over(skipped)) == plan[5 * digits.BATCH :]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [7, 26])
def test_accelerates_stateful_loader_resumes_over_our_dataset_and_sampler(data: Any, at: int, workers: int) -> None:
    """Its state doesn't say in which epoch it was taken, so that has to be said, whatever the sampler."""

    def made() -> Any:
        configuration = DataLoaderConfiguration(use_stateful_dataloader=True)
        return Accelerator(cpu=True, dataloader_config=configuration).prepare(stock(data, num_workers=workers))

    whole = [digits.epoch_of(Sampler(data, seed=1, batch_size=digits.BATCH), epoch) for epoch in range(3)]
    loader = made()
    found: list[list[int]] = []
    state = None
    while state is None:
        for images, _ in loader:
            found.append(images["sample"].tolist())
            if len(found) == at:
                state = loader.state_dict()
                break
    other = made()
    other.load_state_dict(state)
    other.iteration = at // 19
    while len(found) < 3 * 19:
        found += pass_over(other)
    assert found == [batch for epoch in whole for batch in epoch]
