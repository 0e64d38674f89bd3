"""A loader's run, apart from any framework: which batches, where it stands, how it went.

A `Run` joins a data set, an order and the ranks to a job (`Recipe`), knows how many batches an epoch has, and turns a position into a
checkpoint and back. A `Stream` is one epoch of it. The doors (`foreload.torch`, `foreload.NumpyLoader`) put bytes into the form that their users expect.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from foreload import _core
from foreload._data.dataset import Dataset
from foreload._node import agent as _agent
from foreload._node.job import Attachment, Recipe
from foreload._node.meeting import Assignment, Meeting
from foreload._node.ranks import Ranks, say
from foreload._run import dollars as _dollars
from foreload._run.patience import Patience
from foreload._run.position import numbers_in, spans_of
from foreload._run.readings import Readings
from foreload._run.tally import EpochTally
from foreload._settings import numbers as _numbers
from foreload._settings.cache import Cache
from foreload._settings.memory import keep_freed_memory
from foreload._settings.order import Order
from foreload._settings.state import check_state
from foreload._settings.tuning import Tuning, check_policy, check_tuning
from foreload.errors import (
    ClosedError,
    ForeloadError,
    InvalidError,
    StateError,
)

_LOG = logging.getLogger("foreload")
#: The layout of a checkpoint, and of one with batches beyond its position, which older releases would deliver again.
_STATE_VERSION = 1
_STATE_VERSION_BEYOND = 2
#: The policy whose nodes keep what each of them reads most often.
_FREQUENCY = "frequency"
_DEFAULT = "foreload"
#: Samples of a batch, and epochs, are 32 bits in the plan.
_MOST = (1 << 32) - 1


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
        assign: `"local"`: of a global batch each sample goes to a rank of the node that keeps it, as far as ranks get equally many. None: dealt out like cards.
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
        assign: str | None = None,
    ) -> None:
        say(ranks, is_shuffled=order.is_shuffled)
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
        keep_freed_memory(0)
        meeting = None
        #: Names what ranks have to have in common: the order, and who reads what of it.
        self.agreed, self.assign = self.plan.digest, assign
        self._assignment: Assignment | None = None
        if assign is not None and policy == _FREQUENCY:
            raise InvalidError(
                f"assign={assign!r} gives samples to the nodes that keep them, and with policy={_FREQUENCY!r} nodes keep the samples that they read: give one of them"
            )
        if assign is not None and ranks.world > 1 and not cache.peers:
            raise InvalidError(
                f"assign={assign!r} gives samples to the ranks of the nodes that keep them: give cache=Cache(peers=True), with which nodes share their caches"
            )
        if cache.peers and ranks.are_some_of_many():
            why = (
                "this loader counts fewer data ranks than there are processes on all nodes, as where several processes have the same data rank, or something else "
                "shares the samples out (a sampler of your own, dp_size=1, torch's own loader with DistributedSampler, Accelerate with sharding='external')"
            )
            if assign is not None:
                raise InvalidError(f"assign={assign!r} can't be obeyed here: {why}")
            _LOG.warning("Cache(peers=...) does nothing here: %s", why)
        elif cache.peers and ranks.world > len(ranks.local):
            name = ranks.group_of(self.plan.digest)
            how = _how(policy, epochs, assign)
            reads = f"{dataset.url}, {_reads(order)}"
            group = (cache.group(), ranks, name, dataset.source.cache_dir, dataset.url, how, reads)
            meeting = Meeting(*group)
            if assign is not None or (policy == _FREQUENCY and epochs is not None):
                self._assignment = Assignment(*group)
        if policy == _FREQUENCY and epochs is None:
            _LOG.warning(
                "policy=%r keeps what is read most often in all epochs: give epochs=, too; without that it keeps what the default does",
                _FREQUENCY,
            )
        self.recipe = Recipe(dataset.source, attach, f"{session}-{self.plan.digest}-{ranks.world}", meeting)
        self._told: _core.Job | None = None
        self._process = os.getpid()

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

    def agree(self) -> None:
        """Where it counts which node each rank is on, all ranks agree on that: once, before anything is read. Waits for them.

        Raises:
            InvalidError: They don't all come.
        """
        if self._assignment is None or self.recipe.attach.keys() & {"deal", "nodes"}:
            return
        nodes = self._assignment.agree()
        if self.assign is None:
            self.recipe.change(self.plan.digest, nodes=nodes)
            return
        group = self._assignment.peers.group or 0
        digest = self.plan.assign(nodes, group)
        self.agreed = f"{self.plan.digest}-{digest}"
        self.recipe.change(digest, deal={"nodes": nodes, "group": group})

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

    def readings(self, epoch: int, batch: int) -> Readings:  # noqa: ARG002
        """Which readings a batch's samples are: of an order of the plan's, epoch and sample say that."""
        return Readings()

    def samples_in(self, epoch: int, batch: int) -> int:  # noqa: ARG002
        """Samples of this rank in a batch."""
        return int(self.plan.batch_len(batch, self.rank))

    def begin(self, epoch: int, batch: int) -> object:
        """A pass begins whose batches other processes ask for, through connections of their own: the agent must know of it before they do.

        Returns:
            What names the pass, for `leave`.
        """
        self.agree()
        self._pass, self._process = object(), os.getpid()
        where = (self.rank, self.lap(epoch), self.position(epoch, batch), self._pass)
        try:
            self._told = self.attachment().begin(*where)
        except ClosedError as error:
            # The agent ended between two passes, which only a call could tell: once more, with a new one.
            _LOG.warning("%s; going on at epoch %d, batch %d", _agent.ending(error), epoch, batch)
            self.restore()
            self._told = self.attachment().begin(*where)
        return self._pass

    def keep_up(self, epoch: int, batch: int) -> None:
        """Tells the agent where such a pass stands, should it be a new one, which would fetch nothing before somebody asks.

        Asks for new credentials, too, if they are due: the other processes may not have the provider.
        """
        self.dataset.source.renew()
        if self.attachment().job() is not self._told:
            # A process that was forked since has a connection of its own, to the same agent.
            if self._process == os.getpid():
                _LOG.warning("the foreload agent ended and was replaced; going on at epoch %d, batch %d", epoch, batch)
            self._process = os.getpid()
            self.restore()
            self._told = self.attachment().go_on(self.rank, self.lap(epoch), self.position(epoch, batch), self._pass)

    def leave(self, of: object) -> None:
        """Such a pass ends before its epoch does: nothing more is fetched for it."""
        self.attachment().leave(self.rank, of)

    def stats(self) -> dict[str, Any]:
        """The agent's counters for the job, and what its requests cost where they have a price."""
        answer = _agent.once_more(lambda: self.attachment().call("stats"))
        answer.pop("reply", None)
        gets = answer["requests"] + answer["retries"]
        calls = self.dataset.source.calls()
        prices = {_dollars.of_requests(str(call["url"]), call["storage_options"], gets) for call in calls}
        # Of a mixture, the requests of which store are not counted: they have a price where it is the same everywhere.
        dollars = prices.pop() if len(prices) == 1 else None
        return answer if dollars is None else {**answer, "request_dollars": dollars}

    def log(self, tally: EpochTally) -> None:
        """Adds how this rank's epoch went to the metrics log, if there is one. What can't be said or written costs a line, never training."""
        path = self.recipe.attach.get("metrics_log")
        if path is None or not tally.ended():
            return
        with contextlib.suppress(OSError, ForeloadError):
            line = {
                "unix_s": time.time(),
                "job": self.attachment().job().job,
                "rank": self.rank,
                "epoch": tally.as_dict(),
                "stats": self.stats(),
            }
            # The agent appends to it, too: a line is one write.
            with Path(path).open("ab", buffering=0) as log:
                log.write(f"{json.dumps(line)}\n".encode())


def _reads(order: Order) -> str:
    """What is read and in which order, for those who wait for someone who reads something else."""
    return f"{order.samples} samples, seed {order.seed}, order {order.name!r}, global batches of {order.global_batch}"


def _how(policy: Any, epochs: int | None, assign: str | None) -> str:
    """What decides who keeps what, in words."""
    if assign is not None:
        return f"assign={assign!r}"
    if policy == _FREQUENCY and epochs is not None:
        return f"policy={policy!r}, epochs={epochs}"
    # Without epochs it keeps what the default does.
    return "the default policy" if policy in (None, _DEFAULT, _FREQUENCY) else f"policy={policy!r}"


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
        f"{text} {state.get(name)} in the state, {here[name]} here"
        for name, text in names.items()
        if state.get(name) != here[name]
    ]
    if {str(state.get("kind")), order.name} == {"torch_random", "torch_distributed"}:
        # What `order="torch"` means on one rank and on several.
        differing.append(
            "order='torch' is another order on one rank than on several; order='torch-distributed' is the same on all numbers of ranks"
        )
    other = _OTHERWISE.get(order.name, "another version of the order")
    raise StateError(f"the state belongs to another run: {'; '.join(differing) or other}")


#: What else is in the order of a kind.
_OTHERWISE = {
    "mixture": "other weights or another length of an epoch",
    "contiguous": "another number of ranks, and with it other ranges (order='contiguous' deals the data set in one range for each)",
    "strided": "another number of ranks, and with it other samples for each (order='strided')",
}


def _explain(error: ValueError, order: Order, ranks: Ranks) -> str:
    return f"{error} (a global batch of {order.global_batch} = batch_size * {ranks.world} data ranks)"


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
