"""Programs that map files, under the detectors of paper 003: they find what they find without them, their own signals are theirs, and what doesn't work is what the guide says.

The programs are those of `poll`'s tests and others, over the same slow file system; checkpoints are closer together than the paper's, for the files are smaller.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import lmdb
import pytest
from bucket import SlowFs

from foreload._mapped import preload
from foreload.errors import InvalidError
from test_mmap_run import (
    BYTES,
    CLIENTS,
    HAZARDS,
    PREAMBLE,
    RECORD,
    SOON,
    command,
    fetched,
    files,
    lines,
    mounted,
    store,
)

pytestmark = pytest.mark.needs("fuse")
__all__ = ["files", "mounted", "store"]

MIB = 1 << 20
#: Between checkpoints, and fetched at a time.
DISTANCE, SIZE = MIB, 4 * MIB
DETECTORS = ["mprotect", "guard"]


@pytest.fixture(params=DETECTORS)
def detector(request: pytest.FixtureRequest) -> str:
    """Each of them that this kernel has."""
    name: str = request.param
    if name == "guard" and not preload.has_guard_pages():
        pytest.skip("no guard pages in mapped files before Linux 6.15")
    return name


def start(
    code: str,
    *words: object,
    pattern: str,
    detector: str | None,
    stats: Path | None = None,
    distance: int = DISTANCE,
    size: int = SIZE,
) -> subprocess.Popen[str]:
    """Python code under a detector, or under none."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    if detector is not None:
        environment = preload.environment(
            [pattern], detector=detector, distance=distance, size=size, stats=stats, given=environment
        )
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, words)],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def end(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, errors = process.communicate(timeout=SOON)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def run(code: str, *words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    return end(start(code, *words, **more))


# -- what is read, and what is fetched for it ------------------------------------------------------------------------

#: What is written through a mapping of its own has no checkpoints, and what is forked loses them.
_WRITERS = {"numpy, copied on write", "torch.load"}
_SPARED = {*_WRITERS, "safetensors, torch", "forked workers"}
_FOUND: dict[str, str] = {}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_program_finds_under_a_trap_what_it_finds_without_one(
    mounted: SlowFs, files: Path, tmp_path: Path, client: str, detector: str
) -> None:
    name, code = CLIENTS[client]
    if client not in _FOUND:
        plain = run(code, files / name, pattern=name, detector=None)
        assert plain.returncode == 0, plain.stderr
        _FOUND[client] = plain.stdout
    stats, before = tmp_path / "stats", fetched(mounted)
    done = run(code, mounted.target / name, pattern=name, detector=detector, stats=stats)
    assert (done.returncode, done.stdout) == (0, _FOUND[client]), done.stderr
    found = lines(stats) if stats.exists() else []
    assert all((line["off"], line["detector"]) == (None, detector) for line in found)
    if client in _WRITERS:  # The one mapping that is looked at once more to see that the file is as it was.
        assert sum(line["mappings"] for line in found) <= 1
    if client not in _SPARED:
        (line,) = found
        # An LMDB file's map is larger than it is.
        assert BYTES // DISTANCE <= line["checkpoints"] <= BYTES // DISTANCE * 1.1
        # Batches of an Arrow file's footer, or a program that asks for parts in another order, may touch a checkpoint again.
        assert line["traps"] >= line["checkpoints"] * 0.9
        assert line["asked_bytes"] > BYTES * 0.9
    assert fetched(mounted) - before < BYTES * 1.1


_PASSES = PREAMBLE + textwrap.dedent(
    """
    import time, zlib
    begun = time.perf_counter()
    for turn in range(int(sys.argv[2])):
        for at in range(0, len(m), 1 << 18):
            zlib.crc32(memoryview(m)[at : at + (1 << 18)])
    print(time.perf_counter() - begun)
    """
)


def test_a_program_reads_on_faster_under_a_trap(store: Path, detector: str) -> None:
    ours = run(_PASSES, store / "plain.bin", 1, pattern="*.bin", detector=detector)
    kernel = run(_PASSES, store / "model.safetensors", 1, pattern="*.bin", detector=None)
    assert float(kernel.stdout) > 2 * float(ours.stdout), "two files of one size, each read once"


def test_each_pass_is_seen_and_fetched_block_by_block(store: Path, tmp_path: Path, detector: str) -> None:
    stats = tmp_path / "stats"
    done = run(_PASSES, store / "plain.bin", 3, pattern="*.bin", detector=detector, stats=stats)
    assert done.returncode == 0, done.stderr
    (line,) = lines(stats)
    # At 0, and at three quarters of each block: 3, 7, 11, ... MiB.
    assert (line["checkpoints"], line["traps"], line["triggers"]) == (24, 3 * 24, 3 * 6)
    assert line["asked_bytes"] == 3 * BYTES


def test_detection_alone_fetches_nothing(mounted: SlowFs, tmp_path: Path, detector: str) -> None:
    stats, read = tmp_path / "stats", []
    for name, how in (("plain.bin", detector), ("model.safetensors", None)):
        before = fetched(mounted)
        done = run(_PASSES, mounted.target / name, 1, pattern="*.bin", detector=how, size=0, stats=stats)
        assert done.returncode == 0, done.stderr
        read.append(fetched(mounted) - before)
    (line,) = lines(stats)
    assert (line["traps"], line["triggers"], line["asked_bytes"], line["calls"]) == (24, 0, 0, 0)
    assert read[0] < read[1] + MIB


_HALVES = """
import json, lmdb, sys, zlib
path, nth, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
found = {}
with lmdb.open(path, subdir=False, readonly=True, lock=False) as env, env.begin(buffers=True) as t:
    count = env.stat()["entries"]
    mine = range(nth * count // 2, (nth + 1) * count // 2) if way == "contiguous" else range(nth, count, 2)
    for n in mine:
        found[n] = zlib.crc32(t.get(b"%08d" % n))
print(json.dumps(found))
"""


@pytest.mark.parametrize("way", ["contiguous", "skipping"])
def test_several_processes_read_one_lmdb_file_each_its_part(
    mounted: SlowFs, files: Path, tmp_path: Path, detector: str, way: str
) -> None:
    stats, path, before = tmp_path / "stats", mounted.target / "data.mdb", fetched(mounted)
    both = [start(_HALVES, path, nth, way, pattern="*.mdb", detector=detector, stats=stats) for nth in range(2)]
    found: dict[str, int] = {}
    for done in map(end, both):
        assert done.returncode == 0, done.stderr
        found |= json.loads(done.stdout)
    plain: dict[str, int] = {}
    for nth in range(2):
        plain |= json.loads(run(_HALVES, files / "data.mdb", nth, way, pattern="", detector=None).stdout)
    assert found == plain
    assert len(found) == BYTES // RECORD
    asked = sorted(line["asked_bytes"] for line in lines(stats))
    # Its half, and a block at the beginning where the tree's first pages are, and one at the end that the other has asked for as well.
    most = BYTES // 2 + 3 * SIZE if way == "contiguous" else BYTES * 1.5
    assert BYTES // 2 - 2 * SIZE <= asked[0] <= asked[1] <= most
    # Each byte once, whoever asked for it.
    assert fetched(mounted) - before < BYTES * 1.1
    # Who only reads needs no lock, and leaves no file of one.
    assert not list(files.glob("*lock*"))
    assert sorted(each.name for each in mounted.target.iterdir()) == sorted(each.name for each in files.iterdir())


# -- the program's own signals ---------------------------------------------------------------------------------------


def test_faulthandler_tells_of_the_program_s_faults_and_of_no_checkpoint(store: Path, detector: str) -> None:
    code = PREAMBLE + "import ctypes, faulthandler\nfaulthandler.enable()\nsum(m[::4096])\n"
    done = run(code, store / "plain.bin", pattern="*.bin", detector=detector)
    assert (done.returncode, done.stderr) == (0, "")
    done = run(code + "ctypes.string_at(8)\n", store / "plain.bin", pattern="*.bin", detector=detector)
    assert done.returncode == -11
    assert "Segmentation fault" in done.stderr
    assert "string_at" in done.stderr


_SIGNALS = {
    "a fault without a handler": ("import ctypes\nctypes.string_at(8)", -11),
    "a fault that is ignored": (
        "signal.signal(signal.SIGSEGV, signal.SIG_IGN)\nimport ctypes\nctypes.string_at(8)",
        -11,
    ),
    "sent, without a handler": ("os.kill(os.getpid(), signal.SIGSEGV)", -11),
    "sent, and ignored": (
        "signal.signal(signal.SIGSEGV, signal.SIG_IGN)\nos.kill(os.getpid(), signal.SIGSEGV)\nsum(m[::4096])\nsys.exit(5)",
        5,
    ),
    "sent, and handled": (
        """
got = []
assert signal.getsignal(signal.SIGSEGV) == signal.SIG_DFL
signal.signal(signal.SIGSEGV, lambda *_: got.append(1))
os.kill(os.getpid(), signal.SIGSEGV)
sum(m[::4096])
assert got == [1]
sys.exit(5)
""",
        5,
    ),
    "blocked by the C library": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nsum(m[::4096])\nsys.exit(5)",
        5,
    ),
    "a child's fault": (
        "pid = os.fork()\nif pid == 0:\n    import ctypes\n    ctypes.string_at(8)\nsys.exit(os.waitpid(pid, 0)[1] & 127)",
        11,
    ),
}


@pytest.mark.parametrize("case", _SIGNALS)
def test_the_program_s_signals_do_what_they_did(store: Path, tmp_path: Path, detector: str, case: str) -> None:
    code, status = _SIGNALS[case]
    seen = "while len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):\n    pass\n"
    code = PREAMBLE + "import os, signal\nm[0], m[5 << 20]\n" + seen + code
    stats = tmp_path / "stats"
    for how, words in ((None, ()), (detector, (stats,))):
        done = run(code, store / "plain.bin", *words, pattern="*.bin", detector=how, stats=stats)
        assert (done.returncode, done.stderr) == (status, ""), how
    assert lines(stats)[0]["checkpoints"] == 24


_C = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
#define LEN (24u << 20)
static sigjmp_buf back;
static void *where;
static int code, calls;
static sigset_t during;

static void on_fault(int signal, siginfo_t *info, void *context) {
    where = info->si_addr, code = info->si_code, calls++;
    pthread_sigmask(SIG_BLOCK, 0, &during);
    siglongjmp(back, signal);
}
static void on_plain(int signal) { calls++; siglongjmp(back, signal); }

static unsigned long sum(const volatile unsigned char *at, size_t len) {
    unsigned long found = 0;
    for (size_t i = 0; i < len; i += 512) found += at[i];
    return found;
}
static void *in_thread(void *map) { return (void *)sum(map, LEN); }

int main(int argc, char **argv) {
    /* What the file's bytes are, read otherwise. */
    int file = open(argv[1], O_RDONLY);
    unsigned char *copy = malloc(LEN);
    for (size_t got = 0; got < LEN;) got += read(file, copy + got, LEN - got);
    unsigned long expected = sum(copy, LEN);

    struct sigaction mine = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, old;
    sigaddset(&mine.sa_mask, SIGUSR1);
    CHECK(sigaction(SIGSEGV, &mine, 0) == 0);
    unsigned char *map = mmap(0, LEN, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(sum(map, LEN) == expected && calls == 0);

    /* It still has the handler that it had set before, and the fault is its own. */
    if (!sigsetjmp(back, 1)) { *(volatile int *)16 = 1; CHECK(0); }
    CHECK(calls == 1 && where == (void *)16 && code == SEGV_MAPERR);
    CHECK(sigismember(&during, SIGUSR1) && sigismember(&during, SIGUSR2) == 0);
    CHECK(sum(map, LEN) == expected && calls == 1);

    /* A write to what is only read, at a checkpoint that is closed, at one that is open, and elsewhere. */
    for (int nth = 0; nth < 300; nth++) {
        size_t at = nth % 3 == 2 ? 12345 * (size_t)nth : ((size_t)(nth % 24) << 20) + 8 * (nth % 512);
        if (nth % 3 == 1) CHECK(map[at] == copy[at]);
        if (!sigsetjmp(back, 1)) { *(volatile unsigned char *)(map + at) = 1; CHECK(0); }
        CHECK(calls == nth + 2 && where == map + at && code == SEGV_ACCERR);
        errno = 77;
        CHECK(map[at] == copy[at]);
        CHECK(errno == 77);
    }
    CHECK(sum(map, LEN) == expected && calls == 301);

    /* `signal` and `sigaction` answer what was set before, by either. */
    CHECK(signal(SIGSEGV, on_plain) == (void (*)(int))on_fault);
    CHECK(sigaction(SIGSEGV, 0, &old) == 0 && old.sa_handler == on_plain && (old.sa_flags & SA_RESTART));
    if (!sigsetjmp(back, 1)) { *(volatile int *)16 = 1; CHECK(0); }
    CHECK(calls == 302 && sum(map, LEN) == expected);
    mine.sa_flags |= SA_RESETHAND;
    CHECK(sigaction(SIGSEGV, &mine, &old) == 0 && old.sa_handler == on_plain);
    if (!sigsetjmp(back, 1)) { *(volatile int *)16 = 1; CHECK(0); }
    CHECK(sigaction(SIGSEGV, 0, &old) == 0 && old.sa_handler == SIG_DFL && sum(map, LEN) == expected);
    CHECK(signal(9999, on_plain) == SIG_ERR && errno == EINVAL && sigaction(SIGKILL, &mine, 0) == -1);

    /* All signals blocked, before and in a thread; and a handler that blocks all while it reads. */
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, 0) == 0 && sigprocmask(SIG_SETMASK, &all, 0) == 0);
    pthread_t thread;
    void *found;
    CHECK(pthread_create(&thread, 0, in_thread, map) == 0 && pthread_join(thread, &found) == 0);
    CHECK((unsigned long)found == expected && sum(map, LEN) == expected);

    /* An instruction that needs two checkpoints at once. */
#ifdef __x86_64__
    for (int nth = 0; nth + 1 < 24; nth++) {
        const unsigned char *a = map + ((size_t)nth << 20), *b = a + (1 << 20);
        size_t count = 4096;
        __asm__ volatile("repe cmpsb" : "+S"(a), "+D"(b), "+c"(count) : : "memory", "cc");
    }
    CHECK(sum(map, LEN) == expected);
#endif

    /* A child finds everything open, and a mapping that is made writable is the program's. */
    pid_t child = fork();
    if (child == 0) {
        int out = open("/dev/null", O_WRONLY), pipes[2];
        CHECK(pipe(pipes) == 0 && fcntl(pipes[1], F_SETPIPE_SZ, 1 << 20) > 0);
        for (int nth = 0; nth < 24; nth++) CHECK(write(pipes[1], map + ((size_t)nth << 20), 8192) == 8192);
        _exit(out < 0 || sum(map, LEN) != expected);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(mprotect(map, LEN, PROT_READ | PROT_WRITE) == 0);
    memset(map, 7, LEN);
    CHECK(sum(map, LEN) == 7ul * (LEN / 512));
    CHECK(munmap(map, LEN) == 0);
    puts("all");
    return 0;
}
"""


def compiled(source: str, program: Path, *options: str) -> Path:
    """A C program, or the test is skipped."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    program.with_suffix(".c").write_text(source)
    subprocess.run([compiler, "-O1", "-w", *options, program.with_suffix(".c"), "-o", program, "-pthread"], check=True)
    return program


def under(
    program: Path, *words: object, detector: str, pattern: str = "*.bin", **more: Any
) -> subprocess.CompletedProcess[str]:
    """A program under a detector."""
    environment = preload.environment([pattern], detector=detector, distance=DISTANCE, size=SIZE, **more)
    return subprocess.run(
        [program, *map(str, words)], env=environment, capture_output=True, text=True, timeout=SOON, check=False
    )


def test_a_program_with_a_handler_of_its_own_keeps_it(files: Path, tmp_path: Path, detector: str) -> None:
    program, stats = compiled(_C, tmp_path / "main"), tmp_path / "stats"
    plain = subprocess.run([program, files / "plain.bin"], capture_output=True, text=True, check=False, timeout=SOON)
    assert (plain.returncode, plain.stdout) == (0, "all\n"), "without the library"
    done = under(program, files / "plain.bin", detector=detector, stats=stats)
    assert (done.returncode, done.stdout) == (0, "all\n")
    line = lines(stats)[0]
    assert (line["off"], line["checkpoints"]) == (None, 24)
    assert line["traps"] > 100


def test_a_handler_that_was_set_past_the_c_library_ends_the_checkpoints(
    files: Path, tmp_path: Path, detector: str
) -> None:
    """As Go's run time sets it: before a file is mapped it is kept, and called; afterwards nothing more is trapped."""
    source = r"""
    #define _GNU_SOURCE
    #include <fcntl.h>
    #include <signal.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static int calls;
    static void on_fault(int signal) { calls++; exit(calls == 1 ? 9 : 8); }
    struct kernel { void (*handler)(int); unsigned long flags; void (*restorer)(void); unsigned long mask; };
    int main(int argc, char **argv) {
        struct kernel mine = {on_fault, SA_NODEFER | 0x04000000, abort, 0};
        int file = open(argv[1], O_RDONLY), late = argv[2][0] == 'l';
        if (!late) syscall(SYS_rt_sigaction, SIGSEGV, &mine, 0, 8);
        volatile char *a = mmap(0, 24 << 20, PROT_READ, MAP_SHARED, file, 0);
        for (long at = 0; at < 24 << 20; at += 4096) a[at];
        if (late) syscall(SYS_rt_sigaction, SIGSEGV, &mine, 0, 8);
        volatile char *b = mmap(0, 24 << 20, PROT_READ, MAP_SHARED, file, 0);
        for (long at = 0; at < 24 << 20; at += 4096) a[at], b[at];
        puts("read");
        fflush(stdout);
        *(volatile int *)8 = 1;
    }
    """
    program = compiled(source, tmp_path / "main")
    for when in ("early", "late"):
        stats = tmp_path / when
        done = under(program, files / "plain.bin", when, detector=detector, stats=stats)
        assert (done.returncode, done.stdout) == (9, "read\n"), when
        (line,) = lines(stats)
        assert line["traps"] >= 24, when
        assert (line["off"] is None) == (when == "early")
        assert when == "early" or "past sigaction" in line["off"]


# -- hazards ---------------------------------------------------------------------------------------------------------

#: System calls that are handed a pointer into a checkpoint: the guide names them.
_BROKEN = {"written and sent from the map", "threads that touch and write"}
#: Over FUSE the kernel doesn't join what was split, and moves no mapping of several parts.
_MOVES = "a mapping that moves and grows"


@pytest.mark.parametrize("hazard", sorted(set(HAZARDS) - _BROKEN))
def test_nothing_else_changes_for_a_program_under_a_trap(
    store: Path, files: Path, tmp_path: Path, hazard: str, detector: str
) -> None:
    stats = tmp_path / "stats"
    if hazard == _MOVES and detector == "mprotect":
        shutil.copy(files / "plain.bin", tmp_path / "plain.bin")
        store = tmp_path
    code = PREAMBLE + textwrap.dedent(HAZARDS[hazard])
    done = run(
        code,
        store / "plain.bin",
        tmp_path / "out",
        pattern=str(tmp_path.resolve()) + "/**",
        detector=detector,
        stats=stats,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert lines(stats)[0]["off"] is None, "it was at it"
    assert lines(stats)[0]["checkpoints"] >= 24


_KNOWN = {
    "a write that begins before a checkpoint is short": (
        "print(os.write(os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY), memoryview(m)[(3 << 20) - 100 : (3 << 20) + 100]))",
        "100\n",
    ),
    "a write from a checkpoint fails": (
        "try: os.write(os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY), memoryview(m)[3 << 20 : (3 << 20) + 100])\nexcept OSError as e: print(e.errno)",
        "14\n",
    ),
    "a send from a checkpoint fails": (
        "import socket\npair = socket.socketpair()\ntry: pair[0].send(memoryview(m)[3 << 20 : (3 << 20) + 100])\nexcept OSError as e: print(e.errno)",
        "14\n",
    ),
    "SIGSEGV that is blocked past the C library kills": (
        "import ctypes, struct\nctypes.CDLL(None).syscall(SIGPROCMASK, 0, struct.pack('Q', 1 << 10), None, 8)\nm[3 << 20]\nprint('alive')",
        "",
    ),
}


@pytest.mark.parametrize("known", _KNOWN)
def test_what_the_guide_says_does_not_work_does_not(files: Path, tmp_path: Path, detector: str, known: str) -> None:
    code, out = _KNOWN[known]
    code = code.replace("SIGPROCMASK", "14" if os.uname().machine == "x86_64" else "135")
    done = run(
        PREAMBLE + "import os\n" + code, files / "plain.bin", tmp_path / "out", pattern="*.bin", detector=detector
    )
    assert (done.returncode, done.stdout) == (0 if out else -11, out), done.stderr
    plain = run(PREAMBLE + "import os\n" + code, files / "plain.bin", tmp_path / "out", pattern="", detector=None)
    assert plain.returncode == 0
    assert plain.stdout != out


def test_a_child_finds_all_pages_open_and_the_parent_goes_on(store: Path, tmp_path: Path, detector: str) -> None:
    code = PREAMBLE + textwrap.dedent(
        """
        import os, socket
        def closed():
            return [line for line in open("/proc/self/maps") if line.rstrip().endswith("plain.bin") and line.split()[1][0] == "-"]
        m[0], m[7 << 20]
        mine = len(closed())
        pid = os.fork()
        if pid == 0:
            here, there = socket.socketpair()
            ok = not closed() and all(here.send(memoryview(m)[at << 20 : (at << 20) + 4096]) == 4096 for at in range(24))
            os._exit(0 if ok else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(closed()) == mine
        m[9 << 20]
        print(mine)
        """
    )
    stats = tmp_path / "stats"
    done = run(code, store / "plain.bin", pattern="*.bin", detector=detector, stats=stats)
    # Of the checkpoints the last one is open.
    assert (done.returncode, done.stdout) == (0, "23\n" if detector == "mprotect" else "0\n"), done.stderr
    assert lines(stats)[0]["traps"] == 3


def test_threads_that_read_while_others_map_and_unmap_find_their_bytes(
    files: Path, tmp_path: Path, detector: str
) -> None:
    source = r"""
    #include <fcntl.h>
    #include <pthread.h>
    #include <signal.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <unistd.h>
    #define LEN (24u << 20)
    static int file;
    static unsigned char *whole, *copy;
    static volatile int wrong;
    static unsigned next(unsigned *seed) { return (*seed = *seed * 1664525u + 1013904223u) >> 8; }
    /* Checkpoints of one mapping, by all threads at once. */
    static void *reads(void *nth) {
        unsigned seed = (unsigned)(long)nth;
        for (int turn = 0; turn < 20000; turn++) {
            size_t at = (next(&seed) % 24 << 20) + next(&seed) % 4096;
            if (*(volatile unsigned char *)(whole + at) != copy[at]) wrong++;
        }
        return 0;
    }
    /* And memory that was a mapping with checkpoints a moment ago. */
    static void *maps(void *nth) {
        unsigned seed = (unsigned)(long)nth;
        for (int turn = 0; turn < 1500; turn++) {
            unsigned char *at = mmap(0, 8 << 20, PROT_READ, MAP_SHARED, file, 0);
            if (at == MAP_FAILED) { wrong++; continue; }
            size_t there = next(&seed) % 8 << 20;
            if (*(volatile unsigned char *)(at + there) != copy[there]) wrong++;
            unsigned char *again = mmap(at, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (turn % 2 ? MAP_FIXED : 0), -1, 0);
            if (turn % 2 == 0) munmap(at, 8 << 20);
            for (size_t page = 0; page < 8; page++) memset(again + (page << 20), turn, 64);
            for (size_t page = 0; page < 8; page++) if (again[(page << 20) + 63] != (unsigned char)turn) wrong++;
            munmap(again, 8 << 20);
        }
        return 0;
    }
    static void touch(volatile unsigned char *at, size_t nth) {
        if (at && at[nth % 24 << 20] != copy[nth % 24 << 20]) wrong++;
    }
    /* A mapping whose checkpoints are opened for good, because the program protects it itself, while others are at them. */
    static void *touches(void *at) {
        for (size_t turn = 0; turn < 40; turn++) touch(at, turn * 7);
        return 0;
    }
    static void *protects(void *nth) {
        for (int turn = 0; turn < 400; turn++) {
            unsigned char *at = mmap(0, LEN, PROT_READ, MAP_SHARED, file, 0);
            pthread_t readers[3];
            for (int reader = 0; reader < 3; reader++) pthread_create(readers + reader, 0, touches, at);
            for (int wait = 0; wait < turn % 50; wait++) sched_yield();
            if (mprotect(at, 4096, PROT_READ)) wrong++;
            for (int reader = 0; reader < 3; reader++) pthread_join(readers[reader], 0);
            munmap(at, LEN);
        }
        return 0;
    }
    /* And by a signal's handler, which may interrupt who protects it. */
    static unsigned char *volatile victim;
    static void on_alarm(int signal) { static size_t nth; touch(victim, nth++); }
    static void *often(void *main) {
        for (size_t nth = 0; victim; nth += 7) touch(victim, nth), pthread_kill(*(pthread_t *)main, SIGALRM);
        return 0;
    }
    static void interrupted(void) {
        pthread_t self = pthread_self(), other;
        signal(SIGALRM, on_alarm);
        victim = mmap(0, LEN, PROT_READ, MAP_SHARED, file, 0);
        pthread_create(&other, 0, often, &self);
        for (int turn = 0; turn < 1000; turn++) {
            victim = mmap(0, LEN, PROT_READ, MAP_SHARED, file, 0);
            for (int wait = 0; wait < turn % 8; wait++) sched_yield();
            if (mprotect(victim, 4096, PROT_READ)) wrong++;
        }
        victim = 0;
        pthread_join(other, 0);
    }
    int main(int argc, char **argv) {
        file = open(argv[1], O_RDONLY);
        copy = malloc(LEN);
        for (size_t got = 0; got < LEN;) got += read(file, copy + got, LEN - got);
        interrupted();
        whole = mmap(0, LEN, PROT_READ, MAP_PRIVATE, file, 0);
        pthread_t threads[9];
        for (long nth = 0; nth < 9; nth++) pthread_create(threads + nth, 0, nth < 5 ? reads : nth < 8 ? maps : protects, (void *)nth);
        for (int nth = 0; nth < 9; nth++) pthread_join(threads[nth], 0);
        printf("%d\n", wrong);
    }
    """
    program, stats = compiled(source, tmp_path / "main"), tmp_path / "stats"
    done = under(program, files / "plain.bin", detector=detector, stats=stats)
    assert (done.returncode, done.stdout) == (0, "0\n")
    assert lines(stats)[0]["traps"] > 1000


def test_a_mapping_of_a_huge_file_leaves_the_program_room(tmp_path: Path, detector: str) -> None:
    with (tmp_path / "huge.bin").open("wb") as file:
        file.truncate(1 << 40)
    code = """
    import ctypes, mmap, sys
    with open(sys.argv[1], "rb") as file:
        m = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    # Mappings that the kernel can't join.
    mine = [mmap.mmap(-1, 4096, prot=1 + 2 * (n % 2)) for n in range(20_000)]
    print(m[0], m[5 << 30], m[(1 << 40) - 1])
    """
    stats = tmp_path / "stats"
    done = run(
        code, tmp_path / "huge.bin", pattern="*.bin", detector=detector, stats=stats, distance=8 * MIB, size=32 * MIB
    )
    assert (done.returncode, done.stdout) == (0, "0 0 0\n"), done.stderr
    (line,) = lines(stats)
    most = int(Path("/proc/sys/vm/max_map_count").read_text())
    assert line["checkpoints"] == (min(most // 4, 1 << 17) if detector == "mprotect" else 1 << 17)
    assert line["traps"] == 2


def test_a_database_that_is_written_meanwhile_is_read_as_ever(tmp_path: Path, detector: str) -> None:
    """A writer's own mapping is read only as well: LMDB writes by system calls."""
    code = """
    import lmdb, sys
    with lmdb.open(sys.argv[1], subdir=False, map_size=1 << 26) as env:
        for turn in range(8):
            with env.begin(write=True) as t:
                for n in range(20):
                    t.put(b"%08d" % (n + 5 * turn), bytes([turn]) * 100_000)
        with env.begin() as t:
            print([value[0] for _, value in t.cursor()])
    """
    found = []
    for how in (None, detector):
        path = tmp_path / f"{how}.mdb"
        done = run(code, path, pattern="*.mdb", detector=how)
        assert done.returncode == 0, done.stderr
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
            found.append((done.stdout, list(transaction.cursor())))
    assert found[0] == found[1]


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_takes_what_the_paper_names(files: Path, tmp_path: Path, detector: str) -> None:
    stats = tmp_path / "stats"
    words = ("--mmap", "*.bin", "--detector", detector, "--distance", "2MiB", "--size", "8MiB", "--stats", stats, "--")
    done = command(*words, sys.executable, "-c", _PASSES, files / "plain.bin", 1)
    assert done.returncode == 0, done.stderr
    (line,) = lines(stats)
    assert (line["detector"], line["checkpoints"], line["traps"]) == (detector, 12, 12)
    assert line["asked_bytes"] == BYTES


def test_sizes_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for more, said in (
        ({"distance": 8 * MIB, "size": 32 * MIB - 1}, "a quarter of --size"),
        ({"size": 16 * MIB}, "a quarter of --size"),
        ({"distance": 16 * MIB}, "a quarter of --size"),
        ({"distance": 0}, "multiple of a page"),
        ({"distance": 5000, "size": 50_000}, "multiple of a page"),
        ({"window": MIB}, "--window is of the detector poll"),
    ):
        with pytest.raises(InvalidError, match=said):
            preload.environment(["x"], detector="mprotect", **more)
    for other in ("poll", "off"):
        with pytest.raises(InvalidError, match="not of " + other):
            preload.environment(["x"], detector=other, size=MIB)
    for distance in (8, 10):
        told = preload.environment(["x"], detector="mprotect", distance=distance * MIB, given={})
        assert (told["FORELOAD_MMAP_DETECTOR"], told["FORELOAD_MMAP_DISTANCE"]) == ("mprotect", str(distance * MIB))
    monkeypatch.setattr(preload, "has_guard_pages", lambda: False)
    with pytest.raises(InvalidError, match=r"no guard pages .* --detector=poll works"):
        preload.environment(["x"], detector="guard")


def test_the_library_refuses_what_it_is_told_wrongly(files: Path, tmp_path: Path) -> None:
    good = preload.environment(["*.bin"], detector="mprotect", stats=tmp_path / "stats")
    for name, value, said in (
        ("FORELOAD_MMAP_DISTANCE", "13107201", "a quarter"),
        ("FORELOAD_MMAP_SIZE", "many", "a quarter"),
        ("FORELOAD_MMAP_DETECTOR", "magic", "none of"),
    ):
        (tmp_path / "stats").unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", _PASSES + "time.sleep(0.3)", files / "plain.bin", "1"],
            env={**good, name: value},
            capture_output=True,
            text=True,
            timeout=SOON,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (line,) = lines(tmp_path / "stats")
        assert (line["detector"], said in line["off"]) == ("off", True), line


def test_a_program_that_is_killed_under_a_trap_has_its_line(store: Path, tmp_path: Path, detector: str) -> None:
    stats = tmp_path / "stats"
    program = start(
        _PASSES + "print('read', flush=True)\ntime.sleep(60)\n",
        store / "plain.bin",
        1,
        pattern="*.bin",
        detector=detector,
        stats=stats,
    )
    assert program.stdout is not None
    program.stdout.readline()
    until = time.monotonic() + SOON
    while json.loads(stats.read_text() or "{}").get("traps") != 24 and time.monotonic() < until:
        time.sleep(0.02)
    program.kill()
    program.communicate()
    (line,) = lines(stats)
    assert (line["traps"], line["asked_bytes"]) == (24, BYTES)
