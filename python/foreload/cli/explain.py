"""`foreload explain`: which samples a step reads on a rank, computed from the seed.

Nothing is fetched: the order is a function of the data set's digest, the seed and the batch size, and the index gives the keys. So a loss
that jumps at step 48213 leads to its samples, on any machine that has the index.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import options, output
from foreload.cli.opening import open_dataset

if TYPE_CHECKING:
    from rich.console import Console

    from foreload import Dataset
    from foreload._core import Plan

_PANEL = "Run"
Step = Annotated[
    int, typer.Option("--step", min=0, help="Batch, counted from 0: in the epoch, or in the run without --epoch.")
]
Rank = Annotated[int, typer.Option("--rank", min=0, help="Data rank.")]
BatchSize = Annotated[
    int, typer.Option("--batch-size", min=1, help="Samples per batch and rank.", rich_help_panel=_PANEL)
]
World = Annotated[int, typer.Option("--world", min=1, help="Data ranks.", rich_help_panel=_PANEL)]
Seed = Annotated[int, typer.Option("--seed", help="The loader's seed.", rich_help_panel=_PANEL)]
OrderName = Annotated[
    str,
    typer.Option(
        "--order",
        help="keyed, torch, torch-distributed, torch-random, sequential, contiguous or strided.",
        rich_help_panel=_PANEL,
    ),
]
Shuffle = Annotated[bool, typer.Option("--shuffle/--no-shuffle", help="The loader's shuffle.", rich_help_panel=_PANEL)]
DropLast = Annotated[bool, typer.Option("--drop-last", help="The loader's drop_last.", rich_help_panel=_PANEL)]
Epoch = Annotated[
    int | None, typer.Option("--epoch", min=0, help="Count --step within this epoch.", rich_help_panel=_PANEL)
]


def explain(
    url: options.Url,
    step: Step,
    rank: Rank = 0,
    batch_size: BatchSize = 1,
    world: World = 1,
    seed: Seed = 0,
    order: OrderName = "keyed",
    shuffle: Shuffle = True,
    drop_last: DropLast = False,
    epoch: Epoch = None,
    format: options.Format = "auto",  # noqa: A002 (as in `foreload.open`)
    index: options.SavedIndex = None,
    endpoint_url: options.EndpointUrl = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.Option = None,
    as_json: options.AsJson = False,
) -> None:
    """Says which samples a step reads on a rank, from the seed alone."""
    given = options.storage_options(endpoint_url, profile, anonymous, option)
    dataset = open_dataset(url, given, format=format, index=index)
    if rank >= world:
        raise typer.BadParameter(f"there are {world} ranks, counted from 0 (--world)", param_hint="--rank")
    plan = plan_of(dataset, order, batch_size * world, world, seed, shuffle=shuffle, drop_last=drop_last)
    at = (epoch, step) if epoch is not None else divmod(step, plan.batches)
    if at[1] >= plan.batches:
        hint = f"an epoch has {plan.batches} batches; without --epoch, --step counts through all epochs"
        raise typer.BadParameter(hint, param_hint="--step")
    value = {
        "url": dataset.url,
        "dataset": dataset.digest,
        "order": order if shuffle else "sequential",
        "plan": plan.digest,
        "seed": seed,
        "epoch": at[0],
        "batch": at[1],
        "batches": plan.batches,
        "rank": rank,
        "world": world,
        "samples": rows(dataset, plan, at[0], at[1], rank),
    }
    output.emit(value, lambda console: _draw(console, value), as_json=as_json)


def plan_of(
    dataset: "Dataset", order: str, global_batch: int, world: int, seed: int, *, shuffle: bool, drop_last: bool
) -> "Plan":
    """The plan that a loader with these arguments makes."""
    from foreload._settings.order import Order, kind_of, tail_of

    kind = kind_of(order, world, shuffle=shuffle)
    tail = tail_of(world, global_batch, drop_last=drop_last, uneven=None, torch=order.startswith("torch"))
    return Order(dataset.digest, len(dataset), kind, seed, global_batch, tail).plan(world)


def rows(dataset: "Dataset", plan: "Plan", epoch: int, batch: int, rank: int) -> list[dict[str, Any]]:
    """The samples of a batch on a rank: position in the epoch, number, key, label, bytes."""
    classes = dataset.classes

    def row(position: int, sample: int) -> dict[str, Any]:
        label = dataset.label(sample)
        name = classes[label] if label is not None and 0 <= label < len(classes) else None
        return {
            "position": position,
            "sample": sample,
            "key": dataset.key(sample),
            "label": label,
            "class": name,
            "bytes": dataset.length(sample),
        }

    return list(map(row, plan.batch_positions(epoch, batch, rank), plan.batch(epoch, batch, rank)))


def _draw(console: "Console", value: dict[str, Any]) -> None:
    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        label = "" if row["label"] is None else str(row["label"])
        size = output.human_bytes(row["bytes"])
        return (output.human_count(row["position"]), str(row["sample"]), row["key"], label, row["class"] or "", size)

    place = f"epoch {value['epoch']}, batch {value['batch']} of {value['batches']}, rank {value['rank']} of {value['world']}"
    title = f"{value['url']}: {place} ({value['order']} order, seed {value['seed']})"
    columns = (">position", ">sample", "key", ">label", "class", ">size")
    output.grid(console, columns, map(cells, value["samples"]), title)
