"""Objects that change under one address: what was read of one version is never delivered with another's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload import errors
from foreload._node import agent as _agent
from foreload.torch import DataLoader


class Web:
    """A web server whose files have an ETag each, and may be replaced at any request."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, str]] = {}
        self.asked: Callable[[str], None] = lambda name: None
        self.coding: str | None = None
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.answer(with_body=False)

            def do_GET(self) -> None:
                web.asked(self.path[1:])
                self.answer(with_body=True)

            def answer(self, *, with_body: bool) -> None:
                if self.path[1:] not in web.files:
                    self.send_error(404)
                    return
                body, etag = web.files[self.path[1:]]
                told = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
                first, last = (int(told[1]), min(int(told[2]), len(body) - 1)) if told else (0, len(body) - 1)
                self.send_response(206 if told else 200)
                if told:
                    self.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
                self.send_header("Content-Length", str(last + 1 - first))
                self.send_header("ETag", f'"{etag}"')
                if web.coding:
                    self.send_header("Content-Encoding", web.coding)
                self.end_headers()
                if with_body:
                    # Who found something wrong hangs up.
                    with contextlib.suppress(ConnectionError):
                        self.wfile.write(body[first : last + 1])

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def web(home: Any) -> Iterator[Web]:
    found = Web()
    yield found
    found.end()


@pytest.mark.parametrize("columns", ["object,size", "object,offset,length,object_size", "ranges"])
def test_parts_of_two_versions_are_never_one_sample(web: Web, columns: str) -> None:
    length = 40_000_000
    versions = [bytes([number]) * length for number in (1, 2)]
    manifest = {
        "object,size": ("list.csv", f"object,size\nbig.bin,{length}\n"),
        "object,offset,length,object_size": (
            "list.csv",
            f"object,offset,length,object_size\nbig.bin,0,{length},{length}\n",
        ),
        "ranges": ("list.jsonl", json.dumps({"ranges": [["big.bin", 0, 20_000_000], ["big.bin", 20_000_000, length]]})),
    }
    name, text = manifest[columns]
    web.files = {name: (text.encode(), "m"), "big.bin": (versions[0], "one")}
    gets = []

    def asked(which: str) -> None:
        gets.append(which)
        if gets.count("big.bin") == 3:
            web.files["big.bin"] = versions[1], "two"

    web.asked = asked
    loader: Any = DataLoader(fl.open(f"{web.url}/{name}"), 1, cache=fl.Cache(ram="256MB"))
    with pytest.raises(errors.ChangedError, match=r"big\.bin"):
        list(loader)
    assert gets.count("big.bin") >= 3


@pytest.mark.parametrize("with_disk", [True, False])
def test_what_is_known_by_its_size_alone_is_read_anew_once_it_is_listed_anew(
    web: Web, home: Any, tmp_path: Path, with_disk: bool
) -> None:
    count, length = 40, 1_000_000

    def put(kind: int) -> None:
        for at in range(count):
            web.files[f"{at}.bin"] = bytes([kind, at]) * (length // 2), f"{kind}-{at}"

    def kinds(**options: Any) -> set[int]:
        cache = fl.Cache(ram="16MB", **({"disk": f"{tmp_path}/tier:64MB"} if with_disk else {}))
        loader: Any = DataLoader(fl.open(f"{web.url}/list.csv", **options), 4, cache=cache)
        return {bytes(each)[0] for _ in range(2) for batch, _ in loader for each in batch}

    web.files["list.csv"] = ("object,size\n" + "".join(f"{at}.bin,{length}\n" for at in range(count))).encode(), "m"
    put(1)
    assert kinds() == {1}
    put(2)
    assert kinds(refresh=True) == {2}


@pytest.mark.parametrize("is_manifest", [True, False])
def test_checksums_of_the_index_hold_for_what_a_disk_tier_has(home: Any, tmp_path: Path, is_manifest: bool) -> None:
    """Of an alteration that keeps length and time, which nothing else tells."""
    root = tmp_path / "data"
    (root / "c").mkdir(parents=True)
    count, length = 40, 1_000_000

    def put(kind: int) -> None:
        for at in range(count):
            path = root / "c" / f"{at:02}.bin"
            path.write_bytes(bytes([kind, at]) * (length // 2))
            os.utime(path, (1.7e9, 1.7e9))

    def kinds() -> tuple[set[int], Any]:
        loader: Any = DataLoader(fl.open(url), 4, cache=fl.Cache(ram="16MB", disk=f"{tmp_path}/tier:64MB"))
        found = {bytes(each)[0] for _ in range(2) for batch, _ in loader for each in batch}
        return found, loader.stats()

    url = str(root / "list.csv") if is_manifest else str(root)
    put(1)
    (root / "list.csv").write_text("object,size\n" + "".join(f"c/{at:02}.bin,{length}\n" for at in range(count)))
    if not is_manifest:
        (root / "list.csv").unlink()
    assert kinds()[0] == {1}
    put(2)
    subprocess.run([sys.executable, "-m", "foreload", "index", url, "--update", "--checksum"], check=True, timeout=60)
    found, stats = kinds()
    assert found == {2}
    if not is_manifest:
        assert stats["quarantined"] > 20, "records of the first version were found, and not delivered"
        # What was fetched in their place is kept: the disk isn't ill.
        assert stats["disk_hits"] > 5


def test_bytes_in_a_coding_that_nobody_asked_for_are_an_error_that_names_it(web: Web) -> None:
    web.files = {"list.csv": (b"object,size\na.bin,100\n", "m"), "a.bin": (b"x" * 100, "a")}
    loader: Any = DataLoader(fl.open(f"{web.url}/list.csv"), 1, cache=fl.Cache(ram="16MB"))
    web.coding = "gzip"
    with pytest.raises(errors.InvalidError, match="Content-Encoding"):
        list(loader)


def test_an_index_that_another_process_brought_up_to_date_is_opened(home: Any, tmp_path: Path) -> None:
    """Also by a process that has the data set open by the old one, once nobody else has it."""
    root = tmp_path / "data"
    (root / "c").mkdir(parents=True)
    for at in range(3):
        (root / "c" / f"{at}.bin").write_bytes(bytes([at]) * 1000)
        os.utime(root / "c" / f"{at}.bin", (1.7e9, 1.7e9))
    held = fl.open(str(root))
    assert len(held) == 3
    command = [sys.executable, "-m", "foreload", "index", str(root), "--update", "--checksum"]
    subprocess.run(command, check=True, timeout=60)
    # The agent lets go of what the command had opened.
    time.sleep(1)
    (root / "c" / "1.bin").write_bytes(bytes([7]) * 1000)
    os.utime(root / "c" / "1.bin", (1.7e9, 1.7e9))
    for _ in range(2):
        with pytest.raises(errors.CorruptError, match=r"1\.bin"):
            fl.open(str(root)).read(1)


def numbered(root: Path, count: int) -> list[Path]:
    """Files of a directory, each full of its own number, and not written just now."""
    (root / "c").mkdir(parents=True)
    files = [root / "c" / f"{at:03}.bin" for at in range(count)]
    for at, path in enumerate(files):
        path.write_bytes(bytes([at % 251]) * 10_000)
        os.utime(path, (1.7e9, 1.7e9))
    return files


@pytest.mark.parametrize("is_replaced", [True, False])
@pytest.mark.parametrize("is_new_agent", [True, False])
def test_one_file_that_was_replaced_is_not_taken_for_what_a_disk_tier_has(
    home: Any, tmp_path: Path, is_new_agent: bool, is_replaced: bool
) -> None:
    files = numbered(tmp_path / "data", 300)

    def loader(**options: Any) -> Any:
        cache = fl.Cache(ram="16MB", disk=f"{tmp_path}/tier:64MB")
        return DataLoader(fl.open(str(tmp_path / "data"), **options), 10, cache=cache)

    first = loader()
    assert len(list(first)) == 30
    if is_new_agent:
        del first
        os.kill(_agent.connect(str(home.cache_dir)).pid, signal.SIGKILL)
    if is_replaced:
        files[77].write_bytes(bytes([255]) * 10_000)
    else:
        files[77].unlink()
    with pytest.raises(errors.ChangedError, match=r"077\.bin.*refresh=True"):
        loader()
    found = [bytes(each)[0] for batch, _ in loader(refresh=True) for each in batch]
    other = [255] if is_replaced else []
    assert sorted(found) == sorted([at % 251 for at in range(300) if at != 77] + other)


def test_a_data_set_that_is_listed_again_keeps_the_checksums_of_what_is_unchanged(home: Any, tmp_path: Path) -> None:
    files = numbered(tmp_path / "data", 3)
    command = [sys.executable, "-m", "foreload", "index", str(tmp_path / "data"), "--checksum"]
    subprocess.run(command, check=True, timeout=60)
    files[0].write_bytes(b"another one")
    files[1].write_bytes(bytes([7]) * 10_000)
    os.utime(files[1], (1.7e9, 1.7e9))
    again = fl.open(str(tmp_path / "data"), refresh=True)
    assert bytes(again.read(0)) == b"another one"
    with pytest.raises(errors.CorruptError, match=r"001\.bin"):
        again.read(1)
    assert bytes(again.read(2)) == bytes([2]) * 10_000


@pytest.mark.parametrize("workers", [0, 1])
def test_counters_are_told_when_the_agent_was_killed_after_the_last_batch(
    home: Any, tmp_path: Path, workers: int
) -> None:
    numbered(tmp_path / "data", 20)
    loader: Any = DataLoader(fl.open(str(tmp_path / "data")), 5, num_workers=workers, cache=fl.Cache(ram="16MB"))
    assert len(list(loader)) == 4
    os.kill(_agent.connect(str(home.cache_dir)).pid, signal.SIGKILL)
    assert len(loader.stats()["epochs"]) == 1
    assert len(list(loader)) == 4


def test_a_manifest_that_was_written_anew_is_noticed_when_it_is_opened(home: Any, tmp_path: Path) -> None:
    numbered(tmp_path / "data", 4)
    manifest = tmp_path / "data" / "list.csv"

    def write(label: int, count: int) -> None:
        manifest.write_text("object,label\n" + "".join(f"c/{at:03}.bin,{label}\n" for at in range(count)))

    write(3, 4)
    data = fl.open(str(manifest))
    assert list(data.labels) == [3] * 4
    write(5, 4)
    with pytest.raises(errors.ChangedError, match=r"list\.csv.*refresh=True"):
        fl.open(str(manifest))
    data = fl.open(str(manifest), refresh=True)
    assert list(data.labels) == [5] * 4
    assert len(fl.open(str(manifest))) == 4
    write(5, 2)
    with pytest.raises(errors.ChangedError, match=r"list\.csv"):
        fl.open(str(manifest))


@pytest.mark.parametrize("form", ["auto", "flat"])
def test_the_remedy_for_what_was_changed_names_the_format_that_was_given(home: Any, tmp_path: Path, form: str) -> None:
    files = numbered(tmp_path / "data", 3)
    assert len(fl.open(str(tmp_path / "data" / "c"), form)) == 3
    files[1].write_bytes(b"another")
    with pytest.raises(errors.ChangedError) as caught:
        fl.open(str(tmp_path / "data" / "c"), form)
    remedy = re.search(r"`foreload (index --update[^`]*)`", str(caught.value))
    assert remedy
    command = [sys.executable, "-m", "foreload", *remedy[1].split(), str(tmp_path / "data" / "c")]
    subprocess.run(command, check=True, timeout=60)
    again = fl.open(str(tmp_path / "data" / "c"), form)
    assert b"another" in [bytes(again.read(at)) for at in range(3)]


def test_a_saved_index_is_taken_as_it_is(home: Any, tmp_path: Path) -> None:
    files = numbered(tmp_path / "data", 40)
    root, saved = str(tmp_path / "data"), str(tmp_path / "saved.fli")
    command = [sys.executable, "-m", "foreload", "index", root, "--out", saved]
    subprocess.run(command, check=True, timeout=60)
    files[7].write_bytes(bytes([255]) * 9_000)
    with pytest.raises(errors.ChangedError, match=r"007\.bin is another object.*--update --out FILE` writes a new one"):
        fl.open(root, index=saved)
    with pytest.raises(errors.InvalidError, match=r"refresh=True.*taken as it is"):
        fl.open(root, index=saved, refresh=True)
    subprocess.run([*command, "--update"], check=True, timeout=60)
    # New content follows what stays.
    assert bytes(fl.open(root, index=saved).read(39)) == bytes([255]) * 9_000


def test_an_update_says_what_checksums_alone_tell(home: Any, tmp_path: Path) -> None:
    files = numbered(tmp_path / "data", 6)
    command = [sys.executable, "-m", "foreload", "index", str(tmp_path / "data"), "--update", "--checksum", "--json"]

    def changes() -> Any:
        said = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout
        return json.loads(said)["changes"]

    assert changes() == {"added": 0, "removed": 0, "changed": 0}
    files[1].write_bytes(bytes([7]) * 10_000)
    os.utime(files[1], (1.7e9, 1.7e9))
    files[2].write_bytes(b"shorter")
    assert changes() == {"added": 0, "removed": 0, "changed": 2}
    assert changes() == {"added": 0, "removed": 0, "changed": 0}
