"""A pass goes on after an error that the loop catches, with the next batch, as under torch's loader: it never just ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torchs

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader

COUNT, SIZE = 22, 4
#: Samples that can't be had: in the first batch, in two after each other and in the last, which isn't full.
BAD = (1, 9, 12, 13, 21)


@pytest.fixture
def files(home: Any, tmp_path: Path) -> Path:
    for number in range(COUNT):
        (tmp_path / f"{number:02}").write_bytes(bytes([number]))
    return tmp_path


def fails(number: int) -> torch.Tensor:
    if number in BAD:
        raise KeyError(f"bad {number}")
    return torch.tensor([number])


def ragged(number: int) -> torch.Tensor:
    return torch.zeros(2, dtype=torch.int64) if number in BAD else torch.tensor([number])


def plain(number: int) -> torch.Tensor:
    return torch.tensor([number])


def picky(batch: list[tuple[torch.Tensor, int]]) -> Any:
    for value, _ in batch:
        fails(int(value[0]))
    return torchs.default_collate(batch)


class Numbers(torchs.Dataset[Any]):
    """The same samples in memory."""

    def __init__(self, decode: Any) -> None:
        self._decode = decode

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> Any:
        return self._decode(number), -1


def had(loader: Any, most: int = 50) -> Iterator[list[int] | None]:
    """The samples of each batch, None in place of one that raised."""
    batches = iter(loader)
    for _ in range(most):
        try:
            values, labels = next(batches)
            assert labels.tolist() == [-1] * len(labels)
            yield [int(value[0]) for value in values]
        except StopIteration:
            return
        except (KeyError, ValueError, RuntimeError, FileNotFoundError):
            yield None
    raise AssertionError("the pass doesn't end")


KINDS: dict[str, tuple[Any, Any]] = {
    "decode": (fails, None),
    "torch's collate": (ragged, None),
    "a collate of the user's": (plain, picky),
}


@pytest.mark.parametrize("given", [{}, {"threads": 0}, {"threads": 2}, {"num_workers": 2}], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_an_error_that_is_caught_costs_its_own_batch(files: Path, name: str, given: dict[str, Any]) -> None:
    decode, collate = KINDS[name]
    want = list(had(torchs.DataLoader(Numbers(decode), SIZE, collate_fn=collate)))
    assert want == [None, [4, 5, 6, 7], None, None, [16, 17, 18, 19], None]
    loader = DataLoader(fl.open(files), SIZE, decode=lambda raw: decode(raw[0]), collate_fn=collate, **given)
    assert list(had(loader)) == want
    # Nothing of it is left to the next pass.
    assert list(had(loader)) == want
    kept = loader.state_dict()
    assert (kept["epoch"], kept["position"]) == (1, COUNT)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("decode", [None, bytes])
@pytest.mark.parametrize("order", ["planned", "listed", "read as it goes"])
def test_an_object_that_is_gone_costs_its_own_batch(files: Path, workers: int, decode: Any, order: str) -> None:
    batches = [list(range(at, min(at + SIZE, COUNT))) for at in range(0, COUNT, SIZE)]
    given = {
        "planned": {"batch_size": SIZE},
        "listed": {"batch_sampler": batches},
        "read as it goes": {"batch_sampler": iter(batches)},
    }[order]
    index = fl.open(files)
    for number in BAD:
        (files / f"{number:02}").unlink()
    loader = DataLoader(index, num_workers=workers, decode=decode, **given)
    assert list(had(loader)) == [None, [4, 5, 6, 7], None, None, [16, 17, 18, 19], None]


@pytest.mark.parametrize("decode", [None, lambda raw: np.frombuffer(raw, np.uint8).copy()])
def test_so_does_the_numpy_loader(files: Path, decode: Any) -> None:
    index = fl.open(files)
    for number in BAD:
        (files / f"{number:02}").unlink()
    assert list(had(fl.NumpyLoader(index, SIZE, decode=decode))) == [
        None,
        [4, 5, 6, 7],
        None,
        None,
        [16, 17, 18, 19],
        None,
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_failed_counts_as_had_once_the_loop_goes_on(files: Path, workers: int) -> None:
    def make() -> Any:
        return DataLoader(fl.open(files), SIZE, decode=lambda raw: fails(raw[0]), num_workers=workers)

    loader = make()
    batches = iter(loader)
    with pytest.raises((KeyError, ValueError)):
        next(batches)
    again = make()
    again.load_state_dict(loader.state_dict())
    assert list(had(again))[:2] == [None, [4, 5, 6, 7]]
    assert next(batches)[0].flatten().tolist() == [4, 5, 6, 7]
    state = loader.state_dict()
    assert state["position"] == 2 * SIZE
    again = make()
    again.load_state_dict(state)
    assert list(had(again)) == [None, None, [16, 17, 18, 19], None]


def test_errors_that_come_out_of_order_are_their_batches(files: Path) -> None:
    loader = DataLoader(
        fl.open(files), SIZE, decode=lambda raw: fails(raw[0]), num_workers=2, in_order=False, persistent_workers=True
    )
    for _ in range(2):
        found = list(had(loader))
        assert found.count(None) == 4
        assert sorted(batch for batch in found if batch) == [[4, 5, 6, 7], [16, 17, 18, 19]]
    assert loader.state_dict()["position"] == COUNT


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_that_can_not_go_on_says_so_each_time(
    files: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(fl.open(files), SIZE, num_workers=workers)
    batches = iter(loader)
    next(batches)
    with monkeypatch.context() as patched:
        patched.setattr("foreload._node.job.Attachment.report_notices", lambda _: None)
        # What no batch raises: something of the machinery.
        patched.setattr("foreload._run.stream._next_had", lambda *_: {}["broken"])
        with pytest.raises(KeyError):
            next(batches)
    for _ in range(2):
        with pytest.raises(errors.ClosedError, match=r"ended by an error.*KeyError: 'broken'.*begin another"):
            next(batches)
    assert [len(labels) for _, labels in loader] == [4, 4, 4, 4, 4, 2]
