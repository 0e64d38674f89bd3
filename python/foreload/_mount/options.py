"""What a mount is to be: options in a person's terms, and what the program behind `foreload mount` reads.

The names that s3fs has for what there is here, too, are taken for it: whoever comes from there keeps their options.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foreload._data import address as _address
from foreload._mount import program
from foreload._node import agent as _agent
from foreload._settings import environment as _environment
from foreload._settings.cache import Cache, directory_and_size
from foreload._settings.sizes import format_bytes, parse_bytes
from foreload.errors import InvalidError

#: Paper 004: chunks of 52 MB, and twenty connections. Each has a chunk on its way, and a few are read.
_PAPER = {"chunk": "52MB", "connections": 20, "ram": "1300MB"}
_MOST_CONNECTIONS = 4096
_MOST_CHUNK = 1 << 30
_MOST_PORT = 65_535
#: Room for a chunk that is read, one that comes, and two more.
_CHUNKS = 4
_MIB = 1 << 20
#: The largest number that somebody can have.
_MOST_ID = 2**32 - 2
#: Parts that go up at once, and what stores take as one.
_PARTS = 8
_LEAST_PART = 5 * _MIB
_MOST_PART = 1024 * _MIB


@dataclass(frozen=True)
class Options:
    """How a bucket is mounted.

    Attributes:
        chunk: What one request is for: `adaptive`, or a size for all objects. Default: `adaptive`, 4 MiB, and 8 MiB of objects from 1 GiB on.
        connections: Requests in flight; None: as many as the store is worth.
        ram: Memory for chunks: those that are read, and those that are asked for ahead.
        disk: Directories to keep chunks in, and the size of each, as in [`Cache`][foreload.Cache].
        copies: A directory for copies of whole files, which the kernel reads by itself, and its size, written as in `disk`. None: there are none.
        ahead: What may be asked for ahead of all open files together. Default: half of `ram`; 0: nothing.
        entries: Names that are kept in mind.
        ttl_s: How long what is known of a name is believed, in seconds.
        timeout_s: How long a request may take, its repetitions included, in seconds; then the read fails with `EIO`.
        uid: Whom files belong to; None: who mounts.
        gid: The same for the group.
        umask: Bits that files and directories don't have, unless `file_mode` and `dir_mode` say which they have.
        file_mode: Permission bits of files; None: 444, or 644 where they can be written.
        dir_mode: Permission bits of directories; None: 555, or 755.
        allow_other: Whether other users may look at it.
        allow_write: Whether files can be written, deleted and renamed.
        part: Of a file that is written, what goes up in one request; of a very large one more.
    """

    chunk: int | str = "adaptive"
    connections: int | None = None
    ram: int | str = "256MB"
    disk: str | Sequence[str] | None = ()
    copies: str | None = None
    ahead: int | str | None = None
    entries: int = 100_000
    ttl_s: float = 60.0
    timeout_s: float = 30.0
    uid: int | None = None
    gid: int | None = None
    umask: int = 0o022
    file_mode: int | None = None
    dir_mode: int | None = None
    allow_other: bool = False
    allow_write: bool = False
    part: int | str = "16MiB"

    def chunk_bytes(self) -> int | None:
        """The chunk of all objects; None: by their size.

        Raises:
            InvalidError: It is no size for a chunk.
        """
        if self.chunk == "adaptive":
            return None
        size = parse_bytes(self.chunk, "chunk")
        if not 4096 <= size <= _MOST_CHUNK:
            raise InvalidError(f"chunk={self.chunk}: give `adaptive`, or 4 KiB to 1 GiB")
        return size

    def _mode(self, whole: int) -> int:
        return whole & ~self.umask & (0o777 if self.allow_write else 0o555)

    def part_bytes(self) -> int:
        """What goes up in one request.

        Raises:
            InvalidError: No store takes such parts.
        """
        size = parse_bytes(self.part, "part")
        if not _LEAST_PART <= size <= _MOST_PART:
            raise InvalidError(f"part={self.part}: give 5 MiB to 1 GiB")
        return size

    def settings(self, url: str, storage_options: Mapping[str, str], cache_dir: str | None = None) -> dict[str, Any]:
        """What the program reads.

        Raises:
            InvalidError: An option makes no sense.
        """
        if self.connections is not None and not 1 <= self.connections <= _MOST_CONNECTIONS:
            raise InvalidError(f"connections={self.connections}: give 1 to {_MOST_CONNECTIONS}")
        if self.entries < 1:
            raise InvalidError(f"entries={self.entries}: give 1 or more")
        for name, number in (("uid", self.uid), ("gid", self.gid)):
            if number is not None and not 0 <= number <= _MOST_ID:
                raise InvalidError(f"{name}={number}: give 0 to {_MOST_ID}")
        chunk = self.chunk_bytes()
        ram = parse_bytes(self.ram, "ram")
        least = _CHUNKS * (chunk or 8 * _MIB)
        if ram < least:
            raise InvalidError(
                f"ram={self.ram}: chunks of up to {format_bytes(chunk or 8 * _MIB)} need {-(-least // 10**6)}MB at least"
            )
        address = _address.absolute(url)
        copies = None if self.copies is None else _share(*directory_and_size(self.copies, "copies"))
        return {
            "url": address,
            "storage_options": _environment.storage_options(address, _environment.as_text(storage_options)),
            "agent": str(_agent.program()),
            "cache_dir": _agent.cache_directory(cache_dir),
            "chunking": "adaptive" if chunk is None else {"fixed": chunk},
            "connections": self.connections,
            "ram_bytes": ram,
            "disks": [_share(*each) for each in Cache(disk=self.disk).disks()],
            "copies": copies,
            "ahead_bytes": None if self.ahead is None else parse_bytes(self.ahead, "ahead"),
            "most_entries": self.entries,
            "ttl_s": self.ttl_s,
            "timeout_s": self.timeout_s,
            "uid": self.uid,
            "gid": self.gid,
            "file_mode": self._mode(0o666) if self.file_mode is None else self.file_mode,
            "dir_mode": self._mode(0o777) if self.dir_mode is None else self.dir_mode,
            "allow_other": self.allow_other,
            "write": {"part_bytes": self.part_bytes(), "most_parts": _PARTS} if self.allow_write else None,
        }


def _share(directory: str, size: int) -> dict[str, Any]:
    return {"directory": directory, "capacity_bytes": size}


def preset(name: str) -> dict[str, Any]:
    """Options by a name: `paper` is what paper 004 measured with.

    Raises:
        InvalidError: There are none by that name.
    """
    if name != "paper":
        raise InvalidError(f"--preset {name}: there is `paper` (chunks of 52 MB, 20 connections)")
    return dict(_PAPER)


@dataclass
class Given:
    """Words of `-o`, told apart.

    Attributes:
        fields: Fields of `Options`.
        store: Options of the store.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    store: dict[str, str] = field(default_factory=dict)


def _mebibytes(text: str) -> int:
    return int(text) * _MIB


def _octal(text: str) -> int:
    return int(text, 8)


#: s3fs' options that are some of ours: the field, and how its text is read.
_OF_S3FS: dict[str, tuple[str, Any]] = {
    "parallel_count": ("connections", int),
    "multireq_max": ("connections", int),
    "multipart_size": ("chunk", _mebibytes),
    "max_stat_cache_size": ("entries", int),
    "stat_cache_expire": ("ttl_s", float),
    "readwrite_timeout": ("timeout_s", float),
    "uid": ("uid", int),
    "gid": ("gid", int),
    "umask": ("umask", _octal),
}
#: Those that are there or not.
_SWITCHES = {"allow_other": "allow_other", "rw": "allow_write"}
#: And of the store's.
_STORE_OF_S3FS = {"url": "endpoint_url", "endpoint": "region", "profile": "profile"}
#: Those that say what is so anyway.
_IDLE = {"use_path_request_style", "ro", "nonempty", "kernel_cache", "compat_dir", "complement_stat", "sigv4"}
#: What options are called.
_NAME = re.compile("[a-z][a-z0-9_]*")
#: What there is instead of others.
_INSTEAD = {
    "use_cache": "--disk DIRECTORY:SIZE keeps what was read, in a bounded size",
    "ensure_diskfree": "1 GiB of a disk stays free; --disk DIRECTORY:SIZE bounds the rest",
    "passwd_file": "credentials come from the environment, the AWS profile, or -o access_key_id=... -o secret_access_key=...",
    "ahbe_conf": "there are no headers of one's own",
}


def words(options: Sequence[str] | None) -> list[str]:
    """Words of `-o` as `mount` and s3fs take them, one by one and each with a value: several are separated by commas, and one that is there or not needs none.

    Example:
        >>> words(["allow_other,umask=022", "region=eu-west-1"])
        ['allow_other=1', 'umask=022', 'region=eu-west-1']
    """
    bare = {*_SWITCHES, *_IDLE, *_INSTEAD, "public_bucket"}
    found: list[str] = []
    for text in options or ():
        first = len(found)
        for word in filter(None, text.split(",")):
            name, equals, _ = word.partition("=")
            if word in bare:
                found.append(f"{word}=1")
            elif len(found) > first and not (equals and _NAME.fullmatch(name)):
                # A comma of a value's.
                found[-1] += f",{word}"
            else:
                found.append(word)
    return found


def given(words: Mapping[str, str]) -> Given:
    """Tells `-o` words apart: options of s3fs that are some of ours, and options of the store.

    Raises:
        InvalidError: A value makes no sense, or it is an option of s3fs for which there is something else.
    """
    found = Given()
    for name, text in words.items():
        if name in _OF_S3FS:
            _take(found, name, text)
        elif name in _STORE_OF_S3FS:
            found.store[_STORE_OF_S3FS[name]] = text
        elif name == "public_bucket":
            found.store["anonymous"] = "true" if text not in ("", "0") else "false"
        elif name in _SWITCHES:
            found.fields[_SWITCHES[name]] = text not in ("0", "false")
        elif name in _INSTEAD:
            raise InvalidError(f"-o {name}: {_INSTEAD[name]}")
        elif name not in _IDLE:
            found.store[name] = text
    return found


def _take(found: Given, name: str, text: str) -> None:
    to, read = _OF_S3FS[name]
    try:
        found.fields[to] = read(text)
    except ValueError:
        raise InvalidError(f"-o {name}={text}: give a number") from None
    if name == "multipart_size":
        # Of what is written, too.
        found.fields["part"] = max(found.fields[to], _LEAST_PART)


def address(text: str) -> str:
    """Where it is to listen.

    Raises:
        InvalidError: It is no address of this machine's loopback, or no port.
    """
    host, _, port = text.removeprefix("http://").rstrip("/").rpartition(":")
    host = {"": "127.0.0.1", "localhost": "127.0.0.1"}.get(host, host)
    try:
        is_good = ipaddress.ip_address(host.strip("[]")).is_loopback and 0 <= int(port) <= _MOST_PORT
    except ValueError:
        is_good = False
    if not is_good:
        raise InvalidError(f"--listen {text}: give 127.0.0.1:PORT, for whoever reaches it may read all there is")
    return f"http://{host}:{int(port)}"


#: What a descriptor of `/dev/fuse` is named by that somebody has mounted already, as libfuse has it.
_DESCRIPTORS = "/dev/fd/"
_FUSE = (10, 229)


def descriptor(target: str | os.PathLike[str]) -> int | None:
    """The descriptor that is meant, if it is one.

    Raises:
        InvalidError: It isn't open in this process, or isn't of `/dev/fuse`.
    """
    text = os.fspath(target)
    if not text.startswith(_DESCRIPTORS):
        return None
    number = int(text[len(_DESCRIPTORS) :]) if text[len(_DESCRIPTORS) :].isdecimal() else -1
    try:
        device = os.fstat(number).st_rdev
    except (OSError, OverflowError):
        raise InvalidError(f"{text}: it isn't open in this process") from None
    if (os.major(device), os.minor(device)) != _FUSE:
        raise InvalidError(f"{text}: it is no descriptor of /dev/fuse")
    return number


def directory(target: str | os.PathLike[str]) -> str:
    """Where it is to be mounted.

    Raises:
        InvalidError: It is no directory, or something is mounted there that doesn't answer any more.
    """
    if descriptor(target) is not None:
        return os.fspath(target)
    place = Path(os.path.realpath(Path(target).expanduser()))
    try:
        place.stat()
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise InvalidError(
                f"{place}: a mount whose program has ended is still there; `foreload unmount {place}` removes it"
            ) from None
        raise InvalidError(f"{place}: {error.strerror}; give a directory that exists") from None
    if not place.is_dir():
        raise InvalidError(f"{place} is no directory")
    if program.is_mounted(str(place)):
        raise InvalidError(
            f"{place}: something of foreload is mounted there already; `foreload unmount {place}` ends it"
        )
    return str(place)
