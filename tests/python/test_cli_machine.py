"""The verbs about this machine: doctor with each check failing, the cache, the agent, top, bench."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foreload
from command import Command
from foreload._mapped import probe
from foreload._node import agent as _agent
from foreload._node.results import Results
from foreload._node.table import Name
from foreload.cli.doctor import directories, file, machine, store
from foreload.cli.doctor.finding import Finding, guarded
from small import COUNT, content, until


@pytest.fixture
def run(home: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


def levels(found: Iterator[Finding]) -> list[str]:
    findings = list(found)
    for finding in findings:
        # Whatever isn't fine says what to do.
        assert finding.remedy or finding.level in ("ok", "note"), finding
    return [finding.level for finding in findings]


def checks(report: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in report["checks"]}


def test_doctor_finds_nothing_failing_here_and_reads_a_sample(run: Command) -> None:
    report = run.json("doctor", "s3://data/train")
    found = checks(report)
    assert report["ok"]
    assert found["credentials"]["detail"] == "keys in the environment (AWS_ACCESS_KEY_ID)"
    assert found["clock"]["level"] == "ok"
    assert found["data set"]["detail"].startswith(f"{COUNT} samples")
    assert {"versions", "memory", "shared memory", "memfd and sealing", "open files", "agent"} <= found.keys()
    assert run("doctor") == 0
    assert "nothing fails" in run.out


def test_doctor_exits_with_1_and_the_remedy_when_a_check_fails(run: Command) -> None:
    code, _ = run.fails("doctor", "s3://absent/x")
    assert code == 1
    assert "FAIL" in run.out
    assert "1 failed" in run.out
    assert run("doctor", "s3://data/train", "--json", "-o", "key=a", "-o", "secret=b") == 1
    report = json.loads(run.out)
    assert not report["ok"]
    assert checks(report)["credentials"]["detail"] == "keys from the options"
    assert checks(report)["data set"]["level"] == "fail"
    assert run("doctor", "s3://data/train", "--endpoint-url", "http://127.0.0.1:1", "--json") == 1
    assert checks(json.loads(run.out))["endpoint"]["level"] == "fail"


def test_doctor_asks_the_store_even_if_the_index_is_saved_and_the_first_sample_empty(
    run: Command, home: Any, bucket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = foreload.open("s3://data/train")
    assert data.ranges(0)[0][1:] == (0, 0)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert run("doctor", "s3://data/train", "--json") == 1
    found = checks(json.loads(run.out))
    assert (found["data set"]["level"], found["first sample"]["level"]) == ("ok", "fail")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "nothing").touch()
    assert checks(run.json("doctor", tmp_path))["first sample"]["level"] == "note"


def test_doctor_looks_at_files_and_directories(run: Command, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    assert "10 B" in checks(run.json("doctor", tmp_path / "a"))["file"]["detail"]
    assert "a directory" in checks(run.json("doctor", tmp_path))["file"]["detail"]
    assert run.fails("doctor", tmp_path / "absent")[0] == 1


def test_doctor_says_what_a_program_gets_that_maps_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, device = tmp_path / "model.safetensors", tmp_path / "read_ahead_kb"
    path.write_bytes(bytes(1 << 20))

    def of(latency_s: float | None, window: int = 128 << 10) -> Finding:
        found = probe.Probe(window, device, 0.25, latency_s)
        monkeypatch.setattr(probe, "probe", lambda _: found)
        return list(file.mapped(path))[-1]

    assert of(None).detail == "25% of the file is in the page cache"
    assert of(0.0001).level == "ok"
    slow = of(0.005)
    assert slow.level == "note"
    assert "a page takes 5 ms, and a fault brings 131 KB: 26.2 MB/s" in slow.detail
    assert slow.remedy.startswith("foreload.mmap.prefetch")
    assert slow.remedy.endswith(f"echo 8192 > {device}")
    assert "echo" not in of(0.005, 8 << 20).remedy


def test_a_file_s_pages_are_timed_where_they_are_not_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 << 20))
    there = probe.probe(path, tmp_path)
    assert (there.cached, there.latency_s, there.device, there.window_bytes) == (1.0, None, None, 128 << 10)
    with path.open("rb+") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    gone = probe.probe(path)
    if gone.cached < 1:
        assert gone.latency_s is not None
        assert gone.faulting_bytes_per_s == gone.window_bytes / gone.latency_s


def test_doctor_never_shows_a_secret(run: Command, bucket: Any) -> None:
    run("doctor", "s3://data/train", "-o", "secret=geheim", "-o", "key=a")
    assert bucket.secret_key not in run.out
    assert "geheim" not in run.out


def test_doctor_tells_when_there_is_no_agent_to_be_had(run: Command, home: Any, tmp_path: Path) -> None:
    environment = {**os.environ, "FORELOAD_AGENT": "/bin/false"}
    command = [sys.executable, "-c", "from foreload.cli import main; main()", "doctor", "--json"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert checks(json.loads(ran.stdout))["agent"]["level"] == "fail"


def write_memory(root: Path, available_kb: int, limit: str, used: int = 0) -> Path:
    group = root / "sys/fs/cgroup/job"
    group.mkdir(parents=True, exist_ok=True)
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {available_kb} kB\n")
    (root / "proc/self/cgroup").write_text("0::/job\n")
    (group / "memory.max").write_text(limit)
    (group / "memory.current").write_text(str(used))
    (group / "memory.stat").write_text("inactive_file 0\n")
    return root


def test_memory_is_judged_by_the_cgroup_as_well(tmp_path: Path) -> None:
    plenty = 64 << 20
    assert levels(machine.memory(write_memory(tmp_path, plenty, "max"))) == ["ok"]
    assert levels(machine.memory(write_memory(tmp_path, plenty, str(1 << 30)))) == ["warn"]
    assert levels(machine.memory(write_memory(tmp_path, plenty, str(1 << 30), used=1 << 30))) == ["fail"]


def test_limits_of_open_files_are_judged() -> None:
    assert [levels(machine.open_files((soft, 4096))) for soft in (100, 512, 4096, -1)] == [
        ["fail"],
        ["warn"],
        ["ok"],
        ["ok"],
    ]


def test_memfd_that_is_forbidden_fails() -> None:
    def refuse(name: str, flags: int) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def ordinary(name: str, flags: int) -> int:
        return os.open("/dev/null", os.O_RDWR)

    assert levels(machine.sealed_memory(refuse)) == ["fail"]
    assert levels(machine.sealed_memory(ordinary)) == ["fail"]
    assert levels(machine.sealed_memory()) == ["ok"]


def test_missing_shared_memory_warns(tmp_path: Path) -> None:
    assert levels(machine.shared_memory(tmp_path / "absent")) == ["warn"]


def test_a_cache_directory_that_cannot_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert levels(directories.cache_directory(tmp_path / "file" / "cache")) == ["fail"]
    assert levels(directories.cache_directory(tmp_path / "new"))[0] in ("ok", "warn")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert levels(directories.cache_directory(tmp_path)) == ["fail"]


def test_file_systems_are_told_apart(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nhost:/x {tmp_path} nfs4 rw 0 0\nx {tmp_path}/a\\040b fuse.sshfs rw 0 0\n")
    (tmp_path / "a b").mkdir()
    found = [directories.filesystem(path, mounts) for path in (Path("/"), tmp_path, tmp_path / "a b")]
    assert found == ["ext4", "nfs4", "fuse.sshfs"]
    assert [directories.is_network(kind) for kind in found] == [False, True, True]


def test_a_socket_directory_that_others_can_write_fails(tmp_path: Path) -> None:
    assert levels(directories.socket_directory(tmp_path / "absent")) == ["ok"]
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert levels(directories.socket_directory(tmp_path / "open")) == ["fail"]


def test_credentials_are_found_in_the_order_of_the_chain(tmp_path: Path) -> None:
    def first(url: str, options: dict[str, str], environment: dict[str, str]) -> Finding:
        return next(store.credentials(url, options, environment, tmp_path))

    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_PROFILE": "p"}
    assert "as asked" in first("s3://b", {"profile": "q"}, environment).detail
    assert "unsigned" in first("s3://b", {"anonymous": "true"}, environment).detail
    assert "AWS_ACCESS_KEY_ID" in first("s3://b", {}, environment).detail
    assert "AWS_PROFILE" in first("s3://b", {}, {"AWS_PROFILE": "p"}).detail
    assert [first(f"{scheme}://b", {}, {}).level for scheme in ("s3", "gs", "az")] == ["warn"] * 3
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("[default]\n")
    assert ".aws/credentials" in first("s3a://b", {}, {}).detail
    assert not list(store.credentials("https://host/x", {}, {}, tmp_path))


def test_a_clock_that_is_off_warns_and_then_fails() -> None:
    skews = [store.skew(seconds) for seconds in (0.4, -30, 120, -3600)]
    assert [finding.level for finding in skews] == ["ok", "ok", "warn", "fail"]
    assert "behind" in skews[3].detail
    assert "15 minutes" in skews[3].remedy


def test_endpoints_follow_options_and_clouds() -> None:
    found = [
        store.endpoint_of("s3://b/x", {"region": "eu-west-1"}),
        store.endpoint_of("s3://b/x", {"endpoint_url": "http://h:1"}),
        store.endpoint_of("gs://b", {}),
        store.endpoint_of("az://c/x", {"account_name": "me"}),
        store.endpoint_of("https://h/a/b", {}),
        store.endpoint_of("data", {}),
    ]
    assert found[:3] == ["https://s3.eu-west-1.amazonaws.com", "http://h:1", "https://storage.googleapis.com"]
    assert found[3:] == ["https://me.blob.core.windows.net", "https://h", None]


def test_a_check_that_breaks_is_reported_and_the_next_runs() -> None:
    def broken() -> Iterator[Finding]:
        raise KeyError("x")

    assert [finding.level for finding in guarded("a", broken)] == ["warn"]
    assert levels(file.look(Path("/proc/self/absent"))) == ["fail"]


def test_cache_lists_what_is_kept(run: Command, tmp_path: Path) -> None:
    for name in ("train", "fixed"):
        run.json("index", f"s3://data/{name}")
    for name in ("00000000.seg", "0000001f.seg", "mine.seg"):
        (tmp_path / name).write_bytes(b"12345")
    found = run.json("cache", "ls", "--disk", tmp_path)
    assert sorted(index["url"] for index in found["indexes"]) == ["s3://data/fixed", "s3://data/train"]
    assert [index["samples"] for index in found["indexes"]] == [COUNT, COUNT]
    assert found["tiers"] == [{"path": str(tmp_path), "bytes": 10, "segments": 2}]
    assert found["bytes"] == 10 + sum(index["bytes"] for index in found["indexes"])
    assert run("cache", "ls", "--disk", tmp_path) == 0
    assert str(tmp_path) in run.out
    assert "s3://data/train" in run.out


def test_the_cache_of_a_running_job_is_not_cleared(run: Command, data: Any) -> None:
    assert data[1].sample == 1
    code, line = run.fails("cache", "clear", "--yes")
    assert (code, "end them first" in line) == (2, True)
    assert len(run.json("cache", "ls")["indexes"]) == 1


def test_clearing_removes_indexes_and_segments_and_nothing_else(run: Command, home: Any, tmp_path: Path) -> None:
    indexes = home.cache_dir / "indexes"
    indexes.mkdir(parents=True)
    (indexes / "0.flx").write_bytes(b"no index")
    assert run.fails("index", "s3://data/nothing-here")[0] == 3
    (unfinished,) = indexes.glob("*.listing")
    size = unfinished.stat().st_size
    assert run("cache", "ls") == 0
    assert "unfinished listings: 1" in run.out
    names = ["00000001.seg", "mine.seg", "lock", "0000000A.seg"]
    for name in names:
        (tmp_path / name).write_bytes(b"12345")
    assert run.json("cache", "ls")["indexes"][0]["damaged"]
    # In a process of its own the command has no connection of an earlier one.
    _agent._agents.clear()
    gc.collect()
    # In which form it answers is no word that it may.
    code, line = run.fails("cache", "clear", "--disk", tmp_path, "--json")
    assert (code, "add --yes" in line) == (2, True)
    assert len(list(indexes.iterdir())) == 2
    cleared = run.json("cache", "clear", "--disk", tmp_path, "--yes")
    assert cleared == {"freed_bytes": 13 + size, "indexes": 1, "tiers": 1, "results": 0, "in_use": []}
    assert not list(indexes.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])
    assert run.json("cache", "ls")["bytes"] == 0


def test_results_and_the_lists_of_wrap_are_listed_and_cleared(run: Command, home: Any, tmp_path: Path) -> None:
    name, other = Name("city-512px", 50), Name("old", 7)
    used, unused = (Results(each, [(str(tmp_path), 1 << 20)], 0, str(home.cache_dir)) for each in (name, other))
    used.put(3, b"three")
    used.put(4, b"four")
    unused.put(5, b"five")
    unused.close()
    (tmp_path / "results" / "mine.res").write_bytes(b"12345")
    damaged = tmp_path / "results" / f"{'0' * 32}.res"
    damaged.write_bytes(b"12345")
    lists = home.cache_dir / "wrapped" / "a.jsonl"
    lists.parent.mkdir()
    lists.write_text("{}")
    found = run.json("cache", "ls", "--disk", tmp_path)
    assert sorted((each.get("name", ""), each.get("samples"), each.get("kept")) for each in found["results"]) == [
        ("", None, None),
        ("city-512px", 50, 2),
        ("old", 7, 1),
    ]
    assert found["lists"] == [{"path": str(lists), "bytes": 2}]
    assert found["bytes"] == 2 + sum(
        path.stat().st_size for path in (tmp_path / "results").glob(f"{'[0-9a-f]' * 32}.res")
    )
    assert run("cache", "ls", "--disk", tmp_path) == 0
    assert all(told in run.out for told in ("city-512px", "damaged", "lists of files that wrap was given: 1"))
    (in_use,) = (each["path"] for each in found["results"] if each.get("name") == "city-512px")
    _agent._agents.clear()
    gc.collect()
    cleared = run.json("cache", "clear", "--disk", tmp_path, "--yes")
    freed = found["bytes"] - Path(in_use).stat().st_size
    assert cleared == {"freed_bytes": freed, "indexes": 0, "tiers": 1, "results": 2, "in_use": [in_use]}
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == sorted(
        ["lock", "mine.res", Path(in_use).name]
    )
    assert not lists.exists()
    assert used.get(3) == b"three"
    used.close()
    assert run("cache", "clear", "--disk", tmp_path, "--yes") == 0
    assert "1 disk tier, results of 1 data set" in run.out
    assert run.json("cache", "ls", "--disk", tmp_path)["bytes"] == 0


def test_the_agent_s_status_follows_its_life(run: Command, home: Any, data: Any) -> None:
    assert data[3].bytes is not None
    status = run.json("agent", "status")
    assert status["running"]
    job = status["jobs"][0]
    assert (job["url"], job["clients"], job["processes"]) == ("s3://data/train", 1, [os.getpid()])
    assert (job["order"], job["seed"], job["ranks"], job["world"]) == ("supplied", 0, [0], 1)
    assert run("agent", "status") == 0
    assert f"process {status['pid']}" in run.out
    once = run.json("top", "--once")
    stats = once["jobs"][0]["stats"]
    assert stats["samples"] == 1
    assert 0 < stats["memory_bytes"] <= stats["gauges"]["used_bytes"] + (1 << 20)
    assert run("top", "--once") == 0
    assert "s3://data/train" in run.out


def test_top_has_the_nodes_that_a_pool_shares_with_once_and_the_slowest_first() -> None:
    from foreload.cli import output, top

    def node(address: str, latency_s: float, *, is_avoided: bool = False) -> dict[str, Any]:
        numbers = {"samples": 5, "bytes": 550_000, "misses": 1, "failures": 2, "in_flight": 3, "bytes_per_s": 1e9}
        return {"address": address, "latency_s": latency_s, "is_avoided": is_avoided, **numbers}

    nodes = [node("10.0.0.2:4001", 0.001), node("10.0.0.3:4001", 0.2, is_avoided=True)]
    counters = dict.fromkeys(("ram_hits", "disk_hits", "peer_hits", "bucket_reads", "samples", "bytes", "requests"), 0)
    stats = {**counters, "waited_s": 0.0, "memory_bytes": 0, "served": 7, "served_bytes": 770_000, "nodes": nodes}
    job = {"url": "s3://b/k", "order": "keyed", "seed": 1, "ranks": [0], "world": 2, "processes": [1], "pool_bytes": 1}
    jobs = [{**job, "job": number, "pool": 4, "clients": 1, "stats": stats} for number in (1, 2)]
    console = output.console()
    console.width = 200
    with console.capture() as captured:
        console.print(top._all(jobs))
    said = captured.get()
    assert said.count("other nodes of pool 4, which had 7 samples") == 1, said
    assert said.index("10.0.0.3:4001") < said.index("10.0.0.2:4001"), said
    assert said.count("left alone for now") == 1, said
    for each in jobs:
        each["stats"] = {**stats, "nodes": []}
    with console.capture() as captured:
        console.print(top._all(jobs))
    assert "other nodes" not in captured.get()


def test_status_and_top_start_no_agent(run: Command, home: Any) -> None:
    assert run.json("agent", "status") == {"running": False, "cache_dir": str(home.cache_dir), "jobs": []}
    assert run.json("top", "--once") == {"running": False, "jobs": []}
    assert run.json("agent", "stop") == {"stopped": False, "running": False}
    assert run("top") == 0
    assert "no agent runs" in run.out
    assert not home.is_served()


HOLD = """
import sys, foreload
data = foreload.open("s3://data/train")
data[0]
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("reads", [True, False])
def test_an_agent_in_use_is_stopped_by_force_alone(run: Command, home: Any, reads: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD if reads else HOLD.replace("data[0]\n", "")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        code, _ = run.fails("agent", "stop", "--timeout", 1)
        assert code == 1
        assert "1 attached" in run.out
        assert run.json("agent", "stop", "--force")["stopped"]
        assert not run.json("agent", "status")["running"]
        assert not list(home.runtime_dir.glob("*.sock"))
        assert holder.stdin is not None
        holder.stdin.close()
    # Nothing of the one that was killed is in the way of the next, which also tidies up.
    assert run.json("index", "s3://data/train")["samples"] == COUNT


def test_an_agent_that_does_not_answer_is_told(run: Command, home: Any) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        agent = run.json("agent", "status")["pid"]
        os.kill(agent, signal.SIGSTOP)
        for verb in ("status", "stop"):
            begun = time.monotonic()
            code, error = run.fails("agent", verb)
            assert code != 0
            assert "doesn't answer" in str(error)
            assert time.monotonic() - begun < 15
        os.kill(agent, signal.SIGCONT)
        assert run.json("agent", "status")["pid"] == agent
        assert holder.stdin is not None
        holder.stdin.close()


def test_an_idle_agent_is_stopped(run: Command, home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORELOAD_LINGER_S", "60")
    command = [sys.executable, "-c", "import foreload; foreload.open('s3://data/train')[0]"]
    subprocess.run(command, check=True)
    until(home.is_served)
    stopped = run.json("agent", "stop")
    assert stopped["stopped"], stopped
    assert not home.is_served()


def test_top_shows_rates_between_two_looks() -> None:
    from foreload.cli.top import rates

    def job(samples: int, waited_s: float) -> list[dict[str, Any]]:
        return [{"job": 1, "stats": {"samples": samples, "bytes": 0, "requests": 3, "waited_s": waited_s}}]

    found = rates(job(10, 0.0), job(30, 0.5), 2.0)[0]
    assert (found["samples_per_s"], found["waited_share"], found["requests_per_s"]) == (10.0, 0.25, 0.0)
    assert rates([], job(30, 0.5), 2.0)[0]["samples_per_s"] == 15.0


def test_top_has_a_job_on_all_its_nodes_and_who_waits_most_first() -> None:
    from foreload.cli import output, top

    def node(address: str | None, rank: int, samples: int, waited_s: float) -> dict[str, Any]:
        names = ("ram_hits", "disk_hits", "peer_hits", "bucket_reads", "bytes", "requests")
        stats = {**dict.fromkeys(names, 0), "samples": samples, "waited_s": waited_s, "slowest": [[f"k/{rank}", 0.3]]}
        report = {"ranks": [rank], "waiting_s": waited_s if rank == 2 else None, "stats": stats}
        return {"address": address, "report": report, "silence": None}

    def jobs(samples: int, waited_s: float) -> list[dict[str, Any]]:
        dead = {"address": "10.0.0.4:4001", "report": None, "silence": "no connection"}
        nodes = [node(None, 0, samples, 0.0), dead, node("10.0.0.3:4001", 2, samples, waited_s)]
        counters = {"memory_bytes": 0, "nodes": [], **nodes[0]["report"]["stats"]}
        job = {"url": "s3://b/k", "order": "keyed", "seed": 1, "ranks": [0], "world": 3, "processes": [1], "pool": 1}
        return [{**job, "job": 7, "pool_bytes": 1, "stats": counters, "group": nodes}]

    console = output.console()
    console.width = 200

    def shown(found: list[dict[str, Any]]) -> list[str]:
        with console.capture() as captured:
            console.print(top._all(found))
        return captured.get().partition("job 7 on all 3 nodes")[2].splitlines()

    once = "\n".join(shown(jobs(10, 1.5)))
    assert "says nothing: no connection" in once
    assert "waits since 1.5 s" in once
    lines = shown(top.rates(jobs(10, 1.5), jobs(30, 3.0), 2.0))
    at = {
        where: number
        for number, line in enumerate(lines)
        for where in ("10.0.0.4", "10.0.0.3", "this node")
        if where in line
    }
    assert at["10.0.0.4"] < at["10.0.0.3"] < at["this node"], lines
    assert "75%" in lines[at["10.0.0.3"]]
    assert "k/2" in lines[at["10.0.0.3"]]
    assert " 10 " in lines[at["this node"]]


def test_bench_measures_both_loaders_and_counts_requests(run: Command, bucket: Any) -> None:
    pytest.importorskip("torch")
    words = ("bench", "s3://data/train", "--batch-size", 20, "--ram", "32MB", "--loader", "foreload,torch")
    bucket.reset()
    found = run.json(*words)
    ours, stock = found["results"]
    assert [epoch["samples"] for result in (ours, stock) for epoch in result["epochs"]] == [COUNT] * 4
    # Nothing is asked of the bucket for an empty sample.
    wanted = [COUNT - sum(not content(number) for number in range(COUNT)), 0]
    assert [epoch["requests"] - epoch["hedges"] - epoch["retries"] for epoch in ours["epochs"]] == wanted
    assert "boto3" in stock["settings"]
    assert found["environment"]["ram_bytes"] == 32_000_000
    assert all(epoch["p50_s"] <= epoch["p99_s"] <= epoch["seconds"] for epoch in ours["epochs"])
    assert run.fails("bench", "s3://data/train", "--loader", "fast")[0] == 2


def test_bench_with_workers_connections_and_compute(run: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ("--batch-size", 20, "--epochs", 1, "--ram", "32MB", "--batches", 3)
    assert run("bench", "s3://data/fixed", *words, "--workers", 1, "--connections", 4, "--compute-ms", 1) == 0
    assert "1 workers, 4 connections" in run.out
    assert "100%" not in run.out.splitlines()[-2]
    for number in range(40):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number]) * 100)
    found = run.json("bench", tmp_path, *words, "--loader", "foreload,torch")
    assert [result["epochs"][0]["bytes"] for result in found["results"]] == [4000, 4000]


def test_percentiles_are_values_that_occurred() -> None:
    from foreload.cli.bench.measure import percentile

    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert percentile([], 0.5) == 0.0
