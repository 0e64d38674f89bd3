"""A checkpoint goes on with any number of ranks: saved after any step, under every rule for the end of an epoch.

What follows is compared sample by sample with the sequence itself, cut by hand. Plans need no bucket, so that every pair of 1 to 8 ranks
is tried.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from foreload import errors
from foreload._run.run import Run
from foreload._settings.order import Order
from foreload.torch import Sampler
from nowhere import Nowhere, run_of

EPOCHS = 2
PAIRS = [(before, after) for before in range(1, 9) for after in range(1, 9)]
#: As a loader's keywords, and as torch's own loader drops.
RULES: dict[str, dict[str, Any]] = {
    "repeat": {},
    "pad": {"uneven": "pad"},
    "weights": {"uneven": "weights"},
    "drop": {"drop_last": True},
    "drop as torch": {"drop_last": True, "torch": True},
}


def sequence(run: Run, epoch: int) -> list[int]:
    """The samples of an epoch, each once."""
    whole = Order(run.order.dataset, run.order.samples, run.order.kind, run.order.seed, 1, {"pad": {"multiple": 1}})
    plan = whole.plan(1)
    return [plan.sample_at(epoch, position) for position in range(run.order.samples)]


def ends(samples: int, world: int, batch: int, rule: dict[str, Any]) -> int:
    """Entries of an epoch, by the rule's words."""
    together, shared = batch * world, -(-samples // world) * world
    if rule.get("drop_last"):
        return (shared if rule.get("torch") and world > 1 else samples) // together * together
    return {"pad": -(-samples // together) * together, "weights": samples, None: shared}[rule.get("uneven")]


def read(run: Run, epoch: int, first: int) -> dict[int, int]:
    """What all ranks together read of an epoch from a batch on: the sample at each position."""
    plan, found = run.plan, {}
    for batch in range(first, len(run)):
        for rank in range(run.ranks.world):
            found.update(zip(plan.batch_positions(epoch, batch, rank), plan.batch(epoch, batch, rank), strict=True))
    return found


def lengths(together: int, before: int, after: int) -> set[int]:
    return {together, 2 * together + 1, 3 * together - 1, 2 * together + before, together + after + 1}


@pytest.mark.parametrize("name", RULES)
def test_saved_after_any_step_a_run_goes_on_with_any_number_of_ranks(name: str) -> None:
    rule = RULES[name]
    for before, after in PAIRS:
        together = math.lcm(before, after) * 2
        for samples in lengths(together, before, after):
            first = run_of(samples, before, together // before, rule)
            second = run_of(samples, after, together // after, rule)
            end = ends(samples, after, together // after, rule)
            for epoch in range(EPOCHS):
                listed = sequence(second, epoch)
                for step in range(len(first) + 1):
                    state = json.loads(json.dumps(first.state(epoch, step)))
                    at = second.resume(state)
                    told = f"{samples} samples, {before} to {after} ranks, step {step} of {len(first)}"
                    if step == len(first) or step * together >= end:
                        assert at == (epoch + 1, 0, []), told
                        continue
                    assert at == (epoch, step, []), told
                    wanted = {place: listed[place % samples] for place in range(step * together, end)}
                    assert read(second, *at[:2]) == wanted, told


@pytest.mark.parametrize("name", RULES)
def test_saved_at_the_end_of_an_epoch_a_run_goes_on_with_any_batch(name: str) -> None:
    rule, batch = RULES[name], 3
    for before, after in PAIRS:
        for samples in (24, 25, 41, 60):
            first, second = run_of(samples, before, batch, rule), run_of(samples, after, batch, rule)
            if not len(first):
                continue
            assert second.resume(first.state(0, len(first))) == (1, 0, []), f"{samples}, {before} to {after}"


def test_a_state_of_an_older_release_ends_where_the_samples_do() -> None:
    state = run_of(241, 1, 48, {}).state(4, 6)
    del state["positions"]
    assert state["position"] == 241
    assert run_of(241, 3, 16, {}).resume(state) == (5, 0, [])
    with pytest.raises(errors.StateError, match="positions"):
        run_of(241, 3, 16, {}).resume({**state, "positions": "241"})


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samplers yield without an agent to tell."""
    monkeypatch.setattr(Run, "begin", lambda *_: None)
    monkeypatch.setattr(Run, "keep_up", lambda *_: None)
    monkeypatch.setattr(Run, "leave", lambda *_: None)


def passes(world: int, samples: int, batch: int, drop_last: bool, state: Any) -> tuple[list[Sampler], list[Any]]:
    data = Nowhere(samples)
    samplers = [Sampler(data, world, rank, seed=3, drop_last=drop_last, batch_size=batch) for rank in range(world)]
    for sampler in samplers if state is not None else ():
        sampler.load_state_dict(state)
    return samplers, [iter(sampler) for sampler in samplers]


def together_of(iterators: list[Iterator[int]]) -> list[tuple[int, ...]]:
    return list(zip(*iterators, strict=True))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_sampler_goes_on_with_any_number_of_ranks(drop_last: bool) -> None:
    """Saved between samples too, where the ranks can have had them equally."""
    batch = 2
    for before, after in itertools.product((1, 3, 4, 8), repeat=2):
        for samples in (24, 41):
            [one], _ = passes(1, samples, batch, False, None)
            listed = [sequence(one.run(), epoch) for epoch in range(EPOCHS + 1)]
            end = samples // after * after if drop_last else -(-samples // after) * after
            saved, _ = passes(before, samples, batch, drop_last, None)
            for epoch in range(EPOCHS):
                for had in range(1, len(saved[0]) + 1):
                    saved[0].set_epoch(epoch)
                    pulled = iter(saved[0])
                    for _ in range(had):
                        next(pulled)
                    if had == len(saved[0]):
                        assert next(pulled, None) is None
                    state = json.loads(json.dumps(saved[0].state_dict(had)))
                    position = had * before
                    told = f"{samples} samples, {before} to {after} ranks, {had} each"
                    over = had == len(saved[0]) or position >= end
                    if not over and position % (batch * after) % after:
                        with pytest.raises(errors.StateError, match="equally"):
                            passes(after, samples, batch, drop_last, state)
                        continue
                    _, iterators = passes(after, samples, batch, drop_last, state)
                    rest = [sample for row in together_of(iterators) for sample in row]
                    here, start = (epoch + 1, 0) if over else (epoch, position)
                    assert sorted(rest) == sorted(listed[here][place % samples] for place in range(start, end)), told
