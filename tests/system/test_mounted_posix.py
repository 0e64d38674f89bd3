"""What POSIX says of names and files, as far as a bucket has it: a suite that others wrote, in a mount that may be written."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import servers
from bucket import Bucket

from mounting import mounted

pytestmark = [pytest.mark.needs("fuse"), pytest.mark.needs("root"), pytest.mark.needs("pjdfstest")]

#: Others than root, of whom the suite wants some to be there.
SETTINGS = """
[features]
[settings]
naptime = 0.001
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
"""


def test_what_the_guide_promises_of_names_and_files_is_as_posix_has_it(home: Any, tmp_path: Path) -> None:
    lines = (Path(__file__).parent / "pjdfstest.txt").read_text().splitlines()
    expected = {line for line in lines if not line.startswith("#")}
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS)
    program = servers.program("pjdfstest")
    assert program is not None
    with Bucket(profile="fast", synthetic=["small:10x1100"]) as store, mounted(home, store, allow_write=True) as target:
        words = [program, "-c", str(settings), "-p", str(target)]
        said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=90).stdout
    held = set(re.findall(r"^(\S+::\S+)\s+ok$", said, re.MULTILINE))
    assert len(expected) > 100
    assert expected <= held, sorted(expected - held)
