"""Simulations from Python: what comes back, how settings reach the simulator, and what is drawn."""

from __future__ import annotations

import errno
import itertools
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreload import plot, sim
from foreload._predict.scenario import Scenario, resolved
from foreload.errors import InvalidError, NotFoundError
from foreload.sim import POLICIES, Grid, Report, grid, simulate, simulate_text
from small import COUNT, content, tar_shard

SCENARIO = """
name = "small"
[dataset]
samples = 2000
mean_mb = 0.1
[training]
epochs = 3
global_batch = 50
[cluster]
nodes = 2
compute_mb_s = 50
preprocess_mb_s = 200
network_mb_s = 1000
[source]
throughput_mb_s = { 1 = 30, 2 = 50 }
[[tier]]
kind = "staging"
capacity_mb = 16
threads = 2
read_mb_s = 1000
[[tier]]
kind = "ram"
capacity_mb = 120
threads = 2
read_mb_s = 1000
"""


@pytest.fixture(scope="module")
def report() -> Report:
    return simulate_text(SCENARIO)


def test_every_policy_answers(report: Report) -> None:
    assert tuple(outcome.policy for outcome in report.results) == POLICIES
    assert report.scenario == "small"
    assert report.dataset_mb == pytest.approx(200)
    for outcome in report.supported:
        assert len(outcome.epoch_hours) == 3
        assert sum(outcome.epoch_hours) == pytest.approx(outcome.hours, rel=0.01)
        assert 0 <= outcome.stall_share <= 1
        assert outcome.reason is None
    for outcome in set(report.results) - set(report.supported):
        assert outcome.reason


def test_no_policy_that_reads_everything_in_order_beats_the_bound(report: Report) -> None:
    for outcome in report.supported:
        if outcome.reads_whole_dataset and outcome.keeps_order:
            assert outcome.hours >= report.lower_bound_hours * (1 - 1e-6), outcome.policy


def test_ours_reads_each_sample_once_where_the_nodes_hold_the_data(report: Report) -> None:
    ours = report["foreload"]
    assert (ours.requests, ours.coverage) == (2000, 1.0)
    assert ours.mb_by_source.source == pytest.approx(200, rel=1e-3)
    # What a home fetches for the other node counts at both: half of the first epoch.
    assert ours.mb_by_source.total == pytest.approx(700, rel=2e-2)
    assert ours.fabric is not None
    assert ours.fabric.cache_group_nodes == 2
    assert ours.runs_in_engine
    assert ours.hours <= min(report[name].hours for name in ("naive", "staging", "frequency"))


def test_only_deli_has_a_miss_rate(report: Report) -> None:
    assert report["deli"].miss_rate is not None
    assert report["deli"].load_s is not None
    assert report["foreload"].miss_rate is None
    with pytest.raises(KeyError):
        report["absent"]


def test_settings_change_the_scenario(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    short = simulate(path, ["foreload"], {"training.epochs": 1, "tier.ram.capacity_mb": 0, "cluster.nodes": 1})
    assert len(short["foreload"].epoch_hours) == 1
    assert short["foreload"].coverage == 0
    one = simulate_text(SCENARIO, ["foreload"], {"dataset.seed": 1, "dataset.std_mb": 0.05})
    other = simulate_text(SCENARIO, ["foreload"], {"dataset.seed": 2, "dataset.std_mb": 0.05})
    assert one["foreload"].hours != other["foreload"].hours
    assert simulate_text(SCENARIO, ["foreload"], {"dataset.seed": 1, "dataset.std_mb": 0.05}) == one


@pytest.mark.parametrize(
    ("text", "policies", "settings", "hint"),
    [
        (SCENARIO.replace("compute_mb_s", "compute_mbs"), [], {}, "compute_mb_s"),
        (SCENARIO, ["forload"], {}, "foreload"),
        (SCENARIO, [], {"training.epoch": 3}, "epochs"),
        (SCENARIO, [], {"tier.ram.capacity_mb": -1}, "negative"),
        ("[dataset", [], {}, "."),
        (SCENARIO, [], {"nodes": 3}, "cluster.nodes"),
        (SCENARIO, [], {"dataset.samples": 5_000_000_000}, "dataset.samples"),
        (SCENARIO, [], {"dataset.samples": 4_000_000_000, "training.epochs": 1}, "GB of memory"),
        (SCENARIO, [], {"training.epochs": 4_000_000_000}, "training.epochs"),
        (SCENARIO, [], {"dataset.mean_mb": 1e300}, "dataset.mean_mb"),
        (SCENARIO, [], {"cluster.compute_mb_s": float("inf")}, "cluster.compute_mb_s"),
    ],
)
def test_mistakes_are_named(text: str, policies: list[str], settings: dict[str, object], hint: str) -> None:
    with pytest.raises(InvalidError, match=hint):
        simulate_text(text, policies, settings)


def test_one_policy_needs_no_list() -> None:
    assert simulate_text(SCENARIO, "foreload") == simulate_text(SCENARIO, ["foreload"])


def test_a_mapping_is_taken_for_a_section_or_a_curve() -> None:
    one = {"source.throughput_mb_s": {1: 20, 2: 35.5}, "deli": {"cache_samples": 10}}
    found = simulate_text(SCENARIO, ["foreload"], one)
    assert found.source_mb_s == 35.5
    text = {"source.throughput_mb_s": "{ 1 = 20, 2 = 35.5 }", "deli.cache_samples": "10"}
    assert found == simulate_text(SCENARIO, ["foreload"], text)


#: What each sample of `s3://data/train` becomes: an empty one has a byte.
LENGTHS = [max(1, len(content(number))) for number in range(COUNT)]
DRAWN = "[dataset]\nsamples = 2000\nmean_mb = 0.1\n"
INDEXED = {
    "in a section": SCENARIO.replace(DRAWN, '[dataset]\nindex = "s3://data/train"\n'),
    "in quotes": SCENARIO.replace(DRAWN, "[dataset]\n\"index\" = 's3://data/train' # ours\n"),
    "as a path": 'dataset.index = "s3://data/train"\n' + SCENARIO.replace(DRAWN, ""),
    "as a table": 'dataset = { index = "s3://data/train", seed = 3 }\n' + SCENARIO.replace(DRAWN, ""),
}


@pytest.mark.parametrize("how", INDEXED)
def test_an_index_is_read_however_it_is_written(how: str, home: Any, tmp_path: Path) -> None:
    path = tmp_path / "real.toml"
    path.write_text(INDEXED[how])
    report = simulate(path, ["foreload"])
    assert report == simulate_text(INDEXED[how], ["foreload"])
    assert (report.samples, report.dataset_mb * 2**20) == (COUNT, pytest.approx(sum(LENGTHS), rel=1e-6))


@pytest.mark.parametrize("key", ["dataset.index", "dataset"])
def test_an_index_may_be_an_override_and_so_may_what_replaces_it(key: str, home: Any, tmp_path: Path) -> None:
    named: dict[str, object] = {key: "s3://data/train" if key == "dataset.index" else {"index": "s3://data/train"}}
    assert simulate_text(SCENARIO, "foreload", named).samples == COUNT
    sizes = tmp_path / "sizes"
    sizes.write_text("0.5\n" * 10)
    listed = {"dataset.sizes_file": str(sizes)}
    assert simulate_text(INDEXED["in a section"], "foreload", listed).samples == 10
    both = SCENARIO.replace(DRAWN, f'[dataset]\nsizes_file = "{sizes}"\n')
    assert simulate_text(both, "foreload", {"dataset.index": "s3://data/train"}).samples == COUNT
    with pytest.raises(InvalidError, match="leave one out"):
        simulate_text(both.replace("[dataset]\n", '[dataset]\nindex = "s3://data/train"\n'))


def test_a_grid_opens_the_index_once(home: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from foreload._data import dataset

    opened, real = [], dataset.open
    monkeypatch.setattr(dataset, "open", lambda url: opened.append(url) or real(url))
    path = tmp_path / "real.toml"
    path.write_text(INDEXED["in a section"])
    found = grid(path, ("tier.ram.capacity_mb", [0, 60]), ("cluster.nodes", [1, 2]))
    assert opened == ["s3://data/train"]
    assert None not in found.hours[0] + found.hours[1]


def test_what_is_wrong_beside_an_index_is_still_named(home: Any) -> None:
    with pytest.raises(InvalidError, match="mean_mb"):
        simulate_text(INDEXED["in a section"], "foreload", {"dataset.mean_md": 1})
    with pytest.raises(InvalidError, match=r"dataset\.index"):
        simulate_text(SCENARIO, "foreload", {"dataset.index": 3})
    with pytest.raises(NotFoundError, match="absent"):
        simulate_text(SCENARIO, "foreload", {"dataset.index": "s3://data/absent"})


def test_samples_in_shards_keep_their_places(home: Any, tmp_path: Path) -> None:
    for shard in range(2):
        tar_shard(tmp_path / f"{shard}.tar", {f"{shard}-{number}.bin": bytes(100 * number) for number in range(5)})
    with resolved(SCENARIO, {"dataset.index": str(tmp_path), "training.epochs": 1}) as found:
        tables = Scenario(SCENARIO, found)
        rows = [line.split() for line in Path(tables.dataset["sizes_file"]).read_text().splitlines()]
        assert tables.objects() == 2
        assert [int(float(size) * 2**20 + 0.5) for size, *_ in rows] == [1, 100, 200, 300, 400] * 2
        assert len({(shard, first) for _, shard, first in rows}) == 10
    assert not Path(tables.dataset["sizes_file"]).exists()


def test_disk_tiers_are_added_up_as_overrides_leave_them() -> None:
    disks = "".join(f'[[tier]]\nkind = "disk"\ncapacity_mb = {size}\nread_mb_s = 100\n' for size in (1000, 500))
    assert simulate_text(SCENARIO, "foreload").disk_mb_per_node == 0
    assert simulate_text(SCENARIO + disks, "foreload").disk_mb_per_node == 1500
    assert simulate_text(SCENARIO + disks, "foreload", {"tier.disk.capacity_mb": 1}).disk_mb_per_node == 501
    assert simulate_text(SCENARIO + disks, "foreload", {"tier.3.capacity_mb": "1e3"}).disk_mb_per_node == 2000
    for nonsense in ({"tier.9.capacity_mb": 1}, {"name.of.it": 1}, {"tier": 1}):
        with pytest.raises(InvalidError):
            simulate_text(SCENARIO, "foreload", nonsense)


def test_a_policy_that_cannot_run_has_no_numbers() -> None:
    report = simulate_text(SCENARIO, ["lbann-preload", "foreload"], {"tier.ram.capacity_mb": 10})
    outcome = report["lbann-preload"]
    assert not outcome.supported
    fields = ("hours", "stall_hours", "epoch_hours", "mb_by_source", "requests", "coverage", "copies", "stall_share")
    assert [getattr(outcome, name) for name in fields] == [None] * len(fields)
    with pytest.raises(InvalidError, match="RAM"):
        report.ran("lbann-preload")
    assert report.ran("foreload") == report["foreload"]
    assert (report.samples, report.epochs, report.nodes, report.source_mb_s) == (2000, 3, 2, 50)


def test_progress_is_told_of_every_policy_and_may_end_it() -> None:
    seen: list[tuple[str | None, int, int]] = []
    simulate_text(SCENARIO, ["naive", "foreload"], progress=lambda *each: seen.append(each))
    assert [each for each in seen if each[0] and each[1] in {0, 6000}] == [
        ("naive", 0, 6000),
        ("naive", 6000, 6000),
        ("foreload", 0, 6000),
        ("foreload", 6000, 6000),
    ]

    def end(policy: str | None, _done: int, _total: int) -> None:
        if policy == "foreload":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate_text(SCENARIO, ["naive", "foreload"], progress=end)


#: Numbers as TOML writes them.
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.integers(-3, 70_000).map(str),
    st.floats().map(str),
    st.sampled_from(["inf", "-inf", "nan", "-0.0", "1e300", "5e-324", "4294967296", "65535"]),
)
KEYS = (
    [f"dataset.{key}" for key in ("samples", "mean_mb", "std_mb", "min_mb", "seed")]
    + [f"training.{key}" for key in ("epochs", "global_batch", "seed", "step_s")]
    + [f"cluster.{key}" for key in ("nodes", "compute_mb_s", "preprocess_mb_s", "network_mb_s")]
    + [f"source.{key}" for key in ("throughput_mb_s", "throughput_mb_s.2", "latency_s", "latency_sigma", "requests_in_flight", "connection_mb_s")]
    + [f"tier.ram.{key}" for key in ("capacity_mb", "threads", "read_mb_s", "write_mb_s", "write_behind_mb")]
    + [f"deli.{key}" for key in ("cache_samples", "fetch_samples", "threshold_samples", "parallel", "fetch_fixed_s", "hit_s")]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), NUMBERS, min_size=1, max_size=3))
def test_any_numbers_give_a_finite_report_or_a_clear_error(numbers: dict[str, str]) -> None:
    asked = 0

    def patient(_policy: str | None, _done: int, total: int) -> None:
        nonlocal asked
        asked += 1
        # What takes long, but can be done, is not waited for.
        if total > 100_000 or asked > 40:
            raise KeyboardInterrupt

    try:
        report = simulate_text(SCENARIO, overrides={"dataset.samples": 40, **numbers}, progress=patient)
    except KeyboardInterrupt:
        return
    except InvalidError as error:
        told: str | None = str(error)
    else:
        told = None
        for outcome in report.supported:
            assert math.isfinite(outcome.hours + outcome.stall_hours + outcome.mb_by_source.total + outcome.coverage)
    if told is not None:
        # It names a setting that was given: `tier.1.capacity_mb` for `tier.ram.capacity_mb`.
        names = {[part for part in key.split(".") if not part.isdigit()][-1] for key in numbers}
        assert any(name in told for name in names), told


def test_the_engine_s_scheduler_agrees_with_the_fast_model() -> None:
    one = {"cluster.nodes": 1, "tier.ram.capacity_mb": 400, "tier.staging.capacity_mb": 60}
    fast = simulate_text(SCENARIO, ["foreload"], one)["foreload"]
    driven = simulate_text(SCENARIO, ["foreload"], {**one, "drive": '"engine"'})["foreload"]
    assert driven.requests == fast.requests == 2000
    assert driven.hours == pytest.approx(fast.hours, rel=0.05)


def test_a_grid_has_every_combination(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    found = grid(path, ("tier.ram.capacity_mb", [0, 60, 120]), ("cluster.nodes", [1, 2]))
    assert (len(found.hours), len(found.hours[0])) == (2, 3)
    for row in found.hours:
        assert all(more <= less * (1 + 1e-9) for less, more in itertools.pairwise(row))
    alone = simulate(path, ["foreload"], {"tier.ram.capacity_mb": 60, "cluster.nodes": 2})
    assert found.hours[1][1] == alone["foreload"].hours


def test_pictures_are_drawn(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    table = sim.grid(path, ("tier.ram.capacity_mb", [0, 120]), ("cluster.nodes", [1, 2]))
    for name, drawn in (
        ("policies", plot.time_by_policy(report, tmp_path / "policies.png")),
        ("timeline", plot.timeline(report, tmp_path / "timeline.png")),
        ("grid", plot.grid(table, tmp_path / "grid.png")),
    ):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert drawn.axes
    figure = plot.time_by_policy(report)
    bars = sum(patch.get_height() for patch in figure.axes[0].patches)
    assert figure.axes[0].get_ylabel() == "seconds"
    assert bars == pytest.approx(3600 * sum(outcome.hours for outcome in report.supported), rel=1e-6)
    assert plot.timeline(report, axes=figure.axes[0]) is figure


@pytest.mark.parametrize(
    ("hours", "unit", "cells"),
    [
        ((0.0005, 0.001), "seconds", ["1.80", "3.60"]),
        ((0.0004, 0.05), "minutes", ["0.0240", "3.00"]),
        ((2.25, 1234.0), "hours", ["2.25", "1,234"]),
    ],
)
def test_a_grid_s_numbers_can_be_read(hours: tuple[float, float], unit: str, cells: list[str]) -> None:
    pytest.importorskip("matplotlib")
    drawn = plot.grid(Grid("foreload", ("a", (1, 2, 3)), ("b", (1,)), ((*hours, None),)))
    texts = drawn.axes[0].texts
    assert [text.get_text() for text in texts] == [*cells, "\N{EN DASH}"]
    # On yellow, on violet, on no colour.
    assert [text.get_color() for text in texts] == ["black", "white", "black"]
    assert drawn.axes[1].get_ylabel() == f"{unit}, foreload"


def test_where_nothing_can_run_nothing_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = simulate_text(SCENARIO, ["lbann-preload"], {"tier.ram.capacity_mb": 10})
    for draw in (plot.time_by_policy, plot.timeline):
        with pytest.raises(InvalidError, match=r"nothing to draw.*RAM"):
            draw(report, tmp_path / "plot.png")
    with pytest.raises(InvalidError, match="nothing to draw"):
        plot.grid(Grid("lbann-preload", ("a", (1,)), ("b", (1,)), ((None,),)), tmp_path / "plot.png")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_plot_that_was_there(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    path = tmp_path / "plot.png"
    plot.time_by_policy(report, path)
    path.chmod(0o640)
    before = path.read_bytes()
    link = tmp_path / "link.png"
    link.symlink_to(path)
    plot.timeline(report, link)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.read_bytes() != before
    before = path.read_bytes()

    def full(_figure: Figure, half: Path) -> None:
        half.write_bytes(before[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="No space left on device, while the plot was written") as caught:
        plot.time_by_policy(report, path)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_a_plot_without_matplotlib_says_what_to_install(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'foreload\[plot\]'"):
        plot.time_by_policy(report)


def test_the_simulator_is_an_attribute_of_the_package() -> None:
    program = "import foreload as fl; print(fl.sim.POLICIES[0], fl.cost.__name__); fl.nothing"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout.split() == [POLICIES[0], "foreload.cost"]
    assert "has no attribute 'nothing'" in ran.stderr
