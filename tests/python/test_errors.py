"""Exceptions resemble built-ins and survive the way from a worker to its parent."""

from __future__ import annotations

import gc
import io
import pickle
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload import errors
from foreload._node import agent as _agent
from foreload.torch import DataLoader
from small import until

KINDS = {
    "invalid": ValueError,
    "not-found": FileNotFoundError,
    "denied": PermissionError,
    "unavailable": ConnectionError,
    "timeout": TimeoutError,
    "corrupt": ValueError,
    "changed": ValueError,
    "no-memory": MemoryError,
    "cancelled": errors.ForeloadError,
    "closed": ConnectionError,
    "forked": RuntimeError,
    "bug": RuntimeError,
    "decode": ValueError,
    "something new": errors.ForeloadError,
}


@pytest.mark.parametrize(("kind", "builtin"), KINDS.items())
def test_an_error_resembles_a_builtin_and_survives_pickling(kind: str, builtin: type[Exception]) -> None:
    error = errors.of(kind, "the message", 17)
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert isinstance(each, errors.ForeloadError)
        assert isinstance(each, builtin)
        assert type(each) is type(error)
        assert str(each) == "the message"
        assert each.sample == 17


@pytest.mark.parametrize("kind", KINDS)
def test_torch_can_raise_it_again_with_a_traceback_for_a_message(kind: str) -> None:
    made = type(errors.of(kind, "x"))("Caught it in worker 1.\nTraceback ...")
    assert "Traceback" in str(made)
    assert made.sample is None


@pytest.mark.parametrize(("given", "meant"), [("s3:/b/x", "s3://b/x"), ("gs:/b/*.tar", "gs://b")])
def test_a_url_without_its_second_slash_is_asked_about(
    home: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"did you mean {meant}"):
        fl.open(given)
    (tmp_path / "s3:" / "b" / "x").mkdir(parents=True)
    (tmp_path / "s3:" / "b" / "x" / "a.bin").write_bytes(b"a")
    assert len(fl.open("s3:/b/x")) == 1


def test_a_place_that_is_not_there_is_told_with_what_is(home: Any, tmp_path: Path) -> None:
    for name in ("train", "val", ".hidden", "a", "b", "c", "d"):
        (tmp_path / "set" / name).mkdir(parents=True)
    with pytest.raises(errors.NotFoundError, match=r"set is there, and has a, b, c, d, train, and 1 more"):
        fl.open(tmp_path / "set" / "trian" / "deep")
    with pytest.raises(errors.NotFoundError, match=r"set/train is there, and has nothing"):
        fl.open(tmp_path / "set" / "train" / "cat")
    with pytest.raises(errors.NotFoundError, match=r"nothing is there \(the place was reached and holds no object"):
        fl.open(tmp_path / "set")


def test_a_damaged_shard_is_named_with_member_byte_and_remedy(home: Any, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for name in ("a.jpg", "b.jpg"):
            member = tarfile.TarInfo(name)
            member.size = 5
            tar.addfile(member, io.BytesIO(b"12345"))
    shard = bytearray((tmp_path / "s.tar").read_bytes())
    shard[1024] ^= 1
    (tmp_path / "s.tar").write_bytes(shard)
    told = r's\.tar: .*checksum.*header at byte 1024, after member "a\.jpg" \(write or copy the shard again'
    with pytest.raises(errors.CorruptError, match=told):
        fl.open(str(tmp_path))


def test_a_data_set_that_was_written_anew_is_noticed_when_it_is_opened(home: Any, tmp_path: Path) -> None:
    def write(byte: bytes) -> None:
        for number in range(40):
            (tmp_path / f"{number:02}.bin").write_bytes(byte * (number + 1))

    write(b"a")
    first = fl.open(str(tmp_path))
    assert bytes(first.read(3)) == b"aaaa"
    write(b"b")
    # What was listed or looked at just now isn't looked at again.
    time.sleep(2.1)
    with pytest.raises(errors.ChangedError, match="refresh=True"):
        fl.open(str(tmp_path))
    assert bytes(fl.open(str(tmp_path), refresh=True).read(3)) == b"bbbb"


def test_a_log_that_cannot_be_written_costs_lines_and_no_agent(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    home.cache_dir.mkdir(parents=True)
    (home.cache_dir / "agent.log").symlink_to("/dev/full")
    # So that there is something to say: no index can be saved.
    (home.cache_dir / "indexes").write_bytes(b"")
    for name in ("train", "fixed"):
        data = fl.open(f"s3://data/{name}")
        pid = data.source.opened().agent.pid
        assert sum(len(labels) for _, labels in DataLoader(data, 16, cache=fl.Cache(ram="32MB"))) == len(data)
        assert data.source.opened().agent.pid == pid
    # What it says at its end nobody can look for.
    monkeypatch.setattr(home, "log", lambda: "pools replay to equality")


def test_an_agent_without_a_log_serves(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.cache_dir / "agent.log").mkdir(parents=True)
    assert len(fl.open("s3://data/flat")) == 10
    monkeypatch.setattr(home, "log", lambda: "pools replay to equality")


def test_an_agent_that_ends_at_its_start_is_not_waited_for(home: Any) -> None:
    fl.open("s3://data/flat")
    (lock,) = home.runtime_dir.glob("*.lock")
    _agent._agents.clear()
    gc.collect()
    until(lambda: not home.is_served(), 20)
    lock.unlink()
    lock.mkdir()
    begun = time.monotonic()
    with pytest.raises(errors.ClosedError, match=r"(?s)ended with exit status: 1.*\.lock: Is a directory"):
        fl.open("s3://data/flat")
    assert time.monotonic() - begun < 5
    lock.rmdir()


def test_too_few_descriptors_are_told_with_the_limit_that_helps(home: Any, bucket: Any) -> None:
    """The agent has the limit of whoever starts it, up to the hard one, which is lowered here."""
    program = (
        "import resource, foreload as fl\n"
        "data = fl.open('s3://data/train')\n"
        "from foreload.torch import DataLoader\n"
        "next(iter(DataLoader(data, 8)))\n"
    )
    told = []
    # Which of them the arenas meet hangs on how fast connections are opened.
    for limit in range(16, 34, 2):
        shell = f'ulimit -n {limit}; exec "$0" -c "$1"'
        done = subprocess.run(
            ["bash", "-c", shell, sys.executable, program], check=False, capture_output=True, text=True, timeout=60
        )
        last = done.stderr.strip().splitlines()[-1:] or [""]
        if "making an arena" in last[0]:
            assert "ulimit -n" in last[0]
            assert "ulimit -v" not in last[0]
            told.append(limit)
        if len(told) == 2:
            break
    assert told


def test_a_time_that_is_none_is_refused(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("abc", "-1", "1e99"):
        monkeypatch.setenv("FORELOAD_LINGER_S", wrong)
        program = "import foreload as fl; fl.open('s3://data/train')"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, text=True, timeout=60)
        assert f"FORELOAD_LINGER_S: {wrong!r} is no time".replace("'", '"') in done.stderr


@pytest.mark.parametrize("door", ["skip", "numpy", "raise"])
def test_a_loop_that_goes_on_without_what_is_gone_never_waits_for_its_memory(
    home: Any, tmp_path: Path, door: str
) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}").write_bytes(bytes([number % 251]) * 100_000)
    data = fl.open(str(tmp_path))
    gone = set(range(0, 300, 5))
    for number in gone:
        (tmp_path / f"{number:03}").unlink()
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "cache": fl.Cache(ram="16MB"), "timeout": 20}
    options |= {"decode": lambda raw, about: 1000 * about.sample + raw[0]}
    skip = {} if door == "raise" else {"on_error": fl.skip(max_consecutive=1000)}
    kind: Any = fl.NumpyLoader if door == "numpy" else DataLoader
    loader = kind(data, 4, **options, **skip)
    for _ in range(3):
        had, told, batches = [], 0, iter(loader)
        while True:
            try:
                had += [divmod(int(it), 1000) for it in next(batches)[0]]
            except StopIteration:
                break
            except errors.NotFoundError:
                told += 1
        assert all(byte == sample % 251 for sample, byte in had)
        assert gone.isdisjoint(sample for sample, _ in had)
        if door == "raise":
            assert len(had) == 300 - 4 * told
        else:
            assert sorted(sample for sample, _ in had) == sorted(set(range(300)) - gone)
