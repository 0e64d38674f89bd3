"""The next batch is made while the loop computes: none is lost, shown twice or left behind, whatever happens in between."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from typing import Any

import pytest

import foreload as fl
from foreload import errors
from foreload._node import agent as _agent
from foreload._node.job import Attachment
from foreload._run import stream
from foreload._run.ahead import Ahead
from foreload.torch import DataLoader
from small import until

TINY = fl.Cache(ram="48MB")


@pytest.fixture
def loader(home: Any) -> Any:
    return DataLoader(fl.open("s3://data/fixed"), 8, shuffle=True, cache=TINY)


def whole(loader: Any, first: int = 0) -> list[bytes]:
    """What an epoch has from a batch on."""
    data, run = loader.dataset.data, loader.run
    return [data.read(sample) for batch in range(first, len(run)) for sample in run.plan.batch(0, batch, 0)]


def leases(loader: Any) -> int:
    return int(loader.run.attachment().call("stats")["gauges"]["leases"])


def threads() -> list[threading.Thread]:
    """Threads that make batches."""
    return [thread for thread in threading.enumerate() if thread.name == "foreload-ahead"]


def settle(ahead: Ahead) -> None:
    """Waits until the thread has made something of the next batch."""
    turns = ahead._turns

    def is_settled() -> bool:
        if not turns.done.acquire(timeout=1):
            return False
        settled = turns.made is not None or turns.error is not None
        if settled:
            turns.done.release()
        else:
            # The batch had not come: once more.
            ahead._begin()
        return settled

    until(is_settled)


def made_ahead(loader: Any) -> Ahead:
    """Batches of which one was handed out and another is made."""
    ahead = Ahead(stream.Stream(loader.run, 0, 0), lambda delivery: delivery.to_bytes())
    next(ahead)
    settle(ahead)
    return ahead


def test_a_batch_that_is_there_is_made_before_it_is_asked_for(loader: Any) -> None:
    ahead = made_ahead(loader)
    # Its memory is the agent's again, though nobody has had it yet; the batch after it is only asked for.
    until(lambda: leases(loader) == 8)
    assert ahead._stream._next == 1
    assert [value for _, values in ahead for value in values] == whole(loader, 1)


def test_samples_are_taken_once(loader: Any) -> None:
    _, delivery = next(stream.Stream(loader.run, 0, 0))
    assert len(delivery.to_bytes()) == 8
    with pytest.raises(ValueError, match="taken already"):
        delivery.to_bytes()


def test_a_large_batch_is_not_made_ahead(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_AHEAD_BYTES", 1000)
    ahead = Ahead(stream.Stream(loader.run, 0, 0), lambda delivery: delivery.to_bytes())
    next(ahead)
    until(lambda: leases(loader) == 16)
    assert ahead._turns.made is None
    assert [value for _, values in ahead for value in values] == whole(loader, 1)


def test_what_fails_in_the_thread_is_raised_in_the_loop(loader: Any) -> None:
    def fail(delivery: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("of the thread")
        return delivery.to_bytes()

    ahead = Ahead(stream.Stream(loader.run, 0, 0), fail)
    next(ahead)
    settle(ahead)
    with pytest.raises(MemoryError, match="of the thread"):
        next(ahead)
    del ahead
    gc.collect()
    until(lambda: leases(loader) == 0)


def test_without_threads_to_be_had_the_loop_makes_its_batches(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    assert [bytes(value) for values, _ in loader for value in values] == whole(loader)


def test_a_pass_dropped_by_the_thread_itself_ends_it(loader: Any) -> None:
    """As the collector does it, which runs wherever memory is asked for."""
    kept: list[Any] = []
    come, dropped = threading.Event(), threading.Event()

    def drop(delivery: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            come.wait(10)
            kept.clear()
            dropped.set()
        return delivery.to_bytes()

    kept.append(Ahead(stream.Stream(loader.run, 0, 0), drop))
    next(kept[0])
    while not kept[0]._busy or kept[0]._turns.done.acquire(timeout=1):
        kept[0]._begin()
    come.set()
    assert dropped.wait(10)
    until(lambda: not threads())
    until(lambda: leases(loader) == 0)


def test_a_pass_that_ends_early_leaves_nothing_behind(loader: Any) -> None:
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    assert loader.state_dict()["position"] == 32, "what was made ahead doesn't count"
    del iterator
    until(lambda: leases(loader) == 0)
    assert not threads()


def test_an_exception_in_the_loop_leaves_nothing_behind(loader: Any) -> None:
    def fail() -> None:
        for _ in loader:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    # The traceback had the pass.
    gc.collect()
    until(lambda: leases(loader) == 0)
    assert not threads()


def test_a_killed_agent_takes_no_batch_with_it_that_was_made(loader: Any, home: Any) -> None:
    ahead = made_ahead(loader)
    os.kill(_agent.connect(str(home.cache_dir)).pid, signal.SIGKILL)
    assert [value for _, values in ahead for value in values] == whole(loader, 1)


def test_a_forked_child_leaves_the_parents_pass_alone(loader: Any) -> None:
    expected = whole(loader, 1)
    ahead = made_ahead(loader)
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            try:
                next(ahead)
            except errors.ForkedError:
                del ahead
                status = 0
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert [value for _, values in ahead for value in values] == expected


@pytest.mark.parametrize(
    "options",
    [{}, {"decode": len, "threads": 2}, {"decode": len, "threads": 2, "collate_fn": list}, {"batch_size": None}],
)
def test_a_pass_that_a_forked_child_goes_on_with_is_refused_however_it_is_made(
    data: Any, options: dict[str, Any]
) -> None:
    loader: Any = DataLoader(data, **{"batch_size": 8, "cache": fl.Cache(ram="32MB"), **options})
    expected = len(list(loader))
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            try:
                next(batches)
            except errors.ForkedError:
                status = 0
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert 1 + len(list(batches)) == expected


def test_an_agent_that_ended_between_two_passes_is_replaced_when_the_next_begins(
    data: Any, home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(data, 40, shuffle=True, seed=3)
    expected = [batch for _ in range(2) for batch in loader]
    start, ended = Attachment.start, list[int]()

    def unaware(self: Attachment, *where: Any) -> Any:
        if not ended:
            ended.append(_agent.connect(str(home.cache_dir)).pid)
            job = self.job()
            os.kill(ended[0], signal.SIGKILL)
            # A process that hasn't heard yet finds out when it sends something.
            while job.is_usable():
                with contextlib.suppress(errors.ClosedError):
                    job.start(*where[:3])
            raise errors.ClosedError("the foreload agent ended")
        return start(self, *where)

    loader.set_epoch(0)
    found = list(loader)
    monkeypatch.setattr(Attachment, "start", unaware)
    found += list(loader)
    assert [batch[0] for batch in found] == [batch[0] for batch in expected]
