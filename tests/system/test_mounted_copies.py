"""Copies that the kernel reads by itself: every byte is that of the object that is there, whoever opens, replaces, kills or fills the disk."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket

from foreload._mount import program
from foreload._mount.options import Options
from foreload.errors import ForeloadError, InvalidError
from mounting import digest, mounted, objects, put, requests, stats
from small import until

pytestmark = [pytest.mark.needs("fuse"), pytest.mark.needs("passthrough")]

MIB = 1 << 20


@pytest.fixture
def store() -> Iterator[Bucket]:
    """Files of which some are worth a copy."""
    with Bucket(profile="fast", synthetic=["small:20x1100", "large:3x25000000"]) as running:
        yield running


def copies_at(home: Any, size: str = "1GB") -> str:
    return f"{home.cache_dir / 'copies'}:{size}"


def names_of(home: Any) -> list[str]:
    return sorted(each.name for each in (home.cache_dir / "copies").iterdir() if each.name != "lock")


def copied(target: Path, count: int) -> None:
    until(lambda: stats(target)["copies"] == count, 30)


def let_go(path: Path) -> None:
    """The kernel forgets what it has of a file."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_a_file_that_was_read_is_read_by_the_kernel_alone_from_then_on(home: Any, store: Bucket) -> None:
    expected = objects(store)
    with mounted(home, store, copies=copies_at(home)) as target:
        paths = sorted((target / "large").iterdir())
        for path in [*paths, *(target / "small").iterdir()]:
            path.read_bytes()
        copied(target, 3)
        before, asked = stats(target), requests(store)
        for path in paths:
            assert digest(path.read_bytes()) == digest(expected[f"large/{path.name}"])
            let_go(path)
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                assert digest(mapped) == digest(expected[f"large/{path.name}"])
                assert os.pread(file.fileno(), 10, len(mapped) - 5) == expected[f"large/{path.name}"][-5:]
        after = stats(target)
        assert (after["reads"], after["chunks"]) == (before["reads"], before["chunks"])
        assert after["copies_opened"] - before["copies_opened"] == 9
        assert requests(store)["get"] == asked["get"]
    # They are there for the next mount, and the next one after a kill.
    for _ in range(2):
        with mounted(home, store, copies=copies_at(home)) as target:
            asked = requests(store)["get"]
            for path in sorted((target / "large").iterdir()):
                assert digest(path.read_bytes()) == digest(expected[f"large/{path.name}"])
            assert requests(store)["get"] == asked
            os.kill(stats(target)["pid"], signal.SIGKILL)
            program.unmount(str(target))


def test_what_was_read_in_part_is_not_fetched_to_be_copied(home: Any, store: Bucket) -> None:
    with mounted(home, store, copies=copies_at(home), ahead=0) as target:
        first, second, _ = sorted((target / "large").iterdir())
        with first.open("rb") as file:
            file.read(10 * MIB)
        second.read_bytes()
        copied(target, 1)
        asked = requests(store)["get"]
        first.open("rb").close()
        second.open("rb").close()
        assert requests(store)["get"] == asked
        assert len(names_of(home)) == 1


def test_an_object_that_is_replaced_is_read_anew_and_who_has_the_old_one_keeps_it(home: Any, store: Bucket) -> None:
    expected = objects(store)
    with mounted(home, store, copies=copies_at(home), ttl_s=0.2) as target:
        path = min((target / "large").iterdir())
        old = expected[f"large/{path.name}"]
        path.read_bytes()
        copied(target, 1)
        with path.open("rb") as reading:
            assert reading.read(1000) == old[:1000]
            for nth in range(3):
                new = random.Random(nth).randbytes(6 * MIB + nth)
                put(store, f"large/{path.name}", new)
                until(lambda new=new: digest(path.read_bytes()) == digest(new))
                reading.seek(0)
                assert digest(reading.read()) == digest(old)
        # Nobody has the old one any more, so what is there now is copied.
        until(lambda: digest(path.read_bytes()) == digest(new) and stats(target)["copied_bytes"] == len(new), 30)
        opened = stats(target)["copies_opened"]
        assert digest(path.read_bytes()) == digest(new)
        assert stats(target)["copies_opened"] == opened + 1
        assert len(names_of(home)) == 1


def test_who_has_a_file_open_that_gets_another_name_reads_on_and_so_does_who_comes(home: Any, store: Bucket) -> None:
    expected = objects(store)
    with mounted(home, store, copies=copies_at(home), allow_write=True) as target:
        path = min((target / "large").iterdir())
        body = expected[f"large/{path.name}"]
        path.read_bytes()
        copied(target, 1)
        with path.open("rb") as reading, mmap.mmap(reading.fileno(), 0, prot=mmap.PROT_READ) as pages:
            renamed = path.rename(target / "renamed")
            for _ in range(3):
                assert digest(renamed.read_bytes()) == digest(body)
            with renamed.open("rb") as other, mmap.mmap(other.fileno(), 0, prot=mmap.PROT_READ) as others:
                assert digest(others) == digest(pages) == digest(body)
            renamed.write_bytes(b"written anew")
            assert renamed.read_bytes() == b"written anew"
            assert digest(pages) == digest(reading.read()) == digest(body)
        assert renamed.read_bytes() == b"written anew"
        # Who writes on in a file that was copied meanwhile.
        with (target / "kept open").open("wb", buffering=0) as writing:
            new = random.Random(3).randbytes(6 * MIB)
            writing.write(new)
            os.fsync(writing.fileno())
            for _ in range(10):
                assert digest((target / "kept open").read_bytes()) == digest(new)
            with (target / "kept open").open("wb", buffering=0) as second:
                second.write(new[:1000])
            assert (target / "kept open").read_bytes() == new[:1000]


def test_copies_take_no_more_than_they_may_and_those_that_are_there_stay(home: Any, store: Bucket) -> None:
    expected = objects(store)
    with mounted(home, store, copies=copies_at(home, "60MB")) as target:
        paths, kept = sorted((target / "large").iterdir()), list[str]()
        for epoch in range(6):
            random.Random(epoch).shuffle(paths)
            for path in paths:
                assert digest(path.read_bytes()) == digest(expected[f"large/{path.name}"])
                # As who looks at the head first.
                path.open("rb").close()
            if epoch == 0:
                copied(target, 2)
                kept = names_of(home)
        assert names_of(home) == kept
        assert stats(target)["copied_bytes"] == 50_000_000
    # What is there already counts.
    with mounted(home, store, copies=copies_at(home, "30MB")) as target:
        assert stats(target)["copies"] == 1
        assert len(names_of(home)) == 1


def test_what_nobody_reads_any_more_makes_room(home: Any, store: Bucket) -> None:
    with mounted(home, store, copies=copies_at(home, "26MB")) as target:
        first, second, third = sorted((target / "large").iterdir())
        first.read_bytes()
        copied(target, 1)
        kept = names_of(home)

        def turns() -> bool:
            for path in (second, third):
                path.read_bytes()
            return names_of(home) != kept

        until(turns, 60)
        copied(target, 1)


def test_one_directory_is_one_mount_s(home: Any, store: Bucket) -> None:
    with mounted(home, store, copies=copies_at(home)):
        other = mounted(home, store, copies=copies_at(home), at="other")
        with pytest.raises(ForeloadError, match="another mount keeps its copies there"), other:
            pass
        with mounted(home, store, copies=f"{home.cache_dir / 'others'}:1GB", at="other"):
            pass


def test_what_is_no_whole_copy_is_not_read(home: Any, store: Bucket) -> None:
    expected = objects(store)
    place = home.cache_dir / "copies"
    with mounted(home, store, copies=copies_at(home)) as target:
        for path in (target / "large").iterdir():
            path.read_bytes()
        copied(target, 3)
        names = names_of(home)
        # While it runs, too.
        os.truncate(place / names[0], 1000)
        (place / names[1]).unlink()
        for path in (target / "large").iterdir():
            assert digest(path.read_bytes()) == digest(expected[f"large/{path.name}"])
        copied(target, 3)
    (place / names[2]).write_bytes(b"short")
    (place / f"{names[0].split('-')[0]}.new").write_bytes(b"unfinished")
    (place / "mine").write_bytes(b"somebody else's")
    digits = "0" * 32
    others = [f"{digits}-{digits}-5000000", f"{digits[1:]}1-{digits}-5000000"]
    (place / others[0]).mkdir()
    os.mkfifo(place / others[1])
    with mounted(home, store, copies=copies_at(home)) as target:
        assert stats(target)["copies"] == 2
        assert names_of(home) == sorted([names[0], names[1], "mine", *others])
        for path in (target / "large").iterdir():
            assert digest(path.read_bytes()) == digest(expected[f"large/{path.name}"])


@contextlib.contextmanager
def in_memory(place: Path, size: str) -> Iterator[None]:
    """A file system of a size."""
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "copies", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_copies_of_what_was_replaced_take_their_room_until_they_are_closed(home: Any, store: Bucket) -> None:
    place = home.cache_dir / "copies"

    def used() -> int:
        found = os.statvfs(place)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    with in_memory(place, "1200m"), mounted(home, store, copies=f"{place}:20MB", ttl_s=0.1) as target:
        path = target / "replaced"
        with contextlib.ExitStack() as held:
            bodies = [random.Random(nth).randbytes(8 * MIB - nth) for nth in range(6)]
            readers = []
            for body in bodies:
                put(store, "replaced", body)
                until(lambda body=body: digest(path.read_bytes()) == digest(body))
                # There is room for two.
                with contextlib.suppress(AssertionError):
                    until(lambda body=body: stats(target)["copied_bytes"] % len(body) == 0 and names_of(home), 2)
                readers.append(held.enter_context(path.open("rb")))
                assert used() <= 20_000_000
            # Those of before are read from a copy, or are gone.
            for reader, body in zip(readers, bodies, strict=True):
                with contextlib.suppress(OSError):
                    assert digest(reader.read()) == digest(body)
        until(lambda: path.read_bytes() == bodies[-1] and stats(target)["copied_bytes"] == len(bodies[-1]), 20)
        assert used() <= 10_000_000


def test_a_disk_that_is_full_costs_copies_and_nothing_else(home: Any, store: Bucket) -> None:
    expected = objects(store)
    place = home.cache_dir / "copies"
    with in_memory(place, "1081m"), mounted(home, store, copies=f"{place}:10GB") as target:
        for _ in range(3):
            for path in (target / "large").iterdir():
                assert digest(path.read_bytes()) == digest(expected[f"large/{path.name}"])
        until(lambda: stats(target)["copies"] >= 1, 30)
        # A gigabyte stays free.
        assert stats(target)["copies"] < 3
        free = os.statvfs(place)
        assert free.f_bavail * free.f_frsize >= 1 << 30


def at_once(file: Any, _chance: random.Random) -> bytes:
    found: bytes = file.read()
    return found


def mapped(file: Any, _chance: random.Random) -> bytes:
    with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as pages:
        # A mapping that lost its object ends the process: it is read as a system call does.
        return os.pread(file.fileno(), len(pages), 0)


def in_parts(file: Any, chance: random.Random) -> bytes:
    found = b""
    while part := os.pread(file.fileno(), chance.randrange(1, 2 * MIB), len(found)):
        found += part
    return found


def test_many_readers_while_copies_come_and_objects_change_read_one_object_each(home: Any, store: Bucket) -> None:
    bodies = {nth: random.Random(nth).randbytes(5 * MIB + nth) for nth in range(6)}
    of = {digest(body): nth for nth, body in bodies.items()}
    with mounted(home, store, copies=copies_at(home, "12MB"), ttl_s=0.1) as target:
        for nth in range(3):
            put(store, f"turn/{nth}", bodies[nth])
        is_over, wrong, reads = threading.Event(), list[str](), [0]

        def read(seed: int) -> None:
            chance = random.Random(seed)
            while not is_over.is_set():
                path, how = target / "turn" / str(chance.randrange(3)), chance.choice((at_once, mapped, in_parts))
                try:
                    with path.open("rb") as file:
                        found = how(file, chance)
                    reads[0] += 1
                    wrong.extend([f"{path}: {len(found)} bytes"] if digest(found) not in of else [])
                except OSError as error:
                    # What was replaced while it was read, and nothing else.
                    wrong.extend([repr(error)] if error.errno != errno.ESTALE else [])

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        try:
            for nth in range(40):
                put(store, f"turn/{nth % 3}", bodies[nth % 6])
                is_over.wait(0.25)
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        assert wrong == []
        assert reads[0] > 100
        assert stats(target)["copies_opened"] > 0


def test_what_is_written_is_copied_when_it_is_read(home: Any, store: Bucket) -> None:
    with mounted(home, store, copies=copies_at(home), allow_write=True) as target:
        path = target / "result"
        for nth in range(3):
            body = random.Random(nth).randbytes(7 * MIB + nth)
            path.write_bytes(body)
            assert digest(path.read_bytes()) == digest(body)
            until(lambda body=body: stats(target)["copied_bytes"] == len(body) or not path.read_bytes(), 30)
            with path.open("rb") as reading:
                assert digest(reading.read()) == digest(body)
                path.write_bytes(b"short")
                reading.seek(0)
                assert digest(reading.read()) == digest(body)
            assert path.read_bytes() == b"short"
            path.unlink()
        assert stats(target)["copies_opened"] >= 3


def test_only_root_may_and_only_where_the_directory_is_seen(home: Any, store: Bucket) -> None:
    # Without the privilege: bit 21 is CAP_SYS_ADMIN.
    code = (
        "import ctypes, os, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "header = (ctypes.c_uint32 * 2)(0x20080522, 0); data = (ctypes.c_uint32 * 6)()\n"
        "assert libc.capget(header, data) == 0\n"
        "for which in (0, 1, 2): data[which] &= ~(1 << 21)\n"
        "assert libc.prctl(24, 21, 0, 0, 0) == 0 and libc.capset(header, data) == 0\n"
        "from foreload.cli import main; main()"
    )
    target = home.cache_dir / "mounted"
    target.mkdir(parents=True)
    asked = subprocess.run(
        [sys.executable, "-c", code, "mount", "s3://bench", str(target), "--copies", copies_at(home)],
        env={**os.environ, **store.environment(), "FORELOAD_CACHE_DIR": str(home.cache_dir)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert asked.returncode == 2
    assert "only root" in asked.stderr
    inside = f"{target / 'below'}:1GB"
    with pytest.raises(InvalidError, match="where the bucket is to be seen"), mounted(home, store, copies=inside):
        pass
    for text in ("copies", "12MB", ":12MB"):
        with pytest.raises(ForeloadError, match="copies"):
            Options(copies=text).settings("s3://bench", {}, str(home.cache_dir))
