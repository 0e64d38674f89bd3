"""What the ranks of a run do in tests and benchmarks of several nodes: they read, say what they had and when, and train if they are told to.

Started by torchrun (`cluster.Nodes`). The variable TRAINEE holds a `cluster.Work` as JSON. Each rank writes a line for each batch into `rankN.log`, and its loader's
counters into `statsN.json` when all are through.
"""

from __future__ import annotations

import io
import json
import logging
import os
import time
import zlib
from pathlib import Path
from typing import Any

from cluster import Work

import foreload as fl
from foreload.torch import DataLoader


class Model:
    """A small convolutional net under DDP, the same on all ranks."""

    def __init__(self) -> None:
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(0)
        torch.use_deterministic_algorithms(True)
        self.torch = torch
        net = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)
        )
        self.net = DistributedDataParallel(net)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.05)

    def step(self, images: list[Any], labels: list[int]) -> float:
        """One step; the mean loss over all ranks."""
        torch = self.torch
        batch = torch.stack(
            [torch.tensor(list(image.tobytes())).view(image.height, image.width, 3) for image in images]
        )
        values = batch.permute(0, 3, 1, 2).float() / 255
        loss = torch.nn.functional.cross_entropy(self.net(values), torch.tensor(labels) % 10)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        return float(mean) / torch.distributed.get_world_size()


def _look(raw: bytes, meta: Any) -> tuple[int, int]:
    return meta.sample, zlib.crc32(raw)


def _see(raw: bytes, meta: Any) -> tuple[int, int, Any]:
    from PIL import Image

    image = Image.open(io.BytesIO(raw)).convert("RGB").resize((64, 64))
    return meta.sample, zlib.crc32(raw), image


def _values(pairs: list[Any]) -> list[Any]:
    return [value for value, _ in pairs]


def main() -> None:
    """Runs a rank."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    work = Work(**json.loads(os.environ["TRAINEE"]))
    rank, world, place = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(work.place)
    model = None
    if work.trains or work.saves:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        model = Model() if work.trains else None
    peers: Any = work.peers and rank != work.alone and fl.Peers(wait_s=work.wait_s)
    disk = None if work.disk is None else f"{work.disk}/{os.environ['GROUP_RANK']}:{work.disk_bytes}"
    loader = DataLoader(
        fl.open(work.url),
        work.whole // world if work.whole else work.batch,
        drop_last=bool(work.whole),
        shuffle=True,
        seed=5,
        decode=_see if work.trains else _look,
        collate_fn=_values,
        num_workers=work.workers,
        cache=fl.Cache(ram=work.ram, disk=disk, peers=peers),
    )
    state, had = place / "state.json", 0
    if work.saves and state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    with (place / f"rank{rank}.log").open("a") as log:
        for epoch in range(int(loader.state_dict()["epoch"]), work.epochs):
            at = int(loader.state_dict()["position"]) // (loader.batch_size * world) % len(loader)
            begun = time.monotonic()
            for batch in loader:
                now = time.monotonic()
                loss = None
                if model is not None:
                    loss = model.step([image for _, _, image in batch], [sample for sample, _, _ in batch])
                line = {"t": now, "waited": now - begun, "world": world, "epoch": epoch, "at": at, "loss": loss}
                print(json.dumps({**line, "batch": [[sample, crc] for sample, crc, *_ in batch]}), file=log, flush=True)
                time.sleep(work.pause_s)
                at, had = at + 1, had + 1
                if work.saves:
                    dist.barrier()
                    if rank == 0:
                        state.with_suffix(".new").write_text(json.dumps(loader.state_dict()))
                        state.with_suffix(".new").rename(state)
                    dist.barrier()
                if had == work.dies and rank == world - 1 and not (place / "died").exists():
                    (place / "died").touch()
                    os.kill(os.getpid(), 9)
                begun = time.monotonic()
    # Others ask for what is here until they are through, too.
    (place / f"end{rank}").touch()
    end = time.monotonic() + 60
    while not all((place / f"end{other}").exists() for other in range(world)) and time.monotonic() < end:
        time.sleep(0.02)
    (place / f"stats{rank}.json").write_text(json.dumps(loader.stats()))


if __name__ == "__main__":
    main()
