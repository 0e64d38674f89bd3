"""Shards of all the kinds that Python's tarfile writes hold for us what they hold for tarfile."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

import foreload as fl

FORMATS = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT, "ustar": tarfile.USTAR_FORMAT}
DIRECTORIES = ["", "./", "a/", "b/c/", "d" * 50 + "/" + "e" * 30 + "/"]
#: With names that a header has no room for, and one whose header ends in a slash.
LONG = ["q" * 130 + "/", "f" * 99 + "/", "g" * 98 + "/", "h" * 160]
OTHERS = [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]


def written(path: Path, kind: str, draw: random.Random) -> None:
    places = DIRECTORIES + (LONG if kind != "ustar" else [])
    with tarfile.open(path, "w", format=FORMATS[kind]) as archive:
        for number in range(draw.randint(2, 9)):
            base = f"{draw.choice(places)}{draw.choice(['s', 'ü', 'x y'])}{number}"
            for extension in draw.sample(["jpg", "cls", "json", "seg.png"], draw.randint(1, 3)):
                about = tarfile.TarInfo(f"{base}.{extension}")
                contents = f"{extension}{number}|".encode() * draw.choice([0, 1, 100, 300])
                about.size, about.mtime = len(contents), draw.choice([0, 1.25])
                if draw.random() < 0.25:
                    other = tarfile.TarInfo(draw.choice(places) + f"other{number}" * draw.choice([1, 30]))
                    other.type, other.linkname = draw.choice(OTHERS), "z" * draw.choice([3, 150])
                    if kind != "ustar" or (len(other.name) < 100 and len(other.linkname) < 100):
                        archive.addfile(other)
                archive.addfile(about, io.BytesIO(contents))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("seed", range(4))
def test_a_shard_holds_what_tarfile_finds_in_it(home: Any, tmp_path: Path, kind: str, seed: int) -> None:
    draw = random.Random(seed)
    for number in range(15):
        path = tmp_path / str(number) / "a.tar"
        path.parent.mkdir()
        written(path, kind, draw)
        with tarfile.open(path) as archive:
            files = [member for member in archive if member.isreg()]
            there = {member.name.removeprefix("./"): archive.extractfile(member).read() for member in files}  # type: ignore[union-attr]
        data = fl.open(str(path.parent), format="tar")
        found: dict[str, bytes] = {}
        for batch in fl.NumpyLoader(data, 1, cache=fl.Cache(ram="16MB"), decode=parts):
            found |= batch[0][0]
        assert found == there


def parts(raw: Any, about: Any) -> Any:
    """The files of a sample, by name."""
    return {f"{about.key.removeprefix('./')}.{field[0]}": bytes(about.part(raw, field[0])) for field in about.fields}
