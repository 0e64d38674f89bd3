"""Data sets of files that somebody names, one by one.

`foreload.open` lists what lies below a URL; here the caller knows the names. They become a manifest in the cache directory, called after its content, and
that is opened: the agent looks up exactly these files and no others, and knows the list again next time. A sample of several files is one run of
bytes, one file after the other.

A file has one name, however its path or URL is written (`name_of`); by that name the index and who opens it agree.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from foreload import _core
from foreload._data.dataset import Dataset
from foreload._node import agent as _agent
from foreload._node.credentials import Credentials, Provider
from foreload._node.source import Source
from foreload._settings import environment as _environment
from foreload.errors import InvalidError

#: The agent takes no `/` for a root. What `/proc` calls it is one like any other.
_TOP = "/proc/self/root"


def name_of(file: Any) -> str | None:
    """The one name of a file: an absolute path, or a URL in its one form.

    Args:
        file: A path or a URL, as text, bytes or a path object.

    Returns:
        The name; None: it is none of these.
    """
    try:
        text = os.fsdecode(file)
    except TypeError:
        return None
    scheme, found, rest = text.partition(":/")
    # A `pathlib.Path` of a URL has one slash.
    known = _core.scheme(f"{scheme}://") if found else None
    if known not in (None, "file"):
        bucket, _, key = rest.lstrip("/").partition("/")
        if known in ("http", "https"):
            return f"{known}://{bucket.lower()}/{unquote(key)}"
        # abfss://container@account.dfs.core.windows.net, of which the account is a part of the name.
        return f"{known}://{bucket.partition('.')[0] if known == 'az' and '@' in bucket else bucket}/{key}"
    if known == "file":
        text = unquote("/" + rest.removeprefix("/localhost").lstrip("/"))
    if ".." in text:
        # After a link, `..` isn't the directory that is written before it.
        directory, name = os.path.split(text)
        return name and os.path.join(os.path.realpath(directory), name)  # noqa: PTH118 (called for each file that is opened)
    return os.path.abspath(text)  # noqa: PTH100 (the same)


def parts_of(index: Any, sample: int) -> list[tuple[str, int]]:
    """The files of a sample: (name, bytes)."""
    root = str(index.root)
    if root.startswith("file://"):
        root = root.removeprefix("file://").removeprefix(_TOP)
    return [(f"{root}/{key}", length) for key, _, length, *_ in index.ranges(sample)]


def open_named(
    samples: Sequence[Sequence[str]],
    storage_options: Mapping[str, Any] | None = None,
    credential_provider: Provider | None = None,
    *,
    refresh: bool = False,
) -> Dataset:
    """Opens files by their names.

    Args:
        samples: The names of each sample's files, as `name_of` answers.
        storage_options: As for `foreload.open`.
        credential_provider: As for `foreload.open`.
        refresh: Look them up again, even if the same list was opened before.

    Returns:
        A data set of these samples in this order.

    Raises:
        InvalidError: They lie in several buckets.
        NotFoundError: One isn't there.
    """
    places = {_place(name) for names in samples for name in names}
    if not places:
        raise InvalidError(
            "the data set has no samples, so there is nothing to read ahead: give it to the loader as it is"
        )
    if len(places) > 1:
        raise InvalidError(
            f"the files lie in several places, {' and '.join(sorted(place or 'this machine' for place in places)[:2])}: wrap one data set for each place, and join them with "
            "torch.utils.data.ConcatDataset"
        )
    (place,) = places
    common = place or _directory(samples)
    # A directory stands where a bucket would, which is why its slashes are coded: what follows is a key in it.
    root = place or f"file://{quote(common or _TOP, safe='')}"
    text = "".join(_row(root, names, len(common)) for names in samples)
    cache_dir = _agent.cache_directory(None)
    call: dict[str, Any] = {
        "url": _kept(Path(cache_dir) / "wrapped", text),
        "format": "manifest",
        "storage_options": _environment.storage_options(place, _environment.as_text(storage_options or {})),
        "index": None,
        "refresh": bool(refresh),
        "extensions": [],
    }
    source = Source(cache_dir, call, None if credential_provider is None else Credentials(credential_provider))
    source.opened()
    return Dataset(source)


def _place(name: str) -> str:
    """A bucket or host; nothing for the files of this machine."""
    if name.startswith("/"):
        return ""
    scheme, _, rest = name.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _directory(samples: Sequence[Sequence[str]]) -> str:
    """The directory that all files have in common, nothing for `/`; not one with a `%`, which would be taken for the beginning of a code."""
    common = os.path.commonpath([os.path.dirname(name) for names in samples for name in names])  # noqa: PTH120
    while "%" in common:
        common = os.path.dirname(common)  # noqa: PTH120
    return common.rstrip("/")


def _row(root: str, names: Sequence[str], cut: int) -> str:
    # A manifest has its URLs encoded where their scheme is.
    is_encoded = root.startswith(("file:", "http:", "https:"))
    urls = [root + (name[cut:].replace("%", "%25") if is_encoded else name[cut:]) for name in names]
    row = {"object": urls[0]} if len(urls) == 1 else {"ranges": [[url] for url in urls]}
    return json.dumps(row, ensure_ascii=False) + "\n"


def _kept(directory: Path, text: str) -> str:
    """A file with this text, called after it."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        name = error.object[max(0, error.start - 40) : error.end + 40]
        raise InvalidError(f"a file's name is not UTF-8: ...{name!r}...; rename it") from None
    path = directory / f"{hashlib.blake2b(data, digest_size=16).hexdigest()}.jsonl"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(dir=directory)
        try:
            with open(handle, "wb") as file:  # noqa: PTH123 (a descriptor)
                file.write(data)
            Path(made).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(made).unlink()
            raise
    return str(path)
