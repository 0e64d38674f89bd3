"""How many emulated accelerators a client core, and this machine, feed at the utilisation that MLPerf Storage asks for; unverified (`bench.mlperf`).

Every epoch counts, the first one too. The data are five times the memory budget, so that no epoch comes from memory, and the store is the test bucket with
the profile `cloud` on a CPU of its own.
"""

from __future__ import annotations

import json

from bench.mlperf.__main__ import LABEL
from bench.mlperf.loads import LOADS
from bench.registry import Result
from bench.stage import CLOUD_IN_WORDS, Stage, options_of

#: Steps of an epoch and accelerator.
STEPS = 80
#: The link feeds six of them.
MOST = 8


def retinanet(stage: Stage) -> Result:
    """RetinaNet-shaped: an image of 323 KB a sample."""
    load = LOADS["retinanet"]
    result = Result(invalid=stage.gated())
    steps = stage.amount(STEPS, 4)
    rules = [f"r{n}:{n * load.batch * steps}x{load.sample_bytes}" for n in range(1, MOST + 1)]
    with stage.bucket(*rules) as bucket:
        for place, pinned, cores in (("one core", True, 1), ("whole machine", False, len(stage.cpus))):
            fed = []
            for _ in range(stage.pairs):
                found = stage.module(
                    "bench.mlperf",
                    load.name,
                    "--accelerators=most",
                    f"--limit={MOST}",
                    "--json",
                    "--url=s3://bench/r{n}",
                    f"--options={json.dumps(options_of(bucket))}",
                    f"--steps={steps}",
                    "--over-ram=5",
                    pinned=pinned,
                )
                result.raw.setdefault(place, []).append(found)
                fed.append(found["fed"] / cores)
            result.read(f"{place}: accelerators / core", *fed)
            best = [
                max(epoch["samples_per_s"] for epochs in found["tried"].values() for epoch in epochs)
                for found in result.raw[place]
            ]
            result.read(f"{place}: most samples/s of any epoch", *best, unit="samples/s")
    result.notes.append(LABEL)
    result.settings = {
        "profile": CLOUD_IN_WORDS,
        "load": f"{load.batch} samples of {load.sample_bytes} bytes a step of {1000 * load.compute_s:g} ms, AU >= {load.least_au} in each of two epochs",
        "data": f"{steps} steps for each accelerator, five times the memory budget; each has its share, a barrier ends each step",
        "loader": "defaults, but for the memory budget",
        "one core": f"CPU {stage.client_cpu}: all accelerators, and the agent. The server has CPU {stage.server_cpu}",
        "whole machine": "all CPUs for the client, of which the server takes one",
        "repetitions": stage.pairs,
    }
    return result
