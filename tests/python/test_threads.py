"""Without workers: what runs in the loop's thread, as under torch's loader, and what may run in another."""

from __future__ import annotations

import gc
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data._utils.collate import default_collate_fn_map

import foreload as fl
from foreload.torch import DataLoader, _modes, _parcel
from small import COUNT, until

TINY = fl.Cache(ram="32MB")


def head(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    return torch.tensor([meta.sample, meta.epoch])


class Heads:
    """The same for torch's loader."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, sample: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([sample, 0]), sample % 3


class Values:
    """Samples of any kind for torch's loader."""

    def __init__(self, value: Callable[[int], Any], labels: Any) -> None:
        self.value, self.labels = value, labels

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, sample: int) -> tuple[Any, int]:
        return self.value(sample), int(self.labels[sample])


def numbers(loader: Any) -> list[list[int]]:
    return [batch[0][:, 0].tolist() for batch in loader]


@pytest.fixture
def collating(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that have collated."""
    found: list[str] = []
    plain = _parcel.stacked

    def stacked(*given: Any, **keywords: Any) -> Any:
        found.append(threading.current_thread().name)
        return plain(*given, **keywords)

    monkeypatch.setattr(_parcel, "stacked", stacked)
    return found


def test_torchs_collate_function_runs_beside_the_loop(data: Any, collating: list[str]) -> None:
    loader = DataLoader(data, 16, decode=head, threads=2, cache=TINY)
    assert numbers(loader) == numbers(torch_data.DataLoader(Heads(), 16))  # type: ignore[arg-type] # it has all it takes
    assert len(collating) == len(loader)
    assert {name.partition("_")[0] for name in collating} == {"foreload-collate"}


@pytest.mark.parametrize("decode", [None, head])
@pytest.mark.parametrize("threads", [None, 2, 0])
def test_a_collate_function_of_the_users_runs_in_the_loop_unless_threads_are_asked_for(
    data: Any, decode: Any, threads: int | None
) -> None:
    found: list[threading.Thread] = []

    def collate(batch: list[Any]) -> list[Any]:
        found.append(threading.current_thread())
        return batch

    loader = DataLoader(data, 16, decode=decode, collate_fn=collate, threads=threads, cache=TINY)
    right = [range(first, min(first + 16, COUNT)) for first in range(0, COUNT, 16)]
    for samples, batch in zip(right, loader, strict=True):
        assert len(batch) == len(samples)
        if decode is not None:
            assert [value[0].item() for value, _ in batch] == list(samples)
    assert len(found) == len(loader)
    main = [thread is threading.main_thread() for thread in found]
    if not threads:
        assert all(main)
    elif decode is not None:
        assert not any(main)
    else:
        assert main[0], "the first one is waited for"


def noisy(batch: list[Any]) -> torch.Tensor:
    return torch.rand(len(batch))


@pytest.mark.parametrize("decode", [None, head])
def test_what_a_collate_function_draws_it_draws_as_under_torchs_loader(data: Any, decode: Any) -> None:
    def steps(loader: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        torch.manual_seed(5)
        # The loop draws, too, between the collate function's draws.
        return [(batch, torch.rand(2)) for batch in loader]

    stock: Any = torch_data.DataLoader(Heads(), 16, collate_fn=noisy)  # type: ignore[arg-type]
    ours = DataLoader(data, 16, decode=decode, collate_fn=noisy, cache=TINY)
    for mine, theirs in zip(steps(ours), steps(stock), strict=True):
        assert all(map(torch.equal, mine, theirs))


def kinds(value: Any) -> Any:
    """A batch's tensors: values, type, device, and what of the mode they were made in can be seen."""
    if isinstance(value, torch.Tensor):
        seen = value.dtype, str(value.device), value.is_inference(), value.requires_grad, value.grad_fn is None
        return (*seen, None if value.is_meta else value.detach().tolist())
    if isinstance(value, dict):
        return {name: kinds(each) for name, each in value.items()}
    return [kinds(each) for each in value] if isinstance(value, (tuple, list)) else value


VALUES: dict[str, Callable[[int], Any]] = {
    "tensors": lambda sample: {"x": torch.full((3,), float(sample)), "y": (sample, np.float32(sample))},
    "arrays": lambda sample: [np.full(3, sample), float(sample), str(sample)],
    "gradients": lambda sample: torch.full((3,), float(sample), requires_grad=True),
}
MODES: dict[str, Callable[[], Any]] = {
    "none": torch.enable_grad,
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("mode", MODES)
def test_batches_are_of_the_modes_that_the_loop_is_in(data: Any, name: str, mode: str) -> None:
    value, labels = VALUES[name], data.labels
    stock: Any = torch_data.DataLoader(Values(value, labels), 50)  # type: ignore[arg-type]
    ours = DataLoader(data, 50, decode=lambda raw, meta: value(meta.sample), cache=TINY)
    with MODES[mode]():
        mine, theirs = list(ours), list(stock)
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert kinds(one) == kinds(other)


def test_a_default_device_of_the_loops_is_obeyed(data: Any, collating: list[str]) -> None:
    found = []
    for loader in (DataLoader(data, 16, decode=head, cache=TINY), torch_data.DataLoader(Heads(), 16)):  # type: ignore[arg-type]
        batches = iter(loader)
        next(batches)
        with torch.device("meta"):
            found.append([tag.device.type for _, tag in batches])
    mine, theirs = found
    # Two batches had begun before.
    assert len(mine) == len(theirs)
    assert mine[2:] == theirs[2:] == ["meta"] * len(theirs[2:])
    # And none after: how many of them, timing says.
    assert len(collating) <= 3


@pytest.mark.parametrize("form", ["bytes", "tensor"])
@pytest.mark.parametrize("decode", [None, head])
def test_a_loop_may_go_into_inference_mode_and_out_of_it_in_a_pass(data: Any, decode: Any, form: Any) -> None:
    loader = DataLoader(data, 8, decode=decode, raw=form, cache=TINY)
    right = [kinds(batch) for batch in loader]
    loader.set_epoch(0)
    batches = iter(loader)
    for step in range(len(loader)):
        with torch.inference_mode(step % 3 == 1):
            batch = next(batches)
        assert batch[1].is_inference() == (step % 3 == 1)
        batch = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, batch)
        assert kinds(batch) == right[step]


class Point:
    """A type of the user's, which his function collates."""

    def __init__(self, sample: int) -> None:
        self.sample = sample


def test_a_function_that_a_user_taught_torch_runs_in_the_loop(
    data: Any, monkeypatch: pytest.MonkeyPatch, collating: list[str]
) -> None:
    found: list[str] = []

    def points(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
        found.append(threading.current_thread().name)
        return torch.tensor([[point.sample] for point in batch])

    monkeypatch.setitem(default_collate_fn_map, Point, points)
    loader = DataLoader(data, 16, decode=lambda raw, meta: Point(meta.sample), cache=TINY)
    assert numbers(loader) == [list(range(first, min(first + 16, COUNT))) for first in range(0, COUNT, 16)]
    assert found == ["MainThread"] * len(loader)


def odd(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    return torch.tensor([meta.sample] * (2 if meta.sample == 70 else 1))


def test_what_cant_be_collated_is_raised_at_its_batch_with_its_traceback(data: Any) -> None:
    class Odd(Heads):
        def __getitem__(self, sample: int) -> tuple[torch.Tensor, int]:
            return torch.tensor([sample] * (2 if sample == 70 else 1)), 0

    found = []
    for loader in (DataLoader(data, 16, decode=odd, cache=TINY), torch_data.DataLoader(Odd(), 16)):  # type: ignore[arg-type]
        had, batches = [], iter(loader)
        for _ in range(4):
            had += next(batches)[0][:, 0].tolist()
        with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as raised:
            next(batches)
        if isinstance(loader, DataLoader):
            assert loader.state_dict()["position"] == len(had)
        assert had == list(range(64))
        names = [frame.name for frame in traceback.extract_tb(raised.tb)]
        found.append((str(raised.value), "collate" in names))
    assert found[0] == found[1]


def test_a_pass_that_ends_early_leaves_no_thread_and_no_batch(data: Any) -> None:
    kept: list[weakref.ref[Any]] = []

    def decode(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
        value = torch.full((20_000,), meta.sample)
        kept.append(weakref.ref(value))
        return value

    def ours() -> list[str]:
        return [
            thread.name
            for thread in threading.enumerate()
            if thread.name.startswith(("foreload-collate", "foreload-decode"))
        ]

    loader = DataLoader(data, 16, decode=decode, cache=TINY)
    for _ in zip(range(3), loader, strict=False):
        pass
    assert loader.state_dict()["position"] == 48, "what was made ahead doesn't count"
    gc.collect()
    until(lambda: not ours())
    until(lambda: not [value for value in kept if value() is not None])
    rest = DataLoader(data, 16, decode=head, cache=TINY)
    rest.load_state_dict(loader.state_dict())
    assert numbers(rest) == numbers(torch_data.DataLoader(Heads(), 16))[3:]  # type: ignore[arg-type]


def test_the_loop_alone_has_the_batch_that_it_was_given(data: Any) -> None:
    batches = iter(DataLoader(data, 16, decode=head, cache=TINY))
    for _ in range(3):
        batch = next(batches)
        alive = weakref.ref(batch[0])
        del batch
        assert alive() is None


@pytest.mark.parametrize("decode", [None, head])
def test_pinning_is_done_where_the_batch_is_collated(
    data: Any, decode: Any, monkeypatch: pytest.MonkeyPatch, collating: list[str]
) -> None:
    pinned: list[str] = []

    def pin(batch: Any) -> Any:
        pinned.append(threading.current_thread().name)
        return batch

    monkeypatch.setattr("foreload.torch.loader._pin", pin)
    monkeypatch.setattr(DataLoader, "_pins", lambda _: True)
    loader = DataLoader(data, 16, decode=decode, pin_memory=True, cache=TINY)
    assert len(list(loader)) == len(pinned) == len(loader)
    if decode is not None:
        assert pinned == collating
    # A batch of the user's may have a `pin_memory` of its own, which torch calls in the loop.
    pinned.clear()
    list(DataLoader(data, 16, decode=decode, pin_memory=True, collate_fn=list, cache=TINY))
    assert pinned == ["MainThread"] * len(loader)


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("workers", [0, 2])
def test_with_an_accelerator_batches_are_pinned_and_the_same(data: Any, workers: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch was built without CUDA, or finds no device")
    pinned, plain = (
        list(DataLoader(data, 16, decode=head, pin_memory=pins, num_workers=workers, cache=TINY))
        for pins in (True, False)
    )
    for (values, labels), (right, right_labels) in zip(pinned, plain, strict=True):
        assert values.is_pinned()
        assert labels.is_pinned()
        assert torch.equal(values, right)
        assert torch.equal(labels, right_labels)
        assert torch.equal(values.to("cuda", non_blocking=True).cpu(), right)


@pytest.mark.parametrize("value", [1, 2.0, "a", b"b", np.float32(1), np.ones(2), torch.ones(2), {"a": [1, (2.0,)]}])
def test_plain_values(value: Any) -> None:
    assert _modes.is_plain(value)


class Own(dict[str, Any]):
    pass


@pytest.mark.parametrize(
    "value",
    [Point(1), Own(a=1), [Point(1)], torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True), iter("a")],
)
def test_values_that_are_not_plain(value: Any) -> None:
    assert not _modes.is_plain(value)


def test_a_collate_that_takes_long_is_ended_by_the_time_out(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    come = threading.Event()
    plain = _parcel.stacked

    def stacked(*given: Any, **keywords: Any) -> Any:
        come.wait(30)
        return plain(*given, **keywords)

    monkeypatch.setattr(_parcel, "stacked", stacked)
    try:
        with pytest.raises(fl.errors.TimedOutError, match="the batch is still being collated"):
            next(iter(DataLoader(data, 16, decode=head, threads=2, timeout=0.5, cache=TINY)))
    finally:
        come.set()
