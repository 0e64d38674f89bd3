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


def test_the_installed_agent_can_be_executed(installed: Path) -> None:
    assert os.access(installed / "foreload" / "_bin" / "foreload-agent", os.X_OK)


def test_a_preloaded_program_runs_as_before(installed: Path) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(installed / "foreload" / "_preload.so")}
    done = subprocess.run(["cat"], input=b"bytes", capture_output=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == (b"bytes", b"")
