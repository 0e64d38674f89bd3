"""The next batch's bytes are copied while the loop computes: none is lost, shown twice or left behind, whatever happens in between."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload import _agent, _run, errors
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


def threads() -> list[str]:
    """Threads that copy."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if name == "foreload-copy"]


def copied_ahead(loader: Any, first: int = 0) -> _run.Stream:
    """A stream that has handed out one batch and copied another."""
    stream = _run.Stream(loader.run, 0, first)
    next(stream)[1].to_bytes()

    def is_copied() -> bool:
        stream.copy_ahead()
        return stream._ready is not None

    until(is_copied)
    return stream


def test_a_batch_that_is_there_is_copied_before_it_is_asked_for(loader: Any) -> None:
    stream = copied_ahead(loader)
    # Its memory is the agent's again, though nobody has had it yet; the batch after it is only asked for.
    until(lambda: leases(loader) == 8 and not threads())
    rest = [value for _, delivery in stream for value in delivery.to_bytes()]
    assert rest == whole(loader, 1)


def test_copies_are_handed_out_once(loader: Any) -> None:
    stream = copied_ahead(loader)
    _, delivery = next(stream)
    assert len(delivery.to_bytes()) == 8
    with pytest.raises(ValueError, match="taken already"):
        delivery.to_bytes()
    with pytest.raises(ValueError, match="taken already"):
        delivery.begin_copies()


def test_a_large_batch_is_not_copied_ahead(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run, "_COPIED_AHEAD_BYTES", 1000)
    stream = copied_ahead(loader)
    until(lambda: leases(loader) == 16)
    assert [value for _, delivery in stream for value in delivery.to_bytes()] == whole(loader, 1)


def test_a_pass_that_ends_early_leaves_nothing_behind(loader: Any) -> None:
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    assert loader.state_dict()["position"] == 32, "what was copied ahead doesn't count"
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


def test_a_killed_agent_takes_no_copied_batch_with_it(loader: Any, home: Any) -> None:
    stream = copied_ahead(loader)
    os.kill(_agent.connect(str(home.cache_dir)).pid, signal.SIGKILL)
    assert [value for _, delivery in stream for value in delivery.to_bytes()] == whole(loader, 1)


def test_a_forked_child_leaves_the_parents_pass_alone(loader: Any) -> None:
    expected = whole(loader, 1)
    stream = copied_ahead(loader)
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            try:
                next(stream)
            except errors.ForkedError:
                del stream
                status = 0
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert [value for _, delivery in stream for value in delivery.to_bytes()] == expected
