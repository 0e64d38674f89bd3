"""What a program that reads a mount can tell it: which files it will read, and in which order.

`foreload mount URL DIRECTORY` shows a bucket as a directory. It fetches ahead of whoever reads a file, and can't know which file is next. Whoever knows says so here, and the mount
fetches the files ahead as the loader would. The programs that read them need not be the one that says so.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from foreload._mapped.order import Ordered
from foreload.errors import ForeloadError, InvalidError, NotFoundError

__all__ = ["hint", "wrap_sampler"]

Place = str | os.PathLike[str]

_LOG = logging.getLogger("foreload")

#: Where a mount listens.
_ORDER = Path(".foreload") / "order"


def root_of(path: Place) -> Path:
    """The directory where the mount is that a path lies in.

    Raises:
        InvalidError: It lies in no mount of foreload's.
    """
    place = Path(path).absolute()
    # From the outermost on: nothing is asked of a store then.
    for above in (*reversed(place.parents), place):
        if (above / _ORDER).exists():
            return above
    raise InvalidError(f"{place} lies in nothing that `foreload mount` has mounted")


def hint(paths: Iterable[Place]) -> None:
    """Tells a mount which files will be read next, in this order. What this process has told so before is over; others' orders, and those of samplers, are followed beside it.

    Each file is fetched ahead of its turn, within the mount's memory, unless it lies in the page cache. Whoever reads others, or in another order, reads them as before; a file that is named twice is read twice.

        >>> foreload.mount.hint(["/data/train/0001.jpg", "/data/train/7312.jpg"])  # doctest: +SKIP

    What is wrong is said if it is found out within five seconds; else the mount's log says it.

    Args:
        paths: The files; all of them in one mount.

    Raises:
        InvalidError: They lie in no mount, or not in the same one.
        NotFoundError: There is no such file.
        OSError: What the store says otherwise.
    """
    if isinstance(paths, (str, bytes)):
        raise InvalidError(f"hint({paths!r}): give a list of paths")
    _tell(paths)


def _tell(paths: Iterable[Place], which: int = 0) -> None:
    """As `hint`; `which` of this process' orders it is."""
    paths = [os.fsdecode(path) for path in paths]
    if not paths:
        return
    root = root_of(paths[0])
    places = [_within(root, path) for path in paths]
    try:
        # Closing it asks for an answer: what is wrong with one of the files is said then.
        (root / _ORDER).write_text(f"\0{which}\n" + "".join(f"{place}\n" for place in places))
    except UnicodeEncodeError:
        strange = next(path for path in map(os.fsdecode, paths) if not _is_text(path))
        raise InvalidError(f"{strange!r} isn't UTF-8, and names of objects are") from None
    except FileNotFoundError:
        missing = next((path for path in paths if not Path(path).exists()), paths[0])
        raise NotFoundError(f"there is no file {os.fspath(missing)}") from None
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (the mount's log says why)", str(root)) from None


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _within(root: Path, path: Place) -> str:
    place = os.path.relpath(os.path.abspath(path), root)  # noqa: PTH100 (ten million of them: Path is ten times slower)
    if place.startswith("..") or "\n" in place:
        raise InvalidError(f"{os.fspath(path)!r} isn't below {root}, as the first one is")
    return place


#: What is told at a time: what is told next takes its place.
_EPOCH = 1 << 20


class _Told:
    """Nobody has to say how far the reader is: the mount sees it."""

    every = sys.maxsize

    def reached(self, nth: int) -> None:
        pass

    def stop(self) -> None:
        pass


def wrap_sampler(
    sampler: Any,
    paths: Sequence[Place] | Callable[[Any], Place],
    *,
    foresee: Callable[[Any], Any] | None = None,
) -> Any:
    """Wraps a sampler (or a batch sampler), so that a mount knows at the beginning of each epoch which files are read in it.

    The sampler is asked as it would be without this, so that its order, its state and its generator stay what they are; what it is going to name says a double of it, a
    million samples at a time.

        >>> data = torchvision.datasets.ImageFolder("/data/train")                                  # doctest: +SKIP
        >>> sampler = foreload.mount.wrap_sampler(RandomSampler(data), [path for path, _ in data.samples])  # doctest: +SKIP

    Args:
        sampler: What names samples; `set_epoch` and others are passed on to it.
        paths: The file of each sample by its number, or what makes it of what the sampler names.
        foresee: As of [`foreload.mmap.wrap_sampler`][foreload.mmap.wrap_sampler].

    Returns:
        The same, with its files on their way, those that are there. Where one lies in no mount a warning says so when it is iterated, and nothing is fetched ahead.
    """
    return Ordered(sampler, _begin(sampler, paths), foresee, part=_EPOCH)


def _begin(sampler: Any, paths: Sequence[Place] | Callable[[Any], Place]) -> Callable[[Sequence[Any], bool], _Told]:
    # Two loaders of a process, to train and to validate, are read beside each other; the next epoch of one follows on its last.
    which = id(sampler)

    def begin(samples: Sequence[Any], _is_first: bool) -> _Told:
        told = [paths(sample) if callable(paths) else paths[sample] for sample in samples]
        try:
            _tell(told, which)
        except NotFoundError:
            # Whoever comes to what isn't there hears it himself; the others are fetched.
            _tell((path for path in told if os.path.exists(path)), which)  # noqa: PTH110 (as below)
        return _Told()

    return begin


def follow(sampler: Any, paths: Callable[[Any], Place], *, had: int) -> Any:
    """The sampler of a loader that nobody has wrapped: as `wrap_sampler`, where there is a mount, and without a warning.

    Args:
        sampler: A sampler, or a batch sampler.
        paths: The file of a sample.
        had: How much of what the sampler names was read before.
    """
    try:
        root_of(paths(0))
    except (ForeloadError, OSError, LookupError):
        return sampler
    return Ordered(sampler, _begin(sampler, paths), part=_EPOCH, had=had, warn=_said)


def _said(why: str) -> None:
    _LOG.info("the mount isn't told which files come next: %s", why)
