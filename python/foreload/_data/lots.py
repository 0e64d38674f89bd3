"""Division by lots: each sample draws one, and those with the least lots are in the first part.

The lots are drawn again where they are needed, a stretch at a time, and never held together: what a division takes is the numbers that it
answers with, 4 bytes a sample, and some megabytes. A first look finds the lots at the borders between parts. They are so many, and
so even, that each lies close to where it is expected: only those near by are gathered and ranked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Lots that are held at once.
_STRETCH = 1 << 20
_MOST = (1 << 32) - 1
#: How far from where it is expected a border is looked for, in standard deviations of the most even one; beyond that everywhere.
_NEAR = 16.0


def divide(samples: int, ranks: Sequence[int], seed: int) -> list[NDArray[np.unsignedinteger[Any]]]:
    """Divides samples at random.

    Args:
        samples: How many there are.
        ranks: Where each part begins, and the last one ends, when samples are ranked by their lots; of equal lots the first ones come first.
        seed: What the lots depend on.

    Returns:
        The numbers of each part's samples, ascending.
    """
    borders = _borders(samples, ranks, seed)
    parts = [np.empty(last - first, narrowest(samples)) for first, last in pairwise(ranks)]
    filled = [0] * len(parts)
    for first, lots in _lots(samples, seed):
        drawn = [border.least(lots) for border in borders]
        for at, (before, upto) in enumerate(pairwise(drawn)):
            numbers = np.flatnonzero(upto & ~before)
            part = parts[at][filled[at] : filled[at] + len(numbers)]
            part[...] = numbers
            part += part.dtype.type(first)
            filled[at] += len(numbers)
    return parts


def narrowest(samples: int) -> type[np.unsignedinteger[Any]]:
    """What numbers of so many samples are kept as."""
    return np.uint32 if samples <= 1 << 32 else np.uint64


def _lots(samples: int, seed: int) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """Each sample's lot, by stretches: the first sample, and the lots."""
    generator = np.random.Generator(np.random.PCG64(seed))
    for first in range(0, samples, _STRETCH):
        yield first, generator.integers(0, 1 << 32, min(_STRETCH, samples - first), np.uint32)


class _Border:
    """The least lots up to a rank: those below `lot`, and the first `equal` ones that are it."""

    def __init__(self, lot: int, equal: int) -> None:
        self.lot, self.equal = np.uint32(lot), equal

    def least(self, lots: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which of the next lots are among them."""
        least = lots < self.lot
        if self.equal:
            tied = np.flatnonzero(lots == self.lot)[: self.equal]
            least[tied] = True
            self.equal -= len(tied)
        return least


def _borders(samples: int, ranks: Sequence[int], seed: int, near: float = _NEAR) -> list[_Border]:
    """The border before each of these ranks."""
    reach = int(near * (1 << 31) / samples**0.5)
    middles = [min((rank << 32) // samples, _MOST) for rank in ranks]
    windows = [(np.uint32(max(at - reach, 0)), np.uint32(min(at + reach, _MOST))) for at in middles]
    below, gathered = [0] * len(ranks), [[np.empty(0, np.uint32)] for _ in ranks]
    inner = [at for at, rank in enumerate(ranks) if 0 < rank < samples]
    for _, lots in _lots(samples, seed) if inner else ():
        for at in inner:
            low, high = windows[at]
            below[at] += int(np.count_nonzero(lots < low))
            gathered[at].append(lots[(lots >= low) & (lots <= high)])
    found = [_Border(0, 0) if rank == 0 else _Border(_MOST, samples) for rank in ranks]
    for at in inner:
        close, rank = np.concatenate(gathered[at]), ranks[at] - below[at]
        if not 0 <= rank < len(close):
            return _borders(samples, ranks, seed, near=2 * samples**0.5)
        lot = np.partition(close, rank)[rank]
        found[at] = _Border(lot, rank - int(np.count_nonzero(close < lot)))
    return found
