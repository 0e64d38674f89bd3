"""`python -m bench.mlperf LOAD`: runs a load on emulated accelerators, or looks for how many the machine feeds.

Without `--url` a test bucket on this machine serves synthetic objects, with the timing of the profile `cloud`, on a CPU of its own.

    python -m bench.mlperf retinanet --accelerators 2
    python -m bench.mlperf retinanet --url s3://bucket/images --accelerators most
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import queue
import secrets
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

from bench.mlperf.accelerator import Task, run
from bench.mlperf.loads import LOADS, Load

LABEL = "shaped like MLPerf Storage v3.0, not submitted, unverified"
#: A run that says nothing for so long has failed.
_PATIENCE_S = 600.0


def emulated(task: Task) -> list[dict[str, float]]:
    """Runs all accelerators of a task.

    Returns:
        Of each epoch: `au` (mean over the accelerators), `least_au` (the worst one's), `samples_per_s`, `bytes_per_s`, `steps`, `first_batch_s`.

    Raises:
        RuntimeError: One failed; the message says why.
    """
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(task.world), context.Queue()
    ranks = [
        context.Process(target=run, args=(rank, task, barrier, answers), daemon=True) for rank in range(task.world)
    ]
    for rank in ranks:
        rank.start()
    try:
        found = dict(_answer(answers, ranks) for _ in ranks)
    finally:
        for rank in ranks:
            rank.join(10)
            rank.kill()
    failed = [f"accelerator {rank}: {said}" for rank, said in sorted(found.items()) if isinstance(said, str)]
    if failed:
        # Who waited for the one that failed says no more than that.
        raise RuntimeError("; ".join([each for each in failed if "BrokenBarrier" not in each] or failed))
    epochs = zip(*(found[rank] for rank in sorted(found)), strict=True)
    return [_together(list(of), task) for of in epochs]


def _answer(answers: Any, ranks: list[Any]) -> Any:
    waited = 0.0
    while True:
        try:
            return answers.get(timeout=1.0)
        except queue.Empty:
            waited += 1.0
            ended = [rank.exitcode for rank in ranks if rank.exitcode]
            if ended or waited > _PATIENCE_S:
                raise RuntimeError(
                    f"an accelerator ended with {ended[0]}" if ended else f"nothing was heard for {waited:.0f} s"
                ) from None


def _together(of: list[dict[str, float]], task: Task) -> dict[str, float]:
    seconds = max(each["seconds"] for each in of)
    return {
        "au": statistics.fmean(each["au"] for each in of),
        "least_au": min(each["au"] for each in of),
        "samples_per_s": sum(each["steps"] for each in of) * task.batch / seconds,
        "bytes_per_s": sum(each["bytes"] for each in of) / seconds,
        "steps": of[0]["steps"],
        "first_batch_s": max(each["first_batch_s"] for each in of),
    }


def is_fed(load: Load, epochs: list[dict[str, float]]) -> bool:
    """Whether every epoch, the first one too, reaches the utilisation that the load asks for."""
    return all(epoch["au"] >= load.least_au for epoch in epochs)


def most_fed(
    load: Load, epochs_of: Callable[[int], list[dict[str, float]]], most: int
) -> tuple[int, dict[int, list[dict[str, float]]]]:
    """The most accelerators that are fed: doubled until they aren't, then halved between.

    Returns:
        How many, and what each number that was tried came to.
    """
    tried: dict[int, list[dict[str, float]]] = {}

    def fed(count: int) -> bool:
        tried[count] = epochs_of(count)
        return is_fed(load, tried[count])

    good, bad = 0, 1
    while bad <= most and fed(bad):
        good, bad = bad, 2 * bad
    bad = min(bad, most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fed(middle) else (good, middle)
    return good, tried


@contextlib.contextmanager
def served(load: Load, samples: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Synthetic objects in a test bucket on this machine."""
    from bench.stage import Stage, options_of

    stage = Stage()
    try:
        with stage.bucket(f"{load.name}:{samples}x{load.sample_bytes}") as bucket:
            yield f"s3://bench/{load.name}", options_of(bucket)
    finally:
        stage.close()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.mlperf", description=__doc__.split("\n")[0])
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--accelerators", default="1", metavar="N|most", help="emulated accelerators (default 1)")
    parser.add_argument("--limit", type=int, default=64, help="with `most`: no more than these (default 64)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=80, help="of an epoch in the test bucket, by accelerator")
    parser.add_argument(
        "--url", help="a data set of such samples, {n} in it is the number of accelerators; default: a test bucket here"
    )
    parser.add_argument("--options", type=json.loads, default={}, metavar="JSON", help="its storage_options")
    parser.add_argument("--ram", default="", help="memory budget of the node (default: half of what is left)")
    parser.add_argument(
        "--over-ram", type=float, metavar="X", help="instead: so much that the data are X times as large"
    )
    parser.add_argument("--disk", default="", metavar="DIR:SIZE", help="disk tier (default: none)")
    parser.add_argument("--check", action="store_true", help="make a checksum of every sample that is delivered")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    load = LOADS[asked.load]

    def epochs_of(count: int) -> list[dict[str, float]]:
        samples = count * load.batch * asked.steps
        ram = asked.ram if asked.over_ram is None else str(int(samples * load.sample_bytes / asked.over_ram))
        named = asked.url and asked.url.replace("{n}", str(count))
        source = contextlib.nullcontext((named, asked.options)) if named else served(load, samples)
        with source as (url, options):
            task = Task(
                url,
                count,
                load.batch,
                load.compute_s,
                options,
                asked.epochs,
                ram,
                asked.disk,
                checks=asked.check,
                session=f"mlperf-{secrets.token_hex(4)}",
            )
            epochs = emulated(task)
        if not asked.json:
            for number, epoch in enumerate(epochs):
                print(
                    f"{count:4} x {load.name}, epoch {number}: AU {100 * epoch['au']:5.1f} %  {epoch['samples_per_s']:8,.0f} samples/s  "
                    f"{epoch['bytes_per_s'] / 1e6:7,.0f} MB/s  first batch {epoch['first_batch_s']:.2f} s",
                    flush=True,
                )
        return epochs

    if asked.accelerators == "most":
        fed, tried = most_fed(load, epochs_of, asked.limit)
    else:
        count = int(asked.accelerators)
        tried = {count: epochs_of(count)}
        fed = count if is_fed(load, tried[count]) else 0
    if asked.json:
        print(json.dumps({"load": load.name, "label": LABEL, "fed": fed, "least_au": load.least_au, "tried": tried}))
    else:
        print(f"fed at AU >= {100 * load.least_au:.0f} % in every epoch: {fed} ({LABEL})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
