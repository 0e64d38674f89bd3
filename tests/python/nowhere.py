"""Runs without a bucket, for what plans alone decide."""

from __future__ import annotations

from typing import Any

import foreload as fl
from foreload._node.ranks import Ranks, Word
from foreload._run.run import Run
from foreload._settings.order import Order, tail_of


class Nowhere(fl.Dataset):
    """A data set of which only the length matters."""

    def __init__(self, samples: int) -> None:
        self.meeting, self.source, self._samples = {}, None, samples  # type: ignore[assignment]

    def __len__(self) -> int:
        return self._samples

    @property
    def url(self) -> str:
        return "s3://nowhere"

    @property
    def digest(self) -> str:
        return f"{self._samples:032x}"


def run_of(
    samples: int, world: int, batch: int, rule: dict[str, Any], rank: int = 0, seed: int = 3, kind: str = "keyed"
) -> Run:
    """The run of one rank, with nobody to attach to."""
    data = Nowhere(samples)
    keywords = {"drop_last": False, "uneven": None, **rule}
    order = Order(data.digest, samples, kind, seed, batch * world, tail_of(world, batch * world, **keywords))
    return Run(
        data, order, Ranks(rank, world, (rank,), word=Word()), fl.Cache(), uneven=keywords["uneven"] == "weights"
    )
