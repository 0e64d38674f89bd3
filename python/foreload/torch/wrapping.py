"""`wrap`: a data set as it is, with the bytes of its files from the agent, or with its results kept.

A map-style data set reads files, and makes a sample of them. The wrapped one lets it: its own `__getitem__` runs, with its transforms, in the loop or in
worker processes, as under torch's loader. Only the files that it opens are there already. Which these are has to be known beforehand: torchvision's
folders list them in `samples`, of any other data set `uri_of` says so. `_named` makes a data set of ours of them, which loaders and samplers
read ahead like any other; `_opened` gives the code what it opens. Nothing that the data set opens besides is affected. With
`deterministic=True` no files are read ahead: the data set runs in worker processes, and what it makes is kept (`_kept`).
"""

from __future__ import annotations

import copy
import inspect
import logging
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

import torch
from torch.utils import data

import foreload
from foreload._data.named import name_of, open_named, parts_of
from foreload._node.credentials import Provider
from foreload._run.decode import Meta
from foreload._settings import numbers as _numbers
from foreload._settings.cache import Cache
from foreload._settings.failures import OnError
from foreload.errors import InvalidError, NotFoundError
from foreload.torch import _subset
from foreload.torch._kept import Kept
from foreload.torch._opened import Files, local
from foreload.torch.dataset import Dataset, Turn

_LOG = logging.getLogger("foreload")
#: Processes that count by themselves; workers beyond share a row, and may lose a count.
_ROWS = 129


@overload
def wrap(
    dataset: Any,
    url: str | os.PathLike[str] | None = None,
    /,
    *,
    uri_of: Callable[[int], Any] | None = None,
    root: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    credential_provider: Provider | None = None,
    refresh: bool = False,
    cache: Cache | None = None,
    seed: int = 0,
    on_error: OnError = "raise",
    deterministic: Literal[False] = False,
    **keywords: Any,
) -> Wrapped: ...


@overload
def wrap(
    dataset: Any,
    /,
    *,
    deterministic: Literal[True],
    name: str,
    then: Callable[[Any], Any] | None = None,
    check: int = 1000,
    cache: Cache | None = None,
) -> Kept[Any]: ...


def wrap(
    dataset: Any,
    url: str | os.PathLike[str] | None = None,
    /,
    *,
    uri_of: Callable[[int], Any] | None = None,
    root: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    credential_provider: Provider | None = None,
    refresh: bool = False,
    cache: Cache | None = None,
    seed: int = 0,
    on_error: OnError = "raise",
    deterministic: bool = False,
    **keywords: Any,
) -> Wrapped | Kept[Any]:
    """Reads the files of a data set through the agent, or keeps what it makes.

    Args:
        dataset: A map-style data set. One that has `samples`, a list of (path, target), and `loader`, which reads a path, names its files itself:
            torchvision's ImageFolder, DatasetFolder and what derives from them, also as a `Subset`. Any other needs `uri_of`, or
            `deterministic=True`. Or torchvision's class, to be made of what lies at `url`.
        url: Of a class: the URL or directory of which it is made, as torchvision would make it of a directory: `wrap(ImageFolder,
            "s3://bucket/train", transform=...)`.
        uri_of: From a sample's number to the path or URL of its file, or a list of them. All lie in one bucket, or on this machine.
        root: The directory below which all paths lie, where the data set names them. Default: the data set's `root`.
        storage_options: As for `foreload.open`.
        credential_provider: As for `foreload.open`.
        refresh: Look files up again whose list is known.
        cache: Budgets.
        seed: What randomness depends on in worker processes, besides epoch and sample.
        on_error: `"raise"`, or `foreload.skip(...)`.
        deterministic: The data set makes the same of a number each time. What it makes is kept within `cache`, for all processes of this node, and on disk for
            later runs; nothing is read ahead by the agent. Kept are tensors, NumPy arrays, Pillow images, bytes, str, numbers and None, in dicts,
            lists, tuples, named tuples and dataclasses. A sample with anything else is made each time, which a warning says once, and `stats()` counts.
            Takes `cache` and these keywords:
            `name` (required): what results are kept under, together with the length of the data set. Give another one when data or code change.
            `then`: applied to each result, kept or not: transforms that draw random numbers.
            `check`: one in so many samples (default: 1000), and the first of each process, is made again and compared bit for bit; 0: none. A
            difference is an `InvalidError` that names the sample.
        keywords: Of a class: what it is made with, such as `transform`.

    Returns:
        A data set with the same items in the same order, for `foreload.torch.DataLoader`, or for torch's own, with a `foreload.torch.Sampler` if its files are
        read.

    Raises:
        InvalidError: The data set names no files, or has no samples, or they lie in several places, or an argument means nothing for it.
        NotFoundError: A file isn't there.
    """
    if deterministic:
        given = {
            "a URL": url,
            "uri_of=": uri_of,
            "root=": root,
            "storage_options=": storage_options,
            "credential_provider=": credential_provider,
            "refresh=": refresh or None,
            "seed=": seed or None,
            "on_error=": None if on_error == "raise" else on_error,
        }
        for argument, value in given.items():
            if value is not None:
                raise InvalidError(
                    f"wrap: {argument} is for files that are read ahead; with deterministic=True the data set reads what it likes"
                )
        return _kept(dataset, cache, **keywords)
    options = _Options(storage_options, credential_provider, refresh)
    files: foreload.Dataset | None = None
    if isinstance(dataset, type):
        dataset, files = _made(dataset, url if url is not None else root, keywords, options)
    elif keywords or url is not None:
        what = ", ".join([*(["a URL"] if url is not None else []), *(f"{name}=" for name in keywords)])
        raise InvalidError(f"wrap: {what} is for a class to be made; {type(dataset).__name__} is made already")
    if files is None or uri_of is not None:
        files = _files(dataset, uri_of, root, options)
    return Wrapped(dataset, files, cache=cache, seed=seed, on_error=on_error)


def _kept(
    dataset: Any,
    cache: Cache | None,
    *,
    name: str | None = None,
    then: Callable[[Any], Any] | None = None,
    check: int = 1000,
    **unknown: Any,
) -> Kept[Any]:
    """A data set whose results are kept."""
    kind = dataset.__name__ if isinstance(dataset, type) else type(dataset).__name__
    if unknown:
        raise InvalidError(
            f"wrap(deterministic=True) has no argument {next(iter(unknown))}=: it takes name, then, check, cache"
        )
    if isinstance(dataset, type):
        raise InvalidError(f"wrap: {kind} is a class; make its object and wrap that")
    if isinstance(dataset, data.IterableDataset) or not (
        hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    ):
        raise InvalidError(f"wrap: {kind} has no samples by number: give a map-style data set")
    if isinstance(dataset, Kept) or _subset.ours(dataset) is not None:
        raise InvalidError(f"wrap: this {kind} is Foreload's already; give it to the loader as it is")
    if not isinstance(name, str) or not name:
        raise InvalidError(
            f"wrap(deterministic=True) needs name=, under which the results are kept: two data sets of the class {kind} and of {len(dataset)} samples may have "
            "others, and what is called the same is taken for the same"
        )
    if then is not None and not callable(then):
        raise InvalidError(f"wrap(then={then!r}): give a function of a result")
    return Kept(dataset, name, then=then, check=_numbers.count("check", check, 0), cache=cache)


class _Options:
    """How files are looked up.

    Args:
        storage_options: As for `foreload.open`.
        credential_provider: As for `foreload.open`.
        refresh: Whether to look again.
    """

    def __init__(
        self, storage_options: Mapping[str, Any] | None, credential_provider: Provider | None, refresh: bool
    ) -> None:
        self._keywords: dict[str, Any] = {
            "storage_options": storage_options,
            "credential_provider": credential_provider,
            "refresh": refresh,
        }

    def listed(self, url: str) -> foreload.Dataset:
        """All files below a URL."""
        return foreload.open(url, format="flat", **self._keywords)

    def named(self, samples: Sequence[Sequence[str]]) -> foreload.Dataset:
        """The files of samples by their names."""
        return open_named(samples, **self._keywords)


def _files(dataset: Any, uri_of: Callable[[int], Any] | None, root: Any, options: _Options) -> foreload.Dataset:
    """The files of a data set, in its order."""
    if uri_of is not None:
        if not callable(uri_of):
            raise InvalidError(
                f"wrap(uri_of={uri_of!r}): give a function from a sample's number to its file's path or URL"
            )
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise InvalidError(f"wrap: {type(dataset).__name__} has no samples by number: give a map-style data set")
        return options.named([_names(uri_of(at), at) for at in range(len(dataset))])
    if isinstance(dataset, data.Subset):
        return _files(dataset.dataset, None, root, options).select(list(dataset.indices))
    if isinstance(dataset, data.IterableDataset):
        raise InvalidError(
            f"wrap: {type(dataset).__name__} is iterable and has no samples by number, so nothing can be read ahead: give it to foreload.torch.DataLoader as "
            "it is, which passes it through, or open its files with foreload.open"
        )
    if not (hasattr(dataset, "samples") and callable(getattr(dataset, "loader", None))):
        raise InvalidError(
            f"wrap: {type(dataset).__name__} has no `samples` and `loader` as torchvision's folders have; say which files a sample is made "
            "of, uri_of=lambda i: its path or URL, or open its files with foreload.open and give what it does with them as decode=, or have what it makes kept, "
            "deterministic=True, name=..."
        )
    names = [_names(path, at)[0] for at, (path, *_) in enumerate(dataset.samples)]
    top = name_of(root if root is not None else getattr(dataset, "root", "")) or ""
    stray = next((name for name in names if not name.startswith(f"{top}/")), None)
    if stray is not None and root is not None:
        raise InvalidError(f"wrap: {stray} is not below {top}")
    if stray is not None or not names:
        return options.named([[name] for name in names])
    whole = options.listed(top)
    numbers = {whole.key(sample): sample for sample in range(len(whole))}
    try:
        return whole.select([numbers[name.removeprefix(f"{top}/")] for name in names])
    except KeyError:
        # It is newer than the listing, or hidden.
        return options.named([[name] for name in names])


def _names(named: Any, at: int) -> list[str]:
    """The names of a sample's files."""
    given = list(named) if isinstance(named, (list, tuple)) else [named]
    names = [name_of(each) for each in given]
    if not names or not all(names):
        raise InvalidError(
            f"wrap: the files of sample {at} are {named!r}: give a path or URL, or a list of at least one"
        )
    return [name for name in names if name]


def _made(kind: type, url: Any, keywords: Mapping[str, Any], options: _Options) -> tuple[Any, foreload.Dataset | None]:
    """An object of a class of torchvision's, and its files where it is of a bucket."""
    if not (hasattr(kind, "find_classes") and hasattr(kind, "make_dataset")):
        raise InvalidError(
            f"wrap: {kind.__name__} is a class; make its object and wrap that, or give DatasetFolder or ImageFolder"
        )
    name = name_of(url)
    if name is None:
        raise InvalidError(f"wrap({kind.__name__}, {url!r}): give the URL of which it is to be made")
    if name.startswith("/"):
        return kind(url, **keywords), None
    name = name.rstrip("/")
    listed = options.listed(name)
    keys = [listed.key(sample) for sample in range(len(listed))]
    made: Any = _folder(kind, name, keys)(name, **keywords)
    # From now on it is what it would be of a directory; it travels to workers by the name of its class.
    made.__class__ = kind
    numbers = {f"{name}/{key}": sample for sample, key in enumerate(keys)}
    return made, listed.select([numbers[path] for path, *_ in made.samples])


def _folder(kind: Any, url: str, keys: Sequence[str]) -> Any:
    """A class that finds in a listing what torchvision's finds in directories."""

    def find_classes(_: Any, __: Any) -> tuple[list[str], dict[str, int]]:
        classes = sorted({key.partition("/")[0] for key in keys if "/" in key})
        if not classes:
            raise NotFoundError(f"there are no directories in {url}, which would be the classes")
        return classes, {name: number for number, name in enumerate(classes)}

    def make_dataset(
        directory: Any,
        class_to_idx: Mapping[str, int],
        extensions: Any = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
    ) -> list[tuple[str, int]]:
        suffixes = (extensions,) if isinstance(extensions, str) else tuple(extensions or ())
        found = []
        # As `os.walk` comes through them: directory by directory.
        for key in sorted(keys, key=lambda key: (key.partition("/")[0], *os.path.split(key))):
            path, (name, inside, _) = f"{directory}/{key}", key.partition("/")
            wanted = is_valid_file(path) if is_valid_file is not None else path.lower().endswith(suffixes)
            if inside and name in class_to_idx and wanted:
                found.append((path, class_to_idx[name]))
        empty = set(class_to_idx.values()) - {number for _, number in found}
        if empty and not allow_empty:
            names = ", ".join(sorted(name for name, number in class_to_idx.items() if number in empty))
            raise NotFoundError(
                f"found no valid file for the classes {names} in {url}; supported extensions: {extensions}"
            )
        return found

    # What a class finds in its own way it goes on finding so.
    ours: dict[str, Any] = {"find_classes": find_classes, "make_dataset": staticmethod(make_dataset)}
    own = {name: given for name, given in ours.items() if _is_torchvisions(kind, name)}
    return type(kind.__name__, (kind,), own)


def _is_torchvisions(kind: type, name: str) -> bool:
    return str(getattr(kind, name).__module__).startswith("torchvision.")


class Wrapped(Dataset[Any]):
    """Made by `wrap`. What the data set has besides `__getitem__` and `__len__` it has here, too, but for the names of `foreload.torch.Dataset`.

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
        if inspect.isbuiltin(getattr(dataset, "loader", None)):
            # A loader in C opens files by itself; what it is called with is in our hands.
            dataset = copy.copy(dataset)
            dataset.loader = _Local(dataset.loader)
        #: The data set itself.
        self.dataset = dataset
        self._counts: torch.Tensor = torch.zeros((_ROWS, 2), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        super().__init__(files, decode=_Item(dataset, files.source, self._counts), **keywords)
        self.decoder.is_data_set = True
        hidden = sorted(
            name for name in vars(self) if name[0] != "_" and name != "dataset" and name in _attributes(dataset)
        )
        if hidden:
            _LOG.warning(
                "wrap: the attributes %s are foreload's own; the data set's are at `.dataset`", ", ".join(hidden)
            )
        self._is_made = True

    def __getitem__(self, sample: Any) -> Any:
        """One sample; batches are much faster. What is no number goes to the data set as it is."""
        if not isinstance(sample, Turn):
            try:
                sample = operator.index(sample)
            except TypeError:
                return self.dataset[sample]
        return super().__getitem__(sample)

    @property
    def classes(self) -> Any:
        """The data set's."""
        return self.dataset.classes

    @property
    def class_to_idx(self) -> Any:
        """The data set's."""
        return self.dataset.class_to_idx

    def counts(self) -> dict[str, int]:
        """How many samples failed, and of the files of all others how many the data set opened here, and how many it didn't."""
        opened, unopened = self._counts.sum(0).tolist()
        return {**super().counts(), "files_opened": opened, "files_not_opened": unopened}

    def __getattr__(self, name: str) -> Any:
        """What the data set has besides: `targets`, `imgs`, ..."""
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """What is the data set's is set there: its `transform`, for instance."""
        ours = "_is_made" not in self.__dict__ or name in self.__dict__ or hasattr(type(self), name)
        if ours or not hasattr(self.dataset, name):
            super().__setattr__(name, value)
        else:
            setattr(self.dataset, name, value)


def _attributes(dataset: Any) -> Mapping[str, Any]:
    return getattr(dataset, "__dict__", {})


class _Item:
    """The decoder of a wrapped data set: its own item, made of the bytes that came.

    Args:
        dataset: The data set.
        source: Where its files are.
        counts: By process: files that it opened here, and files that it didn't.
    """

    def __init__(self, dataset: Any, source: Any, counts: torch.Tensor) -> None:
        self._dataset, self._source, self._counts = dataset, source, counts
        self._has_told = False

    def __call__(self, raw: memoryview, meta: Meta) -> Any:
        with Files(raw, parts_of(self._source.opened().index, meta.sample)) as files:
            item = self._dataset[meta.sample]
            opened, unopened = files.opened, files.unopened
        worker = data.get_worker_info()
        row = self._counts[0 if worker is None else 1 + worker.id % (_ROWS - 1)]
        row += torch.tensor([opened, len(unopened)])
        if unopened and not self._has_told and (worker is None or worker.id == 0):
            self._has_told = True
            _LOG.warning(
                "wrap: %s made sample %d without opening %s by Python's open(): a library that opens files itself has read it once more, or it "
                "isn't needed. foreload.torch.local(path) is a path for such a library. stats() counts the files; this is said once.",
                type(self._dataset).__name__,
                meta.sample,
                unopened[0],
            )
        return item


class _Local:
    """A loader in C, called with a path that it can open.

    Args:
        loader: The loader.
    """

    def __init__(self, loader: Callable[[Any], Any]) -> None:
        self._loader = loader

    def __call__(self, path: Any) -> Any:
        return self._loader(local(path))
