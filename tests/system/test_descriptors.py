"""An agent that runs out of descriptors: nobody is left waiting, and what runs goes on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload._node import agent as _agent
from foreload.torch import DataLoader
from small import until

LIMIT = 400


@pytest.fixture
def limited(home: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Starts the agent under limits of the shell."""

    def limit(options: str) -> None:
        program = tmp_path / "agent"
        program.write_text(f'#!/bin/sh\nulimit {options} || exit 1\nexec {_agent._PROGRAM} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("FORELOAD_AGENT", str(program))

    return limit


class Crowd:
    """Connections that nobody uses, to the agent of a test."""

    def __init__(self, home: Any) -> None:
        self.socket = str(next(home.runtime_dir.glob("*.sock")))
        self.pid = _agent.connect(str(home.cache_dir)).pid
        self.members: list[socket.socket] = []

    def open_files(self) -> int:
        """Descriptors of the agent."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def leave(self, free: int) -> None:
        """Joins until the agent has so many descriptors left."""
        while (now := self.open_files()) < LIMIT - free:
            for _ in range(LIMIT - free - now):
                member = socket.socket(socket.AF_UNIX)
                member.connect(self.socket)
                self.members.append(member)
            until(lambda now=now: self.open_files() > now)

    def go(self) -> None:
        for member in self.members:
            member.close()
        until(lambda: self.open_files() < LIMIT // 2)


@pytest.fixture
def crowds(home: Any) -> Iterator[Callable[[], Crowd]]:
    made: list[Crowd] = []

    def make() -> Crowd:
        made.append(Crowd(home))
        return made[-1]

    yield make
    for crowd in made:
        for member in crowd.members:
            member.close()


def test_the_agent_takes_what_descriptors_it_may_have(home: Any, limited: Callable[[str], None]) -> None:
    limited("-S -n 256")
    fl.open("s3://data/fixed")
    limits = Path(f"/proc/{_agent.connect(str(home.cache_dir)).pid}/limits").read_text()
    soft, hard = next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3:5]
    assert soft == hard != "256"


def test_the_agent_has_nothing_open_that_its_first_client_had(home: Any) -> None:
    """A trainer's connections end with the trainer, and its ports are free again."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        for each in (server, client):
            os.set_inheritable(each.fileno(), True)
        fl.open("s3://data/fixed")
        pid = _agent.connect(str(home.cache_dir)).pid
        theirs = {entry.readlink() for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.exists()}
        ours = {Path(f"/proc/self/fd/{each.fileno()}").readlink() for each in (server, client)}
    assert len(ours) == 2
    assert not theirs & ours


def test_without_descriptors_clients_wait_and_what_runs_goes_on(
    home: Any, limited: Callable[[str], None], crowds: Callable[[], Crowd]
) -> None:
    limited(f"-n {LIMIT}")
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 8, shuffle=True, seed=1, cache=fl.Cache(ram="48MB"))
    first = sorted(value for values, _ in loader for value in values)
    crowd = crowds()
    crowd.leave(0)
    # One more than there are descriptors for.
    late = socket.socket(socket.AF_UNIX)
    late.connect(crowd.socket)
    crowd.members.append(late)
    until(lambda: "a client has to wait" in home.log())
    assert sorted(value for values, _ in loader for value in values) == first
    crowd.go()
    script = 'import foreload as fl; print(len(fl.open("s3://data/fixed").read(3)))'
    words = [sys.executable, "-c", script]
    assert subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout == "30000\n"
    assert _agent.connect(str(home.cache_dir)).pid == crowd.pid


@pytest.mark.parametrize("free", [0, 1, 2, 3, 4])
def test_an_attachment_without_descriptors_is_answered(
    home: Any, limited: Callable[[str], None], crowds: Callable[[], Crowd], free: int
) -> None:
    limited(f"-n {LIMIT}")
    data = fl.open("s3://data/fixed")
    truth = [data.read(sample) for sample in range(len(data))]
    loader = DataLoader(data, 8, cache=fl.Cache(ram="16MB"))
    crowd = crowds()
    crowd.leave(free)
    answers: list[Any] = []

    def attach() -> None:
        try:
            answers.append(loader.run.attachment().job())
        except fl.errors.ForeloadError as error:
            answers.append(error)

    attaching = threading.Thread(target=attach, daemon=True)
    attaching.start()
    attaching.join(30)
    assert len(answers) == 1, "who asked is told, whatever it is"
    if isinstance(answers[0], Exception):
        assert "Too many open files" in str(answers[0])
    crowd.go()
    assert [value for values, _ in loader for value in values] == truth
