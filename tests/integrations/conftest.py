"""A bucket of digits, and an agent for each test (`home`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import digits
import pytest
from bucket import Bucket
from home import Home, home, pytest_runtest_makereport

__all__ = ["home", "pytest_runtest_makereport"]


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`s3://learn/digits`."""
    root = tmp_path_factory.mktemp("bucket")
    digits.write(root / "learn")
    with Bucket(directory=root) as running:
        yield running


@pytest.fixture
def data(home: Home) -> Any:
    """The digits."""
    import foreload

    return foreload.open("s3://learn/digits")


@pytest.fixture
def ranks(home: Home) -> Callable[..., list[str]]:
    """Runs a script of this directory as so many ranks, as torchrun does; answers with what each printed last."""

    def run(script: str, *words: str, world: int = 2, port: int = 29610) -> list[str]:
        common = {
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "t",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parent),
        }
        processes = [
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name(script)), *words],
                env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            told = [process.communicate(timeout=100)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert [process.returncode for process in processes] == [0] * world, told
        return [one.splitlines()[-1] for one in told]

    return run
