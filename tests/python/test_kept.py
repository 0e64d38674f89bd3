"""Results that are kept are those that the data set makes, whoever kept them, whatever became of the files, and within the budgets."""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import gc
import logging
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils import data

import foreload as fl
from alike import same
from foreload import errors
from foreload._node import results as _results
from foreload._node import table as _table
from foreload._node.results import Fate, Results
from foreload._node.table import Name
from foreload.torch import DataLoader, wrap

COUNT = 23
NAME = Name("some", 50)


class Item(NamedTuple):
    image: torch.Tensor
    at: int


def items_of(at: int) -> Any:
    """Of many types, the same each time."""
    some = np.random.default_rng(at)
    return {
        "item": Item(torch.from_numpy(some.integers(0, 255, (3, 4, 5), dtype=np.uint8)), at),
        "turned": torch.from_numpy(some.random((4, 6))).t(),
        "last": torch.from_numpy(some.random((2, 3, 4, 4))).to(memory_format=torch.channels_last),
        "half": torch.from_numpy(some.random(3)).to(torch.bfloat16),
        "flags": torch.from_numpy(some.random(4) > 0.5),
        "wave": torch.from_numpy(some.random(2)) * 1j,
        "none": torch.empty(0, 3),
        "one": torch.tensor(at),
        "array": some.random((6, 2)).astype(np.float16)[::2].T,
        "number": np.float32(at),
        "text": f"sample {at}",
        "pair": [at, (at / 3, bytes([at]))],
    }


class Made(data.Dataset[Any]):
    """Counts what it makes, over all processes."""

    def __init__(self, count: int = COUNT, shift: int = 0) -> None:
        self.count, self.shift = count, shift
        self.makes = torch.zeros(count, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> Any:
        if not 0 <= at < self.count:
            raise IndexError(at)
        self.makes[at] += 1
        return items_of(at + self.shift)


class Large(Made):
    """A megabyte each, with its number in each byte."""

    def __getitem__(self, at: int) -> torch.Tensor:
        self.makes[at] += 1
        return torch.full((1 << 20,), at + self.shift, dtype=torch.uint8)


class Plain(data.Dataset[Any]):
    """Anything by a function."""

    def __init__(self, make: Any, count: int = COUNT) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> Any:
        return self.make(at)


@pytest.fixture
def disk(tmp_path: Path) -> str:
    return f"{tmp_path / 'disk'}:64MB"


def kept(dataset: Any, disk: str | None, **keywords: Any) -> Any:
    keywords = {"name": "made", "check": 0, **keywords}
    return wrap(dataset, deterministic=True, cache=fl.Cache(ram="16MB", disk=disk), **keywords)


def ended(wrapped: Any) -> None:
    """As when its process ends."""
    wrapped._results.close()


def whole(batch: list[Any]) -> list[Any]:
    return batch


# ---- equality ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, whole])
@pytest.mark.parametrize("ours", [True, False])
def test_batches_are_torchs_when_made_when_kept_and_after_a_restart(
    home: Any, disk: str, workers: int, collate: Any, ours: bool
) -> None:
    def loader(kind: Any, dataset: Any, seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        return kind(dataset, 4, shuffle=True, generator=generator, num_workers=workers, collate_fn=collate)

    made = Made()
    expected = [list(loader(data.DataLoader, Made(), seed)) for seed in range(3)]
    wrapped = kept(made, disk)
    for epoch, batches in enumerate(expected):
        if epoch == 2:
            ended(wrapped)
            wrapped = kept(made, disk)
        running = loader(DataLoader if ours else data.DataLoader, wrapped, epoch)
        found = list(running)
        assert len(found) == len(batches)
        assert all(same(*pair) for pair in zip(batches, found, strict=True))
        if ours:
            assert running.stats()["results"] == wrapped.counts()
    assert made.makes.tolist() == [1] * COUNT
    assert wrapped.counts()["answered"] == COUNT
    assert wrapped.counts()["made"] == 0


def test_workers_that_are_spawned_share_what_is_kept(home: Any) -> None:
    made = Made()
    wrapped = kept(made, None)
    batches = list(DataLoader(wrapped, 4, num_workers=2, multiprocessing_context="spawn", collate_fn=whole))
    for found in ([item for batch in batches for item in batch], [wrapped[at] for at in range(COUNT)]):
        assert same([items_of(at) for at in range(COUNT)], found)
    assert made.makes.tolist() == [1] * COUNT
    counts = wrapped.counts()
    assert (counts["made"], counts["kept"], counts["answered"]) == (COUNT, COUNT, COUNT)


def test_what_comes_may_be_written_to_and_changes_nothing(home: Any, disk: str) -> None:
    wrapped = kept(Made(), disk)
    for _ in range(3):
        item = wrapped[3]
        assert same(items_of(3), item)
        item["item"].image.zero_()
        item["array"][:] = 0
        item["pair"].clear()


def test_then_comes_behind_and_draws_the_same_whether_or_not_a_result_was_kept(home: Any, disk: str) -> None:
    def augmented(item: Any) -> Any:
        return item["one"].item() + torch.rand(()).item() + random.random() + np.random.random()

    def make(at: int) -> Any:
        # It is the same each time, though it draws.
        return {"one": torch.tensor(at), "drawn": 0 * torch.rand(3)}

    wrapped = wrap(
        Plain(make), deterministic=True, name="drawing", then=augmented, cache=fl.Cache(ram="16MB", disk=disk)
    )
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        random.seed(4)
        np.random.seed(5)
        found.append([wrapped[at] for at in range(COUNT)])
    assert found[0] == found[1]
    assert len(set(found[0])) == COUNT
    assert wrapped.counts()["answered"] == COUNT


def test_indices_that_are_no_sample_are_the_data_sets(home: Any) -> None:
    wrapped = kept(Made(), None)
    with pytest.raises(IndexError):
        wrapped[COUNT]
    assert len(wrapped) == COUNT
    assert wrapped.shift == 0
    assert same(items_of(5), wrapped[np.int64(5)])
    with pytest.raises(AttributeError):
        _ = wrapped.nothing
    with pytest.raises(errors.InvalidError, match="another name="):
        wrapped.shift = 3
    assert same(items_of(5), pickle.loads(pickle.dumps(wrapped))[5])


def test_parts_of_one_share_its_results(home: Any) -> None:
    made = Made()
    one, other = data.random_split(kept(made, None), [10, COUNT - 10])
    for _ in range(2):
        list(DataLoader(one, 4, collate_fn=whole))
        list(DataLoader(other, 4, collate_fn=whole))
    assert made.makes.tolist() == [1] * COUNT


# ---- what changes, and what has no form --------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_has_changed_is_an_error_that_names_the_sample(home: Any, disk: str, workers: int) -> None:
    first = kept(Made(), disk)
    list(DataLoader(first, 4))
    ended(first)
    changed = kept(Made(shift=1), disk, check=1000)
    with pytest.raises(errors.InvalidError, match=r"sample \d+ of made was made twice.*another name="):
        list(DataLoader(changed, 4, shuffle=True, num_workers=workers))
    ended(changed)
    other = kept(Made(shift=1), disk, check=1000, name="made-2")
    assert same(items_of(4), other[3])


def test_the_first_that_is_answered_is_compared_whatever_was_made_before(home: Any, disk: str) -> None:
    first = kept(Made(), disk)
    for at in range(3):
        first[at]
    ended(first)
    changed = kept(Made(shift=1), disk, check=10**9)
    assert same(items_of(4), changed[3])
    with pytest.raises(errors.InvalidError, match="sample 1 of made"):
        changed[1]


def test_one_sample_that_has_changed_is_found_by_and_by(home: Any, disk: str) -> None:
    one = {"value": 1}
    wrapped = kept(Plain(lambda at: one["value"] if at == 7 else at), disk, check=4)
    assert [wrapped[at] for at in range(COUNT)] == [*range(7), 1, *range(8, COUNT)]
    one["value"] = 2
    with pytest.raises(errors.InvalidError, match="sample 7 of made") as caught:
        # It isn't met with a probability of 0.75 ** 200.
        set(map(wrapped.__getitem__, [7] * 200))
    assert caught.value.sample == 7
    assert wrapped.counts()["compared"] > 1


@pytest.mark.parametrize("draw", [partial(torch.rand, 2), random.random, np.random.random])
def test_what_draws_is_no_result_even_if_seeds_are_the_same(home: Any, disk: str, draw: Any) -> None:
    def wrapped(check: int) -> Any:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        return kept(Plain(lambda at: (at, draw())), disk, check=check)

    with pytest.raises(errors.InvalidError, match=r"sample 0.*then="):
        wrapped(1000)[0]
    first = wrapped(0)
    assert first[0][0] == 0
    ended(first)
    with pytest.raises(errors.InvalidError, match=r"sample 0.*then="):
        wrapped(1000)[0]


class Odd:
    def __init__(self, at: int) -> None:
        self.at = at


def odd(at: int) -> Any:
    return {"good": at, "odd": [Odd(at)]} if at % 2 else at


def test_an_unknown_type_is_not_kept_and_said_once_by_name(home: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "foreload")
    wrapped = kept(Plain(odd), None, check=3)
    for _ in range(3):
        assert [type(wrapped[at]) for at in range(COUNT)] == [dict if at % 2 else int for at in range(COUNT)]
    (told,) = [record.getMessage() for record in caplog.records if "isn't kept" in record.getMessage()]
    assert f"result['odd'][0]: a {__name__}.Odd" in told
    counts = wrapped.counts()
    assert (counts["unknown"] >= 3 * (COUNT // 2), counts["kept"], counts["answered"]) == (True, 12, 24)
    again = DataLoader(wrapped, 4, num_workers=2, collate_fn=whole)
    assert [type(item) for batch in again for item in batch] == [dict if at % 2 else int for at in range(COUNT)]


def test_a_class_that_is_gone_or_another_is_made_and_compared(
    home: Any, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = kept(Made(), disk)
    assert same(items_of(3), wrapped[3])
    old = Item
    other = collections.namedtuple("Item", "image place")  # noqa: PYI024
    other.__module__, other.__qualname__ = old.__module__, old.__qualname__
    monkeypatch.setattr(sys.modules[__name__], "Item", other)
    with pytest.raises(errors.InvalidError, match="sample 3 of made"):
        wrapped[3]


@pytest.mark.parametrize(
    ("dataset", "keywords", "told"),
    [
        (Made(), {"name": None}, r"needs name=.*Made and of 23 samples"),
        (Made(), {"name": ""}, "needs name="),
        (Made(), {"name": "x" * 5000}, "name= has"),
        (Made(), {"then": 3}, "give a function"),
        (Made(), {"check": -1}, "check"),
        (Made(), {"transform": abs}, "no argument transform="),
        (Made(), {"uri_of": str}, "uri_of= is for files"),
        (Made(), {"seed": 3}, "seed= is for files"),
        (Made(), {"on_error": fl.skip()}, "on_error= is for files"),
        (Made, {}, "make its object"),
        (iter(()), {}, "map-style"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(home: Any, dataset: Any, keywords: Any, told: str) -> None:
    with pytest.raises(errors.InvalidError, match=told):
        kept(dataset, None, **keywords)


def test_what_is_kept_already_is_refused(home: Any) -> None:
    with pytest.raises(errors.InvalidError, match="already"):
        kept(kept(Made(), None), None)
    with pytest.raises(errors.InvalidError, match=r"uri_of=.*deterministic=True"):
        wrap(Made())
    with pytest.raises(errors.InvalidError, match="cache= is for data sets of Foreload's"):
        DataLoader(kept(Made(), None), 2, cache=fl.Cache(ram="16MB"))


# ---- budgets -----------------------------------------------------------------------------------------------------------


def records(results: Results, count: int) -> dict[int, bytes]:
    found = {}
    for sample in range(count):
        with contextlib.suppress(errors.CorruptError):
            record = results.get(sample)
            if record is not None:
                found[sample] = record
    return found


def rank(number: int, wrapped: Any, disk: str, counts: Any) -> None:
    torch.set_num_threads(1)
    # Its own, as each rank wraps it.
    wrapped = kept(wrapped.dataset, disk)
    for epoch in range(2):
        generator = torch.Generator().manual_seed(10 * number + epoch)
        for item in DataLoader(wrapped, None, shuffle=True, generator=generator, num_workers=2):
            assert len(set(item[:: 1 << 16].tolist())) == 1
    counts.put(wrapped.counts())


def test_two_ranks_with_two_workers_each_have_one_budget_on_disk_and_in_memory(home: Any, tmp_path: Path) -> None:
    directory = tmp_path / "disk"
    disk = f"{directory}:20MB"
    # As long as this process has it, the memory lives on.
    wrapped = kept(Large(45), disk)
    context = multiprocessing.get_context("fork")
    counts = context.Queue()
    ranks = [context.Process(target=rank, args=(number, wrapped, disk, counts)) for number in range(2)]
    for each in ranks:
        each.start()
    found = [counts.get(timeout=300) for _ in ranks]
    for each in ranks:
        each.join()
        assert each.exitcode == 0
    on_disk, in_memory = wrapped._results._tiers
    # What is kept stays, and fills both: as many as fit.
    assert (on_disk.what, in_memory.what) == (str(directory), "memory")
    assert 19_000_000 < on_disk.table.size <= 20_000_000
    assert 15_000_000 < in_memory.table.size <= 16_000_000
    assert sum(path.stat().st_size for path in _results.files_in(directory)) == on_disk.table.size
    both = records(wrapped._results, 45)
    assert len(both) == 19 + 15
    # Each is counted once, unless the ranks made it at the same time.
    assert sum(count["kept"] for count in found) >= len(both)
    assert all(count["answered"] > 0 for count in found)
    for sample in both:
        assert same(torch.full((1 << 20,), sample, dtype=torch.uint8), wrapped[sample])


def test_two_data_sets_have_one_budget_on_disk_and_segments_count(home: Any, tmp_path: Path) -> None:
    (tmp_path / "0000000a.seg").write_bytes(bytes(3_000_000))
    (tmp_path / "mine.seg").write_bytes(bytes(9_000_000))
    one, other = (kept(Large(20), f"{tmp_path}:9MB", name=name) for name in ("one", "other"))
    for at in range(3):
        one[at]
    for at in range(20):
        other[at]
    sizes = [path.stat().st_size for path in _results.files_in(tmp_path)]
    assert 5_000_000 < sum(sizes) <= 6_000_000
    assert len(records(one._results, 20)) == 3


def test_what_does_not_fit_is_made_each_time_and_said_once(home: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "foreload")
    made = Large(30)
    wrapped = kept(made, None)
    for _ in range(3):
        for batch in DataLoader(wrapped, 4, num_workers=2):
            assert len(batch) in (2, 4)
    makes = made.makes.tolist()
    assert sorted(set(makes)) == [1, 3]
    assert makes.count(1) == 15
    ended(wrapped)
    again = kept(made, None)
    assert again.counts()["answered"] == 0
    for _ in range(2):
        for at in range(30):
            again[at]
    assert sum("no room for more results" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("what", ["full", "no table"])
def test_a_disk_without_room_leaves_it_to_memory(
    home: Any, disk: str, what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_results, "LEFT_FREE", 1 << 60)
    wrapped = kept(Made(), f"{tmp_path}:1" if what == "no table" else disk)
    for _ in range(2):
        assert same([items_of(at) for at in range(COUNT)], [wrapped[at] for at in range(COUNT)])
    assert wrapped.counts()["answered"] == COUNT
    assert not list(tmp_path.rglob("*.res"))


def test_a_write_that_fails_leaves_the_file_as_it_was_and_nothing_wrong(
    home: Any, disk: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "foreload")
    wrapped = kept(Made(), disk)
    wrapped[0]
    table = wrapped._results._tiers[0].table
    size = table.size
    write = _table._write

    def failing(descriptor: int, payload: bytes, place: int) -> None:
        if descriptor == table.descriptor:
            write(descriptor, payload[: len(payload) // 2], place)
            raise OSError(errno.ENOSPC, "no space left")
        write(descriptor, payload, place)

    monkeypatch.setattr(_table, "_write", failing)
    for _ in range(2):
        assert same([items_of(at) for at in range(COUNT)], [wrapped[at] for at in range(COUNT)])
    monkeypatch.undo()
    assert table.size == size
    assert sum("no space left" in record.getMessage() for record in caplog.records) == 1
    assert wrapped.counts()["answered"] == COUNT + 1
    ended(wrapped)
    assert list(records(kept(Made(), disk)._results, COUNT)) == [0]


def test_a_directory_that_cannot_be_made_is_said_and_memory_used(
    home: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    wrapped = kept(Made(), f"{tmp_path / 'file' / 'below'}:64MB")
    assert "kept there" in caplog.text
    for _ in range(2):
        assert same(items_of(1), wrapped[1])
    assert wrapped.counts()["answered"] == 1


# ---- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Opens the results in a directory, with hardly any memory, and closes them all."""
    made = []

    def make(name: Name = NAME, capacity: int = 1 << 20, ram: int = 0) -> Results:
        made.append(Results(name, [(str(tmp_path / "disk"), capacity)], ram, str(tmp_path / "cache")))
        return made[-1]

    yield make
    for each in made:
        each.close()


def payload_of(sample: int) -> bytes:
    return random.Random(sample).randbytes(sample * 7)


def file_in(tmp_path: Path) -> Path:
    (path,) = _results.files_in(tmp_path / "disk")
    return path


def test_altered_bytes_are_never_another_result(opened: Any, tmp_path: Path) -> None:
    first = opened()
    for sample in range(20):
        assert first.put(sample, payload_of(sample)) is Fate.KEPT
    first.close()
    path = file_in(tmp_path)
    sound = path.read_bytes()
    some = random.Random(7)
    begin = len(_table._HEADER.pack(b"", 0, 0, 0, 0, 0, 0))
    places = [*range(begin + 60), *(some.randrange(len(sound)) for _ in range(600))]
    kept_still = []
    for place in places:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << some.randrange(8)
        path.write_bytes(damaged)
        again = opened()
        found = records(again, NAME.samples)
        assert all(found[sample] == payload_of(sample) for sample in found)
        kept_still.append(len(found))
        # It is mended.
        for sample in range(20):
            with contextlib.suppress(errors.CorruptError):
                assert again.put(sample, payload_of(sample), anew=sample not in found) is Fate.KEPT
        assert {sample: payload_of(sample) for sample in range(20)} == {
            sample: record for sample, record in records(again, NAME.samples).items() if sample < 20
        }
        again.close()
    # A header is all of them, a record is one.
    assert set(kept_still) == {0, 19, 20}


def test_a_file_that_is_cut_or_anothers_or_of_another_version_is_begun_anew(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened()
    for sample in range(10):
        first.put(sample, payload_of(sample))
    first.close()
    path = file_in(tmp_path)
    sound = path.read_bytes()
    for length in range(0, len(sound), 3):
        path.write_bytes(sound[:length])
        again = opened()
        found = records(again, NAME.samples)
        assert all(found[sample] == payload_of(sample) for sample in found)
        assert again.put(40, b"later", anew=True) is Fate.KEPT
        assert records(again, NAME.samples) == {**found, 40: b"later"}
        again.close()
    other = Name("other", 50)
    opened(other).put(3, b"other")
    (others,) = [each for each in _results.files_in(tmp_path / "disk") if each != path]
    for foreign in (others.read_bytes(), os.urandom(5000), b""):
        path.write_bytes(foreign)
        again = opened()
        assert records(again, NAME.samples) == {}
        assert again.put(1, b"one") is Fate.KEPT
        again.close()
    monkeypatch.setattr(_table, "VERSION", 2)
    again = opened()
    assert records(again, NAME.samples) == {}
    path.unlink()
    path.symlink_to("/dev/null")
    assert opened().failures


def test_a_record_in_another_place_or_of_another_sample_is_none(opened: Any, tmp_path: Path) -> None:
    first = opened()
    first.put(1, b"x" * 40)
    first.put(2, b"y" * 40)
    table = first._tiers[0].table
    head = _table._RECORD.size
    one = os.pread(table.descriptor, head + 40, NAME.table_end)
    assert one[head:] == b"x" * 40
    os.pwrite(table.descriptor, one, NAME.table_end + head + 40)
    with pytest.raises(errors.CorruptError, match="sample 2 is damaged"):
        first.get(2)
    # A slot that points to another's record.
    os.pwrite(table.descriptor, NAME.table_end.to_bytes(8, "little"), NAME.table_at + 8 * 3)
    with pytest.raises(errors.CorruptError, match="sample 3 is damaged"):
        first.get(3)
    # A record within a payload isn't found either.
    first.put(4, one)
    os.pwrite(table.descriptor, (table.size - len(one)).to_bytes(8, "little"), NAME.table_at + 8 * 1)
    with pytest.raises(errors.CorruptError, match="sample 1 is damaged"):
        first.get(1)


def test_a_damaged_result_is_made_again_and_said_once(home: Any, disk: str, caplog: pytest.LogCaptureFixture) -> None:
    made = Made()
    wrapped = kept(made, disk)
    for at in range(COUNT):
        wrapped[at]
    table = wrapped._results._tiers[0].table
    for at in range(0, COUNT, 2):
        place = table._place(at) + 100
        byte = os.pread(table.descriptor, 1, place)[0]
        os.pwrite(table.descriptor, bytes([byte ^ 4]), place)
    for _ in range(2):
        assert same([items_of(at) for at in range(COUNT)], [wrapped[at] for at in range(COUNT)])
    assert made.makes.tolist() == [2 - at % 2 for at in range(COUNT)]
    assert wrapped.counts()["damaged"] == 12
    assert sum("damaged" in record.getMessage() for record in caplog.records) == 1
    # What is sound and of another format counts as damaged, too.
    wrapped._results.put(5, b"\xff another format", anew=True)
    assert same(items_of(5), wrapped[5])
    assert same(items_of(5), wrapped[5])
    assert wrapped.counts()["damaged"] == 13


@pytest.mark.parametrize("ram", [0, 1 << 20])
@pytest.mark.parametrize("kill_at", range(6))
def test_a_writer_that_is_killed_at_any_write_leaves_nothing_wrong(
    opened: Any, tmp_path: Path, kill_at: int, ram: int
) -> None:
    results = opened(ram=ram, capacity=1 << 20 if not ram else NAME.table_end)
    results.put(0, payload_of(30))
    pid = os.fork()
    if not pid:
        write, count = _table._write, 0

        def half(descriptor: int, payload: bytes, place: int) -> None:
            nonlocal count
            if count == kill_at:
                write(descriptor, payload[: len(payload) // 2], place)
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            write(descriptor, payload, place)

        _table._write = half
        for sample in (1, 2, 3):
            results.put(sample, payload_of(sample))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    # A slot of which half is written may be whole already.
    least = {0: payload_of(30), **{sample: payload_of(sample) for sample in range(1, 1 + kill_at // 3)}}
    most = {0: payload_of(30), **{sample: payload_of(sample) for sample in range(1, 1 + (kill_at + 1) // 3)}}
    for each in (results, opened(ram=ram)):
        # And none is damaged.
        assert {at: record for at in range(3) if (record := each.get(at)) is not None} in (least, most)
        # Nobody waits for its lock.
        assert each.put(3, payload_of(3)) is Fate.KEPT
        assert each.get(3) == payload_of(3)


def test_processes_that_write_the_same_samples_write_each_once(opened: Any, tmp_path: Path) -> None:
    results = opened()
    pids = []
    for _ in range(4):
        pid = os.fork()
        if not pid:
            code, write = 1, _table._write

            def slow(descriptor: int, payload: bytes, place: int, write: Any = write) -> None:
                # Others are here meanwhile, unless there is a lock.
                time.sleep(0.001)
                write(descriptor, payload, place)

            _table._write = slow
            with contextlib.suppress(BaseException):
                for sample in range(NAME.samples):
                    while results.put(sample, payload_of(sample)) is Fate.BUSY:
                        pass
                code = 0 if all(results.get(each) == payload_of(each) for each in range(NAME.samples)) else 2
            os._exit(code)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 4
    size = sum(_table.record_bytes(payload_of(sample)) for sample in range(NAME.samples))
    assert results._tiers[0].table.size == NAME.table_end + size
    assert records(opened(), NAME.samples) == {sample: payload_of(sample) for sample in range(NAME.samples)}


def test_a_writer_that_stands_still_costs_what_is_to_be_kept_and_no_more(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_results, "_WRITE_S", 0.01)
    results = opened()
    results.put(1, b"one")
    lock = os.open(tmp_path / "disk" / "results" / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert results.put(2, b"two") is Fate.BUSY
    assert results.get(1) == b"one"
    os.close(lock)
    assert results.put(2, b"two") is Fate.KEPT


def test_memory_is_found_as_long_as_somebody_has_it(opened: Any, tmp_path: Path) -> None:
    script = (
        "import sys; from foreload._node.results import Results; from foreload._node.table import Name\n"
        f"results = Results(Name('some', 50), [], 1 << 20, {str(tmp_path / 'cache')!r})\n"
        "print(results.get(1), flush=True); results.put(2, b'from afar'); print(flush=True); sys.stdin.read()\n"
    )
    first = Results(NAME, [], 1 << 20, str(tmp_path / "cache"))
    first.put(1, b"here")
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "b'here'\n"
        assert other.stdout.readline() == "\n"
        assert first.get(2) == b"from afar"
        # It lives on with the other, even if that is killed afterwards nobody trips over its name.
        first.close()
        (held,) = (tmp_path / "cache" / "results").glob("*.*")
        ended = [held.with_name(held.name.replace(f".{other.pid}.", f".{pid}.")) for pid in (1, 0, 1 << 30)]
        for path in ended:
            path.touch()
        again = Results(NAME, [], 5, str(tmp_path / "cache"))
        assert not any(path.exists() for path in ended)
        assert (again.get(1), again.get(2)) == (b"here", b"from afar")
        assert again._tiers[0].table.capacity == 1 << 20
        again.close()
        other.kill()
    anew = Results(NAME, [], 1 << 20, str(tmp_path / "cache"))
    assert records(anew, NAME.samples) == {}
    assert len(list((tmp_path / "cache" / "results").glob("*.*"))) == 1
    anew.close()
    assert not list((tmp_path / "cache" / "results").glob("*.*"))


def test_nothing_is_left_open(opened: Any, tmp_path: Path) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for _ in range(3):
        results = Results(NAME, [(str(tmp_path / "disk"), 1 << 20)], 1 << 20, str(tmp_path / "cache"))
        results.put(1, b"one")
        del results
    assert descriptors() == before
