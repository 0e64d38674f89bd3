"""`foreload top`: what each job of this node's agent is doing, as it happens."""

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import options, output
from foreload.cli.agent import jobs_of, running, who_of

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

    from foreload._core import Agent

Interval = Annotated[
    float, typer.Option("--interval", callback=options.number(0.1, 86_400), help="Seconds between two looks.")
]
Nodes = Annotated[
    bool, typer.Option("--nodes", help="Show each job on all nodes that share their caches, who waits most first.")
]
Once = Annotated[bool, typer.Option("--once", help="Look once, with totals instead of rates, and end.")]

#: Counters that are shown per second: name in the agent's answer, name here.
_RATES = {"samples": "samples_per_s", "bytes": "bytes_per_s", "requests": "requests_per_s", "waited_s": "waited_share"}


def top(interval: Interval = 1.0, once: Once = False, nodes: Nodes = False, as_json: options.AsJson = False) -> None:
    """Shows the agent's jobs: throughput, hits by tier, requests, waiting, memory.

    With `--json` and without `--once`, prints one object per look.
    """
    connection = running()
    if connection is None or once:
        jobs = [] if connection is None else look(connection, nodes=nodes)
        value = {"running": connection is not None, "jobs": jobs}
        output.emit(value, lambda console: _draw(console, value), as_json=as_json)
        return
    try:
        _watch(connection, interval, nodes=nodes, as_json=as_json)
    except KeyboardInterrupt:
        return


def look(connection: "Agent", *, nodes: bool = False) -> list[dict[str, Any]]:
    """Each job with its counters; one that ends meanwhile is left out.

    Args:
        connection: To the agent.
        nodes: Whether the other nodes of its group are asked, too: `group` has their reports then.
    """
    from foreload.errors import ClosedError

    found = []
    for job in jobs_of(connection):
        try:
            stats = json.loads(connection.call(json.dumps({"call": "stats", "job": job["job"]})))
            if nodes and stats["nodes"]:
                answer = json.loads(connection.call(json.dumps({"call": "group", "job": job["job"]})))
                job["group"] = answer["nodes"]
        except ClosedError:
            if not connection.is_usable():
                raise
            continue
        stats.pop("reply")
        found.append({**job, "stats": stats})
    return found


def rates(before: list[dict[str, Any]], now: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """Adds to each job what its counters gained per second."""
    old = {job["job"]: job["stats"] for job in before}
    nothing: dict[str, float] = {}
    for job in now:
        last = old.get(job["job"], nothing)
        job |= _gained(last, job["stats"], seconds)
        earlier = {node["address"]: node["report"]["stats"] for node in _known_nodes(before, job) if node["report"]}
        for node in job.get("group", []):
            if node["report"] and node["address"] in earlier:
                node |= _gained(earlier[node["address"]], node["report"]["stats"], seconds)
    return now


def _known_nodes(jobs: list[dict[str, Any]], job: dict[str, Any]) -> list[dict[str, Any]]:
    """What was known of a job's nodes."""
    return next((other.get("group", []) for other in jobs if other["job"] == job["job"]), [])


def _gained(before: dict[str, Any], now: dict[str, Any], seconds: float) -> dict[str, float]:
    """What counters gained per second."""
    return {name: max(0.0, now[counter] - before.get(counter, 0)) / seconds for counter, name in _RATES.items()}


def _watch(connection: "Agent", interval: float, *, nodes: bool, as_json: bool) -> None:
    from rich.live import Live

    before, at = look(connection, nodes=nodes), time.monotonic()
    target = output.console()
    with Live(console=target, screen=target.is_terminal and not as_json, auto_refresh=False, transient=True) as live:
        while True:
            time.sleep(interval)
            now, then = look(connection, nodes=nodes), time.monotonic()
            jobs = rates(before, now, then - at)
            if as_json:
                print(json.dumps({"running": True, "jobs": jobs}), flush=True)
            else:
                live.update(_all(jobs), refresh=True)
            before, at = now, then


def _draw(console: "Console", value: dict[str, Any]) -> None:
    if not value["running"]:
        console.print("no agent runs")
    elif not value["jobs"]:
        console.print("the agent has no jobs")
    else:
        console.print(_all(value["jobs"]))


def _all(jobs: list[dict[str, Any]]) -> "Group":
    from rich.console import Group

    pools = {job["pool"]: job["stats"] for job in jobs if job["stats"].get("nodes")}
    groups = [_group(job) for job in jobs if "group" in job]
    return Group(_table(jobs), *groups, *(_nodes(pool, stats) for pool, stats in pools.items()))


def _group(job: dict[str, Any]) -> "Table":
    """A job on all nodes, who waits most first: it holds the others up."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from foreload._run.position import spans_of

    count, live = output.human_count, any("samples_per_s" in node for node in job["group"])
    title = f"job {job['job']} on all {len(job['group'])} nodes"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="")
    flow = ("samples/s", "waiting") if live else ("samples", "waited")
    for column in ("node", "rank", *flow, "ram", "disk", "peers", "bucket", "slowest load", ""):
        table.add_column(column, justify="left" if column in {"node", "slowest load", ""} else "right")

    def waits(node: dict[str, Any]) -> float:
        return float(node.get("waited_share", node["report"]["stats"]["waited_s"])) if node["report"] else float("inf")

    for node in sorted(job["group"], key=waits, reverse=True):
        where = node["address"] or "this node"
        if not node["report"]:
            table.add_row(*map(Text, [where, *[""] * 8, f"says nothing: {node['silence']}"]))
            continue
        report, stats = node["report"], node["report"]["stats"]
        done = (count(stats["samples"]), output.human_seconds(stats["waited_s"]))
        if "samples_per_s" in node:
            done = (count(node["samples_per_s"]), f"{node['waited_share']:.0%}")
        slowest = next((f"{output.human_seconds(seconds)} {what}" for what, seconds in stats["slowest"]), "")
        now = f"waits since {output.human_seconds(report['waiting_s'])}" if (report["waiting_s"] or 0) >= 1 else ""
        table.add_row(*map(Text, [where, spans_of(report["ranks"]), *done, *_hits(stats), slowest, now]))
    return table


def _nodes(pool: int, stats: dict[str, Any]) -> "Table":
    """The nodes that a pool shares with, the slowest first."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    count, size = output.human_count, output.human_bytes
    served = f"{count(stats['served'])} samples, {size(stats['served_bytes'])}"
    title = f"other nodes of pool {pool}, which had {served} from this one"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="")
    for column in ("node", "gave", "bytes", "hadn't", "failed", "under way", "answers after", "at", ""):
        table.add_column(column, justify="left" if column in {"node", ""} else "right")
    for node in sorted(stats["nodes"], key=_expected_s, reverse=True):
        cells = [
            node["address"],
            count(node["samples"]),
            size(node["bytes"]),
            count(node["misses"]),
            count(node["failures"]),
            str(node["in_flight"]),
            output.human_seconds(node["latency_s"]),
            f"{size(node['bytes_per_s'])}/s",
            "left alone for now" if node["is_avoided"] else "",
        ]
        table.add_row(*map(Text, cells))
    return table


def _expected_s(node: dict[str, Any]) -> float:
    """Seconds for 100 KB."""
    return float(node["latency_s"]) + 1e5 / max(1.0, float(node["bytes_per_s"]))


def _table(jobs: list[dict[str, Any]]) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    live = any("samples_per_s" in job for job in jobs)
    flow = (
        ("samples/s", "throughput", "requests/s", "waiting") if live else ("samples", "delivered", "requests", "waited")
    )
    who = ("job", "data set", "order", "rank", "processes")
    for column in (*who, *flow, "ram", "disk", "peers", "bucket", "in flight", "pool", "memory"):
        table.add_column(column, justify="left" if column in {"data set", "order"} else "right")
    for job in jobs:
        table.add_row(*(Text(cell) for cell in _cells(job)))
    return table


def _hits(stats: dict[str, Any]) -> list[str]:
    """Where samples came from: memory, disk, other nodes, bucket."""
    delivered = max(1, stats["samples"])
    return [f"{stats[name] / delivered:.0%}" for name in ("ram_hits", "disk_hits", "peer_hits", "bucket_reads")]


def _cells(job: dict[str, Any]) -> list[str]:
    stats, gauges = job["stats"], job["stats"].get("gauges") or {}
    count, size = output.human_count, output.human_bytes
    if "samples_per_s" in job:
        flow = [
            count(job["samples_per_s"]),
            f"{size(job['bytes_per_s'])}/s",
            count(job["requests_per_s"]),
            f"{job['waited_share']:.0%}",
        ]
    else:
        waited = output.human_seconds(stats["waited_s"])
        flow = [count(stats["samples"]), size(stats["bytes"]), count(stats["requests"]), waited]
    hits = _hits(stats)
    requests = f"{gauges.get('in_flight', 0)}/{gauges.get('in_flight_limit', 0)}"
    memory = f"{size(stats['memory_bytes'])} of {size(job['pool_bytes'])}"
    return [str(job["job"]), job["url"], *who_of(job), *flow, *hits, requests, str(job["pool"]), memory]
