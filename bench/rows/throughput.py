"""How fast data arrives that nobody has yet: W1 to W4 from a cloud-like bucket, and W1's sizes from a slow file system.

Each round runs the yardstick and the loaders in turn against one server. A loader's rate is that of its epoch from the first request to the last
batch; listing is not part of it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from bench import peers
from bench.client import Job, fixed
from bench.registry import Result
from bench.stage import CLOUD_IN_WORDS, CONNECTIONS, SlowFs, Stage, interleaved, options_of, ratios

PART = 8 << 20


def rate(job: Job, stage: Stage, records: list[Any], *, of: str = "samples", pinned: bool = True) -> float:
    """Samples or bytes per second of a client's last epoch, which is recorded."""
    found = stage.read(job, pinned=pinned).last
    records.append(found)
    return float(found[of] / found["seconds"])


def settings_of(stage: Stage, **more: Any) -> dict[str, Any]:
    """What all rows here have in common."""
    return {
        "profile": CLOUD_IN_WORDS,
        "server": f"CPU {stage.server_cpu}",
        "client": f"CPU {stage.client_cpu}: agent, python and workers; the yardstick too",
        "requests in flight": CONNECTIONS,
        "repetitions": stage.pairs,
        "yardstick gate": stage.gate(),
        **more,
    }


def w1(stage: Stage) -> Result:
    """10,000 objects in random order, cold."""
    count = stage.amount(10_000, 1000)
    rule = f"w1:{count}x60000-160000"
    result = Result(invalid=stage.gated())
    runs: dict[str, list[Any]] = {"yardstick": [], "loader": [], "stock": [], "default": []}
    with stage.bucket(rule) as bucket:
        ours = {
            "loader": Job("s3://bench/w1", options_of(bucket), attach=fixed(CONNECTIONS)),
            # Peers choose how many connections they open; so does the loader where it is compared with them.
            "default": Job("s3://bench/w1", options_of(bucket)),
            "stock": Job("s3://bench/w1", options_of(bucket), door="stock", workers=2, attach=fixed(CONNECTIONS)),
        }

        def yardstick() -> float:
            runs["yardstick"].append(
                stage.bare("get", f"--synthetic={rule}", "--shuffle", f"--connections={CONNECTIONS}", bucket=bucket)
            )
            return float(runs["yardstick"][-1]["samples_per_s"])

        def reader(name: str) -> Any:
            return lambda: rate(ours[name], stage, runs[name])

        bare, loader, stock, default = interleaved(stage.pairs, yardstick, *map(reader, ("loader", "stock", "default")))
        result.read("loader / yardstick", *ratios(loader, bare))
        result.read("stock loader + ours / yardstick", *ratios(stock, bare))
        result.read("yardstick", *bare, unit="samples/s")
        result.read("loader", *loader, unit="samples/s")
        result.read("stock loader + ours", *stock, unit="samples/s")
        result.read("loader, choosing its connections", *default, unit="samples/s")
        found = peers.beside(stage, bucket, "w1", count, chosen=[peer for peer in stage.peers if peer in peers.OBJECTS])
    best = max((median for median, _ in found.values()), default=0.0)
    if set(peers.OBJECTS) <= set(stage.peers) and best:
        result.read("loader / best peer on the same objects", *[value / best for value in default])
    result.settings = settings_of(stage, data=rule, peers={name: report for name, (_, report) in found.items()})
    for name, (median, _) in found.items():
        result.read(f"peer {name}", *([median] if median else []), unit="samples/s")
    result.raw = {**runs, "peers": {name: report for name, (_, report) in found.items()}}
    return result


def w2(stage: Stage) -> Result:
    """One object of 1 GB as a sample."""
    return _large(stage, "w2", 1, stage.amount(1_000_000_000, 100_000_000))


def w3(stage: Stage) -> Result:
    """Five objects of 200 MB as the samples of a batch."""
    return _large(stage, "w3", 5, stage.amount(200_000_000, 20_000_000))


def _large(stage: Stage, name: str, count: int, size: int) -> Result:
    rule = f"{name}:{count}x{size}"
    result = Result(invalid=stage.gated())
    runs: dict[str, list[Any]] = {"yardstick": [], "fresh": [], "view": [], "bytes": [], "ample": []}
    ram, staging = str(count * size * 5 // 2), str(count * size * 9 // 8)
    with stage.bucket(rule) as bucket:

        def yardstick(kind: str, *more: str) -> Any:
            options = [f"--synthetic={rule}", f"--part={PART}", f"--connections={CONNECTIONS}", *more]

            def read() -> float:
                runs[kind].append(stage.bare("get", *options, bucket=bucket))
                return float(runs[kind][-1]["mb_per_s"] * 1e6)

            return read

        def reader(kind: str, raw: str, ram: str, staging: str | None) -> Any:
            job = Job(
                f"s3://bench/{name}",
                options_of(bucket),
                batch=count,
                raw=raw,
                ram=ram,
                staging=staging,
                attach=fixed(CONNECTIONS),
            )
            return lambda: rate(job, stage, runs[kind], of="bytes")

        bare, fresh, view, copied, ample = interleaved(
            stage.pairs,
            yardstick("yardstick"),
            yardstick("fresh", "--fresh"),
            reader("view", "view", ram, staging),
            reader("bytes", "bytes", ram, staging),
            reader("ample", "view", str(count * size * 8), None),
        )
    result.read("views / yardstick", *ratios(view, bare))
    result.read("bytes / yardstick", *ratios(copied, bare))
    result.read("views / yardstick into fresh memory", *ratios(view, fresh))
    result.read("views in ample memory / yardstick", *ratios(ample, bare))
    result.read("views in ample memory / yardstick into fresh memory", *ratios(ample, fresh))
    for label, values in (
        ("yardstick", bare),
        ("yardstick into fresh memory", fresh),
        ("views", view),
        ("bytes", copied),
        ("views in ample memory", ample),
    ):
        result.read(label, *[value / 1e6 for value in values], unit="MB/s")
    result.settings = settings_of(
        stage,
        data=rule,
        yardstick=f"parts of 8 MiB over {CONNECTIONS} connections",
        loader="memory for 2.5 batches, of which 9/8 of a batch are staging; in ample memory, for 8, the default share",
    )
    result.notes = [
        "`bytes` copies a sample once more into fresh memory; samples of this size are meant to be read with raw='view'.",
        "The loader's memory is new in its first epoch, and the kernel has to find and clear its pages. The yardstick reads into memory that it wrote before.",
        "Beside it stands the same yardstick into memory that nobody has written.",
        "Memory is for two and a half of its batches, so that one is left in one piece beside a batch of views, and it isn't copied; ample memory for eight.",
    ]
    result.raw = runs
    return result


def w4(stage: Stage) -> Result:
    """An epoch over shuffled samples of tar shards."""
    shards, members = stage.amount(20, 4), stage.amount(900, 200)
    rule = f"w4:{shards}x{members}x110000,tar"
    result = Result(invalid=stage.gated())
    samples, data = shards * members, shards * members * 110_000
    runs: dict[str, list[Any]] = {"yardstick": [], "parts": [], "loader": []}
    whole = stage.scratch / "shards.tsv"
    # A member is its header, its bytes in blocks of 512, and its label's header and block; two blocks of zeros end a shard.
    shard_bytes = members * (512 + 110_080 + 1024) + 1024
    whole.write_text("".join(f"w4/{number:08}.tar\t0\t{shard_bytes}\n" for number in range(shards)))
    with stage.bucket(rule) as bucket:

        def yardstick(name: str, *options: str) -> Any:
            def measure() -> float:
                runs[name].append(stage.bare("get", *options, f"--connections={CONNECTIONS}", bucket=bucket))
                return float(runs[name][-1]["mb_per_s"] * 1e6)

            return measure

        def loader() -> float:
            disk = stage.directory()
            job = Job(
                "s3://bench/w4",
                options_of(bucket),
                format="tar",
                # The row is of an epoch from the bucket, as it was before scans handed on what they read.
                spool="0",
                ram="512MB",
                disk=f"{disk}:{2 * data}",
                attach=fixed(CONNECTIONS),
            )
            return rate(job, stage, runs["loader"], of="bytes")

        bare, parts, ours = interleaved(
            stage.pairs,
            yardstick("yardstick", f"--synthetic={rule}", "--shuffle"),
            yardstick("parts", f"--ranges={whole}", f"--part={PART}"),
            loader,
        )
    requests = [run["stats"]["requests"] for run in runs["loader"]]
    fetched = [run["stats"]["requested_bytes"] for run in runs["loader"]]
    result.read("requests / samples", *[count / samples for count in requests])
    result.read("bytes fetched / data", *[size / data for size in fetched])
    result.read("MB/s / yardstick", *ratios(ours, bare))
    result.read("MB/s / whole shards in parts of 8 MiB", *ratios(ours, parts))
    for label, values in (("yardstick", bare), ("whole shards in parts of 8 MiB", parts), ("loader", ours)):
        result.read(label, *[value / 1e6 for value in values], unit="MB/s")
    result.settings = settings_of(
        stage,
        data=rule,
        ram="512 MB",
        disk="twice the data",
        yardstick="the samples' ranges in random order",
        scan="what it read is thrown away (FORELOAD_SPOOL=0); it isn't counted: requests and bytes are the epoch's. The row shards counts all",
    )
    result.notes = [
        "The yardstick reads what is asked for, each sample with a request; beside it, what the same client reaches that reads whole shards."
    ]
    result.raw = runs
    return result


def make_files(directory: Path, count: int, low: int, high: int) -> list[tuple[str, int]]:
    """Writes files of random bytes; the same ones every time."""
    dice = random.Random(0)
    blob = dice.randbytes(1 << 22)
    files = []
    for number in range(count):
        size = dice.randint(low, high)
        start = dice.randrange(len(blob) - high)
        path = directory / f"c{number % 10:02}" / f"{number:08}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(blob[start : start + size])
        files.append((str(path.relative_to(directory)), size))
    return files


def slowfs(stage: Stage) -> Result:
    """W1's sizes through a file system with a delay and a cap."""
    count = stage.amount(2500, 600)
    source, target, ranges = stage.directory(), stage.directory(), stage.scratch / "ranges.tsv"
    files = make_files(source, count, 60_000, 160_000)
    random.Random(1).shuffle(files)
    ranges.write_text("".join(f"{name}\t0\t{size}\n" for name, size in files))
    result = Result()
    runs: dict[str, list[Any]] = {"yardstick": [], "loader": [], "torch, 2 workers": [], "torch, 8 workers": []}
    with SlowFs(source, target, delay_ms=5, mb_s=500, cpu=stage.server_cpu):
        jobs = {
            "loader": Job(str(target), format="folder", attach=fixed(CONNECTIONS)),
            "torch, 2 workers": Job(str(target), door="files", workers=2),
            "torch, 8 workers": Job(str(target), door="files", workers=8),
        }

        def yardstick() -> float:
            runs["yardstick"].append(
                stage.bare("files", f"--root={target}", f"--ranges={ranges}", f"--threads={CONNECTIONS}")
            )
            return float(runs["yardstick"][-1]["samples_per_s"])

        def reader(name: str) -> Any:
            return lambda: rate(jobs[name], stage, runs[name])

        bare, ours, *stock = interleaved(stage.pairs, yardstick, *map(reader, jobs))
    result.read("loader / yardstick", *ratios(ours, bare))
    for workers, rates in zip((2, 8), stock, strict=True):
        result.read(f"loader / torch, {workers} workers", *ratios(ours, rates))
    for label, values in zip(runs, (bare, ours, *stock), strict=True):
        result.read(label, *values, unit="samples/s")
    result.settings = {
        "file system": "FUSE pass-through, 5 ms for each open and read, 500 MB/s in all, no page cache kept",
        "data": f"{count} files of 60,000 to 160,000 bytes",
        "server": f"CPU {stage.server_cpu}",
        "client": f"CPU {stage.client_cpu}",
        "reads in flight": CONNECTIONS,
        "torch": "DataLoader over files, bytes, shuffle=True, prefetch_factor 2",
    }
    result.raw = runs
    return result
