#!/usr/bin/env python3
"""Fails when a wheel is not what we promise to ship.

It opens a wheel and checks its tags (one abi3 wheel for CPython 3.11 and later), its size, that it carries the extension,
the agent and the preload library and nothing built besides, and of each of the three: that it is for the architecture of
the tag, what it exports, that it carries no search path, which libraries it needs, the newest glibc symbol it asks for, and
that it is stripped. Called by `make wheel` and, for each wheel, by `make wheels`. binutils' readelf does the reading.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from build_native import AGENT, ARTEFACTS, EXTENSION, MOUNT, PRELOAD, ROOT

MAX_BYTES = 20 << 20
#: Debian 12, Ubuntu 22.04 and RHEL 9 have at least this one; building on something newer must not raise it unnoticed. A wheel that is tagged
#: manylinux_X_Y promises X.Y instead.
GLIBC_FLOOR = (2, 34)
#: What every glibc system has: the libraries that a manylinux wheel may rely on, as far as Rust uses them.
SYSTEM_LIBRARIES = frozenset({"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1"})
#: What readelf calls the architectures of our tags.
MACHINES = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}
LOADER = re.compile(r"ld-linux[\w-]*\.so\.\d")


def violations(wheel: Path) -> Iterator[str]:
    """One sentence for each promise that `wheel` breaks."""
    if not re.fullmatch(r"foreload-[\w.]+-cp311-abi3-\w*linux\w*\.whl", wheel.name):
        yield f"{wheel.name} is not tagged cp311-abi3 for Linux"
    tagged = re.search(r"manylinux_(\d+)_(\d+)_", wheel.name)
    floor = (int(tagged[1]), int(tagged[2])) if tagged else GLIBC_FLOOR
    machine = next((machine for name, machine in MACHINES.items() if wheel.stem.endswith(f"_{name}")), None)
    size = wheel.stat().st_size
    if size > MAX_BYTES:
        yield f"{size / (1 << 20):.1f} MiB is more than {MAX_BYTES >> 20} MiB"
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as scratch:
        names = {info.filename: info for info in archive.infolist()}
        ours = {f"foreload/{artefact.path}" for artefact in ARTEFACTS}
        yield from (f"{name} is missing" for name in sorted(ours - names.keys()))
        yield from (f"{name} must not be shipped" for name in sorted(names.keys() - ours) if _is_foreign(name))
        for name in sorted(ours & names.keys()):
            binary = Path(archive.extract(name, scratch))
            yield from binary_violations(name.removeprefix("foreload/"), binary, floor, machine)
        for program in (AGENT, MOUNT):
            found = names.get(f"foreload/{program.path}")
            if found is not None and not found.external_attr >> 16 & stat.S_IXUSR:
                yield f"{program.path} is not executable"


def binary_violations(
    path: str, binary: Path, floor: tuple[int, int] = GLIBC_FLOOR, machine: str | None = None
) -> Iterator[str]:
    """One sentence for each promise that `binary`, shipped as foreload/`path`, breaks; `machine` None: for any."""
    found = machine_of(binary)
    if machine is not None and found != machine:
        yield f"{path} is for {found}; the tag says {machine}"
    dynamic = _readelf("--dynamic", binary)
    if re.search(r"\((RPATH|RUNPATH)\)", dynamic):
        yield f"{path} carries a library search path"
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic))
    foreign = {name for name in needed - SYSTEM_LIBRARIES if not LOADER.fullmatch(name)}
    yield from (f"{path} needs {name}" for name in sorted(foreign))
    newest = glibc_floor(binary)
    if newest > floor:
        yield f"{path} needs glibc {newest[0]}.{newest[1]}; the floor is {floor[0]}.{floor[1]}"
    if re.search(r"\.(symtab|debug_info)\b", _readelf("--section-headers", binary)):
        yield f"{path} is not stripped"
    exported, promised = exports(binary), expected_exports(path)
    if path == EXTENSION.path:
        exported = {name for name in exported if not name.startswith(DEPENDENCY_EXPORTS)}
    yield from (f"{path} exports {name}" for name in sorted(exported - promised))
    yield from (f"{path} doesn't export {name}" for name in sorted(promised - exported))


# crc-fast's C interface: object_store takes the crate with its default features, which mark these for export, and cargo
# unifies features. The interpreter loads an extension with local scope, so no other library can meet them.
DEPENDENCY_EXPORTS = "crc_fast_"


def exports(binary: Path) -> set[str]:
    """The names that `binary` defines for others, without their versions."""
    # readelf reads files of any architecture, nm those it was built for.
    rows = (line.split() for line in _readelf("--dyn-syms", binary).splitlines())
    symbols = (row for row in rows if len(row) >= 8 and row[0].rstrip(":").isdigit())
    return {row[7].partition("@")[0] for row in symbols if row[6] != "UND" and row[4] != "LOCAL"}


def expected_exports(path: str) -> set[str]:
    """The names that the file shipped as foreload/`path` must define, and no others."""
    if path == EXTENSION.path:
        return {"PyInit__core"}
    if path == PRELOAD.path:
        return set((ROOT / "crates" / "preload" / "exports.txt").read_text().split())
    return set()


def machine_of(binary: Path) -> str:
    """The architecture that `binary` was built for, as readelf calls it."""
    return _readelf("--file-header", binary).partition("Machine:")[2].partition("\n")[0].strip()


def glibc_floor(binary: Path) -> tuple[int, int]:
    """The newest glibc symbol version that `binary` asks for."""
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", _readelf("--version-info", binary))
    return max(((int(major), int(minor)) for major, minor in versions), default=(0, 0))


def _is_foreign(name: str) -> bool:
    return name.endswith((".so", ".a", ".rs", ".pyc")) or name.startswith(("crates/", "tests/", "tools/"))


def _readelf(option: str, binary: Path) -> str:
    # C locale: the labels that we look for are translated in others.
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.check_output(["readelf", "--wide", option, binary], text=True, env=environment)


def main() -> int:
    """Checks each wheel named on the command line and prints what it found."""
    status = 0
    for wheel in map(Path, sys.argv[1:]):
        found = list(violations(wheel))
        for violation in found:
            print(f"wheel: {wheel.name}: {violation}", file=sys.stderr)
        if not found:
            print(f"wheel: {wheel.name}: {wheel.stat().st_size / (1 << 20):.1f} MiB, in order")
        status |= bool(found)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
