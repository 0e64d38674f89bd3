"""A loader after an equal one that is gone."""

from __future__ import annotations

from typing import Any

import pytest

import foreload as fl
from foreload.torch import DataLoader
from small import COUNT


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_after_an_equal_one_that_is_gone_reads_as_the_first(home: Any, workers: int) -> None:
    data = fl.open("s3://data/fixed")

    def read(**keywords: Any) -> list[bytes]:
        loader = DataLoader(data, 16, shuffle=True, seed=1, cache=fl.Cache(ram="16MB"), **keywords)
        return [value for values, _ in loader for value in values]

    first = read()
    assert len(first) == COUNT
    assert read(num_workers=workers) == first
