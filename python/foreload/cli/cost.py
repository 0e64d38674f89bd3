"""`foreload cost`: what a simulated run costs, and whether copying the data to every node's disk would be cheaper.

`foreload.sim` gives the counts and `foreload.cost` prices them. The copy is priced with the time that the policy `perfect` takes, because
samples on a local disk are assumed never to be waited for.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import options, output
from foreload.cli.simulate import Settings, cannot, check_policies, hours, resolved, run

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
DiskGb = Annotated[
    float | None,
    typer.Option(
        "--disk-gb",
        callback=options.number(0, 1e9),
        help="Disk rented per node, in GB. Default: the scenario's disk tiers.",
        show_default=False,
    ),
]
CrossZone = Annotated[
    float,
    typer.Option(
        "--cross-zone",
        callback=options.number(0, 1),
        help="Share of the traffic between nodes that crosses a charged border, 0 to 1.",
    ),
]
Sheet = Annotated[bool, typer.Option("--sheet", help="Print the price sheet, to be edited, and end.")]

_MB = 1 << 20


def cost(
    scenario: Scenario = None,
    policy: Policies = None,
    set: Settings = None,  # noqa: A002 (the option's name)
    prices: Prices = "gcs",
    disk_gb: DiskGb = None,
    cross_zone: CrossZone = 0.0,
    sheet: Sheet = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Prices a simulated run, and compares it with copying the data set to every node's disk."""
    from foreload import cost as costs
    from foreload._predict.scenario import Scenario as Tables
    from foreload._settings.text import read_text

    if sheet:
        text = costs.sheet_text(prices)
        output.emit({"sheet": text}, lambda _: print(text), as_json=as_json)
        return
    if scenario is None:
        raise typer.BadParameter("name a scenario file, or give --sheet", param_hint="SCENARIO")
    check_policies(policy)
    settings = options.pairs(set, "--set")
    text = read_text(scenario, "the scenario")
    names = list(dict.fromkeys(policy or ["foreload"]))
    # A sheet that can't be is said before a simulation that takes long.
    costs.price(costs.Usage(), prices)
    with resolved(text, settings, quiet=quiet) as given:
        report = run(text, list(dict.fromkeys([*names, "perfect"])), given, quiet=quiet)
        # What the first epoch reads, later ones may find cached.
        one = {**given, "training.epochs": "1"}
        first = run(text, names, one, quiet=quiet, what="the first epoch of")
        objects = Tables(text, given).objects() or report.samples
    bills = []
    for name in names:
        outcome = report[name]
        if not outcome.supported:
            bills.append({"policy": name, "supported": False, "reason": outcome.reason})
            continue
        usage, once = (
            costs.usage_of(each, name, report.nodes, disk_gb, costs.listings(objects), cross_zone)
            for each in (report, first)
        )
        bill = costs.price(usage, prices)
        even = _break_even(report, name, objects, usage, once, prices)
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
        "epochs": report.epochs,
        "nodes": report.nodes,
        "objects": objects,
        "results": bills,
    }
    output.emit(value, lambda console: _draw(console, value), as_json=as_json)
    if not any(bill["supported"] for bill in bills):
        cannot(first)


def _break_even(
    report: "Report", policy: str, objects: int, usage: "Usage", first: "Usage", prices: str
) -> "BreakEven":
    from foreload.cost import CopyPlan, break_even

    epochs = report.ran(policy).epoch_hours
    later = epochs[1:] or epochs
    mean = sum(later) / len(later)
    counts = ("class_b_requests", "source_bytes", "cross_zone_bytes")
    each = {name: _per_epoch(getattr(usage, name), getattr(first, name), len(epochs)) for name in counts}
    rest = {name: max(0, getattr(first, name) - each[name]) for name in counts}
    per_epoch = dataclasses.replace(usage, hours=mean, class_a_requests=0, **each)
    # What is rented is rented while the first epoch takes longer, too.
    once = dataclasses.replace(usage, hours=max(0.0, epochs[0] - mean), **rest)
    copy = CopyPlan(
        nodes=report.nodes,
        dataset_bytes=int(report.dataset_mb * _MB),
        objects=objects,
        bytes_per_s_per_node=int(report.source_mb_s / report.nodes * _MB),
        system_bytes=0,
        epoch_hours=report.ran("perfect").hours / report.epochs,
    )
    return break_even(once, per_epoch, copy, report.epochs, prices)


def _per_epoch(whole: int, first: int, epochs: int) -> int:
    """What an epoch after the first adds, given a run of all epochs and one of the first alone."""
    return max(0, whole - first) // (epochs - 1) if epochs > 1 else first


def _draw(console: "Console", value: dict[str, Any]) -> None:
    length, machines = output.counted(value["epochs"], "epoch"), output.counted(value["nodes"], "node")
    title = f"{value['scenario'] or 'scenario'}: {length} on {machines}, prices of {value['prices']}"
    rows: list[tuple[str, ...]] = []
    for found in value["results"]:
        if not found["supported"]:
            rows.append((f"{found['policy']} can't run: {found['reason']}", *[output.NONE] * 7))
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
        >>> dollars(1234.5), dollars(0.004), dollars(0.00001)
        ('$1,234.50', '$0.0040', '< $0.0001')
    """
    if 0 < amount < 0.0001:
        return "< $0.0001"
    return f"${amount:,.2f}" if amount >= 0.01 or amount == 0 else f"${amount:.4f}"
