"""Sizes, budgets, ranks and the environment."""

from __future__ import annotations

import doctest
import importlib
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import foreload as fl
from foreload import _core, errors
from foreload._node import ranks
from foreload._settings import environment as _environment
from foreload._settings.memory import available_bytes
from foreload._settings.sizes import format_bytes, parse_bytes
from foreload._settings.tuning import check_policy
from foreload.torch import DataLoader


@pytest.mark.parametrize("name", ["errors", "_settings.sizes", "_settings.cache", "_settings.tuning"])
def test_examples_in_docstrings_run(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"foreload.{name}"))
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("17", 17),
        ("1k", 1000),
        ("1 KiB", 1024),
        ("32GB", 32 * 10**9),
        ("0.5gib", 1 << 29),
        ("1.5 TB", 1_500_000_000_000),
        ("2P", 2 * 10**15),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == parse_bytes(size) == size
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize("wrong", ["", "GB", "1 GBB", "-1", "1e3", "one", None, True, -1, 1.5, "1,5GB"])
def test_what_is_no_size_is_refused(wrong: Any) -> None:
    with pytest.raises(errors.InvalidError, match="is no size"):
        parse_bytes(wrong)


def test_a_cache_is_checked_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORELOAD_RAM", raising=False)
    monkeypatch.delenv("FORELOAD_DISK", raising=False)
    with pytest.raises(errors.InvalidError, match="DIRECTORY:SIZE"):
        fl.Cache(disk="/nvme")
    with pytest.raises(errors.InvalidError, match="ram"):
        fl.Cache(ram="lots")
    with pytest.raises(errors.InvalidError, match="leave nothing"):
        fl.Cache(ram="32MB", batches="32MB").budget()
    assert fl.Cache(disk=None).disks() == [], "what argparse gives where nothing was said"
    budget = fl.Cache(ram="1GB", disk=["/a:1GB", "/b:c:2GB"], staging="100MB").budget()
    assert budget["ram_bytes"] == 10**9
    assert budget["batch_bytes"] == 10**9 // 8
    assert budget["staging_bytes"] == 10**8
    assert budget["disks"] == [
        {"directory": "/a", "capacity_bytes": 10**9},
        {"directory": "/b:c", "capacity_bytes": 2 * 10**9},
    ]
    monkeypatch.setenv("FORELOAD_RAM", "2GB")
    monkeypatch.setenv("FORELOAD_DISK", "/x:1GB,/y:2GB")
    assert fl.Cache().ram_bytes() == 2 * 10**9
    assert fl.Cache().disks() == [("/x", 10**9), ("/y", 2 * 10**9)]


def test_a_budget_of_the_environment_is_refused_by_the_variables_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORELOAD_RAM", "abc")
    with pytest.raises(errors.InvalidError, match="FORELOAD_RAM"):
        fl.Cache().ram_bytes()
    monkeypatch.setenv("FORELOAD_DISK", "/x")
    with pytest.raises(errors.InvalidError, match="FORELOAD_DISK"):
        fl.Cache()
    (tmp_path / "link").symlink_to(tmp_path)
    for again in (tmp_path, tmp_path / "link"):
        with pytest.raises(errors.InvalidError, match="named twice"):
            fl.Cache(disk=[f"{tmp_path}:1GB", f"{again}:2GB"])


def test_loaders_of_one_process_do_not_promise_memory_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORELOAD_RAM", raising=False)
    monkeypatch.setattr("foreload._settings.cache.available_bytes", lambda: 64 << 30)
    train = fl.Cache().fixed()
    validation = fl.Cache().fixed()
    assert (train.ram, validation.ram) == (32 << 30, 16 << 30)
    del train
    assert fl.Cache().fixed().ram == 24 << 30
    assert fl.Cache(ram="1GB").fixed().ram == 10**9
    assert fl.Cache() == fl.Cache()


def test_tuning_is_checked_when_it_is_made() -> None:
    assert fl.Tuning().fields() == {}
    fields = fl.Tuning((8, 2, 32), 0, 5, 1, (0.03, 35e6), "log", 2).fields()
    assert fields == {
        "concurrency": {"start": 8, "least": 2, "most": 32},
        "hedge_per_cent": 0,
        "timeout_s": 5,
        "stall_s": 1,
        "bucket": {"latency_s": 0.03, "bytes_per_s": 35e6},
        "metrics_log": str(Path("log").absolute()),
        "io_threads": 2,
    }
    wrongs: tuple[dict[str, Any], ...] = (
        *({"concurrency": wrong} for wrong in (0, (1, 2, 3), (1, 2), "8", 1.5, True)),
        *({"hedge_per_cent": wrong} for wrong in (-1, 101, 0.5)),
        *({"io_threads": wrong} for wrong in (0, -1, 65, 1.5, True)),
        *({"bucket": wrong} for wrong in ((0, 0), (-1, 5), (0.1,), (0.1, float("inf")), 3)),
        *({"load_timeout_s": wrong} for wrong in (-1, 1e-9, "3", float("nan"))),
        {"stall_s": 0},
    )
    for wrong in wrongs:
        with pytest.raises(errors.InvalidError, match=next(iter(wrong))):
            fl.Tuning(**wrong)


@pytest.mark.parametrize(
    "wrong", ["bogus", "perfect", {"deli": {}}, {"deli": {"fetch": -1, "threshold": 0, "cache": 1}}, 3]
)
def test_a_policy_of_the_simulator_or_none_at_all_is_refused(wrong: Any) -> None:
    check_policy({"deli": {"fetch": 1, "threshold": 0, "cache": 1}})
    with pytest.raises(errors.InvalidError, match=r"a loader runs foreload, naive, staging, lru, frequency, or"):
        check_policy(wrong)


def system(root: Path, **files: str) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 8192 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_what_is_left_is_the_least_of_machine_and_cgroups(tmp_path: Path) -> None:
    assert available_bytes(system(tmp_path / "plain")) == 8 << 20
    v2 = {"proc/self/cgroup": "0::/a/b\n"}
    for name, limit in {"a/b": "max", "a": str(4 << 20), "": "max"}.items():
        top = f"sys/fs/cgroup/{name}".rstrip("/")
        v2 |= {
            f"{top}/memory.max": limit,
            f"{top}/memory.current": str(3 << 20),
            f"{top}/memory.stat": f"anon 1\ninactive_file {1 << 20}\n",
        }
    assert available_bytes(system(tmp_path / "v2", **v2)) == 2 << 20, "of an ancestor, its page cache not counted"
    top = "sys/fs/cgroup/memory/job"
    v1 = {
        "proc/self/cgroup": "5:cpu,memory:/job\n1:name=systemd:/\n",
        f"{top}/memory.limit_in_bytes": str(5 << 20),
        f"{top}/memory.usage_in_bytes": str(2 << 20),
        f"{top}/memory.stat": "total_inactive_file 0\n",
    }
    assert available_bytes(system(tmp_path / "v1", **v1)) == 3 << 20
    assert available_bytes() > 0


TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "x",
    "MASTER_PORT": "1",
}


@pytest.fixture
def no_torchrun(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_ranks_are_found(no_torchrun: pytest.MonkeyPatch) -> None:
    alone = ranks.find()
    assert (alone.rank, alone.world, alone.local) == (0, 1, (0,))
    assert alone.session != ranks.find().session
    given = ranks.find(2, 4)
    assert (given.rank, given.world, given.local) == (2, 4, (2,))
    assert ranks.find(2, 4, local_ranks=[3, 2]).local == (2, 3)
    for name, value in TORCHRUN.items():
        no_torchrun.setenv(name, value)
    told = ranks.find()
    assert (told.rank, told.world, told.local) == (5, 8, (4, 5, 6, 7))
    for wrong in (
        {"dp_rank": 1},
        {"dp_size": 2},
        {"dp_rank": 4, "dp_size": 4},
        {"dp_rank": 0, "dp_size": 2, "local_ranks": [1]},
    ):
        with pytest.raises(errors.InvalidError):
            ranks.find(**wrong)  # type: ignore[arg-type]


def test_a_budget_that_is_too_small_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert fl.Cache(ram="6MB").fixed().ram == 16_000_000
    assert "Cache(ram=...): a loader can't work with 6000000 bytes; it takes 16000000" in caplog.text
    monkeypatch.setenv("FORELOAD_RAM", "7MB")
    assert fl.Cache().fixed().ram == 16_000_000
    assert "FORELOAD_RAM: a loader can't work with 7000000 bytes" in caplog.text
    caplog.clear()
    fl.Cache(ram="16MB").fixed()
    assert not caplog.text


OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
PMI = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
}
HERE = (4, 5, 6, 7)


@pytest.mark.parametrize(
    ("variables", "local"),
    [
        (OPEN_MPI, HERE),
        (PMI, HERE),
        ({"PMI_RANK": "5", "PMI_SIZE": "8"}, (5,)),
        (SLURM, HERE),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2,6"}, (2, 3, 4, 5, 6, 7)),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "7,1"}, (5,)),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "?"}, (5,)),
        ({**SLURM, "SLURM_DISTRIBUTION": "cyclic:block"}, (1, 3, 5, 7)),
        ({**SLURM, "SLURM_DISTRIBUTION": "plane=2"}, (5,)),
        # MPI's launcher starts its own processes with srun; torchrun may be started by any of them.
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "2", **OPEN_MPI}, HERE),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "2", "RANK": "5", "WORLD_SIZE": "8"}, (5,)),
        # A script that sets torchrun's variables from the launcher's.
        ({**OPEN_MPI, **SLURM, "RANK": "5", "WORLD_SIZE": "8"}, HERE),
    ],
)
def test_launchers_say_the_place(
    no_torchrun: pytest.MonkeyPatch, variables: dict[str, str], local: tuple[int, ...]
) -> None:
    for name, value in variables.items():
        no_torchrun.setenv(name, value)
    place = ranks.find()
    assert (place.rank, place.world, place.local) == (5, 8, local)
    # All processes of a node say the same, and no other run does.
    assert (ranks.find().session == place.session) == (len(local) > 1)
    assert ranks.find(0, 1).world == 1


def test_a_batch_script_is_no_task_of_srun(no_torchrun: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}.items():
        no_torchrun.setenv(name, value)
    assert ranks.find().world == 1


def test_a_loader_that_reads_a_share_says_so_once(
    no_torchrun: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ranks.say.cache_clear()
    for name, value in SLURM.items():
        no_torchrun.setenv(name, value)
    for place in (ranks.find(), ranks.find(5, 8), ranks.find()):
        ranks.say(place, is_shuffled=True)
    assert caplog.text.count("rank 5 of 8 (SLURM_PROCID and SLURM_STEP_NUM_TASKS)") == 1


@pytest.mark.parametrize(("rank", "shuffle", "warns"), [(0, False, True), (1, False, False), (0, True, False)])
def test_under_torchrun_rank_0_warns_of_a_loader_in_order_that_reads_a_share(
    no_torchrun: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    data: fl.Dataset,
    rank: int,
    shuffle: bool,
    warns: bool,
) -> None:
    ranks.say.cache_clear()
    for name, value in {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}.items():
        no_torchrun.setenv(name, str(value))
    loader = DataLoader(data, batch_size=5, shuffle=shuffle)
    assert len(loader) == math.ceil(len(data) / 2 / 5)
    said = [it.message for it in caplog.records if it.levelname == "WARNING"]
    assert [f"rank {rank} of 2" in it and "without shuffle, too, reads that rank's share" in it for it in said] == (
        [True] * warns
    )
    caplog.clear()
    everything = DataLoader(data, batch_size=5, shuffle=shuffle, dp_rank=0, dp_size=1)
    assert (len(everything), caplog.text) == (math.ceil(len(data) / 5), "")


def test_half_a_place_is_refused_when_the_loader_is_made(data: fl.Dataset) -> None:
    with pytest.raises(errors.InvalidError, match="dp_rank= is given without dp_size=: give dp_rank and dp_size"):
        DataLoader(data, dp_rank=1)
    with pytest.raises(errors.InvalidError, match="dp_size= is given without dp_rank="):
        DataLoader(data, dp_size=2)


def test_a_disk_tier_without_directory_or_beyond_its_disk_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(errors.InvalidError, match=r"'200MB' names no directory; write DIRECTORY:SIZE.*:200MB"):
        fl.Cache(disk="200MB")
    with pytest.raises(errors.InvalidError, match=r"'/nvme/x' names no size"):
        fl.Cache(disk="/nvme/x")
    for _ in range(2):
        fl.Cache(ram="16MB", disk=[f"{tmp_path}/not/yet:900TB", f"{tmp_path}/small:1MB"]).fixed()
    assert caplog.text.count("is to hold 900 TB, and its file system has") == 1
    assert "small" not in caplog.text


def test_a_mesh_tells_the_data_ranks(no_torchrun: pytest.MonkeyPatch) -> None:
    def mesh(names: tuple[str, ...] | None, shape: tuple[int, ...], at: list[int] | None) -> Any:
        return SimpleNamespace(mesh_dim_names=names, mesh=torch.zeros(shape), get_coordinate=lambda: at)

    both = ranks.find(device_mesh=mesh(("dp_replicate", "dp_shard", "tp"), (2, 3, 4), [1, 2, 3]))
    assert (both.rank, both.world) == (5, 6)
    plain = ranks.find(device_mesh=mesh(None, (4,), [3]))
    assert (plain.rank, plain.world) == (3, 4)
    tensor = ranks.find(device_mesh=mesh(("tp",), (4,), [3]))
    assert (tensor.rank, tensor.world) == (0, 1)
    hybrid = ranks.find(device_mesh=mesh(("replicate", "shard"), (2, 4), [1, 2]))
    assert (hybrid.rank, hybrid.world) == (6, 8)
    with pytest.raises(errors.InvalidError, match="not part"):
        ranks.find(device_mesh=mesh(None, (4,), None))
    for names in (("foo",), ("dp", "foo")):
        with pytest.raises(errors.InvalidError, match=r"'foo'.*give dp_rank and dp_size"):
            ranks.find(device_mesh=mesh(names, (2,) * len(names), [1] * len(names)))
    with pytest.raises(errors.InvalidError, match="mesh_dim_names"):
        ranks.find(device_mesh=mesh(None, (2, 2), [1, 1]))


def test_the_environment_fills_what_was_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "SSL_CERT_FILE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://general")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://own")
    monkeypatch.setenv("AWS_PROFILE", "other")
    full = {"access_key_id": "id", "secret_access_key": "secret", "endpoint": "http://own"}
    assert _environment.storage_options("s3://b", {}) == full
    assert _environment.storage_options("s3://b", {"AWS_ENDPOINT_URL": "x"}) == {**full, "endpoint": "x"}
    assert _environment.storage_options("s3://b", {"key": "k", "secret": "s"}) == {
        "endpoint": "http://own",
        "access_key_id": "k",
        "secret_access_key": "s",
    }
    assert _environment.storage_options("s3://b", {"anon": "true"}) == {"endpoint": "http://own", "anonymous": "true"}
    assert _environment.storage_options("/a/directory", {}) == {}


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"secret_access_key": "wrong"}, "access_key_id"),
        ({"AWS_ACCESS_KEY_ID": "id"}, "secret_access_key"),
        ({"key": "id", "token": "t"}, "secret_access_key"),
        ({"session_token": "t"}, "access_key_id and secret_access_key"),
    ],
)
def test_half_a_pair_of_keys_is_refused(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], missing: str) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(errors.InvalidError, match=f"without {missing};"):
        fl.open("s3://b", storage_options=given)


def test_ranks_that_a_batch_script_numbers_share_their_node(no_torchrun: pytest.MonkeyPatch) -> None:
    """RANK, WORLD_SIZE and LOCAL_RANK by hand, in a step of Slurm's: it knows which ranks are this node's."""
    script = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "n0", "MASTER_PORT": "1"}
    slurm = {
        "SLURM_PROCID": "2",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_NODEID": "1",
    }
    for name, value in script.items():
        no_torchrun.setenv(name, value)
    assert ranks.find().local == (2,)
    for name, value in slurm.items():
        no_torchrun.setenv(name, value)
    assert ranks.find().local == (2, 3)
    no_torchrun.setenv("SLURM_PROCID", "1")
    assert ranks.find().local == (2,), "the step counts its tasks in another way"


def test_a_runtime_directory_of_another_machine_is_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm copies the variable from the login node, not the directory."""
    monkeypatch.delenv("FORELOAD_RUNTIME_DIR", raising=False)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        assert _core.runtime_dir() == Path(short) / "foreload"
    assert _core.runtime_dir() == Path(tempfile.gettempdir()) / f"foreload-{os.getuid()}"


@pytest.mark.parametrize("rank", [None, "abc"])
def test_half_a_launchers_place_is_refused(no_torchrun: pytest.MonkeyPatch, data: fl.Dataset, rank: str | None) -> None:
    no_torchrun.setenv("WORLD_SIZE", "4")
    if rank is not None:
        no_torchrun.setenv("RANK", rank)
    said = "no RANK" if rank is None else "RANK='abc', which is no number"
    with pytest.raises(errors.InvalidError, match=f"WORLD_SIZE=4, and {said}.*dp_rank= and dp_size="):
        len(DataLoader(data, 5, shuffle=True))
    assert len(DataLoader(data, 5, dp_rank=1, dp_size=2)) == math.ceil(len(data) / 2 / 5)
    no_torchrun.setenv("WORLD_SIZE", "1")
    assert len(DataLoader(data, 5)) == math.ceil(len(data) / 5)


def test_a_number_of_ranks_that_is_none_is_refused(no_torchrun: pytest.MonkeyPatch, data: fl.Dataset) -> None:
    no_torchrun.setenv("WORLD_SIZE", "abc")
    with pytest.raises(errors.InvalidError, match="WORLD_SIZE='abc', which is no number"):
        len(DataLoader(data, 5))
    for name, value in OPEN_MPI.items():
        no_torchrun.setenv(name, value)
    assert (ranks.find().rank, ranks.find().world) == (5, 8)


@pytest.mark.parametrize("launched", [SLURM, OPEN_MPI])
def test_a_script_may_set_world_size_where_the_launcher_says_the_rank(
    no_torchrun: pytest.MonkeyPatch, data: fl.Dataset, launched: dict[str, str]
) -> None:
    for name, value in {**launched, "WORLD_SIZE": "8"}.items():
        no_torchrun.setenv(name, value)
    assert (ranks.find().rank, ranks.find().world) == (5, 8)
    assert len(DataLoader(data, 5)) == math.ceil(len(data) / 8 / 5)


def test_a_filter_that_keeps_nothing_says_what_it_was_asked(data: fl.Dataset) -> None:
    with pytest.raises(
        errors.InvalidError,
        match=r"none of \d+ samples is kept; the first is called with key '.*', label \d and \d+ bytes",
    ):
        data.filter(lambda key, label, length: False)


def test_a_batch_is_copied_into_the_memory_of_the_one_before() -> None:
    """Of large samples too, of which the C library would give most back to the system with each batch."""
    program = """if True:
        import resource
        from foreload._settings.memory import keep_freed_memory

        kept = []
        for batch in range(4):
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            copies = [b"x" * 2_000_000 for _ in range(64)]
            keep_freed_memory(sum(map(len, copies)))
            kept.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
            del copies
        assert max(kept[2:]) < kept[0] / 4, kept
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
