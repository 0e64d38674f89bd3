"""The files of the sample that a thread is making, under the names by which a data set opens them.

While a wrapped data set makes a sample, `open` (and so Pillow, NumPy, `pathlib`, `gzip`, `tifffile` and all else that is written in Python), `os.open` and
the functions in `_OPENERS` find the sample's files here: the bytes that the agent has fetched, as an anonymous file in memory that nobody can write to.
`open` answers with what it always answers with, a file object of that name with a descriptor of its own. The functions are replaced once in a
process, when a wrapped data set makes its first sample. They look into their own thread, and for nothing else than these files opened for
reading: everything else goes its usual way.

A C library opens files without Python's help. It then reads the file itself, from where it has always been: right, but not ahead. `Files` says which of
the sample's files nobody has opened here; `local` gives such a library the path of a copy.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, F_SEAL_WRITE, fcntl
from pathlib import Path
from typing import Any, Self

from foreload._data.named import name_of
from foreload.errors import InvalidError

#: Functions of libraries that open a path by themselves, each with the name of the argument that is the path, and whether the path must be a real one.
_OPENERS = (
    # It keeps `open` under a name of its own.
    ("tarfile", "bltn_open", "name", False),
    ("torchvision.io.image", "read_file", "path", False),
    ("torchvision.io", "read_file", "path", False),
    ("cv2", "imread", "filename", False),
    ("h5py", "File.__init__", "name", True),
    ("soundfile", "SoundFile.__init__", "file", False),
    ("decord", "VideoReader.__init__", "uri", False),
)
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_DIRECTORY | os.O_PATH
_WRITING = frozenset("wax+")

_here = threading.local()
_lock = threading.Lock()
_plain_open: Callable[..., Any] = builtins.open
_plain_os_open: Callable[..., int] = os.open
_replaced: set[tuple[str, str, str, bool]] = set()
_is_installed = False


class Files:
    """The files of one sample, from `__enter__` to `__exit__` those that this thread opens.

    Args:
        data: Their bytes, one file after the other.
        parts: Their names, and the bytes of each.
    """

    def __init__(self, data: memoryview, parts: Sequence[tuple[str, int]]) -> None:
        self._places: dict[str, memoryview] = {}
        first = 0
        for name, length in parts:
            self._places[name] = data[first : first + length]
            first += length
        if first != len(data):
            raise InvalidError(f"a sample of {len(data)} bytes for files of {first}")
        self._descriptors: dict[str, int] = {}
        self._copies: dict[str, Path] = {}
        self._before: Files | None = None

    def __enter__(self) -> Self:
        _install()
        self._before, _here.files = getattr(_here, "files", None), self
        return self

    def __exit__(self, *_: object) -> None:
        _here.files, self._before = self._before, None
        for copy in self._copies.values():
            # Whoever opened it may have left something beside it.
            shutil.rmtree(copy.parent, ignore_errors=True)
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    @property
    def unopened(self) -> list[str]:
        """The files that nobody has opened here."""
        return [name for name in self._places if name not in self._descriptors and name not in self._copies]

    @property
    def opened(self) -> int:
        """How many files were opened here."""
        return len(self._descriptors.keys() | self._copies.keys())

    def descriptor(self, file: Any) -> int | None:
        """An open file in memory with the bytes of a file; None: it isn't the sample's."""
        name = name_of(file)
        if name not in self._places:
            return None
        descriptor = self._descriptors.get(name)
        if descriptor is None:
            descriptor = os.memfd_create("foreload-file", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self._descriptors[name] = descriptor
            _write(descriptor, self._places[name])
            # Whoever were to write into it would lose that without a word.
            fcntl(descriptor, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK)
        return descriptor

    def path(self, file: Any, *, real: bool = True) -> str | None:
        """A path by which a library may open a file; None: it isn't the sample's.

        Args:
            file: The file.
            real: Whether it must be called as the file is and lead to a directory: some libraries go by the suffix, or resolve links. Then it is
                a temporary file; otherwise it is the memory.
        """
        if not real:
            descriptor = self.descriptor(file)
            return None if descriptor is None else f"/proc/self/fd/{descriptor}"
        name = name_of(file)
        if name is None or name not in self._places:
            return None
        copy = self._copies.get(name)
        if copy is None:
            copy = self._copies[name] = Path(tempfile.mkdtemp(prefix="foreload-"), name.rpartition("/")[2])
            descriptor = _plain_os_open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
            try:
                _write(descriptor, self._places[name])
            finally:
                os.close(descriptor)
        return str(copy)


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def local(path: str | os.PathLike[str]) -> str:
    """A path by which a library that opens files itself finds what has been fetched.

    For the code of a data set that `foreload.torch.wrap` wraps, around a path that goes to a library written in C, or to another program:
    `rasterio.open(local(path))`. What Python opens needs it not.

    Args:
        path: The path or URL of one of the sample's files.

    Returns:
        The path of a copy, which is gone when the sample is made. Where nothing was fetched, because the file isn't the sample's or the data set isn't wrapped: the
        path as it is.

    Raises:
        InvalidError: Nothing was fetched, and it is a URL.
    """
    files: Files | None = getattr(_here, "files", None)
    found = None if files is None else files.path(path)
    if found is None:
        name = name_of(path)
        if name is None or not name.startswith("/"):
            raise InvalidError(
                f"local({path!r}): this is not a file of a sample that a wrapped data set is making; "
                "foreload.torch.wrap(dataset, uri_of=...) names them"
            )
        return os.fspath(path)
    return found


def _opening(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Callable[[str, int], int] | None = None,
) -> Any:
    """What `open` is from the first sample of a wrapped data set on."""
    files: Files | None = getattr(_here, "files", None)
    if files is not None and opener is None and not _WRITING & set(mode):
        descriptor = files.descriptor(file)
        if descriptor is not None:

            def opener(_: str, flags: int) -> int:
                # Not a duplicate, which would share its place in the file.
                return _plain_os_open(f"/proc/self/fd/{descriptor}", flags)

    return _plain_open(file, mode, buffering, encoding, errors, newline, closefd, opener)


def _os_opening(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """The same for `os.open`."""
    files: Files | None = getattr(_here, "files", None)
    if files is not None and dir_fd is None and not flags & _CHANGES:
        descriptor = files.descriptor(path)
        if descriptor is not None:
            return _plain_os_open(f"/proc/self/fd/{descriptor}", flags & ~os.O_NOFOLLOW)
    return _plain_os_open(path, flags, mode, dir_fd=dir_fd)


def _reading(function: Callable[..., Any], position: int, name: str, *, real: bool) -> Callable[..., Any]:
    """A function that gets a path to what was fetched, where it would get that of a sample's file to read."""

    @functools.wraps(function)
    def reading(*arguments: Any, **keywords: Any) -> Any:
        files: Files | None = getattr(_here, "files", None)
        # In all of them a text that follows is a mode, as `open` has it.
        mode = keywords.get("mode", arguments[position + 1] if len(arguments) > position + 1 else "")
        if files is not None and not (isinstance(mode, str) and _WRITING & set(mode)):
            if name in keywords:
                keywords[name] = files.path(keywords[name], real=real) or keywords[name]
            elif len(arguments) > position:
                path = files.path(arguments[position], real=real) or arguments[position]
                arguments = (*arguments[:position], path, *arguments[position + 1 :])
        return function(*arguments, **keywords)

    return reading


def _install() -> None:
    global _is_installed, _plain_open, _plain_os_open  # noqa: PLW0603 (once in a process)
    for opener in _OPENERS:
        if opener not in _replaced and opener[0] in sys.modules:
            _replace(*opener)
    if _is_installed:
        return
    with _lock:
        if not _is_installed:
            _plain_open, _plain_os_open = builtins.open, os.open
            builtins.open = io.open = _opening
            os.open = _os_opening
            _is_installed = True


def _replace(module: str, function: str, path: str, real: bool) -> None:
    owner: Any = sys.modules[module]
    *inside, attribute = function.split(".")
    with _lock:
        try:
            for each in inside:
                owner = getattr(owner, each)
            plain = getattr(owner, attribute)
        except AttributeError:
            # It is being imported, or is another release.
            return
        if (module, function, path, real) not in _replaced:
            setattr(owner, attribute, _reading(plain, len(inside), path, real=real))
            _replaced.add((module, function, path, real))
