"""Batches as they come from the agent, and their way into tensors and into the parent process.

Two kinds of readers get them. Torch's own loader, and every collate function of the user's, gets a plain list of items, as from any map-style
data set. `foreload.torch.DataLoader` gets a `Found` where it collates itself: in a worker of its own the samples then stay in the agent's
shared memory, and what is pickled is a few numbers that name it (`_parcel`); unpickling those in the parent makes `bytes` or tensors.

An undecoded item is a `Raw`: a tuple by whose type torch's `default_collate` makes lists of what torch can't stack, `bytes` and tensors of
different lengths.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Sized
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from foreload import _core
from foreload._node.job import Attachment
from foreload._run.decode import columns_of, copies_of
from foreload.errors import InvalidError
from foreload.torch import _parcel

#: In which form bytes are handed over that nothing decodes: copies, shared memory, or uint8 tensors.
Form = Literal["bytes", "view", "tensor"]
FORMS = ("bytes", "view", "tensor")


class Raw(tuple[Any, int]):
    """The pair (data, label) of an undecoded sample."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        data, label = self
        return tuple, ((bytes(data) if isinstance(data, _core.Sample) else data, label),)


class Found(ABC):
    """The samples of one batch."""

    @abstractmethod
    def __len__(self) -> int:
        """How many."""

    @abstractmethod
    def items(self) -> list[Any]:
        """As any data set would give them, for a collate function of the user's."""

    @abstractmethod
    def collated(self, *, parcel: bool) -> Any:
        """Collated as torch does, but into the agent's memory.

        Args:
            parcel: Whether what comes of it goes to the parent process, which alone can use it then.
        """


class Undecoded(Found):
    """Samples that nothing decodes.

    Args:
        delivery: The samples in shared memory.
        form: In which form they are to be handed over.
        attachment: Of which job.
    """

    def __init__(self, delivery: _core.Delivery, form: Form, attachment: Attachment) -> None:
        self._delivery, self._form, self._attachment = delivery, form, attachment

    def __len__(self) -> int:
        return len(self._delivery)

    def items(self) -> list[Any]:
        """(data, label) pairs."""
        data, _, labels = columns_of(self._delivery)
        return [
            Raw((_in_form(each, self._form), -1 if label is None else label))
            for each, label in zip(data, labels, strict=True)
        ]

    def collated(self, *, parcel: bool) -> Any:
        """[data, labels]."""
        delivery, form, attachment = self._delivery, self._form, self._attachment
        _check_any(delivery)
        if form == "tensor":
            labels = _parcel.labels_in(delivery, parcel=parcel)
            return [_parcel.gathered(delivery, attachment, parcel=parcel), labels]
        if parcel:
            # It unpickles as the list.
            return _parcel.samples(delivery, attachment)
        labels = _parcel.labels_in(delivery, parcel=False)
        return [delivery.views() if form == "view" and not delivery.copy else copies_of(delivery), labels]


class Decoded(Found):
    """Samples that were decoded.

    Args:
        pairs: What decode returned, and labels.
        attachment: The job whose memory to use.
        paired: Whether items are such pairs; False: what decode returned is the whole item.
    """

    def __init__(self, pairs: Sequence[tuple[Any, int]], attachment: Attachment, *, paired: bool) -> None:
        self._pairs, self._attachment, self._paired = pairs, attachment, paired

    def __len__(self) -> int:
        return len(self._pairs)

    def items(self) -> list[Any]:
        """(value, label) pairs, or the items themselves."""
        return list(self._pairs) if self._paired else [value for value, _ in self._pairs]

    def collated(self, *, parcel: bool) -> Any:
        """[values, labels], or what torch makes of the items."""
        values = _collated([value for value, _ in self._pairs], self._attachment, parcel=parcel)
        return (
            [values, _parcel.labels_of([label for _, label in self._pairs], parcel=parcel)] if self._paired else values
        )


def _check_any(samples: Sized) -> None:
    if not len(samples):
        raise InvalidError(
            "a batch has no samples, and torch's default_collate makes nothing of nothing: leave empty batches out, or give a collate_fn of your own"
        )


def _in_form(data: _core.Sample | bytes, form: Form) -> Any:
    return data if form == "view" else _parcel.tensor_of(data) if form == "tensor" else bytes(data)


def _collated(values: Sequence[Any], attachment: Attachment, *, parcel: bool) -> Any:
    _check_any(values)

    def stacked(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001 (torch calls it so)
        return _parcel.stacked(batch, attachment, parcel=parcel)

    return collate(values, collate_fn_map={**default_collate_fn_map, torch.Tensor: stacked, np.ndarray: stacked})


def _collate_raw(batch: Sequence[Raw], *, collate_fn_map: Any = None) -> list[Any]:
    values = [data for data, _ in batch]
    if isinstance(values[0], torch.Tensor) and len({len(value) for value in values}) == 1:
        values = collate(values, collate_fn_map=collate_fn_map)
    return [values, _parcel.labels_of([label for _, label in batch], parcel=False)]


default_collate_fn_map[Raw] = _collate_raw
