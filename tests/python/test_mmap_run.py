"""Programs that map files, under the preload library: what they read and write is the same as without it, and it is there before they touch it.

The programs are real ones, over a slow file system of the project's own; the library is the one that the wheel ships.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pytest
import safetensors.numpy
from bucket import SlowFs

from foreload._mapped import preload
from foreload.errors import InvalidError, NotFoundError

pytestmark = pytest.mark.needs("fuse")

BYTES = 24 << 20
RECORD = 196_608
SOON = 120


# -- files and programs ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of each kind, about 24 MiB."""
    root = tmp_path_factory.mktemp("mapped")
    dice = np.random.default_rng(1)
    (root / "plain.bin").write_bytes(dice.bytes(BYTES))
    np.save(root / "array.npy", dice.integers(0, 255, (BYTES // 4096, 4096), dtype=np.uint8))
    tensors = {f"layer.{n}": dice.integers(0, 255, BYTES // 6, dtype=np.uint8) for n in range(6)}
    safetensors.numpy.save_file(tensors, root / "model.safetensors")
    with pa.ipc.new_file(root / "table.arrow", pa.schema([("value", pa.int64())])) as writer:
        for _ in range(12):
            writer.write_batch(pa.record_batch({"value": dice.integers(0, 1 << 60, BYTES // 8 // 12)}))
    with (
        lmdb.open(str(root / "data.mdb"), subdir=False, map_size=1 << 28, lock=False) as env,
        env.begin(write=True) as transaction,
    ):
        for number in range(BYTES // RECORD):
            transaction.put(b"%08d" % number, dice.bytes(RECORD))
    import torch

    torch.save({"a": torch.from_numpy(dice.integers(0, 255, BYTES, dtype=np.uint8))}, root / "weights.pt")
    return root


@pytest.fixture
def mounted(files: Path, tmp_path: Path) -> Iterator[SlowFs]:
    """The files, each of their reads 2 ms away, and nothing of them in memory."""
    target = tmp_path / "store"
    target.mkdir()
    with SlowFs(files, target, delay_ms=2.0, mb_s=400, options=["--keep-cache"]) as mounted:
        yield mounted


@pytest.fixture
def store(mounted: SlowFs) -> Path:
    """Where they are."""
    return mounted.target


def fetched(mounted: SlowFs) -> int:
    """Bytes that the store has read."""
    return int(Path(f"/proc/{mounted.pid}/io").read_text().split("rchar: ")[1].split("\n")[0])


def run(
    code: str,
    *words: object,
    pattern: str | None = None,
    detector: str = "poll",
    stats: Path | None = None,
    **more: Any,
) -> subprocess.CompletedProcess[str]:
    """Runs Python code; with a pattern under the library."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    if pattern is not None:
        environment = preload.environment([pattern], detector=detector, stats=stats, given=environment)
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SOON, check=False, **more)


def lines(stats: Path) -> list[dict[str, Any]]:
    """What each process has written."""
    assert stats.stat().st_size % preload.LINE_BYTES == 0
    return [json.loads(line) for line in stats.read_text().splitlines()]


CLIENTS = {
    "lmdb": (
        "data.mdb",
        """
        import lmdb, sys, zlib
        with lmdb.open(sys.argv[1], subdir=False, readonly=True, lock=False) as env, env.begin(buffers=True) as t:
            found = 0
            for key, value in t.cursor():
                found = zlib.crc32(value, zlib.crc32(key, found))
        print(found)
        """,
    ),
    "numpy, read": (
        "array.npy",
        """
        import numpy as np, sys
        a = np.load(sys.argv[1], mmap_mode="r")
        print(sum(int(row.sum()) for row in a))
        """,
    ),
    "numpy, copied on write": (
        "array.npy",
        """
        import numpy as np, sys
        a = np.load(sys.argv[1], mmap_mode="c")
        # Far apart, so that what is fetched between them covers them.
        written = range(50, len(a), 297)
        for at in written:
            a[at, :9] = at % 251
        total = sum(int(row.sum()) for row in a)
        assert all((a[at, :9] == at % 251).all() for at in written), "what was written is gone"
        print(total, int(np.load(sys.argv[1], mmap_mode="r")[50, :9].sum()))
        """,
    ),
    "safetensors, numpy": (
        "model.safetensors",
        """
        import sys
        from safetensors import safe_open
        with safe_open(sys.argv[1], "np") as file:
            print({name: int(file.get_tensor(name).sum()) for name in sorted(file.keys())})
        """,
    ),
    "safetensors, torch": (
        "model.safetensors",
        """
        import sys, torch
        from safetensors.torch import load_file
        print({name: int(tensor.sum(dtype=torch.int64)) for name, tensor in sorted(load_file(sys.argv[1]).items())})
        """,
    ),
    "pyarrow": (
        "table.arrow",
        """
        import pyarrow as pa, pyarrow.compute as pc, sys
        file = pa.ipc.open_file(pa.memory_map(sys.argv[1]))
        print([pc.sum(file.get_batch(n).column(0)).as_py() for n in range(file.num_record_batches)])
        """,
    ),
    "torch.load": (
        "weights.pt",
        """
        import sys, torch
        tensor = torch.load(sys.argv[1], mmap=True)["a"]
        tensor[::4099] = 3
        print(int(tensor.sum(dtype=torch.int64)), int((tensor[::4099] == 3).sum()))
        """,
    ),
    "forked workers": (
        "array.npy",
        """
        import numpy as np, sys, torch
        from torch.utils.data import DataLoader
        class Rows:
            a = np.load(sys.argv[1], mmap_mode="r")
            def __len__(self): return len(self.a)
            def __getitem__(self, n): return int(self.a[n].sum())
        print([int(batch.sum()) for batch in DataLoader(Rows(), 64, num_workers=2, multiprocessing_context="fork")])
        """,
    ),
}
_FOUND: dict[str, str] = {}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("detector", ["poll", "off"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_program_finds_what_it_finds_without_the_library(
    mounted: SlowFs, files: Path, tmp_path: Path, client: str, detector: str
) -> None:
    name, code = CLIENTS[client]
    if client not in _FOUND:
        plain = run(code, files / name)
        assert plain.returncode == 0, plain.stderr
        _FOUND[client] = plain.stdout
    stats, before = tmp_path / "stats", fetched(mounted)
    done = run(code, mounted.target / name, pattern=name, detector=detector, stats=stats)
    assert (done.returncode, done.stdout) == (0, _FOUND[client]), done.stderr
    if detector == "off":
        assert not stats.exists(), "it looked"
        return
    found = lines(stats)
    assert all(line["off"] is None for line in found)
    assert len(found) >= (3 if client == "forked workers" else 1)
    # It was there before it was touched, and was fetched once. Workers end without a last line, and read in turns.
    assert sum(line["used_bytes"] for line in found) > BYTES * (0.2 if client == "forked workers" else 0.6)
    assert fetched(mounted) - before < BYTES * 1.1


def test_a_program_reads_on_faster_than_without_the_library(store: Path, tmp_path: Path) -> None:
    code = """
    import mmap, sys, time, zlib
    with open(sys.argv[1], "rb") as file:
        m = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    begun = time.perf_counter()
    for at in range(0, len(m), 1 << 20):
        zlib.crc32(memoryview(m)[at : at + (1 << 20)])
    print(time.perf_counter() - begun)
    """
    ours = run(code, store / "plain.bin", pattern="*.bin", stats=tmp_path / "stats")
    kernel = run(code, store / "model.safetensors")
    assert float(kernel.stdout) > 2 * float(ours.stdout), "two files of one size, each read once"


def test_a_second_pass_is_fetched_as_the_first_was(store: Path, tmp_path: Path) -> None:
    code = """
    import ctypes, mmap, sys, zlib
    import numpy as np
    with open(sys.argv[1], "rb") as file:
        m = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    at = np.frombuffer(m, np.uint8).ctypes.data
    def there():
        pages = (ctypes.c_ubyte * (len(m) // 4096))()
        libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(len(m)), pages)
        return sum(page & 1 for page in pages)
    libc = ctypes.CDLL(None, use_errno=True)
    for turn in range(2):
        for begin in range(0, len(m), 1 << 20):
            zlib.crc32(memoryview(m)[begin : begin + (1 << 20)])
        if turn == 0:
            import time
            time.sleep(0.3)
            libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(len(m)), 21)  # MADV_PAGEOUT
            left = there()
            time.sleep(1.5)
    print(left)
    """
    stats = tmp_path / "stats"
    done = run(code, store / "plain.bin", pattern="*.bin", stats=stats)
    assert done.returncode == 0, done.stderr
    if int(done.stdout) * 4096 > BYTES // 10:
        pytest.skip("the kernel keeps the pages")
    (line,) = lines(stats)
    assert line["touched_bytes"] > BYTES * 1.8
    assert line["used_bytes"] > BYTES * 1.6


# -- hazards ---------------------------------------------------------------------------------------------------------

HAZARDS = {
    "written and sent from the map": """
        import os, socket, threading
        data = open(sys.argv[1], "rb").read()
        out = os.open(sys.argv[2], os.O_CREAT | os.O_RDWR)
        for at in range(0, len(m), 100_003):
            view = memoryview(m)[at : at + 300_000]
            assert os.write(out, view) == len(view), "a short write"
        here, there = socket.socketpair()
        got = []
        reader = threading.Thread(target=lambda: got.append(b"".join(iter(lambda: there.recv(1 << 20), b""))))
        reader.start()
        here.sendall(m)
        here.close()
        reader.join()
        assert got[0] == data
    """,
    "threads that touch and write": """
        import os, threading
        wrong = []
        def work(n):
            out = os.open(f"{sys.argv[2]}.{n}", os.O_CREAT | os.O_WRONLY)
            for at in range(0, len(m) - 4096, 64 << 10):
                m[at]
                if os.write(out, memoryview(m)[at + 10 : at + 40_000]) != len(memoryview(m)[at + 10 : at + 40_000]):
                    wrong.append(at)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not wrong, wrong
    """,
    "signals blocked, and each at the program's own thread": """
        import os, signal, threading, time
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGSEGV, signal.SIGBUS])
        got = []
        signal.signal(signal.SIGUSR1, lambda *_: got.append(threading.get_ident()))
        # A thread that a signal could go to is one that doesn't block it.
        masks = [open(f"/proc/self/task/{t}/status").read() for t in os.listdir("/proc/self/task")]
        ours = [text for text in masks if "foreload-mmap" in text]
        assert len(ours) == 1, len(ours)
        blocked = int(ours[0].split("SigBlk:")[1].split()[0], 16)
        assert blocked >> (signal.SIGUSR1 - 1) & 1 and blocked >> (signal.SIGINT - 1) & 1 and blocked >> (signal.SIGCHLD - 1) & 1
        for at in range(0, len(m), 4096):
            m[at]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert got == [threading.get_ident()]
    """,
    "faulthandler": """
        import faulthandler
        faulthandler.enable()
        sum(m[at] for at in range(0, len(m), 4096))
    """,
    "what takes the place of a mapping that has ended": """
        import ctypes, mmap, time
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = libc.mmap64.restype = ctypes.c_void_p
        args = lambda at, flags, fd: (ctypes.c_void_p(at), ctypes.c_size_t(LEN), 3 if fd < 0 else 1, flags, fd, ctypes.c_long(0))
        LEN = 4 << 20
        file = open(sys.argv[1], "rb")
        for turn in range(400):
            at = (libc.mmap, libc.mmap64)[turn % 2](*args(None, 2, file.fileno()))
            ctypes.string_at(at, 700_000 + turn * 5000)
            if turn % 10 == 0:
                time.sleep(0.011)
            if turn % 2:
                assert libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(LEN)) == 0
            new = libc.mmap(*args(at, 0x32, -1))  # MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED
            assert new == at
            ctypes.memset(at, turn % 251, LEN)
            if turn % 10 == 0:
                time.sleep(0.011)
            assert ctypes.string_at(at, LEN) == bytes([turn % 251]) * LEN, "memory was changed"
            libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(LEN))
    """,
    "forks": """
        import os, zlib
        expected = zlib.crc32(m)
        for turn in range(60):
            children = []
            for _ in range(4):
                pid = os.fork()
                if pid == 0:
                    os._exit(zlib.crc32(m) != expected if turn % 10 == 0 else m[turn << 12] != memoryview(m)[turn << 12])
                children.append(pid)
            assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
    """,
    "all descriptors closed, and their numbers used": """
        import os, time
        for turn in range(3):
            os.closerange(3, 2000)
            mine = [os.open(f"{sys.argv[2]}.{n}", os.O_CREAT | os.O_RDWR | os.O_TRUNC) for n in range(1000)]
            for at in range(0, len(m), 1 << 14):
                m[at]
            time.sleep(0.05)
            for n, fd in enumerate(mine):
                os.write(fd, b"%d" % n)
            for n, fd in enumerate(mine):
                assert os.pread(fd, 9, 0) == b"%d" % n
                assert os.readlink(f"/proc/self/fd/{fd}") == f"{sys.argv[2]}.{n}"
    """,
    "locks of the program on the file": """
        import ctypes, fcntl, os, subprocess, time
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        mine = sys.argv[2]
        open(mine, "wb").write(bytes(4 << 20))
        file = open(mine, "r+b")
        fcntl.lockf(file, fcntl.LOCK_EX)
        for turn in range(5):
            # Python's own mmap duplicates the descriptor, and loses the lock when it closes that.
            at = libc.mmap(None, ctypes.c_size_t(4 << 20), 1, 1, file.fileno(), ctypes.c_long(0))
            ctypes.string_at(at, 4 << 20)
            time.sleep(0.05)
            libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(4 << 20))
            time.sleep(0.02)
        code = "import fcntl,sys\\nf=open(sys.argv[1],'r+b')\\ntry: fcntl.lockf(f, fcntl.LOCK_EX|fcntl.LOCK_NB)\\nexcept OSError: sys.exit(5)"
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        assert subprocess.run([sys.executable, "-c", code, mine], env=env).returncode == 5, "the lock is gone"
    """,
    "errno": """
        import ctypes, mmap
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        m[:]
        ctypes.set_errno(77)
        file = open(sys.argv[1], "rb")
        for _ in range(150):
            at = libc.mmap(None, ctypes.c_size_t(2 << 20), 1, 2, file.fileno(), ctypes.c_long(0))
            assert at not in (None, ctypes.c_void_p(-1).value)
            assert ctypes.get_errno() == 77
        at = libc.mmap(None, ctypes.c_size_t(2 << 20), 1, 2, 9999, ctypes.c_long(0))
        assert (at, ctypes.get_errno()) == (ctypes.c_void_p(-1).value, 9), "EBADF is the caller's to see"
        libc.mremap.restype = ctypes.c_void_p
        assert libc.mremap(ctypes.c_void_p(4097), ctypes.c_size_t(1), ctypes.c_size_t(4096), 0) == ctypes.c_void_p(-1).value
        assert ctypes.get_errno() == 22
    """,
    "a mapping that moves and grows": """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
        file = open(sys.argv[1], "rb")
        data = file.read()
        at = libc.mmap(None, ctypes.c_size_t(2 << 20), 1, 2, file.fileno(), ctypes.c_long(0))
        for mebibytes in range(3, 24):
            at = libc.mremap(ctypes.c_void_p(at), ctypes.c_size_t((mebibytes - 1) << 20), ctypes.c_size_t(mebibytes << 20), 1)
            assert ctypes.string_at(at, mebibytes << 20) == data[: mebibytes << 20]
        assert libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(4096), 3) == 0
        ctypes.memset(at, 5, 4096)
        assert ctypes.string_at(at, 5000) == bytes([5]) * 4096 + data[4096:5000]
    """,
}
PREAMBLE = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    m = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
"""


@pytest.mark.parametrize("hazard", HAZARDS)
def test_nothing_else_changes_for_the_program(store: Path, tmp_path: Path, hazard: str) -> None:
    stats = tmp_path / "stats"
    code = PREAMBLE + textwrap.dedent(HAZARDS[hazard])
    done = run(code, store / "plain.bin", tmp_path / "out", pattern=str(tmp_path.resolve()) + "/**", stats=stats)
    assert (done.returncode, done.stderr) == (0, "")
    assert lines(stats)[0]["off"] is None, "it was at it"


def test_a_fault_of_the_program_s_own_ends_it_as_ever(store: Path) -> None:
    code = PREAMBLE + "import ctypes, faulthandler\nfaulthandler.enable()\nsum(m[:1 << 22])\nctypes.string_at(8)\n"
    done = run(code, store / "plain.bin", pattern="*.bin")
    assert done.returncode == -11
    assert "Segmentation fault" in done.stderr
    assert "string_at" in done.stderr


def test_a_program_that_may_open_nothing_more_is_helped_as_well(store: Path, tmp_path: Path) -> None:
    code = """
    import ctypes, os, resource, sys, time
    file = open(sys.argv[1], "rb")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (file.fileno() + 1, limit[1]))
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(None, ctypes.c_size_t(20 << 20), 1, 2, file.fileno(), ctypes.c_long(0))
    print(len(ctypes.string_at(at, 20 << 20)))
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    print(sorted(map(int, os.listdir("/proc/self/fd")))[-1] - file.fileno())
    """
    done = run(code, store / "plain.bin", pattern="*.bin", stats=tmp_path / "stats")
    assert (done.returncode, done.stdout) == (0, f"{20 << 20}\n1\n"), done.stderr
    assert lines(tmp_path / "stats")[0]["used_bytes"] > 10 << 20


@pytest.mark.needs("userns")
def test_a_page_table_that_cannot_be_looked_at_is_said(files: Path, tmp_path: Path) -> None:
    hidden = ["unshare", "-rm", "sh", "-c", 'mount --bind /dev/null /proc/$$/pagemap && exec "$@"', "sh"]
    if subprocess.run([*hidden, "true"], capture_output=True, check=False).returncode:
        pytest.skip("/proc can't be mounted over here")
    stats = tmp_path / "stats"
    environment = preload.environment(["*.bin"], stats=stats)
    code = PREAMBLE + "import time, zlib\ntime.sleep(0.2)\nprint(zlib.crc32(m))\n"
    command = [*hidden, sys.executable, "-c", code, str(files / "plain.bin")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SOON, check=False)
    assert (done.returncode, done.stdout) == (0, f"{zlib.crc32((files / 'plain.bin').read_bytes())}\n"), done.stderr
    (line,) = lines(stats)
    assert (line["detector"], line["asked_bytes"]) == ("off", 0)
    assert "pagemap" in line["off"]


@pytest.mark.needs("userns")
def test_without_proc_nothing_is_done_and_nothing_breaks(files: Path) -> None:
    hidden = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    name, code = CLIENTS["numpy, read"]
    environment = preload.environment(["*.npy"])
    command = [*hidden, sys.executable, "-c", textwrap.dedent(code), str(files / name)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SOON, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == run(code, files / name).stdout


def test_a_program_that_maps_nothing_of_it_gets_no_thread(files: Path, tmp_path: Path) -> None:
    code = PREAMBLE + "import os\nm[:]\nprint(len(os.listdir('/proc/self/task')))\n"
    done = run(code, files / "plain.bin", pattern="*.mdb", stats=tmp_path / "stats")
    assert done.stdout == "1\n"
    assert not (tmp_path / "stats").exists()
    assert run(code, files / "plain.bin", pattern="*.bin").stdout == "2\n"


def test_a_program_that_is_killed_has_its_line(store: Path, tmp_path: Path) -> None:
    stats = tmp_path / "stats"
    # Whoever looks has a small share of a core, so on a busy machine it takes a while until all is known.
    code = PREAMBLE + (
        "import json, os, time\nm[:]\nend = time.monotonic() + 60\n"
        f"while json.loads(open({str(stats)!r}).readline() or '{{}}').get('touched_bytes') != {BYTES} and time.monotonic() < end:\n"
        "    time.sleep(0.05)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = run(code, store / "plain.bin", pattern="*.bin", stats=stats)
    assert done.returncode == -9
    (line,) = lines(stats)
    assert line["touched_bytes"] == BYTES
    assert line["cpu_s"] > 0


# -- the library and the command -------------------------------------------------------------------------------------


def test_the_library_is_small_and_exports_what_it_interposes() -> None:
    tools = Path(__file__).resolve().parents[2] / "tools"
    sys.path.insert(0, str(tools))
    try:
        check_wheel = importlib.import_module("check_wheel")
    finally:
        sys.path.remove(str(tools))
    assert list(check_wheel.binary_violations("_preload.so", preload.LIBRARY)) == []
    assert preload.LIBRARY.stat().st_size < 400_000
    needed = subprocess.run(["readelf", "-d", preload.LIBRARY], capture_output=True, text=True, check=True).stdout
    assert "libpython" not in needed


def command(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "foreload", "run", *map(str, words)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )


def test_the_command_runs_a_program_and_ends_as_that_does(store: Path, tmp_path: Path) -> None:
    stats = tmp_path / "stats"
    stats.write_text("of an earlier run")
    code = PREAMBLE + "import os\nm[:]\nprint(os.environ['LD_PRELOAD'].split(':')[1:])\nsys.exit(7)\n"
    words = (
        "--mmap",
        "*.bin",
        "--mmap",
        "*.mdb",
        "--window",
        "8MiB",
        "--stats",
        stats,
        "--",
        sys.executable,
        "-c",
        code,
        store / "plain.bin",
    )
    done = command(*words, LD_PRELOAD="libm.so.6")
    assert (done.returncode, done.stdout, done.stderr) == (7, "['libm.so.6']\n", "")
    (line,) = lines(stats)
    assert line["used_bytes"] > BYTES // 2
    assert (line["detector"], line["off"]) == ("poll", None)
    assert command("--mmap", "*", "--", "sh", "-c", "kill -9 $$").returncode == -9
    # What stands behind the program is the program's.
    assert command("--mmap", "*", "echo", "--window", "x").stdout == "--window x\n"


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    for words, code, said in (
        (("--mmap", "", "--", "true"), 2, "say which files"),
        (("--mmap", "x", "--detector", "magic", "--", "true"), 2, "magic is none"),
        (("--mmap", "x", "--detector", "mprotect", "--distance", "13MiB", "--", "true"), 2, "quarter of --size"),
        (("--mmap", "x", "--size", "much", "--", "true"), 2, "--size"),
        (("--mmap", "x", "--window", "much", "--", "true"), 2, "--window"),
        (("--mmap", "x", "--stats", tmp_path / "no" / "file", "--", "true"), 2, "no directory"),
        (("--mmap", "x", "--", "no-such-program"), 3, "no such program"),
    ):
        done = command(*words)
        assert (done.returncode, done.stdout) == (code, ""), words
        assert said in " ".join(done.stderr.replace("│", " ").split()), words
    failed = command("--mmap", "x", "--json", "no-such-program")
    assert json.loads(failed.stdout)["error"]["exit_code"] == 3


def test_a_program_that_cannot_be_helped_is_said(tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no compiler")
    source = tmp_path / "main.c"
    source.write_text("int main(void) { return 0; }\n")
    for name, options in (
        ("dynamic", ()),
        ("static", ("-static",)),
        ("musl", ("-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1",)),
    ):
        if subprocess.run(
            [compiler, source, "-o", tmp_path / name, *options], capture_output=True, check=False
        ).returncode:
            pytest.skip(f"{name} programs can't be made here")
    preload.check_program(tmp_path / "dynamic")
    preload.check_program(source)
    for name in ("static", "musl"):
        with pytest.raises(InvalidError, match=name):
            preload.check_program(tmp_path / name)


@pytest.mark.parametrize("detector", ["poll", "mprotect", "guard"])
@pytest.mark.parametrize("way", ["pthread_exit", "thrd_exit", "pthread_cancel", "another", "alone", "child"])
def test_a_program_whose_first_thread_ends_before_the_others_ends_with_the_last(
    files: Path, tmp_path: Path, detector: str, way: str
) -> None:
    """And what it has printed is there, as the last thread that there is writes it."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no compiler")
    source = tmp_path / "main.c"
    source.write_text(
        r"""
        #include <fcntl.h>
        #include <pthread.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <sys/wait.h>
        #include <threads.h>
        #include <unistd.h>
        static void *works(void *path) {
            int file = open(path, O_RDONLY);
            const unsigned char *map = mmap(0, 4 << 20, PROT_READ, MAP_SHARED, file, 0);
            unsigned long sum = 0;
            for (int nth = 0; nth < 4 << 20; nth += 4096) sum += map[nth];
            usleep(300000);
            map = mmap(0, 4 << 20, PROT_READ, MAP_SHARED, file, 0);
            for (int nth = 0; nth < 4 << 20; nth += 4096) sum += map[nth];
            printf("%lu\\n", sum);
            return 0;
        }
        static void *cancels(void *first) {
            printf("cancels\\n");
            pthread_cancel(*(pthread_t *)first);
            usleep(10000);
            return 0;
        }
        static void last(void) { printf("last\\n"); }
        int main(int count, char **words) {
            pthread_t thread;
            int file = open(words[1], O_RDONLY);
            mmap(0, 4 << 20, PROT_READ, MAP_SHARED, file, 0);
            atexit(last);
            usleep(100000);
            if (!strcmp(words[2], "child")) {
                pid_t child = fork();
                if (child) return waitpid(child, 0, 0) != child;
            } else if (strcmp(words[2], "alone") && strcmp(words[2], "another")) {
                pthread_create(&thread, 0, works, words[1]);
                usleep(50000);
            }
            printf("first\\n");
            if (!strcmp(words[2], "another")) {
                // Its end is another thread's doing, which ends soon after.
                pthread_t other, first = pthread_self();
                pthread_create(&other, 0, cancels, &first);
                for (;;) pause();
            }
            if (!strcmp(words[2], "thrd_exit")) thrd_exit(0);
            if (!strcmp(words[2], "pthread_cancel")) { pthread_cancel(pthread_self()); pthread_testcancel(); }
            pthread_exit(0);
        }
        """
    )
    subprocess.run([compiler, source, "-o", tmp_path / "main", "-pthread"], check=True)
    words = [tmp_path / "main", files / "plain.bin", way]
    plain = subprocess.run(words, capture_output=True, text=True, check=True, timeout=SOON)
    assert "first" in plain.stdout
    environment = preload.environment(["*.bin"], detector=detector)
    for _ in range(2):
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=SOON)
        assert (done.returncode, done.stdout) == (0, plain.stdout)


def test_a_script_that_says_no_program_is_run_as_a_shell_does(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo $1 $0\n")
    refused = command("--mmap", "*.bin", "--", str(script), "a")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "may not be executed" in " ".join(refused.stderr.replace("│", " ").split())
    script.chmod(0o755)
    done = command("--mmap", "*.bin", "--", str(script), "a")
    assert (done.returncode, done.stdout) == (0, f"a {script}\n")
    assert "is a directory" in " ".join(command("--mmap", "x", "--", f"{tmp_path}/").stderr.replace("│", " ").split())


def test_a_library_of_another_version_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no preload library"):
        preload.check(tmp_path / "_preload.so")
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no compiler")
    (tmp_path / "old.c").write_text("int foreload_preload_abi_version(void) { return 1; }\n")
    subprocess.run([compiler, "-shared", tmp_path / "old.c", "-o", tmp_path / "old.so"], check=True)
    with pytest.raises(InvalidError, match=r"ABI 1, and not 3"):
        preload.check(tmp_path / "old.so")
    (tmp_path / "b c").mkdir()
    shutil.copy(tmp_path / "old.so", tmp_path / "b c")
    with pytest.raises(InvalidError, match="blank"):
        preload.check(tmp_path / "b c" / "old.so")


@pytest.mark.filterwarnings("error")
def test_patterns_with_many_stars_or_brackets_are_looked_for_at_once(tmp_path: Path) -> None:
    (tmp_path / "n d" / "[x]").mkdir(parents=True)
    begun = time.monotonic()
    for pattern in (
        f"{tmp_path}/{'*' * 60}x.npy",
        f"{tmp_path}/**/{'*' * 60}x.npy",
        f"{tmp_path}/n d/[[]x]/**",
        f"{tmp_path}/[!a&&b]**",
    ):
        preload.environment([pattern])
    assert time.monotonic() - begun < SOON / 4


def test_links_are_followed_as_the_kernel_does(files: Path, tmp_path: Path) -> None:
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.bin").symlink_to(files / "plain.bin")
    (tmp_path / "linked").symlink_to(tmp_path / "snapshot")
    code = PREAMBLE + "import os\nm[:]\nprint(len(os.listdir('/proc/self/task')))\n"
    for pattern in (f"{tmp_path}/linked/*.bin", f"{tmp_path}/snapshot/model.bin"):
        assert run(code, tmp_path / "linked" / "model.bin", pattern=pattern).stdout == "2\n", pattern
    told = preload.environment(["a:b/*.x", "*.x"])["FORELOAD_MMAP"]
    assert "a?b/*.x" in told.split(":")
    with pytest.raises(InvalidError, match="take more than"):
        preload.environment([str(random.Random(n).getrandbits(200)) for n in range(200)])


def test_processes_that_begin_at_once_have_a_line_each(files: Path, tmp_path: Path) -> None:
    code = PREAMBLE + "m[:]\n"
    threads = [
        threading.Thread(
            target=run, args=(code, files / "plain.bin"), kwargs={"pattern": "*.bin", "stats": tmp_path / "stats"}
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = lines(tmp_path / "stats")
    assert len({line["pid"] for line in found}) == 8


def test_signals_are_the_program_s_own_again() -> None:
    """Python ignores SIGPIPE: a program that inherited that would write to a pipe that nobody reads for ever."""
    command = [
        sys.executable,
        "-m",
        "foreload",
        "run",
        "--mmap",
        "*.nothing",
        "--",
        "sh",
        "-c",
        "while :; do echo y; done",
    ]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert running.stdout is not None
    assert running.stdout.readline() == b"y\n"
    running.stdout.close()
    assert running.wait(20) == -13


def test_links_that_lead_to_themselves_and_whole_trees_keep_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "deep" / "up").symlink_to(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "real.mdb").write_bytes(b"")
    (tmp_path / "deep" / "er" / "link.mdb").symlink_to(tmp_path / "other" / "real.mdb")
    begun = time.monotonic()
    for pattern in ("*", "**", "**/*.mdb", "deep/**/*.mdb", "l*", "/**/*.mdb"):
        said = preload.named([str(tmp_path / pattern) if pattern[0] != "/" else pattern])
        found = "real.mdb" in said
        assert found == (pattern in ("**", "**/*.mdb", "deep/**/*.mdb")) or pattern == "/**/*.mdb", pattern
    assert time.monotonic() - begun < 5
