"""A data set's samples as the simulator reads them: a text file with a line for each, its size and, in shards, its place.

`planning`, `_scenario` and the command write one; nothing but its path goes into a scenario.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from foreload._data.dataset import Dataset

_MB = 1 << 20


def places_of(dataset: Dataset) -> list[tuple[int, int]] | None:
    """The number of the object and the first byte in it, by sample; None where each sample is an object."""
    index = dataset.source.opened().index
    if index.objects >= len(index):
        return None
    numbers: dict[str, int] = {}
    found = (index.place(sample) for sample in range(len(index)))
    return [(numbers.setdefault(key, len(numbers)), first) for key, first, *_ in found]


@contextmanager
def sizes_file(lengths: Any, places: Sequence[tuple[int, int]] | None = None) -> Iterator[Path]:
    """A file with the size of each sample in MB, and its place if given, as the simulator reads it; it takes no empty samples."""
    with tempfile.TemporaryDirectory(prefix="foreload-") as directory:
        path = Path(directory) / "sizes"
        # repr, so that the simulator has each byte.
        lines = [repr(size) for size in (lengths.clip(1) / _MB).tolist()]
        if places is not None:
            lines = [f"{size} {number} {first}" for size, (number, first) in zip(lines, places, strict=True)]
        try:
            path.write_text("\n".join(lines), encoding="utf-8")
        except OSError as error:
            problem = (
                f"the samples' sizes can't be written for the simulator: {error.strerror} (TMPDIR names another place)"
            )
            raise OSError(error.errno, problem, str(path)) from None
        yield path
