"""A reader of a range of its own, under the detectors of paper 003: what lies before its first checkpoint comes sooner with each pass."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from test_mmap_paper import detector, run
from test_mmap_run import PREAMBLE, files, lines, mounted, store

pytestmark = pytest.mark.needs("fuse")
__all__ = ["detector", "files", "mounted", "store"]

MIB = 1 << 20
PASSES = 16
#: The range begins behind a checkpoint and ends before the file does; the next checkpoint is some faults away.
BEGIN, FIRST, END = 4 * MIB + 500_000, 8 * MIB, 20 * MIB
#: Each pass begins with nothing in memory: neither mapped, nor in the page cache.
CODE = (
    PREAMBLE
    + f"""
import ctypes, json, os, time, zlib
import numpy as np
libc, fd = ctypes.CDLL(None, use_errno=True), os.open(sys.argv[1], os.O_RDONLY)
at, found, took = np.frombuffer(m, np.uint8).ctypes.data, [], []
for turn in range({PASSES}):
    assert libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(len(m)), 4) == 0, "MADV_DONTNEED"
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    begun, crc = time.perf_counter(), 0
    for part in range({BEGIN}, {END}, 1 << 16):
        crc = zlib.crc32(memoryview(m)[part : min(part + (1 << 16), {END})], crc)
        if part < {FIRST} <= part + (1 << 16):
            took.append(time.perf_counter() - begun)
    found.append(crc)
assert len(set(found)) == 1
print(json.dumps(took))
"""
)


def test_the_first_part_of_a_range_is_waited_for_in_the_first_passes_only(
    store: Path, tmp_path: Path, detector: str
) -> None:
    stats = tmp_path / "stats"
    done = run(
        CODE,
        store / "plain.bin",
        pattern="*.bin",
        detector=detector,
        stats=stats,
        distance=4 * MIB,
        size=16 * MIB,
    )
    assert done.returncode == 0, done.stderr
    took = json.loads(done.stdout)
    assert took[0] > 2 * statistics.median(took[-6:]), took
    (line,) = lines(stats)
    # Three checkpoints in each pass, and the moved one in those in which it lay in the range.
    assert 3 * PASSES + 8 <= line["traps"] <= 4 * PASSES, line
