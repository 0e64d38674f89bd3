"""Trains from a bucket with the stock loader and with Foreload, side by side: `make demo`.

A test bucket on this machine behaves as one in the cloud does (30 ms to the first byte). Real images go there as objects:
scikit-learn's digits as PNG and patches of scikit-image's photographs as JPEG, in a folder for each class. Then the same small network is
trained by two scripts that differ in two lines. They read in the same order, so their losses are equal to the last bit; what
differs is how long the loop waits. A plot and a one-line summary end it.
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(__file__).resolve().parent / "training"
LOADERS = {"torch": "stock loader", "foreload": "Foreload"}
PHOTOS = [
    "astronaut",
    "brick",
    "camera",
    "chelsea",
    "coffee",
    "coins",
    "grass",
    "gravel",
    "hubble_deep_field",
    "ihc",
    "motorcycle_left",
    "retina",
]
EDGE = 128


@dataclass
class Run:
    """What a training script reported: a dict for each epoch."""

    epochs: list[dict[str, Any]] = field(default_factory=list)

    def total(self, key: str) -> float:
        return sum(epoch[key] for epoch in self.epochs)

    @property
    def losses(self) -> list[float]:
        return [loss for epoch in self.epochs for loss in epoch["losses"]]


def images(patches: int, digits: int | None) -> Iterator[tuple[str, bytes]]:
    """Keys and contents: digits, and patches of photographs."""
    import numpy as np
    import skimage
    from PIL import Image
    from sklearn.datasets import load_digits

    found = load_digits()
    for number, (pixels, digit) in enumerate(zip(found.images[:digits], found.target[:digits], strict=True)):
        yield f"digit-{digit}/{number:04}.png", encoded(Image.fromarray((pixels * 15.9375).astype(np.uint8)), "PNG")
    places = np.random.default_rng(0)
    folder = Path(skimage.__file__).parent / "data"
    for name in PHOTOS:
        with Image.open(next(folder.glob(f"{name}.*"))) as photo:
            whole = photo.convert("RGB")
        for number in range(patches):
            left, top = int(places.integers(whole.width - EDGE)), int(places.integers(whole.height - EDGE))
            yield f"{name}/{number:04}.jpg", encoded(whole.crop((left, top, left + EDGE, top + EDGE)), "JPEG")


def encoded(image: Any, kind: str) -> bytes:
    target = io.BytesIO()
    image.save(target, kind)
    return target.getvalue()


def upload(bucket: Any, contents: list[tuple[str, bytes]]) -> None:
    """Puts the objects there, at full speed: uploading is not what this shows."""
    import boto3

    client = boto3.client("s3", **bucket.boto3())
    client.create_bucket(Bucket="photos")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: client.put_object(Bucket="photos", Key=f"train/{one[0]}", Body=one[1]), contents))


def difference() -> list[str]:
    """The lines in which the two scripts differ."""
    sides = [(SCRIPTS / f"train_{loader}.py").read_text().splitlines() for loader in LOADERS]
    changed = difflib.unified_diff(*sides, lineterm="", n=0)
    return [line for line in changed if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def train(loader: str, bucket: Any, epochs: int, scratch: Path) -> Run:
    """Runs a script, showing its epochs as they end."""
    environment = {
        **os.environ,
        **bucket.environment(),
        "DEMO_COUNTERS": f"{bucket.endpoint}/_testkit/counters",
        "FORELOAD_CACHE_DIR": str(scratch / "cache"),
        "FORELOAD_RUNTIME_DIR": str(scratch / "run"),
        "FORELOAD_LINGER_S": "1",
        # One thread for the network: the workers have the other core, and sums keep their order.
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(SCRIPTS / f"train_{loader}.py"), "s3://photos/train", str(epochs)]
    run = Run()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            epoch = json.loads(line)
            run.epochs.append(epoch)
            print(row(LOADERS[loader], epoch), flush=True)
    if process.returncode:
        raise SystemExit(f"train_{loader}.py ended with {process.returncode}")
    return run


def row(name: str, epoch: dict[str, Any]) -> str:
    loss = sum(epoch["losses"]) / len(epoch["losses"])
    stall = f"{epoch['stall_s']:.2f} s ({epoch['stall_s'] / epoch['seconds']:.0%})"
    return f"{name:<14} {epoch['epoch'] + 1:>5} {loss:>9.5f} {epoch['seconds']:>8.2f} s {stall:>16} {epoch['requests']:>9,}"


def plot(runs: dict[str, Run], path: Path) -> None:
    """Seconds of each epoch, computing and waiting, and the losses, which lie upon one another."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    times, losses = figure.subplots(1, 2)
    colours = {"torch": "#999999", "foreload": "#0072B2"}
    for at, (loader, run) in enumerate(runs.items()):
        places = [number + 0.4 * at - 0.2 for number in range(1, len(run.epochs) + 1)]
        computing = [epoch["seconds"] - epoch["stall_s"] for epoch in run.epochs]
        times.bar(places, computing, 0.38, color=colours[loader], label=f"{LOADERS[loader]}: computing")
        waiting = [epoch["stall_s"] for epoch in run.epochs]
        style = {"color": "none", "edgecolor": colours[loader], "hatch": "///", "label": f"{LOADERS[loader]}: waiting"}
        times.bar(places, waiting, 0.38, bottom=computing, **style)
        style = {"linewidth": 4.0, "alpha": 0.5} if loader == "torch" else {"linewidth": 1.0}
        losses.plot(run.losses, color=colours[loader], label=LOADERS[loader], **style)
    times.set(xlabel="epoch", ylabel="seconds", title="Time per epoch")
    times.set_xticks(range(1, len(runs["torch"].epochs) + 1))
    times.set_ylim(top=1.45 * max(epoch["seconds"] for run in runs.values() for epoch in run.epochs))
    times.legend(fontsize="small", ncols=2)
    losses.set(xlabel="step", ylabel="loss", title="Loss: identical")
    losses.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few hundred objects and two epochs")
    parser.add_argument("--epochs", type=int, help="epochs to train (3)")
    parser.add_argument("--plot", type=Path, default=ROOT / "out" / "demo.png", help="where the plot goes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements there, too")
    given = parser.parse_args()
    epochs = given.epochs or (2 if given.quick else 3)

    sys.path.insert(0, str(ROOT / "tests"))
    from bucket import Bucket

    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="foreload-demo-") as scratch, Bucket(profile="fast") as bucket:
        contents = list(images(*((4, 120) if given.quick else (70, None))))
        upload(bucket, contents)
        size = sum(len(content) for _, content in contents)
        print(f"{len(contents):,} images ({size / 1e6:.1f} MB) in a bucket that answers as one in the cloud does\n")
        bucket.set_profile("cloud")
        print("\n".join(f"  {line}" for line in difference()), "\n")
        print(f"{'':<14} {'epoch':>5} {'loss':>9} {'time':>10} {'of it waiting':>16} {'requests':>9}")
        runs = {loader: train(loader, bucket, epochs, Path(scratch)) for loader in LOADERS}

    stock, ours = runs.values()
    assert stock.losses == ours.losses, "the losses differ: the two scripts didn't read the same samples"
    plot(runs, given.plot)
    faster = stock.total("seconds") / ours.total("seconds")
    values = {loader: run.epochs for loader, run in runs.items()}
    if given.json:
        given.json.write_text(json.dumps({"objects": len(contents), "bytes": size, "runs": values}))
    print(f"\nplot: {given.plot}; all of it took {time.perf_counter() - begun:.0f} s")
    print(
        f"Two lines changed, {len(stock.losses)} losses identical to the last bit: {faster:.1f}x as fast, "
        f"waiting {ours.total('stall_s'):.1f} s instead of {stock.total('stall_s'):.1f} s, "
        f"{ours.total('requests'):,.0f} requests instead of {stock.total('requests'):,.0f}."
    )


if __name__ == "__main__":
    main()
