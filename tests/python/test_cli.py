"""The verbs about data sets and plans: what they print, as text and as JSON, and how they fail."""

from __future__ import annotations

import errno
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from command import Command
from foreload.cli import progress
from foreload.cli.output import write_files
from small import CLASSES, COUNT, content, number_of, tar_shard, until

SCENARIO = """
name = "small"
[dataset]
samples = 2000
mean_mb = 0.1
[training]
epochs = 3
global_batch = 50
[cluster]
nodes = 2
compute_mb_s = 50
preprocess_mb_s = 200
network_mb_s = 1000
[source]
throughput_mb_s = { 1 = 30, 2 = 50 }
[[tier]]
kind = "staging"
capacity_mb = 32
threads = 2
read_mb_s = 1000
[[tier]]
kind = "ram"
capacity_mb = 120
threads = 2
read_mb_s = 1000
"""


@pytest.fixture
def run(home: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def client(bucket: Any) -> Any:
    return pytest.importorskip("boto3").client("s3", **bucket.boto3())


def foreload(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from foreload.cli import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def unboxed(text: str) -> str:
    """A message without the frame and the breaks that rich gives it."""
    return " ".join(text.replace("│", " ").split())


def test_help_lists_every_verb_without_torch_or_a_process() -> None:
    code = (
        "import sys; sys.argv[1:] = ['--help']\n"
        "from foreload.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'boto3', 'PIL', 'matplotlib', 'pyarrow'} & set(sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for verb in "index preview explain plan simulate cost bench doctor top agent cache".split():  # noqa: SIM905
        assert f" {verb} " in ran.stdout


def test_the_package_run_as_a_module_is_the_command() -> None:
    command = [sys.executable, "-m", "foreload", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("foreload ")


def test_help_is_quick() -> None:
    def cpu_s(code: str) -> float:
        begun = sum(os.times()[2:4])
        subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, check=True)
        return sum(os.times()[2:4]) - begun

    # It takes 0.3 s where importing NumPy takes 0.1 s. Clock ticks are 10 ms and neighbours slow some runs more than others, so this only
    # tells an import too many (torch alone takes ten times NumPy's time); the figure itself is bench/'s.
    yardstick = min(cpu_s("import numpy") for _ in range(4))
    assert min(cpu_s("from foreload.cli import main; main()") for _ in range(4)) < 8 * yardstick


def test_the_version_is_the_package_s() -> None:
    import foreload as package

    assert foreload("--version").stdout.split() == ["foreload", package.__version__]


def test_index_summarises_what_it_lists(run: Command, home: Any, bucket: Any) -> None:
    first = run.json("index", "s3://data/train")
    assert first["samples"] == first["objects"] == COUNT
    assert first["bytes"] == sum(len(content(number)) for number in range(COUNT))
    assert first["classes"] == list(CLASSES)
    assert (first["format"], first["origin"], first["cache_dir"]) == ("folder", "listed", str(home.cache_dir))
    bucket.reset()
    assert run("index", "s3://data/train") == 0
    assert first["digest"] in run.out
    assert "3: cat, dog, eel" in run.out
    assert bucket.counters()["requests"].get("list", 0) == 0


def test_index_update_says_what_changed(run: Command, client: Any) -> None:
    for number in range(3):
        client.put_object(Bucket="data", Key=f"growing/a/{number}", Body=b"x")
    assert "changes" not in run.json("index", "s3://data/growing")
    assert run.json("index", "s3://data/growing", "--update")["changes"] == {"added": 0, "removed": 0, "changed": 0}
    client.put_object(Bucket="data", Key="growing/a/0", Body=b"yy")
    client.put_object(Bucket="data", Key="growing/b/9", Body=b"z")
    client.delete_object(Bucket="data", Key="growing/a/1")
    updated = run.json("index", "s3://data/growing", "--update")
    assert updated["changes"] == {"added": 1, "removed": 1, "changed": 1}
    assert (updated["samples"], updated["classes"]) == (3, ["a", "b"])
    assert run.json("index", "s3://data/growing")["digest"] == updated["digest"]
    assert run("index", "s3://data/growing", "--update") == 0
    assert "0 added, 0 removed, 0 changed" in run.out
    for entry in client.list_objects_v2(Bucket="data", Prefix="growing/")["Contents"]:
        client.delete_object(Bucket="data", Key=entry["Key"])


def test_index_notes_checksums_and_a_replaced_object_is_not_delivered(run: Command, client: Any) -> None:
    for number in range(4):
        client.put_object(Bucket="data", Key=f"sums/{number}", Body=b"%d" % number)
    plain = run.json("index", "s3://data/sums")
    summed = run.json("index", "s3://data/sums", "--checksum")
    assert summed["samples"] == 4
    assert summed["index_bytes"] > plain["index_bytes"]
    assert [row["bytes"] for row in run.json("preview", "s3://data/sums", "-n", 2)["rows"]] == [1, 1]
    client.put_object(Bucket="data", Key="sums/2", Body=b"X")
    assert run.fails("preview", "s3://data/sums", "--first", 2, "-n", 1)[0] == 6
    for number in range(4):
        client.delete_object(Bucket="data", Key=f"sums/{number}")


def test_a_written_index_opens_without_a_listing(run: Command, tmp_path: Path, bucket: Any, client: Any) -> None:
    path = tmp_path / "data.flx"
    assert run.json("index", "s3://data/train", "--out", path)["saved"] == str(path)
    assert run.json("index", "s3://data/train", "--out", "s3://data/saved.flx")["saved"] == "s3://data/saved.flx"
    assert client.get_object(Bucket="data", Key="saved.flx")["Body"].read() == path.read_bytes()
    bucket.reset()
    for saved in (path, "s3://data/saved.flx"):
        rows = run.json("preview", "s3://data/train", "-n", 2, "--index", saved)["rows"]
        assert len(rows) == 2
    assert bucket.counters()["requests"].get("list", 0) == 0
    client.delete_object(Bucket="data", Key="saved.flx")
    assert "directory" in run.fails("index", "s3://data/train", "--out", tmp_path)[1]
    assert run.fails("index", "s3://data/train", "--out", "gs://data/x")[0] == 2


def test_preview_says_what_the_bytes_are(run: Command, client: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    png = io.BytesIO()
    image.new("RGB", (17, 5)).save(png, "PNG")
    contents = {"img/a/1.png": png.getvalue(), "img/b/2.txt": b"seven", "img/b/3.bin": bytes(range(9))}
    for key, body in contents.items():
        client.put_object(Bucket="data", Key=key, Body=body)
    rows = run.json("preview", "s3://data/img")["rows"]
    assert [(row["key"], row["type"], row["image"]) for row in rows] == [
        ("a/1.png", "PNG", [17, 5]),
        ("b/2.txt", "text", None),
        ("b/3.bin", "binary", None),
    ]
    assert [(row["label"], row["class"], row["bytes"]) for row in rows][1:] == [(1, "b", 5), (1, "b", 9)]
    assert run("preview", "s3://data/img", "-n", 1) == 0
    assert "17 x 5" in run.out
    assert "b/2.txt" not in run.out
    assert run.fails("preview", "s3://data/img", "--first", 3)[0] == 2
    for key in contents:
        client.delete_object(Bucket="data", Key=key)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"RIFF\0\0\0\0WEBPVP8 ", "WebP"),
        (b"\0\0\0\x20ftypisom", "MP4"),
        (b'{"a": 1}', "JSON"),
        (b"", "empty"),
        (b"\xff\xfe\0", "binary"),
        ("ü".encode() * 600, "text"),
    ],
)
def test_content_is_known_by_how_it_begins(content: bytes, kind: str) -> None:
    from foreload.cli.preview import content_type

    assert content_type(content) == kind


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("order", ["keyed", "torch"])
def test_explain_names_the_samples_that_the_loader_reads(run: Command, data: Any, order: str, world: int) -> None:
    torch = pytest.importorskip("torch")
    from foreload.torch import DataLoader

    arguments = {"batch_size": 8, "shuffle": True, "seed": 11, "order": order, "dp_rank": world - 1, "dp_size": world}
    if order == "torch" and world == 1:
        del arguments["seed"]
        arguments["generator"] = torch.Generator().manual_seed(11)
    loader = DataLoader(data, **arguments)
    batches = [batch for _ in range(2) for batch in loader]
    assert len(batches) == 2 * len(loader)
    for step in (0, 5, len(loader) - 1, len(loader), 2 * len(loader) - 1):
        words = ("explain", "s3://data/train", "--step", step, "--batch-size", 8, "--seed", 11, "--order", order)
        found = run.json(*words, "--world", world, "--rank", world - 1)
        assert (found["epoch"], found["batch"]) == divmod(step, len(loader))
        assert [content(number_of(row["key"])) for row in found["samples"]] == batches[step][0]
        assert [row["label"] for row in found["samples"]] == batches[step][1].tolist()


def test_explain_shows_positions_and_refuses_what_does_not_exist(run: Command, bucket: Any) -> None:
    words = ("explain", "s3://data/train", "--batch-size", 4, "--world", 2, "--seed", 3)
    run.json("index", "s3://data/train")
    bucket.reset()
    assert run(*words, "--step", 1, "--rank", 1, "--epoch", 7) == 0
    assert bucket.counters()["requests"].get("get", 0) == 0
    assert "epoch 7, batch 1 of" in run.out
    found = run.json(*words, "--step", 1, "--rank", 1, "--epoch", 7)
    assert all(8 <= row["position"] < 16 for row in found["samples"])
    assert run.fails(*words, "--step", 1, "--rank", 2)[0] == 2
    assert run.fails(*words, "--step", 1000, "--epoch", 0)[0] == 2
    code, line = run.fails(*words, "--step", 1, "--order", "alphabetical")
    assert code == 2
    assert "keyed, torch" in line


def test_a_failure_is_one_line_with_its_exit_code(run: Command, tmp_path: Path) -> None:
    cases: list[tuple[tuple[object, ...], int, str]] = [
        (("index", "s3://absent/x"), 3, "NoSuchBucket"),
        (("index", "s3://data/absent"), 3, "s3://data/absent"),
        (("index", tmp_path / "absent"), 3, "absent"),
        (("index", "foo://x"), 2, "scheme"),
        (("index", "s3://data/train", "-o", "key=wrong", "-o", "secret=wrong"), 4, "InvalidAccessKeyId"),
        (("index", "s3://data/train", "-o", "endpont=x"), 2, 'did you mean "endpoint"'),
        (("index", "s3://data/train", "--endpoint-url", "http://127.0.0.1:1"), 5, "refused"),
        (("index", "s3://data/train", "--profile", "absent"), 2, "profile"),
        (("simulate", tmp_path / "absent.toml"), 3, "absent.toml"),
    ]
    for words, expected, text in cases:
        code, line = run.fails(*words)
        assert (code, text in line, line.count("\n")) == (expected, True, 1), line
        assert line.startswith("foreload: ")


def test_wrong_usage_exits_with_2_and_names_the_word(run: Command) -> None:
    for words, text in (
        (("index",), "URL"),
        (("index", "s3://data/train", "--nope"), "--nope"),
        (("index", "s3://data/train", "-o", "a"), "key=value"),
        (("no-such-verb",), "no-such-verb"),
        (("explain", "s3://data/train"), "--step"),
    ):
        code, line = run.fails(*words)
        assert code == 2
        assert text in line


def test_with_json_a_failure_is_an_object_too(run: Command) -> None:
    assert run("index", "s3://absent/x", "--json") == 3
    error = json.loads(run.out)["error"]
    assert (error["kind"], error["exit_code"]) == ("not-found", 3)
    assert "absent" in error["message"]
    assert run.err.startswith("foreload: ")


def test_a_traceback_is_shown_on_demand(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORELOAD_DEBUG", "1")
    assert run("index", "s3://absent/x") == 3
    assert "Traceback" in run.err


def test_an_unexpected_exception_is_one_line_as_well() -> None:
    from foreload.cli.failure import Code, code_of, message_of

    assert code_of(RuntimeError("x")) is Code.FAILED
    assert message_of(RuntimeError("x\ny")).startswith("RuntimeError: x y")
    assert code_of(KeyboardInterrupt()) is Code.INTERRUPTED
    assert message_of(KeyboardInterrupt()) == "interrupted"


def test_simulate_reports_every_policy_and_plots(run: Command, scenario: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = run.json("simulate", scenario, "--plot", tmp_path / "plot.png")
    assert report["scenario"] == "small"
    assert {"perfect", "frequency", "foreload", "deli"} <= {result["policy"] for result in report["results"]}
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"
    chosen = run.json("simulate", scenario, "-p", "foreload", "--set", "training.epochs=5")["results"]
    assert [result["policy"] for result in chosen] == ["foreload"]
    assert len(chosen[0]["epoch_hours"]) == 5
    assert chosen[0]["hours"] >= report["lower_bound_hours"]
    assert run("simulate", scenario, "-p", "foreload", "-p", "naive") == 0
    assert "lower bound" in run.out
    assert run.out.index("foreload") < run.out.index("naive")


def test_simulate_takes_the_sizes_of_a_real_index(run: Command, scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace("samples = 2000\nmean_mb = 0.1", 'index = "s3://data/fixed"'))
    report = run.json("simulate", scenario, "-p", "foreload")
    assert report["dataset_mb"] == pytest.approx(COUNT * 30_000 / 2**20, rel=1e-6)


def test_cost_takes_disks_and_objects_from_the_scenario(run: Command, scenario: Path) -> None:
    sizes = scenario.with_name("sizes")
    sizes.write_text("".join(f"0.1 {number // 100} {number % 100 * 104858}\n" for number in range(2000)))
    disk = '[[tier]]\nkind = "disk"\ncapacity_mb = 2000\nread_mb_s = 1000\n'
    scenario.write_text(SCENARIO + disk)
    given = ("cost", scenario, "--prices", "s3")
    ours = run.json(*given)["results"][0]
    assert ours["usage"]["disk_bytes_per_node"] == 2000 << 20
    assert ours["bill"]["disk"] > 0
    free = run.json(*given, "--disk-gb", 0)["results"][0]
    assert (free["usage"]["disk_bytes_per_node"], free["bill"]["disk"]) == (0, 0)
    assert free["copy"] == ours["copy"]
    other = run.json(*given, "--set", "tier.disk.capacity_mb=1000")["results"][0]
    assert other["usage"]["disk_bytes_per_node"] == 1000 << 20
    shards = run.json(*given, "--set", f"dataset.sizes_file={sizes}")
    assert shards["objects"] == 20
    assert shards["results"][0]["usage"]["class_a_requests"] == 1
    assert shards["results"][0]["copy"]["requests"] < ours["copy"]["requests"] / 50
    assert run.json(*given)["objects"] == 2000
    assert run.json(*given, "--set", "dataset.index=s3://data/fixed")["objects"] == COUNT


def test_one_is_no_plural(run: Command, scenario: Path) -> None:
    assert run("cost", scenario, "--set", "training.epochs=1", "--set", "cluster.nodes=1") == 0
    assert "small: 1 epoch on 1 node," in run.out
    assert run("cost", scenario) == 0
    assert "small: 3 epochs on 2 nodes," in run.out


def test_simulate_suggests_the_right_word(run: Command, scenario: Path) -> None:
    assert "nodes" in run.fails("simulate", scenario, "--set", "cluster.nods=2")[1]
    for verb in ("simulate", "cost"):
        for word, meant in (("foreloads", "foreload"), ("lbann-dinamic", "lbann-dynamic")):
            assert f"did you mean '{meant}'?" in unboxed(run.fails(verb, scenario, "-p", word)[1])
        assert "did you mean" not in run.fails(verb, scenario, "-p", "xyzzy")[1]
    assert run.fails("simulate", scenario, "--set", "nonsense")[0] == 2
    scenario.write_text("this is no TOML")
    assert run.fails("simulate", scenario)[0] == 2


def test_what_is_quick_says_nothing_on_standard_error(
    run: Command, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert progress._SECONDS >= 5
    # However busy this machine is.
    monkeypatch.setattr(progress, "_SECONDS", 600.0)
    run.json("simulate", scenario, "-p", "foreload")
    assert run.err == ""
    run.json("cost", scenario)
    assert run.err == ""
    run.json("plan", "s3://data/fixed", "--batch", 8)
    # Without a batch, all of a data set that is smaller than the default.
    assert run.json("plan", "s3://data/fixed") == run.json("plan", "s3://data/fixed", "--batch", COUNT)
    assert run.err == ""


def test_what_lasts_says_on_standard_error_how_far_it_is(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS", 0.01)
    said: list[str] = []

    def is_said(text: str) -> bool:
        said.extend(run.lines())
        return any(line.startswith(text) for line in said)

    with progress.reporter() as report:
        report("waiting", 3, 6)
        # However seldom it is reported.
        until(lambda: is_said("foreload: waiting: 50% after "))
        report("listing", 17, None)
        until(lambda: is_said("foreload: listing: 17 after "))
    run.lines()
    with progress.reporter(quiet=True) as report:
        report("waiting", 3, 6)
    assert run.lines() == []


def test_an_interrupted_simulation_ends_at_once_with_130(scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace("samples = 2000", "samples = 20000000"))
    # A shell starts what runs in its background deaf to interrupts.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from foreload.cli import main, progress; progress._SECONDS = 0.1; main()"
    )
    command = [sys.executable, "-c", code, "simulate", str(scenario), "--json"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with running:
        assert running.stderr is not None
        assert "sizes and order" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=20)
    assert (running.returncode, out) == (130, "")


def test_a_command_that_is_interrupted_while_it_is_loaded_ends_with_130_and_no_traceback() -> None:
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Slow:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'foreload.cli.app': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from foreload.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_scenario_that_no_policy_can_run_is_a_failure(run: Command, scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace("capacity_mb = 120", "capacity_mb = 20"))
    for verb in ("simulate", "cost"):
        code, text = run.fails(verb, scenario, "-p", "lbann-dynamic")
        assert code == 1
        assert "no policy that was asked for can run small" in text
        assert run(verb, scenario, "-p", "lbann-dynamic", "--json") == 1
        assert json.loads(run.out)["results"][0]["supported"] is False
        assert run(verb, scenario, "-p", "lbann-dynamic", "-p", "naive") == 0
        assert "can't run" in run.out
        assert "\N{EN DASH}" in run.out


def test_files_that_are_none_are_named(run: Command, scenario: Path, tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x7fELF\xff\xfe\0")
    empty = tmp_path / "empty.toml"
    empty.write_text("\n")
    pipe, large = tmp_path / "pipe", tmp_path / "large.toml"
    os.mkfifo(pipe)
    large.touch()
    os.truncate(large, (16 << 20) + 1)
    cases: list[tuple[tuple[object, ...], int, str]] = [
        (("simulate", binary), 2, f"{binary} isn't text"),
        (("simulate", empty), 2, f"{empty} is empty"),
        (("simulate", tmp_path), 2, "is a directory"),
        (("simulate", "/dev/zero"), 2, "/dev/zero is no regular file"),
        (("cost", scenario, "--prices", "/dev/zero"), 2, "/dev/zero is no regular file"),
        (("simulate", pipe), 2, "is no regular file"),
        (("simulate", large), 2, f"{large} has more than 16 MiB"),
        (("cost", tmp_path / "absent.toml"), 3, "absent.toml doesn't exist"),
        (("cost", scenario, "--prices", binary), 2, f"{binary} isn't text"),
        (("cost", scenario, "--prices", empty), 2, f"{empty} is empty"),
        (("cost", scenario, "--prices", tmp_path / "absent.toml"), 3, "absent.toml doesn't exist"),
        (("simulate", scenario, "--calibration", binary), 2, f"{binary} isn't text"),
    ]
    for words, expected, text in cases:
        code, line = run.fails(*words, "-q")
        assert (code, text in line) == (expected, True), line


def test_a_file_that_cannot_be_written_is_said_before_the_work(run: Command, scenario: Path, tmp_path: Path) -> None:
    absent = tmp_path / "absent" / "file.png"
    sizes = tmp_path / "taken.sizes"
    sizes.mkdir()
    for words, text in (
        (("simulate", scenario, "--plot", absent), "--plot"),
        (("simulate", scenario, "--plot", tmp_path), "--plot"),
        (("plan", "s3://data/fixed", "--scenario", absent), "--scenario"),
        (("plan", "s3://data/fixed", "--scenario", tmp_path / "plan.sizes"), "plan.toml"),
        (("plan", "s3://data/fixed", "--scenario", sizes.with_suffix(".toml")), "--scenario"),
        (("calibrate", "--out", absent), "--out"),
        (("index", "s3://absent/x", "--out", absent), "--out"),
        (("index", "s3://absent/x", "--out", f"file://{absent}"), "--out"),
        (("index", "s3://absent/x", "--out", "gs://data/x"), "--out"),
    ):
        code, line = run.fails(*words)
        assert (code, text in line, "simulating" in line) == (2, True, False), line


def test_a_read_only_file_system_is_called_so(
    run: Command, scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    words = ("simulate", scenario, "--plot", tmp_path / "plot.png")
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    assert "permission denied" in unboxed(run.fails(*words)[1])
    monkeypatch.setattr(os, "statvfs", lambda _: types.SimpleNamespace(f_flag=os.ST_RDONLY))
    assert "file system is mounted read-only" in unboxed(run.fails(*words)[1])


def test_a_plot_without_anything_in_it_is_not_written(run: Command, scenario: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.png"
    words = ("simulate", scenario, "-p", "lbann-preload", "--set", "tier.ram.capacity_mb=1", "--plot", path)
    code, line = run.fails(*words)
    assert (code, f"nothing to draw, {path} is not written" in line, path.exists()) == (1, True, False)
    assert f"plot: {path}" not in run.out


def test_a_plot_that_can_not_be_drawn_is_said_before_the_work(run: Command, scenario: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("plot.xyz", "plot", "plot."):
        code, line = run.fails("simulate", scenario, "--plot", tmp_path / name)
        assert (code, "--plot" in line, ".png" in line, "simulating" in line) == (2, True, True, False), line
    assert run("simulate", scenario, "-p", "foreload", "--plot", tmp_path / "plot.SVG") == 0
    assert [path.name for path in tmp_path.glob("plot*")] == ["plot.SVG"]


@pytest.mark.parametrize("given", ["nan", "inf", "-inf"])
def test_numbers_that_are_not_finite_are_called_so(run: Command, scenario: Path, given: str) -> None:
    for verb, option in (
        (("cost", scenario), "--disk-gb"),
        (("cost", scenario), "--cross-zone"),
        (("plan", "s3://data/fixed"), "--step-time"),
        (("plan", "s3://data/fixed"), "--latency"),
        (("calibrate",), "--seconds"),
        (("bench", "s3://data/fixed"), "--compute-ms"),
        (("top",), "--interval"),
    ):
        code, line = run.fails(*verb, f"{option}={given}")
        assert (code, line) == (2, f"foreload: {option} must be a finite number, not {given}\n")


def test_numbers_out_of_range_are_told_the_range(run: Command, scenario: Path) -> None:
    assert "--cross-zone: 1.5 is not between 0 and 1" in run.fails("cost", scenario, "--cross-zone", 1.5)[1]
    assert "--disk-gb: -1.0 is not between 0" in run.fails("cost", scenario, "--disk-gb=-1")[1]
    assert "--seconds: 601.0 is not between 0.05 and 600" in run.fails("calibrate", "--seconds", 601)[1]
    assert "--step-time: 0.0 is not between" in run.fails("plan", "s3://data/fixed", "--step-time", 0)[1]


def test_plan_refuses_numbers_that_are_none(run: Command) -> None:
    for words, text in (
        (("--ram", "0"), "at least"),
        (("--ram", "1"), "at least"),
        (("--network", "0"), "--network"),
        (("--disk-speed", "0GB"), "--disk-speed"),
        (("--epochs", "9999999999"), "epochs"),
        (("--nodes", "70000"), "--nodes: 70000"),
        (("--nodes", "9"), "--nodes: 9 nodes can't share a batch of 8"),
        (("--batch", "204"), "--batch: a batch of 204 is more than the data set's 203 samples"),
        (("--ram", "much"), "--ram: 'much' is no size"),
        (("--step-time", "2e9"), "--step-time: 2000000000.0 is not between 1e-09 and 1e+09"),
        (("--latency", "2e9"), "--latency: 2000000000.0 is not between 0 and 1e+09"),
    ):
        code, line = run.fails("plan", "s3://data/fixed", "--batch", 8, *words)
        assert (code, text in line, "plan(" in line) == (2, True, False), line


def test_plan_says_nothing_of_later_epochs_where_there_are_none(run: Command) -> None:
    words = ("plan", "s3://data/fixed", "--batch", 8)
    assert run(*words, "--epochs", 1) == 0
    assert "1 epoch;" in run.out
    assert "later" not in run.out
    assert "longer" not in run.out
    assert run(*words, "--epochs", 2) == 0
    assert "per later epoch" in run.out


def test_a_scenario_that_does_not_fit_its_drive_leaves_nothing(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Path.write_text

    def full(path: Path, text: str, **given: Any) -> int:
        if path.suffix == ".toml":
            written(path, text[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(path, text, **given)

    path = tmp_path / "plan.toml"
    words = ("plan", "s3://data/fixed", "--batch", 8, "--scenario", path)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        code, line = run.fails(*words)
    assert (code, line) == (1, f"foreload: {path}: the scenario can't be written: No space left on device\n")
    assert list(tmp_path.iterdir()) == []
    assert run(*words) == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["plan.sizes", "plan.toml"]
    # What was there before stays.
    before = path.read_text()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        run.fails(*words, "--nodes", 2)
    assert path.read_text() == before


def test_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        write_files([(Path(f"/dev/fd/{writer}"), "text", "the scenario")])
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
        os.close(writer)
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_files([(link, "new", "the scenario")])
    assert (path.read_text(), path.stat().st_mode & 0o777, link.is_symlink()) == ("new", 0o640, True)


def test_simulate_counts_the_requests_that_plan_said(run: Command, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    for number in range(2):
        tar_shard(shards / f"{number}.tar", {f"{number}{sample:03}.bin": bytes(20_000) for sample in range(100)})
    path = tmp_path / "plan.toml"
    for nodes, drive in ((1, "engine"), (2, "fast")):
        words = ("--batch", 8, "--ram", "2MB", "--nodes", nodes, "--scenario", path)
        found = run.json("plan", f"file://{shards}", *words)
        assert found["drive"] == drive
        assert f'drive = "{drive}"' in path.read_text()
        assert run.json("simulate", path, "-p", "foreload")["results"][0]["requests"] == found["requests"]
        priced = run.json("cost", path, "-p", "foreload")["results"][0]
        assert priced["usage"]["class_b_requests"] == found["requests"]


def test_cost_prices_a_run_and_the_copy(run: Command, scenario: Path) -> None:
    found = run.json("cost", scenario, "-p", "foreload", "-p", "naive", "--prices", "s3")
    ours, naive = found["results"]
    assert ours["bill"]["total"] == pytest.approx(sum(value for name, value in ours["bill"].items() if name != "total"))
    assert ours["bill"]["total"] < naive["bill"]["total"]
    assert ours["usage"]["class_b_requests"] == 2000
    assert ours["copy"]["disk"] > 0
    assert run("cost", scenario) == 0
    assert "copied to every disk" in run.out
    assert run("cost", "--sheet", "--prices", "gcs") == 0
    sheet = scenario.with_name("mine.toml")
    sheet.write_text(run.out)
    assert run.json("cost", scenario, "--prices", sheet)["results"][0]["bill"]["total"] > 0
    assert run.fails("cost", scenario, "--prices", "nowhere")[0] == 2
    assert run.fails("cost")[0] == 2


def test_plan_predicts_what_limits_and_what_helps(run: Command, tmp_path: Path) -> None:
    words = ("plan", "s3://data/fixed", "--batch", 8, "--nodes", 2)
    assert run.json(*words)["requests"] == 2 * COUNT, "without a network nodes share nothing"
    words = (*words, "--network", "1100MiB")
    computing = run.json(*words, "--step-time", 0.5)
    assert computing["limit"] == "computing"
    assert computing["upgrades"][0]["upgrade"] == "computing twice as fast"
    assert computing["epoch_hours"] * 3600 == pytest.approx(0.5 * 26, rel=0.05)
    assert computing["requests"] == COUNT
    path = tmp_path / "plan.toml"
    slow = run.json(*words, "--step-time", 0.001, "--source-node", "1MB", "--ram", "2MB", "--scenario", path)
    assert slow["limit"] != "computing"
    assert slow["stall_share"] > 0.5
    assert slow["requests"] > computing["requests"]
    assert slow["hours"] >= slow["lower_bound_hours"]
    assert any(upgrade["upgrade"].startswith("a disk of") and upgrade["saves"] > 0 for upgrade in slow["upgrades"])
    again = run.json("simulate", path, "-p", "foreload")["results"][0]
    assert again["hours"] == pytest.approx(slow["hours"])
    assert run(*words) == 0
    assert "limited by" in run.out
    assert run.fails(*words, "--ram", "much")[0] == 2


def test_sizes_and_times_are_written_for_people() -> None:
    from foreload.cli.output import human_bytes, human_count, human_seconds

    assert [human_seconds(value) for value in (2e-6, 0.01, 0.9999, 3.0, 61, 7300)] == [
        "2 µs",
        "10 ms",
        "1 s",
        "3 s",
        "1 min 1 s",
        "2 h 1 min",
    ]
    assert (human_bytes(12_345_678), human_count(1234567)) == ("12.3 MB", "1,234,567")


def test_a_web_server_without_a_listing_is_told_at_once_and_in_a_line(run: Command, tmp_path: Path) -> None:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as the base class names it)
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        code, text = run.fails("index", f"http://127.0.0.1:{server.server_port}/data/")
        server.shutdown()
    assert code == 2
    assert "501" in text
    assert "manifest" in text
    assert len(text.splitlines()) <= 2
