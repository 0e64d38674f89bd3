"""Which reading of a sample this is, and the seed of its randomness.

Randomness belongs to the reading: to the loader's seed, the epoch and the sample. Where an epoch may read a sample several times, because a
sampler of the user's says so, it belongs to the read's place in the epoch, too; and where a pass repeats an epoch because nobody set another one, to
the number of the pass. None of these depends on workers, nor on where a run was resumed.
"""

from __future__ import annotations

from typing import NamedTuple

_MASK = (1 << 64) - 1


class Readings(NamedTuple):
    """What tells the readings of a batch's samples from other readings of the same samples.

    Attributes:
        again: How many passes of the same epoch came before, where nobody set another one.
        first: Of an order that may repeat samples: the place of the batch's first read in the epoch, over all ranks.
        step: From there to the next one; 0: an epoch has each sample once.
    """

    again: int = 0
    first: int = 0
    step: int = 0

    def numbers(self, count: int) -> list[int]:
        """One for each sample; 0 where epoch and sample say it all."""
        again = self.again << 48
        return [again | (1 + self.first + at * self.step if self.step else 0) for at in range(count)]


def sample_seed(seed: int, epoch: int, sample: int, reading: int = 0) -> int:
    """A seed of 63 bits for one reading of one sample (SplitMix64's finaliser over the numbers)."""
    state = 0
    for number in (seed, epoch, sample, reading)[: 4 if reading else 3]:
        state = (state ^ (number & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state >> 1
