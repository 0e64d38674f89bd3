"""The cache directory, the sockets' directory, and the agent that lives there."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from foreload.cli.doctor.finding import Finding
from foreload.cli.output import human_bytes

_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse", "9p", "afs", "glusterfs"}
_GIB = 1 << 30


def filesystem(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The type of the file system that a path is on; empty when unknown.

    Args:
        path: An existing path.
        mounts: The kernel's table of mounts.

    Returns:
        A name such as `ext4` or `fuse.sshfs`.
    """
    best, kind = "", ""
    real = str(path.resolve())
    for line in mounts.read_text().splitlines():
        _, target, found, *_ = line.split(" ")
        target = target.replace("\\040", " ")
        inside = real == target or real.startswith(target.rstrip("/") + "/")
        if inside and len(target) >= len(best):
            best, kind = target, found
    return kind


def is_network(kind: str) -> bool:
    """Whether a type of file system is remote, as far as the name tells.

    Example:
        >>> is_network("fuse.sshfs"), is_network("ext4")
        (True, False)
    """
    return kind.partition(".")[0] in _NETWORK


def cache_directory(path: Path) -> Iterator[Finding]:
    """Whether indexes, logs and disk tiers can be kept."""
    name = "cache directory"
    standing = next((part for part in (path, *path.parents) if part.exists()), Path("/"))
    remedy = "name another: FORELOAD_CACHE_DIR=/path/on/a/local/disk"
    if not standing.is_dir():
        yield Finding(name, "fail", f"{path}: {standing} is no directory", remedy)
        return
    if not os.access(standing, os.W_OK | os.X_OK):
        yield Finding(name, "fail", f"{path}: no permission to write", remedy)
        return
    free, kind = shutil.disk_usage(standing).free, filesystem(standing)
    detail = f"{path}, {human_bytes(free)} free on {kind or 'an unknown file system'}"
    if free < _GIB:
        yield Finding(name, "warn", detail, f"little space: make some, or {remedy}")
    elif is_network(kind):
        yield Finding(name, "warn", detail, f"a disk tier on a network file system gains little; {remedy}")
    elif kind in {"tmpfs", "ramfs"}:
        yield Finding(name, "warn", detail, f"what is kept here takes memory; {remedy}")
    else:
        yield Finding(name, "ok", detail)


def socket_directory(path: Path) -> Iterator[Finding]:
    """Whether the agent's socket is safe there."""
    name = "socket directory"
    if not path.exists():
        yield Finding(name, "ok", f"{path}, made when needed")
        return
    found = path.lstat()
    remedy = f"remove it, or name another: FORELOAD_RUNTIME_DIR; sockets in {path} could be somebody else's"
    if found.st_uid != os.getuid():
        yield Finding(name, "fail", f"{path} belongs to user {found.st_uid}", remedy)
    elif found.st_mode & 0o022:
        yield Finding(
            name, "fail", f"{path}: others can write to it (mode {found.st_mode & 0o777:o})", f"chmod 700 {path}"
        )
    else:
        yield Finding(name, "ok", str(path))


def agent(cache_dir: str) -> Iterator[Finding]:
    """Whether an agent answers, or can be started, and what its log ends with."""
    from foreload._node import agent as _agent
    from foreload.cli.agent import jobs_of
    from foreload.errors import ForeloadError

    try:
        connection = _agent.connect(cache_dir)
    except ForeloadError as error:
        yield Finding("agent", "fail", str(error), f"its log is {Path(cache_dir) / 'agent.log'}")
        return
    jobs = jobs_of(connection)
    running = f"jobs: {len(jobs)}, memory {human_bytes(sum(job['ram_bytes'] for job in jobs))}"
    yield Finding("agent", "ok", f"process {connection.pid} answers, {running}")
    last = log_tail(connection.log)
    if last:
        yield Finding("agent's log", "note", last[-1], f"see {connection.log}")


def log_tail(path: Path, most_bytes: int = 4096) -> list[str]:
    """The last lines of a log; empty when there is none."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - most_bytes))
            return [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return []
