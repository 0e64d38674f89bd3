"""What training on a data set will take on machines that aren't rented yet.

`plan` puts a real data set's sizes, a cluster and a training step into a scenario, simulates the default policy on it (`foreload.sim`), and
says how long epochs take, how much of that is waiting, how many requests and dollars it comes to, and what limits it: the resource whose
speed-up saves most. The same way, by simulating it, it finds the upgrade that helps most. It reads nothing but the index.

Example:
    >>> import foreload
    >>> found = foreload.plan("s3://bucket/train", nodes=4, ram="64GB", batch=1024, step_time=0.3)  # doctest: +SKIP
    >>> found.epoch_s, found.stall_share, found.limit, found.best_upgrade.name  # doctest: +SKIP
    (391.2, 0.04, 'source', 'source')
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreload import _core
from foreload._data.samples_file import places_of, sizes_file
from foreload._settings import numbers as _numbers
from foreload._settings.sizes import format_bytes, parse_bytes
from foreload.errors import InvalidError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from foreload._data.dataset import Dataset
    from foreload.cost import Bill
    from foreload.sim import Fabric, MbBySource, Report
    from foreload.speeds import Speeds

__all__ = ["Plan", "Site", "Upgrade", "places_of", "plan", "sizes_file"]

_MB = 1 << 20
#: Accesses that one simulation goes through at most; further epochs are like the last. Two seconds' worth.
_MOST_ACCESSES = 20_000_000
#: However small the data set is, so many epochs show what the others are like.
_MOST_EPOCHS = 1000
#: The engine's scheduler, which counts requests, is stepped every 10 ms: ten days take minutes.
_MOST_ENGINE_HOURS = 240.0
#: What an access and an hour of a node take the engine's scheduler, and what a simulation of nodes that share their caches may: seconds. There are up to ten.
_ACCESS_S, _HOUR_S, _PATIENCE_S = 2e-6, 0.4, 10.0
#: The simulator's limits; the what-ifs double nodes and batch.
_MOST_NODES, _MOST_BATCH, _MOST_RUN = (1 << 15) - 1, (1 << 31) - 1, (1 << 32) - 1
#: The first epoch fills the caches, the second is steady, the third shows that it is.
_LEAST_EPOCHS = 3
#: Less waiting than this is none.
_STALL_FLOOR = 0.01
#: Quicker than any step.
_LEAST_STEP_S = 1e-9
#: Of one sample; the simulator's limit.
_MOST_SAMPLE_BYTES = 1e15
#: A resource that is so many times as fast limits nothing.
_FREE = 16.0


@dataclass(frozen=True)
class Upgrade:
    """What more of something would bring.

    Attributes:
        name: `nodes`, `ram`, `disk`, `source`, `network`, `disk-speed`, `preprocessing` or `step`.
        change: What exactly.
        hours: The run's length with it.
        saves: Share of the time that it saves, 0 to 1.
        dollars: The run's bill with it. More memory is not in it, because machines come with theirs.
    """

    name: str
    change: str
    hours: float
    saves: float
    dollars: float


@dataclass(frozen=True)
class Plan:
    """What a run will take.

    Attributes:
        samples: Samples of the data set.
        dataset_bytes: Their bytes.
        nodes: Machines.
        epochs: Epochs of the run.
        simulated_epochs: How many of them were simulated; the rest are like the last.
        first_epoch_s: The first epoch, which fills the caches.
        epoch_s: Each epoch after the first.
        hours: The run.
        stall_share: Share of the run that is waiting for data.
        steady_stall_share: Share of an epoch after the first.
        warm_up_s: What the first epoch takes beyond a later one.
        requests: Reads of the source. On one node as the engine's own scheduler makes them; otherwise one for each sample, or cell of a shard, that isn't cached.
        epoch_requests: Of them, in each epoch after the first.
        source_bytes: Bytes that they read.
        mb_by_source: Bytes of the simulated epochs by where they came from.
        coverage: Share of the data set that the caches hold.
        lower_bound_hours: What no policy that reads everything in order can beat.
        limit: What limits an epoch after the first: `computing`, `source`, `disk`, `network`, `preprocessing`, or `several` together.
        bill: Dollars.
        prices: Which price sheet.
        upgrades: What-ifs, the most helpful first.
        site: The machines and the training that were simulated.
        drive: What counted the requests: the `engine`'s own scheduler, or the `fast` model.
        group_nodes: Where nodes share their caches, how many of them need to: the smallest cache group with which the bucket doesn't hold up the run (`Peers(group=...)`); None: they share nothing.
        group_source_bytes: What such groups read from the bucket in the whole run.
    """

    samples: int
    dataset_bytes: int
    nodes: int
    epochs: int
    simulated_epochs: int
    first_epoch_s: float
    epoch_s: float
    hours: float
    stall_share: float
    steady_stall_share: float
    warm_up_s: float
    requests: int
    epoch_requests: int
    source_bytes: int
    mb_by_source: MbBySource
    coverage: float
    lower_bound_hours: float
    limit: str
    bill: Bill
    prices: str
    upgrades: tuple[Upgrade, ...]
    site: Site
    drive: str
    group_nodes: int | None
    group_source_bytes: int | None

    @property
    def best_upgrade(self) -> Upgrade | None:
        """The upgrade that saves most time, if any saves one per cent."""
        return self.upgrades[0] if self.upgrades and self.upgrades[0].saves >= _STALL_FLOOR else None


def plan(
    dataset: Dataset | str | PathLike[str] | ArrayLike,
    *,
    ram: int | str,
    batch: int,
    step_time: float,
    nodes: int = 1,
    disk: int | str = 0,
    epochs: int = 10,
    assign: str | None = None,
    prices: str | PathLike[str] = "gcs",
    calibration: str | PathLike[str] | Speeds | None = None,
    objects: int | None = None,
    progress: Callable[[str, float, float | None], object] | None = None,
) -> Plan:
    """Predicts a run of the default policy.

    Args:
        dataset: A data set, its URL, or the bytes of each sample.
        ram: Memory for Foreload on each node, as `Cache(ram=...)`.
        batch: Samples in a step, over all nodes.
        step_time: Seconds that the accelerators compute on it.
        nodes: Machines.
        disk: Disk for Foreload on each node.
        epochs: Epochs of the run.
        assign: `"local"`: samples go to the nodes that keep them, as `DataLoader(assign="local")` has it.
        prices: `gcs`, `s3`, `azure`, or the path of a sheet of your own.
        calibration: A file that `foreload calibrate` wrote, or speeds. Default: those of `foreload.speeds.Speeds`.
        objects: Objects to list. Default: of a data set those it has, otherwise one for each sample.
        progress: Called with what is simulated, how many simulations are done (with a part of the one that runs), and of how many.

    Returns:
        The prediction.

    Raises:
        InvalidError: A number can't be, the data set has fewer samples than a batch, the batch fewer than there are nodes, or the memory
            doesn't hold a node's share of it; or `assign` can't be obeyed.
    """
    from foreload import speeds as speeds_module

    speeds = _speeds(calibration)
    lengths, listed, places = _samples(dataset)
    site = Site(
        nodes=_numbers.count("plan(nodes=...)", nodes, 1, _MOST_NODES),
        ram=parse_bytes(ram, "plan(ram=...)"),
        disk=parse_bytes(disk, "plan(disk=...)"),
        batch=_numbers.count("plan(batch=...)", batch, 1, _MOST_BATCH),
        step_s=_numbers.amount("plan(step_time=...)", step_time, _LEAST_STEP_S, speeds_module.MOST_SECONDS),
        epochs=_numbers.count("plan(epochs=...)", epochs, 1, _MOST_RUN),
        speeds=speeds,
        is_local=assign is not None and nodes > 1,
    )
    _check_batch(site, len(lengths))
    _check_assign(site, assign, shards=places is not None)
    _check_ram(site, lengths)
    if objects is not None:
        listed = _numbers.count("plan(objects=...)", objects)
    with sizes_file(lengths, places) as path:
        shards = places is not None
        study = _Study(path, len(lengths), float(lengths.sum()), str(prices), listed, shards, progress)
        return study.plan(site)


@dataclass(frozen=True)
class Site:
    """The machines and the training of one simulation.

    Attributes:
        nodes: Machines.
        ram: Memory budget of each, in bytes.
        disk: Disk budget of each, in bytes; 0: none.
        batch: Samples of a global batch.
        step_s: Seconds that it is computed on.
        epochs: Length of the run.
        speeds: How fast the machines are.
        is_local: Whether samples go to the nodes that keep them.
    """

    nodes: int
    ram: int
    disk: int
    batch: int
    step_s: float
    epochs: int
    speeds: Speeds
    is_local: bool = False

    def scenario(
        self, sizes: Path, samples: int, mean_bytes: float, epochs: int | None = None, drive: str = "fast"
    ) -> str:
        """As the simulator reads it.

        Args:
            sizes: A file with the size of each sample (`sizes_file`).
            samples: How many there are.
            mean_bytes: The mean of their sizes.
            epochs: To simulate; all when None.
            drive: What decides: `fast`, or the `engine`'s own scheduler.
        """
        from foreload.speeds import toml

        speeds = self.speeds
        memory_bytes = self.ram - _core.batch_bytes(self.ram)
        batch_bytes = int(mean_bytes * self.batch / self.nodes)
        staging = _core.staging_bytes(memory_bytes, batch_bytes, int(mean_bytes * samples), self.disk)
        memory = {"threads": speeds.threads, "read_mb_s": speeds.ram_mb_s, "write_mb_s": speeds.ram_mb_s}
        kept = {**memory, "write_mb_s": speeds.fresh_mb_s}
        sections: dict[str, Any] = {
            "name": "plan",
            "drive": drive,
            "dataset": {"sizes_file": str(sizes)},
            "training": {
                "epochs": epochs or self.epochs,
                "global_batch": self.batch,
                "assign": "local" if self.is_local else "cards",
                "step_s": self.step_s,
            },
            "cluster": {
                "nodes": self.nodes,
                "compute_mb_s": speeds.loop_mb_s,
                "preprocess_mb_s": speeds.preprocess_mb_s,
                "network_mb_s": speeds.network_mb_s,
            },
            "source": {
                "throughput_mb_s": speeds.curve(self.nodes),
                "latency_s": speeds.latency_s,
                "latency_sigma": speeds.latency_sigma,
                "requests_in_flight": speeds.requests_in_flight,
                "connection_mb_s": speeds.connection_mb_s,
            },
            "tier": [
                {"kind": "staging", "capacity_mb": staging / _MB, **memory},
                {"kind": "ram", "capacity_mb": (memory_bytes - staging) / _MB, **kept},
            ],
        }
        if self.disk:
            rates = {"read_mb_s": speeds.disk.read_mb_s, "write_mb_s": speeds.disk.write_mb_s}
            sections["tier"].append({"kind": "disk", "capacity_mb": self.disk / _MB, "threads": 4, **rates})
        return toml(sections)


@dataclass(frozen=True)
class _Run:
    """A whole run, of which some epochs were simulated."""

    report: Report
    simulated: int
    first_s: float
    steady_s: float
    first_requests: int
    steady_requests: int
    hours: float
    stall_hours: float
    steady_stall_s: float
    source_bytes: int
    bill: Bill
    drive: str
    fabric: Fabric | None


class _Study:
    """Simulations of one data set."""

    def __init__(
        self,
        sizes: Path,
        samples: int,
        nbytes: float,
        prices: str,
        objects: int,
        shards: bool,
        progress: Callable[[str, float, float | None], object] | None,
    ) -> None:
        self.sizes, self.samples, self.nbytes, self.prices, self.objects = sizes, samples, nbytes, prices, objects
        self.shards = shards
        self._progress, self._done, self._what = progress, 0, ""

    def plan(self, site: Site) -> Plan:
        """Everything about one site."""
        whatifs = self._whatifs(site)
        reliefs = self._reliefs(site)
        self._total = 1 + len(whatifs) + len(reliefs)
        base = self.run(site, "as planned", counted=True)
        outcome = base.report.ran("foreload")
        upgrades = [self._upgrade(name, change, base, self.run(better, change)) for name, change, better in whatifs]
        # What saves as much for less comes first.
        upgrades.sort(key=lambda upgrade: (-round(upgrade.saves, 3), upgrade.dollars))
        steady_stall = base.steady_stall_s / base.steady_s if base.steady_s else 0.0
        group_nodes, group_source_bytes = self._groups(base, site)
        return Plan(
            samples=self.samples,
            dataset_bytes=int(self.nbytes),
            nodes=site.nodes,
            epochs=site.epochs,
            simulated_epochs=base.simulated,
            first_epoch_s=base.first_s,
            epoch_s=base.steady_s,
            hours=base.hours,
            stall_share=base.stall_hours / base.hours,
            steady_stall_share=steady_stall,
            warm_up_s=max(0.0, base.first_s - base.steady_s),
            requests=base.first_requests + (site.epochs - 1) * base.steady_requests,
            epoch_requests=base.steady_requests,
            source_bytes=base.source_bytes,
            mb_by_source=outcome.mb_by_source,
            coverage=outcome.coverage,
            lower_bound_hours=self._bound(base, site),
            limit=self._limit(base, steady_stall, reliefs),
            bill=base.bill,
            prices=self.prices,
            upgrades=tuple(upgrades),
            site=site,
            drive=base.drive,
            group_nodes=group_nodes,
            group_source_bytes=group_source_bytes,
        )

    def _groups(self, run: _Run, site: Site) -> tuple[int | None, int | None]:
        """The cache groups that are proposed: their nodes, and bytes from the bucket in the whole run."""
        if run.fabric is None:
            return None, None
        nodes = run.fabric.cache_group_nodes
        # Each group reads all of the data set first, and in each later epoch as much as in any other.
        first = -(-site.nodes // nodes) * self.nbytes
        later = (run.fabric.cache_group_source_mb * _MB - first) / max(1, run.simulated - 1)
        return nodes, int(first + (site.epochs - 1) * max(0.0, later))

    def run(self, site: Site, what: str, *, counted: bool = False) -> _Run:
        """Simulates as many epochs as it takes, and prices the whole run.

        Args:
            site: The machines and the training.
            what: What is simulated, for people.
            counted: Whether requests are wanted exactly; of samples in shards they always are, because there the fast model is less exact.
        """
        self._what = what
        self._told(None, 0, 1)
        simulated = min(site.epochs, max(_LEAST_EPOCHS, min(_MOST_EPOCHS, _MOST_ACCESSES // self.samples)))
        report = self._simulate(site, simulated)
        drive, fabric = "fast", report.ran("foreload").fabric
        if self._shares_soon(site, report.ran("foreload").hours, simulated):
            # Nearer than the fast model, where nodes ask each other, too.
            driven = self._simulate(site, simulated, "engine")
            report, drive = (driven, "engine") if driven["foreload"].supported else (report, drive)
        outcome = report.ran("foreload")
        first = outcome if simulated == 1 else self._simulate(site, 1, drive).ran("foreload")
        later = max(1, simulated - 1)
        first_s = outcome.epoch_hours[0] * 3600
        steady_s = outcome.epoch_hours[-1] * 3600
        total, begun = outcome.requests, first.requests
        if (counted or self.shards) and site.nodes == 1 and outcome.hours < _MOST_ENGINE_HOURS:
            # What is kept, and in shards which samples share a request, the scheduler alone can say.
            exact = self._engine_requests(site, simulated)
            exact_first = exact if simulated == 1 else self._engine_requests(site, 1)
            if exact is not None and exact_first is not None:
                total, begun, drive = exact, exact_first, "engine"
        requests = (total - begun) // later if simulated > 1 else begun
        first_requests = total - (simulated - 1) * requests
        stall_s = (
            (outcome.stall_hours - first.stall_hours) / later * 3600 if simulated > 1 else first.stall_hours * 3600
        )
        more = site.epochs - simulated
        hours = outcome.hours + more * steady_s / 3600
        traffic = outcome.mb_by_source
        source_mb = traffic.source * site.epochs / simulated
        if simulated > 1:
            # Not below none: sums of the two runs round differently.
            steady_mb = max(0.0, traffic.source - first.mb_by_source.source) / later
            source_mb = traffic.source + more * steady_mb
        self._done += 1
        return _Run(
            report=report,
            simulated=simulated,
            first_s=first_s,
            steady_s=steady_s,
            first_requests=first_requests,
            steady_requests=requests,
            hours=hours,
            stall_hours=outcome.stall_hours + more * max(0.0, stall_s) / 3600,
            steady_stall_s=max(0.0, stall_s),
            source_bytes=int(source_mb * _MB),
            bill=self._price(site, hours, first_requests + (site.epochs - 1) * requests, int(source_mb * _MB)),
            drive=drive,
            fabric=fabric,
        )

    def _simulate(self, site: Site, epochs: int, drive: str = "fast") -> Report:
        from foreload.sim import simulate_text

        scenario = site.scenario(self.sizes, self.samples, self.nbytes / self.samples, epochs, drive)
        return simulate_text(scenario, ["foreload"], progress=self._told)

    def _shares_soon(self, site: Site, hours: float, epochs: int) -> bool:
        """Whether nodes share their caches, and their schedulers are driven through the run in seconds."""
        if site.nodes == 1 or site.speeds.network_mb_s is None:
            return False
        return epochs * self.samples * _ACCESS_S + hours * site.nodes * _HOUR_S < _PATIENCE_S

    def _engine_requests(self, site: Site, epochs: int) -> int | None:
        """Requests as the engine's scheduler makes them; None where memory is too small for it."""
        return self._simulate(site, epochs, "engine")["foreload"].requests

    def _told(self, policy: str | None, done: int, total: int) -> None:
        """Takes the simulator's report; a run is one or more simulations, of which the first is nearly all."""
        if self._progress is not None:
            part = done / total if policy and total else 0.0
            self._progress(f"simulating: {self._what}", self._done + min(part, 0.99), self._total)

    def _price(self, site: Site, hours: float, requests: int, source_bytes: int) -> Bill:
        from foreload.cost import Usage, listings, price

        usage = Usage(
            nodes=site.nodes,
            hours=hours,
            class_a_requests=listings(self.objects),
            class_b_requests=requests,
            source_bytes=source_bytes,
            bucket_bytes=int(self.nbytes),
            disk_bytes_per_node=site.disk,
        )
        return price(usage, self.prices)

    def _bound(self, run: _Run, site: Site) -> float:
        """The bound of the simulated epochs; the others can't be shorter than computing, nor than what the bound itself adds for one more."""
        bound = run.report.lower_bound_hours
        if run.simulated == site.epochs:
            return bound
        shorter = self._simulate(site, run.simulated - 1).lower_bound_hours
        return bound + (site.epochs - run.simulated) * (bound - shorter)

    def _whatifs(self, site: Site) -> list[tuple[str, str, Site]]:
        speeds = site.speeds
        limit = speeds.source_limit_mb_s
        faster = replace(
            speeds,
            source_mb_s=2 * speeds.source_mb_s,
            source_limit_mb_s=2 * limit if limit else None,
            requests_in_flight=2 * speeds.requests_in_flight,
        )
        found = [
            ("step", "computing twice as fast", replace(site, step_s=site.step_s / 2)),
            ("ram", "twice the memory", replace(site, ram=2 * site.ram)),
            ("source", "twice from the bucket", replace(site, speeds=faster)),
        ]
        if 2 * site.batch <= self.samples:
            # A step of twice the samples takes as long on twice the machines.
            twice = replace(site, nodes=2 * site.nodes, batch=2 * site.batch)
            found.append(("nodes", "twice the nodes and the batch", twice))
        if speeds.preprocess_mb_s:
            quicker = replace(speeds, preprocess_mb_s=2 * speeds.preprocess_mb_s)
            change = "twice the threads, or decoding twice as fast"
            found.append(("preprocessing", change, replace(site, speeds=quicker)))
        share = -(-int(self.nbytes) // site.nodes)
        if site.ram + site.disk < share:
            # Segments and their headers take a little more than the samples.
            found.append(("disk", f"a disk of {format_bytes(share)} per node", replace(site, disk=int(1.05 * share))))
        if site.disk:
            disk = replace(speeds.disk, read_mb_s=2 * speeds.disk.read_mb_s, write_mb_s=2 * speeds.disk.write_mb_s)
            found.append(("disk-speed", "twice as fast a disk", replace(site, speeds=replace(speeds, disk=disk))))
        if site.nodes > 1 and speeds.network_mb_s:
            network = replace(speeds, network_mb_s=2 * speeds.network_mb_s)
            found.append(("network", "twice the network", replace(site, speeds=network)))
        return found

    @staticmethod
    def _reliefs(site: Site) -> list[tuple[str, Site]]:
        """The same machines with one resource that limits nothing."""
        speeds = site.speeds
        free = [
            (
                "source",
                replace(
                    speeds,
                    source_mb_s=_FREE * speeds.source_mb_s,
                    source_limit_mb_s=None,
                    latency_s=speeds.latency_s / _FREE,
                    connection_mb_s=None,
                ),
            )
        ]
        if site.disk:
            disk = replace(
                speeds.disk, read_mb_s=_FREE * speeds.disk.read_mb_s, write_mb_s=_FREE * speeds.disk.write_mb_s
            )
            free.append(("disk", replace(speeds, disk=disk)))
        if site.nodes > 1 and speeds.network_mb_s:
            free.append(("network", replace(speeds, network_mb_s=_FREE * speeds.network_mb_s)))
        if speeds.preprocess_mb_s:
            free.append(("preprocessing", replace(speeds, preprocess_mb_s=_FREE * speeds.preprocess_mb_s)))
        return [(name, replace(site, speeds=faster)) for name, faster in free]

    def _limit(self, base: _Run, stall_share: float, reliefs: Sequence[tuple[str, Site]]) -> str:
        if stall_share < _STALL_FLOOR:
            return "computing"
        found = {name: self.run(site, f"without limits of the {name}").steady_s for name, site in reliefs}
        name, seconds = min(found.items(), key=lambda each: each[1])
        return name if seconds < base.steady_s * (1 - _STALL_FLOOR / 2) else "several"

    @staticmethod
    def _upgrade(name: str, change: str, base: _Run, better: _Run) -> Upgrade:
        return Upgrade(name, change, better.hours, 1 - better.hours / base.hours, better.bill.total)


def _speeds(calibration: str | PathLike[str] | Speeds | None) -> Speeds:
    from foreload import speeds

    if calibration is None:
        return speeds.Speeds()
    if isinstance(calibration, speeds.Speeds):
        return calibration
    if not isinstance(calibration, (str, PathLike)):
        raise InvalidError(
            f"plan(calibration=...): {calibration!r} is no calibration; give the file that `foreload calibrate` wrote, or foreload.speeds.Speeds"
        )
    return speeds.read(calibration)


def _check_batch(site: Site, samples: int) -> None:
    """Refuses steps that no loader makes: of more samples than there are, or of fewer than nodes."""
    if site.batch > samples:
        raise InvalidError(
            f"plan(batch=...): a batch of {site.batch:,} is more than the data set's {samples:,} samples; give at most {samples}, and what a step of "
            "so many takes"
        )
    if site.nodes > site.batch:
        raise InvalidError(
            f"plan(nodes=...): {site.nodes:,} nodes can't share a batch of {site.batch:,} samples; give at most {site.batch} nodes, or a larger batch "
            "with its step"
        )


def _check_assign(site: Site, assign: str | None, *, shards: bool) -> None:
    """Refuses what no loader does."""
    if assign not in (None, "local"):
        raise InvalidError(f"plan(assign=...): {assign!r} is none; give 'local', or nothing")
    if not site.is_local:
        return
    if shards:
        raise InvalidError("plan(assign=...): 'local' deals whole objects: it isn't there for samples in shards")
    if site.speeds.network_mb_s is None:
        raise InvalidError(
            "plan(assign=...): 'local' is for nodes that share their caches; say what the network between them brings (--network, or network_mb_s of the speeds)"
        )
    if site.batch % site.nodes:
        raise InvalidError(
            f"plan(assign=...): 'local' is simulated for nodes that have equally many samples; {site.nodes:,} nodes don't divide a batch of {site.batch:,}"
        )


def _check_ram(site: Site, lengths: Any) -> None:
    """Refuses memory in which no loader could make a batch: it holds its samples beside what collated batches have."""
    share = site.batch * float(lengths.mean()) / site.nodes
    need = max(1, int(lengths.max()), math.ceil(share))
    least = need + _core.batch_bytes(-(-need * 8 // 7))
    if site.ram < least:
        raise InvalidError(
            f"plan(ram=...): {site.ram} bytes don't hold a node's share of a batch; give at least {least} "
            f"({format_bytes(least)}), or smaller batches"
        )


def _samples(dataset: Any) -> tuple[Any, int, list[tuple[int, int]] | None]:
    """Bytes by sample, how many objects there are, and where in them the samples lie if they share them."""
    import numpy as np

    from foreload._data.dataset import Dataset
    from foreload._data.dataset import open as open_dataset

    if isinstance(dataset, (str, PathLike)):
        dataset = open_dataset(dataset)
    if isinstance(dataset, Dataset):
        return dataset.lengths, int(dataset.source.opened().index.objects), places_of(dataset)
    try:
        lengths = np.asarray(dataset)
    except ValueError as error:
        raise InvalidError(f"plan: the bytes of samples are a list of numbers: {error}") from None
    if lengths.ndim != 1 or not len(lengths):
        raise InvalidError("plan: give a data set, its URL, or the bytes of at least one sample")
    if lengths.dtype.kind not in "iuf":
        odd = next((each for each in dataset if isinstance(each, bool) or not isinstance(each, numbers.Real)), dataset)
        raise InvalidError(f"plan: the bytes of samples are numbers, and {odd!r} isn't one; give a list of them")
    bad = ~((lengths >= 0) & (lengths <= _MOST_SAMPLE_BYTES))
    if bad.any():
        at = int(bad.argmax())
        raise InvalidError(
            f"plan: sample {at} has {lengths[at]} bytes, which is not between 0 and {_MOST_SAMPLE_BYTES:g}; leave it out, or give its size"
        )
    return lengths, len(lengths), None
