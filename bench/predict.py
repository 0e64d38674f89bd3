"""Prediction and reality: does a run take what the simulator says?

`python -m bench.predict` calibrates this machine and the emulated bucket on one data set, predicts training on another one whose samples fit into
memory, fit on disk, or fit into neither, writes that down (`bench/results/DATE-prediction.json`), and only then trains: a step of 20 ms (`--step-ms`) for each batch,
five times each, and writes what it took beside it (`DATE-prediction-measured.json`, `DATE-prediction.md`). `--predict` stops after the prediction,
`--measure FILE` goes on from one, so that it can be committed in between. `--data` names another data set: small objects, large ones, or tar shards (of which it has
an index). `--draw SEED` draws the bucket's latency and rates, which the prediction learns from the calibration alone. `--quick` goes through the
motions with little data and writes to a scratch directory: such numbers mean nothing.

What needs no simulator stands beside the prediction: the steps alone, and the bytes that must come from the bucket over its link, where that takes longer. A prediction is worth
something where it is much closer than these, which is where loading limits: so epochs with a stall are judged by their stall, too.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import foreload
from bench import machine
from bench.client import Job
from bench.rows.shards import saved_index
from bench.stage import ROOT, Bucket, Stage, options_of
from foreload import speeds
from foreload._data.samples_file import places_of, sizes_file
from foreload.sim import simulate_text

RESULTS = ROOT / "bench" / "results"
#: Epoch time may differ so much.
BAR = 0.10
_MB = 1 << 20
_BATCH = 64
_STEP_MS = 20.0
_EPOCHS = 3
#: An epoch whose stall is predicted or measured to be this share of its steps or more is bound by loading.
_BOUND = 0.05
#: How many times closer than the better trivial predictor a prediction of such an epoch must be.
CLOSER = 3.0
_BATCHES_MB, _STAGING_MB = 32, 64


@dataclass(frozen=True)
class Case:
    """A budget.

    Attributes:
        name: What fits where.
        kept: Share of the data set that the RAM tier holds.
        disk: The same of the disk tier.
    """

    name: str
    kept: float
    disk: float


CASES = (Case("fits memory", 1.2, 0.0), Case("fits disk", 0.1, 2.0), Case("fits neither", 0.4, 0.0))


@dataclass(frozen=True)
class Data:
    """What is trained on.

    Attributes:
        samples: Objects, or members of tar shards.
        size: Bytes of each.
        members: Of a shard; 0: they are objects.
    """

    samples: int
    size: int
    members: int = 0

    @property
    def rule(self) -> str:
        """As the test bucket makes it."""
        return (
            f"train:{self.samples // self.members}x{self.members}x{self.size},tar"
            if self.members
            else f"train:{self.samples}x{self.size}"
        )


#: By the names that `--data` takes.
DATA = {
    "110k": Data(12_000, 110_000),
    "small": Data(60_000, 20_000),
    "large": Data(1_200, 2_000_000),
    "shards": Data(12_000, 110_000, members=600),
}


def drawn(seed: int) -> dict[str, float]:
    """The timing of a bucket between a near and a far one, as the test bucket takes it: each value log-uniform in its bounds."""
    dice = random.Random(seed)

    def between(low: float, high: float) -> float:
        return low * (high / low) ** dice.random()

    latency = between(5, 80)
    return {
        "first_byte_ms": round(latency, 1),
        "first_byte_sigma": round(between(0.1, 0.6), 2),
        "connect_ms": round(latency, 1),
        "connection_bytes_per_s": int(between(20e6, 90e6)),
        "total_bytes_per_s": int(between(0.2e9, 1.2e9)),
    }


def budget(case: Case, data: Data) -> tuple[int, int]:
    """Bytes of memory kept, and of disk."""
    size = data.samples * data.size
    return int(case.kept * size) // _MB * _MB, int(case.disk * size) // _MB * _MB


def staging_mb(data: Data) -> int:
    """What passes through at once, in MiB: four batches where these are large."""
    return max(_STAGING_MB, 4 * _BATCH * data.size // _MB)


def batches_mb(data: Data) -> int:
    """Memory for collated batches, in MiB."""
    return max(_BATCHES_MB, 4 * _BATCH * data.size // _MB)


def trivial(case: Case, data: Data, measured: speeds.Speeds, step_s: float) -> dict[str, list[float]]:
    """Seconds of each epoch, for who knows the steps alone, and for who also divides bytes by the bucket's rate and takes the longer."""
    steps = -(-data.samples // _BATCH) * step_s
    size = data.samples * data.size
    ram, disk = budget(case, data)
    again = max(0, size - ram - disk)
    links = [moved / _MB / measured.source_mb_s for moved in (size, *[again] * (_EPOCHS - 1))]
    return {"compute": [steps] * _EPOCHS, "link": [max(steps, link) for link in links]}


def scenario(case: Case, data: Data, measured: speeds.Speeds, step_s: float, places: Path | None) -> str:
    """A case as the simulator reads it, decided by the engine's own scheduler; members of shards lie where a list says."""
    ram, disk = budget(case, data)
    memory = {"read_mb_s": measured.ram_mb_s, "write_mb_s": measured.ram_mb_s}
    tiers: list[dict[str, Any]] = [
        {"kind": "staging", "capacity_mb": float(staging_mb(data)), **memory},
        {"kind": "ram", "capacity_mb": ram / _MB, **memory, "write_mb_s": measured.fresh_mb_s},
    ]
    if disk:
        tiers.append({"kind": "disk", "capacity_mb": disk / _MB, **asdict(measured.disk)})
    return speeds.toml(
        {
            "name": case.name,
            "drive": "engine",
            "dataset": {"sizes_file": str(places)} if places else {"samples": data.samples, "mean_mb": data.size / _MB},
            "training": {"epochs": _EPOCHS, "global_batch": _BATCH, "seed": 1, "step_s": step_s},
            # What the loop takes over by itself comes on top of a step.
            "cluster": {"nodes": 1, "compute_mb_s": measured.loop_mb_s},
            "source": {
                "throughput_mb_s": measured.curve(1),
                "latency_s": measured.latency_s,
                "latency_sigma": measured.latency_sigma,
                "connection_mb_s": measured.connection_mb_s,
                "requests_in_flight": measured.requests_in_flight,
            },
            "tier": tiers,
        }
    )


def predict(
    case: Case, data: Data, measured: speeds.Speeds, step_s: float, places: Path | None = None
) -> dict[str, Any]:
    """What the simulator says, and what needs none."""
    text = scenario(case, data, measured, step_s, places)
    report = simulate_text(text, ["foreload"])
    outcome = report.ran("foreload")
    return {
        "epoch_s": [hours * 3600 for hours in outcome.epoch_hours],
        "requests": outcome.requests,
        "stall_share": outcome.stall_share,
        "lower_bound_s": report.lower_bound_hours * 3600,
        "trivial_s": trivial(case, data, measured, step_s),
        "scenario": text,
    }


def data_of(predicted: dict[str, Any]) -> Data:
    """What a prediction is about."""
    return Data(predicted["samples"], predicted["sample_bytes"], predicted.get("members", 0))


def measure(
    stage: Stage, case: Case, predicted: dict[str, Any], bucket: Bucket, index: Path | None = None
) -> dict[str, Any]:
    """What a run takes, with a cold cache."""
    data = data_of(predicted)
    ram, disk = budget(case, data)
    home = stage.directory()
    job = Job(
        url="s3://bench/train",
        options=options_of(bucket),
        format="tar" if data.members else "auto",
        index=str(index or ""),
        batch=_BATCH,
        compute_s=predicted.get("step_ms", _STEP_MS) / 1000,
        epochs=_EPOCHS,
        ram=str(ram + (batches_mb(data) + staging_mb(data)) * _MB),
        batches=f"{batches_mb(data)}MiB",
        staging=f"{staging_mb(data)}MiB",
        disk=f"{home}:{disk}" if disk else "",
        # Otherwise it would be memory that is measured.
        drops=str(home) if disk else "",
    )
    bucket.reset()
    epochs = stage.read(job).epochs
    total = {name: sum(epoch["stats"][name] for epoch in epochs) for name in ("requests", "retries", "hedges")}
    return {
        "epoch_s": [epoch["seconds"] for epoch in epochs],
        "stall_s": [epoch["stall_s"] for epoch in epochs],
        # The bucket's own count, and what of it was not planned.
        "gets": bucket.counters()["requests"].get("get", 0),
        **total,
        "planned": total["requests"] - total["retries"] - total["hedges"],
    }


def calibrated(stage: Stage, path: Path, profile: str | dict[str, float]) -> None:
    """Calibrates on other objects than those that are trained on, on the CPU that trains."""
    rule = f"calibrate:{stage.amount(8000, 2000)}x20KB-300KB"
    with stage.bucket(rule) as bucket, stage.surroundings() as environment:
        bucket.set_profile(profile)
        words = ["calibrate", "s3://bench/calibrate", "--disk", str(stage.directory()), "--out", str(path)]
        words += ["--seconds", str(stage.amount(4, 1) / 2), "--scratch", f"{stage.amount(1536, 64)}MB"]
        command(stage, environment, *words, bucket=bucket)


def command(stage: Stage, environment: dict[str, str], *words: str, bucket: Bucket) -> dict[str, Any]:
    """Runs a verb on the CPU that trains; what it answers."""
    options = [word for key, value in options_of(bucket).items() for word in ("-o", f"{key}={value}")]
    program = [sys.executable, "-c", "from foreload.cli import main; main()"]
    line = stage.pinned(*program, *words, *options, "--json")
    ran = subprocess.run(line, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"foreload {words[0]} failed: {ran.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@contextmanager
def indexed(stage: Stage, data: Data) -> Iterator[tuple[Path | None, Path | None]]:
    """An index of shards and a list of where their members lie; objects need neither."""
    if not data.members:
        yield None, None
        return
    url = "s3://bench/train"
    with stage.bucket(data.rule, profile="fast") as bucket:
        index = saved_index(stage, bucket, url)
        dataset = foreload.open(url, "tar", index=index, storage_options=options_of(bucket))
        with sizes_file(dataset.lengths, places_of(dataset)) as places:
            yield index, places


def step_s(stage: Stage, step_ms: float) -> float:
    """How long a step really is: the kernel wakes up late."""
    code = (
        "import time\nbegun = time.perf_counter()\n"
        f"for _ in range(50): time.sleep({step_ms / 1000})\nprint((time.perf_counter() - begun) / 50)"
    )
    ran = subprocess.run(stage.pinned(sys.executable, "-c", code), capture_output=True, text=True, check=True)
    return float(ran.stdout)


def prediction(
    stage: Stage, calibration: Path, step_ms: float, data: Data, profile: str | dict[str, float]
) -> dict[str, Any]:
    """Calibrates and predicts all cases."""
    data = replace(data, samples=stage.amount(data.samples, data.samples // 3))
    calibrated(stage, calibration, profile)
    took = step_s(stage, step_ms)
    measured = speeds.read(calibration)
    with indexed(stage, data) as (_, places):
        cases = {case.name: predict(case, data, measured, took, places) for case in CASES}
    return {
        "dated": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(ROOT),
        "machine": machine.describe(),
        "samples": data.samples,
        "sample_bytes": data.size,
        "members": data.members,
        "profile": profile,
        "batch": _BATCH,
        "step_ms": step_ms,
        "step_s": took,
        "calibration": calibration.read_text(),
        "cases": cases,
    }


def reality(stage: Stage, predicted: dict[str, Any]) -> dict[str, Any]:
    """Trains all cases, in turn, as often as the stage says."""
    data = data_of(predicted)
    runs: dict[str, list[dict[str, Any]]] = {case.name: [] for case in CASES}
    with indexed(stage, data) as (index, _), stage.bucket(data.rule) as bucket:
        bucket.set_profile(predicted.get("profile", "cloud"))
        for number in range(stage.pairs):
            for case in CASES:
                stage.say(f"{case.name}, run {number + 1} of {stage.pairs}")
                runs[case.name].append(measure(stage, case, predicted, bucket, index))
    return {
        "dated": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(ROOT),
        "machine": machine.describe(),
        "load": machine.load(),
        "runs": runs,
    }


def compare(predicted: dict[str, Any], found: dict[str, Any]) -> list[dict[str, Any]]:
    """Each case's epochs and requests, predicted and measured (median)."""
    rows = []
    for name, case in predicted["cases"].items():
        runs = found["runs"][name]
        median = [statistics.median(run["epoch_s"][at] for run in runs) for at in range(_EPOCHS)]
        gaps = [took / said - 1 for took, said in zip(median, case["epoch_s"], strict=True)]
        planned = [run["planned"] for run in runs]
        steps = predicted["step_s"] * -(-predicted["samples"] // predicted["batch"])
        stalls = [(said - steps, took - steps) for said, took in zip(case["epoch_s"], median, strict=True)]
        # Predictions of earlier versions have none.
        trivial_s = case.get("trivial_s", {"compute": [steps] * _EPOCHS})
        nearest = [min(abs(took - each[at]) for each in trivial_s.values()) for at, took in enumerate(median)]
        rows.append(
            {
                "case": name,
                "predicted_s": case["epoch_s"],
                "median_s": median,
                "spread_s": [(min(e), max(e)) for e in zip(*(run["epoch_s"] for run in runs), strict=True)],
                "gap": gaps,
                "trivial_s": trivial_s,
                "stall_s": stalls,
                "is_bound": [max(pair) >= _BOUND * steps for pair in stalls],
                "closer": [
                    near / max(abs(took - said), 1e-9)
                    for near, took, said in zip(nearest, median, case["epoch_s"], strict=True)
                ],
                "holds": all(abs(gap) <= BAR for gap in gaps),
                "predicted_requests": case["requests"],
                "planned_requests": planned,
                "requests_hold": all(count == case["requests"] for count in planned),
                "retries": [run["retries"] for run in runs],
                "hedges": [run["hedges"] for run in runs],
            }
        )
    return rows


def table(predicted: dict[str, Any], found: dict[str, Any]) -> str:
    """The comparison as Markdown."""
    about = predicted["machine"]
    profile = predicted.get("profile", "cloud")
    members = predicted.get("members", 0)
    objects = f"members of {predicted['samples'] // members} tar shards" if members else "objects"
    how = (
        f"`python -m bench.predict`: {predicted['samples']:,} {objects} of {predicted['sample_bytes']:,} bytes from the emulated bucket "
        f"(profile {f'`{profile}`' if isinstance(profile, str) else f'drawn: {json.dumps(profile)}'}), "
        f"batches of {predicted['batch']}, steps of {predicted['step_s'] * 1000:.2f} ms, {_EPOCHS} epochs. Parameters were calibrated on other objects "
        "(20 KB to 300 KB). Server and client on a CPU each."
    )
    when = (
        f"Predicted {predicted['dated']} at {predicted['commit']}, measured {found['dated']} at {found['commit']}; {about['cpu']}, {about['cores']} "
        f"cores, load {found['load']:.2f}. The raw numbers are in the JSON files beside this one."
    )
    lines = [
        "# Prediction and reality",
        "",
        how,
        "",
        when,
        "",
        "| case | epoch | predicted | measured: median (range) | gap | within 10 % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows = compare(predicted, found)
    for row in rows:
        for at in range(_EPOCHS):
            low, high = row["spread_s"][at]
            lines.append(
                f"| {row['case']} | {at} | {row['predicted_s'][at]:.2f} s | {row['median_s'][at]:.2f} s ({low:.2f}-{high:.2f}) | "
                f"{row['gap'][at]:+.1%} | {'yes' if abs(row['gap'][at]) <= BAR else 'no'} |"
            )
    lines += [
        "",
        f"Epochs that loading limits (a stall of {_BOUND:.0%} of the steps or more), beside what needs no simulator:",
        "",
        f"| case | epoch | stall, predicted | measured | gap | steps alone | or bytes over link | measured epoch | closer | within 10 %, {CLOSER:g} x |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        for at in filter(row["is_bound"].__getitem__, range(_EPOCHS)):
            said, took = row["stall_s"][at]
            gap, closer = took / said - 1 if said > 0 else float("inf"), row["closer"][at]
            alone, link = (row["trivial_s"].get(name, [float("nan")] * _EPOCHS)[at] for name in ("compute", "link"))
            lines.append(
                f"| {row['case']} | {at} | {said:.2f} s | {took:.2f} s | {gap:+.1%} | {alone:.2f} s | {link:.2f} s | {row['median_s'][at]:.2f} s | "
                f"{closer:.1f} | {'yes' if abs(gap) <= BAR else 'no'}, {'yes' if closer >= CLOSER else 'no'} |"
            )
    lines += [
        "",
        "| case | predicted requests | measured, planned | retries | hedges | exact |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        counts = ("planned_requests", "retries", "hedges")
        cells = " | ".join(", ".join(str(each) for each in row[name]) for name in counts)
        lines.append(
            f"| {row['case']} | {row['predicted_requests']} | {cells} | {'yes' if row['requests_hold'] else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def write(path: Path, value: dict[str, Any]) -> None:
    """Writes a result, never over another one."""
    with path.open("x", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")


def unused(path: Path) -> Path:
    """The path, with a number after its name where a prediction of that day has it already."""
    names = (path, *(path.with_stem(f"{path.stem}-{number}") for number in range(2, 100)))
    return next(path for path in names if not path.exists())


def main(say: Callable[[str], None] = print) -> None:
    """Predicts, then measures."""
    parser = argparse.ArgumentParser(prog="python -m bench.predict", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little data; nothing is recorded")
    parser.add_argument("--predict", action="store_true", help="stop after the prediction")
    parser.add_argument("--measure", type=Path, metavar="FILE", help="go on from a prediction")
    parser.add_argument(
        "--step-ms",
        type=float,
        default=_STEP_MS,
        help="a step's length (20); shorter ones wait for the bucket or the disk",
    )
    parser.add_argument(
        "--data",
        choices=DATA,
        default="110k",
        help="what is trained on: objects of 110 KB (default), 20 KB, or 2 MB; or 20 tar shards of 66 MB",
    )
    parser.add_argument(
        "--draw", type=int, metavar="SEED", help="draw the bucket's latency and rates, instead of the profile cloud"
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each case")
    given = parser.parse_args()
    stage = Stage(quick=given.quick, pairs=1 if given.quick else given.runs, say=say)
    try:
        if not given.quick and (why := stage.gated()):
            say(f"this machine is too busy or too slow now: {why}")
            sys.exit(1)
        results = stage.scratch if given.quick else RESULTS
        step = "" if given.step_ms == _STEP_MS else f"-{given.step_ms:g}ms"
        step += "" if given.data == "110k" else f"-{given.data}"
        step += "" if given.draw is None else f"-drawn-{given.draw}"
        profile = "cloud" if given.draw is None else drawn(given.draw)
        path = given.measure or unused(results / f"{dt.datetime.now(dt.UTC):%Y-%m-%d}-prediction{step}.json")
        if given.measure is None:
            calibration = stage.scratch / "calibration.toml"
            write(path, prediction(stage, calibration, given.step_ms, DATA[given.data], profile))
            say(f"predicted: {path}")
        predicted = json.loads(path.read_text())
        if given.predict:
            return
        found = reality(stage, predicted)
        write(path.with_name(f"{path.stem}-measured.json"), found)
        text = table(predicted, found)
        path.with_suffix(".md").write_text(text, encoding="utf-8")
        say(text)
    finally:
        stage.close()


if __name__ == "__main__":
    main()
