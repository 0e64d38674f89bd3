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
from mounting import agent_of, digest, drop, fails_with, mounted, objects, put, requests, stats
from small import lives

pytestmark = pytest.mark.needs("fuse")

MIB = 1 << 20


@pytest.fixture
def store() -> Iterator[Bucket]:
    """Objects of no, one and some chunks in `bench`, and keys of all kinds."""
    sets = ["small:300x1100", "large:3x25000000", "empty:2x0"]
    with Bucket(profile="fast", synthetic=sets) as running:
        yield running


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

        said = stats(target)
        assert said["held_bytes"] <= 80_000_000
        resident = Path(f"/proc/{said['pid']}/status").read_text().split("RssAnon:")[1].split()[0]
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
    home: Any, store: Bucket, url: str, variables: dict[str, str], code: int, ends: list[str]
) -> None:
    target = home.cache_dir / "refused"
    target.mkdir(parents=True)
    words = [sys.executable, "-m", "foreload", "mount", url, str(target), "--timeout", "1", *ends]
    environment = dict(os.environ) | store.environment() | variables
    said = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert said.returncode == code, said.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize(
    "words", [["mount", "{target}", "--foreground"], ["serve", "--listen", "127.0.0.1:0"]], ids=["mount", "serve"]
)
def test_whoever_ends_the_command_in_the_foreground_ends_all_of_it(
    home: Any, store: Bucket, words: list[str], number: signal.Signals
) -> None:
    target = home.cache_dir / "mounted"
    target.mkdir(parents=True)
    name, *rest = [word.format(target=target) for word in words]
    running = subprocess.Popen(
        [sys.executable, "-m", "foreload", name, "s3://bench", *rest],
        env=dict(os.environ) | store.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    if name == "mount":
        until = time.monotonic() + 20
        while not program.is_mounted(str(target)) and time.monotonic() < until:
            time.sleep(0.05)
    else:
        assert "127.0.0.1" in running.stdout.readline()
    below = [int(pid) for pid in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()]
    assert below
    running.send_signal(number)
    assert running.wait(20) == (-number if number == signal.SIGKILL else 0)
    until = time.monotonic() + (20 if number == signal.SIGKILL else 0)
    while any(lives(pid) for pid in below) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(lives(pid) for pid in below)
    assert not program.is_mounted(str(target))


def test_what_is_told_of_it_adds_up(home: Any, store: Bucket) -> None:

    with mounted(home, store) as target:
        data = [path.read_bytes() for path in (target / "large").iterdir()]
        said = stats(target)
        assert said["read_bytes"] == sum(map(len, data))
        assert said["chunks"] == sum(-(-len(each) // (4 * MIB)) for each in data)
        assert said["reads_that_failed"] == 0
        assert said["directory_questions"] == 2


def test_what_a_listing_says_is_as_old_as_the_listing(home: Any) -> None:
    with Bucket(profile="fast", synthetic=["n:50x100"]) as store, mounted(home, store, ttl_s=1.0) as target:
        path = target / "n" / "deleted"
        put(store, "n/deleted", b"x")
        with os.scandir(target / "n") as entries:
            drop(store, "n/deleted")
            time.sleep(1.2)
            # What was asked for before is handed on now.
            assert "deleted" in [each.name for each in entries]
        assert not path.exists()


@pytest.mark.parametrize("is_looked_for", [True, False], ids=["by name", "listed"])
def test_a_directory_that_another_client_has_marked_is_there(home: Any, store: Bucket, is_looked_for: bool) -> None:
    put(store, "small/marked/", b"")
    put(store, "alone/", b"")
    with mounted(home, store) as target:
        if not is_looked_for:
            assert [each.name for each in (target / "small").iterdir() if each.is_dir()] == ["marked"]
        for path in (target / "small" / "marked", target / "alone"):
            assert path.is_dir()
            assert list(path.iterdir()) == []
        assert not (target / "small" / "mark").exists()


def test_an_empty_directory_of_a_disk_is_there(home: Any, store: Bucket, tmp_path: Path) -> None:
    (tmp_path / "data" / "empty" / "below").mkdir(parents=True)
    with mounted(home, store, (tmp_path / "data").as_uri()) as target:
        assert (target / "empty" / "below").is_dir()
        assert [each.name for each in (target / "empty").iterdir()] == ["below"]
        assert not (target / "empty" / "other").exists()


def test_it_is_unmounted_by_any_path_that_leads_there(home: Any, store: Bucket) -> None:
    place = home.cache_dir / "real" / "place"
    place.mkdir(parents=True)
    link = home.cache_dir / "link"
    link.symlink_to(place)
    given = {"endpoint_url": store.environment()["AWS_ENDPOINT_URL"]}
    keys = store.boto3()
    given.update(access_key_id=keys["aws_access_key_id"], secret_access_key=keys["aws_secret_access_key"])
    settings = Options(ram="64MB").settings("s3://bench", given, str(home.cache_dir))
    for path in (link, home.cache_dir / "real" / ".." / "link", place / ".." / "place"):
        pid = program.start(options.directory(path), settings, home.cache_dir / "mount.log")
        assert len(list(place.iterdir())) == 3
        with pytest.raises(InvalidError, match="mounted there already"):
            options.directory(place)
        program.unmount(str(path))
        assert not lives(pid)
        assert list(place.iterdir()) == []


def test_options_are_taken_as_s3fs_takes_them() -> None:
    words = options.words(
        ["allow_other,umask=0022,", "rw", "use_path_request_style,url=http://host:9000", "region=a,b"]
    )
    assert words == [
        "allow_other=1",
        "umask=0022",
        "rw=1",
        "use_path_request_style=1",
        "url=http://host:9000",
        "region=a,b",
    ]
    found = options.given(dict(word.split("=", 1) for word in words))
    assert found.fields == {"allow_other": True, "umask": 0o022, "allow_write": True}
    assert found.store == {"endpoint_url": "http://host:9000", "region": "a,b"}
    with pytest.raises(InvalidError, match="--disk"):
        options.given({"use_cache": "/tmp"})
    for name in ("uid", "gid"):
        with pytest.raises(InvalidError, match=f"{name}=-1: give 0 to"):
            Options(**options.given({name: "-1"}).fields).settings("s3://bench", {}, None)


def test_names_that_have_aged_together_are_listed_again(home: Any) -> None:
    with Bucket(profile="fast", synthetic=["many:3000x100"]) as store, mounted(home, store, ttl_s=1.5) as target:
        names = [entry.path for entry in os.scandir(target / "many")]
        assert len(names) == 3000
        for _ in range(2):
            time.sleep(2)
            before = requests(store)
            sizes = [Path(name).stat().st_size for name in names]
            after = requests(store)
            assert sizes == [100] * 3000
            # As quick as that is the listing isn't there yet for some of them, on a slow machine for many; and they may age once more.
            assert after.get("head", 0) - before.get("head", 0) < 1500
            assert 3 <= after["list"] - before["list"] <= 30


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
