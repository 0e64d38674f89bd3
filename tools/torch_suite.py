"""Runs the loader tests of PyTorch and torchdata with their class and with ours, and names what passes with theirs alone.

The tests are not part of this repository: give the files of a checkout, `test/test_dataloader.py` of pytorch/pytorch or
`test/stateful_dataloader/test_*.py` of meta-pytorch/data. Each is copied, once as it is and once with the imports of the loader's class
replaced. They need pytest, pytest-timeout, expecttest, psutil and parameterized, and torchdata's need torchdata.

    .venv/bin/python tools/torch_suite.py ~/pytorch/test/test_dataloader.py
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

#: What stands before the tests' first definition, after all imports.
_OURS = "from foreload.torch import DataLoader\n"
_TIMEOUT_S = 400


def replaced(text: str) -> str:
    """A test file with our class in the place of torch's or torchdata's.

    Example:
        >>> replaced("from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader")
        'from foreload.torch import DataLoader as DataLoader'
    """
    text = re.sub(
        r"^from torchdata\.stateful_dataloader import (Stateful, )?StatefulDataLoader",
        lambda found: (
            ("from torchdata.stateful_dataloader import Stateful\n" if found[1] else "")
            + "from foreload.torch import DataLoader"
            + ("" if found.string[found.end() :].startswith(" as ") else " as StatefulDataLoader")
        ),
        text,
        flags=re.MULTILINE,
    )
    text = re.sub(
        r"^from torch\.utils\.data import \([^)]*\bDataLoader,[^)]*\)\n", rf"\g<0>{_OURS}", text, flags=re.MULTILINE
    )
    return re.sub(r"\btorch\.utils\.data\.DataLoader\(", "DataLoader(", text) if _OURS in text else text


def results(files: list[Path], folder: Path) -> dict[str, str]:
    """Each test's result: passed, failed or skipped."""
    report = folder / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--timeout={_TIMEOUT_S}",
        f"--junitxml={report}",
    ]
    subprocess.run([*command, *(file.name for file in files)], cwd=folder, check=False)
    found: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        kinds = {child.tag for child in case}
        bad = kinds & {"failure", "error"} or found.get(name) == "failed"
        found[name] = "failed" if bad else "skipped" if "skipped" in kinds else "passed"
    return found


def run(files: list[Path], *, ours: bool) -> dict[str, str]:
    """Runs copies of test files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in files:
            text = file.read_text()
            (folder / file.name).write_text(replaced(text) if ours else text)
        return results(files, folder)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="test files of a checkout")
    compare(parser.parse_args().files)


def compare(files: list[Path]) -> None:
    """Runs test files both ways and prints what passes with their class alone."""
    theirs, ours = run(files, ours=False), run(files, ours=True)
    passed = [test for test, result in theirs.items() if result == "passed"]
    lost = [test for test in passed if ours.get(test) != "passed"]
    print(f"{len(theirs)} tests, {len(passed)} pass with their class, {len(passed) - len(lost)} of these with ours")
    print(*lost, sep="\n")


if __name__ == "__main__":
    main()
