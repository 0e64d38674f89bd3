"""Whether the ranks of a run read the same epoch of the same plan.

Nothing makes them: a seed may differ, or one rank leave a pass that the others go through, and then samples come twice and others never.
Where torch has a process group, each rank writes into its store what it reads, and looks there for what doesn't go with that. Nobody waits for
anybody: a rank may have a loader alone, and ranks need not go in step. So only what can't be in a run that is right is an error:

- a rank left an epoch after some batches and has begun the next one, and another rank has had more of that epoch;
- two ranks' loaders for one place, with batches of one size, read different plans, and each has never begun the other's: their seeds differ, or one has an
  index of the place from another day;
- the same where one shuffles and the other doesn't, once both have had many batches: until then one may be an evaluation on a rank alone.

Batches of different sizes are a warning: torch allows them to ranks that know what they do.

`foreload.torch.DataLoader` and `Sampler` report each batch. What is written and looked for is a few bytes, at the first two batches of a plan and
then at every doubling, so that it costs nothing. Ranks that deal the data set among fewer than the group's processes (`dp_size`) are not
compared, for there may be several such runs in one group.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import torch.distributed

from foreload._node.meeting import AloneError, SilentError, ask
from foreload._run.run import Run
from foreload.errors import InvalidError

_LOG = logging.getLogger("foreload")
#: How long a rank waits before it refuses another plan: the other one may still have a loader of its own in hand, and come to this one then.
_PATIENCE_S = 10.0
#: Batches after which a rank reads its plan for good.
_FOR_GOOD = 64
#: What differs between plans, in words.
_WORDS = {
    "data": "data set",
    "seed": "seed",
    "kind": "order",
    "tail": "rule for the end of an epoch (uneven, drop_last)",
    "world": "number of ranks",
    "assign": "assign",
}
#: The plans that this process has read, and the kinds of loaders of which it has had one in common with another rank.
_known: set[str] = set()


class Accord:
    """What one loader of this rank tells the others."""

    def __init__(self) -> None:
        self._plan, self._batches = "", 0
        #: The epoch that was read last: the name of its stretch, its number, and how many batches of it the loop has had.
        self._last: tuple[str, int, int] | None = None
        self._is_silent = False

    def had(self, run: Run, placed: int, epoch: int, batches: int) -> None:
        """The loop has had one more batch.

        Args:
            run: The run.
            placed: How often a state was loaded or an epoch set: epochs are compared within the stretches between.
            epoch: The epoch.
            batches: Batches of it that the loop has had.

        Raises:
            InvalidError: Another rank reads something else; the message says who and what.
        """
        if run.ranks.world == 1 or self._is_silent:
            return
        found = _store_of(run)
        if found is None:
            return
        store, rank = found
        try:
            self._compare_plan(_InTime(store), rank, run)
            self._compare_epoch(_InTime(store), rank, run, placed, epoch, batches)
        except AloneError as error:
            # The group is being taken down, its store can't do this, or its host is silent, of which the ranks may notice nothing else.
            self._is_silent = True
            level = logging.WARNING if isinstance(error, SilentError) else logging.INFO
            _LOG.log(level, "the ranks' plans and epochs are not compared: %s", error)

    def ended(self, batches: int) -> None:
        """A pass is over: the loop has had its last batches, or errors in their place."""
        if self._last is not None:
            stretch, epoch, had = self._last
            self._last = (stretch, epoch, max(had, batches))

    def _compare_plan(self, store: Any, rank: int, run: Run) -> None:
        plan = run.agreed
        if plan != self._plan:
            self._plan, self._batches = plan, 0
        self._batches += 1
        if self._batches == 1:
            _known.add(plan)
            store.set(f"foreload/begun/{plan}/{rank}", "1")
        if self._batches == 2:
            self._compare(store, rank, run, is_any=False)
        if self._batches == _FOR_GOOD or (self._batches == len(run) and self._batches < _FOR_GOOD):
            self._compare(store, rank, run, is_any=True)

    def _compare(self, store: Any, rank: int, run: Run, *, is_any: bool) -> None:
        """Compares with the first rank that had such a plan, or any plan of the place."""
        plan = run.agreed
        here = {"rank": rank, "plan": plan, **_facts(run)}
        which = "any" if is_any else f"{here['batch']}/{'shuffled' if here['shuffled'] else 'in order'}"
        alike = f"foreload/plan/{run.dataset.url}/{which}"
        there = json.loads(store.compare_set(alike, "", json.dumps(here)))
        if alike in _known or there["plan"] in _known or _comes(store, f"foreload/begun/{plan}/{there['rank']}"):
            if there["rank"] != rank:
                _known.add(alike)
            return
        if is_any and there["shuffled"] == here["shuffled"]:
            if there["batch"] != here["batch"]:
                _LOG.warning(
                    "rank %d reads %s in batches of %d, and rank %d of %d: they take unequally many steps",
                    *(there["rank"], run.dataset.url, there["batch"], rank, here["batch"]),
                )
                _known.add(alike)
            return
        differing = [
            f"{words} {_short(there[name])} and {_short(here[name])}"
            for name, words in _WORDS.items()
            if there[name] != here[name]
        ]
        remedy = "Give all ranks the same arguments"
        if there["data"] != here["data"]:
            remedy = "Give all ranks one index, `open(index=...)`, or let all list again, `open(refresh=True)`; and the same samples of it, where each chooses some"
        raise InvalidError(
            f"rank {there['rank']} and rank {rank} read {run.dataset.url} by different plans, so that samples would come twice and others never: "
            f"{'; '.join(differing) or 'releases of foreload'}. {remedy}"
        )

    def _compare_epoch(self, store: Any, rank: int, run: Run, placed: int, epoch: int, batches: int) -> None:
        number = run.ranks.word.number(run.plan.digest) if run.ranks.word is not None else 0
        stretch = f"foreload/pass/{run.plan.digest}/{number}/{placed}"
        last, self._last = self._last, (stretch, epoch, batches)
        if not run.order.is_shuffled:
            return
        if last is not None and last[0] == stretch and last[1] + 1 == epoch and last[2] < len(run):
            store.set(f"{stretch}/{last[1]}/left", f"{rank} {last[2]}")
            other = _numbers_at(store, f"{stretch}/{last[1]}/had")
            if other is not None and other[1] > last[2]:
                raise _apart((rank, last[2]), other, last[1])
        if batches == len(run) or batches & (batches - 1) == 0:
            store.set(f"{stretch}/{epoch}/had", f"{rank} {batches}")
            other = _numbers_at(store, f"{stretch}/{epoch}/left")
            if other is not None and other[1] < batches:
                raise _apart(other, (rank, batches), epoch)


class _InTime:
    """A store that is asked within a time: where its host is silent its own answer never comes."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return lambda *given: ask(lambda: getattr(self._store, name)(*given))


def _store_of(run: Run) -> tuple[Any, int] | None:
    """The store of the process group whose ranks are the run's, and this process' rank in it."""
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() != run.ranks.world:
        return None
    return dist.distributed_c10d._get_default_store(), dist.get_rank()  # noqa: SLF001 (torch has no other way to it)


def _comes(store: Any, key: str) -> bool:
    """Whether something is in the store, or soon will be."""
    end = time.monotonic() + _PATIENCE_S
    while not store.check([key]):
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True


def _numbers_at(store: Any, key: str) -> tuple[int, int] | None:
    """Rank and batches at a key."""
    if not store.check([key]):
        return None
    rank, batches = store.get(key).split()
    return int(rank), int(batches)


def _facts(run: Run) -> dict[str, Any]:
    """What decides who reads what, for people."""
    data = f"of {run.order.samples} samples (digest {run.order.dataset[:12]})"
    return {
        "data": data,
        "seed": run.order.seed,
        "kind": run.order.kind,
        "tail": run.order.tail,
        "world": run.ranks.world,
        "assign": run.assign,
        "batch": run.order.global_batch // run.ranks.world,
        "shuffled": run.order.is_shuffled,
    }


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _apart(ahead: tuple[int, int], behind: tuple[int, int], epoch: int) -> InvalidError:
    return InvalidError(
        f"rank {ahead[0]} is in epoch {epoch + 1}, rank {behind[0]} in epoch {epoch}: rank {ahead[0]} left that one after {ahead[1]} batches, and "
        f"rank {behind[0]} has had {behind[1]}, so that samples would come twice and others never. Call set_epoch before each pass on all ranks, or look at "
        "batches through a loader of its own"
    )
