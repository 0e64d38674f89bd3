"""Which part of each batch this process reads, and who else on this node takes part.

By default the environment says so, as torchrun, mpirun and srun set it. Jobs that split a model between processes (tensor or pipeline
parallelism) name the data ranks instead, because all processes that hold one replica's parts must see the same samples: with `dp_rank` and `dp_size`, or through a
`device_mesh`.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from foreload._node import launcher as _launcher
from foreload._settings import numbers as _numbers
from foreload.errors import InvalidError

_LOG = logging.getLogger("foreload")
#: Dimensions of a device mesh over which data is split, by their usual names: torch's, Lightning's, torchtitan's, Accelerate's.
_DATA_DIMENSIONS = frozenset(
    """
    dp data data_parallel ddp fsdp fsdp2 hsdp zero batch replicate shard dp_replicate dp_shard ddp_replicate fsdp_shard
    replica data_replicate data_shard dp_shard_mod_ep dp_shard_in_ep dp_mod_ep dp_in_ep
    """.split()  # noqa: SIM905
)
#: Those over which a model or a sample is split, so that all their processes read the same.
_MODEL_DIMENSIONS = frozenset(
    """
    tp pp cp ep sp etp vpp ulysses ring tensor pipeline pipe model context sequence expert mp tensor_parallel
    pipeline_parallel context_parallel sequence_parallel expert_parallel model_parallel stage
    """.split()  # noqa: SIM905
)
#: Ranks are 32 bits in the plan.
_MOST_RANKS = (1 << 32) - 1
#: By an order's digest: how many loaders of this process have it.
_equals: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


class Word:
    """What tells a loader's job from others with an equal plan.

    The ranks of a node agree on it without talking: under a launcher it is the run's name, and the loader's number among those of the process that
    have an equal plan, so that a loader more on one rank leaves the others' jobs as they are. Alone it is random. Fixed when the plan is
    known, because the loader's workers must come to the same.
    """

    def __init__(self) -> None:
        self._random = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._numbers: dict[str, int] = {}

    def __reduce__(self) -> Any:
        """A copy of a loader is another loader."""
        return Word, ()

    def of(self, *, shared: bool) -> str:
        """The word, but for the number."""
        told = _launcher.place() if shared else None
        # Of ranks that were named the session is torchrun's, or nobody's.
        return self._random if not shared else "---" if told is None else told.session

    def number(self, order: str) -> int:
        """How many loaders with this order, named by its digest, came before in this process."""
        if order not in self._numbers:
            self._numbers[order] = next(_equals[order])
        return self._numbers[order]


@dataclass(frozen=True)
class Ranks:
    """A data rank among all, and those of this node.

    Attributes:
        rank: This process' data rank.
        world: Data ranks in the run.
        local: Data ranks of this node, this one among them.
        session: What the processes of this node's share of the job call it, together with the word's number.
        word: The loader's word.
        variables: Which variables of the environment say so; empty: none do.
        doubt: What they leave open, in words; empty: nothing.
    """

    rank: int = 0
    world: int = 1
    local: tuple[int, ...] = (0,)
    session: str = ""
    word: Word | None = field(default=None, repr=False, compare=False)
    variables: str = field(default="", compare=False)
    doubt: str = field(default="", compare=False)

    def session_of(self, order: str) -> str:
        """What tells the job of a loader with this order, named by its digest, from all others."""
        return self.session if self.word is None else f"{self.session}-{self.word.number(order)}"

    def group_of(self, order: str) -> str:
        """What the ranks of all nodes call the job of a loader with this order, named by its digest."""
        told = _launcher.place()
        number = 0 if self.word is None else self.word.number(order)
        return f"{'' if told is None else told.run}-{number}-{order}"

    def are_some_of_many(self) -> bool:
        """Whether there are processes on other nodes that this doesn't count."""
        told = _launcher.place()
        return told is not None and told.world > max(len(told.local), self.world)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise InvalidError(
                f"data rank {self.rank} of {self.world}: ranks count from 0 to the number of ranks less one"
            )
        if self.rank not in self.local:
            raise InvalidError(f"data rank {self.rank} is not among this node's, {self.local}")


def find(
    dp_rank: int | None = None,
    dp_size: int | None = None,
    device_mesh: Any = None,
    local_ranks: Sequence[int] | None = None,
    word: Word | None = None,
) -> Ranks:
    """Finds this process' place.

    Args:
        dp_rank: This process' data rank. Default: from the mesh, otherwise as the launcher says (torchrun, mpirun, srun), otherwise 0.
        dp_size: Data ranks in the run. Default: from the mesh, otherwise as the launcher says, otherwise 1.
        device_mesh: A `torch.distributed.DeviceMesh`; dimensions whose names speak of data (`dp`, `fsdp`, `replicate`, ...) count, those that speak of
            the model (`tp`, `pp`, ...) don't, and the only dimension of a mesh without names does.
        local_ranks: Data ranks whose processes run on this node and make the same call. Default: under a launcher with plain data
            parallelism the processes of this node, otherwise this rank alone.
        word: The loader's word, if it has one already.

    Returns:
        The place.

    Raises:
        InvalidError: Only one of `dp_rank` and `dp_size` is given, they contradict each other, or a dimension of the mesh may be either.
    """
    check_named(dp_rank, dp_size)
    plain: tuple[int, ...] = ()
    variables = doubt = ""
    if dp_rank is not None and dp_size is not None:
        world = _numbers.count("dp_size", dp_size, 1, _MOST_RANKS)
        rank = _numbers.count("dp_rank", dp_rank)
    elif device_mesh is not None:
        rank, world = _of_mesh(device_mesh)
    else:
        told = _launcher.place()
        rank, world, plain = (0, 1, (0,)) if told is None else (told.rank, told.world, told.local)
        variables, doubt = ("", "") if told is None else (told.variables, told.doubt)
    local = plain or (rank,)
    if local_ranks is not None:
        if not isinstance(local_ranks, Iterable):
            raise InvalidError(f"local_ranks={local_ranks!r}: give the data ranks of this node, such as [0, 1]")
        local = tuple(sorted(_numbers.count("local_ranks", each) for each in local_ranks))
    word = word or Word()
    return Ranks(rank, world, local, word.of(shared=len(local) > 1), word, variables, doubt)


def check_named(dp_rank: int | None, dp_size: int | None) -> None:
    """Looks whether a place that is given is given whole.

    Raises:
        InvalidError: One of the two is missing.
    """
    if (dp_rank is None) == (dp_size is None):
        return
    given, missing = ("dp_size", "dp_rank") if dp_rank is None else ("dp_rank", "dp_size")
    raise InvalidError(f"{given}= is given without {missing}=: give dp_rank and dp_size together, or neither")


def _of_mesh(mesh: Any) -> tuple[int, int]:
    if not hasattr(mesh, "mesh_dim_names"):
        raise InvalidError(f"device_mesh={mesh!r}: give a torch.distributed.DeviceMesh")
    names = mesh.mesh_dim_names
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise InvalidError("this process is not part of the device mesh")
    shape = tuple(mesh.mesh.shape)
    if names is None and len(shape) > 1:
        raise InvalidError(
            f"device_mesh: {len(shape)} dimensions without names don't say which of them split data; name them (mesh_dim_names), or give dp_rank "
            "and dp_size"
        )
    rank, world = 0, 1
    for name, size, at in zip(names or ("dp",), shape, coordinate, strict=True):
        if _splits_data(name):
            rank, world = rank * int(size) + int(at), world * int(size)
    return rank, world


def _splits_data(name: str) -> bool:
    """Whether a mesh's dimension splits data. A guess would give every process all samples, or those of one replica different ones."""
    known = name.lower()
    if known not in _DATA_DIMENSIONS | _MODEL_DIMENSIONS:
        raise InvalidError(
            f"device_mesh: the dimension {name!r} may split the data or the model, and nothing says which (known are dp, fsdp, replicate, shard and so "
            "on, and tp, pp, cp and so on); give dp_rank and dp_size"
        )
    return known in _DATA_DIMENSIONS


@functools.cache
def say(ranks: Ranks, *, is_shuffled: bool) -> None:
    """Says once what a loader does that nobody told it to: of a program that each task runs for itself, each would read a part only.

    Under torchrun a share of what is shuffled is what everybody expects. A loader in order may be meant to read everything on every rank, as one that
    validates does with torch's class, so there rank 0 warns.

    Raises:
        InvalidError: The environment says how many ranks there are, and not which one this is: all would read the same share.
    """
    if ranks.doubt:
        raise InvalidError(
            f"the environment has {ranks.doubt}: each process would read the same share. Start it with torchrun, set both or neither, or give dp_rank= "
            "and dp_size="
        )
    if ranks.world == 1 or not ranks.variables:
        return
    is_expected = ranks.variables == _launcher.TORCHRUN and (is_shuffled or ranks.rank > 0)
    _LOG.log(
        logging.INFO if is_expected else logging.WARNING,
        "this process is rank %d of %d (%s): a loader%s reads that rank's share; with dp_rank=0, dp_size=1 it reads everything",
        ranks.rank,
        ranks.world,
        ranks.variables,
        "" if is_shuffled else " without shuffle, too,",
    )
