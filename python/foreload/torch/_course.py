"""A loader's course: the order that its arguments come to, and where the loop stands in it.

A `Course` makes the run of a loader from its arguments, or from a sampler among them, asks a sampler of the user's for its epochs, and begins
passes. `Turns` are the batches of one pass as torch's workers are asked for them. `foreload.torch.DataLoader` has one of each, where its
data set is one of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from foreload import ranks as _ranks
from foreload._order import Order, tail_of
from foreload._run import Cursor, Run
from foreload.cache import Cache
from foreload.errors import InvalidError, StateError
from foreload.torch import _given, _reference
from foreload.torch.dataset import Dataset, Turn
from foreload.torch.sampler import Sampler, place_of
from foreload.tuning import Tuning

# A sampler's cursor and the place it was given are parts of the course that is made of it.
# ruff: noqa: SLF001

#: Of a sampler without a length so many samples are listed for a pass, or so many times the data set's; beyond that it has no end.
_LISTED, _LISTED_TIMES = 1 << 22, 16
#: Longer passes are not listed even of a sampler that says how long they are: their list would take more memory than the training.
_LISTED_AT_MOST = 1 << 28


class Turns:
    """The batches of the pass that begins now, for torch's machinery.

    It knows the course and not the loader: torch's iterator holds it and is held by the loader, and in a circle the iterator would end
    with its queues gone, waiting for each worker.
    """

    def __init__(self, course: Course) -> None:
        self._course = course
        self.begun = (0, 0)
        #: Batches that the loop has had in the run that is resumed.
        self.beyond: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return self._course.count()

    def __iter__(self) -> Iterator[Turn]:
        run, (epoch, first), beyond = self._course.run(), self.begun, self.beyond
        begun, lap = run.begin(epoch, first), run.lap(epoch)
        lists = run.batches[epoch] if isinstance(run, _given.GivenRun) and not run.regular else None
        starts = [] if lists is None else list(accumulate(map(len, lists), initial=0))
        try:
            # Epochs of a sampler's own batches may have fewer than others.
            for batch in range(first, len(run if lists is None else lists)):
                if batch in beyond:
                    continue
                run.keep_up(epoch, batch)
                if lists is not None:
                    yield Turn(lists[batch], epoch, batch, lap, starts[batch])
                else:
                    yield Turn(run.plan.batch(lap, batch, run.rank), epoch, batch, lap)
        except GeneratorExit:
            run.leave(begun)
            raise


class Course(Sampler):
    """A loader's order: what its arguments, or the sampler among them, come to.

    Of torch's `Sampler` protocol it has its own cursor, for libraries that take a loader apart; the loader's is another one.
    """

    def __init__(
        self,
        samples: Dataset[Any],
        batch_size: int | None,
        drop_last: bool,
        explicit: Any,
        *,
        shuffle: bool,
        seed: int,
        generator: torch.Generator | None,
        order: str,
        place: tuple[Any, ...],
        uneven: str | None,
        epochs: int | None,
        policy: Any,
        tuning: Tuning | None,
        draws: str = "loader_each_epoch",
    ) -> None:
        #: A `Sampler` of ours among the arguments, which decides all that it was told itself.
        self._ours = explicit if isinstance(explicit, Sampler) else None
        num_replicas, rank, self._mesh, local = place
        if self._ours is not None:
            (num_replicas, rank), self._mesh, local = self._ours._given, None, None
            order, seed, draws = self._ours.order, self._ours.seed, "sampler_only"
            epochs = self._ours.epochs if epochs is None else epochs
            policy, tuning = policy or self._ours.policy, tuning or self._ours.tuning
        super().__init__(
            samples,
            num_replicas,
            rank,
            shuffle,
            seed,
            drop_last,
            order=order,
            batch_size=batch_size or 1,
            epochs=epochs,
            policy=policy,
            tuning=tuning,
        )
        #: Where the loader stands.
        self.cursor = Cursor()
        self._placed = 0
        self._local = tuple(local) if isinstance(local, Iterable) else local
        self._cache = samples.cache
        self._uneven, self._draws = uneven, draws
        self._explicit = explicit
        self._known: dict[str, Any] | None = None
        self._lists: _given.Lists | None = None
        if explicit is not None and self._ours is None:
            if batch_size is not None:
                self._known = _given.known(explicit, len(samples), generator)
            if self._known is None:
                self._lists = self._listed(explicit, batch_size)
        self._waiting: tuple[int | None, list[list[int]]] | None = None
        tail_of(1, 1, drop_last=drop_last, uneven=uneven)

    def _listed(self, sampler: Any, batch_size: int | None, *, is_ours: bool = False) -> _given.Lists:
        told = len(sampler) if batch_size is not None and hasattr(sampler, "__len__") else 0
        if told > _LISTED_AT_MOST:
            raise InvalidError(
                f"the sampler yields {told} samples in a pass, which is listed when it begins; at most {_LISTED_AT_MOST} can be: give fewer as an epoch "
                "(num_samples=), and make several passes"
            )
        most = max(_LISTED, _LISTED_TIMES * len(self.data), told)
        return _given.Lists(sampler, batch_size, self.drop_last, most, is_ours=is_ours)

    def _place(self) -> _ranks.Ranks:
        if self._known is not None:
            rank, world = self._known["rank"], self._known["world"]
            told = place_of(None, None, word=self._word)
            # The run's own ranks share one job on each node.
            return (
                told
                if (told.rank, told.world) == (rank, world)
                else _ranks.Ranks(rank, world, (rank,), self._word.of(shared=False))
            )
        if self._ours is not None and self._ours.sharding == "external":
            return _ranks.Ranks(0, 1, (0,), self._word.of(shared=False), self._word)
        return place_of(*self._given, self._mesh, self._local, self._word)

    def set_epoch(self, epoch: int) -> None:
        """The next pass is of this epoch."""
        super().set_epoch(epoch)
        self.cursor.set_epoch(epoch)
        if self._ours is None and self._explicit is not None:
            _given.set_epoch(self._explicit, epoch)

    def go_on(self, epoch: int, batch: int, beyond: Iterable[int]) -> None:
        """The next pass goes on where a state says."""
        self.cursor.load(epoch, batch, beyond)
        if self._ours is None and self._explicit is not None:
            _given.set_epoch(self._explicit, epoch)

    def adopt(self, state: dict[str, Any]) -> bool:
        """Takes over what torch's order depends on besides the seed, and a state knows: whether workers live through all epochs.

        Returns:
            Whether this loader's order is another one now.
        """
        once = {"loader_each_epoch": "loader_once", "loader_once": "loader_each_epoch"}.get(self._draws)
        order = self.run().order
        if once is None or order.name != "torch_random" or state.get("sequence") == order.sequence:
            return False
        other = replace(order, kind={"torch_random": {"draws": once}})
        if state.get("sequence") != other.sequence:
            return False
        self._draws, self._run = once, None
        return True

    @property
    def epoch(self) -> int:  # type: ignore[override] # an attribute in torch
        """The epoch of the loader's next pass."""
        return self.cursor.upcoming[0]

    def heed(self) -> None:
        """A pass begins: it is of the epoch that the sampler among the arguments was set to.

        Raises:
            StateError: A state that our `Sampler` was given ends within one of the loader's batches.
        """
        if self._ours is not None:
            placed, self._placed = self._placed, self._ours._cursor.placed
            if placed != self._placed:
                epoch, had = self._ours.upcoming
                batch, rest = divmod(had, self.batch_size)
                if rest:
                    raise StateError(
                        f"the sampler's state was saved after {had} samples of this rank, which is within a batch of {self.batch_size}; choose a "
                        "batch_size that divides it"
                    )
                self.cursor.load(epoch, batch)
        elif self._explicit is not None:
            told = _given.epoch_of(self._explicit)
            if told is not None and told != self.cursor.upcoming[0]:
                self.cursor.set_epoch(told)

    @property
    def is_dealt(self) -> bool:
        """Whether the plan deals an epoch among several ranks; a sampler of the user's does that itself."""
        return self._lists is None and self._place().world > 1

    def run(self, epoch: int | None = None) -> Run:
        """The run.

        Args:
            epoch: The epoch that begins; None: none does yet.
        """
        at = self.cursor.upcoming[0] if epoch is None else epoch
        if self._lists is not None:
            return self._supplied(self._lists, at)
        place = self._place()
        if self._run is None or self._run.ranks != place:
            self._run = self._planned(place, at)
        return self._run

    def _planned(self, place: _ranks.Ranks, epoch: int) -> Run:
        world, global_batch, samples = place.world, self.batch_size * place.world, len(self.data)
        torch_like = self.order.startswith("torch") or self._known is not None or self._ours is not None
        kind = self.data.order_kind(self.order, world, shuffle=self.shuffle, draws=self._draws)
        seed, tail = (
            self.seed,
            tail_of(world, global_batch, drop_last=self.drop_last, uneven=self._uneven, torch=torch_like),
        )
        trims = self._ours is not None and self._ours.drop_last
        if self._known is not None:
            kind, seed, trims = self._known["kind"], self._known["seed"], self._known["trims"]
        if trims and not self.drop_last:
            tail = {"trim": {"multiple": world}}
        if not _reference.agrees(kind):
            return self._torchs_own(place, epoch)
        order = Order(self.data.digest, samples, kind, seed, global_batch, tail)
        return Run(
            self.data,
            order,
            place,
            self._cache if len(place.local) > 1 else self._alone(),
            uneven=self._uneven == "weights",
            epochs=self.epochs,
            policy=self.policy,
            tuning=self.tuning,
            skip_large=self._skips,
        )

    def _torchs_own(self, place: _ranks.Ranks, epoch: int) -> Run:
        """What torch itself draws, where the plan can't foresee it: listed epoch by epoch, like any sampler of the user's."""
        sampler = self._explicit if self._known is not None else None
        if sampler is None:
            sampler = _reference.sampler_of(len(self.data), place.world, place.rank, self.seed, self._draws)
        self._lists = self._listed(sampler, self.batch_size, is_ours=sampler is not self._explicit)
        return self._supplied(self._lists, epoch)

    def _supplied(self, lists: _given.Lists, epoch: int) -> Run:
        if self._run is None:
            self._waiting = lists.told(epoch), lists.draw(epoch)
            keywords = {"epochs": self.epochs, "policy": self.policy, "tuning": self.tuning, "skip_large": self._skips}
            first = self._waiting[1]
            # Lists are their rank's own, and so is the job.
            run = _given.GivenRun(self.data, lists, first, self._alone(), self._word, **keywords)
            run.supply(epoch, first)
            self._run = run
        return self._run

    def _alone(self) -> Cache:
        """The budget of a job of this process alone: the processes of a node share theirs out."""
        return self._cache.part(len(place_of(None, None).local))

    def begin(self, epoch: int) -> Run:
        """A pass of an epoch begins: a sampler of the user's is asked for it now."""
        run = self._run = self.run(epoch).going_on(epoch)
        if isinstance(run, _given.GivenRun):
            lists = run.lists
            # What was listed before the first pass, for its length, was drawn for that one.
            waiting, self._waiting = self._waiting, None
            is_right = waiting is not None and waiting[0] == lists.told(epoch)
            run.supply(epoch, waiting[1] if waiting is not None and is_right else lists.draw(epoch))
            run.check_resumed(epoch)
            ahead = lists.peek() if self.epochs is None or epoch + 1 < self.epochs else None
            if ahead is not None and run.misfit(epoch + 1, ahead) is None:
                run.supply(epoch + 1, ahead)
        return run

    def count(self) -> int:
        """Batches of an epoch."""
        if self._lists is not None and self._run is None and hasattr(self._explicit, "__len__"):
            size = self._lists.batch_size
            whole = len(self._explicit)
            return whole if size is None else whole // size if self.drop_last else -(-whole // size)
        return len(self.run())

    def __len__(self) -> int:
        return len(self._explicit) if self._explicit is not None and self._ours is None else super().__len__()

    def __iter__(self) -> Iterator[int]:
        """What a library sees that takes the loader apart."""
        yield from super().__iter__()
