"""transformers' Trainer: with our Dataset under its own sampler, and with our loader in place of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import digits
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

from foreload.torch import DataLoader, Dataset, Sampler


class Learner(nn.Module):
    """Takes and returns what the Trainer expects, and remembers what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.network = digits.network()
        self.trained: list[list[int]] = []
        self.losses: list[float] = []

    def forward(self, pixels: Any, labels: Any, sample: Any) -> dict[str, Any]:
        loss = cross_entropy(self.network(pixels), labels)
        if self.training:
            self.trained.append(sample.tolist())
            self.losses.append(loss.item())
        return {"loss": loss}


def collate(items: list[Any]) -> dict[str, Any]:
    """From (item, label) pairs to keyword arguments of the model."""
    return {
        "pixels": torch.stack([item["pixels"] for item, _ in items]),
        "sample": torch.tensor([item["sample"] for item, _ in items]),
        "labels": torch.tensor([label for _, label in items]),
    }


class SamplerTrainer(Trainer):
    """Has our sampler in place of its own, so that the agent can read ahead."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return Sampler(self.train_dataset, seed=1, sharding="external")


class LoaderTrainer(Trainer):
    """Has our loader in place of its own."""

    def get_train_dataloader(self) -> Any:
        settings: Any = {"shuffle": True, "seed": 1, "collate_fn": collate}
        return DataLoader(
            self.train_dataset,
            self.args.per_device_train_batch_size,
            num_workers=self.args.dataloader_num_workers,
            **settings,
        )


def make(kind: type[Trainer], data: Any, directory: Path, workers: int = 0, **keywords: Any) -> Any:
    settings: dict[str, Any] = {
        "output_dir": str(directory),
        "num_train_epochs": 3,
        "per_device_train_batch_size": digits.BATCH,
        "learning_rate": 0.5,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
        "dataloader_num_workers": workers,
    }
    return kind(
        model=Learner(),
        args=TrainingArguments(**{**settings, **keywords}),
        train_dataset=Dataset(data, decode=digits.decode, cache=digits.CACHE),
        data_collator=collate,
    )


def planned(data: Any) -> list[list[int]]:
    sampler = Sampler(data, seed=1, batch_size=digits.BATCH)
    return [batch for epoch in range(3) for batch in digits.epoch_of(sampler, epoch)]


@pytest.mark.parametrize("workers", [0, 2])
def test_our_dataset_trains_under_the_trainers_own_sampler(data: Any, tmp_path: Path, workers: int) -> None:
    trainer = make(Trainer, data, tmp_path, workers)
    trainer.train()
    trained = trainer.model.trained
    for epoch in range(3):
        assert sorted(digits.flat(trained[epoch * 19 : (epoch + 1) * 19])) == list(range(digits.COUNT))
    assert trained[:19] != trained[19:38]
    assert sum(trainer.model.losses[-5:]) < sum(trainer.model.losses[:5]) / 2


@pytest.mark.parametrize("kind", [SamplerTrainer, LoaderTrainer])
@pytest.mark.parametrize("workers", [0, 2])
def test_our_order_is_trained_on_as_planned(data: Any, tmp_path: Path, kind: Any, workers: int) -> None:
    trainer = make(kind, data, tmp_path, workers)
    trainer.train()
    assert trainer.model.trained == planned(data)
    assert sum(trainer.model.losses[-5:]) < sum(trainer.model.losses[:5]) / 2


@pytest.mark.parametrize("kind", [Trainer, SamplerTrainer, LoaderTrainer])
@pytest.mark.parametrize("at", [7, 26])
def test_a_checkpoint_goes_on_at_the_batch(data: Any, tmp_path: Path, kind: Any, at: int) -> None:
    undisturbed = make(kind, data, tmp_path / "undisturbed")
    undisturbed.train()
    begun = make(kind, data, tmp_path / "begun", max_steps=at, save_strategy="steps", save_steps=at)
    begun.train()
    resumed = make(kind, data, tmp_path / "begun")
    resumed.train(resume_from_checkpoint=str(tmp_path / "begun" / f"checkpoint-{at}"))
    assert begun.model.trained + resumed.model.trained == undisturbed.model.trained
    assert begun.model.losses + resumed.model.losses == undisturbed.model.losses


@pytest.mark.parametrize("kind", ["sampler", "loader"])
def test_two_ranks_share_each_epoch(ranks: Callable[..., list[str]], kind: str) -> None:
    told = [json.loads(line) for line in ranks("transformers_program.py", kind)]
    assert told[0]["weights"] == told[1]["weights"]
    steps = len(told[0]["trained"]) // 3
    for epoch in range(3):
        shares = [digits.flat(one["trained"][epoch * steps : (epoch + 1) * steps]) for one in told]
        assert set(shares[0]) | set(shares[1]) == set(range(digits.COUNT))
        assert len(shares[0]) == len(shares[1])
