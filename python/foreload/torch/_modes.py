"""What of torch's state belongs to the thread that calls it, and decides what collating makes.

Torch's own collate function and the pinning of what it made may run in another thread than the loop's, which has none of the loop's modes. Of these a few
numbers make no difference, but for inference mode: a tensor is one of inference or not. `Modes` carries that over. Where anything else is in force,
a default device, autocast, a mode of the user's, the loop itself collates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.pin_memory import pin_memory as _pin

_PLAIN = (int, float, str, bytes, bool)
#: Where the functions are from by which torch's collate function goes; a user may teach it more.
_KNOWN = ("torch.utils.data._utils.collate", "foreload.torch._batch")


def is_plain(value: Any) -> bool:
    """Whether torch's collate function treats a value without running code of the user's, and in every thread alike."""
    kind = type(value)
    if kind is torch.Tensor:
        strided = value.device.type == "cpu" and value.layout is torch.strided
        return bool(strided and not value.requires_grad)
    if kind is np.ndarray or kind in _PLAIN or isinstance(value, np.generic):
        return True
    if kind is dict:
        return all(map(is_plain, value.values()))
    return (kind in (tuple, list) or hasattr(value, "_fields")) and all(map(is_plain, value))


class Modes:
    """The calling thread's.

    Args:
        pins: Whether what is made is pinned, which is done for the thread's own accelerator.
    """

    def __init__(self, *, pins: bool) -> None:
        self._is_inference = torch.is_inference_mode_enabled()
        self._device = _device_index() if pins else None

    def __call__(self, make: Callable[[], Any]) -> Made:
        """What `make` makes in another thread, as it would have been made in this one."""
        if self._device is not None:
            torch.accelerator.set_device_index(self._device)
        with torch.inference_mode(self._is_inference):
            return Made(make(), self._is_inference)


def are_ordinary() -> bool:
    """Whether nothing but inference mode is in force in the calling thread, and torch's collate function does what torch wrote."""
    stacks = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()  # noqa: SLF001 (torch has no other way to them)
    is_known = all(getattr(made, "__module__", None) in _KNOWN for made in default_collate_fn_map.values())
    return is_known and not stacks and not torch.is_autocast_enabled("cpu")


def _device_index() -> int | None:
    """The accelerator that the calling thread uses."""
    accelerator: Any = getattr(torch, "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return None
    return int(accelerator.current_device_index())


class Made:
    """A batch that another thread made.

    Args:
        batch: The batch.
        is_inference: In which mode.
    """

    __slots__ = ("_is_inference", "batch")

    def __init__(self, batch: Any, is_inference: bool) -> None:
        self.batch, self._is_inference = batch, is_inference

    def taken(self, *, pins: bool) -> Any:
        """The batch, for a loop that may have gone into inference mode or out of it since."""
        batch, self.batch = self.batch, None
        if self._is_inference == torch.is_inference_mode_enabled():
            return batch
        batch = _pytree.tree_map_only(torch.Tensor, torch.clone, batch)
        return _pin(batch) if pins else batch  # type: ignore[no-untyped-call] # torch's
