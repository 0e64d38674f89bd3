"""What every Python test may rely on: skipping aloud, and refusing to skip.

A test that needs something of the machine says so with `@pytest.mark.needs("fuse")`. Where the machine lacks it, the test is
skipped with the reason, unless `FORELOAD_REQUIRE` (names separated by commas) lists it: then the test fails, so that a job
whose purpose is FUSE can't pass without FUSE. The probes are in `NEEDS`; each answers with what is missing, or with nothing.
"""

from __future__ import annotations

import ctypes
import gc
import gzip
import os
import shutil
import signal
import subprocess
import tempfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import servers

# A job in the background of a shell without job control ignores SIGINT, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _fuse() -> str | None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no access to /dev/fuse"
    if os.geteuid() != 0 and not (shutil.which("fusermount3") or shutil.which("fusermount")):
        return "neither root nor fusermount3"
    return None


def _netns() -> str | None:
    if shutil.which("ip") is None:
        return "no `ip` (Debian: apt-get install iproute2)"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "no permission to make network namespaces"


def _cgroup() -> str | None:
    root = Path("/sys/fs/cgroup")
    writable = any(os.access(path, os.W_OK) for path in (root / "cgroup.procs", root / "memory" / "cgroup.procs"))
    return None if writable else "no writable cgroup"


def _odirect() -> str | None:
    """Asked by tests in Rust, which look for themselves and heed `FORELOAD_REQUIRE`, too."""
    with tempfile.NamedTemporaryFile() as file:
        try:
            os.close(os.open(file.name, os.O_RDONLY | os.O_DIRECT))
        except OSError:
            return f"no O_DIRECT in {tempfile.gettempdir()}"
    return None


def _userns() -> str | None:
    """As `odirect`."""
    tried = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "no permission to make user namespaces"


def _root() -> str | None:
    return None if os.geteuid() == 0 else "not root"


def _passthrough() -> str | None:
    """What `foreload mount --copies` wants of the kernel, and of the place where tests write."""
    if os.geteuid() != 0:
        return "not root"
    major, minor = (int(word) for word in os.uname().release.split(".")[:2])
    config = Path("/proc/config.gz")
    has_it = not config.exists() or b"CONFIG_FUSE_PASSTHROUGH=y" in gzip.decompress(config.read_bytes())
    if (major, minor) < (6, 9) or not has_it:
        return "no FUSE passthrough (Linux 6.9)"
    of = subprocess.run(["stat", "-f", "-c", "%T", tempfile.gettempdir()], capture_output=True, text=True, check=False)
    return f"{tempfile.gettempdir()} is an overlay" if of.stdout.strip() == "overlayfs" else None


def _cuda() -> str | None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver"
    return None


def _server(name: str) -> Callable[[], str | None]:
    return lambda: None if servers.program(servers.KINDS[name].binary) else f"not installed (tools/servers.sh {name})"


def _program(name: str, installed_by: str) -> Callable[[], str | None]:
    return lambda: None if servers.program(name) else f"not installed ({installed_by})"


NEEDS: dict[str, Callable[[], str | None]] = {
    "cgroup": _cgroup,
    "cuda": _cuda,
    "dlio": _program("dlio_benchmark", "tools/servers.sh dlio"),
    "fio": _program("fio", "apt install fio"),
    "fuse": _fuse,
    "netns": _netns,
    "odirect": _odirect,
    "passthrough": _passthrough,
    "pjdfstest": _program("pjdfstest", "tools/servers.sh pjdfstest"),
    "root": _root,
    "userns": _userns,
    **{name: _server(name) for name in servers.KINDS},
}


#: Bytes that are free where tests write.
ROOM = 3_000_000_000


@cache
def missing(name: str) -> str | None:
    """What the machine lacks for `name`, or None; asked once a run."""
    return NEEDS[name]()


def required() -> frozenset[str]:
    """The needs that must not be skipped, from `FORELOAD_REQUIRE`."""
    names = frozenset(filter(None, (name.strip() for name in os.environ.get("FORELOAD_REQUIRE", "").split(","))))
    if unknown := names - NEEDS.keys():
        raise pytest.UsageError(f"FORELOAD_REQUIRE: unknown {', '.join(sorted(unknown))}; known: {', '.join(NEEDS)}")
    return names


def pytest_configure(config: pytest.Config) -> None:
    required()
    # A test without a home of its own must not meet what an earlier run left in the user's cache: pytest gives directories the same names again.
    if "FORELOAD_CACHE_DIR" not in os.environ:
        os.environ["FORELOAD_CACHE_DIR"] = cache_dir = tempfile.mkdtemp(prefix="foreload-tests-")
        config.add_cleanup(lambda: shutil.rmtree(cache_dir, ignore_errors=True))
    # Disk tiers leave 1 GiB free, and keep nothing where less is: tests of them would fail without saying why.
    place = tempfile.gettempdir()
    if (free := shutil.disk_usage(place).free) < ROOM:
        raise pytest.UsageError(
            f"{place} has {free / 1e9:.1f} GB free, and the tests need {ROOM / 1e9:.0f}: make room, or set TMPDIR"
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a grid of cases that costs minutes, a share is tried, always the same one; `FORELOAD_TEST_MATRIX=full` tries all."""
    if os.environ.get("FORELOAD_TEST_MATRIX") == "full":
        return
    grids: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        if marker := item.get_closest_marker("one_in"):
            grids.setdefault((item.nodeid.partition("[")[0], marker.args[0]), []).append(item)
    left_out: set[pytest.Item] = set()
    for (_, parts), grid in grids.items():
        # By a checksum, and not each fourth: that would never try some values of a dimension.
        grid.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        left_out.update(grid[-(-len(grid) // parts) :])
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    # Each test ends with collections of garbage, which leave the modules that all of them have imported aside from here on.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            if reason := missing(name):
                if name in required():
                    pytest.fail(f"FORELOAD_REQUIRE names {name}, but: {reason}", pytrace=False)
                pytest.skip(f"needs {name}: {reason}")
