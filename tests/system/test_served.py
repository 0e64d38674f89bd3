"""An S3 endpoint on loopback: what clients that nobody changed find there is what is in the bucket."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions
import pytest
from botocore.config import Config
from bucket import Bucket

import foreload
from foreload._mount import options, program
from foreload._mount.options import Options
from foreload.errors import InvalidError
from mounting import digest, objects, put


@pytest.fixture
def store() -> Iterator[Bucket]:
    with Bucket(profile="fast", synthetic=["small:300x1100", "large:2x25000000"]) as running:
        for key in ("a/b c/ä+~&<>.bin", "a/b!x", "a.b", "a0", "a/b/c"):
            put(running, key, key.encode())
        put(running, "empty", b"")
        yield running


@contextmanager
def served(home: Any, store: Bucket, url: str = "s3://bench", **fields: Any) -> Iterator[Any]:
    """A client of the endpoint."""
    given = {"endpoint_url": store.environment()["AWS_ENDPOINT_URL"]}
    keys = store.boto3()
    given.update(access_key_id=keys["aws_access_key_id"], secret_access_key=keys["aws_secret_access_key"])
    settings = Options(**{"ram": "256MB", **fields}).settings(url, given, str(home.cache_dir))
    home.cache_dir.mkdir(parents=True, exist_ok=True)
    pid, at = program.begin("http://127.0.0.1:0", settings, home.cache_dir / "serve.log")
    try:
        yield boto3.client(
            "s3",
            endpoint_url=at,
            aws_access_key_id="anybody",
            aws_secret_access_key="at all",
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
        )
    finally:
        assert program.ended(pid)


def keys_of(client: Any, **words: Any) -> list[str]:
    found = []
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="bench", **words):
        found += [each["Prefix"] for each in page.get("CommonPrefixes", [])]
        found += [each["Key"] for each in page.get("Contents", [])]
    return found


def code_of(error: pytest.ExceptionInfo[botocore.exceptions.ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def test_objects_and_ranges_are_the_bucket_s(home: Any, store: Bucket) -> None:
    expected, dice = objects(store), random.Random(4)
    with served(home, store) as client:
        for key, data in expected.items():
            answer = client.get_object(Bucket="bench", Key=key)
            assert answer["ContentLength"] == len(data)
            assert digest(answer["Body"].read()) == digest(data), key
            head = client.head_object(Bucket="bench", Key=key)
            assert (head["ContentLength"], head["ETag"]) == (len(data), answer["ETag"])
        large = [key for key in expected if key.startswith("large/")]

        def part(_: int) -> bool:
            key = dice.choice(large)
            first = dice.randrange(len(expected[key]))
            last = dice.randrange(first, min(len(expected[key]), first + 9_000_000))
            answer = client.get_object(Bucket="bench", Key=key, Range=f"bytes={first}-{last}")
            assert answer["ContentRange"] == f"bytes {first}-{last}/{len(expected[key])}"
            return bool(answer["Body"].read() == expected[key][first : last + 1])

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(part, range(60)))
        tail = client.get_object(Bucket="bench", Key=large[0], Range="bytes=-10")["Body"].read()
        assert tail == expected[large[0]][-10:]


@pytest.mark.parametrize("size", [3, 1000])
def test_lists_are_the_bucket_s(home: Any, store: Bucket, size: int) -> None:
    plain = boto3.client("s3", **store.boto3())
    with served(home, store) as client:
        for words in (
            {},
            {"Prefix": "a"},
            {"Prefix": "a/"},
            {"Prefix": "small/000000"},
            {"Prefix": "none"},
            {"Delimiter": "/"},
            {"Delimiter": "/", "Prefix": "a"},
            {"Delimiter": "/", "Prefix": "a/"},
            {"Delimiter": "/", "Prefix": "a/b"},
            {"Delimiter": "/", "Prefix": "none/"},
            {"StartAfter": "a/b c"},
            {"Delimiter": "/", "StartAfter": "a/b"},
            {"Delimiter": "/", "Prefix": "/"},
            {"Delimiter": "/", "Prefix": "//"},
            {"Delimiter": "/", "StartAfter": "small/00000003.bin"},
        ):
            paged = {**words, "PaginationConfig": {"PageSize": size}}
            assert sorted(keys_of(client, **paged)) == sorted(keys_of(plain, **paged)), words
        first = client.list_objects(Bucket="bench", Prefix="small/", MaxKeys=5)
        assert (len(first["Contents"]), first["IsTruncated"]) == (5, True)
        second = client.list_objects(Bucket="bench", Prefix="small/", MaxKeys=5, Marker=first["NextMarker"])
        assert [each["Key"] for each in second["Contents"]] == [f"small/{nth:08}.bin" for nth in range(5, 10)]
        assert [each["Name"] for each in client.list_buckets()["Buckets"]] == ["bench"]
        client.head_bucket(Bucket="bench")
        client.get_bucket_location(Bucket="bench")


def test_clients_that_take_nothing_keep_nobody_waiting_and_little_memory(home: Any, store: Bucket) -> None:
    with served(home, store) as client, ExitStack() as stalled:
        address = urllib.parse.urlsplit(client.meta.endpoint_url)
        for nth in range(560):
            connection = stalled.enter_context(socket.create_connection((address.hostname, address.port)))
            connection.sendall(f"GET /bench/large/{nth % 2:08}.bin HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        begun = time.monotonic()
        assert len(client.get_object(Bucket="bench", Key="small/00000000.bin")["Body"].read()) == 1100
        assert len(client.get_object(Bucket="bench", Key="large/00000000.bin")["Body"].read()) == 25_000_000
        assert time.monotonic() - begun < 10


def test_what_is_listed_can_be_read(home: Any, store: Bucket) -> None:
    for key in ("x//y", "../z", "./w", "marked/"):
        put(store, key, b"x")
    with served(home, store) as client:
        listed = keys_of(client)
        assert not {"x//y", "../z", "./w", "marked/"} & set(listed)
        assert all(client.head_object(Bucket="bench", Key=key)["ETag"] for key in listed[:20])


def test_a_prefix_is_served_by_the_keys_that_it_has_in_the_bucket(home: Any, store: Bucket) -> None:
    with served(home, store, url="s3://bench/large") as client:
        assert keys_of(client) == [f"large/{nth:08}.bin" for nth in range(2)]
        assert keys_of(client, Delimiter="/") == ["large/"]
        assert keys_of(client, Delimiter="/", Prefix="large/") == keys_of(client)
        assert len(client.get_object(Bucket="bench", Key="large/00000000.bin")["Body"].read()) == 25_000_000
        with pytest.raises(botocore.exceptions.ClientError) as refused:
            client.get_object(Bucket="bench", Key="small/00000000.bin")
        assert code_of(refused) == "NoSuchKey"


def test_what_is_not_there_or_may_not_be_done_is_said_as_s3_does(home: Any, store: Bucket) -> None:
    key = "small/00000000.bin"
    with served(home, store, timeout_s=1.0) as client:
        etag = client.head_object(Bucket="bench", Key=key)["ETag"]
        for attempt, code in (
            (lambda: client.get_object(Bucket="bench", Key="none"), "NoSuchKey"),
            (lambda: client.get_object(Bucket="bench", Key="small"), "NoSuchKey"),
            (lambda: client.get_object(Bucket="other", Key="none"), "NoSuchBucket"),
            (lambda: client.get_object(Bucket="bench", Key=key, Range="bytes=2000-"), "InvalidRange"),
            (lambda: client.get_object(Bucket="bench", Key=key, IfMatch='"other"'), "PreconditionFailed"),
            (lambda: client.get_object(Bucket="bench", Key=key, IfNoneMatch=etag), "304"),
            (lambda: client.put_object(Bucket="bench", Key="new", Body=b"x"), "MethodNotAllowed"),
            (lambda: client.delete_object(Bucket="bench", Key=key), "MethodNotAllowed"),
            (lambda: client.create_multipart_upload(Bucket="bench", Key="new"), "MethodNotAllowed"),
            (lambda: client.list_object_versions(Bucket="bench"), "NotImplemented"),
            (lambda: client.list_objects_v2(Bucket="bench", ContinuationToken="small/"), "InvalidArgument"),
            (lambda: client.list_objects_v2(Bucket="bench", ContinuationToken="behind:%ff"), "InvalidArgument"),
            (lambda: client.get_object_tagging(Bucket="bench", Key=key), "NotImplemented"),
            (lambda: client.get_object(Bucket="bench", Key=key, VersionId="other"), "NotImplemented"),
        ):
            with pytest.raises(botocore.exceptions.ClientError) as refused:
                attempt()
            assert code_of(refused) == code
        assert client.get_object(Bucket="bench", Key=key, IfMatch=etag)["ContentLength"] == 1100
        for status, code in ((403, "AccessDenied"), (500, "ServiceUnavailable")):
            store.add_fault("status", status=status, on=["get"])
            with pytest.raises(botocore.exceptions.ClientError) as refused:
                client.get_object(
                    Bucket="bench", Key=f"small/{status:08}.bin" if status < 300 else "small/00000100.bin"
                )
            assert code_of(refused) == code
            store.clear_faults()
    assert "new" not in objects(store)


def test_an_object_that_was_replaced_is_one_of_both_and_never_a_mix(home: Any, store: Bucket) -> None:
    versions = [bytes([nth]) * (9_000_000 + nth) for nth in range(4)]
    with served(home, store, ttl_s=0.0) as client:
        for version in versions:
            put(store, "changing", version)
            body = client.get_object(Bucket="bench", Key="changing")["Body"].read()
            assert body == version


def test_what_was_fetched_is_not_fetched_again(home: Any, store: Bucket) -> None:
    with served(home, store) as client:
        keys = [f"small/{nth:08}.bin" for nth in range(50)]

        def read() -> tuple[list[bytes], dict[str, int]]:
            before = store.counters()["requests"]
            found = [client.get_object(Bucket="bench", Key=key)["Body"].read() for key in keys]
            after = store.counters()["requests"]
            return found, {kind: after.get(kind, 0) - before.get(kind, 0) for kind in ("get", "head")}

        first, asked = read()
        # What was asked for before its directory was listed is fetched once more at most.
        assert asked["head"] < 20
        second, asked = read()
        assert second == first
        assert asked["get"] < 20
        assert read() == (first, {"get": 0, "head": 0})


def test_a_loader_reads_from_it_as_from_a_bucket(home: Any, store: Bucket) -> None:
    expected = objects(store)
    with served(home, store) as client:
        given = {"endpoint_url": client.meta.endpoint_url, "access_key_id": "a", "secret_access_key": "b"}
        data = foreload.open("s3://bench/small", "flat", storage_options=given)
        assert len(data) == 300
        assert all(bytes(data[nth]) == expected[f"small/{data.key(nth)}"] for nth in range(0, 300, 7))


def test_the_command_says_where_it_is_and_ends_at_ctrl_c(home: Any, store: Bucket, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_bytes(b"some")
    words = [sys.executable, "-m", "foreload", "serve", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--json"]
    environment = {**os.environ, "FORELOAD_CACHE_DIR": str(home.cache_dir)}
    running = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    assert running.stdout is not None
    at = json.loads(running.stdout.readline())["endpoint"]
    client = boto3.client(
        "s3", endpoint_url=at, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
    )
    assert client.get_object(Bucket="data", Key="file")["Body"].read() == b"some"
    begun = time.monotonic()
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait(10) == 0
    assert time.monotonic() - begun < 5
    for listen in ("0.0.0.0:9000", "127.0.0.1", "127.0.0.1:70000", "somewhere:1"):
        with pytest.raises(InvalidError, match=r"127\.0\.0\.1:PORT"):
            options.address(listen)
