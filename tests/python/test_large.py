"""Samples and batches that are larger than the memory budget."""

from __future__ import annotations

import io
import logging
import random
import tarfile
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch.utils import data as torch_data

import foreload as fl
from foreload import errors
from foreload._node.job import starved_since
from foreload.torch import DataLoader, Dataset, Sampler

LARGE = 7
COUNT = 40
BUDGET = fl.Cache(ram="16MB")


def length(raw: memoryview, meta: fl.Meta) -> tuple[int, int]:
    return meta.sample, len(raw)


@pytest.fixture
def odd(home: Any, tmp_path: Path) -> Any:
    """Forty small samples and among them a large one."""
    for number in range(COUNT):
        (tmp_path / f"{number:02}.bin").write_bytes(bytes(30_000_000 if number == LARGE else 1000 + number))
    return fl.open(tmp_path)


def test_a_sample_that_does_not_fit_is_refused_by_name_and_with_what_helps(odd: Any) -> None:
    with pytest.raises(errors.NoMemoryError, match=rf"sample {LARGE} \(.*/07\.bin\) has 30000000 bytes") as refused:
        next(iter(DataLoader(odd, 8, cache=BUDGET)))
    assert refused.value.sample == LARGE
    text = str(refused.value)
    for remedy in ('ram="', "data.filter(lambda key, label, length: length <= ", "foreload.skip()"):
        assert remedy in text
    most = int(text.split("length <= ")[1].split(")")[0])
    enough = text.split('ram="')[1].split('"')[0]
    small = odd.filter(lambda key, label, length: length <= most)
    assert sum(len(x) for x, _ in DataLoader(small, 8, cache=BUDGET)) == COUNT - 1
    assert sum(len(x) for x, _ in DataLoader(odd, 1, cache=fl.Cache(ram=enough))) == COUNT


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("decodes", [False, True])
def test_a_sample_that_does_not_fit_is_skipped_as_others_that_fail(odd: Any, workers: int, decodes: bool) -> None:
    decode = length if decodes else None
    loader = DataLoader(odd, 8, num_workers=workers, cache=BUDGET, on_error=fl.skip(max_consecutive=1), decode=decode)
    for _ in range(2):
        if decodes:
            found = [
                (int(a), int(b)) for (numbers, lengths), _ in loader for a, b in zip(numbers, lengths, strict=True)
            ]
        else:
            found = [(len(x) - 1000, len(x)) for xs, _ in loader for x in xs]
        assert found == [(number, 1000 + number) for number in range(COUNT) if number != LARGE]
    assert loader.stats()["skipped"] == 2


def test_every_door_skips_it(odd: Any) -> None:
    skip = fl.skip(max_consecutive=1)
    wanted = [1000 + number for number in range(COUNT) if number != LARGE]
    assert [len(x) for xs, _ in fl.NumpyLoader(odd, 8, cache=BUDGET, on_error=skip) for x in xs] == wanted
    data = Dataset(odd, cache=BUDGET, on_error=skip)
    sampler = Sampler(data, shuffle=False, batch_size=8)
    plain = torch_data.DataLoader(data, 8, sampler=sampler, collate_fn=list)
    assert [len(x) for batch in plain for x, _ in batch] == wanted
    alone = torch_data.DataLoader(Dataset(odd.apart(), cache=BUDGET, on_error=skip), 8, collate_fn=list)
    assert [len(x) for batch in alone for x, _ in batch] == wanted


def test_a_batch_that_may_not_fit_is_warned_of(home: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(12):
        (tmp_path / f"{number:02}.bin").write_bytes(bytes(3_000_000 if number % 2 else 10))
    data = fl.open(tmp_path)
    with caplog.at_level(logging.WARNING, logger="foreload"):
        next(iter(DataLoader(data, 4, cache=BUDGET)))
        assert "the largest 4 samples" not in caplog.text
        next(iter(DataLoader(data, 8, cache=BUDGET)))
    assert "the largest 8 samples have 18000020 bytes" in caplog.text


def test_samples_and_batches_of_over_half_and_all_of_the_memory_pass_through(home: Any, tmp_path: Path) -> None:
    """As much as fits, to the byte, among small ones, in any order."""
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "0.bin").write_bytes(bytes(30_000_000))
    with pytest.raises(errors.NoMemoryError) as refused:
        next(iter(DataLoader(fl.open(odd), 1, cache=BUDGET)))
    most = int(str(refused.value).split("length <= ")[1].split(")")[0])
    assert most > 8_000_000
    for name, sizes, batch in (
        ("alone", [most, 1, most // 2 + 1, most, 0, most // 2 + 64, 3], 1),
        ("together", [most // 4 // 64 * 64] * 12, 4),
        ("over half", [most // 2 + 1, most // 3, 5, 7, most // 3, most // 2 + 1, 9], 2),
    ):
        place = tmp_path / name
        place.mkdir()
        right = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
        for number, content in enumerate(right):
            (place / f"{number:02}.bin").write_bytes(content)
        loader = DataLoader(fl.open(place), batch, shuffle=name != "over half", seed=1, cache=BUDGET, timeout=20)
        for epoch in range(2):
            plan = loader.run.plan
            order = [sample for at in range(len(loader)) for sample in plan.batch(epoch, at, 0)]
            assert [value for values, _ in loader for value in values] == [right[sample] for sample in order], name
    (odd / "0.bin").write_bytes(bytes(most + 1))
    with pytest.raises(errors.NoMemoryError, match=f"length <= {most}"):
        next(iter(DataLoader(fl.open(odd, refresh=True), 1, cache=BUDGET)))


# One large sample among small ones that tear the memory.
AMONG_SMALL = [
    *(750, 1152, 1388, 375, 1024, 257, 1200, 1873, 679, 771, 1693, 434, 4800, 1385, 1407, 1216, 1665, 92, 622, 1620),
    *(116, 713, 1029, 199, 555),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("held", [1, 2, 99])
@pytest.mark.parametrize(
    ("sizes", "batch"), [([5700], 1), ([1140], 5), ([2000, 230], 4), ([0, 5500, 1, 1600], 1), (AMONG_SMALL, 4)]
)
def test_views_of_large_samples_leave_room_for_the_next_batch_however_long_they_are_held(
    sizes: list[int], batch: int, held: int, home: Any, tmp_path: Path
) -> None:
    """Memory for about two and a half batches: views must be copied before they keep the next one out."""
    right = [random.Random(number).randbytes(1000 * sizes[number % len(sizes)] + number) for number in range(25)]
    for number, content in enumerate(right):
        (tmp_path / f"{number:02}.bin").write_bytes(content)
    for seed in range(6):
        cache = fl.Cache(ram="16MB")
        loader: Any = DataLoader(
            fl.open(tmp_path), batch, shuffle=True, seed=seed, raw="view", collate_fn=list, cache=cache, timeout=20
        )
        kept: list[Any] = []
        for epoch in range(2):
            plan = loader.run.plan
            order = [sample for at in range(len(loader)) for sample in plan.batch(epoch, at, 0)]
            for pairs in loader:
                kept.extend((order.pop(0), value) for value, _ in pairs)
                gone = max(0, len(kept) - held * batch)
                assert all(bytes(value) == right[sample] for sample, value in kept[:gone])
                del kept[:gone]
                time.sleep(0.01)
            assert not order
        assert all(bytes(value) == right[sample] for sample, value in kept)


@pytest.mark.parametrize("raw", ["view", "bytes"])
@pytest.mark.parametrize("had", [0, 2, 3, 4])
def test_what_an_iterator_that_is_left_asked_for_gives_way(had: int, raw: str, home: Any, tmp_path: Path) -> None:
    """After three batches its next one takes two thirds of the memory."""
    for number in range(16):
        (tmp_path / f"{number:02}").write_bytes(bytes([number]) * (11_272_000 if number in {3, 7, 11} else 20_000))
    loader: Any = DataLoader(fl.open(tmp_path), 1, raw=raw, collate_fn=list, cache=fl.Cache(ram="16MB"), timeout=20)
    left = iter(loader)
    for _ in range(had):
        next(left)
    time.sleep(0.3)
    assert [bytes(value)[0] for [(value, _)] in loader] == list(range(16))
    del left


def test_loops_in_one_thread_take_turns_in_a_memory_that_just_suffices(home: Any, tmp_path: Path) -> None:
    """Each asks ahead; only what the thread waits for must come."""
    dice = random.Random(2)
    sizes = [dice.choice([dice.randint(0, 900_000)] * 9 + [8_700_000]) for _ in range(60)]
    right = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    for number, content in enumerate(right):
        (tmp_path / f"{number:02}").write_bytes(content)
    for seed in range(4):
        dice = random.Random(seed)
        plans: list[list[list[int]]] = []
        for most in (15_000_000, 9_000_000):
            batches: list[list[int]] = []
            for _ in range(25):
                batch: list[int] = []
                for sample in dice.choices(range(60), k=dice.choice([1, 2, 20])):
                    if sum(sizes[other] for other in [*batch, sample]) <= most:
                        batch.append(sample)
                batches.append(batch or [0])
            plans.append(batches)
        loaders = [
            DataLoader(
                fl.open(tmp_path), batch_sampler=plan, raw="bytes", collate_fn=list, cache=fl.Cache(ram=ram), timeout=20
            )
            for plan, ram in zip(plans, (20_000_000, 16_000_000), strict=True)
        ]
        loops = [iter(zip(plan, loader, strict=True)) for plan, loader in zip(plans, loaders, strict=True)]
        while loops:
            loop = dice.choice(loops)
            found: Any = next(loop, None)
            if found is None:
                loops.remove(loop)
                continue
            batch, pairs = found
            assert [value for value, _ in pairs] == [right[sample] for sample in batch]


def test_the_rest_of_a_batch_comes_before_what_was_asked_for_after_it(home: Any, tmp_path: Path) -> None:
    """A sample is left out: its batch is asked for again, while those after it have the memory."""
    dice = random.Random(5)
    for number in range(45):
        (tmp_path / f"{number:02}").write_bytes(bytes([number]) * (7_430_000 if number % 8 == 3 else 1 + number))
    data = fl.open(tmp_path)
    gone = {4, 13, 22, 31}
    for number in gone:
        (tmp_path / f"{number:02}").unlink()
    small = [number for number in range(45) if number % 8 != 3]
    batches = [[*dice.sample(small, dice.randint(1, 6)), 3 + 8 * dice.randrange(5)] for _ in range(40)]
    loader: Any = DataLoader(
        data,
        batch_sampler=batches,
        raw="view",
        collate_fn=list,
        on_error=fl.skip(1000),
        cache=fl.Cache(ram="16MB"),
        timeout=20,
    )
    found = [[bytes(value)[0] for value, _ in pairs] for pairs in loader]
    assert found == [[sample for sample in batch if sample not in gone] for batch in batches]


def test_a_loop_that_holds_the_memory_of_its_next_batch_gets_an_error(
    home: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large samples among small ones that lie in kept blocks, which the batch in use holds as a whole."""
    dice = random.Random(7)
    for shard in range(6):
        with tarfile.open(tmp_path / f"sh-{shard}.tar", "w") as tar:
            for number in range(30):
                length = 5 << 20 if dice.random() < 0.05 else dice.randint(20_000, 300_000)
                member = tarfile.TarInfo(f"{30 * shard + number:06}.bin")
                member.size = length
                tar.addfile(member, io.BytesIO(dice.randbytes(length)))
    monkeypatch.setattr("foreload._node.job._STARVED_S", 11.0)
    ended: list[Any] = []
    for seed in range(4):
        loader: Any = DataLoader(
            fl.open(str(tmp_path)), 8, shuffle=True, seed=seed, raw="view", collate_fn=list, cache=fl.Cache(ram="39MB")
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.StalledWarning)
            try:
                ended.append(sum(len(batch) for batch in loader))
            except errors.NoMemoryError as error:
                ended.append(str(error))
    # Whichever seeds have such a batch: no pass waits for ever.
    refused = [each for each in ended if each != 180]
    assert all("no memory" in each and "give cache=Cache(ram=" in each for each in refused), ended


def test_a_batch_lacks_memory_only_as_long_as_nothing_else_moves() -> None:
    def starved(told: list[Any], before: Any) -> Any:
        return starved_since(told, lambda: [3, 4], before)

    since = starved([("starved", "first", 3)], None)
    assert since is not None
    assert starved([], since) == since
    assert starved([("stalled", "of another batch", 9)], since) == since
    assert starved([("starved", "second", 4)], since) == (since[0], "second")
    assert starved([("stalled", "a GET is under way", 3)], since) is None
    assert starved_since([("starved", "whatever", 9)], None, None) is not None, "nobody knows what it reads"
