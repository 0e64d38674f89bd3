"""Which part of each batch this process reads, and who else on this node takes part.

By default the environment of torchrun says so. Jobs that split a model between processes (tensor or pipeline parallelism) name the data ranks
instead, because all processes that hold one replica's parts must see the same samples: with `dp_rank` and `dp_size`, or through a
`device_mesh`.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foreload import _environment
from foreload.errors import InvalidError

#: Dimensions of a device mesh over which data is split, by their usual names.
_DATA_DIMENSIONS = frozenset({"dp", "data", "ddp", "fsdp", "dp_replicate", "dp_shard", "data_parallel"})
_loaders = itertools.count()


class Word:
    """What tells a loader's job from others with an equal plan.

    The ranks of a node agree on it without talking: under torchrun it is made of the run's name and of how many loaders the process made
    before. Alone it is random. Fixed when a loader is made, because its workers must come to the same.
    """

    def __init__(self) -> None:
        self._number = next(_loaders)
        self._random = f"{os.getpid()}-{secrets.token_hex(4)}"

    def of(self, *, shared: bool) -> str:
        """The word."""
        if not shared:
            return f"{self._random}-{self._number}"
        names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
        return "-".join([*(_environment.get(name) or "" for name in names), str(self._number)])


@dataclass(frozen=True)
class Ranks:
    """A data rank among all, and those of this node.

    Attributes:
        rank: This process' data rank.
        world: Data ranks in the run.
        local: Data ranks of this node, this one among them.
        session: What the processes of this node's share of the job call it.
    """

    rank: int = 0
    world: int = 1
    local: tuple[int, ...] = (0,)
    session: str = ""

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
        dp_rank: This process' data rank. Default: from the mesh, otherwise `RANK`, otherwise 0.
        dp_size: Data ranks in the run. Default: from the mesh, otherwise `WORLD_SIZE`, otherwise 1.
        device_mesh: A `torch.distributed.DeviceMesh`; dimensions whose names speak of data (`dp`, `fsdp`, ...) count, or all of a mesh without
            names.
        local_ranks: Data ranks whose processes run on this node and make the same call. Default: under torchrun with plain data
            parallelism the processes of this node, otherwise this rank alone.
        word: The loader's word, if it has one already.

    Returns:
        The place.

    Raises:
        InvalidError: Only one of `dp_rank` and `dp_size` is given, or they contradict each other.
    """
    if (dp_rank is None) != (dp_size is None):
        raise InvalidError("give dp_rank and dp_size together")
    if dp_rank is not None and dp_size is not None:
        rank, world, plain = dp_rank, dp_size, False
    elif device_mesh is not None:
        (rank, world), plain = _of_mesh(device_mesh), False
    else:
        rank, world, plain = _environment.number("RANK") or 0, _environment.number("WORLD_SIZE") or 1, True
    local = _neighbours(rank, world) if plain else (rank,)
    if local_ranks is not None:
        local = tuple(sorted(local_ranks))
    return Ranks(rank, world, local, (word or Word()).of(shared=len(local) > 1))


def _of_mesh(mesh: Any) -> tuple[int, int]:
    names = mesh.mesh_dim_names
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise InvalidError("this process is not part of the device mesh")
    rank, world = 0, 1
    for at, size in enumerate(mesh.mesh.shape):
        if names is None or names[at] in _DATA_DIMENSIONS:
            rank, world = rank * int(size) + int(coordinate[at]), world * int(size)
    return rank, world


def _neighbours(rank: int, world: int) -> tuple[int, ...]:
    """The ranks that torchrun started on this node: neighbours in number."""
    local_rank, local_world = _environment.number("LOCAL_RANK"), _environment.number("LOCAL_WORLD_SIZE")
    if local_rank is None or local_world is None or rank - local_rank + local_world > world:
        return (rank,)
    return tuple(range(rank - local_rank, rank - local_rank + local_world))
