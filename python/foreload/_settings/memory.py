"""The memory of this process: how much it may still use, for the default budget, and how it is kept for the next batch.

The least of what the machine has available and what each memory cgroup above this process leaves (v2 or v1). Page cache counts as
available, because the kernel gives it back. Reads a handful of files; changes nothing.
"""

from __future__ import annotations

import functools
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that are left.

    Args:
        root: Where `proc` and `sys` are; for tests.

    Returns:
        The least that the machine and the cgroups leave; at least 0.
    """
    left = [_meminfo(root / "proc/meminfo")]
    for directory, limit, used, cache in _cgroups(root):
        room = _room(directory, limit, used, cache)
        if room is not None:
            left.append(room)
    return max(0, min(left))


@functools.cache
def keep_freed_memory() -> None:
    """Lets the C library keep what a batch frees for the next one; once a process.

    By default glibc gives blocks above 128 KiB back to the system when they are freed, and the next batch pays for fresh pages: of 38 microseconds for a
    copy of 110 KB, 30 are page faults. It raises that limit by itself to the largest block that a program frees, up to
    32 MiB, and keeps twice as much; so one such block, whose pages are never touched, is enough.
    """
    bytearray((32 << 20) - (64 << 10))


def _meminfo(path: Path) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 30


def _cgroups(root: Path) -> list[tuple[Path, str, str, str]]:
    """Each memory cgroup from this process' to the top, with the names of its files."""
    found: list[tuple[Path, str, str, str]] = []
    base = root / _CGROUPS.relative_to("/")
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = base, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top, names = base / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        here = Path(path.lstrip("/"))
        # In a container the path may be the host's, which is not mounted: then its top is ours.
        found += [(top / part, *names) for part in (here, *here.parents) if (top / part).is_dir()]
    return found


def _room(directory: Path, limit: str, used: str, cache: str) -> int | None:
    try:
        most = (directory / limit).read_text().strip()
        if most == "max":
            return None
        stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
        return int(most) - int((directory / used).read_text()) + int(stat.get(cache, 0))
    except (OSError, ValueError):
        return None
