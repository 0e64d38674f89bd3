"""Every usual way to load gives what torch's own loader gives over the same samples in memory: numbers, values, labels, order, draws.

A cell of the matrix is a loader (ours, torch's), a sampler, a number of workers and how they start, a collate function, and a data set. A run
tries a few cells, in which each two values of any two dimensions of the first group meet; `FORELOAD_TEST_MATRIX=full` tries the product.
"""

from __future__ import annotations

import io
import itertools
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data import default_collate
from torch.utils.data.distributed import DistributedSampler

import foreload as fl
from foreload.torch import DataLoader, Dataset, Sampler, wrap

datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")
v2 = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is not installed")

COUNT, SIZE, EPOCHS = 22, 4, 2
TINY = fl.Cache(ram="32MB")


def pixels(image: Any) -> torch.Tensor:
    """An image as numbers, with one that is drawn: an augmentation."""
    values = torch.from_numpy(np.array(image)).permute(2, 0, 1).float()
    values[2, 0, 0] = torch.rand(())
    return values


def decode(raw: Any) -> torch.Tensor:
    from PIL import Image

    return pixels(Image.open(io.BytesIO(raw)).convert("RGB"))


class Plain(torch_data.Dataset[Any]):
    """The same samples in memory."""

    def __init__(self, files: list[bytes], labels: list[int]) -> None:
        self.files, self.labels = files, labels

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        return decode(self.files[at]), self.labels[at]


def own(batch: list[Any]) -> dict[str, Any]:
    """What people write: it sorts, takes apart and asks for types."""
    assert type(batch) is list
    assert all(isinstance(pair, tuple) for pair in batch)
    batch.sort(key=lambda pair: -pair[1])
    last = batch.pop()
    batch = [last, *reversed(batch)]
    images, labels = zip(*batch, strict=True)
    return {"images": torch.stack(images), "labels": list(labels)}


def halved(batch: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = default_collate(batch)
    return images * 0.5, labels


def mixed(batch: list[Any]) -> Any:
    """Torchvision's recipe, of the same draws everywhere."""
    with torch.random.fork_rng():
        torch.manual_seed(len(batch))
        return v2.RandomChoice([v2.MixUp(num_classes=3), v2.CutMix(num_classes=3)])(*default_collate(batch))


COLLATES = {"default": None, "own": own, "over default": halved, "mixed": mixed}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


#: What is given as the order, of a data set.
SAMPLERS: dict[str, Any] = {
    "none": lambda _: {},
    "random": lambda data: {"sampler": torch_data.RandomSampler(data, generator=generator())},
    "unseeded": lambda data: {"sampler": torch_data.RandomSampler(data)},
    "sequential": lambda data: {"sampler": torch_data.SequentialSampler(data)},
    "distributed": lambda data: {"sampler": DistributedSampler(data, 2, 1, seed=3)},
    "weighted": lambda _: {"sampler": torch_data.WeightedRandomSampler([1.0, 3.0] * (COUNT // 2), 17)},
    "ours": lambda data: {
        "sampler": torch_data.RandomSampler(data, generator=generator())
        if isinstance(data, Plain)
        else Sampler(data, 1, 0, order="torch", seed=5)
    },
}

DIMENSIONS: dict[str, list[Any]] = {
    "loader": ["ours", "torch's"],
    "sampler": list(SAMPLERS),
    "workers": [0, "fork", "forkserver", "spawn"],
    "collate": list(COLLATES),
    "source": ["open", "wrap"],
}


def cells() -> list[tuple[Any, ...]]:
    whole = list(itertools.product(*DIMENSIONS.values()))
    if os.environ.get("FORELOAD_TEST_MATRIX") == "full":
        return whole
    dice = random.Random(3)
    # Starting a worker anew takes seconds: one cell for each way.
    slow = [cell for cell in whole if cell[2] in ("forkserver", "spawn")]
    chosen = [
        next(cell for cell in dice.sample(slow, len(slow)) if (cell[0], cell[2], cell[4]) == (loader, how, source))
        for how, loader, source in (("forkserver", "torch's", "wrap"), ("spawn", "ours", "open"))
    ]
    quick = [cell for cell in whole if cell[2] in (0, "fork")]
    left = {pair for cell in quick for pair in itertools.combinations(enumerate(cell), 2)}
    while left:
        best = max(dice.sample(quick, len(quick)), key=lambda cell: len(left & pairs_of(cell)))
        chosen.append(best)
        left -= pairs_of(best)
    return chosen


def pairs_of(cell: tuple[Any, ...]) -> set[Any]:
    return set(itertools.combinations(enumerate(cell), 2))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    root = tmp_path_factory.mktemp("matrix") / "images"
    for number in range(COUNT):
        path = root / f"class{number % 3}" / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
        values[0, 0, 0] = number
        Image.fromarray(values).save(path)
    return root


def epochs_of(loader: Any) -> list[list[Any]]:
    torch.manual_seed(11)
    found = []
    for epoch in range(EPOCHS):
        if hasattr(loader.sampler, "set_epoch"):
            # Not from 0, as where a model's checkpoint is gone on with.
            loader.sampler.set_epoch(
                epoch + 4
                if isinstance(loader.sampler, DistributedSampler) and type(loader.sampler) is not Sampler
                else epoch
            )
        found.append(list(loader))
    return found


def drawn(batch: Any) -> torch.Tensor:
    """The numbers that were drawn; they are gone from the batch then."""
    values = batch["images"] if isinstance(batch, dict) else batch[0]
    numbers = values[:, 2, 0, 0].clone()
    values[:, 2, 0, 0] = 0
    return numbers


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict) and one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
        )
    if isinstance(one, (list, tuple)):
        same = isinstance(other, type(one)) and len(one) == len(other)
        return same and all(itertools.starmap(equal, zip(one, other, strict=True)))
    return bool(one == other)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("loader", "sampler", "workers", "collate", "source"), cells())
def test_a_loader_gives_what_torchs_gives_over_samples_in_memory(
    home: Any, images: Path, loader: str, sampler: str, workers: Any, collate: str, source: str
) -> None:
    folder = datasets.ImageFolder(images, transform=pixels)
    plain = Plain([Path(path).read_bytes() for path, _ in folder.samples], folder.targets)
    given: dict[str, Any] = {"collate_fn": COLLATES[collate], "num_workers": 2 if workers else 0}
    how = {"multiprocessing_context": workers} if workers else {}
    reference: Any = torch_data.DataLoader(plain, SIZE, **given, **SAMPLERS[sampler](plain))
    expected = epochs_of(reference)

    data = fl.open(images)
    samples: Any = wrap(folder, cache=TINY) if source == "wrap" else Dataset(data, decode=decode, cache=TINY)
    kind: Any = DataLoader if loader == "ours" else torch_data.DataLoader
    # What our loader decodes in threads would draw from everybody's random numbers.
    more = {"threads": 0} if loader == "ours" else {}
    ours = kind(samples, SIZE, **given, **how, **more, **SAMPLERS[sampler](samples))
    assert len(ours) == len(reference)
    found = epochs_of(ours)

    noise: list[list[torch.Tensor]] = []
    for batches, right in zip(found, expected, strict=True):
        assert len(batches) == len(right)
        noise.append([drawn(batch) for batch in batches])
        wanted = [drawn(batch) for batch in right]
        if loader == "torch's" and sampler != "ours":
            # Nobody but torch decides what its workers draw.
            assert all(map(torch.equal, noise[-1], wanted))
        assert all(map(equal, batches, right))
    assert not set(torch.cat(noise[0]).tolist()) & set(torch.cat(noise[1]).tolist()), "each epoch draws anew"
