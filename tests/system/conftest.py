"""A bucket of small and odd objects, and an agent for each test (`home`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bucket import Bucket
from home import home, pytest_runtest_makereport

from objects import fixed
from small import CLASSES, COUNT

__all__ = ["home", "pytest_runtest_makereport"]


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`s3://data/fixed/CLASS/NUMBER.bin`, of 30,000 bytes each."""
    root = tmp_path_factory.mktemp("bucket")
    for number in range(COUNT):
        path = root / "data" / "fixed" / CLASSES[number % 3] / f"{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(fixed(number))
    with Bucket(directory=root) as running:
        yield running
