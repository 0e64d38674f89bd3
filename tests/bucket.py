"""A test bucket for tests and benchmarks written in Python; standard library only.

Starts the `testbucket` binary of `crates/testkit` and talks to its control endpoint. The server ends
with this process in any case, because it watches the pipe that is its stdin.

Example:
    with Bucket(profile="cloud", synthetic=["w1:1000x110000"]) as bucket:
        client = boto3.client("s3", **bucket.boto3())
        bucket.add_fault("status", status=503, share=0.1, attempts=1)
        ...
        assert bucket.counters()["requests"]["get"] == 1000
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_ROOT = Path(__file__).resolve().parent.parent


def binary(name: str = "testbucket") -> Path | None:
    """Finds a binary of the testkit.

    Args:
        name: `testbucket`, `bare` or `slowfs`.

    Returns:
        What `FORELOAD_TESTBUCKET` (for other names: `FORELOAD_BARE`, `FORELOAD_SLOWFS`) names, else the one
        in the directory `FORELOAD_TESTKIT_BIN`, else the release build, else the debug build, else None.
    """
    if named := os.environ.get(f"FORELOAD_{name.upper()}"):
        choices = [Path(named)]
    elif directory := os.environ.get("FORELOAD_TESTKIT_BIN"):
        choices = [Path(directory) / name]
    else:
        target = Path(os.environ.get("CARGO_TARGET_DIR", _ROOT / "target"))
        choices = [target / "release" / name, target / "debug" / name]
    return next((choice for choice in choices if choice.is_file()), None)


class Bucket:
    """A running test bucket.

    Args:
        profile: `fast` (nothing added) or `cloud`.
        synthetic: Sets of synthetic objects, such as `w1:10000x110000`; they are in bucket `bench`.
        directory: Keep objects here (its directories are buckets) instead of in memory.
        buckets: Buckets that exist from the start; `bench` always does.
        faults: Faults from the start; see `add_fault`.
        anonymous: Whether unsigned requests are accepted.
        tls: Whether to speak TLS; `ca_file` is the certificate to trust.
        seed: What delays, faults and synthetic content depend on.
        cpus: The CPUs to pin the server to, a thread on each; None: one thread, anywhere.
        options: More options of `testbucket serve`.

    Raises:
        FileNotFoundError: The binary is not built.
        RuntimeError: The server did not start.
    """

    def __init__(
        self,
        *,
        profile: str = "fast",
        synthetic: Iterable[str] = (),
        directory: str | os.PathLike[str] | None = None,
        buckets: Iterable[str] = (),
        faults: Iterable[dict[str, Any]] = (),
        anonymous: bool = False,
        tls: bool = False,
        seed: int = 0,
        cpus: Sequence[int] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Starts the server and waits until it accepts connections."""
        program = binary()
        if program is None:
            raise FileNotFoundError("no testbucket binary: run `cargo build -p foreload-testkit`")
        self._scratch = tempfile.TemporaryDirectory(prefix="testbucket-")
        scratch = Path(self._scratch.name)
        ready = scratch / "ready.json"
        command = [str(program), "serve", "--until-eof", "--ready-file", str(ready)]
        command += ["--profile", profile, "--seed", str(seed)]
        command += [f"--synthetic={rule}" for rule in synthetic]
        command += [f"--bucket={name}" for name in buckets]
        command += [f"--fault={json.dumps(fault)}" for fault in faults]
        command += [f"--dir={directory}"] if directory is not None else []
        command += ["--anonymous"] if anonymous else []
        command += ["--tls", "--ca-file", str(scratch / "ca.pem")] if tls else []
        command += [f"--threads={len(cpus)}"] if cpus else []
        command += options
        # Before it has threads: they take after the one that starts them.
        command = ["taskset", "-c", ",".join(map(str, cpus)), *command] if cpus else command
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        values = self._wait(ready)
        self.endpoint: str = values["endpoint"]
        self.access_key: str = values["access_key"]
        self.secret_key: str = values["secret_key"]
        self.region: str = values["region"]
        self.name: str = values["bucket"]
        self.ca_file: str | None = values["ca_file"]

    def _wait(self, ready: Path, timeout_s: float = 20.0) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if ready.exists():
                values: dict[str, Any] = json.loads(ready.read_text())
                return values
            if self._process.poll() is not None:
                break
            time.sleep(0.005)
        self._process.kill()
        _, errors = self._process.communicate()
        self._scratch.cleanup()
        raise RuntimeError(f"testbucket did not start: {errors.decode(errors='replace').strip()}")

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def cpu_seconds(self) -> float:
        """CPU time the server has used, in user and kernel mode."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def boto3(self) -> dict[str, Any]:
        """Keyword arguments for `boto3.client("s3", ...)`."""
        return {
            "endpoint_url": self.endpoint,
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "region_name": self.region,
            "verify": self.ca_file,
        }

    def environment(self) -> dict[str, str]:
        """Environment variables that most S3 clients understand."""
        values = {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        if self.endpoint.startswith("http:"):
            values["AWS_ALLOW_HTTP"] = "true"
        if self.ca_file is not None:
            values["AWS_CA_BUNDLE"] = self.ca_file
        return values

    def counters(self, *, objects: bool = False) -> dict[str, Any]:
        """The counts since the last reset.

        Args:
            objects: Whether to add those of each object, under `objects`.

        Returns:
            `requests` by class (get head list put delete copy multipart bucket), `status`, `faults`,
            `bytes_sent`, `bytes_received`, `connections` and `in_flight` (total, now, peak).
        """
        counts: dict[str, Any] = self._control("GET", f"counters?objects={int(objects)}")
        return counts

    def reset(self) -> None:
        """Sets the counts to zero."""
        self._control("POST", "reset")

    def faults(self) -> list[dict[str, Any]]:
        """The faults, with how many requests each has `seen` and `hit`."""
        faults: list[dict[str, Any]] = self._control("GET", "faults")
        return faults

    def add_fault(self, kind: str, **fields: Any) -> None:
        """Adds a fault.

        Args:
            kind: status, rate_limit, slow, hang, truncate, stall, reset, changed, flip, short or whole.
            fields: Which requests (`nth`, `every`, `share`, `times`, `attempts`, `matching`,
                `on=["get", "list", ...]`) and how (`at`, `status`, `retry_after_s`, `delay_ms`, `per_s`).
        """
        self._control("POST", "faults", {"kind": kind, **fields})

    def clear_faults(self) -> None:
        """Removes all faults."""
        self._control("DELETE", "faults")

    def set_profile(self, profile: str | dict[str, Any]) -> None:
        """Changes the timing to a named profile, or to values (what is left out is zero)."""
        self._control("PUT", "profile", profile)

    def set_keys(self, **keys: Any) -> None:
        """Changes `access_key`, `secret_key`, `session_token`, `anonymous`, `expired`."""
        self._control("PUT", "keys", keys)

    def touch(self, key: str, bucket: str = "bench") -> None:
        """Gives a synthetic object its next version: other bytes, other ETag."""
        self._control("POST", "touch", {"bucket": bucket, "key": key})

    def _control(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.endpoint}/_testkit/{path}"
        request = urllib.request.Request(url, data=data, method=method)
        handlers: list[Any] = [urllib.request.ProxyHandler({})]
        if self.ca_file is not None:
            import ssl

            context = ssl.create_default_context(cafile=self.ca_file)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        opener = urllib.request.build_opener(*handlers)
        try:
            with opener.open(request, timeout=20) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error)["error"]) from None

    def stop(self) -> None:
        """Ends the server; may be called twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the server."""
        self.stop()


class SlowFs:
    """A directory mirrored as a slow, read-only file system; needs `/dev/fuse` and root or fusermount3.

    Args:
        source: The directory to mirror.
        target: The directory to mount it at.
        delay_ms: Delay of each open and each read request.
        mb_s: Megabytes per second of all reads together; 0 is unlimited.
        cpu: The CPU to pin the server to.
        options: More options of `slowfs`.

    Raises:
        FileNotFoundError: The binary is not built.
        RuntimeError: It can't be mounted.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        target: str | os.PathLike[str],
        *,
        delay_ms: float = 5.0,
        mb_s: float = 500.0,
        cpu: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Mounts it and waits until it is there."""
        program = binary("slowfs")
        if program is None:
            raise FileNotFoundError("no slowfs binary: run `cargo build -p foreload-testkit`")
        self.target = Path(target)
        command = [str(program), str(source), str(target), f"--delay-ms={delay_ms}", f"--mb-s={mb_s}", "--until-eof"]
        self._process = subprocess.Popen([*command, *options], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        if cpu is not None:
            os.sched_setaffinity(self._process.pid, {cpu})
        deadline = time.monotonic() + 20
        while not os.path.ismount(self.target):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                _, errors = self._process.communicate()
                raise RuntimeError(errors.decode(errors="replace").strip())
            time.sleep(0.005)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def stop(self) -> None:
        """Unmounts it; may be called twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            subprocess.run(["umount", "-l", str(self.target)], check=False)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Unmounts it."""
        self.stop()


def bare(verb: str, *options: str, bucket: Bucket | None = None, cpu: int | None = None) -> list[dict[str, Any]]:
    """Runs the yardstick.

    Args:
        verb: `get` (from a bucket), `files` (below a directory) or `direct` (ranges of a file, O_DIRECT).
        options: Options of that verb, such as `--synthetic=w1:10000x110000`, `--connections=64`.
        bucket: The bucket to read from, for `get`.
        cpu: The CPU to pin it to.

    Returns:
        A report per number of connections: connections, requests, bytes, seconds, samples_per_s, mb_per_s,
        cpu_s, cpu_s_per_gb, crc32c.

    Raises:
        FileNotFoundError: The binary is not built.
        RuntimeError: A request failed.
    """
    program = binary("bare")
    if program is None:
        raise FileNotFoundError("no bare binary: run `cargo build -p foreload-testkit`")
    command = [str(program), verb, *options]
    if bucket is not None:
        keys = ["--access-key", bucket.access_key, "--secret-key", bucket.secret_key]
        command += ["--endpoint", bucket.endpoint, *keys]
        command += ["--ca", bucket.ca_file] if bucket.ca_file is not None else []
    if cpu is not None:
        command = ["taskset", "-c", str(cpu), *command]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr.strip())
    return [json.loads(line) for line in ran.stdout.splitlines()]


def quote(key: str) -> str:
    """Encodes a key for a URL path."""
    return urllib.parse.quote(key, safe="/~")
