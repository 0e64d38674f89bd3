"""A scenario as its text and what was changed of it say it together, for what the simulator can't do by itself.

The native simulator reads the text and the changes; it opens no data set. So an index that a scenario names (`dataset.index`) is opened here, and
the simulator is given a list of its samples' sizes and places in its stead (`resolved`). `Scenario` also answers what a bill needs and
a report doesn't have: disks, and objects that samples share. `foreload.sim` and the command call it. What is wrong with a scenario it
leaves to the simulator, which names the key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreload import _core
from foreload._settings.toml import inline
from foreload.errors import InvalidError

if TYPE_CHECKING:
    from foreload._data.dataset import Dataset

__all__ = ["Scenario", "override", "resolved"]


class Scenario:
    """The tables of a scenario, with its overrides applied.

    Args:
        text: Its TOML.
        overrides: Values by key: TOML text, numbers, or mappings.
    """

    def __init__(self, text: str, overrides: Mapping[str, object] | None = None) -> None:
        given = [f"{key}={override(value)}" for key, value in (overrides or {}).items()]
        try:
            self.table: dict[str, Any] = json.loads(_core.scenario(text, given))
        except ValueError:
            self.table = {}

    @property
    def dataset(self) -> dict[str, Any]:
        """The section `dataset`; empty where it is none."""
        section = self.table.get("dataset")
        return section if isinstance(section, dict) else {}

    @property
    def disk_mb_per_node(self) -> float:
        """What the disk tiers of one node hold."""
        tiers = self.table.get("tier")
        tiers = [tier for tier in tiers if isinstance(tier, dict)] if isinstance(tiers, list) else []
        sizes = [tier.get("capacity_mb") for tier in tiers if tier.get("kind") == "disk"]
        return float(sum(size for size in sizes if isinstance(size, (int, float))))

    def objects(self) -> int | None:
        """How many objects hold the samples, where the list of sizes says that some share one; None: each sample is an object."""
        path = self.dataset.get("sizes_file")
        if not isinstance(path, str):
            return None
        with Path(path).open(encoding="utf-8") as lines:
            rows = (line.split() for line in lines if not line.lstrip().startswith("#"))
            return len({row[1] for row in rows if len(row) > 1}) or None


@contextmanager
def resolved(
    text: str, overrides: Mapping[str, object] | None = None, opened: Callable[[str], Dataset] | None = None
) -> Iterator[dict[str, object]]:
    """The overrides with a list of sizes in place of the index that the scenario or they name, if one is named.

    Args:
        text: The scenario's TOML.
        overrides: Values by key.
        opened: Opens the data set of a URL; `foreload.open` when None.

    Yields:
        Overrides for the same text, valid inside.

    Raises:
        InvalidError: Index and list of sizes are both named.
    """
    overrides = dict(overrides or {})
    section = Scenario(text, overrides).dataset
    url = section.get("index")
    if not isinstance(url, str):
        yield overrides
        return
    if "sizes_file" in section:
        changed = {"dataset.index", "dataset.sizes_file"} & {key.strip() for key in overrides}
        if len(changed) != 1:
            raise InvalidError("dataset.index and dataset.sizes_file both say what the samples are; leave one out")
        if changed == {"dataset.sizes_file"}:
            # Named later than the index of the text.
            yield _with_dataset(overrides, {key: value for key, value in section.items() if key != "index"})
            return
    from foreload._data.samples_file import places_of, sizes_file

    dataset = (opened or _open)(url)
    with sizes_file(dataset.lengths, places_of(dataset)) as path:
        kept = {key: value for key, value in section.items() if key != "index"}
        yield _with_dataset(overrides, {**kept, "sizes_file": str(path)})


def _open(url: str) -> Dataset:
    from foreload._data.dataset import open as open_dataset

    return open_dataset(url)


def _with_dataset(overrides: Mapping[str, object], section: Mapping[str, object]) -> dict[str, object]:
    """The overrides with all of the section `dataset`, because one of them can't take a key away."""
    others = {key: value for key, value in overrides.items() if key.partition(".")[0].strip() != "dataset"}
    return {**others, "dataset": section}


def override(value: object) -> str:
    """A value as an override's text: what is text already stays as it is.

    Example:
        >>> override(True), override({1: 66, 4: 146.5}), override("keyed")
        ('true', '{ 1 = 66, 4 = 146.5 }', 'keyed')
    """
    return value if isinstance(value, str) else inline(value)
