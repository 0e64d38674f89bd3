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
from foreload._node import agent as _agent
from foreload.torch import DataLoader
from small import lives, number_of, until

BATCH = 5

PROGRAM = """
import json, os, sys, time, zlib
from pathlib import Path
import foreload as fl
from foreload._node import agent as _agent
from foreload.torch import DataLoader

rank, place = int(os.environ["RANK"]), Path(os.environ["PLACE"])
def look(raw, meta):
    return meta.sample, zlib.crc32(raw)
data = fl.open("s3://data/fixed")
loader = DataLoader(data, int(os.environ["BATCH"]), shuffle=True, seed=5, decode=look, collate_fn=lambda pairs: [value for value, _ in pairs],
                    num_workers=int(os.environ["WORKERS"]), cache=fl.Cache(ram="3MB"))
state, saved = place / "state.json", place / os.environ.get("SAVED", "state.json")
if saved.exists():
    loader.load_state_dict(json.loads(saved.read_text()))
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


def kill_again(rank: int, dice: random.Random) -> bool:
    """Kills another worker of a rank that goes on a moment later; never true."""
    time.sleep(0.5)
    for victim in workers(rank, dice) if lives(rank) else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    return False


def expected(ranks: int, batch: int = BATCH) -> tuple[Any, list[int]]:
    """The plan of such a run, and the checksums of all samples."""
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, batch, shuffle=True, seed=5, dp_rank=0, dp_size=ranks)
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


@pytest.mark.timeout(300)
def test_a_run_goes_on_with_another_number_of_ranks_after_one_was_killed(home: Any, tmp_path: Path) -> None:
    """Three ranks, one of them killed; then two, which attach to the same agent and go on from rank 0's last checkpoint."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    together, agents, saved = 12, [], (0, 0)
    for ranks in (3, 2):
        # Of the last run: a rank that is slow to start must not find what rank 0 has saved in this one.
        place = {"PLACE": str(tmp_path), "BATCH": str(together // ranks), "WORKERS": "0", "SAVED": "saved.json"}
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "--max-restarts", "0"]
        with (tmp_path / "output").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, *words, "--monitor-interval", "0.1", str(program)],
                env={**os.environ, **place, "OMP_NUM_THREADS": "1", "FORELOAD_LINGER_S": "60"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            names = [tmp_path / f"pid{rank}.0" for rank in range(ranks)]
            until(lambda names=names: all(name.exists() for name in names), 100)
            told = [json.loads(name.read_text()) for name in names]
            agents += [one["agent"] for one in told]
            until(lambda: (tmp_path / "rank0.log").read_text().count("\n") >= 8, 60)
            if ranks == 3:
                os.kill(told[-1]["rank"], signal.SIGKILL)
            else:
                (tmp_path / "end").touch()
            assert (process.wait(60) != 0) is (ranks == 3), (tmp_path / "output").read_text()
        finally:
            # It takes its ranks along.
            process.terminate()
            process.wait(60)
        plan, checksums = expected(ranks, together // ranks)
        for rank in range(ranks):
            steps = []
            for line in (tmp_path / f"rank{rank}.log").read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):  # The line that a killed rank was writing.
                    epoch, position, batch = json.loads(line)
                    steps.append((epoch, -(-position // together)))
                    assert [sample for sample, _ in batch] == plan.batch(epoch, steps[-1][1] - 1, rank)
                    assert [checksum for _, checksum in batch] == [checksums[sample] for sample, _ in batch]
            epoch, done = saved
            assert steps[0] == ((epoch, done + 1) if done < -(-len(checksums) // together) else (epoch + 1, 1))
        state = json.loads((tmp_path / "state.json").rename(tmp_path / "saved.json").read_text())
        saved = (state["epoch"], -(-state["position"] // together))
        for name in [*tmp_path.glob("pid*.0"), *tmp_path.glob("rank*.log")]:
            name.unlink()
    assert len(set(agents)) == 1
    _agent.connect(str(home.cache_dir)).call('{"call": "retire"}')
