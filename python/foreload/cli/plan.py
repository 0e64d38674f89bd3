"""`foreload plan`: this data set on that cluster, before it is rented.

The sizes come from the data set's index, the machines from the command line; together they are a scenario, which `foreload.sim` runs under our
policy. Then each upgrade is tried by itself, so that the answer also says what limits the run. Everything is a prediction of the
simulator, which the printed scenario (`--scenario`) repeats and lets you refine.
"""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import options, output
from foreload.cli.cost import dollars
from foreload.cli.opening import Bar, open_dataset
from foreload.cli.simulate import hours, sizes_file

if TYPE_CHECKING:
    from rich.console import Console

    from foreload.sim import Outcome

_CLUSTER, _SOURCE = "Cluster", "Bucket"
_MB = 1 << 20
#: Waiting for less than this share of the time, a run is limited by computing.
_NEGLIGIBLE = 0.01

Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Machines.", rich_help_panel=_CLUSTER)]
Ram = Annotated[str, typer.Option("--ram", help="Memory budget of a node.", rich_help_panel=_CLUSTER)]
Disk = Annotated[str, typer.Option("--disk", help="Disk budget of a node; 0: none.", rich_help_panel=_CLUSTER)]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Samples of a global batch.", rich_help_panel=_CLUSTER)]
StepTime = Annotated[
    float, typer.Option("--step-time", min=1e-6, help="Seconds to compute one batch.", rich_help_panel=_CLUSTER)
]
Epochs = Annotated[int, typer.Option("--epochs", min=1, help="Length of the run.", rich_help_panel=_CLUSTER)]
Network = Annotated[str, typer.Option("--network", help="Per second between two nodes.", rich_help_panel=_CLUSTER)]
DiskSpeed = Annotated[str, typer.Option("--disk-speed", help="Per second from a disk.", rich_help_panel=_CLUSTER)]
NodeRate = Annotated[str, typer.Option("--source-node", help="Per second for one node.", rich_help_panel=_SOURCE)]
TotalRate = Annotated[
    str | None, typer.Option("--source-total", help="Per second for all nodes.", rich_help_panel=_SOURCE)
]
Latency = Annotated[float, typer.Option("--latency", min=0, help="Seconds to the first byte.", rich_help_panel=_SOURCE)]
Prices = Annotated[str, typer.Option("--prices", metavar="NAME|FILE", help="gcs, s3, azure, or a sheet of your own.")]
Save = Annotated[
    Path | None, typer.Option("--scenario", metavar="FILE", help="Write the scenario, for `foreload simulate`.")
]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The machines, in bytes and seconds.

    Attributes:
        nodes: Machines.
        ram: Memory budget of each.
        disk: Disk budget of each; 0: none.
        batch: Samples of a global batch.
        step_s: Seconds that a batch takes to compute.
        epochs: Length of the run.
        network: Bytes per second between two nodes.
        disk_speed: Bytes per second from a disk.
        source_node: Bytes per second from the bucket to one node.
        source_total: Bytes per second from the bucket to all nodes.
        latency_s: To the first byte.
    """

    nodes: int
    ram: int
    disk: int
    batch: int
    step_s: float
    epochs: int
    network: int
    disk_speed: int
    source_node: int
    source_total: int
    latency_s: float

    def scenario(self, sizes: Path, name: str) -> str:
        """The scenario's text."""
        total = {count: min(count * self.source_node, self.source_total) / _MB for count in sorted({1, self.nodes})}
        points = ", ".join(f"{count} = {rate:.3f}" for count, rate in total.items())
        staging = min(self.ram // 4, 1 << 30)
        tiers = [("staging", staging, 10_000.0, 10_000.0), ("ram", self.ram - staging, 10_000.0, 10_000.0)]
        if self.disk:
            tiers.append(("disk", self.disk, self.disk_speed / _MB, self.disk_speed / _MB / 2))
        return "\n".join(
            [
                f"name = {json.dumps(name)}",
                "[dataset]",
                f"sizes_file = {json.dumps(str(sizes))}",
                "[training]",
                f"epochs = {self.epochs}",
                f"global_batch = {self.batch}",
                f"step_s = {self.step_s}",
                "[cluster]",
                f"nodes = {self.nodes}",
                f"network_mb_s = {self.network / _MB:.3f}",
                "[source]",
                f"throughput_mb_s = {{ {points} }}",
                f"latency_s = {self.latency_s}",
                *(
                    f'[[tier]]\nkind = "{kind}"\ncapacity_mb = {size / _MB:.3f}\nthreads = 4\n'
                    f"read_mb_s = {reads:.3f}\nwrite_mb_s = {writes:.3f}"
                    for kind, size, reads, writes in tiers
                ),
                "",
            ]
        )

    def upgrades(self, dataset_bytes: int) -> dict[str, "Cluster"]:
        """What could be bought, one thing at a time."""
        per_node = -(-dataset_bytes // self.nodes)
        found = {
            "twice the nodes": dataclasses.replace(self, nodes=2 * self.nodes),
            "twice the memory": dataclasses.replace(self, ram=2 * self.ram),
            "twice the network": dataclasses.replace(self, network=2 * self.network),
            "twice from the bucket": dataclasses.replace(
                self, source_node=2 * self.source_node, source_total=2 * self.source_total
            ),
            "computing twice as fast": dataclasses.replace(self, step_s=self.step_s / 2),
        }
        if self.disk:
            found["twice as fast a disk"] = dataclasses.replace(self, disk_speed=2 * self.disk_speed)
        if self.ram + self.disk < per_node:
            found[f"a disk of {output.human_bytes(per_node)} per node"] = dataclasses.replace(self, disk=per_node)
        if self.batch % (2 * self.nodes):
            del found["twice the nodes"]
        return found


def plan(
    url: options.Url,
    nodes: Nodes = 1,
    ram: Ram = "32GB",
    disk: Disk = "0",
    batch: Batch = 256,
    step_time: StepTime = 0.1,
    epochs: Epochs = 10,
    network: Network = "1.25GB",
    disk_speed: DiskSpeed = "1GB",
    source_node: NodeRate = "1GB",
    source_total: TotalRate = None,
    latency: Latency = 0.03,
    prices: Prices = "gcs",
    scenario: Save = None,
    format: options.Format = "auto",  # noqa: A002 (as in `foreload.open`)
    index: options.SavedIndex = None,
    endpoint_url: options.EndpointUrl = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.Option = None,
    as_json: options.AsJson = False,
) -> None:
    """Predicts this data set on that cluster: epoch time, stall, requests, dollars, what limits, what helps."""
    from foreload._sizes import parse_bytes

    given = options.storage_options(endpoint_url, profile, anonymous, option)
    dataset = open_dataset(url, given, format=format, index=index)
    rate = parse_bytes(source_node, "--source-node")
    cluster = Cluster(
        nodes,
        parse_bytes(ram, "--ram"),
        parse_bytes(disk, "--disk"),
        batch,
        step_time,
        epochs,
        parse_bytes(network, "--network"),
        parse_bytes(disk_speed, "--disk-speed"),
        rate,
        rate * nodes if source_total is None else parse_bytes(source_total, "--source-total"),
        latency,
    )
    with sizes_file(dataset) as sizes:
        value = forecast(cluster, sizes, dataset.url, dataset.nbytes, prices)
        if scenario is not None:
            kept = scenario.with_suffix(".sizes").absolute()
            kept.write_text(sizes.read_text())
            scenario.write_text(cluster.scenario(kept, dataset.url))
    value = {"url": dataset.url, "samples": len(dataset), "bytes": dataset.nbytes, **value}
    output.emit(value, lambda console: _draw(console, value), as_json=as_json)


def forecast(cluster: Cluster, sizes: Path, name: str, dataset_bytes: int, prices: str) -> dict[str, Any]:
    """Simulates a cluster and its upgrades.

    Args:
        cluster: The machines.
        sizes: A file of the samples' sizes, for the simulator.
        name: The data set's name.
        dataset_bytes: Its bytes.
        prices: A price sheet.

    Returns:
        The prediction in JSON's types.
    """
    from foreload import cost, sim

    report = sim.simulate_text(cluster.scenario(sizes, name), ["foreload"])
    outcome = report["foreload"]
    usage = cost.usage_of(report, "foreload", cluster.nodes, cluster.disk / 1e9)
    bill = cost.price(usage, prices)
    upgrades: list[dict[str, Any]] = []
    tried = cluster.upgrades(dataset_bytes)
    with Bar() as bar:
        for done, (what, better) in enumerate(tried.items()):
            bar("trying upgrades", done, len(tried))
            took = sim.simulate_text(better.scenario(sizes, name), ["foreload"])["foreload"].hours
            upgrades.append(
                {"upgrade": what, "hours": took, "saves": 1 - took / outcome.hours if outcome.hours else 0.0}
            )
    upgrades.sort(key=lambda upgrade: float(upgrade["saves"]), reverse=True)
    later = outcome.epoch_hours[1:] or outcome.epoch_hours
    epoch = sum(later) / len(later)
    return {
        "cluster": dataclasses.asdict(cluster),
        "hours": outcome.hours,
        "epoch_hours": epoch,
        "first_epoch_hours": outcome.epoch_hours[0],
        "warm_up_hours": max(0.0, outcome.epoch_hours[0] - epoch),
        "stall_share": outcome.stall_share,
        "requests": outcome.requests,
        "source_bytes": usage.source_bytes,
        "coverage": outcome.coverage,
        "lower_bound_hours": report.lower_bound_hours,
        "dollars": {**dataclasses.asdict(bill), "total": bill.total},
        "prices": prices,
        "limit": limit(outcome, upgrades),
        "upgrades": upgrades,
    }


def limit(outcome: "Outcome", upgrades: list[dict[str, Any]]) -> str:
    """What the run waits for, given what each upgrade saves, the best first."""
    if outcome.stall_share < _NEGLIGIBLE:
        return "computing"
    part = {
        "twice the network": "the network between nodes",
        "twice from the bucket": "the bucket",
        "twice as fast a disk": "the disks",
        "twice the memory": "the memory",
        "computing twice as fast": "computing",
    }
    return next((part[found["upgrade"]] for found in upgrades if found["upgrade"] in part), "the bucket")


def _draw(console: "Console", value: dict[str, Any]) -> None:
    bill, cluster = value["dollars"], value["cluster"]
    rows = [
        ("data set", f"{output.human_count(value['samples'])} samples, {output.human_bytes(value['bytes'])}"),
        ("epoch", f"{hours(value['epoch_hours'])}; the first {hours(value['first_epoch_hours'])}"),
        (
            "run",
            f"{hours(value['hours'])} for {cluster['epochs']} epochs; no loader takes less than {hours(value['lower_bound_hours'])}",
        ),
        ("stall", f"{value['stall_share']:.1%}; limited by {value['limit']}"),
        (
            "requests",
            f"{output.human_count(value['requests'])}, {output.human_bytes(value['source_bytes'])} from the bucket",
        ),
        ("cached", f"{value['coverage']:.0%} of the samples at the end"),
        ("cost", f"{dollars(bill['total'])} ({dollars(bill['instances'])} for instances; prices of {value['prices']})"),
    ]
    output.facts(console, f"{value['url']}, nodes: {cluster['nodes']}", rows)
    best = [(found["upgrade"], f"{found['saves']:.1%}", hours(found["hours"])) for found in value["upgrades"]]
    output.grid(console, ("upgrade", ">saves", ">run"), best)
