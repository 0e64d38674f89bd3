"""What later epochs cost: data that fits memory, data that fits the disk, and data of which a fraction is kept."""

from __future__ import annotations

import math
import random
import shutil
from statistics import median
from typing import Any

from bench.client import Job, fixed
from bench.registry import Result
from bench.rows.throughput import make_files
from bench.stage import Stage, interleaved, options_of, ratios

#: Epochs after the first over which the rate beside torch's best is taken: one alone takes a twentieth of a second.
_LATER = 5


def ram(stage: Stage) -> Result:
    """The data fits memory: no requests, no stall, and faster than torch's loader over cached files."""
    count = stage.amount(2000, 300)
    result = Result()
    runs: dict[str, list[Any]] = {name: [] for name in ("stall", "sum", "torch, bytes", "torch, tensors")}
    files = stage.directory()
    make_files(files, count, 110_000, 110_000)
    with stage.bucket(f"ram:{count}x110000", profile="fast") as bucket:
        base: dict[str, Any] = {
            "options": options_of(bucket),
            "batch": 32,
            "epochs": 2,
            "open_end": True,
            "ram": str(count * 110_000 * 2),
        }
        stalls = {
            "stall": Job("s3://bench/ram", compute_s=0.020, **base),
            "stall, views": Job("s3://bench/ram", compute_s=0.020, raw="view", **base),
        }
        jobs = {
            "sum": Job("s3://bench/ram", consume="sum", **base),
            "torch, bytes": Job(str(files), door="files", workers=2, batch=32, epochs=2, consume="sum"),
            "torch, tensors": Job(str(files), door="files", workers=2, batch=32, epochs=2, consume="sum", raw="tensor"),
        }
        memory = Job(str(files), door="memory", batch=32, epochs=1 + _LATER, consume="sum")
        ours = Job("s3://bench/ram", consume="sum", **{**base, "epochs": 1 + _LATER})
        longer = {"ours": ours, "no loader": memory} | {
            f"torch, {workers} workers, {raw}": Job(
                str(files),
                door="files",
                workers=workers,
                persistent=bool(workers),
                batch=32,
                epochs=1 + _LATER,
                consume="sum",
                raw=raw,
            )
            for workers in (0, 1, 2)
            for raw in ("bytes", "tensor")
        }

        def reader(name: str) -> Any:
            def measure() -> float:
                runs[name].append(stage.read(jobs[name], pinned=False).last)
                return float(runs[name][-1]["samples"] / runs[name][-1]["seconds"])

            return measure

        def later(name: str) -> Any:
            def measure() -> float:
                epochs = stage.read(longer[name], pinned=False).epochs[1:]
                runs.setdefault(f"{_LATER} epochs, {name}", []).append(epochs)
                return float(sum(each["samples"] for each in epochs) / sum(each["seconds"] for each in epochs))

            return measure

        for _ in range(stage.pairs):
            for name, job in stalls.items():
                runs.setdefault(name, []).append(stage.read(job, pinned=False).last)
        ours, as_bytes, as_tensors = interleaved(stage.pairs, *map(reader, jobs))
        ours_later, no_loader, *torch_later = interleaved(stage.pairs, *map(later, longer))
    requests = [run["stats"]["requests"] for run in (*runs["stall"], *runs["sum"])]
    result.read("requests in epoch 2", float(max(requests)))
    for name in stalls:
        result.read(name.replace("stall", "stall share"), *[run["stall_s"] / run["seconds"] for run in runs[name]])
    best = [max(pair) for pair in zip(as_bytes, as_tensors, strict=True)]
    result.read("samples/s / torch, 2 workers, cached files", *ratios(ours, best))
    result.read("samples/s / torch at its best, cached files", *ratios(ours_later, max(torch_later, key=median)))
    for name, values in zip(jobs, (ours, as_bytes, as_tensors), strict=True):
        result.read(name, *values, unit="samples/s")
    result.read("samples/s / no loader: bytes that lie in memory", *ratios(ours_later, no_loader))
    for name, values in zip(longer, (ours_later, no_loader, *torch_later), strict=True):
        result.read(f"{_LATER} epochs, {name}", *values, unit="samples/s")
    result.settings = {
        "data": f"{count} samples of 110,000 bytes; memory twice as much",
        "compute": "20 ms of sleep for each batch of 32",
        "consumer": "adds up every byte (numpy, uint8 to uint32), ours and torch's alike",
        "torch": "DataLoader, 2 workers, shuffle=True, over page-cached files; the faster of bytes and uint8 tensors counts",
        "torch at its best": f"0, 1 or 2 workers that stay, bytes or uint8 tensors: the best median; {_LATER} epochs after the first, ours too",
        "no loader": "the same loop over the same bytes in the process's own memory: what adding up takes, and no loader can undercut",
        "CPUs": "both, for all",
    }
    result.raw = runs
    return result


#: Reads at a time that the yardstick of the disk is given.
_DEPTHS = (8, 32, 128, 256)


def disk(stage: Stage) -> Result:
    """The data fits the disk but not memory, and the page cache is dropped before epoch 2."""
    count, size = stage.amount(10_000, 1000), 110_000
    data = count * size
    result = Result()
    runs: dict[str, list[Any]] = {"yardstick": [], "loader": []}
    plain = stage.scratch / "plain"
    blob = random.Random(0).randbytes(1 << 20)
    with plain.open("wb") as file:
        for _ in range(-(-data // len(blob))):
            file.write(blob)
    ranges = [(number * size, size) for number in range(count)]
    random.Random(1).shuffle(ranges)
    listed = stage.scratch / "plain.tsv"
    listed.write_text("".join(f"plain\t{first}\t{length}\n" for first, length in ranges))
    with stage.bucket(f"disk:{count}x{size}", profile="fast") as bucket:

        def yardstick(depth: int) -> float:
            found = stage.bare("direct", f"--file={plain}", f"--ranges={listed}", f"--depth={depth}", pinned=False)
            runs["yardstick"].append({"depth": depth, **found})
            return float(found["samples_per_s"])

        def loader() -> float:
            tier = stage.directory()
            job = Job(
                "s3://bench/disk",
                options_of(bucket),
                epochs=2,
                ram=str(data // 8),
                disk=f"{tier}:{2 * data}",
                drops=str(tier),
            )
            runs["loader"].append(stage.read(job, pinned=False).last)
            shutil.rmtree(tier)
            return float(runs["loader"][-1]["samples"] / runs["loader"][-1]["seconds"])

        ours, *bare = interleaved(stage.pairs, loader, *(lambda depth=depth: yardstick(depth) for depth in _DEPTHS))
    by_depth = dict(zip(_DEPTHS, bare, strict=True))
    best = max(bare, key=median)
    result.read("requests in epoch 2", float(max(run["stats"]["requests"] for run in runs["loader"])))
    result.read("samples/s / O_DIRECT at depth 32", *ratios(ours, by_depth[32]))
    result.read("samples/s / O_DIRECT at its best depth", *ratios(ours, best))
    device = [run["device_bytes"] / run["seconds"] for run in runs["loader"]]
    result.read("bytes/s from the device / O_DIRECT at its best depth", *ratios(device, [size * each for each in best]))
    result.read(
        "bytes read from the device / bytes from disk",
        *[run["device_bytes"] / run["stats"]["disk_bytes"] for run in runs["loader"]],
    )
    result.read(
        "bytes read from the device / bytes read from files, since the page cache was dropped",
        *[run["device_bytes"] / run["file_bytes"] for run in runs["loader"]],
    )
    for depth, values in by_depth.items():
        result.read(f"O_DIRECT at depth {depth}", *values, unit="samples/s")
    result.read("loader", *ours, unit="samples/s")
    result.settings = {
        "data": f"{count} samples of {size} bytes; memory an eighth of it, disk twice",
        "yardstick": "the same ranges in random order of a file of the same size on the same file system; a depth is so many threads, each of which adds up a checksum",
        "samples/s": "of all samples; some come from memory, and some were read ahead before the clock. Beside it: the device's bytes alone",
        "page cache": "synced and dropped (POSIX_FADV_DONTNEED) before epoch 2",
        "bytes read from the device": "the agent's, as the kernel counts them (/proc/PID/io); whole pages, so up to 8 KB more for a sample",
        "bytes read from files": "the agent's (rchar); what epoch 2 has from disk was in part read ahead in epoch 1, before the page cache was dropped",
        "CPUs": "both, for both",
    }
    result.raw = runs
    return result


#: Objects in the data sets of equal and of variable sizes.
_SIZES = {"equal": "40000", "variable": "10000-70000"}
_SHARES = (0.1, 0.25, 0.5, 0.9)
_MEAN = 40_000


def hits(stage: Stage) -> Result:
    """A fraction q of the data is kept: so are the hits of later epochs; an LRU cache beside it."""
    count, epochs = stage.amount(5000, 1000), 3
    data, result = count * _MEAN, Result()
    staging = max(data // 50, 64 * 70_000 * 2)
    for sizes, rule in _SIZES.items():
        with stage.bucket(f"hits:{count}x{rule}", profile="fast") as bucket:
            for share in _SHARES:
                _hits(stage, result, options_of(bucket), sizes, share, data, staging, epochs)
    result.settings = {
        "data": f"{count} samples of {' and of '.join(_SIZES.values())} bytes",
        "staging / data": staging / data,
        "epochs": f"{epochs}; those after the first are counted",
        "ours": "memory for q of the bytes besides staging, keyed order, no disk; distance of the hit rate from [q, q + staging/data]",
        "LRU": "the same engine with policy='lru' and the same memory (c = q, staging apart); distance from c + (1 - c) ln(1 - c)",
    }
    return result


def _hits(
    stage: Stage,
    result: Result,
    options: dict[str, str],
    sizes: str,
    share: float,
    data: int,
    staging: int,
    epochs: int,
) -> None:
    batches = 1 << 20
    keeps = int(share * data)

    def measure(policy: str | None) -> float:
        attach = fixed(32) | ({"policy": policy} if policy else {})
        job = Job(
            "s3://bench/hits",
            options,
            epochs=epochs,
            open_end=True,
            ram=str(keeps + staging + batches),
            staging=str(staging),
            batches=str(batches),
            attach=attach,
        )
        later = [epoch["stats"] for epoch in stage.read(job, pinned=False).epochs[1:]]
        label = f"{sizes}, q = {share:g}, {policy or 'ours'}"
        result.raw[label] = later
        return float(sum(epoch["ram_bytes"] for epoch in later) / sum(epoch["bytes"] for epoch in later))

    found = [measure(None) for _ in range(1 if stage.quick else 2)]
    result.read(f"hits, {sizes}, q = {share:g}", *found)
    result.read(
        f"off by, {sizes}, q = {share:g}", *[max(0.0, share - hit, hit - share - staging / data) for hit in found]
    )
    lru = measure("lru")
    law = share + (1 - share) * math.log(1 - share)
    result.read(f"LRU hits, {sizes}, c = {share:g}", lru)
    result.read(f"LRU off by, {sizes}, q = {share:g}", abs(lru - law))
