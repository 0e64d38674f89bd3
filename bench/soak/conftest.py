"""A bucket of odd objects, and an agent for each test (`home`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bucket import Bucket
from home import home, pytest_runtest_makereport

from small import CLASSES, COUNT, content

__all__ = ["home", "pytest_runtest_makereport"]


@pytest.fixture
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`s3://data/train/CLASS/NUMBER.bin` of odd sizes."""
    root = tmp_path_factory.mktemp("bucket")
    for number in range(COUNT):
        path = root / "data" / "train" / CLASSES[number % 3] / f"{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number))
    with Bucket(directory=root) as running:
        yield running
