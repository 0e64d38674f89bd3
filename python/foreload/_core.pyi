"""The native half of the package: what `crates/py` exports.

Nothing here is for users; `foreload`, `foreload.torch` and the command build on it.
"""

import sys
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

__all__ = [
    "KEEP_FREE_BYTES",
    "MOST_IN_FLIGHT",
    "PART_BYTES",
    "RUN_POLICIES",
    "SIMULATED_POLICIES",
    "STALL_S",
    "Agent",
    "Attached",
    "Delivery",
    "Index",
    "Job",
    "Plan",
    "ReadAhead",
    "Sample",
    "Slot",
    "__version__",
    "batch_bytes",
    "cache_dir",
    "cost",
    "digest_of",
    "give_up_after",
    "runtime_dir",
    "scenario",
    "scheme",
    "simulate",
    "split_url",
    "staging_bytes",
    "stands_for",
    "storage_options",
    "url_of",
]

__version__: str
PART_BYTES: int
"""Larger samples are fetched in parts of this size."""
MOST_IN_FLIGHT: int
"""Requests in flight at most."""
KEEP_FREE_BYTES: int
"""What stays free on a drive that a disk tier is on."""
STALL_S: float
"""Longer waits for samples are reported."""
RUN_POLICIES: list[str]
"""The policies that a loader runs and that a name says."""
SIMULATED_POLICIES: list[str]
"""Those of the simulator, in the order of the papers."""

@final
class Agent:
    """A connection to this node's agent, which it starts if there is none.

    Not usable after a fork: the child makes its own.
    """

    def __new__(
        cls, program: str | PathLike[str], cache_dir: str | PathLike[str] | None = None, linger_s: float | None = None
    ) -> Agent: ...
    @property
    def pid(self) -> int:
        """The agent's process."""
    @property
    def connection(self) -> int:
        """This connection's number, which hand-overs name."""
    @property
    def cache_dir(self) -> Path: ...
    @property
    def log(self) -> Path: ...
    def is_usable(self) -> bool:
        """Whether this process made the connection and the agent still answers."""
    def call(self, body: str) -> str:
        """Calls the agent with JSON (`crates/engine/src/calls.rs`); answers with JSON."""
    def open(
        self, body: str, progress: Callable[[str, int, int | None], object] | None = None
    ) -> tuple[int, Index, str]:
        """Opens a data set: (its number, its index, where the index came from)."""
    def subset(
        self,
        dataset: int,
        samples: NDArray[np.uint32] | NDArray[np.uint64] | NDArray[np.unsignedinteger[Any]],
        progress: Callable[[str, int, int | None], object] | None = None,
    ) -> tuple[int, Index, str]:
        """Some samples of a data set as a data set of its own; answers like `open`."""
    def supply(self, job: int, epoch: int, samples: NDArray[np.uint64]) -> None:
        """The samples of an epoch of a job whose order is supplied."""
    def attach(self, body: str, progress: Callable[[str, int, int | None], object] | None = None) -> Job:
        """Joins or starts a job."""
    def notices(self) -> list[tuple[str, str, int | None]]:
        """What the agent wants somebody to read since the last call: (kind, message, sample)."""
    def flush(self) -> None:
        """Sends releases that have gathered."""

@final
class Index:
    """What a data set consists of; memory shared with the agent."""

    def __len__(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def root(self) -> str: ...
    @property
    def manifest(self) -> str | None: ...
    def notes(self) -> list[tuple[str, bool]]:
        """What building it found: (sentence, whether it probably isn't what is wanted)."""
    @property
    def format(self) -> str: ...
    @property
    def objects(self) -> int: ...
    @property
    def classes(self) -> list[str]: ...
    @property
    def nbytes(self) -> int: ...
    def total_bytes(self) -> int: ...
    def length(self, sample: int) -> int: ...
    def label(self, sample: int) -> int | None: ...
    def key(self, sample: int) -> str:
        """What it is called: WebDataset's key in a shard, otherwise the object's key."""

    def find(self, key: bytes) -> int | None:
        """The number of the first value with a key, of an LMDB file with the order that LMDB has."""

    def spans(self, what: Sequence[int | bytes | str]) -> list[tuple[int, int] | None]:
        """First byte and bytes in the object of each of these, by number or by key, of an LMDB file; None: there is no such sample."""

    def place(self, sample: int) -> tuple[str, int, int, int, str | None]:
        """(key, first byte, bytes, object's size, etag); of several ranges the first."""
    def ranges(self, sample: int) -> list[tuple[str, int, int, int, str | None]]:
        """The ranges of a sample, each as (key, first byte, bytes, object's size, etag): nearly always one."""
    def crc32c(self, sample: int) -> int | None:
        """A sample's CRC-32C, where the index has checksums."""
    def fields(self, sample: int) -> list[tuple[str, int, int]]:
        """Parts of a sample: (name, first byte in the sample, bytes)."""
    def labels(self) -> bytes:
        """All labels as little-endian int64; -2^63: none."""
    def lengths(self) -> bytes:
        """All lengths as little-endian uint64."""
    def offsets(self) -> bytes:
        """The first byte of each sample in its object, as little-endian uint64; of several ranges that of the first."""
    def to_bytes(self) -> bytes:
        """The index file."""

@final
class Attached:
    """A program that runs already, whose mapped files are fetched ahead of it, from outside.

    Args:
        pid: The process.
        patterns: Which files, as the preload library reads it: patterns of paths, parted by colons.
        window_bytes: Bytes that a stream is read ahead at most; 0: it is only looked. Default: 32 MiB.

    Raises:
        FileNotFoundError: There is no such process.
        PermissionError: It may not be looked at.
    """

    def __new__(cls, pid: int, patterns: str, window_bytes: int | None = None) -> Attached: ...
    def go(self, seconds: float) -> bool:
        """Looks and fetches for so long; False: the program has ended. What a signal's handler raises ends it."""
    def report(self) -> str:
        """What was done for each of its processes, as JSON."""
    def notes(self) -> list[str]:
        """What there is to say since the last time: of files that can't be opened."""

@final
class ReadAhead:
    """A thread that has pages of files fetched in the order of some ranges, each (number of the file, first byte, bytes)."""

    def __new__(
        cls,
        files: Sequence[str | PathLike[str]],
        ranges: Sequence[tuple[int, int, int]],
        window_bytes: int,
        allowed: int | None = None,
    ) -> ReadAhead: ...
    def allow(self, ranges: int) -> None:
        """So many ranges, counted from the first, may be asked for."""
    def stop(self) -> None:
        """Asks for nothing more."""
    def progress(self) -> tuple[int, bool, str | None]:
        """Bytes that are there, whether it is over, and why it failed."""
    def wait(self, seconds: float) -> tuple[int, bool, str | None]:
        """The same, once it is over or the time is."""

@final
class Job:
    """A job of the agent, with its memory mapped."""

    @property
    def job(self) -> int: ...
    @property
    def connection(self) -> int: ...
    @property
    def agent(self) -> int:
        """The agent's process: names the memory that hand-overs are about."""
    @property
    def reply(self) -> str: ...
    def is_usable(self) -> bool: ...
    def notices(self) -> list[tuple[str, str, int | None]]:
        """As the agent's."""
    def start(self, rank: int, epoch: int, batch: int) -> None:
        """A rank starts, resumes or jumps; its open wants are refused as cancelled."""
    def want_batch(self, rank: int, epoch: int, batch: int) -> int:
        """Asks for a rank's batch; answers at once with a number for `take`."""
    def leave(self, rank: int) -> None:
        """A rank reads no more, until it starts again; its open wants are refused as cancelled."""
    def want_reads(self, rank: int, reads: list[tuple[int, int]]) -> int:
        """Asks for reads of the plan, each an epoch and a position; answers at once with a number for `take`."""
    def want_samples(self, rank: int, samples: list[int]) -> int:
        """Asks for samples by number, outside the plan; answers at once with a number for `take`."""
    def withdraw(self, want: int) -> None:
        """Nobody waits for this any more; what comes for it all the same is given back."""
    def take(self, want: int, timeout_s: float | None = None) -> Delivery:
        """Waits for a want. Raises the exception of `foreload.errors` that fits; signals are handled within 50 ms."""
    def take_ready(self, want: int) -> Delivery | None:
        """What a want asked for, if it is there already; a refusal is left to `take`."""
    def slot(self, nbytes: int) -> Slot | None:
        """Writable shared memory for a batch; `None` when there is none now."""
    def adopt_slot(self, connection: int, process: int, slot: int, offset: int, nbytes: int) -> Slot:
        """Makes a slot that another connection handed over ours."""
    def adopt(self, connection: int, process: int, items: bytes) -> Delivery:
        """Makes samples that another connection handed over ours."""

@final
class Delivery:
    """Delivered samples in the order asked for; their memory is let go when it dies or they are taken."""

    def __len__(self) -> int: ...
    @property
    def copy(self) -> bool:
        """Too much is leased: copy the bytes and let the memory go."""
    @property
    def samples(self) -> list[int]: ...
    @property
    def labels(self) -> list[int | None]: ...
    @property
    def lengths(self) -> list[int]: ...
    @property
    def nbytes(self) -> int: ...
    def label_bytes(self) -> bytearray:
        """All labels as little-endian int64; -1: none."""
    def to_bytes(self) -> list[bytes]:
        """Copies; the memory is let go."""
    def views(self) -> list[Sample]:
        """All samples as read-only shared memory."""
    def view(self, at: int) -> Sample: ...
    def gather(self, slot: Slot, at: int = 0) -> None:
        """Copies all samples one after the other into a slot."""
    def hand_over(self) -> tuple[int, int, int, bytes]:
        """Passes the samples on to whoever adopts them: (agent, connection, this process, items)."""

@final
class Sample(Buffer):
    """One sample's bytes: read-only shared memory, valid as long as this or any view of it lives."""

    @property
    def sample(self) -> int: ...
    @property
    def label(self) -> int | None: ...
    @property
    def via(self) -> str:
        """`ram`, `disk` or `bucket`."""
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    if sys.version_info >= (3, 12):  # before, only C can see it
        def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Slot(Buffer):
    """Writable shared memory of one batch, held exclusively."""

    def __len__(self) -> int: ...
    def hand_over(self) -> tuple[int, int, int, int, int, int]:
        """Passes it on to whoever adopts it: (agent, connection, this process, slot, offset, bytes)."""
    if sys.version_info >= (3, 12):  # before, only C can see it
        def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Plan:
    """Which sample each rank reads, and when; computed here, without an agent."""

    def __new__(cls, order: str, world: int = 1, uneven: bool = False) -> Plan: ...
    @property
    def digest(self) -> str: ...
    @property
    def positions(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def world(self) -> int: ...
    def batch_len(self, batch: int, rank: int) -> int: ...
    def batch(self, epoch: int, batch: int, rank: int) -> list[int]: ...
    def batch_positions(self, epoch: int, batch: int, rank: int) -> list[int]: ...
    def assign(self, nodes: list[int], group: int) -> str: ...
    def weight(self, batch: int, rank: int) -> float: ...
    def sample_at(self, epoch: int, position: int) -> int: ...
    def position_of(self, epoch: int, sample: int) -> int | None: ...
    def supply(self, epoch: int, samples: NDArray[np.uint64]) -> None: ...
    def resume(self, digest: str, epoch: int, position: int) -> tuple[int, int]:
        """Where a checkpoint goes on: (epoch, batch)."""

def simulate(
    scenario: str,
    policies: list[str] = ...,
    overrides: list[str] = ...,
    *,
    memory_bytes: int | None = None,
    progress: Callable[[str | None, int, int], object] | None = None,
) -> str: ...
def scenario(text: str, overrides: list[str]) -> str: ...
def give_up_after(seconds: float | None) -> None:
    """Ends this thread's calls of the agent with a `TimedOutError` once they take longer; None: they take as long as they take."""

def split_url(url: str) -> tuple[str, str]: ...
def url_of(root: str, key: str) -> str: ...
def stands_for(names: str, key: str) -> bool: ...
def cost(request: str) -> str: ...
def digest_of(digests: list[str]) -> str: ...
def scheme(url: str) -> str | None:
    """A URL's scheme in the one spelling that we use: `s3`, `gs`, `az`, `http`, `https`, `file` (a path, too); None: it is none that we read."""

def storage_options(url: str, given: dict[str, str], environment: dict[str, str]) -> dict[str, str]:
    """Storage options for a URL with what an environment adds to them, under one name each.

    Raises:
        ValueError: Nobody knows an option, or there is half a pair of keys.
    """

def batch_bytes(ram_bytes: int) -> int:
    """Of a job's memory, the bytes for collated batches where nothing else is asked for."""

def staging_bytes(ram_bytes: int, batch_bytes: int, data_bytes: int, disk_bytes: int) -> int:
    """Of the memory for samples, the bytes for those that pass through, where a node reads `batch_bytes` per global batch, out of `data_bytes`, and has so much room on disk."""

def cache_dir() -> Path:
    """Where indexes, logs and disk tiers go unless the user says otherwise."""

def runtime_dir() -> Path:
    """Where sockets go."""
