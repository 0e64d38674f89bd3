"""A disk tier on a file system without room for it: training goes on, the order and the bytes are right, and what fits is kept."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload._node import agent as _agent
from foreload.torch import DataLoader
from small import COUNT, until

pytestmark = pytest.mark.needs("root")

SIZE = 30_000
#: What a tier leaves free for others.
FLOOR = 1 << 30


class Volume:
    """A file system of a size of its own: ext4 in a file full of holes, so that only what is written takes room.

    Attributes:
        path: Where it is mounted.
    """

    def __init__(self, scratch: Path) -> None:
        self.image, self.path = scratch / "image", scratch / "volume"
        self.path.mkdir()
        with self.image.open("wb") as file:
            file.truncate(FLOOR + (300 << 20))
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(self.image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.path)], check=True)

    def free(self) -> int:
        """Bytes."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def leave(self, free_bytes: int) -> None:
        """Somebody else takes all but so many bytes."""
        with (self.path / "somebody-elses").open("ab") as file:
            # What the file system needs to note what it gave away is taken from the same room.
            for _ in range(4):
                more = (self.free() - free_bytes) * 99 // 100
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, max(1, more))
                except OSError as error:
                    # The tier took some meanwhile.
                    if error.errno != errno.ENOSPC:
                        raise

    def give_back(self) -> None:
        """Somebody else goes."""
        (self.path / "somebody-elses").unlink()

    def kept(self) -> int:
        """Bytes in the tier's files."""
        return sum(file.stat().st_size for file in self.path.rglob("*.seg"))


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4 (Debian: apt-get install e2fsprogs)")
    try:
        made = Volume(tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop devices here: {error}")
    yield made
    subprocess.run(["umount", "-l", str(made.path)], check=True)
    made.image.unlink()


def loader(volume: Volume, workers: int = 0, **keywords: Any) -> Any:
    # Next to no RAM tier: what is kept is kept on the disk.
    cache = fl.Cache(ram="16MB", staging="4MB", batches="11MB", disk=f"{volume.path}/tier:64MB")
    return DataLoader(
        fl.open("s3://data/fixed"), 16, shuffle=True, seed=1, num_workers=workers, cache=cache, **keywords
    )


def is_exact(made: Any, epoch: int, begun: tuple[bytes, ...] = (), rest: Any = None) -> None:
    run, data = made.run, fl.open("s3://data/fixed")
    found = [*begun, *(value for values, _ in (rest or made) for value in values)]
    samples = [sample for batch in range(len(run)) for sample in run.plan.batch(epoch, batch, 0)]
    assert found == [data.read(sample) for sample in samples]


@pytest.mark.parametrize("workers", [0, 2])
def test_training_goes_on_over_a_disk_without_room_and_says_so(volume: Volume, home: Any, workers: int) -> None:
    """Less is free than the tier leaves to others."""
    volume.leave(FLOOR // 2)
    made = loader(volume, workers)
    for epoch in range(3):
        is_exact(made, epoch)
    assert volume.kept() < SIZE
    assert f"{volume.path}/tier: its file system is full, but for the 1 GiB that stays free" in home.log()


def test_room_for_some_is_filled_and_no_more(volume: Volume, home: Any) -> None:
    volume.leave(FLOOR + 1_000_000)
    made = loader(volume)
    for epoch in range(3):
        is_exact(made, epoch)
    # Of what is being written, the file system doesn't know yet.
    assert 500_000 < volume.kept() < 3_500_000
    assert volume.free() > FLOOR - 2_500_000
    # And is found by the next run, after everybody has ended.
    del made
    _agent._agents.clear()
    until(lambda: not home.is_served(), 20)
    again = loader(volume, epochs=1)
    is_exact(again, 0)
    assert again.stats()["requests"] < COUNT - 10


def test_a_disk_that_fills_up_in_an_epoch_is_a_warning_and_training_goes_on(
    volume: Volume, home: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = loader(volume)
    iterator = iter(made)
    begun = tuple(next(iterator)[0])
    volume.leave(0)
    is_exact(made, 0, begun, iterator)
    told = rf"{volume.path}/tier: (its file system is full|No space left)"
    assert re.search(told, caplog.text + home.log())
    volume.give_back()
    for epoch in range(1, 3):
        is_exact(made, epoch)
