"""The Lightning module of the tests: trains, and remembers what on."""

from __future__ import annotations

from typing import Any

import digits
import lightning
import torch
from torch.nn.functional import cross_entropy


class Learner(lightning.LightningModule):
    """Remembers the samples of each training step, by epoch, and of each validation step."""

    def __init__(self) -> None:
        super().__init__()
        self.network = digits.network()
        self.trained: dict[int, list[list[int]]] = {}
        self.validated: list[list[int]] = []
        self.losses: list[float] = []

    def training_step(self, batch: Any, number: int) -> Any:
        images, labels = batch
        loss = cross_entropy(self.network(images["pixels"]), labels)
        self.trained.setdefault(self.current_epoch, []).append(images["sample"].tolist())
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        images, labels = batch
        self.log("loss", cross_entropy(self.network(images["pixels"]), labels))
        self.validated.append(images["sample"].tolist())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def trainer(**keywords: Any) -> lightning.Trainer:
    """A silent one on the CPU."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return lightning.Trainer(**{**quiet, "enable_checkpointing": False, "devices": 1, **keywords})
