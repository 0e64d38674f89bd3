"""The loaders that people use today, one small adapter each, beside Foreload on the same bucket.

An adapter is a module with `SETTINGS` (what its own documentation recommends, shown with its results), `samples(task)`, which yields each sample's
size, and, if it needs the data in another form, `convert(task)`, which is timed apart and done by the peer's own tool. Each runs in a
process of its own, on the client's CPU or on all, until the data or its time is over. A peer that fails is reported with its error.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.stage import ROOT, Bucket, Stage

#: Peers that read the objects as they are.
OBJECTS = ("torch_boto3", "obstore", "s3torchconnector", "litdata_raw", "s3dlio")
#: Peers that read another form of the data: converted, or tar shards that are already there.
CONVERTED = ("lance", "litdata_converted", "mosaicml", "webdataset")
ALL = OBJECTS + CONVERTED


@dataclass(frozen=True)
class Task:
    """What a peer reads.

    Attributes:
        endpoint: The bucket's URL.
        access_key: Its key.
        secret_key: And secret.
        region: Its region.
        prefix: Of the objects, in the bucket `bench`: `PREFIX/00000000.bin`...
        count: How many there are.
        shards: Prefix of the same amount of data as tar shards, and how many there are.
        seconds: How long to read at most.
        scratch: A directory to use.
        workers: Worker processes, or what the peer has in their place.
        seed: Of the shuffle.
        batch: Samples in a batch.
    """

    endpoint: str
    access_key: str
    secret_key: str
    region: str
    prefix: str
    count: int
    shards: tuple[str, int]
    seconds: float
    scratch: str
    workers: int = 2
    seed: int = 1
    batch: int = 64

    @property
    def url(self) -> str:
        """The objects' URL."""
        return f"s3://bench/{self.prefix}/"

    def keys(self) -> list[str]:
        """The objects' keys in random order."""
        import random

        keys = [f"{self.prefix}/{number:08}.bin" for number in range(self.count)]
        random.Random(self.seed).shuffle(keys)
        return keys


def run(
    stage: Stage,
    peer: str,
    bucket: Bucket,
    prefix: str,
    count: int,
    *,
    seconds: float,
    shards: tuple[str, int] = ("shards", 0),
    workers: int = 2,
    pinned: bool = True,
    verb: str = "read",
) -> dict[str, Any]:
    """Runs a peer once.

    Args:
        stage: Where.
        peer: Which.
        bucket: What it reads from.
        prefix: Of its objects.
        count: How many.
        seconds: How long to read at most.
        shards: See `Task`.
        workers: See `Task`.
        pinned: Whether it has the client's CPU alone.
        verb: `convert`, or `read`, before which nothing is converted.

    Returns:
        After `read`: samples, bytes, seconds (from before its first step), samples_per_s (in the later half of its time), epoch_per_s (over all of
        it), first_s, cpu_s, settings. After `convert`: seconds. Or error.
    """
    scratch = stage.directory()
    task = Task(
        bucket.endpoint,
        bucket.access_key,
        bucket.secret_key,
        bucket.region,
        prefix,
        count,
        shards,
        seconds,
        str(scratch),
        workers,
    )
    environment = {
        **stage.environment(scratch),
        **bucket.environment(),
        "S3_ENDPOINT_URL": bucket.endpoint,
        "HOME": str(scratch),
        "DO_NOT_TRACK": "1",
    }
    command = [stage.peer_python, "-m", "bench.peers", verb, peer, json.dumps(asdict(task))]
    command = stage.pinned(*command) if pinned else command
    try:
        ran = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds * 4 + 240
        )
    except subprocess.TimeoutExpired:
        return {"error": f"did not end within {seconds * 4 + 240:.0f} s"}
    lines = [line for line in ran.stdout.splitlines() if line.startswith('{"peer"')]
    if not lines:
        return {"error": "\n".join(ran.stderr.strip().splitlines()[-25:]) or f"ended with {ran.returncode}"}
    found: dict[str, Any] = json.loads(lines[-1])
    # What it copied to a disk isn't needed any more.
    shutil.rmtree(scratch, ignore_errors=True)
    return found


def beside(
    stage: Stage,
    bucket: Bucket,
    prefix: str,
    count: int,
    chosen: Sequence[str],
) -> dict[str, tuple[float, Any]]:
    """Runs peers in turn, several times.

    Returns:
        For each its median rate in samples per second over the runs that did not fail (0 if all did) and its reports, with the first error.
    """
    reports: dict[str, list[dict[str, Any]]] = {peer: [] for peer in chosen}
    for _ in range(1 if stage.quick else 3):
        for peer in chosen:
            stage.say(f"  {peer}")
            reports[peer].append(run(stage, peer, bucket, prefix, count, seconds=stage.amount(6, 3)))
    found = {}
    for peer, runs in reports.items():
        good = [report for report in runs if not report.get("error")]
        errors = [report["error"] for report in runs if report.get("error")]
        details: dict[str, Any] = {"settings": good[0]["settings"], "runs": good} if good else {}
        if errors:
            details |= {"error": errors[0], "failed": f"{len(errors)} of {len(runs)} runs"}
        found[peer] = (statistics.median(report["samples_per_s"] for report in good) if good else 0.0, details)
    return found


def scratch_of(task: Task, name: str) -> Path:
    """A directory of an adapter's own."""
    path = Path(task.scratch) / name
    path.mkdir(exist_ok=True)
    return path
