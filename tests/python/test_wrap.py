"""Data sets of others keep everything of their own but the reading of files."""

# `open` itself is tested.
# ruff: noqa: PTH123, SIM115

from __future__ import annotations

import ctypes
import gzip
import io
import json
import logging
import os
import pickle
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data

import foreload as fl
from foreload import errors
from foreload._data.named import name_of, open_named, parts_of
from foreload.torch import DataLoader, Sampler, _opened, local, wrap
from foreload.torch._opened import Files
from small import tar_shard

folder = pytest.importorskip("torchvision.datasets.folder", reason="torchvision is not installed")
TINY = fl.Cache(ram="32MB")


def to_tensor(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image))


def negative(target: int) -> int:
    return -target


def read_path(path: str) -> bytes:
    return Path(path).read_bytes()


@pytest.fixture
def images(tmp_path: Path, home: Any) -> Path:
    from PIL import Image

    for number in range(40):
        path = tmp_path / "images" / f"class{number % 4}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "images"


def test_items_are_what_the_data_set_makes(images: Path) -> None:
    plain = folder.ImageFolder(images, transform=to_tensor, target_transform=negative)
    wrapped = wrap(plain, cache=TINY)
    assert len(wrapped) == 40
    assert wrapped.targets == plain.targets
    assert wrapped.classes == plain.classes
    for at in (0, 7, 39):
        assert torch.equal(wrapped[at][0], plain[at][0])
        assert wrapped[at][1] == plain[at][1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ours", [True, False])
def test_loaders_give_the_same_batches(images: Path, workers: int, ours: bool) -> None:
    plain = folder.ImageFolder(images, transform=to_tensor)
    wrapped = wrap(plain, cache=TINY)
    generator = torch.Generator().manual_seed(3)
    stock: Any = torch_data.DataLoader(plain, 8, shuffle=True, generator=generator)
    if ours:
        loader: Any = DataLoader(wrapped, 8, shuffle=True, order="torch", seed=3, num_workers=workers)
    else:
        generator = torch.Generator().manual_seed(3)
        stock = torch_data.DataLoader(plain, 8, sampler=torch_data.RandomSampler(plain, generator=generator))
        loader = torch_data.DataLoader(wrapped, 8, sampler=Sampler(wrapped, seed=3, order="torch"), num_workers=workers)
    for _ in range(2):
        for (values, targets), (right, right_targets) in zip(loader, stock, strict=True):
            assert torch.equal(values, right)
            assert torch.equal(targets, right_targets)


def test_a_loader_of_ones_own_gets_a_path_and_a_subset_keeps_its_order(images: Path) -> None:
    plain = folder.DatasetFolder(images, read_path, extensions=("png",))
    plain.samples = plain.samples[::-3]
    wrapped = wrap(plain, cache=TINY)
    assert [wrapped[at] for at in range(len(plain))] == [plain[at] for at in range(len(plain))]


def test_what_the_wrapped_one_decides_is_not_the_loaders(images: Path) -> None:
    wrapped = wrap(folder.ImageFolder(images, transform=to_tensor), cache=TINY)
    with pytest.raises(errors.InvalidError, match=r"transform=.*or to wrap"):
        DataLoader(wrapped, 8, transform=to_tensor)


def test_what_names_no_files_is_refused_with_the_remedy(home: Any) -> None:
    with pytest.raises(errors.InvalidError, match=r"uri_of=.*decode="):
        wrap([1, 2, 3])
    for named in (None, [], [None], 7):
        with pytest.raises(errors.InvalidError, match="files of sample 0"):
            wrap([1, 2, 3], uri_of=lambda at, named=named: named)
    with pytest.raises(errors.InvalidError, match="map-style"):
        wrap(iter([1]), uri_of=str)
    with pytest.raises(errors.InvalidError, match="a function"):
        wrap([1], uri_of=["a"])
    with pytest.raises(errors.InvalidError, match="no samples"):
        wrap([], uri_of=str)
    with pytest.raises(errors.InvalidError, match=r"several places.*s3://a and s3://b"):
        wrap([1, 2], uri_of=lambda at: f"s3://{'ab'[at]}/x")
    with pytest.raises(errors.InvalidError, match=r"transform=.*made already"):
        wrap([1], uri_of=str, transform=str)
    with pytest.raises(errors.NotFoundError, match="nowhere"):
        wrap([1], uri_of=lambda at: "/nowhere/at/all")


# ---- a data set of one's own -------------------------------------------------------------------------------------------

COUNT = 37


class Captioned(torch_data.Dataset[Any]):
    """A picture and a file of text for each sample, which it names as many do: a directory and a list of names."""

    def __init__(self, root: Any, transform: Any = None) -> None:
        self.root, self.transform = root, transform
        self.names = [f"{number:03}" for number in range(COUNT)]
        self.targets = [number % 4 for number in range(COUNT)]
        self.broken: set[int] = set()

    def files(self, at: int) -> list[str]:
        return [f"{self.root}/images/{self.names[at]}.png", f"{self.root}/texts/{self.names[at]}.txt"]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, at: int) -> dict[str, Any]:
        from PIL import Image

        if at in self.broken:
            raise KeyError("no such picture")
        image, text = self.files(at)
        pixels = np.asarray(Image.open(image))
        value = torch.from_numpy(pixels.copy())
        return {
            "image": value if self.transform is None else self.transform(value),
            "text": Path(text).read_text(),
            "target": self.targets[at],
            "at": at,
        }


def noisy(value: torch.Tensor) -> torch.Tensor:
    return value + torch.randint(0, 100, value.shape) + int(np.random.randint(100))


def write_captioned(write: Any) -> None:
    from PIL import Image

    for number in range(COUNT):
        pixels = np.random.default_rng(number).integers(0, 255, (20, 30, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "png")
        write(f"images/{number:03}.png", file.getvalue())
        write(f"texts/{number:03}.txt", b"" if number == 5 else f"caption {number} \u00fc".encode())


@pytest.fixture
def captioned(tmp_path: Path, home: Any) -> Captioned:
    def write(key: str, body: bytes) -> None:
        path = tmp_path / "captioned" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    write_captioned(write)
    return Captioned(tmp_path / "captioned")


@pytest.fixture(scope="module")
def s3(bucket: Any) -> Any:
    return pytest.importorskip("boto3").client("s3", **bucket.boto3())


@pytest.fixture
def remote(s3: Any, home: Any) -> str:
    write_captioned(lambda key, body: s3.put_object(Bucket="data", Key=f"captioned/{key}", Body=body))
    return "s3://data/captioned"


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal to the last bit, of the same types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) and one.dtype == other.dtype if isinstance(one, torch.Tensor) else one == other


def test_items_are_those_of_the_data_set_and_its_attributes_are_there(captioned: Captioned) -> None:
    wrapped = wrap(captioned, uri_of=captioned.files, cache=TINY)
    assert len(wrapped) == COUNT
    assert all(same(wrapped[at], captioned[at]) for at in range(-COUNT + 30, COUNT) if at >= 0)
    assert same(wrapped[-1], captioned[COUNT - 1])
    assert same(wrapped[np.int64(3)], captioned[3])
    assert wrapped.targets is captioned.targets
    assert wrapped.files(3) == captioned.files(3)
    with pytest.raises(IndexError):
        wrapped[COUNT]
    with pytest.raises(AttributeError, match="Captioned"):
        wrapped.classes  # noqa: B018
    assert not hasattr(wrapped, "nothing")
    wrapped.transform = torch.neg
    assert captioned.transform is torch.neg
    assert same(wrapped[4], captioned[4])
    assert wrapped.counts()["files_not_opened"] == 0


@pytest.mark.parametrize(
    ("workers", "context"), [(0, None), (2, "fork"), pytest.param(1, "spawn", marks=pytest.mark.timeout(300))]
)
@pytest.mark.parametrize("ours", [True, False])
def test_a_data_set_of_ones_own_gives_the_same_batches(
    captioned: Captioned, ours: bool, workers: int, context: str | None
) -> None:
    wrapped = wrap(captioned, uri_of=captioned.files, cache=TINY)
    generator = torch.Generator().manual_seed(3)
    keywords: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": context}
    if ours:
        loader: Any = DataLoader(wrapped, 8, shuffle=True, order="torch", seed=3, **keywords)
        stock: Any = torch_data.DataLoader(captioned, 8, shuffle=True, generator=generator)
    else:
        loader = torch_data.DataLoader(wrapped, 8, sampler=Sampler(wrapped, seed=3, order="torch"), **keywords)
        sampler = torch_data.RandomSampler(captioned, generator=generator)
        stock = torch_data.DataLoader(captioned, 8, sampler=sampler)
    # Processes that are started anew take long to start.
    epochs = 1 if context == "spawn" else 2
    for _ in range(epochs):
        for batch, right in zip(loader, stock, strict=True):
            assert same(batch, right)
    assert wrapped.counts() == {"skipped": 0, "files_opened": 2 * epochs * COUNT, "files_not_opened": 0}
    if ours:
        assert loader.stats()["files_opened"] == 2 * epochs * COUNT


def test_without_workers_random_numbers_are_drawn_as_torch_would(captioned: Captioned) -> None:
    captioned.transform = noisy
    wrapped = wrap(captioned, uri_of=captioned.files, cache=TINY)
    found = []
    for loader in (
        DataLoader(wrapped, 8, shuffle=True, order="torch", generator=torch.Generator().manual_seed(3)),
        torch_data.DataLoader(captioned, 8, shuffle=True, generator=torch.Generator().manual_seed(3)),
    ):
        torch.manual_seed(1)
        np.random.seed(2)
        found.append(list(loader))
    assert same(*found)


def test_files_are_read_once_and_from_memory_afterwards(captioned: Captioned) -> None:
    right = list(captioned)
    wrapped = wrap(captioned, uri_of=captioned.files, cache=TINY)
    loader = DataLoader(wrapped, 4, collate_fn=list)
    assert same([item for batch in loader for item in batch], right)
    for at in range(COUNT):
        for file in captioned.files(at):
            Path(file).unlink()
    assert same([item for batch in loader for item in batch], right)


def test_a_run_is_resumed_in_the_middle_of_an_epoch(captioned: Captioned) -> None:
    captioned.transform = noisy
    wrapped = wrap(captioned, uri_of=captioned.files, cache=TINY)

    def loader() -> Any:
        return DataLoader(wrapped, 4, shuffle=True, seed=5, num_workers=1)

    whole = list(loader())
    first = loader()
    begun = iter(first)
    had = [next(begun) for _ in range(3)]
    state = first.state_dict()
    del begun
    after = loader()
    after.load_state_dict(state)
    assert same(had + list(after), whole)


def test_others_data_sets_are_made_of_it(captioned: Captioned) -> None:
    wrapped = wrap(captioned, uri_of=captioned.files, cache=TINY)
    subset = torch_data.Subset(wrapped, [5, 3, 3, 36])
    assert same(list(subset), [captioned[at] for at in (5, 3, 3, 36)])
    loader = torch_data.DataLoader(subset, 2, num_workers=1)
    assert [int(at) for batch in loader for at in batch["at"]] == [5, 3, 3, 36]
    again = pickle.loads(pickle.dumps(wrapped))
    assert same(again[7], captioned[7])
    both = torch_data.ConcatDataset([wrapped, captioned])
    assert same(both[0], both[COUNT])


@pytest.mark.parametrize("workers", [0, 1])
def test_its_errors_pass_as_they_are(captioned: Captioned, workers: int) -> None:
    captioned.broken = {2}
    wrapped = wrap(captioned, uri_of=captioned.files, cache=TINY)
    for loader in (
        DataLoader(wrapped, 4, num_workers=workers),
        torch_data.DataLoader(wrapped, 4, num_workers=workers),
    ):
        with pytest.raises(KeyError, match="no such picture") as caught:
            next(iter(loader))
        told = "".join(caught.value.__notes__) if not workers else str(caught.value)
        assert "sample 2" in told
        assert "002.png" in told
        if not workers:
            assert caught.traceback[-1].path == Path(__file__)
    skipping = DataLoader(wrap(captioned, uri_of=captioned.files, cache=TINY, on_error=fl.skip()), 4)
    assert [int(at) for batch in skipping for at in batch["at"]] == [at for at in range(COUNT) if at != 2]


# ---- objects in a bucket -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_what_it_opens_may_lie_in_a_bucket(remote: str, captioned: Captioned, bucket: Any, workers: int) -> None:
    there = Captioned(remote)
    bucket.reset()
    wrapped = wrap(there, uri_of=there.files, cache=TINY)
    loader = DataLoader(wrapped, 8, num_workers=workers, collate_fn=list)
    for _ in range(2):
        assert same([item for batch in loader for item in batch], list(captioned))
    # One file is empty.
    assert bucket.counters()["requests"]["get"] == 2 * COUNT - 1


RANK = """
import sys
import foreload as fl
from foreload.torch import DataLoader, wrap
from test_wrap import Captioned, same
there, here = Captioned("s3://data/captioned"), Captioned(sys.argv[1])
loader = DataLoader(wrap(there, uri_of=there.files, cache=fl.Cache(ram="64MB")), 4, shuffle=True, collate_fn=list)
seen = []
for _ in range(2):
    items = [item for batch in loader for item in batch]
    assert same(items, [here[item["at"]] for item in items])
    seen.append([item["at"] for item in items])
    print(seen[-1], flush=True)
    sys.stdin.readline()
"""


def test_two_ranks_share_one_copy(remote: str, captioned: Captioned, bucket: Any) -> None:
    bucket.reset()
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    path = os.pathsep.join(
        [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(captioned.root)],
            env={**os.environ, **common, "PYTHONPATH": path, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for _ in range(2):
            had = [json.loads(rank.stdout.readline() or "[]") for rank in ranks]  # type: ignore[union-attr] # a pipe
            assert sorted(set(had[0] + had[1])) == list(range(COUNT))
            assert len(had[0]) == len(had[1]) == -(-COUNT // 2)
            for rank in ranks:
                rank.stdin.write("\n")  # type: ignore[union-attr] # a pipe
                rank.stdin.flush()  # type: ignore[union-attr] # a pipe
    finally:
        for rank in ranks:
            rank.communicate(timeout=60)
    assert bucket.counters()["requests"]["get"] == 2 * COUNT - 1


@pytest.fixture
def nested(tmp_path: Path, s3: Any, home: Any) -> Path:
    """A folder of images as they may be, here and in the bucket."""
    top = tmp_path / "nested"
    for number, key in enumerate(
        ["b/z.png", "b/a/2.png", "b/a!/1.png", "b/a/10.PNG", "a-c/1.png", "a/1.png", "a/x.txt", "a b/\u00e4 %20#.png"]
    ):
        path = top / key
        path.parent.mkdir(parents=True, exist_ok=True)
        write_image(path, number)
        s3.upload_file(str(path), "data", f"nested/{key}")
    (top / "README.png").write_bytes(b"beside the classes")
    s3.put_object(Bucket="data", Key="nested/README.png", Body=b"beside the classes")
    return top


def write_image(path: Path, number: int) -> None:
    from PIL import Image

    pixels = np.random.default_rng(number).integers(0, 255, (4, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, "png")


def has_one(path: str) -> bool:
    return "1" in Path(path).name


@pytest.mark.parametrize("valid", [None, has_one])
def test_a_folder_in_a_bucket_is_what_it_would_be_here(nested: Path, valid: Any) -> None:
    keywords: dict[str, Any] = {"transform": to_tensor, "is_valid_file": valid, "allow_empty": True}
    plain = folder.ImageFolder(nested, **keywords)
    wrapped = wrap(folder.ImageFolder, "s3://data/nested/", **keywords, cache=TINY)
    assert type(wrapped.dataset) is folder.ImageFolder
    assert (wrapped.classes, wrapped.class_to_idx, wrapped.targets) == (
        plain.classes,
        plain.class_to_idx,
        plain.targets,
    )
    moved = [(path.replace(f"{nested}/", "s3://data/nested/"), target) for path, target in plain.samples]
    assert wrapped.samples == wrapped.imgs == moved
    assert same([wrapped[at] for at in range(len(wrapped))], list(plain))
    again = pickle.loads(pickle.dumps(wrapped))
    assert type(again.dataset) is folder.ImageFolder
    assert same(list(torch_data.DataLoader(again, 2, num_workers=1)), list(torch_data.DataLoader(plain, 2)))
    here = wrap(folder.ImageFolder, nested, **keywords, cache=TINY)
    assert here.samples == plain.samples
    assert same(here[0], plain[0])


class Reversed(folder.DatasetFolder):  # type: ignore[misc] # torchvision is not annotated for strangers
    def find_classes(self, directory: Any) -> Any:
        return ["a", "b"], {"a": 1, "b": 0}


def test_a_folder_in_a_bucket_has_the_errors_and_ways_of_its_class(nested: Path) -> None:
    ours = wrap(Reversed, root="s3://data/nested", loader=read_path, extensions=("png",), cache=TINY)
    here = Reversed(nested, read_path, ("png",))
    assert ours.targets == here.targets
    assert [ours[at] for at in range(len(ours))] == list(here)
    with pytest.raises(FileNotFoundError, match="classes a b, a-c, b in"):
        wrap(folder.DatasetFolder, "s3://data/nested", loader=read_path, extensions=("txt",))
    with pytest.raises(FileNotFoundError, match="no directories"):
        wrap(folder.ImageFolder, "s3://data/flat")
    with pytest.raises(errors.InvalidError, match="give the URL"):
        wrap(folder.ImageFolder)
    with pytest.raises(errors.InvalidError, match="make its object"):
        wrap(Captioned, "s3://data/captioned")


# ---- torchvision's folders here ----------------------------------------------------------------------------------------


def test_a_part_of_a_folder_is_read_through_the_whole(images: Path) -> None:
    plain = folder.ImageFolder(images, transform=to_tensor)
    part = torch_data.Subset(torch_data.Subset(plain, range(3, 40, 3)), [4, 0, 11])
    wrapped = wrap(part, cache=TINY)
    assert same([wrapped[at] for at in range(3)], [part[at] for at in range(3)])
    assert wrapped.counts()["files_not_opened"] == 0


def test_files_that_a_listing_lacks_are_looked_up(images: Path, tmp_path: Path) -> None:
    wrap(folder.ImageFolder(images))
    write_image(images / "class0" / "new.png", 99)
    write_image(images / "class1" / ".hidden.png", 98)
    write_image(tmp_path / "elsewhere.png", 97)
    (images / "class2" / "link.png").symlink_to(tmp_path / "elsewhere.png")
    plain = folder.ImageFolder(images, transform=to_tensor)
    wrapped = wrap(plain, cache=TINY)
    assert same([wrapped[at] for at in range(len(wrapped))], list(plain))
    assert wrapped.counts() == {"skipped": 0, "files_opened": 43, "files_not_opened": 0}
    with pytest.raises(errors.InvalidError, match="is not below"):
        wrap(plain, root=tmp_path / "other")


def test_readers_of_torchvision_get_what_was_fetched(images: Path) -> None:
    from torchvision.io import decode_image, read_file

    for loader in (decode_image, read_file):
        plain = folder.ImageFolder(images, loader=loader)
        wrapped = wrap(plain, cache=TINY)
        assert same([wrapped[at] for at in (0, 7, 39)], [plain[at] for at in (0, 7, 39)])
        assert wrapped.counts() == {"skipped": 0, "files_opened": 3, "files_not_opened": 0}


# ---- what opens a file -------------------------------------------------------------------------------------------------


def through_c(path: Any) -> bytes:
    """Reads a file as libraries in C do."""
    libc = ctypes.CDLL(None)
    descriptor = libc.open(os.fsencode(path), os.O_RDONLY)
    if descriptor < 0:
        raise OSError(f"C can't open {path}")
    try:
        return os.pread(descriptor, 1 << 20, 0)
    finally:
        os.close(descriptor)


class Bytes:
    """A data set that reads files in a way that is given."""

    def __init__(self, paths: list[Any], read: Any) -> None:
        self.paths, self.read = paths, read

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, at: int) -> Any:
        return self.read(self.paths[at])


def through_local(path: Any) -> bytes:
    assert Path(local(path)).name == Path(path).name
    return through_c(local(path))


def test_what_c_opens_is_right_counted_and_told(tmp_path: Path, home: Any, caplog: pytest.LogCaptureFixture) -> None:
    paths = [tmp_path / f"{number}.bin" for number in range(4)]
    for path in paths:
        path.write_bytes(path.name.encode() * 100)
    caplog.set_level(logging.WARNING, "foreload")
    plain = Bytes(paths, through_c)
    wrapped = wrap(plain, uri_of=lambda at: paths[at], cache=TINY)
    assert [wrapped[at] for at in range(4)] == [plain[at] for at in range(4)]
    assert wrapped.counts() == {"skipped": 0, "files_opened": 0, "files_not_opened": 4}
    told = [record.getMessage() for record in caplog.records if "wrap:" in record.getMessage()]
    assert len(told) == 1
    assert "0.bin" in told[0]
    assert "local(path)" in told[0]
    wrapped.read = through_local
    assert [wrapped[at] for at in range(4)] == [path.name.encode() * 100 for path in paths]
    assert wrapped.counts() == {"skipped": 0, "files_opened": 4, "files_not_opened": 4}


def test_a_local_path_is_good_for_everybody_while_the_sample_is_made(remote: str) -> None:
    url = f"{remote}/texts/003.txt"
    kept = []

    def read(path: str) -> bytes:
        kept.append(local(path))
        assert local(path) == kept[-1] == os.path.realpath(kept[-1])
        shown = subprocess.run(["cat", kept[-1]], capture_output=True, check=True).stdout
        assert shown == through_c(kept[-1])
        with pytest.raises(errors.InvalidError, match=r"004.*uri_of="):
            local(f"{remote}/texts/004.txt")
        assert local("/etc/hostname") == "/etc/hostname"
        Path(kept[-1]).with_suffix(".index").touch()
        return shown

    wrapped = wrap(Bytes([url], read), uri_of=lambda at: url, cache=TINY)
    assert wrapped[0] == "caption 3 \u00fc".encode()
    assert not Path(kept[0]).exists()
    assert not Path(kept[0]).parent.exists()
    with pytest.raises(errors.InvalidError, match="is not a file of a sample"):
        local(url)
    assert local("there/it is") == "there/it is"


def test_readers_in_c_that_are_known_get_what_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(b"from the disk")

    class File:
        def __init__(self, name: Any, mode: str = "r") -> None:
            self.name, self.body = name, through_c(name)

    cv2, h5py = ModuleType("cv2"), ModuleType("h5py")
    cv2.imread = lambda filename, flags=1: through_c(filename)  # type: ignore[attr-defined] # made here
    h5py.File = File  # type: ignore[attr-defined] # made here
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    monkeypatch.setitem(sys.modules, "h5py", h5py)
    monkeypatch.setattr(_opened, "_replaced", set())
    with Files(memoryview(b"fetched"), [(str(path), 7)]) as files:
        assert cv2.imread(str(path), 0) == cv2.imread(filename=path) == b"fetched"
        for file in (h5py.File(path), h5py.File(path, "r"), h5py.File(name=str(path), mode="r")):
            assert isinstance(file, File)
            assert (file.body, Path(file.name).name) == (b"fetched", "a.h5")
            assert os.path.realpath(file.name) == file.name
        assert h5py.File(path, "r+").body == h5py.File(path, mode="a").body == b"from the disk"
        assert files.unopened == []
    assert cv2.imread(path) == h5py.File(path).body == b"from the disk"


def test_whatever_is_written_in_python_opens_them(tmp_path: Path) -> None:
    """The files here have other bytes than those that were fetched, so that it shows who read which."""
    array, packed = io.BytesIO(), gzip.compress(b"gz" * 50)
    np.save(array, np.arange(12).reshape(3, 4))
    tar_shard(tmp_path / "d.tar", {"in": b"member"})
    bodies = [array.getvalue(), b"line 1\nl\xc3\xafne 2\n", packed, (tmp_path / "d.tar").read_bytes()]
    names = [str(tmp_path / name) for name in ("a.npy", "b.txt", "c.gz", "d.tar")]
    for name in names:
        Path(name).write_bytes(b"from the disk")
    files = Files(memoryview(b"".join(bodies)), [(name, len(body)) for name, body in zip(names, bodies, strict=True)])
    with files:
        with tarfile.open(names[3]) as archive:
            assert (archive.name, archive.getnames()) == (names[3], ["in"])
        assert np.array_equal(np.load(names[0]), np.arange(12).reshape(3, 4))
        mapped = np.load(names[0], mmap_mode="r")
        assert np.array_equal(np.fromfile(names[0], np.int64, offset=len(bodies[0]) - 96), np.arange(12))
        assert gzip.open(names[2]).read() == b"gz" * 50
        assert Path(names[1]).read_text(encoding="utf-8") == "line 1\nl\u00efne 2\n"
        with (
            open(names[1], "rb") as one,
            open(os.fsencode(names[1]), "rb", 0) as two,
            open(names[1], newline="\n") as text,
        ):
            assert (one.name, one.mode, type(one)) == (names[1], "rb", io.BufferedReader)
            assert (type(two), type(text)) == (io.FileIO, io.TextIOWrapper)
            assert one.readline() == b"line 1\n"
            # Each has a place of its own in the file.
            assert two.read() == bodies[1]
            assert list(text) == ["line 1\n", "l\u00efne 2\n"]
            assert os.fstat(one.fileno()).st_size == len(bodies[1])
            kept = open(names[1], "rb")
        descriptor = os.open(names[1], os.O_RDONLY)
        assert os.read(descriptor, 100) == bodies[1]
        os.close(descriptor)
        with pytest.raises(IsADirectoryError):
            open(tmp_path)
        # Whoever writes writes to the file itself, and other threads and other files are not concerned.
        with open(names[1], "a") as appended:
            appended.write("!")
        seen: list[Any] = []
        other = threading.Thread(target=lambda: seen.append(Path(names[1]).read_bytes()))
        other.start()
        other.join()
        assert seen == [b"from the disk!"]
        in_memory = str(files.path(names[1], real=False))
        with open(in_memory, "r+b", 0) as file, pytest.raises(PermissionError):
            file.write(b"lost")
        with Files(memoryview(b"inner"), [(names[1], 5)]):
            assert Path(names[1]).read_bytes() == b"inner"
        assert Path(names[1]).read_bytes() == bodies[1]
        assert (files.opened, files.unopened) == (4, [])
    assert np.array_equal(mapped, np.arange(12).reshape(3, 4))
    with kept:
        assert kept.read() == bodies[1]
    assert Path(names[1]).read_bytes() == b"from the disk!"
    assert open is io.open
    assert pickle.loads(pickle.dumps(open)) is open


def test_a_file_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "deep")
    monkeypatch.chdir(tmp_path)
    for written, name in (
        ("x", f"{tmp_path}/x"),
        (b"x", f"{tmp_path}/x"),
        (Path("./far//x"), f"{tmp_path}/far/x"),
        ("link/x", f"{tmp_path}/link/x"),
        # Not what is written before it.
        ("link/../x", f"{os.path.realpath(tmp_path)}/far/x"),
        (f"file://{tmp_path}/a%20b", f"{tmp_path}/a b"),
        ("s3://bucket/a%20b/../c", "s3://bucket/a%20b/../c"),
        ("S3A://bucket//c/", "s3://bucket//c/"),
        (Path("s3://bucket/c"), "s3://bucket/c"),
        ("gcs://bucket/c", "gs://bucket/c"),
        ("abfss://c@account.dfs.core.windows.net/x", "az://c@account/x"),
        ("https://Host:80/a%20b", "https://host:80/a b"),
        ("odd:/x", f"{tmp_path}/odd:/x"),
        (7, None),
        (None, None),
    ):
        assert name_of(written) == name


def test_files_of_any_name_and_place_are_found_by_it(tmp_path: Path, home: Any) -> None:
    top = tmp_path / "a b%20"
    (top / "w:").mkdir(parents=True)
    paths = [top / name for name in ("a b", "%20", "\u00fc#?", "s*[1]", 'q"', "w:/y", "empty")]
    for path in paths:
        path.write_bytes(b"" if path.name == "empty" else path.name.encode() * 9)
    names = [str(name_of(path)) for path in paths]
    for samples in ([[name] for name in names], [names, [names[-1]], [names[0], names[0]]], [["/etc/passwd"], names]):
        opened = open_named(samples)
        index = opened.source.opened().index
        for at, files in enumerate(samples):
            assert [name for name, _ in parts_of(index, at)] == files
            assert opened.read(at) == b"".join(Path(file).read_bytes() for file in files)
    with pytest.raises(errors.InvalidError, match="not UTF-8"):
        open_named([[os.fsdecode(b"/a/\xff")]])
