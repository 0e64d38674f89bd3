"""A cold epoch from a store that others wrote: versitygw over a directory, beside the yardstick at its best connections.

The test bucket is ours, and what is ours may suit us. versitygw is written in Go for production: it checks signatures and reads files. Nothing is
delayed here, so that its own CPU is the bound.
"""

from __future__ import annotations

import os
from statistics import median
from typing import Any

from bench.client import Job
from bench.registry import Result
from bench.rows.throughput import make_files, rate
from bench.stage import Stage, Versity, bare, interleaved, ratios

CONNECTIONS = (2, 4, 8, 16, 32, 64, 128)


def gateway(stage: Stage) -> Result:
    """10,000 objects of 60 to 160 KB."""
    if not Versity.installed():
        return Result(invalid="versitygw is not installed (make servers)")
    count = stage.amount(10_000, 500)
    result = Result()
    ours: list[Any] = []
    runs: dict[str, list[Any]] = {str(number): [] for number in CONNECTIONS}
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {stage.server_cpu})
    try:
        server = Versity()
    finally:
        os.sched_setaffinity(0, allowed)
    with server:
        # The gateway serves what lies in its directory.
        files = make_files(server.path(""), count, 60_000, 160_000)
        lines = [f"{name}\t0\t{size}\n" for name, size in files]
        ranges = stage.scratch / "gateway.tsv"
        ranges.write_text("".join(lines))
        job = Job(server.url, server.options, ram="")
        keys = [f"--endpoint={server.endpoint}", f"--access-key={server.access}", f"--secret-key={server.secret}"]

        def yardstick(number: int) -> float:
            options = [f"--ranges={ranges}", "--shuffle", "--bucket=learn", f"--connections={number}", *keys]
            (found,) = bare("get", *options, cpu=stage.client_cpu)
            runs[str(number)].append(found)
            return float(found["samples_per_s"])

        loader, *others = interleaved(
            stage.pairs,
            lambda: rate(job, stage, ours),
            *(lambda number=number: yardstick(number) for number in CONNECTIONS),
        )
    best = max(others, key=median)
    result.read("loader / yardstick at its best", *ratios(loader, best))
    result.read("loader", *loader, unit="samples/s")
    for number, values in zip(CONNECTIONS, others, strict=True):
        result.read(f"yardstick, {number} connections", *values, unit="samples/s")
    result.raw = {"loader": ours, **runs}
    result.settings = {
        "server": f"versitygw over a directory in the page cache, CPU {stage.server_cpu}; no delays",
        "client": f"CPU {stage.client_cpu}: agent, python; the yardstick too",
        "data": f"{count} objects of 60 to 160 KB",
        "loader": "defaults: no setting is given but the batch of 64 and one epoch",
        "repetitions": stage.pairs,
    }
    return result
