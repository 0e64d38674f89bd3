#!/usr/bin/env python3
"""Builds the wheels of a release into dist/: glibc 2.28 and newer, x86-64 and aarch64. Called by `make wheels`.

Debian 10, Ubuntu 20.04, RHEL 8 and all that came later have that glibc; clusters run the old ones for long. One machine
builds for all: cargo-zigbuild links against the wanted glibc and for the other architecture. An architecture whose Rust
target or whose linker isn't installed is skipped, which is said; it is an error when that leaves no wheel. Each wheel
passes tools/check_wheel.py and auditwheel; the one of this machine's architecture is installed into an environment of its
own with what it requires, and reads a data set there.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
GLIBC = (2, 28)
ARCHITECTURES = ("x86_64", "aarch64")
SCRIPTS = Path(sys.executable).parent
#: What the installed wheel must do: start its agent, read files in a shuffled order, and hand out what is in them.
SMOKE = """
import pathlib, sys, tempfile
import foreload as fl
with tempfile.TemporaryDirectory() as name:
    for i in range(50):
        (pathlib.Path(name) / f"{i:02}.bin").write_bytes(bytes([i]) * 1000)
    loader = fl.NumpyLoader(fl.open(name, format="flat"), 8, shuffle=True, seed=1)
    found = sorted(bytes(sample) for batch in loader for sample in batch[0])
assert found == [bytes([i]) * 1000 for i in range(50)], found
"""


def lacking(architecture: str) -> str | None:
    """What this machine lacks to build for an architecture, with what mends it; None when it lacks nothing."""
    triple = f"{architecture}-unknown-linux-gnu"
    if not has_target(triple):
        return f"no Rust target {triple} (rustup target add {triple})"
    if not has_zig():
        return "no zig, with which cargo-zigbuild links (remove .venv-release and call make wheels again)"
    return None


def has_target(triple: str) -> bool:
    """Whether rustc has the standard library for `triple`."""
    named = subprocess.run(
        ["rustc", "--print", "target-libdir", "--target", triple], capture_output=True, text=True, check=False
    )
    return named.returncode == 0 and any(Path(named.stdout.strip()).glob("libstd-*.rlib"))


def tool_environment() -> dict[str, str]:
    """This process's variables, with the programs of its Python first on the path: cargo-zigbuild and its zig."""
    return {**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}


def has_zig() -> bool:
    """Whether cargo-zigbuild is there and finds its zig."""
    try:
        asked = subprocess.run(
            ["cargo-zigbuild", "zig", "cc", "--", "--version"], env=tool_environment(), capture_output=True, check=False
        )
    except FileNotFoundError:
        return False
    return asked.returncode == 0


def build(architecture: str) -> Path:
    """Builds and checks the wheel for an architecture; returns where it is."""
    major, minor = GLIBC
    tag = f"manylinux_{major}_{minor}_{architecture}"
    environment = {
        **tool_environment(),
        "FORELOAD_TARGET": f"{architecture}-unknown-linux-gnu.{major}.{minor}",
        "FORELOAD_PLATFORM": tag,
    }
    for left in (ROOT / "build").glob("*"):
        shutil.rmtree(left)
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        DIST,
        ".",
    ]
    subprocess.run(pip, cwd=ROOT, env=environment, check=True)
    (wheel,) = DIST.glob(f"*-{tag}.whl")
    subprocess.run([sys.executable, ROOT / "tools" / "check_wheel.py", wheel], check=True)
    audited = subprocess.run(
        [SCRIPTS / "auditwheel", "show", "--json", wheel], capture_output=True, text=True, check=True
    )
    found = json.loads(audited.stdout)
    allowed = found["overall_tag"]
    if not is_within(allowed, tag):
        raise SystemExit(f"wheels: {wheel.name}: auditwheel allows {allowed}, not {tag}")
    print(f"wheels: {wheel.name}: auditwheel allows {allowed}")
    return wheel


def is_within(allowed: str, tag: str) -> bool:
    """Whether what auditwheel allows is `tag` or a tag for an older glibc."""

    def read(name: str) -> tuple[tuple[int, ...], str]:
        _, major, minor, architecture = name.split("_", 3)
        return (int(major), int(minor)), architecture

    if not allowed.startswith("manylinux_"):
        return False
    (floor, kind), (wanted, architecture) = read(allowed), read(tag)
    return floor <= wanted and kind == architecture


def smoke(wheel: Path) -> None:
    """Installs a wheel with what it requires, and reads a data set with it."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "venv", scratch], check=True)
        python = Path(scratch) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
        private = Path(scratch) / "run"
        private.mkdir(mode=0o700)
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(private), "XDG_CACHE_HOME": str(Path(scratch) / "cache")}
        environment.pop("PYTHONPATH", None)
        subprocess.run([python, "-c", SMOKE], cwd=scratch, env=environment, check=True)
    print(f"wheels: {wheel.name}: installed, and read a data set")


def main() -> int:
    """Builds what this machine can build for."""
    shutil.rmtree(DIST, ignore_errors=True)
    built = []
    for architecture in ARCHITECTURES:
        missing = lacking(architecture)
        if missing is not None:
            print(f"SKIPPED wheels: {architecture}: {missing}", file=sys.stderr)
            continue
        wheel = build(architecture)
        if architecture == platform.machine():
            smoke(wheel)
        built.append(wheel)
    if not built:
        print("wheels: none was built", file=sys.stderr)
    return int(not built)


if __name__ == "__main__":
    sys.exit(main())
