"""The store's client against servers that others wrote: what it indexes and reads is what was put there, and refusals are named."""

from __future__ import annotations

import io
import os
import random
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest
import servers

import foreload as fl
from command import Command
from foreload import errors
from foreload._mount import program
from foreload._mount.options import Options
from foreload.torch import DataLoader
from small import until

CACHE = fl.Cache(ram="128MB")
ODD = ("a b+c%20d", "ünïcode-日本", "semi;amp&eq=q?h#", "quote'tilde~(1)", "comma,colon:at@")

S3 = [pytest.param(name, marks=pytest.mark.needs(name)) for name in ("moto", "versitygw")]
ALL = [pytest.param(name, marks=pytest.mark.needs(name)) for name in servers.KINDS]
#: fake-gcs-server doesn't take what object_store writes to Google's.
WRITTEN = [*S3, pytest.param("azurite", marks=pytest.mark.needs("azurite"))]


def content(number: int) -> bytes:
    """Empty, small and larger than one request's part."""
    length = {0: 0, 1: 1, 2: 13_000_001}.get(number, 1 + number * 997 % 70_000)
    return random.Random(number).randbytes(length)


def keys() -> list[str]:
    names = [f"{number:03}" for number in range(60)]
    names[-len(ODD) :] = ODD
    return [f"train/{'dog' if number % 2 else 'cat'}/{name}.bin" for number, name in enumerate(names)]


@pytest.fixture(scope="module")
def running() -> Iterator[dict[str, Any]]:
    """Servers, each started and filled when a test first wants it."""
    started: dict[str, Any] = {}
    yield started
    for server in started.values():
        server.__exit__(None, None, None)


@pytest.fixture
def server(running: dict[str, Any], request: pytest.FixtureRequest, home: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server with 60 objects in two classes below `train`, and three shards below `shards`."""
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    if request.param not in running:
        made = servers.KINDS[request.param]()
        running[request.param] = made
        for number, key in enumerate(keys()):
            made.put(key, content(number))
        for shard in range(3):
            made.put(f"shards/{shard}.tar", archive(shard))
    return running[request.param]


def archive(shard: int) -> bytes:
    """Ten samples of an image and a class."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for number in range(shard * 10, shard * 10 + 10):
            for suffix, data in (("bin", member(number)), ("cls", b"%d" % (number % 4))):
                entry = tarfile.TarInfo(f"{number:04}.{suffix}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return whole.getvalue()


def member(number: int) -> bytes:
    return random.Random(number + 1000).randbytes(500 + number * 131 % 9000)


def opened(server: Any, path: str = "train", **keywords: Any) -> Any:
    return fl.open(
        f"{server.url}/{path}", storage_options={**server.options, **keywords.pop("options", {})}, **keywords
    )


@pytest.mark.parametrize("server", ALL, indirect=True)
def test_epochs_are_what_was_put_there(server: Any) -> None:
    """Whatever the names, and in parts where an object is large."""
    data = opened(server)
    assert sorted(data.key(sample) for sample in range(len(data))) == sorted(key[len("train/") :] for key in keys())
    assert data.classes == ["cat", "dog"]
    expected = {key[len("train/") :]: content(number) for number, key in enumerate(keys())}
    loader = DataLoader(data, 7, shuffle=True, seed=1, cache=CACHE)
    for _ in range(2):
        found = {}
        for batch, (values, labels) in enumerate(loader):
            samples = loader.run.plan.batch(len(loader.stats()["epochs"]) - 1, batch, 0)
            found |= dict(zip((data.key(sample) for sample in samples), values, strict=True))
            assert labels.tolist() == [data.classes.index(data.key(sample)[:3]) for sample in samples]
        assert found == expected


@pytest.mark.needs("fuse")
@pytest.mark.parametrize("server", WRITTEN, indirect=True)
def test_what_is_written_to_a_mount_is_there_after_it(server: Any, home: Any) -> None:
    """In one request and in parts, of which the first one is written over and goes last; renamed, and deleted."""
    part = 5 << 20
    sizes = [0, 1, part, 3 * part + 12_345]
    settings = Options(allow_write=True, part="5MiB").settings(
        f"{server.url}/made", server.options, str(home.cache_dir)
    )
    target = home.cache_dir / "at"
    target.mkdir(parents=True)
    pid = program.start(str(target), settings, home.cache_dir / "log")
    try:
        for size in sizes:
            with (target / f"{size}").open("wb", buffering=0) as file:
                for at in range(0, size, 1 << 20):
                    file.write(random.Random(at).randbytes(min(1 << 20, size - at)))
                file.seek(0)
                file.write(b"header"[:size])
        (target / f"{sizes[-1]}").rename(target / "renamed")
        (target / "gone").write_bytes(b"x")
        (target / "gone").unlink()
    finally:
        program.unmount(str(target))
        assert program.ended(pid)
    made = opened(server, "made")
    assert sorted(made.key(sample) for sample in range(len(made))) == sorted([*map(str, sizes[:-1]), "renamed"])
    for sample in range(len(made)):
        size = sizes[-1] if made.key(sample) == "renamed" else int(made.key(sample))
        whole = b"".join(random.Random(at).randbytes(min(1 << 20, size - at)) for at in range(0, size, 1 << 20))
        assert made[sample].bytes == b"header"[:size] + whole[6:], size


@pytest.mark.parametrize("server", ALL, indirect=True)
def test_ranges_of_shards_are_what_was_put_there(server: Any) -> None:
    data = opened(server, "shards", format="tar")
    assert len(data) == 30
    for sample in range(30):
        assert data[sample].parts == {"bin": member(sample), "cls": b"%d" % (sample % 4)}
    loader = DataLoader(data, 4, shuffle=True, decode=lambda raw, meta: bytes(meta.part(raw, "bin")), cache=CACHE)
    found = [bytes(value) for values, _ in loader for value in values]
    assert sorted(found) == sorted(member(number) for number in range(30))


@pytest.mark.parametrize("server", ALL, indirect=True)
def test_a_replaced_object_is_noticed_by_its_etag(server: Any) -> None:
    """Of the same length, so that nothing but the ETag differs."""
    keys = [f"changing/cat/{name}.bin" for name in ("one", "two")]
    for key in keys:
        server.put(key, b"a" * 1000)
    data = opened(server, "changing")
    assert data.read(0) == b"a" * 1000
    for key in keys:
        server.put(key, b"b" * 1000)
    # The first is in memory as it was indexed.
    with pytest.raises(errors.ChangedError, match=r"two\.bin"):
        list(DataLoader(data, 1, cache=CACHE))
    fresh = opened(server, "changing", refresh=True)
    assert [values[0] for values, _ in DataLoader(fresh, 1, cache=CACHE)] == [b"b" * 1000] * 2


@pytest.mark.parametrize("server", ALL, indirect=True)
def test_an_empty_prefix_is_said_to_be_empty(server: Any) -> None:
    with pytest.raises(errors.NotFoundError, match="nothing-here"):
        opened(server, "nothing-here")


# Not Google's: the server here answers 500 where the real one says 404.
@pytest.mark.parametrize("server", [*S3, pytest.param("azurite", marks=pytest.mark.needs("azurite"))], indirect=True)
def test_a_missing_bucket_is_said_to_be_missing(server: Any) -> None:
    with pytest.raises(errors.NotFoundError, match="nobodys"):
        fl.open(server.url.replace("learn", "nobodys-bucket") + "/train", storage_options=server.options)


# Only these two look at signatures.
@pytest.mark.parametrize(
    "server",
    [
        pytest.param("versitygw", marks=pytest.mark.needs("versitygw")),
        pytest.param("azurite", marks=pytest.mark.needs("azurite")),
    ],
    indirect=True,
)
def test_a_wrong_key_is_refused_with_the_stores_own_word(server: Any) -> None:
    wrong = "account_key" if "account_key" in server.options else "secret_access_key"
    with pytest.raises(errors.DeniedError, match=r"Signature|Auth"):
        opened(server, options={wrong: "d3Jvbmc="}, refresh=True)


@pytest.mark.needs("versitygw")
@pytest.mark.parametrize("server", ["versitygw"], indirect=True)
def test_strangers_read_a_public_bucket_and_no_other(server: Any) -> None:
    options = {"endpoint_url": server.endpoint, "anonymous": "true"}
    with pytest.raises(errors.DeniedError):
        fl.open("s3://learn/train", storage_options=options, refresh=True)
    server.publish()
    try:
        data = fl.open("s3://learn/train", storage_options=options, refresh=True)
        assert sum(len(values) for values, _ in DataLoader(data, 7, cache=CACHE)) == 60
    finally:
        server._client.delete_bucket_policy(Bucket="learn")


@pytest.mark.needs("versitygw")
@pytest.mark.parametrize("server", ["versitygw"], indirect=True)
def test_damage_that_the_etag_does_not_show_is_caught_by_checksums(
    server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's directory is altered behind its back: length and ETag stay."""
    for number in range(5):
        server.put(f"rot/cat/{number}.bin", content(number + 10))
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    assert Command(capsys, monkeypatch)("index", "s3://learn/rot", "--checksum") == 0
    data = fl.open("s3://learn/rot")
    # Not read before: what is in memory is as it was fetched.
    whole = [content(number + 10) for number in range(5)]
    with server.path("rot/cat/3.bin").open("r+b") as file:
        file.seek(100)
        file.write(bytes([whole[3][100] ^ 1]))
    with pytest.raises(errors.CorruptError, match=r"3\.bin"):
        list(DataLoader(data, 1, cache=CACHE))
    skipping = DataLoader(data, 5, on_error=fl.skip(), cache=CACHE)
    assert [values for values, _ in skipping] == [[*whole[:3], whole[4]]]


@pytest.mark.parametrize("server", S3, indirect=True)
def test_many_pages_of_a_listing_are_all_there(server: Any) -> None:
    for number in range(1100):
        server.put(f"many/{number % 3}/{number:05}", b"%d" % number)
    data = opened(server, "many")
    assert len(data) == 1100
    assert sorted(int(bytes(data.read(sample))) for sample in range(0, 1100, 97)) == sorted(
        int(data.key(sample)[2:]) for sample in range(0, 1100, 97)
    )


@pytest.mark.parametrize("server", S3, indirect=True)
def test_a_server_that_ends_is_an_error_in_time(server: Any, running: dict[str, Any], request: Any) -> None:
    """The last test of each server."""
    name = request.node.callspec.params["server"]
    data = opened(server)
    loader = DataLoader(data, 1, tuning=fl.Tuning(load_timeout_s=3), cache=fl.Cache(ram="16MB"))
    iterator = iter(loader)
    next(iterator)
    running.pop(name).__exit__(None, None, None)
    with pytest.raises(errors.UnavailableError, match=r"127\.0\.0\.1"):
        list(iterator)
    # What was read ahead is tried until its time-out, twice.
    until(lambda: loader.run.attachment().call("stats")["gauges"]["in_flight"] == 0, 60)
