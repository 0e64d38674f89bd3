"""How fast the machines are that a plan is for: assumed, or as `foreload calibrate` measured them.

`Speeds` is a plain value. `read` takes it from a calibration file, which has the sections and keys of a scenario; `text` writes one; and
`overrides` turns it into settings for a scenario file, as `foreload simulate --calibration` applies them.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from foreload import _core
from foreload._settings import numbers as _numbers
from foreload._settings.text import read_text
from foreload._settings.toml import inline
from foreload.errors import InvalidError

__all__ = ["Disk", "Speeds", "overrides", "read", "text", "toml"]

#: The layout of a calibration file.
_FORMAT = 1
#: What a calibration says in its sections; what the machine is, is free text.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "source": (
        "url",
        "throughput_mb_s",
        "limit_mb_s",
        "latency_s",
        "latency_sigma",
        "connection_mb_s",
        "requests_in_flight",
        "mean_request_mb",
        "mb_s_by_requests",
    ),
    "cluster": ("preprocess_mb_s", "threads", "network_mb_s"),
    "loop": ("mb_s",),
    "tier": ("kind", "read_mb_s", "write_mb_s"),
}
_TOP = ("format", "dated", "foreload", "machine", *_KEYS)
#: Those that a calibration has; a scenario has staging too.
_KINDS = ("ram", "disk")
_TEXTS = ("dated", "foreload", "source.url", "tier.kind")
_TABLES = ("source.throughput_mb_s", "source.mb_s_by_requests")
#: By so much may what more nodes get differ from as much for each, up to a limit.
_STRAIGHT = 0.05
#: What the simulator takes.
_LEAST_MB_S, _MOST_MB_S = 1e-6, 1e12
#: Plans simulate speeds of up to sixteen times as much.
_FASTER = 16
MOST_SECONDS = 1e9
_MOST_SIGMA = 3.0
#: Requests or threads.
_MOST_AT_ONCE = 1 << 20


def _rate(what: str, value: float) -> None:
    _numbers.amount(what, value, _LEAST_MB_S, _MOST_MB_S / _FASTER)


@dataclass(frozen=True)
class Disk:
    """A disk tier's speed, all threads together, in MB/s (2^20 bytes).

    Attributes:
        read_mb_s: Reading. Default: half of what one NVMe drive reads.
        write_mb_s: Writing. Default: what a drive of a cloud instance sustains.
    """

    read_mb_s: float = 1500.0
    write_mb_s: float = 700.0

    def __post_init__(self) -> None:
        for name in ("read_mb_s", "write_mb_s"):
            _rate(f"disk {name}", getattr(self, name))


@dataclass(frozen=True)
class Speeds:
    """Speeds of one node, in MB/s (2^20 bytes) and seconds.

    Attributes:
        source_mb_s: What one node gets from the source. Default: a 10 Gbit/s network.
        source_limit_mb_s: What all nodes together get. Default: no limit, as buckets scale with their readers.
        latency_s: From a request to its first byte, on average. Default: an object store's in its own region.
        latency_sigma: How much that differs: sigma of its lognormal distribution. Default: an object store's.
        connection_mb_s: What one connection delivers; None: no limit of its own. Default: an object store's.
        requests_in_flight: Requests in flight at most. Default: the engine's limit.
        ram_mb_s: Memory. Default: one core's copying.
        fresh_mb_s: Memory written for the first time, which the kernel has to hand out. Default: what that takes on a machine of one's own.
        disk: The disk tier.
        network_mb_s: Between two nodes that share their caches. Default, None: each keeps what it reads itself.
        preprocess_mb_s: What one thread decodes; None: it takes no time.
        loop_mb_s: What the training loop's own thread takes over; None: it takes no time.
        threads: Threads that decode.
        dated: When they were measured; None: assumed.
        machine: Where they were measured.
    """

    source_mb_s: float = 1100.0
    source_limit_mb_s: float | None = None
    latency_s: float = 0.030
    latency_sigma: float = 0.3
    connection_mb_s: float | None = 35.0
    requests_in_flight: int = _core.MOST_IN_FLIGHT
    ram_mb_s: float = 8000.0
    fresh_mb_s: float = 4000.0
    disk: Disk = field(default_factory=Disk)
    network_mb_s: float | None = None
    preprocess_mb_s: float | None = None
    loop_mb_s: float | None = None
    threads: int = 8
    dated: str | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("source_mb_s", "ram_mb_s", "fresh_mb_s"):
            _rate(name, getattr(self, name))
        for name in ("source_limit_mb_s", "connection_mb_s", "network_mb_s", "preprocess_mb_s", "loop_mb_s"):
            if getattr(self, name) is not None:
                _rate(name, getattr(self, name))
        _numbers.amount("latency_s", self.latency_s, most=MOST_SECONDS)
        _numbers.amount("latency_sigma", self.latency_sigma, most=_MOST_SIGMA)
        for name in ("requests_in_flight", "threads"):
            _numbers.count(name, getattr(self, name), 1, _MOST_AT_ONCE)

    @property
    def origin(self) -> str:
        """Where they come from, for people."""
        return f"measured {self.dated}" if self.dated else "assumed; `foreload calibrate` measures them"

    def curve(self, nodes: int) -> dict[str, float]:
        """t(gamma): the source's throughput by number of reading nodes, straight up to its limit."""
        limit = self.source_limit_mb_s or nodes * self.source_mb_s
        bend = min(nodes, max(1, int(limit // self.source_mb_s)))
        points = {1, bend, min(nodes, bend + 1), nodes}
        return {str(readers): min(limit, readers * self.source_mb_s) for readers in sorted(points)}


def read(path: str | PathLike[str]) -> Speeds:
    """Reads a calibration file; what it doesn't say is assumed.

    Raises:
        InvalidError: It isn't one.
    """
    text = read_text(path, "the calibration")
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidError(f"{path}: the calibration isn't TOML: {error}") from None
    if found.get("format") != _FORMAT:
        raise InvalidError(
            f"{path}: not a calibration of this release (format {found.get('format')!r}, not {_FORMAT}); "
            "`foreload calibrate --out FILE` writes one"
        )
    try:
        _check(found)
        return Speeds(**_known(found))
    except InvalidError as error:
        raise InvalidError(f"{path}: {error}") from None


def _check(found: Mapping[str, Any]) -> None:
    """Refuses keys that aren't read, which may be misspelt, and values that are of the wrong kind.

    Raises:
        InvalidError: Names the key, and what it may be.
    """
    _known_keys("the calibration", found, _TOP)
    for name, keys in _KEYS.items():
        section = found.get(name, [] if name == "tier" else {})
        for each in _tiers(section) if name == "tier" else [section]:
            if not isinstance(each, Mapping):
                raise InvalidError(f"{name} is {each!r}, not a section; write [{name}] and its keys below")
            _known_keys(f"[[{name}]]" if name == "tier" else f"[{name}]", each, keys)
            for key, value in each.items():
                _check_value(f"{name}.{key}", value)
    for key in ("dated", "foreload"):
        if key in found:
            _check_value(key, found[key])
    if not isinstance(found.get("machine", {}), Mapping):
        raise InvalidError(f"machine is {found['machine']!r}, not a section")


def _known_keys(where: str, found: Mapping[str, Any], keys: Iterable[str]) -> None:
    for key in found:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1, 0.5)
            meant = f"did you mean {near[0]}? " if near else ""
            raise InvalidError(f"{where} has no key {key!r}; {meant}It has {', '.join(keys)}")


def _check_value(name: str, value: Any) -> None:
    """Refuses a value of the wrong kind, or far from anything real."""
    if name in _TEXTS:
        if not isinstance(value, str):
            raise InvalidError(f"{name}: {value!r} is not a text")
    elif name in _TABLES:
        if not isinstance(value, Mapping):
            raise InvalidError(f"{name}: {value!r} is not a table by number; write {{ 1 = {value!r} }}")
        for number, each in value.items():
            if not (number.isdecimal() and int(number) > 0):
                raise InvalidError(f"{name}: {number!r} is not a number from 1 on")
            _rate(f"{name}.{number}", each)
    elif name in ("source.requests_in_flight", "cluster.threads"):
        _numbers.count(name, value, 1, _MOST_AT_ONCE)
    elif name == "source.latency_sigma":
        _numbers.amount(name, value, most=_MOST_SIGMA)
    elif name == "source.latency_s":
        _numbers.amount(name, value, most=MOST_SECONDS)
    else:
        _rate(name, value)


def _tiers(found: Any) -> list[Any]:
    """The tiers, each kind once and with its speeds."""
    if not isinstance(found, list):
        raise InvalidError(f"tier is {found!r}, not a list of sections; write [[tier]] and the keys of one below")
    kinds: list[str] = []
    for tier in found:
        if not isinstance(tier, Mapping):
            continue
        kind = tier.get("kind")
        if kind not in _KINDS:
            raise InvalidError(f"tier.kind: {kind!r} is none; there are {', '.join(_KINDS)}")
        if kind in kinds:
            raise InvalidError(f"tier.kind: {kind!r} is there twice; leave one out")
        kinds.append(kind)
        for key in ("read_mb_s", "write_mb_s") if kind == "disk" else ():
            if key not in tier:
                raise InvalidError(f"tier.{key} of the {kind} is missing; `foreload calibrate` measures both speeds")
    return found


def _known(found: Mapping[str, Any]) -> dict[str, Any]:
    """What a calibration file says, by the names of `Speeds`."""
    tiers = {tier["kind"]: tier for tier in found.get("tier", [])}
    source, cluster = found.get("source", {}), found.get("cluster", {})
    alone, limit = _throughput(source)
    known: dict[str, Any] = {
        "source_mb_s": alone,
        "source_limit_mb_s": limit,
        "latency_s": source.get("latency_s"),
        "latency_sigma": source.get("latency_sigma"),
        "connection_mb_s": source.get("connection_mb_s"),
        "requests_in_flight": source.get("requests_in_flight"),
        "ram_mb_s": tiers.get("ram", {}).get("read_mb_s"),
        "fresh_mb_s": tiers.get("ram", {}).get("write_mb_s"),
        "network_mb_s": cluster.get("network_mb_s"),
        "preprocess_mb_s": cluster.get("preprocess_mb_s"),
        "threads": cluster.get("threads"),
        "loop_mb_s": found.get("loop", {}).get("mb_s"),
        "dated": found.get("dated"),
        "machine": found.get("machine"),
    }
    if "disk" in tiers:
        known["disk"] = Disk(tiers["disk"]["read_mb_s"], tiers["disk"]["write_mb_s"])
    values = {name: value for name, value in known.items() if value is not None}
    if "latency_s" in values:
        # Measured without one: what a connection takes is in the latency.
        values.setdefault("connection_mb_s", None)
    return values


def _throughput(source: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """What one node gets, and what all together, of t(gamma) and `limit_mb_s`.

    Raises:
        InvalidError: t(gamma) isn't as much for each node up to a limit, which is all that plans know.
    """
    what, limit = "source.throughput_mb_s", source.get("limit_mb_s")
    points = {int(nodes): value for nodes, value in source.get("throughput_mb_s", {}).items()}
    if not points:
        return None, limit
    if 1 not in points:
        raise InvalidError(f"{what} lacks 1, what one node gets; write {{ 1 = ... }}")
    alone, most = points[1], max(points)
    if limit is None and points[most] < (1 - _STRAIGHT) * most * points[1]:
        limit = points[most]
    for nodes, value in points.items():
        straight = nodes * alone if limit is None else min(limit, nodes * alone)
        if nodes > 1 and abs(value - straight) > _STRAIGHT * straight:
            raise InvalidError(
                f"{what}: {value:g} for {nodes} nodes is neither {nodes} times the {alone:g} of one nor a limit that "
                "all further points have; leave it out, and give source.limit_mb_s if there is one"
            )
    return alone, limit


def text(sections: Mapping[str, Any]) -> str:
    """A calibration file of what was measured.

    Args:
        sections: `dated`, `machine`, `source`, `cluster`, `loop`, `tier`, as the file has them; `failed` and `notes` become comments.
    """
    given = dict(sections)
    failed, notes = given.pop("failed", {}), given.pop("notes", ())
    said = [f"# Not measured: {part}: {why}" for part, why in failed.items()] + [f"# {note}" for note in notes]
    head = ["# Written by `foreload calibrate`; `plan` and `simulate` take it with --calibration. 1 MB is 2^20 bytes."]
    return "\n".join([*head, *said, toml({"format": _FORMAT, **given})])


def toml(sections: Mapping[str, Any]) -> str:
    """Sections and lists of sections as TOML; what is None is left out."""
    plain = {key: value for key, value in sections.items() if not isinstance(value, (dict, list))}
    lines = _keys(plain)
    for name, section in sections.items():
        if isinstance(section, dict) and section:
            lines += ["", f"[{name}]", *_keys(section)]
        elif isinstance(section, list):
            for each in section:
                lines += ["", f"[[{name}]]", *_keys(each)]
    return "\n".join(lines) + "\n"


def _keys(section: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {inline(value)}" for key, value in section.items() if value is not None]


def overrides(speeds: Speeds, scenario: str, nodes: int | None = None) -> dict[str, str]:
    """Settings that give a scenario these speeds; its capacities stay.

    Args:
        speeds: The speeds.
        scenario: The scenario's text, which says how many nodes and which tiers there are.
        nodes: How many nodes there are instead.

    Returns:
        Values by key, as `foreload.sim.simulate` takes them.
    """
    try:
        found = tomllib.loads(scenario)
    except tomllib.TOMLDecodeError as error:
        raise InvalidError(f"the scenario isn't TOML: {error}") from None
    if nodes is None:
        nodes = _nodes(found)
    values: dict[str, Any] = {
        "source.throughput_mb_s": speeds.curve(nodes),
        "source.latency_s": speeds.latency_s,
        "source.latency_sigma": speeds.latency_sigma,
        "source.requests_in_flight": speeds.requests_in_flight,
        # Without a limit of its own, the scenario's must not stay.
        "source.connection_mb_s": speeds.connection_mb_s or _MOST_MB_S,
        "cluster.preprocess_mb_s": speeds.preprocess_mb_s,
    }
    if _steps_only(found):
        # What the loop takes over by itself comes on top of a step.
        values["cluster.compute_mb_s"] = speeds.loop_mb_s
    tiers = found.get("tier", [])
    for number, tier in enumerate(tiers if isinstance(tiers, list) else []):
        kind = tier.get("kind") if isinstance(tier, dict) else None
        of: tuple[float, float] | None = {
            "staging": (speeds.ram_mb_s, speeds.ram_mb_s),
            "ram": (speeds.ram_mb_s, speeds.fresh_mb_s),
            "disk": (speeds.disk.read_mb_s, speeds.disk.write_mb_s),
        }.get(str(kind))
        if of is not None:
            values[f"tier.{number}.read_mb_s"], values[f"tier.{number}.write_mb_s"] = of
    return {key: inline(value) for key, value in values.items() if value is not None}


def _steps_only(scenario: Mapping[str, Any]) -> bool:
    """Whether a scenario says how long a step takes, and not what a node computes per second."""
    training, cluster = scenario.get("training"), scenario.get("cluster")
    if not isinstance(training, dict) or not isinstance(cluster, dict):
        return False
    step_s = training.get("step_s")
    return isinstance(step_s, (int, float)) and step_s > 0 and "compute_mb_s" not in cluster


def _nodes(scenario: Mapping[str, Any]) -> int:
    """How many nodes a scenario names; one where it doesn't, which the simulator complains about."""
    cluster = scenario.get("cluster")
    nodes = cluster.get("nodes") if isinstance(cluster, dict) else None
    return nodes if isinstance(nodes, int) and nodes > 0 else 1
