"""`Sampler`: an order of the plan, for torch's own `DataLoader`.

It yields sample numbers like any sampler, and tells the agent beforehand which ones will come, so that they are there when a worker asks. Each number
also carries the name of its read, epoch and position, by which a worker asks for it: a sample that an epoch repeats is read twice. Torch's
wrappers recognise it as a `DistributedSampler`, which keeps them from shuffling again. It finds the loader's `Dataset` through the
data set that both were made of.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from typing import Any, Literal

import torch.distributed
from torch.utils.data.distributed import DistributedSampler

from foreload._data import dataset as _dataset
from foreload._node import ranks as _ranks
from foreload._run.position import Cursor
from foreload._run.run import Run, check_run
from foreload._settings.cache import Cache, fixed
from foreload._settings.order import Order, tail_of
from foreload._settings.state import check_state
from foreload._settings.tuning import Tuning
from foreload.errors import InvalidError, StateError
from foreload.torch._accord import Accord

_LOG = logging.getLogger("foreload")
#: Which samples of an epoch this process yields: its rank's, or all because somebody else shares them out.
Sharding = Literal["self", "external"]


class Read(int):
    """A sample's number that also says which read of it this is.

    Attributes:
        epoch: The epoch in which it is read.
        position: The position in that epoch.
    """

    epoch: int
    position: int

    @classmethod
    def of(cls, sample: int, epoch: int, position: int) -> Read:
        """Makes one."""
        read = cls(sample)
        read.epoch, read.position = epoch, position
        return read

    def __reduce__(self) -> Any:
        return Read.of, (int(self), self.epoch, self.position)


def place_of(
    num_replicas: int | None,
    rank: int | None,
    device_mesh: Any = None,
    local_ranks: tuple[int, ...] | None = None,
    word: _ranks.Word | None = None,
) -> _ranks.Ranks:
    """This process' place among the data ranks: as given, as the process group says, as torchrun says."""
    group = torch.distributed.is_available() and torch.distributed.is_initialized()
    if num_replicas is None and rank is None and device_mesh is None and group:
        told = _ranks.find(local_ranks=local_ranks, word=word)
        if not told.doubt and (told.rank, told.world) == (
            torch.distributed.get_rank(),
            torch.distributed.get_world_size(),
        ):
            return told
        num_replicas, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    return _ranks.find(rank, num_replicas, device_mesh, local_ranks, word)


class _Pass(Iterator[int]):
    """One pass over a `Sampler`.

    It has a state for torchdata's StatefulDataLoader, which gives a state to the sampler, makes an iterator, and gives it to that one too. Of a
    state at the end of an epoch such an iterator is what is left of that epoch, nothing; the next one is the next epoch.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._reads: Iterator[int] | None = None

    def __next__(self) -> int:
        if self._reads is None:
            self._reads = self._sampler._reads()  # noqa: SLF001 (a pass is part of its sampler)
        return next(self._reads)

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The sampler has been given this state."""
        if self._sampler.run().is_over(state):
            self._reads = iter(())


class Sampler(DistributedSampler[int]):
    """An order of the plan.

    Ranks are looked up when they are first needed, because the process group is often made after the loader. Each pass is the next epoch, unless
    `set_epoch` says otherwise.

    Args:
        dataset: What `foreload.open` answered, or a `foreload.torch.Dataset` of it: that says which one reads in this order, should there be
            several of the same data set.
        num_replicas: Data ranks. Default: from the process group or torchrun.
        rank: This process' data rank.
        shuffle: Whether to shuffle.
        seed: What the shuffle depends on.
        drop_last: Whether to drop samples at the end of an epoch that the ranks can't share equally, instead of repeating some.
        order: `keyed`, `torch`, `sequential`, ...
        batch_size: The loader's, if it is known: a hint for reading ahead.
        sharding: `self`: yields this rank's samples. `external`: yields all of them, for a library that shares batches out itself, as
            Accelerate does; a sampler that also did would give each process a share of its share.
        epochs: Epochs in the run, if known.
        policy: The plan's policy, for experiments.
        tuning: How the agent fetches, where that isn't left to it.
    """

    def __init__(  # torch's constructor is not called: it wants a process group
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        order: str = "keyed",
        batch_size: int = 64,
        sharding: Sharding = "self",
        epochs: int | None = None,
        policy: Any = None,
        tuning: Tuning | None = None,
    ) -> None:
        if sharding not in ("self", "external"):
            raise InvalidError(f"sharding={sharding!r}: give 'self' or 'external'")
        self.data: _dataset.Dataset = getattr(dataset, "data", dataset)
        if not isinstance(self.data, _dataset.Dataset):
            raise InvalidError(f"Sampler: {dataset!r} was not made by foreload.open; use torch's own samplers for it")
        self.dataset: Any = self.data
        self.batch_size, self.seed, self.epochs = check_run(batch_size, seed, epochs, policy, tuning)
        self.shuffle, self.drop_last, self.order, self.sharding = shuffle, drop_last, order, sharding
        self.policy, self.tuning = policy, tuning
        self._given = (num_replicas, rank)
        self._word = _ranks.Word()
        self._cursor = Cursor()
        self._accord = Accord()
        self._skip = 0
        self._run: Run | None = None
        self.data.order_kind(order, 1, shuffle=shuffle)
        if dataset is not self.data:
            dataset.sampler = weakref.ref(self)
        self._meet()

    #: Whether it has the agent read ahead what it yields.
    leads = True

    def _meet(self) -> None:
        # Weakly: a loader that is dropped ends at once, not at the next collection.
        self.data.meeting["sampler"] = weakref.ref(self)

    def _place(self) -> _ranks.Ranks:
        """This process' place as far as yielding goes."""
        place = place_of(*self._given, word=self._word)
        if self.sharding == "external":
            return _ranks.Ranks(0, 1, (0,), self._word.of(shared=place.world > 1), self._word)
        return place

    def run(self) -> Run:
        """The run, made when it is first needed and again when the ranks have changed."""
        place = self._place()
        if self._run is None or self._run.ranks != place:
            world, global_batch = place.world, self.batch_size * place.world
            kind = self.data.order_kind(self.order, world, shuffle=self.shuffle, draws="sampler_only")
            tail = (
                {"trim": {"multiple": world}}
                if self.drop_last
                else tail_of(world, global_batch, drop_last=False, uneven=None)
            )
            order = Order(self.data.digest, len(self.data), kind, self.seed, global_batch, tail)
            if "cache" not in self.data.meeting:
                # Not before: a `Dataset` that is made later promises the memory itself.
                self.data.meeting["cache"] = fixed(None)
            cache: Cache = self.data.meeting["cache"]
            keywords = {"epochs": self.epochs, "policy": self.policy, "tuning": self.tuning}
            self._run = Run(self.data, order, place, cache, skip_large=self._skips, **keywords)
        return self._run

    @property
    def _skips(self) -> bool:
        """Whether samples that fail are left out."""
        return bool(self.data.meeting.get("skips"))

    @property
    def num_replicas(self) -> int:  # type: ignore[override] # an attribute in torch, known too early
        """Data ranks."""
        return self._place().world

    @property
    def rank(self) -> int:  # type: ignore[override]
        """This process' data rank."""
        return self._place().rank

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Samples of an epoch over all ranks."""
        return self.run().plan.positions

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Samples of an epoch on this rank."""
        return len(self)

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch of the next pass."""
        return self._cursor.upcoming[0]

    @property
    def upcoming(self) -> tuple[int, int]:
        """Epoch of the next pass, and how many samples of this rank's come before it."""
        epoch, batch = self._cursor.upcoming
        return epoch, batch * self.batch_size + self._skip

    def __len__(self) -> int:
        run = self.run()
        return run.plan.positions // run.ranks.world

    #: Where a state left it that it goes on from, and whether that is of an epoch's end; None: there is none, or another epoch was set since.
    _resumed_at: tuple[tuple[int, int], bool] | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the next pass is what is left of the epoch of the state that was loaded, which may be nothing."""
        return self._resumed_at is not None

    def rest_is_read(self) -> None:
        """A loader had a pass without batches, because nothing was left of the epoch of the state that was loaded."""
        self._cursor.rest_is_read()
        self._resumed_at = None

    def set_epoch(self, epoch: int) -> None:
        """The next pass is of this epoch; of the one that a loaded state is of, what is left."""
        before = self.upcoming
        self._cursor.set_epoch(epoch)
        is_moved = self._cursor.upcoming[0] != before[0]
        if is_moved:
            if self._skip and not self._cursor.upcoming[1] and before[1] == self._skip:
                _LOG.warning(
                    "set_epoch(%d): the state that was loaded, epoch %d after %d samples, is not gone on with",
                    epoch,
                    *before,
                )
            self._skip = 0
        if self._resumed_at is not None and (not self._cursor.is_rest if self._resumed_at[1] else is_moved):
            self._resumed_at = None

    def __iter__(self) -> Iterator[int]:
        return _Pass(self)

    def _reads(self) -> Iterator[int]:
        """A pass; it begins with its first sample."""
        self._resumed_at = None
        if self._cursor.takes_rest():
            return
        epoch, first = self._cursor.begin()
        run = self._run = self.run().going_on(epoch)
        skip, self._skip = self._skip, 0
        place = place_of(*self._given)
        leads = self.leads and (self.sharding == "self" or place.rank in (0, *place.local[:1]))
        run.agree()
        begun = run.begin(epoch, first) if leads else None
        try:
            for batch in range(first, len(run)):
                self._cursor.consumed(epoch, batch)
                if batch > first:
                    self._accord.had(run, self._cursor.placed, epoch, batch)
                if leads:
                    run.keep_up(epoch, batch)
                which = (epoch, batch, run.rank)
                reads = zip(run.plan.batch(*which), run.plan.batch_positions(*which), strict=True)
                for at, (sample, position) in enumerate(list(reads)[skip:], 1):
                    self._yielded = skip + at
                    yield Read.of(sample, epoch, position)
                skip = 0
        except GeneratorExit:
            if leads:
                run.leave(begun)
            raise
        self._cursor.consumed(epoch, len(run))
        self._accord.had(run, self._cursor.placed, epoch, len(run))
        self._yielded = 0

    _yielded = 0

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Where the run stands.

        Args:
            consumed: Samples of the epoch that the loop has had on this rank. Default: what this sampler has yielded, which is ahead of the
                loop by what the loader has prefetched; torchdata's StatefulDataLoader accounts for that.

        Returns:
            Plain numbers and strings.
        """
        run = self.run()
        if consumed is None:
            consumed = min(self._cursor.batch * self.batch_size + self._yielded, len(self))
        state = self._cursor.stamp(run.state(self._cursor.epoch, 0))
        return {**state, "position": consumed * run.ranks.world}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next pass goes on where the state was saved.

        Raises:
            StateError: The state belongs to another run.
        """
        run = self.run()
        check_state(state)
        if state.get("beyond"):
            raise StateError(
                "the state was saved with in_order=False, in the middle of an epoch: foreload.torch.DataLoader goes on with it"
            )
        position, is_over = state["position"], run.is_over(state)
        whole, rest = divmod(position, run.order.global_batch)
        if not is_over and rest % run.ranks.world:
            raise StateError(
                f"the state was saved after {position} samples, which {run.ranks.world} ranks can't have had equally: go on with a number of ranks that "
                f"divides {rest}, or save between batches"
            )
        border = position if is_over else whole * run.order.global_batch
        epoch, batch, _ = run.resume({**state, "order": "", "position": border})
        self._cursor.load(epoch, batch, of=state)
        self._yielded = self._skip = 0 if is_over else rest // run.ranks.world
        self._resumed_at = self.upcoming, is_over

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has a job of its own, and meets the copy of its `Dataset`."""
        self.__dict__.update(state)
        self._meet()
