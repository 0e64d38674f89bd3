"""`foreload plan`: this data set on that cluster, before it is rented.

`foreload._predict.planning` simulates it and its upgrades; this opens the data set, reads the options and shows the answer. `--scenario` writes what was
simulated, which `foreload simulate` repeats and lets you refine.
"""

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import options, output
from foreload.cli.cost import dollars
from foreload.cli.opening import open_dataset
from foreload.cli.progress import reporter

if TYPE_CHECKING:
    from rich.console import Console

    from foreload import Dataset
    from foreload._predict.planning import Plan
    from foreload.speeds import Speeds

_CLUSTER, _SPEEDS = "Cluster", "Speeds (default: the calibration's, otherwise assumed)"
_MB = 1 << 20
#: As `foreload.speeds.MOST_SECONDS`, which isn't loaded yet.
_MOST_SECONDS = 1e9
#: What the file of the samples' sizes beside a scenario is called.
_SIZES = ".sizes"
_BATCH = 256

Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Machines.", rich_help_panel=_CLUSTER)]
Ram = Annotated[str, typer.Option("--ram", help="Memory budget of a node.", rich_help_panel=_CLUSTER)]
Disk = Annotated[str, typer.Option("--disk", help="Disk budget of a node; 0: none.", rich_help_panel=_CLUSTER)]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        min=1,
        show_default=f"{_BATCH}, or all of a smaller data set",
        help="Samples of a global batch.",
        rich_help_panel=_CLUSTER,
    ),
]
StepTime = Annotated[
    float,
    typer.Option(
        "--step-time",
        callback=options.number(1e-9, _MOST_SECONDS),
        help="Seconds to compute one batch.",
        rich_help_panel=_CLUSTER,
    ),
]
Epochs = Annotated[int, typer.Option("--epochs", min=1, help="Length of the run.", rich_help_panel=_CLUSTER)]
Assign = Annotated[
    str | None,
    typer.Option(
        "--assign",
        metavar="local",
        help="Samples go to the nodes that keep them; by default they are dealt out like cards.",
        rich_help_panel=_CLUSTER,
    ),
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        "--calibration", metavar="FILE", help="Speeds that `foreload calibrate` measured.", rich_help_panel=_SPEEDS
    ),
]
Network = Annotated[
    str | None,
    typer.Option(
        "--network",
        help="Per second between two nodes, if they share their caches.",
        rich_help_panel=_SPEEDS,
    ),
]
DiskSpeed = Annotated[
    str | None, typer.Option("--disk-speed", help="Per second from a disk; writing half.", rich_help_panel=_SPEEDS)
]
NodeRate = Annotated[
    str | None, typer.Option("--source-node", help="Per second for one node.", rich_help_panel=_SPEEDS)
]
TotalRate = Annotated[
    str | None, typer.Option("--source-total", help="Per second for all nodes.", rich_help_panel=_SPEEDS)
]
Latency = Annotated[
    float | None,
    typer.Option(
        "--latency",
        callback=options.number(0, _MOST_SECONDS),
        help="Seconds to the first byte.",
        rich_help_panel=_SPEEDS,
    ),
]
Prices = Annotated[str, typer.Option("--prices", metavar="NAME|FILE", help="gcs, s3, azure, or a sheet of your own.")]
Save = Annotated[
    Path | None, typer.Option("--scenario", metavar="FILE", help="Write the scenario, for `foreload simulate`.")
]


def plan(
    url: options.Url,
    nodes: Nodes = 1,
    ram: Ram = "32GB",
    disk: Disk = "0",
    batch: Batch = None,
    step_time: StepTime = 0.1,
    epochs: Epochs = 10,
    assign: Assign = None,
    prices: Prices = "gcs",
    scenario: Save = None,
    calibration: Calibration = None,
    network: Network = None,
    disk_speed: DiskSpeed = None,
    source_node: NodeRate = None,
    source_total: TotalRate = None,
    latency: Latency = None,
    format: options.Format = "auto",  # noqa: A002 (as in `foreload.open`)
    index: options.SavedIndex = None,
    endpoint_url: options.EndpointUrl = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.Option = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Predicts this data set on that cluster: epoch time, stall, requests, dollars, what limits, what helps."""
    from foreload._predict import planning

    if scenario is not None:
        _check_scenario(scenario)
    speeds = _speeds(calibration, network, disk_speed, source_node, source_total, latency)
    given = options.storage_options(endpoint_url, profile, anonymous, option)
    dataset = open_dataset(url, given, quiet=quiet, format=format, index=index)
    with reporter(quiet=quiet) as progress, _named_as_options():
        found = planning.plan(
            dataset,
            nodes=nodes,
            ram=ram,
            disk=disk,
            batch=min(_BATCH, len(dataset)) if batch is None else batch,
            step_time=step_time,
            epochs=epochs,
            assign=assign,
            prices=prices,
            calibration=speeds,
            progress=progress,
        )
    if scenario is not None:
        _write(scenario, dataset, found)
    output.emit(as_value(dataset.url, found), lambda console: _draw(console, dataset.url, found), as_json=as_json)


@contextmanager
def _named_as_options() -> Iterator[None]:
    """Names arguments of `foreload.plan` as the user did: its options are called the same."""
    from foreload.errors import InvalidError

    try:
        yield
    except InvalidError as error:
        text = re.sub(r"plan\((\w+)=\.\.\.\)", lambda name: "--" + name[1].replace("_", "-"), str(error))
        raise InvalidError(text, error.sample) from error


def _speeds(
    calibration: Path | None,
    network: str | None,
    disk_speed: str | None,
    source_node: str | None,
    source_total: str | None,
    latency: float | None,
) -> "Speeds":
    from foreload import speeds

    found = speeds.Speeds() if calibration is None else speeds.read(calibration)
    rates: dict[str, Any] = {
        name: rate(text, f"--{option}")
        for name, option, text in (
            ("network_mb_s", "network", network),
            ("source_mb_s", "source-node", source_node),
            ("source_limit_mb_s", "source-total", source_total),
        )
        if text is not None
    }
    if latency is not None:
        rates["latency_s"] = latency
    found = dataclasses.replace(found, **rates)
    if disk_speed is not None:
        read = rate(disk_speed, "--disk-speed")
        found = dataclasses.replace(found, disk=speeds.Disk(read, read / 2))
    return found


def rate(text: str, what: str) -> float:
    """MB per second of a size per second.

    Raises:
        InvalidError: It is none.
    """
    from foreload._settings.sizes import parse_bytes
    from foreload.errors import InvalidError

    found = parse_bytes(text, what)
    if found == 0:
        raise InvalidError(f"{what}: nothing ever comes at {text} per second")
    return found / _MB


def _check_scenario(path: Path) -> None:
    """Refuses a file that can't be written, or its sizes beside it.

    Raises:
        BadParameter: Says why.
    """
    options.check_writable(path, "--scenario")
    kept = path.with_suffix(_SIZES)
    if kept == path:
        raise typer.BadParameter(
            f"the samples' sizes are written to {path}; name the scenario {path.with_suffix('.toml')}",
            param_hint="--scenario",
        )
    options.check_writable(kept, "--scenario")


def _write(path: Path, dataset: "Dataset", found: "Plan") -> None:
    """Writes the scenario, and the sizes beside it."""
    from foreload._data.samples_file import places_of, sizes_file

    kept = path.with_suffix(_SIZES).absolute()
    with sizes_file(dataset.lengths, places_of(dataset)) as sizes:
        lines = sizes.read_text()
    # With the engine's scheduler where it counted the plan's requests, so that `simulate` and `cost` count the same.
    scenario = found.site.scenario(kept, found.samples, found.dataset_bytes / found.samples, drive=found.drive)
    output.write_files([(kept, lines, "the samples' sizes"), (path, scenario, "the scenario")])


def as_value(url: str, found: "Plan") -> dict[str, Any]:
    """The prediction in JSON's types."""
    value = dataclasses.asdict(found)
    site = value.pop("site")
    return {
        "url": url,
        "samples": found.samples,
        "bytes": value.pop("dataset_bytes"),
        "cluster": {name: each for name, each in site.items() if name != "speeds"},
        "speeds": {**site["speeds"], "origin": found.site.speeds.origin},
        "epoch_hours": found.epoch_s / 3600,
        "first_epoch_hours": found.first_epoch_s / 3600,
        "warm_up_hours": found.warm_up_s / 3600,
        "dollars": {**value.pop("bill"), "total": found.bill.total},
        **value,
        "upgrades": [
            {
                "upgrade": each.change,
                "kind": each.name,
                "hours": each.hours,
                "saves": each.saves,
                "dollars": each.dollars,
            }
            for each in found.upgrades
        ],
    }


_LIMITS = {
    "source": "the bucket",
    "disk": "the disks",
    "network": "the network between nodes",
    "preprocessing": "preprocessing",
    "several": "several things at once",
}


def sharing(nodes: int, group: int, source: str) -> str:
    """With how many others a node shares its cache, for people.

    Args:
        nodes: In the run.
        group: In the smallest cache group that does.
        source: What such groups read from the bucket.

    Example:
        >>> sharing(1000, 8, "11 TB")
        'with 999 other nodes; cache groups of 8 would do (Peers(group=8)), and read 11 TB from the bucket'
        >>> sharing(4, 1, "11 TB")
        'with 3 other nodes; each by itself would be as fast, and all would read 11 TB from the bucket'
    """
    others = f"with {nodes - 1:,} other node{'s' * (nodes > 2)}"
    if group == 1:
        return f"{others}; each by itself would be as fast, and all would read {source} from the bucket"
    if group == nodes:
        return f"{others}; in smaller groups the bucket would hold up the run"
    return f"{others}; cache groups of {group} would do (Peers(group={group})), and read {source} from the bucket"


def _draw(console: "Console", url: str, found: "Plan") -> None:
    seconds, size, count = output.human_seconds, output.human_bytes, output.human_count
    bound = seconds(found.lower_bound_hours * 3600)
    later = found.epochs > 1
    longer = f"; the first takes {seconds(found.warm_up_s)} longer, filling the caches" if later else ""
    stall = f"{found.stall_share:.1%}" + (f", later {found.steady_stall_share:.1%}" if later else "")
    requests = count(found.requests) + (f" ({count(found.epoch_requests)} per later epoch)" if later else "")
    rows = [
        ("data set", f"{count(found.samples)} samples, {size(found.dataset_bytes)}"),
        ("epoch", f"{seconds(found.epoch_s)}{longer}"),
        (
            "run",
            f"{seconds(found.hours * 3600)} for {found.epochs} epoch{'s' * later}; no loader takes less than {bound}",
        ),
        ("stall", f"{stall}; limited by {_LIMITS.get(found.limit, found.limit)}"),
        ("requests", f"{requests}, {size(found.source_bytes)} from the bucket"),
        ("cached", f"{found.coverage:.0%} of the samples at the end"),
        (
            "cost",
            f"{dollars(found.bill.total)} ({dollars(found.bill.instances)} for instances; prices of {found.prices})",
        ),
        ("speeds", found.site.speeds.origin),
    ]
    if found.group_nodes is not None and found.group_source_bytes is not None:
        rows.insert(-2, ("sharing", sharing(found.nodes, found.group_nodes, size(found.group_source_bytes))))
    output.facts(console, f"{url}, nodes: {found.nodes}", rows)
    best = [
        (each.change, f"{each.saves:.1%}", seconds(each.hours * 3600), dollars(each.dollars)) for each in found.upgrades
    ]
    output.grid(console, ("upgrade", ">saves", ">run", ">cost"), best)
