"""Exceptions resemble built-ins and survive the way from a worker to its parent."""

from __future__ import annotations

import pickle

import pytest

from foreload import errors

KINDS = {
    "invalid": ValueError,
    "not-found": FileNotFoundError,
    "denied": PermissionError,
    "unavailable": ConnectionError,
    "timeout": TimeoutError,
    "corrupt": ValueError,
    "changed": ValueError,
    "no-memory": MemoryError,
    "cancelled": errors.ForeloadError,
    "closed": ConnectionError,
    "forked": RuntimeError,
    "bug": RuntimeError,
    "decode": ValueError,
    "something new": errors.ForeloadError,
}


@pytest.mark.parametrize(("kind", "builtin"), KINDS.items())
def test_an_error_resembles_a_builtin_and_survives_pickling(kind: str, builtin: type[Exception]) -> None:
    error = errors.of(kind, "the message", 17)
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert isinstance(each, errors.ForeloadError)
        assert isinstance(each, builtin)
        assert type(each) is type(error)
        assert str(each) == "the message"
        assert each.sample == 17


@pytest.mark.parametrize("kind", KINDS)
def test_torch_can_raise_it_again_with_a_traceback_for_a_message(kind: str) -> None:
    made = type(errors.of(kind, "x"))("Caught it in worker 1.\nTraceback ...")
    assert "Traceback" in str(made)
    assert made.sample is None
