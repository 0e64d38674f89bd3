"""Plans, speeds and calibrations: what they say, and that they agree with the simulator."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bucket import Bucket

import foreload
from command import Command
from foreload import speeds
from foreload._calibrate import calibration, source
from foreload._predict import planning
from foreload.errors import InvalidError, UnavailableError
from foreload.sim import simulate_text
from foreload.speeds import Disk, Speeds
from small import COUNT, tar_shard

#: 4,000 samples of 100 KB: 400 MB.
LENGTHS = np.full(4000, 100_000)
SLOW = Speeds(source_mb_s=50.0)


@pytest.fixture
def run(home: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


def planned(**changes: Any) -> planning.Plan:
    arguments: dict[str, Any] = {"ram": "2GB", "batch": 64, "step_time": 0.02, "epochs": 4, **changes}
    return foreload.plan(LENGTHS, **arguments)


def test_a_run_that_fits_memory_reads_the_bucket_once_and_then_computes() -> None:
    found = planned()
    assert (found.samples, found.dataset_bytes, found.nodes, found.epochs) == (4000, 400_000_000, 1, 4)
    assert (found.requests, found.epoch_requests, found.source_bytes) == (4000, 0, 400_000_000)
    assert found.epoch_s == pytest.approx(4000 / 64 * 0.02, rel=0.01)
    assert (found.limit, found.coverage) == ("computing", 1.0)
    assert found.steady_stall_share < 0.01
    assert found.bill.total > 0


def test_the_first_epoch_s_extra_time_is_the_warm_up() -> None:
    found = planned(calibration=SLOW)
    assert found.first_epoch_s == pytest.approx(400_000_000 / (50 * 2**20), rel=0.05)
    assert found.warm_up_s == pytest.approx(found.first_epoch_s - found.epoch_s)
    assert found.hours * 3600 == pytest.approx(found.first_epoch_s + 3 * found.epoch_s, rel=0.01)
    assert found.stall_share > 0.5


def test_where_nothing_holds_the_data_the_bucket_limits_and_a_disk_helps_most() -> None:
    found = planned(ram="100MB", calibration=SLOW)
    assert found.limit == "source"
    assert 0 < found.coverage < 0.3
    assert found.epoch_requests == pytest.approx(4000 * (1 - found.coverage), rel=0.05)
    assert found.requests == pytest.approx(4000 + 3 * found.epoch_requests, abs=2)
    saves = {upgrade.name: upgrade.saves for upgrade in found.upgrades}
    assert set(saves) == {"step", "nodes", "ram", "disk", "source"}
    assert found.best_upgrade is not None
    assert found.best_upgrade.name in {"disk", "nodes", "source"}
    assert saves["disk"] > 0.4
    assert saves["step"] < 0.05
    assert list(saves.values()) == sorted(saves.values(), reverse=True)


def test_a_slow_disk_limits_and_a_faster_one_helps() -> None:
    slow = dataclasses.replace(SLOW, source_mb_s=20.0, disk=Disk(40.0, 400.0))
    found = planned(ram="100MB", disk="1GB", calibration=slow)
    assert found.limit in {"disk", "several"}
    assert "disk-speed" in {upgrade.name for upgrade in found.upgrades}
    assert found.mb_by_source.disk > found.mb_by_source.ram


def test_nodes_share_nothing_without_a_network_between_them() -> None:
    four = planned(ram="150MB", nodes=4, calibration=SLOW)
    assert four.mb_by_source.peer == 0
    assert "network" not in {upgrade.name for upgrade in four.upgrades}


def test_nodes_share_what_they_hold() -> None:
    speeds = dataclasses.replace(SLOW, network_mb_s=1100.0)
    alone, four = planned(ram="150MB", calibration=speeds), planned(ram="150MB", nodes=4, calibration=speeds)
    assert four.requests < alone.requests
    assert four.coverage > 3 * alone.coverage
    assert four.mb_by_source.peer > 0
    assert (alone.group_nodes, alone.group_source_bytes) == (None, None)
    assert four.group_nodes is not None
    assert four.group_source_bytes is not None
    assert 1 <= four.group_nodes <= 4
    # Each group reads all of it once at least.
    assert four.group_source_bytes >= -(-4 // four.group_nodes) * four.dataset_bytes
    assert "network" in {upgrade.name for upgrade in four.upgrades}


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_no_plan_beats_the_lower_bound(epochs: int) -> None:
    for ram in ("100MB", "2GB"):
        found = planned(ram=ram, epochs=epochs, calibration=SLOW)
        assert found.hours >= found.lower_bound_hours * (1 - 1e-6)


def test_epochs_that_were_not_simulated_are_like_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = planned(ram="100MB", epochs=8, calibration=SLOW)
    monkeypatch.setattr(planning, "_MOST_ACCESSES", 1)
    short = planned(ram="100MB", epochs=8, calibration=SLOW)
    assert (whole.simulated_epochs, short.simulated_epochs) == (8, 3)
    assert short.hours == pytest.approx(whole.hours, rel=0.03)
    assert short.requests == pytest.approx(whole.requests, rel=0.03)
    assert short.source_bytes == pytest.approx(whole.source_bytes, rel=0.03)
    assert short.lower_bound_hours == pytest.approx(whole.lower_bound_hours, rel=0.03)
    assert short.bill.total == pytest.approx(whole.bill.total, rel=0.03)


def test_prices_are_those_of_the_sheet(tmp_path: Path) -> None:
    from foreload.cost import sheet_text

    dear = tmp_path / "dear.toml"
    dear.write_text(sheet_text("gcs").replace("instance_hour = 3.673", "instance_hour = 36.73"))
    bills = [planned(prices=prices).bill for prices in ("gcs", dear)]
    assert bills[1].instances == pytest.approx(10 * bills[0].instances)
    assert bills[1].requests == bills[0].requests


def test_what_can_not_be_is_refused() -> None:
    for changes in ({"nodes": 0}, {"batch": 0}, {"epochs": 0}, {"step_time": 0.0}, {"ram": "much"}, {"prices": "none"}):
        with pytest.raises(InvalidError):
            planned(**changes)
    with pytest.raises(InvalidError, match="at least one sample"):
        foreload.plan([], ram="1GB", batch=1, step_time=1.0)


def test_a_data_set_is_planned_by_its_index(data: Any, bucket: Any) -> None:
    bucket.reset()
    found = foreload.plan(data, ram="64MB", batch=8, step_time=0.01, epochs=2)
    assert (found.samples, found.dataset_bytes) == (COUNT, data.nbytes)
    assert bucket.counters()["requests"].get("get", 0) == 0


def test_samples_of_a_shard_share_requests(home: Any, tmp_path: Path) -> None:
    for number in range(3):
        tar_shard(tmp_path / f"{number}.tar", {f"{number}{sample:03}.bin": bytes(20_000) for sample in range(100)})
    shards = foreload.open(f"file://{tmp_path}")
    assert len(shards) == 300
    found = foreload.plan(shards, ram="64MB", batch=10, step_time=0.01, epochs=2)
    # Two megabytes each, in a grid of four.
    assert (found.requests, found.epoch_requests) == (3, 0)
    assert planning.places_of(shards)[100:102] == [(1, 512), (1, 512 + 20_480 + 512)]  # type: ignore[index]


def counted(found: planning.Plan, lengths: Any, drive: str) -> int:
    with planning.sizes_file(lengths) as sizes:
        text = found.site.scenario(sizes, len(lengths), float(lengths.mean()), drive=drive)
        return simulate_text(text, ["foreload"]).ran("foreload").requests


def test_requests_of_one_node_are_those_of_the_engine_s_scheduler() -> None:
    lengths = np.random.default_rng(1).integers(50_000, 150_000, 2000)
    given: dict[str, Any] = {"batch": 64, "step_time": 0.02, "epochs": 4, "calibration": SLOW}
    alone = foreload.plan(lengths, ram="100MB", **given)
    assert (alone.drive, alone.requests) == ("engine", counted(alone, lengths, "engine"))
    assert counted(alone, lengths, "fast") == pytest.approx(alone.requests, rel=0.01)
    assert foreload.plan(lengths, ram="100MB", nodes=2, **given).drive == "fast"


def test_what_nodes_share_is_what_their_schedulers_do() -> None:
    lengths = np.random.default_rng(1).integers(50_000, 150_000, 2000)
    speeds = dataclasses.replace(SLOW, network_mb_s=1100.0)
    given: dict[str, Any] = {"batch": 64, "step_time": 0.02, "epochs": 4, "calibration": speeds, "nodes": 4}
    some = foreload.plan(lengths, ram="32MB", **given)
    assert (some.drive, some.requests) == ("engine", counted(some, lengths, "engine"))
    whole = foreload.plan(lengths, ram="100MB", **given)
    assert whole.requests == len(lengths), "together they hold all of it"
    assert whole.source_bytes == pytest.approx(lengths.sum(), rel=0.001)
    assert whole.coverage > 0.99
    # Three of four samples are somebody else's, but for what is read ahead into the next epoch.
    assert whole.mb_by_source.peer * (1 << 20) == pytest.approx(0.75 * 4 * lengths.sum(), rel=0.05)


def test_requests_of_long_runs_are_the_fast_model_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_MOST_ENGINE_HOURS", 1e-6)
    found = planned(ram="100MB", calibration=SLOW)
    assert (found.drive, found.requests) == ("fast", counted(found, LENGTHS, "fast"))


def test_a_step_has_a_sample_for_each_node_and_no_more_than_there_are() -> None:
    with pytest.raises(InvalidError, match="65 nodes can't share a batch of 64 samples; give at most 64 nodes"):
        planned(nodes=65)
    with pytest.raises(
        InvalidError, match="batch of 4,001 is more than the data set's 4,000 samples; give at most 4000"
    ):
        planned(batch=4001)
    whole = planned(batch=4000, epochs=2, step_time=1.0)
    assert whole.epoch_s == pytest.approx(1.0, rel=0.05)
    # Twice as much is no batch any more.
    assert "nodes" not in {upgrade.name for upgrade in whole.upgrades}


def test_where_decoding_limits_more_of_it_is_offered() -> None:
    found = planned(calibration=Speeds(preprocess_mb_s=2.0, threads=2))
    assert found.limit == "preprocessing"
    saves = {upgrade.name: upgrade.saves for upgrade in found.upgrades}
    assert saves["preprocessing"] == pytest.approx(0.5, abs=0.05)
    assert "preprocessing" not in {upgrade.name for upgrade in planned().upgrades}


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([float("nan"), 3], "sample 0 has nan bytes"),
        ([3, float("inf")], "sample 1 has inf bytes"),
        ([-1, 3], "sample 0 has -1 bytes"),
        (["a"], "'a' isn't one"),
        ([3, "a"], "'a' isn't one"),
        ([True], "True isn't one"),
        ([[1], [2, 3]], "list of numbers"),
        ([[1], [2]], "at least one sample"),
        ({1: 2}, "at least one sample"),
    ],
)
def test_sizes_that_are_none_are_refused_by_name(sizes: Any, text: str) -> None:
    with pytest.raises(InvalidError, match=text):
        foreload.plan(sizes, ram="1GB", batch=1, step_time=1.0)


def test_other_things_that_are_none_are_refused_by_name() -> None:
    with pytest.raises(InvalidError, match="objects"):
        planned(objects=-5)
    with pytest.raises(InvalidError, match=r"calibration.*foreload\.speeds\.Speeds"):
        planned(calibration={"source_mb_s": 5.0})


def test_progress_counts_every_simulation() -> None:
    seen: list[tuple[str, float, float | None]] = []
    planned(ram="100MB", calibration=SLOW, progress=lambda *each: seen.append(each))
    steps = list(dict.fromkeys(step for step, *_ in seen))
    assert {total for *_, total in seen} == {len(steps)}
    for number, step in enumerate(steps):
        parts = [done - number for name, done, _ in seen if name == step]
        assert parts[0] == 0
        assert 0.9 < max(parts) < 1


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"step_time": float("inf")}, "step_time"),
        ({"step_time": float("nan")}, "step_time"),
        ({"step_time": 0}, "step_time"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1 << 32}, "epochs"),
        ({"epochs": 2.5}, "epochs"),
        ({"nodes": 65_000}, "nodes"),
        ({"batch": 1 << 40}, "batch"),
        ({"ram": "9" * 400}, "ram"),
        ({"ram": 1 << 80}, "ram"),
    ],
)
def test_numbers_that_make_no_plan_are_refused_by_name(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidError, match=text):
        planned(**given)


def test_a_long_run_is_planned_as_fast_as_a_short_one() -> None:
    found = planned(epochs=4_000_000_000)
    assert found.simulated_epochs == 1000
    assert found.hours == pytest.approx(4e9 * found.epoch_s / 3600, rel=1e-3)


def test_memory_that_holds_no_batch_is_refused_and_the_least_is_named() -> None:
    # 64 samples of 100,000 bytes, beside an eighth for collated batches.
    for nodes, least in ((1, 7_314_285), (4, 1_828_571)):
        for ram in (0, 1, "1MB", least - 1):
            with pytest.raises(InvalidError, match=rf"at least {least} "):
                planned(ram=ram, nodes=nodes, epochs=1)
        assert planned(ram=least, nodes=nodes, epochs=1).hours > 0
    with pytest.raises(InvalidError, match="at least 3428 "):
        foreload.plan([10, 3000], ram=3000, batch=1, step_time=1.0)


@pytest.mark.parametrize(
    "given",
    [
        {"source_mb_s": 0.0},
        {"source_mb_s": float("inf")},
        {"latency_s": -1.0},
        {"network_mb_s": float("nan")},
        {"threads": 0},
        {"connection_mb_s": 0.0},
    ],
)
def test_speeds_that_are_none_are_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=next(iter(given))):
        Speeds(**given)


def test_nothing_is_measured_on_a_data_set_without_bytes(run: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "0").touch()
    assert "samples are empty" in run.fails("calibrate", tmp_path, "--seconds", 0.1)[1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("format = 1\n[[tier]]\nkind = 'disk'\n", "read_mb_s"),
        ("format = 1\n[[tier]]\nkind = 'disc'\n", "'disc' is none; there are ram, disk"),
        ("format = 1\n[[tier]]\nkind = 'ram'\n[[tier]]\nkind = 'ram'\n", "'ram' is there twice"),
        ("format = 1\ntier = 3\n", "tier is 3, not a list of sections"),
        ("format = 1\ntier = [3]\n", "tier is 3, not a section"),
        ("format = 1\nsource = 3\n", "source is 3, not a section"),
        ("format = 1\nmachine = 3\n", "machine is 3, not a section"),
        ("format = 1\ndated = 2026-01-02\n", "dated: .* is not a text"),
        (
            "format = 1\n[source]\nlatencys = 3\n",
            r"\[source\] has no key 'latencys'; did you mean latency_s\? It has url, throughput",
        ),
        ("format = 1\n[clustr]\n", "the calibration has no key 'clustr'; did you mean cluster\\?"),
        ("format = 1\n[[tier]]\nkind = 'ram'\nread = 3\n", r"\[\[tier\]\] has no key 'read'; did you mean read_mb_s\?"),
        ("format = 1\n[source]\nlatency_s = 'soon'\n", "source.latency_s: 'soon' is not a number"),
        ("format = 1\n[source]\nlatency_s = -1\n", "source.latency_s: -1 is not between"),
        ("format = 1\n[source]\nlatency_sigma = 4\n", "source.latency_sigma: 4 is not between"),
        ("format = 1\n[cluster]\nthreads = 0.5\n", "cluster.threads: 0.5 is not a whole number"),
        ("format = 1\n[source]\nthroughput_mb_s = 5\n", "write { 1 = 5 }"),
        ("format = 1\n[source]\nthroughput_mb_s = { 1 = inf }\n", "source.throughput_mb_s.1 must be a finite"),
        ("format = 1\n[source]\nthroughput_mb_s = { one = 5 }\n", "'one' is not a number from 1 on"),
        ("format = 1\n[source]\nthroughput_mb_s = { 2 = 100 }\n", "source.throughput_mb_s lacks 1"),
        ("format = 1\n[source]\nthroughput_mb_s = { 1 = 100, 2 = 110, 4 = 390 }\n", "110 for 2 nodes is neither"),
        ("format = 1\n[source]\nthroughput_mb_s = { 1 = 100, 4 = 500 }\n", "500 for 4 nodes is neither"),
    ],
)
def test_a_calibration_that_is_none_is_named(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    path.write_text(text)
    with pytest.raises(InvalidError, match=problem) as caught:
        speeds.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("{ 1 = 100 }", None),
        ("{ 1 = 100, 4 = 390 }", None),
        ("{ 1 = 100, 4 = 150 }", 150.0),
        ("{ 1 = 100, 2 = 200, 8 = 250, 16 = 250 }", 250.0),
        ("{ 1 = 100, 4 = 250 }\nlimit_mb_s = 250.0", 250.0),
    ],
)
def test_what_more_nodes_get_is_their_limit(text: str, limit: float | None, tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    path.write_text(f"format = 1\n[source]\nthroughput_mb_s = {text}\n")
    read = speeds.read(path)
    assert (read.source_mb_s, read.source_limit_mb_s) == (100.0, limit)


def test_a_calibration_reaches_as_many_nodes_as_are_asked_for() -> None:
    text = "[cluster]\nnodes = 2\n"
    assert speeds.overrides(Speeds(source_mb_s=100.0), text, 8)["source.throughput_mb_s"].endswith("8 = 800.0 }")
    assert speeds.overrides(Speeds(source_mb_s=100.0), text)["source.throughput_mb_s"].endswith("2 = 200.0 }")
    assert "1 = 100.0" in speeds.overrides(Speeds(source_mb_s=100.0), "cluster = 3")["source.throughput_mb_s"]


def test_importing_the_package_loads_no_simulator() -> None:
    code = (
        "import sys, foreload\n"
        "assert not {'foreload.sim', 'foreload.cost', 'foreload.speeds', 'foreload._calibrate.calibration'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_t_of_gamma_is_straight_up_to_its_limit() -> None:
    assert Speeds(source_mb_s=100.0).curve(1) == {"1": 100.0}
    assert Speeds(source_mb_s=100.0).curve(4) == {"1": 100.0, "4": 400.0}
    limited = Speeds(source_mb_s=100.0, source_limit_mb_s=250.0)
    assert limited.curve(8) == {"1": 100.0, "2": 200.0, "3": 250.0, "8": 250.0}
    assert Speeds(source_mb_s=100.0, source_limit_mb_s=50.0).curve(2) == {"1": 50.0, "2": 50.0}


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = {
        "dated": "2026-01-02T03:04:05Z",
        "machine": {"cpu": 'a "quick" one', "cores": 2},
        "source": {"throughput_mb_s": {1: 123.0}, "latency_s": 0.02, "latency_sigma": 0.5, "requests_in_flight": 64},
        "cluster": {"preprocess_mb_s": 80.0, "threads": 4},
        "loop": {"mb_s": 2000.0},
        "tier": [
            {"kind": "ram", "read_mb_s": 5000.0, "write_mb_s": 3000.0},
            {"kind": "disk", "read_mb_s": 1e3, "write_mb_s": 1e-3},
        ],
    }
    path = tmp_path / "here.toml"
    path.write_text(speeds.text(found))
    read = speeds.read(path)
    assert (read.source_mb_s, read.latency_s, read.latency_sigma, read.connection_mb_s) == (123.0, 0.02, 0.5, None)
    assert read.requests_in_flight == 64
    assert (read.preprocess_mb_s, read.threads, read.loop_mb_s, read.ram_mb_s, read.fresh_mb_s) == (
        80.0,
        4,
        2000.0,
        5000.0,
        3000.0,
    )
    assert (read.disk, read.network_mb_s) == (Disk(1000.0, 0.001), Speeds().network_mb_s)
    assert read.machine == {"cpu": 'a "quick" one', "cores": 2}
    assert "2026-01-02" in read.origin
    assert "assumed" in Speeds().origin
    assert planned(calibration=path).site.speeds == read


@pytest.mark.parametrize("text", ["format = ", "format = 99", "[source]\nlatency_s = 1"])
def test_what_is_no_calibration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InvalidError, match=r"bad\.toml"):
        speeds.read(path)


def test_a_scenario_takes_the_speeds_and_keeps_its_capacities() -> None:
    site = planned().site
    with planning.sizes_file(LENGTHS) as sizes:
        text = site.scenario(sizes, len(LENGTHS), 100_000.0)
        changed = speeds.overrides(SLOW, text)
        assert "tier.0.capacity_mb" not in changed
        report = simulate_text(text, ["foreload"], changed)
    assert report["foreload"].epoch_hours[0] * 3600 == pytest.approx(400_000_000 / (50 * 2**20), rel=0.05)


STEPS = """
[dataset]
samples = 1000
mean_mb = 1
[training]
epochs = 1
global_batch = 10
step_s = 0.001
[cluster]
nodes = 1
[source]
throughput_mb_s = 1000
latency_s = 0.01
connection_mb_s = 0.5
requests_in_flight = 100
[[tier]]
kind = "staging"
capacity_mb = 200
read_mb_s = 8000
"""


def test_a_connection_without_a_limit_loses_the_scenario_s() -> None:
    measured = Speeds(source_mb_s=1000.0, connection_mb_s=None)
    hours = [
        simulate_text(STEPS, ["foreload"], speeds.overrides(measured, text)).ran("foreload").hours
        for text in (STEPS, STEPS.replace("connection_mb_s = 0.5\n", ""))
    ]
    assert hours[0] == pytest.approx(hours[1])
    limited = simulate_text(STEPS, ["foreload"], speeds.overrides(Speeds(source_mb_s=1000.0), STEPS)).ran("foreload")
    assert limited.hours > hours[0]
    assert speeds.overrides(Speeds(connection_mb_s=35.0), STEPS)["source.connection_mb_s"] == "35.0"


def test_where_only_a_step_is_given_the_loop_takes_its_measured_time_besides() -> None:
    measured = Speeds(loop_mb_s=2000.0)
    assert speeds.overrides(measured, STEPS)["cluster.compute_mb_s"] == "2000.0"
    assert "cluster.compute_mb_s" not in speeds.overrides(Speeds(), STEPS)
    for text in (
        STEPS.replace("nodes = 1", "nodes = 1\ncompute_mb_s = 50"),
        STEPS.replace("step_s = 0.001", ""),
        STEPS.replace("step_s = 0.001", "step_s = 0"),
    ):
        assert "cluster.compute_mb_s" not in speeds.overrides(measured, text)


def test_sizes_keep_every_byte() -> None:
    lengths = np.array([0, 1, 110_000, 123_457, 9_999_999])
    with planning.sizes_file(lengths) as path:
        sizes = np.array([float(line) for line in path.read_text().splitlines()], dtype=np.float32)
    assert (sizes.astype(np.float64) * 2**20).tolist() == [1, 1, 110_000, 123_457, 9_999_999]


def answers(sizes: Any, count: int, seed: int = 0) -> list[tuple[int, float]]:
    """Samples one after the other, on a connection of 35 MB/s with latencies of 30 ms and sigma 0.3."""
    random = np.random.default_rng(seed)
    chosen = sizes(random, count)
    latency = 0.03 * np.exp(0.3 * random.standard_normal(count) - 0.045)
    return [(int(size), float(wait + size / 35e6)) for size, wait in zip(chosen, latency, strict=True)]


def test_latency_and_a_connection_s_rate_are_told_apart_where_sizes_differ() -> None:
    differing = answers(lambda random, count: random.integers(10_000, 1_000_000, count), 400)
    latency_s, sigma, connection = source._per_request(differing)
    assert connection == pytest.approx(35e6 / 2**20, rel=0.1)
    assert (latency_s, sigma) == (pytest.approx(0.03, rel=0.1), pytest.approx(0.3, rel=0.1))


def test_where_sizes_are_alike_there_is_no_rate_and_all_is_latency() -> None:
    for size in (20_000, 100_000, 1_000_000):
        alike = answers(lambda _, count, size=size: np.full(count, size), 300)
        took = np.array([each for _, each in alike])
        latency_s, sigma, connection = source._per_request(alike)
        assert (latency_s, connection) == (pytest.approx(took.mean()), None)
        assert sigma == pytest.approx(took.std() / took.mean(), rel=0.05)


def test_a_rate_is_stated_where_noise_leaves_one_and_is_near_the_true_one() -> None:
    def stated(least: int, most: int) -> list[float]:
        found = [
            source._per_request(answers(lambda random, count: random.integers(least, most, count), 240, seed))[2]
            for seed in range(20)
        ]
        return [rate for rate in found if rate is not None]

    differing = stated(20_000, 300_000)
    assert len(differing) > 10
    assert 15 < min(differing) < max(differing) < 50
    assert len(stated(20_000, 60_000)) < 3


def test_large_samples_are_several_requests() -> None:
    # 200 MB are 24 requests, each with its latency.
    one = [(200_000_000, 24 * (0.03 + 8_333_333 / 35e6))] * 10
    latency_s, _, connection = source._per_request(one)
    assert (latency_s, connection) == (pytest.approx(0.268, rel=0.01), None)
    # One doesn't tell how much they differ.
    assert source._per_request(one[:1])[1:] == (None, None)


def test_one_request_is_measured_for_longer_only_where_that_tells_its_rate() -> None:
    def seen(sizes: Any, count: int) -> list[tuple[int, int, float]]:
        return [(size, 1, took) for size, took in answers(sizes, count)]

    assert source._may_tell(seen(lambda random, count: random.integers(20_000, 60_000, count), 50))
    assert not source._may_tell(seen(lambda random, count: random.integers(10_000, 1_000_000, count), 400))
    assert not source._may_tell(seen(lambda _, count: np.full(count, 100_000), 50))
    # Nothing but what still lay in memory.
    assert source._may_tell([(0, 0, 0.001)])


@contextmanager
def cloud(monkeypatch: pytest.MonkeyPatch, *rules: str) -> Iterator[None]:
    """A bucket of the test's own, with such objects in it."""
    with Bucket(synthetic=rules) as bucket, monkeypatch.context() as patched:
        for name, value in bucket.environment().items():
            patched.setenv(name, value)
        yield


CALIBRATE = ("--seconds", 0.05, "--scratch", "16MB")


def test_few_large_samples_are_measured_as_far_as_they_reach(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "here.toml"
    with cloud(monkeypatch, "few:60x2000000", "huge:10x20000000", "differing:200x200KB-800KB"):
        found = run.json("calibrate", "s3://bench/few", "--out", path, *CALIBRATE)
        # Half of a level where it doesn't fit, or where nothing was asked for in so short a time.
        assert {"1", "4"} <= set(found["source"]["mb_s_by_requests"]) <= {"1", "4", "8", "16", "32"}, found["notes"]
        assert "connection_mb_s is left out: requests are too much alike" in " ".join(found["notes"])
        assert "# source.connection_mb_s is left out" in path.read_text()
        assert found["failed"] == {}
        read = speeds.read(path)
        assert read.connection_mb_s is None
        found = run.json("calibrate", "s3://bench/huge", *CALIBRATE)
        assert found["source"]["mb_s_by_requests"]["1"] > 0
        # Each sample is three requests.
        assert found["source"]["mean_request_mb"] == pytest.approx(20e6 / 3 / 2**20, rel=0.2)
        found = run.json("calibrate", "s3://bench/differing", *CALIBRATE)
        assert min(found["source"]["mb_s_by_requests"].values()) > 0


def test_a_store_of_known_speed_is_measured_as_that(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 ms to the first byte, and 20 MB/s on each connection after it. A busy machine makes it slower; latency is where a line begins, which wavers."""
    with Bucket(synthetic=("known:200x100KB-900KB",)) as bucket:
        bucket.set_profile({"first_byte_ms": 20, "connection_bytes_per_s": 20_000_000})
        for name, value in bucket.environment().items():
            monkeypatch.setenv(name, value)
        alone = 0.5e6 / (0.020 + 0.5e6 / 20e6) / 2**20
        found: list[tuple[bool, ...]] = []
        # A neighbour that has the processors for a moment bends a line through a quarter of a second; hardly three times.
        while len(found) < 3 and not (found and all(found[-1])):
            seconds = 0.25 * (1 + len(found))
            source = run.json("calibrate", "s3://bench/known", "--seconds", seconds, "--scratch", "16MB")["source"]
            rates = source["mb_s_by_requests"]
            found.append(
                (
                    0.4 * alone < rates["1"] < 1.2 * alone,
                    2 * rates["1"] < rates["4"] < 4 * 1.2 * alone,
                    0.018 <= source["latency_s"] < 0.06,
                    10 < source["connection_mb_s"] < 1.1 * 20e6 / 2**20,
                )
            )
    assert all(found[-1]), found


def test_what_cannot_be_measured_is_named_and_the_rest_is_there(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "here.toml"
    with cloud(monkeypatch, "three:3x1000", "one:1x1000000"):
        for name, what in (("three", "3 samples of 1 KB"), ("one", "1 sample of 1 MB")):
            code, line = run.fails("calibrate", f"s3://bench/{name}", "--out", path, *CALIBRATE)
            assert (code, "the source couldn't be measured: 1 request in flight" in line, what in line) == (
                1,
                True,
                True,
            )
            assert "# Not measured: the source: 1 request" in path.read_text()
            read = speeds.read(path)
            assert (read.source_mb_s, read.loop_mb_s is None) == (Speeds().source_mb_s, False)

    def full(*_: Any) -> float:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(calibration, "loop_mb_s", full)
    assert run("calibrate", "--json", *CALIBRATE) == 1
    found = json.loads(run.out)
    assert found["failed"] == {"what a loop takes over": "[Errno 28] No space left on device"}
    assert found["tier"][0]["read_mb_s"] > 0


def test_a_level_that_fails_leaves_those_before_it(monkeypatch: pytest.MonkeyPatch, data: Any) -> None:
    tried: list[int] = []

    def level(_: Any, connections: int, seconds: float) -> source.Level:
        tried.append(connections)
        if connections > 6:
            raise UnavailableError("too busy")
        return source.Level(connections, 10.0 * connections, 1.0, 0.1, 0.2, 30.0)

    monkeypatch.setattr(source, "source_level", level)
    notes: list[str] = []
    found = source.measure(data, 1.0, lambda _: None, notes)
    assert tried == [1, 4, 16, 8]
    assert (found["throughput_mb_s"], found["mb_s_by_requests"]) == ({1: 40.0}, {1: 10.0, 4: 40.0})
    assert len(notes) == 1
    assert "16 couldn't be measured: too busy" in notes[0]


def test_no_more_is_in_flight_than_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sizes(list[int]):
        @property
        def lengths(self) -> Any:
            return np.array(self)

        @property
        def nbytes(self) -> int:
            return sum(self)

    many: Any = Sizes([5_000_000] * 60)
    for connections, loaded in ((1, 1), (4, 4), (16, 16)):
        flying, batch, passing = source._passage(many, connections)
        assert (flying, batch) == (loaded, 1)
        assert (flying + 3 * batch) * 5_000_000 < passing <= many.nbytes // 2 or connections == 1
    with pytest.raises(
        InvalidError, match=r"64 requests in flight need .* half of the data set \(60 samples of 5 MB\)"
    ):
        source._passage(many, 64)
    # Parts of one sample count as what they are.
    huge: Any = Sizes([200_000_000] * 10)
    assert [source._passage(huge, connections)[0] for connections in (1, 4, 16)] == [1, 1, 1]
    # As before, where samples are small and many.
    assert source._passage(Sizes([100_000] * 8000), 256)[:2] == (256, 64)
    monkeypatch.setattr(source, "available_bytes", lambda: 1 << 20)
    with pytest.raises(InvalidError, match="left; free some"):
        source._passage(many, 1)


def test_a_calibration_that_cannot_be_written_is_printed(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "here.toml"
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        assert run("calibrate", "--out", path, *CALIBRATE) == 1
        said = f"foreload: {path}: the calibration can't be written: No space left on device; it is on standard output"
        assert said in run.err.splitlines()
        assert "written to" not in run.out
        shown = run.out
        assert run("calibrate", "--out", path, *CALIBRATE, "--json") == 1
    assert json.loads(run.out)["loop"]["mb_s"] > 0
    assert list(tmp_path.iterdir()) == []
    path.write_text(shown)
    assert speeds.read(path).loop_mb_s is not None


def test_calibrate_writes_what_plan_and_simulate_take(run: Command, bucket: Any, tmp_path: Path) -> None:
    path, disk = tmp_path / "here.toml", tmp_path / "disk"
    disk.mkdir()
    words = ("calibrate", "s3://data/fixed", "--disk", disk, "--out", path, "--seconds", 0.05, "--scratch", "16MB")
    found = run.json(*words, "--decode", "hashlib:sha256")
    assert found["source"]["throughput_mb_s"]["1"] > 0
    assert found["source"]["latency_s"] > 0
    assert found["source"]["latency_sigma"] >= 0
    assert {"1", "4"} <= set(found["source"]["mb_s_by_requests"])
    assert found["cluster"]["preprocess_mb_s"] > 0
    assert [tier["kind"] for tier in found["tier"]] == ["ram", "disk"]
    assert min(rate for tier in found["tier"] for rate in (tier["read_mb_s"], tier["write_mb_s"])) > 0
    assert list(disk.iterdir()) == []
    read = speeds.read(path)
    assert read.source_mb_s == found["source"]["throughput_mb_s"]["1"]
    assert read.loop_mb_s == found["loop"]["mb_s"]
    import socket

    assert socket.gethostname() not in path.read_text()
    plan = run.json("plan", "s3://data/fixed", "--batch", 8, "--step-time", 0.01, "--calibration", path)
    assert plan["speeds"]["dated"] == found["dated"]
    scenario = tmp_path / "plan.toml"
    again = run.json("plan", "s3://data/fixed", "--batch", 8, "--step-time", 0.01, "--scenario", scenario)
    simulated = run.json("simulate", scenario, "-p", "foreload")["results"][0]
    assert simulated["hours"] == pytest.approx(again["hours"], rel=0.05)
    assert run("simulate", scenario, "-p", "foreload", "--calibration", path) == 0


def test_calibrate_refuses_a_directory_that_is_none(run: Command, tmp_path: Path) -> None:
    absent, file = tmp_path / "mnt" / "absent", tmp_path / "file"
    file.touch()
    code, line = run.fails("calibrate", "s3://absent/x", "--disk", absent)
    assert (code, f"there is no directory {absent}; make it, or mount its drive" in line) == (3, True)
    assert not absent.parent.exists()
    code, line = run.fails("calibrate", "--disk", file)
    assert (code, f"{file} is no directory" in line) == (2, True)
    with pytest.raises(FileNotFoundError):
        calibration.calibrate(disk=absent)


def test_calibrate_refuses_more_scratch_than_there_is_room_for(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, line = run.fails("calibrate", "s3://absent/x", "--scratch", "10PB")
    assert (code, "--scratch: 10 PB don't fit" in line) == (2, True)
    room: dict[Path, int] = {}
    monkeypatch.setattr(calibration.shutil, "disk_usage", lambda path: SimpleNamespace(free=room[path]))  # type: ignore[attr-defined]
    monkeypatch.setattr(calibration, "available_bytes", lambda: 4 << 30)
    cache, disk = tmp_path / "cache", tmp_path / "disk"
    disk.mkdir()
    # What the cache directory will be on; a gibibyte of it stays free.
    room[tmp_path] = room[disk] = 3 << 30
    calibration.check_room(None, 2 << 30, cache)
    calibration.check_room(disk, 1 << 30, cache)
    with pytest.raises(InvalidError, match=r"has 3\.22 GB free, of which 1\.07 GB"):
        calibration.check_room(disk, (1 << 30) + 1, cache)
    room[tmp_path] = 9 << 30
    with pytest.raises(InvalidError, match="memory"):
        calibration.check_room(None, (2 << 30) + 1, cache)


def test_calibrate_without_a_data_set_measures_the_machine(run: Command) -> None:
    found = run.json("calibrate", "--seconds", 0.05, "--scratch", "16MB")
    assert "source" not in found
    assert found["loop"]["mb_s"] > 0
    assert run.fails("calibrate", "--decode", "hashlib:sha256")[0] == 2
    assert run.fails("calibrate", "s3://data/fixed", "--decode", "hashlib:absent")[0] == 2
    assert "'mydec' is not of the form MODULE:FUNCTION" in run.fails("calibrate", "s3://x/y", "--decode", "mydec")[1]
    assert json.dumps(found)


def test_nodes_that_read_what_they_keep_are_planned_and_what_can_t_be_is_refused() -> None:
    def planned(lengths: Any = None, **change: Any) -> Any:
        given = {
            "nodes": 4,
            "ram": "100MB",
            "batch": 64,
            "step_time": 0.01,
            "epochs": 3,
            "calibration": dataclasses.replace(SLOW, network_mb_s=1100.0),
            **change,
        }
        return foreload.plan([100_000] * 2_000 if lengths is None else lengths, **given)

    cards, local = planned(), planned(assign="local")
    assert local.mb_by_source.peer < 0.4 * cards.mb_by_source.peer
    assert local.requests <= 1.01 * 2_000
    for change, told in (
        ({"assign": "here"}, r"plan\(assign=...\): 'here' is none"),
        ({"assign": "local", "calibration": None}, "say what the network between them brings"),
        ({"assign": "local", "batch": 66}, "4 nodes don't divide a batch of 66"),
    ):
        with pytest.raises(InvalidError, match=told):
            planned(**change)
    # A node alone keeps all that it reads.
    assert planned(assign="local", nodes=1, calibration=None).nodes == 1
