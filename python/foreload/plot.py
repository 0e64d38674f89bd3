"""Pictures of simulations: time by policy, what-if grids, a run's timeline.

matplotlib is imported when a picture is drawn, so the package doesn't need it. Each function returns the figure and saves it when
given a path; pass `axes` to draw into a figure of your own.
"""

from __future__ import annotations

import shutil
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from foreload.errors import InvalidError
from foreload.sim import Ran

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foreload.sim import Grid, Report

__all__ = ["check_suffix", "grid", "time_by_policy", "timeline"]

#: From near to far; told apart in print and by the colour-blind (Okabe and Ito).
_COLOURS = {"ram": "#009E73", "disk": "#E69F00", "peer": "#56B4E9", "source": "#D55E00"}
_MISSING = "plots need matplotlib: pip install matplotlib"
_NAMES = {"ram": "own RAM", "disk": "own disk", "peer": "other nodes", "source": "source"}


def check_suffix(path: str | PathLike[str], what: str = "the plot") -> None:
    """Refuses a file whose suffix names no format that a plot can have.

    Args:
        path: Where a plot is to be saved.
        what: Who names it, for the message.

    Raises:
        InvalidError: matplotlib can't write that format; the message has those that it can.
        ImportError: matplotlib isn't installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise ImportError(_MISSING) from error
    known = set(FigureCanvasBase.get_supported_filetypes())
    # Drawn by LaTeX, which need not be there.
    if shutil.which(mpl.rcParams["pgf.texsystem"]) is None:
        known.discard("pgf")
    if Path(path).suffix.removeprefix(".").lower() not in known:
        names = ", ".join(f".{name}" for name in sorted(known))
        raise InvalidError(f"{what}: {path} has no suffix of a plot's format; there are {names}")


def time_by_policy(report: Report, path: str | PathLike[str] | None = None, axes: Axes | None = None) -> Figure:
    """Hours by policy, each bar split by where the bytes came from, beside the lower bound (Fig. 7 of paper 001).

    Args:
        report: Of the simulation.
        path: Where to save it; the suffix says the format.
        axes: Matplotlib axes to draw into.

    Returns:
        The matplotlib figure.

    Raises:
        InvalidError: The suffix names no format.
        ImportError: matplotlib isn't installed.
    """
    figure, ax = _axes(axes, path, width=1.2 + 0.7 * len(report.results))
    names = [outcome.policy for outcome in report.results]
    bottom = [0.0] * len(names)
    for source, colour in _COLOURS.items():
        heights = []
        for outcome in report.results:
            total = outcome.mb_by_source.total if isinstance(outcome, Ran) else 0.0
            heights.append(outcome.hours * getattr(outcome.mb_by_source, source) / total if total > 0 else 0.0)
        ax.bar(names, heights, bottom=bottom, color=colour, label=_NAMES[source])
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    for at, outcome in enumerate(report.results):
        if not isinstance(outcome, Ran):
            ax.text(at, 0, " cannot", rotation=90, ha="center", va="bottom")
        elif outcome.mb_by_source.total == 0:
            ax.bar([at], [outcome.hours], color="#999999")
    ax.axhline(report.lower_bound_hours, color="black", linestyle="--", linewidth=1, label="lower bound")
    ax.set_ylabel("hours")
    ax.set_title(report.scenario)
    ax.tick_params(axis="x", rotation=45)
    ax.legend()
    return _done(figure, path)


def grid(found: Grid, path: str | PathLike[str] | None = None, axes: Axes | None = None) -> Figure:
    """Hours for all combinations of two settings (Fig. 8 of paper 001); arguments as `time_by_policy`."""
    figure, ax = _axes(axes, path, width=1.5 + len(found.across[1]))
    image = ax.imshow(
        [[float("nan") if value is None else value for value in row] for row in found.hours],
        cmap="viridis_r",
        aspect="auto",
    )
    ax.set_xticks(range(len(found.across[1])), [f"{value:g}" for value in found.across[1]])
    ax.set_yticks(range(len(found.down[1])), [f"{value:g}" for value in found.down[1]])
    ax.set_xlabel(found.across[0])
    ax.set_ylabel(found.down[0])
    for row, hours in enumerate(found.hours):
        for column, value in enumerate(hours):
            ax.text(
                column, row, "\N{EN DASH}" if value is None else f"{value:.2f}", ha="center", va="center", color="white"
            )
    figure.colorbar(image, ax=ax, label=f"hours, {found.policy}")
    return _done(figure, path)


def timeline(report: Report, path: str | PathLike[str] | None = None, axes: Axes | None = None) -> Figure:
    """Each policy's epochs one after the other, on one axis of hours; arguments as `time_by_policy`."""
    figure, ax = _axes(axes, path, width=8.0)
    rows = report.supported
    for row, outcome in enumerate(rows):
        start = 0.0
        for epoch, hours in enumerate(outcome.epoch_hours):
            ax.barh(row, hours, left=start, color=("#0072B2", "#56B4E9")[epoch % 2], edgecolor="white")
            ax.text(start + hours / 2, row, str(epoch), ha="center", va="center", fontsize="small")
            start += hours
    ax.axvline(report.lower_bound_hours, color="black", linestyle="--", linewidth=1, label="lower bound")
    ax.set_yticks(range(len(rows)), [outcome.policy for outcome in rows])
    ax.invert_yaxis()
    ax.set_xlabel("hours, by epoch")
    ax.set_title(report.scenario)
    ax.legend()
    return _done(figure, path)


def _axes(axes: Axes | None, path: str | PathLike[str] | None, width: float) -> tuple[Figure, Axes]:
    if path is not None:
        check_suffix(path)
    if axes is not None:
        root = axes.get_figure(root=True)
        if root is None:
            raise InvalidError("the axes belong to no figure")
        return root, axes
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(_MISSING) from error
    figure = Figure(figsize=(max(width, 4.0), 4.5), layout="constrained")
    return figure, figure.add_subplot()


def _done(figure: Figure, path: str | PathLike[str] | None) -> Figure:
    if path is not None:
        figure.savefig(path)
    return figure
