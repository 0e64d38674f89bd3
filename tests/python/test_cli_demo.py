"""The demo runs, and shows what it promises: equal losses, two lines changed, no request after the first epoch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

for needed in ("torch", "boto3", "sklearn", "skimage", "matplotlib"):
    pytest.importorskip(needed)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
def test_the_demo_trains_both_ways_with_equal_losses(tmp_path: Path) -> None:
    arguments = ["--quick", "--plot", str(tmp_path / "plot.png"), "--json", str(tmp_path / "runs.json")]
    command = [sys.executable, str(ROOT / "examples/demo.py"), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    found = json.loads((tmp_path / "runs.json").read_text())
    stock, ours = found["runs"]["torch"], found["runs"]["foreload"]
    assert [epoch["losses"] for epoch in stock] == [epoch["losses"] for epoch in ours]
    assert len(stock) == 2
    assert [epoch["requests"] for epoch in stock] == [found["objects"]] * 2
    assert ours[0]["requests"] < 1.1 * found["objects"]
    assert ours[1]["requests"] == 0
    assert sum(epoch["stall_s"] for epoch in ours) < sum(epoch["stall_s"] for epoch in stock)
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"
    assert ran.stdout.splitlines()[-1].startswith("Two lines changed")


def test_the_two_training_scripts_differ_in_two_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import demo

    changed = [line[0] for line in demo.difference()]
    assert (changed.count("-"), changed.count("+")) == (2, 2)
