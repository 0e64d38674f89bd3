"""A double of a sampler: asked for what the sampler will name, it names it, and the sampler stays as it is.

What a sampler draws from and what it changes (generators, lists, arrays, other samplers, its own attributes) the double has of its own, and the generators of `random`, NumPy
and torch are put back after it was asked. What both only read, a data set, they share. Of what can't be told apart nothing is made, and who wants a double hears why not.
"""

from __future__ import annotations

import copy
import datetime as dt
import enum
import functools
import logging
import random
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

import numpy as np

#: Things that a sampler has in itself; what has more is more than a sampler.
_MOST = 100_000
_DEEPEST = 12
#: By these names samplers, torch's own among them, have what they name samples of.
_DATA = frozenset(("data_source", "dataset", "data"))

_AS_THEY_ARE = frozenset(
    (
        *(int, float, complex, bool, str, bytes, type(None), range, slice, type, type(Ellipsis)),
        *(types.FunctionType, types.BuiltinFunctionType, types.ModuleType, property, staticmethod, classmethod),
    )
)
_NEVER_CHANGED = (type, np.generic, enum.Enum, PurePath, dt.date, dt.timedelta, logging.Logger)
_DRAWS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_CONTAINERS = (list, tuple, set, frozenset, deque)
_MAPS = (dict, OrderedDict, defaultdict)


class NoDoubleError(Exception):
    """There is none: why."""


def _torch() -> Any:
    # Nobody has anything of torch who hasn't imported it.
    return sys.modules.get("torch")


def double(sampler: Any) -> Any:
    """A sampler that will name what this one will, and changes nothing of it.

    Raises:
        NoDoubleError: It has something of which it isn't known whether it may be shared.
    """
    return _Copies().of(sampler, 0)


class _Copies:
    """Copies, each thing once."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        # What is compared by its address has to stay.
        self._kept: list[Any] = []

    def of(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _AS_THEY_ARE or isinstance(value, _NEVER_CHANGED):
            return value
        if id(value) in self._made:
            return self._made[id(value)]
        if depth > _DEEPEST or len(self._made) > _MOST:
            raise NoDoubleError("it has more in it than a sampler needs")
        made = self._new(value, kind, depth)
        self._made[id(value)] = made
        self._kept.append(value)
        return made

    def _new(self, value: Any, kind: type, depth: int) -> Any:
        if kind in _CONTAINERS or kind in _MAPS:
            return self._container(value, kind, depth)
        if isinstance(value, np.ndarray):
            return value.copy()
        if isinstance(value, _DRAWS):
            return copy.deepcopy(value)
        if (torch := _torch()) is not None and kind.__module__.partition(".")[0] == "torch":
            found = _of_torch(torch, value)
            if found is not None:
                return found
        if isinstance(value, (types.MethodType, functools.partial)):
            return self._call(value, depth)
        if hasattr(kind, "__next__"):
            raise NoDoubleError(f"what {kind.__name__} yields can be had once only")
        # What has parts by number or by name is a data set.
        return value if hasattr(kind, "__getitem__") else self._object(value, kind, depth)

    def _call(self, value: Any, depth: int) -> Any:
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self.of(value.__self__, depth + 1))
        words = {name: self.of(each, depth + 1) for name, each in value.keywords.items()}
        given = (self.of(each, depth + 1) for each in value.args)
        return functools.partial(self.of(value.func, depth + 1), *given, **words)

    def _container(self, value: Any, kind: type, depth: int) -> Any:
        elements = value.values() if kind in _MAPS else value
        if all(type(each) in _AS_THEY_ARE for each in elements):
            return copy.copy(value)
        if kind in _MAPS:
            made = copy.copy(value)
            self._made[id(value)] = made
            for name, each in value.items():
                made[name] = self.of(each, depth + 1)
            return made
        copies = [self.of(each, depth + 1) for each in value]
        return deque(copies, value.maxlen) if isinstance(value, deque) else kind(copies)

    def _object(self, value: Any, kind: type, depth: int) -> Any:
        fields = getattr(value, "__dict__", None)
        # Who says how it is pickled has something that an attribute doesn't show.
        is_plain = not any(
            "__reduce_ex__" in each.__dict__ or "__reduce__" in each.__dict__ for each in kind.__mro__[:-1]
        )
        slots = [name for each in kind.__mro__ for name in _slots(each)]
        if (fields is None and not slots) or not is_plain or not kind.__flags__ & _OF_PYTHON:
            raise NoDoubleError(f"it has a {kind.__module__}.{kind.__qualname__}")
        made: Any = object.__new__(kind)
        self._made[id(value)] = made
        for name in slots:
            if hasattr(value, name):
                object.__setattr__(made, name, self.of(getattr(value, name), depth + 1))
        for name, each in (fields or {}).items():
            made.__dict__[name] = each if name in _DATA else self.of(each, depth + 1)
        return made


def _of_torch(torch: Any, value: Any) -> Any:
    """A copy of a tensor or a generator, and of what never changes itself; None: it is something else."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Generator):
        own = torch.Generator(device=value.device)
        own.set_state(value.get_state())
        return own
    return value if isinstance(value, (torch.device, torch.dtype)) else None


#: A class that was made by a `class` statement (CPython's `Py_TPFLAGS_HEAPTYPE`).
_OF_PYTHON = 1 << 9


def _slots(kind: type) -> list[str]:
    named = kind.__dict__.get("__slots__", ())
    names = [named] if isinstance(named, str) else list(named)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


class Draws:
    """What `random`, NumPy and torch draw from when they aren't given a generator, as a double has it."""

    def __init__(self) -> None:
        self._states = _states()

    @contextmanager
    def own(self) -> Iterator[None]:
        """What is drawn within comes from the double's, and the program's are as they were."""
        before = _states()
        _set(self._states)
        try:
            yield
        finally:
            self._states = _states()
            _set(before)


def _states() -> list[tuple[Callable[[Any], object], Any]]:
    found: list[tuple[Callable[[Any], object], Any]] = [
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),
    ]
    if (torch := _torch()) is not None and hasattr(torch, "get_rng_state"):
        found.append((torch.set_rng_state, torch.get_rng_state()))
    return found


def _set(states: list[tuple[Callable[[Any], object], Any]]) -> None:
    for put, state in states:
        put(state)
