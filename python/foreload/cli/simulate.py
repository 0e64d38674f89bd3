"""`foreload simulate`: what a run would take, before anything is rented.

`foreload.sim` does it; this gives it the sizes of a real index where the scenario names one, shows how far it is, and draws.
"""

import dataclasses
import json
import re
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import failure, options, output
from foreload.cli.progress import reporter

if TYPE_CHECKING:
    from rich.console import Console

    from foreload import Dataset
    from foreload.sim import Report

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
    from foreload._text import read_text

    options.check_writable(plot, "--plot")
    if plot is not None:
        from foreload.plot import check_suffix

        check_suffix(plot, "--plot")
    settings = options.pairs(set, "--set")
    text = read_text(scenario, "the scenario")
    if calibration is not None:
        from foreload import speeds

        settings = {**speeds.overrides(speeds.read(calibration), text, _nodes(settings)), **settings}
    report = run(text, policy, settings, quiet=quiet)
    if plot is not None:
        from foreload.plot import time_by_policy

        time_by_policy(report, plot)
    output.emit(as_value(report), lambda console: _draw(console, report, plot), as_json=as_json)
    if not report.supported:
        cannot(report)


def cannot(report: "Report") -> None:
    """Ends the verb because none of the policies can run the scenario."""
    reasons = "; ".join(f"{outcome.policy}: {outcome.reason}" for outcome in report.results if not outcome.supported)
    failure.say(f"no policy that was asked for can run {report.scenario or 'the scenario'} ({reasons})")
    failure.leave(failure.Code.FAILED)


def run(
    scenario: str, policies: list[str] | None, settings: dict[str, str], *, quiet: bool, what: str = "simulating"
) -> "Report":
    """Simulates, and says how far it is.

    Args:
        scenario: The scenario's text.
        policies: Names; all when None.
        settings: What `--set` changes.
        quiet: Say nothing.
        what: What is done to each policy, for people.
    """
    from foreload.sim import POLICIES, simulate_text

    names = policies or list(POLICIES)
    if unknown := [name for name in names if name not in POLICIES]:
        raise typer.BadParameter(f"{unknown[0]!r} is unknown; there are {', '.join(POLICIES)}", param_hint="--policy")
    with resolved(scenario, quiet=quiet) as text, reporter(quiet=quiet) as progress:

        def told(policy: str | None, done: int, total: int) -> None:
            progress(f"{what} {policy or '(sizes and order)'}", done, total)

        return simulate_text(text, names, settings, told)


def _nodes(settings: dict[str, str]) -> int | None:
    """Nodes that `--set` names; what isn't a number the simulator complains about."""
    text = settings.get("cluster.nodes", "").strip()
    return int(text) if text.isdecimal() and 0 < int(text) < 1 << 16 else None


@contextmanager
def resolved(scenario: str, *, quiet: bool) -> Iterator[str]:
    """The scenario with a file of sizes in place of the index that it names, if it names one.

    Args:
        scenario: The scenario's text.
        quiet: Show no bar while the index is made.

    Yields:
        The text, valid inside.
    """
    try:
        section = tomllib.loads(scenario).get("dataset")
    except tomllib.TOMLDecodeError:
        section = None  # the simulator says what is wrong, and where
    url = section.get("index") if isinstance(section, dict) else None
    if not isinstance(url, str):
        yield scenario
        return
    from foreload.cli.opening import open_dataset

    with sizes_file(open_dataset(url, {}, quiet=quiet)) as path:
        yield re.sub(r"(?m)^\s*index\s*=.*$", f"sizes_file = {json.dumps(str(path))}", scenario, count=1)


@contextmanager
def sizes_file(dataset: "Dataset") -> Iterator[Path]:
    """A file with the size of each sample in MB, as the simulator reads it."""
    with tempfile.TemporaryDirectory(prefix="foreload-") as directory:
        path = Path(directory) / "sizes"
        path.write_text("\n".join(f"{length / _MB:.9f}" for length in dataset.lengths.tolist()))
        yield path


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
        time, stall = hours(outcome.hours), f"{outcome.stall_share:.1%}"
        rows.append((outcome.policy, time, stall, *shares, "; ".join(marks)))
    columns = ("policy", ">time", ">stall", ">own RAM", ">own disk", ">peers", ">source", "note")
    output.grid(console, columns, rows)
    if plot is not None:
        console.print(f"plot: {plot}")


def hours(number: float) -> str:
    """Hours for people.

    Example:
        >>> hours(2.5)
        '2 h 30 min'
    """
    return output.human_seconds(number * 3600)
