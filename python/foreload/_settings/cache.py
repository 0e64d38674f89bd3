"""How much memory and disk a loader may use.

`Cache` is a setting: a plain, frozen value, which a loader turns into the budget of its job. It opens nothing.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foreload import _core
from foreload._settings import environment as _environment
from foreload._settings.memory import available_bytes
from foreload._settings.peers import Peers
from foreload._settings.sizes import format_bytes, parse_bytes
from foreload.errors import InvalidError

_LOG = logging.getLogger("foreload")
#: A job works with less, but hardly.
_LEAST_RAM = 16_000_000
#: Budgets that were chosen by default, as long as a loader has them. References, for two equal ones are two.
_promised: list[weakref.ref[Cache]] = []


@dataclass(frozen=True)
class Cache:
    """Budgets of a loader on this node: all its ranks and workers share them.

    Attributes:
        ram: Memory for everything: kept samples, read-ahead and batches; 16 MB at least. Default: `FORELOAD_RAM`, otherwise half of what the
            machine and the cgroup leave, so that the model's own buffers have the other half.
        disk: Directories to keep samples in and the size of each, fastest first: `"/nvme/foreload:500GB"`. Default, and with None: `FORELOAD_DISK`,
            otherwise no disk is used. 1 GiB of each file system stays free: one that is fuller holds less, and a warning says so.
        batches: Of the memory, what is for collated batches on their way between processes. Default: an eighth, at most 1 GiB.
        staging: Of the memory, what is for samples that pass through. Default: the plan's.
        peers: Whether the nodes of the run share their caches: `True`, or `Peers(...)`. The nodes need a secret; see `Peers`.

    Example:
        >>> Cache(ram="32GB", disk=["/nvme0/cache:500GB", "/nvme1/cache:500GB"]).disks()[1]
        ('/nvme1/cache', 500000000000)
    """

    ram: int | str | None = None
    disk: str | Sequence[str] | None = ()
    batches: int | str | None = None
    staging: int | str | None = None
    peers: bool | Peers = False

    def __post_init__(self) -> None:
        if not isinstance(self.peers, (bool, Peers)):
            raise InvalidError(f"Cache(peers={self.peers!r}): give True, False or Peers(...)")
        if self.peers is True:
            self.group()
        for name in ("ram", "batches", "staging"):
            value = getattr(self, name)
            if value is not None:
                parse_bytes(value, f"Cache({name}=...)")
        self.disks()

    def group(self) -> Peers:
        """How the nodes share their caches, where they do."""
        return self.peers if isinstance(self.peers, Peers) else Peers()

    def disks(self) -> list[tuple[str, int]]:
        """The disk tiers: (directory, bytes)."""
        what = "Cache(disk=...)"
        disk = () if self.disk is None else self.disk
        if not isinstance(disk, (str, Sequence)) or not all(isinstance(each, str) for each in disk):
            raise InvalidError(f"{what}: {self.disk!r} is no list of DIRECTORY:SIZE, such as ['/nvme/foreload:500GB']")
        given = [disk] if isinstance(disk, str) else list(disk)
        if not given and (named := _environment.get("FORELOAD_DISK")):
            given, what = named.split(","), "the variable FORELOAD_DISK"
        disks = [directory_and_size(text, what) for text in given if text]
        places = [os.path.realpath(place) for place, _ in disks]
        twice = [place for at, place in enumerate(places) if place in places[:at]]
        if twice:
            raise InvalidError(f"{what}: {twice[0]} is named twice; give each directory once, with its whole size")
        return disks

    def ram_bytes(self, share: int = 1, promised: int = 0) -> int:
        """The memory budget.

        Args:
            share: How many jobs on this node share what is available by default.
            promised: Bytes of what is available that others will take.

        Returns:
            Bytes.
        """
        named = self.ram if self.ram is not None else _environment.get("FORELOAD_RAM")
        if named is not None:
            return max(_LEAST_RAM, parse_bytes(named, self._ram_name()))
        half = max(0, available_bytes() - promised) // (2 * max(1, share))
        # In coarse steps: the ranks of a node compute this at slightly different times and must agree.
        step = 1 << max(20, half.bit_length() - 3)
        return max(_LEAST_RAM, half // step * step)

    def _ram_name(self) -> str:
        return "the variable FORELOAD_RAM" if self.ram is None else "Cache(ram=...)"

    def fixed(self, share: int = 1) -> Cache:
        """The same with its default written out: processes that compute it later come to the same.

        Loaders that live at the same time don't promise the same memory twice: the second takes half of what the first leaves.
        """
        for directory, size in self.disks():
            _note_if_smaller(directory, size)
        named = self.ram if self.ram is not None else _environment.get("FORELOAD_RAM")
        if named is not None:
            given, ram = parse_bytes(named, self._ram_name()), self.ram_bytes(share)
            if given < ram:
                _LOG.warning("%s: a loader can't work with %d bytes; it takes %d", self._ram_name(), given, ram)
            return replace(self, ram=ram)
        _promised[:] = [known for known in _promised if known() is not None]
        promised = sum(cache.ram_bytes() for known in _promised if (cache := known()) is not None)
        fixed = replace(self, ram=self.ram_bytes(share, promised))
        _promised.append(weakref.ref(fixed))
        return fixed

    def part(self, parts: int) -> Cache:
        """The same with one part of several of the memory, for jobs that can't be shared."""
        if parts == 1:
            return self

        def some(size: int | str | None, name: str) -> int | None:
            return None if size is None else parse_bytes(size, f"Cache({name}=...)") // parts

        ram = max(_LEAST_RAM, self.ram_bytes() // parts)
        _LOG.info("each of the %d processes on this node has a job of its own, with %d bytes of memory", parts, ram)
        return replace(self, ram=ram, batches=some(self.batches, "batches"), staging=some(self.staging, "staging"))

    def budget(self, share: int = 1) -> dict[str, Any]:
        """The part of an attachment that is about memory and disk."""
        ram = self.ram_bytes(share)
        batches = _core.batch_bytes(ram) if self.batches is None else parse_bytes(self.batches, "Cache(batches=...)")
        if batches >= ram:
            raise InvalidError(f"Cache: {batches} bytes for batches leave nothing of {ram} bytes for samples")
        budget: dict[str, Any] = {"ram_bytes": ram, "batch_bytes": max(batches, 1 << 16)}
        if self.staging is not None:
            budget["staging_bytes"] = parse_bytes(self.staging, "Cache(staging=...)")
        disks = [{"directory": directory, "capacity_bytes": size} for directory, size in self.disks()]
        if disks:
            budget["disks"] = disks
        return budget


def fixed(cache: Cache | None) -> Cache:
    """What a loader is given as `cache=`, with its default written out.

    Raises:
        InvalidError: It is no budget.
    """
    if cache is not None and not isinstance(cache, Cache):
        raise InvalidError(f"cache={cache!r}: give foreload.Cache(ram=..., disk=...)")
    return (cache or Cache()).fixed()


@functools.cache
def _note_if_smaller(directory: str, size: int) -> None:
    """Says once that a disk tier is to be larger than the file system of its directory, which may be made only later."""
    try:
        there = next((it for it in (Path(directory), *Path(directory).parents) if it.is_dir()), Path("/"))
        whole = shutil.disk_usage(there).total
    except OSError:
        return
    if size > whole:
        _LOG.warning(
            "the disk tier %s is to hold %s, and its file system has %s in all: it holds what fits, less the 1 GiB that stays free",
            directory,
            format_bytes(size),
            format_bytes(whole),
        )


def _is_size(text: str) -> bool:
    try:
        return parse_bytes(text) > 0
    except InvalidError:
        return False


def directory_and_size(text: str, what: str) -> tuple[str, int]:
    """A place on a disk, and the bytes that it may use there.

    Args:
        text: `DIRECTORY:SIZE`.
        what: How an error names it.

    Raises:
        InvalidError: It names no directory or no size.
    """
    directory, colon, size = text.rpartition(":")
    if not colon and _is_size(text):
        raise InvalidError(f"{what}: {text!r} names no directory; write DIRECTORY:SIZE, such as /nvme/foreload:{text}")
    if not colon or not directory:
        raise InvalidError(f"{what}: {text!r} names no size; write DIRECTORY:SIZE, such as /nvme/foreload:500GB")
    return str(Path(directory).expanduser().absolute()), parse_bytes(size, what)
