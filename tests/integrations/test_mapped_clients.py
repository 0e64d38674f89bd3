"""Libraries of Hugging Face that map files, under `foreload run --mmap`: what they read is the same as without it, and it is there before they touch it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket import SlowFs

from foreload._mapped import preload

pytestmark = pytest.mark.needs("fuse")

SOON = 180
#: Of a data set and of a model, about.
BYTES = 32 << 20

CLIENTS = {
    "datasets": (
        "*.arrow",
        """
        import sys, zlib
        import datasets, numpy as np
        data = datasets.load_from_disk(sys.argv[1] + "/data").with_format("numpy")
        found = 0
        for row in range(len(data)):
            found = zlib.crc32(data[row]["value"].tobytes(), found)
        print(found)
        """,
    ),
    "datasets in a DataLoader with workers": (
        "*.arrow",
        """
        import sys, zlib
        import datasets, torch
        from torch.utils.data import DataLoader
        data = datasets.load_from_disk(sys.argv[1] + "/data").with_format("torch")
        found = 0
        for batch in DataLoader(data, 16, num_workers=2):
            found = zlib.crc32(batch["value"].numpy().tobytes(), found)
        print(found)
        """,
    ),
    "transformers": (
        "*.safetensors",
        """
        import sys, zlib
        import torch
        from transformers import AutoModelForCausalLM
        model = AutoModelForCausalLM.from_pretrained(sys.argv[1] + "/model")
        found = 0
        for name, value in sorted(model.state_dict().items()):
            found = zlib.crc32(value.numpy().tobytes(), zlib.crc32(name.encode(), found))
        print(found)
        # What is loaded may be trained: the file stays as it is.
        with torch.no_grad():
            for value in model.parameters():
                value.add_(1)
        """,
    ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set as `datasets` saves it, and a small model as `transformers` does, in several files."""
    import datasets
    import torch
    import transformers

    root = tmp_path_factory.mktemp("mapped")
    dice = np.random.default_rng(1)
    rows = [dice.integers(0, 255, 65_536, dtype=np.uint8) for _ in range(BYTES // 65_536)]
    datasets.Dataset.from_dict({"value": rows}).save_to_disk(str(root / "data"), max_shard_size="16MB")
    torch.manual_seed(1)
    shape = transformers.LlamaConfig(
        vocab_size=4096, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8
    )
    transformers.LlamaForCausalLM(shape).save_pretrained(root / "model", max_shard_size="16MB")
    assert len(list((root / "data").glob("*.arrow"))) > 1
    assert len(list((root / "model").glob("*.safetensors"))) > 1
    return root


@pytest.fixture
def store(files: Path, tmp_path: Path) -> Iterator[SlowFs]:
    """Both, each of their reads 2 ms away, and nothing of them in memory."""
    target = tmp_path / "store"
    target.mkdir()
    with SlowFs(files, target, delay_ms=2.0, mb_s=400, options=["--keep-cache"]) as mounted:
        yield mounted


def run(code: str, directory: Path, *before: str) -> str:
    """What a program prints; `before`: the command that runs it."""
    done = subprocess.run(
        [*before, sys.executable, "-c", textwrap.dedent(code), str(directory)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"},
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_FOUND: dict[str, str] = {}


@pytest.mark.parametrize("detector", ["poll", "off", "mprotect", "guard"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_library_finds_what_it_finds_without_it(
    store: SlowFs, files: Path, tmp_path: Path, client: str, detector: str
) -> None:
    if detector == "guard" and not preload.has_guard_pages():
        pytest.skip("no guard pages in mapped files before Linux 6.15")
    pattern, code = CLIENTS[client]
    if client not in _FOUND:
        _FOUND[client] = run(code, files)
    stats = tmp_path / "stats"
    sums = {path: path.read_bytes() for path in files.rglob(pattern)}
    ours = [sys.executable, "-m", "foreload", "run", "--mmap", pattern, "--detector", detector, "--stats", str(stats)]
    assert run(code, store.target, *ours, "--") == _FOUND[client]
    assert all(path.read_bytes() == was for path, was in sums.items())
    lines: list[dict[str, Any]] = (
        [json.loads(line) for line in stats.read_text().splitlines()] if stats.exists() else []
    )
    if detector == "off":
        assert not lines
        return
    assert all(line["off"] is None for line in lines)
    if detector != "poll":
        # Workers are forked, and lose their checkpoints; torch maps what it loads for itself, and that has none.
        assert client != "datasets" or sum(line["traps"] for line in lines) > 0, lines
        return
    # Workers read in turns, and end without a last line.
    assert sum(line["used_bytes"] for line in lines) > BYTES * (0.1 if "workers" in client else 0.6), lines
