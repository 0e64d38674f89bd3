"""What benchmarks record about the machine, what they leave out, and when a figure passes."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from small import COUNT

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


registry = load("bench.registry")


def measured(*readings: tuple[str, list[float]], invalid: str | None = None) -> Any:
    result = registry.Result(invalid=invalid)
    for name, values in readings:
        result.read(name, *values)
    return result


def test_a_figure_passes_only_with_all_of_its_bars_measured_and_met() -> None:
    figure = registry.Figure("f", "a claim", {"low": registry.Bar(most=2), "high": registry.Bar(least=3)}, measured)
    for low, high, verdict in (
        ([2.0], [3.0], "pass"),
        # The median counts: neither the best, nor the mean.
        ([0.1, 2.1, 2.2], [3.0], "fail"),
        ([1.9, 2.0, 90.0], [0.0, 3.0, 3.1], "pass"),
        ([2.0], [2.9], "fail"),
        ([2.0], [], "not measured"),
        ([2.1], [], "fail"),
    ):
        assert registry.verdict(figure, measured(("low", low), ("high", high))) == verdict, (low, high)
    met = ("low", [1.0]), ("high", [4.0])
    assert registry.verdict(figure, measured(met[0])) == "not measured"
    assert registry.verdict(figure, measured(("else", [1.0]), met[0])) == "not measured"
    assert registry.verdict(figure, measured(*met, invalid="a neighbour worked")) == "not measured"
    assert registry.verdict(registry.Figure("f", "no bar", {}, measured), measured(*met)) == "not measured"


@pytest.mark.parametrize("flaw", ["", "too slow", "raises", "left out", "quick"])
def test_the_table_fails_with_a_figure_and_never_passes_what_was_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], flaw: str
) -> None:
    figures = load("bench.figures")

    def measure(_: Any) -> Any:
        if flaw == "raises":
            raise OSError("no room")
        return measured(("ms" if flaw != "left out" else "s", [30.0 if flaw == "too slow" else 3.0]))

    figure = registry.Figure("one", "a claim", {"ms": registry.Bar(most=10)}, measure)
    monkeypatch.setattr(figures, "FIGURES", [figure])
    written: list[Any] = []
    monkeypatch.setattr(figures, "write", lambda *found: written.append(found))
    status = figures.main(["one", "--json", *(["--quick"] if flaw == "quick" else [])])
    [told] = json.loads(capsys.readouterr().out)
    assert told["verdict"] == {"": "pass", "too slow": "fail"}.get(flaw, "not measured")
    assert (status, len(written)) == (int(flaw in {"too slow", "raises"}), int(flaw != "quick"))
    assert told["invalid"] == {"raises": "it failed: OSError: no room", "quick": "a quick run"}.get(flaw)
    text = figures.as_markdown(figure, measured(("ms", [3.0, 4.0, 50.0])), told)
    assert "| ms | 4 | 3 .. 50 (3) | <= 10 | pass |" in text


def test_what_another_commit_brought_on_the_same_day_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures = load("bench.figures")
    figure = registry.Figure("one", "a claim", {"ms": registry.Bar(most=10)}, measured)
    for commit, value in (("a" * 12, 30.0), ("a" * 12, 20.0), ("b" * 12, 5.0)):
        monkeypatch.setattr(figures.machine, "commit", lambda _, commit=commit: commit)
        figures.write(figure, measured(("ms", [value])), tmp_path)
    found = {path.name[11:]: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    medians = {name: (whole["verdict"], whole["readings"][0]["median"]) for name, whole in found.items()}
    assert medians == {"one.json": ("fail", 20.0), "one-bbbbbbb.json": ("pass", 5.0)}
    assert len(list(tmp_path.glob("*.md"))) == 2


def count_memory() -> None:
    before = machine.memory_bytes([os.getpid()])
    file = os.memfd_create("held")
    try:
        os.ftruncate(file, 64 << 20)
        at = 0
        while at < 32 << 20:
            at += os.pwrite(file, bytes(1 << 20), at)
        held = machine.memory_bytes([os.getpid()]) - before
        assert abs(held - (32 << 20)) < 4 << 20
        child = os.fork()
        if child == 0:
            signal.pause()
        both = machine.memory_bytes([os.getpid(), child]) - before
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert abs(both - (32 << 20)) < 8 << 20
    finally:
        os.close(file)


def test_memory_is_counted_once_though_shared_and_also_where_nobody_has_mapped_it() -> None:
    # In a process that shares little with others, whose ends would change its share.
    counts = f"import os, signal\nfrom bench import machine\n{inspect.getsource(count_memory)}\ncount_memory()"
    subprocess.run([sys.executable, "-c", counts], cwd=ROOT, check=True)


@pytest.mark.parametrize("most", range(9))
def test_the_most_accelerators_that_are_fed_are_found_and_nobody_runs_twice(most: int) -> None:
    mlperf = load("bench.mlperf.__main__")
    ran: list[int] = []

    def epochs_of(count: int) -> list[dict[str, float]]:
        ran.append(count)
        # The first epoch is as good as the second, or there is no utilisation.
        return [{"au": 0.9 if count <= most else 0.5}, {"au": 0.99}]

    fed, tried = mlperf.most_fed(mlperf.LOADS["retinanet"], epochs_of, 6)
    assert fed == min(most, 6)
    assert sorted(tried) == sorted(ran)
    assert max(ran) <= 6


def test_emulated_accelerators_read_each_their_share_or_say_what_went_wrong(
    home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The accelerators' processes look where this one does.
    monkeypatch.syspath_prepend(str(ROOT))
    emulated = load("bench.mlperf.__main__").emulated
    task = load("bench.mlperf.accelerator").Task("s3://data/fixed", 2, 10, 0.01, epochs=2, ram="32MB", checks=True)
    epochs = emulated(task)
    assert [epoch["steps"] for epoch in epochs] == [COUNT // 20] * 2
    assert all(0 < epoch["least_au"] <= epoch["au"] < 1 for epoch in epochs)
    with pytest.raises(RuntimeError, match=r"accelerator [01]: InvalidError: .*use a smaller batch"):
        emulated(replace(task, batch=100_000))
    with pytest.raises(RuntimeError, match=r"NotFoundError: .*nothing is there"):
        emulated(replace(task, url="s3://data/absent"))


def test_the_time_to_a_rate_is_when_the_next_batches_come_at_it() -> None:
    """Ten batches a second for two seconds, then a hundred: nine tenths of a hundred are reached when that begins."""
    faults = load("bench.rows.faults")
    slow = [0.1 * number for number in range(1, 21)]
    fast = [2.0 + 0.01 * number for number in range(1, 401)]
    assert faults.until(slow + fast, 0.9) == pytest.approx(2.0, abs=0.03)
    assert faults.until(fast, 0.9) == pytest.approx(2.0, abs=0.03)
    assert faults.until([0.01 * number for number in range(1, 101)], 0.9) == 0.0


@pytest.mark.parametrize("workload", ["mnist", "cifar"])
def test_the_setups_of_delis_experiment_are_the_papers_and_ours_and_have_names_of_their_own(workload: str) -> None:
    deli = load("bench.papers.deli")
    for scale in (1, 10):
        setups = deli.setups(deli.WORKLOADS[workload], scale)
        names = [setup.name for setup in setups]
        assert len(set(names)) == len(names)
        assert {setup.door for setup in setups} == {"disk", "direct", "deli", "default"}
        best = next(setup for setup in setups if setup.name == deli.fifty(deli.WORKLOADS[workload], scale))
        assert (best.cache, best.fetch, best.threshold) == tuple(round(n / scale) for n in (2048, 1024, 1024))
    assert [setup.name for setup in setups if setup.peers] == ["default, peers"]


def test_less_loading_time_is_that_of_both_epochs() -> None:
    deli = load("bench.papers.deli")
    runs = {
        name: [{"epochs": [{"load_s": a, "miss": 0.0}, {"load_s": b, "miss": 0.0}]}]
        for name, a, b in (("direct", 60.0, 40.0), ("default", 0.6, 0.4))
    }
    assert deli.less(runs, "default") == pytest.approx(99.0)
    assert deli.less(runs, "disk") is None


def test_the_runs_of_paper_003_have_names_of_their_own_and_sizes_that_fit() -> None:
    mapped = load("bench.papers.mapped")
    from foreload._mapped import preload

    runs = mapped.planned(["four", "sweep", "processes"])
    assert len({(run.part, run.name) for run in runs}) == len(runs)
    assert {run.part for run in runs} == {"four", "sweep", "processes"}
    for distance, size in mapped.SWEEP:
        preload.check_detector("mprotect", None, distance << 20, size << 20)
    names = [run.name for run in mapped.planned(["four"])]
    assert {"baseline", "mprotect, detection only", "mprotect, prefetch", "poll, prefetch", "warm cache"} <= set(names)
    results = {
        "four": {
            name: [{"seconds": seconds, "fetched": 1.0}]
            for name, seconds in (("baseline", 30.0), ("mprotect, prefetch", 10.5), ("warm cache", 10.0))
        }
    }
    (line,) = (line for line in mapped.table(results) if "mprotect, prefetch" in line)
    assert "1.050" in line
    assert "-65%" in line
