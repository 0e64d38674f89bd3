"""Saved anywhere and restored on any number of ranks and workers, a run goes on as if it had not stopped."""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data import DistributedSampler

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader, Dataset, Sampler
from small import COUNT

TINY = fl.Cache(ram="16MB")


def head(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    return torch.tensor([meta.sample, meta.seed % 1000])


def make(data: Any, **keywords: Any) -> Any:
    return DataLoader(data, **{"batch_size": 24, "shuffle": True, "seed": 2, "decode": head, "cache": TINY, **keywords})


def rows(batches: Any) -> list[list[list[int]]]:
    return [values.tolist() for values, _ in batches]


def two_epochs(data: Any, **keywords: Any) -> list[list[list[int]]]:
    loader = make(data, **keywords)
    return rows(loader) + rows(loader)


def check_each_step(data: Any, whole: list[list[list[int]]], **given: Any) -> None:
    """A loader that is restored with the state of any step goes on with what is left of two epochs."""
    running = make(data, **given)
    states = [running.state_dict()]
    for _ in range(2):
        states += [running.state_dict() for _ in running]
    assert len(states) == len(whole) + 1
    for step, state in enumerate(states[:-1]):
        restored = make(data, **given)
        restored.load_state_dict(json.loads(json.dumps(state)))
        remainder = rows(restored)
        if step < len(whole) // 2:
            remainder += rows(restored)
        assert remainder == whole[step:], f"saved at step {step}"


@pytest.mark.parametrize("order", ["keyed", "torch", "sequential", "contiguous"])
def test_restored_at_every_step_the_remainder_is_identical(data: Any, order: str) -> None:
    given: dict[str, Any] = {"order": order, "shuffle": order in ("keyed", "torch")}
    whole = two_epochs(data, **given)
    check_each_step(data, whole, **given)


@pytest.mark.parametrize("kept", ["with workers", "in next to no memory", "on a disk"])
def test_restored_at_every_step_whatever_keeps_the_samples_the_remainder_is_identical(
    data: Any, tmp_path: Path, kept: str
) -> None:
    little = fl.Cache(ram="16MB", batches="15MB")
    given: dict[str, Any] = {
        "with workers": {"num_workers": 2},
        "in next to no memory": {"cache": little},
        "on a disk": {"cache": fl.Cache(ram="16MB", batches="15MB", disk=f"{tmp_path}/tier:64MB")},
    }[kept]
    # Half as many batches: workers are started for each of them.
    size = {"batch_size": 48, **given}
    whole = two_epochs(data, batch_size=48)
    assert len(whole) == 10
    check_each_step(data, whole, **size)


@pytest.mark.parametrize("workers", [(0, 2), (2, 0), (2, 3)])
def test_the_number_of_workers_may_change_and_read_ahead_does_not_count(data: Any, workers: tuple[int, int]) -> None:
    whole = two_epochs(data)
    first = make(data, num_workers=workers[0], prefetch_factor=4 if workers[0] else None)
    consumed = []
    for at, (values, _) in enumerate(first):
        consumed.append(values.tolist())
        if at == 4:
            break
    state = first.state_dict()
    assert (state["epoch"], state["position"]) == (0, 5 * 24)
    second = make(data, num_workers=workers[1])
    second.load_state_dict(state)
    assert consumed + rows(second) + rows(second) == whole


def lagging(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    """As `head`, slowly in the first worker."""
    worker = torch_data.get_worker_info()
    if worker is not None and worker.id == 0:
        time.sleep(0.02)
    return head(raw, meta)


@pytest.mark.parametrize("mine", [False, True])
@pytest.mark.parametrize("after", [{"num_workers": 2, "in_order": False}, {"num_workers": 2}, {}])
def test_out_of_order_the_state_says_exactly_what_was_consumed(data: Any, after: dict[str, Any], mine: bool) -> None:
    unequal = [list(range(at, min(at + 12 - at % 5, COUNT))) for at in range(0, COUNT, 12)]
    order = {"batch_sampler": unequal, "batch_size": 1, "shuffle": False} if mine else {"batch_size": 12}
    whole = samples_of(make(data, **order))
    for had, state in out_of_order(data, **order):
        second = make(data, **{"decode": lagging, **order, **after})
        second.load_state_dict(state)
        assert second.state_dict() == state
        assert sorted(had + samples_of(second)) == sorted(whole)
        assert len(list(second)) == len(second), "the next epoch is whole"


def test_a_state_with_a_gap_goes_on_with_other_ranks_and_loaders_but_not_with_other_batches(data: Any) -> None:
    _, (had, state) = out_of_order(data, batch_size=12)
    shares = [make(data, batch_size=6, dp_rank=rank, dp_size=2, num_workers=2) for rank in range(2)]
    for share in shares:
        share.load_state_dict(state)
    rest = [samples_of(share) for share in shares]
    assert len(rest[0]) == len(rest[1])
    # The ranks' last batch is filled with a repeated sample.
    assert Counter(had + rest[0] + rest[1]).total() == COUNT + 1
    assert set(had + rest[0] + rest[1]) == set(range(COUNT))
    arrays = fl.NumpyLoader(data, 12, shuffle=True, seed=2, cache=TINY, decode=lambda raw, meta: meta.sample)
    arrays.load_state_dict(state)
    assert sorted(had + [int(sample) for samples, _ in arrays for sample in samples]) == list(range(COUNT))
    with pytest.raises(errors.StateError, match=r"in_order=False.*global batch of 12"):
        make(data, batch_size=6).load_state_dict(state)
    with pytest.raises(errors.StateError, match="in_order=False"):
        Sampler(data, seed=2).load_state_dict(state)


@pytest.mark.parametrize("spans", [3, None, "x", "4-", "-4", "7-5", "9,4", "4,4-2", "1-" + "9" * 30, "1 ", "\u0664"])
def test_a_state_with_damaged_spans_is_refused(data: Any, spans: Any) -> None:
    loader = make(data)
    with pytest.raises(errors.StateError, match="beyond"):
        loader.load_state_dict({**loader.state_dict(), "version": 2, "beyond": spans})


@pytest.mark.parametrize("kind", [[1], {"a": 1}, None, 3])
def test_a_state_of_another_order_is_refused_whatever_its_words_are(data: Any, kind: Any) -> None:
    loader = make(data)
    with pytest.raises(errors.StateError, match="another run"):
        loader.load_state_dict({**loader.state_dict(), "sequence": "x", "kind": kind})


@pytest.mark.parametrize(("had", "goes_on"), [(0, (5, 0)), (2, (5, 2)), (9, (6, 0))])
def test_a_state_goes_on_where_an_epoch_was_set_and_passes_went_on_from_it(
    data: Any, had: int, goes_on: tuple[int, int]
) -> None:
    """Lightning sets its own epoch, within which it may read a short loader several times, and sets it again when it resumes."""
    loader = make_at(data, 3)
    for _ in range(2):
        rows(loader)
    batches = iter(loader)
    for _ in range(had):
        next(batches)
    state = loader.state_dict()
    epoch, first = goes_on
    for told in (None, 3):
        again = make(data)
        again.load_state_dict(state)
        if told is not None:
            again.set_epoch(told)
            saved = again.state_dict()
            again = make(data)
            again.load_state_dict(saved)
            again.set_epoch(told)
        assert rows(again) == rows(make_at(data, epoch))[first:]
        assert rows(again) == rows(make_at(data, epoch + 1))
    # Another one is another one, also the one that the state is of the end of.
    for told in (4, 7):
        again = make(data)
        again.load_state_dict(state)
        again.set_epoch(told)
        assert rows(again) == rows(make_at(data, told))


@pytest.mark.parametrize("kind", ["loader", "numpy", "listed"])
@pytest.mark.parametrize("then", [lambda it: it.set_epoch(0), lambda it: (it.set_epoch(0), list(it)), lambda it: None])
def test_a_state_of_an_epochs_end_is_one_after_it_was_loaded_set_and_saved_again(
    data: Any, kind: str, then: Any
) -> None:
    def made() -> Any:
        if kind == "numpy":
            return fl.NumpyLoader(data, 24, shuffle=True, seed=2, cache=TINY, decode=head)
        sampler = {"shuffle": False, "sampler": DistributedSampler(data, 1, 0, seed=2)} if kind == "listed" else {}  # type: ignore[arg-type]
        return make(data, **sampler)

    def epochs(loader: Any) -> list[list[list[int]]]:
        found = []
        for epoch in range(3):
            loader.set_epoch(epoch)
            found.append([np.asarray(values).tolist() for values, _ in loader])
        return found

    wanted = epochs(made())
    loader = made()
    loader.set_epoch(0)
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    state = loader.state_dict()
    for _ in range(2):
        again = made()
        again.load_state_dict(state)
        assert epochs(again) == [[], *wanted[1:]]
        again = made()
        again.load_state_dict(state)
        then(again)
        state = again.state_dict()


@pytest.mark.parametrize("epoch", [True, -1, "3", 1 << 40])
def test_a_damaged_epoch_of_a_state_is_refused(data: Any, epoch: Any) -> None:
    loader = make(data)
    for name in ("set", "over"):
        with pytest.raises(errors.StateError, match=name):
            loader.load_state_dict({**loader.state_dict(), name: epoch})


def test_spans_end_where_the_epoch_does(data: Any) -> None:
    loader = make(data)
    # As many numbers as would fill the memory.
    loader.load_state_dict({**loader.state_dict(), "version": 2, "beyond": f"2-{10**15}"})
    assert loader._cursor.beyond == frozenset(range(2, len(loader)))
    assert len(list(loader)) == 2


def samples_of(loader: Any) -> list[int]:
    return [sample for values, _ in loader for sample in values[:, 0].tolist()]


def out_of_order(data: Any, **order: Any) -> list[tuple[list[int], dict[str, Any]]]:
    """The first and the last state with a gap, each with the samples that the loop had had."""
    loader = make(data, decode=lagging, num_workers=2, in_order=False, **order)
    had: list[int] = []
    states = []
    for at, (values, _) in enumerate(loader):
        had += values[:, 0].tolist()
        state = json.loads(json.dumps(loader.state_dict()))
        if "beyond" in state:
            states.append((list(had), state))
        if at == 8:
            break
    assert states, "the slow worker's batch came later"
    return [states[0], states[-1]]


def test_out_of_order_several_ranks_have_no_state_within_an_epoch(data: Any) -> None:
    loader = make(data, num_workers=2, in_order=False, dp_rank=0, dp_size=2)
    assert loader.state_dict()["position"] == 0
    for at, _ in enumerate(loader):
        if at + 1 < len(loader):
            with pytest.raises(errors.StateError, match="in_order=False"):
                loader.state_dict()
    assert loader.state_dict()["position"] >= COUNT


def test_out_of_order_each_batch_has_its_own_weight(data: Any) -> None:
    loader = make(
        data, batch_size=29, decode=lagging, num_workers=2, in_order=False, uneven="weights", dp_rank=1, dp_size=2
    )
    plan = loader.run.plan
    numbers = {tuple(plan.batch(0, batch, 1)): batch for batch in range(len(loader))}
    found = [(numbers[tuple(values[:, 0].tolist())], loader.loss_weight) for values, _ in loader]
    assert [number for number, _ in found] != sorted(numbers.values()), "they came out of order"
    assert dict(found) == {batch: plan.weight(batch, 1) for batch in range(len(loader))}


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 2), (2, 3), (3, 1)])
def test_the_number_of_ranks_may_change(data: Any, before: int, after: int) -> None:
    """The same samples follow in the same global batches."""
    keywords: dict[str, Any] = {"drop_last": True}

    def globally(world: int, state: dict[str, Any] | None, steps: int | None) -> tuple[list[list[int]], dict[str, Any]]:
        loaders = [make(data, batch_size=24 // world, dp_rank=rank, dp_size=world, **keywords) for rank in range(world)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        found = []
        for at, shares in enumerate(zip(*loaders, strict=True)):
            dealt = [share[0][:, 0].tolist() for share in shares]
            found.append([dealt[place % world][place // world] for place in range(24)])
            if at + 1 == steps:
                break
        states = [loader.state_dict() for loader in loaders]
        assert all(one == states[0] for one in states), "the state is the same on every rank"
        return found, states[0]

    whole, _ = globally(1, None, None)
    begun, state = globally(before, None, 3)
    rest, end = globally(after, state, None)
    assert begun + rest == whole
    assert make(data, **keywords).run.resume(end) == (1, 0, [])


def test_another_global_batch_resumes_where_a_batch_begins(data: Any) -> None:
    whole = [sample for batch in rows(make(data)) for sample in batch]
    first = make(data)
    iterator = iter(first)
    for _ in range(4):
        next(iterator)
    state = first.state_dict()
    second = make(data, batch_size=32)
    second.load_state_dict(state)
    assert [sample for batch in rows(second) for sample in batch] == whole[96:]
    with pytest.raises(errors.StateError, match=r"after 96 samples.*divides 96"):
        make(data, batch_size=20).load_state_dict(state)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"seed": 3}, "seed 2 in the state, 3 here"),
        ({"shuffle": False}, "order keyed in the state, sequential here"),
        ({"order": "torch"}, "torch_random"),
    ],
)
def test_a_state_of_another_run_is_refused_with_the_difference(data: Any, other: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.StateError, match=words):
        make(data, **other).load_state_dict(make(data).state_dict())
    with pytest.raises(errors.StateError, match="data set"):
        make(data.select(range(100))).load_state_dict(make(data).state_dict())
    with pytest.raises(errors.StateError, match="not the state"):
        make(data).load_state_dict({})
    with pytest.raises(errors.StateError, match="newer release"):
        make(data).load_state_dict({**make(data).state_dict(), "version": 99})


def test_a_state_is_small_and_loads_with_weights_only(data: Any) -> None:
    state = make(data).state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    assert len(file.getvalue()) < 3000
    file.seek(0)
    assert torch.load(file, weights_only=True) == state
    assert all(isinstance(value, (int, str)) for value in state.values())


def test_saved_after_the_last_batch_the_next_epoch_follows(data: Any) -> None:
    loader = make(data)
    last = None
    for _ in loader:
        last = loader.state_dict()
    for state in (last, loader.state_dict()):
        restored = make(data)
        restored.load_state_dict(state)
        assert rows(restored) == rows(make_at(data, 1))


def make_at(data: Any, epoch: int) -> Any:
    loader = make(data)
    loader.set_epoch(epoch)
    return loader


def test_setting_the_resumed_epoch_keeps_the_position(data: Any) -> None:
    whole = rows(make_at(data, 1))
    loader = make_at(data, 1)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    restored = make(data)
    restored.load_state_dict(loader.state_dict())
    for epoch in range(1, 3):
        restored.set_epoch(epoch)
        assert rows(restored) == (whole[2:] if epoch == 1 else rows(make_at(data, 2)))


def test_a_second_resume_goes_on_too(data: Any) -> None:
    whole, found, state = two_epochs(data), [], None
    while len(found) < len(whole):
        loader = make(data)
        if state is not None:
            loader.load_state_dict(state)
        for at, (values, _) in enumerate(loader):
            found.append(values.tolist())
            if at == 2:
                break
        state = loader.state_dict()
    assert found == whole


@pytest.mark.parametrize("batches", [None, [[1, 2, 3], [4], [9, 8, 7, 6], [200, 200], [5]]])
def test_a_sampler_of_ones_own_resumes(data: Any, batches: Any) -> None:
    def mine() -> Any:
        if batches is not None:
            return make(data, shuffle=False, batch_size=1, batch_sampler=batches)
        sampler = torch_data.SubsetRandomSampler(range(50, 150), generator=torch.Generator().manual_seed(1))
        return make(data, shuffle=False, sampler=sampler)

    whole = rows(mine())
    loader = mine()
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    restored = mine()
    restored.load_state_dict(loader.state_dict())
    assert rows(restored) == whole[2:]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_are_cut_otherwise_do_not_resume(data: Any, workers: int) -> None:
    def mine(batches: Any) -> Any:
        return make(data, shuffle=False, batch_size=1, batch_sampler=batches, num_workers=workers)

    loader = mine([[1, 2, 3], [4], [9, 8, 7, 6], [5]])
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    again = mine([[1, 2, 3], [4], [9, 8, 7, 6], [5]])
    again.load_state_dict(loader.state_dict())
    assert again.state_dict() == loader.state_dict()
    for other in ([[1, 2], [3], [4, 9], [8, 7, 6, 5]], [[1], [2, 3, 4, 9, 8, 7], [6, 5]]):
        restored = mine(other)
        restored.load_state_dict(again.state_dict())
        with pytest.raises(errors.StateError, match="after 2 batches with 4 samples"):
            next(iter(restored))


def test_batches_beyond_those_of_the_first_epoch_are_left_out(data: Any) -> None:
    sizes = {0: [2, 10], 1: [1, 3, 1, 4, 3]}

    class Epochs:
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            samples = iter(range(12))
            return iter([[next(samples) for _ in range(size)] for size in sizes[self.epoch % 2]])

    loader = make(data, shuffle=False, batch_size=1, batch_sampler=Epochs())
    loader.load_state_dict(
        {**loader.state_dict(), "version": 2, "epoch": 1, "told": 1, "batches": 1, "position": 1, "beyond": "4"}
    )
    assert samples_of(loader) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_torchs_own_loader_resumes_through_the_sampler(data: Any) -> None:
    def stock(sampler: Sampler) -> Any:
        return torch_data.DataLoader(
            Dataset(data, decode=head, cache=TINY), sampler=sampler, batch_size=24, num_workers=2
        )

    whole = rows(stock(Sampler(data, seed=1)))
    first = Sampler(data, seed=1)
    iterator = iter(stock(first))
    for _ in range(3):
        next(iterator)
    state = first.state_dict(consumed=3 * 24)
    assert first.state_dict()["position"] >= state["position"]
    second = Sampler(data, seed=1)
    second.load_state_dict(state)
    assert rows(stock(second)) == whole[3:]
    other = Sampler(data, seed=1)
    other.load_state_dict({**state, "position": 100})
    assert [row for batch in rows(stock(other)) for row in batch] == [row for batch in whole for row in batch][100:]
    assert len(list(other)) == COUNT
    # As torchdata does: it gives a state to the sampler and then to its iterator, which of an epoch that is over has nothing left.
    ended = Sampler(data, seed=1)
    assert len(list(ended)) == COUNT
    state_at_end, second_epoch = ended.state_dict(), list(ended)
    for state_of, left in ((state, COUNT - 72), (state_at_end, 0)):
        resumed = Sampler(data, seed=1)
        resumed.load_state_dict(state_of)
        reads: Any = iter(resumed)
        reads.load_state_dict(state_of)
        assert len(list(reads)) == left
        assert list(resumed) == second_epoch, "and then the next epoch, of which nothing is left out"
    # One rank had 7 samples: three ranks can't have had them equally, and two of them would repeat some.
    odd = {**state, "position": 7}
    with pytest.raises(errors.StateError, match=r"3 ranks can't have had equally"):
        Sampler(data, 3, 0, seed=1).load_state_dict(odd)
    shares = [Sampler(data, 7, rank, seed=1) for rank in range(7)]
    for share in shares:
        share.load_state_dict(odd)
    assert len({len(list(share)) for share in shares}) == 1


def test_numpy_and_torch_loaders_understand_each_others_states(data: Any) -> None:
    loader = fl.NumpyLoader(data, 24, shuffle=True, seed=2, cache=TINY)
    iterator = iter(loader)
    next(iterator)
    ours = make(data)
    ours.load_state_dict(loader.state_dict())
    assert len(rows(ours)) == len(loader) - 1


@pytest.mark.parametrize("at", [3, 12])
@pytest.mark.parametrize("before", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_a_state_of_torchs_order_goes_on_whether_or_not_workers_persist(
    data: Any, before: dict[str, Any], at: int
) -> None:
    after = {} if before else {"num_workers": 1, "persistent_workers": True}
    loader = make(data, order="torch", **before)
    whole = rows(loader) + rows(loader) + rows(loader)
    loader = make(data, order="torch", **before)
    batches = (batch for _ in range(2) for batch in loader)
    for _ in range(at):
        next(batches)
    state = loader.state_dict()
    other = make(data, order="torch", **after)
    # Its own order, which workers that persist go on with if they aren't ended.
    next(iter(other))
    other.load_state_dict(state)
    assert rows(other) + rows(other) == whole[at : (at // 9 + 2) * 9]


def test_a_state_says_the_epoch_that_was_set(data: Any) -> None:
    whole, loader = make(data), make(data)
    rows(loader)
    for epoch in (7, 3):
        loader.set_epoch(epoch)
        whole.set_epoch(epoch)
        other = make(data)
        other.load_state_dict(loader.state_dict())
        assert rows(other) == rows(whole)
    batches = iter(loader)
    first = next(batches)
    loader.set_epoch(5)
    assert loader.state_dict()["epoch"] == 3, "what is under way is not left by that"
    assert [first[0].tolist(), *rows(batches)] == rows(whole.set_epoch(3) or whole)
