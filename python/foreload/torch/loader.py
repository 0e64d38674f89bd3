"""`DataLoader`: torch's, with a data set in a bucket, or any other.

A thin subclass that keeps torch's names and meanings. A data set that is none of ours is left to torch (`ForeignLoader`), and the loader has no
course then. For one of ours, without worker processes (`num_workers=0`) batches come straight from the agent, which is
the fastest way and needs no worker to wait for the network; `decode` and `transform` run in the loop or, where asked for, in threads. With workers, torch's own
machinery runs over our `Dataset`. Either way this class counts what the loop has had, which is what a checkpoint must say.

Iterating begins with the first batch, not with `iter()`: Lightning makes the iterator before it sets the epoch.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import data
from torch.utils.data._utils.pin_memory import pin_memory as _pin

from foreload import _core
from foreload._node import agent as _agent
from foreload._node.job import Attachment
from foreload._node.ranks import check_named
from foreload._run.ahead import Ahead
from foreload._run.decode import Decoder, Pairs, decoded_batches, threads_of
from foreload._run.ending import close_at_exit
from foreload._run.failed import Failed, attempted
from foreload._run.position import Had
from foreload._run.run import Run, check_run
from foreload._run.stream import LEFT_OUT, Stream, next_had
from foreload._run.tally import EpochTally
from foreload._settings.cache import Cache
from foreload._settings.failures import OnError
from foreload._settings.tuning import Tuning
from foreload.errors import ForkedError, InvalidError, StateError
from foreload.torch import _batch, _check, _given, _interrupts, _modes, _samplers, _subset, _worker
from foreload.torch._accord import Accord
from foreload.torch._batch import Form, Found, Undecoded
from foreload.torch._course import Course, Turns
from foreload.torch._flow import Flow, FlowStream
from foreload.torch._foreign import ForeignLoader, T
from foreload.torch._randomness import unnoticed
from foreload.torch._waits import OURS
from foreload.torch.dataset import Dataset
from foreload.torch.sampler import Sampler

# A pass and the turns of one are parts of the loader that made them.
# ruff: noqa: SLF001

_LOG = logging.getLogger("foreload")
#: What a state's `seeded` says: whether workers get one seed for all epochs, and whether they have it.
_SEEDED = ((False, False), (True, False), (True, True))


class DataLoader(ForeignLoader[T]):
    """Loads batches of a data set; each pass is an epoch, and the next pass the next epoch.

    A batch is `[data, labels]`. Without `decode` and `transform`, `data` is a list of `bytes`. Labels are an int64 tensor, -1 where there
    is none. Torch's keywords mean what they mean in torch; below are ours.

    A data set that is none of Foreload's is loaded by torch itself, as torch's own `DataLoader` does it. It has `state_dict`, `stats` and the
    report of stalls, too; what concerns Foreload's data sets alone is refused.

    Args:
        dataset: What `foreload.open` answered, or a `foreload.torch.Dataset` of it, which then decides `decode`, `transform`, `raw`, `cache` and
            `on_error` itself; torch's `Subset` of one, or `ConcatDataset` of several such; or any other data set of torch's.
        batch_size: Samples in a batch of this rank; None: samples one at a time, not collated.
        shuffle: Whether to shuffle.
        sampler: An order of one's own instead: any sampler of torch's protocol.
        batch_sampler: The same, in batches.
        num_workers: Processes that decode; 0: the loop does, or `threads` of this process.
        collate_fn: From a list of (x, label) to a batch. Default: torch's, into memory that is reused, by a thread where there are no workers.
        pin_memory: As in torch.
        drop_last: Whether to leave out a last batch that isn't full.
        timeout: Longest wait for a batch in seconds; 0: as long as the store's own deadline. What the loop itself decodes (`threads=0`) can't be
            ended, and is reported.
        worker_init_fn: As in torch.
        multiprocessing_context: `fork`, `forkserver` or `spawn`; all work.
        generator: As in torch; its seed is the shuffle's where `seed` isn't given.
        prefetch_factor: As in torch; only decoded batches count, the agent reads ahead by itself.
        persistent_workers: As in torch.
        pin_memory_device: As in torch.
        in_order: As in torch. With several ranks, there is no state of an epoch whose batches come out of order.
        seed: What the shuffle and the randomness of `decode` depend on.
        epochs: Epochs in the run, if known: nothing is read ahead beyond them.
        decode: From bytes to what the collate function expects: `decode(data, meta)`, or `decode(data)`.
        transform: Applied to what `decode` returns, or to the bytes.
        raw: Form of the data where nothing decodes it: `bytes`; `tensor` (uint8); `view` (shared memory, without workers only).
        cache: Budgets.
        order: `keyed` (the default; needs no memory), `torch` (the order that torch would have drawn), `sequential`, ...
        dp_rank: This process' data rank, in jobs that also split the model.
        dp_size: Data ranks in the run.
        device_mesh: Names both instead.
        local_ranks: Data ranks on this node, where that isn't plain.
        uneven: Where the ranks can't share the last batch equally: None (repeat samples, as `DistributedSampler` does), `pad` (fill the batch, so
            that any number of ranks can resume), `weights` (no repetition; `loss_weight` says how much this rank's mean loss counts).
        assign: `"local"`, beside `Cache(peers=...)`: each sample of a global batch goes to a rank of the node that keeps it, as far as all ranks get equally many, so that little
            crosses the network. The global batches and the checkpoints stay the same. Default: dealt out like cards, as `DistributedSampler` does.
        on_error: `"raise"`, or `foreload.skip(...)` for samples that can't be read or decoded. A batch of which none is left is left out; with
            several ranks, which must take equally many steps, it is an error.
        threads: Threads that decode where there are no workers, for a `decode` that bears them; a `collate_fn` then runs in a thread of its own, too.
            Default: none, the loop decodes, in order, as under torch's loader.
        policy: The plan's policy, for experiments.
        tuning: How the agent fetches, where that isn't left to it.
        snapshot_every_n_steps: Batches from one state to the next that is asked of an iterable data set, where that is slow to say it; what came since is
            read again after a resume. A state is exact at each step all the same. Default: 1.
    """

    #: How much this rank's mean loss of the latest batch counts; 1 unless `uneven="weights"`.
    loss_weight = 1.0

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: data.Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: data.Sampler[Sequence[Any]] | Iterable[Sequence[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        epochs: int | None = None,
        decode: Callable[..., Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        raw: Form = "bytes",
        cache: Cache | None = None,
        order: str = "keyed",
        dp_rank: int | None = None,
        dp_size: int | None = None,
        device_mesh: Any = None,
        local_ranks: Sequence[int] | None = None,
        uneven: str | None = None,
        assign: str | None = None,
        on_error: OnError = "raise",
        threads: int | None = None,
        policy: Any = None,
        tuning: Tuning | None = None,
        snapshot_every_n_steps: int | None = None,
    ) -> None:
        self._course: Course | None = None
        torchs: dict[str, Any] = {
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "pin_memory_device": pin_memory_device,
            "in_order": in_order,
        }
        ours: dict[str, Any] = {
            "decode": decode,
            "transform": transform,
            "raw": raw,
            "cache": cache,
            "order": order,
            "dp_rank": dp_rank,
            "dp_size": dp_size,
            "device_mesh": device_mesh,
            "local_ranks": local_ranks,
            "uneven": uneven,
            "assign": assign,
            "on_error": on_error,
            "threads": threads,
            "policy": policy,
            "tuning": tuning,
        }
        shown_as, found = dataset, _subset.ours(dataset)
        if found is None:
            torchs |= {"drop_last": drop_last, "num_workers": num_workers, "timeout": timeout}
            torchs["generator"] = _check.generator_of_foreign(dataset, generator, seed, ours)
            super().__init__(dataset, batch_size, shuffle, sampler, batch_sampler, **torchs)
            self.snapshot_every_n_steps = _check.steps_between(snapshot_every_n_steps)
            return
        dataset = found
        #: Torch's subset or concatenation that was given, and the samples that it had: they may be changed between passes.
        self._part, self._chosen = shown_as, _subset.samples_in(shown_as)
        if generator is not None and not isinstance(generator, torch.Generator):
            raise InvalidError(f"generator={generator!r}: give a torch.Generator")
        self._shuffles_by_default = bool(shuffle) and seed is None and generator is None
        if seed is None:
            seed = generator.initial_seed() if generator is not None else 0
        given = {name: ours[name] for name in ("decode", "transform", "raw", "cache", "on_error")}
        single = batch_size is None and batch_sampler is None
        num_workers, timeout = _check.data_keywords(dataset, num_workers, timeout, **given)
        _check.batch_keywords(
            collate_fn, in_workers=num_workers > 0, raw=getattr(dataset, "raw", raw), single=single, drop_last=drop_last
        )
        whole_set = (
            sampler is None and batch_sampler is None and isinstance(batch_size, int) and batch_size <= sys.maxsize
        )
        # A batch of all there is may be any number, which the plan has no room for.
        most = min(batch_size, max(len(dataset) + 1, _MANY)) if whole_set else batch_size  # type: ignore[type-var] # it is a number
        in_batch, seed, epochs = check_run(
            1 if single or batch_sampler is not None else most, seed, epochs, policy, tuning
        )
        _check.order_keywords(order, batch_size, bool(shuffle), sampler, batch_sampler, drop_last)
        own = sampler if sampler is not None else batch_sampler
        _check.assignment(assign, dataset, own)
        if own is not None and not isinstance(own, Sampler):
            _check.warn_of_ignored(own, order, is_placed=(dp_size or 1) > 1 or device_mesh is not None)
        self._stacks = not single and collate_fn is None
        samples = self._samples = self._apart(dataset, num_workers, {"seed": seed, **given})
        #: What a `Dataset` is made with, where the data set was given without one.
        self._given_data = {"seed": seed, **given}
        check_named(dp_rank, dp_size)
        #: What a course is made with, whatever the order.
        self._common: dict[str, Any] = {
            "seed": seed,
            "generator": generator,
            "order": order,
            "place": (dp_size, dp_rank, device_mesh, local_ranks),
            "uneven": uneven,
            "assign": assign,
            "epochs": epochs,
            "policy": policy,
            "tuning": tuning,
        }
        lives_on = bool(persistent_workers) and num_workers > 0
        course = self._course = self._choose(
            samples, in_batch, bool(shuffle), sampler, batch_sampler, drop_last, lives_on=lives_on, **self._common
        )
        shown: dict[str, Any] = (
            {"batch_sampler": batch_sampler}
            if batch_sampler is not None
            else {
                "batch_size": None if single else batch_size if whole_set and most != batch_size else in_batch,
                "sampler": sampler if sampler is not None else course,
                "drop_last": drop_last,
            }
        )
        self._gave_collate = collate_fn is not None
        # Whoever gives none has said nothing of a decoder that bears threads, and decodes as under torch's loader.
        self._threads, self._chosen_threads = threads_of(threads or 0, samples.decoder), threads is not None
        course.part, course.chosen = self._part, self._chosen
        self._cursor = course.cursor
        self._accord = Accord()
        self._turns = Turns(course)
        self._replay: torch.Generator | None = None
        #: Whether workers get one seed for all epochs, as those that live through them do; and whether they have it. A run that is resumed goes on as it did.
        self._draws_once, self._is_seeded = lives_on, False
        #: How torch's order left the generator, which is to be this loader's alone.
        self._left: torch.Tensor | None = None
        self._shares = False
        torchs |= {"num_workers": num_workers, "timeout": timeout, "generator": generator}
        # With what was told to this loader alone, the data set that it reads is one of its own.
        super().__init__(shown_as if isinstance(dataset, Dataset) else samples, **torchs, **shown)
        #: Whether torch cuts the batches; what it has made of the arguments.
        self._cuts = batch_sampler is None and not single
        self._made_of = self._batching()
        #: The collate function of the latest pass: who sets another one means the next.
        self._default_collate: Any = self.collate_fn
        self._collate: Any = self.collate_fn
        if batch_sampler is None and not single:
            # transformers' Trainer goes on in an epoch with a loader of its own over our batch sampler, and says here in which.
            vars(self.batch_sampler)["set_epoch"] = course.set_epoch
        # Under their own names, by which Lightning finds what to make the loader anew with.
        vars(self).update(ours, shuffle=shuffle, seed=seed, epochs=epochs)

    def _apart(self, dataset: Any, num_workers: int, given: dict[str, Any]) -> Dataset[Any]:
        """A data set for this loader alone: what it is told about its order doesn't concern others who read the same one."""
        whole = dataset.apart()
        samples: Dataset[Any] = whole if isinstance(whole, Dataset) else Dataset(whole, **given)
        if self._chosen is not None:
            samples._part = self._part
        self._detach = samples.decoder.detach
        if self._stacks:
            # What is stacked is copied anyway.
            samples.decoder.detach = None
        if num_workers:
            samples.failures.share(_in_shared_memory(num_workers))
        return samples

    @staticmethod
    def _choose(
        samples: Dataset[Any],
        batch_size: int | None,
        shuffle: bool,
        sampler: Any,
        batch_sampler: Any,
        drop_last: bool,
        *,
        lives_on: bool,
        **common: Any,
    ) -> Course:
        if isinstance(sampler, Course):
            return sampler
        if isinstance(sampler, Sampler):
            return Course(samples, batch_size, drop_last, sampler, shuffle=sampler.shuffle, **common)
        explicit = sampler if sampler is not None else batch_sampler
        if explicit is None:
            draws = "loader_once" if lives_on else "loader_each_epoch"
            generator = common["generator"]
            if generator is not None and common["order"] == "torch" and not _samplers.is_fresh(generator):
                explicit = data.RandomSampler(samples, generator=generator) if shuffle else None
            return Course(samples, batch_size, drop_last, explicit, shuffle=shuffle, draws=draws, **common)
        size = None if batch_sampler is not None else batch_size
        return Course(samples, size, drop_last, explicit, shuffle=False, **common)

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Accelerate leaves such a loader alone: on several ranks it would give each a share of its share."""
        return self._course is not None and self._course.is_dealt

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        """Accelerate writes down what it has prepared; whether it has to follows from the ranks alone."""

    @property
    def run(self) -> Run:
        """The run behind this loader.

        Raises:
            AttributeError: The data set is none of Foreload's, and nothing is planned.
        """
        if self._course is None:
            raise AttributeError("run: the data set is none of Foreload's, and torch itself loads it")
        return self._course.run()

    @property
    def _index_sampler(self) -> Any:
        """What torch's machinery sends to workers: our batches, by their numbers."""
        return super()._index_sampler if self._course is None or self._is_batched_anew else self._turns

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        if self._course is None or self._is_batched_anew:
            return super().__len__()
        if self._chosen is not None and len(self._part) != len(self._chosen):
            self._heed_data()
        return self._course.count()

    def set_epoch(self, epoch: int) -> None:
        """The next pass is of this epoch; without it each pass is of the next one, or of the one that a sampler of yours is set to."""
        if self._course is None:
            super().set_epoch(epoch)
        else:
            self._course.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loop stands: small, of plain numbers and strings, the same on every rank.

        Raises:
            StateError: With `in_order=False` each of several ranks has had other batches of the epoch.
        """
        if self._course is None:
            return super().state_dict()
        course, cursor = self._course, self._cursor
        unordered = not self.in_order and self.num_workers > 1 and cursor.is_under_way
        if unordered and not course.is_unread and cursor.batch < len(self.run) and self._is_one_of_several(self.run):
            raise StateError(
                "in_order=False: in the middle of an epoch each rank has had other batches, which no one state can say; "
                "save it between epochs, or use in_order=True"
            )
        course.will_ask(*self._asks(), seeds=not self._draws_once)
        return course.state(seeded=_SEEDED.index((self._draws_once, self._is_seeded and self._draws_once)))

    @staticmethod
    def _is_one_of_several(run: Run) -> bool:
        """Whether other ranks have other batches; of a sampler of the user's, which shares them out itself, only the process group knows."""
        group = torch.distributed.is_available() and torch.distributed.is_initialized()
        shared = isinstance(run, (_given.GivenRun, Flow)) and group and torch.distributed.get_world_size() > 1
        return run.ranks.world > 1 or shared

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next pass goes on where the state was saved, whatever the number of ranks and workers.

        Raises:
            StateError: The state belongs to another run; the message says what differs.
        """
        if self._course is None:
            super().load_state_dict(state_dict)
            return
        self._heed_data()
        self._heed_batching()
        if self._course.adopt(state_dict):
            self._end_workers()
        self._course.load(state_dict)
        # A state of an earlier release doesn't say it: its loader is taken to be as this one.
        is_begun = bool(state_dict["epoch"] or state_dict["position"])
        seeded = state_dict.get("seeded", _SEEDED.index((self._draws_once, is_begun and self._draws_once)))
        if seeded not in range(len(_SEEDED)):
            raise StateError(f"the state is damaged: its workers' seed is {seeded!r:.60}")
        (self._draws_once, self._is_seeded), self._left = _SEEDED[seeded], None

    def stats(self) -> dict[str, Any]:
        """How it went: each epoch on this rank, and the job's counters on this node."""
        if self._course is None:
            return super().stats()
        samples = self._samples
        return {
            "epochs": [tally.as_dict() for tally in self._tallies],
            **samples.counts(),
            **({} if self._course.is_unread else self.run.stats()),
        }

    def __iter__(self) -> Any:
        """A pass; one over a data set of Foreload's begins with its first batch."""
        return super().__iter__() if self._course is None else _Pass(self)

    def check_worker_number_rationality(self) -> None:
        """Says nothing: torch warns of more workers than CPUs, here and at each pass, but ours are few processes that decode and wait for nothing."""
        if self._course is None:
            super().check_worker_number_rationality()

    def _get_iterator(self) -> Any:
        """Torch's iterator over worker processes, which end with this one and number their batches."""
        if self._course is None:
            return super()._get_iterator()
        twin = copy.copy(self)
        replay, self._replay = self._replay, None
        vars(twin).update(
            dataset=self._samples,
            collate_fn=_worker.Collate(
                self.collate_fn, is_default=not self._user_collates, single=not self._auto_collation
            ),
            worker_init_fn=_worker.Begin(self.worker_init_fn),
            generator=replay,
        )
        return OURS(twin)

    @property
    def _user_collates(self) -> bool:
        """Whether the collate function is the user's: given, or set since."""
        return self._gave_collate or self._collate is not self._default_collate

    def _batching(self) -> list[Any]:
        """The samplers, and how batches are cut: torch reads both from the batch sampler whenever a pass begins."""
        batches: Any = self.batch_sampler
        names = ("batch_size", "drop_last") if self._cuts else ()
        return [
            batches,
            self.sampler,
            getattr(batches, "sampler", None),
            *(getattr(batches, name, None) for name in names),
        ]

    @property
    def _is_batched_anew(self) -> bool:
        """Whether the batch sampler was changed or replaced since the latest pass began."""
        return any(now is not made and now != made for now, made in zip(self._batching(), self._made_of, strict=True))

    def _heed_batching(self) -> None:
        """A pass begins: from a batch sampler that was changed or replaced, its batches are taken as from one that is given.

        Raises:
            StateError: A state was loaded that goes on within an epoch.
        """
        before: Course = self._course  # type: ignore[assignment] # the data set is ours
        # Torch's iterator that lives through all epochs holds the batch sampler that it was made with.
        is_held = self.batch_sampler is not self._made_of[0] and getattr(self, "_iterator", None) is not None
        if not self._is_batched_anew or (is_held and self.persistent_workers):
            return
        if before.cursor.upcoming[1]:
            raise StateError(
                "the batch sampler was changed or replaced after a state was loaded that goes on within an epoch: that epoch has the batches that it had "
                "before. Change it when that epoch is over, or before load_state_dict"
            )
        _LOG.info(
            "the batch sampler was changed or replaced after its loader was made: it is asked when each pass begins"
        )
        samples = self._samples
        own: Any = self.batch_sampler if self._auto_collation else self.sampler
        size = None if self._auto_collation else before.batch_size
        course = self._course = Course(samples, size, before.drop_last, own, shuffle=False, **self._common)
        course.cursor.set_epoch(before.retire())
        self._cursor, self._turns = course.cursor, Turns(course)
        self._cuts = False
        self._made_of = self._batching()
        self._end_workers()

    def _heed_data(self) -> None:
        """Reads what a subset or concatenation of torch's has now, should its samples have been changed since.

        Raises:
            StateError: A state was loaded that goes on within an epoch.
            InvalidError: It isn't one data set of ours any more.
        """
        course = self._course
        if course is None:
            return
        now = _subset.change_in(self._part, self._chosen)
        if now is None:
            return
        if course.cursor.upcoming[1]:
            raise StateError(
                f"the samples of the {type(self._part).__name__} were changed after a state was loaded that goes on within an epoch, which has those of before: "
                "change them when that epoch is over, or before load_state_dict"
            )
        found = _subset.ours(self._part)
        if found is None:
            raise InvalidError(
                f"the samples of the {type(self._part).__name__} were changed, and are none, or not of one data set of Foreload's, or not all in it: "
                "make a loader of it anew"
            )
        _LOG.info(
            "the samples of the %s were changed after its loader was made: they are read", type(self._part).__name__
        )
        self._chosen = now
        samples = self._samples = self._apart(found, self.num_workers, self._given_data)
        if not isinstance(found, Dataset):
            vars(self)["dataset"] = samples
        course.chosen = now
        course.change(samples)
        self._end_workers()

    def _start(self) -> tuple[Run, EpochTally, Iterator[tuple[int, Any]]] | None:
        """A pass begins; None: it is what is left of an epoch that is over."""
        self._collate = self.collate_fn
        self._heed_data()
        self._heed_batching()
        course: Course = self._course  # type: ignore[assignment] # the data set is ours
        if self._user_collates:
            self._samples.decoder.detach = self._detach
        self._cursor.is_dealt = course.is_dealt
        course.will_ask(*self._asks(), seeds=not self._draws_once)
        stood, seeded = course.state(), self._is_seeded
        try:
            return self._begin_planned(course)
        except BaseException:
            # Interrupted, or its sampler failed: what the pass took of a state that was loaded, and drew, it gives back.
            course.go_back(stood)
            self._is_seeded = seeded
            raise

    def _asks(self) -> tuple[int, int]:
        """How often torch would make an iterator of what it takes batches from: in this pass and in the next one. With workers it drops the first of two."""
        own = self.batch_sampler if self._auto_collation else self.sampler
        course: Course = self._course  # type: ignore[assignment] # the data set is ours
        if not self.num_workers or own is not course._explicit:
            return 1, 1
        if not self.persistent_workers:
            return 2, 2
        return (2 if getattr(self, "_iterator", None) is None else 1), 1

    def _begin_planned(self, course: Course) -> tuple[Run, EpochTally, Iterator[tuple[int, Any]]] | None:
        course.heed()
        if self._cursor.takes_rest():
            return None
        epoch, first = self._cursor.begin()
        self._draw_base_seed(is_drawn=bool(first or self._cursor.beyond))
        late = f"no batch within timeout={self.timeout} s (epoch {epoch}, batch {first}): the agent doesn't answer"
        with _agent.within(self.timeout or None, late):
            before = course.run(epoch)
            run = course.begin(epoch)
        if run is not before and self._end_workers():
            self._draw_base_seed()
        tally = EpochTally(epoch)
        self._tallies.append(tally)
        self._turns.begun, self._turns.beyond = (epoch, first), self._cursor.beyond
        return run, tally, self._from_workers(run) if self.num_workers else self._from_here(run, epoch, first)

    def _end_workers(self) -> bool:
        """Ends workers that live through all epochs, if there are any: they would ask the job before."""
        iterator: Any = getattr(self, "_iterator", None)
        if not self.persistent_workers or iterator is None:
            return False
        iterator._shutdown_workers()
        self._iterator = None
        return True

    def _draw_base_seed(self, *, is_drawn: bool = False) -> None:
        """Draws what torch draws at the beginning of a pass, before its sampler does: the seed of the workers, who get it all the same.

        Args:
            is_drawn: Whether it was drawn before: by the pass that is resumed.
        """
        is_drawn = is_drawn or (self._draws_once and self._is_seeded)
        if is_drawn and self.persistent_workers and getattr(self, "_iterator", None) is not None:
            return
        course: Course = self._course  # type: ignore[assignment] # the data set is ours
        if self.generator is not None:
            self._watch(self.generator, course)
        generator = torch.default_generator if self.generator is None else self.generator
        if self.num_workers:
            self._replay = torch.Generator(device=generator.device).set_state(generator.get_state())
        with unnoticed(self.generator) if is_drawn else contextlib.nullcontext():
            torch.empty((), dtype=torch.int64).random_(generator=generator)
        self._is_seeded = True
        self._left = None if self.generator is None else generator.get_state()

    def _watch(self, generator: torch.Generator, course: Course) -> None:
        """Says once that somebody else draws from a generator that torch's order depends on."""
        is_planned = course._explicit is None and course.order in ("torch", "torch-random") and course.shuffle
        if (
            is_planned
            and not self._shares
            and self._left is not None
            and not torch.equal(self._left, generator.get_state())
        ):
            self._shares = True
            _LOG.warning(
                "somebody else draws from the generator of this loader: its order is that of the generator's seed, and under torch's loader would "
                "depend on those draws too; give each loader a generator of its own"
            )

    def _from_workers(self, run: Run) -> Iterator[tuple[int, Any]]:
        batches: Any = None
        left, process = False, os.getpid()
        # Other nodes may be waited for, which Ctrl-C is to end.
        run.agree()
        run.attachment().meet()
        try:
            with _interrupts.kept():
                batches = super().__iter__()
            # No frame may hold the batch that the loop has, here and below: it would live until the one after the next is made.
            yield from map(_worker.Numbered.opened, batches)
        except GeneratorExit:
            left = True
            raise
        finally:
            # Now and not at some collection, where torch would wait for each worker in vain.
            is_here = os.getpid() == process
            if is_here and not self.persistent_workers and hasattr(batches, "_shutdown_workers"):
                try:
                    batches._shutdown_workers()
                except RuntimeError:
                    # A worker was killed, which torch says wherever the process is then: here it leaves the other workers' queues open.
                    for queue in (*batches._index_queues, batches._worker_result_queue):
                        queue.cancel_join_thread()
                        queue.close()
                    if not left:
                        raise

    def _from_here(self, run: Run, epoch: int, first: int) -> Iterator[tuple[int, Any]]:
        samples = self._samples
        decoder: Decoder = samples.decoder
        kind: Any = FlowStream if isinstance(run, Flow) else Stream
        if isinstance(run, _given.GivenRun) and not run.regular:
            kind = _given.GivenStream
        course: Course = self._course  # type: ignore[assignment] # the data set is ours
        keywords = {"timeout_s": self.timeout or None, "failures": samples.failures, "again": course.again}
        stream: Any = kind(run, epoch, first, **keywords)
        attachment = run.attachment()
        yield from self._batches(stream, decoder, attachment, pins=self._pins())

    def _pins(self) -> bool:
        """Whether batches are to be pinned, and can be: torch's own rule, which it applies to workers' batches itself."""
        if not self.pin_memory:
            return False
        # Torch before 2.6 pins for CUDA alone.
        known: Any = getattr(torch, "accelerator", None)
        device = (
            ("cuda" if torch.cuda.is_available() else None)
            if known is None
            else known.is_available() and known.current_accelerator().type
        )
        if not device or device == "mps":
            why = "not supported on MPS now" if device else "no accelerator is found"
            warnings.warn(f"'pin_memory' argument is set as true but {why}: memory is not pinned", stacklevel=2)
            return False
        return True

    def _batches(
        self, stream: Stream, decoder: Decoder, attachment: Attachment, *, pins: bool
    ) -> Iterator[tuple[int, Any]]:
        samples = self._samples
        beyond, failures, form = self._cursor.beyond, samples.failures, samples.raw

        def of_delivery(delivery: _core.Delivery | Failed) -> Any:
            if isinstance(delivery, Failed):
                return delivery
            is_nothing = failures.left_out(len(delivery))
            return LEFT_OUT if is_nothing else attempted(made, Undecoded(delivery, form, attachment))

        def of_pairs(pairs: Pairs) -> Any:
            is_nothing = failures.skips and not pairs
            return LEFT_OUT if is_nothing else attempted(made, _batch.Decoded(pairs, attachment, paired=samples.paired))

        def made(found: Found) -> Any:
            batch = self._made(found)
            return _pin(batch) if pins else batch  # type: ignore[no-untyped-call] # torch's

        ready: Iterator[tuple[int, Any]]
        if decoder.is_needed:
            ready = decoded_batches(
                stream,
                beyond,
                decoder,
                self._threads,
                self.timeout or None,
                chosen=self._chosen_threads,
                elsewhere=lambda: self._elsewhere(of_pairs, pins=pins),
            )
        elif self._collates_elsewhere and not (beyond and self._user_collates):
            ready = Ahead(stream, of_delivery, lambda: self._elsewhere(of_delivery, pins=pins))
        else:
            ready = ((number, of_delivery(delivery)) for number, delivery in stream if number not in beyond)

        def opened(item: tuple[int, Any]) -> tuple[int, Any]:
            number, found = item
            if type(found) is _modes.Made:
                return number, found.taken(pins=pins)
            return number, of_pairs(found) if type(found) is Pairs else found

        # No frame may hold the batch that the loop has, here and below: it would live until the one after the next is made.
        yield from map(opened, (item for item in ready if item[0] not in beyond) if beyond else ready)

    @property
    def _collates_elsewhere(self) -> bool:
        """Whether batches may be collated in another thread than the loop's: by torch's collate function, or where the user asked for threads."""
        return self._auto_collation and (not self._user_collates or (self._chosen_threads and self._threads > 0))

    def _elsewhere(self, make: Callable[[Any], Any], *, pins: bool) -> Callable[[Any], Any] | None:
        """What makes the batch that begins now, in another thread; None: nothing may."""
        if not self._collates_elsewhere or (not self._user_collates and not _modes.are_ordinary()):
            return None
        modes, is_any = _modes.Modes(pins=pins), self._user_collates

        def made(found: Any) -> Any:
            is_ours = is_any or type(found) is not Pairs or all(_modes.is_plain(value) for value, _ in found)
            return modes(lambda: make(found)) if is_ours else found

        return made

    def _made(self, found: Found) -> Any:
        collate = self._collate
        if not self._auto_collation:
            return collate(found.items()[0])
        if self._user_collates or not _modes.are_ordinary():
            return collate(found.items())
        return found.collated(parcel=False)


#: As many samples of a batch are taken as they are given, whatever the data set has.
_MANY = 1 << 20
#: Passes that have begun and not ended, and loaders of which it was said that they draw the same order.
_UNDER_WAY: weakref.WeakSet[_Pass] = weakref.WeakSet()
_NOTED: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()


def _in_shared_memory(numbers: int) -> torch.Tensor:
    return torch.zeros(numbers, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call, no-any-return] # torch's


def _samples_of(loader: DataLoader[Any]) -> int:
    return len(loader._samples)


def _note_side_by_side(begun: _Pass) -> None:
    """Says so when two shuffles are read side by side that draw the same order, because neither was given a seed: their i-th samples always meet."""
    loader = begun._loader
    for other in [each for each in _UNDER_WAY if each._loader is not loader]:
        theirs = other._loader
        is_alike = loader._shuffles_by_default and theirs._shuffles_by_default
        if is_alike and _samples_of(theirs) == _samples_of(loader) and not {loader, theirs} & set(_NOTED):
            _NOTED.update((loader, theirs))
            _LOG.warning(
                "two loaders of %d samples each are read side by side, with shuffle=True and without seed=: both draw the order of seed 0, so sample i of "
                "one always comes with sample i of the other, and with the same random numbers; give each a seed of its own",
                _samples_of(loader),
            )
    _UNDER_WAY.add(begun)


class _Pass(Iterator[Any]):
    """One pass over a loader."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._process = os.getpid()
        self._batches: Iterator[tuple[int, Any]] | None = None
        self._run: Run | None = None
        self._tally = EpochTally(0)
        self._had = Had(0)
        self._is_empty = False

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        loader = self._loader
        begun = time.perf_counter()
        if self._batches is not None and not loader.num_workers and self._process != os.getpid():
            raise ForkedError("a pass over a loader belongs to the process that began it; begin another one here")
        if self._batches is None or self._run is None:
            started = None if self._is_empty else loader._start()
            if started is None:
                self._is_empty = True
                raise StopIteration
            self._run, self._tally, self._batches = started
            self._process = os.getpid()
            close_at_exit(self._batches)
            self._had = Had(loader._turns.begun[1], loader._turns.beyond)
            _note_side_by_side(self)
        run, epoch, several = self._run, self._tally.epoch, loader._is_one_of_several
        # Before a batch is counted that an exception would lose, should warnings be exceptions.
        run.attachment().report_notices()
        try:
            found = next_had(self._batches, self._had, loader._cursor, run, epoch, several=lambda: several(run))
        except BaseException:
            # Who catches it reads something else.
            _UNDER_WAY.discard(self)
            raise
        if found is None:
            _UNDER_WAY.discard(self)
            loader._accord.ended(self._had.batches)
            run.log(self._tally)
            raise StopIteration
        number, batch = found
        loader._accord.had(run, loader._cursor.placed, epoch, self._had.batches)
        if run.uneven:
            loader.loss_weight = run.plan.weight(number, run.rank)
        self._tally.yielded(run.samples_in(epoch, number), time.perf_counter() - begun)
        return batch
