"""Paper 000's Table I: small files from disk, from a bucket one by one, and from a bucket with 16 threads, as its authors read them.

`python -m bench.table_i ARGUMENTS` prints MB/s of the three; `rows` beside it what the paper prints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import boto3
import botocore.config

#: What the paper prints, in MB/s.
PUBLISHED = {"disk": 18.63, "bucket, sequential": 0.0498, "bucket, 16 threads": 0.28173}


def _timed(read: Callable[[Any], bytes], what: list[Any], threads: int, seconds: float) -> float:
    """MB/s of reading as much as fits into some seconds."""
    begun, size = perf_counter(), 0
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(what), threads):
            size += sum(map(len, pool.map(read, what[start : start + threads])))
            if perf_counter() - begun > seconds:
                break
    return size / (perf_counter() - begun) / 1e6


def measure(endpoint: str, keys: list[str], files: list[Path], seconds: float) -> dict[str, float]:
    """MB/s of the three rows."""
    config = botocore.config.Config(max_pool_connections=16)
    client = boto3.client("s3", endpoint_url=endpoint, config=config)

    def get(key: str) -> bytes:
        data: bytes = client.get_object(Bucket="bench", Key=key)["Body"].read()
        return data

    return {
        "disk": _timed(Path.read_bytes, files, 1, seconds),
        "bucket, sequential": _timed(get, keys, 1, seconds),
        "bucket, 16 threads": _timed(get, keys, 16, seconds),
    }


def main() -> None:
    """Measures; the argument holds endpoint, keys, directory and seconds as JSON."""
    task = json.loads(sys.argv[1])
    files = sorted(path for path in Path(task["directory"]).rglob("*") if path.is_file())
    print(json.dumps(measure(task["endpoint"], task["keys"], files, task["seconds"])))


if __name__ == "__main__":
    main()
