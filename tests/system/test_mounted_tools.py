"""Tools that others wrote, on a mount: fio reads back what it has written, and DLIO trains from files that it has made there."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import servers
from bucket import Bucket

from mounting import mounted, objects

pytestmark = pytest.mark.needs("fuse")

MIB = 1 << 20


def fio(target: Path, *words: str) -> dict[str, Any]:
    """A run of a few files in which each block carries its own checksum; its first job."""
    given = ["--name=job", f"--directory={target}", "--filename_format=file.$filenum", "--nrfiles=3", "--size=48m"]
    given += ["--verify=crc32c", "--verify_fatal=1", "--fallocate=none", "--output-format=json", *words]
    # It leaves a file behind where it is started.
    with tempfile.TemporaryDirectory() as place:
        ran = subprocess.run(["fio", *given], cwd=place, capture_output=True, text=True, check=False, timeout=90)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    job: dict[str, Any] = json.loads(ran.stdout[ran.stdout.index("{") :])["jobs"][0]
    assert job["error"] == 0
    return job


@pytest.mark.needs("fio")
def test_fio_finds_each_block_that_it_has_written(home: Any) -> None:
    with Bucket(profile="fast", synthetic=["small:2x1100"]) as store:
        with mounted(home, store, allow_write=True) as target:
            written = fio(target, "--rw=write", "--bs=128k", "--do_verify=0", "--create_on_open=1")
            assert written["write"]["io_bytes"] == 48 * MIB
        files = {key: body for key, body in objects(store).items() if key.startswith("file.")}
        assert [len(body) for body in files.values()] == [16 * MIB] * 3
        with mounted(home, store) as target:
            for how in (["--rw=read"], ["--rw=randread", "--ioengine=mmap"], ["--rw=randread", "--direct=1"]):
                # It reads what it would have written: the same blocks, with the same marks.
                read = fio(target, *how, "--bs=128k", "--verify_only=1", "--allow_file_create=0", "--readonly")
                assert read["read"]["io_bytes"] == 48 * MIB
            one = target / "file.1"
            damaged = bytearray(one.read_bytes())
            assert bytes(damaged) == files["file.1"]
        # fio would hear of a block that isn't what was written.
        damaged[5 * MIB] ^= 1
        with mounted(home, store, allow_write=True) as target:
            (target / "file.1").write_bytes(damaged)
        with mounted(home, store) as target, pytest.raises(AssertionError, match=r"verify|crc32c"):
            fio(target, "--rw=read", "--bs=128k", "--verify_only=1", "--allow_file_create=0", "--readonly")


@pytest.mark.timeout(400)
@pytest.mark.needs("dlio")
def test_dlio_trains_by_two_ranks_from_what_it_has_written(home: Any, tmp_path: Path) -> None:
    program = servers.program("dlio_benchmark")
    assert program is not None
    mpiexec = Path(program).resolve().parent / "mpiexec"
    files, size = 24, 1 << 20

    def dlio(target: Path, **workflow: bool) -> Path:
        place = tmp_path / "-".join(workflow)
        given = {
            "dataset.data_folder": target / "data",
            "dataset.num_files_train": files,
            # A directory without files is gone with its mount, and DLIO looks into all that it has made.
            "dataset.num_files_eval": 2,
            "dataset.record_length_bytes": size,
            "dataset.record_length_bytes_stdev": 0,
            "dataset.record_length_bytes_resize": size,
            "reader.batch_size": 2,
            "reader.read_threads": 2,
            "train.epochs": 2,
            "train.computation_time": 0.01,
            "checkpoint.checkpoint_folder": target / "checkpoints",
            "checkpoint.checkpoint_after_epoch": 1,
            "checkpoint.epochs_between_checkpoints": 1,
            "model.model_size_bytes": 8 * MIB,
            **{f"workflow.{name}": value for name, value in workflow.items()},
        }
        words = [str(mpiexec), "-n", "2", program, "workload=unet3d_h100", f"++hydra.run.dir={place}"]
        words += [f"++workload.{name}={value}" for name, value in given.items()]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
        ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=180, env=environment)
        assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
        return place

    with Bucket(profile="fast", synthetic=["small:2x1100"]) as store:
        with mounted(home, store, allow_write=True) as target:
            dlio(target, generate_data=True, train=False)
        made = {key: body for key, body in objects(store).items() if key.startswith("data/train/")}
        assert len(made) == files
        for body in made.values():
            with np.load(io.BytesIO(body)) as arrays:
                assert arrays["x"].nbytes >= size
        with mounted(home, store, allow_write=True) as target:
            place = dlio(target, generate_data=False, train=True, checkpoint=True)
        summary = json.loads((place / "summary.json").read_text())
        assert summary["num_files_train"] == files
        assert summary["epochs"] == 2
        kept = {key: body for key, body in objects(store).items() if key.startswith("checkpoints/")}
        assert sum(len(body) for body in kept.values()) >= 8 * MIB
