"""Files that are mapped: where their parts lie, and having them in the page cache."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import re
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pytest
import safetensors.numpy
from bucket import Bucket
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

import foreload as fl
import foreload.mmap as fm
from foreload._mapped.layout import layout
from foreload.errors import CorruptError, InvalidError, NotFoundError
from small import until

pytestmark = pytest.mark.usefixtures("home")

PAGE = mmap.PAGESIZE
_MINCORE = ctypes.CDLL(None, use_errno=True).mincore


def resident(path: Path) -> list[bool]:
    """Whether each page of a file is in the page cache."""
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as mapped:
        pages = -(-size // PAGE)
        vector = (ctypes.c_ubyte * pages)()
        address = np.frombuffer(mapped, np.uint8).ctypes.data
        assert _MINCORE(ctypes.c_void_p(address), ctypes.c_size_t(size), vector) == 0
        return [bool(each & 1) for each in vector]


def evict(path: Path) -> None:
    """Has the page cache forget a file."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if any(resident(path)):
        pytest.skip(f"the page cache keeps {path}")


def are_there(path: Path, first: int, length: int) -> bool:
    return all(resident(path)[first // PAGE : -(-(first + length) // PAGE)])


def file_of(directory: Path, nbytes: int) -> Path:
    path = directory / "some.bin"
    path.write_bytes(random.Random(1).randbytes(nbytes))
    return path


# -- layouts ---------------------------------------------------------------------------------------------------------


def test_tensors_lie_where_safetensors_put_them(tmp_path: Path) -> None:
    tensors = {f"layer.{n}": np.random.default_rng(n).random((n + 1, 7)) for n in range(5)}
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(tensors, path, {"format": "np"})
    found, data = layout(path), path.read_bytes()
    assert sorted(found.names) == sorted(tensors)
    for name, (first, length) in zip(found.names, found.parts, strict=True):
        assert data[first : first + length] == tensors[name].tobytes()
    assert list(found.parts) == sorted(found.parts)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(5, 3), (7,), (2, 3, 4), (), (0, 3), (3, 0)])
def test_rows_lie_where_numpy_put_them(tmp_path: Path, shape: tuple[int, ...], order: Any) -> None:
    path = tmp_path / "array.npy"
    array = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape), order=order)
    np.save(path, array)
    found, data = layout(path), path.read_bytes()
    rows = [data[first : first + length] for first, length in found.parts]
    assert b"".join(rows) == array.tobytes("A")
    if order == "C" and shape:
        assert rows == [row.tobytes() for row in array]


@pytest.mark.parametrize("batches", [0, 1, 9])
def test_record_batches_lie_where_arrow_put_them(tmp_path: Path, batches: int) -> None:
    path = tmp_path / "table.arrow"
    schema = pa.schema([("number", pa.int64()), ("word", pa.dictionary(pa.int32(), pa.string()))])
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), pa.array(["a", "b"]))
    with pa.ipc.new_file(path, schema) as writer:
        for n in range(batches):
            writer.write_batch(pa.record_batch([pa.array([n, n + 1, n + 2]), words], schema=schema))
    found, data = layout(path), path.read_bytes()
    assert len(found.parts) == batches + (batches > 0), "a dictionary, and the batches"
    read = [pa.ipc.read_message(data[first : first + length]).type for first, length in found.parts]
    assert read == ["dictionary"] * (batches > 0) + ["record batch"] * batches


def damaged_safetensors(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.safetensors", b""),
        ("a.safetensors", struct.pack("<Q", 1 << 60)),
        ("a.safetensors", damaged_safetensors(b"{")),
        ("a.safetensors", damaged_safetensors(b"[]")),
        ("a.safetensors", damaged_safetensors(json.dumps({"x": {"data_offsets": [0, 9]}}).encode())),
        ("a.safetensors", damaged_safetensors(json.dumps({"x": {"data_offsets": [4, 0]}}).encode())),
        ("a.safetensors", damaged_safetensors(json.dumps({"x": {"data_offsets": 4}}).encode())),
        ("a.npy", b"\x93NUMPY\x01\x00\x05\x00{"),
        ("a.npy", b"\x93NUMPY\x09\x00"),
        ("a.arrow", b"ARROW1\0\0"),
        ("a.arrow", b"ARROW1\0\0" + b"\xff" * 20 + struct.pack("<i", 16) + b"ARROW1"),
        ("a.mdb", b"\0" * 8192),
        ("a.mdb", b""),
    ],
)
def test_what_is_damaged_is_named(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises((CorruptError, InvalidError), match=r"a\.(safetensors|npy|arrow|mdb)"):
        (fm.LmdbIndex if name.endswith("mdb") else layout)(path)


def test_what_is_of_no_known_kind_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="give ranges="):
        layout(file_of(tmp_path, 100))


# -- LMDB ------------------------------------------------------------------------------------------------------------


def few(write: Callable[[bytes, bytes], Any]) -> None:
    write(b"a", b"1")
    write(b"\xff\x00", b"")


def large(write: Callable[[bytes, bytes], Any]) -> None:
    for n in range(300):
        write(b"%08d" % n, random.Random(n).randbytes(n * 97))


def deep(write: Callable[[bytes, bytes], Any]) -> None:
    for n in range(4000):
        write(b"%0400d" % (n * 7919 % 4000), b"value %d" % n)


def twice(write: Callable[[bytes, bytes], Any]) -> None:
    for n in range(3):
        for value in range(1000 if n == 1 else 3):
            write(b"%d" % n, b"%06d" % value)


def binary(write: Callable[[bytes, bytes], Any]) -> None:
    dice = np.random.default_rng(3)
    for n in range(2000):
        write(dice.bytes(1 + n % 9) + b"%d" % n, b"%06d" % n)
    for key in (b"0x", b"0x30", b"0", b"\xff\xfe", b"\n"):
        write(key, key * 3)


def counted(write: Callable[[bytes, bytes], Any]) -> None:
    for n in range(0, 1 << 20, 601):
        write(n.to_bytes(4, sys.byteorder), b"%06d" % n)


CASES: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "keys of all bytes": (binary, {}),
    "keys in the order of numbers": (counted, {"integerkey": True}),
    "keys in the order of their ends": (binary, {"reverse_key": True}),
    "empty": (lambda write: None, {}),
    "few": (few, {}),
    "large": (large, {}),
    "deep": (deep, {}),
    "twice": (twice, {"dupsort": True}),
    "twice and equally long": (twice, {"dupsort": True, "dupfixed": True}),
}


def database(
    path: Path, fill: Callable[..., None], how: dict[str, Any], transactions: int = 0, version: int = 0
) -> list[tuple[bytes, bytes]]:
    """Writes a database, named `db` where it is of a kind that has to be; what LMDB reads of it."""
    with lmdb.open(str(path), subdir=False, map_size=1 << 28, lock=False, max_dbs=1, lib_version=version) as env:
        named = env.open_db(b"db", **how) if how else None
        with env.begin(write=True, db=named) as transaction:
            fill(transaction.put)
        for n in range(transactions):
            with env.begin(write=True, db=named) as transaction:
                transaction.put(b"again", b"%d" % n)
        with env.begin(db=named) as transaction:
            return [(bytes(key), bytes(value)) for key, value in transaction.cursor()]


@pytest.mark.parametrize("transactions", [0, 1, 2])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", [0, 1])
def test_values_lie_where_lmdb_put_them(tmp_path: Path, version: int, case: str, transactions: int) -> None:
    path = tmp_path / "data.mdb"
    fill, how = CASES[case]
    entries = database(path, fill, how, 0 if case == "empty" else transactions, version)
    if not entries:
        with pytest.raises(InvalidError, match="no samples"):
            fm.LmdbIndex(path)
        return
    index, data = fm.LmdbIndex(tmp_path, "db" if how else ""), path.read_bytes()
    places = [index.at(n) for n in range(len(index))]
    found = [(index.key(n), data[first : first + length]) for n, (first, length) in enumerate(places)]
    assert found == entries
    for key, value in dict(reversed(entries)).items():
        first, length = index.range(key)
        assert data[first : first + length] == value
    with pytest.raises(KeyError):
        index.range(b"nothing like it")
    keys = [key for key, _ in entries]
    assert index.places(keys) == [index.range(key) for key in keys]
    numbers = list(np.random.default_rng(1).permutation(len(index)))
    assert index.places([*numbers, -1]) == [*(places[n] for n in numbers), places[-1]]
    for nothing in (b"nothing like it", "nothing", len(index), -len(index) - 1, 1 << 70, -1 << 70):
        with pytest.raises(KeyError, match=re.escape(repr(nothing)[:40])):
            index.places([keys[0], nothing])
    # What is no value, but for what shares a page with one.
    inside = np.zeros(len(data) + PAGE, bool)
    for first, length in places:
        inside[first : first + length] = True
    for first, length in index.tree():
        assert first % PAGE == 0
        assert not inside[first : first + length].any()
        inside[first : first + length] = True
    pages = inside[: len(data)].reshape(-1, PAGE)
    assert pages.any(axis=1).all(), "each page has a value or is of the tree"


def test_a_loader_reads_an_lmdb_file_as_lmdb_does(tmp_path: Path) -> None:
    entries = database(tmp_path / "data.mdb", large, {}, 1)
    data = fl.open(tmp_path)
    assert (data.format, len(data)) == ("lmdb", len(entries))
    assert [(data.key(n).encode(), data.read(n)) for n in range(0, len(entries), 37)] == entries[::37]
    loader = fl.NumpyLoader(data, 7, shuffle=True, seed=3)
    read = sorted(bytes(sample) for batch in loader for sample in batch[0])
    assert read == sorted(value for _, value in entries)


def test_values_of_a_file_in_a_bucket_are_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bench").mkdir()
    entries = database(tmp_path / "bench" / "train.lmdb", large, {}, version=1)
    with Bucket(directory=tmp_path) as bucket:
        for name, value in bucket.environment().items():
            monkeypatch.setenv(name, value)
        data = fl.open("s3://bench/train.lmdb")
        counters = bucket.counters()
        assert counters["bytes_sent"] < 1_000_000, "none of the values, which have 4.3 MB"
        read = [bytes(sample) for batch in fl.NumpyLoader(data, 7) for sample in batch[0]]
        assert read == [value for _, value in entries]
        del data


def test_databases_with_names_are_named(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    with lmdb.open(str(path), subdir=False, max_dbs=2, lock=False) as env:
        for name in (b"one", b"two"):
            env.open_db(name)
    with pytest.raises(InvalidError, match="one, two"):
        fm.LmdbIndex(path)
    with pytest.raises(InvalidError, match=r"no database .three"):
        fl.open(path, database="three")


def test_an_index_is_of_the_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    database(path, few, {}, 0)
    assert len(fm.LmdbIndex(path)) == 2
    entries = database(path, large, {}, 0)
    assert len(fm.LmdbIndex(path)) == len(entries)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 255)), min_size=1, max_size=20))
def test_a_damaged_lmdb_file_is_an_error_or_read_within_its_bounds(
    tmp_path: Path, places: list[tuple[int, int]]
) -> None:
    path = tmp_path / "data.mdb"
    path.unlink(missing_ok=True)
    database(path, lambda write: [write(b"%d" % n, b"x" * n * 40) for n in range(60)], {}, 0)
    data = bytearray(path.read_bytes())
    for at, value in places:
        data[at % len(data)] = value
    path.write_bytes(data)
    try:
        index = fm.LmdbIndex(path)
    except (CorruptError, InvalidError):
        return
    for n in range(len(index)):
        first, length = index.at(n)
        assert 0 <= first <= first + length <= len(data)


# -- fetching --------------------------------------------------------------------------------------------------------


def test_a_whole_file_is_there(tmp_path: Path) -> None:
    path = file_of(tmp_path, 5_000_001)
    evict(path)
    with fm.prefetch(path) as ahead:
        assert ahead.wait(20)
        assert ahead.done
        assert ahead.fetched == ahead.nbytes == 5_000_001
    assert all(resident(path))


def test_ranges_alone_are_there(tmp_path: Path) -> None:
    path = file_of(tmp_path, 20_000_000)
    evict(path)
    wanted = [(15_000_000, 100_000), (3, 100_000)]
    fm.prefetch(path, ranges=wanted).wait()
    assert all(are_there(path, *each) for each in wanted)
    assert sum(resident(path)) * PAGE < 1_000_000


def test_tensors_alone_are_there_of_several_files(tmp_path: Path) -> None:
    for n in range(2):
        tensors = {f"{n}.{which}": np.ones(500_000) for which in "abcd"}
        safetensors.numpy.save_file(tensors, tmp_path / f"model-{n}.safetensors")
    files = sorted(tmp_path.iterdir())
    for file in files:
        evict(file)
    fm.prefetch(tmp_path, tensors=["1.c"]).wait()
    found = layout(files[1])
    assert are_there(files[1], *found.parts[found.names.index("1.c")])
    assert not any(resident(files[0])[16:])
    with pytest.raises(InvalidError, match=r"1\.e is in none of 2 files; there is 1\."):
        fm.prefetch(str(tmp_path / "*.safetensors"), tensors=["1.e"])


def test_what_cannot_be_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(tmp_path, 1000)
    with pytest.raises(NotFoundError, match="nothing"):
        fm.prefetch(tmp_path / "nothing")
    with pytest.raises(NotFoundError, match="safetensors"):
        fm.prefetch(tmp_path)
    with pytest.raises(InvalidError, match="one file"):
        fm.prefetch([path, path], ranges=[(0, 1)])
    with pytest.raises(OSError, match="1001 bytes"):
        fm.prefetch(path, ranges=[(0, 1001)])
    with pytest.raises(InvalidError, match="ahead=0"):
        fm.advise(path, [(0, 1)], ahead=0)
    monkeypatch.setattr(fm, "available_bytes", lambda: 1100)
    with pytest.raises(InvalidError, match=r"1\.1 KB of memory are available"):
        fm.prefetch(path)


def test_no_more_than_a_few_ranges_ahead_are_there(tmp_path: Path) -> None:
    path = file_of(tmp_path, 40_000_000)
    evict(path)
    ranges = [(n * 4_000_000, 10_000) for n in range(10)]
    advice = fm.advise(path, ranges, ahead=2)
    there = lambda: [are_there(path, *each) for each in ranges]  # noqa: E731
    until(lambda: there() == [True] * 2 + [False] * 8, 20)
    advice.reached(3)
    until(lambda: there() == [True] * 6 + [False] * 4, 20)
    advice.stop()


@pytest.fixture
def values(tmp_path: Path) -> Iterator[Any]:
    database(tmp_path / "data.mdb", large, {}, 0)
    env = lmdb.open(str(tmp_path / "data.mdb"), subdir=False, readonly=True, lock=False)

    class Values:
        def __len__(self) -> int:
            return 300

        def __getitem__(self, n: int) -> bytes:
            with env.begin() as transaction:
                return bytes(transaction.get(b"%08d" % n))

    yield Values()
    env.close()


def test_a_sampler_s_order_stays_and_its_pages_are_there(values: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    key = lambda n: b"%08d" % n  # noqa: E731
    plain = SequentialSampler(values)
    wrapped = fm.wrap_sampler(plain, path, key)
    assert (len(wrapped), list(wrapped)) == (300, list(plain))
    read = list(DataLoader(values, 10, sampler=fm.wrap_sampler(RandomSampler(values), path, key), collate_fn=list))
    assert sorted(map(len, (value for batch in read for value in batch))) == [n * 97 for n in range(300)]
    batches = fm.wrap_sampler(BatchSampler(plain, 7, drop_last=False), path, key)
    assert list(batches) == list(BatchSampler(plain, 7, drop_last=False))
    # A file that is mapped stays in the page cache.
    other = tmp_path / "other.mdb"
    other.write_bytes(path.read_bytes())
    evict(other)
    index, going = fm.LmdbIndex(other), iter(fm.wrap_sampler([299, 150, 3], other, key, ahead=2))
    next(going)
    for n in (299, 150):
        until(lambda n=n: are_there(other, *index.at(n)), 20)
    # The program may never come to what isn't there.
    with pytest.warns(RuntimeWarning, match="has nothing by the name"):
        assert next(iter(fm.wrap_sampler([3, 300], other, key))) == 3


# -- the guide -------------------------------------------------------------------------------------------------------


def test_the_guide_s_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    safetensors.numpy.save_file({"lm_head.weight": np.ones((4, 4), np.float32)}, "model.safetensors")
    database(tmp_path / "train.lmdb", large, {}, 0)
    page = (Path(__file__).resolve().parents[2] / "docs/guide/mapped.md").read_text()
    names: dict[str, Any] = {"data": range(300), "decode": len}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block, names)
    assert list(names["weights"]) == ["lm_head.weight"]
    assert sorted(names["sampler"]) == list(range(300))
    assert sum(int(sizes.sum()) for sizes, *_ in names["loader"]) == sum(n * 97 for n in range(300))
