"""What the guide shows about Python is Python, with keywords that exist; what it shows about simulations runs."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from command import Command
from foreload import torch as ft

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"
SIMULATED = ("simulate", "cost")
PAGES = ("quickstart", "torch", "resume", "distributed", "frameworks")
CALLS: dict[str, Any] = {
    "fl.open": fl.open,
    "fl.Cache": fl.Cache,
    "fl.Mixture": fl.Mixture,
    "fl.Stream": fl.Stream,
    "fl.NumpyLoader": fl.NumpyLoader,
    "fl.skip": fl.skip,
    "DataLoader": ft.DataLoader,
    "Dataset": ft.Dataset,
    "Sampler": ft.Sampler,
    "wrap": ft.wrap,
}


def blocks(page: str, language: str = "python") -> Iterator[str]:
    for found in re.finditer(
        rf"^```{language}\n(.*?)^```", (GUIDE / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL
    ):
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
    from foreload._settings.order import NAMES

    text = (GUIDE / f"{page}.md").read_text()
    assert set(re.findall(r'order="([\w-]+)"', text)) <= set(NAMES)
    assert set(re.findall(r'uneven="(\w+)"', text)) <= {"pad", "weights"}


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The guide's scenario with a thousandth of its samples, in the working directory."""
    (text,) = blocks("simulate", "toml")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "openimages-4.toml"
    assert "samples = 1743042\n" in text
    path.write_text(text.replace("samples = 1743042\n", "samples = 1743\n"))
    return path


@pytest.mark.parametrize("page", SIMULATED)
def test_what_the_guide_simulates_runs(
    page: str,
    scenario: Path,
    data: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("matplotlib")
    run = Command(capsys, monkeypatch)
    commands = [
        line for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ foreload ")
    ]
    assert any(scenario.name in line for line in commands)
    for line in commands:
        assert run(*shlex.split(line)[2:]) == 0, run.err
    loader = fl.NumpyLoader(data, 16, cache=fl.Cache(ram="32MB"))
    for _ in loader:
        pass
    known: dict[str, Any] = {"loader": loader}
    for block in blocks(page):
        exec(block, known)
    assert known["usage"].class_b_requests > 0 if page == "cost" else Path("upgrade.png").stat().st_size > 0
