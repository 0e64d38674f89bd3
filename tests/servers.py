"""Object stores that others wrote, run for a test: moto and versitygw (S3), fake-gcs-server (Google), Azurite (Azure).

Each is found in .servers/bin (`make servers`) or on PATH, listens on a free port of this machine, keeps its objects in a
directory that goes with it, and ends with the `with` block. `put` writes an object by the server's own protocol, without our client.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

_INSTALLED = Path(__file__).resolve().parent.parent / ".servers" / "bin"


def program(name: str) -> str | None:
    """Where a server's program is, if it is installed."""
    return shutil.which(name, path=f"{_INSTALLED}{os.pathsep}{os.environ.get('PATH', '')}")


class Server(ABC):
    """A running store; use one of its kinds.

    Attributes:
        endpoint: Its URL.
        url: The root of its one bucket, as `foreload.open` takes it.
        options: Storage options with which it can be read.
    """

    binary: ClassVar[str]
    #: What its first answer may cost: Node and Python start slowly on a busy machine.
    START_S = 60.0

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="server-")
        self.directory = Path(self._scratch.name)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.url, self.options = self.address()
        found = program(self.binary)
        assert found is not None, f"{self.binary} is not installed (make servers)"
        self._log = (self.directory / "log").open("wb")
        (self.directory / "data").mkdir()
        self._process = subprocess.Popen([found, *self.words()], stdout=self._log, stderr=self._log, cwd=self.directory)
        deadline = time.monotonic() + self.START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.binary} did not start: {self.log()}")
            time.sleep(0.05)
        self.prepare()

    @classmethod
    def installed(cls) -> bool:
        """Whether its program is here."""
        return program(cls.binary) is not None

    def log(self) -> str:
        """What it wrote."""
        return (self.directory / "log").read_text(errors="replace")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    @abstractmethod
    def address(self) -> tuple[str, dict[str, str]]:
        """URL of the bucket, and the options that go with it."""

    @abstractmethod
    def words(self) -> list[str]:
        """The program's arguments."""

    @abstractmethod
    def prepare(self) -> None:
        """Makes the bucket."""

    @abstractmethod
    def put(self, key: str, body: bytes) -> None:
        """Writes an object."""

    def stop(self) -> None:
        """Ends it; may be called twice."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._scratch.cleanup()


class S3(Server):
    """What the S3 servers share; objects are written with boto3."""

    access, secret = "tester", "tester-secret"

    def address(self) -> tuple[str, dict[str, str]]:
        keys = {"access_key_id": self.access, "secret_access_key": self.secret, "region": "us-east-1"}
        return "s3://learn", {"endpoint_url": self.endpoint, **keys}

    def environment(self) -> dict[str, str]:
        """The options as environment variables."""
        keys = {"AWS_ACCESS_KEY_ID": self.access, "AWS_SECRET_ACCESS_KEY": self.secret, "AWS_REGION": "us-east-1"}
        return {"AWS_ENDPOINT_URL": self.endpoint, **keys}

    def client(self) -> Any:
        """A client of boto3."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access,
            aws_secret_access_key=self.secret,
            region_name="us-east-1",
        )

    def prepare(self) -> None:
        self._client = self.client()
        self._client.create_bucket(Bucket="learn")

    def put(self, key: str, body: bytes) -> None:
        self._client.put_object(Bucket="learn", Key=key, Body=body)


class Moto(S3):
    """moto's server: AWS' protocol as its users' tests see it. It takes any signature."""

    binary = "moto_server"

    def words(self) -> list[str]:
        return ["-H", "127.0.0.1", "-p", str(self.port)]


class Versity(S3):
    """versitygw over a directory: checks signatures, keeps policies, and is written for production."""

    binary = "versitygw"

    def words(self) -> list[str]:
        # Names and values of objects' attributes need a file system with user attributes, which /tmp may not be.
        keys = ["--access", self.access, "--secret", self.secret]
        store = ["posix", "--sidecar", str(self.directory / "attributes"), str(self.directory / "data")]
        (self.directory / "attributes").mkdir()
        return ["--port", f"127.0.0.1:{self.port}", *keys, "--quiet", *store]

    def publish(self) -> None:
        """Lets everybody read the bucket."""
        statement = {
            "Effect": "Allow",
            "Principal": "*",
            "Action": ["s3:GetObject", "s3:ListBucket"],
            "Resource": ["arn:aws:s3:::learn", "arn:aws:s3:::learn/*"],
        }
        policy = {"Version": "2012-10-17", "Statement": [statement]}
        self._client.put_bucket_policy(Bucket="learn", Policy=json.dumps(policy))

    def path(self, key: str) -> Path:
        """Where it keeps an object's bytes."""
        return self.directory / "data" / "learn" / key


class Google(Server):
    """fake-gcs-server, which knows no signatures."""

    binary = "fake-gcs-server"

    def address(self) -> tuple[str, dict[str, str]]:
        return "gs://learn", {"endpoint": self.endpoint, "anonymous": "true"}

    def words(self) -> list[str]:
        host = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port)]
        return [*host, "-backend", "memory", "-public-host", f"127.0.0.1:{self.port}", "-external-url", self.endpoint]

    def prepare(self) -> None:
        self._post("storage/v1/b?project=test", json.dumps({"name": "learn"}).encode(), "application/json")

    def put(self, key: str, body: bytes) -> None:
        name = urllib.parse.quote(key, safe="")
        self._post(f"upload/storage/v1/b/learn/o?uploadType=media&name={name}", body, "application/octet-stream")

    def _post(self, path: str, body: bytes, kind: str) -> None:
        request = urllib.request.Request(f"{self.endpoint}/{path}", data=body, headers={"Content-Type": kind})
        _open(request)


class Azure(Server):
    """Azurite, which checks shared keys; the account's key is the one that everybody's emulator has."""

    binary = "azurite-blob"
    account = "devstoreaccount1"
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    def address(self) -> tuple[str, dict[str, str]]:
        account = {"account_name": self.account, "account_key": self.key}
        return "az://learn", {"endpoint": f"{self.endpoint}/{self.account}", **account}

    def words(self) -> list[str]:
        host = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(self.directory / "data")]
        return [*host, "--disableTelemetry", "--skipApiVersionCheck", "--silent"]

    def prepare(self) -> None:
        self._put("learn", b"", {"restype": "container"}, {})

    def put(self, key: str, body: bytes) -> None:
        self._put(f"learn/{urllib.parse.quote(key)}", body, {}, {"x-ms-blob-type": "BlockBlob"})

    def _put(self, path: str, body: bytes, query: dict[str, str], headers: dict[str, str]) -> None:
        named = {**headers, "x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
        kind = "application/octet-stream"
        lines = ["PUT", "", "", str(len(body) or ""), "", kind, "", "", "", "", "", ""]
        lines += [f"{name}:{named[name]}" for name in sorted(named)]
        lines += [f"/{self.account}/{self.account}/{path}", *(f"{name}:{query[name]}" for name in sorted(query))]
        digest = hmac.new(base64.b64decode(self.key), "\n".join(lines).encode(), hashlib.sha256).digest()
        named["Authorization"] = f"SharedKey {self.account}:{base64.b64encode(digest).decode()}"
        named["Content-Type"] = kind
        url = f"{self.endpoint}/{self.account}/{path}" + ("?" + urllib.parse.urlencode(query) if query else "")
        _open(urllib.request.Request(url, data=body, headers=named, method="PUT"))


def _open(request: urllib.request.Request) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(request, timeout=20).close()
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{request.full_url}: {error.code} {error.read().decode(errors='replace')}") from None


#: By the name under which tests need them (`@pytest.mark.needs`).
KINDS: dict[str, type[Server]] = {
    "moto": Moto,
    "versitygw": Versity,
    "fake-gcs-server": Google,
    "azurite": Azure,
}
