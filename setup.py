"""Lets setuptools carry what cargo builds; everything else is in pyproject.toml.

One extension module is declared, so that the wheel gets a platform and an abi3 tag, and building it runs
tools/build_native.py, which also makes the agent and the preload library. `FORELOAD_SKIP_NATIVE=1` installs the
package in editable form without building (`make develop` builds by itself, incrementally). `FORELOAD_PROFILE` names
another cargo profile. `FORELOAD_TARGET` and `FORELOAD_PLATFORM` are tools/release_wheels.py's: what to build for, and the
wheel's platform tag.
"""

import os
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

import build_native  # noqa: E402  (the path to it was just added)


class CargoBuild(build_ext):
    """Builds all native parts with cargo, into the build tree, or into the source tree for an editable install."""

    def run(self) -> None:
        """Replaces setuptools' compiler run altogether: it compiles nothing itself."""
        if os.environ.get("FORELOAD_SKIP_NATIVE") == "1":
            return
        in_source = self.inplace or self.editable_mode
        package = ROOT / "python" / "foreload" if in_source else Path(self.build_lib) / "foreload"
        profile, target = os.environ.get("FORELOAD_PROFILE", "release"), os.environ.get("FORELOAD_TARGET")
        build_native.build(package, profile, strip=not in_source, target=target)

    def get_outputs(self) -> list[str]:
        """The files that the wheel takes from the build tree."""
        return [str(Path(self.build_lib) / "foreload" / artefact.path) for artefact in build_native.ARTEFACTS]

    def get_output_mapping(self) -> dict[str, str]:
        """Nothing is copied for an editable install, which imports from the source tree."""
        return {}


platform = os.environ.get("FORELOAD_PLATFORM")
setup(
    version=tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"],
    ext_modules=[Extension("foreload._core", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": CargoBuild},
    options={"bdist_wheel": {"py_limited_api": "cp311", **({"plat_name": platform} if platform else {})}},
)
