"""Opening a data set for a verb, with a progress bar on standard error while it is listed."""

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from foreload import Dataset


class Bar:
    """A progress bar that appears at the first report, and only on a terminal."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, step: str, done: int, total: int | None) -> None:
        """Takes a report: the step, how much of it is done, of how much."""
        if self._progress is None:
            self._progress = self._start()
        if step not in self._tasks:
            self._tasks[step] = self._progress.add_task(step, total=total)
        self._progress.update(self._tasks[step], completed=done, total=total)

    def _start(self) -> "Progress":
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        from foreload.cli.output import console

        target = console(stderr=True)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        progress = Progress(*columns, console=target, transient=True, disable=not target.is_terminal)
        progress.start()
        return progress


def open_dataset(url: str, given: dict[str, str], **arguments: Any) -> "Dataset":
    """Opens a data set as `foreload.open` does.

    Args:
        url: Its URL.
        given: Storage options of the command line.
        arguments: Further arguments of `foreload.open`.

    Returns:
        The data set.
    """
    import foreload

    with Bar() as bar:
        return foreload.open(url, storage_options=given, progress=bar, **arguments)


def reopen(dataset: "Dataset", **fields: bool) -> "Dataset":
    """Opens a data set once more, with further fields of the agent's `open` call.

    Args:
        dataset: The data set as it was opened before.
        fields: Such as `update=True`: bring the saved index up to date; `checksum=True`: read everything and note checksums.

    Returns:
        The data set as it is then.
    """
    from foreload._source import Source
    from foreload.dataset import Dataset

    with Bar() as bar:
        source = Source(dataset.source.cache_dir, {**dataset.source.call, **fields}, progress=bar)
        source.opened()
        return Dataset(source)
