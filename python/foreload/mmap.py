"""Files that are mapped into memory: their pages fetched ahead of whoever touches them.

A program that maps a file waits for each page that it touches first: over NFS, Lustre or FUSE a few milliseconds for 128 KB, whatever the store could
bring. Where it is known what will be read, its pages can be asked for before, as many at a time as the store answers:

    >>> import foreload.mmap
    >>> with foreload.mmap.prefetch("model.safetensors"):      # doctest: +SKIP
    ...     model.load_state_dict(load_file("model.safetensors"))

[`prefetch`][foreload.mmap.prefetch] is for what is read once, from the first byte to the last; [`wrap_sampler`][foreload.mmap.wrap_sampler] for data sets
in one file (LMDB, `.npy`, Arrow) that are read in a sampler's order; [`advise`][foreload.mmap.advise] for any other order. Nothing is copied: what was
fetched lies in the page cache, for all processes of the machine, and is fetched once whoever asks for it. The program that maps the file stays as it is.

The four kinds of files are found by what they begin with; of any other, ranges of bytes can be given. Programs that nobody changes, and whose order isn't known, as in paper 003
(*Data supply for memory-mapped files*), run under `foreload run --mmap`.
"""

from __future__ import annotations

import builtins
import difflib
import glob
import operator
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from foreload._data.dataset import Dataset
from foreload._data.dataset import open as _open
from foreload._mapped.ahead import Ahead
from foreload._mapped.layout import Layout, layout
from foreload._mapped.order import Ordered
from foreload._settings.memory import available_bytes
from foreload._settings.sizes import format_bytes, parse_bytes
from foreload.errors import ChangedError, CorruptError, ForkedError, InvalidError, NotFoundError

__all__ = ["Advice", "LmdbIndex", "Prefetch", "advise", "prefetch", "wrap_sampler"]

Place = str | os.PathLike[str]

#: Bytes under way at most: 1 GB/s at 100 ms.
_WINDOW = 128_000_000
#: Shares of the memory that is available: what is fetched may take so much of it, and what is under way.
_MOST_SHARE, _WINDOW_SHARE = 0.8, 0.1
_FOREVER = 1e9
_PAGE = 4096
#: What is ahead is asked for in so many turns.
_TURNS = 8
#: No file has as many parts.
_MOST_PLACES = 1 << 62
#: Of what lies between values so much is fetched ahead, as a share of the values and besides: what is more is free pages, and no tree.
_TREE_SHARE, _SOME_TREE = 0.25, 1 << 20
#: How often a file is looked at that is another one meanwhile.
_LOOKS = 3


def _window(window: int | str | None) -> int:
    most = _WINDOW if window is None else parse_bytes(window, "window")
    return max(1, min(most, int(available_bytes() * _WINDOW_SHARE)))


class Prefetch:
    """Ranges of files on their way into the page cache, in the background. Made by [`prefetch`][foreload.mmap.prefetch].

    As a context manager it stops at the end of the block.

    Attributes:
        nbytes: Bytes that are asked for.
    """

    def __init__(self, files: Sequence[Path], ranges: Sequence[tuple[int, int, int]], window: int | str | None) -> None:
        self.nbytes = sum(length for *_, length in ranges)
        available = available_bytes()
        if self.nbytes > available * _MOST_SHARE:
            raise InvalidError(
                f"prefetch of {format_bytes(self.nbytes)}: {format_bytes(available)} of memory are available, so the first pages would be gone before the last "
                "came; give tensors= or ranges= that are needed, or advise(), which goes ahead of the reader by a few"
            )
        self._files = files
        self._ahead = Ahead(files, ranges, _window(window))
        ends = [0] * len(files)
        for number, first, length in ranges:
            ends[number] = max(ends[number], first + length)
        self._ends = ends

    @property
    def fetched(self) -> int:
        """Bytes that are there."""
        return self._ahead.progress()[0]

    @property
    def done(self) -> bool:
        """Whether nothing more is to come: all is there, it was stopped, or it failed."""
        return self._ahead.progress()[1]

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all is there.

        Args:
            timeout: Seconds to wait at most; None: as long as it takes.

        Returns:
            Whether it is over.

        Raises:
            OSError: A file couldn't be read, or was cut short meanwhile.
            ForkedError: It was begun before this process was forked.
        """
        left = _FOREVER if timeout is None else max(0.0, timeout)
        while True:
            # In turns, so that Ctrl-C is heard.
            step = min(left, 0.1)
            _, is_over, error = self._ahead.wait(step)
            left -= step
            if error is not None:
                raise OSError(f"{', '.join(map(str, self._files))}: {error}")
            if is_over:
                self._check()
            if is_over or left <= 0:
                return is_over

    def _check(self) -> None:
        """What lies behind a file's end can be read as well as not at all, so only its size tells that it was cut short."""
        for file, end in zip(self._files, self._ends, strict=True):
            if (size := file.stat().st_size) < end:
                raise OSError(f"{file} was cut short while it was fetched: it has {size} bytes, and {end} were wanted")

    def stop(self) -> None:
        """Asks for nothing more. What is there stays."""
        self._ahead.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        named = self._files[0] if len(self._files) == 1 else f"{len(self._files)} files"
        try:
            there = format_bytes(self.fetched)
        except ForkedError:
            there = "an unknown part"
        return f"<prefetch of {named}: {there} of {format_bytes(self.nbytes)}>"


def prefetch(
    path: Place | Sequence[Place],
    tensors: Sequence[str] | None = None,
    ranges: Sequence[tuple[int, int]] | None = None,
    *,
    window: int | str | None = None,
) -> Prefetch:
    """Has files fetched into the page cache, from the first byte to the last, and returns at once.

    Args:
        path: A file, several, a pattern such as `"model-*.safetensors"`, or a directory, of which all `*.safetensors` are meant.
        tensors: Of safetensors: the names of those that are wanted, of all files together. Their order is that in the files.
        ranges: Of one file: what is wanted, each (first byte, bytes), in the order in which it is read.
        window: Bytes under way at most, such as `"64MB"`. Default: 128 MB, and no more than a tenth of the memory that is available.

    Returns:
        How far it is, and a way to wait for it or stop it.

    Raises:
        InvalidError: It is more than fits into memory, a tensor isn't there, or ranges are given for several files.
        NotFoundError: There is no such file.
        OSError: A file can't be read.
    """
    files = _files(path)
    if ranges is not None:
        if len(files) != 1 or tensors is not None:
            raise InvalidError("prefetch(ranges=...): give one file, and no tensors")
        return Prefetch(files, [(0, *_range(each)) for each in ranges], window)
    if tensors is None:
        return Prefetch(files, [(number, 0, file.stat().st_size) for number, file in enumerate(files)], window)
    return Prefetch(files, _of_tensors(files, tensors), window)


def _range(each: Any) -> tuple[int, int]:
    try:
        first, length = each
        return int(first), int(length)
    except (TypeError, ValueError):
        raise InvalidError(f"ranges: {each!r} is no (first byte, bytes)") from None


def _files(path: Place | Sequence[Place]) -> list[Path]:
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, (str, os.PathLike)):
        return [file for each in path for file in _files(each)]
    place = Path(path)
    if place.is_dir():
        found = sorted(place.glob("*.safetensors")) or sorted(place.glob("data.mdb"))
    elif place.exists() or not glob.has_magic(str(path)):
        found = [place] if place.exists() else []
    else:
        found = [Path(each) for each in sorted(glob.glob(str(path)))]  # noqa: PTH207 (the pattern may be absolute)
    if not found:
        raise NotFoundError(f"{path}: no such file" + (", or none that ends in .safetensors" if place.is_dir() else ""))
    return found


def _of_tensors(files: Sequence[Path], tensors: Sequence[str]) -> list[tuple[int, int, int]]:
    wanted = set([tensors] if isinstance(tensors, str) else tensors)
    known: set[str] = set()
    ranges = []
    for number, file in enumerate(files):
        found = layout(file)
        if len(found.names) != len(found.parts):
            raise InvalidError(f"{file} has no tensors with names: give ranges=[(first byte, bytes), ...]")
        known.update(found.names)
        inside = [part for name, part in zip(found.names, found.parts, strict=True) if name in wanted]
        if inside:
            ranges += [(number, *found.head), *((number, first, length) for first, length in inside)]
    for name in sorted(wanted - known):
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; there is {near[0]}" if near else ""
        raise InvalidError(f"tensor {name} is in none of {len(files)} files{hint}")
    return ranges


class Advice:
    """Ranges of a file that are fetched a few ahead of who reads them. Made by [`advise`][foreload.mmap.advise]."""

    def __init__(
        self,
        path: Path,
        ranges: Sequence[tuple[int, int]],
        ahead: int,
        window: int | str | None = None,
        before: Sequence[tuple[int, int]] = (),
    ) -> None:
        if ahead < 1:
            raise InvalidError(f"ahead={ahead}: give 1 or more")
        self._count, self._ahead = len(ranges), ahead + len(before)
        #: It is enough to say each so many ranges how far the reader is.
        self.every = max(1, ahead // _TURNS)
        whole = [(0, *_range(each)) for each in chain(before, ranges)]
        self._pages = Ahead([path], whole, _window(window), self._ahead)

    def __len__(self) -> int:
        return self._count

    def reached(self, nth: int) -> None:
        """The reader begins with range number `nth`, counted from 0: those behind it are asked for, `ahead` of them."""
        self._pages.allow(min(nth, self._count) + 1 + self._ahead)

    def stop(self) -> None:
        """Asks for nothing more."""
        self._pages.stop()


def advise(
    path: Place, ranges: Sequence[tuple[int, int]], *, ahead: int = 64, window: int | str | None = None
) -> Advice:
    """Has ranges of a file fetched in the order in which they are going to be read, a few ahead of the reader.

    Args:
        path: The file.
        ranges: What will be read, each (first byte, bytes), in that order.
        ahead: How many of them ahead of the one that was [reached][foreload.mmap.Advice.reached] last, at most; three quarters of that at least.
        window: Bytes under way at most. Default: 128 MB, and no more than a tenth of the memory that is available.

    Returns:
        What has to be told how far the reader is.

    Raises:
        InvalidError: A number makes no sense.
        OSError: The file can't be read, or a range isn't in it.
    """
    return Advice(Path(path), ranges, ahead, window)


class LmdbIndex:
    """Where the values of an LMDB file lie, without touching them. The index is kept in the cache directory, and used again while the file is as it was.

    Args:
        path: The file, or the directory with its `data.mdb`.
        database: The database with this name; none given: the one without a name.

    Raises:
        InvalidError: It is no LMDB file (of LMDB 0.9 or 1.0), it is being written, or it has no such database.
        CorruptError: Its pages contradict each other.
    """

    def __init__(self, path: Place, database: str = "") -> None:
        place = Path(path)
        self.path = place / "data.mdb" if place.is_dir() else place
        self._data = self._opened(database)
        self._numbers: dict[bytes, int] | None = None

    def _opened(self, database: str) -> Dataset:
        for look in builtins.range(_LOOKS):
            before = _stamp(self.path)
            try:
                return _open(self.path, "lmdb", database=database, refresh=look > 0)
            except CorruptError as error:
                # Of a file that grows the pages seem to lie behind its end.
                is_new = isinstance(error, ChangedError) or _stamp(self.path) != before
                if not is_new or look == _LOOKS - 1:
                    raise
        raise AssertionError("the last look raises")

    def __len__(self) -> int:
        return len(self._data)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self._data.nbytes

    def key(self, nth: int) -> bytes:
        """The key at this place in the order of keys."""
        name = self._data.key(nth)
        return bytes.fromhex(name[2:]) if name.startswith("0x") else name.encode()

    def at(self, nth: int) -> tuple[int, int]:
        """First byte and bytes of the value at this place in the order of keys."""
        ((_, first, end),) = self._data.ranges(nth)
        return first, end - first

    def tree(self) -> list[tuple[int, int]]:
        """First byte and bytes of the pages that have no value: those that a key is looked up in."""
        index = self._data.source.opened().index
        firsts, lengths = (np.frombuffer(said, "<u8").astype(np.int64) for said in (index.offsets(), index.lengths()))
        order = np.argsort(firsts, kind="stable")
        begins = np.append(firsts[order], self.path.stat().st_size) // _PAGE * _PAGE
        ends = -(-np.append(0, np.maximum.accumulate((firsts + lengths)[order])) // _PAGE) * _PAGE
        gaps = np.flatnonzero(begins > ends)
        return [(int(ends[at]), int(begins[at] - ends[at])) for at in gaps]

    def range(self, key: bytes | str) -> tuple[int, int]:
        """First byte and bytes of a key's value, of several the first.

        Raises:
            KeyError: There is no such key.
        """
        key = key.encode() if isinstance(key, str) else bytes(key)
        nth = self._data.source.opened().index.find(key)
        return self.at(self._number(key) if nth is None else nth)

    def places(self, named: Iterable[bytes | str | int]) -> list[tuple[int, int]]:
        """First byte and bytes of many values at once, each by its key or by its place in the order of keys.

        Raises:
            KeyError: There is no such one.
        """
        named = list(named)
        spans = self._data.source.opened().index.spans(
            [what if isinstance(what, (bytes, str)) else _number(what) for what in named]
        )
        return [self._place(what) if span is None else span for what, span in zip(named, spans, strict=True)]

    def _place(self, what: bytes | str | int) -> tuple[int, int]:
        try:
            return self.range(what) if isinstance(what, (bytes, str)) else self.at(operator.index(what))
        except (KeyError, IndexError):
            raise KeyError(what) from None

    def _number(self, key: bytes) -> int:
        """Of a key in an order of the program's own, or that isn't there."""
        if self._numbers is None:
            numbers: dict[bytes, int] = {}
            for nth in range(len(self)):
                numbers.setdefault(self.key(nth), nth)
            self._numbers = numbers
        return self._numbers[key]


class _Parts:
    """Where a file has what a sampler names; looked up again when it is another file."""

    def __init__(self, place: Path, key: Callable[[Any], Any] | None, ahead: int, database: str) -> None:
        self._place, self._key, self._ahead, self._database = place, key, ahead, database
        self._is_another = False
        self._look()

    def _look(self) -> None:
        place = self._place
        self._stamp = _stamp(place)
        is_lmdb = place.suffix in (".mdb", ".lmdb") or (place / "data.mdb").is_file()
        found: LmdbIndex | Layout = LmdbIndex(place, self._database) if is_lmdb else layout(place)
        self._found = found
        self._names = {} if isinstance(found, LmdbIndex) else dict(zip(found.names, found.parts, strict=False))
        self._before = _least_tree(found) if isinstance(found, LmdbIndex) else [found.head]

    def begin(self, samples: Sequence[Any], is_first: bool) -> Advice:
        """Has what samples name fetched in this order, and before an epoch's first part the tree."""
        if _stamp(self._place) != self._stamp:
            self._look()
            self._is_another = True
        named = samples if self._key is None else [self._key(sample) for sample in samples]
        try:
            places = self._places(named)
        except KeyError as nothing:
            replaced = "; it is another file than the one that was wrapped" if self._is_another else ""
            raise NotFoundError(f"{self._found.path} has nothing by the name {nothing.args[0]!r}{replaced}") from None
        return Advice(self._found.path, places, self._ahead, before=self._before if is_first else ())

    def _places(self, named: Sequence[Any]) -> list[tuple[int, int]]:
        if isinstance(self._found, LmdbIndex):
            return self._found.places(named)
        return [self._part(what) for what in named]

    def _part(self, what: Any) -> tuple[int, int]:
        found = self._found
        assert not isinstance(found, LmdbIndex)
        try:
            return self._names[what] if isinstance(what, str) else found.parts[int(what)]
        except (KeyError, IndexError):
            raise KeyError(what) from None


def _number(what: Any) -> int:
    """A place in an order: any kind of whole number; what is too large for one is no place anyway."""
    return max(-_MOST_PLACES, min(operator.index(what), _MOST_PLACES))


def _stamp(place: Path) -> tuple[int, ...]:
    """What is another one when a file is written or replaced."""
    try:
        said = (place / "data.mdb" if place.is_dir() else place).stat()
    except FileNotFoundError:
        # Who opens it says more of that.
        return ()
    return said.st_ino, said.st_size, said.st_mtime_ns


def _least_tree(index: LmdbIndex) -> list[tuple[int, int]]:
    """The parts of a tree, without those that are too long for one: pages that were freed have no value either."""
    gaps = index.tree()
    most = min(index.nbytes * _TREE_SHARE + _SOME_TREE, available_bytes() * _WINDOW_SHARE)
    shortest = sorted(gaps, key=lambda gap: gap[1])
    fit = bisect_right(list(accumulate(length for _, length in shortest)), most)
    return sorted(shortest[:fit])


def wrap_sampler(
    sampler: Any,
    path: Place,
    key: Callable[[Any], Any] | None = None,
    *,
    ahead: int = 64,
    database: str = "",
    foresee: Callable[[Any], Any] | None = None,
) -> Any:
    """Wraps a sampler (or a batch sampler), so that the pages of what it names are fetched before they are touched.

    The sampler is asked as it would be without this, so that its order, its state and its generator stay what they are; what it is going to name says a double of it. There is one
    of lists and of torch's samplers, which have their own generator in it. Code of another sampler isn't run for this unless `foresee` says how; without it a warning
    says that nothing is fetched ahead.

        >>> sampler = foreload.mmap.wrap_sampler(RandomSampler(data), "train.lmdb", key=lambda i: b"%08d" % i)  # doctest: +SKIP
        >>> DataLoader(data, 32, sampler=sampler, num_workers=4)                                                # doctest: +SKIP

    Args:
        sampler: What names samples; `set_epoch` and others are passed on to it.
        path: The file: LMDB, `.npy`, Arrow IPC or safetensors.
        key: Makes what the sampler names into what the file knows it by, ahead of it: an LMDB key, a row, a record batch or a tensor's name. None: it is that already; a
            number counts the file's parts in their order. A tuple is a name for it, and a batch where there is none; lists and arrays are batches.
        ahead: How many samples ahead of the one that is handed out, at most; three quarters of that at least.
        database: Of an LMDB file the database with this name; none given: the one without a name.
        foresee: Makes of a sampler with code of its own what names what it will in this epoch: `copy.deepcopy`, if a copy of it does, or a function such as
            `lambda sampler: order_of(sampler.epoch)`. It is called when an epoch begins, and what it makes is asked ahead of the sampler: neither may change anything else, nor draw
            from what others draw from.

    Returns:
        The same, with its pages on their way.

    Raises:
        InvalidError: The file is of no kind that is known.
    """
    parts = _Parts(Path(path), key, ahead, database)
    return Ordered(sampler, parts.begin, foresee, tuples_are_names=key is not None)
