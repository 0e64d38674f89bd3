"""Results of a data set, kept on this node for all its processes: a record of bytes for each sample, within the budgets of `Cache`.

A `Results` has tiers: a file (`table`) in each directory of `Cache(disk=)`, which later runs find again, then memory without a name, which ends with the last
process that has it open. A record goes into the first tier that has room, and stays: with shuffled orders what is kept is as good as what would
replace it. A budget is a tier's, not a process': whoever writes holds its lock, and measures what is there. Called by `foreload.torch.wrap` and
`foreload cache`; knows nothing of what the bytes mean.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import hashlib
import os
import re
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from foreload._node.table import Name, Table, described, record_bytes
from foreload.errors import CorruptError

#: In a disk tier's directory, and in the cache directory.
DIRECTORY = "results"
_FILE = re.compile(r"[0-9a-f]{32}\.res")
_SEGMENT = re.compile(r"[0-9a-f]{8}\.seg")
#: Of a file system; the tier of samples leaves as much.
LEFT_FREE = 1 << 30
#: Longest waits for a lock, in seconds. Whoever writes has it, so a disk that is slow costs what is to be kept, not the loop's time.
_OPEN_S = 10.0
_WRITE_S = 0.2
#: Bytes written after which the tier of samples beside is measured again.
_MEASURE_BYTES = 64 << 20


class Fate(enum.Enum):
    """What becomes of a record."""

    #: It is kept now, or was.
    KEPT = enum.auto()
    #: The budgets have no room for it.
    FULL = enum.auto()
    #: Others were writing for long.
    BUSY = enum.auto()


class Results:
    """The results of one data set.

    Args:
        name: Which.
        disks: Directories, and the bytes that all results in each may have.
        ram_bytes: Memory for what the disks don't take; that of the first process counts.
        cache_dir: Where processes find each other.
    """

    def __init__(self, name: Name, disks: Sequence[tuple[str, int]], ram_bytes: int, cache_dir: str) -> None:
        self._of = (name, tuple(disks), ram_bytes, cache_dir)
        self._tiers: list[_Tier] = []
        #: Why nothing is written to a tier any more; whoever tells it empties the list.
        self.failures: list[str] = []
        for directory, size in disks:
            with self._trying(directory):
                self._tiers.append(_on_disk(name, Path(directory), size))
        with self._trying("memory"):
            self._tiers.append(_in_memory(name, ram_bytes, Path(cache_dir) / DIRECTORY))

    def __reduce__(self) -> Any:
        # Another process opens them itself.
        return type(self), self._of

    @contextlib.contextmanager
    def _trying(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failures.append(f"{what}: {error}")

    def get(self, sample: int) -> bytes | None:
        """A sample's record; None: none is kept.

        Raises:
            CorruptError: There is one, and it is damaged.
        """
        damaged: CorruptError | None = None
        for tier in self._tiers:
            try:
                found = tier.table.get(sample)
            except CorruptError as error:
                damaged = error
                continue
            if found is not None:
                return found
        if damaged is not None:
            raise damaged
        return None

    def put(self, sample: int, payload: bytes, *, anew: bool = False) -> Fate:
        """Keeps a sample's record, unless there is one.

        Args:
            sample: Its number.
            payload: The record.
            anew: Whether one that is there is damaged.
        """
        for tier in self._tiers:
            try:
                fate = tier.put(sample, payload, anew=anew)
            except OSError as error:
                # Not as long as this process lives.
                tier.is_open = False
                self.failures.append(f"{tier.what}: {error}")
                continue
            if fate is not Fate.FULL:
                return fate
        return Fate.FULL

    def close(self) -> None:
        """Lets go of files and memory."""
        for tier in self._tiers:
            tier.leave()
            tier.table.close()
        self._tiers.clear()


class _Tier:
    """A table, and who may write there how much.

    Args:
        what: What it is called.
        table: The table.
        lock: The file that whoever writes has locked.
        room: How many bytes more there may be; asked with the lock.
        leave: Called at the end.
    """

    def __init__(
        self,
        what: str,
        table: Table,
        lock: str | Path,
        room: Callable[[Table], int],
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self.what, self.table, self.is_open = what, table, True
        self._lock, self._room = lock, room
        self.leave = weakref.finalize(self, leave)

    def put(self, sample: int, payload: bytes, *, anew: bool) -> Fate:
        """Keeps a sample's record.

        Raises:
            OSError: It couldn't be written.
        """
        if not self.is_open:
            return Fate.FULL
        with _locked(self._lock, _WRITE_S) as is_locked:
            if not is_locked:
                return Fate.BUSY
            if self.table.has(sample) and not anew:
                return Fate.KEPT
            if self._room(self.table) < record_bytes(payload):
                return Fate.FULL
            self.table.put(sample, payload)
        return Fate.KEPT


# ---- on disk -----------------------------------------------------------------------------------------------------------


def _on_disk(name: Name, samples: Path, capacity: int) -> _Tier:
    """The tier in a disk tier's directory; what was written there before is found."""
    directory = samples / DIRECTORY
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"{_key(name)}.res"
    room = _Room(samples, capacity)
    with _locked(directory / "lock", _OPEN_S, for_long=True):
        table = _opened(path, name)
        if table is None:
            path.unlink(missing_ok=True)
            if room(None) < name.table_end:
                raise OSError(errno.ENOSPC, f"no room for a table of {name.samples} samples")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with _closing(descriptor):
                table = Table.make(descriptor, name)
        # `clear` leaves what somebody has.
        fcntl.flock(table.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return _Tier(str(samples), table, directory / "lock", room)


def _opened(path: Path, name: Name) -> Table | None:
    """A file that is there; None: there is none, or it is damaged."""
    with contextlib.suppress(FileNotFoundError, CorruptError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        with _closing(descriptor):
            return Table(descriptor, name)
    return None


class _Room:
    """How much more may be written to a directory: results of all data sets and the segments beside them count.

    Args:
        samples: A disk tier's directory.
        capacity: Bytes.
    """

    def __init__(self, samples: Path, capacity: int) -> None:
        self._samples, self._capacity = samples, capacity
        self._segments, self._measured_at = 0, -_MEASURE_BYTES

    def __call__(self, table: Table | None) -> int:
        results = sum(path.stat(follow_symlinks=False).st_size for path in files_in(self._samples))
        if results - self._measured_at >= _MEASURE_BYTES:
            entries = (entry for entry in os.scandir(self._samples) if _SEGMENT.fullmatch(entry.name))
            self._segments, self._measured_at = (
                sum(entry.stat(follow_symlinks=False).st_size for entry in entries),
                results,
            )
        if table is not None and not os.fstat(table.descriptor).st_nlink:
            # Somebody has removed it.
            return 0
        system = os.statvfs(self._samples)
        return min(self._capacity - results - self._segments, system.f_bavail * system.f_frsize - LEFT_FREE)


# ---- in memory ---------------------------------------------------------------------------------------------------------


def _in_memory(name: Name, capacity: int, directory: Path) -> _Tier:
    """The tier in memory: who has it open says so in a directory, by the name of an empty file, and who comes later opens it at `/proc`."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    prefix = f"{_key(name)}.{_node()}."
    with _locked(directory / "lock", _OPEN_S, for_long=True):
        table, token = None, ""
        for path in directory.glob(f"{prefix}*"):
            *_, pid, number, held = path.name.split(".")
            place = f"/proc/{pid}/fd/{number}"
            if not _is_held(place, held):
                # Workers end without a word, so all are looked at.
                path.unlink(missing_ok=True)
            elif table is None:
                table, token = _joined(place, name), held
        if table is None:
            if name.table_end > capacity:
                raise OSError(errno.ENOSPC, f"{capacity} bytes have no room for a table of {name.samples} samples")
            token = secrets.token_hex(8)
            descriptor = os.memfd_create(_memory_name(token), os.MFD_CLOEXEC)
            with _closing(descriptor):
                table = Table.make(descriptor, name, capacity)
        holder = directory / f"{prefix}{os.getpid()}.{table.descriptor}.{token}"
        holder.touch(0o600)
    who = os.getpid()

    def leave() -> None:
        # A forked process has it open, too, but isn't who said so.
        if os.getpid() == who:
            with contextlib.suppress(OSError):
                holder.unlink()

    return _Tier("memory", table, f"/proc/self/fd/{table.descriptor}", lambda table: table.capacity - table.size, leave)


def _is_held(place: str, token: str) -> bool:
    """Whether a process has this memory open."""
    with contextlib.suppress(OSError):
        return str(Path(place).readlink()) == f"/memfd:{_memory_name(token)} (deleted)"
    return False


def _joined(place: str, name: Name) -> Table | None:
    """The memory that a process has open; None: it has just ended."""
    with contextlib.suppress(OSError, CorruptError):
        descriptor = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        with _closing(descriptor):
            return Table(descriptor, name)
    return None


def _memory_name(token: str) -> str:
    return f"foreload-results-{token}"


def _node() -> str:
    """This boot of this machine, as far as its processes see each other."""
    seen = Path("/proc/sys/kernel/random/boot_id").read_text() + str(Path("/proc/self/ns/pid").readlink())
    return hashlib.blake2b(seen.encode(), digest_size=8).hexdigest()


# ---- files and locks ---------------------------------------------------------------------------------------------------


def _key(name: Name) -> str:
    return hashlib.blake2b(name.text(), digest_size=16).hexdigest()


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    """Closes it if something fails."""
    try:
        yield
    except BaseException:
        os.close(descriptor)
        raise


@contextlib.contextmanager
def _locked(path: str | Path, longest_s: float, *, for_long: bool = False) -> Iterator[bool]:
    """Holds a lock; whether it could be had in time. It is an open file of its own, so threads and forked processes exclude each other, too.

    Args:
        path: A file, which is made; or memory.
        longest_s: How long to wait, in seconds.
        for_long: Whether not to have it is an error.

    Raises:
        OSError: The file can't be opened, or the lock couldn't be had.
    """
    how = 0 if str(path).startswith("/proc/") else os.O_CREAT | os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | how, 0o600)
    try:
        deadline = time.monotonic() + longest_s
        while not (is_locked := _try_lock(descriptor)) and time.monotonic() < deadline:
            time.sleep(0.0005)
        if not is_locked and for_long:
            raise OSError(errno.EBUSY, f"{path}: another process holds this lock")
        try:
            yield is_locked
        finally:
            # A child that was forked meanwhile has it open, too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# ---- for the command ---------------------------------------------------------------------------------------------------


def files_in(samples: Path) -> list[Path]:
    """The files of results in a disk tier's directory."""
    return sorted(
        path for path in (samples / DIRECTORY).glob("*.res") if _FILE.fullmatch(path.name) and not path.is_symlink()
    )


def describe(path: Path) -> dict[str, Any]:
    """What a file of results says of itself: `name`, `samples`, `kept`; or `damaged`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return described(descriptor)
        finally:
            os.close(descriptor)
    except (CorruptError, OSError) as error:
        return {"damaged": str(error)}


def clear(samples: Path) -> list[Path]:
    """Removes the files of results in a disk tier's directory.

    Args:
        samples: The tier's.

    Returns:
        Those that a process has open, which stay.

    Raises:
        OSError: One can't be removed, or another process held the directory's lock for long.
    """
    left = []
    files = files_in(samples)
    if not files:
        return []
    with _locked(samples / DIRECTORY / "lock", _OPEN_S, for_long=True):
        for path in files:
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    if _try_lock(descriptor):
                        path.unlink()
                    else:
                        left.append(path)
                finally:
                    os.close(descriptor)
    return left
