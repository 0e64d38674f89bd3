"""A bucket as a directory: every byte and name is the bucket's, what is known isn't asked again, and whatever dies leaves no mount that hangs."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket

from foreload._mount import options, program
from foreload._mount.options import Options
from foreload.cli.doctor import machine
from foreload.errors import InvalidError
from mounting import digest, fails_with, mounted, objects, put

pytestmark = pytest.mark.needs("fuse")

MIB = 1 << 20


@pytest.fixture
def store() -> Iterator[Bucket]:
    """Objects of no, one and some chunks in `bench`, and keys of all kinds."""
    sets = ["small:300x1100", "large:3x25000000", "empty:2x0"]
    with Bucket(profile="fast", synthetic=sets) as running:
        yield running


def requests(store: Bucket) -> dict[str, int]:
    return {"get": 0, **store.counters()["requests"]}


def test_names_and_bytes_are_the_bucket_s(home: Any, store: Bucket) -> None:
    expected = objects(store)
    with mounted(home, store) as target:
        found = {str(path.relative_to(target)): path for path in target.rglob("*") if path.is_file()}
        assert found.keys() == expected.keys()
        for key, path in found.items():
            assert path.stat().st_size == len(expected[key])
            assert digest(path.read_bytes()) == digest(expected[key])


def test_what_is_listed_and_read_once_is_not_asked_for_again(home: Any, store: Bucket) -> None:
    with mounted(home, store) as target:
        listing = ["ls", "-lR", str(target)]
        first = subprocess.run(listing, capture_output=True, check=True).stdout
        data = target / "large"
        for path in data.iterdir():
            path.read_bytes()
        before = requests(store)
        assert subprocess.run(listing, capture_output=True, check=True).stdout == first
        for path in data.iterdir():
            path.read_bytes()
        assert requests(store) == before


def test_a_fixed_chunk_is_a_request(home: Any, store: Bucket) -> None:
    for chunk in (5_000_000, 7_000_001, 25_000_000):
        with mounted(home, store, chunk=chunk) as target:
            path = next((target / "large").iterdir())
            before = requests(store)["get"]
            data = path.read_bytes()
            assert requests(store)["get"] - before == -(-len(data) // chunk)
            path.read_bytes()
            assert requests(store)["get"] - before == -(-len(data) // chunk)


def test_reads_anywhere_are_exact(home: Any, store: Bucket) -> None:
    expected = {key: data for key, data in objects(store).items() if key.startswith("large")}
    with mounted(home, store, ram="64MB") as target:

        def read(seed: int) -> None:
            dice = random.Random(seed)
            key = dice.choice(sorted(expected))
            data = expected[key]
            with (target / key).open("rb", buffering=0) as file:
                for _ in range(60):
                    at, length = dice.randrange(len(data) + 5), dice.choice([1, 100, 4096, 100_000, 3 * MIB])
                    file.seek(at)
                    got = b""
                    while len(got) < length and (part := file.read(length - len(got))):
                        got += part
                    assert got == data[at : at + length]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(16)))
        for key, data in expected.items():
            with (target / key).open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                assert digest(mapped[:]) == digest(data)


def test_many_processes_read_at_once(home: Any, store: Bucket) -> None:
    expected = objects(store)
    with mounted(home, store) as target:
        code = "import sys, hashlib; [print(hashlib.sha256(open(p, 'rb').read()).hexdigest()) for p in sys.argv[1:]]"
        keys = sorted(expected)
        running = []
        for number in range(6):
            order = random.Random(number).sample(keys, len(keys))
            command = [sys.executable, "-c", code, *(str(target / key) for key in order)]
            running.append((order, subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
        for order, each in running:
            said, _ = each.communicate(timeout=120)
            assert said.split() == [digest(expected[key]) for key in order]


@pytest.mark.parametrize(
    ("status", "number"), [(403, errno.EACCES), (404, errno.ENOENT), (500, errno.EIO)], ids=["403", "404", "500"]
)
def test_what_a_store_refuses_is_said_as_a_system_call_does(home: Any, store: Bucket, status: int, number: int) -> None:
    with mounted(home, store, timeout_s=1.0) as target:
        path = next((target / "small").iterdir())
        store.add_fault("status", status=status, on=["get", "head", "list"])
        assert fails_with(path.read_bytes) == number
        assert fails_with((target / "large" / "nothing by that name").stat) == number
        store.clear_faults()
        assert len(path.read_bytes()) == 1100
        with pytest.raises(FileNotFoundError):
            (target / "large" / "nothing by that name").stat()
    log = (home.cache_dir / "mount.log").read_text()
    assert path.name in log or status == 404


def test_what_is_throttled_comes_later_and_is_never_missing(home: Any, store: Bucket) -> None:
    with mounted(home, store) as target:
        store.add_fault("status", status=503, share=0.5, attempts=3)
        names = sorted(path.name for path in (target / "small").iterdir())
        assert len(names) == 300
        for name in names[:100]:
            assert len((target / "small" / name).read_bytes()) == 1100


def test_another_object_by_the_same_name_is_seen_and_never_mixed(home: Any, store: Bucket) -> None:
    old, new = b"a" * 30 * MIB, b"b" * 12 * MIB
    put(store, "changing", old)
    with mounted(home, store, ttl_s=1.0, ahead=0) as target:
        path = target / "changing"
        with path.open("rb", buffering=0) as before:
            assert set(before.read(MIB)) == {ord("a")}
            put(store, "changing", new)
            time.sleep(1.5)
            # Somebody else has the new one: pages of it are none of the old one's.
            assert digest(path.read_bytes()) == digest(new)
            assert path.stat().st_size == len(new)
            assert os.fstat(before.fileno()).st_size == len(old)
            before.seek(0)
            assert set(before.read(100_000)) == {ord("a")}
            before.seek(20 * MIB)
            assert fails_with(lambda: before.read(MIB)) == errno.ESTALE


def test_versions_are_not_mixed_under_a_hammer(home: Any, store: Bucket) -> None:
    def version(number: int) -> bytes:
        return bytes([number]) * (300_000 + 50_001 * (number % 7))

    put(store, "changing", version(1))
    seen, stop = set(), time.monotonic() + 6
    with mounted(home, store, ttl_s=0.0) as target:

        def write() -> None:
            number = 1
            while time.monotonic() < stop:
                number = number % 250 + 1
                put(store, "changing", version(number))
                time.sleep(0.05)

        def read(_: int) -> int:
            reads = 0
            while time.monotonic() < stop:
                try:
                    with (target / "changing").open("rb", buffering=0) as file:
                        data = b"".join(iter(lambda: file.read(64_000), b""))
                except OSError as error:
                    assert error.errno in (errno.ESTALE, errno.ENOENT)  # noqa: PT017 (nearly always there is none)
                    continue
                assert data == version(data[0])
                seen.add(data[0])
                reads += 1
            return reads

        with ThreadPoolExecutor(4) as pool:
            writer = pool.submit(write)
            assert sum(pool.map(read, range(3))) > 20
            writer.result()
    assert len(seen) > 5


def test_a_listing_has_all_names_however_few_are_kept(home: Any) -> None:
    with (
        Bucket(profile="fast", synthetic=["many:6000x10"]) as store,
        mounted(home, store, ttl_s=0.5, entries=300) as target,
    ):
        for _ in range(2):
            found = []
            with os.scandir(target / "many") as listing:
                for entry in listing:
                    found.append(entry.name)
                    if len(found) % 1000 == 0:
                        time.sleep(0.2)
                        Path(entry.path).stat()
            assert len(set(found)) == len(found) == 6000
            listed = subprocess.run(["ls", "-l", str(target / "many")], capture_output=True, text=True, check=True)
            assert len(listed.stdout.splitlines()) == 6001


def test_many_open_files_hold_no_more_than_memory_is_for(home: Any) -> None:
    with (
        Bucket(profile="fast", synthetic=["middle:150x6000000"]) as store,
        mounted(home, store, ram="40MB") as target,
    ):
        files = [path.open("rb", buffering=0) for path in (target / "middle").iterdir()]
        for file in files:
            assert len(file.read(70_000)) == 70_000
        import json

        stats = json.loads((target / ".foreload" / "stats").read_text())
        assert stats["held_bytes"] <= 80_000_000
        resident = Path(f"/proc/{stats['pid']}/status").read_text().split("RssAnon:")[1].split()[0]
        assert int(resident) * 1024 <= 150_000_000
        for file in files:
            assert len(file.read(70_000)) == 70_000
            file.close()


def test_what_is_put_and_deleted_is_noticed_after_a_while(home: Any, store: Bucket) -> None:
    import boto3

    with mounted(home, store, ttl_s=0.5) as target:
        assert not (target / "new").exists()
        put(store, "new/file", b"x" * 100)
        time.sleep(0.7)
        assert (target / "new" / "file").read_bytes() == b"x" * 100
        boto3.client("s3", **store.boto3()).delete_object(Bucket="bench", Key="new/file")
        time.sleep(0.7)
        assert not (target / "new" / "file").exists()


def test_it_is_read_only(home: Any, store: Bucket) -> None:
    with mounted(home, store) as target:
        path = next((target / "small").iterdir())
        attempts: list[Callable[[], Any]] = [
            lambda: path.write_bytes(b"x"),
            lambda: (target / "new").write_bytes(b"x"),
            (target / "new").mkdir,
            path.unlink,
            lambda: path.rename(target / "other"),
            lambda: os.truncate(path, 0),
        ]
        for attempt in attempts:
            assert fails_with(attempt) == errno.EROFS


def agent_of(home: Any) -> int:
    found = [
        int(each.name)
        for each in Path("/proc").iterdir()
        if each.name.isdigit()
        and _command(each)[:2] == ["foreload-agent", "serve"]
        and str(home.cache_dir) in _command(each)
    ]
    assert len(found) == 1
    return found[0]


def _command(process: Path) -> list[str]:
    try:
        words = (process / "cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []
    return [Path(words[0]).name, *words[1:]]


def test_an_agent_that_dies_is_followed_by_another_one(home: Any, store: Bucket) -> None:
    expected = objects(store)
    large = sorted(key for key in expected if key.startswith("large"))
    with mounted(home, store) as target, (target / large[0]).open("rb") as file:
        assert file.read(100_000) == expected[large[0]][:100_000]
        os.kill(agent_of(home), signal.SIGKILL)
        assert digest(b"".join([expected[large[0]][:100_000], file.read()])) == digest(expected[large[0]])
        assert digest((target / large[1]).read_bytes()) == digest(expected[large[1]])


def test_files_that_are_found_one_by_one_leave_nothing_open(home: Any) -> None:
    with (
        Bucket(profile="fast", synthetic=["small:400x1000"]) as store,
        mounted(home, store, ttl_s=0.2, entries=50) as target,
    ):
        paths = [target / "small" / f"{number:08}.bin" for number in range(400)]
        counts = []
        for number, path in enumerate(paths):
            assert len(path.read_bytes()) == 1000
            if number % 100 == 99:
                time.sleep(0.5)
                counts.append(len(list(Path(f"/proc/{agent_of(home)}/fd").iterdir())))
        assert counts[-1] < 150, counts


def test_an_agent_that_is_stopped_keeps_nobody_for_ever(home: Any, store: Bucket) -> None:
    import foreload.mount

    with mounted(home, store, timeout_s=2.0) as target:
        paths = sorted((target / "small").iterdir())
        assert len(paths[0].read_bytes()) == 1100
        agent = agent_of(home)
        os.kill(agent, signal.SIGSTOP)
        try:
            for attempt in (lambda: foreload.mount.hint(paths[:50]), paths[1].read_bytes):
                begun = time.monotonic()
                assert fails_with(attempt) == errno.EIO
                assert time.monotonic() - begun < 12
            assert len(list(target.iterdir())) == 3
        finally:
            os.kill(agent, signal.SIGCONT)
        time.sleep(0.6)
        assert len(paths[1].read_bytes()) == 1100


def test_a_killed_mount_is_removed_and_mounted_again(home: Any, store: Bucket, tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.mkdir()
    given = {"endpoint_url": store.environment()["AWS_ENDPOINT_URL"], "anonymous": "false"}
    keys = store.boto3()
    given.update(access_key_id=keys["aws_access_key_id"], secret_access_key=keys["aws_secret_access_key"])
    settings = Options(ram="64MB").settings("s3://bench", given, str(home.cache_dir))
    pid = program.start(str(target), settings, tmp_path / "log")
    os.kill(pid, signal.SIGKILL)
    assert program.ended(pid)
    assert fails_with(lambda: list(target.iterdir())) == errno.ENOTCONN
    assert str(target) in program.left()
    findings = list(machine.mounts())
    assert any(finding.level == "warn" and str(target) in finding.remedy for finding in findings)
    with pytest.raises(Exception, match="foreload unmount"):
        options.directory(target)
    program.unmount(str(target))
    assert list(target.iterdir()) == []
    pid = program.start(str(target), settings, tmp_path / "log")
    assert len(list((target / "small").iterdir())) == 300
    program.unmount(str(target))
    assert program.ended(pid)


def test_it_ends_while_somebody_has_a_file_open_or_waits(home: Any, store: Bucket) -> None:
    with mounted(home, store) as target:
        path = next((target / "large").iterdir())
        store.add_fault("stall")
        code = f"import sys; f = open({str(path)!r}, 'rb'); print('open', flush=True); f.read()"
        waiting = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == b"open\n"
        time.sleep(0.3)
        begun = time.monotonic()
    assert time.monotonic() - begun < 10
    assert waiting.wait(10) != 0
    store.clear_faults()


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


@pytest.mark.parametrize("ends", [[], ["--foreground"]], ids=["aside", "in the foreground"])
@pytest.mark.parametrize(
    ("url", "variables", "code"),
    [
        ("s3://nothing", {}, 3),
        ("s3://bench", {"AWS_SECRET_ACCESS_KEY": "wrong"}, 4),
        ("s3://bench", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, 5),
        ("nothing://bench", {}, 2),
    ],
)
def test_why_nothing_is_mounted_is_an_exit_code(
    home: Any, far: Bucket, url: str, variables: dict[str, str], code: int, ends: list[str]
) -> None:
    target = home.cache_dir / "refused"
    target.mkdir(parents=True)
    words = [sys.executable, "-m", "foreload", "mount", url, str(target), "--timeout", "1", *ends]
    environment = dict(os.environ) | far.environment() | variables
    said = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert said.returncode == code, said.stderr


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


def test_who_tells_after_the_agent_has_died_is_heard_by_another_one(home: Any, far: Bucket) -> None:
    import foreload.mount

    with mounted(home, far) as target:
        paths = sorted((target / "small").iterdir())
        foreload.mount.hint(paths[:5])
        assert len(paths[0].read_bytes()) == 20000
        os.kill(agent_of(home), signal.SIGKILL)
        before = requests(far)["get"]
        foreload.mount.hint(paths[60:])
        deadline = time.monotonic() + 20
        while requests(far)["get"] - before < 60 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert fetched_once(far, 60, before)


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


def test_what_is_told_of_it_adds_up(home: Any, store: Bucket) -> None:
    import json

    with mounted(home, store) as target:
        data = [path.read_bytes() for path in (target / "large").iterdir()]
        said = json.loads((target / ".foreload" / "stats").read_text())
        assert said["read_bytes"] == sum(map(len, data))
        assert said["chunks"] == sum(-(-len(each) // (4 * MIB)) for each in data)
        assert said["reads_that_failed"] == 0
        assert said["directory_questions"] == 2


@pytest.mark.parametrize("is_first", [True, False], ids=["the loader first", "the mount first"])
def test_what_loader_and_mount_have_read_is_on_the_disk_for_both(home: Any, tmp_path: Path, is_first: bool) -> None:
    import foreload as fl
    from foreload.torch import DataLoader

    # Three times what memory holds.
    with Bucket(profile="fast", synthetic=["middle:60x1000000"]) as store:
        keys = store.boto3()
        given = {"endpoint_url": store.environment()["AWS_ENDPOINT_URL"]}
        given.update(access_key_id=keys["aws_access_key_id"], secret_access_key=keys["aws_secret_access_key"])
        disk = f"{tmp_path / 'tier'}:200MB"

        def load() -> None:
            data = fl.open("s3://bench/middle", storage_options=given)
            loader = DataLoader(data, 10, shuffle=True, seed=1, cache=fl.Cache(ram="16MB", disk=disk))
            assert sum(len(value) for values, *_ in loader for value in values) == 60_000_000

        def look() -> None:
            with mounted(home, store, "s3://bench/middle", disk=disk, ram="34MB") as target:
                assert sum(len(path.read_bytes()) for path in target.iterdir()) == 60_000_000

        def fetched() -> dict[str, int]:
            found: dict[str, int] = store.counters(objects=True)["objects"]
            store.reset()
            return found

        first, second = (load, look) if is_first else (look, load)
        first()
        # By object, for one that is late is asked for twice.
        assert len(fetched()) == 60
        second()
        # What memory alone had is fetched again.
        assert len(fetched()) <= 35


def test_the_program_of_the_guide_runs(home: Any, store: Bucket) -> None:
    import io
    import re

    import numpy as np
    from PIL import Image
    from torchvision.transforms import v2

    for number in range(40):
        pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(body := io.BytesIO(), "PNG")
        put(store, f"train/{'cat' if number % 3 else 'dog'}/{number:03}.png", body.getvalue())
    page = (Path(__file__).parents[2] / "docs" / "guide" / "mount.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    with mounted(home, store, "s3://bench/train") as target:
        names: dict[str, Any] = {"augment": v2.Compose([v2.PILToTensor()])}
        for block in blocks:
            exec(block.replace("/data", str(target)).replace("num_workers=8", "num_workers=2"), names)
            for _ in range(2):
                labels = [int(label) for _, batch in names["loader"] for label in batch]
                assert (len(labels), sum(labels)) == (40, 14)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts by itself, which takes root")
def test_a_descriptor_that_somebody_has_mounted_is_served(home: Any, store: Bucket) -> None:
    """As a pod gets it that may not open /dev/fuse."""
    expected, target = objects(store), home.cache_dir / "mounted"
    target.mkdir(parents=True)
    given = {"endpoint_url": store.environment()["AWS_ENDPOINT_URL"]}
    keys = store.boto3()
    given.update(access_key_id=keys["aws_access_key_id"], secret_access_key=keys["aws_secret_access_key"])
    settings = Options(ram="256MB", allow_write=True).settings("s3://bench", given, str(home.cache_dir))
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    words = f"fd={device},rootmode=40000,user_id=0,group_id=0,default_permissions".encode()
    library = ctypes.CDLL(None, use_errno=True)
    assert library.mount(b"foreload:given", str(target).encode(), b"fuse", 0, words) == 0, ctypes.get_errno()
    try:
        place = options.directory(f"/dev/fd/{device}")
        pid = program.start(place, settings, home.cache_dir / "mount.log", (device,))
        os.close(device)
        for key, data in list(expected.items())[:5]:
            assert (target / key).read_bytes() == data
        (target / "new").write_bytes(b"written")
        assert program.ended(pid)
        assert objects(store)["new"] == b"written"
        assert fails_with(target.stat) == errno.ENOTCONN
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)
    for other in ("/dev/fd/999", "/dev/fd/0", "/dev/fd/x"):
        with pytest.raises(InvalidError, match="/dev/fd/"):
            options.directory(other)
