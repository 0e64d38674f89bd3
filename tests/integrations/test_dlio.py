"""DLIO with Foreload as its loader: two ranks, over the files that it made and over a bucket. DLIO brings TensorFlow and MPI, so it is no part of the tests' set-up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bucket import Bucket

pytest.importorskip("dlio_benchmark", reason="pip install dlio-benchmark mpich")

ROOT = Path(__file__).resolve().parents[2]
FILES, EPOCHS = 48, 2
SETTINGS = {
    "workflow.checkpoint": False,
    "dataset.data_folder": "data",
    "dataset.num_files_train": FILES,
    "dataset.record_length": 40_000,
    "dataset.record_length_stdev": 0,
    "dataset.record_length_resize": 4096,
    "reader.batch_size": 4,
    "reader.read_threads": 1,
    "train.epochs": EPOCHS,
    "train.computation_time": 0.02,
}
OURS = {
    "reader.data_loader_classname": "bench.mlperf.dlio.ForeloadLoader",
    "reader.data_loader_sampler": "index",
}


def dlio(where: Path, ranks: int, settings: dict[str, object], env: dict[str, str]) -> str:
    """What it says."""
    programs = Path(sys.executable).parent
    command = [str(programs / "mpirun"), "-n", str(ranks), str(programs / "dlio_benchmark"), "workload=unet3d_h100"]
    command += [f"++workload.{name}={value}" for name, value in {**SETTINGS, **settings}.items()]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "python")])
    done = subprocess.run(
        command,
        cwd=where,
        env={**os.environ, "PYTHONPATH": paths, **env},
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def steps(said: str) -> list[int]:
    return [int(found) for found in re.findall(r"Ending block 1 - (\d+) steps", said)]


@pytest.mark.timeout(900)  # three times TensorFlow and MPI
def test_dlio_reads_through_foreload_on_two_ranks(tmp_path: Path) -> None:
    bucket_dir = tmp_path / "buckets"
    (bucket_dir / "bench").mkdir(parents=True)
    dlio(bucket_dir / "bench", 1, {"workflow.generate_data": True, "workflow.train": False}, {})
    said = dlio(bucket_dir / "bench", 2, OURS, {})
    assert "ForeloadLoader" in said
    assert steps(said) == [FILES // 8] * EPOCHS
    with Bucket(directory=bucket_dir) as bucket:
        env = {**bucket.environment(), "FORELOAD_DLIO_URL": "s3://bench/data"}
        assert steps(dlio(bucket_dir / "bench", 2, OURS, env)) == [FILES // 8] * EPOCHS
        assert bucket.counters()["requests"]["get"] == FILES
