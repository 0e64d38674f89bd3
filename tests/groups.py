"""Memory control groups for tests: less memory than the machine has."""

from __future__ import annotations

import os
from pathlib import Path


class Group:
    """A memory control group below this process' own, v1 or v2.

    Args:
        limit_bytes: What the processes in it may have together.

    Raises:
        OSError: None can be made here.
    """

    def __init__(self, limit_bytes: int) -> None:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        named = {controllers: path for _, controllers, path in lines}
        old = Path("/sys/fs/cgroup/memory")
        if "memory" in named:
            own, limit, self._events = old / named["memory"].lstrip("/"), "memory.limit_in_bytes", "memory.oom_control"
        else:
            own, limit, self._events = Path("/sys/fs/cgroup") / named[""].lstrip("/"), "memory.max", "memory.events"
        self.path = own / f"foreload-{os.getpid()}"
        self.path.mkdir()
        try:
            (self.path / limit).write_text(str(limit_bytes))
        except OSError:
            self.path.rmdir()
            raise

    def join(self) -> None:
        """This process; whoever it starts is in it too."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def kills(self) -> int:
        """Processes that the kernel ended for lack of memory."""
        lines = (self.path / self._events).read_text().splitlines()
        return int(dict(line.split() for line in lines).get("oom_kill", "0"))

    def dissolve(self) -> None:
        """Its processes go back to where it was made."""
        for process in (self.path / "cgroup.procs").read_text().split():
            (self.path.parent / "cgroup.procs").write_text(process)
        self.path.rmdir()
