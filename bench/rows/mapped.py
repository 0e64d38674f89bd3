"""Files that are mapped, on a slow store: by the kernel's read-ahead as it is, by a large window, and with their pages fetched ahead.

Each run has the store mounted anew, so that nothing is in memory, and programs of their own, which have imported what they need before the clock starts.
What the store was asked for is what its process has read.

    python -m bench.rows.mapped PROGRAM FILE WAY     one of the programs: it says `ready`, waits for a line, and says what it took
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.registry import Result

if TYPE_CHECKING:
    from bench.stage import Stage

DELAY_MS, REQUEST_MB_S, MB_S = 5.0, 100, 400.0
#: A store that answers at once, and of which the rate is the limit.
BOUND_MB_S = 150.0
RECORDS, RECORD_BYTES = 4_000, 196_608
#: What root may set instead, in KiB.
WIDE = 8192
#: What a bare reader asks for at a time, and how many of them at once.
PIECE, AT_ONCE = 1 << 20, 32


# -- programs --------------------------------------------------------------------------------------------------------


def order(pattern: str, count: int) -> list[int]:
    """Which records are read, one after the other."""
    steps = {"sequence": 1, "eighth": 8}
    if pattern in steps:
        return list(range(0, count, steps[pattern]))
    return random.Random(3).sample(range(count), count if pattern == "shuffled" else count // 16)


def _key(number: int) -> bytes:
    return b"%08d" % number


def weights(path: str, way: str) -> Callable[[], int]:
    """A model's weights, loaded and looked at."""
    import torch

    return _weights_summed(path, way, lambda tensor: tensor.sum(dtype=torch.int64))


def whole(path: str, way: str) -> Callable[[], int]:
    """The same, summed eight bytes at a time: a sum of single bytes takes longer than the store does."""
    import torch

    return _weights_summed(path, way, lambda tensor: tensor.view(torch.int64).sum())


def _weights_summed(path: str, way: str, summed: Callable[[Any], Any]) -> Callable[[], int]:
    from safetensors.torch import load_file

    import foreload.mmap

    def work() -> int:
        ahead = foreload.mmap.prefetch(path) if way == "ahead" else None
        found = sum(int(summed(tensor)) for tensor in load_file(path).values())
        if ahead is not None:
            ahead.stop()
        return found

    return work


def records(path: str, way: str) -> Callable[[], int]:
    """Records of an LMDB file, by their keys; the way is PATTERN-WAY."""
    # Before the clock starts.
    import lmdb  # noqa: F401

    import foreload.mmap  # noqa: F401

    def work() -> int:
        return _epochs(path, way)()

    return work


def again(path: str, way: str) -> Callable[[], int]:
    """The same records a second time in one mapping, when the kernel has taken back what was read."""
    epoch = _epochs(path, way)
    epoch()
    # What is fetched and looked at has come to rest.
    time.sleep(1.0)
    _take_back(path)
    return epoch


def _epochs(path: str, way: str) -> Callable[[], int]:
    """Opens the file; each call reads the records."""
    import lmdb

    import foreload.mmap

    pattern, _, how = way.partition("-")
    env = lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=how != "ahead")
    numbers: Any = order(pattern, env.stat()["entries"])
    if how == "ahead":
        numbers = foreload.mmap.wrap_sampler(numbers, path, _key)

    def epoch() -> int:
        with env.begin(buffers=True) as transaction:
            return sum(zlib.crc32(transaction.get(_key(number))) for number in numbers)

    return epoch


#: `MADV_PAGEOUT`.
_PAGEOUT = 21


def _take_back(path: str) -> None:
    """Has the kernel take back what this process has mapped of a file."""
    libc = ctypes.CDLL(None, use_errno=True)
    mapped = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(path)]
    (at, end), *more = [[int(part, 16) for part in each.split("-")] for each in mapped]
    assert not more, "it is mapped once"
    place, length = ctypes.c_void_p(at), ctypes.c_size_t(min(end - at, Path(path).stat().st_size))
    there = (ctypes.c_ubyte * -(-length.value // mmap.PAGESIZE))()
    fd = os.open(path, os.O_RDONLY)
    # Some pages leave the page table, and stay in memory until they are no longer wanted there.
    for _ in range(20):
        libc.madvise(place, length, _PAGEOUT)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        libc.mincore(place, length, there)
        left = sum(page & 1 for page in there)
        if left <= len(there) / 100:
            break
        time.sleep(0.2)
    else:
        raise RuntimeError(f"the kernel keeps {left} of {len(there)} pages of {path}")
    os.close(fd)


def bare(path: str, _: str) -> Callable[[], int]:
    """The file itself, past the page cache: what the store can bring."""

    def work() -> int:
        fd, size = os.open(path, os.O_RDONLY | os.O_DIRECT), Path(path).stat().st_size
        with ThreadPoolExecutor(AT_ONCE) as pool:
            read = sum(pool.map(lambda at: os.preadv(fd, [mmap.mmap(-1, PIECE)], at), range(0, size, PIECE)))
        os.close(fd)
        return int(read == size)

    return work


PROGRAMS = {"weights": weights, "whole": whole, "records": records, "again": again, "bare": bare}


def main(program: str, path: str, way: str) -> None:
    """Runs one of the programs."""
    work = PROGRAMS[program](path, way)
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.perf_counter()
    found = work()
    print(json.dumps({"seconds": time.perf_counter() - begun, "found": found}), flush=True)


# -- the row ---------------------------------------------------------------------------------------------------------


class _Rig:
    """The files, and a store that is mounted for each run."""

    def __init__(self, stage: Stage) -> None:
        import lmdb
        import numpy as np
        import safetensors.numpy

        self.stage, self.files, self.home = stage, stage.directory(), stage.directory()
        # Always the same: an index is known by its file's path.
        self.target = stage.directory()
        #: What the preload library says of the last run, a line for each process.
        self.stats: list[dict[str, Any]] = []
        #: What the last run took the slowest of its processes, by what it says itself.
        self.loaded = 0.0
        self.environment = stage.environment(self.home)
        #: What all runs of the same work must find.
        self.found: dict[tuple[str, str], int] = {}
        tensors, each = 20, stage.amount(100_000_000, 5_000_000)
        dice = np.random.default_rng(1)
        safetensors.numpy.save_file(
            {f"layer.{n}": dice.integers(0, 255, each, dtype=np.uint8) for n in range(tensors)},
            self.files / "model.safetensors",
        )
        self.records = stage.amount(RECORDS, 400)
        with lmdb.open(str(self.files / "data.mdb"), subdir=False, map_size=1 << 31, lock=False) as env:
            for begin in range(0, self.records, 100):
                with env.begin(write=True) as transaction:
                    for number in range(begin, min(begin + 100, self.records)):
                        transaction.put(_key(number), dice.bytes(RECORD_BYTES))

    @contextmanager
    def mounted(self, wide: bool, bound: bool = False) -> Iterator[tuple[Path, Callable[[], int]]]:
        """The store, and what it has read so far."""
        from bench.stage import SlowFs

        target, options = self.target, ["--keep-cache", f"--request-mb-s={0 if bound else REQUEST_MB_S}"]
        delay_ms, mb_s = (0.0, BOUND_MB_S) if bound else (DELAY_MS, MB_S)
        with SlowFs(self.files, target, delay_ms=delay_ms, mb_s=mb_s, options=options) as store:
            if wide:
                device = target.stat().st_dev
                window = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
                window.write_text(str(WIDE))

            def read() -> int:
                said = Path(f"/proc/{store.pid}/io").read_text()
                return int(said.split("rchar: ")[1].split("\n")[0])

            yield target, read

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights' file."""
        return (self.files / "model.safetensors").stat().st_size

    def run(
        self,
        program: str,
        way: str,
        *,
        processes: int = 1,
        wide: bool = False,
        bound: bool = False,
        warm: bool | str = False,
        fresh: bool = False,
        window: int | None = None,
        outside: bool = False,
    ) -> tuple[float, float]:
        """Seconds until all processes are through, and bytes from the store.

        With `bound` from a store of which the rate is the limit, with `warm` of the second time on one mount (the first one by another way, where that is named), with `fresh` with an index made anew, with `window` under the preload library, which fetches no more than that ahead of a stream, and then with `outside` under `foreload attach` instead.
        """
        name = "data.mdb" if program in ("records", "again") else "model.safetensors"
        if fresh:
            for index in (self.home / "cache" / "indexes").glob("*"):
                index.unlink()
        with self.mounted(wide, bound) as (target, read):
            if warm:
                self._once(program, target / name, way if warm is True else warm, processes, window, outside)
            before = read()
            seconds = self._once(program, target / name, way, processes, window, outside)
            return seconds, float(read() - before)

    def _once(self, program: str, path: Path, way: str, processes: int, window: int | None, outside: bool) -> float:
        from foreload._mapped import preload

        stats = self.home / "stats"
        stats.write_text("")
        environment = self.environment
        if window is not None and not outside:
            environment = preload.environment([path.name], window=window, stats=stats, given=environment)
        command = [sys.executable, "-m", "bench.rows.mapped", program, str(path), way]
        running = [
            subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(processes)
        ]
        helpers = []
        try:
            for each in running:
                assert each.stdout is not None
                assert each.stdout.readline() == "ready\n", "it couldn't begin"
            if outside:
                helpers = [self._helper(each.pid, path, window, stats) for each in running]
            begun = time.perf_counter()
            for each in running:
                assert each.stdin is not None
                each.stdin.write("\n")
                each.stdin.flush()
            said = [each.communicate(timeout=300)[0] for each in running]
            seconds = time.perf_counter() - begun
        finally:
            for each in running:
                each.kill()
                each.wait()
            for helper in helpers:
                # It ends with the program.
                helper.wait()
        self.stats = [json.loads(line) for line in stats.read_text().splitlines()]
        found = {json.loads(line)["found"] for line in said}
        self.loaded = max(json.loads(line)["seconds"] for line in said)
        work = ("records", way.partition("-")[0]) if program in ("records", "again") else (program, "")
        expected = self.found.setdefault(work, min(found))
        if found != {expected}:
            raise RuntimeError(f"{program} {way}: read {found}, and before {expected}")
        return max(seconds, self.loaded) if processes > 1 else self.loaded

    def _helper(self, pid: int, path: Path, window: int | None, stats: Path) -> subprocess.Popen[str]:
        """`foreload attach`, at work."""
        command = [sys.executable, "-m", "foreload", "attach", str(pid), "--mmap", path.name, "--stats", str(stats)]
        stats.unlink(missing_ok=True)
        helper = subprocess.Popen(
            [*command, "--window", str(window or 0)],
            env=self.environment,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 60
        while not stats.exists():
            if helper.poll() is not None or time.monotonic() > until:
                helper.kill()
                raise RuntimeError("`foreload attach` didn't begin")
            time.sleep(0.01)
        return helper


def _store(rig: _Rig) -> dict[str, str]:
    """What is read, and from where."""
    return {
        "store": f"FUSE, {DELAY_MS:g} ms for each open and read, {REQUEST_MB_S} MB/s for each read and {MB_S:g} MB/s in all; mounted anew for each run; the kernel's window 128 KiB",
        "imports": "none counts; in results of 2026-11-28 those of records did, about 0.1 s",
        "index saved": "in results of 2026-11-28 it was made anew, for the store was mounted at another path",
        "data": f"{rig.weights_bytes / 1e6:.0f} MB of safetensors; an LMDB file of {rig.records:,} records of {RECORD_BYTES:,} bytes",
        "processes": "four begin together (in results before 146f6d5 one after the other), and it is until all have ended, which takes four processes with torch about a second; until all have loaded: as they say themselves, like the bare reader",
        "store's rate the limit": f"no delay, and {BOUND_MB_S:g} MB/s in all",
        "second epoch": "in the same mapping, when the kernel has taken its pages back",
    }


def _weights(
    rig: _Rig,
    add: Callable[[str, float], None],
    program: str,
    way: str,
    *,
    named: str,
    window: int | None = None,
) -> None:
    """Weights that one process loads, and four, by `way` and `window` against the kernel alone."""
    name = "prefetch" if way == "ahead" else "run"
    best = rig.run("bare", "bare")[0]
    for processes in (1, 4):
        what = f"{named}, {processes} process{'es' * (processes > 1)}"
        kernel = rig.run(program, "kernel", processes=processes)[0]
        wide = rig.run(program, "kernel", processes=processes, wide=True)[0]
        warm = rig.run(program, "kernel", processes=processes, warm=True)[0]
        ours, read = rig.run(program, way, processes=processes, window=window)
        add(f"{what}: bare read / {name}", best / ours)
        if processes > 1:
            # Beside it, as the bare reader's: without what processes with torch take to end.
            add(f"{what}, until all have loaded: bare read / {name}", best / rig.loaded)
        add(f"{what}: kernel / {name}", kernel / ours)
        add(f"{what}: 8 MiB window / {name}", wide / ours)
        # What is left of the time where all is in memory.
        add(f"{what}: warm / {name}", warm / ours)
        add(f"{what}: bytes fetched / file", read / rig.weights_bytes)


def mapped(stage: Stage) -> Result:
    """Weights that are loaded whole, and records in an order that is known."""
    result = Result()
    rig = _Rig(stage)
    readings: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        readings.setdefault(name, []).append(value)

    for _ in range(min(stage.pairs, 3)):
        _weights(rig, add, "weights", "ahead", named="weights")
        _weights(rig, add, "whole", "ahead", named="weights by eight bytes")
        for pattern, name in (("eighth", "every 8th record"), ("random", "random records")):
            useful = len(order(pattern, rig.records)) * RECORD_BYTES
            kernel = rig.run("records", f"{pattern}-kernel")[0]
            wide = rig.run("records", f"{pattern}-kernel", wide=True)[0]
            rig.run("records", f"{pattern}-ahead", fresh=True)
            ours, read = rig.run("records", f"{pattern}-ahead")
            first, _ = rig.run("records", f"{pattern}-ahead", fresh=True)
            add(f"{name}, index saved: kernel / known order", kernel / ours)
            add(f"{name}, index saved: 8 MiB window / known order", wide / ours)
            add(f"{name}, index included: kernel / known order", kernel / first)
            add(f"{name}, index included: 8 MiB window / known order", wide / first)
            add(f"{name}: bytes fetched / useful", read / useful)
        warm = rig.run("records", "random-kernel", warm=True)[0]
        add("random records, warm: known order / kernel", rig.run("records", "random-ahead", warm=True)[0] / warm)
        whole = rig.run("records", "shuffled-kernel", warm="shuffled-ahead")[0]
        all_ahead = rig.run("records", "shuffled-ahead", warm="shuffled-ahead")[0]
        add("all records in random order, warm: known order / kernel", all_ahead / whole)
        # The first of these has its index, too.
        first = rig.run("records", "random-ahead")[0]
        add("random records, second epoch: first / second", first / rig.run("again", "random-ahead")[0])
        bound = rig.run("whole", "kernel", bound=True)[0]
        add("weights, store's rate the limit: kernel / prefetch", bound / rig.run("whole", "ahead", bound=True)[0])
    for name, values in readings.items():
        result.read(name, *values)
    result.settings = {
        **_store(rig),
        "weights": "safetensors.torch.load_file, and the sum of each tensor, byte by byte or eight of them at a time; of four processes until the last is through",
        "records": f"one after the other by their keys, each with its CRC-32; of random ones {len(order('random', rig.records))}",
        "bare read": f"{AT_ONCE} threads, {PIECE >> 20} MiB each, O_DIRECT",
        "compared": "sums and checksums of all runs with each other",
    }
    return result


#: What the library reads ahead unless it is told something else.
_AHEAD = 32 << 20
#: Runs with and without detection alone.
_PAIRS = 20


def unmodified(stage: Stage) -> Result:
    """The same weights and records for programs that nobody has changed, under the preload library."""
    result = Result()
    rig = _Rig(stage)
    readings: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        readings.setdefault(name, []).append(value)

    for _ in range(min(stage.pairs, 3)):
        _weights(rig, add, "whole", "kernel", named="weights", window=_AHEAD)
        for pattern, name in (
            ("sequence", "records in order"),
            ("eighth", "every 8th record"),
            ("random", "random records"),
        ):
            useful = len(order(pattern, rig.records)) * RECORD_BYTES
            kernel, kernel_read = rig.run("records", f"{pattern}-kernel")
            wide = rig.run("records", f"{pattern}-kernel", wide=True)[0]
            ours, read = rig.run("records", f"{pattern}-kernel", window=_AHEAD)
            add(f"{name}: kernel / run", kernel / ours)
            add(f"{name}: 8 MiB window / run", wide / ours)
            add(f"{name}: bytes fetched / useful", read / useful)
            add(f"{name}: bytes fetched / by the kernel", read / kernel_read)
            ours, read = rig.run("records", f"{pattern}-kernel", window=_AHEAD, outside=True)
            add(f"{name}: kernel / attach", kernel / ours)
            add(f"{name}: bytes fetched by attach / useful", read / useful)
            add(f"{name}: attach's share of a core", rig.stats[0]["cpu_s"] / ours)
        warm = rig.run("records", "sequence-kernel", warm=True)[0]
        add(
            "records in order, warm: run / kernel",
            rig.run("records", "sequence-kernel", warm=True, window=_AHEAD)[0] / warm,
        )
        for pattern, name in (("sequence", "records in order"), ("eighth", "every 8th record")):
            first = rig.run("records", f"{pattern}-kernel", window=_AHEAD)[0]
            second = rig.run("again", f"{pattern}-kernel", window=_AHEAD)[0]
            add(f"{name}, second epoch: first / second", first / second)
            kernel = rig.run("records", f"{pattern}-kernel", bound=True)[0]
            ours = rig.run("records", f"{pattern}-kernel", bound=True, window=_AHEAD)[0]
            add(f"{name}, store's rate the limit: kernel / run", kernel / ours)
    _only_looked(rig, _PAIRS if stage.pairs > 1 else 2, add)
    for name, values in readings.items():
        result.read(name, *values)
    result.settings = {
        **_store(rig),
        "weights": "safetensors.torch.load_file, and the sum of each tensor as numbers of eight bytes; of four processes until the last is through",
        "run": f"the same program with the environment of `foreload run --mmap`, detector poll, a window of {_AHEAD >> 20} MiB",
        "attach": "`foreload attach` to the same program, begun before the file is mapped",
        "detection only": f"every 8th record with a window of 0, which looks each 10 ms; {_PAIRS} pairs in turn",
        "compared": "sums and checksums of all runs with each other",
    }
    return result


def _only_looked(rig: _Rig, pairs: int, add: Callable[[str, float], None]) -> None:
    """What looking alone costs."""
    differences = []
    for _ in range(pairs):
        kernel, kernel_read = rig.run("records", "eighth-kernel")
        seconds, read = rig.run("records", "eighth-kernel", window=0)
        differences.append(seconds - kernel)
        add("detection only: share of a core", rig.stats[0]["cpu_s"] / seconds)
        add("detection only: bytes fetched / by the kernel", read / kernel_read)
    mean, error = statistics.mean(differences), statistics.stdev(differences) / len(differences) ** 0.5
    add("detection only: its mean lies so many standard errors from 0", abs(mean) / error if error else 0.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
