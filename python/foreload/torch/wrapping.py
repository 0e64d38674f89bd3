"""`wrap`: a data set of torchvision's kind, with the bytes of its files from the agent.

Such a data set lists (path, target) pairs in `samples` and reads a path with its `loader`. The wrapped one does everything else itself, its
transforms included; only what `loader` opens comes from the agent, read ahead and cached. A loader of one's own gets the path of an
anonymous file with the bytes.
"""

from __future__ import annotations

import copy
import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import foreload
from foreload._decode import Meta
from foreload.cache import Cache
from foreload.errors import InvalidError
from foreload.failures import OnError
from foreload.torch.dataset import Dataset


def wrap(
    dataset: Any,
    *,
    root: str | os.PathLike[str] | None = None,
    cache: Cache | None = None,
    seed: int = 0,
    on_error: OnError = "raise",
) -> Wrapped:
    """Reads the files of a data set through the agent.

    Args:
        dataset: A map-style data set with `samples`, a list of (path, target), and `loader`, which reads a path: torchvision's ImageFolder,
            DatasetFolder and what derives from them.
        root: The directory below which all paths lie. Default: the data set's `root`.
        cache: Budgets.
        seed: What randomness depends on in worker processes, besides epoch and sample.
        on_error: `"raise"`, or `foreload.skip(...)`.

    Returns:
        A data set with the same items in the same order, for `foreload.torch.DataLoader`, or for torch's own with a `foreload.torch.Sampler`.

    Raises:
        InvalidError: The data set is of another kind, or a path isn't below the root.
    """
    if not (hasattr(dataset, "samples") and callable(getattr(dataset, "loader", None))):
        raise InvalidError(
            f"wrap: {type(dataset).__name__} has no `samples` and `loader` as torchvision's folders have; open its files with foreload.open "
            "and give what it does with them as decode="
        )
    top = Path(root if root is not None else dataset.root).expanduser().absolute()
    whole = foreload.open(top, format="flat")
    numbers = {whole.key(sample): sample for sample in range(len(whole))}
    try:
        chosen = [numbers[str(Path(path).absolute().relative_to(top))] for path, *_ in dataset.samples]
    except (KeyError, ValueError) as error:
        raise InvalidError(f"wrap: {error} is not below {top}") from None
    return Wrapped(dataset, whole.select(chosen), cache=cache, seed=seed, on_error=on_error)


class Wrapped(Dataset):
    """Made by `wrap`.

    Args:
        dataset: The data set.
        files: Its files, in its order.
        cache: Budgets.
        seed: What randomness depends on.
        on_error: What to do with samples that fail.
    """

    #: Items are whole: the data set gives them their targets.
    paired = False

    def __init__(self, dataset: Any, files: foreload.Dataset, **keywords: Any) -> None:
        self._shadow = copy.copy(dataset)
        self._file = _File(dataset.loader)
        self._shadow.loader = self._file
        super().__init__(files, decode=_Item(self._shadow, self._file), **keywords)

    @property
    def classes(self) -> list[str]:
        """Names of the classes."""
        return list(self._shadow.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Each class' label."""
        return dict(self._shadow.class_to_idx)

    def __getattr__(self, name: str) -> Any:
        """What the data set has besides: `targets`, `imgs`, ..."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._shadow, name)


class _Item:
    """The decoder of a wrapped data set: its own item, over the bytes that came."""

    def __init__(self, shadow: Any, file: _File) -> None:
        self._shadow, self._file = shadow, file

    def __call__(self, data: memoryview, meta: Meta) -> Any:
        with self._file.of(data):
            return self._shadow[meta.sample]


class _File:
    """Stands for a data set's `loader`; thread by thread it knows the bytes of the file that is asked for."""

    def __init__(self, loader: Callable[[Any], Any]) -> None:
        self._loader = loader
        self._pillow = getattr(loader, "__module__", "") == "torchvision.datasets.folder"
        self._local = threading.local()

    def of(self, data: memoryview) -> _File:
        """From now on the file has these bytes."""
        self._local.data = data
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._local.data = None

    def __call__(self, path: Any) -> Any:
        data = getattr(self._local, "data", None)
        if data is None:
            return self._loader(path)
        if self._pillow:
            from PIL import Image

            return Image.open(io.BytesIO(data)).convert("RGB")
        file = os.memfd_create("foreload-file")
        try:
            os.write(file, data)
            return self._loader(f"/proc/self/fd/{file}")
        finally:
            os.close(file)

    def __getstate__(self) -> dict[str, Any]:
        return {"loader": self._loader}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["loader"])  # type: ignore[misc] # the state is the constructor's argument
