"""Several data sets in one order: exact proportions, the streams' own bytes, and a run that goes on at every step."""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data as torch_data

import foreload as fl
from foreload import errors
from foreload._node import agent as _agent
from foreload.torch import DataLoader, Dataset, Sampler
from small import COUNT

TINY = fl.Cache(ram="16MB")
#: Of train, text and flat: reads in ten positions.
WEIGHTS = (6, 1, 3)
NAMES = ("photos", "texts", "0x")


@pytest.fixture
def parts(data: Any, tmp_path: Path) -> list[fl.Dataset]:
    """A bucket's data set, one in a directory, which is another origin, and another prefix of the bucket."""
    for number in range(7):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{number}.txt").write_bytes(b"text %d" % number)
    return [data, fl.open(tmp_path / "texts"), fl.open("s3://data/flat")]


@pytest.fixture
def mixture(parts: list[fl.Dataset]) -> fl.Mixture:
    return mixed(parts)


def mixed(parts: list[fl.Dataset], weights: Any = WEIGHTS, **keywords: Any) -> fl.Mixture:
    streams = [fl.Stream(part, weight, name) for part, weight, name in zip(parts, weights, NAMES, strict=True)]
    return fl.Mixture(streams, **{"samples": 48, **keywords})


def told(raw: memoryview, meta: fl.Meta) -> tuple[int, str | None, str, bytes]:
    return meta.sample, meta.stream, meta.key, bytes(raw)


def as_is(pairs: list[Any]) -> list[Any]:
    return pairs


def make(mixture: Any, **keywords: Any) -> Any:
    given = {"shuffle": True, "seed": 5, "decode": told, "collate_fn": as_is, "cache": TINY, **keywords}
    return DataLoader(mixture, given.pop("batch_size", 12), **given)


def of_ranks(mixture: fl.Mixture, world: int, state: Any = None, passes: int = 2, **keywords: Any) -> list[list[Any]]:
    """The global batches, whose samples the ranks have dealt among them; each in the order of its samples."""
    ranks = [make(mixture, batch_size=12 // world, dp_rank=rank, dp_size=world, **keywords) for rank in range(world)]
    if state is not None:
        for loader in ranks:
            loader.load_state_dict(json.loads(json.dumps(state)))
    dealt = [shares for _ in range(passes) for shares in zip(*ranks, strict=True)]
    return [sorted(pair for share in shares for pair in share) for shares in dealt]


def check_bytes(mixture: fl.Mixture, rows: list[Any]) -> None:
    """Each sample is what its stream reads by itself."""
    streams = {stream.name: stream.data for stream in mixture.streams}
    for (sample, stream, key, body), label in rows:
        name, number = mixture.stream_of(sample)
        assert (stream, key, body) == (name, streams[name].key(number), streams[name].read(number))
        assert label == (-1 if streams[name].label(number) is None else streams[name].label(number))


def test_every_beginning_of_the_run_has_its_shares_and_every_sample_its_streams_bytes(mixture: fl.Mixture) -> None:
    loader = make(mixture)
    rows = [pair for _ in range(4) for batch in loader for pair in batch]
    assert len(rows) == 4 * 48
    counts = Counter[str]()
    for position, ((_, stream, *_), _) in enumerate(rows, 1):
        counts[stream] += 1
        for name, weight in zip(NAMES, WEIGHTS, strict=True):
            assert position * weight // 10 <= counts[name] <= -(-position * weight // 10)
    check_bytes(mixture, rows)
    for name, size in (("photos", COUNT), ("texts", 7), ("0x", 10)):
        read = [sample for (sample, stream, *_), _ in rows if stream == name]
        for begin in range(0, len(read) - len(read) % size, size):
            assert len(set(read[begin : begin + size])) == size, "a pass has each sample once"
        assert size == COUNT or read[:size] != read[size : 2 * size], "another order in each pass"


def test_two_runs_are_the_same_and_another_seed_is_another(mixture: fl.Mixture, parts: list[fl.Dataset]) -> None:
    first = of_ranks(mixture, 1)
    assert of_ranks(mixed(parts), 1) == first
    assert of_ranks(mixture, 1, seed=6) != first
    assert of_ranks(pickle.loads(pickle.dumps(mixture)), 1) == first


@pytest.mark.parametrize("world", [2, 3])
def test_the_ranks_share_what_one_has(mixture: fl.Mixture, world: int) -> None:
    assert of_ranks(mixture, world) == of_ranks(mixture, 1)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_restored_at_every_step_the_remainder_is_identical(mixture: fl.Mixture, world: int, workers: int) -> None:
    whole = of_ranks(mixture, 1)
    running = make(mixture)
    states = [running.state_dict()]
    for _ in range(2):
        states += [running.state_dict() for _ in running]
    assert len(states) == len(whole) + 1 == 9
    for step, state in enumerate(states[:-1]):
        # With workers the rest of the epoch, which is when they know of the state.
        passes = 2 if step < 4 and not workers else 1
        end = 4 if step < 4 and workers else 8
        remainder = of_ranks(mixture, world, state, passes, num_workers=workers)
        assert remainder == whole[step:end], f"saved at step {step}"


def test_a_state_of_other_weights_or_streams_is_refused(mixture: fl.Mixture, parts: list[fl.Dataset]) -> None:
    state = make(mixture).state_dict()
    for other in (mixed(parts, (6, 3, 1)), mixed(parts, samples=36)):
        with pytest.raises(errors.StateError, match="other weights or another length"):
            make(other).load_state_dict(state)
    with pytest.raises(errors.StateError, match="data set"):
        make(mixed([parts[0], parts[2], parts[1]])).load_state_dict(state)
    make(mixed(parts, (60, 10, 30))).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_own_loader_reads_the_same_with_our_sampler(mixture: fl.Mixture, workers: int) -> None:
    samples = Dataset(mixture, decode=told, cache=TINY, seed=5)
    sampler = Sampler(samples, seed=5, batch_size=12)
    loader = torch_data.DataLoader(samples, 12, sampler=sampler, num_workers=workers, collate_fn=as_is)
    assert len(sampler) == 48
    assert [sorted(batch) for _ in range(2) for batch in loader] == of_ranks(mixture, 1)


def test_other_loaders_and_forms(mixture: fl.Mixture) -> None:
    whole = make(mixture)
    expected = [[(row[0], row[3], label) for row, label in batch] for batch in whole]
    arrays = fl.NumpyLoader(mixture, 12, shuffle=True, seed=5, cache=TINY, decode=told, collate=as_is)
    assert [[(row[0], row[3], label) for row, label in batch] for batch in arrays] == expected
    plain = make(mixture, decode=None, collate_fn=None)
    assert [list(zip(found, labels.tolist(), strict=True)) for found, labels in plain] == [
        [row[1:] for row in batch] for batch in expected
    ]
    assert mixture[205].bytes == b"text 2"
    assert [item.key for item in (mixture[0], mixture[209], mixture[-1])] == ["cat/00000.bin", "6.txt", "9.txt"]


def test_without_shuffling_each_stream_comes_in_its_own_order(mixture: fl.Mixture) -> None:
    rows = [pair for batch in make(mixture, shuffle=False) for pair in batch]
    texts = [sample - COUNT for (sample, stream, *_), _ in rows if stream == "texts"]
    assert texts == [0, 1, 2, 3, 4]
    with pytest.raises(errors.InvalidError, match="order='torch' doesn't go with a Mixture"):
        make(mixture, order="torch")


def test_one_data_set_may_come_twice_and_has_two_orders(data: Any) -> None:
    twice = fl.Mixture([fl.Stream(data), fl.Stream(data)])
    assert twice.samples == 2 * COUNT
    rows = [pair for batch in make(twice) for pair in batch]
    check_bytes(twice, rows)
    first, second = ([twice.stream_of(row[0])[1] for row, _ in rows if row[1] == name] for name in "01")
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert first != second


def test_an_epoch_ends_when_the_relatively_largest_stream_was_read(parts: list[fl.Dataset]) -> None:
    mixture = mixed(parts[1:] + parts[1:2], (1, 10, 1), samples=None)
    assert mixture.samples == 84
    rows = [pair for batch in make(mixture) for pair in batch]
    assert set(range(24)) == {row[0] for row, _ in rows}


def test_weights_hold_exactly_as_whole_numbers_fractions_and_short_decimals(parts: list[fl.Dataset]) -> None:
    def weights(*given: Any) -> tuple[int, ...]:
        return mixed(parts, given).weights

    assert weights(0.7, 0.2, 0.1) == (7, 2, 1)
    assert weights(1 / 3, 1 / 3, 1 / 3) == (1, 1, 1)
    assert weights(Fraction(1, 3), Fraction(1, 6), 0.5) == (2, 1, 3)
    assert weights(600, 100, 300) == WEIGHTS
    uneven = (123.456789**0.7, 17.3**0.7, 5**0.7)
    for exact, rounded in zip(uneven, weights(*uneven), strict=True):
        assert abs(rounded / sum(weights(*uneven)) - exact / sum(uneven)) < 1e-4
    with pytest.raises(errors.InvalidError, match="add up to 1299721"):
        weights(1299709, 5, 7)


@pytest.mark.parametrize("weight", [0, -1, 0.0, float("nan"), float("inf"), True, "1", None])
def test_a_weight_that_is_not_positive_is_refused(data: Any, weight: Any) -> None:
    with pytest.raises(errors.InvalidError, match="give a positive number"):
        fl.Mixture([fl.Stream(data, weight)])


def test_what_is_no_mixture_is_refused_in_words(data: Any, mixture: fl.Mixture, tmp_path: Path) -> None:
    for streams, message in (
        ([], "there is no stream"),
        ([data], "is no stream"),
        ([fl.Stream(mixture)], "can't be a Mixture itself"),
        ([fl.Stream("s3://data/train")], "not made by foreload.open"),  # type: ignore[arg-type]
        ([fl.Stream(data, name="a"), fl.Stream(data, name="a")], "called 'a'"),
        ([fl.Stream(data, 1e-9), fl.Stream(data, 1.0)], "less than one in 10000"),
    ):
        with pytest.raises(errors.InvalidError, match=message):
            fl.Mixture(streams)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidError, match="samples"):
        fl.Mixture([fl.Stream(data)], samples=0)
    with pytest.raises(errors.InvalidError, match="for the streams"):
        mixture.select([1])
    with pytest.raises(errors.InvalidError, match="for the streams"):
        mixture[:3]


def test_streams_agree_on_the_names_of_labels_or_keep_their_own(
    data: Any, parts: list[fl.Dataset], tmp_path: Path
) -> None:
    assert mixed(parts).classes == ["cat", "dog", "eel"]
    for name in ("ant", "dog"):
        (tmp_path / "other" / name).mkdir(parents=True)
        (tmp_path / "other" / name / "1.bin").write_bytes(b"x")
    other = fl.open(tmp_path / "other")
    streams = [fl.Stream(data, name="a"), fl.Stream(other, name="b")]
    with pytest.raises(errors.InvalidError, match=r"label 0 is 'cat' in stream 'a' and 'ant' in stream 'b'"):
        fl.Mixture(streams)
    own = fl.Mixture(streams, labels="own")
    assert (own.classes, own.label(COUNT), own.label(COUNT + 1)) == ([], 0, 1)
    assert own.labels.tolist() == [*data.labels.tolist(), 0, 1]


def test_a_sample_that_cannot_be_decoded_is_named_with_its_streams_url(mixture: fl.Mixture) -> None:
    def fails(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
        if meta.stream == "texts":
            raise ValueError("no")
        return torch.zeros(1)

    with pytest.raises(errors.DecodeError, match=r"texts/\d.txt\) failed: ValueError: no"):
        list(make(mixture, decode=fails))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_run_goes_on_with_a_new_agent(mixture: fl.Mixture, workers: int) -> None:
    whole = of_ranks(mixture, 1)
    found = []
    loader = make(mixture, num_workers=workers)
    for _ in range(2):
        for batch in loader:
            found.append(sorted(batch))
            if len(found) == 2:
                os.kill(_agent.connect(mixture.source.cache_dir).pid, signal.SIGKILL)
    assert found == whole
