"""`foreload agent`: the process that holds this node's caches, and how to end it."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreload.cli import options, output
from foreload.cli.failure import Code, leave

if TYPE_CHECKING:
    from rich.console import Console

    from foreload._core import Agent

#: An agent that doesn't answer for so long is taken to be stuck.
_ANSWER_S = 5.0

agent = typer.Typer(no_args_is_help=True, help="This node's agent: what it is doing, and ending it.")
Force = Annotated[bool, typer.Option("--force", help="End it even if somebody is attached.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for its end.")]


def running() -> "Agent | None":
    """A connection to the agent that runs; None when none does."""
    from foreload import _core
    from foreload._node import agent as _agent
    from foreload.errors import ClosedError

    # Asking for the agent starts one. A program that only fails leaves the one that runs, or none.
    named = os.environ.pop("FORELOAD_AGENT", None)
    try:
        return _core.Agent("/bin/false", _agent.cache_directory())
    except ClosedError:
        return None
    finally:
        if named is not None:
            os.environ["FORELOAD_AGENT"] = named


def jobs_of(connection: "Agent") -> list[dict[str, Any]]:
    """The agent's jobs: job, url, clients, processes, order, seed, ranks, world, ram_bytes, pool, pool_bytes."""
    jobs: list[dict[str, Any]] = json.loads(connection.call('{"call": "status"}'))["jobs"]
    return jobs


def who_of(job: dict[str, Any]) -> tuple[str, str, str]:
    """What tells a job from others over the same data set: its order, its ranks, and the processes attached."""
    from foreload._run.position import spans_of

    seed = f", seed {job['seed']}" if job["order"] not in {"sequential", "supplied", "explicit"} else ""
    ranks = f"{spans_of(job['ranks'])} of {job['world']}"
    return job["order"] + seed, ranks, " ".join(map(str, job["processes"])) or "none"


@agent.command()
def status(as_json: options.AsJson = False) -> None:
    """Says whether an agent runs, and what it is doing."""
    with _answering():
        _status(as_json=as_json)


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Ends a command that asks an agent which doesn't answer."""
    from foreload._node import agent as _agent

    place = _agent.cache_directory()
    stuck = (
        f"the agent of {place} doesn't answer: it is stopped or stuck. `kill -CONT` to its process lets a stopped one go on (`pgrep -f foreload-agent`), "
        "`kill` ends it, and nothing needs cleaning up afterwards"
    )
    with _agent.within(_ANSWER_S, stuck):
        yield


def _status(*, as_json: bool) -> None:
    from foreload._node import agent as _agent

    connection = running()
    cache_dir = _agent.cache_directory()
    value: dict[str, Any] = {"running": connection is not None, "cache_dir": cache_dir, "jobs": []}
    if connection is not None:
        answer = json.loads(connection.call('{"call": "status"}'))
        # Without this command's own connection.
        value |= {"pid": answer["pid"], "connections": answer["connections"] - 1, "log": str(connection.log)}
        value["jobs"] = answer["jobs"]
    output.emit(value, lambda console: _draw(console, value), as_json=as_json)


@agent.command()
def stop(force: Force = False, timeout: Timeout = 10.0, as_json: options.AsJson = False) -> None:
    """Ends the agent: its memory is given back, its disk caches stay."""
    with _answering():
        _stop(timeout, force=force, as_json=as_json)


def _stop(timeout: float, *, force: bool, as_json: bool) -> None:
    connection = running()
    if connection is None:
        value: dict[str, Any] = {"stopped": False, "running": False}
        output.emit(value, lambda console: console.print("no agent runs"), as_json=as_json)
        return
    pid = connection.pid
    # Without this command's own connection. Who has opened a data set and reads nothing of it has one, too.
    attached = json.loads(connection.call('{"call": "status"}'))["connections"] - 1
    connection.call('{"call": "retire"}')
    # Our connection must go as well before the agent thinks itself alone.
    del connection
    if force:
        os.kill(pid, signal.SIGTERM)
    ended = (force or not attached) and wait_for_end(pid, timeout)
    value = {"stopped": ended, "running": not ended, "pid": pid, "attached": attached}
    output.emit(value, lambda console: console.print(_ending(value)), as_json=as_json)
    if not ended:
        leave(Code.FAILED)


def _ending(value: dict[str, Any]) -> str:
    if value["stopped"]:
        return f"agent {value['pid']} ended"
    if value["attached"]:
        return (
            f"agent {value['pid']} ends when the {value['attached']} attached connections close (--force doesn't wait)"
        )
    return f"agent {value['pid']} still runs; kill {value['pid']} ends it, and nothing needs cleaning up afterwards"


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Waits until a process that isn't ours has ended; false when it takes longer."""
    deadline = time.monotonic() + timeout_s
    while is_alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_alive(pid: int) -> bool:
    """Whether a process runs: one that ended and waits to be collected doesn't."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def _draw(console: "Console", value: dict[str, Any]) -> None:
    if not value["running"]:
        console.print(f"no agent runs for {value['cache_dir']}")
        return
    rows = [
        ("connections", str(value["connections"])),
        ("cache directory", value["cache_dir"]),
        ("log", value["log"]),
    ]
    output.facts(console, f"agent, process {value['pid']}", rows)
    if value["jobs"]:
        size = output.human_bytes
        jobs = ((str(j["job"]), j["url"], *who_of(j), str(j["pool"]), size(j["ram_bytes"])) for j in value["jobs"])
        output.grid(console, (">job", "data set", "order", ">rank", ">processes", ">pool", ">memory"), jobs)
    else:
        console.print("no jobs")
