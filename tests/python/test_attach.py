"""`foreload attach`: programs that run already and map files are helped from outside, and stay as they are.

The programs are real ones over a slow file system of the project's own. Each says when it is ready, and goes on when it is told.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import lmdb
import numpy as np
import pytest
from bucket import SlowFs

BYTES = 24 << 20
RECORD, RECORDS = 196_608, 480
SOON = 90.0
#: Another user than root.
NOBODY = 65534


# -- files, programs and the command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("attached")
    dice = np.random.default_rng(1)
    (root / "plain.bin").write_bytes(dice.bytes(BYTES))
    (root / "other.bin").write_bytes(dice.bytes(BYTES))
    with lmdb.open(str(root / "data.mdb"), subdir=False, map_size=1 << 28, lock=False) as env:
        for begin in range(0, RECORDS, 60):
            with env.begin(write=True) as transaction:
                for number in range(begin, begin + 60):
                    transaction.put(b"%08d" % number, dice.bytes(RECORD))
    return root


@contextmanager
def mounted(files: Path, target: Path) -> Iterator[SlowFs]:
    """The files, each of their reads 5 ms away, and nothing of them in memory."""
    target.mkdir()
    with SlowFs(files, target, delay_ms=5.0, mb_s=400, options=["--keep-cache"]) as store:
        yield store


@pytest.fixture
def store(files: Path, tmp_path: Path) -> Iterator[SlowFs]:
    with mounted(files, tmp_path / "store") as store:
        yield store


def fetched(store: SlowFs) -> int:
    """Bytes that the store has read."""
    return int(Path(f"/proc/{store.pid}/io").read_text().split("rchar: ")[1].split("\n")[0])


def until(done: Callable[[], object]) -> None:
    """Waits for a condition."""
    end = time.monotonic() + SOON
    while not done():
        assert time.monotonic() < end, "it didn't come"
        time.sleep(0.005)


#: A program maps a file, and waits to be told.
PREAMBLE = """
import ctypes, json, mmap, os, sys, time, zlib
def wait():
    print("ready", flush=True)
    assert sys.stdin.readline() == "\\n", "left alone"
def mapped(path=None):
    with open(path or sys.argv[1], "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
def touch(m, begin=0, end=None):
    for at in range(begin, end or len(m), 1 << 20):
        zlib.crc32(memoryview(m)[at : at + (1 << 20)])
"""


#: A process of root's becomes nobody's, with all that it needs imported, for Python may lie where others can't read it. It allows again to be looked at.
AS_NOBODY = (
    f"import ctypes, os\nos.setgroups([])\nos.setgid({NOBODY})\nos.setuid({NOBODY})\nctypes.CDLL(None).prctl(4, 1)\n"
)
#: The command. A shell starts what runs in its background deaf to interrupts.
COMMAND = """
import signal; signal.signal(signal.SIGINT, signal.default_int_handler)
from foreload.cli import main
"""
#: It becomes nobody's just before it looks at a process.
LOOKS_AS_NOBODY = f"""
import foreload._core, foreload._settings.written
def attached(*words, real=foreload._core.Attached):
{textwrap.indent(AS_NOBODY, "    ")}
    return real(*words)
foreload._core.Attached = attached
"""


class Program:
    """A program that runs: Python code, or a command."""

    def __init__(self, code: str | list[object], *words: object, is_nobody_s: bool = False) -> None:
        if isinstance(code, str):
            code = [sys.executable, "-c", PREAMBLE + AS_NOBODY * is_nobody_s + textwrap.dedent(code)]
        command = [str(word) for word in (*code, *words)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self.ready()

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def said(self) -> str:
        """Its next line."""
        return self._pipe(self._process.stdout).readline()

    def ready(self) -> None:
        """Waits until it says so."""
        assert self.said() == "ready\n"

    def go(self) -> None:
        """Lets it go on."""
        self._pipe(self._process.stdin).write("\n")
        self._pipe(self._process.stdin).flush()

    def ended(self) -> str:
        """Lets it go on, and waits for its end: what it has printed."""
        out, _ = self._process.communicate("\n", timeout=SOON)
        assert self._process.returncode == 0
        return out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class Attached:
    """The command at work."""

    def __init__(self, pid: int, tmp_path: Path, *words: object, is_nobody_s: bool = False) -> None:
        self.stats = tmp_path / "stats.jsonl"
        self.stats.unlink(missing_ok=True)
        code = COMMAND + LOOKS_AS_NOBODY * is_nobody_s + "main()"
        command = [sys.executable, "-c", code, "attach", str(pid), "--stats", str(self.stats), *map(str, words)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        until(lambda: self.stats.exists() or self.process.poll() is not None)

    def lines(self) -> list[dict[str, Any]]:
        """What was done so far."""
        return [json.loads(line) for line in self.stats.read_text().splitlines()]

    def follows(self, mappings: int = 1) -> None:
        """Waits until it follows so many mappings, those that have ended included."""
        until(lambda: sum(line["mappings"] for line in self.lines()) >= mappings)

    def holds(self, path: Path) -> bool:
        """Whether it has a file open."""
        held = (fd.readlink() for fd in Path(f"/proc/{self.pid}/fd").iterdir() if fd.is_symlink())
        return path in held

    def ended(self, code: int = 0) -> tuple[str, str]:
        """Waits for its end: what it has printed."""
        out, errors = self.process.communicate(timeout=SOON)
        assert self.process.returncode == code, errors
        return out, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def total(lines: list[dict[str, Any]], name: str) -> int:
    return sum(int(line[name]) for line in lines)


# -- what it brings --------------------------------------------------------------------------------------------------

LMDB = """
import lmdb
env = lmdb.open(sys.argv[1], subdir=False, readonly=True, lock=False)
wait()
begun, found = time.perf_counter(), 0
with env.begin(buffers=True) as t:
    for n in range(0, int(sys.argv[2]), int(sys.argv[3])):
        found = zlib.crc32(t.get(b"%08d" % n), found)
print(json.dumps({"found": found, "seconds": time.perf_counter() - begun}))
"""


@pytest.mark.needs("fuse")
@pytest.mark.parametrize(("each", "times", "most"), [(1, 2.0, 1.1), (8, 1.5, 2.3)], ids=["in order", "every 8th"])
def test_an_unmodified_program_reads_the_same_sooner(
    files: Path, tmp_path: Path, each: int, times: float, most: float
) -> None:
    with (
        mounted(files, tmp_path / "kernel") as store,
        Program(LMDB, store.target / "data.mdb", RECORDS, each) as program,
    ):
        kernel = json.loads(program.ended())
    with (
        mounted(files, tmp_path / "ours") as store,
        Program(LMDB, store.target / "data.mdb", RECORDS, each) as program,
        Attached(program.pid, tmp_path, "--mmap", "*.mdb", "--json") as attached,
    ):
        attached.follows()
        before = fetched(store)
        ours = json.loads(program.ended())
        read = fetched(store) - before
        out, errors = attached.ended()
    assert ours["found"] == kernel["found"]
    assert kernel["seconds"] > times * ours["seconds"]
    useful = RECORDS // each * RECORD
    assert read < most * useful
    (line,) = json.loads(out)["processes"]
    assert errors == ""
    assert line["used_bytes"] > useful / 2
    assert (line["pid"], line["mappings"], line["not_followed"]) == (program.pid, 1, 0)
    assert line == attached.lines()[0]


@pytest.mark.needs("fuse")
def test_with_no_window_it_only_looks(store: SlowFs, tmp_path: Path) -> None:
    with (
        Program("m = mapped()\nwait()\ntouch(m)\n", store.target / "plain.bin") as program,
        Attached(program.pid, tmp_path, "--mmap", "*.bin", "--window", "0") as attached,
    ):
        attached.follows()
        program.ended()
        out, _ = attached.ended()
    (line,) = attached.lines()
    assert (line["asked_bytes"], line["calls"]) == (0, 0)
    # What was touched just before the end is seen no more.
    assert line["touched_bytes"] > BYTES / 2
    assert f"process {program.pid} has ended" in out


@pytest.mark.needs("fuse")
def test_a_part_of_a_file_is_fetched_and_nothing_else_of_it(store: SlowFs, tmp_path: Path) -> None:
    code = """
    with open(sys.argv[1], "rb") as file:
        m = mmap.mmap(file.fileno(), 8 << 20, prot=mmap.PROT_READ, offset=12 << 20)
    wait()
    touch(m)
    """
    with (
        Program(code, store.target / "plain.bin") as program,
        Attached(program.pid, tmp_path, "--mmap", "*.bin") as attached,
    ):
        attached.follows()
        before = fetched(store)
        program.ended()
        attached.ended()
    assert fetched(store) - before < 9 << 20
    assert attached.lines()[0]["used_bytes"] > 4 << 20


@pytest.mark.needs("fuse")
def test_a_second_pass_is_fetched_as_the_first_was(store: SlowFs, tmp_path: Path) -> None:
    code = """
    import numpy as np
    m = mapped()
    wait()
    touch(m)
    wait()
    at, libc = np.frombuffer(m, np.uint8).ctypes.data, ctypes.CDLL(None)
    libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(len(m)), 21)  # MADV_PAGEOUT
    pages = (ctypes.c_ubyte * (len(m) // 4096))()
    libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(len(m)), pages)
    print(sum(page & 1 for page in pages))
    wait()
    touch(m)
    """
    with (
        Program(code, store.target / "plain.bin") as program,
        Attached(program.pid, tmp_path, "--mmap", "*.bin") as attached,
    ):
        attached.follows()
        program.go()
        program.ready()
        until(lambda: attached.lines()[0]["touched_bytes"] == BYTES)
        program.go()
        left = int(program.said())
        program.ready()
        if left * 4096 > BYTES // 10:
            pytest.skip("the kernel keeps the pages")
        # It looks at what was touched from time to time, for as long as a small part of a core allows.
        time.sleep(2)
        program.ended()
        attached.ended()
    (line,) = attached.lines()
    assert line["touched_bytes"] > BYTES * 1.6
    assert line["used_bytes"] > BYTES * 1.3


@pytest.mark.needs("fuse")
def test_a_program_that_is_linked_statically_is_helped(store: SlowFs, tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no compiler")
    source, path = tmp_path / "main.c", store.target / "plain.bin"
    source.write_text(
        """
        #include <fcntl.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/mman.h>
        int main(int count, char **words) {
            size_t bytes = atol(words[2]), sum = 0;
            volatile unsigned char *m = mmap(0, bytes, PROT_READ, MAP_SHARED, open(words[1], O_RDONLY), 0);
            puts("ready"); fflush(stdout); getchar();
            for (size_t at = 0; at < bytes; at++) sum += m[at];
            printf("%zu\\n", sum);
        }
        """
    )
    built = subprocess.run([compiler, "-static", "-o", tmp_path / "main", source], capture_output=True, check=False)
    if built.returncode:
        pytest.skip("static programs can't be made here")
    with (
        Program([tmp_path / "main", path, BYTES]) as program,
        Attached(program.pid, tmp_path, "--mmap", "*.bin") as attached,
    ):
        attached.follows()
        out = program.ended()
        attached.ended()
    assert int(out) == int(np.fromfile(path, np.uint8).sum())
    assert attached.lines()[0]["used_bytes"] > BYTES / 2


# -- the life of a program -------------------------------------------------------------------------------------------


@pytest.mark.needs("fuse")
def test_a_file_is_held_as_long_as_it_is_mapped_and_followed_when_it_is_mapped_again(
    store: SlowFs, tmp_path: Path
) -> None:
    code = """
    m = mapped()
    wait()
    m.close()
    wait()
    m = mapped()
    wait()
    touch(m)
    m.close()
    wait()
    """
    path = store.target / "plain.bin"
    with Program(code, path) as program, Attached(program.pid, tmp_path, "--mmap", str(path)) as attached:
        attached.follows()
        assert attached.holds(path)
        program.go()
        program.ready()
        until(lambda: not attached.holds(path))
        program.go()
        program.ready()
        attached.follows(2)
        program.go()
        program.ready()
        until(lambda: not attached.holds(path))
        program.ended()
        attached.ended()
    (line,) = attached.lines()
    assert line["used_bytes"] > BYTES / 2


@pytest.mark.needs("fuse")
def test_what_a_program_starts_is_helped_and_a_child_that_ends_is_kept_in_mind(store: SlowFs, tmp_path: Path) -> None:
    code = """
    m = mapped()
    wait()
    children = []
    for n in range(2):
        pid = os.fork()
        if pid == 0:
            time.sleep(0.5)  # so long that it is found
            touch(m, n * len(m) // 2, (n + 1) * len(m) // 2)
            os._exit(0)
        children.append(pid)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
    print(json.dumps(children))
    wait()
    """
    with (
        Program(code, store.target / "plain.bin") as program,
        Attached(program.pid, tmp_path, "--mmap", "*.bin") as attached,
    ):
        attached.follows()
        program.go()
        children = json.loads(program.said())
        program.ready()
        program.ended()
        attached.ended()
    lines = {line["pid"]: line for line in attached.lines()}
    assert set(lines) == {program.pid, *children}
    for child in children:
        assert lines[child]["used_bytes"] > BYTES / 8
    assert lines[program.pid]["touched_bytes"] == 0


@pytest.mark.needs("fuse")
def test_another_program_that_takes_its_place_is_followed(store: SlowFs, tmp_path: Path) -> None:
    code = """
    m = mapped()
    wait()
    if len(sys.argv) < 4:
        os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], sys.argv[1], sys.argv[2], "again"])
    touch(m)
    """
    code = PREAMBLE + textwrap.dedent(code)
    with (
        Program(code, store.target / "plain.bin", code) as program,
        Attached(program.pid, tmp_path, "--mmap", "*.bin") as attached,
    ):
        attached.follows()
        program.go()
        program.ready()
        attached.follows(2)
        program.ended()
        attached.ended()
    (line,) = attached.lines()
    assert line["used_bytes"] > BYTES / 3


@pytest.mark.needs("fuse")
def test_nothing_enters_the_program_and_nothing_stays_behind(store: SlowFs, tmp_path: Path) -> None:
    def names(place: Path) -> list[str]:
        return sorted(path.name for path in place.iterdir())

    def look() -> tuple[list[str], list[str], str]:
        place = Path(f"/proc/{program.pid}")
        maps = (place / "maps").read_text()
        return names(place / "task"), names(place / "fd"), maps

    with Program(
        "m = mapped()\nwait()\ntouch(m, 0, 4 << 20)\nwait()\nprint(zlib.crc32(m))\n", store.target / "plain.bin"
    ) as program:
        before = look()
        with Attached(program.pid, tmp_path, "--mmap", "*.bin") as attached:
            attached.follows()
            assert look() == before
            program.go()
            program.ready()
            until(lambda: attached.lines()[0]["touched_bytes"] > 2 << 20)
            attached.process.send_signal(signal.SIGINT)
            out, errors = attached.ended(130)
        assert (out, errors) == ("", "")
        assert attached.lines()[0]["touched_bytes"] > 2 << 20
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
        assert program.ended() == f"{zlib.crc32((store.target / 'plain.bin').read_bytes())}\n"


def test_a_program_that_maps_nothing_yet_is_waited_for(files: Path, tmp_path: Path) -> None:
    with (
        Program("wait()\nm = mapped()\nwait()\n", files / "plain.bin") as program,
        Attached(program.pid, tmp_path, "--mmap", "plain.*", "--json") as attached,
    ):
        assert attached.lines() == []
        program.go()
        program.ready()
        attached.follows()
        program.ended()
        out, errors = attached.ended()
    assert errors == f"foreload: process {program.pid} maps no file that --mmap means yet; waiting for one\n"
    assert [line["mappings"] for line in json.loads(out)["processes"]] == [1]


def test_what_is_written_or_run_or_small_is_left_alone(files: Path, tmp_path: Path) -> None:
    code = """
    shared = open(sys.argv[2], "r+b")
    shared.truncate(4 << 20)
    kept = [mmap.mmap(shared.fileno(), 0), mmap.mmap(shared.fileno(), 1 << 19, prot=mmap.PROT_READ)]
    kept.append(mapped())
    wait()
    """
    written = tmp_path / "written.bin"
    written.touch()
    with (
        Program(code, files / "plain.bin", written) as program,
        Attached(program.pid, tmp_path, "--mmap", "*.bin", "--mmap", "*.so*") as attached,
    ):
        attached.follows()
        assert not attached.holds(written)
        program.ended()
        attached.ended()
    (line,) = attached.lines()
    assert line["not_followed"] == 0


# -- who may, and what is said ---------------------------------------------------------------------------------------


def command(*words: object, is_nobody_s: bool = False) -> subprocess.CompletedProcess[str]:
    code = COMMAND + LOOKS_AS_NOBODY * is_nobody_s + "main()"
    words = (sys.executable, "-c", code, "attach", *map(str, words))
    return subprocess.run(words, capture_output=True, text=True, timeout=SOON, check=False)


def test_another_user_s_program_is_refused(files: Path) -> None:
    is_root = os.geteuid() == 0
    with Program("m = mapped()\nwait()\n", files / "plain.bin") as program:
        # Who isn't root has a program of root's that is always there.
        done = command(program.pid if is_root else 1, "--mmap", "*.bin", "--json", is_nobody_s=is_root)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"], error["exit_code"]) == (4, "denied", 4)
    assert "may not be looked at" in error["message"]


@pytest.mark.needs("root")
def test_a_user_s_own_program_takes_no_privilege(files: Path, request: pytest.FixtureRequest) -> None:
    # What pytest makes is closed to others.
    place = Path(tempfile.mkdtemp())
    request.addfinalizer(lambda: shutil.rmtree(place))
    place.chmod(0o777)
    path = place / "plain.bin"
    path.write_bytes((files / "plain.bin").read_bytes())
    secret = place / "secret.bin"
    secret.write_bytes(path.read_bytes())
    code = """
    kept = [mapped(), mapped(sys.argv[2])]
    wait()
    os.chmod(sys.argv[2], 0)
    wait()
    touch(kept[0])
    wait()
    """
    os.chown(secret, NOBODY, NOBODY)
    with Program(code, path, secret, is_nobody_s=True) as program:
        program.go()
        program.ready()
        with Attached(program.pid, place, "--mmap", "*.bin", "--json", is_nobody_s=True) as attached:
            attached.follows()
            program.go()
            program.ready()
            until(lambda: attached.lines()[0]["touched_bytes"] > BYTES / 2)
            program.ended()
            _, errors = attached.ended()
    assert errors == f"foreload: {secret}: Permission denied (os error 13)\n"
    (line,) = attached.lines()
    assert (line["mappings"], line["not_followed"]) == (1, 1)


def is_followed(code: str, pattern: str, files: Path, tmp_path: Path) -> None:
    """Whether a program's file is followed that it maps by a name of its own, below a directory that it is given beside the files."""
    place = tmp_path / "place"
    place.mkdir()
    with (
        Program(code, files, place) as program,
        Attached(program.pid, tmp_path, "--mmap", pattern, "--json") as attached,
    ):
        attached.follows()
        program.go()
        program.ready()
        until(lambda: attached.lines()[0]["touched_bytes"] > BYTES / 2)
        program.ended()
        assert attached.ended()[1] == ""


@pytest.mark.needs("root", "userns")
def test_root_helps_a_program_whose_files_have_other_names_elsewhere(files: Path, tmp_path: Path) -> None:
    code = """
    libc = ctypes.CDLL(None, use_errno=True)
    mount = lambda what, where, flags: libc.mount(what.encode(), where.encode(), None, ctypes.c_ulong(flags), None)
    assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
    assert mount("none", "/", 0x44000) == 0  # MS_REC | MS_PRIVATE
    assert mount(sys.argv[1], sys.argv[2], 0x1000) == 0  # MS_BIND
    m = mapped(sys.argv[2] + "/plain.bin")
    wait()
    touch(m)
    wait()
    """
    is_followed(code, "*.bin", files, tmp_path)


@pytest.mark.needs("root", "userns")
def test_a_file_that_is_told_with_another_device_where_it_is_mapped_is_followed(files: Path, tmp_path: Path) -> None:
    """As on Btrfs, and on an overlay whose upper part is on another file system."""
    code = """
    libc = ctypes.CDLL(None, use_errno=True)
    def mount(what, where, kind, options):
        assert libc.mount(what.encode(), where.encode(), kind.encode(), 0, options.encode()) == 0, os.strerror(ctypes.get_errno())
    lower, place = sys.argv[1:]
    assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
    assert libc.mount(b"none", b"/", None, ctypes.c_ulong(0x44000), None) == 0  # MS_REC | MS_PRIVATE
    mount("tmpfs", place, "tmpfs", "size=64m")
    for name in ("upper", "work", "all"):
        os.mkdir(f"{place}/{name}")
    with open(lower + "/plain.bin", "rb") as plain, open(place + "/upper/upper.bin", "wb") as upper:
        upper.write(plain.read())
    mount("overlay", place + "/all", "overlay", f"lowerdir={lower},upperdir={place}/upper,workdir={place}/work")
    m = mapped(place + "/all/upper.bin")
    stat, told = os.stat(place + "/all/upper.bin"), [line.split() for line in open("/proc/self/maps") if "upper.bin" in line]
    assert told[-1][3] != f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}", "this kernel tells both the same"
    wait()
    touch(m)
    wait()
    """
    is_followed(code, "*upper.bin", files, tmp_path)


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for words, code, said in (
        ((gone.pid, "--mmap", "x"), 3, f"there is no process {gone.pid}"),
        ((2**31 - 1, "--mmap", "x"), 3, "there is no process"),
        ((0, "--mmap", "x"), 2, "PID"),
        (("me", "--mmap", "x"), 2, "PID"),
        ((os.getpid(),), 2, "--mmap"),
        ((os.getpid(), "--mmap", " "), 2, "say which files"),
        ((os.getpid(), "--mmap", "x", "--window", "much"), 2, "--window"),
        ((os.getpid(), "--mmap", "x", "--stats", tmp_path / "no" / "file"), 2, "no directory"),
    ):
        done = command(*words)
        assert (done.returncode, done.stdout) == (code, ""), words
        assert said in " ".join(done.stderr.replace("│", " ").split()), words
