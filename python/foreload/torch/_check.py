"""What a loader's arguments must be together, looked at before anything is made of them.

Torch's constructor would refuse some of it in words of its own machinery; and what nothing would come of, because another argument decides
it, is refused too: a keyword that is ignored trains on something else than it says.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from foreload._data.mixture import Mixture
from foreload._settings import numbers as _numbers
from foreload._settings.order import check_shuffle
from foreload.errors import InvalidError
from foreload.torch._batch import FORMS
from foreload.torch.dataset import Dataset

_LOG = logging.getLogger("foreload")
#: What a `foreload.torch.Dataset` decides, and what it is where nobody says.
_OF_DATASETS = {"decode": None, "transform": None, "raw": "bytes", "cache": None, "on_error": "raise"}


def steps_between(steps: int | None) -> int:
    """Looks at torchdata's `snapshot_every_n_steps`, where 0 is allowed.

    Raises:
        InvalidError: It is no number of steps.
    """
    if steps is None:
        return 1
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise InvalidError(
            f"snapshot_every_n_steps={steps!r}: give how many batches there are from one to the next, at least 1"
        )
    return max(steps, 1)


def data_keywords(dataset: Any, num_workers: int, timeout: float, **given: Any) -> tuple[int, float]:
    """Looks at what concerns the data.

    Args:
        dataset: What the loader is given to read.
        num_workers: Worker processes.
        timeout: Longest wait for a batch in seconds.
        given: The keywords that a `foreload.torch.Dataset` takes too.

    Returns:
        The worker processes and the timeout, as plain numbers.

    Raises:
        InvalidError: One can't be obeyed.
    """
    if isinstance(num_workers, bool) or not hasattr(num_workers, "__index__") or num_workers < 0:
        raise InvalidError(f"num_workers={num_workers!r}: give 0 (the loop decodes) or more")
    numbers = int(num_workers), _numbers.real("timeout", timeout)
    if given["raw"] not in FORMS:
        raise InvalidError(f"raw={given['raw']!r}: give one of {', '.join(FORMS)}")
    if not isinstance(dataset, Dataset):
        return numbers
    # The same again is what frameworks give that make a loader anew from its attributes.
    ignored = [
        name for name, default in _OF_DATASETS.items() if given[name] != default and given[name] != dataset.given[name]
    ]
    if ignored:
        raise InvalidError(
            f"DataLoader: {', '.join(f'{name}=' for name in ignored)} would be ignored, since the data set is a "
            f"{type(dataset).__name__} and decides that itself; give it to the Dataset (or to wrap), or give the loader what foreload.open answered"
        )
    return numbers


#: What means nothing beside a data set that torch loads itself: the default, and what to do instead.
_OF_OURS: dict[str, tuple[Any, str]] = {
    "decode": (None, "decode in the data set's __getitem__"),
    "transform": (None, "give it to the data set"),
    "raw": ("bytes", "the data set decides what its items are"),
    "cache": (None, "nothing of such a data set is cached; foreload.torch.wrap reads its files through the cache"),
    "order": ("keyed", "give sampler=, or shuffle=True with seed="),
    "dp_rank": (None, "give sampler=torch.utils.data.DistributedSampler(dataset, num_replicas=..., rank=...)"),
    "dp_size": (None, "give sampler=torch.utils.data.DistributedSampler(dataset, num_replicas=..., rank=...)"),
    "device_mesh": (None, "give sampler=torch.utils.data.DistributedSampler(dataset, num_replicas=..., rank=...)"),
    "local_ranks": (None, "leave it out"),
    "uneven": (None, "give a sampler that shares the last batch out, or drop_last=True"),
    "assign": (None, "leave it out: nothing of such a data set is cached"),
    "on_error": ("raise", "catch the error in the data set's __getitem__"),
    "threads": (None, "give num_workers="),
    "policy": (None, "leave it out: nothing is planned"),
    "tuning": (None, "leave it out: nothing is fetched"),
}


def batch_keywords(collate_fn: Any, *, in_workers: bool, raw: str, single: bool, drop_last: bool) -> None:
    """Refuses what can't be done about batches.

    Raises:
        InvalidError: The message names the argument and what to give instead.
    """
    if collate_fn is not None and not callable(collate_fn):
        raise InvalidError(f"collate_fn={collate_fn!r} can't be called")
    if single and drop_last:
        raise InvalidError(
            "batch_size=None yields samples one at a time: there is no last batch to drop; give batch_size=1"
        )
    if raw == "view" and in_workers:
        raise InvalidError("raw='view' is memory of one process; with workers give 'bytes' or 'tensor'")


def assignment(assign: str | None, dataset: Any, own: Any) -> None:
    """Looks at which rank is to read what.

    Args:
        assign: The keyword.
        dataset: What the loader is given to read.
        own: A sampler that was given.

    Raises:
        InvalidError: It is unknown, or can't be obeyed.
    """
    if assign is None:
        return
    if assign != "local":
        raise InvalidError(f"assign={assign!r}: give 'local', or nothing")
    if own is not None:
        raise InvalidError(
            "assign='local' is for the loader's own order: a sampler that is given says itself what this rank reads"
        )
    read = getattr(dataset, "data", dataset)
    index = read.source.opened().index
    if isinstance(read, Mixture) or index.objects < len(index):
        raise InvalidError(
            "assign='local' deals whole objects: it isn't there for samples in shards or rows, nor for mixtures, of which nodes keep stretches"
        )


def generator_of_foreign(
    dataset: Any, generator: torch.Generator | None, seed: int | None, given: dict[str, Any]
) -> torch.Generator | None:
    """Looks at the keywords of ours beside a data set that torch loads itself.

    Args:
        dataset: The data set.
        generator: The loader's.
        seed: What it is seeded with, where none is given.
        given: The other keywords.

    Returns:
        The generator that torch draws from.

    Raises:
        InvalidError: One means nothing there; the message says what to do instead.
    """
    if isinstance(dataset, (str, os.PathLike)):
        raise InvalidError(f"DataLoader: {dataset!r} is no data set; give foreload.open({os.fspath(dataset)!r})")
    for name, (default, remedy) in _OF_OURS.items():
        if given[name] != default:
            raise InvalidError(
                f"DataLoader: {name}= is for data sets of Foreload's (foreload.open, foreload.torch.Dataset, foreload.torch.wrap), and this is a "
                f"{type(dataset).__name__}, which torch loads: {remedy}"
            )
    if seed is None:
        return generator
    if generator is not None:
        raise InvalidError("DataLoader: seed= and generator= both say what is drawn; give one")
    return torch.Generator().manual_seed(_numbers.count("seed", seed, -(1 << 63), (1 << 64) - 1))


def order_keywords(
    order: str, batch_size: int | None, shuffle: bool, sampler: Any, batch_sampler: Any, drop_last: bool
) -> None:
    """Looks at what concerns the order.

    Raises:
        InvalidError: Two arguments exclude each other.
    """
    for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        # By `__getitem__` alone a list of one's own is iterable, too; a class is not, but for its instances.
        is_iterable = not isinstance(given, type) and any(hasattr(given, how) for how in ("__iter__", "__getitem__"))
        if given is not None and not is_iterable:
            raise InvalidError(f"{name}={given!r}: give a sampler, or a list of samples' numbers")
    if shuffle and (sampler is not None or batch_sampler is not None):
        raise InvalidError("shuffle=True and a sampler exclude each other: the sampler is the order")
    if batch_sampler is not None and (batch_size not in (None, 1) or sampler is not None or drop_last):
        raise InvalidError(
            "batch_sampler and batch_size, sampler or drop_last exclude each other: the batch sampler says which samples each batch has"
        )
    if sampler is None and batch_sampler is None:
        check_shuffle(order, shuffle)


def warn_of_ignored(sampler: Any, order: str, *, is_placed: bool) -> None:
    """Says what has no effect beside a sampler. It is no error, because frameworks put samplers of theirs beside all else that a loader was given.

    Args:
        sampler: A sampler or batch sampler that isn't ours.
        order: The order that was named.
        is_placed: Whether this process' place among the data ranks was given.
    """
    if any(hasattr(part, "num_replicas") for part in (sampler, getattr(sampler, "sampler", None))):
        # It shares samples out among the ranks itself.
        return
    if is_placed:
        _LOG.warning(
            "dp_rank, dp_size and device_mesh have no effect beside a sampler of your own: every rank reads all that its sampler yields. "
            "Give a DistributedSampler, or leave the sampler out"
        )
    if order != "keyed":
        _LOG.warning("order=%r has no effect beside a sampler of your own, which is the order", order)
