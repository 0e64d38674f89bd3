"""What `make wheel` built installs anywhere and carries all three native parts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHEELS = sorted((ROOT / "dist").glob("foreload-*.whl"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package as installed from the wheel, and without its dependencies."""
    if not WHEELS:
        pytest.skip("no wheel in dist/ (make wheel)")
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, str(WHEELS[-1])], check=True)
    return target


def run_python(installed: Path, code: str) -> str:
    """What `code` prints under an interpreter that finds the installed package first."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    return subprocess.check_output([sys.executable, "-c", code], text=True, env=environment, cwd=installed).strip()


def test_the_installed_package_is_the_one_of_the_wheel(installed: Path) -> None:
    code = "import foreload, foreload._core as core; print(foreload.__file__); print(core.__file__, core.__version__)"
    package, extension = run_python(installed, code).splitlines()
    assert package.startswith(str(installed))
    assert extension.startswith(str(installed))
    version = run_python(installed, "import importlib.metadata as m; print(m.version('foreload'))")
    assert extension.endswith(version)


def test_it_brings_numpy_alone(installed: Path) -> None:
    code = (
        "import importlib.metadata as m; print(*(r for r in m.requires('foreload') if 'extra ==' not in r), sep='\\n')"
    )
    assert [line.split(">")[0] for line in run_python(installed, code).splitlines()] == ["numpy"]


#: What is not there for a user who installed the package without extras.
BARE = "import sys; sys.modules.update(dict.fromkeys(['typer', 'rich', 'torch', 'matplotlib', 'PIL', 'boto3'])); "


def test_numpy_is_enough_to_read_a_data_set(installed: Path, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.bin").write_bytes(bytes([number]) * 100)
    code = (
        BARE + "import foreload as fl; "
        f"loader = fl.NumpyLoader(fl.open({str(tmp_path)!r}, format='flat'), 6, shuffle=True, seed=1); "
        "print(sorted(sample[0] for batch in loader for sample in batch[0]))"
    )
    assert run_python(installed, code) == str(list(range(20)))


def test_the_command_says_which_extra_it_needs(installed: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    code = BARE + "from foreload.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "foreload: the command needs typer and rich: pip install 'foreload[cli]'\n"


def test_the_installed_agent_can_be_executed(installed: Path) -> None:
    assert os.access(installed / "foreload" / "_bin" / "foreload-agent", os.X_OK)


def test_a_preloaded_program_runs_as_before(installed: Path) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(installed / "foreload" / "_preload.so")}
    done = subprocess.run(["cat"], input=b"bytes", capture_output=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == (b"bytes", b"")
