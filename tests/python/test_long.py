"""More samples than the default order keeps a table for: what it computes instead goes through scheduler, agent and loader, on two ranks and after a resume."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreload as fl
from foreload.torch import DataLoader

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import golden_order  # noqa: E402 (a script)

#: An order of up to 65,536 samples is a table.
COUNT = 70_001
BATCH = 997
#: What lies at byte n is drawn: a sample is known by its 16 bytes.
BYTES = np.random.default_rng(1).bytes(16 * COUNT)


@pytest.fixture
def many(home: Any, tmp_path: Path) -> Any:
    """Seventy thousand samples in seven objects, which are read in few requests."""
    per = -(-COUNT // 7)
    for number in range(7):
        (tmp_path / f"{number}.bin").write_bytes(BYTES[16 * per * number : 16 * per * (number + 1)])
    lines = (
        f'{{"object": "{number // per}.bin", "offset": {16 * (number % per)}, "length": 16}}\n'
        for number in range(COUNT)
    )
    (tmp_path / "all.jsonl").write_text("".join(lines))
    return fl.open(tmp_path / "all.jsonl")


def samples_of(loader: Any, known: dict[bytes, int], steps: int | None = None) -> list[int]:
    found = []
    for at, (values, _) in enumerate(loader, 1):
        found += [known[value] for value in values]
        if at == steps:
            break
    return found


def test_the_order_of_many_samples_is_its_definition_on_two_ranks_and_after_a_resume(many: Any) -> None:
    known = {BYTES[at : at + 16]: at // 16 for at in range(0, len(BYTES), 16)}
    assert len(known) == COUNT > golden_order.SMALL

    def loader(**ranks: int) -> Any:
        return DataLoader(many, BATCH, shuffle=True, seed=5, cache=fl.Cache(ram="32MB"), **ranks)

    first, second = (list(map(golden_order.keyed(5, epoch, COUNT), range(COUNT))) for epoch in (0, 1))
    alone = DataLoader(many, 2 * BATCH, shuffle=True, seed=5, cache=fl.Cache(ram="32MB"))
    begun = samples_of(alone, known, 20)
    assert begun == first[: 40 * BATCH]
    state = alone.state_dict()
    # Two ranks go on with the same global batches, each with every second sample; the first of all makes the last batch even.
    rest = first[40 * BATCH :] + first[: COUNT % 2]
    for epoch, expected in ((0, rest), (1, second + second[: COUNT % 2])):
        for rank in range(2):
            mine = loader(dp_rank=rank, dp_size=2)
            mine.load_state_dict(state if epoch == 0 else {**state, "epoch": 1, "position": 0})
            assert samples_of(mine, known) == expected[rank::2]
