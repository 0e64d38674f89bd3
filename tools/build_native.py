#!/usr/bin/env python3
"""Builds the four native parts of the package with cargo and puts them where Python looks for them.

`build` runs cargo once for the extension, the agent and the mount's program and once, under its own profile, for the preload library; it
reads from cargo's messages where the results lie, and copies those that changed into a package directory. The wheel
(setup.py) and `make develop` both call it, so they can't differ. For the wheels of a release (tools/release_wheels.py) it
builds for a target and a glibc that aren't this machine's, which cargo-zigbuild links. It uses the standard library only
and decides nothing about flags that Cargo.toml could hold.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Artefact:
    """One file of the package that cargo makes.

    Attributes:
        target: Name of the cargo target.
        kind: Its kind, as in cargo's messages.
        path: Where it goes, relative to the package directory.
    """

    target: str
    kind: str
    path: str


EXTENSION = Artefact("_core", "cdylib", "_core.abi3.so")
AGENT = Artefact("foreload-agent", "bin", "_bin/foreload-agent")
MOUNT = Artefact("foreload-mount", "bin", "_bin/foreload-mount")
PRELOAD = Artefact("foreload_preload", "cdylib", "_preload.so")

#: Arguments that select the targets of one cargo call, and what the call yields.
CALLS = (
    (
        (
            *("-p", "foreload-py", "--lib"),
            *("-p", "foreload-engine", "--bin", "foreload-agent"),
            *("-p", "foreload-mount", "--bin", "foreload-mount"),
        ),
        None,
        (EXTENSION, AGENT, MOUNT),
    ),
    (("-p", "foreload-preload", "--lib"), "preload", (PRELOAD,)),
)
ARTEFACTS = (EXTENSION, AGENT, MOUNT, PRELOAD)

#: What the first call selects besides in a source tree: the programs of the test kit. Cargo then resolves the dependencies' features
#: as for `cargo test`, and builds none of them a second time.
TESTKIT = ("-p", "foreload-testkit", "--bins")
#: The same where it is the tests' profile.
TESTKIT_AS_TESTED = (*TESTKIT, "--features", "foreload-testkit/as-tested")


def build(
    package: Path,
    profile: str = "release",
    strip: bool = False,
    locked: bool = True,
    target: str | None = None,
    testkit: bool = False,
) -> None:
    """Builds everything native and puts it into `package`.

    Args:
        package: Directory of the package `foreload` (in the source tree or in a build tree).
        profile: Cargo profile of the extension and the agent; the preload library always has its own.
        strip: Whether to drop debug information and local symbols, as in a wheel.
        locked: Whether a Cargo.lock that needs changing is an error.
        target: What to build for, as cargo-zigbuild names it: a target triple and a version of glibc, such as
            `aarch64-unknown-linux-gnu.2.28`. None: for this machine, with its own linker.
        testkit: Whether to build the programs of the test kit, too; they stay in cargo's directory.

    Raises:
        SystemExit: When cargo is missing or fails.
    """
    cargo = shutil.which("cargo")
    if cargo is None:
        raise SystemExit("foreload: cargo was not found; building from source needs Rust (see README.md)")
    for selection, own_profile, artefacts in CALLS:
        arguments = ["--profile", own_profile or profile, *(["--locked"] if locked else [])]
        if testkit and own_profile is None:
            arguments += TESTKIT_AS_TESTED if profile == "dev" else TESTKIT
        environment = dict(os.environ)
        if target is not None:
            arguments += ["--target", target]
            # The linker strips: this machine's `strip` knows its own architecture only.
            environment[f"CARGO_PROFILE_{(own_profile or profile).upper()}_STRIP"] = "symbols" if strip else "none"
        command = [cargo, "build" if target is None else "zigbuild", *selection, *arguments]
        built = _cargo(command, environment)
        for artefact in artefacts:
            _place(_find(built, artefact), package / artefact.path, strip=strip and target is None)


def _cargo(command: list[str], environment: dict[str, str]) -> list[dict[str, object]]:
    """Runs cargo and returns its artefact messages; diagnostics go to the terminal."""
    command = [*command[:2], "--message-format=json-render-diagnostics", *command[2:]]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"foreload: {' '.join(command)} failed with status {done.returncode}")
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [message for message in messages if message.get("reason") == "compiler-artifact"]


def _find(built: list[dict[str, object]], artefact: Artefact) -> Path:
    """The file that holds `artefact`; its absence means that the workspace and this table disagree."""
    for message in built:
        target = message["target"]
        assert isinstance(target, dict)
        if target["name"] == artefact.target and artefact.kind in target["kind"]:
            files = message["filenames"]
            assert isinstance(files, list)
            wanted = [file for file in files if artefact.kind == "bin" or file.endswith(".so")]
            return Path(wanted[0])
    raise SystemExit(f"foreload: cargo built no {artefact.kind} named {artefact.target}")


def _place(source: Path, target: Path, *, strip: bool) -> None:
    """Puts `source` at `target` by renaming, so that a running program keeps the file it has mapped."""
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, staged)
    if strip:
        subprocess.run(["strip", "--strip-unneeded", staged], check=True)
    if target.exists() and filecmp.cmp(staged, target, shallow=False):
        staged.unlink()
    else:
        staged.replace(target)
        print(f"foreload: {source.name} -> {target}", file=sys.stderr)


def main() -> None:
    """Command line: `build_native.py [--profile NAME] [--strip] [--locked] [--testkit] [--into DIR]`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--profile", default="release", help="cargo profile (default: %(default)s)")
    parser.add_argument("--strip", action="store_true", help="drop debug information, as in a wheel")
    parser.add_argument("--into", type=Path, default=ROOT / "python" / "foreload", help="package directory")
    parser.add_argument("--locked", action="store_true", help="fail when Cargo.lock needs changing")
    parser.add_argument("--testkit", action="store_true", help="build the programs of the test kit, too")
    options = parser.parse_args()
    build(options.into, options.profile, options.strip, options.locked, testkit=options.testkit)


if __name__ == "__main__":
    main()
