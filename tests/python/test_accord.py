"""Ranks read the same epoch of the same plan, or are told that they don't."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from foreload import errors
from foreload._node import meeting
from foreload.torch import _accord
from foreload.torch._accord import Accord
from nowhere import run_of
from small import COUNT


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes what a rank reports to; the plans that it knows are its own, as in a process of its own."""
    store: Any = dist.HashStore()
    monkeypatch.setattr(_accord, "_store_of", lambda run: (store, run.rank))
    monkeypatch.setattr(_accord, "_PATIENCE_S", 0.0)
    known: dict[int, set[str]] = {}

    class Rank:
        def __init__(
            self, rank: int, seed: int = 3, samples: int = 100, batch: int = 5, kind: str = "keyed", **rule: Any
        ) -> None:
            self.run, self.accord, self.rank = run_of(samples, 2, batch, rule, rank, seed, kind), Accord(), rank
            # Every loader of the test is the first with its plan, in its process.
            self.run.ranks.word._numbers[self.run.plan.digest] = 0  # type: ignore[union-attr]

        def had(self, epoch: int, *batches: int, placed: int = 0) -> None:
            monkeypatch.setattr(_accord, "_known", known.setdefault(self.rank, set()))
            for batch in batches:
                self.accord.had(self.run, placed, epoch, batch)

    return Rank


def test_another_plan_is_refused_with_the_difference(ranks: Any) -> None:
    first, second = ranks(0, 42), ranks(1, 43)
    first.had(0, 1, 2, 3)
    second.had(0, 1)
    with pytest.raises(errors.InvalidError, match=r"rank 0 and rank 1 read .* seed 42 and 43\. "):
        second.had(0, 2)


def test_an_index_of_another_day_is_refused(ranks: Any) -> None:
    """The listing of one node is older than that of another: the ranks would take unequally many steps, and wait for each other without end."""
    ours, theirs = ranks(0), ranks(1, samples=104)
    ours.had(0, 1, 2)
    with pytest.raises(
        errors.InvalidError, match=r"read s3://nowhere by .* data set of 100 samples .* of 104 .*index="
    ):
        theirs.had(0, 1, 2)


def test_parts_of_one_place_are_read_by_all_ranks_in_turn(ranks: Any) -> None:
    """Training and validation: other samples of one URL, in batches of one size."""
    for rank in (0, 1):
        train, held_out = ranks(rank), ranks(rank, samples=20)
        for epoch in range(2):
            train.had(epoch, *range(1, 11))
            held_out.had(epoch, 1, 2)


def test_another_rule_for_the_end_is_refused(ranks: Any) -> None:
    ranks(1).had(0, 1, 2)
    with pytest.raises(errors.InvalidError, match=r'rank 1 and rank 0 .*rule .*\{"pad": .* and uneven'):
        ranks(0, uneven="weights").had(0, 1, 2)


def test_a_loader_more_on_one_rank_is_no_other_plan(ranks: Any) -> None:
    """Whether it came first or in between, as long as the rank comes to the common plan."""
    preview, ours, theirs = ranks(0, 7), ranks(0), ranks(1)
    preview.had(0, 1, 2, 3)
    theirs.had(0, 1)
    ours.had(0, 1)
    theirs.had(0, 2)
    ours.had(0, 2)
    ranks(1, 8).had(0, 1, 2, 3)


IN_ORDER = {"kind": "sequential"}


def test_one_rank_that_shuffles_alone_is_refused(ranks: Any) -> None:
    ours, theirs = ranks(0), ranks(1, **IN_ORDER)
    ours.had(0, *range(1, 11))
    theirs.had(0, *range(1, 10))
    with pytest.raises(errors.InvalidError, match=r"rank 0 and rank 1 read .* order .* and "):
        theirs.had(0, 10)


@pytest.mark.parametrize("is_first", [True, False])
def test_an_evaluation_on_one_rank_is_no_other_plan(ranks: Any, is_first: bool) -> None:
    evaluation, ours, theirs = ranks(0, **IN_ORDER), ranks(0), ranks(1)
    if is_first:
        evaluation.had(0, *range(1, 11))
    for batch in range(1, 11):
        ours.had(0, batch)
        theirs.had(0, batch)
    if not is_first:
        evaluation.had(0, *range(1, 11))


def test_batches_of_different_sizes_are_warned_of(ranks: Any, caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = ranks(0), ranks(1, batch=10)
    ours.had(0, *range(1, 11))
    theirs.had(0, *range(1, 6))
    assert "in batches of 5, and rank 1 of 10: they take unequally many steps" in caplog.text


def test_a_rank_that_left_an_epoch_which_others_go_through_is_refused(ranks: Any) -> None:
    ours, theirs = ranks(0), ranks(1)
    ours.had(0, 1, 2, 3)
    ours.had(1, 1)
    theirs.had(0, 1, 2, 3)
    with pytest.raises(errors.InvalidError, match=r"rank 0 is in epoch 1, rank 1 in epoch 0: .*after 3 .*had 4"):
        theirs.had(0, 4)


def test_who_left_is_told_too(ranks: Any) -> None:
    ours, theirs = ranks(0), ranks(1)
    ours.had(0, 1, 2, 3)
    theirs.had(0, 1, 2, 3, 4)
    with pytest.raises(errors.InvalidError, match="rank 0 is in epoch 1, rank 1 in epoch 0"):
        ours.had(1, 1)


def test_ranks_need_not_go_in_step(ranks: Any) -> None:
    """One is epochs ahead; both leave epochs early, at the same batch; the epoch is set; another loader begins anew."""
    ours, theirs = ranks(0), ranks(1)
    for epoch in range(3):
        ours.had(epoch, *range(1, 11))
    ours.had(3, 1, 2, 3)
    ours.had(4, 1)
    for epoch in range(3):
        theirs.had(epoch, *range(1, 11))
    theirs.had(3, 1, 2, 3)
    theirs.had(4, *range(1, 11))
    ours.had(0, 1, 2, placed=1)
    ours.had(1, 1, placed=2)
    theirs.had(0, *range(1, 11), placed=1)


def test_a_store_that_fails_ends_the_comparison_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("connection reset")

    monkeypatch.setattr(_accord, "_store_of", lambda run: (Gone(), run.rank))
    Accord().had(run_of(100, 2, 5, {}), 0, 0, 1)


def test_a_store_that_is_silent_holds_nobody_up_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, end = [], threading.Event()

    class Silent:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            end.wait()

    monkeypatch.setattr(_accord, "_store_of", lambda run: (Silent(), run.rank))
    monkeypatch.setattr(meeting, "_ANSWER_S", 0.2)
    accord, begun = Accord(), time.monotonic()
    for batch in range(1, 9):
        accord.had(run_of(100, 2, 5, {}), 0, 0, batch)
    assert time.monotonic() - begun < 0.4
    end.set()
    assert len(asked) == 1
    assert "the ranks' plans and epochs are not compared: torch's store doesn't answer for 0.2 s" in caplog.text


PROGRAM = """
import json, os
import torch.distributed as dist
import foreload as fl
from foreload.torch import DataLoader, _accord
from torch.utils.data import DistributedSampler
_accord._PATIENCE_S = 0.2
dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()
data = fl.open("s3://data/fixed")

def meet(where):
    # A collective's end may find the other process gone.
    store.set(f"{where}/{rank}", "")
    store.wait([f"{where}/{1 - rank}"])

def make(seed, batch_size=10):
    return DataLoader(data, batch_size, shuffle=True, seed=seed, decode=lambda raw, meta: meta.sample)

def told(loader, where):
    try:
        epochs = [[x.tolist() for x, _ in loader] for _ in range(2)]
        return {"epochs": epochs, "state": loader.state_dict()}
    except fl.errors.InvalidError as error:
        return {"refused": str(error)}
    finally:
        meet(where)

seeds = told(make(42 + rank, 9), "seeds")
looked, left = make(7), make(8)
if rank == 0:
    next(iter(looked))
    iterator = iter(left)
    for _ in range(3):
        next(iterator)
    # It has a loader alone, and waits for nobody.
    list(DataLoader(data, 10, shuffle=True, seed=9))
look = told(looked, "look")
apart = told(left, "apart")
# Each epoch is set at the sampler, as DistributedSampler's documentation has it: who leaves one early has nothing that comes twice.
sampler = DistributedSampler(data, seed=5)
by_sampler = DataLoader(data, 10, sampler=sampler, decode=lambda raw, meta: meta.sample)
epochs = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    had = []
    for batch, _ in by_sampler:
        had += batch.tolist()
        if rank == 0 and len(had) == 10 * (4, 1, 99)[epoch]:
            break
    epochs.append(had)
    meet(f"set/{epoch}")
print(json.dumps([seeds, look, apart, epochs]))
if rank == 1:
    store.set("bye", "")
else:
    # The store is this process'.
    store.wait(["bye"])
"""


def test_ranks_of_a_process_group_are_compared(home: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **torchrun, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    seeds, look, apart, by_sampler = zip(*map(json.loads, outputs), strict=True)
    refused = [one["refused"] for one in seeds if "refused" in one]
    assert len(refused) == 1
    assert "seed 42 and 43" in refused[0] or "seed 43 and 42" in refused[0]
    for epoch in range(2):
        dealt = [[sample for batch in one["epochs"][epoch] for sample in batch] for one in look]
        assert len(dealt[0]) == len(dealt[1]) == (COUNT + 1) // 2
        assert set(dealt[0]) | set(dealt[1]) == set(range(COUNT))
    assert look[0]["state"] == look[1]["state"]
    refused = [one["refused"] for one in apart if "refused" in one]
    assert refused
    assert "rank 0 is in epoch 1, rank 1 in epoch 0" in refused[0]
    for rank, epochs in enumerate(by_sampler):
        sampler = DistributedSampler(range(COUNT), 2, rank, seed=5)  # type: ignore[arg-type] # it wants a length alone
        for epoch, had in enumerate(epochs):
            sampler.set_epoch(epoch)
            most = (40, 10, None)[epoch] if rank == 0 else None
            assert had == list(sampler)[:most]


def test_a_rank_whose_last_batch_failed_has_left_nothing(ranks: Any) -> None:
    first, second = ranks(0), ranks(1)
    length = len(first.run)
    second.had(0, *range(1, length))
    second.accord.ended(length)
    second.had(1, 1)
    first.had(0, *range(1, length + 1))
    first.had(1, 1, 2)
