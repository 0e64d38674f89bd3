"""Prices: that bills add up, sheets can be edited, and the paper's equations give its table."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload import cost
from foreload.cost import Bill, CopyPlan, Usage, break_even, deli, listings, price, sheet_text, usage_of, usage_of_run
from foreload.errors import InvalidError
from foreload.sim import simulate_text
from small import COUNT, until

FLAT = """
name = "flat"
dated = "2026-01-01"
region = "here"
source = "made up"
storage_gb_month = 0
egress_gb = 0.5
cross_zone_gb = 0.25
instance_hour = 2
instance = "one"
disk_gb_month = 0.1
page_size = 1000
[requests]
class_a_per_10k = 5
class_b_per_10k = 1
"""


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    path = tmp_path / "flat.toml"
    path.write_text(FLAT)
    return path


def test_a_bill_is_counts_times_prices(flat: Path) -> None:
    used = Usage(nodes=4, hours=3.0, class_a_requests=20_000, class_b_requests=50_000, egress_bytes=10**9)
    bill = price(used, flat)
    assert bill.instances == pytest.approx(4 * 3 * 2)
    assert bill.requests == pytest.approx(2 * 5 + 5 * 1)
    assert bill.network == pytest.approx(0.5, rel=0.08)
    assert (bill.disk, bill.bucket_storage) == (0.0, 0.0)
    assert bill.total == pytest.approx(bill.instances + bill.requests + bill.network)
    assert price(Usage(), flat) == Bill(0, 0, 0, 0, 0)


def test_an_index_is_listed_once_by_a_thousand_objects() -> None:
    assert [listings(objects) for objects in (0, 1, 1000, 1001)] == [0, 1, 1, 2]


def test_disks_are_charged_for_the_hours_of_the_run(flat: Path) -> None:
    month = price(Usage(nodes=2, hours=730.0, disk_bytes_per_node=10**11), flat)
    assert month.disk == pytest.approx(2 * 100 * 0.1, rel=0.1)
    half = price(Usage(nodes=2, hours=365.0, disk_bytes_per_node=10**11), flat)
    assert half.disk == pytest.approx(month.disk / 2)


@pytest.mark.parametrize("name", ["gcs", "s3", "azure"])
def test_a_shipped_sheet_can_be_saved_and_edited(name: str, tmp_path: Path) -> None:
    used = Usage(nodes=1, hours=1.0, class_b_requests=10_000, bucket_bytes=10**12)
    text = sheet_text(name)
    assert f'name = "{name}"' in text
    assert "dated" in text
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert price(used, path) == price(used, name) == price(used, str(path))
    assert price(used, name).total > 0


def test_sheets_that_do_not_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    for text in ("storage_gb_month = 1", FLAT.replace("egress_gb", "egres_gb")):
        path.write_text(text)
        with pytest.raises(InvalidError):
            price(Usage(), path)
    with pytest.raises(InvalidError, match="gcs"):
        price(Usage(), "gsc")


def test_a_simulated_run_is_priced_by_the_same_counts(flat: Path) -> None:
    text = """
[dataset]
samples = 500
mean_mb = 0.1
[training]
epochs = 2
global_batch = 10
[cluster]
nodes = 2
compute_mb_s = 50
network_mb_s = 1000
[source]
throughput_mb_s = { 1 = 30 }
[[tier]]
kind = "ram"
capacity_mb = 100
read_mb_s = 1000
"""
    report = simulate_text(text, ["foreload"])
    used = usage_of(report, "foreload", nodes=2, disk_gb_per_node=3.0, list_requests=7, cross_zone_share=0.5)
    outcome = report["foreload"]
    assert (used.nodes, used.hours, used.class_a_requests) == (2, outcome.hours, 7)
    assert (used.class_b_requests, used.disk_bytes_per_node) == (500, 3 * 10**9)
    assert used.source_bytes == pytest.approx(50 * 2**20, rel=1e-6)
    assert used.cross_zone_bytes == pytest.approx(outcome.mb_by_source.peer * 2**19, rel=1e-6)
    assert price(used, flat).requests == pytest.approx(500 / 10_000 + 5 * 7 / 10_000)


def test_the_disk_of_a_simulated_run_is_the_scenario_s_unless_it_is_named() -> None:
    text = """
dataset = { samples = 100, mean_mb = 0.1 }
training = { epochs = 1, global_batch = 10, step_s = 0.1 }
cluster = { nodes = 2, network_mb_s = 100 }
source = { throughput_mb_s = 100 }
tier = [{ kind = "disk", capacity_mb = 3, read_mb_s = 9 }, { kind = "ram", capacity_mb = 8, read_mb_s = 9 }]
"""
    report = simulate_text(text, "foreload")
    assert usage_of(report, "foreload", nodes=2).disk_bytes_per_node == 3 << 20
    assert usage_of(report, "foreload", nodes=2, disk_gb_per_node=0).disk_bytes_per_node == 0


def test_a_real_run_is_priced_by_what_its_bucket_counted(home: Any, bucket: Any) -> None:
    data = fl.open("s3://data/train")
    bucket.reset()
    # Half of the requests are refused the first time.
    bucket.add_fault("status", status=503, share=0.5, attempts=1, on=["get"])
    tuning = fl.Tuning(hedge_per_cent=0)
    loader = fl.NumpyLoader(data, 16, cache=fl.Cache(ram="32MB"), tuning=tuning, seed=3)
    try:
        assert sum(len(batch[0]) for batch in loader) == COUNT
    finally:
        bucket.clear_faults()
    stats = loader.stats()
    used = usage_of_run(stats, seconds=7200, disk_gb_per_node=2.0, list_requests=listings(COUNT), egress_share=0.5)
    assert stats["retries"] > 0
    assert used.class_b_requests == bucket.counters()["requests"]["get"]
    assert used.source_bytes >= data.nbytes
    assert used.egress_bytes == used.source_bytes // 2
    assert (used.nodes, used.hours, used.class_a_requests, used.disk_bytes_per_node) == (1, 2.0, 1, 2 * 10**9)
    assert price(used, "s3").requests > 0


def test_a_line_of_the_metrics_log_is_priced_too(home: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    tuning = fl.Tuning(metrics_log=log)
    loader = fl.NumpyLoader(fl.open("s3://data/fixed"), 16, cache=fl.Cache(ram="32MB"), tuning=tuning)

    for _ in loader:
        pass
    stats = loader.stats()

    def whole() -> str | None:
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        return next((line for line in lines if line.endswith("\n")), None)

    # The pause after the epoch is long enough for a line, which has all of it.
    line = json.loads(until(whole))
    epochs = [json.loads(each) for each in log.read_text().splitlines() if '"epoch"' in each]
    assert [(each["rank"], each["epoch"]) for each in epochs] == [(0, stats["epochs"][0])]
    assert 0 < epochs[0]["epoch"]["au"] <= 1
    assert line["stats"]["requests"] == stats["requests"]
    assert usage_of_run(line, seconds=1).class_b_requests == stats["requests"] + stats["retries"] > 0
    del loader
    gc.collect()

    def last() -> bool:
        lines = log.read_text().splitlines()
        return len(lines) > 1 and json.loads(lines[-1])["stats"]["samples"] == stats["samples"]

    assert until(last)


def test_a_job_on_several_nodes_is_the_sum_of_its_nodes() -> None:
    node = {"requests": 10, "retries": 1, "requested_bytes": 1000, "hedges": 2}
    used = usage_of_run([node, {"unix_s": 0, "job": 1, "stats": node}], seconds=3600)
    assert (used.nodes, used.class_b_requests, used.source_bytes) == (2, 22, 2000)
    # A node has ended, but is rented.
    assert usage_of_run([node], seconds=3600, nodes=2).nodes == 2


@pytest.mark.parametrize(
    ("stats", "given", "text"),
    [
        ({}, {}, "loader.stats"),
        ({"stats": 3}, {}, "loader.stats"),
        ({"requests": -1, "retries": 0, "requested_bytes": 0}, {}, "requests"),
        ({"requests": 1, "retries": 0, "requested_bytes": 0}, {"seconds": -1}, "seconds"),
        ({"requests": 1, "retries": 0, "requested_bytes": 0}, {"egress_share": 2}, "egress_share"),
        ({"requests": 1, "retries": 0, "requested_bytes": 0}, {"bucket_bytes": 0.5}, "bucket_bytes"),
    ],
)
def test_what_no_loader_counts_is_refused(stats: dict[str, Any], given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidError, match=text):
        usage_of_run(stats, **{"seconds": 1.0, **given})


def test_copying_pays_once_reading_again_has_cost_more(flat: Path) -> None:
    copy = CopyPlan(
        nodes=1, dataset_bytes=10**9, objects=10_000, bytes_per_s_per_node=10**9 / 3600, system_bytes=0, epoch_hours=1.0
    )
    # Reading takes two hours an epoch, the copy one hour once and one an epoch.
    each = Usage(nodes=1, hours=2.0, class_b_requests=10_000)
    found = break_even(Usage(), each, copy, epochs=10, prices=flat)
    assert found.copy_pays_after_epochs in {1, 2}
    assert found.bucket.total > found.copy.total
    assert found.bucket.instances == pytest.approx(10 * 2 * 2)
    as_fast = Usage(nodes=1, hours=1.0)
    assert break_even(Usage(), as_fast, copy, epochs=10, prices=flat).copy_pays_after_epochs is None


def test_the_paper_s_equations_count_requests() -> None:
    run = {"nodes": 3, "samples": 60_000, "epochs": 2, "dataset_gb": 0.1, "system_gb": 10.0, "run_hours": 1.0}
    disk, bucket = deli(**run, from_disk=True), deli(**run)
    fetching = deli(**run, cached=2000, fetch=1000)
    super_samples = deli(**run, cached=2000, fetch=1000, super_sample=64, listing="once-per-node")
    for found in (disk, bucket, fetching, super_samples):
        assert found["total"] == pytest.approx(found["api"] + found["storage"] + found["compute"])
    assert disk["api"] == 0
    assert fetching["api"] > bucket["api"] > super_samples["api"] > 0
    with pytest.raises(InvalidError):
        deli(**run, fetch=10, listing="sometimes")


def test_the_module_says_what_it_exports() -> None:
    assert all(hasattr(cost, name) for name in cost.__all__)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "doesn't exist"),
        (b"", "is empty"),
        (b"\x89PNG\xff\xfe", "isn't text"),
        (b"instance_hour", "not valid"),
        (FLAT.replace("egress_gb = 0.5", "egress_gb = -0.5").encode(), "egress_gb: -0.5"),
        (FLAT.replace("egress_gb = 0.5", "egress_gb = nan").encode(), "egress_gb: NaN"),
        (FLAT.replace("instance_hour = 2", "instance_hour = inf").encode(), "instance_hour: inf"),
        (FLAT.replace("class_b_per_10k = 1", "class_b_per_10k = 1e300").encode(), "class_b_per_10k: 1"),
        (FLAT.replace("page_size = 1000", "page_size = 0").encode(), "page_size"),
    ],
)
def test_what_is_wrong_with_a_sheet_s_file_is_said_with_its_name(
    content: bytes | None, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((InvalidError, FileNotFoundError), match=problem) as caught:
        price(Usage(nodes=1), path)
    assert str(path) in str(caught.value)
    with pytest.raises(InvalidError, match="unknown price sheet"):
        price(Usage(nodes=1), "gcp")


@pytest.mark.parametrize(
    "given", [{"nodes": -1}, {"hours": float("inf")}, {"hours": float("nan")}, {"source_bytes": 1 << 64}]
)
def test_counts_that_are_none_are_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=next(iter(given))):
        Usage(**given)
