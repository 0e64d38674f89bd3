"""The same samples in each loader's own form: a whole shuffled epoch from nothing, beside the loaders that want one.

Each peer converts the data with its own tool first, which is timed apart, and reads with the number of workers that serves it best on this machine.
Foreload reads tar shards, as they are and without an index of them, and the plain objects. Time runs from before the first step to the last batch,
and the shuffle of peers is theirs: approximate, but for LanceDB's.
"""

from __future__ import annotations

import shutil
from typing import Any

from bench import peers
from bench.client import Job
from bench.registry import Result
from bench.stage import CLOUD_IN_WORDS, Bucket, Stage, interleaved, options_of, ratios

#: Workers that a peer is given to find its best.
WORKERS = (1, 2, 4, 8, 16, 32)
#: Seconds that no epoch takes.
LONGEST_S = 240.0


def forms(stage: Stage) -> Result:
    """9,600 samples of 110 KB."""
    shards, members = stage.amount(16, 2), stage.amount(600, 100)
    count = shards * members
    result = Result(invalid=stage.gated())
    chosen = [peer for peer in peers.CONVERTED if peer in stage.peers]
    with stage.bucket(f"objects:{count}x110000", f"shards:{shards}x{members}x110000,tar", anonymous=True) as bucket:
        epochs = _Epochs(stage, bucket, count, ("shards", shards))
        bucket.set_profile("fast")
        converted = {peer: epochs.convert(peer) for peer in chosen if peer != "webdataset"}
        bucket.set_profile("cloud")
        best = {peer: max(WORKERS, key=lambda workers, peer=peer: epochs.peer(peer, workers)) for peer in chosen}
        tar, objects, *theirs = interleaved(
            stage.pairs,
            lambda: epochs.ours("shards", "tar"),
            lambda: epochs.ours("objects", "auto"),
            *(lambda peer=peer: epochs.peer(peer, best[peer]) for peer in chosen),
        )
    result.read("foreload, tar shards", *tar, unit="samples/s")
    result.read("foreload, objects", *objects, unit="samples/s")
    for peer, rates in zip(chosen, theirs, strict=True):
        if all(rates):
            result.read(f"foreload, tar shards / {peer}", *ratios(tar, rates))
            result.read(f"foreload, objects / {peer}", *ratios(objects, rates))
        result.read(f"{peer}, {best[peer]} workers", *rates, unit="samples/s")
        if peer in converted:
            result.read(f"{peer}: its conversion", converted[peer], unit="s")
    result.raw = epochs.raw
    result.settings = {
        "profile": CLOUD_IN_WORDS,
        "data": f"{count} samples of 110,000 bytes: as objects, as {shards} tar shards, and converted by each peer's own tool",
        "time": "from before the first step (ours: before the agent starts) to the last batch; imports and conversion don't count",
        "foreload": "RAM 512 MB, a disk tier of twice the data, no index; defaults besides",
        "workers": f"of a peer: the best of {', '.join(map(str, WORKERS))}, by one epoch each; Foreload has none",
        "CPUs": "all, of which the server takes one",
        "peers": {
            peer: runs[-1].get("settings", runs[-1]) for peer, runs in epochs.raw.items() if peer in chosen and runs
        },
        "repetitions": stage.pairs,
    }
    return result


class _Epochs:
    """Samples per second over an epoch, of one run each; 0 if it failed."""

    def __init__(self, stage: Stage, bucket: Bucket, count: int, shards: tuple[str, int]) -> None:
        self.stage, self.bucket, self.count, self.shards = stage, bucket, count, shards
        self.raw: dict[str, list[Any]] = {"tar": [], "auto": [], **{peer: [] for peer in peers.CONVERTED}}

    def convert(self, peer: str) -> float:
        self.stage.say(f"  {peer} converts")
        found = self._run(peer, 2, "convert")
        return float(found.get("seconds", 0.0))

    def peer(self, peer: str, workers: int) -> float:
        found = self._run(peer, workers, "read")
        # Who leaves samples out has not read the epoch; what doesn't divide may be dropped.
        whole = "samples" in found and found["samples"] > self.count - 64 * workers
        return float(found["epoch_per_s"]) if whole else 0.0

    def _run(self, peer: str, workers: int, verb: str) -> dict[str, Any]:
        found = peers.run(
            self.stage,
            peer,
            self.bucket,
            "objects",
            self.count,
            seconds=LONGEST_S,
            shards=self.shards,
            workers=workers,
            pinned=False,
            verb=verb,
        )
        self.raw[peer].append(found)
        if found.get("error"):
            self.stage.say(f"  {peer}, {workers} workers: {found['error'].splitlines()[-1]}")
        return found

    def ours(self, prefix: str, form: str) -> float:
        tier = self.stage.directory()
        job = Job(
            f"s3://bench/{prefix}",
            options_of(self.bucket),
            format=form,
            ram="512MB",
            disk=f"{tier}:{2 * self.count * 110_000}",
        )
        read = self.stage.read(job, pinned=False)
        shutil.rmtree(tier)
        self.raw[form].append({"opened_s": read.opened_s, **read.first})
        return self.count / (read.opened_s + float(read.first["seconds"]))
