"""Measures what the performance model needs to know about this machine and its source.

`calibrate` reads a sample of a data set with 1, 4, 16, ... requests in flight, writes and reads a disk tier, and delivers from memory, all
through the agent as training does, so that what is measured is what a run gets. The answer is the sections of a calibration file
(`foreload.speeds`). It is an experiment: it takes some seconds, reads the bucket, and fills a scratch directory that it removes.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreload import _core
from foreload._calibrate.local import copy_mb_s, decoding_mb_s, disk_mb_s, fill_mb_s, loop_mb_s, scratch
from foreload._calibrate.reading import MB, rounded
from foreload._calibrate.source import LEVELS, measure
from foreload._data.dataset import Dataset
from foreload._node import agent as _agent
from foreload._node.source import Progress
from foreload._settings.memory import available_bytes
from foreload._settings.sizes import format_bytes
from foreload.errors import ForeloadError, InvalidError, NotFoundError

if TYPE_CHECKING:
    from os import PathLike


def calibrate(
    dataset: Dataset | None = None,
    *,
    disk: str | PathLike[str] | None = None,
    decode: Callable[..., Any] | None = None,
    seconds: float = 2.0,
    scratch_bytes: int = 256 << 20,
    cache_dir: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measures this machine.

    Args:
        dataset: Where to measure the source; None: not at all.
        disk: A directory on the drive that a disk tier will be on; None: not at all.
        decode: What will turn bytes into arrays: `decode(data, meta)`; None: not at all. It needs a data set.
        seconds: How long each measurement goes on.
        scratch_bytes: Written for memory and disk; a drive's own cache should not hold it.
        cache_dir: As in `foreload.open`.
        progress: Called with a step's name, how many are done, and of how many.

    Returns:
        The sections of a calibration file, for `foreload.speeds.text`; `failed`, what couldn't be measured and why; and `notes`, what to know about
        the rest.

    Raises:
        InvalidError: The data set has no bytes, or `check_room` raises it.
        NotFoundError: There is no such directory.
    """
    check_room(disk, scratch_bytes, cache_dir)
    if dataset is not None and dataset.nbytes == 0:
        raise InvalidError(
            f"{dataset.url}: its samples are empty, so nothing can be measured on them; name another data set"
        )
    steps = 1 + (disk is not None) + (len(LEVELS) if dataset is not None else 0) + (decode is not None)
    done = 0

    def say(step: str) -> None:
        nonlocal done
        if progress is not None:
            progress(step, done, steps)
        done += 1

    found: dict[str, Any] = {"dated": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "foreload": _core.__version__}
    found |= {"notes": [], "failed": {}, "machine": machine()}
    with _part("the source", found):
        if dataset is not None:
            found["source"] = measure(dataset, seconds, say, found["notes"])
    with _part("decoding", found):
        if dataset is not None and decode is not None:
            say("decoding")
            rate = decoding_mb_s(dataset, decode, seconds)
            found["cluster"] = {"preprocess_mb_s": rounded(rate), "threads": len(os.sched_getaffinity(0))}
    with _part("memory", found), scratch(scratch_bytes, cache_dir) as local:
        say("memory")
        copies, fills = rounded(copy_mb_s()), rounded(fill_mb_s(scratch_bytes))
        found["tier"] = [{"kind": "ram", "read_mb_s": copies, "write_mb_s": fills}]
        with _part("what a loop takes over", found):
            found["loop"] = {"mb_s": rounded(loop_mb_s(local, seconds))}
        with _part("the disk", found):
            if disk is not None:
                say("disk")
                write, read = disk_mb_s(local, Path(disk))
                found["tier"].append({"kind": "disk", "read_mb_s": rounded(read), "write_mb_s": rounded(write)})
    return found


@contextmanager
def _part(name: str, found: dict[str, Any]) -> Iterator[None]:
    """One part of the measurements: without it, the others are still worth having."""
    try:
        yield
    except (ForeloadError, OSError) as error:
        found["failed"][name] = " ".join(str(error).split())


def check_room(
    disk: str | PathLike[str] | None, scratch_bytes: int, cache_dir: str | PathLike[str] | None = None
) -> None:
    """Refuses what can't be measured, before anything is: a drive that isn't there, or more scratch than drives and memory hold.

    Args:
        disk: As in `calibrate`.
        scratch_bytes: As in `calibrate`.
        cache_dir: As in `calibrate`.

    Raises:
        NotFoundError: The directory doesn't exist.
        InvalidError: It is none or closed, or there is too little room.
    """
    needs = [_existing(Path(_agent.cache_directory(cache_dir)))]
    if disk is not None:
        needs.append(_directory(Path(disk)))
    for path in needs:
        # Both may be on one drive.
        here = sum(other.stat().st_dev == path.stat().st_dev for other in needs)
        free = shutil.disk_usage(path).free
        if here * scratch_bytes + _core.KEEP_FREE_BYTES > free:
            most = max(0, free - _core.KEEP_FREE_BYTES) // here
            raise InvalidError(
                f"--scratch: {format_bytes(scratch_bytes)} don't fit: {path} has {format_bytes(free)} free, of which "
                f"{format_bytes(most)} can be used (1 GiB stays free); give less, or free some"
            )
    left = available_bytes()
    if scratch_bytes > left // 2:
        raise InvalidError(
            f"--scratch: {format_bytes(scratch_bytes)} don't fit into half of the {format_bytes(left)} of memory that are left, "
            "where they are measured too; give less"
        )


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above it that is there."""
    return next((each for each in (path, *path.parents) if each.is_dir()), Path("/"))


def _directory(path: Path) -> Path:
    """A directory that can be written.

    Raises:
        NotFoundError: It doesn't exist.
        InvalidError: It is none, or closed.
    """
    if not path.exists():
        # Made here, it would be on whatever drive is above.
        raise NotFoundError(f"--disk: there is no directory {path}; make it, or mount its drive")
    if not path.is_dir():
        raise InvalidError(f"--disk: {path} is no directory; name one on the drive")
    if not os.access(path, os.W_OK | os.X_OK):
        raise InvalidError(f"--disk: {path} can't be written: permission denied")
    return path


def machine() -> dict[str, Any]:
    """What the machine is, without its name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory = int(Path("/proc/meminfo").read_text(encoding="utf-8").split()[1]) / MB
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }
