"""Batches as `Dataset.__getitems__` answers with them, and their way into tensors and into the parent process.

A worker of torch's loader sends its batches through a pipe, and what it costs to pickle them bounds the loader. So a batch keeps its samples in
the agent's shared memory until somebody looks at them. Collated by torch's own `default_collate`, which finds our type in its table, it
becomes a few numbers that name the memory, and unpickling those in the parent makes `bytes` or tensors (`_parcel`). A `collate_fn` of
the user's sees an ordinary list of (data, label) pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from foreload import _core
from foreload._decode import columns_of
from foreload._job import Attachment
from foreload.errors import InvalidError
from foreload.torch import _parcel

#: In which form bytes are handed over that nothing decodes: copies, shared memory, or uint8 tensors.
Form = Literal["bytes", "view", "tensor"]
FORMS = ("bytes", "view", "tensor")


class Cell(Sequence[Any]):
    """One sample of a raw batch: behaves like the pair (data, label), and copies its data when that is asked for."""

    __slots__ = ("_data", "_form", "_label")

    def __init__(self, data: _core.Sample | bytes, label: int | None, form: Form) -> None:
        self._data: Any = data
        self._form = form
        self._label = -1 if label is None else label

    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: Any) -> Any:
        return self.pair()[at]

    def pair(self) -> tuple[Any, int]:
        """(data, label)."""
        if self._form == "tensor" and not isinstance(self._data, torch.Tensor):
            self._data = _parcel.tensor_of(self._data)
        elif self._form == "bytes" and not isinstance(self._data, bytes):
            self._data = bytes(self._data)
        return self._data, self._label

    def __reduce__(self) -> Any:
        data, label = self.pair()
        return tuple, ((bytes(data) if self._form == "view" else data, label),)

    def __repr__(self) -> str:
        return f"<foreload sample {self.pair()}>"


class Batch(list[Any]):
    """Samples as `__getitems__` answers with them.

    Args:
        delivery: The samples in shared memory.
        form: In which form they are to be handed over.
        attachment: Of which job.
    """

    def __init__(self, delivery: _core.Delivery, form: Form, attachment: Attachment) -> None:
        self._delivery: _core.Delivery | None = delivery
        self._form: Form = form
        self._attachment = attachment
        # For a list's C code: real cells come when somebody looks.
        super().__init__([None] * len(delivery))

    def _look(self) -> None:
        if self._delivery is not None:
            data, _, labels = columns_of(self._delivery)
            self._delivery = None
            cells = [Cell(each, label, self._form) for each, label in zip(data, labels, strict=True)]
            super().__setitem__(slice(None), cells)

    def __getitem__(self, at: Any) -> Any:
        # What `default_collate` asks first; the type of the answer leads it to `collated`.
        if at == 0 and self._delivery is not None:
            return _Unseen(self)
        self._look()
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[Any]:
        self._look()
        return super().__iter__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, ([cell.pair() if isinstance(cell, Cell) else cell for cell in self],)

    def collated(self) -> list[Any]:
        """What torch's `default_collate` makes of it: [data, labels]."""
        if self._delivery is None:
            return list(_default([cell.pair() for cell in self]))
        delivery, self._delivery = self._delivery, None
        return raw_batch(delivery, self._form, self._attachment)


class _Unseen(Sequence[Any]):
    """The first sample of a batch nobody looked at yet."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def _cell(self) -> Any:
        self._batch._look()  # noqa: SLF001 (its part)
        return list.__getitem__(self._batch, 0)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: Any) -> Any:
        return self._cell()[at]

    def __reduce__(self) -> Any:
        return self._cell().__reduce__()


class Decoded(list[Any]):
    """Pairs (what decode returned, label), which `default_collate` puts into shared memory of the agent.

    Args:
        pairs: The pairs.
        attachment: The job whose memory to use.
    """

    def __init__(self, pairs: Sequence[tuple[Any, int]], attachment: Attachment) -> None:
        super().__init__(Pair(pair) for pair in pairs)
        self.attachment = attachment

    def values(self) -> Values:
        """Without the labels, for items that bring their own."""
        return Values([value for value, _ in self], self.attachment)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, ([tuple(pair) for pair in self],)


class Pair(tuple[Any, int]):
    """A pair by whose type `default_collate` finds us."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)


class Whole(tuple[Any, ...]):
    """An item that brings its target along, by whose type `default_collate` finds us."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)


class Values(list[Any]):
    """Items as the user's data set made them.

    Args:
        values: The items.
        attachment: The job whose memory to use.
    """

    def __init__(self, values: Sequence[Any], attachment: Attachment) -> None:
        super().__init__(Whole(value) if type(value) is tuple else value for value in values)
        self.attachment = attachment

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (list(self),)


def raw_batch(delivery: _core.Delivery, form: Form, attachment: Attachment) -> list[Any]:
    """A batch of undecoded samples: [data, labels].

    In a worker the data is a parcel, which the parent unpacks.
    """
    in_worker = get_worker_info() is not None
    if form == "tensor":
        labels = _parcel.labels_in(delivery, parcel=in_worker)
        return [_parcel.gathered(delivery, attachment, parcel=in_worker), labels]
    if in_worker:
        # It unpickles as the list.
        parcel: list[Any] = _parcel.samples(delivery, attachment)
        return parcel
    labels = _parcel.labels_in(delivery, parcel=False)
    return [delivery.views() if form == "view" and not delivery.copy else delivery.to_bytes(), labels]


def decoded_batch(pairs: Sequence[tuple[Any, int]], attachment: Attachment) -> list[Any]:
    """A batch of decoded samples: [values, labels], collated as torch does, but into the agent's memory."""
    values = whole_batch([value for value, _ in pairs], attachment)
    return [values, _parcel.labels_of([label for _, label in pairs], parcel=get_worker_info() is not None)]


def whole_batch(values: Sequence[Any], attachment: Attachment) -> Any:
    """Values, collated as torch does, but into the agent's memory."""
    if not values:
        raise InvalidError("every sample of a batch was skipped; no batch can be made of nothing")
    in_worker = get_worker_info() is not None

    def stacked(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001 (torch calls it so)
        return _parcel.stacked(batch, attachment, parcel=in_worker)

    table = {**default_collate_fn_map, torch.Tensor: stacked, np.ndarray: stacked}
    for ours in (Pair, Whole):
        del table[ours]
    return collate(values, collate_fn_map=table)


def _default(pairs: Sequence[tuple[Any, int]]) -> list[Any]:
    values, labels = [value for value, _ in pairs], _parcel.labels_of([label for _, label in pairs], parcel=False)
    return [
        values
        if isinstance(values[0], (bytes, _core.Sample))
        else collate(values, collate_fn_map=default_collate_fn_map),
        labels,
    ]


def _collate_raw(batch: Any, *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001 (torch calls it so)
    return batch.collated() if isinstance(batch, Batch) else _default([tuple(cell) for cell in batch])


def _collate_decoded(batch: Any, *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001
    if isinstance(batch, Decoded):
        return decoded_batch(batch, batch.attachment)
    return _default([tuple(pair) for pair in batch])


def _collate_whole(batch: Any, *, collate_fn_map: Any = None) -> Any:
    values = [tuple(value) for value in batch]
    return (
        whole_batch(values, batch.attachment)
        if isinstance(batch, Values)
        else collate(values, collate_fn_map=collate_fn_map)
    )


default_collate_fn_map[Whole] = _collate_whole
default_collate_fn_map[_Unseen] = _collate_raw
default_collate_fn_map[Cell] = _collate_raw
default_collate_fn_map[Pair] = _collate_decoded
