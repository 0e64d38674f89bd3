"""What building an index left out is told."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from command import Command
from small import tar_shard


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


def told(caplog: pytest.LogCaptureFixture, url: Path, **keywords: Any) -> str:
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="foreload"):
        fl.open(url, **keywords)
    return caplog.text


def test_a_guess_that_leaves_most_of_the_data_out_is_warned_of(
    home: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, command: Command
) -> None:
    (tmp_path / "thumbs").mkdir()
    (tmp_path / "thumbs" / "one.jpg").write_bytes(b"1")
    (tmp_path / ".hidden").write_bytes(b"1")
    for number in range(50):
        (tmp_path / f"{number}.jpg").write_bytes(b"1")
    words = "50 of 52 objects lie in no class directory and are left out; format='flat' takes them"
    # The second time from the saved index.
    for _ in range(2):
        assert words in told(caplog, tmp_path)
    assert told(caplog, tmp_path, format="flat") == ""
    assert told(caplog, tmp_path, format="folder") == ""
    assert len(fl.open(tmp_path, format="flat")) == 51
    others = "1 of 52 objects are left out: hidden, or markers of other programs"
    assert command.json("index", tmp_path)["notes"] == [words, others]
    assert command("index", tmp_path) == 0
    assert others in command.out


def test_shards_that_hold_nothing_or_were_cut_are_told_of(
    home: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        tar_shard(tmp_path / f"{number}.tar", {f"{number}.jpg": b"1" * 600, f"{number}.cls": b"7"})
    assert told(caplog, tmp_path) == ""
    tar_shard(tmp_path / "3.tar", {})
    (tmp_path / "4.tar").write_bytes(b"")
    whole = (tmp_path / "2.tar").read_bytes()
    # Between the sample's two members, where its label is lost.
    (tmp_path / "2.tar").write_bytes(whole[: 512 + 1024])
    text = told(caplog, tmp_path, refresh=True)
    assert "2 of 5 shards hold no sample: 3.tar, 4.tar" in text
    assert "1 of 5 shards have no mark at their end" in text
    assert "2.tar" in text
