"""Shards: what memory and disk hold of them are blocks, and every sample is right all the same."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload import errors
from foreload._node import agent as _agent
from foreload.cli.opening import reopen
from foreload.torch import DataLoader
from small import tar_shard

SHARDS, EACH = 3, 200


def body(number: int) -> bytes:
    """A sample: from nothing to 80 KB."""
    rolled = random.Random(number)
    return rolled.randbytes(rolled.choice([0, 100, 5000, 30_000, 80_000]))


@pytest.fixture
def shards(home: Any, tmp_path: Path) -> Any:
    """Three tar shards of 200 samples, 14 MB in all."""
    for shard in range(SHARDS):
        numbers = range(shard * EACH, (shard + 1) * EACH)
        tar_shard(tmp_path / f"{shard}.tar", {f"{number:04}.bin": body(number) for number in numbers})
    return fl.open(f"{tmp_path}/{{0..{SHARDS - 1}}}.tar")


def key(raw: memoryview, meta: fl.Meta) -> tuple[int, bytes]:
    return meta.sample, bytes(raw)


def read(loader: Any) -> dict[int, bytes]:
    return dict(pair for batch in loader for pair in batch[0])


def pairs(batch: list[Any]) -> list[Any]:
    return [[value for value, _ in batch]]


ALL = {number: body(number) for number in range(SHARDS * EACH)}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("ram", "disk"), [("8MB", None), ("8MB", "100MB"), ("60MB", None)])
def test_every_sample_is_right_from_bucket_memory_and_disk(
    shards: Any, tmp_path: Path, ram: str, disk: str | None, workers: int
) -> None:
    cache = fl.Cache(ram=ram, disk=f"{tmp_path}/cache:{disk}" if disk else ())
    loader = DataLoader(shards, 7, shuffle=True, seed=1, cache=cache, decode=key, collate_fn=pairs, num_workers=workers)
    for _ in range(3):
        assert read(loader) == ALL
    stats = loader.stats()
    if disk or ram == "60MB":
        # Some forty blocks, each fetched once, and a few samples for which there was no room for one.
        assert stats["requests"] < SHARDS * EACH / 4


def test_a_new_agent_finds_the_blocks_that_another_left_and_reads_single_samples_of_them(
    shards: Any, home: Any, tmp_path: Path
) -> None:
    cache = fl.Cache(ram="8MB", disk=f"{tmp_path}/cache:100MB")

    def loader(**options: Any) -> Any:
        return DataLoader(shards, 7, shuffle=True, seed=1, cache=cache, decode=key, collate_fn=pairs, **options)

    first = loader()
    assert read(first) == ALL
    del first
    agent = _agent.connect(str(home.cache_dir)).pid
    os.kill(agent, signal.SIGKILL)
    second = loader()
    assert read(second) == ALL
    stats = second.stats()
    assert stats["disk_hits"] > 0
    assert stats["disk_hits"] + stats["ram_hits"] + stats["bucket_reads"] == SHARDS * EACH


def test_a_damaged_record_is_fetched_again_and_the_others_are_read(shards: Any, home: Any, tmp_path: Path) -> None:
    cache = fl.Cache(ram="8MB", disk=f"{tmp_path}/cache:100MB")

    def loader() -> Any:
        return DataLoader(shards, 7, shuffle=True, seed=1, cache=cache, decode=key, collate_fn=pairs)

    first = loader()
    for _ in range(2):
        assert read(first) == ALL
    del first
    os.kill(_agent.connect(str(home.cache_dir)).pid, signal.SIGKILL)
    segments = sorted((tmp_path / "cache").rglob("*.seg"))
    assert segments
    for segment in segments:
        raw = bytearray(segment.read_bytes())
        # In the middle of what lies there: a byte of a payload, most likely, and of one record only.
        raw[len(raw) // 2] ^= 0x40
        segment.write_bytes(raw)
    second = loader()
    for _ in range(2):
        assert read(second) == ALL


def test_one_sample_that_differs_from_its_checksum_is_one_sample_that_fails(
    shards: Any, home: Any, tmp_path: Path
) -> None:
    data = reopen(shards, update=False, checksum=True)
    bad = next(number for number in range(EACH, 2 * EACH) if len(body(number)) == 5000)
    path = tmp_path / "1.tar"
    before, raw = path.stat(), bytearray(path.read_bytes())
    at = bytes(raw).index(body(bad))
    raw[at + 2500] ^= 1
    with path.open("r+b") as shard:
        shard.write(raw)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    options: Any = {"cache": fl.Cache(ram="60MB"), "decode": key, "collate_fn": pairs}
    loader = DataLoader(data, 7, shuffle=True, seed=1, on_error=fl.skip(), **options)
    for _ in range(2):
        assert read(loader) == {number: value for number, value in ALL.items() if number != bad}
    with pytest.raises(errors.CorruptError, match=rf"sample {bad} .*checksum"):
        read(DataLoader(data, 7, shuffle=True, seed=1, **options))
