"""A file or directory that a run would read: whether it can be read, and what lies below it."""

import os
from collections.abc import Iterator
from pathlib import Path

from foreload.cli.doctor.directories import filesystem, is_network
from foreload.cli.doctor.finding import Finding
from foreload.cli.output import human_bytes


def look(path: Path) -> Iterator[Finding]:
    """Looks at a path without reading more than its first byte."""
    name = "file"
    if not path.exists():
        yield Finding(
            name, "fail", f"{path} doesn't exist", "check the path, or write a URL such as s3://bucket/prefix"
        )
        return
    if not os.access(path, os.R_OK):
        yield Finding(name, "fail", f"{path}: no permission to read", f"chmod +r {path}, or run as its owner")
        return
    kind = filesystem(path)
    size = "a directory" if path.is_dir() else human_bytes(path.stat().st_size)
    detail = f"{path}: {size} on {kind or 'an unknown file system'}"
    if is_network(kind):
        yield Finding(name, "note", detail, "reads cost a network round trip each: a disk tier on a local disk helps")
    else:
        yield Finding(name, "ok", detail)
