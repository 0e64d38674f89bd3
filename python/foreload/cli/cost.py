"""`foreload cost`: what a simulated run costs, and whether copying the data to every node's disk would be cheaper.

`foreload.sim` gives the counts and `foreload.cost` prices them. The copy is priced with the time that the policy `perfect` takes, because
samples on a local disk are assumed never to be waited for.
"""

import dataclasses
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import options, output
from foreload.cli.simulate import Settings, hours, run

if TYPE_CHECKING:
    from rich.console import Console

    from foreload.cost import BreakEven, Usage
    from foreload.sim import Report

Scenario = Annotated[
    Path | None,
    typer.Argument(metavar="SCENARIO", help="A scenario file (docs/guide/simulate.md).", show_default=False),
]
Policies = Annotated[list[str] | None, typer.Option("--policy", "-p", help="A policy; repeatable. Default: foreload.")]
Prices = Annotated[str, typer.Option("--prices", metavar="NAME|FILE", help="gcs, s3, azure, or a sheet of your own.")]
DiskGb = Annotated[float, typer.Option("--disk-gb", min=0, help="Disk rented per node, in GB.")]
CrossZone = Annotated[
    float,
    typer.Option(
        "--cross-zone", min=0, max=1, help="Share of the traffic between nodes that crosses a charged border."
    ),
]
Sheet = Annotated[bool, typer.Option("--sheet", help="Print the price sheet, to be edited, and end.")]

_MB = 1 << 20
#: Objects that one listing request names, at S3 and GCS.
_PAGE = 1000


def cost(
    scenario: Scenario = None,
    policy: Policies = None,
    set: Settings = None,  # noqa: A002 (the option's name)
    prices: Prices = "gcs",
    disk_gb: DiskGb = 0.0,
    cross_zone: CrossZone = 0.0,
    sheet: Sheet = False,
    as_json: options.AsJson = False,
) -> None:
    """Prices a simulated run, and compares it with copying the data set to every node's disk."""
    from foreload import cost as costs

    if sheet:
        text = costs.sheet_text(prices)
        output.emit({"sheet": text}, lambda _: print(text), as_json=as_json)
        return
    if scenario is None:
        raise typer.BadParameter("name a scenario file, or give --sheet", param_hint="SCENARIO")
    settings = options.pairs(set, "--set")
    machine = Machines(scenario.read_text(encoding="utf-8"), settings)
    names = list(dict.fromkeys(policy or ["foreload"]))
    report = run(scenario, list(dict.fromkeys([*names, "perfect"])), settings)
    # What the first epoch reads, later ones may find cached.
    first = run(scenario, names, {**settings, "training.epochs": "1"})
    bills = []
    for name in names:
        outcome = report[name]
        if not outcome.supported:
            bills.append({"policy": name, "supported": False, "reason": outcome.reason})
            continue
        usage = _usage(report, name, machine, disk_gb, cross_zone)
        bill = costs.price(usage, prices)
        once = _usage(first, name, machine, disk_gb, cross_zone)
        even = _break_even(report, name, usage, once, machine, prices)
        bills.append(
            {
                "policy": name,
                "supported": True,
                "hours": outcome.hours,
                "usage": dataclasses.asdict(usage),
                "bill": {**dataclasses.asdict(bill), "total": bill.total},
                "copy": {**dataclasses.asdict(even.copy), "total": even.copy.total},
                "copy_pays_after_epochs": even.copy_pays_after_epochs,
            }
        )
    value = {
        "scenario": report.scenario,
        "prices": prices,
        "epochs": machine.epochs,
        "nodes": machine.nodes,
        "results": bills,
    }
    output.emit(value, lambda console: _draw(console, value), as_json=as_json)


class Machines:
    """What a scenario says about the machines, with overrides.

    Args:
        scenario: Its text.
        settings: What `--set` changes.

    Attributes:
        nodes: N.
        epochs: E.
        samples: F.
        source_mb_s: What one node gets from the source while all read.
    """

    def __init__(self, scenario: str, settings: dict[str, str]) -> None:
        from foreload.errors import InvalidError

        try:
            found = tomllib.loads(scenario)
        except tomllib.TOMLDecodeError as error:
            raise InvalidError(f"the scenario isn't TOML: {error}") from None
        for path, text in settings.items():
            *sections, key = path.split(".")
            if len(sections) == 1 and isinstance(found.get(sections[0]), dict):
                found[sections[0]][key] = tomllib.loads(f"value = {text}")["value"] if _is_toml(text) else text
        try:
            self.nodes = int(found["cluster"]["nodes"])
            self.epochs = int(found["training"]["epochs"])
            self.source_mb_s = _throughput(found["source"]["throughput_mb_s"], self.nodes) / self.nodes
        except KeyError as error:
            raise InvalidError(f"the scenario lacks {error.args[0]!r}") from None
        self.samples = int(found["dataset"].get("samples", 0))


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return False
    return True


def _throughput(given: float | dict[str, float], nodes: int) -> float:
    """t(gamma) as the simulator reads it: linear between points, constant beyond."""
    import numpy as np

    if not isinstance(given, dict):
        return float(given)
    points = sorted((float(gamma), float(mb_s)) for gamma, mb_s in given.items())
    return float(np.interp(nodes, [gamma for gamma, _ in points], [mb_s for _, mb_s in points]))


def _usage(report: "Report", policy: str, machine: Machines, disk_gb: float, cross_zone: float) -> "Usage":
    from foreload.cost import usage_of

    # One index, listed once for the job.
    listings = -(-machine.samples // _PAGE)
    return usage_of(report, policy, machine.nodes, disk_gb, listings, cross_zone)


def _break_even(
    report: "Report", policy: str, usage: "Usage", first: "Usage", machine: Machines, prices: str
) -> "BreakEven":
    from foreload.cost import CopyPlan, Usage, break_even

    epochs = report[policy].epoch_hours
    later = epochs[1:] or epochs
    mean = sum(later) / len(later)
    counts = ("class_b_requests", "source_bytes", "cross_zone_bytes")
    each = {name: _per_epoch(getattr(usage, name), getattr(first, name), len(epochs)) for name in counts}
    rest = {name: max(0, getattr(first, name) - each[name]) for name in counts}
    per_epoch = dataclasses.replace(usage, hours=mean, class_a_requests=0, **each)
    once = Usage(nodes=machine.nodes, hours=max(0.0, epochs[0] - mean), class_a_requests=usage.class_a_requests, **rest)
    copy = CopyPlan(
        nodes=machine.nodes,
        dataset_bytes=int(report.dataset_mb * _MB),
        objects=machine.samples,
        bytes_per_s_per_node=int(machine.source_mb_s * _MB),
        system_bytes=0,
        epoch_hours=report["perfect"].hours / max(1, len(report["perfect"].epoch_hours)),
    )
    return break_even(once, per_epoch, copy, machine.epochs, prices)


def _per_epoch(whole: int, first: int, epochs: int) -> int:
    """What an epoch after the first adds, given a run of all epochs and one of the first alone."""
    return max(0, whole - first) // (epochs - 1) if epochs > 1 else first


def _draw(console: "Console", value: dict[str, Any]) -> None:
    title = f"{value['scenario'] or 'scenario'}: {value['epochs']} epochs on {value['nodes']} nodes, prices of {value['prices']}"
    rows: list[tuple[str, ...]] = []
    for found in value["results"]:
        if not found["supported"]:
            rows.append((found["policy"], "can't run", "", "", "", "", "", found["reason"] or ""))
            continue
        bill = found["bill"]
        parts = (dollars(bill[name]) for name in ("requests", "bucket_storage", "disk", "network", "instances"))
        rows.append((found["policy"], hours(found["hours"]), *parts, dollars(bill["total"])))
        copy, after = found["copy"], found["copy_pays_after_epochs"]
        parts = (dollars(copy[name]) for name in ("requests", "bucket_storage", "disk", "network", "instances"))
        rows.append(("copied to every disk", "", *parts, dollars(copy["total"])))
        pays = "never pays" if after is None else f"pays from epoch {after} on"
        rows.append((f"  copying {pays}", "", "", "", "", "", "", ""))
    columns = ("policy", ">time", ">requests", ">bucket", ">disk", ">network", ">instances", ">total")
    output.grid(console, columns, rows, title)


def dollars(amount: float) -> str:
    """Dollars for people.

    Example:
        >>> dollars(1234.5), dollars(0.004)
        ('$1,234.50', '$0.0040')
    """
    return f"${amount:,.2f}" if amount >= 0.01 or amount == 0 else f"${amount:.4f}"
