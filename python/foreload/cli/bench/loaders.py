"""The loaders that are measured: ours with and without torch, and torch's own reading through boto3.

All of them shuffle and hand out bytes, so that only the supply is compared.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foreload import Cache, Dataset


@dataclass(frozen=True)
class Settings:
    """What all loaders are given.

    Attributes:
        batch_size: Samples per batch.
        epochs: Epochs that will be read.
        workers: Worker processes.
        connections: Most requests in flight; None: the loader's own choice.
        seed: The shuffle's.
        cache: Our budgets.
    """

    batch_size: int
    epochs: int
    workers: int
    connections: int | None
    seed: int
    cache: "Cache"


@dataclass(frozen=True)
class Subject:
    """A loader to measure.

    Attributes:
        name: What it is called.
        loader: It.
        settings: How it was set up, for the report.
        counters: Answers with its requests and hits so far; None where nobody counts.
    """

    name: str
    loader: Iterable[Any]
    settings: str
    counters: Callable[[], dict[str, Any]] | None


def ours(dataset: "Dataset", settings: Settings) -> Subject:
    """Foreload: in torch where there are workers, otherwise without."""
    import foreload

    shared: dict[str, Any] = {
        "batch_size": settings.batch_size,
        "shuffle": True,
        "seed": settings.seed,
        "epochs": settings.epochs,
        "cache": settings.cache,
    }
    if settings.workers:
        from foreload.torch import DataLoader

        loader: Any = DataLoader(dataset, num_workers=settings.workers, persistent_workers=True, **shared)
        text, run = f"foreload.torch.DataLoader, {settings.workers} workers", loader.run
    else:
        loader = foreload.NumpyLoader(dataset, **shared)
        text, run = "foreload.NumpyLoader", loader._run  # noqa: SLF001 (loaders have no argument for connections)
    if settings.connections is not None:
        # Fixed, so that a number of connections can be compared with the same number elsewhere.
        count = settings.connections
        run.recipe.attach["concurrency"] = {"start": count, "least": count, "most": count}
        text += f", {count} connections"
    return Subject("foreload", loader, text, run.stats)


def stock(dataset: "Dataset", settings: Settings) -> Subject:
    """Torch's loader over a map-style data set that reads files, or a bucket through boto3."""
    from foreload.torch._stock import stock_loader

    is_local = "://" not in dataset.url or dataset.url.startswith("file://")
    samples: Any = FileSamples(dataset) if is_local else Boto3Samples(dataset)
    loader = stock_loader(
        samples, settings.batch_size, seed=settings.seed, num_workers=settings.workers, collate_fn=columns
    )
    reads = "open()" if is_local else "boto3"
    return Subject("torch", loader, f"torch DataLoader + {reads}, {settings.workers} workers", None)


LOADERS: dict[str, Callable[["Dataset", Settings], Subject]] = {"foreload": ours, "torch": stock}


def columns(pairs: list[tuple[bytes, int]]) -> tuple[list[bytes], list[int]]:
    """A batch as ours is: bytes, labels."""
    return [data for data, _ in pairs], [label for _, label in pairs]


class FileSamples:
    """A directory's samples, as a map-style data set that knows nothing of Foreload when it reads.

    Args:
        dataset: Says which.
    """

    def __init__(self, dataset: "Dataset") -> None:
        root = Path(dataset.url.removeprefix("file://"))
        index = dataset.source.opened().index
        self._places = [[place[:3] for place in index.ranges(sample)] for sample in range(len(dataset))]
        self._labels = dataset.labels.tolist()
        self._root = root

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, sample: int) -> tuple[bytes, int]:
        return b"".join(self._read(*place) for place in self._places[sample]), self._labels[sample]

    def _read(self, key: str, first: int, length: int) -> bytes:
        with (self._root / key).open("rb") as file:
            file.seek(first)
            return file.read(length)


class Boto3Samples:
    """A bucket's samples read with boto3, a client for each process, as torch users do it.

    Args:
        dataset: Says which.
    """

    def __init__(self, dataset: "Dataset") -> None:
        index = dataset.source.opened().index
        self._url, self._options = dataset.url, dict(dataset.source.call["storage_options"])
        self._bucket, _, prefix = index.root.partition("://")[2].partition("/")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._places = [[place[:4] for place in index.ranges(sample)] for sample in range(len(dataset))]
        self._labels = dataset.labels.tolist()
        self._client: Any = None

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, sample: int) -> tuple[bytes, int]:
        if self._client is None:
            from foreload.cli.boto import client

            self._client = client(self._url, self._options)
        return b"".join(self._read(*place) for place in self._places[sample]), self._labels[sample]

    def _read(self, key: str, first: int, length: int, size: int) -> bytes:
        wanted = {"Bucket": self._bucket, "Key": self._prefix + key}
        if length != size:
            wanted["Range"] = f"bytes={first}-{first + length - 1}"
        body: bytes = self._client.get_object(**wanted)["Body"].read()
        return body
