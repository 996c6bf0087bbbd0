"""Draw a loss landscape with matplotlib: the loss as filled contours, and the path of the weights over it."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from hookpoint.plots._tick_labels import number_text, shortened, tick_values
from hookpoint.plots.landscape import Landscape
from hookpoint.plots.matplotlib_backend import DPI, INK, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (760, 600)  # pixels
LEVELS = 24
MAX_MARKS = 7  # maximum number of contour lines, which are drawn at round values
MIN_LOG_RATIO = 20  # the colour scale is logarithmic if its upper end is at least this many times its lower end
CAP_SHARE = 0.98  # losses above this quantile all have the same colour, because a few losses are often extreme


def draw_landscape(
    data: Landscape, path: str | os.PathLike[str], *, width: int | None = None, height: int | None = None
) -> None:
    """Write the picture to a .png, .svg or .pdf file, atomically. Raises NoPictures if matplotlib is not installed."""
    save_figure(lambda: _figure(data, width or SIZE[0], height or SIZE[1]), path)


def _figure(data: Landscape, width: int, height: int) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=False)
    axes.set_title(shortened(f"{data.title}: loss around the last weights", int(width / 9)))
    _draw_loss(figure, axes, data)
    _draw_path(axes, data)
    shares = data.explained or (None, None)
    for set_label, number, share in ((axes.set_xlabel, 1, shares[0]), (axes.set_ylabel, 2, shares[1])):
        of_movement = "" if share is None else f" ({100 * share:.0f} % of the movement)"
        name = "principal component" if data.directions == "pca" else f"{data.directions} direction"
        set_label(f"{shortened(name, 40)} {number}{of_movement}")
    return figure


def _draw_loss(figure: Figure, axes: Axes, data: Landscape) -> None:
    from matplotlib.ticker import FuncFormatter

    losses = sorted(value for row in data.loss for value in row if math.isfinite(value))
    low, high = losses[0], losses[-1]
    cap = losses[int(CAP_SHARE * (len(losses) - 1))]
    cap = cap if cap > low else high
    is_log = low > 0 and cap / low >= MIN_LOG_RATIO
    levels = _contour_values(low, cap, is_log=is_log)
    marks = _marks(low, cap, is_log=is_log) or levels[:1]
    masked: Any = _masked(data.loss)
    options: dict[str, Any] = {"levels": levels, "extend": "max" if high > levels[-1] else "neither"}
    if is_log:
        from matplotlib.colors import LogNorm

        options["norm"] = LogNorm(levels[0], levels[-1])
    axes.set_facecolor("#dddddd")  # the background is visible where the loss is not finite
    filled = axes.contourf(data.x, data.y, masked, cmap="viridis", **options)
    lines = axes.contour(data.x, data.y, masked, levels=marks, colors="white", linewidths=0.6, alpha=0.6)
    axes.clabel(lines, fontsize=7, fmt=lambda value: number_text(value))
    bar = figure.colorbar(filled, ax=axes, ticks=marks, format=FuncFormatter(lambda value, _: number_text(value)))
    bar.set_label("loss")
    bar.ax.minorticks_off()


def _contour_values(low: float, high: float, *, is_log: bool) -> list[float]:
    """Return the values that separate the colours: at least two, in increasing order."""
    if not high > low:
        return [low - max(1e-12, abs(low) * 1e-6), low + max(1e-12, abs(low) * 1e-6)]
    if is_log:
        return [low * (high / low) ** (place / LEVELS) for place in range(LEVELS + 1)]
    return [low + (high - low) * place / LEVELS for place in range(LEVELS + 1)]


def _marks(low: float, high: float, *, is_log: bool) -> list[float]:
    """Return round values between the lowest and the highest loss."""
    if not is_log:
        return tick_values(low, high, MAX_MARKS)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    choices = [[digit * 10.0**exponent for exponent in exponents for digit in digits] for digits in ((1, 2, 5), (1,))]
    marks = [[value for value in values if low <= value <= high] for values in choices]
    few = next((values for values in marks if len(values) <= MAX_MARKS), marks[-1])
    return few[:: math.ceil(len(few) / MAX_MARKS) or 1]


def _masked(loss: list[list[float]]) -> Any:
    import numpy

    return numpy.ma.masked_invalid(numpy.array(loss, dtype="float64"))


def _draw_path(axes: Axes, data: Landscape) -> None:
    xs, ys = [stop.x for stop in data.path], [stop.y for stop in data.path]
    axes.plot(xs, ys, color="white", linewidth=3.2, solid_capstyle="round", zorder=3)
    axes.plot(xs, ys, color=INK, linewidth=1.4, marker="o", markersize=3.5, markeredgecolor="white", zorder=4, label="weights")
    marks: dict[str, Any] = {"color": "#D55E00", "markeredgecolor": "white", "markersize": 10, "linestyle": "", "zorder": 5}
    if data.path:
        first, last = data.path[0], data.path[-1]
        axes.plot([first.x], [first.y], marker="s", **{**marks, "markersize": 7}, label=f"step {first.step:,}")
        loss = f": loss {number_text(data.final_loss)}" if math.isfinite(data.final_loss) else ""
        axes.plot([last.x], [last.y], marker="*", **{**marks, "markersize": 14}, label=f"step {last.step:,}{loss}")
    axes.set_xlim(data.x[0], data.x[-1])
    axes.set_ylim(data.y[0], data.y[-1])
    legend = axes.legend(loc="best", frameon=True, framealpha=0.85, edgecolor="none")
    legend.set_zorder(10)
