"""Opening a data set for a verb, with a progress bar on standard error while it is listed."""

from typing import TYPE_CHECKING, Any

from foreload.cli.progress import Bar, Reporter

if TYPE_CHECKING:
    from foreload import Dataset


def open_dataset(url: str, given: dict[str, str], *, quiet: bool = False, **arguments: Any) -> "Dataset":
    """Opens a data set as `foreload.open` does.

    Args:
        url: Its URL.
        given: Storage options of the command line.
        quiet: Show no bar.
        arguments: Further arguments of `foreload.open`, and `stale`: whether it may be another by now.

    Returns:
        The data set.
    """
    from foreload._data.dataset import opened

    with Reporter() if quiet else Bar() as bar:
        return opened(url, storage_options=given, progress=bar, **arguments)


def reopen(dataset: "Dataset", **fields: bool) -> "Dataset":
    """Opens a data set once more, with further fields of the agent's `open` call.

    Args:
        dataset: The data set as it was opened before.
        fields: Such as `update=True`: bring the saved index up to date; `checksum=True`: read everything and note checksums.

    Returns:
        The data set as it is then.
    """
    from foreload._data.dataset import Dataset
    from foreload._node.source import Source

    with Bar() as bar:
        # Whatever it has then.
        call = {**dataset.source.call, "digest": None, "stale": False, **fields}
        source = Source(dataset.source.cache_dir, call, progress=bar)
        source.opened()
        return Dataset(source)
