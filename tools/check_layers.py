#!/usr/bin/env python3
"""Fails when a crate or a Python module uses what its layer may not use.

The tables below are the rules of CONTRIBUTING.md ("Layers"). Crates are read from `cargo metadata` (direct
dependencies, with their kinds), Python from its syntax tree: which frameworks a module may import, that rooms import those
below them alone, and that no modules import each other in a circle. Called by `make check` and by tests/python/test_tools.py,
which also shows that each rule can fail.
"""

from __future__ import annotations

import ast
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PREFIX = "foreload-"

#: Which of our crates each crate may use, under the short names of the directories below crates/.
MAY_USE: dict[str, frozenset[str]] = {
    "plan": frozenset(),
    "store": frozenset(),
    "decode": frozenset(),
    "sim": frozenset({"plan"}),
    "engine": frozenset({"plan", "store"}),
    "mount": frozenset({"engine", "plan", "store"}),
    "preload": frozenset({"plan"}),
    "py": frozenset({"plan", "store", "decode", "sim", "engine", "mount"}),
    "testkit": frozenset({"plan", "store", "engine"}),
}

#: Third-party crates that only some of ours may use, for whatever purpose.
ONLY_IN: dict[str, frozenset[str]] = {
    "tokio": frozenset({"store", "engine", "mount", "testkit"}),
    "pyo3": frozenset({"py"}),
}

#: What the preloaded library may link besides std; it runs inside foreign programs.
PRELOAD_MAY_USE = frozenset({"foreload-plan", "libc"})

#: Frameworks, and the packages below python/foreload that may import each of them.
FRAMEWORKS: dict[str, frozenset[str]] = {
    "torch": frozenset({"torch", "lightning", "hf"}),
    "torchvision": frozenset({"torch", "lightning", "hf"}),
    "torchdata": frozenset({"torch"}),
    "jax": frozenset({"jax"}),
    "flax": frozenset({"jax"}),
    "lightning": frozenset({"lightning"}),
    "pytorch_lightning": frozenset({"lightning"}),
    "transformers": frozenset({"hf"}),
    "accelerate": frozenset({"hf"}),
    "datasets": frozenset({"hf"}),
}

#: The rooms of python/foreload and its public modules, floor by floor: each may import its own floor and those below it.
FLOORS: tuple[frozenset[str], ...] = tuple(
    frozenset(rooms.split())
    for rooms in (
        "errors",
        "_settings",
        "_node",
        "_data",
        "_predict speeds sim cost plot",
        "_run",
        "_calibrate _mapped mmap _mount mount",
        "torch jax lightning hf",
        "cli __main__",
    )
)


def crate_violations(metadata: dict[str, Any]) -> Iterator[str]:
    """One sentence for each dependency in `metadata` (as `cargo metadata` prints it) that a rule forbids."""
    for package in metadata["packages"]:
        if package["id"] not in metadata["workspace_members"]:
            continue
        crate = package["name"].removeprefix(PREFIX)
        if crate not in MAY_USE:
            yield f"{package['name']} is in no layer: add it to tools/check_layers.py and CONTRIBUTING.md"
            continue
        for dependency in package["dependencies"]:
            yield from _dependency_violations(crate, dependency)


def _dependency_violations(crate: str, dependency: dict[str, Any]) -> Iterator[str]:
    name, kind = dependency["name"], dependency["kind"]
    if name.startswith(PREFIX):
        used = name.removeprefix(PREFIX)
        if used == "testkit":
            if kind != "dev":
                yield f"{crate} ships {used}; it may only be a dev-dependency"
        elif used not in MAY_USE[crate]:
            allowed = ", ".join(sorted(MAY_USE[crate])) or "none of ours"
            yield f"{crate} uses {used}; it may use {allowed}"
    if crate not in ONLY_IN.get(name, {crate}):
        yield f"{crate} uses {name}, which is for {', '.join(sorted(ONLY_IN[name]))} alone"
    if crate == "preload" and kind is None:
        if name not in PRELOAD_MAY_USE:
            yield f"preload links {name}; it may link {', '.join(sorted(PRELOAD_MAY_USE))}"
        if name == "foreload-plan" and dependency["uses_default_features"]:
            yield "preload uses plan with its default features; only `plan::window` allocates nothing"


def import_violations(package: Path) -> Iterator[str]:
    """One sentence for each import of a framework below `package` (python/foreload) outside its own directory."""
    for file in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):
        part = file.relative_to(package).parts[0]
        for line, module in _imports(ast.parse(file.read_text(), str(file))):
            framework = module.partition(".")[0]
            if part not in FRAMEWORKS.get(framework, {part}):
                allowed = ", ".join(f"{package.name}/{name}" for name in sorted(FRAMEWORKS[framework]))
                yield f"{file.relative_to(package.parent)}:{line} imports {framework}, which is for {allowed} alone"


def python_violations(package: Path) -> Iterator[str]:
    """All that is wrong with the package."""
    yield from import_violations(package)
    yield from room_violations(package)
    yield from knot_violations(package)


def room_violations(package: Path) -> Iterator[str]:
    """One sentence for each module below `package` that is on no floor, or imports one of a higher floor, imports inside functions included."""
    floor = {room: at for at, rooms in enumerate(FLOORS) for room in rooms}
    for name, found in sorted(_graph(package).items()):
        here = _room(name)
        if here not in floor:
            yield f"{name} is in no room: add {here} to tools/check_layers.py and CONTRIBUTING.md"
            continue
        higher = sorted(other for other in found if floor.get(_room(other), -1) > floor[here])
        yield from (f"{name} imports {other}, of a room above its own" for other in higher)


def knot_violations(package: Path) -> Iterator[str]:
    """A sentence if modules below `package` import each other in a circle, imports inside functions and for types included."""
    try:
        graphlib.TopologicalSorter(_graph(package)).prepare()
    except graphlib.CycleError as error:
        yield f"modules import each other: {' <- '.join(error.args[1])}"


def _graph(package: Path) -> dict[str, set[str]]:
    """What each module below `package` imports of the others, imports inside functions and for types included."""
    files = {_module(file, package): file for file in package.rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for name, file in files.items():
        nodes = list(ast.walk(ast.parse(file.read_text(), str(file))))
        found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names} & files.keys()
                # Of a package whose parts alone are meant, the package itself is not.
                found |= inside or {node.module}
        graph[name] = (found & files.keys()) - {name, package.name}
    del graph[package.name]
    return graph


def _room(module: str) -> str:
    return module.split(".")[1]


def _module(file: Path, package: Path) -> str:
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and module of every absolute import, `import_module("...")` with a literal included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def cargo_metadata() -> dict[str, Any]:
    """What cargo says about the workspace, without resolving third-party crates."""
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    metadata: dict[str, Any] = json.loads(subprocess.check_output(command, cwd=ROOT))
    return metadata


def report(violations: Iterable[str]) -> int:
    """Prints the violations and returns the exit status."""
    found = list(violations)
    for violation in found:
        print(f"layers: {violation}", file=sys.stderr)
    if not found:
        print("layers: in order")
    return int(bool(found))


if __name__ == "__main__":
    package = ROOT / "python" / "foreload"
    sys.exit(report([*crate_violations(cargo_metadata()), *python_violations(package)]))
