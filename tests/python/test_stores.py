"""A store that fails, throttles, refuses or speaks TLS while a loader reads from it: what is delivered is right, and errors come in time and name what helps."""

from __future__ import annotations

import json
import random
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket

import foreload as fl
from foreload import errors
from foreload.torch import DataLoader
from small import number_of

#: Memory for thirty samples: most of an epoch is still to come when the store begins to fail.
LITTLE = fl.Cache(ram="16MB", batches="15MB")


@pytest.fixture
def failing(bucket: Any) -> Iterator[Any]:
    """The bucket, which may fail for the time of a test."""
    yield bucket
    bucket.clear_faults()
    bucket.set_keys(access_key=bucket.access_key, secret_key=bucket.secret_key, expired=[])


def truth(data: Any) -> list[bytes]:
    """The bytes of all samples, as they were written."""
    return [random.Random(number_of(data.key(sample))).randbytes(30_000) for sample in range(len(data))]


def read(loader: Any) -> list[bytes]:
    return [value for values, _ in loader for value in values]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_outage_is_told_once_and_seldom_again_however_many_batches_wait_for_it(
    home: Any, failing: Any, workers: int
) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 4, cache=LITTLE, num_workers=workers, tuning=fl.Tuning(stall_s=0.4))
    batches = iter(loader)
    found = list(next(batches)[0])
    failing.add_fault("status", status=503)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threading.Timer(3, failing.clear_faults).start()
        found += read(batches)
    assert found == truth(data)
    told = [str(each.message) for each in caught if issubclass(each.category, errors.StalledWarning)]
    # After 0.4 and 1.2 s, and after 2.8; with a worker the agent's log has them.
    log = (home.cache_dir / "agent.log").read_text()
    assert workers or 1 <= len(told) <= 3, told
    assert 1 <= log.count("a GET to the bucket is under way") <= 3, log


BROKEN = {
    "500": {"kind": "status", "status": 500},
    "503": {"kind": "status", "status": 503},
    "429": {"kind": "status", "status": 429},
    "reset": {"kind": "reset"},
    "stall": {"kind": "stall"},
}


@pytest.mark.parametrize(("name", "workers"), [*((name, 0) for name in BROKEN), ("503", 2)])
def test_a_store_that_stays_broken_is_an_error_in_time(home: Any, failing: Any, name: str, workers: int) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 4, cache=LITTLE, num_workers=workers, tuning=fl.Tuning(load_timeout_s=1))
    batches = iter(loader)
    found = list(next(batches)[0])
    failing.reset()
    failing.add_fault(**BROKEN[name])
    begun = time.monotonic()
    with pytest.raises((errors.UnavailableError, errors.TimedOutError), match=r"s3://data/fixed/\w+/") as caught:
        found += read(batches)
    # Loads that are under way when the loop asks, and its own, twice: a second each. The default would be a minute each.
    assert time.monotonic() - begun < 20
    assert data.key(caught.value.sample) in str(caught.value)
    if name.isdigit():
        assert f"the store answered {name}" in str(caught.value)
    assert failing.counters()["requests"]["get"] < 2000, "no storm"
    assert found == truth(data)[: len(found)]
    failing.clear_faults()
    assert read(loader) == truth(data)


@pytest.mark.parametrize("asks", [None, 1])
def test_a_store_that_throttles_is_asked_as_often_as_it_answers(home: Any, failing: Any, asks: int | None) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 4, shuffle=True, seed=1, cache=LITTLE)
    batches = iter(loader)
    found = list(next(batches)[0])
    failing.reset()
    failing.add_fault("rate_limit", per_s=50, retry_after_s=asks)
    found += read(batches)
    right = truth(data)
    assert found == [right[sample] for batch in range(len(loader)) for sample in loader.run.plan.batch(0, batch, 0)]
    counts = failing.counters()
    refused, served = counts["status"].get("503", 0), counts["status"]["206"]
    assert refused > 20, "the store refused"
    # Who asks again at once is refused thousands of times.
    assert refused < 6 * served


class Keys:
    """A provider whose keys are those of a file; they are said to hold for an hour."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> dict[str, Any]:
        return {**json.loads(self.path.read_text()), "expires_at": time.time() + 3600}


@pytest.mark.parametrize("workers", [0, 2])
def test_credentials_that_end_in_mid_epoch_are_renewed_and_nothing_is_lost(
    home: Any, failing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    keys = tmp_path / "keys"
    keys.write_text(json.dumps({"access_key_id": failing.access_key, "secret_access_key": failing.secret_key}))
    data = fl.open("s3://data/fixed", credential_provider=Keys(keys))
    loader = DataLoader(data, 4, cache=LITTLE, num_workers=workers)
    # Some GETs are still under way when their keys end.
    failing.add_fault("slow", delay_ms=20)
    batches = iter(loader)
    found = list(next(batches)[0])
    for number in range(2):
        failing.reset()
        keys.write_text(json.dumps({"access_key_id": f"next{number}", "secret_access_key": "secret"}))
        failing.set_keys(access_key=f"next{number}", secret_key="secret", expired=["testkit", "next0"][: number + 1])
        for _ in range(12):
            found += next(batches)[0]
        assert failing.counters()["status"].get("400", 0) + failing.counters()["status"].get("403", 0) > 0
    assert [*found, *read(batches)] == truth(data)
    assert loader.stats()["failures"] < len(data)


@pytest.mark.parametrize("workers", [0, 2])
def test_credentials_that_nobody_renews_are_an_error_that_says_what_helps(
    home: Any, failing: Any, workers: int
) -> None:
    batches = iter(DataLoader(fl.open("s3://data/fixed"), 4, cache=LITTLE, num_workers=workers))
    next(batches)
    failing.set_keys(access_key="next", expired=[failing.access_key])
    with pytest.raises(errors.DeniedError, match=r"s3://data/fixed/.*ExpiredToken.*credential_provider"):
        list(batches)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("status", "kind"), [(404, errors.NotFoundError), (403, errors.DeniedError)])
def test_an_object_that_is_gone_in_mid_epoch_is_named_or_skipped_and_one_that_is_denied_is_named(
    home: Any, failing: Any, workers: int, status: int, kind: type[Exception]
) -> None:
    data = fl.open("s3://data/fixed")
    bad = next(sample for sample in range(len(data)) if number_of(data.key(sample)) == 100)
    failing.add_fault("status", status=status, matching=data.key(bad))
    right = truth(data)
    with pytest.raises(kind, match=data.key(bad)) as caught:
        read(DataLoader(data, 4, cache=LITTLE, num_workers=workers))
    assert caught.value.sample == bad  # type: ignore[attr-defined] # ours have it
    loader = DataLoader(data, 4, cache=LITTLE, num_workers=workers, on_error=fl.skip(max_consecutive=1))
    if kind is errors.DeniedError:
        # What is wrong is who asks, and he would be refused the others too.
        with pytest.raises(kind, match=data.key(bad)):
            read(loader)
        return
    for _ in range(2):
        assert read(loader) == [*right[:bad], *right[bad + 1 :]]
    assert loader.stats()["skipped"] == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_over_tls_from_whom_it_trusts(
    home: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    (tmp_path / "safe").mkdir()
    right = [random.Random(number).randbytes(number * 1000) for number in range(40)]
    for number, content in enumerate(right):
        (tmp_path / "safe" / f"{number:02}").write_bytes(content)
    with Bucket(directory=tmp_path, tls=True) as bucket:
        for name, value in bucket.environment().items():
            monkeypatch.setenv(name, value)
        with monkeypatch.context() as nobody:
            nobody.delenv("AWS_CA_BUNDLE")
            with pytest.raises(errors.InvalidError, match=r"UnknownIssuer.*ca_file"):
                fl.open("s3://safe")
        loader = DataLoader(fl.open("s3://safe"), 4, cache=fl.Cache(ram="16MB"), num_workers=workers)
        assert read(loader) == right
        assert bucket.counters()["requests"]["get"] >= len(right) - 1
