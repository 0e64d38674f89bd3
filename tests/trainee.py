"""What the ranks of a run do in tests and benchmarks of several nodes: they read, say what they had and when, and train if they are told to.

Started by torchrun (`cluster.Nodes`), by another launcher, or by none with the variables of torchrun. The variable TRAINEE holds a `cluster.Work` as JSON. Each rank writes a line for each batch into `rankN.log`, and its loader's
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
from torch import distributed as dist

import foreload as fl
from foreload._node import launcher
from foreload.torch import DataLoader, Dataset, Sampler


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


def _take(raw: bytes, meta: Any) -> tuple[int, bytes]:
    return meta.sample, raw


def _see(raw: bytes, meta: Any) -> tuple[int, int, Any]:
    from PIL import Image

    image = Image.open(io.BytesIO(raw)).convert("RGB").resize((64, 64))
    return meta.sample, zlib.crc32(raw), image


def _values(pairs: list[Any]) -> list[Any]:
    return [value for value, _ in pairs]


class Files:
    """The files of a directory in the order of their names, and what each rank reads of them through torch's own loader, whose workers live on."""

    def __init__(self, work: Work, rank: int, world: int) -> None:
        from torch.utils.data import DataLoader as Stock
        from torch.utils.data import DistributedSampler

        self.files = sorted(path for path in Path(work.stock).rglob("*") if path.is_file())
        self.batch_size, self._epoch = work.batch, 0
        self._sampler: Any = DistributedSampler(self.files, world, rank, seed=5)  # type: ignore[arg-type]
        keywords: dict[str, Any] = {"num_workers": work.workers, "persistent_workers": work.workers > 0}
        read = _Files(self.files, late=work.late)
        self._loader: Any = Stock(read, work.batch, sampler=self._sampler, collate_fn=list, **keywords)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Any:
        self._sampler.set_epoch(self._epoch)
        self._epoch += 1
        return iter(self._loader)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "position": 0}

    def stats(self) -> dict[str, Any]:
        return {}


class _Files:
    """A data set of files, for torch."""

    def __init__(self, files: list[Path], *, late: bool) -> None:
        self.files, self.late = files, late

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[int, int | bytes]:
        raw = self.files[number].read_bytes()
        return number, raw if self.late else zlib.crc32(raw)


class Torchs:
    """Torch's own loader over our data set, in the order of our sampler."""

    def __init__(self, opened: Any, work: Work, world: int, cache: fl.Cache) -> None:
        from torch.utils.data import DataLoader as Stock

        self.batch_size = work.whole // world if work.whole else work.batch
        self.sampler = Sampler(
            opened,
            shuffle=True,
            seed=5,
            epochs=work.epochs,
            batch_size=self.batch_size,
            drop_last=bool(work.whole),
            policy=work.policy,
        )
        data = Dataset(opened, decode=_look, cache=cache)
        self._loader: Any = Stock(
            data, self.batch_size, sampler=self.sampler, collate_fn=_values, num_workers=work.workers
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Any:
        return iter(self._loader)

    def state_dict(self) -> dict[str, Any]:
        return self.sampler.state_dict()

    def stats(self) -> dict[str, Any]:
        return self.sampler.run().stats()


class Trainee:
    """A rank."""

    def __init__(self, work: Work) -> None:
        self.work, self.place = work, Path(work.place)
        found = launcher.place()
        assert found is not None, "no launcher says which rank this is"
        self.rank, self.world = found.rank, found.world
        self.model, self.had = None, 0
        if work.trains or work.saves:
            dist.init_process_group("gloo")
            self.model = Model() if work.trains else None
        self.state, self.before = self.place / "state.json", None
        self.loader: Any = Files(work, self.rank, self.world) if work.stock else self._loader()
        if work.saves and self.state.exists():
            self.loader.load_state_dict(json.loads(self.state.read_text()))

    def _loader(self) -> Any:
        work, opened = self.work, fl.open(self.work.url)
        self.before = self._before(opened) if work.beside else None
        disk = None if work.disk is None else f"{work.disk}/{os.environ['GROUP_RANK']}:{work.disk_bytes}"
        cache = fl.Cache(
            ram=work.ram,
            disk=disk,
            staging=work.staging or None,
            batches=work.batches or None,
            peers=self._peers(),
        )
        if work.torchs:
            return Torchs(opened, work, self.world, cache)
        return DataLoader(
            opened,
            work.whole // self.world if work.whole else work.batch,
            drop_last=bool(work.whole),
            shuffle=True,
            seed=5,
            decode=_see if work.trains else _take if work.late else _look,
            collate_fn=_values,
            num_workers=work.workers,
            cache=cache,
            epochs=work.epochs,
            local_ranks=[self.rank] if work.apart else None,
            assign=None if self.rank == work.alone else work.assign,
            policy=work.policy,
        )

    def _peers(self) -> Any:
        if not self.work.peers or self.rank == self.work.alone:
            return False
        meet = None
        if self.work.communicator:
            from mpi4py import MPI

            meet = MPI.COMM_WORLD
        return fl.Peers(wait_s=self.work.wait_s, meet=meet, tls=self.work.tls, group=self.work.group or None)

    def _before(self, opened: Any) -> Any:
        """A loader over another data set, made first."""
        cache = fl.Cache(ram=self.work.ram, peers=self._peers())
        some = opened.select(range(self.work.beside))
        return DataLoader(some, self.work.batch, decode=_look, collate_fn=_values, cache=cache)

    def run(self) -> None:
        """All epochs."""
        with (self.place / f"rank{self.rank}.log").open("a") as log:
            for epoch in range(int(self.loader.state_dict()["epoch"]), self.work.epochs):
                if self.before is not None:
                    with (self.place / f"beside{self.rank}.log").open("a") as other:
                        print(json.dumps([pair for batch in self.before for pair in batch]), file=other)
                self._epoch(epoch, log)

    def _epoch(self, epoch: int, log: Any) -> None:
        at = int(self.loader.state_dict()["position"]) // (self.loader.batch_size * self.world) % len(self.loader)
        begun = time.monotonic()
        for batch in self.loader:
            now, loss = time.monotonic(), None
            if self.work.late:
                batch = [(sample, zlib.crc32(raw)) for sample, raw in batch]
            if self.model is not None:
                loss = self.model.step([image for _, _, image in batch], [sample for sample, _, _ in batch])
            line = {"t": now, "waited": now - begun, "world": self.world, "epoch": epoch, "at": at, "loss": loss}
            print(json.dumps({**line, "batch": [[sample, crc] for sample, crc, *_ in batch]}), file=log, flush=True)
            time.sleep(self.work.pause_s)
            at, self.had = at + 1, self.had + 1
            if self.work.saves:
                self._save()
            if self.had == self.work.dies and self.rank == self.world - 1 and not (self.place / "died").exists():
                (self.place / "died").touch()
                os.kill(os.getpid(), 9)
            begun = time.monotonic()

    def _save(self) -> None:
        dist.barrier()
        if self.rank == 0:
            self.state.with_suffix(".new").write_text(json.dumps(self.loader.state_dict()))
            self.state.with_suffix(".new").rename(self.state)
        dist.barrier()

    def end(self) -> None:
        """Others ask for what is here until they are through, too."""
        (self.place / f"end{self.rank}").touch()
        end = time.monotonic() + 60
        all_of_them = [self.place / f"end{other}" for other in range(self.world)]
        while not all(path.exists() for path in all_of_them) and time.monotonic() < end:
            time.sleep(0.02)
        (self.place / f"stats{self.rank}.json").write_text(json.dumps(self.loader.stats()))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    trainee = Trainee(Work(**json.loads(os.environ["TRAINEE"])))
    trainee.run()
    trainee.end()
