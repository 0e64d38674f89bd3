"""Programs under the preload library where the system refuses something: calls that a filter denies, memory, threads, sanitizers.

Whatever is refused, the program reads the right bytes and ends as it would without the library.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket import SlowFs
from groups import Group

from foreload._mapped import preload

pytestmark = [
    pytest.mark.needs("fuse"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the filter knows the numbers of x86-64"),
]

BYTES = 16 << 20
SOON = 120
#: What the program reads: a checksum, as bytes come.
PROGRAM = """
import mmap, sys, zlib
with open(sys.argv[1], "rb") as file:
    m = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
found = 0
for at in range(0, len(m), 1 << 16):
    found = zlib.crc32(memoryview(m)[at : at + (1 << 16)], found)
print(found)
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("denied") / "plain.bin"
    file.write_bytes(os.urandom(BYTES))
    return file


@pytest.fixture
def file(original: Path, tmp_path: Path) -> Iterator[Path]:
    """The file on a slow store, not in memory."""
    target = tmp_path / "store"
    target.mkdir()
    with SlowFs(original.parent, target, delay_ms=1.0, mb_s=400, options=["--keep-cache"]):
        yield target / original.name


def run(
    file: Path, stats: Path, before: Callable[[], None] | None = None, detector: str = "poll", **more: str
) -> dict[str, Any]:
    """Runs the program under the library, in a process that has done `before`; its line of statistics."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)],
        env={**preload.environment(["*.bin"], detector=detector, stats=stats), **more},
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == zlib.crc32(file.read_bytes())
    (line,) = stats.read_text().splitlines()
    return json.loads(line)


# -- calls that are denied -------------------------------------------------------------------------------------------

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_SET_NO_NEW_PRIVS, _SET_SECCOMP = 38, 22
IOCTL, PREAD, MADVISE, CLONE, UNSHARE, CLONE3, CLOSE_RANGE = 16, 17, 28, 56, 272, 435, 436
PAGEMAP_SCAN, WILLNEED = 0xC0606610, 3
MPROTECT, PROT_NONE, GUARD_INSTALL = 10, 0, 102


def denied(*rules: tuple[int, int, tuple[int, int] | None]) -> Callable[[], None]:
    """What denies calls from then on: their number, the error, and which argument has to have which value."""
    code: list[tuple[int, int, int, int]] = []
    for number, error, argument in rules:
        code.append((_LOAD, 0, 0, 0))
        if argument is None:
            code.append((_EQUAL, 0, 1, number))
        else:
            which, value = argument
            code += [(_EQUAL, 0, 3, number), (_LOAD, 0, 0, 16 + 8 * which), (_EQUAL, 0, 1, value)]
        code.append((_RETURN, 0, 0, _ERRNO | error))
    code.append((_RETURN, 0, 0, _ALLOW))
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in code))
    filters = ctypes.create_string_buffer(struct.pack("=H6xQ", len(code), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)

    def install() -> None:
        assert libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        assert libc.prctl(_SET_SECCOMP, 2, filters, 0, 0) == 0, (ctypes.get_errno(), program)

    return install


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS, errno.ENOMEM])
def test_without_scans_the_page_table_is_read(file: Path, tmp_path: Path, error: int) -> None:
    line = run(file, tmp_path / "stats", denied((IOCTL, error, (1, PAGEMAP_SCAN))))
    assert line["off"] is None
    assert line["used_bytes"] > BYTES // 2


@pytest.mark.parametrize("error", [errno.EPERM, errno.EIO])
def test_with_neither_nothing_is_done_and_why_is_said(file: Path, tmp_path: Path, error: int) -> None:
    # An entry has eight bytes, and nobody else reads so few.
    calls = denied((IOCTL, error, (1, PAGEMAP_SCAN)), (PREAD, error, (2, 8)))
    line = run(file, tmp_path / "stats", calls)
    assert "pagemap" in line["off"]
    assert line["asked_bytes"] == 0


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOMEM, errno.EAGAIN])
def test_advice_that_is_refused_brings_nothing_and_is_not_counted(file: Path, tmp_path: Path, error: int) -> None:
    line = run(file, tmp_path / "stats", denied((MADVISE, error, (2, WILLNEED))))
    assert (line["off"], line["asked_bytes"]) == (None, 0)
    assert line["touched_bytes"] > BYTES // 2


def test_without_a_thread_nothing_is_done_and_why_is_said(file: Path, tmp_path: Path) -> None:
    line = run(file, tmp_path / "stats", denied((CLONE3, errno.ENOSYS, None), (CLONE, errno.EAGAIN, None)))
    assert line["off"] == "no thread could be started"


def test_without_descriptors_of_its_own_it_leaves_the_program_s_alone(file: Path, tmp_path: Path) -> None:
    calls = denied((CLOSE_RANGE, errno.ENOSYS, None), (UNSHARE, errno.EPERM, None))
    line = run(file, tmp_path / "stats", calls)
    assert "descriptors" in line["off"]


def test_before_linux_5_9_descriptors_are_parted_by_another_call(file: Path, tmp_path: Path) -> None:
    line = run(file, tmp_path / "stats", denied((CLOSE_RANGE, errno.ENOSYS, None)))
    assert line["off"] is None


TRAPS = pytest.mark.parametrize("detector", ["mprotect", *(["guard"] if preload.has_guard_pages() else [])])


@TRAPS
def test_without_a_thread_nothing_is_trapped(file: Path, tmp_path: Path, detector: str) -> None:
    calls = denied((CLONE3, errno.ENOSYS, None), (CLONE, errno.EAGAIN, None))
    line = run(file, tmp_path / "stats", calls, detector)
    assert (line["off"], line["traps"]) == ("no thread could be started", 0)


@TRAPS
def test_without_descriptors_of_its_own_the_thread_ends_the_traps(file: Path, tmp_path: Path, detector: str) -> None:
    calls = denied((CLOSE_RANGE, errno.ENOSYS, None), (UNSHARE, errno.EPERM, None))
    line = run(file, tmp_path / "stats", calls, detector)
    assert "descriptors" in line["off"]
    assert line["asked_bytes"] == 0


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOMEM, errno.EINVAL])
@TRAPS
def test_pages_that_can_not_be_closed_stay_as_they_are(file: Path, tmp_path: Path, detector: str, error: int) -> None:
    call, value = (MPROTECT, PROT_NONE) if detector == "mprotect" else (MADVISE, GUARD_INSTALL)
    line = run(file, tmp_path / "stats", denied((call, error, (2, value))), detector)
    assert ("can't be protected" if detector == "mprotect" else "Linux 6.15") in line["off"]
    assert (line["checkpoints"], line["traps"]) == (0, 0)


@TRAPS
def test_advice_that_is_refused_leaves_detection(file: Path, tmp_path: Path, detector: str) -> None:
    line = run(file, tmp_path / "stats", denied((MADVISE, errno.EPERM, (2, WILLNEED))), detector)
    assert (line["off"], line["asked_bytes"], line["traps"]) == (None, 0, BYTES // preload.DISTANCE)


# -- memory ----------------------------------------------------------------------------------------------------------


def test_without_memory_for_a_thread_the_program_runs(file: Path, tmp_path: Path) -> None:
    """The program may have as much as it takes without the library, and little more."""
    plain = subprocess.run(
        [sys.executable, "-c", PROGRAM + "\nprint(open('/proc/self/status').read())", str(file)],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=True,
    )
    peak = 1024 * int(plain.stdout.split("VmPeak:")[1].split()[0])
    stats = tmp_path / "stats"
    helped = []
    for more in (1 << 20, 2 << 20, 4 << 20, 64 << 20):
        stats.unlink(missing_ok=True)
        limit = peak + more

        def before(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        helped.append(run(file, stats, before)["off"] is None)
    assert helped[-1]


@pytest.mark.needs("cgroup")
def test_in_a_control_group_smaller_than_the_file_it_ends_as_ever(tmp_path: Path) -> None:
    large = tmp_path / "from"
    large.mkdir()
    (large / "plain.bin").write_bytes(os.urandom(1 << 20) * 96)
    target = tmp_path / "store"
    target.mkdir()
    try:
        group = Group(48 << 20)
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    try:
        with SlowFs(large, target, delay_ms=1.0, mb_s=400, options=["--keep-cache"]) as mounted:
            line = run(target / "plain.bin", tmp_path / "stats", group.join)
            read = int(Path(f"/proc/{mounted.pid}/io").read_text().split("rchar: ")[1].split("\n")[0])
        assert group.kills() == 0
    finally:
        group.dissolve()
    assert line["off"] is None
    assert line["used_bytes"] > 48 << 20
    # Once by the program, and once more by this test, which compares.
    assert read < 2 * 1.1 * (96 << 20), "what was fetched was thrown away before it was touched"


# -- sanitizers ------------------------------------------------------------------------------------------------------

SOURCE = """
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
int main(int argc, char **argv) {
    struct stat st;
    int fd = open(argv[1], O_RDONLY);
    fstat(fd, &st);
    unsigned char *m = mmap(0, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    unsigned long sum = 0;
    for (long at = 0; at < st.st_size; at++) sum += m[at];
    volatile char *heap = malloc(10);
    heap[argc > 2 ? 11 : 1] = 1;
    printf("%lu\\n", sum);
    munmap(m, st.st_size);
    free((void *)heap);
    return 0;
}
"""


@pytest.mark.parametrize("detector", ["poll", "mprotect", "guard"])
@pytest.mark.parametrize("runtime", ["-shared-libasan", "-static-libasan"])
def test_a_program_of_the_address_sanitizer_runs_and_its_own_mistakes_are_found(
    file: Path, tmp_path: Path, runtime: str, detector: str
) -> None:
    if detector == "guard" and not preload.has_guard_pages():
        pytest.skip("no guard pages in mapped files before Linux 6.15")
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    (tmp_path / "main.c").write_text(SOURCE)
    # gcc takes the shared one unless told otherwise.
    words = [runtime] if runtime.startswith("-static") else []
    built = subprocess.run(
        [compiler, "-fsanitize=address", *words, "-o", tmp_path / "main", tmp_path / "main.c"],
        capture_output=True,
        check=False,
    )
    if built.returncode:
        pytest.skip("gcc has no sanitizer here")
    stats = tmp_path / "stats"
    environment = preload.environment(["*.bin"], detector=detector, stats=stats)

    def program(*more: str) -> subprocess.CompletedProcess[str]:
        command = [str(tmp_path / "main"), str(file), *more]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SOON, check=False)

    done = program()
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == sum(file.read_bytes())
    line = json.loads(stats.read_text().splitlines()[0])
    if detector == "poll":
        assert line["used_bytes"] > BYTES // 2
    else:
        assert (line["traps"], line["asked_bytes"]) == (BYTES // preload.DISTANCE, BYTES)
    wrong = program("wrong")
    assert wrong.returncode != 0
    assert "heap-buffer-overflow" in wrong.stderr


def test_what_the_user_tells_the_sanitizer_counts() -> None:
    told = preload.environment(["*"], given={"ASAN_OPTIONS": "verify_asan_link_order=1:color=never"})
    options = told["ASAN_OPTIONS"].split(":")
    assert options[-2:] == ["verify_asan_link_order=1", "color=never"], "the last one counts"
