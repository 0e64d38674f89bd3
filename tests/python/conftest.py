"""A bucket with a small data set, and an agent for each test that leaves nothing behind (`home`)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from bucket import Bucket
from home import Home, home, pytest_runtest_makereport

from small import CLASSES, COUNT, content

__all__ = ["home", "pytest_runtest_makereport"]


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`train/CLASS/NUMBER.bin` of odd sizes, `fixed/...` of 30,000 bytes each, `flat/...` without classes."""
    root = tmp_path_factory.mktemp("bucket") / "data"
    for number in range(COUNT):
        for name, data in (("train", content(number)), ("fixed", random.Random(number).randbytes(30_000))):
            path = root / name / CLASSES[number % 3] / f"{number:05}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    (root / "flat").mkdir()
    for number in range(10):
        (root / "flat" / f"{number}.txt").write_bytes(b"%d" % number)
    with Bucket(directory=root.parent) as running:
        yield running


@pytest.fixture
def data(home: Home) -> Any:
    """The small data set."""
    import foreload

    return foreload.open("s3://data/train")
