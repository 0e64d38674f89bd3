"""What a sampler of the user's says of itself: its place among ranks, its epoch, whether the plan knows its order, and a copy that draws the same.

A state that is loaded sets its epoch (`Left`); whether the user sets one after that decides which pass begins.
"""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch.utils import data
from torch.utils.data import RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from foreload.errors import StateError


def parts(sampler: Any) -> list[Any]:
    """A sampler, and the one that a batch sampler takes its samples from."""
    return [part for part in (sampler, getattr(sampler, "sampler", None)) if part is not None]


def length_of(sampler: Any) -> int | None:
    """What a sampler says how long a pass is: samples, or batches of a batch sampler; None: it doesn't."""
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


def place_in(sampler: Any) -> tuple[int, int] | None:
    """Rank and number of ranks that a sampler deals an epoch among; None: it doesn't say."""
    for part in parts(sampler):
        found = getattr(part, "rank", None), getattr(part, "num_replicas", None)
        if all(isinstance(number, int) and not isinstance(number, bool) for number in found):
            return found[0], found[1]  # type: ignore[return-value] # they are numbers
    return None


def epoch_of(sampler: Any) -> int | None:
    """The epoch that a sampler is set to; None: it doesn't say."""
    epoch = _set_to(sampler)
    return None if epoch is None else int(operator.index(epoch))


def set_epoch(sampler: Any, epoch: int) -> None:
    """Sets a sampler to an epoch, if it has any."""
    for part in parts(sampler):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def _set_to(sampler: Any) -> Any:
    for part in parts(sampler):
        epoch: Any = getattr(part, "epoch", None) if hasattr(part, "set_epoch") else None
        if hasattr(epoch, "__index__") and not isinstance(epoch, bool):
            return epoch
    return None


def known(sampler: Any, samples: int, generator: torch.Generator | None = None) -> dict[str, Any] | None:
    """The plan's own kind for one of torch's samplers: kind, seed, ranks; None: it has none.

    Args:
        sampler: The sampler.
        samples: Of the data set: the plan has no kind for a part of it.
        generator: The loader's, which draws from it too.
    """
    if type(sampler) is SequentialSampler and len(sampler) == samples:
        return {"kind": "sequential", "seed": 0, "world": 1, "rank": 0, "trims": False}
    if type(sampler) is DistributedSampler and len(sampler.dataset) == samples:  # type: ignore[arg-type] # it has a length
        kind = "torch_distributed" if sampler.shuffle else "sequential"
        return {
            "kind": kind,
            "seed": sampler.seed,
            "world": sampler.num_replicas,
            "rank": sampler.rank,
            "trims": sampler.drop_last,
        }
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.generator not in (None, generator):
        own: Any = sampler.generator
        if sampler.num_samples == len(sampler.data_source) == samples and is_fresh(own):
            return {
                "kind": {"torch_random": {"draws": "sampler_only"}},
                "seed": own.initial_seed(),
                "world": 1,
                "rank": 0,
                "trims": False,
            }
    return None


def is_fresh(generator: torch.Generator) -> bool:
    """Whether nothing was drawn from a generator since it was seeded."""
    twin = torch.Generator(device=generator.device).manual_seed(generator.initial_seed())
    return bool(torch.equal(twin.get_state(), generator.get_state()))


def copy_of(sampler: Any) -> Any:
    """A copy that draws the same; None: none can be had. What a sampler only looks at is not copied: its data set, a model."""
    found = parts(sampler)
    own = any(hasattr(part, "set_epoch") or getattr(part, "generator", None) is not None for part in found)
    sequential = type(found[-1]) is SequentialSampler
    if not own and not sequential:
        return None
    looked_at = (
        value
        for part in found
        for name, value in getattr(part, "__dict__", {}).items()
        if name in ("data_source", "dataset") or isinstance(value, (data.Dataset, torch.nn.Module))
    )
    try:
        return copy.deepcopy(sampler, {id(value): value for value in looked_at})
    except Exception:  # noqa: BLE001 (whatever a sampler's own copying raises)
        return None


class _Mark(int):
    """The number of an epoch that nobody has set a sampler to but a state that was loaded."""


class Left:
    """How a state left a sampler of the user's: what the pass that begins is, as long as nobody sets an epoch.

    Args:
        sampler: The sampler, which is set to the epoch that the state knows.
        state: The state.
        epoch: Where it goes on.
        is_within: Whether that is within a pass.

    Attributes:
        again: How many passes of the same epoch come before the one that begins.

    Raises:
        StateError: It is damaged.
    """

    def __init__(self, sampler: Any, state: dict[str, Any], epoch: int, *, is_within: bool) -> None:
        told = state.get("told", epoch)
        self.again = state.get("again", 0)
        for name, number in (("told", told), ("again", self.again)):
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 31:
                raise StateError(f"the state is damaged: its {name} is {number!r:.60}, and would be a number from 0")
        if epoch != state["epoch"]:
            # It was over. Where the sampler was set to no other one, that is read again.
            self.again = self.again + 1 if told == state["epoch"] else 0
        self.is_within = is_within
        self._sampler, self._mark, self._is_marked = sampler, _Mark(told), False
        self._listeners: list[_Listener] = []
        if "told" in state or _set_to(sampler) is not None:
            set_epoch(sampler, self._mark)
            self._is_marked = _set_to(sampler) is self._mark
        else:
            # It keeps its epoch to itself, so nobody knows whether it was ever set to one: it stays as it is, and is listened to.
            able = [part for part in parts(sampler) if hasattr(part, "set_epoch") and hasattr(part, "__dict__")]
            self._listeners = [_Listener(part) for part in able]

    def is_as_left(self) -> bool:
        """Whether nobody has set an epoch since."""
        if self._listeners:
            return all(listener.told is None for listener in self._listeners)
        found = _set_to(self._sampler)
        return found is self._mark if self._is_marked else found is None or operator.index(found) == self._mark

    def told(self) -> int | None:
        """The epoch that the sampler was set to since, or is set to; None: it doesn't say."""
        heard = [listener.told for listener in self._listeners if listener.told is not None]
        return int(operator.index(heard[-1])) if heard else epoch_of(self._sampler)

    def release(self) -> None:
        """Listens no more."""
        for listener in self._listeners:
            listener.release()


class _Listener:
    """Stands before a sampler's `set_epoch` and notes which epoch it is told."""

    def __init__(self, part: Any) -> None:
        self.told: Any = None
        self._part, self._before = part, vars(part).get("set_epoch")
        self._set: Any = part.set_epoch
        part.set_epoch = self

    def __call__(self, epoch: Any) -> Any:
        self.told = epoch
        return self._set(epoch)

    def release(self) -> None:
        if vars(self._part).get("set_epoch") is not self:
            return
        if self._before is None:
            del self._part.set_epoch
        else:
            self._part.set_epoch = self._before
