"""Where the agent of a test lives: a fixture that gives each test an agent of its own, and checks that it ends and leaves nothing.

The agents of these tests record every decision and replay them at their end; a test whose agent then disagrees with its plan fails.
A directory of tests that wants it defines a fixture `bucket` and takes `home` and `pytest_runtest_makereport` from here into its
`conftest.py`.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing.forkserver
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from small import until


class Home:
    """Where a test's agent lives."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cache_dir, self.runtime_dir = directory / "cache", directory / "run"

    def log(self) -> str:
        path = self.cache_dir / "agent.log"
        return path.read_text() if path.exists() else ""

    def is_served(self) -> bool:
        """Whether an agent listens; a killed one leaves its socket's name behind.

        Asked of the kernel: a connection would begin the agent's lingering anew.
        """
        return f" {self.runtime_dir}/" in Path("/proc/net/unix").read_text()


@pytest.fixture
def home(bucket: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Home]:
    """An agent of the test's own, with the bucket's credentials in the environment."""
    # Short, for a socket's address has 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="fl-", dir="/tmp"))
    here = Home(directory)
    environment = {
        "FORELOAD_CACHE_DIR": str(here.cache_dir),
        "FORELOAD_RUNTIME_DIR": str(here.runtime_dir),
        "FORELOAD_LINGER_S": "0.1",
        "FORELOAD_UNSTABLE_RECORD": "1",
        "FORELOAD_RAM": "64MB",
        **bucket.environment(),
    }
    for name in os.environ:
        if name.startswith(("AWS_", "FORELOAD_")) and not name.startswith("FORELOAD_TEST"):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    yield here
    from foreload._node import agent as _agent

    # What the test was given holds the connection; so does the traceback of one that failed.
    request.node.funcargs.clear()
    failed = getattr(request.node, "failed", False)
    pids = [agent.pid for agent in _agent._agents.values()]
    _agent._agents.clear()
    # A pass that an error's traceback holds ends in the first collection, and what its threads had goes in the second. Torch waits in vain for workers
    # that end in a collection.
    if "torch.utils.data._utils" in sys.modules:
        monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)
    for _ in range(2):
        gc.collect()
    # It lives on with the environment of the test that started it.
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
    if failed:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        shutil.rmtree(directory, ignore_errors=True)
        return
    if here.is_served():
        # It ends by itself, and says then whether it kept to its plan: after it has left its socket. One that was killed can't.
        until(
            lambda: any(word in here.log() for word in ("pools replay to equality", "REPLAY DIFFERS", "panicked")), 20
        )
    until(lambda: not here.is_served(), 20)
    log = here.log()
    shutil.rmtree(directory, ignore_errors=True)
    assert "REPLAY DIFFERS" not in log, log
    assert "panicked" not in log, log


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Lets fixtures know whether their test failed."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.when == "call":
        # An expected failure has a traceback too.
        item.failed = report.failed or hasattr(report, "wasxfail")  # type: ignore[attr-defined]
