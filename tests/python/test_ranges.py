"""Samples of several ranges: in any loader, with any memory, each is the bytes of its ranges, in the order in which a manifest names them."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket import Bucket
from torch.utils import data as torch_data

import foreload as fl
from foreload import errors
from foreload.cli.opening import reopen
from foreload.torch import DataLoader, Dataset, Sampler
from small import until

COUNT = 120
#: Less than the samples have.
SMALL = "16MB"


@cache
def video(number: int) -> bytes:
    return random.Random(f"video {number}").randbytes(1_000_000)


def clip(number: int) -> list[tuple[str, int, int]]:
    """The ranges of a sample: every fourth has one, the others have frames of several videos and a caption, that are near each other and far, one twice."""
    dice = random.Random(number)
    key, first = f"v{number % 5}.mp4", dice.randrange(300_000)
    if number % 4 == 0:
        return [(key, first, first + 150_000)]
    frames = [
        (key, first, first + 40_000),
        # At once behind it; a little further on; and far away.
        (key, first + 40_000, first + 70_000),
        (key, first + 71_000, first + 100_000),
        (f"v{(number + 1) % 5}.mp4", 900_000, 1_000_000),
        (key, 5, 5),
        (f"{number}.txt", 0, len(caption(number))),
        (key, first, first + 40_000),
    ]
    return frames if number % 4 == 1 else dice.sample(frames, len(frames))


def caption(number: int) -> bytes:
    return f"This is caption {number}.".encode()


def expected(number: int) -> bytes:
    def read(key: str, first: int, end: int) -> bytes:
        return (caption(number) if key.endswith(".txt") else video(int(key[1])))[first:end]

    return b"".join(read(*place) for place in clip(number))


EXPECTED = [expected(number) for number in range(COUNT)]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`clips/`: five videos, captions, and the manifest of the samples."""
    root = tmp_path_factory.mktemp("bucket") / "data"
    (root / "clips").mkdir(parents=True)
    for number in range(5):
        (root / "clips" / f"v{number}.mp4").write_bytes(video(number))
    lines = []
    for number in range(COUNT):
        (root / "clips" / f"{number}.txt").write_bytes(caption(number))
        ranges: list[Any] = [[key] if key.endswith(".txt") else [key, first, end] for key, first, end in clip(number)]
        if len(ranges) == 1:
            key, first, end = clip(number)[0]
            lines.append({"object": key, "offset": first, "length": end - first, "label": number % 3})
        else:
            lines.append({"ranges": ranges, "label": number % 3})
    (root / "clips" / "clips.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Bucket(directory=root.parent) as running:
        yield running


@pytest.fixture
def clips(home: Any, bucket: Any) -> Iterator[Any]:
    yield fl.open("s3://data/clips/clips.jsonl")
    bucket.clear_faults()


def told(raw: memoryview, meta: fl.Meta) -> tuple[int, bytes]:
    return meta.sample, bytes(raw)


def as_is(pairs: list[Any]) -> list[Any]:
    return pairs


def make(data: Any, **keywords: Any) -> Any:
    given = {"shuffle": True, "seed": 5, "decode": told, "collate_fn": as_is, "cache": fl.Cache(ram=SMALL), **keywords}
    return DataLoader(data, given.pop("batch_size", 7), **given)


def check(batches: Any, count: int = COUNT) -> None:
    """Every sample once, and all its bytes."""
    pairs = [pair for batch in batches for pair, _ in batch]
    assert sorted(sample for sample, _ in pairs) == list(range(count))
    wrong = [sample for sample, body in pairs if body != EXPECTED[sample]]
    assert not wrong


def test_a_sample_is_the_bytes_of_its_ranges_in_their_order(clips: Any) -> None:
    assert (len(clips), clips._index.objects) == (COUNT, 5 + COUNT - COUNT // 4)
    for number in range(COUNT):
        item = clips[number]
        assert (item.bytes, item.label) == (EXPECTED[number], number % 3)
        assert clips.ranges(number) == clip(number)
        assert clips.length(number) == len(EXPECTED[number])
    assert clips.key(1) == "v1.mp4"
    assert clips.url_of(1) == f"s3://data/clips/v1.mp4#bytes={clip(1)[0][1]}-{clip(1)[0][2] - 1}"


@pytest.mark.parametrize("policy", ["foreload", "lru", "staging"])
@pytest.mark.parametrize("disk", [False, True])
def test_two_epochs_pass_through_a_small_memory_and_a_disk(clips: Any, tmp_path: Path, policy: str, disk: bool) -> None:
    disks = [f"{tmp_path}:100MB"] if disk else []
    loader = make(clips, cache=fl.Cache(ram=SMALL, disk=disks), policy=policy)
    for _ in range(2):
        check(loader)
    stats = loader.stats()
    assert stats["samples"] == 2 * COUNT
    if disk and policy == "foreload":
        assert stats["disk_hits"] > 0


def test_another_job_finds_them_on_disk(clips: Any, tmp_path: Path) -> None:
    keep = fl.Cache(ram=SMALL, disk=[f"{tmp_path}:100MB"])
    loader = make(clips, cache=keep)
    check(loader)
    until(lambda: loader.stats()["written_samples"] > COUNT // 8)
    again = make(clips.select(list(range(COUNT))), cache=keep, seed=6)
    check(again)
    assert again.stats()["disk_hits"] > 0


def test_two_workers_and_every_loader_get_them(clips: Any) -> None:
    loader = make(clips, num_workers=2)
    for _ in range(2):
        check(loader)
    samples = Dataset(clips, cache=fl.Cache(ram=SMALL), decode=told)
    sampler = Sampler(samples, seed=3, batch_size=7)
    check(torch_data.DataLoader(samples, batch_size=7, sampler=sampler, num_workers=2, collate_fn=as_is))
    numpy = fl.NumpyLoader(clips, 7, shuffle=False, cache=fl.Cache(ram=SMALL))
    assert [raw for batch, _ in numpy for raw in batch] == EXPECTED


def test_a_run_of_them_goes_on_where_it_was_with_another_number_of_ranks(clips: Any) -> None:
    loader = make(clips, batch_size=8)
    batches = iter(loader)
    first = [next(batches) for _ in range(2)]
    state = json.loads(json.dumps(loader.state_dict()))
    ranks = [make(clips, batch_size=4, dp_rank=rank, dp_size=2) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(state)
    check(first + [batch for rank in ranks for batch in rank])


def test_a_part_a_filter_and_a_mixture_of_them_have_their_bytes(clips: Any, tmp_path: Path) -> None:
    chosen = [45, 3, 3, 0, 17]
    some = clips.select(chosen)
    assert [item.bytes for item in some] == [EXPECTED[number] for number in chosen]
    assert [some.ranges(number) for number in range(5)] == [clip(number) for number in chosen]
    long = clips.filter(lambda key, label, length: length > 200_000)
    kept = [body for body in EXPECTED if len(body) > 200_000]
    assert [item.bytes for item in long] == kept
    assert 0 < len(kept) < COUNT
    parts = clips.split({"a": 0.5, "b": 0.5})
    halves = sorted(item.bytes for part in parts.values() for item in part)
    assert halves == sorted(EXPECTED)
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(b"plain %d" % number)
    streams = [fl.Stream(fl.open(tmp_path), 1, "plain"), fl.Stream(clips, 15, "clips")]
    mixture = fl.Mixture(streams, samples=COUNT)
    seen = set()
    for batch in make(mixture, batch_size=8):
        for (sample, body), _ in batch:
            name, number = mixture.stream_of(sample)
            assert body == (EXPECTED[number] if name == "clips" else b"plain %d" % number)
            seen.add(name)
    assert seen == {"plain", "clips"}


def test_a_checksum_covers_all_ranges(clips: Any, bucket: Any) -> None:
    data = reopen(clips, update=False, checksum=True)
    assert data.digest == clips.digest
    check(make(data))
    # One answer is altered, and asked for again.
    bucket.add_fault("flip", matching="clips/v3.mp4", at=0.5, times=1)
    check(make(data, seed=8))
    bucket.add_fault("flip", matching="clips/v3.mp4", at=0.5)
    with pytest.raises(errors.CorruptError, match=r"sample \d+ .*v\d\.mp4.*checksum"):
        list(make(data, seed=9))


def test_an_object_that_changed_in_the_middle_of_a_list_is_reported(clips: Any, bucket: Any) -> None:
    bucket.add_fault("changed", matching="clips/13.txt")
    with pytest.raises(errors.ChangedError, match=r"clips/13\.txt") as caught:
        list(make(clips))
    assert caught.value.sample == 13
    loader = make(clips, on_error=fl.skip(max_consecutive=2))
    samples = [sample for batch in loader for (sample, _), _ in batch]
    assert sorted(samples) == [number for number in range(COUNT) if number != 13]
    # Nobody reads ahead any more: what was asked for before the object was as it should be may be answered after that.
    del loader, caught
    gc.collect()
    with pytest.raises(errors.ChangedError):
        clips.read(13)
    bucket.clear_faults()
    assert clips.read(13) == EXPECTED[13]


def test_a_range_beyond_its_object_is_an_error_that_names_its_line(home: Any, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(10))
    for line, message in (
        (
            '{"ranges": [["a.bin", 0, 4], ["a.bin", 5, 11]]}',
            r"a\.bin.*line 2 of the manifest: bytes 5\.\.11 lie outside",
        ),
        (
            '{"ranges": [["a.bin", 4, 3]]}',
            r"line 2 of the manifest: range 1 of `ranges` ends at byte 3.*write each range as",
        ),
        ('{"ranges": [["b.bin"]]}', r"b\.bin"),
    ):
        (tmp_path / "list.jsonl").write_text('{"object": "a.bin"}\n' + line + "\n")
        with pytest.raises(errors.ForeloadError, match=message):
            fl.open(tmp_path / "list.jsonl", refresh=True)


def test_lists_of_groups_in_parquet_are_ranges(home: Any, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "a.bin").write_bytes(bytes(range(100)))
    rows = [
        [{"object": "a.bin", "start": 50, "end": 60}, {"object": "a.bin", "start": None, "end": 5}],
        [{"object": "a.bin"}],
    ]
    parquet.write_table(arrow.table({"ranges": rows, "label": [1, 2]}), tmp_path / "list.parquet")
    data = fl.open(tmp_path / "list.parquet")
    assert [item.bytes for item in data] == [bytes([*range(50, 60), *range(5)]), bytes(range(100))]
    assert np.array_equal(data.labels, [1, 2])
