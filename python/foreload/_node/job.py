"""Jobs: what a process is attached to while it reads.

A `Recipe` says which job: the data set, the order, the ranks and the budgets. It is a value that travels to workers, which attach with it to the
same job of the same agent; jobs are told apart by what they were attached with. `Attachment` is a process' own end, made when it is
first used, again after a fork, and once more after the agent died. A `Reader` reads samples in no announced order.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreload import _core
from foreload._node import agent as _agent
from foreload._node import ranks as _ranks
from foreload._node.meeting import Meeting
from foreload._node.source import Source
from foreload.errors import CancelledError, ClosedError, DeniedError, NoMemoryError, WaitingError, report

_LOG = logging.getLogger("foreload")
#: How often a wait looks for what the agent has to say.
_LOOK_S = 1.0
#: Who lacks memory for so long, while nothing is loaded or written and only leases hold it, gets an error: who waits gives nothing back.
_STARVED_S = 60.0
#: How often is said what is waited for, in seconds.
_SAY_S = 10.0
#: This process' ends of jobs by their recipes' names, for what arrives from workers. A loader holds its own.
_attachments: weakref.WeakValueDictionary[str, Attachment] = weakref.WeakValueDictionary()


@dataclass
class Recipe:
    """Which job, and how to attach to it.

    Attributes:
        source: The data set.
        attach: The fields of the agent's `attach` call, but for the data sets' numbers.
        name: Tells it apart from other recipes; the same in all processes that share it.
        meeting: Where this node meets the others, if they share their caches.
    """

    source: Source
    attach: dict[str, Any]
    name: str
    meeting: Meeting | None = field(default=None, repr=False, compare=False)
    _held: Attachment | None = field(default=None, repr=False, compare=False)

    def attachment(self) -> Attachment:
        """This process' end."""
        if self._held is None or self._held.process != os.getpid():
            found = _attachments.get(self.name)
            if found is None or found.process != os.getpid():
                found = _attachments[self.name] = Attachment(self.source, self.attach, self.name, meeting=self.meeting)
            self._held = found
        return self._held

    def change(self, what: str, **fields: Any) -> None:
        """It is of another job from now on: with more fields, which `what` names."""
        self.attach, self.name, self._held = {**self.attach, **fields}, f"{self.name}-{what}", None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "meeting": None}


class _Slowly:
    """Says how far it is where attaching takes long, for no batch comes meanwhile."""

    def __init__(self) -> None:
        self._begun = self._told = time.monotonic()

    def __call__(self, step: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._told < _SAY_S:
            return
        self._told = now
        part = f", {100 * done // total} %" if total else ""
        _LOG.warning("%s, before the first batch, for %.0f s so far%s", step, now - self._begun, part)


def attachment(name: str) -> Attachment:
    """This process' end of a job that it knows.

    Raises:
        ClosedError: Its loader is gone.
    """
    found = _attachments.get(name)
    if found is None or found.process != os.getpid():
        raise ClosedError("a batch of a loader that no longer exists in this process")
    return found


@dataclass
class Attachment:
    """A process' end of a job.

    Attributes:
        source: The data set.
        attach: As in the recipe.
        name: The recipe's name.
        process: Which process.
        meeting: As in the recipe.
    """

    source: Source
    attach: dict[str, Any]
    name: str
    process: int = field(default_factory=os.getpid)
    meeting: Meeting | None = field(default=None, repr=False, compare=False)
    _job: _core.Job | None = None
    #: Whether other processes send batches, and the job of the agent before this one, in whose memory some of them may lie.
    _receives: bool = False
    _past: _core.Job | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    #: The job of the agent that knows the other nodes.
    _met: _core.Job | None = None
    #: By rank: the pass that began last. Only that one may say that the rank reads no more.
    _passes: dict[int, object] = field(default_factory=dict)

    def job(self) -> _core.Job:
        """The job, attached to if it isn't yet, or the agent died since."""
        job = self._job
        if job is not None and job.is_usable():
            return job
        with self._lock:
            if self._job is None or not self._job.is_usable():
                past, self._job = self._job, _agent.once_more(self._attach)
                self._past = past if self._receives else None
            return self._job

    def job_of(self, agent: int) -> _core.Job:
        """The job, of the agent in whose memory another process left something.

        Raises:
            ClosedError: That agent ended too long ago.
        """
        job = self.job()
        if agent not in (job.agent, self._past and self._past.agent):
            # The other process noticed before this one that its agent is gone.
            with contextlib.suppress(ClosedError):
                self.settle()
            job = self.job()
        for known in (job, self._past):
            if known is not None and known.agent == agent:
                return known
        raise ClosedError(f"a batch in the memory of an agent that has ended (process {agent}); start the loader again")

    def meet(self) -> _core.Job:
        """The job, whose agent knows the other nodes, if they share their caches."""
        job = self.job()
        if self.meeting is not None:
            # Before anything is read. An agent that is new knows nobody yet.
            meet = self.meeting.meet_again if self._met is job else self.meeting.meet
            meet(_caller(self.agent(), job))
            self._met = job
        return job

    def start(self, rank: int, epoch: int, batch: int, of: object) -> _core.Job:
        """Tells the agent where a pass of this process begins.

        Args:
            rank: The rank that reads.
            epoch: The epoch.
            batch: The batch, in the epoch.
            of: Names the pass.
        """
        job = self.meet()
        job.start(rank, epoch, batch)
        self._passes[rank] = of
        return job

    def leave(self, rank: int, of: object) -> None:
        """A pass ends before its epoch does: nothing more is fetched for the rank, unless another pass has begun since."""
        if self._passes.get(rank) is not of or sys.is_finalizing():
            return
        del self._passes[rank]
        job = self._job
        if job is not None and job.is_usable():
            with contextlib.suppress(ClosedError):
                job.leave(rank)
                self.agent().flush()

    def begin(self, rank: int, epoch: int, batch: int, of: object) -> _core.Job:
        """Begins a pass in which other processes ask, through connections of their own."""
        self._receives, self._past = True, None
        return self.go_on(rank, epoch, batch, of)

    def go_on(self, rank: int, epoch: int, batch: int, of: object) -> _core.Job:
        """Tells the agent where such a pass stands, and waits until it has heard."""
        job = self.start(rank, epoch, batch, of)
        self.settle()
        return job

    def _attach(self) -> _core.Job:
        opened = self.source.opened()
        body = json.dumps({"dataset": opened.number, "more": opened.more, **self.attach})
        job = opened.agent.attach(body, _Slowly())
        for warning in json.loads(job.reply)["warnings"]:
            _LOG.warning("%s", warning)
        return job

    def agent(self) -> _core.Agent:
        """The connection that the job is of."""
        return self.source.opened().agent

    def notices(self) -> list[tuple[str, str, int | None]]:
        """What the agent wants somebody to read: (kind, message, sample)."""
        job = self._job
        return [] if job is None else job.notices()

    def report_notices(self) -> list[tuple[str, str, int | None]]:
        """Logs what the agent wants somebody to read, and warns of stalls.

        Returns:
            That: kind, message and sample.
        """
        told = self.notices()
        for kind, message, _ in told:
            report(kind, message)
        return told

    def take(
        self,
        job: _core.Job,
        want: int,
        timeout_s: float | None,
        samples: Callable[[], Collection[int]] | None = None,
        where: str = "",
    ) -> _core.Delivery:
        """Waits for a want, and says meanwhile what the agent wants somebody to read.

        Args:
            job: Of which it was asked.
            want: Its number.
            timeout_s: How long.
            samples: What it reads; None: whatever lacks memory is taken for it.
            where: What errors say of it, after a space.

        Raises:
            WaitingError: Nothing came in time.
            NoMemoryError: Only leases hold the memory that it needs, for a minute.
        """
        begun = time.monotonic()
        starved: tuple[float, str] | None = None
        while True:
            left = _LOOK_S if timeout_s is None else min(_LOOK_S, timeout_s - (time.monotonic() - begun))
            try:
                return job.take(want, max(0.0, left))
            except WaitingError:
                starved = starved_since(self.report_notices(), samples, starved)
                if starved is not None and time.monotonic() - starved[0] >= _STARVED_S:
                    if job.is_usable():
                        job.withdraw(want)
                    raise NoMemoryError(
                        f"{starved[1]}{where}. What the loop has of the batches before keeps the memory "
                        "that this one needs: give cache=Cache(ram=...) more, or smaller batches"
                    ) from None
                if timeout_s is not None and time.monotonic() - begun >= timeout_s:
                    raise

    def call(self, call: str, **fields: Any) -> dict[str, Any]:
        """Calls the agent about this job."""
        return _asked(self.agent(), call, self.job().job, fields)

    def supply(self, epoch: int, samples: NDArray[np.uint64]) -> None:
        """Tells the agent what an epoch reads, where the order is supplied."""
        job = self.job()
        self.agent().supply(job.job, epoch, samples)

    def settle(self) -> None:
        """Waits until the agent has seen everything that this process said before."""
        self.agent().call('{"call": "status"}')

    def reads(self, rank: int, reads: list[tuple[int, int]], timeout_s: float | None = None) -> _core.Delivery:
        """Fetches reads of the plan, each an epoch and a position, for a rank."""
        return self._patiently(lambda job: job.want_reads(rank, reads), timeout_s, None)

    def is_too_large(self, error: NoMemoryError) -> bool:
        """Whether no batch with the sample can be had, however small, and it is to be left out as any other that fails."""
        most = self.attach["ram_bytes"] - self.attach["batch_bytes"]
        return error.sample is not None and self.source.opened().index.length(error.sample) > most

    def samples(self, rank: int, samples: list[int], timeout_s: float | None = None) -> _core.Delivery:
        """Fetches samples by number, outside the plan, for a rank."""
        return self._patiently(lambda job: job.want_samples(rank, samples), timeout_s, lambda: samples)

    def batch(self, rank: int, epoch: int, batch: int, timeout_s: float | None = None) -> _core.Delivery:
        """Fetches a batch of the plan's, for a rank."""
        return self._patiently(lambda job: job.want_batch(rank, epoch, batch), timeout_s, None)

    def _patiently(
        self,
        want: Callable[[_core.Job], int],
        timeout_s: float | None,
        samples: Callable[[], Collection[int]] | None,
    ) -> _core.Delivery:
        """Asks again, once each, for what another process of the rank cancelled by starting anew, with new credentials, and of a new agent."""
        self.source.renew()
        mended: set[type[Exception]] = set()
        while True:
            job = self.job()
            asked: int | None = None
            try:
                asked = want(job)
                return self.take(job, asked, timeout_s, samples)
            except (CancelledError, ClosedError, DeniedError) as error:
                denied = isinstance(error, DeniedError)
                if type(error) in mended or (denied and self.source.credentials is None):
                    raise
                mended.add(type(error))
                if denied:
                    self.source.renew_now()
            except BaseException:
                # Interrupted, for instance: what comes later is for nobody.
                if asked is not None and job.is_usable():
                    job.withdraw(asked)
                raise


def _caller(agent: _core.Agent, job: _core.Job) -> Callable[..., dict[str, Any]]:
    """Calls an agent about a job."""
    return lambda call, **fields: _asked(agent, call, job.job, fields)


def _asked(agent: _core.Agent, call: str, job: int, fields: dict[str, Any]) -> dict[str, Any]:
    """An agent's answer to a call about a job."""
    answer: dict[str, Any] = json.loads(agent.call(json.dumps({"call": call, "job": job, **fields})))
    return answer


def starved_since(
    told: list[tuple[str, str, int | None]],
    samples: Callable[[], Collection[int]] | None,
    before: tuple[float, str] | None,
) -> tuple[float, str] | None:
    """Since when what is waited for lacks memory that only leases hold, and how the agent says so; None: something else moves."""
    wanted = set(samples()) if told and samples is not None else None
    for kind, message, sample in told:
        if wanted is None or sample in wanted:
            before = (time.monotonic() if before is None else before[0], message) if kind == "starved" else None
    return before


class Reader:
    """Reads samples in no announced order, with a small budget of its own.

    Args:
        source: The data set.
    """

    #: Enough for a hundred photographs; of larger samples, four.
    _RAM = 64 << 20

    def __init__(self, source: Source) -> None:
        self._source = source
        self._word = new_word()
        self._recipe: Recipe | None = None

    def read(self, samples: list[int]) -> list[bytes]:
        """The bytes of samples."""
        if self._recipe is None:
            largest = int(np.frombuffer(self._source.opened().index.lengths(), dtype="<u8").max())
            self._recipe = reader_recipe(
                self._source, {"ram_bytes": max(self._RAM, 4 * largest), "batch_bytes": 1 << 16}, self._word
            )
        return self._recipe.attachment().samples(0, samples).to_bytes()


def new_word() -> str:
    """What tells a job without an order from others, in this process and in those that are started with it."""
    return f"reader-{os.getpid()}-{secrets.token_hex(4)}"


def node_word(digest: str) -> str:
    """The same for a job that the ranks of a node share, if torchrun started them: its number among those for the data set of this digest."""
    place = _ranks.find()
    if len(place.local) == 1 or place.word is None:
        return new_word()
    return f"reader-{place.session}-{place.word.number(f'reader-{digest}')}"


def reader_recipe(source: Source, budget: dict[str, Any], word: str) -> Recipe:
    """A job without an order: what it is asked for is fetched then, and kept while there is room.

    Args:
        source: The data set.
        budget: The fields of an attachment that are about memory.
        word: The job's, of `new_word`.
    """
    index = source.opened().index
    order = {
        "dataset": index.digest,
        "samples": len(index),
        "kind": {"supplied": {"length": len(index)}},
        "seed": 0,
        "global_batch": 1,
        "tail": {"pad": {"multiple": 1}},
    }
    name = f"{word}-{index.digest}"
    attach = {"session": name, "order": order, "world": 1, "ranks": [0], "uneven": False, **budget}
    return Recipe(source, attach, name)
