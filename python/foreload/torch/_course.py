"""A loader's course: the order that its arguments come to, and where the loop stands in it.

A `Course` makes the run of a loader from its arguments, or from a sampler among them, asks a sampler of the user's for its epochs, and begins
passes. `Turns` are the batches of one pass as torch's workers are asked for them. `foreload.torch.DataLoader` has one of each, where its
data set is one of ours.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, count
from typing import Any

import torch
from torch.utils import data

from foreload._node import ranks as _ranks
from foreload._run.position import Cursor
from foreload._run.run import Run
from foreload._settings.cache import Cache
from foreload._settings.order import Order, tail_of
from foreload._settings.tuning import Tuning
from foreload.errors import InvalidError, StateError
from foreload.torch import _given, _lists, _reference, _samplers, _subset
from foreload.torch._flow import Flow
from foreload.torch._randomness import put_back, standing
from foreload.torch.dataset import Dataset, Turn
from foreload.torch.sampler import Sampler, place_of

# A sampler's cursor and the place it was given are parts of the course that is made of it.
# ruff: noqa: SLF001

_LOG = logging.getLogger("foreload")
#: A pass is listed when it begins if it has at most so many samples, or so many times the data set's. A longer one is read as it goes.
_LISTED, _LISTED_TIMES = 1 << 22, 16
#: So many batches are listed at most, or twice as many as the sampler says: one that says how long a round is may go on for ever.
_LISTED_BATCHES = 1 << 18
#: Samples of a sampler that doesn't say how long it is: it may have no end, or be slow.
_LISTED_UNSIZED = 1 << 16


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
        if isinstance(run, Flow):
            yield from self._flowing(run, epoch, first)
            return
        begun, lap, again = run.begin(epoch, first), run.lap(epoch), self._course.again
        lists = run.batches[epoch] if isinstance(run, _given.GivenRun) and not run.regular else None
        starts = [] if lists is None else list(accumulate(map(len, lists), initial=0))
        held = _given.Held(run, epoch)
        try:
            # Epochs of a sampler's own batches may have fewer than others.
            for batch in range(first, len(run if lists is None else lists)):
                if batch in beyond:
                    continue
                run.keep_up(epoch, batch)
                readings = run.readings(epoch, batch)._replace(again=again)
                if lists is not None:
                    yield Turn(lists[batch], epoch, batch, lap, starts[batch], readings=readings)
                else:
                    yield Turn(run.plan.batch(lap, batch, run.rank), epoch, batch, lap, readings=readings)
        except GeneratorExit:
            run.leave(begun)
            raise
        finally:
            del held

    def _flowing(self, run: Flow, epoch: int, first: int) -> Iterator[Turn]:
        reading = run.reading
        if reading is None:
            return
        if not reading.reach(first):
            reading.fail()
            return
        begun, again = run.begin(epoch, first), self._course.again
        try:
            for batch in count(first):
                if not reading.reach(batch):
                    reading.fail()
                    return
                run.keep_up(epoch, batch)
                reading.forget(batch)
                if batch not in self.beyond:
                    readings = reading.readings(batch)._replace(again=again)
                    yield Turn(reading.samples(batch), epoch, batch, 0, reads=reading.reads(batch), readings=readings)
        finally:
            # The last lap is not read to its end.
            run.leave(begun)


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
        assign: str | None,
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
        self._uneven, self._assign, self._draws = uneven, assign, draws
        self._explicit = explicit
        self.cursor.is_told = self._cursor.is_told = explicit is None or self._ours is not None
        #: Torch's subset or concatenation that the loader was given, and the samples that it had when this order was made.
        self.part: Any = None
        self.chosen: Any = None
        self._generator = generator
        self._cut = batch_size
        self._heed_sampler(len(samples))
        #: How often a sampler of the user's is made an iterator of: in the next pass, and in later ones. The same of a run that is resumed.
        self._asks = (1, 1)
        self._asked: tuple[int, int] | None = None
        #: How many passes of the same epoch came before, because nobody set the sampler to another one.
        self.again = 0
        self._heeded = 0
        #: How a state left the sampler that the next pass goes on with.
        self._left: _samplers.Left | None = None
        #: A state that the next pass goes on from, and where it says that a sampler of the user's stood.
        self._loaded: tuple[dict[str, Any], _lists.Resumed] | None = None
        tail_of(1, 1, drop_last=drop_last, uneven=uneven)

    def _heed_sampler(self, samples: int) -> None:
        #: What the plan knows of a sampler of the user's, whose generator is not to be the loader's.
        self._known: dict[str, Any] | None = None
        self._lists: _lists.Lists | None = None
        self._waiting: tuple[int | None, _lists.Drawn] | None = None
        if self._explicit is not None and self._ours is None:
            if self._cut is not None:
                self._known = _samplers.known(self._explicit, samples, self._generator)
            if self._known is None:
                self._lists = self._listed(self._explicit, self._cut)

    def change(self, samples: Dataset[Any]) -> None:
        """The data set has other samples from the next pass on. Where the loop stands stays: epochs go on."""
        samples.sampler = weakref.ref(self)
        self._change(samples.data)

    def _change(self, data: Any) -> None:
        self.data = self.dataset = data
        self._meet()
        self._run, self._loaded = None, None
        self._forget_left()
        self._heed_sampler(len(data))

    def _heed_part(self) -> None:
        """What a library takes from here is of the samples that torch's subset has now."""
        now = _subset.change_in(self.part, self.chosen)
        if now is None or self.cursor.upcoming[1] or self._cursor.upcoming[1]:
            return
        found = _subset.ours(self.part)
        if found is not None:
            self.chosen = now
            self._change(getattr(found, "data", found))

    def retire(self) -> int:
        """Ends as a loader's order. Where the user's own sampler goes by it, it goes on as that one's sampler.

        Returns:
            The epoch that would have come next.
        """
        upcoming = self.cursor.upcoming[0]
        self.cursor, self.leads = self._cursor, False
        self.cursor.set_epoch(upcoming)
        if self._ours is not None:
            self._ours.set_epoch(upcoming)
        return upcoming

    def _listed(self, sampler: Any, batch_size: int | None, *, is_ours: bool = False) -> _lists.Lists:
        for part in _samplers.parts(sampler):
            if isinstance(part, Sampler):
                # What it yields is listed, and read ahead by this course.
                part.leads = False
        most, (told, batches) = max(_LISTED, _LISTED_TIMES * len(self.data)), _length_of(sampler, batch_size)
        limits = min(most, _LISTED_UNSIZED) if told is None or told > most else most, max(_LISTED_BATCHES, 2 * batches)
        return _lists.Lists(sampler, batch_size, self.drop_last, limits, len(self.data), is_ours=is_ours)

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
        self._forget_left()
        if self._ours is None and self._explicit is not None:
            _samplers.set_epoch(self._explicit, epoch)

    def _forget_left(self) -> _samplers.Left | None:
        left, self._left = self._left, None
        if left is not None:
            left.release()
        return left

    def load(self, state: dict[str, Any]) -> None:
        """The next pass goes on where a state says.

        Raises:
            StateError: It belongs to another run.
        """
        _check_whole(state)
        if self._known is not None and isinstance(state, dict) and "of" in state:
            # It was listed when the state was saved.
            self._list_instead()
        run = self.run() if self._lists is None else None
        if run is not None and self._lists is None:
            epoch, batch, beyond = run.resume(state)
        else:
            resumed, beyond = _given.resume(state, self.data, self._batch_size, self._own_place()[1])
            epoch, batch = resumed.epoch, resumed.batches
            self._loaded = dict(state), resumed
        self.cursor.load(epoch, batch, beyond, of=state)
        self._restore_generator(state)
        if self._ours is not None or self._explicit is None:
            return
        self._forget_left()
        self._asked = _asks_in(state)
        self._left = _samplers.Left(self._explicit, state, epoch, is_within=bool(batch or beyond))
        if self._lists is not None:
            self._lists.place = self._own_place()
            if self._lists.restore(state, is_within=self._left.is_within):
                self._waiting = None
            if epoch != state["epoch"] and self._loaded is not None:
                # It was over: the loader stands at the beginning of the next one.
                known: dict[str, Any] = {name: state[name] for name in ("of", "random", "samplers") if name in state}
                self._loaded = {**_given.unread(self.data, self._batch_size, epoch), **known}, self._loaded[1]

    def _restore_generator(self, state: dict[str, Any]) -> None:
        """The loader's generator stands where it stood when the state was saved, if it is seeded as that was: ranks may have seeds of their own."""
        stood, own = state.get("generator"), self._generator
        if own is None or stood is None:
            return
        if not isinstance(stood, dict) or not {"seed", "state"} <= stood.keys():
            raise StateError(f"the state is damaged: its loader's generator is {stood!r:.60}")
        if stood["seed"] == own.initial_seed():
            put_back(own, stood)

    def go_back(self, state: dict[str, Any]) -> None:
        """A pass couldn't begin: the next one begins where it would have, if that can be had again."""
        with contextlib.suppress(StateError, InvalidError):
            self.load(state)
        if self._lists is not None and not state["order"]:
            # Nothing was read before, so what this pass has listed decides nothing.
            self._run = None

    def state(self, **more: Any) -> dict[str, Any]:
        """Where the loop stands. A sampler of the user's isn't asked for anything: it draws when a pass begins, as under torch's loader.

        Args:
            more: What the loader has to say.
        """
        own = {} if self._generator is None else {"generator": standing(self._generator)}
        state = self.cursor.stamp(self._stands() | own | more)
        return {**state, "names": " ".join(sorted(state.keys() - {"names"}))}

    def _stands(self) -> dict[str, Any]:
        cursor = self.cursor
        if self._loaded is not None and self._is_placed(self._loaded[1]):
            moved = {} if self._lists is None else self._lists.moved_since(*self._loaded)
            return {**self._loaded[0], **moved, **self._set_to()}
        if self._lists is not None and self._run is None:
            self._lists.place = self._own_place()
            unread = _given.unread(self.data, self._batch_size, cursor.epoch)
            return unread | self._lists.state(None) | self._will_have_asked() | self._set_to()
        state = self.run().state(cursor.epoch, cursor.batch, cursor.beyond)
        drawn = None
        if self._lists is not None:
            is_over = "positions" in state and state["position"] >= state["positions"]
            epoch = None if is_over else cursor.epoch
            state |= self._lists.state(epoch) | self._will_have_asked(None if is_over else self._lists.asks)
            drawn = self._lists.drawn_as(epoch)
        return state | self._set_to(drawn)

    def will_ask(self, now: int, later: int, *, seeds: bool) -> None:
        """How often torch would make an iterator of a sampler of the user's, which a run that is resumed goes on with as it did.

        Args:
            now: In the next pass.
            later: In passes after it.
            seeds: Whether the workers' seed is drawn in each of these.
        """
        self._asks = (now, later) if self._asked is None else self._asked
        if self._lists is not None:
            self._lists.seeds = self._generator if seeds else None

    def _will_have_asked(self, now: int | None = None) -> dict[str, list[int]]:
        asks = [self._asks[0] if now is None else now, self._asks[1]]
        return {} if asks == [1, 1] else {"asks": asks}

    def _set_to(self, drawn: int | None = None) -> dict[str, int]:
        """Which epoch a sampler of the user's is set to, and how often that was read before.

        Args:
            drawn: The one that it was set to when the pass under way was drawn: it may set itself to the next one.
        """
        if self._ours is not None or self._explicit is None:
            return {}
        told = _samplers.epoch_of(self._explicit) if drawn is None else drawn
        again = self._left.again if self._left is not None else self.again
        return ({} if told is None else {"told": told}) | ({"again": again} if again else {})

    def _is_placed(self, resumed: _lists.Resumed) -> bool:
        where, cursor = (resumed.epoch, resumed.batches), self.cursor
        return cursor.upcoming == where == (cursor.epoch, cursor.batch)

    @property
    def _batch_size(self) -> int | None:
        """Samples of a batch, as far as that is known without asking a sampler of the user's."""
        if self._lists is None or self._lists.batch_size is not None:
            return self.batch_size
        return self._explicit.batch_size if type(self._explicit) is data.BatchSampler else None

    @property
    def is_unread(self) -> bool:
        """Whether nothing is known yet of what will be read, because a sampler of the user's says that when a pass begins."""
        return self._lists is not None and self._run is None

    def adopt(self, state: dict[str, Any]) -> bool:
        """Takes over what torch's order depends on besides the seed, and a state knows: whether workers live through all epochs.

        Returns:
            Whether this loader's order is another one now.
        """
        if self._lists is not None:
            return False
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
            self._heed_ours(self._ours)
        elif self._explicit is not None:
            self._heed_explicit()

    def _heed_ours(self, ours: Sampler) -> None:
        placed, self._placed = self._placed, ours._cursor.placed
        if placed != self._placed:
            epoch, had = ours.upcoming
            batch, rest = divmod(had, self.batch_size)
            if rest:
                raise StateError(
                    f"the sampler's state was saved after {had} samples of this rank, which is within a batch of {self.batch_size}; choose a "
                    "batch_size that divides it"
                )
            if had:
                self.cursor.load(epoch, batch)
            else:
                # Whether that is another one than the loader's state is of, its cursor knows.
                self.cursor.set_epoch(epoch)

    def _heed_explicit(self) -> None:
        self._heed_changes()
        left = self._forget_left()
        is_left = left is not None and left.is_as_left()
        told = _samplers.epoch_of(self._explicit) if left is None or is_left else left.told()
        is_placed = self._heeded != self.cursor.placed
        upcoming = self.cursor.upcoming[0]
        if told == upcoming:
            self.cursor.confirmed()
        if left is not None and is_left:
            # Nobody has set an epoch since the state was loaded.
            self.again = left.again
            if told is not None and told != upcoming:
                self.cursor.set_epoch(told, again=True)
        elif told is not None and (told != upcoming or left is not None):
            # Since the pass before, nobody has set another epoch.
            is_again = told == self.cursor.epoch and not is_placed
            self.again = self.again + 1 if is_again else 0
            self.cursor.set_epoch(told)
        elif is_placed or upcoming != self.cursor.epoch:
            self.again = 0
        self._heeded = self.cursor.placed

    def _heed_changes(self) -> None:
        """A sampler that the plan knows may have been changed since the loader was made, or its generator seeded: from then on it is listed, as any other."""
        if self._known is not None and _samplers.known(self._explicit, len(self.data), self._generator) != self._known:
            if self.cursor.upcoming[1]:
                raise StateError(
                    "the sampler was changed, or its generator seeded, after a state was loaded that goes on within an epoch: that epoch is in the order that "
                    "it had before. Change it when that epoch is over"
                )
            _LOG.info(
                "the sampler was changed after its loader was made (%s): it is asked when each pass begins",
                type(self._explicit).__name__,
            )
            self._list_instead()

    def _list_instead(self) -> None:
        self._known, self._run = None, None
        self._lists = self._listed(self._explicit, self.batch_size)

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
            assign=self._assign,
        )

    def _torchs_own(self, place: _ranks.Ranks, epoch: int) -> Run:
        """What torch itself draws, where the plan can't foresee it: listed epoch by epoch, like any sampler of the user's."""
        sampler = self._explicit if self._known is not None else None
        if sampler is None:
            sampler = _reference.sampler_of(len(self.data), place.world, place.rank, self.seed, self._draws)
        self._lists = self._listed(sampler, self.batch_size, is_ours=sampler is not self._explicit)
        return self._supplied(self._lists, epoch)

    def _supplied(self, lists: _lists.Lists, epoch: int) -> Run:
        if self._run is None:
            lists.place = self._own_place()
            drawn = lists.draw(epoch, self._asks[0])
            self._waiting = lists.told(epoch), drawn
            if drawn.rest is None and any(drawn.batches):
                # Lists are their rank's own, and so is the job.
                run = _given.GivenRun(
                    self.data, lists, drawn.batches, self._alone(), self._word, **self._keywords(self.epochs)
                )
                run.supply(epoch, drawn.batches)
                self._run = run
            else:
                self._run = self._flow(lists, self.epochs)
        return self._run

    def _flow(self, lists: _lists.Lists, epochs: int | None) -> Flow:
        return Flow(self.data, lists, self._alone(), self._word, **self._keywords(epochs))

    def _keywords(self, epochs: int | None) -> dict[str, Any]:
        return {"epochs": epochs, "policy": self.policy, "tuning": self.tuning, "skip_large": self._skips}

    def _own_place(self) -> tuple[int, int]:
        """This process among those that may have a share of the epoch each, which a sampler of the user's deals out: as that says, or the launcher."""
        place = place_of(*self._given, self._mesh, self._local)
        return _samplers.place_in(self._explicit) or (place.rank, place.world)

    def _alone(self) -> Cache:
        """The budget of a job of this process alone: the processes of a node share theirs out."""
        return self._cache.part(len(place_of(None, None).local))

    def begin(self, epoch: int) -> Run:
        """A pass of an epoch begins: a sampler of the user's is asked for it now."""
        run = self._run = self.run(epoch).going_on(epoch)
        if self._asked is not None:
            self._asked = (self._asked[1], self._asked[1])
        lists, loaded, self._loaded = self._lists, self._loaded, None
        if lists is None:
            return run
        # What was listed before the first pass was drawn for that one.
        waiting, self._waiting = self._waiting, None
        drawn = (
            waiting[1] if waiting is not None and waiting[0] == lists.told(epoch) else lists.draw(epoch, self._asks[0])
        )
        resumed = loaded and loaded[1]
        if isinstance(run, _given.GivenRun):
            if drawn.rest is None and run.misfit(epoch, drawn.batches) is None:
                return self._list(run, epoch, drawn, resumed)
            # The plan was made for lists like the first one.
            run = self._run = self._flow(lists, run.epochs)
        if isinstance(run, Flow):
            run.read(epoch, iter(drawn), self.cursor.batch, resumed)
        return run

    def _list(self, run: _given.GivenRun, epoch: int, drawn: _lists.Drawn, resumed: _lists.Resumed | None) -> Run:
        batches = drawn.batches
        run.supply(epoch, batches)
        if resumed is not None:
            resumed.check(epoch, sum(map(len, batches[: resumed.batches])))
            resumed.check_list(run.lists.place, _lists.digest(batches[: resumed.batches]), drawn.samples)
        ahead = run.lists.peek(self._asks[1]) if self.epochs is None or epoch + 1 < self.epochs else None
        if ahead is not None and run.misfit(epoch + 1, ahead) is None:
            run.supply(epoch + 1, ahead)
        return run

    def count(self) -> int:
        """Batches of an epoch.

        Raises:
            TypeError: The sampler doesn't say how long it is.
        """
        if self._lists is None or self._explicit is None:
            return len(self.run())
        size, whole = self._lists.batch_size, len(self._explicit)
        return whole if size is None else whole // size if self.drop_last else -(-whole // size)

    def __len__(self) -> int:
        if self._explicit is not None and self._ours is None:
            return len(self._explicit)
        self._heed_part()
        return len(self.data) if self._drops_batches else super().__len__()

    def __iter__(self) -> Iterator[int]:
        """What a library sees that takes the loader apart: all samples, which a batch sampler over them may cut otherwise."""
        self._heed_part()
        yield from self._undropped if self._drops_batches else super().__iter__()

    @property
    def _drops_batches(self) -> bool:
        """Whether the order leaves samples out because the loader drops a last batch. On several ranks a sampler drops them itself, as torch's does."""
        return self.drop_last and self._explicit is None and self._place().world == 1

    @property
    def _undropped(self) -> Course:
        twin: Course = object.__new__(Course)
        # It stands where this one does.
        vars(twin).update(vars(self), drop_last=False, _run=None)
        return twin


def _asks_in(state: dict[str, Any]) -> tuple[int, int]:
    now, later = found if isinstance(found := state.get("asks", [1, 1]), (list, tuple)) and len(found) == 2 else (0, 0)
    if not {now, later} <= {1, 2}:
        raise StateError(f"the state is damaged: its sampler was asked {found!r:.60} times")
    return now, later


def _check_whole(state: Any) -> None:
    """Refuses a state of which a part is missing, and with it where the loop stood."""
    names = state.get("names", "") if isinstance(state, Mapping) else ""
    missing = [name for name in str(names).split() if name not in state]
    if missing:
        raise StateError(
            f"the state has no {', '.join(missing)}: give the whole of what state_dict() answered. torch.distributed.checkpoint leaves out what a new loader's "
            "state hasn't: give it the state as one value, pickle.dumps(loader.state_dict())"
        )


def _length_of(sampler: Any, batch_size: int | None) -> tuple[int | None, int]:
    """Samples of a pass, as far as a sampler says it, and batches; of a batch sampler, at least so many samples. It is asked once: some draw for it."""
    try:
        length = _samplers.length_of(sampler)
        size = 1 if batch_size is not None else int(getattr(sampler, "batch_size", 1))
    except (TypeError, ValueError):
        return None, 0
    return (None, 0) if length is None else (length * size, length // (batch_size or 1))
