"""The memory of this process: how much it may still use, for the default budget, and how it is kept for the next batch.

The least of what the machine has available and what each memory cgroup above this process leaves (v2 or v1). Page cache counts as
available, because the kernel gives it back. Reads a handful of files; changes nothing.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
#: Bytes of freed memory that are kept, at least and at most, and for now.
_LEAST_KEPT, _MOST_KEPT = 64 << 20, 1 << 30
_kept_bytes = 0
#: What `mallopt` calls the size from which a block is given back by itself, and how much at the heap's end is kept.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1


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


def keep_freed_memory(batch_bytes: int) -> None:
    """Lets the C library keep what a batch frees for the next one.

    By default glibc gives blocks above 128 KiB back to the system when they are freed, and the next batch pays for fresh pages: of 38 microseconds for a
    copy of 110 KB, 30 are page faults. Here it keeps blocks of up to 32 MiB, its most, and of those twice the largest batch so far. Another C
    library does as it does.

    Args:
        batch_bytes: Of a batch that was copied.
    """
    global _kept_bytes  # noqa: PLW0603 (the C library's setting is the process')
    wanted = min(max(2 * batch_bytes, _LEAST_KEPT), _MOST_KEPT)
    if wanted <= _kept_bytes:
        return
    _kept_bytes = wanted
    import ctypes  # for those who read alone

    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LEAST_KEPT // 2)
        mallopt(_TRIM_THRESHOLD, wanted)


def _meminfo(path: Path) -> int:
    # Where /proc isn't there, a machine of today has more.
    with contextlib.suppress(OSError):
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
