"""What the two training scripts share: the data set as torch users write it, the network, and the measuring."""

from __future__ import annotations

import io
import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor, nn

CLASSES = 22
EDGE = 32


def decode(data: bytes) -> Tensor:
    """From an object's bytes to a tensor."""
    with Image.open(io.BytesIO(data)) as image:
        small = image.convert("RGB").resize((EDGE, EDGE), Image.Resampling.BILINEAR)
    pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
    return pixels.view(EDGE, EDGE, 3).permute(2, 0, 1).float().div_(255.0)


class BucketFolder(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Images in class folders of a bucket, read with boto3: what torch's tutorials lead to.

    Args:
        url: s3://bucket/prefix; the folder below it is the class, as in torchvision's ImageFolder.
        transform: From bytes to a tensor.
    """

    def __init__(self, url: str, transform: Callable[[bytes], Tensor]) -> None:
        self.bucket, _, self.prefix = url.removeprefix("s3://").partition("/")
        self.transform = transform
        self.client: Any = None
        pages = self._connect().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=f"{self.prefix}/")
        self.keys = sorted(entry["Key"] for page in pages for entry in page["Contents"])
        classes = sorted({key.split("/")[-2] for key in self.keys})
        self.labels = [classes.index(key.split("/")[-2]) for key in self.keys]

    def _connect(self) -> Any:
        import boto3

        return boto3.Session().client("s3")

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        if self.client is None:
            # One for each worker process: a client must not be shared by forked processes.
            self.client = self._connect()
        body = self.client.get_object(Bucket=self.bucket, Key=self.keys[at])["Body"].read()
        return self.transform(body), self.labels[at]


class SmallNet(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4)
        )  # fmt: skip
        self.head = nn.Linear(24 * 4 * 4, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).flatten(1))


class Epoch:
    """Measures an epoch, and reports it as a line of JSON.

    Args:
        number: Which, from 0.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.stall_s = 0.0
        self.losses: list[float] = []

    def __enter__(self) -> Self:
        self._requests = _requests()
        self._begun = time.perf_counter()
        return self

    def watch(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yields the loader's batches, and counts the time that the loop waits for them."""
        batches = iter(loader)
        while True:
            begun = time.perf_counter()
            batch = next(batches, None)
            self.stall_s += time.perf_counter() - begun
            if batch is None:
                return
            yield batch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self._begun
        line = {
            "epoch": self.number,
            "seconds": seconds,
            "stall_s": self.stall_s,
            "losses": self.losses,
            "requests": _requests() - self._requests,
        }
        if error is None:
            print(json.dumps(line), flush=True)


def _requests() -> int:
    """How many objects the test bucket was asked for so far; 0 where nobody counts."""
    url = os.environ.get("DEMO_COUNTERS")
    if url is None:
        return 0
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=20) as answer:
        return int(json.load(answer)["requests"].get("get", 0))
