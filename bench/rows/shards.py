"""A shuffled epoch over new tar shards, from before `open`: what finding the samples costs is part of it.

Time runs from before the agent starts to the last batch, and requests and bytes are the bucket's own counts over that time. Beside it stands the same with
a saved index, which needs no scan. The bound is the link, and the yardstick reads whole shards, once.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from bench.client import Job
from bench.registry import Result
from bench.rows.cost import probe
from bench.stage import CLOUD, CLOUD_IN_WORDS, Bucket, Stage, interleaved, options_of, ratios

CONNECTIONS = (32, 64, 128)
PART = 4 << 20
#: About a sample, in whole pages.
PIECE = 112 << 10

OPENS = """
import json, sys, foreload
url, options = json.loads(sys.argv[1])
foreload.open(url, "tar", storage_options=options)
"""


def saved_index(stage: Stage, bucket: Bucket, url: str) -> Path:
    """An index of a data set, as `open` keeps it."""
    home = stage.directory()
    command = [sys.executable, "-c", OPENS, json.dumps([url, options_of(bucket)])]
    subprocess.run(command, env=stage.environment(home), check=True)
    (index,) = home.glob("cache/indexes/*.flx")
    return index


def disk_alone(stage: Stage, written: int, read: int) -> float:
    """Seconds that the disk takes to write so many bytes in a row and to read so many in pieces of a sample's size, with nothing else to do."""
    path = stage.scratch / "alone"
    # Whole parts, as the probe writes them.
    size = max(PART, written // PART * PART)
    wrote = probe(stage, "write", {"path": str(path), "size": size})
    starts = range(0, size - PIECE, PIECE)
    ranges = stage.scratch / "alone.tsv"
    chosen = random.Random(1).sample(starts, min(len(starts), 5000))
    ranges.write_text("".join(f"alone\t{start}\t{PIECE}\n" for start in chosen))
    found = stage.bare("direct", f"--file={path}", f"--ranges={ranges}", "--depth=32", pinned=False)
    path.unlink()
    return float(written * wrote["seconds"] / wrote["bytes"] + read / (found["samples_per_s"] * PIECE))


def shards(stage: Stage) -> Result:
    """20 shards of 100 MB."""
    count, members = stage.amount(20, 4), stage.amount(900, 200)
    rule = f"shards:{count}x{members}x110000,tar"
    samples, data = count * members, count * members * 110_000
    link = CLOUD["total_bytes_per_s"]
    result = Result(invalid=stage.gated())
    whole = stage.scratch / "whole.tsv"
    # As in w4: each member has a header and a label, and two blocks of zeros end a shard.
    shard_bytes = members * (512 + 110_080 + 1024) + 1024
    whole.write_text("".join(f"shards/{number:08}.tar\t0\t{shard_bytes}\n" for number in range(count)))
    with stage.bucket(rule) as bucket:
        index = saved_index(stage, bucket, "s3://bench/shards")
        for place, pinned in (("one core", True), ("whole machine", False)):
            runs: dict[str, list[Any]] = {"no index": [], "saved index": [], **{str(c): [] for c in CONNECTIONS}}

            def yardstick(connections: int, pinned: bool = pinned, runs: dict[str, list[Any]] = runs) -> float:
                options = [f"--ranges={whole}", f"--part={PART}", f"--connections={connections}"]
                runs[str(connections)].append(stage.bare("get", *options, bucket=bucket, pinned=pinned))
                return float(runs[str(connections)][-1]["mb_per_s"] * 1e6) * data / (count * shard_bytes)

            def loader(name: str, pinned: bool = pinned, runs: dict[str, list[Any]] = runs) -> float:
                tier = stage.directory()
                job = Job(
                    "s3://bench/shards",
                    options_of(bucket),
                    format="tar",
                    index=str(index) if name == "saved index" else "",
                    ram="512MB",
                    disk=f"{tier}:{2 * data}",
                )
                bucket.reset()
                read = stage.read(job, pinned=pinned)
                # Those of twenty runs would fill a disk, and the last ones find no room on it.
                shutil.rmtree(tier)
                counts = bucket.counters()
                found = {
                    "opened_s": read.opened_s,
                    "requests": sum(counts["requests"].values()),
                    "bytes_sent": counts["bytes_sent"],
                    **read.first,
                }
                runs[name].append(found)
                return data / (read.opened_s + read.first["seconds"])

            new, saved, *bare = interleaved(
                stage.pairs,
                lambda: loader("no index"),
                lambda: loader("saved index"),
                *(lambda connections=connections: yardstick(connections) for connections in CONNECTIONS),
            )
            best = max(bare, key=median)
            for name, rates in (("no index", new), ("saved index", saved)):
                found = runs[name]
                result.read(f"{place}, {name}: MB/s / link", *[rate / link for rate in rates])
                result.read(f"{place}, {name}: MB/s / yardstick at its best", *ratios(rates, best))
                result.read(f"{place}, {name}: requests / samples", *[run["requests"] / samples for run in found])
                result.read(f"{place}, {name}: bytes / data", *[run["bytes_sent"] / data for run in found])
                result.read(f"{place}, {name}: MB/s", *[rate / 1e6 for rate in rates], unit="MB/s")
                result.read(f"{place}, {name}: open", *[run["opened_s"] for run in found], unit="s")
            for connections, values in zip(CONNECTIONS, bare, strict=True):
                result.read(
                    f"{place}: yardstick, {connections} connections", *[value / 1e6 for value in values], unit="MB/s"
                )
            result.raw[place] = runs
        # The saved index's runs write and read the disk within the epoch alone.
        moved = [[int(run[name]) for run in found] for name in ("written_bytes", "device_bytes")]
        alone = [disk_alone(stage, *pair) for pair in zip(*moved, strict=True)]
        result.read("saved index: the disk alone, for what was written and read", *alone, unit="s")
        result.read(
            "saved index: MB/s / the disk alone", *[rate * s / data for rate, s in zip(rates, alone, strict=True)]
        )
    result.settings = {
        "profile": CLOUD_IN_WORDS,
        "data": rule,
        "loader": "RAM 512 MB, a disk tier of twice the data; defaults besides",
        "time": "from before the agent starts to the last batch",
        "requests, bytes": "the bucket's counts over that time; bytes beside the samples' own, without headers",
        "yardstick": "whole shards in parts of 4 MiB, into memory that it wrote before",
        "one core": f"CPU {stage.client_cpu}: agent, python; the yardstick too. The server has CPU {stage.server_cpu}",
        "the disk alone": "the bytes that the agent wrote to devices and read from them, written in parts of 4 MiB, four at a time, and then read in "
        "pieces of 112 KiB, 32 at a time, around the page cache: a bound of this machine's disk besides the link",
        "whole machine": "all CPUs for the client, of which the server takes one",
        "repetitions": stage.pairs,
    }
    return result
