"""URLs of data sets, read as the agent reads them, for what has to be known about them before it is asked, or compared afterwards.

`crates/store` is what decides (`source/address.rs`): a root is `scheme://name/prefix` in one form, and what follows it may be shards by a pattern, or
one file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from foreload import _core
from foreload.errors import InvalidError, NotFoundError


def absolute(url: str | os.PathLike[str]) -> str:
    """A URL, or a path made absolute: the agent has another working directory.

    Raises:
        InvalidError: It names nothing.
    """
    text = os.fspath(url)
    if not text:
        raise InvalidError("open: the URL is empty; '.' is the working directory")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidError(
            f"open: {text!r}: names that aren't UTF-8 can't be passed on; rename it, or open it by a link"
        ) from None
    scheme, found, rest = text.partition("://")
    if not found:
        return str(Path(text).expanduser().absolute())
    if scheme.lower() in ("http", "https") and "?" in rest:
        raise InvalidError(
            f"open: {text.partition('?')[0]}?...: a URL with a query isn't supported, for the names of samples are added to it; give headers or tokens as storage_options"
        )
    if _core.scheme(text) not in (None, "file") and not rest.partition("/")[0]:
        raise InvalidError(f"open: {text!r} names no bucket; write {scheme}://bucket/prefix")
    return text


def index_file(index: str | os.PathLike[str]) -> str:
    """Where a saved index lies.

    Raises:
        NotFoundError: There is no such file.
        InvalidError: It is a directory.
    """
    address = absolute(index)
    path = path_of(address)
    if path is None:
        return address
    if not Path(path).exists():
        raise NotFoundError(f"index: there is no file {path}; `foreload index URL --out {path}` writes one")
    if Path(path).is_dir():
        raise InvalidError(f"index: {path} is a directory; give the file that `foreload index URL --out FILE` wrote")
    # The agent takes what is before the last slash for the directory.
    return f"/.{path}" if Path(path).parent == Path("/") else path


def check_directory(url: str) -> None:
    """Refuses a file that is no data set by itself.

    Raises:
        InvalidError: It is one.
    """
    path = path_of(url)
    if path is not None and not _core.split_url(url)[1] and Path(path).is_file():
        raise InvalidError(
            f"open: {path} is a single file; name its directory, or a file that says what the samples are: a shard (.tar), a list of shards (.json), an LMDB file (.mdb, .lmdb) or a manifest "
            "(.csv, .tsv, .jsonl, .parquet)"
        )


def check_root(url: str, index: Any) -> None:
    """Looks whether a saved index is of the data set that a URL names; which endpoint and credentials lead there doesn't matter.

    Args:
        url: The URL, as `absolute` answers.
        index: The index.

    Raises:
        InvalidError: It is of another.
    """
    root, names = _core.split_url(url)
    is_manifest = index.format == "manifest"
    if index.manifest is not None:
        # A directory stands for the manifest in it that is called so (`format/build.rs`), and for no other list beside that.
        directory, name = _core.split_url(index.manifest)
        is_named = names == name or (not names and name.startswith("manifest."))
        if _form(root) != _form(directory) or not is_named:
            raise InvalidError(f"index: it was made of {index.manifest}, and the URL is {url}; {_REMEDY}")
        return
    if _form(root) == _form(index.root):
        if not names or is_manifest:
            return
        stray = next(
            (key for key in (index.place(0)[0], index.place(len(index) - 1)[0]) if not _stands_for(names, key)), None
        )
        if stray is None:
            return
        raise InvalidError(f"index: it was made of other shards than {url}: it has {index.root}/{stray}; {_REMEDY}")
    # What a manifest names may lie anywhere.
    if is_manifest and names:
        return
    raise InvalidError(f"index: it was made of {index.root}, and the URL is {url}; {_REMEDY}")


_REMEDY = "give the index of this URL, or open the URL that it was made of"


def looks_like_an_object(url: str) -> bool:
    """Whether a URL may name one object rather than a prefix."""
    root, names = _core.split_url(url)
    return not names and "." in root.rpartition("://")[2].rpartition("/")[2]


def _stands_for(names: str, key: str) -> bool:
    try:
        return _core.stands_for(names, key)
    except ValueError as error:
        raise InvalidError(f"open: {error}") from None


def path_of(url: str) -> str | None:
    """The path that a URL names, if it does."""
    scheme, found, rest = url.partition("://")
    if not found:
        return url
    return unquote(rest.removeprefix("localhost")) or "/" if scheme.lower() == "file" else None


def _form(root: str) -> str:
    """One form for all ways to write a root."""
    path = path_of(root)
    if path is not None:
        return f"file://{os.path.realpath(path)}"
    scheme, _, rest = root.partition("://")
    name, _, prefix = rest.partition("/")
    known = _core.scheme(root) or scheme.lower()
    if known in ("http", "https"):
        # A user's name and password are no part of the place.
        return f"{known}://{name.rpartition('@')[2].lower()}/{unquote(prefix).strip('/')}"
    return f"{known}://{name.partition('@')[0] if known == 'az' else name}/{prefix.strip('/')}"
