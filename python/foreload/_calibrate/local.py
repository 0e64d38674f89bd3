"""Measures what this machine adds: memory, a loop that takes batches over, decoding, and a disk tier.

It fills a scratch directory, and removes it.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foreload._calibrate.reading import MB, epoch_of, pass_through, run_over
from foreload._data.dataset import Dataset
from foreload._data.dataset import open as open_dataset
from foreload._node import agent as _agent
from foreload._run.arrays import NumpyLoader
from foreload._run.decode import Decoder
from foreload._run.run import Run
from foreload._settings.cache import Cache

if TYPE_CHECKING:
    from os import PathLike


#: Between two batches of a loop: a quick step.
_PAUSE_S = 0.01
#: Bytes of a scratch sample: a photograph.
_SCRATCH_SAMPLE = 128 << 10


def decoding_mb_s(dataset: Dataset, decode: Callable[..., Any], seconds: float) -> float:
    """What one thread decodes.

    Args:
        dataset: Where the samples come from; a few dozen are read.
        decode: The function.
        seconds: How long it is called.
    """
    call = Decoder(dataset.source, decode, None)
    samples = list(range(0, len(dataset), -(-len(dataset) // 64)))
    data = [dataset.read(sample) for sample in samples]
    nbytes, begun = 0, time.perf_counter()
    while (took := time.perf_counter() - begun) < seconds:
        for sample, each in zip(samples, data, strict=True):
            call(memoryview(each), sample, dataset.label(sample), 0)
            nbytes += len(each)
    return nbytes / MB / took


def copy_mb_s() -> float:
    """Memory's speed at copying, as reading a sample from the RAM tier does it."""
    source = np.ones(32 << 20, np.uint8)
    target = np.empty_like(source)
    rates = []
    for _ in range(5):
        begun = time.perf_counter()
        np.copyto(target, source)
        rates.append(source.nbytes / MB / (time.perf_counter() - begun))
    return float(np.median(rates))


def fill_mb_s(nbytes: int) -> float:
    """How fast fresh memory is written, as the arena's is: the kernel has to find and clear it."""
    piece = bytes(128 << 10)
    count = max(1, nbytes // len(piece))
    memory = os.memfd_create("foreload-calibrate")
    try:
        begun = time.perf_counter()
        for number in range(count):
            os.pwrite(memory, piece, number * len(piece))
        return count * len(piece) / MB / (time.perf_counter() - begun)
    finally:
        os.close(memory)


def loop_mb_s(local: Dataset, seconds: float) -> float:
    """What the loop's own thread takes over when everything lies in memory.

    With a pause after each batch, as training makes them: caches are cold then, and threads have to wake up.
    """
    loader = NumpyLoader(local, 64, cache=Cache(ram=4 * local.nbytes + (64 << 20)), shuffle=True, shard=(0, 1))
    nbytes, took = 0, 0.0
    end = time.perf_counter() + seconds
    for epoch in itertools.count():
        batches = iter(loader)
        while True:
            begun = time.perf_counter()
            batch = next(batches, None)
            waited = time.perf_counter() - begun
            if batch is None:
                break
            # The first epoch reads the disk.
            if epoch:
                nbytes, took = nbytes + sum(map(len, batch[0])), took + waited
            del batch
            time.sleep(_PAUSE_S)
        if epoch and time.perf_counter() > end:
            break
    return nbytes / MB / took


def disk_mb_s(local: Dataset, directory: Path) -> tuple[float, float]:
    """Writing and reading a disk tier, with the page cache dropped in between."""
    with tempfile.TemporaryDirectory(prefix="foreload-calibrate-", dir=directory) as name:
        # Far less memory than data: what stays in it is neither written nor read.
        passing = min(56 << 20, local.nbytes // 4)
        cache = replace(pass_through(passing), disk=f"{name}:{2 * local.nbytes + (64 << 20)}")
        run = run_over(local, max(1, passing // (8 * _SCRATCH_SAMPLE)), cache, epochs=8)
        begun = time.perf_counter()
        for _ in epoch_of(run, 0):
            pass
        kept, ended = _settled(run)
        write = kept * (local.nbytes / len(local)) / MB / (ended - begun)
        # What wasn't kept in the first pass, because writing was behind, is by now.
        epoch = 1
        while kept < 0.95 * len(local) and epoch < 4:
            for _ in epoch_of(run, epoch):
                pass
            kept, epoch = _settled(run)[0], epoch + 1
        _drop_page_cache(Path(name))
        before, begun = run.stats()["disk_bytes"], time.perf_counter()
        for _ in epoch_of(run, epoch):
            pass
        read = (run.stats()["disk_bytes"] - before) / MB / (time.perf_counter() - begun)
        run.attachment().settle()
    return write, read


def _settled(run: Run) -> tuple[int, float]:
    """Waits until nothing is being written any more; how many samples were, and when the last one was."""
    kept, since = -1, time.perf_counter()
    while True:
        now = int(run.stats()["written_samples"])
        if now != kept:
            kept, since = now, time.perf_counter()
        elif time.perf_counter() - since > 0.2:
            return kept, since
        time.sleep(0.01)


def _drop_page_cache(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


@contextmanager
def scratch(nbytes: int, cache_dir: str | PathLike[str] | None) -> Iterator[Dataset]:
    """A data set of random bytes in the cache directory."""
    here = _agent.cache_directory(cache_dir)
    Path(here).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="calibrate-", dir=here) as directory:
        random = np.random.default_rng(0)
        for number in range(max(128, nbytes // _SCRATCH_SAMPLE)):
            Path(directory, f"{number:06}.bin").write_bytes(random.bytes(_SCRATCH_SAMPLE))
        yield open_dataset(directory, "flat", cache_dir=here)
