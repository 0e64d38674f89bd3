"""Many processes that want an agent at once, and a client of another version."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import foreload as fl
from foreload._node import agent as _agent
from traces import processes

STARTING = """
import sys
import foreload as fl
print("ready", flush=True)
sys.stdin.readline()
data = fl.open("s3://data/fixed")
print(data.source.opened().agent.pid, len(data.read(3)), flush=True)
sys.stdin.readline()
"""


def test_processes_that_start_at_once_share_one_agent(home: Any) -> None:
    words = [sys.executable, "-c", STARTING]
    started = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(12)]
    try:
        told = []
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in started:
            assert process.stdout is not None
            told.append(process.stdout.readline().split())
        assert [length for _, length in told] == ["30000"] * 12
        assert len({agent for agent, _ in told}) == 1
        running = [words for words in processes(home).values() if "foreload-agent" in words]
        assert len(running) == 1, running
    finally:
        for process in started:
            process.communicate("\n")
    assert [process.returncode for process in started] == [0] * 12


def test_a_client_of_another_version_is_told_so_and_nobody_else_is_disturbed(home: Any) -> None:
    data = fl.open("s3://data/fixed")
    agent = _agent.connect(str(home.cache_dir)).pid
    with socket.socket(socket.AF_UNIX) as other:
        other.settimeout(20)
        other.connect(str(next(Path(home.runtime_dir).glob("*.sock"))))
        body = struct.pack("<BQ", 1, 7) + json.dumps({"call": "hello", "version": 5, "pid": os.getpid()}).encode()
        other.sendall(struct.pack("<I", len(body)) + body)
        answer = other.recv(10_000).decode(errors="replace")
    assert "two versions of foreload share one cache directory" in answer
    assert "give FORELOAD_CACHE_DIR another" in answer
    assert f"speaks {5}" in answer
    assert len(data.read(3)) == 30_000
    assert _agent.connect(str(home.cache_dir)).pid == agent
