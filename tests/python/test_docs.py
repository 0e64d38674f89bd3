"""What README and guide show about Python runs, page by page, in the order of a reader.

Only names of places differ: the buckets are a test bucket, budgets are small, and one epoch stands for ninety. What a page takes
for granted of the reader's (a model, a transform) is in `OWN`. Pages about frameworks that the tests don't install are only parsed
(`test_guide`); `tests/integrations` runs them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket import Bucket

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")
pytest.importorskip("torchvision.transforms.v2")

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "",
    "docs/guide/quickstart.md": "boto3 np augment",
    "docs/guide/torch.md": "torch torchvision PIL augment transform names data decode DataLoader TensorDataset images labels fl",
    "docs/guide/distributed.md": "data DataLoader mesh",
    "docs/guide/resume.md": "torch model loader",
}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The buckets of the pages: pictures in classes, photos and sketches, a city with masks."""
    from PIL import Image

    root = tmp_path_factory.mktemp("docs")
    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        for place in (
            f"bucket/imagenet/train/{('cat', 'dog')[number % 2]}/{number:03}.jpg",
            f"bucket/data/{number:03}.jpg",
            f"bucket/photos/a/{number:03}.jpg",
            f"other/sketches/a/{number:03}.jpg",
            f"bucket/city/images/{number:03}.jpg",
            f"bucket/city/masks/{number:03}.png",
        ):
            path = root / place
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    with Bucket(directory=root) as running:
        running.root = root
        yield running


def augment(image: Any) -> Any:
    """Whatever it is given, as a tensor of one shape."""
    image = torchvision.transforms.v2.functional.to_image(image)
    return torchvision.transforms.v2.functional.resize(image, [8, 8])


def own(bucket: Any) -> dict[str, Any]:
    """What a reader has."""
    import boto3
    import PIL.Image

    import foreload as fl
    from foreload.torch import DataLoader

    class Profile(boto3.Session):
        def __init__(self, profile_name: str) -> None:
            keys = bucket.environment()
            super().__init__(keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"])

    class Mesh:
        def __getitem__(self, name: str) -> Mesh:
            return self

        def get_local_rank(self) -> int:
            return 0

        def size(self) -> int:
            return 1

    data = fl.open("s3://bucket/imagenet/train")

    def decode(raw: Any) -> Any:
        return augment(PIL.Image.open(io.BytesIO(raw)))

    return {
        "DataLoader": DataLoader,
        "PIL": PIL,
        "TensorDataset": torch.utils.data.TensorDataset,
        "augment": augment,
        "boto3": type("boto3", (), {"Session": Profile}),
        "data": data,
        "decode": decode,
        "fl": fl,
        "images": torch.zeros(130, 3),
        "labels": torch.zeros(130),
        "loader": DataLoader(data, 4, shuffle=True, decode=decode),
        "mesh": Mesh(),
        "model": torch.nn.Linear(2, 2),
        "names": [f"{number:03}" for number in range(24)],
        "np": np,
        "torch": torch,
        "torchvision": torchvision,
        "transform": lambda image, mask: (augment(image), augment(mask)),
    }


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_runs(
    page: str, home: Any, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = bucket.environment()
    here = {
        "gs://other": "s3://other",
        "/lustre/imagenet": f"{bucket.root}/bucket/imagenet",
        "/lustre/city": f"{bucket.root}/bucket/city",
        "/nvme/foreload:500GB": f"{tmp_path}:50MB",
        "32GB": "32MB",
        "range(90)": "range(1)",
        ", 90):": ", 1):",
        "https://minio:9000": keys["AWS_ENDPOINT_URL"],
        '"access_key_id": "..."': f'"access_key_id": "{keys["AWS_ACCESS_KEY_ID"]}"',
        '"secret_access_key": "..."': f'"secret_access_key": "{keys["AWS_SECRET_ACCESS_KEY"]}"',
    }
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    everything = own(bucket)
    known = {name: everything[name] for name in PAGES[page].split()}
    del everything
    for block in blocks:
        for theirs, ours in here.items():
            block = block.replace(theirs, ours)
        exec(compile(block, page, "exec"), known)
        # A loader that was only made is read, too.
        if "loader = " in block and "in loader:" not in block:
            assert sum(1 for _ in known["loader"]) > 0
