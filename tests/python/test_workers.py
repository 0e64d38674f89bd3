"""Worker processes: however they start and end, the parent gets its batches or an error, and the agent gets its memory back."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data

import foreload as fl
from foreload import errors
from foreload._node import agent as _agent
from foreload.torch import DataLoader, Dataset, Sampler, _waits
from small import COUNT, content, number_of, until

TINY = fl.Cache(ram="48MB")
HERE = Path(__file__).parent


def big(raw: memoryview) -> np.ndarray[Any, Any]:
    return np.full(50_000, len(raw) % 251, np.uint8)


def slow(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    time.sleep(0.02)
    return torch.tensor([meta.sample, os.getpid()])


def numbered(raw: memoryview, meta: fl.Meta) -> torch.Tensor:
    return torch.full((20_000,), meta.sample)


def gauges(loader: Any) -> dict[str, Any]:
    found: dict[str, Any] = loader.run.attachment().call("stats")["gauges"]
    return found


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("decode", [None, big])
def test_workers_may_start_in_any_way(data: Any, method: str, decode: Any) -> None:
    loader = DataLoader(
        data, 64, shuffle=True, decode=decode, num_workers=2, multiprocessing_context=method, cache=TINY
    )
    for batch, (values, labels) in enumerate(loader):
        samples = loader.run.plan.batch(0, batch, 0)
        assert labels.tolist() == data.labels[samples].tolist()
        right = [content(number_of(data.key(sample))) for sample in samples]
        if decode is None:
            assert values == right
        else:
            assert values[:, 0].tolist() == [len(one) % 251 for one in right]
    assert gauges(loader)["leases"] == 0


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_torchs_own_loader_may_start_them_in_any_way(data: Any, method: str) -> None:
    part = data.select(range(3, 90))
    stock: Any = torch_data.DataLoader(
        Dataset(part, cache=TINY),
        sampler=Sampler(part, seed=1),
        batch_size=20,
        num_workers=2,
        multiprocessing_context=method,
    )
    found = [value for values, _ in stock for value in values]
    assert sorted(found) == sorted(content(number_of(part.key(i))) for i in range(87))


def test_a_killed_worker_is_an_error_and_gives_everything_back(home: Any) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 8, decode=slow, num_workers=2, cache=TINY)
    iterator = iter(loader)
    values, _ = next(iterator)
    os.kill(int(values[0, 1]), signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed by signal"):
        for _ in iterator:
            pass
    del iterator
    until(lambda: gauges(loader)["leases"] == 0 and gauges(loader)["leased_bytes"] == 0)
    assert time.monotonic() - killed < 20
    # And the next pass works.
    assert len(list(loader)) == len(loader)


def test_a_killed_process_gives_its_memory_back_at_once(home: Any) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 8, cache=TINY, raw="view")
    run = loader.run
    attachment = run.attachment()
    took = []
    # A neighbour may have the processors for a while, but hardly five times.
    while len(took) < 5 and min(took, default=1.0) >= 0.2:
        attachment.job().start(0, 0, 0)
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                job = run.attachment().job()
                held = [job.take(job.want_batch(0, 0, batch)) for batch in range(3)]
                Path(os.environ["FORELOAD_CACHE_DIR"], "held").touch()
                time.sleep(60)
                del held
            os._exit(0)
        until((home.cache_dir / "held").exists)
        (home.cache_dir / "held").unlink()
        assert attachment.call("stats")["gauges"]["leases"] == 24
        os.kill(child, signal.SIGKILL)
        begun = time.monotonic()
        until(lambda: attachment.call("stats")["gauges"]["leases"] == 0)
        took.append(time.monotonic() - begun)
        os.waitpid(child, 0)
    assert min(took) < 0.2


def test_a_forked_child_has_a_connection_of_its_own(data: Any) -> None:
    views = DataLoader(data, 16, raw="view", cache=TINY)
    held, _ = next(iter(views))
    before = [bytes(view) for view in held]
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            assert data[5].bytes == content(number_of(data.key(5)))
            fresh = DataLoader(data, 16, cache=TINY)
            assert len(list(fresh)) == len(fresh)
            held.clear()
            status = 0
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert [bytes(view) for view in held] == before
    assert len(list(views)) == len(views)


def test_a_killed_agent_is_replaced_once(home: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 8, shuffle=True, raw="view", cache=TINY)
    whole = [data.read(sample) for batch in range(3, 26) for sample in loader.run.plan.batch(0, batch, 0)]
    iterator = iter(loader)
    held = [next(iterator)[0] for _ in range(3)]
    before = [[bytes(view) for view in batch] for batch in held]
    os.kill(_agent.connect(str(home.cache_dir)).pid, signal.SIGKILL)
    assert [bytes(view) for values, _ in iterator for view in values] == whole
    assert [[bytes(view) for view in batch] for batch in held] == before, "what was delivered stays valid"
    assert "agent" in caplog.text
    # A job that ended with its agent starts anew for the next pass.
    assert len(list(loader)) == len(loader)


def test_the_first_read_of_a_data_set_whose_agent_was_killed_is_answered(home: Any) -> None:
    data = fl.open("s3://data/fixed")
    for sample in range(3):
        os.kill(_agent.connect(str(home.cache_dir)).pid, signal.SIGKILL)
        assert len(data.read(sample)) == data._index.length(sample)
    chosen = data.select([3, 4])
    os.kill(_agent.connect(str(home.cache_dir)).pid, signal.SIGKILL)
    assert [bytes(item) for item in chosen] == [data.read(3), data.read(4)]


def test_an_agent_that_keeps_dying_is_an_error(home: Any) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 8, cache=TINY)
    iterator = iter(loader)

    def kill_at_each_step() -> None:
        for _ in iterator:
            os.kill(_agent.connect(str(home.cache_dir)).pid, signal.SIGKILL)

    with pytest.raises(errors.ClosedError, match=r"agent\.log"):
        kill_at_each_step()
    # The system takes a moment to close what a killed one had.
    until(lambda: not home.is_served())


@pytest.mark.parametrize(
    ("method", "form", "decode"),
    [
        ("fork", "bytes", None),
        ("fork", "tensor", None),
        ("fork", "bytes", numbered),
        # Workers that import everything take their time.
        ("forkserver", "bytes", None),
        ("spawn", "bytes", numbered),
    ],
)
def test_workers_outlive_a_killed_agent(
    home: Any, method: str, form: Any, decode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(
        data,
        8,
        shuffle=True,
        raw=form,
        decode=decode,
        num_workers=2,
        prefetch_factor=4,
        multiprocessing_context=method,
        cache=TINY,
    )
    expected = [loader.run.plan.batch(0, batch, 0) for batch in range(len(loader))]
    read = {data.read(sample): sample for sample in range(len(data))}

    def samples_of(values: Any) -> list[int]:
        return (
            values[:, -1].tolist()
            if decode
            else [read[np.asarray(value).tobytes() if form == "tensor" else value] for value in values]
        )

    iterator = iter(loader)
    found = [samples_of(next(iterator)[0]) for _ in range(2)]
    # By now the workers have sent batches that lie in this agent's memory.
    os.kill(_agent.connect(str(home.cache_dir)).pid, signal.SIGKILL)
    found += [samples_of(values) for values, _ in iterator]
    assert found == expected
    assert "was replaced" in caplog.text, "the new agent was told where the pass stands"
    until(lambda: gauges(loader)["leases"] == 0 and gauges(loader)["leased_bytes"] == 0)
    # And the next pass is read ahead as ever.
    assert len(list(loader)) == len(loader)


def test_a_run_keeps_its_data_set_when_the_index_is_written_again(home: Any, tmp_path: Path) -> None:
    place, saved = tmp_path / "data", tmp_path / "saved.flx"
    place.mkdir()
    for number in range(6):
        (place / f"{number}.bin").write_bytes(bytes([number]))
    saved.write_bytes(fl.open(place)._index.to_bytes())
    data = fl.open(place, index=saved)
    loader = DataLoader(data, 2, num_workers=1, multiprocessing_context="spawn", cache=fl.Cache(ram="16MB"))
    saved.write_bytes(data.select(range(1, 6))._index.to_bytes())
    assert len(fl.open(place, index=saved)) == 5
    # Its workers open the data set only now.
    assert [list(values) for values, _ in loader] == [[bytes([at]), bytes([at + 1])] for at in (0, 2, 4)]
    # A new agent can only have the new one.
    os.kill(data.source.opened().agent.pid, signal.SIGKILL)
    with pytest.raises(errors.ChangedError, match="begin the run anew"):
        list(loader)


PROGRAM = """
import sys
import foreload as fl
from foreload.torch import DataLoader
data = fl.open("s3://data/fixed")
loader = DataLoader(data, 8, num_workers=int(sys.argv[1]), cache=fl.Cache(ram="16MB"))
next(iter(loader))
print("ready", flush=True)
try:
    for _ in range(1_000_000):
        for _ in loader:
            pass
except (KeyboardInterrupt, RuntimeError):  # torch may notice first that its workers were interrupted too
    print("interrupted", flush=True)
sys.exit(3)
"""


FORKING = """
import sys
import foreload as fl
from foreload.torch import DataLoader
loader = DataLoader(fl.open("s3://data/flat"), 5, num_workers=2, cache=fl.Cache(ram="16MB"))
print("ready", flush=True)
for _ in range(8):
    try:
        while True:
            for _ in loader:
                pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_no_ctrl_c_is_lost_while_workers_are_started(home: Any, tmp_path: Path) -> None:
    said = tmp_path / "stderr"
    with said.open("w") as errors:
        process = subprocess.Popen([sys.executable, "-c", FORKING], stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        for number in range(8):
            time.sleep(0.3 + number * 0.013)
            # To the parent alone: its workers' end would be noticed too.
            process.send_signal(signal.SIGINT)
            if not select.select([process.stdout], [], [], 20)[0]:
                # multiprocessing keeps its queues in a dictionary of weak references, and ends what they have when the last reference goes. Python drops
                # what is raised in the callback of a weak reference (one in 400 on a busy machine). Nobody but the interpreter could keep that.
                assert re.search("ignored in: <(function WeakValueDictionary|Finalize object)", said.read_text())
                said.write_text("")
                process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_ends_a_busy_loop(home: Any, workers: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(workers)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert process.wait(20) == 3


WAITING = """
import os, signal, sys, threading, time
import foreload as fl
data, tiny = fl.open("s3://data/fixed"), fl.Cache(ram="16MB")
if sys.argv[2] == "numpy":
    loader = fl.NumpyLoader(data, 8, cache=tiny)
else:
    from foreload.torch import DataLoader, Dataset, Sampler
    from torch.utils import data as torch_data
    loader = DataLoader(data, 8, cache=tiny)
    if sys.argv[2] == "stock":
        mapped = Dataset(data, cache=tiny)
        loader = torch_data.DataLoader(mapped, 8, sampler=Sampler(mapped), collate_fn=list)
sent = []
def send():
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT if sys.argv[1] == "INT" else signal.SIGTERM)
if sys.argv[1] == "TERM":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
took = []
# A neighbour may have the processors for a while, but hardly five times.
while len(took) < 5 and min(took, default=1.0) >= 0.2:
    threading.Timer(0.5, send).start()
    try:
        next(iter(loader))
    except (KeyboardInterrupt, SystemExit):
        took.append(time.perf_counter() - sent.pop())
print(min(took), flush=True)
"""


@pytest.mark.parametrize(("name", "door"), [("INT", "numpy"), ("TERM", "numpy"), ("INT", "torch"), ("INT", "stock")])
def test_a_signal_ends_a_wait_within_200_ms(home: Any, bucket: Any, name: str, door: str) -> None:
    fl.open("s3://data/fixed")
    bucket.add_fault("hang", on=["get"], share=1.0)
    try:
        done = subprocess.run(
            [sys.executable, "-c", WAITING, name, door], capture_output=True, text=True, timeout=60, check=True
        )
    finally:
        bucket.clear_faults()
    assert float(done.stdout) < 0.2


def test_a_timeout_is_kept(home: Any, bucket: Any) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 8, timeout=0.5, dp_rank=1, dp_size=2, policy="naive", cache=TINY)
    loader.load_state_dict({**loader.state_dict(), "epoch": 3, "position": 5 * 16})
    bucket.add_fault("hang", on=["get"], share=1.0)
    try:
        with pytest.raises(TimeoutError, match=r"timeout=0\.5 s \(epoch 3, batch 5, rank 1\)"):
            next(iter(loader))
    finally:
        bucket.clear_faults()


def test_a_stall_is_reported_with_its_cause_while_it_lasts(
    home: Any, bucket: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = fl.open("s3://data/fixed")
    loader = DataLoader(data, 8, cache=TINY, timeout=4, tuning=fl.Tuning(stall_s=0.3, hedge_per_cent=0))
    bucket.add_fault("hang", on=["get"], share=1.0)
    iterator = iter(loader)
    try:
        with pytest.warns(errors.StalledWarning, match="a GET to the bucket is under way"), pytest.raises(TimeoutError):
            next(iterator)
    finally:
        bucket.clear_faults()
    assert re.search(r"waiting for \d.*s3://data/fixed/", caplog.text)


def test_a_worker_that_hangs_is_reported_while_it_does(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was forked beside threads may never begin, and the agent isn't waited for."""
    monkeypatch.setattr(_waits.OURS, "stall_s", 0.3)
    waits = torch_data.dataloader._MultiProcessingDataLoaderIter._try_get_data  # type: ignore[attr-defined] # torch's
    # So often torch looks whether its workers live.
    monkeypatch.setattr(
        torch_data.dataloader._MultiProcessingDataLoaderIter,  # type: ignore[attr-defined]
        "_try_get_data",
        lambda self, _timeout: waits(self, 0.05),
    )
    batches = iter(DataLoader(data, 4, num_workers=1, prefetch_factor=1, cache=TINY))
    first = next(batches)
    (worker,) = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    os.kill(worker, signal.SIGSTOP)
    threading.Timer(1.5, os.kill, (worker, signal.SIGCONT)).start()
    stopped = rf"batch \d of this pass from worker 0 \(pid {worker}\): that process is stopped"
    with pytest.warns(errors.StalledWarning, match=stopped):
        rest = list(batches)
    assert len([first, *rest]) == -(-len(data) // 4)


@pytest.mark.parametrize("kind", [DataLoader, fl.NumpyLoader])
def test_a_timeout_and_a_report_of_a_stall_are_of_decoding_too(home: Any, kind: Any) -> None:
    data = fl.open("s3://data/fixed")
    goes_on = threading.Event()

    def decode(raw: memoryview, meta: fl.Meta) -> int:
        if meta.sample == 5:
            goes_on.wait(2)
        return meta.sample

    def two_batches(**keywords: Any) -> list[list[int]]:
        iterator = iter(kind(data, 4, decode=decode, cache=TINY, **keywords))
        return [list(map(int, next(iterator)[0])) for _ in range(2)]

    both = [[0, 1, 2, 3], [4, 5, 6, 7]]
    stalls = fl.Tuning(stall_s=0.5)
    with pytest.warns(errors.StalledWarning, match=r"waiting for .* sample 5 \(s3://.*to be decoded.*batch 1"):
        assert two_batches(tuning=stalls, timeout=30, threads=2) == both
    # The loop's own call can't be ended.
    with pytest.warns(errors.StalledWarning, match=r"\d\.\d s of it for sample 5 .*no time-out ends"):
        assert two_batches(tuning=stalls, threads=0) == both
    with pytest.warns(errors.StalledWarning, match=r"\d\.\d s of it for sample 5 .*no time-out ends"):
        assert two_batches(timeout=1, threads=0) == both
    with pytest.raises(errors.TimedOutError, match=r"timeout=1 s: sample 5 .*still being decoded.*batch 1") as caught:
        two_batches(timeout=1, threads=2)
    assert caught.value.sample == 5
    goes_on.set()


def test_a_tensor_alive_at_exit_does_no_harm(home: Any) -> None:
    program = """
import foreload as fl
from foreload.torch import DataLoader
loader = DataLoader(fl.open("s3://data/fixed"), 8, raw="tensor", num_workers=1, cache=fl.Cache(ram="16MB"))
iterator = iter(loader)
kept = next(iterator), next(iter(DataLoader(fl.open("s3://data/fixed"), 8, raw="view")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class Session:
    """A session as boto3 has them: it can't be pickled, and what it answers with expires at once."""

    def __init__(self, bucket: Any) -> None:
        self.frozen = SimpleNamespace(access_key=bucket.access_key, secret_key=bucket.secret_key, token=None)
        self.asked = 0

    def __reduce__(self) -> Any:
        raise TypeError("a session can't be pickled")

    def get_credentials(self) -> Any:
        self.asked += 1
        return SimpleNamespace(get_frozen_credentials=lambda: self.frozen, _expiry_time=time.time())


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_with_what_a_provider_said_that_can_not_be_pickled(
    home: Any, bucket: Any, monkeypatch: pytest.MonkeyPatch, method: Any, ours: bool
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    session = Session(bucket)
    data = fl.open("s3://data/train", credential_provider=session)
    common: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method}
    samples = Dataset(data, cache=fl.Cache(ram="32MB"))
    loader: Any = (
        DataLoader(samples, 50, **common)
        if ours
        else torch_data.DataLoader(samples, 50, sampler=Sampler(data, shuffle=False), **common)
    )
    asked, batches = session.asked, iter(loader)
    for first in range(0, COUNT, 50):
        values, _ = next(batches)
        right = [content(number_of(data.key(sample))) for sample in range(first, min(first + 50, COUNT))]
        assert values == right
    assert session.asked > asked, "the process that has the provider renews"
