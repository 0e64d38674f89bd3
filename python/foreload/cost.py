"""What a run costs, simulated or real, on prices that you can read and edit.

`Usage` counts what a run did. `usage_of` fills it for a simulated outcome, `usage_of_run` with what the loaders of a real run counted, and
`price` turns it into a `Bill`. Prices come from a dated sheet: `"gcs"`, `"s3"` and `"azure"` ship as list prices to be verified; `sheet_text` returns one to be edited,
and a path to the edited file is taken wherever a name is. `break_even` compares reading from the bucket with copying the data set to every
node's disk, and `deli` is the cost model of paper 000, equations (1)-(5).

Example:
    >>> from foreload.cost import Usage, price
    >>> price(Usage(nodes=4, hours=2.75, class_b_requests=1_743_042), "gcs").total  # doctest: +SKIP
    41.1
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from foreload import _core
from foreload._settings import numbers as _numbers
from foreload._settings.text import read_text
from foreload.errors import InvalidError, NotFoundError
from foreload.sim import Report

__all__ = [
    "Bill",
    "BreakEven",
    "CopyPlan",
    "Usage",
    "break_even",
    "deli",
    "listings",
    "price",
    "sheet_text",
    "usage_of",
    "usage_of_run",
]

_MB = 1 << 20
_SHIPPED = ("gcs", "s3", "azure")
#: Objects that one listing request names, at S3 and GCS.
_PAGE = 1000
#: A hundred thousand years.
_MOST_HOURS = 1e9


def _check(counts: Usage | CopyPlan) -> None:
    """Refuses counts that aren't, by name."""
    for field in fields(counts):
        what, value = f"{type(counts).__name__}({field.name}=...)", getattr(counts, field.name)
        if field.type == "int":
            _numbers.count(what, value)
        else:
            _numbers.amount(what, value, most=_MOST_HOURS if field.name.endswith("hours") else 1e18)


@dataclass(frozen=True)
class Usage:
    """Counts of one run: totals over all nodes and the whole run.

    Attributes:
        nodes: Machines.
        hours: Wall-clock hours.
        class_a_requests: List and put.
        class_b_requests: Get and head.
        source_bytes: Bytes read from the bucket.
        egress_bytes: Of them, bytes that left its region or provider.
        cross_zone_bytes: Bytes between nodes that crossed a charged border.
        bucket_bytes: The data set's size in the bucket.
        disk_bytes_per_node: Disk provisioned per node.
    """

    nodes: int = 0
    hours: float = 0.0
    class_a_requests: int = 0
    class_b_requests: int = 0
    source_bytes: int = 0
    egress_bytes: int = 0
    cross_zone_bytes: int = 0
    bucket_bytes: int = 0
    disk_bytes_per_node: int = 0

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class Bill:
    """Dollars."""

    requests: float
    bucket_storage: float
    disk: float
    network: float
    instances: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.requests + self.bucket_storage + self.disk + self.network + self.instances


@dataclass(frozen=True)
class CopyPlan:
    """Copying the data set to every node's disk before training.

    Attributes:
        nodes: Machines.
        dataset_bytes: The data set's bytes.
        objects: Its objects: one request each, per node.
        bytes_per_s_per_node: What one node gets from the bucket while all copy.
        system_bytes: Disk that a node needs anyway.
        epoch_hours: Hours of one epoch from local disk.
    """

    nodes: int
    dataset_bytes: int
    objects: int
    bytes_per_s_per_node: float
    system_bytes: int
    epoch_hours: float

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class BreakEven:
    """Reading from the bucket against copying first.

    Attributes:
        bucket: The bill of the run through the bucket.
        copy: The bill of the run from local copies.
        copy_pays_after_epochs: Epochs from which the copy is cheaper; None when it never is.
    """

    bucket: Bill
    copy: Bill
    copy_pays_after_epochs: int | None


def price(usage: Usage, prices: str | PathLike[str] = "gcs") -> Bill:
    """Prices a run.

    Args:
        usage: Its counts.
        prices: A shipped sheet's name or the path of your own.

    Raises:
        NotFoundError: The sheet's file doesn't exist.
        InvalidError: There is no sheet of that name, or it doesn't read.
    """
    return Bill(**_priced("price", prices, usage=asdict(usage))["bill"])


def usage_of(
    report: Report,
    policy: str,
    nodes: int,
    disk_gb_per_node: float | None = None,
    list_requests: int = 0,
    cross_zone_share: float = 0.0,
) -> Usage:
    """Counts of a simulated run.

    Args:
        report: Of the simulation.
        policy: Which outcome of it.
        nodes: Machines.
        disk_gb_per_node: Disk rented per node. Default: the disk tiers of the scenario.
        list_requests: Listings (`listings`); with an index that is shared, once per page of the bucket.
        cross_zone_share: Share of the traffic between nodes that crosses a charged border.

    Raises:
        InvalidError: The policy can't run the scenario, or a number is none.
    """
    outcome = report.ran(policy)
    disk_bytes = report.disk_mb_per_node * _MB
    if disk_gb_per_node is not None:
        disk_bytes = _numbers.amount("usage_of(disk_gb_per_node=...)", disk_gb_per_node, most=1e9) * 1e9
    _numbers.amount("usage_of(cross_zone_share=...)", cross_zone_share, most=1.0)
    return Usage(
        nodes=nodes,
        hours=outcome.hours,
        class_a_requests=list_requests,
        class_b_requests=outcome.requests,
        source_bytes=int(outcome.mb_by_source.source * _MB),
        cross_zone_bytes=int(outcome.mb_by_source.peer * _MB * cross_zone_share),
        bucket_bytes=int(report.dataset_mb * _MB),
        disk_bytes_per_node=int(disk_bytes),
    )


def usage_of_run(
    stats: Mapping[str, Any] | Iterable[Mapping[str, Any]],
    *,
    seconds: float,
    nodes: int | None = None,
    disk_gb_per_node: float = 0.0,
    list_requests: int = 0,
    egress_share: float = 0.0,
    bucket_bytes: int = 0,
) -> Usage:
    """Counts of a real run, from what its loaders counted.

    Loaders count loads, hedges included, and the repetitions within those that came in the end; a store charges all of them as GETs. A twin that was
    withdrawn before it was sent is counted and not charged; what a load that failed for good had repeated is charged and not counted.

    Args:
        stats: What `loader.stats()` answers, or a line of the metrics log, which has it as `stats`: the last one of the job, up to a
            second old when the run ends. It counts for all loaders of the job on one node, so give one for each node.
        seconds: How long the machines were rented, which no loader knows.
        nodes: Machines. Default: as many as there are `stats`.
        disk_gb_per_node: Disk rented per node.
        list_requests: Listings (`listings`); an index is listed once per job.
        egress_share: Share of the bytes that left the bucket's region or provider.
        bucket_bytes: The data set's size in the bucket (`dataset.nbytes`), for its storage.

    Raises:
        InvalidError: It isn't what a loader counts, or a number is none.

    Example:
        >>> counted = {"requests": 900, "retries": 3, "requested_bytes": 99_000_000}
        >>> usage_of_run(counted, seconds=1800).class_b_requests
        903
    """
    found = [stats] if isinstance(stats, Mapping) else list(stats)
    counts = [_counts(each) for each in found]
    _numbers.amount("usage_of_run(seconds=...)", seconds, most=_MOST_HOURS * 3600)
    _numbers.amount("usage_of_run(disk_gb_per_node=...)", disk_gb_per_node, most=1e9)
    _numbers.amount("usage_of_run(egress_share=...)", egress_share, most=1.0)
    source_bytes = sum(each["requested_bytes"] for each in counts)
    return Usage(
        nodes=len(counts) if nodes is None else nodes,
        hours=seconds / 3600,
        class_a_requests=list_requests,
        class_b_requests=sum(each["requests"] + each["retries"] for each in counts),
        source_bytes=source_bytes,
        egress_bytes=int(source_bytes * egress_share),
        bucket_bytes=bucket_bytes,
        disk_bytes_per_node=int(disk_gb_per_node * 1e9),
    )


def _counts(stats: Mapping[str, Any]) -> dict[str, int]:
    """The counters of one node that are charged."""
    inner = stats.get("stats", stats)
    names = ("requests", "retries", "requested_bytes")
    if not isinstance(inner, Mapping) or not all(name in inner for name in names):
        raise InvalidError(f"usage_of_run: give what loader.stats() answers; it has {', '.join(names)}")
    return {name: _numbers.count(f"usage_of_run: {name}", inner[name]) for name in names}


def listings(objects: int) -> int:
    """Listing requests of a job: its nodes share one index, which is listed once.

    Args:
        objects: Objects of the data set.

    Example:
        >>> listings(1000), listings(1001)
        (1, 2)
    """
    return -(-objects // _PAGE)


def break_even(
    once: Usage, per_epoch: Usage, copy: CopyPlan, epochs: int, prices: str | PathLike[str] = "gcs"
) -> BreakEven:
    """Compares a run through the bucket with one from local copies.

    Args:
        once: What the run through the bucket uses once: listing, the first epoch's extra time and requests.
        per_epoch: What each of its epochs uses.
        copy: The alternative.
        epochs: Length of the run.
        prices: A shipped sheet's name or the path of your own.
    """
    bucket = {"once": asdict(once), "per_epoch": asdict(per_epoch)}
    found = _priced(
        "break_even", prices, epochs=_numbers.count("break_even(epochs=...)", epochs), bucket=bucket, copy=asdict(copy)
    )
    return BreakEven(Bill(**found["bucket"]), Bill(**found["copy"]), found["copy_pays_after_epochs"])


def deli(
    *,
    nodes: int,
    samples: int,
    epochs: int,
    dataset_gb: float,
    system_gb: float,
    run_hours: float,
    cached: int = 0,
    fetch: int | None = None,
    from_disk: bool = False,
    listing: str = "per-fetch",
    super_sample: int = 1,
    rates: dict[str, float] | None = None,
) -> dict[str, float]:
    """Equations (1)-(5) of paper 000: what a run costs by its model.

    Args:
        nodes: n.
        samples: m.
        epochs: e.
        dataset_gb: s_t.
        system_gb: s_r.
        run_hours: t_c + t_d, computing and waiting.
        cached: m_c, samples in a node's cache.
        fetch: f, samples per fetch; None for no prefetching (equation 4).
        from_disk: The disk baseline, equation (1), instead.
        listing: `"per-fetch"` (the prototype), `"per-epoch"` or `"once-per-node"`.
        super_sample: Samples per object.
        rates: Prices by name; those of the paper's Table II when None.

    Returns:
        Dollars: `api`, `storage`, `compute` and `total`.
    """
    for name, value in (("dataset_gb", dataset_gb), ("system_gb", system_gb), ("run_hours", run_hours)):
        _numbers.amount(f"deli({name}=...)", value, most=1e12)
    bucket = {
        "cached": cached,
        "fetch": fetch or 1,
        "listing": listing if fetch else "per-epoch",
        "super_sample": super_sample,
    }
    training = {
        "nodes": nodes,
        "samples": samples,
        "epochs": epochs,
        "system_gb": system_gb,
        "dataset_gb": dataset_gb,
        "run_hours": run_hours,
    }
    loading: object = "disk" if from_disk else {"bucket": bucket}
    answer: dict[str, float] = _ask("deli", rates=rates, training=training, loading=loading)
    return answer


def sheet_text(name: str) -> str:
    """The text of a shipped price sheet, to be saved, edited and passed by path."""
    text: str = _ask("sheet", name=name)["text"]
    return text


def _priced(what: str, prices: str | PathLike[str], **request: object) -> Any:
    """Asks with a sheet; what is wrong in a file is said with its name."""
    if prices in _SHIPPED:
        return _ask(what, prices=prices, **request)
    path = Path(prices)
    if not path.exists():
        if isinstance(prices, str) and not path.suffix and os.sep not in prices:
            return _ask(what, prices=prices, **request)
        raise NotFoundError(
            f"the price sheet {prices} doesn't exist; name {', '.join(_SHIPPED)}, or a file of your own"
        )
    text = read_text(path, "the price sheet")
    try:
        # A line's end tells a sheet from a name.
        return _ask(what, prices=f"{text}\n", **request)
    except InvalidError as error:
        raise InvalidError(f"{prices}: {error}") from None


def _ask(what: str, **request: object) -> Any:
    try:
        return json.loads(_core.cost(json.dumps({what: request})))
    except ValueError as error:
        raise InvalidError(str(error)) from None
