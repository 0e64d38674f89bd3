"""Division by lots: the parts are what ranking all lots at once would make, and little more is held than their numbers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from foreload._data import lots


def drawn(samples: int, seed: int) -> NDArray[np.uint32]:
    return np.random.Generator(np.random.PCG64(seed)).integers(0, 1 << 32, samples, np.uint32)


def ranked(all_lots: NDArray[np.uint32], ranks: Sequence[int]) -> list[list[int]]:
    """The parts, with all lots at once: a stable sort has equal ones in their order."""
    order = np.argsort(all_lots, kind="stable")
    return [np.sort(order[first:last]).tolist() for first, last in pairwise(ranks)]


def found(samples: int, ranks: Sequence[int], seed: int) -> list[list[int]]:
    return [part.tolist() for part in lots.divide(samples, ranks, seed)]


STRETCH = 1000


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of a thousand lots, so that few samples have many of them."""
    monkeypatch.setattr(lots, "_STRETCH", STRETCH)


@pytest.mark.parametrize("samples", [1, 2, 3, 999, 1000, 1001, 65_537, 200_003])
@pytest.mark.parametrize("seed", [0, 7, (1 << 128) - 1])
def test_parts_are_what_ranking_all_lots_makes(short: None, samples: int, seed: int) -> None:
    all_lots = drawn(samples, seed)
    assert [first for first, _ in lots._lots(samples, seed)] == list(range(0, samples, STRETCH))
    assert np.array_equal(np.concatenate([some for _, some in lots._lots(samples, seed)]), all_lots)
    tenths = [samples * at // 10 for at in range(11)]
    for ranks in (
        [0, samples],
        [0, (samples + 1) // 2, samples],
        [0, samples // 2],
        sorted(set(tenths)),
        [0, 1],
        [0, samples - 1, samples],
    ):
        assert found(samples, ranks, seed) == ranked(all_lots, ranks), ranks


def test_the_parts_of_a_seed_stay_what_they_are() -> None:
    parts = lots.divide(1_000_003, [0, 900_003, 1_000_003], 1)
    assert [part.dtype for part in parts] == [np.uint32, np.uint32]
    assert [len(part) for part in parts] == [900_003, 100_000]
    expected = ranked(drawn(1_000_003, 1), [0, 900_003, 1_000_003])
    assert [part.tolist() for part in parts] == expected
    assert parts[1][:5].tolist() == FIRST


#: By a release that held all lots at once.
FIRST = [3, 7, 32, 36, 47]


@pytest.mark.parametrize("values", [1, 2, 5, 300])
def test_of_equal_lots_the_first_ones_come_first(short: None, monkeypatch: pytest.MonkeyPatch, values: int) -> None:
    """Few values, so that there are ties at every border, and borders lie far from where even lots have them."""
    samples = 5003
    step = np.uint32((1 << 32) // values % (1 << 32))

    def few(count: int, seed: int) -> NDArray[np.uint32]:
        return (drawn(count, seed) % np.uint32(values)) * step

    def stretches(count: int, seed: int) -> Iterator[tuple[int, NDArray[np.uint32]]]:
        every = few(count, seed)
        return ((first, every[first : first + STRETCH]) for first in range(0, count, STRETCH))

    monkeypatch.setattr(lots, "_lots", stretches)
    for ranks in ([0, 2500, 5003], [0, 1, 2, 4999], [0, 1000, 1001, 3000]):
        assert found(samples, ranks, 3) == ranked(few(samples, 3), ranks)


def test_a_border_far_from_where_it_is_expected_is_found(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []
    borders = lots._borders

    def look(*given: Any, **named: Any) -> Any:
        looked.append(named.get("near", 0.0))
        return borders(*given, **named)

    monkeypatch.setattr(lots, "_borders", look)
    monkeypatch.setattr(borders, "__defaults__", (0.0,))
    assert found(20_011, [0, 9_999, 20_011], 4) == ranked(drawn(20_011, 4), [0, 9_999, 20_011])
    assert len(looked) == 2, "and then everywhere"


def test_little_more_is_held_than_the_numbers() -> None:
    samples = 8_000_000
    lots.divide(10, [0, 5], 1)
    tracemalloc.start()
    parts = lots.divide(samples, [0, 7_200_000, samples], 1)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(part.nbytes for part in parts) == 4 * samples
    assert most < 4 * samples + (24 << 20)


def test_numbers_are_as_narrow_as_the_count_allows() -> None:
    assert [lots.narrowest(count) for count in (1, 1 << 32, (1 << 32) + 1)] == [np.uint32, np.uint32, np.uint64]
