"""Files that several have open, or that get another name, are cut or deleted while somebody writes them: each is one file, as on a disk, and nobody loses what was closed."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket

from mounting import (
    MIB,
    PART,
    content,
    digest,
    drop,
    fails_with,
    mounted,
    objects,
    put,
    small_objects,
    stats,
    within,
    writable,
)

pytestmark = pytest.mark.needs("fuse")


@pytest.fixture
def store() -> Iterator[Bucket]:
    """Five objects in `bench/small`."""
    with small_objects() as running:
        yield running


def test_what_is_cut_by_its_name_is_what_has_that_name_now(home: Any, store: Bucket) -> None:
    """Also where the kernel knows, by that name, what was there before."""
    data = content(900)
    with writable(home, store) as target:
        one, other = target / "one", target / "other"
        for nth, empties in enumerate([[other], [other, other], []]):
            other.write_bytes(data)
            for path in empties:
                os.truncate(path, 0)
                assert path.stat().st_size == 0
            other.rename(one)
            if nth < 2:
                other.write_bytes(data)
            os.truncate(one, 0)
            assert one.stat().st_size == 0
            assert objects(store)["one"] == one.read_bytes() == b""
            assert objects(store).get("other", data) == data
            assert other.exists() == (nth < 2)
        for nth in range(60):
            # What the kernel knows of it isn't what an fsync made of it, but what is there at the end.
            os.truncate(one, 0)
            with one.open("w+b", buffering=0) as file:
                file.write(data)
                os.fsync(file.fileno())
                for _ in range(nth % 4):
                    file.write(data)
                    file.seek(0)
                    assert len(file.read()) >= len(data)
                    file.seek(0, os.SEEK_END)
            assert one.stat().st_size == len(data) * (1 + nth % 4)
        for before in (b"", data):
            # Of what is written to take its place, too.
            one.write_bytes(before)
            with one.open("w+b", buffering=0) as file:
                file.write(data)
                os.fsync(file.fileno())
                os.truncate(one, 0)
                assert one.stat().st_size == 0
                file.write(b"more")
            assert objects(store)["one"] == bytes(len(data)) + b"more"
        for _ in range(20):
            # Of what was closed just now, too.
            with one.open("w+b", buffering=0) as file:
                file.write(data)
                os.fsync(file.fileno())
                file.truncate(100)
            os.truncate(one, 0)
            assert objects(store)["one"] == b""


def test_one_who_writes_and_renames_is_never_told_to_begin_again(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        one, other = target / "one", target / "other"
        for _ in range(10):
            other.write_bytes(b"")
            with other.open("w+b", buffering=0) as file:
                file.write(content(5000))
                os.fsync(file.fileno())
                file.truncate(100)
                os.fsync(file.fileno())
            other.rename(one)
            for path, data in ((other, content(600)), (other, b""), (one, b"")):
                path.write_bytes(data)
                assert objects(store)[path.name] == path.read_bytes() == data


@pytest.mark.parametrize("what", ["delete", "rename", "write and rename"])
def test_an_empty_object_that_is_opened_anew_is_an_object_still(home: Any, store: Bucket, what: str) -> None:
    put(store, "small/empty", b"")
    with writable(home, store) as target:
        path = target / "small" / "empty"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if what == "write and rename":
            os.write(descriptor, b"something")
        if what == "delete":
            path.unlink()
        else:
            path.rename(target / "small" / "renamed")
        os.close(descriptor)
        left = [key for key in objects(store) if "e" in Path(key).name]
        assert left == ([] if what == "delete" else ["small/renamed"])
        assert not path.exists()


def test_a_file_has_its_size_by_each_name_that_it_gets(home: Any, store: Bucket) -> None:
    def cut(path: Path, file: int) -> Path:
        os.write(file, b"a" * 100)
        os.fsync(file)
        os.truncate(path, 0)
        os.write(file, b"b" * 50_000)
        return path.rename(path.with_name("cut"))

    def twice(path: Path, file: int) -> Path:
        os.write(file, b"a" * 100)
        os.fsync(file)
        os.write(file, b"b" * 100)
        between = path.rename(path.with_name("between"))
        os.write(file, b"c" * 50_000)
        return between.rename(path.with_name("twice"))

    def looked_at(path: Path, file: int) -> Path:
        os.write(file, b"a" * 100)
        between = path.rename(path.with_name("between"))
        assert between.stat().st_size == 100
        os.write(file, b"c" * 50_000)
        return between.rename(path.with_name("looked"))

    def anew(path: Path, file: int) -> Path:
        return path.rename(path.with_name("anew"))

    with writable(home, store) as target:
        for how in (cut, twice, looked_at, anew):
            for was in (None, b"q" * 777):
                path = target / f"{how.__name__}-{was is None}"
                if was is not None:
                    path.write_bytes(was)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                renamed = how(path, descriptor)
                os.close(descriptor)
                size = len(objects(store)[renamed.name])
                assert renamed.stat().st_size == size, how
                assert len(renamed.read_bytes()) == size
                assert not path.exists()


def test_who_cuts_a_name_and_who_replaces_it_keep_nobody_waiting(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        path, times, is_over = target / "small" / "0", list[float](), threading.Event()

        def again(nth: int) -> None:
            until = time.monotonic() + 3
            while time.monotonic() < until and not is_over.is_set():
                began = time.monotonic()
                # Either may find that there is nothing by that name, or another thing than a moment ago.
                with contextlib.suppress(OSError):
                    if nth % 2:
                        os.truncate(path, 0)
                    else:
                        new = path.with_name(f"new-{nth}")
                        new.write_bytes(b"a" * 1000)
                        new.rename(path)
                times.append(time.monotonic() - began)

        threads = [threading.Thread(target=again, args=(nth,)) for nth in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # It was a second, several times; and may be once where the machine has no time.
        assert sum(each > 0.9 for each in times) <= 1, sorted(times)[-5:]
        assert within(5, lambda: stats(target)["writes_under_way"] == 0)


@pytest.mark.parametrize("was", [b"", b"old"])
def test_what_is_cut_to_nothing_begins_anew_however_much_was_sent(home: Any, store: Bucket, was: bytes) -> None:
    with writable(home, store) as target:
        for nth, by_name in enumerate((False, True)):
            path = target / f"cut-{nth}"
            if was:
                path.write_bytes(was)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.write(descriptor, content(3 * PART, nth))
            os.truncate(path if by_name else descriptor, 0)
            assert os.fstat(descriptor).st_size == 0
            new = content(2 * PART + nth, 7)
            assert os.pwrite(descriptor, new, 0) == len(new)
            os.close(descriptor)
            assert digest(objects(store)[path.name]) == digest(new)
            assert path.stat().st_size == len(new)


def test_what_another_client_has_put_is_not_lost_to_who_adds_to_what_was_empty(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        for mode in ("ab", "r+b"):
            path = target / "small" / mode
            path.touch()
            assert path.stat().st_size == 0
            put(store, f"small/{mode}", b"another's")

            def add(path: Path = path, mode: str = mode) -> None:
                with path.open(mode, buffering=0) as file:
                    file.write(b"added")

            assert fails_with(add) == errno.EOPNOTSUPP
            assert objects(store)[f"small/{mode}"] == path.read_bytes() == b"another's"
        # Nobody has: it is as it was.
        path = target / "small" / "lock"
        path.touch()
        with path.open("ab") as file:
            file.write(b"added")
        assert objects(store)["small/lock"] == b"added"


@pytest.mark.parametrize("was", [None, b"before"])
def test_who_writes_a_file_that_gets_another_name_writes_that(home: Any, store: Bucket, was: bytes | None) -> None:
    body = content(4_000_000)
    with writable(home, store) as target:
        for nth in range(8):
            path, names = target / f"moved-{nth}", [target / f"moved-{nth}", target / f"there-{nth}"]
            if was is not None:
                path.write_bytes(was)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

            def write(file: int = file, nth: int = nth) -> None:
                for at in range(0, len(body), 100_000):
                    os.pwrite(file, body[at : at + 100_000], at)
                    time.sleep(0.0002 * (nth % 4))
                os.close(file)

            writing = threading.Thread(target=write)
            writing.start()
            while writing.is_alive():
                names[0].rename(names[1])
                names.reverse()
            writing.join()
            found = objects(store)
            assert digest(found[names[0].name]) == digest(body)
            assert names[1].name not in found
            assert digest(names[0].read_bytes()) == digest(body)
            names[0].unlink()


def test_who_reads_what_is_written_on_reads_what_was_there(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        for nth, (size, then) in enumerate(((100_000, 200_000), (3 * PART, 100), (0, 70_000), (PART, 3 * PART))):
            path, old, new = target / f"read-{nth}", content(size, 1), content(then, 2)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.pwrite(file, old, 0)
            os.fsync(file)
            early = os.open(path, os.O_RDONLY)
            os.ftruncate(file, 0)
            os.pwrite(file, new, 0)
            late = os.open(path, os.O_RDONLY)
            # What is there stays until the other one is.
            sizes = {path.stat().st_size, os.fstat(early).st_size, os.fstat(late).st_size}
            assert (sizes, os.fstat(file).st_size) == ({size}, then)
            for reader in (early, late):
                assert os.pread(reader, size + then, 0) == old
            os.close(file)
            assert path.read_bytes() == objects(store)[path.name] == new
            for reader in (early, late):
                os.close(reader)


@pytest.mark.parametrize("how", ["descriptor", "name", "open"])
@pytest.mark.parametrize(
    ("size", "then"), [(3 * PART, 2 * PART), (2 * PART, 3 * PART), (3 * PART, 100), (100, 3 * PART)]
)
def test_who_writes_a_file_anew_reads_what_was_written(
    home: Any, store: Bucket, how: str, size: int, then: int
) -> None:
    with writable(home, store) as target:
        path = target / "again"
        file, others = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), []
        for nth, bytes_ in enumerate((size, then, size + 1)):
            body = content(bytes_, nth)
            assert os.pwrite(file, body, 0) == bytes_
            os.fsync(file)
            assert os.pread(file, bytes_ + 1, 0) == path.read_bytes() == body
            for other in others:
                assert os.pread(other, bytes_ + 1, 0) == body
            if how == "open":
                others.append(os.open(path, os.O_RDWR | os.O_TRUNC))
            else:
                os.truncate(file if how == "descriptor" else path, 0)
        for each in (file, *others):
            os.close(each)


@pytest.mark.parametrize("size", [100_000, 3 * PART])
def test_who_has_a_file_open_that_gets_another_name_reads_on(home: Any, store: Bucket, size: int) -> None:
    with writable(home, store, ahead=0) as target:
        path, body = target / "latest", content(size)
        for nth in range(3):
            path.write_bytes(body)
            with path.open("rb", buffering=0) as reading:
                # It is known where it is by now.
                assert reading.read(10) == body[:10]
                reading.seek(0)
                renamed = path.rename(target / f"before-{nth}")
                path.write_bytes(content(size, 1))
                again = renamed.rename(target / f"again-{nth}")
                assert digest(b"".join(iter(lambda reading=reading: reading.read(MIB), b""))) == digest(body)
                # And not what somebody else puts there.
                os.posix_fadvise(reading.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                put(store, again.name, content(size, 2))
                reading.seek(0)
                assert fails_with(lambda reading=reading: reading.read(MIB)) in (None, errno.ESTALE)
            path.unlink()


def test_what_got_another_name_and_was_replaced_by_that_is_stale(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        path = target / "first"
        path.write_bytes(content(70_000))
        with path.open("rb", buffering=0) as reading:
            path.rename(target / "second").write_bytes(content(70_000, 1))
            assert fails_with(lambda: reading.read(10)) == errno.ESTALE


def test_who_opens_a_file_to_read_may_cut_it_to_nothing(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        path = target / "small" / "0"
        descriptor = os.open(path, os.O_RDONLY | os.O_TRUNC)
        assert os.read(descriptor, 10) == b""
        os.close(descriptor)
        assert objects(store)["small/0"] == b""
        assert path.stat().st_size == 0
    with mounted(home, store) as target:
        path = target / "small" / "1"
        assert fails_with(lambda: os.open(path, os.O_RDONLY | os.O_TRUNC)) == errno.EROFS


def test_who_opens_what_is_open_still_after_fsync_writes_the_same_file(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        path = target / "shared"
        first = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.write(first, b"1" * 10)
        os.fsync(first)
        second = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        assert os.fstat(first).st_size == 0
        os.write(second, b"2" * 7)
        os.close(second)
        assert objects(store)["shared"] == b"2" * 7
        os.pwrite(first, b"3" * 5, 2)
        os.close(first)
        assert objects(store)["shared"] == b"2233333"
        # What another client has put since isn't this file.
        first = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.write(first, b"1" * 10)
        os.fsync(first)
    with writable(home, store, ttl_s=0.1) as target:
        path = target / "shared"
        with path.open("wb", buffering=0) as first:
            first.write(b"1" * 10)
            os.fsync(first.fileno())
            put(store, "shared", b"other")
            assert within(5, lambda: path.stat().st_size == 5)
            with path.open("r+b") as second:
                assert second.read() == b"other"
                second.seek(0)
                assert fails_with(lambda: (second.write(b"x"), second.flush())) == errno.EOPNOTSUPP
                with contextlib.suppress(OSError):
                    second.close()
        assert objects(store)["shared"] == b"other"


@pytest.mark.parametrize("how", ["cut by its name", "complete while it was empty"])
@pytest.mark.parametrize("was", [None, b"before"])
def test_what_is_empty_for_a_moment_is_the_same_file_for_who_opens_it_next(
    home: Any, store: Bucket, how: str, was: bytes | None
) -> None:
    with writable(home, store) as target:
        for nth, anew in enumerate((os.O_TRUNC, 0)):
            path = target / f"empty-{nth}"
            if was is not None:
                path.write_bytes(was)
            first = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if how == "cut by its name":
                os.write(first, b"1" * 10)
                os.truncate(path, 0)
            else:
                os.fsync(first)
            os.pwrite(first, b"2" * 7, 0)
            second = os.open(path, os.O_RDWR | os.O_CREAT | anew)
            assert os.fstat(second).st_size == os.fstat(first).st_size == (0 if anew else 7)
            os.pwrite(second, b"3" * 3, 0)
            os.close(second)
            expected = b"333" if anew else b"3332222"
            assert objects(store)[path.name] == path.read_bytes() == expected
            os.pwrite(first, b"4", 1)
            os.close(first)
            assert objects(store)[path.name] == path.read_bytes() == b"343" + expected[3:]


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_what_has_lost_its_name_has_another_number_than_what_has_it_now(home: Any, store: Bucket, how: str) -> None:
    """Who waits for a lock looks whether what it has locked is there still."""
    with writable(home, store) as target:
        path = target / "lock"
        for content_ in (b"", b"held"):
            waits = os.open(path, os.O_RDWR | os.O_CREAT)
            os.write(waits, content_)
            number = os.fstat(waits).st_ino
            assert number == path.stat().st_ino
            if how == "deleted":
                path.unlink()
                path.write_bytes(b"another")
            else:
                path.with_name("new").write_bytes(b"another")
                path.with_name("new").rename(path)
            assert path.stat().st_ino not in (number, os.fstat(waits).st_ino)
            assert os.fstat(waits).st_ino == number
            with contextlib.suppress(OSError):
                os.close(waits)
            assert path.read_bytes() == b"another"
            path.unlink()


def test_a_file_that_is_opened_to_be_written_has_its_number(home: Any, store: Bucket) -> None:
    """Editors look whether they have opened what they meant to."""
    with writable(home, store) as target:
        path = target / "small" / "1"
        before = path.stat().st_ino
        for flags in (os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_TRUNC, os.O_RDWR):
            descriptor = os.open(path, flags)
            assert os.fstat(descriptor).st_ino == before == path.stat().st_ino
            os.close(descriptor)
            before = path.stat().st_ino


@pytest.mark.parametrize("how", ["delete", "replace", "replace by what has gone", "replace by what is written"])
@pytest.mark.parametrize("was", [None, b"before"])
def test_a_file_that_could_not_be_deleted_or_replaced_is_written_on(
    home: Any, store: Bucket, how: str, was: bytes | None
) -> None:
    with writable(home, store, timeout_s=1.0) as target:
        for nth, size in enumerate((100, 2 * PART)):
            path, other, body = target / f"written-{nth}", target / f"other-{nth}", content(size, nth)
            if was is not None:
                path.write_bytes(was)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.write(file, body[:50])
            if was is None:
                # Else there is nothing in the bucket to be deleted.
                os.fsync(file)
            writing = other.open("wb", buffering=0)
            writing.write(b"other")
            if how != "replace by what is written":
                writing.close()
            if how == "replace by what has gone":
                drop(store, other.name)
            else:
                store.add_fault("status", status=403, on=["delete", "copy", "put"])
            failed = fails_with(path.unlink if how == "delete" else lambda other=other, path=path: other.rename(path))
            assert failed in (errno.EACCES, errno.ENOENT)
            store.clear_faults()
            assert os.pwrite(file, body[50:], 50) == size - 50
            os.close(file)
            fails_with(writing.close)
            assert digest(objects(store)[path.name]) == digest(body)
            assert digest(path.read_bytes()) == digest(body)


@pytest.mark.parametrize("size", [10, 3 * PART])
@pytest.mark.parametrize("is_there", [True, False])
def test_who_begins_anew_after_a_failure_does_whoever_has_the_file_open_still(
    home: Any, store: Bucket, is_there: bool, size: int
) -> None:
    with writable(home, store, timeout_s=1.0) as target:
        for nth, anew in enumerate(("open", "another program", "name", "descriptor")):
            path = target / f"retried-{nth}"
            if is_there:
                path.write_bytes(b"before")
            failed = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            store.add_fault("status", status=403, on=["put", "multipart"])
            fails_with(lambda failed=failed: os.write(failed, content(size)))
            assert fails_with(lambda failed=failed: os.fsync(failed)) == errno.EACCES
            store.clear_faults()
            new = content(size + 1, nth)
            if anew == "open":
                path.write_bytes(new)
            elif anew == "another program":
                subprocess.run(["dd", "status=none", f"of={path}", "bs=1M"], input=new, check=True)
            else:
                os.truncate(path if anew == "name" else failed, 0)
                os.pwrite(failed, new, 0)
            os.close(failed)
            assert digest(objects(store)[path.name]) == digest(new), anew
            assert digest(path.read_bytes()) == digest(new)
        assert within(5, lambda: stats(target)["writes_under_way"] == 0)
