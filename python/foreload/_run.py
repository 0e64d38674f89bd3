"""A loader's run, apart from any framework: which batches, where it stands, how it went.

A `Run` joins a data set, an order and the ranks to a job (`Recipe`), knows how many batches an epoch has, and turns a position into a
checkpoint and back. `Stream` is one epoch of one rank: it asks the agent for a few batches ahead, takes them in order, measures how long
the consumer waited, and logs what the agent has to say. The doors (`foreload.torch`, `foreload.NumpyLoader`) put bytes into the form
that their users expect.
"""

from __future__ import annotations

import copy
import logging
import os
import re
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from foreload import _core, _dollars, _numbers
from foreload._failed import Failed
from foreload._job import Attachment, Recipe
from foreload._memory import keep_freed_memory
from foreload._order import Order
from foreload._patience import Patience
from foreload._state import MOST_EPOCH, check_state
from foreload.cache import Cache
from foreload.dataset import Dataset
from foreload.errors import (
    BugError,
    CancelledError,
    ChangedError,
    ClosedError,
    CorruptError,
    DeniedError,
    ForeloadError,
    ForkedError,
    InvalidError,
    NoMemoryError,
    NotFoundError,
    StalledWarning,
    StateError,
    TimedOutError,
    WaitingError,
)
from foreload.failures import Failures
from foreload.ranks import Ranks, say
from foreload.tuning import Tuning, check_policy, check_tuning

_LOG = logging.getLogger("foreload")
#: Batches asked for beyond the one that is waited for. The agent reads ahead by itself; this hides the way to it and back.
_AHEAD = 2
#: Larger batches are not made ahead: 64 MiB take 15 ms, and a third copy beside the loop's two would cost more memory than that is worth.
_AHEAD_BYTES = 64 << 20
#: A sample can't be had, and may be left out.
_BAD = (CorruptError, ChangedError, NotFoundError, NoMemoryError)
#: Errors of the pass: no other batch of it comes.
_OVER = (TimedOutError, ForkedError, CancelledError, BugError)
#: How often a wait looks for what the agent has to say.
_LOOK_S = 1.0
#: The layout of a checkpoint, and of one with batches beyond its position, which older releases would deliver again.
_STATE_VERSION = 1
_STATE_VERSION_BEYOND = 2
#: Samples of a batch, and epochs, are 32 bits in the plan.
_MOST = (1 << 32) - 1


@dataclass
class EpochTally:
    """How one epoch went, on this rank.

    Attributes:
        epoch: The epoch.
        batches: Batches handed to the loop.
        samples: Samples in them.
        stall_s: Time the loop waited for them.
        first_batch_s: Of it, for the first.
        wall_s: From the first request to the last batch.
    """

    epoch: int
    batches: int = 0
    samples: int = 0
    stall_s: float = 0.0
    first_batch_s: float = 0.0
    wall_s: float = 0.0
    _begun: float = field(default_factory=time.perf_counter, repr=False)

    def yielded(self, samples: int, waited_s: float) -> None:
        """Counts a batch that goes to the loop."""
        now = time.perf_counter()
        if not self.batches:
            self.first_batch_s = waited_s
            # The loop waits from before the epoch is known.
            self._begun = min(self._begun, now - waited_s)
        self.batches += 1
        self.samples += samples
        self.stall_s += waited_s
        self.wall_s = now - self._begun

    def as_dict(self) -> dict[str, Any]:
        """For `stats()`."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


class Had:
    """The batches of an epoch that a loop has had, in whatever order they come.

    Attributes:
        batches: All before this one.
        beyond: And these.
        failed: And these, if the loop goes on after the errors that it got in their place.
        broken: Why the pass can't go on; None: it can.
    """

    def __init__(self, batches: int, beyond: Iterable[int] = ()) -> None:
        self.batches, self.beyond = batches, set(beyond)
        self.failed: list[int] = []
        self.broken: str | None = None

    def add(self, batch: int) -> None:
        """One more."""
        self.beyond.update((batch, *self.failed))
        self.failed.clear()
        while self.batches in self.beyond:
            self.beyond.remove(self.batches)
            self.batches += 1


class Cursor:
    """Where a loader stands, and where its next pass begins.

    Each pass is one epoch. One that is left early is over: the next pass is the next epoch, unless the state was loaded or the epoch set.
    Where ranks deal an epoch among them, a pass of which the loop took one batch at most was a look, which one rank may take and the others
    not: the next pass begins where that one did.
    """

    def __init__(self) -> None:
        self.epoch, self.batch = 0, 0
        #: Batches after `batch` that the loop has had.
        self.beyond: frozenset[int] = frozenset()
        #: Whether several ranks deal an epoch among them.
        self.is_dealt = False
        #: How often a state was loaded or an epoch set.
        self.placed = 0
        self._next = (0, 0)
        self._next_beyond: frozenset[int] = frozenset()
        #: Where the pass began that was the last one, and how many batches the loop has had of it; None: it was whole, or the
        #: next one was placed since.
        self._begun: tuple[tuple[int, int], frozenset[int]] | None = None
        self._taken, self._looks = 0, 0

    def begin(self) -> tuple[int, int]:
        """A pass begins: its epoch and first batch; `beyond` is to be left out."""
        self._looks = self._looks + 1 if self._forget_look() else 0
        if self._looks == 2:
            _LOG.warning(
                "passes that are left after one batch don't count as epochs where several ranks read: this one is of epoch %d again; "
                "call set_epoch for another",
                self._next[0],
            )
        self._begun, self._taken = (self._next, self._next_beyond), 0
        self.epoch, self.batch = self._next
        self.beyond, self._next_beyond = self._next_beyond, frozenset()
        self._next = (self.epoch + 1, 0)
        return self.epoch, self.batch

    def _forget_look(self) -> bool:
        """Goes back to where the last pass began if that was a look."""
        begun, self._begun = self._begun, None
        if not self.is_dealt or begun is None or self._taken > 1:
            return False
        self._next, self._next_beyond = begun
        return True

    def consumed(self, epoch: int, batches: int, beyond: Iterable[int] = ()) -> None:
        """The loop has had so many batches of an epoch, and some beyond."""
        self.epoch, self.batch, self.beyond = epoch, batches, frozenset(beyond)
        self._taken += 1

    def ended(self) -> None:
        """The loop has had the whole pass."""
        self._begun = None

    def set_epoch(self, epoch: int) -> None:
        """The next pass is of this epoch; one that is to be resumed goes on where it was.

        Raises:
            InvalidError: It is no epoch.
        """
        epoch = _numbers.count("epoch", epoch, 0, MOST_EPOCH)
        is_between = self._begun is None
        self._forget_look()
        self.placed += 1
        if epoch != self._next[0]:
            if self._next[1]:
                _LOG.warning(
                    "set_epoch(%d): the state that was loaded, epoch %d after batch %d, is not gone on with",
                    epoch,
                    *self._next,
                )
            self._next, self._next_beyond = (epoch, 0), frozenset()
            if is_between:
                self.epoch, self.batch = self._next
                self.beyond = frozenset()

    def load(self, epoch: int, batch: int, beyond: Iterable[int] = ()) -> None:
        """The next pass goes on here."""
        self._begun = None
        self.placed += 1
        self.epoch, self.batch = self._next = (epoch, batch)
        self.beyond = self._next_beyond = frozenset(beyond)

    @property
    def is_under_way(self) -> bool:
        """Whether the loop has had a part of an epoch since the pass began."""
        return self._next != (self.epoch, self.batch) and bool(self.batch or self.beyond)

    @property
    def upcoming(self) -> tuple[int, int]:
        """Epoch and first batch of the next pass."""
        return self._next


class Run:
    """Everything that fixes a loader's batches, and the job that supplies them.

    Args:
        dataset: The data set.
        order: Its order.
        ranks: This process' place.
        cache: The budgets.
        uneven: Whether ranks may share a batch unequally.
        epochs: Epochs in the run, if known.
        policy: The plan's policy, if not the default.
        tuning: How the agent fetches, where that isn't left to it.
        settings: More fields of the agent's `attach` call.
        skip_large: Whether samples that don't fit the memory are left out, instead of refusing the job.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: Order,
        ranks: Ranks,
        cache: Cache,
        *,
        uneven: bool = False,
        epochs: int | None = None,
        policy: Any = None,
        tuning: Tuning | None = None,
        settings: dict[str, Any] | None = None,
        skip_large: bool = False,
    ) -> None:
        say(ranks)
        self.cache = cache
        self.dataset, self.order, self.ranks, self.uneven, self.epochs = dataset, order, ranks, uneven, epochs
        try:
            self.plan = order.plan(ranks.world, uneven=uneven)
        except ValueError as error:
            raise InvalidError(_explain(error, order, ranks)) from None
        session = ranks.session_of(self.plan.digest)
        attach: dict[str, Any] = {
            "session": session,
            "order": order.spec(),
            "world": ranks.world,
            "ranks": list(ranks.local),
            "uneven": uneven,
            "epochs": epochs,
            **cache.budget(),
            **(tuning or Tuning()).fields(),
            "skip_large": skip_large,
            **(settings or {}),
        }
        if policy is not None:
            attach["policy"] = policy
        keep_freed_memory()
        self.recipe = Recipe(dataset.source, attach, f"{session}-{self.plan.digest}-{ranks.world}")
        self._told: _core.Job | None = None

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return self.plan.batches

    @property
    def rank(self) -> int:
        """This process' data rank."""
        return self.ranks.rank

    def attachment(self) -> Attachment:
        """This process' end of the job."""
        return self.recipe.attachment()

    def patience(self, epoch: int, timeout_s: float | None) -> Patience:
        """How long a pass waits for what is decoded in this process."""
        stall_s = self.recipe.attach.get("stall_s")
        return Patience(self.dataset.source, f"epoch {epoch}, rank {self.rank}", timeout_s, stall_s)

    def going_on(self, epoch: int) -> Run:
        """This run, or where an epoch beyond the announced ones begins after all, the same without an end."""
        if self.epochs is None or epoch < self.epochs:
            return self
        _LOG.warning(
            "epochs=%d were announced, and this is epoch %d (they count from 0): going on, with nothing of it read ahead. A pass that is left early "
            "counts as an epoch; announce more, or none",
            self.epochs,
            epoch,
        )
        return self._without_end()

    def _without_end(self) -> Run:
        twin = copy.copy(self)
        old, twin.epochs = self.recipe, None
        session = f"{old.attach['session']}-on"
        twin.recipe = Recipe(old.source, {**old.attach, "session": session, "epochs": None}, f"{old.name}-on")
        return twin

    def state(self, epoch: int, batches: int, beyond: Iterable[int] = ()) -> dict[str, Any]:
        """A checkpoint: what was consumed, in plain numbers and strings.

        Args:
            epoch: The epoch.
            batches: Batches of it that the loop has had.
            beyond: Batches after these that it has had, where they don't come in order.
        """
        if beyond:
            return {**self.state(epoch, batches), "version": _STATE_VERSION_BEYOND, "beyond": spans_of(beyond)}
        position = min(batches * self.order.global_batch, self.plan.positions)
        return {
            "version": _STATE_VERSION,
            "order": self.plan.digest,
            "sequence": self.order.sequence,
            "epoch": epoch,
            "position": position,
            "positions": self.plan.positions,
            "global_batch": self.order.global_batch,
            "kind": self.order.name,
            "seed": self.order.seed,
            "samples": self.order.samples,
            "dataset": self.order.dataset,
        }

    def resume(self, state: dict[str, Any]) -> tuple[int, int, list[int]]:
        """Where a checkpoint goes on.

        Args:
            state: What `state` answered, here or in a run with other ranks or workers.

        Returns:
            Epoch, batch, and the batches after that one which are to be left out.

        Raises:
            StateError: It is damaged, or belongs to another order; the message says what differs.
        """
        check_state(state)
        epoch, batch = self._position(state)
        # Of a sampler's own batches the plan counts the samples: other epochs than the known ones may have more batches.
        beyond = numbers_in(state.get("beyond", ""), self.plan.batches)
        return epoch, batch, [number for number in beyond if number >= batch] if epoch == state["epoch"] else []

    def _position(self, state: dict[str, Any]) -> tuple[int, int]:
        """Epoch and batch where a checkpoint goes on."""
        check_belongs(state, self.order)
        if state["order"] == self.plan.digest:
            try:
                return self.plan.resume(state["order"], state["epoch"], state["position"])
            except ValueError as error:
                raise StateError(str(error)) from None
        if state.get("beyond") and state["global_batch"] != self.order.global_batch:
            raise StateError(
                f"the state was saved with in_order=False, when batches {state['beyond']} had come before batch "
                f"{state['position'] // state['global_batch']}: it goes on only with the same global batch of {state['global_batch']} samples "
                f"(batch_size * ranks), not {self.order.global_batch}"
            )
        if self.is_over(state):
            return state["epoch"] + 1, 0
        return self._resume_elsewhere(state["epoch"], state["position"], state["global_batch"])

    def is_over(self, state: dict[str, Any]) -> bool:
        """Whether a checkpoint's epoch was over, here or where it was saved: how many samples the end repeats or drops depends on the ranks."""
        ends = (self.plan.positions, self.order.length, state.get("positions", self.order.length))
        return bool(state["position"] >= min(ends))

    def _resume_elsewhere(self, epoch: int, position: int, global_batch: int) -> tuple[int, int]:
        """With other batches or another rule for the end, the sequence goes on where it was cut."""
        batch, rest = divmod(position, self.order.global_batch)
        if rest:
            raise StateError(
                f"the state was saved after {position} samples, with batches of {global_batch} over all ranks; with batches of {self.order.global_batch} "
                f"no batch begins there. Choose batch_size so that batch_size * ranks is {global_batch} or divides {position}"
            )
        if global_batch != self.order.global_batch:
            _LOG.info("resuming with global batches of %d instead of %d samples", self.order.global_batch, global_batch)
        return epoch, batch

    def restore(self) -> None:
        """Tells a new agent what it needs to know besides the attachment."""

    def lap(self, epoch: int) -> int:
        """By which number agent and plan know an epoch."""
        return epoch

    def position(self, epoch: int, batch: int) -> int:  # noqa: ARG002 (of orders that know each epoch)
        """Where the plan has a batch."""
        return batch

    def samples_in(self, epoch: int, batch: int) -> int:  # noqa: ARG002
        """Samples of this rank in a batch."""
        return int(self.plan.batch_len(batch, self.rank))

    def begin(self, epoch: int, batch: int) -> object:
        """A pass begins whose batches other processes ask for, through connections of their own: the agent must know of it before they do.

        Returns:
            What names the pass, for `leave`.
        """
        self._pass = object()
        where = (self.rank, self.lap(epoch), self.position(epoch, batch), self._pass)
        try:
            self._told = self.attachment().begin(*where)
        except ClosedError as error:
            # The agent ended between two passes, which only a call could tell: once more, with a new one.
            _LOG.warning("%s; going on at epoch %d, batch %d", str(error), epoch, batch)
            self.restore()
            self._told = self.attachment().begin(*where)
        return self._pass

    def keep_up(self, epoch: int, batch: int) -> None:
        """Tells the agent where such a pass stands, should it be a new one, which would fetch nothing before somebody asks.

        Asks for new credentials, too, if they are due: the other processes may not have the provider.
        """
        self.dataset.source.renew()
        if self.attachment().job() is not self._told:
            _LOG.warning("the foreload agent ended and was replaced; going on at epoch %d, batch %d", epoch, batch)
            self.restore()
            self._told = self.attachment().go_on(self.rank, self.lap(epoch), self.position(epoch, batch), self._pass)

    def leave(self, of: object) -> None:
        """Such a pass ends before its epoch does: nothing more is fetched for it."""
        self.attachment().leave(self.rank, of)

    def stats(self) -> dict[str, Any]:
        """The agent's counters for the job, and what its requests cost where they have a price."""
        answer = self.attachment().call("stats")
        answer.pop("reply", None)
        gets = answer["requests"] + answer["retries"]
        calls = self.dataset.source.calls()
        prices = {_dollars.of_requests(str(call["url"]), call["storage_options"], gets) for call in calls}
        # Of a mixture, the requests of which store are not counted: they have a price where it is the same everywhere.
        dollars = prices.pop() if len(prices) == 1 else None
        return answer if dollars is None else {**answer, "request_dollars": dollars}


def check_belongs(state: dict[str, Any], order: Order) -> None:
    """Refuses a checkpoint of another order.

    Raises:
        StateError: It is one; the message says what differs.
    """
    if state["version"] > _STATE_VERSION_BEYOND:
        raise StateError(
            f"the state was saved by a newer release of foreload (version {state['version']}, known {_STATE_VERSION_BEYOND})"
        )
    if state["sequence"] == order.sequence:
        return
    here = {"dataset": order.dataset, "samples": order.samples, "kind": order.name, "seed": order.seed}
    names = {"dataset": "data set (digest)", "samples": "samples", "kind": "order", "seed": "seed"}
    differing = [
        f"{text} {state.get(name)} instead of {here[name]}"
        for name, text in names.items()
        if state.get(name) != here[name]
    ]
    other = "other weights or another length of an epoch" if order.name == "mixture" else "another version of the order"
    raise StateError(f"the state belongs to another run: {'; '.join(differing) or other}")


def _explain(error: ValueError, order: Order, ranks: Ranks) -> str:
    return f"{error} (a global batch of {order.global_batch} = batch_size * {ranks.world} data ranks)"


class Stream(Iterator[tuple[int, "_core.Delivery | Failed"]]):
    """The batches of this rank from a position to the end of the epoch, `Failed` in the place of one that can't be had.

    Args:
        run: The run.
        epoch: The epoch.
        first: The first batch.
        timeout_s: Longest wait for one batch; None: as long as the agent tries.
        failures: What to do with samples that can't be read.
    """

    def __init__(
        self,
        run: Run,
        epoch: int,
        first: int,
        *,
        timeout_s: float | None = None,
        failures: Failures | None = None,
    ) -> None:
        self.run, self.epoch, self._lap = run, epoch, run.lap(epoch)
        self._process = os.getpid()
        self._timeout_s = timeout_s
        self._failures = failures or Failures()
        self._attachment = run.attachment()
        self._next, self._asked, self._count = first, first, len(run)
        self._wants: deque[tuple[_core.Job, int]] = deque()
        self._ready: _core.Delivery | None = None
        self._reconnected = False
        #: Names this pass at its attachment, without keeping it alive.
        self._token = object()
        #: Whether another pass over the same loader has begun: the agent follows that one, and answers this one by the samples' numbers.
        self._overtaken = False
        # The job that was started: another one, of an agent that came after, knows nothing of this pass.
        try:
            self._job = self._start(first)
        except ClosedError as error:
            # The agent ended between two passes, which only a call could tell: once more, with a new one.
            _LOG.warning("%s; going on at epoch %d, batch %d", str(error), epoch, first)
            run.restore()
            self._job = self._start(first)

    def _start(self, batch: int) -> _core.Job:
        where = (self.run.rank, self._lap, self.run.position(self.epoch, batch))
        return self._attachment.start(*where, self._token)

    @property
    def is_ours(self) -> bool:
        """Whether this process began it: false after a fork."""
        return self._process == os.getpid()

    def __next__(self) -> tuple[int, _core.Delivery | Failed]:
        if not self.is_ours:
            raise ForkedError("a pass over a loader belongs to the process that began it; begin another one here")
        if self._next >= self._count:
            self._attachment.agent().flush()
            raise StopIteration
        delivery: _core.Delivery | Failed
        try:
            delivery = self._take()
        except ClosedError as error:
            delivery = self._reconnect(error)
        except _OVER:
            raise
        except ForeloadError as error:
            delivery = self._failed(error)
        self._next += 1
        return self._next - 1, delivery

    def _failed(self, error: ForeloadError) -> Failed:
        """Goes on with the batch after the one that is due."""
        self._asked = max(self._asked, self._next + 1)
        while len(self._wants) >= self._asked - self._next:
            self._withdraw(*self._wants.popleft())
        return Failed(error)

    @property
    def is_over(self) -> bool:
        """Whether all batches were handed out."""
        return self._next >= self._count

    def look_ahead(self, *, any_size: bool = False) -> _core.Delivery | None:
        """The next batch if it has come, and, unless `any_size`, is not too large to have beside the loop's; it is not handed out before `pass_on`."""
        self._ask(self._next + _AHEAD)
        if self._ready is None and self._wants:
            job, want = self._wants[0]
            found = job.take_ready(want)
            if found is not None:
                self._wants.popleft()
                self._ready = found
        found = self._ready
        return found if found is not None and (any_size or found.nbytes <= _AHEAD_BYTES) else None

    def pass_on(self) -> int:
        """Hands out the batch that `look_ahead` showed; its number."""
        self.run.dataset.source.renew()
        self._ready = None
        self._next += 1
        return self._next - 1

    def flush(self) -> None:
        """Sends what was asked for and what was given back."""
        self._attachment.agent().flush()

    def _ask(self, end: int) -> None:
        """Asks for the batches before `end`, as far as that wasn't done."""
        while self._asked < min(self._count, end):
            self._wants.append((self._job, self._want(self._job, self._asked)))
            self._asked += 1

    def _want(self, job: _core.Job, batch: int) -> int:
        if self._overtaken:
            return job.want_samples(self.run.rank, self._samples(batch))
        return job.want_batch(self.run.rank, self._lap, batch)

    def _samples(self, batch: int) -> list[int]:
        return self.run.plan.batch(self._lap, batch, self.run.rank)

    def _take(self) -> _core.Delivery:
        self.run.dataset.source.renew()
        self._ask(self._next + 1 + _AHEAD)
        if self._ready is not None:
            delivery, self._ready = self._ready, None
            return delivery
        try:
            return self._answer()
        except DeniedError:
            if self.run.dataset.source.credentials is None:
                raise
            self.run.dataset.source.renew_now()
        except _BAD as error:
            return self._without(error)
        except (CancelledError, InvalidError):
            self._overtaken = True
        try:
            return self._again([])
        except _BAD as error:
            return self._without(error)

    def _answer(self) -> _core.Delivery:
        """What the oldest want brings; one that is interrupted remains, and is waited for or withdrawn later."""
        try:
            delivery = self._wait(*self._wants[0])
        except ForeloadError:
            self._wants.popleft()
            raise
        self._wants.popleft()
        return delivery

    def _wait(self, job: _core.Job, want: int) -> _core.Delivery:
        begun = time.monotonic()
        while True:
            left = _LOOK_S if self._timeout_s is None else min(_LOOK_S, self._timeout_s - (time.monotonic() - begun))
            try:
                return job.take(want, max(0.0, left))
            except WaitingError:
                report_notices(self._attachment)
                if self._timeout_s is not None and time.monotonic() - begun >= self._timeout_s:
                    self._withdraw(job, want)
                    message = f"no batch within timeout={self._timeout_s} s (epoch {self.epoch}, batch {self._next}, rank {self.run.rank})"
                    raise TimedOutError(message) from None

    def _without(self, error: ForeloadError) -> _core.Delivery:
        """Fetches the batch again without the samples that can't be had."""
        bad: list[int] = []
        while True:
            too_small = isinstance(error, NoMemoryError) and not self._attachment.is_too_large(error)
            if error.sample is None or error.sample in bad or too_small:
                raise error
            self._failures.failed(error)
            bad.append(error.sample)
            try:
                return self._again(bad)
            except _BAD as another:
                error = another

    def _again(self, bad: list[int]) -> _core.Delivery:
        samples = [sample for sample in self._samples(self._next) if sample not in bad]
        return self._wait(self._job, self._job.want_samples(self.run.rank, samples))

    def _reconnect(self, error: ClosedError) -> _core.Delivery:
        """Goes on with a new agent, once: if that ends too, something ends it."""
        if self._reconnected:
            raise error
        self._reconnected = True
        _LOG.warning("%s; going on at epoch %d, batch %d", str(error), self.epoch, self._next)
        self._wants.clear()
        self._ready, self._asked = None, self._next
        self.run.restore()
        self._job = self._attachment.job() if self._overtaken else self._start(self._next)
        return self._take()

    @staticmethod
    def _withdraw(job: _core.Job, want: int) -> None:
        if job.is_usable():
            job.withdraw(want)

    def close(self) -> None:
        """Gives back what was asked for and not taken."""
        for job, want in self._wants:
            try:
                self._withdraw(job, want)
            except ForeloadError:
                break
        self._wants.clear()
        self._ready = None
        if not self.is_over and self.is_ours:
            self._attachment.leave(self.run.rank, self._token)

    def __del__(self) -> None:
        # At the interpreter's end the connection closes, which gives back everything.
        if not sys.is_finalizing():
            self.close()


def report_notices(attachment: Attachment) -> None:
    """Logs what the agent wants somebody to read, and warns of stalls."""
    for kind, message, _ in attachment.notices():
        if kind == "stalled":
            _LOG.warning("%s", message)
            warnings.warn(message, StalledWarning, stacklevel=2)
        else:
            _LOG.warning("%s: %s", kind, message)


class _LeftOut:
    """The type of `LEFT_OUT`; from a worker process it comes as the same object."""

    def __reduce__(self) -> str:
        return "LEFT_OUT"


#: Stands for a batch of which every sample was skipped.
LEFT_OUT = _LeftOut()


def next_had(
    batches: Iterator[tuple[int, Any]], had: Had, cursor: Cursor, run: Run, epoch: int, *, several: Callable[[], bool]
) -> tuple[int, Any] | None:
    """The next batch that is not left out, which the loop has had from now on.

    Args:
        batches: Numbers and batches of a pass.
        had: What the loop has had of it.
        cursor: Where the loader stands.
        run: The run.
        epoch: The pass' epoch.
        several: Whether other ranks have other batches. Then none may be left out: a rank that takes fewer steps than the others leaves
            them waiting for ever.

    Returns:
        Its number, and the batch; None: the pass is over.

    Raises:
        InvalidError: A batch would be left out, and there are several ranks.
        ClosedError: An error has ended the pass before.
    """
    if had.broken is not None:
        raise ClosedError(had.broken)
    failed = len(had.failed)
    try:
        return _next_had(batches, had, cursor, run, epoch, several)
    except BaseException as error:
        if len(had.failed) == failed:
            # What iterates over a generator that has raised takes it for the end.
            had.broken = (
                f"this pass over the loader was ended by an error ({type(error).__name__}: {error}); begin another one"
            )
        raise


def _next_had(
    batches: Iterator[tuple[int, Any]], had: Had, cursor: Cursor, run: Run, epoch: int, several: Callable[[], bool]
) -> tuple[int, Any] | None:
    for number, batch in batches:
        if type(batch) is Failed:
            had.failed.append(number)
            batch.fail()
        if batch is LEFT_OUT and several():
            raise InvalidError(
                f"every sample of batch {number} of epoch {epoch} was skipped on rank {run.rank}, and one of several ranks can't take fewer steps "
                "than the others: give a larger batch_size, or repair the samples that the log names"
            )
        had.add(number)
        cursor.consumed(epoch, had.batches, had.beyond)
        if batch is not LEFT_OUT:
            return number, batch
    if had.failed:
        had.add(had.failed[-1])
        cursor.consumed(epoch, had.batches, had.beyond)
    cursor.ended()
    return None


_SPAN = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)


def spans_of(numbers: Iterable[int]) -> str:
    """Numbers in a short form.

    Example:
        >>> spans_of([9, 4, 5, 6])
        '4-6,9'
    """
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in spans)


def numbers_in(spans: str, end: int) -> list[int]:
    """What `spans_of` was given, sorted.

    Args:
        spans: The short form.
        end: Numbers from here on are left out: the batches of this run may end earlier than those of the run that saved them.

    Raises:
        StateError: It is none, which only a damaged state has.

    Example:
        >>> numbers_in("4-6,9,20", 12)
        [4, 5, 6, 9]
    """
    pairs = [_SPAN.fullmatch(span) for span in spans.split(",")] if isinstance(spans, str) and spans else []
    ends = [(int(pair[1]), int(pair[2] or pair[1])) for pair in pairs if pair]
    flat = [number for pair in ends for number in pair]
    if not isinstance(spans, str) or None in pairs or flat != sorted(flat):
        raise StateError(
            f"the state is damaged: its beyond is {spans!r:.60}, and would be numbers of batches, as in '4-6,9'"
        )
    return [number for first, last in ends for number in range(first, min(last + 1, end))]


def check_run(
    batch_size: int | None, seed: int, epochs: int | None, policy: Any, tuning: Tuning | None
) -> tuple[int, int, int | None]:
    """Looks at what every loader is told about its run.

    Returns:
        The size of a batch, the seed and the epochs, as plain numbers: NumPy's can't be written down for the agent.

    Raises:
        InvalidError: It can't be obeyed.
    """
    seed = _numbers.count("seed", seed, -(1 << 63), (1 << 64) - 1)
    if epochs is not None:
        epochs = _numbers.count("epochs", epochs, 0, _MOST)
    check_policy(policy)
    check_tuning(tuning)
    size = _numbers.count("batch_size", batch_size, 1, _MOST)  # type: ignore[arg-type] # it looks whether it is a number
    return size, seed, epochs
