"""What a run leaves on the machine: its processes, by the environment they inherited, and what it put into shared memory."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any


def processes(home: Any) -> dict[int, str]:
    """Processes that run with a test's cache directory, the test's own aside: their command lines."""
    marker = f"FORELOAD_CACHE_DIR={home.cache_dir}\0".encode()
    found = {}
    for directory in Path("/proc").iterdir():
        # A process may end while it is looked at; of a zombie nothing can be read.
        with contextlib.suppress(OSError):
            if directory.name.isdigit() and marker in (directory / "environ").read_bytes():
                found[int(directory.name)] = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def shared(home: Any) -> set[Path]:
    """Files in /dev/shm that such processes have mapped; others use the machine, too. What was mapped and is deleted leaves nothing."""
    found = set()
    for process in processes(home):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process}/maps").read_text().splitlines()
            found |= {Path(line.split(maxsplit=5)[5]) for line in lines if " /dev/shm/" in line}
    return {path for path in found if path.exists()}
