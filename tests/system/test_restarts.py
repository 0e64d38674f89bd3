"""Real torchrun, real kills: ranks, their workers and the agent die in mid-epoch, torchrun starts the ranks again, and every byte is compared.

Each rank writes down what each of its steps had; after every restart all go on from rank 0's last checkpoint. In the end whatever any attempt had is
compared with the plan and with the objects. `FORELOAD_CHAOS_RESTARTS=N` sets how many kills a test makes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload import _agent
from foreload.torch import DataLoader
from small import number_of, until

BATCH = 5

PROGRAM = """
import json, os, sys, time, zlib
from pathlib import Path
import foreload as fl
from foreload import _agent
from foreload.torch import DataLoader

rank, place = int(os.environ["RANK"]), Path(os.environ["PLACE"])
def look(raw, meta):
    return meta.sample, zlib.crc32(raw)
data = fl.open("s3://data/fixed")
loader = DataLoader(data, int(os.environ["BATCH"]), shuffle=True, seed=5, decode=look, collate_fn=lambda pairs: [value for value, _ in pairs],
                    num_workers=int(os.environ["WORKERS"]), cache=fl.Cache(ram="3MB"))
state = place / "state.json"
if state.exists():
    loader.load_state_dict(json.loads(state.read_text()))
with open(place / f"rank{rank}.log", "a") as log:
    first = True
    while True:
        for batch in loader:
            at = loader.state_dict()
            print(json.dumps([at["epoch"], at["position"], batch]), file=log, flush=True)
            if first:
                first = False
                agent = _agent.connect(data.source.cache_dir).pid
                (place / f"pid{rank}.new").write_text(json.dumps({"rank": os.getpid(), "agent": agent}))
                (place / f"pid{rank}.new").rename(place / f"pid{rank}.{os.environ['TORCHELASTIC_RESTART_COUNT']}")
            if rank == 0:
                (place / "state.new").write_text(json.dumps(at))
                (place / "state.new").rename(state)
            if (place / "end").exists():
                sys.exit(0)
            time.sleep(0.01)
"""


#: Read before the tests' home hides what is set outside.
RESTARTS = int(os.environ.get("FORELOAD_CHAOS_RESTARTS", "0"))


def killed(place: Path, ranks: int, attempt: int, who: str, dice: random.Random) -> None:
    """Waits until all ranks of an attempt train, and a little longer; then kills one of them, one of a rank's workers, or the agent and a rank."""
    names = [place / f"pid{rank}.{attempt}" for rank in range(ranks)]
    until(lambda: all(name.exists() for name in names), 60)
    time.sleep(dice.uniform(0.05, 0.6))
    found: dict[str, int] = json.loads(dice.choice(names).read_text())
    victims = [found["rank"]]
    if who == "agent":
        victims = [found["agent"], found["rank"]]
    if who == "worker":
        victims = workers(found["rank"], dice) or victims
    for victim in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    if who == "worker":
        # One that has done its part at the end of a pass dies unnoticed: then it is the next one's turn.
        until(lambda: not lives(found["rank"]) or kill_again(found["rank"], dice), 60)


def workers(rank: int, dice: random.Random) -> list[int]:
    """One of a rank's workers, if it has any now."""
    try:
        children = Path(f"/proc/{rank}/task/{rank}/children").read_text().split()
    except OSError:
        return []
    return [int(dice.choice(children))] if children else []


def lives(process: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def kill_again(rank: int, dice: random.Random) -> bool:
    """Kills another worker of a rank that goes on a moment later; never true."""
    time.sleep(0.5)
    for victim in workers(rank, dice) if lives(rank) else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    return False


def expected(ranks: int) -> tuple[Any, list[int]]:
    """The plan of such a run, and the checksums of all samples."""
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, BATCH, shuffle=True, seed=5, dp_rank=0, dp_size=ranks)
    objects = [random.Random(number_of(data.key(sample))).randbytes(30_000) for sample in range(len(data))]
    return loader.run.plan, [zlib.crc32(found) for found in objects]


@pytest.mark.parametrize(
    ("ranks", "workers", "whom"),
    [(2, 0, ("rank", "rank", "agent")), (2, 1, ("worker", "rank")), (4, 0, ("rank", "agent"))],
)
def test_whoever_dies_the_run_goes_on_with_its_own_bytes(
    home: Any, tmp_path: Path, ranks: int, workers: int, whom: tuple[str, ...]
) -> None:
    dice = random.Random(ranks * 10 + workers)
    kills = [dice.choice(("rank", "rank", "agent", "worker")) for _ in range(RESTARTS)] or list(whom)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    place = {"PLACE": str(tmp_path), "BATCH": str(BATCH), "WORKERS": str(workers)}
    run = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--monitor-interval", "0.1"]
    more = [
        "--max-restarts",
        str(len(kills) + 2),
        "--master-port",
        "0",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
    ]
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *run, *more, str(program)],
            env={**os.environ, **place, "OMP_NUM_THREADS": "1", "FORELOAD_LINGER_S": "20"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            for attempt, who in enumerate(kills):
                killed(tmp_path, ranks, attempt, who, dice)
            until(lambda: all((tmp_path / f"pid{rank}.{len(kills)}").exists() for rank in range(ranks)), 60)
            time.sleep(0.5)
            (tmp_path / "end").touch()
            assert process.wait(60) == 0, (tmp_path / "output").read_text()
        finally:
            # It takes its ranks along.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()
    plan, checksums = expected(ranks)
    steps = 0
    for rank in range(ranks):
        for line in (tmp_path / f"rank{rank}.log").read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # The line that a killed rank was writing.
                epoch, position, batch = json.loads(line)
                number = -(-position // (BATCH * ranks)) - 1
                assert [sample for sample, _ in batch] == plan.batch(epoch, number, rank)
                assert [checksum for _, checksum in batch] == [checksums[sample] for sample, _ in batch]
                steps += 1
    assert steps > 10 * len(kills)
    # Its ranks were to find it warm; nobody comes any more.
    _agent.connect(str(home.cache_dir)).call('{"call": "retire"}')
