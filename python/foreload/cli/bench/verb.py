"""The verb: measures each loader one after the other, and shows them side by side."""

import gc
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import options, output
from foreload.cli.bench import measure
from foreload.cli.opening import open_dataset

if TYPE_CHECKING:
    from rich.console import Console

    from foreload import Dataset
    from foreload.cli.bench.loaders import Settings, Subject

BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Samples per batch.")]
Epochs = Annotated[int, typer.Option("--epochs", min=1, help="Epochs; the first is cold, unless a cache is warm.")]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Worker processes.")]
Connections = Annotated[
    int | None, typer.Option("--connections", min=1, help="Requests in flight, fixed. Default: adaptive. For ours.")
]
Loaders = Annotated[str, typer.Option("--loader", help="foreload, torch, or both: foreload,torch.")]
Batches = Annotated[int | None, typer.Option("--batches", min=1, help="Stop each epoch after so many batches.")]
Compute = Annotated[
    float,
    typer.Option(
        "--compute-ms", callback=options.number(0, 1e7), help="Idle so long after each batch, as training would."
    ),
]
Ram = Annotated[str | None, typer.Option("--ram", help="Our memory budget, such as 4GB.")]
Disk = Annotated[list[str] | None, typer.Option("--disk", metavar="DIR:SIZE", help="Our disk tiers; repeatable.")]
Seed = Annotated[int, typer.Option("--seed", help="The shuffle's.")]


def bench(
    url: options.Url,
    batch_size: BatchSize = 64,
    epochs: Epochs = 2,
    workers: Workers = 0,
    connections: Connections = None,
    loader: Loaders = "foreload",
    batches: Batches = None,
    compute_ms: Compute = 0.0,
    ram: Ram = None,
    disk: Disk = None,
    seed: Seed = 0,
    format: options.Format = "auto",  # noqa: A002 (as in `foreload.open`)
    index: options.SavedIndex = None,
    endpoint_url: options.EndpointUrl = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.Option = None,
    as_json: options.AsJson = False,
) -> None:
    """Measures this data set on this machine: throughput, batch latencies, requests, stall."""
    from foreload import Cache
    from foreload.cli.bench.loaders import LOADERS, Settings

    names = [name.strip() for name in loader.split(",")]
    if unknown := [name for name in names if name not in LOADERS]:
        raise typer.BadParameter(f"{unknown[0]!r} is unknown; there are {', '.join(LOADERS)}", param_hint="--loader")
    given = options.storage_options(endpoint_url, profile, anonymous, option)
    dataset = open_dataset(url, given, format=format, index=index)
    settings = Settings(batch_size, epochs, workers, connections, seed, Cache(ram=ram, disk=disk or ()))
    results = []
    for name in names:
        results.append(_measured(LOADERS[name](dataset, settings), settings, batches, compute_ms / 1000, quiet=as_json))
        # A loader ends its workers when it is collected; the next one must not inherit them.
        gc.collect()
    value = {"url": dataset.url, "samples": len(dataset), "bytes": dataset.nbytes}
    value |= {"environment": environment(dataset, settings), "results": results}
    output.emit(value, lambda console: _draw(console, value), as_json=as_json)


def _measured(
    subject: "Subject", settings: "Settings", batches: int | None, compute_s: float, *, quiet: bool
) -> dict[str, Any]:
    found = []
    before = subject.counters() if subject.counters else None
    with output.console(stderr=True).status(f"{subject.name}: epoch 1", spinner="dots") as status:
        if quiet:
            status.stop()
        for number in range(settings.epochs):
            status.update(f"{subject.name}: epoch {number + 1}")
            epoch = measure.epoch(subject.loader, batches, compute_s).as_value()
            if subject.counters and before is not None:
                after = subject.counters()
                epoch |= {name: after[name] - before[name] for name in _COUNTERS}
                before = after
            found.append(epoch)
    return {"loader": subject.name, "settings": subject.settings, "epochs": found}


_COUNTERS = ("requests", "requested_bytes", "ram_hits", "disk_hits", "bucket_reads", "retries", "hedges")


def environment(dataset: "Dataset", settings: "Settings") -> dict[str, Any]:
    """What a result depends on besides the loaders."""
    import platform
    from importlib import metadata

    versions = {}
    for package in ("foreload", "torch", "boto3"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": len(os.sched_getaffinity(0)),
        "versions": versions,
        "format": dataset.format,
        "batch_size": settings.batch_size,
        "workers": settings.workers,
        "ram_bytes": settings.cache.ram_bytes(),
        "disks": [f"{directory}:{size}" for directory, size in settings.cache.disks()],
    }


def _draw(console: "Console", value: dict[str, Any]) -> None:
    about = value["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    rows = [
        (
            "data set",
            f"{output.human_count(value['samples'])} samples, {output.human_bytes(value['bytes'])}, {about['format']}",
        ),
        ("machine", f"{about['processors']} processors, {about['machine']}, Python {about['python']}, {versions}"),
        ("cache", ", ".join([f"{output.human_bytes(about['ram_bytes'])} of memory", *about["disks"]])),
        *((result["loader"], result["settings"]) for result in value["results"]),
    ]
    output.facts(console, value["url"], rows)
    columns = (
        "loader",
        ">epoch",
        ">time",
        ">samples/s",
        ">throughput",
        ">first batch",
        ">p50",
        ">p99",
        ">stall",
        ">requests",
        ">hits",
    )
    lines = (
        _line(result["loader"], at, epoch) for result in value["results"] for at, epoch in enumerate(result["epochs"])
    )
    output.grid(console, columns, lines)


def _line(name: str, number: int, epoch: dict[str, Any]) -> tuple[str, ...]:
    seconds = output.human_seconds
    hits = requests = ""
    if "requests" in epoch:
        requests = output.human_count(epoch["requests"])
        hits = f"{(epoch['ram_hits'] + epoch['disk_hits']) / max(1, epoch['samples']):.0%}"
    return (
        name,
        str(number + 1),
        seconds(epoch["seconds"]),
        output.human_count(epoch["samples_per_s"]),
        f"{output.human_bytes(epoch['bytes_per_s'])}/s",
        *(seconds(epoch[part]) for part in ("first_batch_s", "p50_s", "p99_s")),
        f"{epoch['stall_s'] / epoch['seconds']:.0%}",
        requests,
        hits,
    )
