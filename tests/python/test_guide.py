"""What the guide shows about Python is Python, with keywords that exist."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload import torch as ft

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"
PAGES = ("quickstart", "torch", "resume", "distributed", "frameworks")
CALLS: dict[str, Any] = {
    "fl.open": fl.open,
    "fl.Cache": fl.Cache,
    "fl.NumpyLoader": fl.NumpyLoader,
    "fl.skip": fl.skip,
    "DataLoader": ft.DataLoader,
    "Dataset": ft.Dataset,
    "Sampler": ft.Sampler,
    "wrap": ft.wrap,
}


def blocks(page: str) -> Iterator[str]:
    for found in re.finditer(r"^```python\n(.*?)^```", (GUIDE / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL):
        yield found[1]


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_the_guide_call_what_exists(page: str) -> None:
    called = 0
    for block in blocks(page):
        for node in ast.walk(ast.parse(block)):
            function = CALLS.get(ast.unparse(node.func)) if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Call) and function is not None:
                keywords = {word.arg: None for word in node.keywords if word.arg}
                inspect.signature(function).bind_partial(*node.args, **keywords)
                called += 1
    assert called or page == "resume"


@pytest.mark.parametrize("page", PAGES)
def test_orders_and_options_in_tables_are_known(page: str) -> None:
    from foreload._order import NAMES

    text = (GUIDE / f"{page}.md").read_text()
    assert set(re.findall(r'order="([\w-]+)"', text)) <= set(NAMES)
    assert set(re.findall(r'uneven="(\w+)"', text)) <= {"pad", "weights"}
