"""A mount while all around it fails: its server, its agent, its own program. No wrong byte, no wait without an end, and what isn't there is said."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket

from foreload._mount import program
from foreload._node import agent as _agent
from mounting import digest, fails_with, mounted, objects, put

pytestmark = pytest.mark.needs("fuse")

MIB = 1 << 20
SETS = ["small:60x30000", "large:2x30000000"]
#: What a read may take at most, with `timeout_s` of two: the store's time, a reader's, and another agent's start.
PATIENCE_S = 25.0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def served(directory: Path, port: int) -> Iterator[Bucket]:
    """A server whose objects outlive it."""
    with Bucket(profile="fast", directory=directory, options=["--port", str(port)]) as store:
        yield store


def read(paths: list[Path], expected: dict[str, str], root: Path, longest: list[float]) -> set[int]:
    """Reads files over and over, whatever fails; the numbers of what failed. Bytes that come must be right."""
    failed = set()
    for path in paths:
        begun = time.monotonic()
        try:
            found = path.read_bytes()
        except OSError as error:
            failed.add(error.errno or 0)
        else:
            assert digest(found) == expected[str(path.relative_to(root))], path
        longest.append(time.monotonic() - begun)
    return failed


def test_a_server_that_is_killed_and_comes_back_is_read_on_from(home: Any, tmp_path: Path) -> None:
    port, directory = free_port(), tmp_path / "store"
    dice = random.Random(1)
    with served(directory, port) as store:
        for nth in range(40):
            put(store, f"small/{nth:02}", dice.randbytes(30_000))
        for nth in range(2):
            put(store, f"large/{nth}", dice.randbytes(30_000_000))
        expected = {key: digest(body) for key, body in objects(store).items()}
        with mounted(home, store, timeout_s=2.0, ttl_s=3600.0) as target:
            keys = sorted(expected)
            assert sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()) == keys
            begun = (target / "large/0").open("rb", buffering=0)
            first = begun.read(MIB)
            os.kill(store.pid, signal.SIGKILL)
            # What is here is read, the rest fails in time; nothing is said to be missing.
            longest: list[float] = []
            failed = read([target / key for key in keys[-5:]], expected, target, longest)
            assert failed == {errno.EIO}
            assert max(longest) < PATIENCE_S
            assert f"{keys[-1]}" in (home.cache_dir / "mount.log").read_text()
            with served(directory, port):
                deadline = time.monotonic() + PATIENCE_S
                while read([target / keys[-1]], expected, target, longest) and time.monotonic() < deadline:
                    time.sleep(0.2)
                assert read([target / key for key in keys], expected, target, longest) == set()
                rest = begun.read()
                while piece := begun.read():
                    rest += piece
                assert digest(first + rest) == expected["large/0"]
                begun.close()


@pytest.mark.parametrize(
    ("faults", "fails"),
    [
        ([{"kind": "status", "status": 503, "share": 0.5, "attempts": 3}], False),
        ([{"kind": "truncate", "share": 0.3, "at": 0.5, "attempts": 2}], False),
        ([{"kind": "reset", "share": 0.3, "attempts": 2}], False),
        ([{"kind": "slow", "share": 0.3, "delay_ms": 400}], False),
        ([{"kind": "status", "status": 503}], True),
        ([{"kind": "hang"}], True),
        ([{"kind": "stall", "at": 0.5}], True),
    ],
    ids=["storm", "cut", "reset", "slow", "always 503", "hangs", "stalls"],
)
def test_what_comes_is_right_and_what_does_not_fails_in_time(
    home: Any, faults: list[dict[str, Any]], fails: bool
) -> None:
    with Bucket(profile="fast", synthetic=SETS) as store:
        expected = {key: digest(body) for key, body in objects(store).items()}
        with mounted(home, store, timeout_s=2.0 if fails else 30.0) as target:
            paths = [path for path in target.rglob("*") if path.is_file()]
            for fault in faults:
                store.add_fault(**{**fault, "on": ["get"]})
            longest: list[float] = []
            with ThreadPoolExecutor(4) as pool:
                parts = [(paths[:4] if fails else paths)[nth::4] for nth in range(4)]
                failed = set().union(*pool.map(lambda part: read(part, expected, target, longest), parts))
            assert failed == ({errno.EIO} if fails else set())
            assert max(longest) < PATIENCE_S
            store.clear_faults()
            deadline = time.monotonic() + PATIENCE_S
            while read(paths, expected, target, longest) and time.monotonic() < deadline:
                time.sleep(0.2)
            assert read(paths, expected, target, longest) == set()


def test_a_slow_drip_is_read_and_ends(home: Any) -> None:
    """A byte now and then is no reason to wait for ever, nor to give up what comes."""
    with Bucket(profile="fast", synthetic=["small:8x60000"]) as store:
        expected = {key: digest(body) for key, body in objects(store).items()}
        with mounted(home, store, timeout_s=2.0) as target:
            paths = [path for path in target.rglob("*") if path.is_file()]
            # A file in ten minutes, a kibibyte at a time.
            store.set_profile({"connection_bytes_per_s": 100, "piece_bytes": 1024})
            longest: list[float] = []
            with ThreadPoolExecutor(4) as pool:
                failed = set().union(*pool.map(lambda path: read([path], expected, target, longest), paths[:4]))
            assert failed == {errno.EIO}
            assert max(longest) < PATIENCE_S
            store.set_profile({"connection_bytes_per_s": 0, "piece_bytes": 65536})
            deadline = time.monotonic() + PATIENCE_S
            while read(paths, expected, target, longest) and time.monotonic() < deadline:
                time.sleep(0.2)
            assert read(paths, expected, target, longest) == set()


def test_an_agent_that_is_killed_again_and_again_costs_no_byte(home: Any) -> None:
    with Bucket(profile="fast", synthetic=SETS) as store:
        expected = {key: digest(body) for key, body in objects(store).items()}
        store.set_profile({"first_byte_ms": 20})
        with mounted(home, store, allow_write=True) as target:
            paths = [target / key for key in expected]
            is_over, longest = threading.Event(), []

            def kill() -> None:
                while not is_over.wait(1.0):
                    with contextlib.suppress(Exception):
                        os.kill(_agent.connect(str(home.cache_dir)).pid, signal.SIGKILL)

            killing = threading.Thread(target=kill)
            killing.start()
            written = random.Random(2).randbytes(20_000_000)
            try:
                failed: set[int] = set()
                for nth in range(6):
                    # Who writes has nothing of the agent.
                    (target / f"written-{nth}").write_bytes(written)
                    for path in paths:
                        with path.open("rb") as file:
                            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    with ThreadPoolExecutor(4) as pool:
                        failed |= set().union(
                            *pool.map(
                                lambda part: read(part, expected, target, longest), [paths[k::4] for k in range(4)]
                            )
                        )
            finally:
                is_over.set()
                killing.join()
            assert failed == set()
            assert max(longest) < PATIENCE_S
        assert all(objects(store)[f"written-{nth}"] == written for nth in range(6))


WRITER = """
import os, sys
from pathlib import Path
root, nth = Path(sys.argv[1]), 0
while True:
    (root / f"w{nth}").write_bytes(bytes([nth % 256]) * 7_000_000)
    print(nth, flush=True)
    nth += 1
"""


def test_a_mount_that_is_killed_while_files_are_written_leaves_whole_ones_and_is_mounted_again(
    home: Any, tmp_path: Path
) -> None:
    with Bucket(profile="fast", synthetic=["small:3x30000"]) as store:
        target = home.cache_dir / "killed"
        target.mkdir(parents=True)
        words = [
            sys.executable,
            "-m",
            "foreload",
            "mount",
            "s3://bench",
            str(target),
            "--allow-write",
            "--part",
            "5MiB",
        ]
        environment = dict(os.environ) | store.environment()
        closed = -1
        for attempt in range(3):
            subprocess.run(words, env=environment, check=True, capture_output=True, timeout=60)
            pid = program._program_of(str(target))
            assert pid is not None
            code = textwrap.dedent(WRITER)
            writer = subprocess.Popen([sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE, text=True)
            time.sleep(1.5 + attempt / 3)
            os.kill(pid, signal.SIGKILL)
            assert writer.stdout is not None
            numbers = [int(line) for line in writer.stdout]
            # It hears of it, and isn't kept.
            assert writer.wait(timeout=20) != 0
            closed = max([closed, *numbers])
            assert fails_with(lambda: list(target.iterdir())) == errno.ENOTCONN
            program.unmount(str(target))
            assert not program.is_mounted(str(target))
            found = objects(store)
            # Whatever was closed is there whole, and of the rest nothing.
            for nth in range(closed + 1):
                assert found[f"w{nth}"] == bytes([nth % 256]) * 7_000_000
            assert all(len(body) == 7_000_000 for key, body in found.items() if key.startswith("w"))
        assert closed >= 0
