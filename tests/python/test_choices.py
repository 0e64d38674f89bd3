"""Some samples of a data set: a list of numbers beside the one index that all choices of it share."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreload as fl
from foreload import errors
from foreload._node.source import Source
from foreload.torch import DataLoader
from small import COUNT

TINY = fl.Cache(ram="16MB")


def keys(data: Any) -> list[str]:
    return [data.key(sample) for sample in range(len(data))]


def test_a_part_shares_the_index_and_is_what_one_of_its_own_would_be(data: Any, tmp_path: Path) -> None:
    part = data.select([5, 5, 0, COUNT - 1, 17])
    assert part._index.nbytes == data._index.nbytes + 4 * 5
    assert part._index.objects == 4
    saved = tmp_path / "part.flx"
    saved.write_bytes(part._index.to_bytes())
    alone = fl.open("s3://data/train", index=saved)
    assert (alone.digest, keys(alone), alone.classes) == (part.digest, keys(part), part.classes)
    assert alone._index.nbytes < data._index.nbytes
    assert [alone._index.place(i) for i in range(5)] == [part._index.place(i) for i in range(5)]
    assert (alone.labels.tolist(), alone.lengths.tolist()) == (part.labels.tolist(), part.lengths.tolist())
    assert [item.bytes for item in alone] == [item.bytes for item in part]


@pytest.mark.parametrize("form", ["list", "u1", "i1", "u4", "i4", "u8", "i8", ">u4", "mask", "reversed", "strided"])
def test_numbers_of_any_form_choose_the_same(data: Any, form: Any) -> None:
    numbers = np.array([3, 4, 70, 99])
    special: Any = {
        "list": numbers.tolist(),
        "mask": np.isin(np.arange(COUNT), numbers),
        "reversed": numbers[::-1].copy()[::-1],
        "strided": np.repeat(numbers.astype(np.uint32), 2)[::2],
    }
    given = special[form] if form in special else numbers.astype(form)
    part = data.select(given)
    assert part.source.samples.dtype == np.uint32
    assert keys(part) == [data.key(int(number)) for number in numbers]


def test_numbers_count_from_the_end_whatever_their_type(data: Any) -> None:
    assert COUNT > 127
    for form in (np.int8, np.int64):
        assert keys(data.select(np.array([-1, 2, -100], form))) == [data.key(-1), data.key(2), data.key(COUNT - 100)]
    assert keys(data.select([-COUNT, COUNT - 1])) == [data.key(0), data.key(-1)]


def test_what_happens_to_the_numbers_later_changes_nothing(data: Any) -> None:
    numbers = np.array([1, 2, 3], np.uint32)
    part = data.select(numbers)
    numbers[:] = 9
    assert keys(part) == [data.key(number) for number in (1, 2, 3)]


def test_a_part_of_a_part_is_a_list_of_the_whole(data: Any) -> None:
    part = data[10:60].select(np.arange(0, 50, 7))[::-1]
    assert part.source.samples.tolist() == [59, 52, 45, 38, 31, 24, 17, 10]
    assert (part.source.samples.dtype, part._index.nbytes) == (np.uint32, data._index.nbytes + 4 * 8)
    assert part.digest == data.select(part.source.samples).digest


def test_long_lists_are_laid_down_whole(data: Any) -> None:
    numbers = np.arange(200_003) * 7 % COUNT
    part = data.select(numbers)
    assert len(part) == 200_003
    assert np.array_equal(part.labels, data.labels[numbers])
    assert np.array_equal(part.lengths, data.lengths[numbers])


def test_a_number_that_is_no_sample_is_named_by_the_agent_too(data: Any) -> None:
    for form in (np.uint32, np.uint64):
        source = data.source.choose(np.array([3, COUNT, 4], form))
        with pytest.raises(errors.InvalidError, match=f"no sample {COUNT}: the data set has {COUNT}"):
            source.opened()


def number_of(part: Any) -> tuple[int, str, list[str], bytes]:
    opened = part.source.opened()
    return opened.number, part.digest, keys(part), part[2].bytes


def ask(part: Any, answers: Any) -> None:
    answers.put(number_of(part))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_get_the_same_data_set(data: Any, method: str) -> None:
    part = data.select(range(20, 90)).select(np.arange(69, -1, -3))
    expected = number_of(part)
    context: Any = multiprocessing.get_context(method)
    answers = context.Queue()
    process = context.Process(target=ask, args=(part, answers))
    process.start()
    assert answers.get(timeout=60) == expected
    process.join()
    assert number_of(pickle.loads(pickle.dumps(part))) == expected


def test_a_part_is_chosen_again_when_the_agent_was_killed(data: Any) -> None:
    parts = data.split({"a": 0.5, "b": 0.5}, seed=2)
    before = {name: (keys(part), part.digest) for name, part in parts.items()}
    opened = data.source.opened()
    os.kill(opened.agent_pid, signal.SIGKILL)
    with pytest.raises(errors.ClosedError):
        opened.agent.call('{"call": "status"}')
    assert {name: (keys(part), part.digest) for name, part in parts.items()} == before
    assert [bytes(item) for item in parts["a"]] == [data.read(int(at)) for at in parts["a"].source.samples]


def test_a_mixture_over_parts_counts_their_index_once(data: Any) -> None:
    parts = data.split({"a": 0.7, "b": 0.3}, seed=2)
    mixture = fl.Mixture([fl.Stream(part) for part in parts.values()])
    loader = DataLoader(mixture, 8, shuffle=True, cache=TINY)
    assert len(list(loader)) == len(loader)
    assert loader.stats()["index_bytes"] == 2 * data._index.nbytes + 4 * COUNT


def test_a_source_keeps_the_numbers_that_it_was_given(data: Any) -> None:
    numbers = np.array([1, 2], np.uint32)
    source: Source = data.source.choose(numbers)
    assert source.samples is numbers
