"""Orders that a mount is told: who reads by them waits for little, each file is fetched once, and bytes and batches stay what they are."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket

from foreload._mount import program
from mounting import agent_of, digest, fails_with, mounted, objects, requests

pytestmark = pytest.mark.needs("fuse")


@pytest.fixture
def far() -> Iterator[Bucket]:
    """Small objects, each 50 ms away."""
    with Bucket(profile="fast", synthetic=["small:120x20000"]) as running:
        running.set_profile({"first_byte_ms": 50})
        yield running


def fetched_once(store: Bucket, count: int, before: int = 0) -> bool:
    """Whether so many GETs were made since, besides a few for answers that were late, of which the agent asks for a second one."""
    return count <= requests(store)["get"] - before <= count + count // 10


def read_all(paths: list[Path]) -> tuple[float, list[str]]:
    begun = time.monotonic()
    digests = [digest(path.read_bytes()) for path in paths]
    return time.monotonic() - begun, digests


def test_files_are_fetched_ahead_in_an_order_that_is_told(home: Any, far: Bucket) -> None:
    import foreload.mount

    expected = objects(far)
    with mounted(home, far) as target:
        paths = [target / key for key in expected]
        random.Random(1).shuffle(paths)
        half = paths[:60]
        slow, digests = read_all(half)
        foreload.mount.hint(paths)
        time.sleep(0.3)
        before = requests(far)["get"]
        quick, again = read_all(paths[60:])
        assert (digests, again) == tuple(
            [digest(expected[str(path.relative_to(target))]) for path in some] for some in (half, paths[60:])
        )
        assert slow > 60 * 0.05
        assert quick < slow / 4
        # What is read twice comes from memory, and nothing was asked for that nobody reads.
        read_all(paths)
        assert requests(far)["get"] - before <= 60
    with mounted(home, far) as target:
        paths = [target / key for key in expected]
        # In another order, and a file twice.
        foreload.mount.hint([*paths[:30], paths[0], *paths[30:]])
        random.Random(2).shuffle(paths)
        for each in (paths, paths):
            assert read_all(each)[1] == [digest(expected[str(path.relative_to(target))]) for path in each]


def test_what_the_kernel_has_is_not_fetched_again_in_the_next_epoch(home: Any, far: Bucket) -> None:
    import foreload.mount

    with mounted(home, far) as target:
        paths = sorted((target / "small").iterdir())
        for nth in range(3):
            before = requests(far)["get"]
            foreload.mount.hint(paths)
            time.sleep(0.3)
            read_all(paths)
            assert fetched_once(far, len(paths) if nth == 0 else 0, before)
        # What it has let go of is.
        for path in paths[::3]:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = requests(far)["get"]
        foreload.mount.hint(paths)
        time.sleep(0.3)
        took = read_all(paths)[0]
        assert fetched_once(far, len(paths[::3]), before)
        assert took < 0.4 * 0.05 * len(paths[::3])


def test_an_order_may_have_more_names_than_are_kept(home: Any) -> None:
    import foreload.mount

    sets = ["one:3000x100", "two:3000x100"]
    with Bucket(profile="fast", synthetic=sets) as store, mounted(home, store, entries=500) as target:
        paths = [target / name / f"{nth:08}.bin" for name in ("one", "two") for nth in range(3000)]
        random.Random(1).shuffle(paths)
        before = store.counters()["requests"]
        begun = time.monotonic()
        foreload.mount.hint(paths)
        assert time.monotonic() - begun < 20
        after = store.counters()["requests"]
        # Six pages of keys, and not a question for each.
        assert after.get("list", 0) - before.get("list", 0) <= 8
        assert after.get("head", 0) - before.get("head", 0) <= 8
        expected = objects(store)
        before = requests(store)["get"]
        for path in paths[:500]:
            assert path.read_bytes() == expected[str(path.relative_to(target))]
        # They were fetched before they were read, each once.
        assert requests(store)["get"] == before


def test_paths_are_told_as_other_programs_write_them(home: Any, far: Bucket) -> None:
    with mounted(home, far) as target:
        told = target / ".foreload" / "order"
        keys = sorted(path.name for path in (target / "small").iterdir())
        told.write_text("".join(f"{'./' if nth % 2 else '//'}small/{key}\n" for nth, key in enumerate(keys)))
        deadline = time.monotonic() + 20
        while requests(far)["get"] < len(keys) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert fetched_once(far, len(keys))
        for text, number in (("small/../x\n", errno.EINVAL), ("small/none\n", errno.ENOENT), ("small\n", errno.EISDIR)):
            assert fails_with(lambda text=text: told.write_text(text)) == number  # type: ignore[misc]
        assert 'line 1 of an order, "small/none"' in (home.cache_dir / "mount.log").read_text()


RANK = """
import json, sys, time
from pathlib import Path
import foreload.mount
paths = sys.argv[1:]
foreload.mount.hint(paths)
print("told", flush=True)
sys.stdin.readline()
begun = time.monotonic()
for path in paths:
    Path(path).read_bytes()
    time.sleep(0.005)
print(time.monotonic() - begun, flush=True)
"""


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_ranks_of_a_node_each_have_their_own_order(home: Any, far: Bucket, ranks: int) -> None:
    far.set_profile({"first_byte_ms": 200})
    with mounted(home, far) as target:
        paths = sorted((target / "small").iterdir())
        random.Random(1).shuffle(paths)
        given = [list(map(str, paths[rank::ranks])) for rank in range(ranks)]
        words = [[sys.executable, "-c", RANK, *each] for each in given]
        pipe: Any = subprocess.PIPE
        before = requests(far)["get"]
        running = [subprocess.Popen(each, stdin=pipe, stdout=pipe, text=True) for each in words]
        for rank in running:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "told\n"
        times = [float(rank.communicate("\n", timeout=60)[0]) for rank in running]
        assert fetched_once(far, len(paths), before)
        # A file takes 200 ms where nobody knows that it is next.
        assert max(times) < 0.5 * 0.2 * len(paths) / ranks, times


def test_an_order_that_makes_no_sense_is_refused(home: Any, far: Bucket, tmp_path: Path) -> None:
    import foreload.mount
    from foreload.errors import InvalidError, NotFoundError

    with mounted(home, far) as target:
        path = next((target / "small").iterdir())
        foreload.mount.hint([])
        with pytest.raises(NotFoundError, match="nothing"):
            foreload.mount.hint([path, target / "small" / "nothing"])
        with pytest.raises(InvalidError, match="foreload mount"):
            foreload.mount.hint([tmp_path / "file"])
        with pytest.raises(InvalidError, match="isn't below"):
            foreload.mount.hint([path, tmp_path / "file"])
        with pytest.raises(InvalidError, match="UTF-8"):
            foreload.mount.hint([path, target / "small" / "a\udcff"])
        assert fails_with(lambda: foreload.mount.hint([target / "small"])) == errno.EISDIR
        assert len(path.read_bytes()) == 20000


def test_a_sampler_tells_each_epoch(home: Any, far: Bucket) -> None:
    from torch.utils.data import DataLoader, RandomSampler

    import foreload.mount

    expected = objects(far)
    with mounted(home, far) as target:
        paths = sorted(path for path in (target / "small").iterdir())
        data = [str(path) for path in paths]
        sampler = foreload.mount.wrap_sampler(RandomSampler(data), data)
        for _ in range(2):
            loader = DataLoader(data, 8, sampler=sampler, collate_fn=list)
            read = [path for batch in loader for path in batch]
            assert sorted(read) == data
            assert read_all([Path(path) for path in read])[1] == [
                digest(expected[str(Path(path).relative_to(target))]) for path in read
            ]


@pytest.mark.parametrize("is_aside", [True, False])
def test_what_a_plan_names_is_on_its_way_before_anybody_reads(
    home: Any, far: Bucket, tmp_path: Path, is_aside: bool
) -> None:
    expected = objects(far)
    keys = sorted(expected)
    random.Random(3).shuffle(keys)
    before = requests(far)["get"]
    plan = tmp_path / "plan"
    plan.write_text("".join(f"{key}\n" for key in keys))
    target = home.cache_dir / "planned"
    target.mkdir(parents=True)
    words = [sys.executable, "-m", "foreload", "mount", "s3://bench", str(target), "--plan", str(plan)]
    environment = dict(os.environ) | far.environment()
    words += [] if is_aside else ["--foreground"]
    running = subprocess.Popen(words, env=environment)
    try:
        if is_aside:
            assert running.wait(60) == 0
        deadline = time.monotonic() + 30
        while requests(far)["get"] - before < len(keys) and time.monotonic() < deadline:
            time.sleep(0.05)
        took, digests = read_all([target / key for key in keys])
        assert digests == [digest(expected[key]) for key in keys]
        assert took < 0.2 * 0.05 * len(keys)
        assert fetched_once(far, len(keys), before)
    finally:
        program.unmount(str(target))
        running.wait(60)
    plan.write_text("small/nothing\n")
    wrong = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert wrong.returncode == 3
    assert "small/nothing" in wrong.stderr
    assert not program.is_mounted(str(target))


def read_bytes(path: str) -> bytes:
    return Path(path).read_bytes()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_tells_which_of_a_folder_s_files_come_next(home: Any, far: Bucket, workers: int) -> None:
    import torch
    from torch.utils import data
    from torchvision.datasets import DatasetFolder

    import foreload.torch

    def batches(loader: Any) -> list[list[bytes]]:
        torch.manual_seed(5)
        return [list(samples) for samples, _ in loader]

    far.set_profile({"first_byte_ms": 200})
    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": workers, "collate_fn": columns}
    with mounted(home, far) as target:
        folder = data.Subset(DatasetFolder(str(target), read_bytes, (".bin",)), range(10, 110))
        found = batches(foreload.torch.DataLoader(folder, **arguments))
        assert found == batches(data.DataLoader(folder, **arguments))
    with mounted(home, far) as target:
        folder = data.Subset(DatasetFolder(str(target), read_bytes, (".bin",)), range(10, 110))
        before = requests(far)["get"]
        loader = foreload.torch.DataLoader(folder, **arguments)
        torch.manual_seed(5)
        passing = iter(loader)
        begun = time.monotonic()
        had = [list(next(passing)[0]) for _ in range(5)]
        state = loader.state_dict()
        had += [list(samples) for samples, _ in passing]
        took = time.monotonic() - begun
        assert had == found
        # One after the other each takes 200 ms.
        assert took < 0.4 * 0.2 * len(folder) / max(1, workers)
        assert fetched_once(far, len(folder), before)
    with mounted(home, far) as target:
        before = requests(far)["get"]
        again = foreload.torch.DataLoader(folder, **arguments)
        again.load_state_dict(state)
        begun = time.monotonic()
        assert [list(samples) for samples, _ in again] == found[5:]
        assert time.monotonic() - begun < 0.4 * 0.2 * (len(folder) - 40) / max(1, workers)
        # What the loop has had isn't fetched.
        assert fetched_once(far, len(folder) - 40, before)


@pytest.mark.parametrize("workers", [0, 2])
def test_two_loaders_of_a_process_are_fetched_for_beside_each_other(home: Any, far: Bucket, workers: int) -> None:
    from torch.utils import data
    from torchvision.datasets import DatasetFolder

    import foreload.torch

    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": workers, "collate_fn": columns}
    far.set_profile({"first_byte_ms": 200})
    with mounted(home, far) as target:
        folder = DatasetFolder(str(target), read_bytes, (".bin",))
        parts = [data.Subset(folder, range(60)), data.Subset(folder, range(60, 120))]
        trains, validates = (iter(foreload.torch.DataLoader(part, **arguments)) for part in parts)
        next(trains)
        next(validates)
        begun = time.monotonic()
        # Whoever told first is read on for, too.
        assert sum(len(samples) for samples, _ in trains) == 56
        assert time.monotonic() - begun < 0.4 * 0.2 * 56 / max(1, workers)
        assert sum(len(samples) for samples, _ in validates) == 56
        assert fetched_once(far, 120)


@pytest.mark.parametrize("deaths", [1, 2])
def test_who_tells_when_the_agent_has_died_is_heard_by_another_one(home: Any, far: Bucket, deaths: int) -> None:
    import foreload.mount

    killed: list[int] = []

    def kills() -> None:
        until = time.monotonic() + 10
        while len(killed) < deaths and time.monotonic() < until:
            # While one ends and another one starts there are none or two.
            with contextlib.suppress(AssertionError, ProcessLookupError):
                if (agent := agent_of(home)) not in killed:
                    os.kill(agent, signal.SIGKILL)
                    killed.append(agent)

    with mounted(home, far) as target:
        paths = sorted((target / "small").iterdir())
        foreload.mount.hint(paths[:5])
        assert len(paths[0].read_bytes()) == 20000
        os.kill(first := agent_of(home), signal.SIGKILL)
        killed.append(first)
        killer = threading.Thread(target=kills)
        killer.start()
        before = requests(far)["get"]
        foreload.mount.hint(paths[60:])
        killer.join()
        assert len(killed) == deaths
        if deaths > 1:
            # The order was the one's that was killed last, perhaps.
            foreload.mount.hint(paths[60:])
        deadline = time.monotonic() + 20
        while requests(far)["get"] - before < 60 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert fetched_once(far, 60, before) or deaths > 1
        expected = objects(far)
        assert read_all(paths[60:])[1] == [digest(expected[str(path.relative_to(target))]) for path in paths[60:]]


def test_of_files_of_which_some_are_gone_the_others_are_fetched_ahead(home: Any, far: Bucket) -> None:
    import foreload.mount

    with mounted(home, far) as target:
        paths = sorted((target / "small").iterdir())
        named = [*paths, target / "small" / "gone"]
        sampler = iter(foreload.mount.wrap_sampler(range(len(named)), named))
        next(sampler)
        deadline = time.monotonic() + 20
        while requests(far)["get"] < len(paths) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert fetched_once(far, len(paths))


def columns(samples: list[tuple[bytes, int]]) -> tuple[list[bytes], list[int]]:
    return [sample for sample, _ in samples], [label for _, label in samples]
