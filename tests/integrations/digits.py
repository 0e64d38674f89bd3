"""What the frameworks are tested with: scikit-learn's digits as PNG objects, and the smallest network that learns them.

Each item carries its sample's number along, so that a test can say which samples a framework really trained on, in which order.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import foreload as fl

COUNT = 300
BATCH = 16
CACHE = fl.Cache(ram="32MB")


def write(root: Path) -> None:
    """`digits/CLASS/NUMBER.png`."""
    from PIL import Image
    from sklearn.datasets import load_digits

    found = load_digits()
    for number in range(COUNT):
        path = root / "digits" / str(found.target[number]) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((found.images[number] * 15.9375).astype(np.uint8)).save(path)


def pixels(raw: memoryview) -> np.ndarray[Any, Any]:
    """64 numbers from 0 to 1."""
    from PIL import Image

    with Image.open(io.BytesIO(raw)) as image:
        return np.asarray(image, dtype=np.float32).reshape(64) / 255


def decode(raw: memoryview, meta: fl.Meta) -> dict[str, Any]:
    """An image with its sample's number."""
    return {"pixels": torch.from_numpy(pixels(raw)), "sample": meta.sample}


def network() -> nn.Module:
    """Always the same to begin with."""
    torch.manual_seed(0)
    return nn.Linear(64, 10)


def epoch_of(loader: Any, epoch: int) -> list[list[int]]:
    """The batches that the plan has for an epoch, on this rank."""
    run = loader.run
    run = run() if callable(run) else run
    return [list(run.plan.batch(epoch, batch, run.rank)) for batch in range(run.plan.batches)]


def flat(batches: Iterable[Iterable[int]]) -> list[int]:
    """One list of all."""
    return [sample for batch in batches for sample in batch]
