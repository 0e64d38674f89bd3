"""Parcels: batches on their way from a worker to its parent, as the names of the memory they lie in.

A parcel is a small object whose pickled form is a function and a few numbers. Unpickling it in the parent adopts the memory (the agent moves the
lease from the worker's connection to the parent's) and answers with what the training loop wants: `bytes`, or a tensor over the
memory, which gives it back when the tensor dies. If the worker died in between, so did its leases, and adopting says so. If the agent died in
between, nobody writes to its memory any more, and the parent, which still has it mapped, takes the batch of a worker that lives from there.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from foreload import _core
from foreload._node.job import Attachment, attachment
from foreload._run.decode import copies_of
from foreload.errors import ClosedError

#: Below this a copy through the pipe is cheaper than two calls of the agent.
_SMALL = 16 << 10
#: Where a slot is: agent, the worker's connection and process, slot, offset, bytes.
Place = tuple[int, int, int, int, int, int]


class Parcel:
    """Something that unpickles as the answer of a function.

    Args:
        function: The function, one of this module's.
        arguments: Its arguments.
    """

    __slots__ = ("_arguments", "_function")

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._function, self._arguments = function, arguments

    def __reduce__(self) -> Any:
        return self._function, self._arguments


def samples(delivery: _core.Delivery, of: Attachment) -> Any:
    """A parcel of samples that unpickles as [list of bytes, labels]."""
    return Parcel(_unpack_samples, of.name, *delivery.hand_over())


def _unpack_samples(name: str, agent: int, connection: int, process: int, items: bytes) -> list[Any]:
    of = attachment(name)
    delivery = of.job_of(agent).adopt(connection, process, items)
    unpacked = [copies_of(delivery), labels_in(delivery, parcel=False)]
    # The workers may need the memory for the next batch, and this process has nothing to ask until it comes.
    of.agent().flush()
    return unpacked


def labels_of(labels: Sequence[int], *, parcel: bool) -> Any:
    """Labels as a tensor."""
    return _labels(bytearray(np.array(labels, dtype=np.int64)), parcel=parcel)


def labels_in(delivery: _core.Delivery, *, parcel: bool) -> Any:
    """The labels of samples as a tensor; -1 where there is none."""
    return _labels(delivery.label_bytes(), parcel=parcel)


def _labels(packed: bytearray, *, parcel: bool) -> Any:
    if parcel:
        return Parcel(_unpack_small, bytes(packed), torch.int64, (len(packed) // 8,))
    return torch.frombuffer(packed, dtype=torch.int64) if packed else torch.empty(0, dtype=torch.int64)


def _unpack_small(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)


def tensor_of(view: _core.Sample | bytes) -> torch.Tensor:
    """A sample's bytes as a tensor of its own: torch must not point to memory that others read."""
    return torch.frombuffer(bytearray(view), dtype=torch.uint8) if len(view) else torch.empty(0, dtype=torch.uint8)


def _slot(of: Attachment, size: int) -> _core.Slot | None:
    """Memory to collate into; None: use your own, because it is full or the agent has just ended."""
    try:
        return of.job().slot(size)
    except ClosedError:
        return None


def gathered(delivery: _core.Delivery, of: Attachment, *, parcel: bool) -> Any:
    """Samples as uint8: one tensor of all rows if they are equally long, otherwise a list of tensors."""
    lengths = delivery.lengths
    total = sum(lengths)
    slot = _slot(of, total) if total > _SMALL else None
    if slot is None:
        data = bytearray(b"".join(delivery.to_bytes()))
        return Parcel(_unpack_rows, bytes(data), lengths) if parcel else _rows(data, lengths)
    delivery.gather(slot)
    return Parcel(_unpack_slot_rows, of.name, slot.hand_over(), lengths) if parcel else _rows(slot, lengths)


def _unpack_rows(data: bytes, lengths: list[int]) -> Any:
    return _rows(bytearray(data), lengths)


def _unpack_slot_rows(name: str, place: Place, lengths: list[int]) -> Any:
    return _rows(_adopted(name, place), lengths)


def _rows(memory: Any, lengths: list[int]) -> Any:
    flat = torch.frombuffer(memory, dtype=torch.uint8) if sum(lengths) else torch.empty(0, dtype=torch.uint8)
    if len(set(lengths)) == 1:
        return flat.view(len(lengths), lengths[0])
    return list(torch.split(flat, lengths))


def stacked(batch: Sequence[Any], of: Attachment, *, parcel: bool) -> Any:
    """Tensors or arrays of one shape as one tensor in the agent's memory; like torch where that isn't possible."""
    if isinstance(batch[0], np.ndarray):
        # Over what may be read-only memory: torch would warn, and copies anyway.
        batch = [_tensor(array) for array in batch]
    first = batch[0]
    shape = (len(batch), *first.shape)
    size = first.numel() * first.element_size() * len(batch)
    ours = _is_plain(first) and _is_alike(batch)
    slot = _slot(of, size) if ours and size > _SMALL else None
    if slot is not None:
        tensor = torch.frombuffer(slot, dtype=first.dtype).view(shape)
        torch.stack(list(batch), out=tensor)
        return Parcel(_unpack_slot, of.name, slot.hand_over(), first.dtype, shape) if parcel else tensor
    if parcel and ours and size > 0 and first.dtype != torch.bfloat16:
        tensor = torch.stack(list(batch))
        return Parcel(_unpack_small, tensor.numpy().tobytes(), tensor.dtype, shape) if size <= _SMALL else tensor
    # Torch knows which tensors it refuses, and which it puts where.
    return default_collate_fn_map[torch.Tensor](batch, collate_fn_map=default_collate_fn_map)


def _tensor(array: Any) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.as_tensor(array)


def _is_plain(tensor: torch.Tensor) -> bool:
    strided = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return strided and not tensor.is_quantized and not tensor.requires_grad


def _is_alike(batch: Sequence[torch.Tensor]) -> bool:
    first = batch[0]
    return all(
        isinstance(tensor, torch.Tensor)
        and tensor.shape == first.shape
        and tensor.dtype == first.dtype
        and not tensor.requires_grad
        for tensor in batch
    )


def _unpack_slot(name: str, place: Place, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(_adopted(name, place), dtype=dtype).view(shape)


def _adopted(name: str, place: Place) -> _core.Slot:
    agent, *where = place
    return attachment(name).job_of(agent).adopt_slot(*where)
