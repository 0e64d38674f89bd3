"""What the machine is, and what processes on it use: CPU time, memory, page cache. Linux; standard library only."""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def without_paths(text: str, root: Path) -> str:
    """A result's text without where things lie on this machine: what programs print has such paths."""
    for path, name in ((root, "."), (Path(sys.prefix), "PREFIX"), (Path.home(), "~")):
        text = text.replace(str(path), name)
    return text


def describe() -> dict[str, Any]:
    """The machine without its name: results are compared by what it can do."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kb / (1 << 20)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def _io(pid: int) -> dict[str, int]:
    """What a process has read and written, as the kernel counts it; empty: it doesn't say, or there is no process."""
    with contextlib.suppress(OSError):
        rows = (line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        return {name: int(value) for name, value in rows}
    return {}


def file_bytes(pid: int) -> tuple[int, int]:
    """Bytes that a process has read from files, and those of them that came from devices: the page cache had the others. Zeros: the kernel doesn't say, or there is no process."""
    found = _io(pid)
    return found.get("rchar", 0), found.get("read_bytes", 0)


def written_bytes(pid: int) -> int:
    """Bytes that a process has had written to devices. Zero: the kernel doesn't say, or there is no process."""
    return _io(pid).get("write_bytes", 0)


def version(package: str) -> str:
    """An installed package's version."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def commit(root: Path) -> str:
    """The commit that is checked out; `+` where code was changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", root, *arguments], capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "crates", "python")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def load() -> float:
    """Processes that wanted a CPU in the last minute."""
    return os.getloadavg()[0]


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its reaped children, user and kernel; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(field) for field in fields[11:15]) * _TICK_S


def children(pid: int) -> list[int]:
    """A process' descendants."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found + [grandchild for child in found for grandchild in children(child)]


def memory_bytes(pids: Iterable[int]) -> int:
    """Memory of processes, pages that they share counted once; with what their memfds hold and none of them has mapped."""
    mapped = {"Pss": 0, "Pss_Shmem": 0}
    held: dict[int, int] = {}
    for pid in pids:
        # One that has ended has no memory.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in mapped:
                    mapped[name] += int(value.split()[0]) << 10
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if str(descriptor.readlink()).startswith("/memfd:"):
                        file = descriptor.stat()
                        held[file.st_ino] = file.st_blocks * 512
    return mapped["Pss"] + max(0, sum(held.values()) - mapped["Pss_Shmem"])


def drop_page_cache(directory: Path) -> None:
    """Writes out and drops what the kernel keeps of the files below a directory."""
    for path in directory.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def touch(size: int) -> float:
    """Writes to so much new memory and gives it back; the seconds that took.

    A virtual machine's memory may not be there before it is written to, and its host may take back what is free. So a run finds memory of that kind or of
    this, by what ran before it; after this it finds memory that the host has given a moment ago, and pays what its own kernel asks for a page.
    """
    step, begun = b"x" * (4 << 20), time.perf_counter()
    with mmap.mmap(-1, max(size, len(step)), flags=mmap.MAP_PRIVATE) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, len(memory) - len(step) + 1, len(step)):
            memory[at : at + len(step)] = step
    return time.perf_counter() - begun


def wait_gone(pid: int, timeout_s: float = 20.0) -> bool:
    """Waits for another process' end."""
    deadline = time.monotonic() + timeout_s
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
