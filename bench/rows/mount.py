"""A bucket as a directory: large objects and small ones, cold and warm, beside the yardstick, s3fs as paper 004 tuned it, and other mounts as they are.

Mount, agent and reader share the client's CPU, as the yardstick does. Each cold run has a mount and caches of its own.

    python -m bench.rows.mount READER PATHS ...     reads the files that are named, and says what it took
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.registry import Result

if TYPE_CHECKING:
    from bench.stage import Bucket, Stage

#: What a reader asks for at a time.
PIECE = 1 << 20
#: Paper 004's chunk.
PAPER_CHUNK = 52_000_000
#: The profile `cloud`, and what a node gets of a bucket at least where its CPU has something else to do.
CLOUD = {
    "first_byte_ms": 30.0,
    "first_byte_sigma": 0.3,
    "connection_bytes_per_s": 35_000_000,
    "connect_ms": 30.0,
}
LINK = 300_000_000
#: Readers of small files at once: a loader's workers.
WORKERS = 4
#: Names of the bound on memory, and what they may take.
NAMES = 100_000


# -- the reader ------------------------------------------------------------------------------------------------------


def _whole(path: str, buffer: bytearray) -> int:
    """Reads a file to its end."""
    found = 0
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (ten thousand of them)
        while count := file.readinto(buffer):
            found += count
    return found


def one(paths: list[str]) -> int:
    """One file after the other."""
    buffer = bytearray(PIECE)
    return sum(_whole(path, buffer) for path in paths)


def several(paths: list[str]) -> int:
    """All of them at once."""
    with ThreadPoolExecutor(len(paths)) as pool:
        return sum(pool.map(lambda path: _whole(path, bytearray(PIECE)), paths))


def small(paths: list[str]) -> int:
    """Small ones in this order, by a few readers."""
    given = iter(paths)

    def some(_: int) -> int:
        buffer = bytearray(PIECE)
        return sum(_whole(path, buffer) for path in given_each())

    def given_each() -> Iterator[str]:
        while (path := next(given, None)) is not None:
            yield path

    with ThreadPoolExecutor(WORKERS) as pool:
        return sum(pool.map(some, range(WORKERS)))


def told(paths: list[str]) -> int:
    """The same, and the mount is told before."""
    import foreload.mount

    foreload.mount.hint(paths)
    return small(paths)


READERS: dict[str, Callable[[list[str]], int]] = {"one": one, "several": several, "small": small, "told": told}


def main(reader: str, listed: str) -> None:
    """Reads, and says so."""
    import foreload.mount  # noqa: F401 (before the clock starts)

    paths = Path(listed).read_text().splitlines()
    # The first one is read by name alone, so that what a first look costs is there for all.
    begun = time.perf_counter()
    found = READERS[reader](paths)
    print(json.dumps({"seconds": time.perf_counter() - begun, "bytes": found}), flush=True)


# -- the row ---------------------------------------------------------------------------------------------------------


class _Rig:
    """Mounts of one bucket."""

    def __init__(self, stage: Stage, bucket: Bucket) -> None:
        self.stage, self.bucket = stage, bucket
        #: Mounts of others that failed, and how.
        self.failures: dict[str, str] = {}

    @contextmanager
    def mounted(self, prefix: str, **fields: Any) -> Iterator[Path]:
        """Ours."""
        from bench.stage import options_of

        target = self.stage.directory()
        with self.stage.surroundings() as environment:
            command = [sys.executable, "-m", "foreload", "mount", f"s3://bench/{prefix}", str(target), "--json"]
            for name, value in {**options_of(self.bucket)}.items():
                command += ["-o", f"{name}={value}"]
            for name, value in fields.items():
                command += [f"--{name}", str(value)]
            said = subprocess.run(
                self.stage.pinned(*command), env=environment, capture_output=True, text=True, check=False
            )
            if said.returncode != 0:
                raise RuntimeError(f"foreload mount: {said.stderr.strip()}")
            self.pid, self.environment = int(json.loads(said.stdout)["pid"]), environment
            try:
                yield target
            finally:
                ended = [sys.executable, "-m", "foreload", "unmount", str(target)]
                subprocess.run(ended, env=environment, check=False, capture_output=True)

    @contextmanager
    def by(self, name: str, prefix: str) -> Iterator[Path]:
        """Somebody else's."""
        target = self.stage.directory()
        command, given = OTHERS[name](self, prefix, str(target))
        self.environment = {**self.stage.environment(self.stage.directory()), **given}
        # rclone refuses all requests where that is set, also those without TLS.
        self.environment.pop("AWS_CA_BUNDLE", None)
        said = subprocess.run(
            self.stage.pinned(*command), env=self.environment, check=False, capture_output=True, text=True
        )
        if said.returncode != 0:
            raise RuntimeError(f"{name}: {(said.stderr + said.stdout).strip()[:500]}")
        try:
            yield target
        finally:
            subprocess.run(["umount", str(target)], check=False, capture_output=True)

    def read(self, reader: str, paths: list[Path]) -> float:
        """Bytes per second."""
        listed = self.stage.directory() / "paths"
        listed.write_text("".join(f"{path}\n" for path in paths))
        command = [sys.executable, "-m", "bench.rows.mount", reader, str(listed)]
        said = subprocess.run(
            self.stage.pinned(*command), env=self.environment, capture_output=True, text=True, check=False, timeout=600
        )
        if said.returncode != 0:
            raise RuntimeError(f"{reader}: {said.stderr.strip()[-2000:]}")
        found = json.loads(said.stdout)
        return float(found["bytes"] / found["seconds"])

    def tried(self, name: str, prefix: str, reader: str, files: Callable[[Path], list[Path]]) -> float | None:
        """The rate by somebody else's mount; None where it fails, which is said, and where it isn't here."""
        if shutil.which(PROGRAMS[name]) is None:
            return None
        try:
            with self.by(name, prefix) as target:
                return self.read(reader, files(target))
        except (RuntimeError, OSError) as error:
            self.failures[name] = str(error).strip().splitlines()[-1]
            return None

    def stats(self, target: Path) -> dict[str, int]:
        """What the mount says of itself."""
        found: dict[str, int] = json.loads((target / ".foreload" / "stats").read_text())
        return found

    def gets(self) -> int:
        """GETs of objects so far."""
        return int(self.bucket.counters()["requests"].get("get", 0))

    def requests(self) -> int:
        """Requests so far."""
        return int(sum(self.bucket.counters()["requests"].values()))


def _s3fs(rig: _Rig, prefix: str, target: str) -> tuple[list[str], dict[str, str]]:
    """With paper 004's chunk and connections."""
    bucket, keys = rig.bucket, rig.stage.directory() / "keys"
    keys.write_text(f"{bucket.access_key}:{bucket.secret_key}\n")
    keys.chmod(0o600)
    options = [
        f"passwd_file={keys}",
        f"url={bucket.endpoint}",
        "use_path_request_style",
        f"endpoint={bucket.region}",
        "parallel_count=20",
        "multipart_size=52",
        "max_stat_cache_size=100000",
        "stat_cache_expire=900",
    ]
    return ["s3fs", f"bench:/{prefix}", target, *(word for each in options for word in ("-o", each))], {}


def _rclone(rig: _Rig, prefix: str, target: str) -> tuple[list[str], dict[str, str]]:
    """As it is, but for checksums."""
    given = {
        "RCLONE_CONFIG_B_TYPE": "s3",
        "RCLONE_CONFIG_B_PROVIDER": "Other",
        "RCLONE_CONFIG_B_ENDPOINT": rig.bucket.endpoint,
        "RCLONE_CONFIG_B_ACCESS_KEY_ID": rig.bucket.access_key,
        "RCLONE_CONFIG_B_SECRET_ACCESS_KEY": rig.bucket.secret_key,
        "RCLONE_CONFIG_B_REGION": rig.bucket.region,
    }
    # The ETags of synthetic objects look like an MD5 and are none; times are asked for one by one otherwise.
    given_too = ["--daemon", "--read-only", "--no-checksum", "--use-server-modtime"]
    return ["rclone", "mount", f"b:bench/{prefix}", target, *given_too], given


def _mountpoint(rig: _Rig, prefix: str, target: str) -> tuple[list[str], dict[str, str]]:
    place = ["--endpoint-url", rig.bucket.endpoint, "--force-path-style", "--region", rig.bucket.region]
    return ["mount-s3", "bench", target, "--prefix", f"{prefix}/", *place], _keys(rig)


def _geesefs(rig: _Rig, prefix: str, target: str) -> tuple[list[str], dict[str, str]]:
    place = ["--endpoint", rig.bucket.endpoint, "--region", rig.bucket.region]
    return ["geesefs", *place, f"bench:{prefix}", target], _keys(rig)


def _keys(rig: _Rig) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": rig.bucket.access_key, "AWS_SECRET_ACCESS_KEY": rig.bucket.secret_key}


#: Mounts of others: a command, and its environment.
OTHERS: dict[str, Callable[[_Rig, str, str], tuple[list[str], dict[str, str]]]] = {
    "s3fs": _s3fs,
    "rclone": _rclone,
    "Mountpoint": _mountpoint,
    "geesefs": _geesefs,
}
PROGRAMS = {"s3fs": "s3fs", "rclone": "rclone", "Mountpoint": "mount-s3", "geesefs": "geesefs"}


def _files(target: Path) -> list[Path]:
    return sorted(path for path in target.rglob("*") if path.is_file())


def _local(stage: Stage, rig: _Rig, size: int, readers: int) -> float:
    """A file of this machine, in its page cache."""
    place = stage.directory() / "file"
    with place.open("wb") as file:
        for _ in range(-(-size // PIECE)):
            file.write(os.urandom(PIECE))
    rig.environment = stage.environment(stage.directory())
    rig.read("one", [place])
    found = rig.read("several" if readers > 1 else "one", [place] * readers)
    place.unlink()
    return found


def mount(stage: Stage) -> Result:
    """All that paper 004 shows of a mount, and small files in an order that is known."""
    result = Result(invalid=stage.gated())
    large, middle = stage.amount(1_000_000_000, 50_000_000), stage.amount(200_000_000, 20_000_000)
    count = stage.amount(10_000, 500)
    rules = [f"one:1x{large}", f"five:5x{middle}", f"w1:{count}x60000-160000", f"open:{count // 3}x323000"]
    found: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    with stage.bucket(*rules) as bucket:
        rig = _Rig(stage, bucket)
        for _ in range(stage.pairs):
            _large(stage, rig, large, middle, rules, add)
            _requests(stage, rig, middle, add)
            _small(stage, rig, "w1", "small files", add)
            # As large as those of OpenImages that RetinaNet is trained with.
            _small(stage, rig, "open", "files of 323 KB", add)
        result.notes = [f"{name} failed: {why}" for name, why in rig.failures.items()]
    _names(stage, add)
    for name, values in found.items():
        result.read(name, *values, unit="MB/s" if name.startswith("rate of") else "")
    from bench.rows.throughput import settings_of

    result.settings = settings_of(
        stage,
        data=", ".join(rules),
        yardstick="parts of 8 MiB over 64 connections into memory that was written before; one connection the same",
        reader=f"{PIECE >> 20} MiB at a time into one buffer; several files at once by a thread each; small files by {WORKERS} threads",
        s3fs="parallel_count=20, multipart_size=52, max_stat_cache_size=100000, as in paper 004",
        versions={name: _version(program) for name, program in PROGRAMS.items()},
    )
    return result


def _version(name: str) -> str:
    if shutil.which(name) is None:
        return "not here"
    said = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
    return (said.stdout + said.stderr).strip().splitlines()[0]


def _large(
    stage: Stage, rig: _Rig, large: int, middle: int, rules: list[str], add: Callable[[str, float], None]
) -> None:
    def bare(rule: str, connections: int) -> float:
        options = [f"--synthetic={rule}", f"--part={8 << 20}", f"--connections={connections}"]
        return float(stage.bare("get", *options, bucket=rig.bucket)["mb_per_s"] * 1e6)

    yard, single = bare(rules[0], 64), bare(rules[0], 1)
    add("rate of the yardstick, 1 GB", yard / 1e6)
    add("rate of one connection", single / 1e6)
    with rig.mounted("one") as target:
        files = _files(target)
        ours = rig.read("one", files)
        add("rate of the mount, 1 GB", ours / 1e6)
        add(
            "1 GB, cold: mount / the smaller of 15x one connection and 0.85 of the yardstick",
            ours / min(15 * single, 0.85 * yard),
        )
        add("1 GB, cold: mount / yardstick", ours / yard)
        _warm(stage, rig, files, "warm", add)
    _copied(stage, rig, large, add)
    yard = bare(rules[1], 64)
    with rig.mounted("five") as target:
        add("five of 200 MB, cold: mount / yardstick", rig.read("several", _files(target)) / yard)
    # What a node gets of a bucket is less than its CPU could take, often.
    rig.bucket.set_profile(CLOUD | {"total_bytes_per_s": LINK})
    yard = bare(rules[1], 64)
    with rig.mounted("five") as target:
        add(
            f"five of 200 MB, cold, {LINK / 1e6:.0f} MB/s in all: mount / yardstick",
            rig.read("several", _files(target)) / yard,
        )
    rig.bucket.set_profile("cloud")
    with rig.mounted("five") as target:
        adaptive = rig.read("one", _files(target)[:1])
    with rig.mounted("five", chunk=PAPER_CHUNK) as target:
        fixed = rig.read("one", _files(target)[:1])
    add("200 MB, cold: chunks by size / chunks of 52 MB", adaptive / fixed)
    with rig.mounted("one", preset="paper", ram="1300MB") as target:
        add("rate of the mount with the paper's chunks, 1 GB", rig.read("one", _files(target)) / 1e6)
    for name in OTHERS:
        theirs = rig.tried(name, "one", "one", _files)
        if theirs is not None:
            add(f"1 GB, cold: mount / {name}", ours / theirs)
            add(f"rate of {name}, 1 GB", theirs / 1e6)


def _copied(stage: Stage, rig: _Rig, size: int, add: Callable[[str, float], None]) -> None:
    """The same of a copy."""
    with ExitStack() as stack:
        try:
            target = stack.enter_context(rig.mounted("one", copies=f"{stage.directory()}:{2 * size}"))
        except RuntimeError as error:
            # The kernel, the directory's file system and who runs this have to allow it.
            rig.failures["a mount with copies"] = str(error)
            return
        files = _files(target)
        rig.read("one", files)
        until = time.monotonic() + 120
        while rig.stats(target)["copies"] == 0:
            if time.monotonic() > until:
                raise RuntimeError("1 GB isn't copied within two minutes")
            time.sleep(0.1)
        reads = rig.stats(target)["reads"]
        _warm(stage, rig, files, "warm, a copy", add)
        add("1 GB, warm, a copy: reads that came to the mount", rig.stats(target)["reads"] - reads)


def _warm(stage: Stage, rig: _Rig, files: list[Path], how: str, add: Callable[[str, float], None]) -> None:
    """What is in the page cache, beside a local file that is."""
    size = files[0].stat().st_size
    for readers, name in ((1, "one reader"), (4, "four readers")):
        # What isn't in the page cache by now is there the second time.
        rig.read("one", files)
        warm = rig.read("several" if readers > 1 else "one", files * readers)
        environment = rig.environment
        local = _local(stage, rig, size, readers)
        rig.environment = environment
        add(f"1 GB, {how}, {name}: mount / local page cache", warm / local)


def _requests(stage: Stage, rig: _Rig, middle: int, add: Callable[[str, float], None]) -> None:
    chunk = stage.amount(PAPER_CHUNK, 3_000_000)
    with rig.mounted("five", chunk=chunk) as target:
        files = _files(target)[:1]
        before = rig.gets()
        rig.read("one", files)
        add("a fixed chunk: GETs more than chunks", rig.gets() - before - -(-middle // chunk))
        before = rig.requests()
        rig.read("one", files)
        add("the second read: requests", rig.requests() - before)
    with rig.mounted("w1") as target:
        subprocess.run(["ls", "-l", str(target)], check=True, capture_output=True)
        before = rig.requests()
        subprocess.run(["ls", "-l", str(target)], check=True, capture_output=True)
        add("the second `ls -l` of 10,000 objects: requests", rig.requests() - before)


def _small(stage: Stage, rig: _Rig, prefix: str, what: str, add: Callable[[str, float], None]) -> None:
    from bench.client import Job
    from bench.rows.throughput import rate
    from bench.stage import options_of

    loader = rate(Job(f"s3://bench/{prefix}", options_of(rig.bucket)), stage, [], of="bytes")
    add(f"rate of the loader, {what}", loader / 1e6)
    for reader, name in (("told", "order told"), ("small", "order not told")):
        with rig.mounted(prefix) as target:
            files = _files(target)
            random.Random(5).shuffle(files)
            ours = rig.read(reader, files)
        add(f"rate of the mount, {what}, {name}", ours / 1e6)
        add(f"{what}, {name}: mount / loader", ours / loader)
    if prefix != "w1":
        return
    for other in OTHERS:
        theirs = rig.tried(other, prefix, "small", _some)
        if theirs is not None:
            add(f"{what}, order not told: mount / {other}", ours / theirs)
            add(f"rate of {other}, {what}, order not told", theirs / 1e6)


def _some(target: Path) -> list[Path]:
    """A tenth of them, of which each is known by then, and the others only by name: a mount that keeps no names would be asked for ten minutes."""
    files = sorted(Path(place, name) for place, _, names in os.walk(target) for name in names)
    random.Random(5).shuffle(files)
    return [path for path in files[: len(files) // 10] if path.is_file()]


def _names(stage: Stage, add: Callable[[str, float], None]) -> None:
    """What names take: a mount that has listed them, less one that has listed none."""
    count = stage.amount(NAMES, 2000)
    with stage.bucket(f"many:{count}x1000", "few:1x1000", profile="fast") as bucket:
        rig = _Rig(stage, bucket)
        resident = []
        for prefix in ("few", "many"):
            with rig.mounted(prefix) as target:
                subprocess.run(["ls", "-l", str(target)], check=True, capture_output=True)
                status = Path(f"/proc/{rig.pid}/status").read_text()
                resident.append(int(status.split("RssAnon:")[1].split()[0]) * 1024)
    add("memory of 100,000 names: MB", (resident[1] - resident[0]) / 1e6)


if __name__ == "__main__":
    main(*sys.argv[1:])
