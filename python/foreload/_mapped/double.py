"""A double of a sampler: asked for what the sampler will name, it names it, and the sampler stays as it is.

That holds of samplers whose code is known: lists, and those of torch, with subclasses that change nothing of it. Such a double shares all with its sampler but the samplers that
it draws on and the generator, of which it has its own, also where the sampler draws from torch's. The code of other samplers may do anything while it runs, and so
isn't run for this: who knows how theirs is copied says so. A data set is only asked for its length.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

#: Sequences, which are read without a change to them.
_PLAIN = (list, tuple, range)
#: Samplers whose code reads its attributes, draws from its generator, and does nothing else.
_KNOWN = frozenset(
    (
        *((f"torch.utils.data.{module}", name) for module, name in (
            ("sampler", "SequentialSampler"),
            ("sampler", "RandomSampler"),
            ("sampler", "SubsetRandomSampler"),
            ("sampler", "WeightedRandomSampler"),
            ("sampler", "BatchSampler"),
            ("distributed", "DistributedSampler"),
        )),
        ("transformers.trainer_pt_utils", "LengthGroupedSampler"),
        ("transformers.trainer_pt_utils", "DistributedLengthGroupedSampler"),
    )
)  # fmt: skip
#: What all of them are made of.
_BELOW = frozenset((("torch.utils.data.sampler", "Sampler"), ("typing", "Generic"), ("builtins", "object")))
_SEEDED = ("torch.utils.data.sampler", "RandomSampler")
#: What that code goes by, beside what is written in it: a subclass that changes one of these is another sampler.
_GONE_BY = frozenset(
    (
        *("__iter__", "__len__", "__getattr__", "__getattribute__", "__new__", "__del__", "__dict__", "__slots__"),
        *("data_source", "replacement", "num_samples", "_num_samples", "generator", "indices", "weights", "sampler"),
        *(
            "batch_size",
            "drop_last",
            "dataset",
            "num_replicas",
            "rank",
            "epoch",
            "total_size",
            "shuffle",
            "seed",
            "lengths",
        ),
    )
)
#: Attributes that are read part by part: of another kind than these, that may be code, too.
_READ = ("indices", "weights", "lengths")


class NoDoubleError(Exception):
    """There is none: why."""


def _torch() -> Any:
    # Nobody has anything of torch who hasn't imported it.
    return sys.modules.get("torch")


def double(sampler: Any) -> Any:
    """A sampler that will name what this one will, and changes nothing of it.

    Raises:
        NoDoubleError: What happens when it is asked isn't known.
    """
    kind = type(sampler)
    if kind in _PLAIN:
        return sampler
    if not _is_known(kind):
        raise NoDoubleError(f"the code of {kind.__module__}.{kind.__qualname__} isn't")
    fields = dict(vars(sampler))
    for name in _READ:
        if name in fields and not _is_data(fields[name]):
            raise NoDoubleError(f"its {name} are of a kind that isn't")
    if "generator" in fields:
        fields["generator"] = _generator(kind, fields["generator"])
    if "sampler" in fields:
        fields["sampler"] = double(fields["sampler"])
    made = object.__new__(kind)
    made.__dict__.update(fields)
    return made


def _is_known(kind: type) -> bool:
    """Whether a sampler's code is one that is known, whatever its classes add to it."""
    is_known = False
    for each in kind.__mro__:
        name = (each.__module__, each.__qualname__)
        if name in _KNOWN:
            if not _is_as_written(each):
                return False
            is_known = True
        elif name not in _BELOW and not _GONE_BY.isdisjoint(vars(each).keys() - {"__dict__"}):
            return False
    return is_known


def _is_as_written(kind: type) -> bool:
    """Whether a class' functions are those of its module's file: somebody may have put others there."""
    written = getattr(sys.modules.get(kind.__module__), "__file__", None)
    functions = (each.fget if isinstance(each, property) else each for each in vars(kind).values())
    codes = (getattr(each, "__code__", None) for each in functions)
    return all(code.co_filename == written for code in codes if code is not None)


def is_array(value: Any) -> bool:
    """Whether it is an array of NumPy's or a tensor."""
    torch = _torch()
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def _is_data(value: Any) -> bool:
    torch = _torch()
    if type(value) in (*_PLAIN, np.ndarray):
        return True
    return torch is not None and type(value) is torch.Tensor


def _generator(kind: type, drawn_from: Any) -> Any:
    """One that will draw the same."""
    torch = _torch()
    own = torch.Generator()
    if drawn_from is None:
        # Torch's own, of which some samplers draw a seed for theirs when they begin.
        own.set_state(torch.get_rng_state())
        if any((each.__module__, each.__qualname__) == _SEEDED for each in kind.__mro__):
            own.manual_seed(int(torch.empty((), dtype=torch.int64).random_(generator=own).item()))
        return own
    if type(drawn_from) is not torch.Generator:
        raise NoDoubleError(f"its generator is a {type(drawn_from).__qualname__}, which isn't")
    own = torch.Generator(device=drawn_from.device)
    own.set_state(drawn_from.get_state())
    return own
