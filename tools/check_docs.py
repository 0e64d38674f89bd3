#!/usr/bin/env python3
"""Fails when the documentation points at something that isn't there.

Over every tracked Markdown file: relative links and their #anchors lead somewhere, no text names a directory of one
person's machine, and every promise of docs/concepts/semantics.md names tests that exist and are run (or says openly that it
has none yet). Called by `make check` and by tests/python/test_tools.py, which also shows that each rule can fail.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEMANTICS = Path("docs/concepts/semantics.md")

FENCE = re.compile(r"^(```|~~~).*?^\1[`~]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:root|home/\w+|Users/\w+)/")
PROMISE = re.compile(r"^- (?P<text>.*?)(?=^- |^\S|\Z)", re.MULTILINE | re.DOTALL)
PROOF = re.compile(r"\*Test: (?P<tests>[^*]+)\*\s*$")
NO_PROOF = "none yet"


def violations(root: Path, files: Iterable[Path]) -> Iterator[str]:
    """One sentence for each dead link or machine path in `files`, which are relative to `root`."""
    for file in files:
        text = (root / file).read_text()
        yield from (f"{file}: names a machine's directory: {match[0]}" for match in MACHINE_PATH.finditer(text))
        for target in LINK.findall(CODE.sub("", FENCE.sub("", text))):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            linked = (root / file).parent / path if path else root / file
            if not linked.exists():
                yield f"{file}: no file behind {target}"
            elif anchor and linked.suffix == ".md" and anchor not in anchors(linked.read_text()):
                yield f"{file}: no heading behind {target}"


def anchors(text: str) -> set[str]:
    """The anchors that a Markdown host gives to the headings of `text`."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        repeats = (f"{words}-{number}" for number in range(1, 100))
        found.add(words if words not in found else next(name for name in repeats if name not in found))
    return found


def promise_violations(text: str, tests: set[str]) -> Iterator[str]:
    """One sentence for each promise in `text` that names no test, or one that is not among `tests`."""
    for match in PROMISE.finditer(FENCE.sub("", text)):
        promise = " ".join(match["text"].split())
        proof = PROOF.search(promise)
        if proof is None:
            yield f"{SEMANTICS}: no *Test: ...* after: {promise[:60]}"
        elif proof["tests"].strip() != NO_PROOF:
            named = re.findall(r"`([^`]+)`", proof["tests"])
            yield from (f"{SEMANTICS}: no test {name}" for name in named if name not in tests)
            if not named:
                yield f"{SEMANTICS}: *Test: ...* names no test in backquotes after: {promise[:60]}"


def unproven(text: str) -> int:
    """How many promises of `text` say that no test proves them yet."""
    return len(re.findall(rf"\*Test: {NO_PROOF}\*", text))


def known_tests(root: Path) -> set[str]:
    """Names of the tests that a promise may cite: those that `make test` or `make test-system` runs, by bare name."""
    names: set[str] = set()
    for directory in ("tests/python", "tests/system"):
        for file in (root / directory).glob("test_*.py"):
            names.update(python_tests(file.read_text()))
    for crate in sorted(set(root.glob("crates/*")) - {root / "crates/py"}):  # It has no tests in Rust.
        for file in [*crate.glob("src/**/*.rs"), *crate.glob("tests/**/*.rs")]:
            names.update(rust_tests(file.read_text()))
    return names


def python_tests(text: str) -> set[str]:
    """The functions that pytest collects, but for those that are always skipped or may fail."""
    found = re.findall(r"((?:^@(?:[^\n]|\n(?![@d]))*\n)*)^def (test_\w+)", text, re.MULTILINE)
    return {name for marks, name in found if not re.search(r"mark\.(skip\b|xfail)", marks)}


def rust_tests(text: str) -> set[str]:
    """The functions that `cargo test` runs."""
    code = re.sub(r"^\s*//.*\n", "", text, flags=re.MULTILINE)
    found = re.findall(r"((?:#\[[^\n]*\]\s*)+)(?:async )?fn (\w+)", code)
    return {name for marks, name in found if re.search(r"#\[(\w+::)?test\b", marks) and "#[ignore" not in marks}


def tracked_markdown(root: Path) -> list[Path]:
    """Every Markdown file that git tracks, or would."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.check_output(command, cwd=root, text=True).splitlines()
    return [Path(name) for name in names if (root / name).exists()]


def main() -> int:
    """Prints the violations and returns the exit status."""
    semantics = (ROOT / SEMANTICS).read_text()
    found = [*violations(ROOT, tracked_markdown(ROOT)), *promise_violations(semantics, known_tests(ROOT))]
    for violation in found:
        print(f"docs: {violation}", file=sys.stderr)
    if not found:
        print(f"docs: in order; {unproven(semantics)} promises have no test yet")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
