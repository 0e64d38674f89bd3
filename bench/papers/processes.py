"""The nodes of an experiment as processes of this machine, each with an agent and a cache directory of its own.

They are forked from a process that has imported torch, so that starting many of them takes no time. Nothing has been read by then: neither threads nor an
agent of ours are there to be forked.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Node:
    """A node, as its process sees it.

    Attributes:
        rank: Its number.
        nodes: How many there are.
        meet: Where they can meet, as `foreload.Peers(meet=...)` takes it.
        step: Waited at by all after each step, where they go in step.
    """

    rank: int
    nodes: int
    meet: str
    step: Any


def run(nodes: int, work: Callable[[Node], Any]) -> list[Any]:
    """Runs `work` on nodes of their own, all at once.

    Args:
        nodes: How many.
        work: What each does; its answer must be picklable.

    Returns:
        The answers, by rank.

    Raises:
        RuntimeError: A node ended without an answer; what it said is on stderr.
    """
    home = Path(tempfile.mkdtemp(prefix="nodes-", dir="/tmp"))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        meet = f"127.0.0.1:{found.getsockname()[1]}"
    step = _FORK.Barrier(nodes)
    processes, ends = [], []
    try:
        for rank in range(nodes):
            here, there = _FORK.Pipe(duplex=False)
            arguments = (Node(rank, nodes, meet, step), home, work, there)
            process = _FORK.Process(target=_be, args=arguments)
            process.start()
            there.close()
            processes.append(process)
            ends.append(here)
        answers = [_heard(end, process) for end, process in zip(ends, processes, strict=True)]
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()
        shutil.rmtree(home, ignore_errors=True)
    return answers


def _be(node: Node, home: Path, work: Callable[[Node], Any], answer: Any) -> None:
    torch.set_num_threads(1)
    own = home / str(node.rank)
    own.mkdir()
    os.environ.update(
        FORELOAD_CACHE_DIR=str(own / "cache"),
        FORELOAD_RUNTIME_DIR=str(own),
        FORELOAD_LINGER_S="1",
        FORELOAD_SECRET="of this experiment",
        FORELOAD_HOST="127.0.0.1",
        # As torchrun says it: one rank on each node.
        RANK=str(node.rank),
        WORLD_SIZE=str(node.nodes),
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
    )
    answer.send(work(node))


def _heard(end: Any, process: Any) -> Any:
    while not end.poll(1.0):
        if not process.is_alive() and not end.poll(0):
            raise RuntimeError(f"a node ended with {process.exitcode}")
    return end.recv()
