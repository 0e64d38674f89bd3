"""`python -m bench.gpu`: ResNet-50 on this machine's GPU, fed from the test bucket and, beside it, by torch's loader from local files.

The bucket has the timing of the profile `cloud`. Two loads: `pixels`, samples that need no decoding (3 x 224 x 224 bytes), and `jpeg`, photographs of about
110 KB with torchvision's usual training transforms in workers. An epoch's utilisation is steps x compute over its time from the first batch on, as MLPerf
Storage defines it, where compute is what a step takes on batches that lie in the GPU's memory already. No batch is repeated; the first epoch counts.

    python -m bench.gpu --json
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIDE = 224
BATCH = 256
#: Steps that compute is measured on, after as many that aren't.
MEASURED = 20


class Trainer:
    """ResNet-50 in bfloat16, and what a step takes when nothing has to be read."""

    def __init__(self) -> None:
        import torch
        import torchvision

        self.torch = torch
        torch.backends.cudnn.benchmark = True
        model = torchvision.models.resnet50(weights=None)
        self.model = model.cuda().to(memory_format=torch.channels_last)
        self.loss = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        images = torch.randint(0, 255, (BATCH, 3, SIDE, SIDE), dtype=torch.uint8).cuda()
        labels = torch.randint(0, 1000, (BATCH,)).cuda()
        for _ in range(MEASURED):
            self.step(images, labels)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(MEASURED):
            self.step(images, labels)
        torch.cuda.synchronize()
        self.compute_s = (time.perf_counter() - begun) / MEASURED

    def step(self, images: Any, labels: Any) -> None:
        """One step, which is queued on the GPU."""
        torch = self.torch
        images = images.to(memory_format=torch.channels_last).float().div_(255)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.loss(self.model(images), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def epoch(self, loader: Iterable[Any]) -> dict[str, float]:
        """Trains for an epoch: its utilisation, rate, and the sum of all bytes that reached the GPU."""
        torch = self.torch
        seen = torch.zeros((), dtype=torch.int64, device="cuda")
        begun = time.perf_counter()
        first, steps, samples, pinned = begun, 0, 0, 0
        for images, labels in loader:
            if not steps:
                first = time.perf_counter()
            pinned += images.is_pinned()
            images = images.cuda(non_blocking=True).view(-1, 3, SIDE, SIDE)
            seen += images.sum(dtype=torch.int64)
            self.step(images, labels.cuda(non_blocking=True))
            steps, samples = steps + 1, samples + len(images)
        torch.cuda.synchronize()
        ended = time.perf_counter()
        return {
            "steps": steps,
            "samples": samples,
            "pinned": pinned,
            "sum": float(seen),
            "au": steps * self.compute_s / (ended - first),
            "samples_per_s": samples / (ended - begun),
            "first_batch_s": first - begun,
        }


class Pixels:
    """Local files of pixels, as a data set of torch's tutorials."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.glob("*/*.bin"))
        names = sorted({path.parent.name for path in self.paths})
        self.labels = [names.index(path.parent.name) for path in self.paths]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        import torch

        data = bytearray(self.paths[index].read_bytes())
        return torch.frombuffer(data, dtype=torch.uint8), torch.tensor(self.labels[index])


def write(root: Path, load: str, start: int, stop: int) -> None:
    """Writes samples of a load into 100 classes."""
    from PIL import Image

    for number in range(start, stop):
        random = np.random.default_rng(number)
        path = root / f"class{number % 100:02}" / f"{number:06}.{'bin' if load == 'pixels' else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if load == "pixels":
            path.write_bytes(random.bytes(3 * SIDE * SIDE))
            continue
        # Smooth with some grain, which compresses as a photograph of this size does.
        coarse = Image.fromarray(random.integers(0, 255, (12, 16, 3), dtype=np.uint8)).resize(
            (500, 375), Image.Resampling.BICUBIC
        )
        grain = random.normal(0, 14, (375, 500, 3))
        Image.fromarray(np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8)).save(path, quality=92)


def transforms() -> Any:
    """As training on ImageNet has it, up to bytes: the rest is the GPU's."""
    from torchvision.transforms import v2

    return v2.Compose([v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()])


def loaders(load: str, root: Path, options: dict[str, str], workers: int, epochs: int) -> Iterator[tuple[str, Any]]:
    """Ours over the bucket, and torch's over local files."""
    import torch
    import torchvision

    import foreload as fl
    from foreload.torch import DataLoader, wrap

    shared: dict[str, Any] = {"num_workers": workers, "pin_memory": True, "drop_last": True, "shuffle": True}
    shared |= {"persistent_workers": True} if workers else {}
    url = f"s3://gpu/{load}"
    theirs: dict[str, Any] = {**shared, "num_workers": max(workers, 4), "persistent_workers": True}
    if load == "pixels":
        data: Any = fl.open(url, format="folder", storage_options=options)
        yield "ours", DataLoader(data, BATCH, raw="tensor", epochs=epochs, **shared)
        yield "torch", torch.utils.data.DataLoader(Pixels(root / load), BATCH, **theirs)  # type: ignore[arg-type]
    else:
        data = wrap(torchvision.datasets.ImageFolder, url, transform=transforms(), storage_options=options)
        yield "ours", DataLoader(data, BATCH, epochs=epochs, **shared)
        images = torchvision.datasets.ImageFolder(root / load, transform=transforms())
        yield "torch", torch.utils.data.DataLoader(images, BATCH, **theirs)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--loads", nargs="*", default=["pixels", "jpeg"], choices=["pixels", "jpeg"])
    parser.add_argument("--samples", type=int, default=80 * BATCH)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    import torch

    from bench.stage import Bucket, Stage, options_of

    if not torch.cuda.is_available():
        print("bench.gpu: torch finds no GPU here", file=sys.stderr)
        return 1
    cpus = sorted(os.sched_getaffinity(0))
    stage, trainer = Stage(), Trainer()
    found: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "cpus": len(cpus),
        "torch": torch.__version__,
        "batch": BATCH,
        "compute_s": trainer.compute_s,
        "compute_samples_per_s": BATCH / trainer.compute_s,
        "loads": {},
    }
    try:
        os.environ |= {
            name: value for name, value in stage.environment(stage.directory()).items() if name.startswith("FORELOAD_")
        }
        for load in asked.loads:
            root = stage.scratch / "buckets"
            made(root / "gpu" / load, load, asked.samples, len(cpus))
            with Bucket(profile="cloud", directory=root, cpus=cpus[:1]) as bucket:
                os.sched_setaffinity(0, set(cpus[1:]))
                found["loads"][load] = _epochs(asked, trainer, load, root / "gpu", options_of(bucket), len(cpus) - 2)
            os.sched_setaffinity(0, set(cpus))
            shutil.rmtree(root)
    finally:
        stage.close()
    print(json.dumps(found) if asked.json else _table(found))
    return 0


def made(root: Path, load: str, samples: int, processes: int) -> None:
    """Writes a load's files with as many processes."""
    bounds = np.linspace(0, samples, 4 * processes + 1).astype(int)
    with concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for done in [pool.submit(write, root, load, *bounds[n : n + 2]) for n in range(4 * processes)]:
            done.result()


def _epochs(
    asked: argparse.Namespace, trainer: Trainer, load: str, root: Path, options: dict[str, str], workers: int
) -> dict[str, list[dict[str, float]]]:
    """The epochs of both loaders, round by round with new loaders."""
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(asked.rounds):
        for name, loader in loaders(load, root, options, 0 if load == "pixels" else workers, asked.epochs):
            for number in range(asked.epochs):
                epoch = trainer.epoch(loader)
                said = loader.stats()["epochs"][-1]["au"] if name == "ours" else None
                found.setdefault(name, []).append({**epoch, "epoch": number, "stats_au": said})
                print(load, name, json.dumps(found[name][-1]), file=sys.stderr, flush=True)
            del loader
    return found


def _table(found: dict[str, Any]) -> str:
    rate = found["compute_samples_per_s"]
    lines = [f"{found['gpu']}, {found['cpus']} CPUs; compute alone {rate:,.0f} samples/s"]
    for load, by in found["loads"].items():
        for name, epochs in by.items():
            au, speed = (statistics.median(each[key] for each in epochs) for key in ("au", "samples_per_s"))
            least = min(each["au"] for each in epochs)
            lines.append(f"{load:8}{name:8}AU {au:.3f} (least {least:.3f})  {speed:,.0f} samples/s")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
