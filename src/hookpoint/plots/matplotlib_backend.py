"""Draw curves in image files, with matplotlib. No display is needed.

Names are drawn as plain text, never interpreted as math or markup. `terminal_backend.py` draws the same figures in a terminal.
The board draws its curves in the browser (`web/src/charts/`).
"""

from __future__ import annotations

import os
import textwrap
import warnings
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookpoint.core.errors import HookpointError
from hookpoint.core.text.terminal import printable
from hookpoint.plots._tick_labels import compact, number_text, shortened
from hookpoint.plots.figure_data import Curve, FigureData, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
DPI = 100  # width and height are in screen pixels; a PNG file has twice as many pixels in each direction
SHARPNESS = 2

# Distinguishable for most colour-blind people: the Okabe-Ito palette without yellow, then some of Tol's colours.
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222")
COLOURS = (*OKABE_ITO, "#882255", "#999933", "#332288", "#44AA99", "#DD4477")
STYLES: tuple[Any, ...] = ("solid", (0, (4, 1.6)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
RING: dict[str, Any] = {"ls": "", "marker": "o", "markersize": 8, "markerfacecolor": "none", "markeredgewidth": 1.8}
CROSS: dict[str, Any] = {"ls": "", "marker": "x", "markersize": 5, "markeredgewidth": 1.4, "clip_on": False}
INK, FAINT, GRID = "#222222", "#666666", "#e4e4e4"
MAX_POINTS_MARKED = 40
MAX_NAME_CHARACTERS = 44
MIN_WIDTH, MIN_HEIGHT = 260, 130  # smallest readable panel, in pixels
PANEL = {1: (760, 460), 2: (500, 380), 3: (440, 330)}  # width and height of a panel in pixels, by the number of panels per row
LOOK: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],  # matplotlib includes this font, so the picture is the same on every machine
    "text.parse_math": False,  # $ is a plain character
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "axes.labelcolor": FAINT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 2.4,
    "lines.linewidth": 1.6,
    "lines.solid_joinstyle": "round",
    "path.simplify": True,
    "agg.path.chunksize": 500,  # saves 50 MB of memory for a noisy curve with a few thousand points
    "svg.hashsalt": "hookpoint",  # makes the element ids in an SVG file reproducible
}


class NoPictures(HookpointError, ImportError):
    """matplotlib is not installed."""


class NoSuchFormat(HookpointError, ValueError):
    """The file name does not have a supported image extension."""


def check(path: str | os.PathLike[str]) -> str:
    """Return the image format for a file extension.

    Raises NoSuchFormat if the extension is unknown, and NoPictures if matplotlib is not installed.
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise NoSuchFormat(f"unknown image format: '{printable(Path(path).name)}'; use .png, .svg or .pdf")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        message = "plots need matplotlib: pip install 'hookpoint[plot]'; hookpoint plot --terminal works without it"
        raise NoPictures(message) from None
    return kind


def columns_of(width: int | None) -> int:
    """Return the maximum width of a panel in pixels. A curve does not need more points than this many pixels can show."""
    return SHARPNESS * (width or max(wide for wide, _ in PANEL.values()))


def draw(data: FigureData, path: str | os.PathLike[str], *, width: int | None = None, height: int | None = None) -> None:
    """Write a figure to a .png, .svg or .pdf file, atomically.

    `width` and `height` are in screen pixels; a PNG file has twice as many pixels in each direction. The figure becomes taller
    if the panels do not fit. With the same matplotlib version, the same figure always produces the same bytes. Raises
    NoPictures if matplotlib is not installed.
    """
    save_figure(lambda: _figure(data, width, height), path)


def save_figure(make: Callable[[], Figure], path: str | os.PathLike[str]) -> None:
    """Write the figure that `make` returns to a file, atomically and in hookpoint's plot style."""
    target, kind = Path(path), check(path)
    import matplotlib

    staged = target.with_name(f".{target.name}.{os.getpid()}")
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)  # a missing glyph is drawn as a box
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(LOOK)
        figure = make()
        dates = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
        try:
            figure.savefig(staged, format=kind, dpi=DPI * (SHARPNESS if kind == "png" else 1), metadata=dates[kind])
            os.replace(staged, target)
        finally:
            staged.unlink(missing_ok=True)


def _across(panels: int, width: int | None) -> int:
    """Return the number of panels per row."""
    across = {1: 1, 2: 2, 4: 2}.get(panels, 3)
    return across if width is None else max(1, min(across, width // MIN_WIDTH))


def _figure(data: FigureData, width: int | None, height: int | None) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D

    number = max(1, len(data.panels))
    across = _across(number, width)
    down = ceil(number / across)
    panel_width, panel_height = PANEL[across]
    wide = width or across * panel_width
    title = _wrapped(data.title, wide - 24, max_lines=2)
    legend = _run_names(data, wide)
    margin = 26 * len(title) + 19 * ceil(len(legend) / _names_across(legend, wide))
    high = max(height or down * panel_height + margin, down * MIN_HEIGHT + margin)
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, wspace=0.03, hspace=0.05)
    figure = Figure(figsize=(wide / DPI, high / DPI), dpi=DPI, layout=layout)
    figure.suptitle("\n".join(title), fontsize=12, fontweight="bold", x=0.012, ha="left", color=INK)
    for place, panel in enumerate(data.panels):
        axes = figure.add_subplot(down, across, place + 1)
        _draw_panel(axes, panel, data, wide / across, is_last=place + across >= number)
    if legend:
        lines = [Line2D([], [], color=COLOURS[number % len(COLOURS)], linewidth=3) for number in range(len(legend))]
        _add_legend(figure, lines, legend, loc="outside lower left", ncols=_names_across(legend, wide))
    return figure


def _draw_panel(axes: Axes, panel: Panel, data: FigureData, wide: float, *, is_last: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_title(shortened(panel.title, int(wide / 9)))
    low, high = data.x_range
    margin = 0.02 * (high - low) or 1.0
    axes.set_xlim(low - margin, high + margin)
    is_integer = data.x_label in ("step", "epoch")
    nbins = max(2, min(6, int(wide / 65)))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=nbins, steps=[1, 2, 2.5, 5, 10], integer=is_integer))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    if is_last:
        axes.set_xlabel(data.x_label)
    if panel.is_empty:
        axes.set_yticks([])
    elif panel.log:
        _log_scale(axes, panel)
    else:
        axes.set_ylim(*panel.limits)
    for curve in panel.curves:
        _draw_curve(axes, curve, _colour(curve, data))
    _panel_legend(axes, panel, data, int(wide / 8))


def _log_scale(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axes.set_yscale("log")
    axes.set_ylim(*panel.limits)
    ratio = panel.high / panel.low
    decades = LogLocator(base=10, subs=(1.0,) if ratio >= 1000 else (1.0, 2.0, 5.0), numticks=8)
    axes.yaxis.set_major_locator(MaxNLocator(5) if ratio < 5 else decades)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_curve(axes: Axes, curve: Curve, colour: str) -> None:
    if curve.raw is not None:
        axes.plot(*curve.raw, color=colour, alpha=0.25, linewidth=1.0, zorder=2)
    few = len(curve.xs) <= MAX_POINTS_MARKED
    axes.plot(
        curve.xs,
        curve.ys,
        color=colour,
        linestyle=STYLES[curve.style],
        marker="o" if few else "",
        markersize=3,
        zorder=3 + curve.style,
    )
    if curve.best is not None:
        axes.plot([curve.best.x], [curve.best.y], color=colour, **RING, zorder=8)
    if curve.broken:
        bottom = axes.get_xaxis_transform()  # y = 0 is the lower edge of the panel
        axes.plot(curve.broken, [0.02] * len(curve.broken), transform=bottom, color=colour, **CROSS, zorder=9)


def _colour(curve: Curve, data: FigureData) -> str:
    """Return a curve's colour.

    If the figure shows multiple runs, all curves of a run have the same colour. If the figure shows one run, the colour depends
    on `curve.style`.
    """
    return COLOURS[(curve.run if len(data.runs) > 1 else curve.style) % len(COLOURS)]


def _panel_legend(axes: Axes, panel: Panel, data: FigureData, letters: int) -> None:
    """Add a panel's legend. If there are multiple runs, its symbols are grey, because colours distinguish the runs."""
    from matplotlib.lines import Line2D

    is_comparison = len(data.runs) > 1
    curves = {curve.name: curve for curve in panel.curves}
    colours = {name: FAINT if is_comparison else _colour(curve, data) for name, curve in curves.items()}
    entries: list[tuple[Any, str]] = []
    if len(curves) > 1:
        entries += [
            (Line2D([], [], color=colours[name], linestyle=STYLES[curve.style]), name) for name, curve in curves.items()
        ]
    for name, curve in curves.items():
        if curve.best is not None:
            text = "best of each run" if is_comparison else f"best {number_text(curve.best.y)} at step {curve.best.step:,}"
            entries.append((Line2D([], [], color=colours[name], **RING), text))
    broken = [colours[curve.name] for curve in panel.curves if curve.broken]
    if broken:
        entries.append((Line2D([], [], color=broken[0], **CROSS), "NaN or infinite"))
    if entries:
        labels = [shortened(label, letters) for _, label in entries]
        _add_legend(axes, [line for line, _ in entries], labels, loc="best").set_zorder(10)


def _run_names(data: FigureData, wide: float) -> list[str]:
    return [shortened(name, min(MAX_NAME_CHARACTERS, int(wide / 8) - 8)) for name in data.runs] if len(data.runs) > 1 else []


def _names_across(names: Sequence[str], wide: float) -> int:
    longest = max(map(len, names), default=1)
    return max(1, min(len(names), int(wide / (7 * longest + 50)))) if names else 1


def _add_legend(parent: Figure | Axes, lines: Sequence[Any], labels: Sequence[str], **options: Any) -> Any:
    """Add a legend to a figure or axes.

    matplotlib omits labels that start with an underscore, so the labels are set after the legend is created.
    """
    legend = parent.legend(lines, [str(number) for number in range(len(labels))], **options)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(label)
    return legend


def _wrapped(text: str, wide: float, *, max_lines: int) -> list[str]:
    lines = textwrap.wrap(text, max(20, int(wide / 8.5))) or [""]
    return lines if len(lines) <= max_lines else [*lines[: max_lines - 1], f"{lines[max_lines - 1][:-1]}…"]
