"""What README and guide show about Python runs, page by page, in the order of a reader.

Only names of places differ: the buckets are a test bucket, budgets are small, and one epoch stands for ninety. What a page takes
for granted of the reader's (a model, a transform) is in `PAGES`. A comment before a block says what is special about it:

- `<!-- needs: MODULES -->`: the block, with the others of these modules on the page, is a test of its own, skipped where a module isn't there;
- `<!-- not run: REASON -->`: the block is only parsed. `NOT_RUN` counts these, and is meant to be short.
"""

from __future__ import annotations

import ast
import io
import re
import shlex
import socket
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from bucket import Bucket

from command import Command
from small import tar_shard

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")
pytest.importorskip("torchvision.transforms.v2")

ROOT = Path(__file__).resolve().parents[2]
#: What a page takes for granted; a block that needs a module has it, too.
PAGES = {
    "README.md": "",
    "docs/guide/quickstart.md": "boto3 np augment",
    "docs/guide/torch.md": "torch torchvision PIL augment transform names data decode DataLoader TensorDataset images labels fl",
    "docs/guide/distributed.md": "data DataLoader mesh",
    "docs/guide/nodes.md": "",
    "docs/guide/resume.md": "torch model loader",
    "docs/guide/migrating.md": "augment",
    "docs/guide/frameworks.md": "fl foreload torch data decode DataLoader Dataset Sampler collate",
    "docs/guide/plan.md": "",
}
#: Pages whose scripts make a process group: here of one rank, as torchrun would.
DISTRIBUTED = {"docs/guide/nodes.md", "docs/guide/migrating.md"}
#: Pages whose blocks run in test_guide.py, with a scenario, in test_mapped.py, with files, and in tests/system/test_mounted.py, with a mount.
ELSEWHERE = {"docs/guide/simulate.md", "docs/guide/cost.md", "docs/guide/mapped.md", "docs/guide/mount.md"}
NOT_RUN = Counter({("docs/guide/migrating.md", "another library's code"): 6})


class Block(NamedTuple):
    """A piece of Python on a page.

    Attributes:
        text: Its source.
        module: What it needs, with commas.
        reason: Why it isn't run.
        line: Where it begins.
    """

    text: str
    module: str
    reason: str
    line: int


_BLOCK = re.compile(r"^(?:<!-- (needs|not run): ([^\n]*) -->\n+)?```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[Block]:
    """The Python of a page."""
    return [
        Block(
            found[3],
            found[2] if found[1] == "needs" else "",
            found[2] if found[1] == "not run" else "",
            text.count("\n", 0, found.start(3)) + 1,
        )
        for found in _BLOCK.finditer(text)
    ]


def of_page(page: str) -> list[Block]:
    """The Python of one of our pages."""
    return blocks((ROOT / page).read_text())


#: A page, and a module that some of its blocks need. JAX comes last, for its threads and workers that are forked don't go together.
CASES = sorted(
    {(page, block.module) for page in PAGES for block in of_page(page)}, key=lambda case: (case[1] == "jax", case)
)


def test_every_page_with_python_is_run_and_few_blocks_are_not() -> None:
    pages = ["README.md", *(f"docs/guide/{path.name}" for path in sorted((ROOT / "docs/guide").glob("*.md")))]
    assert {page for page in pages if of_page(page)} == {*PAGES, *ELSEWHERE}
    left = Counter((page, block.reason) for page in pages for block in of_page(page) if block.reason)
    assert left == NOT_RUN
    for page in pages:
        assert len(of_page(page)) == len(re.findall(r"^\s*```python", (ROOT / page).read_text(), re.MULTILINE)), page
        for block in of_page(page):
            ast.parse(block.text, f"{page}:{block.line}")


def test_a_mark_is_of_the_block_that_follows_it() -> None:
    text = "a\n\n<!-- needs: jax -->\n\n```python\n1\n```\n\n<!-- not run: a GPU -->\n```python\n2\n```\n```python\n3\n```\n"
    assert blocks(text) == [Block("1\n", "jax", "", 6), Block("2\n", "", "a GPU", 11), Block("3\n", "", "", 14)]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The buckets of the pages: pictures in classes and in shards, photos and sketches, a city with masks."""
    from PIL import Image

    root = tmp_path_factory.mktemp("docs")
    pictures = []
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
        pictures.append((root / f"bucket/data/{number:03}.jpg").read_bytes())
    (root / "bucket/shards").mkdir()
    for shard in range(4):
        members = {}
        for number in range(6 * shard, 6 * shard + 6):
            members |= {f"{number:03}.jpg": pictures[number], f"{number:03}.cls": b"%d" % (number % 2)}
        tar_shard(root / f"bucket/shards/train-{shard:06}.tar", members)
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
    import foreload.torch as ft

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
        "DataLoader": ft.DataLoader,
        "Dataset": ft.Dataset,
        "PIL": PIL,
        "Sampler": ft.Sampler,
        "TensorDataset": torch.utils.data.TensorDataset,
        "augment": augment,
        "boto3": types.SimpleNamespace(Session=Profile),
        "collate": collate,
        "data": data,
        "decode": decode,
        "fl": fl,
        "foreload": fl,
        "images": torch.zeros(130, 3),
        "labels": torch.zeros(130),
        "loader": ft.DataLoader(data, 4, shuffle=True, decode=decode),
        "mesh": Mesh(),
        "model": torch.nn.Linear(2, 2),
        "names": [f"{number:03}" for number in range(24)],
        "np": np,
        "torch": torch,
        "torchvision": torchvision,
        "transform": lambda image, mask: (augment(image), augment(mask)),
    }


def collate(batch: list[tuple[Any, int]]) -> dict[str, Any]:
    """Keyword arguments of a model of the Trainer's."""
    return {"pixels": torch.stack([x for x, _ in batch]), "labels": torch.tensor([label for _, label in batch])}


def of_module(module: str) -> dict[str, Any]:
    """What a reader of a framework's section has: a model, and what trains it."""
    given: dict[str, Any] = {}
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    if module == "accelerate":
        import accelerate

        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        given = {"accelerator": accelerate.Accelerator(cpu=True), "model": network, "optimizer": optimizer}
    elif module == "lightning":
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.network = network

            def training_step(self, batch: Any, number: int) -> Any:
                images, labels = batch
                return torch.nn.functional.cross_entropy(self.network(images.float()), labels)

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        given = {"lightning": lightning, "module": Module()}
    elif module.startswith("transformers"):
        import transformers

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.network = network

            def forward(self, pixels: Any, labels: Any) -> dict[str, Any]:
                return {"loss": torch.nn.functional.cross_entropy(self.network(pixels.float()), labels)}

        arguments = transformers.TrainingArguments(
            "out", per_device_train_batch_size=8, max_steps=2, use_cpu=True, report_to=[], save_strategy="no"
        )
        arguments.remove_unused_columns = False
        given = {"transformers": transformers, "model": Model(), "arguments": arguments}
    elif module == "jax":
        import jax

        given = {
            "jax": jax,
            "decode": lambda raw: np.frombuffer(raw, np.uint8)[:64],
            "params": 0.0,
            "train_step": lambda params, images, labels: (params + 1, images.mean()),
        }
    return given


@pytest.fixture
def needed(module: str) -> None:
    """What a test needs is there."""
    for name in filter(None, module.split(", ")):
        pytest.importorskip(name)


@pytest.fixture
def launched(page: str, module: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One rank, as torchrun starts it, for the pages that have a process group."""
    monkeypatch.setenv("FORELOAD_SECRET", "known to these nodes only")
    if page not in DISTRIBUTED or module:
        yield
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", port)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def places(bucket: Any, here: Path) -> dict[str, str]:
    """What a page says, and what stands for it."""
    keys = bucket.environment()
    return {
        "gs://other": "s3://other",
        "s3://photos/train": "s3://bucket/photos",
        "/lustre/": f"{bucket.root}/bucket/",
        "/nvme/foreload:500GB": f"{here}:50MB",
        "/local/foreload:500GB": f"{here}:50MB",
        "/shared/indexes": str(here),
        "/shared/run1": str(here),
        "32GB": "32MB",
        "64GB": "32MB",
        "range(90)": "range(1)",
        ", 90):": ", 1):",
        'max_epochs=90, strategy="ddp", devices=8': 'max_epochs=1, accelerator="cpu", devices=1, logger=False',
        ', ckpt_path="last.ckpt"': "",
        "epochs=90": "epochs=1",
        "batch=1024": "batch=8",
        "batch_size=64": "batch_size=8",
        "num_workers=8": "num_workers=1",
        "num_workers=4": "num_workers=1",
        "https://minio:9000": keys["AWS_ENDPOINT_URL"],
        '"access_key_id": "..."': f'"access_key_id": "{keys["AWS_ACCESS_KEY_ID"]}"',
        '"secret_access_key": "..."': f'"secret_access_key": "{keys["AWS_SECRET_ACCESS_KEY"]}"',
    }


@pytest.mark.usefixtures("needed", "home", "launched")
@pytest.mark.parametrize(("page", "module"), CASES)
def test_what_a_page_shows_runs(
    page: str,
    module: str,
    bucket: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    here = places(bucket, tmp_path)
    if page in DISTRIBUTED:
        # Other pages have workers enough.
        here["num_workers=4"] = "num_workers=0"
    if page.endswith("nodes.md"):
        (line,) = re.findall(r"^\$ foreload (index .*)", (ROOT / page).read_text(), re.MULTILINE)
        run = Command(capsys, monkeypatch)
        assert run(*shlex.split(put(line, here))) == 0, run.err
    everything = own(bucket)
    known = {name: everything[name] for name in PAGES[page].split()} | of_module(module)
    del everything
    known["__name__"] = "__main__"
    for block in of_page(page):
        if block.module == module and not block.reason:
            text = put(block.text, here)
            exec(compile("\n" * (block.line - 1) + text, page, "exec"), known)
            # A loader that was only made is read, too.
            if "loader = " in text and not re.search(r"in loader:|iter\(loader\)", text):
                assert sum(1 for _ in known["loader"]) > 0
    if module.startswith("transformers"):
        known["trainer"].train()


def put(text: str, here: Mapping[str, str]) -> str:
    """A text with our places for those of a page."""
    for theirs, ours in here.items():
        text = text.replace(theirs, ours)
    return text
