"""Pictures of simulations: time by policy, what-if grids, a run's timeline.

matplotlib is imported when a picture is drawn, so the package doesn't need it. Each function returns the figure and saves it when
given a path; pass `axes` to draw into a figure of your own. Times are drawn in hours, minutes or seconds, whichever the longest fills.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from foreload._settings.written import written
from foreload.errors import InvalidError
from foreload.sim import Ran

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foreload.sim import Grid, Report

__all__ = ["check_suffix", "grid", "time_by_policy", "timeline"]

#: From near to far; told apart in print and by the colour-blind (Okabe and Ito).
_COLOURS = {"ram": "#009E73", "disk": "#E69F00", "peer": "#56B4E9", "source": "#D55E00"}
_MISSING = "plots need matplotlib: pip install 'foreload[plot]'"
#: How many of them an hour has.
_UNITS = {"hours": 1.0, "minutes": 60.0, "seconds": 3600.0}
#: The luminance of a cell on which black and white text have the same contrast (WCAG 2).
_DARK = 0.179
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
    """Time by policy, each bar split by where the bytes came from, beside the lower bound (Fig. 7 of paper 001).

    Args:
        report: Of the simulation.
        path: Where to save it; the suffix says the format.
        axes: Matplotlib axes to draw into.

    Returns:
        The matplotlib figure.

    Raises:
        InvalidError: The suffix names no format, or no policy can run.
        ImportError: matplotlib isn't installed.
        OSError: The file can't be written; one that was there before is as it was.
    """
    longest = max(outcome.hours for outcome in _ran(report))
    unit, factor = _unit(max(longest, report.lower_bound_hours))
    figure, ax = _axes(axes, path, width=1.2 + 0.7 * len(report.results))
    names = [outcome.policy for outcome in report.results]
    bottom = [0.0] * len(names)
    for source, colour in _COLOURS.items():
        heights = []
        for outcome in report.results:
            total = outcome.mb_by_source.total if isinstance(outcome, Ran) else 0.0
            time = factor * (outcome.hours or 0.0)
            heights.append(time * getattr(outcome.mb_by_source, source) / total if total > 0 else 0.0)
        ax.bar(names, heights, bottom=bottom, color=colour, label=_NAMES[source])
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    for at, outcome in enumerate(report.results):
        if not isinstance(outcome, Ran):
            ax.text(at, 0, " cannot", rotation=90, ha="center", va="bottom")
        elif outcome.mb_by_source.total == 0:
            ax.bar([at], [factor * outcome.hours], color="#999999")
    ax.axhline(factor * report.lower_bound_hours, color="black", linestyle="--", linewidth=1, label="lower bound")
    ax.set_ylabel(unit)
    ax.set_title(report.scenario)
    ax.tick_params(axis="x", rotation=45)
    ax.legend()
    return _done(figure, path)


def grid(found: Grid, path: str | PathLike[str] | None = None, axes: Axes | None = None) -> Figure:
    """Time for all combinations of two settings (Fig. 8 of paper 001); arguments as `time_by_policy`."""
    import numpy as np

    times = [value for row in found.hours for value in row if value is not None]
    if not times:
        raise InvalidError(f"there is nothing to draw: {found.policy} can't run with any of these settings")
    unit, factor = _unit(max(times))
    figure, ax = _axes(axes, path, width=1.5 + len(found.across[1]))
    cells = [[float("nan") if value is None else factor * value for value in row] for row in found.hours]
    image = ax.imshow(cells, cmap="viridis_r", aspect="auto")
    ax.set_xticks(range(len(found.across[1])), [f"{value:g}" for value in found.across[1]])
    ax.set_yticks(range(len(found.down[1])), [f"{value:g}" for value in found.down[1]])
    ax.set_xlabel(found.across[0])
    ax.set_ylabel(found.down[0])
    colours = image.to_rgba(np.array(cells)).tolist()
    for row, values in enumerate(cells):
        for column, value in enumerate(values):
            none = math.isnan(value)
            # What has no colour shows the white behind it.
            dark = not none and _luminance(colours[row][column]) < _DARK
            text, colour = "\N{EN DASH}" if none else _digits(value), "white" if dark else "black"
            ax.text(column, row, text, ha="center", va="center", color=colour)
    figure.colorbar(image, ax=ax, label=f"{unit}, {found.policy}")
    return _done(figure, path)


def timeline(report: Report, path: str | PathLike[str] | None = None, axes: Axes | None = None) -> Figure:
    """Each policy's epochs one after the other, on one axis of time; arguments as `time_by_policy`."""
    rows = _ran(report)
    unit, factor = _unit(max(outcome.hours for outcome in rows))
    figure, ax = _axes(axes, path, width=8.0)
    for row, outcome in enumerate(rows):
        start = 0.0
        for epoch, hours in enumerate(outcome.epoch_hours):
            length = factor * hours
            ax.barh(row, length, left=start, color=("#0072B2", "#56B4E9")[epoch % 2], edgecolor="white")
            ax.text(start + length / 2, row, str(epoch), ha="center", va="center", fontsize="small")
            start += length
    ax.axvline(factor * report.lower_bound_hours, color="black", linestyle="--", linewidth=1, label="lower bound")
    ax.set_yticks(range(len(rows)), [outcome.policy for outcome in rows])
    ax.invert_yaxis()
    ax.set_xlabel(f"{unit}, by epoch")
    ax.set_title(report.scenario)
    ax.legend()
    return _done(figure, path)


def _ran(report: Report) -> tuple[Ran, ...]:
    """The outcomes that have times.

    Raises:
        InvalidError: None has.
    """
    if not report.supported:
        reasons = "; ".join(f"{outcome.policy}: {outcome.reason}" for outcome in report.results)
        raise InvalidError(f"there is nothing to draw: no policy can run ({reasons})")
    return report.supported


def _unit(hours: float) -> tuple[str, float]:
    """The largest unit of which a time has at least one, and how many of them an hour has."""
    return next(((unit, factor) for unit, factor in _UNITS.items() if hours * factor >= 1), ("seconds", 3600.0))


def _digits(value: float) -> str:
    """A time with three digits that say something.

    Example:
        >>> [_digits(value) for value in (12345.6, 123.4, 2.0, 0.01234)]
        ['12,346', '123', '2.00', '0.0123']
    """
    if value <= 0:
        return "0"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f}"


def _luminance(colour: Sequence[float]) -> float:
    """How bright a colour is, from black's 0 to white's 1, as WCAG defines it."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


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
        with written(path, "the plot") as beside:
            figure.savefig(beside)
    return figure
