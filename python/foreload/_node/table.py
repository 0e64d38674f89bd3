"""A file with a record of bytes for each sample of a data set that has one: header, table, records (docs/reference/result-format.md).

A writer holds a lock, which is its caller's affair: it writes a record at the file's end, then the sample's slot in the table. One that is killed leaves bytes
that nothing points to. A reader takes no lock and trusts nothing: a record says whose and where it is, and has a checksum. Called by `results`; knows
nothing of budgets, nor of what the bytes mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import struct
import weakref
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from foreload.errors import CorruptError, InvalidError

VERSION = 1
_MAGIC = b"FLRESULT"
#: Magic, version, bytes of the name, mark, samples, capacity, checksum.
_HEADER = struct.Struct("<8sIIQQQI4x")
#: Mark, sample, length, checksums of the payload and of what stands before and the place.
_RECORD = struct.Struct("<QQQII")
_PLACE = struct.Struct("<Q")
_LONGEST_NAME = 4096
#: Linux reads and writes a little less than 2 GiB at once.
_MOST_AT_ONCE = 1 << 30


@dataclass(frozen=True)
class Name:
    """Which results these are: what is called the same is the same.

    Attributes:
        name: The data set's.
        samples: Its length.
    """

    name: str
    samples: int

    def __post_init__(self) -> None:
        if len(self.text()) > _LONGEST_NAME:
            raise InvalidError(f"wrap: name= has {len(self.text())} bytes; {_LONGEST_NAME} fit")

    def text(self) -> bytes:
        """As a file says it."""
        return json.dumps({"name": self.name, "samples": self.samples}).encode()

    @property
    def table_at(self) -> int:
        """Where the table begins."""
        return -(-(_HEADER.size + len(self.text())) // _PLACE.size) * _PLACE.size

    @property
    def table_end(self) -> int:
        """Where it ends: the length of a file without records."""
        return self.table_at + self.samples * _PLACE.size


def record_bytes(payload: bytes) -> int:
    """What a record takes."""
    return _RECORD.size + len(payload)


class Table:
    """A file that is open.

    Args:
        descriptor: The file's, which becomes the table's.
        name: Whose it is.

    Raises:
        CorruptError: It isn't, or is damaged, or of another version. The descriptor stays the caller's.
    """

    def __init__(self, descriptor: int, name: Name) -> None:
        (*_, self._mark, _, self.capacity, _), text = _header(descriptor)
        if text != name.text() or os.fstat(descriptor).st_size < name.table_end:
            raise CorruptError("not the results of this data set")
        self.descriptor = descriptor
        self._table_at = name.table_at
        self.close = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def make(cls, descriptor: int, name: Name, capacity: int = 0) -> Table:
        """Makes one of an empty file.

        Args:
            descriptor: The file's.
            name: Whose.
            capacity: Bytes that it may have, for those who open it later.
        """
        text = name.text()
        fields = (_MAGIC, VERSION, len(text), secrets.randbits(64), name.samples, capacity)
        checksum = zlib.crc32(_HEADER.pack(*fields, 0) + text)
        _write(descriptor, _HEADER.pack(*fields, checksum) + text, 0)
        os.ftruncate(descriptor, name.table_end)
        return cls(descriptor, name)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self.descriptor).st_size

    def has(self, sample: int) -> bool:
        """Whether there is a record, damaged or not."""
        return self._place(sample) > 0

    def get(self, sample: int) -> bytes | None:
        """A sample's record; None: there is none.

        Raises:
            CorruptError: It is damaged.
        """
        try:
            place = self._place(sample)
            if not place:
                return None
            size = self.size
            head = os.pread(self.descriptor, _RECORD.size, place) if place < size else b""
            if len(head) == _RECORD.size:
                length = _RECORD.unpack(head)[2]
                payload = _read(self.descriptor, length, place + len(head)) if length <= size - place else b""
                if head == self._head(sample, place, payload):
                    return payload
        except OSError as error:
            raise CorruptError(f"the kept result of sample {sample} can't be read: {error}", sample) from error
        raise CorruptError(f"the kept result of sample {sample} is damaged", sample)

    def put(self, sample: int, payload: bytes) -> None:
        """Writes a sample's record. The caller has the lock.

        Raises:
            OSError: It couldn't be written; the file is as it was.
        """
        place = self.size
        try:
            _write(self.descriptor, self._head(sample, place, payload), place)
            _write(self.descriptor, payload, place + _RECORD.size)
            _write(self.descriptor, _PLACE.pack(place), self._table_at + sample * _PLACE.size)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, place)
            raise

    def _place(self, sample: int) -> int:
        data = os.pread(self.descriptor, _PLACE.size, self._table_at + sample * _PLACE.size)
        return int.from_bytes(data, "little")

    def _head(self, sample: int, place: int, payload: bytes) -> bytes:
        first = _RECORD.pack(self._mark, sample, len(payload), zlib.crc32(payload), 0)[:-4]
        return first + zlib.crc32(first + _PLACE.pack(place)).to_bytes(4, "little")


def described(descriptor: int) -> dict[str, Any]:
    """What a file says of itself: `name`, `samples`, and `kept`, how many of them have a record.

    Raises:
        CorruptError: It is no table, or its header is damaged.
    """
    _, text = _header(descriptor)
    try:
        name = Name(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise CorruptError("the header of a file of results is damaged") from error
    kept, step = 0, 1 << 20
    for at in range(name.table_at, name.table_end, step):
        data = os.pread(descriptor, min(step, name.table_end - at), at)
        kept += int(np.count_nonzero(np.frombuffer(data[: len(data) // 8 * 8], "<u8")))
    return {"name": name.name, "samples": name.samples, "kept": kept}


def _header(descriptor: int) -> tuple[tuple[Any, ...], bytes]:
    data = os.pread(descriptor, _HEADER.size, 0)
    if len(data) < _HEADER.size:
        raise CorruptError("no file of results")
    fields = _HEADER.unpack(data)
    if fields[:2] != (_MAGIC, VERSION) or fields[2] > _LONGEST_NAME:
        raise CorruptError("no file of results, or of another version")
    text = os.pread(descriptor, fields[2], _HEADER.size)
    if zlib.crc32(_HEADER.pack(*fields[:-1], 0) + text) != fields[-1]:
        raise CorruptError("the header of a file of results is damaged")
    return fields, text


def _read(descriptor: int, length: int, place: int) -> bytes:
    if length <= _MOST_AT_ONCE:
        return os.pread(descriptor, length, place)
    parts = []
    while length and (part := os.pread(descriptor, min(length, _MOST_AT_ONCE), place)):
        parts.append(part)
        length, place = length - len(part), place + len(part)
    return b"".join(parts)


def _write(descriptor: int, data: bytes, place: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest[:_MOST_AT_ONCE], place)
        rest, place = rest[written:], place + written
