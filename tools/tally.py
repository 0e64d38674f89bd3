#!/usr/bin/env python3
"""Adds up the closing lines of cargo test and pytest in a log and prints them as one.

Called by .ci/run after all stages. It exits with 1 when no test ran at all: a run that proves nothing is not a success.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CARGO = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;", re.MULTILINE)
PYTEST = re.compile(r"^=+ (?P<counts>(?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", re.MULTILINE)
COUNT = re.compile(r"(\d+) ([a-z]+)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def tally(log: str) -> tuple[int, int, int]:
    """Tests that passed, failed (errors included) and were skipped in `log`."""
    log = COLOUR.sub("", log)
    passed = failed = skipped = 0
    for one, two, three in CARGO.findall(log):
        passed, failed, skipped = passed + int(one), failed + int(two), skipped + int(three)
    for match in PYTEST.finditer(log):
        for count, word in COUNT.findall(match["counts"]):
            passed += int(count) if word in ("passed", "xfailed") else 0
            failed += int(count) if word in ("failed", "error", "errors", "xpassed") else 0
            skipped += int(count) if word == "skipped" else 0
    return passed, failed, skipped


def main() -> int:
    """Prints `N passed, N failed, N skipped` for the log named on the command line."""
    passed, failed, skipped = tally(Path(sys.argv[1]).read_text(errors="replace"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0 or passed == 0)


if __name__ == "__main__":
    sys.exit(main())
