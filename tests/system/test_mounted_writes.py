"""What is written to a mount is in the bucket, whole or not at all, and whoever closes it hears when it isn't."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bucket import Bucket

from foreload._mount import program
from foreload._mount.options import Options
from foreload.errors import ForeloadError, InvalidError
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

SIZES = [0, 1, 4096, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 12345]


@pytest.fixture
def store() -> Iterator[Bucket]:
    """Five objects in `bench/small`."""
    with small_objects() as running:
        yield running


@pytest.mark.parametrize("size", SIZES)
def test_a_file_is_an_object_with_its_bytes_when_it_is_closed(home: Any, store: Bucket, size: int) -> None:
    with writable(home, store) as target:
        data, path = content(size), target / "new" / "deep" / "file"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        assert within(2, lambda: objects(store).get("new/deep/file") == data)
        assert path.stat().st_size == size
        assert digest(path.read_bytes()) == digest(data)
        assert [each.name for each in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("size", [7, 2 * PART + 5])
def test_until_it_is_closed_others_see_what_was_there(home: Any, store: Bucket, size: int) -> None:
    with writable(home, store) as target:
        path = target / "file"
        path.write_bytes(before := content(size, 1))
        with path.open("rb") as old:
            head = old.read(3)
            with path.open("wb") as new:
                new.write(content(size + 9, 2)[:size])
                new.flush()
                assert path.read_bytes() == before
                assert objects(store)["file"] == before
                new.write(content(size + 9, 2)[size:])
                new.flush()
                assert os.fstat(new.fileno()).st_size == size + 9
            assert path.read_bytes() == objects(store)["file"] == content(size + 9, 2)
            # Who has the one before open has that one, or hears that it is gone, and never a mix.
            assert fails_with(lambda: head + old.read()) == errno.ESTALE or head == before[:3]


def test_a_new_file_is_seen_and_can_be_read_when_it_is_closed(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        path = target / "file"
        with path.open("wb") as new:
            new.write(b"some")
            new.flush()
            assert path.exists()
            assert path.stat().st_size == 4
            assert fails_with(path.read_bytes) == errno.EBUSY
            assert "file" not in objects(store)
        assert path.read_bytes() == b"some"


def test_fsync_makes_it_an_object_and_what_is_small_goes_on(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        with (target / "log").open("wb") as log:
            for nth in range(5):
                log.write(f"line {nth}\n".encode())
                log.flush()
                os.fsync(log.fileno())
                assert objects(store)["log"].count(b"\n") == nth + 1
        with (target / "large").open("wb") as large:
            large.write(data := content(PART + 5))
            large.flush()
            os.fsync(large.fileno())
            assert objects(store)["large"] == data
            large.write(b"more")
            assert fails_with(large.flush) == errno.EIO
            assert fails_with(large.close) == errno.EIO
        assert objects(store)["large"] == data


def test_what_is_here_still_may_be_written_over_and_the_rest_may_not(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        with (target / "header").open("w+b") as file:
            file.write(bytes(100) + content(1000))
            file.seek(0)
            file.write(b"x" * 100)
            file.seek(50)
            assert file.read(100) == b"x" * 50 + content(1000)[:50]
            file.truncate(900)
        assert objects(store)["header"] == b"x" * 100 + content(1000)[:800]
        with (target / "sparse").open("wb") as file:
            file.truncate(3 * PART)
            file.write(b"begin")
        assert objects(store)["sparse"] == b"begin" + bytes(3 * PART - 5)
        with (target / "gap").open("wb", buffering=0) as file:
            file.write(b"begin")
            file.seek(4 * PART)
            file.write(b"end")
            file.seek(500 * PART)
            assert fails_with(lambda: file.write(b"far")) == errno.EOPNOTSUPP
        assert objects(store)["gap"] == b"begin" + bytes(4 * PART - 5) + b"end"
        with (target / "back").open("wb", buffering=0) as file:
            file.write(content(2 * PART + 1))
            file.seek(PART + 10)
            assert fails_with(lambda: file.write(b"y")) == errno.EOPNOTSUPP
            file.seek(PART - 1)
            assert fails_with(lambda: file.write(b"yy")) == errno.EOPNOTSUPP
            file.seek(2 * PART + 1)
            file.write(b"z")
        assert objects(store)["back"] == content(2 * PART + 1) + b"z"


@pytest.mark.parametrize("seed", range(4))
def test_the_first_part_and_the_last_may_be_written_over_until_it_is_closed(
    home: Any, store: Bucket, seed: int
) -> None:
    """A model of what is here: as many bytes as were written, the first part of them, and what doesn't fill one at the end."""
    dice = random.Random(seed)
    with writable(home, store) as target:
        for nth in range(4):
            model = bytearray()
            with (target / f"{nth}").open("w+b", buffering=0) as file:
                for step in range(60):
                    size, last = len(model), len(model) // PART * PART
                    at = dice.choice(
                        [size, size, dice.randint(0, PART), dice.randint(last, size), dice.randint(0, size)]
                    )
                    at = min(at, size)
                    data = content(dice.choice([1, 100, 4096, PART // 3, PART]), step)
                    reads = dice.random() < 0.3
                    # All of it, and where it goes on from the first part, that must be followed by the last one.
                    is_here = at >= last or at + (50 if reads else len(data)) <= PART or (at < PART and last == PART)
                    file.seek(at)
                    if reads:
                        if is_here:
                            assert file.read(50) == model[at : at + 50], (nth, step)
                        else:
                            assert fails_with(lambda file=file: file.read(50)) == errno.EOPNOTSUPP
                        continue
                    written = 0
                    while written < len(data):
                        # The kernel asks for a part of it at a time, so that what is said may be said of a part.
                        with contextlib.suppress(OSError) if not is_here else contextlib.nullcontext():
                            more = file.write(data[written:])
                            model[at + written : at + written + more] = data[written : written + more]
                            written += more
                            continue
                        assert at + written < last
                        break
                    if len(model) > 6 * PART:
                        break
                    if dice.random() < 0.05 and len(model) < 2 * PART:
                        file.truncate(cut := dice.randint(0, len(model)))
                        del model[cut:]
            assert digest(objects(store)[f"{nth}"]) == digest(bytes(model)), nth


def test_an_object_is_written_anew_or_not_at_all(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        path = next((target / "small").iterdir())
        before = path.read_bytes()
        for mode in ("ab", "r+b"):
            with path.open(mode, buffering=0) as file:
                assert fails_with(lambda file=file: file.write(b"x")) == errno.EOPNOTSUPP, mode
        os.utime(path)
        path.chmod(0o600)
        assert objects(store)[f"small/{path.name}"] == path.read_bytes() == before
        os.truncate(path, 0)
        assert objects(store)[f"small/{path.name}"] == path.read_bytes() == b""
        assert fails_with(lambda: os.truncate(path, 7)) == errno.EOPNOTSUPP
    assert "nothing can be added to an object" in (home.cache_dir / "mount.log").read_text()


def test_who_may_write_may_read(home: Any, store: Bucket) -> None:
    """What is an object, or is here still; what is on its way may not be read before it is there."""
    data = content(3 * PART)
    with writable(home, store) as target:
        (target / "file").write_bytes(data)
        with (target / "file").open("r+b", buffering=0) as file:
            file.seek(PART - 5)
            assert file.read(10) == data[PART - 5 : PART + 5]
            file.truncate(0)
            file.seek(0)
            assert file.read(10) == b""
            file.write(b"anew")
            file.seek(1)
            assert file.read(10) == b"new"
        assert objects(store)["file"] == b"anew"
        with (target / "large").open("w+b", buffering=0) as file:
            file.write(data)
            file.seek(PART)
            assert fails_with(lambda: file.read(5)) == errno.EOPNOTSUPP
            file.seek(PART - 5)
            # A part of it would look like the end.
            assert fails_with(lambda: file.read(10)) == errno.EOPNOTSUPP
            assert file.read(5) == data[PART - 5 : PART]
            os.fsync(file.fileno())
            file.seek(7)
            assert file.read(5) == data[7:12]


def test_files_and_directories_come_and_go(home: Any, store: Bucket) -> None:
    put(store, "marked/", b"")
    with writable(home, store) as target:
        (target / "empty").mkdir()
        assert list((target / "empty").iterdir()) == []
        assert fails_with((target / "empty").mkdir) == errno.EEXIST
        assert not any(key.startswith("empty") for key in objects(store))
        (target / "empty").rmdir()
        assert not (target / "empty").exists()
        assert fails_with((target / "small").rmdir) == errno.ENOTEMPTY
        victim = next((target / "small").iterdir())
        victim.unlink()
        assert f"small/{victim.name}" not in objects(store)
        assert fails_with(victim.unlink) == errno.ENOENT
        assert (target / "marked").is_dir()
        (target / "marked").rmdir()
        assert "marked/" not in objects(store)
        shutil.rmtree(target / "small")
        assert objects(store).keys() == {"unused/00000000.bin"}
        assert [path.name for path in target.iterdir()] == ["unused"]
        for name in ("a\tb", "a\nb", "a\x7f", "a\udcff"):
            assert fails_with((target / name).touch) == errno.EINVAL
            assert fails_with((target / name).mkdir) == errno.EINVAL
        assert fails_with(lambda: (target / "link").symlink_to("a")) == errno.EPERM
        assert fails_with(lambda: os.open(target / "small2" / "file", os.O_CREAT | os.O_WRONLY)) == errno.ENOENT


@pytest.mark.parametrize("looks", [False, True])
def test_directories_that_were_emptied_stay_until_they_are_removed(home: Any, store: Bucket, looks: bool) -> None:
    with writable(home, store, ttl_s=0.2) as target:
        (target / "d/e/f").mkdir(parents=True)
        (target / "d/e2").mkdir()
        (target / "d/e/f/file").write_bytes(b"abc")
        if looks:
            assert sorted(path.name for path in target.rglob("*") if path.is_dir()) == [
                "d",
                "e",
                "e2",
                "f",
                "small",
                "unused",
            ]
        (target / "d/e/f/file").unlink()
        for pause in (0, 0.5):
            time.sleep(pause)
            assert [path.name for path in sorted((target / "d").rglob("*"))] == ["e", "f", "e2"]
        for full in ("d", "d/e"):
            assert fails_with((target / full).rmdir) == errno.ENOTEMPTY
        for name in ("e/f", "e", "e2", ""):
            (target / "d" / name).rmdir()
        assert not (target / "d").exists()
        # What others delete is gone with the directories that it lay in.
        put(store, "other/in/file", b"abc")
        assert within(3, (target / "other/in/file").exists)
        (target / "other/in/file").unlink()
        put(store, "other/in2/file", b"abc")
        time.sleep(0.5)
        assert sorted(path.name for path in (target / "other").iterdir()) == ["in", "in2"]
        shutil.rmtree(target / "other")
        assert not (target / "other").exists()
        # Also where others have deleted what was beside them.
        (target / "d/e").mkdir(parents=True)
        (target / "d/e/file").write_bytes(b"abc")
        put(store, "d/file", b"abc")
        time.sleep(0.5)
        assert sorted(path.name for path in (target / "d").iterdir()) == ["e", "file"]
        drop(store, "d/file")
        (target / "d/e/file").unlink()
        for pause in (0, 0.5):
            time.sleep(pause)
            assert (target / "d/e").is_dir()
            assert [path.name for path in target.iterdir() if path.name == "d"] == ["d"]
            assert [path.name for path in (target / "d").iterdir()] == ["e"] or pause == 0


def test_a_name_is_changed_to_a_free_one_and_to_one_that_is_taken(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        one, other = sorted((target / "small").iterdir())[:2]
        data = one.read_bytes()
        with one.open("rb") as before:
            one.rename(target / "renamed")
            assert not one.exists()
            assert (target / "renamed").read_bytes() == data == objects(store)["renamed"]
            assert f"small/{one.name}" not in objects(store)
            assert before.read(1) in (b"", data[:1])
        (target / "renamed").replace(other)
        assert other.read_bytes() == data == objects(store)[f"small/{other.name}"]
        assert fails_with(lambda: other.rename(target / "small")) in (errno.EISDIR, errno.ENOTEMPTY)
        # A directory's objects are moved one by one, as programs do where a name can't be changed.
        assert fails_with(lambda: (target / "small").rename(target / "large")) == errno.EXDEV
        expected = {path.name: path.read_bytes() for path in (target / "small").iterdir()}
        shutil.move(target / "small", target / "large")
        assert {path.name: path.read_bytes() for path in (target / "large").iterdir()} == expected
        assert {key.split("/")[0] for key in objects(store)} == {"large", "unused"}


@pytest.mark.parametrize("size", [9, 2 * PART + 9])
def test_a_temporary_file_takes_its_place_before_or_after_it_is_closed(home: Any, store: Bucket, size: int) -> None:
    with writable(home, store) as target:
        for name, is_open in (("after", False), ("before", True)):
            (target / name).write_bytes(b"old")
            with (target / f".{name}.tmp").open("wb") as file:
                file.write(content(size))
                file.flush()
                if is_open:
                    (target / f".{name}.tmp").replace(target / name)
            if not is_open:
                (target / f".{name}.tmp").replace(target / name)
            assert (target / name).read_bytes() == objects(store)[name] == content(size)
        assert sorted(path.name for path in target.iterdir()) == ["after", "before", "small", "unused"]
        assert not any(".tmp" in key for key in objects(store))


def test_what_is_deleted_while_it_is_written_is_nothing(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        for size in (5, PART + 5):
            with (target / "gone").open("wb") as file:
                file.write(content(size))
                (target / "gone").unlink()
            assert within(2, lambda: stats(target)["writes_under_way"] == 0)
            assert "gone" not in objects(store)
            assert not (target / "gone").exists()


def test_programs_that_write_do(home: Any, store: Bucket, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    import torch.distributed.checkpoint as dcp

    weights = {"w": torch.randn(1500, 1000), "b": torch.randn(7)}
    with writable(home, store) as target:
        for _ in range(2):
            torch.save(weights, target / "model.pt")
            found = torch.load(target / "model.pt")
            assert all(torch.equal(found[name], weights[name]) for name in weights)
            safetensors.save_file(weights, target / "model.safetensors")
            found = safetensors.load_file(target / "model.safetensors")
            assert all(torch.equal(found[name], weights[name]) for name in weights)
            dcp.save(weights, checkpoint_id=target / "checkpoint")
            found = {name: torch.zeros_like(each) for name, each in weights.items()}
            dcp.load(found, checkpoint_id=target / "checkpoint")
            assert all(torch.equal(found[name], weights[name]) for name in weights)
            np.save(target / "array.npy", array := np.arange(1_000_000))
            assert np.array_equal(np.load(target / "array.npy", mmap_mode="r"), array)
            # It goes back to its beginning when the large one is written.
            np.savez(target / "arrays.npz", x=np.arange(5_000_000), y=np.arange(10))
            with np.load(target / "arrays.npz") as arrays:
                assert arrays["x"].sum() == np.arange(5_000_000).sum()
                assert arrays["y"].size == 10
        tree = tmp_path / "tree"
        for nth in range(30):
            (tree / f"{nth % 3}").mkdir(parents=True, exist_ok=True)
            (tree / f"{nth % 3}" / f"file {nth}").write_bytes(content(nth * 1000, nth))
        script = f"""
            set -e
            cp -rp {tree} {target}/copied && diff -r {tree} {target}/copied
            tar cf {target}/tree.tar -C {tree} . && mkdir {target}/unpacked && tar xf {target}/tree.tar -C {target}/unpacked
            diff -r {tree} {target}/unpacked
            mv {target}/copied {target}/moved && diff -r {tree} {target}/moved
            (echo one; echo two) > {target}/lines && test "$(cat {target}/lines)" = "$(printf 'one\\ntwo')"
            sed -i s/one/three/ {target}/lines && head -1 {target}/lines | grep -q three
            : > {target}/nothing && test -e {target}/nothing
            touch {target}/lines {target}/touched && test ! -s {target}/touched
            rm -r {target}/moved {target}/unpacked && test ! -e {target}/moved
        """
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_part_that_is_refused_is_said_and_what_was_there_stays(home: Any, store: Bucket) -> None:
    with writable(home, store, timeout_s=1.0) as target:
        (target / "kept").write_bytes(b"before")
        store.add_fault("status", status=403, on=["put"])
        assert fails_with((target / "empty").touch) == errno.EACCES
        assert fails_with(lambda: (target / "kept").write_bytes(b"")) == errno.EACCES
        store.clear_faults()
        assert "empty" not in objects(store)
        for size in (10, 3 * PART):
            for status, number in ((403, errno.EACCES), (500, errno.EIO)):
                store.add_fault("status", status=status, on=["put", "multipart"])
                with (target / "kept").open("wb") as file:
                    said = [fails_with(lambda file=file, size=size: file.write(content(size)))]
                    said += [fails_with(file.flush), fails_with(file.close)]
                    assert number in said, (size, status)
                store.clear_faults()
                assert objects(store)["kept"] == (target / "kept").read_bytes() == b"before"
        (target / "kept").write_bytes(b"after")
        assert objects(store)["kept"] == b"after"
    assert "kept" in (home.cache_dir / "mount.log").read_text()


@pytest.mark.parametrize("part", ["16MiB", "5MiB"])
def test_many_files_at_once_take_no_more_memory_than_parts_do(home: Any, store: Bucket, part: str) -> None:
    """Forty of 12 MiB, of which none fills a part, or each two."""
    with writable(home, store, part=part) as target:
        pid = stats(target)["pid"]
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context((target / f"{nth}").open("wb", buffering=0)) for nth in range(40)]
            for _ in range(12):
                for nth, file in enumerate(files):
                    file.write(bytes([nth]) * MIB)
            status = Path(f"/proc/{pid}/status").read_text()
            resident = int(status.split("VmRSS:")[1].split()[0]) * 1024
            unsent = stats(target)["unsent_bytes"]
        # Less than 5 MiB of each, what is on its way, and the program itself; all of it would be 480 MiB besides that.
        assert resident < 500 * MIB
        # What may lie here, besides what no store takes as a part, of which the smaller parts leave 2 MiB.
        assert unsent < (128 + 40 * 5 if part == "16MiB" else 40 + 41 * 2) * MIB
        found = objects(store)
        assert all(found[f"{nth}"] == bytes([nth]) * (12 * MIB) for nth in range(40))


def test_what_fails_for_a_moment_is_sent_again(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        store.add_fault("status", status=503, share=0.4, attempts=3, on=["put", "multipart", "copy", "delete"])
        for nth in range(6):
            (target / "again").write_bytes(content(nth * PART // 2, nth))
            (target / "again").rename(target / f"{nth}")
        store.clear_faults()
        assert all(objects(store)[f"{nth}"] == content(nth * PART // 2, nth) for nth in range(6))


def test_nothing_is_left_of_what_a_killed_program_wrote_but_what_it_closed(home: Any, store: Bucket) -> None:
    code = """
        import sys, time
        open(sys.argv[1] + "/closed", "wb").write(b"x" * 100)
        file = open(sys.argv[1] + "/open", "wb", buffering=0)
        file.write(b"y" * 12_000_000)
        print("written", flush=True)
        time.sleep(60)
    """
    with writable(home, store) as target:
        words = [sys.executable, "-c", textwrap.dedent(code), str(target)]
        writer = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        # The kernel closes it: what came so far is the file.
        assert within(5, lambda: objects(store).get("open") == b"y" * 12_000_000)
        assert objects(store)["closed"] == b"x" * 100


def test_it_ends_when_what_was_closed_is_there(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        store.set_profile({"first_byte_ms": 300})
        for nth in range(4):
            (target / f"{nth}").touch()
        with (target / "large").open("wb") as file:
            file.write(content(2 * PART))
    store.set_profile({"first_byte_ms": 0})
    found = objects(store)
    assert found["large"] == content(2 * PART)
    assert all(found[f"{nth}"] == b"" for nth in range(4))


@pytest.mark.parametrize("ttl_s", [0.0, 60.0])
def test_names_come_and_go_while_their_directory_is_listed(home: Any, store: Bucket, ttl_s: float) -> None:
    """A listing that was asked for before knows nothing of them."""
    with writable(home, store, ttl_s=ttl_s) as target:
        place, is_over = target / "d", threading.Event()
        place.mkdir()
        (place / "kept").write_bytes(b"x")

        def lists() -> None:
            while not is_over.is_set():
                assert "kept" in {path.name for path in place.iterdir()}

        listing = threading.Thread(target=lists)
        listing.start()
        try:
            for nth in range(100):
                (place / f"t{nth}").write_bytes(b"y" * nth)
                (place / f"t{nth}").rename(place / f"f{nth}")
                assert (place / f"f{nth}").read_bytes() == b"y" * nth
                (place / f"f{nth}").unlink()
                assert not (place / f"f{nth}").exists()
        finally:
            is_over.set()
            listing.join()
        assert [path.name for path in place.iterdir()] == ["kept"]


def test_unmount_waits_until_what_was_closed_is_there(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        store.set_profile({"first_byte_ms": 4000})
        (target / "slow").touch()
        program.unmount(str(target))
        assert store.counters()["requests"]["put"] >= 1
        store.set_profile({"first_byte_ms": 0})
        assert objects(store)["slow"] == b""


def locks(path: str) -> int:
    failures = 0
    for _ in range(20):
        try:
            with open(path, "w") as file:  # noqa: PTH123 (as others do)
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            failures += 1
    return failures


@pytest.mark.parametrize("opens", [False, True], ids=["while it is closed", "while it is open"])
def test_it_ends_soon_after_the_last_file_is_closed(home: Any, store: Bucket, opens: bool) -> None:
    code = """
        import sys, time
        file = open(sys.argv[1], "wb", buffering=0)
        file.write(b"x" * 3_000_000)
        print("open", flush=True)
        time.sleep(float(sys.argv[2]))
        file.close()
        print("closed", flush=True)
    """
    with writable(home, store) as target:
        store.set_profile({"first_byte_ms": 1500})
        pid = stats(target)["pid"]
        words = [sys.executable, "-c", textwrap.dedent(code), str(target / "file"), "4" if opens else "0"]
        writer = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        time.sleep(0.3)
        os.kill(pid, signal.SIGTERM)
        assert writer.stdout.readline() == "closed\n"
        writer.wait()
        begun = time.monotonic()
        assert program.ended(pid, 20)
        # It looks for a while whether anything else comes.
        assert time.monotonic() - begun < 8
        store.set_profile({})
        assert objects(store)["file"] == b"x" * 3_000_000


def test_a_lock_file_is_one_for_all_processes(home: Any, store: Bucket) -> None:
    with writable(home, store) as target, multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(locks, [str(target / "lock")] * 3) == [0, 0, 0]


def test_who_reads_while_it_is_replaced_finds_one_or_the_other(home: Any, store: Bucket) -> None:
    with writable(home, store) as target:
        path, versions = target / "file", [content(PART + 1000, 1), content(2 * PART, 2)]
        path.write_bytes(versions[0])
        found: set[str] = set()
        wrong: list[Any] = []
        is_over = threading.Event()

        def reads() -> None:
            while not is_over.is_set():
                try:
                    found.add(digest(path.read_bytes()))
                except OSError as error:
                    # The one that it had open is gone.
                    wrong.extend([error] if error.errno != errno.ESTALE else [])

        readers = [threading.Thread(target=reads) for _ in range(2)]
        for reader in readers:
            reader.start()
        for nth in range(15):
            path.write_bytes(versions[nth % 2])
        is_over.set()
        for reader in readers:
            reader.join()
        assert wrong == []
        assert found == {digest(version) for version in versions}


def synced(path: Path, data: bytes) -> None:
    """Written, an object, cut, and longer again."""
    with path.open("w+b", buffering=0) as file:
        file.write(data[:5000])
        os.fsync(file.fileno())
        file.truncate(min(100, len(data)))
        file.seek(0, os.SEEK_END)
        file.write(data[:2000])


def below(root: Path, name: str, what: Callable[[Path], Any]) -> Any:
    """The same of the directory that a name is in, unless it is the root."""
    return what((root / name).parent) if "/" in name else None


#: What is done to a directory by a name, another one, and bytes.
OPERATIONS: dict[str, Callable[[Path, str, str, bytes], Any]] = {
    "write": lambda root, name, _, data: (root / name).write_bytes(data),
    "write again": lambda root, name, _, data: (root / name).write_bytes(data),
    "read": lambda root, name, *_: digest((root / name).read_bytes()),
    "list": lambda root, name, *_: sorted(path.name for path in (root / name).parent.iterdir()),
    "stat": lambda root, name, *_: (root / name).stat().st_size,
    "cut": lambda root, name, *_: os.truncate(root / name, 0),
    "write and sync": lambda root, name, _, data: synced(root / name, data),
    "unlink": lambda root, name, *_: (root / name).unlink(),
    "rename": lambda root, name, other, _: (root / name).rename(root / other) and None,
    "mkdir": lambda root, name, *_: (root / name).parent.mkdir(),
    "rmdir": lambda root, name, *_: below(root, name, Path.rmdir),
    "rmtree": lambda root, name, _, data: below(root, name, shutil.rmtree) if len(data) == 3 else None,
}


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_do_what_they_do_to_a_directory(home: Any, store: Bucket, seed: int, tmp_path: Path) -> None:
    """A model: the same is done to a directory on a disk, and compared; at the end the bucket is, too."""
    dice, model = random.Random(seed), tmp_path / "model"
    model.mkdir()
    names = ["a", "b", "c", "d/a", "d/b", "d/e/a"]

    def done(root: Path, kind: str, *words: Any) -> Any:
        try:
            return OPERATIONS[kind](root, *words)
        except OSError as error:
            return error.errno

    put(store, "model/.keep", b"")
    (model / ".keep").touch()
    with writable(home, store, url="s3://bench/model") as target:
        for step in range(200):
            kind, size = dice.choice(list(OPERATIONS)), dice.choice([0, 3, 5000, PART + 7])
            words = (dice.choice(names), dice.choice(names), content(size, step))
            assert done(target, kind, *words) == done(model, kind, *words), (step, kind, words[:2], size)
        for name in names:
            assert done(target, "read", name) == done(model, "read", name)
    expected = {str(path.relative_to(model)): path.read_bytes() for path in model.rglob("*") if path.is_file()}
    found = {key.removeprefix("model/"): data for key, data in objects(store).items() if key.startswith("model/")}
    assert found == expected


def test_a_directory_on_a_disk_is_written_the_same_way(home: Any, store: Bucket, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with writable(home, store, url=f"file://{root}") as target:
        (target / "d").mkdir()
        for size in SIZES:
            (target / "d" / f"{size}").write_bytes(content(size))
            assert within(2, lambda size=size: (root / "d" / f"{size}").exists())
            assert (root / "d" / f"{size}").read_bytes() == (target / "d" / f"{size}").read_bytes() == content(size)
        (target / "d" / "1").rename(target / "one")
        assert (root / "one").read_bytes() == content(1)
        shutil.rmtree(target / "d")
        assert sorted(os.listdir(root)) == ["one"]  # noqa: PTH208


def test_what_cannot_be_written_to_is_said_before_it_is_mounted(home: Any, store: Bucket) -> None:
    with pytest.raises(InvalidError, match="5 MiB to 1 GiB"):
        Options(allow_write=True, part="1MB").settings("s3://bench", {}, str(home.cache_dir))
    settings = Options(allow_write=True, timeout_s=1.0).settings("http://127.0.0.1:1/a", {}, str(home.cache_dir))
    (home.cache_dir / "at").mkdir(parents=True)
    with pytest.raises(ForeloadError):
        program.start(str(home.cache_dir / "at"), settings, home.cache_dir / "log")


def test_without_it_nothing_can_be_written(home: Any, store: Bucket) -> None:
    before = objects(store)
    with mounted(home, store) as target:
        path = next((target / "small").iterdir())
        for attempt in (
            lambda: (target / "new").write_bytes(b"x"),
            lambda: path.write_bytes(b"x"),
            path.unlink,
            lambda: path.rename(target / "other"),
            (target / "d").mkdir,
            (target / "small").rmdir,
            lambda: os.truncate(path, 0),
        ):
            assert fails_with(attempt) == errno.EROFS
    assert objects(store) == before
