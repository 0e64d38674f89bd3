"""What benchmarks record about the machine, and what they leave out."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


machine = load("bench.machine")


def test_a_result_does_not_say_where_things_lie_on_the_machine() -> None:
    places = {
        "checkout": ROOT / "bench" / "rows",
        "packages": Path(sys.prefix) / "lib",
        "caches": Path.home() / ".cache",
    }
    printed = "; ".join(f"{name}: {path} and {path}" for name, path in places.items())
    kept = machine.without_paths(printed, ROOT)
    for directory in (ROOT, sys.prefix, Path.home()):
        assert str(directory) not in kept
    assert "checkout: ./bench/rows and ./bench/rows;" in kept
    assert "caches: ~/.cache" in kept
    assert machine.without_paths("3.2 s/epoch, https://example.org/a", ROOT) == "3.2 s/epoch, https://example.org/a"


def test_a_simulator_that_is_not_there_is_said_in_a_line() -> None:
    command = [sys.executable, ROOT / "bench" / "papers" / "run.py", "deli", "--sim", "/absent/foreload-sim"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "--sim /absent/foreload-sim can't be run: No such file or directory\n")
