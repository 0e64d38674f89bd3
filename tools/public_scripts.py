#!/usr/bin/env python3
"""Runs public training scripts with torch's loader and with ours, and compares their losses to the last bit.

The scripts, in tools/public_scripts.toml, are other people's: fetched at a commit, or found in `--checkout DIR` by the names of their repositories. They run
in copies below `--work`, on small data made here, without network and, but for `--gpu`, without GPU. In a copy those lines differ that a user would change, the import of the
loader or the making of the data set, and what such a run needs. What a run computes is seen from outside, by a `sitecustomize`: each loss at its `backward`,
and a checksum of all that a model is called with.

    .venv/bin/python tools/public_scripts.py --work /tmp/scripts --only mnist dcgan

The scripts' packages must be importable: timm, transformers (4.56), accelerate, lightning, jsonargparse[signatures], datasets, evaluate, pycocotools.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

SCRIPTS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())

_AS_TORCH = (
    "lambda dataset, shuffle=False, **named: foreload.torch.DataLoader(dataset, "
    "**{**named, 'threads': 0, **({'sampler': torch.utils.data.RandomSampler(dataset)} if shuffle else {})})"
)
#: What replaces the loader, and whether the data set is wrapped. `torch` is what the others are compared with.
KINDS: dict[str, tuple[str, bool]] = {
    "torch": ("", False),
    "wrap": ("", True),
    "ours": ("foreload.torch.DataLoader", True),
    # Our own shuffle is not torch's, and threads draw in no order; in workers, what is drawn belongs to the sample.
    "as-torch": (_AS_TORCH, True),
    "drop-in": ("foreload.torch.DataLoader", False),
}

#: What a script's arguments say of the CPU, and with `--gpu` instead.
ON_GPU = {
    " --no-accel": "",
    " --cpu": "",
    " --use_cpu": "",
    "--device cpu": "--device cuda",
    "device=cpu": "device=cuda",
    "accelerator cpu": "accelerator gpu",
}

#: Seeds what a script leaves to chance, and writes down what its main process computes.
WATCH = """
import hashlib, os, random, threading
import numpy, torch
random.seed(0), numpy.random.seed(0), torch.manual_seed(0)
if "CUBLAS_WORKSPACE_CONFIG" in os.environ: torch.use_deterministic_algorithms(True, warn_only=True)
main, depth, log = os.getpid(), threading.local(), os.environ["WATCH_TO"] + os.environ.get("RANK", "0")
def write(line):
    if os.getpid() == main:
        with open(log, "a") as file: file.write(line + "\\n")
def digest(found):
    if isinstance(found, torch.Tensor): return hashlib.sha1(found.detach().contiguous().cpu().numpy().tobytes()).hexdigest()[:12]
    if isinstance(found, dict): found = list(found.values())
    return "+".join(filter(None, map(digest, found))) if isinstance(found, (list, tuple)) else ""
backward, call = torch.Tensor.backward, torch.nn.Module.__call__
def watched_backward(self, *given, **named):
    write(f"loss {self.item().hex()}")
    return backward(self, *given, **named)
def watched_call(self, *given, **named):
    outer = getattr(depth, "now", 0)
    if not outer and threading.current_thread() is threading.main_thread() and next(self.parameters(), None) is not None:
        write(f"called with {digest(given)} {digest(named)}")
    depth.now = outer + 1
    try: return call(self, *given, **named)
    finally: depth.now = outer
torch.Tensor.backward, torch.nn.Module.__call__ = watched_backward, watched_call
"""


def make_data(root: Path) -> None:
    """Makes what the scripts read."""
    from PIL import Image

    random = np.random.default_rng(0)

    def some(most: int, *shape: int) -> Any:
        return random.integers(0, most, shape, dtype=np.uint8)

    def image(path: Path, height: int, width: int, coarse: Any = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(some(255, 6, 6, 3) if coarse is None else coarse).resize(
            (width, height), Image.Resampling.NEAREST
        ).save(path)

    for part, count in (("train", 42), ("val", 21)):
        for number in range(count):
            image(root / "images" / part / f"class{number % 6}" / f"{number:03}.jpg", 64 + number, 90 - number)
    for number in range(50):
        image(root / "pets" / f"{('cat', 'big_dog', 'bird')[number % 3]}_{number}.jpg", 70, 60 + number)
    voc = root / "VOCdevkit/VOC2012"
    for number in range(9):
        image(voc / "JPEGImages" / f"{number:03}.jpg", 140 + number, 150)
        image(voc / "SegmentationClass" / f"{number:03}.png", 140 + number, 150, some(21, 7, 5))
    lists = voc / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("".join(f"{number:03}\n" for number in range(6)))
    (lists / "val.txt").write_text("".join(f"{number:03}\n" for number in range(6, 9)))
    raw = root / "MNIST/raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 100), ("t10k", 60)):
        pixels, labels = some(255, count, 28, 28).tobytes(), some(10, count).tobytes()
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, count, 28, 28) + pixels)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels)
    cifar = root / "cifar-10-batches-py"
    cifar.mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (cifar / name).write_bytes(pickle.dumps({"data": some(255, 8, 3072), "labels": some(10, 8).tolist()}))
    (cifar / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(number) for number in range(10)]}))
    (root / "input.txt").write_text("O God, O God! " + "".join(map(chr, random.integers(97, 123, 4000))))
    metric = root / "accuracy/accuracy.py"
    metric.parent.mkdir()
    metric.write_text(ACCURACY)
    subprocess.run([sys.executable, "-c", VIT, root / "vit"], check=False, capture_output=True)


ACCURACY = """
import datasets
import evaluate
class Accuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description="", citation="", features=features)
    def _compute(self, predictions, references):
        return {"accuracy": sum(map(int.__eq__, predictions, references)) / len(references)}
"""
VIT = """
import sys, transformers
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 32, "patch_size": 8}
transformers.ViTForImageClassification(transformers.ViTConfig(**sizes)).save_pretrained(sys.argv[1])
transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(sys.argv[1])
"""


def fetch(script: dict[str, Any], checkouts: Path) -> Path:
    """The directory that a script's repository is in, fetched if it isn't there."""
    folder = checkouts / str(script["repository"]).rsplit("/", 1)[1]
    if not (folder / script["path"]).exists():
        subprocess.run(["git", "init", "-q", folder], check=True)
        subprocess.run(
            ["git", "-C", folder, "fetch", "-q", "--depth=1", script["repository"], script["commit"]], check=True
        )
        subprocess.run(["git", "-C", folder, "checkout", "-q", "FETCH_HEAD"], check=True)
    return folder


def edit(script: dict[str, Any], folder: Path, kind: str, filled: dict[str, str]) -> None:
    """Changes a copy of the repository to a kind's lines."""
    loader, wraps = KINDS[kind]
    loads, offline = script.get("loader_in", []), script.get("offline", [])
    made_in = script.get("made_in", script["path"])
    names = {script["path"], made_in, *loads, *(name for name, *_ in offline)}
    texts = {name: (folder / name).read_text() for name in names}
    first = dict.fromkeys(names, "")
    first[script["path"]] = script.get("first", "") + "\n"
    for name, old, new in offline:
        if old not in texts[name]:
            raise ValueError(f"{name} doesn't say {old!r}: it is of another commit than the table's")
        texts[name] = texts[name].replace(old, new.format(**filled))
    for name in loads if loader else ():
        first[name] += f"import torch.utils.data, foreload.torch; _loader = {loader}\n"
        # Not where a class derives from it.
        texts[name] = re.sub(r"(?<!\()\btorch\.utils\.data\.DataLoader\b", "_loader", texts[name])
        texts[name] = re.sub(
            r"(?m)^from torch\.utils\.data.* import .*\bDataLoader\b.*$", r"\g<0>\nDataLoader = _loader", texts[name]
        )
    for what in script.get("data_sets", []) if wraps else ():
        named = f", uri_of=lambda at: {script['files']}" if "files" in script else ""
        first[made_in] += f"import foreload.torch; _wrap = lambda made: foreload.torch.wrap(made{named})\n"
        first[made_in] += "_wrapped = lambda make: lambda *given, **named: _wrap(make(*given, **named))\n"
        texts[made_in] = re.sub(rf"(?<![\w.])(?<!class ){re.escape(what)}\(", f"_wrapped({what})(", texts[made_in])
    for name, text in texts.items():
        future = re.search(r"(?m)^from __future__ .*\n", text)
        at = future.end() if future else 0
        (folder / name).write_text(text[:at] + first[name] + text[at:])


def environment(here: Path, work: Path, *, gpu: bool) -> dict[str, str]:
    """The variables of a run."""
    # A GPU adds in an order of its own unless it is asked not to.
    device = (
        {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if gpu else {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    )
    paths = [str(here / "watch"), str(here / "copy"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "WATCH_TO": str(here / "rank"),
        "FORELOAD_CACHE_DIR": str(here / "cache"),
        "OMP_NUM_THREADS": "1",
        **device,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(work / "huggingface"),
    }


def computed(here: Path) -> list[str]:
    """What a run computed: rank by rank, in order."""
    return [line for log in sorted(here.glob("rank*")) for line in log.read_text().splitlines()]


def run(
    script: dict[str, Any], kind: str, workers: int, ranks: int, checkout: Path, here: Path, given: argparse.Namespace
) -> str:
    """Runs a script in a new directory, and says how it ended."""
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(checkout, here / "copy", ignore=shutil.ignore_patterns(".git"))
    (here / "watch").mkdir()
    (here / "watch/sitecustomize.py").write_text(WATCH)
    work = here.parent.parent
    filled = {"data": str(work / "data"), "out": str(here / "out"), "workers": str(workers)}
    edit(script, here / "copy", kind, filled)
    path = here / "copy" / script["path"]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    arguments = " ".join(script["arguments"].split())
    for of_cpu, of_gpu in ON_GPU.items() if given.gpu else ():
        arguments = arguments.replace(of_cpu, of_gpu)
    words = [*launcher, str(path), *arguments.format(**filled).split()]
    words += script["ranks"].split() if ranks > 1 else []
    with (
        (here / "output").open("w") as output,
        subprocess.Popen(
            [sys.executable, *words],
            cwd=path.parent,
            env=environment(here, work, gpu=given.gpu),
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
    ):
        try:
            code = process.wait(given.limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "too long"
    if code == 0:
        (here / "ended").touch()
    return "yes" if code == 0 else f"no ({code})"


def compare(name: str, ranks: int, workers: int, given: argparse.Namespace) -> bool:
    """Runs a script in all kinds and prints a line about each: whether all ended, and computed what torch's did where they must."""
    script, is_right = SCRIPTS[name], True
    expected: list[str] = []
    checkout = fetch(script, (given.checkout or given.work / "checkouts").resolve())
    for kind in ["torch", *(kind for kind in given.kinds if kind != "torch")]:
        loader, wraps = KINDS[kind]
        if (wraps and "data_sets" not in script) or (loader and "loader_in" not in script):
            continue
        begun = time.monotonic()
        here = given.work.resolve() / "runs" / f"{name}-{kind}-{ranks}-{workers}"
        ended = "yes"
        if not (given.reuse and kind == "torch" and (here / "ended").exists()):
            # Ranks may abort when they are done already (pytorch#179291).
            tries = (run(script, kind, workers, ranks, checkout, here, given) for _ in range(2 if ranks > 1 else 1))
            ended = next((found for found in tries if found == "yes"), "no")
        lines = computed(here)
        expected = expected if kind != "torch" else lines
        losses = [[line for line in each if line.startswith("loss")] for each in (lines, expected)]
        same = ["yes" if one and one == other else "no" for one, other in (losses, (lines, expected))]
        is_right &= ended == "yes" and (
            kind == "ours" or (kind == "as-torch" and workers > 0) or same == ["yes", "yes"]
        )
        seconds = f"{time.monotonic() - begun:.0f}"
        print(ROW.format(name, kind, ranks, workers, ended, len(losses[0]), *same, seconds), flush=True)
    return is_right


STOP = "import sys, foreload.cli; sys.argv = ['foreload', 'agent', 'stop', '--force']; foreload.cli.main()"
ROW = "{:28}{:10}{:>6}{:>9}  {:7}{:>7}  {:14}{:11}{:>8}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="a directory for data, copies and outputs")
    parser.add_argument(
        "--checkout", type=Path, help="where the repositories are, by name (default: fetched below --work)"
    )
    parser.add_argument("--only", nargs="*", default=list(SCRIPTS), choices=SCRIPTS, metavar="SCRIPT")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--workers", nargs="*", type=int, default=[0, 2])
    parser.add_argument("--ranks", nargs="*", type=int, default=[1])
    parser.add_argument("--gpu", action="store_true", help="train on the GPU, where a script lets itself be told so")
    parser.add_argument("--limit", type=float, default=300, help="seconds a run may take")
    parser.add_argument("--reuse", action="store_true", help="compare with what torch's loader came to the last time")
    given = parser.parse_args()
    if not (given.work / "data").exists():
        make_data(given.work / "data")
    print(ROW.format("script", "kind", "ranks", "workers", "ended", "losses", "losses equal", "all equal", "seconds"))
    with tempfile.TemporaryDirectory(prefix="fl-") as sockets:
        os.environ["FORELOAD_RUNTIME_DIR"] = sockets
        cases = [(name, ranks, workers) for name in given.only for ranks in given.ranks for workers in given.workers]
        right = [compare(*case, given) for case in cases if case[1] == 1 or "ranks" in SCRIPTS[case[0]]]
        subprocess.run([sys.executable, "-c", STOP], check=False, capture_output=True)
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
