"""How a file is read when it is mapped: what a fault brings, and how long it takes, as measured and not as the file system's name suggests."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Places that are looked at, and of them those that are read; each costs the store a read.
_LOOKED_AT, _READ = 64, 8
#: A page that comes sooner was there.
_AT_ONCE_S = 20e-6
#: What reading takes at most, seconds.
_PATIENCE_S = 2.0
#: The kernel's own default.
_USUAL_WINDOW = 128 << 10


@dataclass(frozen=True)
class Probe:
    """What was found out of a file.

    Attributes:
        window_bytes: What the kernel reads ahead on its device.
        device: Where that is set; None: the kernel doesn't say, and its own default is assumed.
        cached: The share of the file that is in the page cache, of some places looked at.
        latency_s: What reading a page takes that isn't there, the median of some; None: all that were looked at are there.
    """

    window_bytes: int
    device: Path | None
    cached: float
    latency_s: float | None

    @property
    def faulting_bytes_per_s(self) -> float | None:
        """What a program gets that touches the file from its first byte to its last, one fault after the other."""
        return None if not self.latency_s else self.window_bytes / self.latency_s


def probe(path: Path, sys: Path = Path("/sys/class/bdi")) -> Probe:
    """Looks at a file; some single pages of it are read.

    Args:
        path: A file.
        sys: Where the kernel tells of devices; for tests.

    Raises:
        OSError: It can't be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Else a read of one page brings those behind it, too.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        stat = os.fstat(fd)
        said = sys / f"{os.major(stat.st_dev)}:{os.minor(stat.st_dev)}" / "read_ahead_kb"
        try:
            device, window = said, int(said.read_text()) * 1024 or _PAGE
        except (OSError, ValueError):
            device, window = None, _USUAL_WINDOW
        pages = -(-stat.st_size // _PAGE)
        # Spread over it, the same ones each time.
        places = range(0, pages, max(1, pages // _LOOKED_AT))
        absent = [page for page in places if not _is_there(fd, page)]
        took: list[float] = []
        until = time.monotonic() + _PATIENCE_S
        for page in tuple(absent):
            begun = time.perf_counter()
            os.pread(fd, 1, page * _PAGE)
            took.append(time.perf_counter() - begun)
            if took[-1] < _AT_ONCE_S:
                # The kernel said "not at once" of a page that is there.
                took.pop()
                absent.remove(page)
            if len(took) == _READ or time.monotonic() > until:
                break
    finally:
        os.close(fd)
    cached = 1 - len(absent) / len(places) if places else 1.0
    return Probe(window, device, cached, statistics.median(took) if took else None)


def _is_there(fd: int, page: int) -> bool:
    try:
        return os.preadv(fd, [bytearray(1)], page * _PAGE, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
    except OSError:
        # A file system that can't say it.
        return False
