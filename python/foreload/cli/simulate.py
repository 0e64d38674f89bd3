"""`foreload simulate`: what a run would take, before anything is rented.

`foreload.sim` does it; this shows how far it is, also while the index is listed that a scenario names, and draws.
"""

import dataclasses
import difflib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import failure, options, output
from foreload.cli.progress import reporter

if TYPE_CHECKING:
    from rich.console import Console

    from foreload.sim import Fabric, Report

Scenario = Annotated[Path, typer.Argument(metavar="SCENARIO", help="A scenario file (docs/guide/simulate.md).")]
Policies = Annotated[list[str] | None, typer.Option("--policy", "-p", help="A policy; repeatable. Default: all.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as cluster.nodes=8; repeatable."),
]
Calibration = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="FILE", help="Take speeds from what `foreload calibrate` measured."),
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw hours by policy and source.")]

_MB = 1 << 20


def simulate(
    scenario: Scenario,
    policy: Policies = None,
    set: Settings = None,  # noqa: A002 (the option's name)
    plot: Plot = None,
    calibration: Calibration = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Simulates a scenario under one or more policies: hours, stall, requests, bytes by source."""
    from foreload._settings.text import read_text

    options.check_writable(plot, "--plot")
    if plot is not None:
        from foreload.plot import check_suffix

        check_suffix(plot, "--plot")
    check_policies(policy)
    settings = options.pairs(set, "--set")
    text = read_text(scenario, "the scenario")
    if calibration is not None:
        from foreload import speeds

        settings = {**speeds.overrides(speeds.read(calibration), text, _nodes(settings)), **settings}
    with resolved(text, settings, quiet=quiet) as given:
        report = run(text, policy, given, quiet=quiet)
    drawn = plot if report.supported else None
    if drawn is not None:
        from foreload.plot import time_by_policy

        time_by_policy(report, drawn)
    output.emit(as_value(report), lambda console: _draw(console, report, drawn), as_json=as_json)
    if not report.supported:
        cannot(report, "" if plot is None else f"; nothing to draw, {plot} is not written")


def check_policies(policies: list[str] | None) -> None:
    """Refuses a policy that doesn't exist, before anything is opened.

    Raises:
        BadParameter: Suggests the nearest, and names all.
    """
    from foreload.sim import POLICIES

    for name in policies or []:
        if name not in POLICIES:
            near = difflib.get_close_matches(name, POLICIES, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            problem = f"{name!r} is unknown{meant} (there are {', '.join(POLICIES)})"
            raise typer.BadParameter(problem, param_hint="--policy")


def cannot(report: "Report", besides: str = "") -> None:
    """Ends the verb because none of the policies can run the scenario.

    Args:
        report: Says why.
        besides: What else comes of it.
    """
    reasons = "; ".join(f"{outcome.policy}: {outcome.reason}" for outcome in report.results if not outcome.supported)
    failure.say(f"no policy that was asked for can run {report.scenario or 'the scenario'} ({reasons}){besides}")
    failure.leave(failure.Code.FAILED)


def run(
    scenario: str, policies: list[str] | None, settings: Mapping[str, object], *, quiet: bool, what: str = "simulating"
) -> "Report":
    """Simulates, and says how far it is.

    Args:
        scenario: The scenario's text.
        policies: Names; all when None.
        settings: What is changed, as `resolved` yields it.
        quiet: Say nothing.
        what: What is done to each policy, for people.
    """
    from foreload.sim import POLICIES, simulate_text

    names = policies or list(POLICIES)
    with reporter(quiet=quiet) as progress:

        def told(policy: str | None, done: int, total: int) -> None:
            progress(f"{what} {policy or '(sizes and order)'}", done, total)

        return simulate_text(scenario, names, settings, told)


def _nodes(settings: dict[str, str]) -> int | None:
    """Nodes that `--set` names; what isn't a number the simulator complains about."""
    text = settings.get("cluster.nodes", "").strip()
    return int(text) if text.isdecimal() and 0 < int(text) < 1 << 16 else None


def resolved(
    scenario: str, settings: Mapping[str, object], *, quiet: bool
) -> AbstractContextManager[dict[str, object]]:
    """Settings that give the simulator a list of sizes in place of the index that the scenario names, if it names one.

    Args:
        scenario: The scenario's text.
        settings: What `--set` changes.
        quiet: Show no bar while the index is made.
    """
    from foreload._predict import scenario as _scenario
    from foreload.cli.opening import open_dataset

    return _scenario.resolved(scenario, settings, lambda url: open_dataset(url, {}, quiet=quiet))


def as_value(report: "Report") -> dict[str, Any]:
    """The report in JSON's types, without what a policy doesn't have."""
    value = dataclasses.asdict(report)
    for result in value["results"]:
        for key in ("miss_rate", "load_s", "fabric"):
            if result[key] is None:
                del result[key]
    return value


def _draw(console: "Console", report: "Report", plot: Path | None) -> None:
    from foreload.sim import Ran

    bound = hours(report.lower_bound_hours)
    console.print(
        f"[bold]{report.scenario or 'scenario'}[/]: {output.human_bytes(report.dataset_mb * _MB)}; lower bound {bound}"
    )
    rows: list[tuple[str, ...]] = []
    for outcome in report.results:
        if not isinstance(outcome, Ran):
            rows.append((outcome.policy, *[output.NONE] * 6, f"can't run: {outcome.reason}"))
            continue
        total = outcome.mb_by_source.total or 1.0
        shares = (f"{getattr(outcome.mb_by_source, name) / total:.0%}" for name in ("ram", "disk", "peer", "source"))
        marks = [] if outcome.keeps_order else ["changes the order"]
        marks += [] if outcome.reads_whole_dataset else ["doesn't read everything"]
        marks += ["driven by the engine's scheduler"] if outcome.drive == "engine" else []
        time, stall = hours(outcome.hours), f"{outcome.stall_share:.1%}"
        rows.append((outcome.policy, time, stall, *shares, "; ".join(marks)))
    columns = ("policy", ">time", ">stall", ">own RAM", ">own disk", ">peers", ">source", "note")
    output.grid(console, columns, rows)
    for outcome in report.supported:
        if outcome.fabric is not None:
            output.facts(
                console, f"between the nodes, with {outcome.policy}", fabric_rows(outcome.fabric, report.nodes)
            )
    if plot is not None:
        console.print(f"plot: {plot}")


def fabric_rows(fabric: "Fabric", nodes: int) -> list[tuple[str, str]]:
    """Traffic between nodes for people: bytes, hot spots, incast, connections, and the proposed cache groups.

    Args:
        fabric: The traffic.
        nodes: In the cluster.

    Example:
        >>> from foreload.sim import Fabric
        >>> for row in fabric_rows(Fabric(4000, 1500, 1000, 0.25, 0.004, 3, 2, 8000), 4):
        ...     print(*row, sep=": ")
        bytes: 4.19 GB; 1.05 GB a node on average
        busiest nodes: one sends 1.57 GB (1.5 x the average), one receives 1.05 GB (1 x)
        longest queues: 250 ms at a sender's tier or network, 4 ms at a receiver (incast)
        connections: 3 a node
        proposed: cache groups of 2 nodes, 1 connection a node; the source gives 8.39 GB in all
    """

    def size(mb: float) -> str:
        return output.human_bytes(mb * _MB)

    mean = fabric.peer_mb / nodes
    sent, received = (
        f"{mb / mean:.3g} x" if mean else output.NONE for mb in (fabric.most_sent_mb, fabric.most_received_mb)
    )
    queued, incast = (output.human_seconds(s) for s in (fabric.most_queued_s, fabric.most_received_queue_s))
    group = fabric.cache_group_nodes
    groups = "each node by itself" if group == 1 else f"cache groups of {group} nodes"
    links = f"{group - 1} connection{'' if group == 2 else 's'} a node"
    return [
        ("bytes", f"{size(fabric.peer_mb)}; {size(mean)} a node on average"),
        (
            "busiest nodes",
            f"one sends {size(fabric.most_sent_mb)} ({sent} the average), one receives {size(fabric.most_received_mb)} ({received})",
        ),
        ("longest queues", f"{queued} at a sender's tier or network, {incast} at a receiver (incast)"),
        ("connections", f"{fabric.connections_per_node} a node"),
        ("proposed", f"{groups}, {links}; the source gives {size(fabric.cache_group_source_mb)} in all"),
    ]


def hours(number: float) -> str:
    """Hours for people.

    Example:
        >>> hours(2.5)
        '2 h 30 min'
    """
    return output.human_seconds(number * 3600)
