"""Every workload beside its peers: `make bench`, or `python -m bench [WORKLOAD...] [--peers all|none|NAMES] [--quick]`.

Runs W1 to W4, the slow file system, the peers on W1's objects (and on the same samples in their own forms), and paper 000's Table I. All
ratios of a workload come from one run. Prints tables and writes them, with plots, to `bench/results/DATE-bench.md`, `.json` and `.png`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import figures, machine, peers, table_i
from bench.registry import Result
from bench.rows.throughput import make_files
from bench.stage import ROOT, Stage

WORKLOADS = ("w1", "w2", "w3", "w4", "slowfs", "forms", "table-i")


def first_table(stage: Stage) -> Result:
    """Paper 000's Table I on this machine's bucket."""
    count, result = stage.amount(5000, 400), Result()
    directory = stage.directory()
    make_files(directory, count, 300, 1000)
    machine.drop_page_cache(directory)
    with stage.bucket(f"mnist:{count}x300-1000") as bucket:
        keys = [f"mnist/{number:08}.bin" for number in range(count)]
        task = {"endpoint": bucket.endpoint, "keys": keys, "directory": str(directory), "seconds": stage.amount(10, 2)}
        environment = {**stage.environment(directory), **bucket.environment()}
        command = stage.pinned(sys.executable, "-m", "bench.table_i", json.dumps(task))
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    for name, rate in found.items():
        result.read(name, rate, unit="MB/s")
        result.read(f"{name}, published", table_i.PUBLISHED[name], unit="MB/s")
    sequential = found["bucket, sequential"]
    result.read("16 threads / sequential", found["bucket, 16 threads"] / sequential)
    result.read(
        "16 threads / sequential, published",
        table_i.PUBLISHED["bucket, 16 threads"] / table_i.PUBLISHED["bucket, sequential"],
    )
    result.settings = {
        "data": f"{count} files of 300 to 1,000 bytes, as MNIST's images",
        "client": "boto3",
        "disk": "page cache dropped",
    }
    return result


def shown(title: str, result: Result) -> Table:
    """A workload for the terminal."""
    table = Table("", "median", "min .. max (runs)", title=title, title_justify="left")
    for reading in result.readings:
        if reading.values:
            table.add_row(
                reading.name,
                f"{reading.median:.4g} {reading.unit}",
                f"{min(reading.values):.4g} .. {max(reading.values):.4g} ({len(reading.values)})",
            )
    for name, details in [*result.settings.get("peers", {}).items(), *result.raw.items()]:
        if isinstance(details, dict) and details.get("error"):
            table.add_row(name, f"failed in {details['failed']}", details["error"].splitlines()[-1][:120])
    return table


def markdown(results: dict[str, Result]) -> str:
    """All of it for readers."""
    lines = [
        "# Workloads and peers",
        "",
        f"`make bench`, commit {machine.commit(ROOT)}, {json.dumps(machine.describe())}",
        "",
    ]
    for title, result in results.items():
        lines += [f"## {title}", "", "| | median | min .. max (runs) |", "| --- | --- | --- |"]
        for reading in result.readings:
            if reading.values:
                lines.append(
                    f"| {reading.name} | {reading.median:.4g} {reading.unit} | {min(reading.values):.4g} .. {max(reading.values):.4g} ({len(reading.values)}) |"
                )
        every = {**result.settings.get("peers", {}), **result.raw}
        lines += [
            f"| {name} | failed in {details['failed']} | {details['error'].splitlines()[-1]} |"
            for name, details in every.items()
            if isinstance(details, dict) and details.get("error")
        ]
        lines += ["", *([f"**{result.invalid}**", ""] if result.invalid else [])]
        lines += [
            f"- {name}: {details['settings']}"
            for name, details in every.items()
            if isinstance(details, dict) and "settings" in details
        ]
        lines += [f"- {name}: {value}" for name, value in result.settings.items() if name != "peers"] + [""]
    return "\n".join(lines)


def plot(results: dict[str, Result], path: Any) -> None:
    """Rates of each workload as bars."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    charts = {
        title: [r for r in result.readings if r.values and r.unit in ("samples/s", "MB/s")]
        for title, result in results.items()
    }
    charts = {title: readings for title, readings in charts.items() if readings}
    if not charts:
        return
    figure, axes = plt.subplots(
        len(charts),
        1,
        figsize=(8, 0.8 + sum(0.5 + 0.32 * len(r) for r in charts.values())),
        squeeze=False,
        layout="constrained",
    )
    for (title, readings), axis in zip(charts.items(), axes[:, 0], strict=True):
        axis.barh([r.name for r in readings][::-1], [r.median for r in readings][::-1], color="#3b6ea5")
        axis.set_title(f"{title} ({readings[0].unit})", loc="left", fontsize=9)
        axis.tick_params(labelsize=7)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Runs the workloads that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures the workloads beside peers.")
    parser.add_argument("workloads", nargs="*", help=f"{' '.join(WORKLOADS)}; none: all")
    parser.add_argument("--peers", default="all", help=f"all, none, or names: {','.join(peers.ALL)}")
    parser.add_argument(
        "--quick", action="store_true", help="little data; numbers that mean nothing, and nothing is written"
    )
    parser.add_argument("--pairs", type=int, default=5, help="interleaved repetitions (5)")
    given = parser.parse_args()
    chosen = given.workloads or WORKLOADS
    if unknown := set(chosen) - set(WORKLOADS):
        parser.error(f"no workload is called {', '.join(sorted(unknown))}")
    names = {"all": peers.ALL, "none": ()}.get(given.peers, tuple(given.peers.split(",")))
    console = Console()
    stage = Stage(given.quick, 1 if given.quick else given.pairs, names, console.print)
    measures: dict[str, Any] = {figure.id: figure.measure for figure in figures.FIGURES}
    measures["table-i"] = first_table
    results: dict[str, Result] = {}
    try:
        for name in WORKLOADS:
            if name in chosen:
                console.print(f"[dim]{name}[/]")
                results[name] = measures[name](stage)
                console.print(shown(name, results[name]))
    finally:
        stage.close()
    if not given.quick:
        # A part doesn't take the place of the whole.
        part = "".join(f"-{name}" for name in results) if len(results) < len(WORKLOADS) else ""
        stem = figures.RESULTS / f"{dt.datetime.now(dt.UTC):%Y-%m-%d}-bench{part}"
        stem.with_suffix(".md").write_text(machine.without_paths(markdown(results), ROOT))
        whole = {
            name: {"readings": [r.as_dict() for r in result.readings], "settings": result.settings, "raw": result.raw}
            for name, result in results.items()
        }
        text = json.dumps({"machine": machine.describe(), "commit": machine.commit(ROOT), "workloads": whole}, indent=1)
        stem.with_suffix(".json").write_text(machine.without_paths(text + "\n", ROOT))
        plot(results, stem.with_suffix(".png"))


if __name__ == "__main__":
    main()
