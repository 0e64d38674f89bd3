"""The checkers check: on the workspace as it is they pass, and for each rule there is an input that fails it."""

from __future__ import annotations

import argparse
import copy
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


check_layers, check_docs, check_wheel, tally, torch_suite = map(
    load, ("check_layers", "check_docs", "check_wheel", "tally", "torch_suite")
)
public_scripts, release_wheels = load("public_scripts"), load("release_wheels")


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    result: dict[str, Any] = check_layers.cargo_metadata()
    return result


def with_dependency(metadata: dict[str, Any], crate: str, name: str, **overrides: Any) -> dict[str, Any]:
    """The workspace, with one more dependency in `crate`."""
    changed = copy.deepcopy(metadata)
    dependency = {"name": name, "kind": None, "uses_default_features": True, **overrides}
    package = next(package for package in changed["packages"] if package["name"] == f"foreload-{crate}")
    package["dependencies"].append(dependency)
    return changed


def test_the_workspace_obeys_the_layers(metadata: dict[str, Any]) -> None:
    assert list(check_layers.crate_violations(metadata)) == []
    assert list(check_layers.python_violations(ROOT / "python" / "foreload")) == []


@pytest.mark.parametrize(
    ("crate", "name", "overrides", "complaint"),
    [
        ("plan", "foreload-store", {}, "plan uses store; it may use none of ours"),
        ("sim", "foreload-engine", {}, "sim uses engine; it may use plan"),
        ("sim", "foreload-engine", {"kind": "dev"}, "sim uses engine; it may use plan"),
        ("engine", "foreload-testkit", {}, "engine ships testkit; it may only be a dev-dependency"),
        ("plan", "tokio", {"kind": "dev"}, "plan uses tokio, which is for engine, mount, store, testkit alone"),
        ("engine", "pyo3", {}, "engine uses pyo3, which is for py alone"),
        ("py", "foreload-preload", {}, "py uses preload; it may use decode, engine, mount, plan, sim, store"),
        ("preload", "serde", {}, "preload links serde; it may link foreload-plan, libc"),
        ("preload", "foreload-plan", {}, "preload uses plan with its default features"),
    ],
)
def test_a_forbidden_dependency_is_reported(
    metadata: dict[str, Any], crate: str, name: str, overrides: dict[str, Any], complaint: str
) -> None:
    found = list(check_layers.crate_violations(with_dependency(metadata, crate, name, **overrides)))
    assert len(found) == 1
    assert found[0].startswith(complaint)


def test_a_test_kit_for_tests_is_no_violation(metadata: dict[str, Any]) -> None:
    changed = with_dependency(metadata, "engine", "foreload-testkit", kind="dev")
    assert list(check_layers.crate_violations(changed)) == []


def test_a_crate_outside_the_table_is_reported(metadata: dict[str, Any]) -> None:
    changed = copy.deepcopy(metadata)
    changed["packages"].append({"id": "stray", "name": "foreload-stray", "dependencies": []})
    changed["workspace_members"].append("stray")
    assert "foreload-stray is in no layer" in "\n".join(check_layers.crate_violations(changed))


def test_a_framework_is_imported_only_in_its_directory(tmp_path: Path) -> None:
    package = tmp_path / "foreload"
    for directory in ("torch", "jax", "hf"):
        (package / directory).mkdir(parents=True)
    (package / "torch" / "loader.py").write_text("import torch.utils.data\nfrom torchvision import transforms\n")
    (package / "hf" / "trainer.py").write_text("import torch\nimport transformers\n")
    (package / "door.py").write_text("from .torch import DataLoader\nfrom foreload.torch import wrap\n")
    assert list(check_layers.import_violations(package)) == []

    (package / "door.py").write_text("def late():\n    import torch\n")
    (package / "jax" / "loader.py").write_text("from torch import Tensor\n")
    (package / "lazy.py").write_text("import importlib\nimportlib.import_module('jax.numpy')\n")
    assert [line.partition(",")[0] for line in check_layers.import_violations(package)] == [
        "foreload/door.py:2 imports torch",
        "foreload/jax/loader.py:1 imports torch",
        "foreload/lazy.py:2 imports jax",
    ]


def test_modules_that_import_each_other_are_found_wherever_they_do(tmp_path: Path) -> None:
    package = tmp_path / "foreload"
    (package / "torch").mkdir(parents=True)
    (package / "__init__.py").write_text("from foreload.one import x\n")
    (package / "one.py").write_text("from foreload import two, _core\n")
    (package / "two.py").write_text("def f():\n    import foreload.torch\n")
    (package / "torch" / "__init__.py").write_text("import os\n")
    assert list(check_layers.knot_violations(package)) == []
    (package / "torch" / "__init__.py").write_text("if TYPE_CHECKING:\n    from foreload.one import x\n")
    (found,) = check_layers.knot_violations(package)
    assert {"foreload.one", "foreload.two", "foreload.torch"} == set(found.partition(": ")[2].split(" <- "))


def test_a_room_that_imports_one_above_it_is_reported(tmp_path: Path) -> None:
    package = tmp_path / "foreload"
    (package / "_node").mkdir(parents=True)
    (package / "torch").mkdir()
    for name in ("__init__", "errors", "_node/__init__", "_node/job", "torch/__init__", "sim"):
        (package / f"{name}.py").write_text("from foreload import errors\n" if name != "errors" else "")
    (package / "torch" / "loader.py").write_text("from foreload._node.job import Job\nfrom foreload import sim\n")
    assert list(check_layers.room_violations(package)) == []
    (package / "_node" / "job.py").write_text("def f():\n    from foreload.torch import loader\n")
    (package / "stray.py").write_text("")
    assert list(check_layers.room_violations(package)) == [
        "foreload._node.job imports foreload.torch.loader, of a room above its own",
        "foreload.stray is in no room: add stray to tools/check_layers.py and CONTRIBUTING.md",
    ]


def test_the_documentation_points_at_what_is_there() -> None:
    assert list(check_docs.violations(ROOT, check_docs.tracked_markdown(ROOT))) == []
    semantics = (ROOT / check_docs.SEMANTICS).read_text()
    assert list(check_docs.promise_violations(semantics, check_docs.known_tests(ROOT))) == []


def test_a_dead_link_is_reported(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, here\n")
    (tmp_path / "page.md").write_text(
        "[file](there.md) [anchor](there.md#a-heading-here) [out](https://example.com/x) `[code](no)`\n"
        "[gone](gone.md) [heading](there.md#nowhere)\n"
        "Look in /home/someone/data.\n"
        "```\n[fenced](no.md)\n```\n"
    )
    assert list(check_docs.violations(tmp_path, [Path("page.md")])) == [
        "page.md: names a machine's directory: /home/someone/",
        "page.md: no file behind gone.md",
        "page.md: no heading behind there.md#nowhere",
    ]


def test_a_promise_without_its_test_is_reported() -> None:
    text = (
        "# Semantics\n\n"
        "- Proven.\n  On two lines. *Test: `test_one`, `a_fact`*\n"
        "- Open. *Test: none yet*\n"
        "- Silent.\n"
        "- Wrong. *Test: `test_two`*\n"
        "- Empty. *Test: soon*\n"
    )
    assert list(check_docs.promise_violations(text, {"test_one", "a_fact"})) == [
        "docs/concepts/semantics.md: no *Test: ...* after: Silent.",
        "docs/concepts/semantics.md: no test test_two",
        "docs/concepts/semantics.md: *Test: ...* names no test in backquotes after: Empty. *Test: soon*",
    ]
    assert check_docs.unproven(text) == 1


def test_what_nobody_runs_is_no_test() -> None:
    python = (
        'def test_one() -> None: ...\n\n@pytest.mark.parametrize("n", [1])\n@pytest.mark.needs("root")\ndef test_two() -> None: ...\n'
        "\n@pytest.mark.skip\ndef test_never() -> None: ...\n\n@pytest.mark.xfail(\n    strict=True\n)\ndef test_may_fail() -> None: ...\n"
        "def helper() -> None:\n    def test_inner() -> None: ...\n"
    )
    assert check_docs.python_tests(python) == {"test_one", "test_two"}
    rust = (
        "#[test]\nfn one() {}\n#[tokio::test(start_paused = true)]\nasync fn two() {}\n    #[test]\n    // Why.\n    #[cfg(unix)]\n    fn three() {}\n"
        '#[test]\n#[ignore = "slow"]\nfn never() {}\n/// Says `fn said`.\npub fn helper() {}\n#[must_use]\nfn another() {}\n// #[test]\nfn no() {}\n'
    )
    assert check_docs.rust_tests(rust) == {"one", "two", "three"}


def compile_shared(source: str, output: Path, *flags: str) -> Path:
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(output), *flags]
    subprocess.run(command, input=source, text=True, check=True)
    return output


def test_an_unlisted_export_a_search_path_and_symbols_are_reported(tmp_path: Path) -> None:
    names = (ROOT / "crates" / "preload" / "exports.txt").read_text().split()
    source = "".join(f"int {name}(void) {{ return 1; }}\n" for name in names)
    clean = compile_shared(source, tmp_path / "clean.so", "-s")
    assert list(check_wheel.binary_violations("_preload.so", clean)) == []

    dirty = compile_shared(source + "int stray(void) { return 2; }\n", tmp_path / "dirty.so", "-Wl,-rpath,/somewhere")
    assert sorted(check_wheel.binary_violations("_preload.so", dirty)) == [
        "_preload.so carries a library search path",
        "_preload.so exports stray",
        "_preload.so is not stripped",
    ]
    assert (
        list(check_wheel.binary_violations("_core.abi3.so", clean))[-1] == "_core.abi3.so doesn't export PyInit__core"
    )


def test_a_wheel_with_the_wrong_tag_or_content_is_reported(tmp_path: Path) -> None:
    import zipfile

    wheel = tmp_path / "foreload-1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("foreload/__init__.py", "")
        archive.writestr("foreload/_other.so", "")
    assert list(check_wheel.violations(wheel)) == [
        f"{wheel.name} is not tagged cp311-abi3 for Linux",
        "foreload/_bin/foreload-agent is missing",
        "foreload/_bin/foreload-mount is missing",
        "foreload/_core.abi3.so is missing",
        "foreload/_preload.so is missing",
        "foreload/_other.so must not be shipped",
    ]


def test_a_binary_for_another_architecture_than_the_tag_is_reported(tmp_path: Path) -> None:
    import platform
    import zipfile

    names = (ROOT / "crates" / "preload" / "exports.txt").read_text().split()
    source = "".join(f"int {name}(void) {{ return 1; }}\n" for name in names)
    binary = compile_shared(source, tmp_path / "preload.so", "-s")
    ours = check_wheel.MACHINES[platform.machine()]
    assert check_wheel.machine_of(binary) == ours
    for architecture, machine in check_wheel.MACHINES.items():
        wheel = tmp_path / f"foreload-1.0-cp311-abi3-manylinux_2_28_{architecture}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.write(binary, "foreload/_preload.so")
        found = [violation for violation in check_wheel.violations(wheel) if "missing" not in violation]
        assert found == ([] if machine == ours else [f"_preload.so is for {ours}; the tag says {machine}"])


def test_an_architecture_that_cannot_be_built_for_is_skipped_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release_wheels, "DIST", tmp_path / "dist")
    built: list[str] = []

    def build(architecture: str) -> Path:
        built.append(architecture)
        return tmp_path / architecture

    monkeypatch.setattr(release_wheels, "build", build)
    monkeypatch.setattr(release_wheels, "smoke", lambda wheel: None)
    monkeypatch.setattr(release_wheels, "has_target", lambda triple: triple.startswith("x86_64"))
    monkeypatch.setattr(release_wheels, "has_zig", lambda: True)
    assert release_wheels.main() == 0
    assert built == ["x86_64"]
    triple = "aarch64-unknown-linux-gnu"
    assert capsys.readouterr().err == (
        f"SKIPPED wheels: aarch64: no Rust target {triple} (rustup target add {triple})\n"
    )

    monkeypatch.setattr(release_wheels, "has_target", lambda triple: True)
    monkeypatch.setattr(release_wheels, "has_zig", lambda: False)
    assert release_wheels.main() == 1
    assert built == ["x86_64"]
    without = "no zig, with which cargo-zigbuild links (remove .venv-release and call make wheels again)"
    assert capsys.readouterr().err == (
        f"SKIPPED wheels: x86_64: {without}\nSKIPPED wheels: aarch64: {without}\nwheels: none was built\n"
    )


def test_cargo_zigbuild_is_asked_for_its_zig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_wheels, "SCRIPTS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not release_wheels.has_zig()
    program = tmp_path / "cargo-zigbuild"
    for status in (1, 0):
        program.write_text(f"#!/bin/sh\nexit {status}\n")
        program.chmod(0o755)
        assert release_wheels.has_zig() == (status == 0)


def test_the_closing_lines_of_all_runners_are_added_up() -> None:
    log = (
        "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n"
        "\x1b[32m===== \x1b[1m3 passed\x1b[0m, 2 skipped, 1 xfailed in 0.10s =====\n"
        "=== 1 failed, 2 passed, 1 error in 61.00s (0:01:01) ===\n"
    )
    assert tally.tally(log) == (12 + 3 + 1 + 2, 2, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader\n",
            "from foreload.torch import DataLoader as DataLoader\n",
        ),
        (
            "from torchdata.stateful_dataloader import Stateful, StatefulDataLoader\n",
            "from torchdata.stateful_dataloader import Stateful\nfrom foreload.torch import DataLoader as StatefulDataLoader\n",
        ),
        (
            "from torch.utils.data import (\n    DataLoader,\n    Subset,\n)\ntorch.utils.data.DataLoader([1])\n",
            "from torch.utils.data import (\n    DataLoader,\n    Subset,\n)\nfrom foreload.torch import DataLoader\nDataLoader([1])\n",
        ),
        ("dl = torch.utils.data.DataLoader([1])\n", "dl = torch.utils.data.DataLoader([1])\n"),
    ],
)
def test_other_peoples_tests_get_our_loader(text: str, expected: str) -> None:
    assert torch_suite.replaced(text) == expected


def test_a_test_that_passes_with_their_loader_alone_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "test_theirs.py"
    file.write_text(
        "from torch.utils.data import (\n    DataLoader,\n)\n\n"
        "def test_theirs() -> None:\n    assert DataLoader.__module__.startswith('torch.')\n\n"
        "def test_both() -> None:\n    assert list(DataLoader([1])) == [1]\n"
    )
    torch_suite.compare([file])
    out = capsys.readouterr().out
    assert out == "2 tests, 2 pass with their class, 1 of these with ours\ntest_theirs.test_theirs\n"


SCRIPT = """from __future__ import annotations
import torch.utils.data
from torch.utils.data import Dataset, DataLoader
class Folder(Dataset): pass
class Endless(torch.utils.data.DataLoader): pass
train = DataLoader(Folder("here"))
val = torch.utils.data.DataLoader(folders.Folder("here"))
"""


def edited(folder: Path, kind: str, **more: Any) -> str:
    (folder / "train.py").write_text(SCRIPT)
    script = {"path": "train.py", "loader_in": ["train.py"], "data_sets": ["Folder"], **more}
    public_scripts.edit(script, folder, kind, {"data": "/there"})
    return (folder / "train.py").read_text()


def test_of_a_public_script_only_the_lines_that_a_user_changes_are_changed(tmp_path: Path) -> None:
    assert edited(tmp_path, "torch").splitlines() == [*SCRIPT.splitlines()[:1], "", *SCRIPT.splitlines()[1:]]
    ours = edited(tmp_path, "drop-in").splitlines()
    assert ours[2] == "import torch.utils.data, foreload.torch; _loader = foreload.torch.DataLoader"
    assert ours[4:6] == ["from torch.utils.data import Dataset, DataLoader", "DataLoader = _loader"]
    assert ours[6:] == [
        *SCRIPT.splitlines()[3:6],
        'val = _loader(folders.Folder("here"))',
    ]
    wrapped = edited(tmp_path, "wrap", files="made.files[at]")
    assert "foreload.torch.wrap(made, uri_of=lambda at: made.files[at])" in wrapped
    assert wrapped.splitlines()[5:] == [
        *SCRIPT.splitlines()[2:5],
        'train = DataLoader(_wrapped(Folder)("here"))',
        SCRIPT.splitlines()[-1],
    ]
    assert 'Folder("/there")' in edited(tmp_path, "torch", offline=[["train.py", '"here"', '"{data}"']])
    with pytest.raises(ValueError, match="of another commit"):
        edited(tmp_path, "torch", offline=[["train.py", "absent", ""]])


def test_a_public_script_that_computes_something_else_or_ends_early_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"torch": ("yes", "loss 1\ncalled with a"), "wrap": ("yes", "loss 1\ncalled with a")}

    def run(script: Any, kind: str, workers: int, ranks: int, checkout: Path, here: Path, limit_s: float) -> str:
        here.mkdir(parents=True, exist_ok=True)
        (here / "rank0").write_text(found[kind][1])
        return found[kind][0]

    monkeypatch.setattr(public_scripts, "run", run)
    (tmp_path / "examples/dcgan").mkdir(parents=True)
    (tmp_path / "examples/dcgan/main.py").touch()
    given = argparse.Namespace(checkout=tmp_path, work=tmp_path, kinds=["wrap"], reuse=False, limit=1.0)

    def ends_well(wrap: tuple[str, str]) -> bool:
        found["wrap"] = wrap
        answer: bool = public_scripts.compare("dcgan", 1, 0, given)
        return answer

    assert ends_well(found["torch"])
    assert not ends_well(("yes", "loss 2\ncalled with a"))
    assert not ends_well(("yes", "loss 1\ncalled with b"))
    assert not ends_well(("yes", ""))
    assert not ends_well(("no (1)", "loss 1\ncalled with a"))
    found["torch"] = ("no (1)", "")
    assert not ends_well(("yes", "loss 1"))
    columns = [line.split()[4:8] for line in capsys.readouterr().out.splitlines()]
    assert columns[1::2] == [
        ["yes", "1", "yes", "yes"],
        ["yes", "1", "no", "no"],
        ["yes", "1", "yes", "no"],
        ["yes", "0", "no", "no"],
        ["no", "1", "yes", "yes"],
        ["yes", "1", "no", "no"],
    ]
