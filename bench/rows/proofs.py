"""Figures that other programs prove: the property tests, and the scheduler's benchmark."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from bench.registry import Result
from bench.stage import ROOT, Stage

_RUST = ["cargo", "test", "-p", "foreload-plan", "--release"]
_PYTHON = ["tests/python", "-q", "-k", "resum or exactly_once or elastic or checkpoint"]


def _run(command: list[str]) -> tuple[int, str]:
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ))
    return ran.returncode, ran.stdout + ran.stderr


def exactly_once(stage: Stage) -> Result:
    """Each sample once, and the same remainder after every restore: the properties' tests."""
    result = Result()
    for name, command in {"plan": _RUST, "python": [sys.executable, "-m", "pytest", *_PYTHON]}.items():
        status, output = _run(command)
        passed, failed = (
            sum(int(number) for number in re.findall(rf"(\d+) {word}", output)) for word in ("passed", "failed")
        )
        result.read(f"{name}: tests passed", float(passed))
        result.read(f"{name}: tests failed", float(max(failed, 1 if status else 0)))
        result.raw[name] = output[-4000:]
    result.settings = {"plan": " ".join(_RUST), "python": "pytest " + " ".join(_PYTHON)}
    return result


def scheduler(stage: Stage) -> Result:
    """Nanoseconds of the scheduler for each sample; a billion rows, once, stand beside what the bar reads."""
    result = Result()
    bench = ["cargo", "bench", "-p", "foreload-plan", "--bench", "scheduler", "--"]
    found: dict[str, list[float]] = {}
    for cases in [["objects", "shards"]] * stage.amount(stage.pairs, 1) + [["billion"]]:
        status, output = _run([*bench, *cases])
        if status:
            result.invalid = f"the benchmark of {' and '.join(cases)} ended with {status}: {output[-400:]}"
            return result
        for name, nanoseconds in re.findall(r"^(.+?epoch \d+):\s+(\d+) ns per sample", output, re.MULTILINE):
            found.setdefault(" ".join(name.split()), []).append(float(nanoseconds))
    for name, values in found.items():
        result.read(name, *values, unit="ns/sample")
    barred = [values for name, values in found.items() if "billion" not in name]
    result.read("worst case", *[max(values) for values in zip(*barred, strict=True)], unit="ns/sample")
    result.settings = {"command": " ".join([*bench, "objects", "shards"]), "samples": "10^6; CPU time of one thread"}
    return result
