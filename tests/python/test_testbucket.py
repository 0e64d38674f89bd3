"""The test bucket behaves as S3 does, with boto3 as a client that shares no code with it.

Our own client and our own server could make the same mistake; boto3 would not. What only the test bucket has (timing, faults,
counters) is checked at the end through plain sockets.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import importlib
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: `make setup` installs it")
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError, IncompleteReadError, ResponseStreamingError  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
bucket_module = importlib.import_module("bucket")
sys.path.pop(0)
Bucket = bucket_module.Bucket

ODD_KEYS = [
    "a b+c%ü",
    "plus+plus",
    "percent%20",
    "deep/er/ä/ß.bin",
    "q?a=b&c",
    "hash#tag",
    "tilde~!*'()",
    "日本/語",
    'quote"<>&',
]
PART = 5 << 20
LIST_RULE = "w1:2500x10-500"


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with Bucket(synthetic=[LIST_RULE], buckets=["data"]) as running:
        yield running


@pytest.fixture(autouse=True)
def calm(server: Any) -> Iterator[None]:
    yield
    server.clear_faults()
    server.reset()


def client(server: Any, **config: Any) -> Any:
    """A client that tries once, so that a test sees the first answer."""
    retries = {"total_max_attempts": config.pop("attempts", 1)}
    keys = {name: config.pop(name) for name in list(config) if name.startswith("aws_")}
    settings = Config(s3={"addressing_style": "path"}, retries=retries, **config)
    return boto3.client("s3", **{**server.boto3(), **keys}, config=settings)


@pytest.fixture(scope="module")
def s3(server: Any) -> Any:
    return client(server)


def put(s3: Any, key: str, body: bytes = b"hello world", **more: Any) -> Any:
    return s3.put_object(Bucket="data", Key=key, Body=body, **more)


def get(s3: Any, key: str, **more: Any) -> bytes:
    body: bytes = s3.get_object(Bucket="data", Key=key, **more)["Body"].read()
    return body


def refusal(call: Any, **arguments: Any) -> tuple[int, str]:
    """The status and code with which a call is refused."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    response = caught.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


def noise(size: int, seed: int = 0) -> bytes:
    return hashlib.shake_128(str(seed).encode()).digest(size)


class TestObjects:
    def test_what_is_put_is_got(self, s3: Any) -> None:
        body = noise(300_000)
        answer = put(s3, "one", body, ContentType="image/png", Metadata={"label": "7"}, CacheControl="no-store")
        assert answer["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
        got = s3.get_object(Bucket="data", Key="one")
        assert got["Body"].read() == body
        assert (got["ContentType"], got["Metadata"], got["CacheControl"]) == ("image/png", {"label": "7"}, "no-store")
        assert got["ETag"] == answer["ETag"]

    def test_an_empty_object_is_an_object(self, s3: Any) -> None:
        put(s3, "empty", b"")
        assert get(s3, "empty") == b""
        assert s3.head_object(Bucket="data", Key="empty")["ContentLength"] == 0

    def test_head_tells_what_get_would(self, s3: Any) -> None:
        put(s3, "one", b"12345")
        head = s3.head_object(Bucket="data", Key="one")
        assert head["ContentLength"] == 5
        assert head["ETag"] == s3.get_object(Bucket="data", Key="one")["ETag"]
        assert head["AcceptRanges"] == "bytes"

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_odd_keys_are_kept_as_they_are(self, s3: Any, key: str) -> None:
        put(s3, f"odd/{key}", key.encode())
        assert get(s3, f"odd/{key}") == key.encode()
        listed = s3.list_objects_v2(Bucket="data", Prefix=f"odd/{key}")["Contents"]
        assert [entry["Key"] for entry in listed] == [f"odd/{key}"]
        s3.delete_object(Bucket="data", Key=f"odd/{key}")
        assert refusal(s3.get_object, Bucket="data", Key=f"odd/{key}") == (404, "NoSuchKey")

    def test_what_is_missing_is_said_by_name(self, s3: Any) -> None:
        assert refusal(s3.get_object, Bucket="data", Key="none") == (404, "NoSuchKey")
        assert refusal(s3.get_object, Bucket="nowhere", Key="none") == (404, "NoSuchBucket")
        assert refusal(s3.head_object, Bucket="data", Key="none") == (404, "404")
        assert refusal(put, s3=client_of("nowhere", s3), key="x")[1] == "NoSuchBucket"

    def test_copy_keeps_or_replaces_metadata(self, s3: Any) -> None:
        put(s3, "from ü+", b"copied", Metadata={"a": "1"})
        s3.copy_object(Bucket="data", Key="to", CopySource={"Bucket": "data", "Key": "from ü+"})
        got = s3.get_object(Bucket="data", Key="to")
        assert (got["Body"].read(), got["Metadata"]) == (b"copied", {"a": "1"})
        source = {"Bucket": "data", "Key": "from ü+"}
        s3.copy_object(Bucket="data", Key="to", CopySource=source, Metadata={"b": "2"}, MetadataDirective="REPLACE")
        assert s3.head_object(Bucket="data", Key="to")["Metadata"] == {"b": "2"}

    def test_deleting_is_idempotent(self, s3: Any) -> None:
        put(s3, "gone")
        for _ in range(2):
            assert s3.delete_object(Bucket="data", Key="gone")["ResponseMetadata"]["HTTPStatusCode"] == 204

    def test_many_are_deleted_at_once(self, s3: Any) -> None:
        keys = [f"many/{number}&<" for number in range(20)]
        for key in keys:
            put(s3, key)
        answer = s3.delete_objects(Bucket="data", Delete={"Objects": [{"Key": key} for key in keys]})
        assert sorted(entry["Key"] for entry in answer["Deleted"]) == sorted(keys)
        assert s3.list_objects_v2(Bucket="data", Prefix="many/")["KeyCount"] == 0


def client_of(bucket: str, s3: Any) -> Any:
    """A stand-in whose `put_object` goes to another bucket."""

    class Other:
        def put_object(self, **arguments: Any) -> Any:
            return s3.put_object(**{**arguments, "Bucket": bucket})

    return Other()


class TestRanges:
    @pytest.mark.parametrize(
        ("asked", "expected"),
        [("0-0", (0, 1)), ("2-4", (2, 5)), ("8-", (8, 10)), ("-3", (7, 10)), ("5-99", (5, 10)), ("-99", (0, 10))],
    )
    def test_a_range_is_answered_with_206(self, s3: Any, asked: str, expected: tuple[int, int]) -> None:
        put(s3, "ten", b"0123456789")
        got = s3.get_object(Bucket="data", Key="ten", Range=f"bytes={asked}")
        first, end = expected
        assert got["Body"].read() == b"0123456789"[first:end]
        assert got["ContentRange"] == f"bytes {first}-{end - 1}/10"
        assert got["ResponseMetadata"]["HTTPStatusCode"] == 206

    @pytest.mark.parametrize("asked", ["10-", "10-20", "-0"])
    def test_a_range_behind_the_end_is_refused(self, s3: Any, asked: str) -> None:
        put(s3, "ten", b"0123456789")
        assert refusal(s3.get_object, Bucket="data", Key="ten", Range=f"bytes={asked}") == (416, "InvalidRange")

    def test_ranges_of_synthetic_objects_are_slices(self, s3: Any) -> None:
        whole = s3.get_object(Bucket="bench", Key="w1/00000007.bin")["Body"].read()
        part = s3.get_object(Bucket="bench", Key="w1/00000007.bin", Range="bytes=3-8")["Body"].read()
        assert part == whole[3:9]


class TestConditions:
    def test_reads_depend_on_the_etag(self, s3: Any) -> None:
        etag = put(s3, "c", b"abc")["ETag"]
        assert get(s3, "c", IfMatch=etag) == b"abc"
        assert get(s3, "c", IfNoneMatch='"other"') == b"abc"
        assert refusal(s3.get_object, Bucket="data", Key="c", IfMatch='"other"') == (412, "PreconditionFailed")
        assert refusal(s3.get_object, Bucket="data", Key="c", IfNoneMatch=etag)[0] == 304

    def test_reads_depend_on_the_date(self, s3: Any) -> None:
        put(s3, "c", b"abc")
        modified = s3.head_object(Bucket="data", Key="c")["LastModified"]
        early = modified.replace(year=2001)
        assert get(s3, "c", IfModifiedSince=early) == b"abc"
        assert get(s3, "c", IfUnmodifiedSince=modified) == b"abc"
        assert refusal(s3.get_object, Bucket="data", Key="c", IfModifiedSince=modified)[0] == 304
        assert refusal(s3.get_object, Bucket="data", Key="c", IfUnmodifiedSince=early)[0] == 412

    def test_writes_depend_on_the_etag(self, s3: Any) -> None:
        s3.delete_object(Bucket="data", Key="w")
        etag = put(s3, "w", b"1", IfNoneMatch="*")["ETag"]
        assert refusal(put, s3=s3, key="w", IfNoneMatch="*") == (412, "PreconditionFailed")
        assert refusal(put, s3=s3, key="w", IfMatch='"other"') == (412, "PreconditionFailed")
        put(s3, "w", b"2", IfMatch=etag)
        assert get(s3, "w") == b"2"


class TestChecksums:
    @pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
    def test_a_checksum_is_verified_stored_and_returned(self, s3: Any, algorithm: str) -> None:
        sent = put(s3, "sum", b"123456789", ChecksumAlgorithm=algorithm)[f"Checksum{algorithm}"]
        got = s3.get_object(Bucket="data", Key="sum", ChecksumMode="ENABLED")
        assert got[f"Checksum{algorithm}"] == sent
        assert got["Body"].read() == b"123456789"
        assert s3.head_object(Bucket="data", Key="sum", ChecksumMode="ENABLED")[f"Checksum{algorithm}"] == sent
        # Whoever does not ask is not told. (This client would ask by itself.)
        quiet = client_with(s3, response_checksum_validation="when_required")
        assert f"Checksum{algorithm}" not in quiet.head_object(Bucket="data", Key="sum")

    def test_crc32c_is_verified(self, s3: Any) -> None:
        value = base64.b64encode((0xE3069283).to_bytes(4, "big")).decode()
        put(s3, "sum", b"123456789", ChecksumCRC32C=value)
        assert s3.head_object(Bucket="data", Key="sum", ChecksumMode="ENABLED")["ChecksumCRC32C"] == value
        assert refusal(put, s3=s3, key="sum", body=b"12345678x", ChecksumCRC32C=value) == (400, "BadDigest")

    def test_content_md5_is_verified(self, s3: Any) -> None:
        right = base64.b64encode(hashlib.md5(b"abc").digest()).decode()
        put(s3, "sum", b"abc", ContentMD5=right)
        assert refusal(put, s3=s3, key="sum", body=b"abd", ContentMD5=right) == (400, "BadDigest")
        assert refusal(put, s3=s3, key="sum", body=b"abc", ContentMD5="AAAA") == (400, "InvalidDigest")


def client_with(s3: Any, **config: Any) -> Any:
    keys = s3._request_signer._credentials
    return boto3.client(
        "s3",
        endpoint_url=s3.meta.endpoint_url,
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
        region_name="us-east-1",
        config=Config(**config),
    )


class TestListing:
    def test_pages_hold_all_keys_in_order(self, s3: Any) -> None:
        pages = list(s3.get_paginator("list_objects_v2").paginate(Bucket="bench", Prefix="w1/"))
        assert [page["KeyCount"] for page in pages] == [1000, 1000, 500]
        keys = [entry["Key"] for page in pages for entry in page["Contents"]]
        assert keys == [f"w1/{number:08}.bin" for number in range(2500)]
        assert all(10 <= entry["Size"] <= 500 for page in pages for entry in page["Contents"])

    def test_small_pages_hold_the_same(self, s3: Any) -> None:
        paginator = s3.get_paginator("list_objects_v2")
        pages = list(paginator.paginate(Bucket="bench", Prefix="w1/000000", PaginationConfig={"PageSize": 7}))
        assert [entry["Key"] for page in pages for entry in page["Contents"]] == [f"w1/{n:08}.bin" for n in range(100)]

    def test_a_full_last_page_is_not_followed_by_an_empty_one(self, s3: Any) -> None:
        page = s3.list_objects_v2(Bucket="bench", Prefix="w1/0000000", MaxKeys=10)
        assert (page["KeyCount"], page["IsTruncated"]) == (10, False)

    def test_it_can_start_in_the_middle(self, s3: Any) -> None:
        page = s3.list_objects_v2(Bucket="bench", StartAfter="w1/00002497.bin")
        assert [entry["Key"] for entry in page["Contents"]] == ["w1/00002498.bin", "w1/00002499.bin"]

    @pytest.mark.parametrize("size", [1, 2, 3, 1000])
    def test_a_delimiter_groups_keys(self, s3: Any, size: int) -> None:
        for key in ["g/", "g/a/1", "g/a/2", "g/a.txt", "g/b/c/1", "g/b/c/2", "g/z"]:
            put(s3, key, b"x")
        paginator = s3.get_paginator("list_objects_v2")
        pages = list(paginator.paginate(Bucket="data", Prefix="g/", Delimiter="/", PaginationConfig={"PageSize": size}))
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        groups = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
        assert keys == ["g/", "g/a.txt", "g/z"]
        assert groups == ["g/a/", "g/b/"]

    def test_the_older_listing_works_too(self, s3: Any) -> None:
        pages = list(
            s3.get_paginator("list_objects").paginate(Bucket="bench", Prefix="w1/", PaginationConfig={"PageSize": 900})
        )
        assert [entry["Key"] for page in pages for entry in page["Contents"]] == [f"w1/{n:08}.bin" for n in range(2500)]

    def test_etag_and_size_are_those_of_get(self, s3: Any) -> None:
        put(s3, "same", b"xyz")
        (listed,) = s3.list_objects_v2(Bucket="data", Prefix="same")["Contents"]
        got = s3.get_object(Bucket="data", Key="same")
        assert (listed["ETag"], listed["Size"]) == (got["ETag"], got["ContentLength"])
        assert listed["LastModified"] == got["LastModified"]

    def test_what_is_malformed_is_refused(self, s3: Any) -> None:
        assert refusal(s3.list_objects_v2, Bucket="bench", ContinuationToken="nonsense") == (400, "InvalidArgument")
        assert refusal(s3.list_objects_v2, Bucket="nowhere") == (404, "NoSuchBucket")


class TestBuckets:
    def test_buckets_are_made_listed_and_removed(self, s3: Any) -> None:
        s3.create_bucket(Bucket="fresh")
        s3.head_bucket(Bucket="fresh")
        assert "fresh" in [entry["Name"] for entry in s3.list_buckets()["Buckets"]]
        s3.put_object(Bucket="fresh", Key="k", Body=b"")
        assert refusal(s3.delete_bucket, Bucket="fresh") == (409, "BucketNotEmpty")
        s3.delete_object(Bucket="fresh", Key="k")
        s3.delete_bucket(Bucket="fresh")
        assert refusal(s3.head_bucket, Bucket="fresh")[0] == 404


class TestMultipart:
    def test_parts_become_one_object(self, s3: Any) -> None:
        parts = [noise(PART, 1), noise(PART, 2), b"tail"]
        upload = s3.create_multipart_upload(Bucket="data", Key="big", Metadata={"m": "1"})["UploadId"]
        tags = [
            s3.upload_part(Bucket="data", Key="big", UploadId=upload, PartNumber=number, Body=part)["ETag"]
            for number, part in reversed(list(enumerate(parts, 1)))
        ][::-1]
        listed = s3.list_parts(Bucket="data", Key="big", UploadId=upload)["Parts"]
        assert [part["Size"] for part in listed] == [len(part) for part in parts]
        done = {"Parts": [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]}
        etag = s3.complete_multipart_upload(Bucket="data", Key="big", UploadId=upload, MultipartUpload=done)["ETag"]
        digests = b"".join(hashlib.md5(part).digest() for part in parts)
        assert etag == f'"{hashlib.md5(digests).hexdigest()}-3"'
        got = s3.get_object(Bucket="data", Key="big")
        assert (got["Body"].read(), got["ETag"], got["Metadata"]) == (b"".join(parts), etag, {"m": "1"})

    def test_an_aborted_upload_leaves_nothing(self, s3: Any) -> None:
        upload = s3.create_multipart_upload(Bucket="data", Key="aborted")["UploadId"]
        s3.upload_part(Bucket="data", Key="aborted", UploadId=upload, PartNumber=1, Body=b"x")
        s3.abort_multipart_upload(Bucket="data", Key="aborted", UploadId=upload)
        assert refusal(s3.list_parts, Bucket="data", Key="aborted", UploadId=upload) == (404, "NoSuchUpload")
        assert refusal(s3.get_object, Bucket="data", Key="aborted") == (404, "NoSuchKey")

    def test_wrong_parts_are_refused(self, s3: Any) -> None:
        upload = s3.create_multipart_upload(Bucket="data", Key="wrong")["UploadId"]
        s3.upload_part(Bucket="data", Key="wrong", UploadId=upload, PartNumber=1, Body=b"x")
        wrong = {"Parts": [{"PartNumber": 1, "ETag": '"0"'}]}
        call = s3.complete_multipart_upload
        assert refusal(call, Bucket="data", Key="wrong", UploadId=upload, MultipartUpload=wrong) == (400, "InvalidPart")

    def test_the_transfer_manager_works(self, s3: Any, tmp_path: Path) -> None:
        body = noise(20 << 20)
        (tmp_path / "up").write_bytes(body)
        s3.upload_file(str(tmp_path / "up"), "data", "managed")
        s3.download_file("data", "managed", str(tmp_path / "down"))
        assert (tmp_path / "down").read_bytes() == body


class TestSignatures:
    def test_a_wrong_secret_is_refused(self, server: Any) -> None:
        wrong = client(server, aws_secret_access_key="guess")
        assert refusal(wrong.get_object, Bucket="bench", Key="w1/00000000.bin") == (403, "SignatureDoesNotMatch")
        assert refusal(wrong.list_objects_v2, Bucket="bench") == (403, "SignatureDoesNotMatch")

    def test_an_unknown_key_is_refused(self, server: Any) -> None:
        unknown = client(server, aws_access_key_id="nobody")
        assert refusal(unknown.get_object, Bucket="bench", Key="w1/00000000.bin") == (403, "InvalidAccessKeyId")

    def test_presigned_urls_work_until_they_are_altered_or_expire(self, server: Any) -> None:
        key = "signed ü+"
        put(client(server), key, b"presigned")
        signer = client(server, signature_version="s3v4")
        url = signer.generate_presigned_url("get_object", Params={"Bucket": "data", "Key": key}, ExpiresIn=60)
        assert "X-Amz-Signature" in url
        assert fetch(url) == (200, b"presigned")
        assert fetch(url.replace("X-Amz-Expires=60", "X-Amz-Expires=6000"))[0] == 403
        assert fetch(url[:-1] + ("0" if url[-1] != "0" else "1"))[0] == 403
        brief = signer.generate_presigned_url("get_object", Params={"Bucket": "data", "Key": key}, ExpiresIn=1)
        deadline = time.monotonic() + 10
        while fetch(brief)[0] == 200:
            assert time.monotonic() < deadline, "the URL never expired"
            time.sleep(0.1)
        assert fetch(brief)[0] == 403

    def test_presigned_puts_work(self, server: Any, s3: Any) -> None:
        signer = client(server, signature_version="s3v4")
        url = signer.generate_presigned_url("put_object", Params={"Bucket": "data", "Key": "by-url"})
        assert fetch(url, b"content")[0] == 200
        assert get(s3, "by-url") == b"content"

    def test_the_anonymous_switch(self, server: Any) -> None:
        url = f"{server.endpoint}/bench/w1/00000000.bin"
        assert fetch(url)[0] == 403
        server.set_keys(anonymous=True)
        try:
            assert fetch(url)[0] == 200
        finally:
            server.set_keys()

    def test_a_rotated_key_is_expired(self, server: Any) -> None:
        server.set_keys(access_key="second", secret_key="other", session_token="token", expired=["testkit"])
        try:
            assert refusal(client(server).list_objects_v2, Bucket="bench") == (400, "ExpiredToken")
            keys = {"aws_access_key_id": "second", "aws_secret_access_key": "other"}
            assert refusal(client(server, **keys).list_objects_v2, Bucket="bench") == (400, "InvalidToken")
            assert client(server, **keys, aws_session_token="token").list_objects_v2(Bucket="bench")["KeyCount"] == 1000
        finally:
            server.set_keys()

    def test_a_clock_that_is_off_is_refused(self, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        auth = importlib.import_module("botocore.auth")
        compat = importlib.import_module("botocore.compat")
        names = [name for name in ("get_current_datetime",) if hasattr(auth, name)]
        if not names:
            pytest.skip("this botocore takes the time elsewhere")
        original = compat.get_current_datetime

        def late(*arguments: Any, **more: Any) -> Any:
            now = original(*arguments, **more)
            return now.replace(year=now.year - 1, day=min(now.day, 28))

        monkeypatch.setattr(auth, "get_current_datetime", late)
        assert refusal(client(server).list_objects_v2, Bucket="bench") == (403, "RequestTimeTooSkewed")

    def test_streamed_uploads_are_decoded(self, tmp_path: Path) -> None:
        # Over TLS boto3 streams a body unsigned, in chunks, with the checksum in a trailer.
        body = noise(200_000)
        with Bucket(tls=True) as secure:
            s3 = client(secure)
            with (tmp_path / "file").open("w+b") as file:
                file.write(body)
                file.seek(0)
                s3.put_object(Bucket="bench", Key="streamed", Body=file)
            got = s3.get_object(Bucket="bench", Key="streamed", ChecksumMode="ENABLED")
            assert got["Body"].read() == body
            assert got["ChecksumCRC32"] == base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
            assert "ContentEncoding" not in got
            with pytest.raises((ssl.SSLError, urllib.error.URLError)):
                fetch(f"{secure.endpoint}/bench/streamed")


def fetch(url: str, body: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, data=body, method="GET" if body is None else "PUT")
    if body is not None:
        request.add_header("Content-Type", "")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


class TestFaults:
    KEY = "w1/00000003.bin"

    def read(self, s3: Any, **more: Any) -> bytes:
        body: bytes = s3.get_object(Bucket="bench", Key=self.KEY, **more)["Body"].read()
        return body

    def test_a_storm_is_over_when_it_is_over(self, server: Any) -> None:
        server.add_fault("status", status=503, times=3)
        s3 = client(server)
        assert [refusal(s3.get_object, Bucket="bench", Key=self.KEY) for _ in range(3)] == [(503, "SlowDown")] * 3
        assert self.read(s3)
        assert server.faults()[0]["hit"] == 3
        assert server.counters()["faults"] == {"status": 3}

    def test_a_client_that_retries_gets_through(self, server: Any) -> None:
        server.add_fault("status", status=500, attempts=1)
        assert self.read(client(server, attempts=3))
        assert server.counters()["status"] == {"200": 1, "500": 1}

    def test_truncation_is_noticed(self, server: Any, s3: Any) -> None:
        server.add_fault("truncate", nth=1)
        with pytest.raises((IncompleteReadError, ResponseStreamingError)):
            self.read(s3)
        assert self.read(s3)

    def test_a_reset_is_a_reset(self, server: Any) -> None:
        server.add_fault("reset", nth=1)
        parts = urlsplit(server.endpoint)
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as raw:
            raw.sendall(f"GET /bench/{self.KEY} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
            with pytest.raises(ConnectionResetError):
                raw.recv(1000)

    @pytest.mark.parametrize(("kind", "head"), [("stall", True), ("hang", False)])
    def test_a_stall_never_ends(self, server: Any, s3: Any, kind: str, head: bool) -> None:
        server.set_keys(anonymous=True)
        try:
            server.add_fault(kind, nth=1)
            parts = urlsplit(server.endpoint)
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=0.5)
            connection.request("GET", f"/bench/{self.KEY}")
            if head:
                response = connection.getresponse()
                assert int(response.headers["Content-Length"]) > 0
                with pytest.raises(TimeoutError):
                    response.read()
            else:
                with pytest.raises(TimeoutError):
                    connection.getresponse()
            connection.close()
        finally:
            server.set_keys()
        assert self.read(s3)

    def test_flipped_and_changed_bytes(self, server: Any, s3: Any) -> None:
        whole = self.read(s3)
        etag = s3.head_object(Bucket="bench", Key=self.KEY)["ETag"]
        server.add_fault("flip", times=1, at=0.5)
        flipped = s3.get_object(Bucket="bench", Key=self.KEY)
        assert flipped["ETag"] == etag
        different = [index for index, (a, b) in enumerate(zip(flipped["Body"].read(), whole, strict=True)) if a != b]
        assert different == [len(whole) // 2]
        server.clear_faults()
        server.add_fault("changed", times=2)
        assert refusal(s3.get_object, Bucket="bench", Key=self.KEY, IfMatch=etag) == (412, "PreconditionFailed")
        changed = s3.get_object(Bucket="bench", Key=self.KEY)
        assert (changed["ETag"] != etag, changed["Body"].read() != whole) == (True, True)
        assert self.read(s3, IfMatch=etag) == whole

    def test_touching_changes_listing_and_object(self, server: Any, s3: Any) -> None:
        key = "w1/00000009.bin"
        before = s3.head_object(Bucket="bench", Key=key)["ETag"]
        server.touch(key)
        after = s3.get_object(Bucket="bench", Key=key)["ETag"]
        (listed,) = s3.list_objects_v2(Bucket="bench", Prefix=key)["Contents"]
        assert before != after == listed["ETag"]

    def test_a_rate_limit_asks_to_slow_down(self, server: Any, s3: Any) -> None:
        server.add_fault("rate_limit", per_s=1, on=["list"])
        answers = []
        for _ in range(3):
            try:
                answers.append(s3.list_objects_v2(Bucket="bench", MaxKeys=1)["KeyCount"])
            except ClientError as error:
                answers.append(error.response["Error"]["Code"])
        assert answers[0] == 1
        assert "SlowDown" in answers

    def test_what_is_misspelt_is_refused(self, server: Any) -> None:
        for fields in [{"kind": "flip", "shar": 1}, {"kind": "explode"}, {"kind": "flip", "share": 7}]:
            with pytest.raises(ValueError, match=r"malformed|must|variant|match"):
                server.add_fault(**fields)


class TestCounters:
    def test_requests_bytes_and_connections_are_counted(self, server: Any) -> None:
        server.reset()
        s3 = client(server)
        size = len(s3.get_object(Bucket="bench", Key="w1/00000001.bin")["Body"].read())
        s3.get_object(Bucket="bench", Key="w1/00000001.bin", Range="bytes=0-4")["Body"].read()
        s3.head_object(Bucket="bench", Key="w1/00000002.bin")
        s3.list_objects_v2(Bucket="bench")
        put(s3, "counted", b"12345")
        counts = server.counters(objects=True)
        assert counts["requests"] == {"get": 2, "head": 1, "list": 1, "put": 1}
        assert counts["bytes_sent"] == size + 5
        assert counts["objects"]["bench/w1/00000001.bin"] == {"gets": 2, "heads": 0, "bytes": size + 5}
        assert counts["objects"]["bench/w1/00000002.bin"]["heads"] == 1
        assert counts["connections"]["peak"] >= 1
        assert counts["in_flight"]["peak"] == 1


class TestProcess:
    def test_it_refuses_to_listen_on_anything_but_loopback(self) -> None:
        ran = subprocess.run(
            [str(bucket_module.binary()), "serve", "--address", "0.0.0.0"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert ran.returncode != 0
        assert "loopback" in ran.stderr

    def test_it_ends_with_its_parent_and_on_sigterm(self) -> None:
        for end in ("close", "terminate"):
            running = Bucket()
            if end == "close":
                running._process.stdin.close()
            else:
                running._process.terminate()
            assert running._process.wait(timeout=10) == 0
            running.stop()

    def test_a_directory_keeps_objects_over_a_restart(self, tmp_path: Path) -> None:
        (tmp_path / "mine" / "sub").mkdir(parents=True)
        (tmp_path / "mine" / "sub" / "here.txt").write_bytes(b"found")
        with Bucket(directory=tmp_path) as first:
            s3 = client(first)
            for key in ["a/b", "a.txt", "a/c/ü d"]:
                s3.put_object(Bucket="mine", Key=key, Body=key.encode())
            tags = {entry["Key"]: entry["ETag"] for entry in s3.list_objects_v2(Bucket="mine")["Contents"]}
        with Bucket(directory=tmp_path) as second:
            s3 = client(second)
            listed = s3.list_objects_v2(Bucket="mine")["Contents"]
            assert [entry["Key"] for entry in listed] == ["a.txt", "a/b", "a/c/ü d", "sub/here.txt"]
            assert {entry["Key"]: entry["ETag"] for entry in listed} == tags
            assert s3.get_object(Bucket="mine", Key="sub/here.txt", Range="bytes=1-3")["Body"].read() == b"oun"
            page = s3.list_objects_v2(Bucket="mine", MaxKeys=2)
            rest = s3.list_objects_v2(Bucket="mine", ContinuationToken=page["NextContinuationToken"])
            assert [entry["Key"] for entry in rest["Contents"]] == ["a/c/ü d", "sub/here.txt"]
            assert refusal(s3.put_object, Bucket="mine", Key="../escape", Body=b"")[0] == 400

    def test_tar_shards_are_tar_files(self, tmp_path: Path) -> None:
        tarfile = importlib.import_module("tarfile")
        with Bucket(synthetic=["s:3x5x100-3000,tar"]) as running:
            client(running).download_file("bench", "s/00000002.tar", str(tmp_path / "shard.tar"))
        with tarfile.open(tmp_path / "shard.tar") as shard:
            names = shard.getnames()
            assert names == [f"{n:08}.{e}" for n in range(10, 15) for e in ("bin", "cls")]
            assert all(shard.extractfile(name).read() for name in names)

    def test_the_profile_takes_its_time(self) -> None:
        with Bucket(profile="cloud", synthetic=["w1:10x1000000"], anonymous=True) as slow:
            start = time.monotonic()
            fetch(f"{slow.endpoint}/bench/w1/00000000.bin")
            took = time.monotonic() - start
            # 30 ms to connect, a draw around 30 ms to the first byte, 1 MB at 35 MB/s.
            assert took > 0.030 + 0.010 + 1 / 35
            slow.set_profile("fast")
            start = time.monotonic()
            fetch(f"{slow.endpoint}/bench/w1/00000000.bin")
            assert time.monotonic() - start < took


class TestBare:
    def test_it_reports_what_it_read(self, server: Any) -> None:
        (one, two) = bucket_module.bare(
            "get", f"--synthetic={LIST_RULE}", "--connections=1,8", "--shuffle", bucket=server
        )
        assert (one["connections"], two["connections"]) == (1, 8)
        assert one["requests"] == two["requests"] == 2500
        assert one["bytes"] == two["bytes"]
        assert one["crc32c"] == two["crc32c"]
        assert server.counters()["requests"] == {"get": 5000}

    def test_the_same_bytes_lie_in_files(self, server: Any, s3: Any, tmp_path: Path) -> None:
        ranges = []
        for number in range(20):
            key = f"w1/{number:08}.bin"
            body = s3.get_object(Bucket="bench", Key=key)["Body"].read()
            (tmp_path / Path(key).name).write_bytes(body)
            ranges.append(f"{Path(key).name}\t0\t{len(body)}")
        (tmp_path / "ranges").write_text("\n".join(ranges))
        (files,) = bucket_module.bare("files", f"--root={tmp_path}", f"--ranges={tmp_path / 'ranges'}", "--threads=4")
        (got,) = bucket_module.bare("get", f"--synthetic={LIST_RULE}", "--limit=20", bucket=server)
        assert files["crc32c"] == got["crc32c"]

    def test_an_error_is_an_error(self, server: Any) -> None:
        server.add_fault("status", nth=7)
        with pytest.raises(RuntimeError, match="expected status 206, got 500"):
            bucket_module.bare("get", f"--synthetic={LIST_RULE}", bucket=server)


@pytest.mark.needs("fuse")
def test_a_slow_file_system_is_there_until_it_is_stopped(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "file").write_bytes(b"content")
    with bucket_module.SlowFs(source, target, delay_ms=20) as slow:
        start = time.monotonic()
        assert (slow.target / "file").read_bytes() == b"content"
        assert time.monotonic() - start >= 0.040
    assert not (target / "file").exists()
