"""Torchvision's data sets keep everything of their own but the reading of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader, Sampler, wrap

folder = pytest.importorskip("torchvision.datasets.folder", reason="torchvision is not installed")
TINY = fl.Cache(ram="32MB")


def to_tensor(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image))


def negative(target: int) -> int:
    return -target


def read_path(path: str) -> bytes:
    return Path(path).read_bytes()


@pytest.fixture
def images(tmp_path: Path, home: Any) -> Path:
    from PIL import Image

    for number in range(40):
        path = tmp_path / "images" / f"class{number % 4}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "images"


def test_items_are_what_the_data_set_makes(images: Path) -> None:
    plain = folder.ImageFolder(images, transform=to_tensor, target_transform=negative)
    wrapped = wrap(plain, cache=TINY)
    assert len(wrapped) == 40
    assert wrapped.targets == plain.targets
    assert wrapped.classes == plain.classes
    for at in (0, 7, 39):
        assert torch.equal(wrapped[at][0], plain[at][0])
        assert wrapped[at][1] == plain[at][1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ours", [True, False])
def test_loaders_give_the_same_batches(images: Path, workers: int, ours: bool) -> None:
    plain = folder.ImageFolder(images, transform=to_tensor)
    wrapped = wrap(plain, cache=TINY)
    generator = torch.Generator().manual_seed(3)
    stock: Any = torch_data.DataLoader(plain, 8, shuffle=True, generator=generator)
    if ours:
        loader: Any = DataLoader(wrapped, 8, shuffle=True, order="torch", seed=3, num_workers=workers)
    else:
        generator = torch.Generator().manual_seed(3)
        stock = torch_data.DataLoader(plain, 8, sampler=torch_data.RandomSampler(plain, generator=generator))
        loader = torch_data.DataLoader(wrapped, 8, sampler=Sampler(wrapped, seed=3, order="torch"), num_workers=workers)
    for _ in range(2):
        for (values, targets), (right, right_targets) in zip(loader, stock, strict=True):
            assert torch.equal(values, right)
            assert torch.equal(targets, right_targets)


def test_a_loader_of_ones_own_gets_a_path_and_a_subset_keeps_its_order(images: Path) -> None:
    plain = folder.DatasetFolder(images, read_path, extensions=("png",))
    plain.samples = plain.samples[::-3]
    wrapped = wrap(plain, cache=TINY)
    assert [wrapped[at] for at in range(len(plain))] == [plain[at] for at in range(len(plain))]


def test_what_the_wrapped_one_decides_is_not_the_loaders(images: Path) -> None:
    wrapped = wrap(folder.ImageFolder(images, transform=to_tensor), cache=TINY)
    with pytest.raises(errors.InvalidError, match=r"transform=.*or to wrap"):
        DataLoader(wrapped, 8, transform=to_tensor)


def test_other_data_sets_are_refused_with_the_remedy(home: Any) -> None:
    with pytest.raises(errors.InvalidError, match="decode="):
        wrap([1, 2, 3])
