"""Orders by their names, as the plan's specifications.

The plan (`crates/plan/src/spec.rs`) knows kinds of orders and rules for the end of an epoch; a loader's arguments choose among them. A
checkpoint names the order by two digests: that of the whole specification, and that of the *sequence*, in which the size of a batch and
the rule for the end don't appear, so that a run may go on with another number of ranks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from foreload import _core
from foreload.errors import InvalidError

#: What `order=` takes, besides a kind of the plan written out as a dict.
NAMES = ("keyed", "torch", "torch-distributed", "torch-random", "sequential", "contiguous", "strided")
#: Those that are the same in every epoch.
_SAME = ("sequential", "contiguous", "strided")
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Order:
    """A specification of the plan.

    Attributes:
        dataset: The index' digest.
        samples: Samples in the data set.
        kind: How positions get samples, as the plan writes it.
        seed: The seed.
        global_batch: Samples in a batch over all ranks.
        tail: What happens at the end of an epoch, as the plan writes it.
    """

    dataset: str
    samples: int
    kind: str | dict[str, Any]
    seed: int
    global_batch: int
    tail: str | dict[str, Any]

    def spec(self) -> dict[str, Any]:
        """As the plan reads it."""
        return {
            "dataset": self.dataset,
            "samples": self.samples,
            "kind": self.kind,
            "seed": self.seed & _MASK,
            "global_batch": self.global_batch,
            "tail": self.tail,
        }

    def plan(self, world: int, *, uneven: bool = False) -> _core.Plan:
        """The plan for so many ranks."""
        return _core.Plan(json.dumps(self.spec()), world, uneven)

    @cached_property
    def sequence(self) -> str:
        """Names the sequence of samples, however it is cut into batches."""
        spec = {**self.spec(), "global_batch": 1, "tail": {"pad": {"multiple": 1}}}
        return _core.Plan(json.dumps(spec)).digest

    @property
    def length(self) -> int:
        """Samples of an epoch, before any is repeated or left out for the ranks' sake."""
        return self.samples if isinstance(self.kind, str) else int(self.kind[self.name].get("length", self.samples))

    @property
    def name(self) -> str:
        """The kind's name."""
        return self.kind if isinstance(self.kind, str) else next(iter(self.kind))

    @property
    def is_shuffled(self) -> bool:
        """Whether each epoch has an order of its own."""
        return self.name not in _SAME


def kind_of(name: str, world: int, *, shuffle: bool, draws: str = "loader_each_epoch") -> str | dict[str, Any]:
    """The plan's kind for what a loader was asked for.

    Args:
        name: One of `NAMES`.
        world: Data ranks.
        shuffle: Whether to shuffle; the orders that don't are `sequential` whatever the name.
        draws: What else draws from torch's generator.

    Returns:
        The kind.

    Raises:
        InvalidError: There is no such order.
    """
    check_name(name)
    if name == "contiguous":
        return {"contiguous": {"parts": world}}
    if name == "strided":
        return {"strided": {"stride": max(2, world)}}
    if not shuffle or name == "sequential":
        return "sequential"
    if name == "torch-distributed" or (name == "torch" and world > 1):
        return "torch_distributed"
    if name in ("torch", "torch-random"):
        return {"torch_random": {"draws": draws}}
    return "keyed"


def check_name(name: str) -> None:
    """Refuses an order that isn't known.

    Raises:
        InvalidError: It isn't.
    """
    if name not in NAMES:
        raise InvalidError(f"order={name!r} is not known; there are {', '.join(NAMES)}")


def check_shuffle(name: str, shuffle: bool) -> None:
    """Refuses to shuffle by an order that doesn't.

    Raises:
        InvalidError: It doesn't.
    """
    if shuffle and name in _SAME:
        raise InvalidError(
            f"order={name!r} and shuffle=True exclude each other: that order doesn't shuffle; leave one out"
        )


def tail_of(
    world: int, global_batch: int, *, drop_last: bool, uneven: str | None, torch: bool = False
) -> str | dict[str, Any]:
    """The rule for the end of an epoch.

    Args:
        world: Data ranks.
        global_batch: Samples in a batch over all ranks.
        drop_last: Whether a batch that isn't full is left out.
        uneven: What to do where the ranks can't share equally: None (repeat samples as `DistributedSampler` does), `pad` (fill the last
            batch), `weights` (no repetition, unequal shares).
        torch: Whether to drop after padding, as a `DistributedSampler` under a loader does.

    Returns:
        The rule.

    Raises:
        InvalidError: `uneven` is something else, or can't be kept to.
    """
    if uneven not in (None, "pad", "weights"):
        raise InvalidError(f"uneven={uneven!r}: give None, 'pad' or 'weights'")
    if drop_last and uneven == "weights" and torch and world > 1:
        raise InvalidError(
            "uneven='weights' counts each sample once, and drop_last=True in torch's order repeats samples, as DistributedSampler does: leave one of the "
            "two out, or take another order"
        )
    if drop_last:
        return {"pad_then_drop": {"multiple": world}} if torch and world > 1 else "drop"
    if uneven == "weights":
        return "uneven"
    return {"pad": {"multiple": global_batch if uneven == "pad" else world}}
