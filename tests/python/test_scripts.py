"""Training scripts as people have them, run with torch's loader and with ours in its place: the same losses to the last bit.

What differs between the two runs is what the script imports, and `wrap` around a folder of images or `open` in place of files in memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")

#: What a script begins with: ours over torch's.
FOLDERS = {
    "torch": "from torch.utils.data import DataLoader\nfrom torchvision.datasets import ImageFolder\n",
    "dataset": """
from torch.utils.data import DataLoader
from torchvision import datasets
from foreload.torch import wrap
import foreload
def ImageFolder(*args, **keywords):
    return wrap(datasets.ImageFolder(*args, **keywords), cache=foreload.Cache(ram="32MB"))
""",
    "loader": """
from foreload.torch import DataLoader, wrap
from torchvision import datasets
import foreload
def ImageFolder(*args, **keywords):
    return wrap(datasets.ImageFolder(*args, **keywords), cache=foreload.Cache(ram="32MB"))
""",
}

CLASSIFY = """
import sys, torch, torchvision
from torch import nn
from torch.utils.data import WeightedRandomSampler, default_collate
from torchvision.transforms import v2

def collate_fn(batch):
    return mixup_or_cutmix(*default_collate(batch))

mixup_or_cutmix = v2.RandomChoice([v2.MixUp(num_classes=3), v2.CutMix(num_classes=3)])
torch.manual_seed(0)
# Our loader seeds its workers sample by sample: what is drawn in them is not torch's.
flips = [] if sys.argv[2] == "loader" else [v2.RandomHorizontalFlip()]
transform = v2.Compose([v2.PILToTensor(), *flips, v2.ToDtype(torch.float, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)])
dataset = ImageFolder(sys.argv[1], transform=transform)
dataset_test = ImageFolder(sys.argv[1], transform=transform)
counts = torch.bincount(torch.tensor(dataset.targets))
weights = [1.0 / counts[target].item() for target in dataset.targets]
train_sampler = WeightedRandomSampler(weights, len(dataset), replacement=True)
workers = int(sys.argv[3])
mixes = None if sys.argv[2] == "loader" and workers else collate_fn
data_loader = DataLoader(
    dataset, batch_size=8, sampler=train_sampler, num_workers=workers, pin_memory=True, collate_fn=mixes,
    **({"threads": 0} if sys.argv[2] == "loader" else {}),
)
data_loader_test = DataLoader(dataset_test, batch_size=16, sampler=torch.utils.data.SequentialSampler(dataset_test), num_workers=workers)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, len(dataset.classes)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for epoch in range(2):
    model.train()
    for i, (image, target) in enumerate(data_loader):
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, i, f"{i / len(data_loader):.2f}", loss.item().hex())
    model.eval()
    with torch.inference_mode():
        found = [model(image).argmax(1).eq(target).sum().item() for image, target in data_loader_test]
    print("accuracy", sum(found) / len(data_loader_test.dataset))
"""

DISTRIBUTED = """
import os, sys, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import Sampler, Subset
from torch.utils.data.distributed import DistributedSampler
from torchvision.transforms import v2

class Repeated(Sampler):
    # Each sample thrice among the ranks, for as many samples as there are.
    def __init__(self, dataset):
        self.dataset, self.epoch = dataset, 0
    def __len__(self):
        return len(self.dataset) // dist.get_world_size()
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __iter__(self):
        order = torch.randperm(len(self.dataset), generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.repeat_interleave(3)[dist.get_rank() :: dist.get_world_size()].tolist()[: len(self)])

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
transform = v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float, scale=True)])
dataset = ImageFolder(sys.argv[1], transform=transform)
val = ImageFolder(sys.argv[1], transform=transform)
sampler = Repeated(dataset) if sys.argv[4] == "repeated" else DistributedSampler(dataset, seed=5, drop_last=True)
val_sampler = DistributedSampler(val, shuffle=False)
workers = int(sys.argv[3])
loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=workers, drop_last=True, persistent_workers=workers > 0)
val_loader = DataLoader(val, batch_size=4, sampler=val_sampler, num_workers=workers)
# What the ranks can't share equally, each validates.
rest = Subset(val_loader.dataset, range(47, len(val_loader.dataset)))
rest_loader = DataLoader(rest, batch_size=4, shuffle=False, num_workers=workers)
torch.manual_seed(1)
model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
# Gone on with where a checkpoint of the model was.
for epoch in range(3, 6):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        os.write(1, f"{rank} {epoch} {loss.item().hex()}\\n".encode())
    with torch.no_grad():
        right = sum((model.module(images).argmax(1) == labels).sum() for images, labels in (*val_loader, *rest_loader))
    dist.all_reduce(right)
    os.write(1, f"{rank} right {right.item()}\\n".encode())
# A thread of gloo aborts a process that ends while the group, or a sum of it, is held (pytorch#179291).
model = optimizer = loss = right = None
dist.destroy_process_group()
"""

STEPS = """
import sys, torch, torchvision
from torch import nn
from torch.utils.data import RandomSampler
from torchvision.transforms import v2

torch.manual_seed(3)
workers = int(sys.argv[3])
transform = v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float, scale=True)])
dataset = ImageFolder(root=sys.argv[1], transform=transform)
generate = nn.Sequential(nn.Linear(4, 3 * 12 * 12), nn.Tanh())
judge = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 1))
optimizers = [torch.optim.Adam(each.parameters(), lr=0.01) for each in (generate, judge)]
criterion = nn.BCEWithLogitsLoss()
sampler = RandomSampler(dataset, replacement=True, num_samples=30)
loader = DataLoader(dataset, sampler=sampler, shuffle=False, pin_memory=True, batch_size=4, num_workers=workers)
batches = iter(loader)
for step in range(12):
    try:
        real = next(batches)[0]
    except StopIteration:
        batches = iter(loader)
        real = next(batches)[0]
    made = generate(torch.randn(len(real), 4)).view(real.shape)
    found = criterion(judge(real), torch.ones(len(real), 1)) + criterion(judge(made.detach()), torch.zeros(len(real), 1))
    judge.zero_grad(); found.backward(); optimizers[1].step()
    fooled = criterion(judge(made), torch.ones(len(real), 1))
    generate.zero_grad(); fooled.backward(); optimizers[0].step()
    print(step, found.item().hex(), fooled.item().hex())
# It ends within a pass.
"""

PREFETCHED = """
import sys, torch
import numpy as np
from functools import partial
from torch import nn
from torch.utils.data import Sampler

def begin(worker_id, seeding):
    info = torch.utils.data.get_worker_info()
    assert info.id == worker_id
    np.random.seed(info.seed % (2**32 - 1))

class Augment:
    def __init__(self, is_random):
        self.is_random = is_random
    def __call__(self, image):
        found = np.rollaxis(np.array(image, dtype=np.uint8), 2)
        turned = self.is_random and np.random.rand() < 0.5
        return found[:, :, ::-1].copy() if turned else found

def fast_collate(batch):
    images = torch.zeros((len(batch), *batch[0][0].shape), dtype=torch.uint8)
    for image, (array, _) in zip(images, batch):
        image += torch.from_numpy(array)
    return images, torch.tensor([target for _, target in batch])

class Ordered(Sampler):
    def __init__(self, dataset):
        self.dataset = dataset
    def __len__(self):
        return len(self.dataset)
    def __iter__(self):
        return iter(range(len(self.dataset)))

class Prefetched:
    # A batch ahead of the loop, as if it were on its way to a device.
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        at_hand = None
        for images, targets in self.loader:
            upcoming = images.float().sub_(127).div_(64), targets
            if at_hand is not None:
                yield at_hand
            at_hand = upcoming
        yield at_hand
    def __len__(self):
        return len(self.loader)
    dataset = property(lambda self: self.loader.dataset)
    sampler = property(lambda self: self.loader.sampler)

def create_loader(dataset, is_training, workers):
    # The transform is the loader's affair, and the data set is made already.
    dataset.transform = Augment(is_training and sys.argv[2] != "loader")
    sampler = torch.utils.data.RandomSampler(dataset) if is_training and sys.argv[2] == "loader" else None if is_training else Ordered(dataset)
    return Prefetched(DataLoader(
        dataset, batch_size=8, shuffle=is_training and sampler is None, sampler=sampler, drop_last=is_training, num_workers=workers,
        collate_fn=fast_collate, worker_init_fn=partial(begin, seeding="all"), persistent_workers=workers > 0,
    ))

torch.manual_seed(42), np.random.seed(42)
workers = int(sys.argv[3])
loaders = [create_loader(ImageFolder(sys.argv[1]), is_training, workers) for is_training in (True, False)]
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for of in (loaders[0].dataset, loaders[0].sampler):
        if hasattr(of, "set_epoch"):
            of.set_epoch(epoch)
    for images, targets in loaders[0]:
        loss = nn.functional.cross_entropy(model(images), targets)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(epoch, loss.item().hex())
    with torch.inference_mode():
        print([model(images).argmax(1).tolist() for images, _ in loaders[1]], len(loaders[0]), len(loaders[1]))
"""

TRAINER = """
import random, sys
import numpy as np
import torch
from dataclasses import dataclass
from functools import partial
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler, Subset

def seed_worker(worker_id, num_workers, rank):
    seed = torch.initial_seed() % 2**32
    random.seed(seed); np.random.seed(seed); torch.manual_seed(seed)

@dataclass
class Collator:
    pad: int
    def __call__(self, features):
        features = [{"input_ids": list(data)[:64], "labels": label} if isinstance(data, (bytes, memoryview)) else data for data, label in features]
        longest = max(len(each["input_ids"]) for each in features)
        for each in features:
            each["input_ids"] = each["input_ids"] + [self.pad] * (longest - len(each["input_ids"]))
        return {name: torch.tensor([each[name] for each in features]) for name in ("input_ids", "labels")}

def get_train_dataloader(train_dataset, workers):
    generator = torch.Generator()
    generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    sampler = RandomSampler(train_dataset, generator=generator)
    params = {"batch_size": 8, "collate_fn": Collator(0), "num_workers": workers, "pin_memory": False, "persistent_workers": workers > 0}
    params |= {"sampler": sampler, "drop_last": True}
    if workers:
        params |= {"prefetch_factor": 2, "worker_init_fn": partial(seed_worker, num_workers=workers, rank=0)}
    return DataLoader(train_dataset, **params)

if __name__ == "__main__":
    torch.manual_seed(42)
    workers = int(sys.argv[3])
    dataset = make(sys.argv[1])
    assert len(dataset[0]) == 2
    split = [int(at) for at in torch.randperm(len(dataset))]
    train, held_out = Subset(dataset, split[8:]), Subset(dataset, split[:8])
    model = nn.Sequential(nn.EmbeddingBag(256, 16), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for whole in (dataset, train):
        loader = get_train_dataloader(whole, workers)
        for epoch in range(2):
            for inputs in loader:
                loss = nn.functional.cross_entropy(model(inputs["input_ids"]), inputs["labels"])
                optimizer.zero_grad(); loss.backward(); optimizer.step()
                print(epoch, loss.item().hex())
        loader = None
    for inputs in DataLoader(held_out, sampler=SequentialSampler(held_out), batch_size=3, collate_fn=Collator(0), num_workers=workers):
        print("held out", model(inputs["input_ids"]).argmax(1).tolist())
"""
MADE = {
    "torch": """
from pathlib import Path
def make(root):
    files = sorted(Path(root).glob("*/*"))
    classes = sorted({file.parent.name for file in files})
    return [(file.read_bytes(), classes.index(file.parent.name)) for file in files]
""",
    "dataset": """
import foreload
from foreload.torch import Dataset as Ours
def make(root):
    return Ours(foreload.open(root), cache=foreload.Cache(ram="32MB"))
""",
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    root = tmp_path_factory.mktemp("scripts") / "images"
    for number in range(50):
        path = root / "abc"[number % 3 if number % 4 else 0] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(number).integers(0, 255, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(values).save(path)
    return root


def lines(script: str, images: Path, kind: str, workers: int, launcher: tuple[str, ...] = ()) -> list[str]:
    path = images.parent / f"script_{kind}.py"
    path.write_text(script)
    words = [sys.executable, *launcher, str(path), str(images), kind, str(workers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=110, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [line for line in done.stdout.splitlines() if line]
    assert len(found) > 8
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "workers"), [("dataset", 2), ("loader", 0)])
def test_a_classification_script_with_weights_and_mixed_images(
    home: Any, images: Path, kind: str, workers: int
) -> None:
    given = kind if kind == "loader" else "dataset"
    plain = CLASSIFY.replace("sys.argv[2]", repr(given)).replace('{"threads": 0}', "{}")
    expected = lines(FOLDERS["torch"] + plain, images, "torch", workers)
    assert lines(FOLDERS[kind] + CLASSIFY, images, kind, workers) == expected


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("sampler", "kinds"), [("plain", ("dataset", "loader")), ("repeated", ("loader",))])
def test_a_distributed_script_that_goes_on_at_an_epoch(
    home: Any, images: Path, sampler: str, kinds: tuple[str, ...]
) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    # Without workers: a fork beside gloo's threads may hang, whoever's loader it is.
    script = DISTRIBUTED.replace("sys.argv[4]", repr(sampler))
    expected = lines(FOLDERS["torch"] + script, images, "torch", 0, launcher)
    for kind in kinds:
        assert sorted(lines(FOLDERS[kind] + script, images, kind, 0, launcher)) == sorted(expected)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "workers"), [("loader", 0), ("loader", 2)])
def test_a_script_of_steps_that_draws_between_batches_and_ends_within_a_pass(
    home: Any, images: Path, kind: str, workers: int
) -> None:
    assert lines(FOLDERS[kind] + STEPS, images, kind, workers) == lines(FOLDERS["torch"] + STEPS, images, kind, workers)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "workers"), [("dataset", 2), ("loader", 2)])
def test_a_script_whose_library_makes_the_loader_and_prefetches(
    home: Any, images: Path, kind: str, workers: int
) -> None:
    expected = lines(FOLDERS["torch"] + PREFETCHED, images, kind, workers)
    assert lines(FOLDERS[kind] + PREFETCHED, images, kind, workers) == expected


@pytest.mark.timeout(300)
def test_a_trainers_own_loader_over_our_data_set(home: Any, images: Path) -> None:
    expected = lines(MADE["torch"] + TRAINER, images, "torch", 2)
    assert lines(MADE["dataset"] + TRAINER, images, "dataset", 2) == expected
