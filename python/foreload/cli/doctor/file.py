"""A file or directory that a run would read: whether it can be read, what lies below it, and how fast a program is that maps the file."""

import os
from collections.abc import Iterator
from pathlib import Path

from foreload.cli.doctor.directories import filesystem, is_network
from foreload.cli.doctor.finding import Finding
from foreload.cli.output import human_bytes

#: A page that comes sooner is on a local disk, and its bandwidth is the limit.
_SOON_S = 0.0005
#: The window that root is told of: with it a sequential read of a store of 5 ms is as fast as reading ahead.
_WIDE = 8 << 20


def look(path: Path) -> Iterator[Finding]:
    """Looks at a path; of a file some single pages are read."""
    name = "file"
    if not path.exists():
        yield Finding(
            name, "fail", f"{path} doesn't exist", "check the path, or write a URL such as s3://bucket/prefix"
        )
        return
    if not os.access(path, os.R_OK):
        yield Finding(name, "fail", f"{path}: no permission to read", f"chmod +r {path}, or run as its owner")
        return
    if not path.is_file() and not path.is_dir():
        yield Finding(name, "fail", f"{path} is neither a file nor a directory", "name what the data lies in")
        return
    kind = filesystem(path)
    size = "a directory" if path.is_dir() else human_bytes(path.stat().st_size)
    detail = f"{path}: {size} on {kind or 'an unknown file system'}"
    if is_network(kind):
        yield Finding(name, "note", detail, "reads cost a network round trip each: a disk tier on a local disk helps")
    else:
        yield Finding(name, "ok", detail)
    if path.is_file() and path.stat().st_size:
        yield from mapped(path)


def mapped(path: Path) -> Iterator[Finding]:
    """What a program gets that maps a file, and what would help it."""
    from foreload._mapped.probe import probe

    found = probe(path)
    window = human_bytes(found.window_bytes)
    yield Finding("in memory", "ok", f"{found.cached:.0%} of the file is in the page cache")
    if found.latency_s is None:
        return
    rate = found.faulting_bytes_per_s or 0.0
    detail = f"a page takes {found.latency_s * 1e3:.3g} ms, and a fault brings {window}: {human_bytes(rate)}/s where a program maps it and reads on"
    if found.latency_s < _SOON_S:
        yield Finding("mapped reads", "ok", f"{detail}. Reading ahead would bring little")
        return
    remedy = "foreload.mmap.prefetch(path), or wrap_sampler(sampler, path) where a sampler knows the order"
    if found.device is not None and found.window_bytes < _WIDE:
        remedy += f"; for reading from the first byte to the last root gets the same with: echo {_WIDE >> 10} > {found.device}"
    yield Finding("mapped reads", "note", detail, remedy)
