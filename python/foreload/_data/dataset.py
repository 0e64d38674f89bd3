"""Data sets: what `foreload.open` answers with.

A `Dataset` is a URL and its index: which samples there are, where their bytes lie, and which label they have. The index is made once by
listing and is shared memory of the agent, so that a data set of millions of samples costs a process nothing; accessors read
single entries, and only `labels` and `lengths` make an array. Loaders take data sets; `ds[i]` reads one sample by itself.
"""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foreload import _core
from foreload._data import address as _address
from foreload._data import lots as _lots
from foreload._data import written as _written
from foreload._node import agent as _agent
from foreload._node.credentials import Credentials, Provider
from foreload._node.job import Reader
from foreload._node.source import Opened, Progress, Source
from foreload._settings import environment as _environment
from foreload._settings import numbers as _numbers
from foreload._settings.order import kind_of
from foreload.errors import CorruptError, InvalidError, NotFoundError

_LOG = logging.getLogger("foreload")

#: What the index says of a sample without a label.
_NO_LABEL = -(2**63)


def open(  # noqa: A001 (called as `foreload.open`, like `gzip.open`)
    url: str | os.PathLike[str],
    format: str = "auto",  # noqa: A002 (what users of other packages expect)
    *,
    storage_options: Mapping[str, Any] | None = None,
    credential_provider: Provider | None = None,
    index: str | os.PathLike[str] | None = None,
    refresh: bool = False,
    extensions: Sequence[str] = (),
    database: str = "",
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Opens a data set.

    The first time its objects are listed, which takes some seconds per million; the index is kept in the cache directory, and found there
    afterwards.

    Args:
        url: `s3://bucket/prefix`, `gs://`, `az://`, `https://`, `file://`, or a directory.
        format: `folder` (one object a sample, as torchvision's ImageFolder has it: the first directory is the class), `flat` (the same without classes),
            `tar` (shards as WebDataset has them), `lmdb` (each value is a sample, in the order of the keys), `manifest` (a table that names objects, ranges and labels); `auto` looks.
        storage_options: Endpoint, region, credentials and so on, by the names that fsspec, obstore and the clouds' tools use. What isn't given is read
            from the environment.
        credential_provider: A callable that answers with storage options, or a boto3 session; asked again before what it gave expires.
        index: A saved index (`foreload index`) of this URL: a path or a URL.
        refresh: List again even if an index is known. Not with `index`, which is taken as it is.
        extensions: Suffixes of the files that are samples, such as `jpg`; none given: all.
        database: Of LMDB files the database with this name; none given: the one without a name.
        cache_dir: Where the index is kept and the agent is found. Default: `FORELOAD_CACHE_DIR`, otherwise `~/.cache/foreload`.
        progress: Called with a step's name, how much of it is done, and of how much.

    Returns:
        The data set.

    Raises:
        NotFoundError: The bucket or prefix doesn't exist.
        DeniedError: The store refuses the credentials.
        InvalidError: The URL or an option can't be understood, or the index is of another URL.
    """
    return opened(
        url,
        format,
        storage_options=storage_options,
        credential_provider=credential_provider,
        index=index,
        refresh=refresh,
        extensions=extensions,
        database=database,
        cache_dir=cache_dir,
        progress=progress,
    )


def opened(
    url: str | os.PathLike[str],
    format: str = "auto",  # noqa: A002
    *,
    storage_options: Mapping[str, Any] | None = None,
    credential_provider: Provider | None = None,
    index: str | os.PathLike[str] | None = None,
    refresh: bool = False,
    extensions: Sequence[str] = (),
    database: str = "",
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    stale: bool = False,
) -> Dataset:
    """Opens a data set as `open` does; `stale`: as it was listed, though it may be another by now, for who brings it up to date.

    Raises:
        ForeloadError: As `open`.
    """
    paths = {"url": url, "index": index, "cache_dir": cache_dir}
    _check_types(paths, format, refresh, extensions, database, storage_options)
    if refresh and index is not None:
        raise InvalidError(
            f"open(index={os.fspath(index)!r}, refresh=True): a saved index is taken as it is; leave out index=, or write a new one: "
            "`foreload index URL --update --out FILE`"
        )
    address = _address.absolute(url)
    _address.check_directory(address)
    _written.settle(_address.path_of(address), format)
    given = _environment.as_text(storage_options or {})
    call = {
        "url": address,
        "format": format,
        "storage_options": _environment.storage_options(address, given),
        "index": None if index is None else _address.index_file(index),
        "refresh": bool(refresh),
        "extensions": [suffix.lstrip(".") for suffix in extensions],
        "database": database,
        "stale": stale,
    }
    credentials = None if credential_provider is None else Credentials(credential_provider)
    source = Source(_agent.cache_directory(cache_dir), call, credentials, progress=progress)
    whole = _whole(source, address, index)
    if index is not None:
        _address.check_root(address, whole.index)
    for note, warns in whole.index.notes():
        if warns:
            _LOG.warning("%s: %s", address, note)
    return Dataset(source)


def _whole(source: Source, address: str, index: str | os.PathLike[str] | None) -> Opened:
    """The data set, or an error that says what it is about."""
    try:
        return source.opened()
    except CorruptError as error:
        if index is None:
            raise
        raise type(error)(
            f"index {os.fspath(index)}: {error}; `foreload index URL --update --out FILE` writes a new one"
        ) from None
    except InvalidError as error:
        # What an LMDB file says of itself, which it is too short for.
        if "lies outside its object" in str(error):
            raise CorruptError(f"{address} is damaged, or was written meanwhile: {error}") from None
        raise
    except NotFoundError as error:
        if index is not None or not _address.looks_like_an_object(address):
            raise
        raise NotFoundError(
            f"{error}; a data set is a directory or prefix: if {address} is a single object, name its directory, or a manifest that lists it"
        ) from None


def _check_types(
    paths: Mapping[str, Any], form: Any, refresh: Any, extensions: Any, database: Any, options: Any
) -> None:
    for name, given in paths.items():
        if (given is not None or name == "url") and not isinstance(given, (str, os.PathLike)):
            raise InvalidError(f"open({name}={given!r}): give a URL or a path, as text or a pathlib.Path")
    if not isinstance(form, str):
        raise InvalidError(f"open(format={form!r}): give auto, folder, flat, tar, lmdb or manifest")
    if not isinstance(database, str):
        raise InvalidError(f"open(database={database!r}): give the name of a database in an LMDB file, as text")
    if not isinstance(refresh, (bool, np.bool_)):
        raise InvalidError(f"open(refresh={refresh!r}): give True or False")
    is_list = isinstance(extensions, Iterable) and not isinstance(extensions, str)
    if not is_list or not all(isinstance(each, str) for each in extensions):
        raise InvalidError(f"open(extensions={extensions!r}): give a list of suffixes, such as ['jpg', 'png']")
    if not isinstance(options, (Mapping, type(None))) or not all(isinstance(name, str) for name in options or ()):
        raise InvalidError(f"open(storage_options={options!r}): give a dict of options by their names")


class Item:
    """One sample.

    Attributes:
        sample: Its number.
        key: Its object's key, relative to the data set's root.
        label: Its label, or None.
        bytes: Its bytes.
        parts: Of a sample that consists of several members of a shard: name -> bytes; otherwise empty.
    """

    __slots__ = ("bytes", "key", "label", "parts", "sample")

    def __init__(
        self, sample: int, key: str, label: int | None, data: bytes, fields: Sequence[tuple[str, int, int]]
    ) -> None:
        self.sample, self.key, self.label, self.bytes = sample, key, label, data
        self.parts = {name: data[first : first + length] for name, first, length in fields}

    def __len__(self) -> int:
        """Its bytes."""
        return len(self.bytes)

    def __bytes__(self) -> bytes:
        return self.bytes

    def __getitem__(self, name: str) -> bytes:
        """A part by its name, such as `jpg`."""
        return self.parts[name]

    def __repr__(self) -> str:
        return f"<sample {self.sample}: {self.key}, {len(self.bytes)} bytes, label {self.label}>"


class Dataset:
    """Samples somewhere, and what is known about them. Made by `open`; picklable; nothing of it is copied to other processes.

    Args:
        source: Where it comes from.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._reader = Reader(source)
        #: What a sampler and a framework's own kind of data set, made of the same data set, agree on.
        self.meeting: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._index)

    @property
    def _index(self) -> Any:
        return self.source.opened().index

    @property
    def url(self) -> str:
        """The URL it was opened with."""
        return str(self.source.call["url"])

    @property
    def format(self) -> str:
        """Its format."""
        return str(self._index.format)

    @property
    def digest(self) -> str:
        """Names its keys, sizes, ETags, ranges and labels: equal digests, equal data sets."""
        return str(self._index.digest)

    @property
    def origin(self) -> str:
        """Where the index came from: `listed`, `cache`, `saved` or `subset`."""
        return self.source.opened().origin

    @property
    def nbytes(self) -> int:
        """Bytes of all samples."""
        return int(self._index.total_bytes())

    @cached_property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of their labels."""
        return list(self._index.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Each class' label."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of each sample; -1 where there is none."""
        labels = np.frombuffer(self._index.labels(), dtype="<i8")
        return np.where(labels == _NO_LABEL, -1, labels)

    @property
    def lengths(self) -> NDArray[np.uint64]:
        """The bytes of each sample."""
        return np.frombuffer(self._index.lengths(), dtype="<u8")

    def key(self, sample: int) -> str:
        """The key of a sample's object, relative to the root; of one in a shard what it is called there, WebDataset's `__key__`."""
        return str(self._index.key(self._at(sample)))

    def label(self, sample: int) -> int | None:
        """A sample's label."""
        label: int | None = self._index.label(self._at(sample))
        return label

    def length(self, sample: int) -> int:
        """A sample's bytes."""
        return int(self._index.length(self._at(sample)))

    def fields(self, sample: int) -> list[tuple[str, int, int]]:
        """The parts of a sample: (name, first byte, bytes)."""
        return list(self._index.fields(self._at(sample)))

    def ranges(self, sample: int) -> list[tuple[str, int, int]]:
        """Where the bytes of a sample come from, in their order: (object's key, first byte, end). One range, unless a manifest names several."""
        return [(key, first, first + length) for key, first, length, *_ in self._index.ranges(self._at(sample))]

    def url_of(self, sample: int) -> str:
        """The URL of a sample's object; of one in a shard with the range of its bytes, of one of several ranges with the first."""
        key, first, length, size, _ = self._index.place(self._at(sample))
        url = _core.url_of(self._index.root, key)
        return url if length == size else f"{url}#bytes={first}-{first + length - 1}"

    def _at(self, sample: int) -> int:
        count = len(self)
        try:
            number = operator.index(sample)
        except TypeError:
            raise InvalidError(f"sample {sample!r}: samples are numbered by whole numbers, from 0") from None
        if not -count <= number < count:
            raise IndexError(f"sample {number} of {count}")
        return number % count

    @overload
    def __getitem__(self, which: int) -> Item: ...
    @overload
    def __getitem__(self, which: slice) -> Dataset: ...
    def __getitem__(self, which: int | slice) -> Item | Dataset:
        """Reads a sample; a slice is a data set."""
        if isinstance(which, slice):
            return self.select(range(len(self))[which])
        sample = self._at(which)
        return Item(sample, self.key(sample), self.label(sample), self.read(sample), self.fields(sample))

    def read(self, sample: int) -> bytes:
        """Reads the bytes of one sample."""
        return self._reader.read([self._at(sample)])[0]

    def __iter__(self) -> Iterator[Item]:
        """Reads the samples one by one, in order; a loader is faster."""
        return (self[sample] for sample in range(len(self)))

    def select(self, samples: ArrayLike | range) -> Dataset:
        """Some samples as a data set, in the order given.

        Args:
            samples: Their numbers, or a mask with a truth value for each sample.

        Returns:
            A data set of its own, with its own digest; the bytes it caches and its index are shared with this one. It takes 4 bytes a sample in this process, and 4
            on the node however many processes read it (8 from 2^32 samples on).
        """
        try:
            chosen = np.asarray(samples)
        except ValueError:
            raise InvalidError("select: give the samples' numbers in one dimension") from None
        if chosen.dtype == np.bool_:
            if chosen.shape != (len(self),):
                raise InvalidError(f"a mask of {chosen.shape} for {len(self)} samples")
            chosen = np.flatnonzero(chosen)
        if chosen.ndim != 1 or not len(chosen):
            raise InvalidError("select: give at least one sample, in one dimension")
        if not np.issubdtype(chosen.dtype, np.integer):
            raise InvalidError(f"select: samples are numbered, not {chosen.dtype}")
        count = len(self)
        least = chosen.min()
        if least < -count or chosen.max() >= count:
            raise IndexError(f"select: samples from {least} to {chosen.max()} of {count}")
        if least < 0:
            # In a type that has room for the count too.
            chosen = np.where(chosen < 0, chosen.astype(np.int64) + count, chosen)
        return self._chosen(chosen.astype(_lots.narrowest(count)))

    def _chosen(self, samples: NDArray[np.unsignedinteger[Any]]) -> Dataset:
        return Dataset(self.source.choose(samples))

    def filter(self, keep: Callable[[str, int | None, int], bool]) -> Dataset:
        """The samples for which `keep(key, label, length)` is true.

        Args:
            keep: Asked for each sample.

        Returns:
            A data set.
        """
        if not callable(keep):
            raise InvalidError(f"filter: {keep!r} can't be called; give keep(key, label, length)")
        index = self._index
        kept = [i for i in range(len(self)) if keep(index.key(i), index.label(i), index.length(i))]
        if not kept:
            raise InvalidError(
                f"filter: none of {len(self)} samples is kept; the first is called with key {index.key(0)!r}, label {index.label(0)} and {index.length(0)} bytes"
            )
        return self.select(kept)

    def split(self, shares: Mapping[str, float], seed: int = 0) -> dict[str, Dataset]:
        """Divides the data set at random, so that each sample is in one part.

        Args:
            shares: Each part's name and share; they add up to 1 or less.
            seed: What the division depends on.

        Returns:
            The parts by name, each in the order of this data set. They take memory as `select` does, and making them some 20 MB more.

        Raises:
            InvalidError: The shares add up to more than 1, or a part would be empty.
        """
        if not isinstance(shares, Mapping):
            raise InvalidError(
                f"split: {shares!r} names no parts; give each part's share by its name, such as {{'train': 0.9, 'val': 0.1}}"
            )
        shares = {name: _numbers.real(f"split: {name!r}", share) for name, share in shares.items()}
        seed = _numbers.count("split(seed=...)", seed, most=(1 << 128) - 1)
        # Written so that no share is NaN either.
        if not (sum(shares.values()) <= 1 + 1e-9 and shares and all(share > 0 for share in shares.values())):
            raise InvalidError(f"split: shares {dict(shares)} must be above 0 and add up to 1 at most")
        borders = np.rint(np.cumsum([0.0, *shares.values()]) * len(self)).astype(np.int64).tolist()
        parts = list(zip(shares, borders, borders[1:], strict=False))
        empty = [f"{name!r} ({shares[name]})" for name, first, last in parts if first == last]
        if empty:
            raise InvalidError(
                f"split: nothing of {len(self)} samples would be in {', '.join(empty)}; give larger shares, or leave it out"
            )
        numbers = _lots.divide(len(self), borders, seed)
        return {name: self._chosen(part) for name, part in zip(shares, numbers, strict=True)}

    def order_kind(
        self, name: str, world: int, *, shuffle: bool, draws: str = "loader_each_epoch"
    ) -> str | dict[str, Any]:
        """The plan's kind of order for what a loader of this data set was asked for."""
        return kind_of(name, world, shuffle=shuffle, draws=draws)

    def apart(self) -> Dataset:
        """The same data set for one loader, whose order doesn't concern other readers of it."""
        return Dataset(self.source)

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "_reader": self._reader, "meeting": {}}

    def __repr__(self) -> str:
        return f"<foreload.Dataset {self.url}: {len(self)} samples, {self.format}, digest {self.digest}>"
