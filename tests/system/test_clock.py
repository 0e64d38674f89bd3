"""The agent's clock is set while it works: by a few minutes it changes nothing, and one that is wrong by an hour is said, until it is right again."""

from __future__ import annotations

import mmap
import random
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload import errors
from foreload._node import agent as _agent
from foreload.torch import DataLoader
from small import number_of

#: Adds what a file says to the time of day, for who is started with it: no test may set the machine's own clock.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static volatile long *offset_s;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real = dlsym(RTLD_NEXT, "clock_gettime");
    int file = open(getenv("TEST_CLOCK"), O_RDONLY);
    offset_s = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = real(clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += *offset_s;
    return failed;
}
"""


@pytest.fixture
def set_clock(home: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the clock of the agent to so many seconds beside the machine's."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (tmp_path / "clock.c").write_text(SHIM)
    library, offset, program = tmp_path / "clock.so", tmp_path / "offset", tmp_path / "agent"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"], check=True)
    offset.write_bytes(bytes(8))
    program.write_text(f'#!/bin/sh\nTEST_CLOCK={offset} LD_PRELOAD={library} exec {_agent._PROGRAM} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("FORELOAD_AGENT", str(program))

    def set_to(seconds: int) -> None:
        with offset.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shown:
            shown[:] = struct.pack("=q", seconds)

    return set_to


@pytest.mark.parametrize("workers", [0, 2])
def test_a_clock_that_is_set_in_an_epoch_changes_nothing(
    home: Any, set_clock: Callable[[int], None], workers: int
) -> None:
    data = fl.open("s3://data/fixed")
    right = [random.Random(number_of(data.key(sample))).randbytes(30_000) for sample in range(len(data))]
    # Next to no memory, and loads that may take a minute: less than what the clock is set by.
    little = fl.Cache(ram="16MB", batches="15MB")
    loader = DataLoader(data, 4, cache=little, num_workers=workers, tuning=fl.Tuning(load_timeout_s=60), timeout=30)
    found = []
    for number, (values, _) in enumerate(loader):
        found += values
        # A store takes what is signed up to 15 minutes off.
        set_clock({5: 600, 15: -600, 25: 0}.get(number, (number % 2) * 60))
    assert found == right
    assert (loader.stats()["failures"], loader.stats()["gauges"]["leases"]) == (0, 0)


def test_a_clock_that_is_wrong_is_said_until_it_is_right_again(home: Any, set_clock: Callable[[int], None]) -> None:
    data = fl.open("s3://data/fixed")
    right = [random.Random(number_of(data.key(sample))).randbytes(30_000) for sample in range(len(data))]
    loader = DataLoader(data, 4, cache=fl.Cache(ram="16MB", batches="15MB"), timeout=30)
    for seconds in (3600, -3600):
        batches = iter(loader)
        assert next(batches)[0] == right[:4]
        set_clock(seconds)
        with pytest.raises(errors.DeniedError, match=r"s3://data/fixed/.*this machine's clock is wrong: set it"):
            list(batches)
        set_clock(0)
        assert [value for values, _ in loader for value in values] == right
