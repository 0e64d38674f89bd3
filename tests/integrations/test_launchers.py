"""Nodes under other launchers than torchrun share their caches: mpirun, by mpi4py's communicator, and Ray Train. All nodes are on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import TRAINEE, Nodes

from foreload.torch import DataLoader

COUNT = 4


@pytest.fixture
def nodes(home: Any, tmp_path: Path) -> Iterator[Any]:
    made: list[Nodes] = []

    def make(**work: Any) -> Nodes:
        made.append(Nodes(tmp_path, COUNT, url="s3://learn/digits", **work))
        return made[-1]

    yield make
    for each in made:
        each.close()


def look(run: Nodes, data: Any) -> None:
    """All batches are right, all nodes met, and each sample has left the bucket once."""
    sums = [zlib.crc32(data.read(sample)) for sample in range(len(data))]
    read = run.look(sums, DataLoader(data, 5, shuffle=True, seed=5, dp_rank=0, dp_size=COUNT).run.plan)
    stats = [json.loads(path.read_text()) for path in sorted(run.place.glob("stats*.json"))]
    assert len(stats) == COUNT
    assert sum(one["samples"] for one in stats) == read
    late = sum(one["peer_failures"] + one["peer_misses"] for one in stats)
    assert sum(one["requests"] - one["hedges"] for one in stats) <= len(data) + late, stats
    assert all(one["peer_hits"] > 0 for one in stats), stats


def mpirun() -> tuple[str, list[str], str]:
    """A launcher of MPI, what it needs before anything else, and how it is told a variable."""
    found = next(
        (
            path
            for each in ("mpirun", "mpiexec")
            if (path := shutil.which(each, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"))
        ),
        None,
    )
    if found is None:
        pytest.skip("no MPI is installed")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    if "open-mpi" in version or "Open MPI" in version:
        return found, ["--allow-run-as-root", "--oversubscribe"], "-x"
    return found, [], "-env"


@pytest.mark.timeout(240)
def test_ranks_of_mpirun_meet_through_its_communicator(nodes: Any, data: Any) -> None:
    pytest.importorskip("mpi4py")
    run = nodes(communicator=True, apart=True)
    launcher, command, option = mpirun()
    command = [launcher, *command]
    for node in range(COUNT):
        told = [
            [option, f"{name}={value}"] if option == "-x" else [option, name, value]
            for name, value in run.own(node).items()
        ]
        command += [":"] * (node > 0) + ["-n", "1", *(word for each in told for word in each), sys.executable, TRAINEE]
    # Each node says its own, so that all they have in common is what MPI tells them.
    run.run(
        0,
        command,
        {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")},
    )
    run.wait(180)
    look(run, data)
    assert run.output().count(f"{COUNT} nodes share their caches") == COUNT


def train(config: dict[str, Any]) -> None:
    """What Ray runs in each of its workers."""
    from ray import train as ray_train

    os.environ.update(config["environments"][ray_train.get_context().get_world_rank()])
    import trainee

    rank = trainee.Trainee(trainee.Work(**json.loads(os.environ["TRAINEE"])))
    rank.run()
    rank.end()


@pytest.mark.timeout(300)
def test_workers_of_ray_train_meet_in_its_process_group(nodes: Any, data: Any, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    # Ray tells machines apart by their addresses.
    run = nodes(apart=True)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(COUNT - 1):
            cluster.add_node(num_cpus=1)
        paths = os.pathsep.join(str(Path(__file__).parents[1] / each) for each in ("", "integrations"))
        shared = {name: value for name, value in os.environ.items() if name.startswith(("FORELOAD_", "AWS_"))}
        ray.init(
            cluster.address,
            runtime_env={"env_vars": {**shared, "PYTHONPATH": f"{paths}:{os.environ.get('PYTHONPATH', '')}"}},
        )
        trainer = TorchTrainer(
            train,
            train_loop_config={"environments": [run.own(node) for node in range(COUNT)]},
            scaling_config=ScalingConfig(
                num_workers=COUNT, resources_per_worker={"CPU": 1}, placement_strategy="STRICT_SPREAD"
            ),
            torch_config=TorchConfig(backend="gloo"),
            run_config=RunConfig(storage_path=str(tmp_path / "ray"), name="nodes"),
        )
        trainer.fit()
    finally:
        ray.shutdown()
        cluster.shutdown()
    look(run, data)
