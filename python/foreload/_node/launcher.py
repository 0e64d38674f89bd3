"""What a launcher told this process about its place: torchrun, Open MPI, MPICH and Intel MPI, Slurm's srun.

Each sets variables of its own. A batch script has Slurm's too, so only those count that srun alone sets: a script that is run there without
srun is alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from foreload._settings import environment as _environment

#: The variables of torchrun.
TORCHRUN = "RANK and WORLD_SIZE"
_NODES = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", re.ASCII)


@dataclass(frozen=True)
class Place:
    """A process among those that were launched together.

    Attributes:
        rank: Its number.
        world: How many there are.
        local: The numbers of those on this node.
        session: What those on this node call themselves, unlike any others there; another word each time they are started.
        run: What all of them call themselves, on whichever node they are; empty: they have no name.
        variables: Which variables say so.
        doubt: What they leave open, in words; empty: nothing.
    """

    rank: int
    world: int
    local: tuple[int, ...]
    session: str
    variables: str
    doubt: str = ""
    run: str = ""


def place() -> Place | None:
    """This process' place; None: nobody says."""
    return _torchrun() or next(_launched(), None) or _of("PMI_RANK", "PMI_SIZE", "")


def _torchrun() -> Place | None:
    rank, world, said = _environment.number("RANK"), _environment.number("WORLD_SIZE"), _environment.get("WORLD_SIZE")
    if rank is None and world is None and (said is None or any(_launched())):
        return None
    doubt = "WORLD_SIZE=0" if world == 0 else ""
    if world is None and said is not None:
        doubt = f"WORLD_SIZE={said!r}, which is no number"
    if rank is None and (world or 1) > 1:
        if any(it.world == world for it in _launched()):
            # A script has it for itself, and takes its rank from the launcher, which says both.
            return None
        found = _environment.get("RANK")
        doubt = f"WORLD_SIZE={world}, and {'no RANK' if found is None else f'RANK={found!r}, which is no number'}"
    run = "-".join(_environment.get(name) or "" for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"))
    # Nodes count differently: one whose rank died has started more often than those that only saw that.
    session = f"{run}-{_environment.get('TORCHELASTIC_RESTART_COUNT') or ''}"
    rank, world = rank or 0, world or 1
    local = _in_a_row(rank, world, _environment.number("LOCAL_RANK"), _environment.number("LOCAL_WORLD_SIZE"))
    if _environment.number("LOCAL_WORLD_SIZE") is None:
        # Batch scripts often set RANK, WORLD_SIZE and LOCAL_RANK by hand from the launcher's own variables, which say more.
        local = next((it.local for it in _launched() if (it.rank, it.world) == (rank, world)), local)
    return Place(rank, world, local, session, TORCHRUN, doubt, run)


def _launched() -> Iterator[Place]:
    """What the other launchers' variables say."""
    told = (_of("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_"), _pmi(), _slurm())
    yield from (place for place in told if place is not None)


def _pmi() -> Place | None:
    if _environment.number("MPI_LOCALRANKID") is None:
        return None
    return _of("PMI_RANK", "PMI_SIZE", "MPI_LOCAL", ("RANKID", "NRANKS"))


def _of(rank: str, world: str, local: str, ends: tuple[str, str] = ("RANK", "SIZE")) -> Place | None:
    """As a launcher of MPI's says it, in variables of these names."""
    at, size = _environment.number(rank), _environment.number(world)
    if at is None or size is None:
        return None
    here = (_environment.number(local + end) if local else None for end in ends)
    # The launcher's own process on this node is the parent of all ranks there.
    run = _environment.get("PMIX_NAMESPACE") or ""
    return Place(at, size, _in_a_row(at, size, *here), run or f"mpi-{os.getppid()}", f"{rank} and {world}", run=run)


def _slurm() -> Place | None:
    rank, world = _environment.number("SLURM_PROCID"), _environment.number("SLURM_STEP_NUM_TASKS")
    if rank is None or world is None:
        return None
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    session = "-".join(["slurm", *(_environment.get(name) or "" for name in names)])
    names_of = "SLURM_PROCID and SLURM_STEP_NUM_TASKS"
    return Place(rank, world, _slurms_neighbours(rank, world), session, names_of, run=session)


def _slurms_neighbours(rank: int, world: int) -> tuple[int, ...]:
    nodes, node = tasks_of(_environment.get("SLURM_STEP_TASKS_PER_NODE") or ""), _environment.number("SLURM_NODEID")
    if sum(nodes) != world or node is None or node >= len(nodes):
        return (rank,)
    dealt = (_environment.get("SLURM_DISTRIBUTION") or "block").partition(":")[0]
    local: tuple[int, ...] = ()
    if dealt == "block":
        first = [0, *accumulate(nodes)][node]
        local = tuple(range(first, first + nodes[node]))
    elif dealt == "cyclic" and len(set(nodes)) == 1:
        local = tuple(range(node, world, len(nodes)))
    return local if rank in local else (rank,)


def tasks_of(text: str) -> list[int]:
    """How many tasks each node has, from Slurm's short form.

    Example:
        >>> tasks_of("4(x2),3")
        [4, 4, 3]
    """
    found = [_NODES.fullmatch(part) for part in text.split(",")]
    return [int(each[1]) for each in found if each for _ in range(int(each[2] or 1))] if all(found) else []


def _in_a_row(rank: int, world: int, local_rank: int | None, local_world: int | None) -> tuple[int, ...]:
    """The ranks of this node, where launchers number them one after the other."""
    if local_rank is None or local_world is None:
        return (rank,)
    first = rank - local_rank
    local = tuple(range(first, first + local_world))
    return local if first >= 0 and first + local_world <= world and rank in local else (rank,)
