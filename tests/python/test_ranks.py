"""Several ranks on one node share one job, one copy of the data and one GET for each sample."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from small import COUNT

PROGRAM = """
import json, sys, time
import torch.distributed as dist
import foreload as fl
from foreload._node import agent as _agent
from foreload.torch import DataLoader
if sys.argv[1] == "group":
    dist.init_process_group("gloo")
data = fl.open("s3://data/fixed")
workers = int(sys.argv[2])
loader = DataLoader(data, 10, shuffle=True, seed=1, num_workers=workers, decode=lambda raw, meta: meta.sample)
epochs = [[x.tolist() for x, _ in loader] for _ in range(2)]
if sys.argv[1] == "group":
    dist.barrier()
stats = loader.stats()
status = json.loads(_agent.connect(data.source.cache_dir).call('{"call": "status"}'))
print(json.dumps({"epochs": epochs, "jobs": len(status["jobs"]), "samples": stats["samples"], "gets": stats["requests"] - stats["hedges"]}))
if sys.argv[1] == "group":
    dist.barrier()
    dist.destroy_process_group()
"""


PREVIEW = """
import json, os, pathlib, time
import foreload as fl
from foreload.torch import DataLoader
data = fl.open("s3://data/fixed")
more = []
if os.environ["RANK"] == "0":
    more.append(DataLoader(data, 8))
    next(iter(more[0]))
loader = DataLoader(data, 10, shuffle=True, seed=1, decode=lambda raw, meta: meta.sample)
second = DataLoader(data, 10, shuffle=True, seed=1, decode=lambda raw, meta: meta.sample)
epochs = [[x.tolist() for x, _ in each] for each in (loader, second)]
told = [each.stats() for each in (loader, second, *more)]
print(json.dumps({"epochs": epochs, "samples": [one["samples"] for one in told], "gets": [one["requests"] - one["hedges"] for one in told]}))
# Whoever is through first stays: what a node remembers of jobs that all have left isn't the question here.
through = pathlib.Path(os.environ["THROUGH"])
(through / os.environ["RANK"]).touch()
until = time.monotonic() + 90
while len(list(through.iterdir())) < 2 and time.monotonic() < until:
    time.sleep(0.05)
"""


def run(world: int, how: str, workers: int, program: str = PROGRAM) -> list[dict[str, Any]]:
    torchrun = {
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29591",
        "TORCHELASTIC_RUN_ID": "t",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, how, str(workers)],
            env={**os.environ, **torchrun, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * world
    return [json.loads(output) for output in outputs]


@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_of_a_node_share_a_job(home: Any, workers: int) -> None:
    told = run(2, "group", workers)
    for epoch in range(2):
        dealt = [[sample for batch in one["epochs"][epoch] for sample in batch] for one in told]
        assert len(dealt[0]) == len(dealt[1]) == (COUNT + 1) // 2
        assert set(dealt[0]) | set(dealt[1]) == set(range(COUNT))
        assert [len(one["epochs"][epoch]) for one in told] == [11, 11]
    assert [one["jobs"] for one in told] == [1, 1]
    assert max(one["samples"] for one in told) == 2 * (COUNT + 1)
    assert max(one["gets"] for one in told) == COUNT


@pytest.mark.usefixtures("home")
def test_a_loader_more_on_one_rank_leaves_the_others_jobs_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THROUGH", str(tmp_path))
    told = run(2, "plain", 0, PREVIEW)
    for number in range(2):
        dealt = [[sample for batch in one["epochs"][number] for sample in batch] for one in told]
        assert set(dealt[0]) | set(dealt[1]) == set(range(COUNT))
        # Two equal loaders are two jobs, each of both ranks. The rank that asks first may be through.
        assert max(one["samples"][number] for one in told) == COUNT + 1
    # Together, and with the one of one rank, they fetch each sample once.
    gets = [max(one["gets"][number] for one in told if len(one["gets"]) > number) for number in range(3)]
    assert sum(gets) == COUNT
