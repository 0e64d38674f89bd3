"""Less than a machine usually gives: a memory control group, a tiny /dev/shm, and a disk tier that is taken away under a running agent."""

from __future__ import annotations

import fcntl
import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket
from groups import Group

import foreload as fl
from foreload import errors
from foreload._node import agent as _agent
from foreload.torch import DataLoader
from small import number_of, until

LIMIT = 384 << 20


@pytest.fixture
def group() -> Iterator[Group]:
    try:
        made = Group(LIMIT)
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    yield made
    made.dissolve()


IN_A_GROUP = """
import json, zlib
import foreload as fl
from foreload import errors
from foreload._node import agent as _agent
loader = fl.NumpyLoader(fl.open("s3://bench/much"), 8, shuffle=True, seed=1)
print(json.dumps([fl.Cache().ram_bytes(), sorted(zlib.crc32(value) for values, _ in loader for value in values)]))
"""


@pytest.mark.needs("cgroup")
def test_a_job_in_a_control_group_takes_what_that_leaves_and_is_not_ended(
    home: Any, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More data than the group may have memory."""
    monkeypatch.delenv("FORELOAD_RAM")
    with Bucket(synthetic=("much:1100x400000",)) as much:
        for name, value in much.environment().items():
            monkeypatch.setenv(name, value)
        words = [sys.executable, "-c", IN_A_GROUP]
        done = subprocess.run(words, preexec_fn=group.join, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, group.kills()) == (0, 0), done.stderr
        budget, sums = json.loads(done.stdout)
        assert (16 << 20) <= budget <= LIMIT // 2
        assert len(sums) == 1100
        assert len(set(sums)) == 1100


SHARING = """
import sys, zlib
import numpy as np
import foreload as fl
from foreload import errors
from foreload._node import agent as _agent
from foreload.torch import DataLoader
data = fl.open("s3://data/fixed")
decode = lambda raw, meta: np.frombuffer(bytes(raw) * 8, np.uint8)
loader = DataLoader(data, 16, decode=decode, num_workers=2, cache=fl.Cache(ram="128MB", batches="64MB"))
sums = [zlib.crc32(bytes(value[:30_000])) for values, _ in loader for value in values.numpy()]
assert sums == [zlib.crc32(data.read(sample)) for sample in range(len(data))]
print(len(sums))
"""


@pytest.mark.needs("root")
def test_workers_need_no_room_in_dev_shm(home: Any) -> None:
    """A container has 64 MB there by default, and torch's own loader fails where batches don't fit."""
    mounted = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", mounted, "sh", sys.executable, "-c", SHARING]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "203\n"), done.stderr


def become_read_only(volume: Path) -> None:
    """As the kernel does it when the device has reported an error."""
    device = volume.stat().st_dev
    name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
    Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("1")


def fail(volume: Path) -> None:
    """Whatever is asked of it from now on is an input/output error."""
    directory = os.open(volume, os.O_RDONLY)
    fcntl.ioctl(directory, 0x8004587D, struct.pack("I", 2))  # EXT4_IOC_SHUTDOWN, without a last look at the journal
    os.close(directory)


def unmount(volume: Path) -> None:
    subprocess.run(["umount", "-l", str(volume)], check=True)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A file system, with room for what a tier leaves to others."""
    path, image = tmp_path / "volume", tmp_path / "image"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate((1 << 30) + (300 << 20))
    try:
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        subprocess.run(["mount", "-o", "loop,errors=remount-ro", str(image), str(path)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be made here: {error}")
    yield path
    if os.path.ismount(path):
        unmount(path)
    image.unlink()


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("lose", "told", "workers"),
    [
        (become_read_only, "Read-only file system", 0),
        (fail, "Input/output error", 0),
        (fail, "Input/output error", 2),
        (unmount, "", 0),
    ],
    ids=["read-only", "fails", "fails-workers", "unmounted"],
)
def test_training_goes_on_over_a_disk_that_is_lost_in_an_epoch(
    home: Any, volume: Path, lose: Callable[[Path], None], told: str, workers: int
) -> None:
    data = fl.open("s3://data/fixed")
    # Next to no RAM tier: what is kept is kept on the disk.
    cache = fl.Cache(ram="16MB", batches="15MB", disk=f"{volume}/tier:64MB")
    loader = DataLoader(data, 16, shuffle=True, seed=1, num_workers=workers, cache=cache)
    for epoch in range(3):
        found = []
        for number, (values, _) in enumerate(loader):
            found += values
            if (epoch, number) == (0, 3):
                until(lambda: loader.stats()["gauges"]["disk_bytes"] > 500_000)
                lose(volume)
        samples = [sample for batch in range(len(loader)) for sample in loader.run.plan.batch(epoch, batch, 0)]
        assert found == [random.Random(number_of(data.key(sample))).randbytes(30_000) for sample in samples]
    assert told in home.log()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_arena_that_cannot_be_made_is_an_error_and_what_runs_goes_on(
    home: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """An arena is addresses for all of the machine's memory: here the agent has them for one, and for none beside it."""
    machine_kb = int(Path("/proc/meminfo").read_text().split()[1])
    program = tmp_path / "agent"
    program.write_text(f'#!/bin/sh\nulimit -v {machine_kb * 3 // 2} || exit 1\nexec {_agent._PROGRAM} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("FORELOAD_AGENT", str(program))
    data = fl.open("s3://data/fixed")
    right = [random.Random(number_of(data.key(sample))).randbytes(30_000) for sample in range(len(data))]
    loader = DataLoader(data, 16, num_workers=workers, cache=fl.Cache(ram="16MB"))
    batches = iter(loader)
    found = list(next(batches)[0])
    agent = _agent.connect(str(home.cache_dir)).pid
    other = DataLoader(data, 16, num_workers=workers, policy="naive", cache=fl.Cache(ram="16MB"))
    with pytest.raises(errors.NoMemoryError, match=r"making an arena of \d+ bytes: Cannot allocate memory"):
        next(iter(other))
    assert [*found, *(value for values, _ in batches for value in values)] == right
    assert [value for values, _ in loader for value in values] == right
    assert _agent.connect(str(home.cache_dir)).pid == agent
