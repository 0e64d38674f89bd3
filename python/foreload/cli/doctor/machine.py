"""The kernel and its limits: memory, shared memory, open files, processors, how worker processes are started.

Functions take the root of `proc` and `sys`, and what the kernel says, so that tests can show each of them failing.
"""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from foreload.cli.doctor.finding import Finding
from foreload.cli.output import human_bytes

_MIB = 1 << 20
_GIB = 1 << 30


def versions() -> Iterator[Finding]:
    """What runs here; nothing is imported for it."""
    found = [f"Python {platform.python_version()}", f"{platform.system()} {platform.release()} {platform.machine()}"]
    for package in ("foreload", "torch", "numpy", "boto3"):
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            if package == "torch":
                found.append("no torch")
    supported = sys.platform == "linux"
    yield Finding(
        "versions",
        "ok" if supported else "fail",
        ", ".join(found),
        "" if supported else "the engine runs on Linux only",
    )


def processors() -> Iterator[Finding]:
    """Processors this process may use."""
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = _quota(Path("/sys/fs/cgroup/cpu.max"))
    detail = f"{usable} of {present} usable" + (f", the cgroup allows {quota:g} at a time" if quota else "")
    if min(usable, quota or usable) < 2:
        yield Finding("processors", "warn", detail, "give the job 2 or more: I/O threads and training share this one")
    else:
        yield Finding("processors", "ok", detail)


def _quota(path: Path) -> float | None:
    try:
        most, period = path.read_text().split()
    except (OSError, ValueError):
        return None
    return None if most == "max" else int(most) / int(period)


def memory(root: Path = Path("/")) -> Iterator[Finding]:
    """What the machine and the cgroup leave, half of which is the default budget."""
    from foreload._settings.memory import available_bytes

    left = available_bytes(root)
    detail = f"{human_bytes(left)} left by the machine and its cgroup limits; default budget {human_bytes(left // 2)}"
    if left < 256 * _MIB:
        yield Finding("memory", "fail", detail, "free memory or raise the cgroup's limit: samples would have no room")
    elif left < 2 * _GIB:
        yield Finding("memory", "warn", detail, "raise the limit, or give the budget yourself: Cache(ram=...)")
    else:
        yield Finding("memory", "ok", detail)


def shared_memory(path: Path = Path("/dev/shm")) -> Iterator[Finding]:  # noqa: S108 (looked at, never written)
    """The shared memory that torch's own worker processes use; ours is anonymous and needs none of it."""
    try:
        stat = os.statvfs(path)
    except OSError as error:
        yield Finding(
            "shared memory", "warn", error.strerror or str(error), "mount a tmpfs there: torch's workers need it"
        )
        return
    size, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    detail = f"{path}: {human_bytes(free)} of {human_bytes(size)} free"
    if free < 512 * _MIB:
        remedy = "start the container with --shm-size=8g or --ipc=host: tensors of torch's workers pass through it (ours don't)"
        yield Finding("shared memory", "warn", detail, remedy)
    else:
        yield Finding("shared memory", "ok", detail)


def sealed_memory(create: Callable[[str, int], int] | None = None) -> Iterator[Finding]:
    """The anonymous sealed memory that agent and clients share."""
    import fcntl

    create = create or os.memfd_create
    name = "memfd and sealing"
    try:
        memory = create("foreload-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        remedy = "allow memfd_create in the container's seccomp profile"
        yield Finding(name, "fail", f"memfd_create: {error.strerror}", remedy)
        return
    try:
        os.ftruncate(memory, 4096)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        sealed = fcntl.fcntl(memory, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    except OSError as error:
        yield Finding(name, "fail", f"sealing: {error.strerror}", "use a kernel of 3.17 or later without such a filter")
    else:
        yield Finding(name, "ok" if sealed else "fail", "works" if sealed else "the seal doesn't hold")
    finally:
        os.close(memory)


def open_files(limits: tuple[int, int] | None = None) -> Iterator[Finding]:
    """Files and connections that a process may have open."""
    import resource

    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    shown = ["unlimited" if limit == unlimited else f"{limit:,}" for limit in (soft, hard)]
    detail = f"{shown[0]} (may be raised to {shown[1]})"
    if soft != unlimited and soft < 256:
        yield Finding("open files", "fail", detail, "ulimit -n 4096: a connection and a segment file each take one")
    elif soft != unlimited and soft < 1024:
        yield Finding("open files", "warn", detail, "ulimit -n 4096, so that many connections don't run into it")
    else:
        yield Finding("open files", "ok", detail)


def start_method() -> Iterator[Finding]:
    """How torch's loader would start its workers, and what that means here."""
    import multiprocessing

    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    detail = f"{method}; all of fork, forkserver and spawn work: Foreload has no threads in your process"
    if method != "fork":
        yield Finding("start method", "ok", detail)
        return
    remedy = "other libraries with threads (gRPC, an initialised CUDA) may hang in forked workers: then use forkserver"
    yield Finding("start method", "note", detail, remedy)


def mounts(
    device: Path = Path("/dev/fuse"),
    helpers: tuple[str, ...] = ("fusermount3", "fusermount"),
    listed: Path = Path("/proc/self/mounts"),
    is_root: bool | None = None,
) -> Iterator[Finding]:
    """Whether `foreload mount` can work, and mounts of which the program has ended."""
    from foreload._mount import program

    name = "mounting"
    helper = next((found for each in helpers if (found := shutil.which(each))), None)
    if not device.exists():
        remedy = "`foreload mount` needs it: modprobe fuse, or a container with the device (docker run --device /dev/fuse --cap-add SYS_ADMIN)"
        yield Finding(name, "note", f"there is no {device}", remedy)
    elif not os.access(device, os.R_OK | os.W_OK):
        yield Finding(
            name, "note", f"{device} can't be opened", f"`foreload mount` needs it: chmod 666 {device}, as root"
        )
    elif not (os.geteuid() == 0 if is_root is None else is_root) and helper is None:
        yield Finding(name, "note", "neither root nor fusermount3", "`foreload mount` needs one: apt-get install fuse3")
    else:
        yield Finding(name, "ok", f"{device}, {'as root' if helper is None else helper}")
    for place in program.left(listed):
        yield Finding(name, "warn", f"{place}: a mount whose program has ended", f"foreload unmount {place}")
