"""What a run would take: scenarios simulated before anything is rented.

A scenario file (TOML, `docs/guide/simulate.md`) says what there is: data set, training, cluster, source, tiers. `simulate` carries one
or more policies out on it under a virtual clock and returns hours, stalls, requests and bytes by source, beside a lower bound that
no policy which reads the whole data set in order can beat. The work is done by the native simulator; this module reads its JSON into
frozen dataclasses. `foreload.cost` prices an outcome, `foreload.plot` draws a report.

Example:
    >>> from foreload.sim import simulate
    >>> report = simulate("openimages-4.toml", ["frequency", "foreload"])  # doctest: +SKIP
    >>> report["foreload"].hours / report.lower_bound_hours  # doctest: +SKIP
    1.0006
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from foreload import _core
from foreload._predict.scenario import Scenario, override, resolved
from foreload._settings.memory import available_bytes
from foreload._settings.text import read_text
from foreload.errors import InvalidError

__all__ = [
    "POLICIES",
    "Fabric",
    "Grid",
    "MbBySource",
    "Outcome",
    "Progress",
    "Ran",
    "Report",
    "grid",
    "simulate",
    "simulate_text",
]

#: Told how far a simulation is: the policy (None while sizes and order are prepared), accesses done, and of how many.
Progress = Callable[[str | None, int, int], object]

#: All policies, in the order of the papers.
POLICIES = tuple(_core.SIMULATED_POLICIES)


@dataclass(frozen=True)
class MbBySource:
    """Bytes by where they came from, in MB (1 MB is 2^20 bytes here)."""

    ram: float
    disk: float
    peer: float
    source: float

    @property
    def total(self) -> float:
        """All four."""
        return self.ram + self.disk + self.peer + self.source


@dataclass(frozen=True)
class Fabric:
    """Traffic between nodes.

    Attributes:
        peer_mb: MB over the network between nodes.
        most_sent_mb: What the busiest node sent; far above the mean it is a hot spot.
        most_received_mb: What the busiest node received.
        most_queued_s: Longest time that a request found a tier, or the sending end of a node's network, busy with earlier ones.
        most_received_queue_s: The same of the receiving end: incast.
        connections_per_node: Connections when every node may ask every other.
        cache_group_nodes: The proposed size of a cache group: the smallest with which the source doesn't hold up the run.
        cache_group_source_mb: MB that the source gives in the whole run with groups of that size.
    """

    peer_mb: float
    most_sent_mb: float
    most_received_mb: float
    most_queued_s: float
    most_received_queue_s: float
    connections_per_node: int
    cache_group_nodes: int
    cache_group_source_mb: float


@dataclass(frozen=True)
class Outcome:
    """One policy's run; of a policy that can't run the scenario every number is None.

    Attributes:
        policy: Its name.
        supported: Whether it can run the scenario; `reason` says why not.
        hours: Until the last node is through.
        stall_hours: Of these, time that the last node waited for data.
        epoch_hours: By epoch.
        requests: Reads of the source.
        coverage: Share of the samples that are cached anywhere at the end.
        copies: Copies per cached sample.
        miss_rate: For `deli`: share of accesses that the cache didn't have, by epoch.
        load_s: For `deli`: seconds a node waited for data, by epoch.
        fabric: Traffic between nodes, where the policy exchanges samples.
        drive: What decided: the `engine`'s own scheduler, or a `fast` model.
    """

    policy: str
    supported: bool
    reason: str | None
    hours: float | None
    stall_hours: float | None
    epoch_hours: tuple[float, ...] | None
    mb_by_source: MbBySource | None
    requests: int | None
    coverage: float | None
    copies: float | None
    reads_whole_dataset: bool
    keeps_order: bool
    runs_in_engine: bool
    miss_rate: tuple[float, ...] | None = None
    load_s: tuple[float, ...] | None = None
    fabric: Fabric | None = None
    drive: str = "fast"

    @property
    def stall_share(self) -> float | None:
        """Waiting time over run time, 0 to 1."""
        if self.hours is None or self.stall_hours is None:
            return None
        return self.stall_hours / self.hours if self.hours > 0 else 0.0


@dataclass(frozen=True)
class Ran(Outcome):
    """The outcome of a policy that can run the scenario: it has every number."""

    hours: float
    stall_hours: float
    epoch_hours: tuple[float, ...]
    mb_by_source: MbBySource
    requests: int
    coverage: float
    copies: float

    @property
    def stall_share(self) -> float:
        """Waiting time over run time, 0 to 1."""
        return self.stall_hours / self.hours if self.hours > 0 else 0.0


@dataclass(frozen=True)
class Report:
    """Outcomes of all policies asked for, by name: `report["foreload"]`.

    Attributes:
        scenario: The scenario's name.
        lower_bound_hours: No policy that reads the whole data set in order is faster.
        dataset_mb: S.
        samples: F.
        epochs: E.
        nodes: N.
        source_mb_s: What the source delivers while all nodes read.
        results: One outcome for each policy, in the order asked for.
        disk_mb_per_node: What the disk tiers of one node hold, which is rented whatever a policy keeps there.
    """

    scenario: str
    lower_bound_hours: float
    dataset_mb: float
    samples: int
    epochs: int
    nodes: int
    source_mb_s: float
    results: tuple[Outcome, ...]
    disk_mb_per_node: float = 0.0

    def __getitem__(self, policy: str) -> Outcome:
        for outcome in self.results:
            if outcome.policy == policy:
                return outcome
        raise KeyError(policy)

    @property
    def supported(self) -> tuple[Ran, ...]:
        """The outcomes of policies that can run the scenario."""
        return tuple(outcome for outcome in self.results if isinstance(outcome, Ran))

    def ran(self, policy: str) -> Ran:
        """The outcome of a policy that is needed.

        Raises:
            InvalidError: It can't run the scenario; the message says why.
        """
        outcome = self[policy]
        if not isinstance(outcome, Ran):
            raise InvalidError(f"{policy} can't run {self.scenario or 'the scenario'}: {outcome.reason}")
        return outcome


@dataclass(frozen=True)
class Grid:
    """Hours of one policy for all combinations of two settings.

    Attributes:
        policy: Which.
        across: The key that varies along a row, and its values.
        down: The key that varies along a column, and its values.
        hours: Rows of hours; None where the policy can't run.
    """

    policy: str
    across: tuple[str, tuple[float, ...]]
    down: tuple[str, tuple[float, ...]]
    hours: tuple[tuple[float | None, ...], ...]


def simulate(
    scenario: str | PathLike[str],
    policies: str | Iterable[str] = (),
    overrides: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Simulates a scenario file.

    Args:
        scenario: Its path.
        policies: Names from `POLICIES`, or one; none mean all.
        overrides: Settings to change, by key: `{"training.epochs": 5, "tier.ram.capacity_mb": 10240}`. Text is TOML, or a word.
        progress: Called at the start and the end of each policy, and a few times a second; what it raises ends the simulation.

    Returns:
        The report.

    Raises:
        InvalidError: A key, a value or a policy doesn't exist (the message suggests the nearest), or the simulation would take more memory
            than is left, or days.
        ForeloadError: The data set of `dataset.index` can't be opened; as `foreload.open` raises it.
    """
    return simulate_text(read_text(scenario, "the scenario"), policies, overrides, progress)


def simulate_text(
    toml: str,
    policies: str | Iterable[str] = (),
    overrides: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Simulates a scenario given as TOML text; otherwise as `simulate`."""
    names = [policies] if isinstance(policies, str) else list(policies)
    with resolved(toml, overrides) as settings:
        given = [f"{key}={override(value)}" for key, value in settings.items()]
        try:
            answer = _core.simulate(toml, names, given, memory_bytes=available_bytes(), progress=progress)
        except InvalidError:
            raise
        except ValueError as error:
            raise InvalidError(str(error)) from None
        disk_mb = Scenario(toml, settings).disk_mb_per_node
    return _report({**json.loads(answer), "disk_mb_per_node": disk_mb})


def grid(
    scenario: str | PathLike[str],
    across: tuple[str, Sequence[float]],
    down: tuple[str, Sequence[float]],
    policy: str = "foreload",
    overrides: Mapping[str, object] | None = None,
) -> Grid:
    """Simulates all combinations of two settings: which upgrade helps most.

    Args:
        scenario: Path of the scenario file.
        across: A key and its values, such as `("tier.disk.capacity_mb", [0, 20480, 40960])`.
        down: Another.
        policy: Which.
        overrides: What else to change.

    Returns:
        Hours by combination.
    """
    text = read_text(scenario, "the scenario")

    # An index is opened once.
    with resolved(text, overrides) as settings:

        def hours(column: float, row: float) -> float | None:
            changed = {**settings, across[0]: column, down[0]: row}
            return simulate_text(text, [policy], changed)[policy].hours

        rows = tuple(tuple(hours(column, row) for column in across[1]) for row in down[1])
    return Grid(policy, (across[0], tuple(across[1])), (down[0], tuple(down[1])), rows)


def _report(found: dict[str, Any]) -> Report:
    return Report(**{**found, "results": tuple(_outcome(result) for result in found["results"])})


def _outcome(found: dict[str, Any]) -> Outcome:
    if not found["supported"]:
        return Outcome(**found)
    fabric = found.get("fabric")
    read: dict[str, Any] = {
        **found,
        "mb_by_source": MbBySource(**found["mb_by_source"]),
        "epoch_hours": tuple(found["epoch_hours"]),
        "fabric": Fabric(**fabric) if fabric else None,
    }
    for key in ("miss_rate", "load_s"):
        if found.get(key) is not None:
            read[key] = tuple(found[key])
    return Ran(**read)
