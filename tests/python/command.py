"""Runs the command `foreload` inside the test process, which saves starting an interpreter each time."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest


class Command:
    """The command, with what it printed last.

    Args:
        capsys: Catches what it prints.
        monkeypatch: Sets its arguments.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch
        self.out = self.err = ""

    def __call__(self, *words: object) -> int:
        """Runs it; its exit code."""
        from foreload.cli import main

        self._monkeypatch.setattr(sys, "argv", ["foreload", *map(str, words)])
        self._monkeypatch.setenv("TERMINAL_WIDTH", "200")
        self._capsys.readouterr()
        try:
            main()
            code: Any = 0
        except SystemExit as end:
            code = end.code
        self.out, self.err = self._capsys.readouterr()
        return int(code or 0)

    def json(self, *words: object) -> Any:
        """What it prints with `--json`, having succeeded."""
        assert self(*words, "--json") == 0, self.err
        return json.loads(self.out)

    def fails(self, *words: object) -> tuple[int, str]:
        """Its exit code and its one line, having failed."""
        code = self(*words)
        assert code != 0, self.out
        assert "Traceback" not in self.err
        return code, self.err

    def lines(self) -> list[str]:
        """What was written to standard error since the command ended."""
        return self._capsys.readouterr().err.splitlines()
