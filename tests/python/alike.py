"""Whether two results are alike to the last bit."""

from __future__ import annotations

import dataclasses
import struct
import sys
from typing import Any

import numpy as np
import torch


def data_of(tensor: torch.Tensor) -> bytes:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal to the last bit, of the same types, and laid out as copies of each other are."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.clone().stride() == other.clone().stride()
            and data_of(one) == data_of(other)
        )
    if isinstance(one, np.ndarray):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.flags.fnc == other.flags.fnc
            and one.tobytes() == other.tobytes()
            and other.flags.writeable
        )
    if isinstance(one, np.generic):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if "PIL.Image" in sys.modules and isinstance(one, sys.modules["PIL.Image"].Image):
        return bool(one == other) and one.convert("RGBA").tobytes() == other.convert("RGBA").tobytes()
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    return bool(one == other or one != one)
