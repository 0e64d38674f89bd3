"""A test that needs something is skipped aloud, or fails where the run requires it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import servers

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"


def run_with(tmp_path: Path, required: str, more: str = "") -> subprocess.CompletedProcess[str]:
    """Runs one test that needs `lacking`, which no machine has."""
    (tmp_path / "conftest.py").write_text(
        CONFTEST.read_text() + f"\nNEEDS['lacking'] = lambda: 'not to be had'\n{more}\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = needs(name): see conftest\n")
    (tmp_path / "test_one.py").write_text(
        "import pytest\n\n\n@pytest.mark.needs('lacking')\ndef test_one() -> None:\n    pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {**os.environ, "FORELOAD_REQUIRE": required, "PYTHONPATH": str(CONFTEST.parent)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)


def conftest_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("conftest_of_tests", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_unmet_need_is_skipped_aloud(tmp_path: Path) -> None:
    done = run_with(tmp_path, "")
    assert done.returncode == 0
    assert "needs lacking: not to be had" in done.stdout


def test_an_unmet_need_fails_where_it_is_required(tmp_path: Path) -> None:
    done = run_with(tmp_path, "lacking")
    assert done.returncode == 1
    assert "FORELOAD_REQUIRE names lacking, but: not to be had" in done.stdout


def test_an_unknown_requirement_is_refused(tmp_path: Path) -> None:
    done = run_with(tmp_path, "fusee")
    assert done.returncode != 0
    assert "unknown fusee" in done.stdout + done.stderr


def test_a_disk_without_room_is_told_before_anything_runs(tmp_path: Path) -> None:
    done = run_with(tmp_path, "", "ROOM = 1 << 60")
    assert done.returncode == 4
    assert re.search(r"has \d+\.\d GB free, and the tests need \d+: make room, or set TMPDIR", done.stderr)


def test_a_server_that_is_not_installed_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "program", lambda name: None)
    for name in servers.KINDS:
        assert conftest_of(CONFTEST).NEEDS[name]() == f"not installed (tools/servers.sh {name})"


@pytest.mark.needs("root", "fuse")
def test_needs_may_be_stated_together() -> None:
    assert os.geteuid() == 0


def test_every_need_is_known_and_in_the_reference_those_of_tests_in_rust_too() -> None:
    root = CONFTEST.parents[1]
    known = set(conftest_of(CONFTEST).NEEDS)
    sources = [path.read_text() for path in (root / "crates").glob("**/*.rs") if "target" not in path.parts]
    asked = {
        need for text in sources if "FORELOAD_REQUIRE" in text for need in re.findall(r'trim\(\) == "(\w+)"', text)
    }
    assert {"fuse", "odirect", "userns"} <= asked <= known
    row = next(
        line for line in (root / "docs/reference/build.md").read_text().splitlines() if "FORELOAD_REQUIRE" in line
    )
    assert re.findall(r"`([\w-]+)`", row)[1:] == sorted(known)
