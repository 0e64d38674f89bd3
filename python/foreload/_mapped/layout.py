"""Where the parts of a mapped file lie: tensors of safetensors, rows of a `.npy` file, record batches of an Arrow file.

Each reader looks at headers alone and holds what they say against the file's size, for a file may be damaged or not what its name says.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from foreload.errors import CorruptError, InvalidError

#: safetensors refuses longer headers.
_MOST_HEADER = 100_000_000
_ARROW = b"ARROW1"
#: Bytes of a block in an Arrow footer: where it begins, its head's bytes, four of padding, and its body's bytes.
_BLOCK = struct.Struct("<qi4xq")


@dataclass(frozen=True)
class Layout:
    """The parts of a file, in their order.

    Attributes:
        path: The file.
        head: What is read before any part: (first byte, bytes).
        parts: Each part's first byte and bytes.
        names: Their names, where they have some.
    """

    path: Path
    head: tuple[int, int]
    parts: Sequence[tuple[int, int]]
    names: Sequence[str] = ()


def layout(path: str | os.PathLike[str]) -> Layout:
    """Finds the parts of a file by what it begins with, safetensors by its name.

    Raises:
        InvalidError: It is of no kind that is known.
        CorruptError: Its header contradicts itself.
        OSError: It can't be read.
    """
    path = Path(path)
    if not stat.S_ISREG(path.stat().st_mode):
        # To open a pipe would wait for whoever writes to it.
        raise InvalidError(f"{path} is no regular file")
    with path.open("rb") as file:
        nbytes, start = os.fstat(file.fileno()).st_size, file.read(8)
        if start[:6] == b"\x93NUMPY":
            return _npy(path, file, nbytes)
        if start[:6] == _ARROW:
            return _arrow(path, file, nbytes)
        if path.suffix == ".safetensors":
            return _safetensors(path, file, nbytes)
    raise InvalidError(
        f"{path} is neither safetensors, .npy nor an Arrow IPC file: give ranges=[(first byte, bytes), ...]"
    )


def _damaged(path: Path, why: str) -> CorruptError:
    return CorruptError(f"{path} is damaged: {why}")


def _inside(path: Path, nbytes: int, parts: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    for first, length in parts:
        if first < 0 or length < 0 or first + length > nbytes:
            raise _damaged(path, f"{length} bytes from {first} on are not all within its {nbytes}")
    return parts


def _safetensors(path: Path, file: BinaryIO, nbytes: int) -> Layout:
    """The format of https://huggingface.co/docs/safetensors: the header's bytes as a number of eight bytes, a JSON object, the tensors."""
    file.seek(0)
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(_MOST_HEADER, nbytes - 8):
        raise _damaged(path, "its header is longer than the file")
    try:
        header = json.loads(file.read(length))
        tensors = {name: tuple(said["data_offsets"]) for name, said in header.items() if name != "__metadata__"}
        parts = [(8 + length + int(first), int(end) - int(first)) for first, end in tensors.values()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"its header can't be understood ({error})") from None
    # In the order in which they lie, which is the one in which nearly all programs read them.
    order = sorted(range(len(parts)), key=parts.__getitem__)
    names = list(tensors)
    parts = [parts[at] for at in order]
    return Layout(path, (0, 8 + length), _inside(path, nbytes, parts), [names[at] for at in order])


def _npy(path: Path, file: BinaryIO, nbytes: int) -> Layout:
    """Rows of an array in C order, columns of one in Fortran order."""
    # It has no types.
    npy: Any = np.lib.format
    file.seek(0)
    try:
        # The third version is the second one, with names of fields in UTF-8.
        is_first = npy.read_magic(file) == (1, 0)
        shape, is_fortran, dtype = (npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0)(file)
    except ValueError as error:
        raise _damaged(path, f"its header can't be understood ({error})") from None
    if dtype.hasobject:
        raise InvalidError(f"{path} holds Python objects, which can't be mapped")
    first, count = file.tell(), math.prod(shape)
    rows = (shape[-1] if is_fortran else shape[0]) if shape else 1
    row = count * dtype.itemsize // rows if rows else 0
    if min(shape, default=0) < 0 or first + rows * row > nbytes:
        raise _damaged(path, f"its array of shape {shape} ends behind it")
    return Layout(path, (0, first), _Rows(first, row, rows))


class _Rows(Sequence[tuple[int, int]]):
    """Equally long parts, one behind the other: none of them is written down."""

    def __init__(self, first: int, length: int, count: int) -> None:
        self._first, self._length, self._count = first, length, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[at] for at in range(*row.indices(self._count))]
        if not -self._count <= row < self._count:
            raise IndexError(f"row {row} of {self._count}")
        return self._first + row % self._count * self._length, self._length


def _arrow(path: Path, file: BinaryIO, nbytes: int) -> Layout:
    """Record batches of an Arrow IPC file, as its footer lists them (https://arrow.apache.org/docs/format/Columnar.html); of a stream none.

    The footer is a FlatBuffers table, of which two vectors of structs are read.
    """
    file.seek(max(0, nbytes - 10))
    tail = file.read(10)
    length = int.from_bytes(tail[:4], "little", signed=True)
    if len(tail) < 10 or tail[4:] != _ARROW or not 8 <= length <= nbytes - 18:
        raise _damaged(path, "it has no footer")
    start = nbytes - 10 - length
    file.seek(start)
    footer = file.read(length)
    try:
        # The fields of a Footer: version, schema, dictionaries, recordBatches.
        dictionaries, batches = (_blocks(footer, field) for field in (2, 3))
    except (struct.error, IndexError) as error:
        raise _damaged(path, f"its footer can't be understood ({error})") from None
    parts = _inside(path, nbytes, [*dictionaries, *batches])
    return Layout(path, (start, length + 10), parts)


def _blocks(footer: bytes, field: int) -> list[tuple[int, int]]:
    """The first byte and the bytes of each block in a vector of a FlatBuffers table."""

    def at(layout: str, place: int) -> int:
        if place < 0:
            raise IndexError("a place before its first byte")
        return int(struct.unpack_from(layout, footer, place)[0])

    table = at("<I", 0)
    fields = table - at("<i", table)
    offset = 4 + 2 * field
    where = at("<H", fields + offset) if offset < at("<H", fields) else 0
    if not where:
        return []
    vector = table + where + at("<I", table + where)
    count = at("<I", vector)
    if vector + 4 + count * _BLOCK.size > len(footer):
        raise IndexError("more blocks than it has bytes")
    blocks = _BLOCK.iter_unpack(footer[vector + 4 : vector + 4 + count * _BLOCK.size])
    return [(first, head + body) for first, head, body in blocks]
