"""Mapped files that are written, replaced and cut short while they are read, and where the machine gives little.

Bytes are compared with what the packages lmdb and safetensors read: they are right, or there is an error that names the file.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from groups import Group
from home import Home
from torch.utils.data import (
    DataLoader,
)

import foreload as fl
import foreload.mmap as fm
from foreload._mapped.layout import layout
from foreload._settings.memory import available_bytes
from foreload.errors import ChangedError, CorruptError, InvalidError
from mapping import COUNT, RECORD, SOON, Mapped, fetched, key, printed, record, slowly, started, value, write
from small import until
from test_mapped import are_there, evict, resident

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 MB of large ones."""
    path = tmp_path_factory.mktemp("records") / "data.mdb"
    write(path, ((n, record(n)) for n in range(60)))
    return path


# -- files that change -----------------------------------------------------------------------------------------------

WRITER = """
    import lmdb, random, sys
    sizes = (0, 1, 37, 1800, 2500, 40_000, 196_608)
    def value(n, version):
        return random.Random(n * 1000 + version).randbytes(sizes[(n + version) % len(sizes)])
    writemap = "writemap" in sys.argv
    env = lmdb.open(sys.argv[1], subdir=False, map_size=1 << 26, lock=False, sync=False, writemap=writemap)
    transaction = None
    for line in sys.stdin:
        what, *numbers = line.split()
        if transaction is None:
            transaction = env.begin(write=True)
        if what == "put":
            first, end, version = map(int, numbers)
            for n in range(first, end):
                transaction.put(b"%08d" % n, value(n, version))
        elif what == "delete":
            for n in range(*map(int, numbers)):
                transaction.delete(b"%08d" % n)
        elif what == "commit":
            transaction.commit()
            transaction = None
        print("ok", flush=True)
"""


@contextlib.contextmanager
def writer(path: Path, *words: str) -> Iterator[Callable[[str], None]]:
    """Another process that has a file open and writes it."""
    program = started(WRITER, path, *words, stdin=subprocess.PIPE)
    into, out = program.stdin, program.stdout
    assert into is not None
    assert out is not None

    def do(what: str) -> None:
        into.write(what + "\n")
        into.flush()
        assert out.readline() == "ok\n"

    try:
        yield do
    finally:
        program.kill()
        program.communicate()


def entries(path: Path) -> dict[bytes, bytes]:
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
        return {bytes(name): bytes(data) for name, data in transaction.cursor()}


def check(path: Path, wrapped: Any, sampler: list[int]) -> None:
    """The index, a data set and a wrapped sampler have what LMDB has."""
    right, data = entries(path), path.read_bytes()
    index, whole = fm.LmdbIndex(path), fl.open(path, refresh=True)
    found = {index.key(n): data[slice(at := index.at(n)[0], at + index.at(n)[1])] for n in range(len(index))}
    assert found == right
    assert {whole.key(n).encode(): whole.read(n) for n in range(len(whole))} == right
    sampler[:] = random.Random(1).sample([int(name) for name in right], len(right))
    loader: Any = DataLoader(Mapped(path), 7, sampler=wrapped, collate_fn=list, num_workers=2)
    assert [each for batch in loader for each in batch] == [(n, right[key(n)]) for n in sampler]


STEPS = ["put 100 140 1", "delete 0 60", "put 0 60 2", "put 30 200 3", "delete 100 200", "put 0 120 4"]


@pytest.mark.parametrize("how", ["write", "writemap"])
def test_a_file_that_is_written_is_read_as_of_its_last_transaction(tmp_path: Path, how: str) -> None:
    path = tmp_path / "data.mdb"
    write(path, ((n, value(n)) for n in range(COUNT)))
    sampler: list[int] = []
    wrapped = fm.wrap_sampler(sampler, path, key)
    check(path, wrapped, sampler)
    with writer(path, how) as do:
        for step in STEPS:
            do(step)
            check(path, wrapped, sampler)
            do("commit")
            check(path, wrapped, sampler)


@pytest.mark.parametrize("how", ["write", "writemap"])
def test_a_data_set_of_a_file_that_was_written_is_read_as_it_was_or_refused(tmp_path: Path, how: str) -> None:
    """The pages of a transaction are written again by the third one after it."""
    path = tmp_path / "data.mdb"
    write(path, ((n, value(n)) for n in range(COUNT)))
    with writer(path, how) as do:
        for version in range(18):
            do(f"put 0 {COUNT} {version % 7 * 7}")
            do("commit")
            if version % 6 == 1:
                whole, right = fl.open(path, refresh=True), entries(path)
            if version % 6 == 5:
                refused = 0
                for n, wanted in enumerate(right.values()):
                    try:
                        assert whole.read(n) == wanted
                    except ChangedError as error:
                        refused += "data.mdb" in str(error)
                assert refused


WRITING = """
    import lmdb, random, sys
    def value(n, version):
        return b"%08d %08d " % (n, version) + random.Random(n * 1000 + version).randbytes(n * 700)
    env = lmdb.open(sys.argv[1], subdir=False, map_size=1 << 28, lock=False, sync=False)
    version = 0
    while True:
        with env.begin(write=True) as transaction:
            for n in random.Random(version).sample(range(60), 20):
                transaction.put(b"%08d" % n, value(n, version))
        if version == 0:
            with env.begin(write=True) as transaction:
                for n in range(60):
                    transaction.put(b"%08d" % n, value(n, 0))
            print("ready", flush=True)
        version += 1
"""


def test_a_file_that_is_written_all_the_time_is_read_right_or_not_at_all(tmp_path: Path) -> None:
    """Each value says which it is, and whether all of it is there."""
    path = tmp_path / "data.mdb"
    program = started(WRITING, path)
    read = refused = named = 0
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        end = time.monotonic() + 20
        while time.monotonic() < end and (read < 20 or refused < 20):
            try:
                data = fl.open(path, refresh=True)
                assert [data.key(n).encode() for n in range(len(data))] == [key(n) for n in range(60)]
                n = read % 60
                found = data.read(n)
            except (CorruptError, InvalidError) as error:
                named += "data.mdb" in str(error)
                refused += 1
                continue
            read += 1
            said, version = found[:18].split()
            assert (int(said), found[18:]) == (n, random.Random(n * 1000 + int(version)).randbytes(n * 700))
            os.kill(program.pid, signal.SIGSTOP)
            assert found == data.read(n) if read % 2 else True
            os.kill(program.pid, signal.SIGCONT)
    finally:
        program.kill()
        program.communicate()
    assert named == refused > 0


def test_a_file_that_is_replaced_is_looked_up_again(tmp_path: Path) -> None:
    """By one with its tensors elsewhere, and then by one that is shorter; the pages that come are the new one's."""
    path = tmp_path / "model.safetensors"

    def replace(tensors: dict[str, Any]) -> None:
        safetensors.numpy.save_file(tensors, tmp_path / "new")
        (tmp_path / "new").rename(path)
        evict(path)

    dice = np.random.default_rng(2)
    tensors = {name: dice.random(60_000) for name in "abc"}
    replace(tensors)
    sampler = fm.wrap_sampler(["c", "a"], path)
    for step in range(3):
        if step == 1:
            replace(tensors := {"0": dice.random(2_000_000), **{name: dice.random(60_000) for name in "abc"}})
        if step == 2:
            replace(tensors := {name: dice.random(2) for name in "ca"})
        found, going = layout(path), iter(sampler)
        seen = [next(going)]
        until(lambda found=found: are_there(path, *found.parts[found.names.index("c")]), 20)
        if step == 1:
            assert not are_there(path, *found.parts[found.names.index("0")])
        seen += going
        assert seen == ["c", "a"]
        with safetensors.safe_open(path, "np") as file:
            assert all(np.array_equal(file.get_tensor(name), tensors[name]) for name in seen)
    replace({"a": dice.random(9)})
    with pytest.warns(RuntimeWarning, match=r"model\.safetensors has nothing by the name 'c'; it is another file"):
        assert list(sampler) == ["c", "a"]


CUT = """
    import os, sys, time
    import foreload.mmap as fm
    path = sys.argv[1]
    index = fm.LmdbIndex(path)
    sampler = fm.wrap_sampler(range(60), path)
    going = iter(sampler)
    next(going)
    ahead = fm.prefetch(path, window=1)
    os.truncate(path, 3 * 4096 + 5)
    for what in (lambda: ahead.wait(20), lambda: [index.at(n) for n in range(60)], index.tree, lambda: list(going),
                 lambda: fm.LmdbIndex(path), lambda: list(sampler), lambda: fm.wrap_sampler([0], path),
                 lambda: fm.advise(path, [(20_000, 5)])):
        try:
            what()
            print("fine")
        except (OSError, ValueError) as error:
            print(type(error).__name__, "named" if path in str(error) else error)
"""


def test_a_file_that_is_cut_short_is_an_error_and_ends_nothing(records: Path, tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    shutil.copy(records, path)
    evict(path)
    said = printed(started(CUT, path)).split("\n")
    # A sampler names what it names: that nothing can be fetched ahead is a warning.
    corrupt = "CorruptError named"
    assert said == ["OSError named", "fine", "fine", "fine", corrupt, "fine", corrupt, "OSError named", ""]


@pytest.mark.needs("fuse")
def test_pages_that_were_freed_are_not_fetched(tmp_path: Path) -> None:
    """They lie between values as the tree does."""
    path = tmp_path / "data.mdb"
    write(path, ((n, record(n)) for n in range(100)))
    write(path, (), range(10, 90))
    with slowly(tmp_path) as mounted:
        before = fetched(mounted)
        there = mounted.target / "data.mdb"
        index, order = fm.LmdbIndex(there), random.Random(2).sample([*range(10), *range(90, 100)], 20)
        with there.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for n in fm.wrap_sampler(order, there, key):
                first, length = index.range(key(n))
                assert os.pread(file.fileno(), length, first) == record(n)
        took = fetched(mounted) - before
    assert took <= 1.05 * 20 * RECORD + (1 << 17)


# -- little memory, and other places ---------------------------------------------------------------------------------


def test_a_file_near_the_size_of_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    path.touch()
    os.truncate(path, int(available_bytes() * 0.9))
    with pytest.raises(InvalidError, match="of memory are available"):
        fm.prefetch(path)
    # Parts of it aren't.
    assert fm.prefetch(path, ranges=[(path.stat().st_size - 100, 100)]).wait(20)
    fm.advise(path, [(0, path.stat().st_size)]).stop()


LITTLE = """
    import os, random, sys, time, zlib
    import foreload.mmap as fm
    directory, count = sys.argv[1], int(sys.argv[2])
    path = directory + "/data.mdb"
    order = random.Random(3).sample(range(count), count)
    key = lambda n: b"%08d" % n
    try:
        fm.prefetch(path)
        print("not refused")
    except ValueError as error:
        print("refused")
    assert fm.prefetch(path, ranges=[(0, 20 << 20)]).wait(30)
    index, found = fm.LmdbIndex(path), 0
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for n in fm.wrap_sampler(order, path, key):
            first, length = index.range(key(n))
            found = zlib.crc32(os.pread(file.fileno(), length, first), found)
            # Slower than the store.
            time.sleep(0.002)
    print(found)
"""


@pytest.mark.needs("cgroup", "fuse")
def test_in_a_control_group_what_is_fetched_fits(tmp_path: Path) -> None:
    """A file of twice the group's memory, of which each record is fetched once."""
    try:
        group = Group(160 << 20)
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    count = (320 << 20) // RECORD
    path = tmp_path / "data.mdb"
    write(path, ((n, record(n)) for n in range(count)))
    try:
        with slowly(tmp_path, 1) as mounted:
            before = fetched(mounted)
            # Nobody's memory but theirs is counted.
            said = printed(started(LITTLE, mounted.target, count, preexec_fn=group.join))
            took = fetched(mounted) - before
        assert group.kills() == 0
    finally:
        until(lambda: not (group.path / "cgroup.procs").read_text(), 20)
        group.dissolve()
    wanted = 0
    for n in random.Random(3).sample(range(count), count):
        wanted = zlib.crc32(record(n), wanted)
    assert said == f"refused\n{wanted}\n"
    assert took <= 1.05 * path.stat().st_size + (20 << 20)


ELSEWHERE = """
    import os, sys
    import foreload.mmap as fm
    path = sys.argv[1]
    if "nobody" in sys.argv:
        # From here on: the interpreter may be root's alone.
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    assert fm.prefetch(path).wait(20)
    if path.endswith("mdb"):
        index = fm.LmdbIndex(path)
        assert list(fm.wrap_sampler(range(len(index)), path)) == list(range(len(index)))
        print(len(index))
    else:
        print(fm.prefetch(path).nbytes)
"""


@pytest.mark.needs("userns")
@pytest.mark.parametrize("hidden", ["/sys", "/proc"])
def test_what_cannot_be_asked_of_the_kernel_is_done_without(records: Path, tmp_path: Path, hidden: str) -> None:
    # The agent needs /proc; the pages don't.
    path = tmp_path / ("data.mdb" if hidden == "/sys" else "data.bin")
    shutil.copy(records, path)
    evict(path)
    command = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs none {hidden} && exec "$@"', "sh", sys.executable, "-c"]
    done = subprocess.run(
        [*command, textwrap.dedent(ELSEWHERE), str(path)], capture_output=True, text=True, timeout=SOON, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("60\n" if hidden == "/sys" else f"{path.stat().st_size}\n")
    assert all(resident(path))


@pytest.mark.needs("root")
def test_who_may_only_read_a_file_has_it_fetched_as_well(records: Path, home: Home) -> None:
    """The kernel doesn't tell somebody else what of a file is in memory: nobody asks it."""
    directory = Path(tempfile.mkdtemp(prefix="fl-nobody-"))
    try:
        path = directory / "data.mdb"
        shutil.copy(records, path)
        evict(path)
        for place, mode in ((directory, 0o755), (path, 0o644)):
            place.chmod(mode)
        own = directory / "own"
        own.mkdir()
        os.chown(own, 65534, 65534)
        environment = {
            **os.environ,
            "FORELOAD_CACHE_DIR": str(own / "cache"),
            "FORELOAD_RUNTIME_DIR": str(own / "run"),
            "HOME": str(own),
        }
        assert printed(started(ELSEWHERE, path, "nobody", env=environment)) == "60\n"
        assert all(resident(path))
        path.chmod(0o600)
        refused = started(ELSEWHERE, path, "nobody", env=environment)
        _, errors = refused.communicate(timeout=SOON)
        assert refused.returncode == 1
        assert errors.splitlines()[-1].startswith("PermissionError")
        assert str(path) in errors.splitlines()[-1]
        until(lambda: f" {own}/" not in Path("/proc/net/unix").read_text(), 20)
    finally:
        shutil.rmtree(directory)
