"""Still figures of studies and documentation in one style. Matplotlib, slow to load, is imported when one is drawn."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.reports.page import BASELINE_COLOUR
from lengthwise.reports.page import COLOURS as PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Array = NDArray[np.float64]


COLOURS: Final = PALETTE[1:7]
"""The reports' palette without the baseline's grey."""
GREY: Final = BASELINE_COLOUR

_STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#5b6770",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e6e9",
    "grid.linewidth": 0.8,
    "xtick.color": "#3d454c",
    "ytick.color": "#3d454c",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "lengthwise",
}


@contextmanager
def figure(rows: int, columns: int, *, size: tuple[float, float], title: str) -> Iterator[tuple[Figure, list[Axes]]]:
    """Yield a figure and its panels, numbered row by row; needs no display."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        drawing = Figure(figsize=size, layout="constrained", facecolor="white")
        FigureCanvasAgg(drawing)
        drawing.suptitle(title, x=0.008, ha="left", fontsize=13.5, fontweight="bold")
        axes = drawing.subplots(rows, columns, squeeze=False)
        yield drawing, list(axes.ravel())


def save(drawing: Figure, path: Path) -> None:
    """Write the figure in the format of the suffix; an SVG fits light and dark pages."""
    if not path.parent.is_dir():
        raise InputError("no such folder", source=path.parent, hint="make it first, or give another --plot")
    kinds = drawing.canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in kinds:
        raise InputError(
            f"'{path.suffix}' is not a picture format", source=path, hint="end the name in .png, .pdf or .svg"
        )
    if path.suffix != ".svg":
        drawing.savefig(path, dpi=150)
        return
    text = io.StringIO()
    drawing.savefig(text, format="svg", metadata={"Date": None})
    path.write_text(with_dark_scheme(_in_hundredths(text.getvalue())), encoding="utf-8")


def _in_hundredths(svg: str) -> str:
    """Return the SVG with coordinates in hundredths of a point, which halves its size; its texts stay."""
    return re.sub(r">[^<]*<|(\d\.\d\d)\d+", lambda found: found[1] or found[0], svg)


def with_dark_scheme(svg: str) -> str:
    """Return Matplotlib's SVG with rules for a dark page.

    Inline colours stay for light pages and for viewers without CSS. An `<img>` takes the scheme of its page.
    """
    svg = re.sub(r"<style>@media.*?</style>\n", "", svg, flags=re.DOTALL)
    colours = sorted(set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg)) - set(PALETTE))
    lines = [f"[id^='text_'] {{ fill: {_on_dark('#000000')} }}"]  # black, the default, is not written
    lines += [
        f"[style*='{name}: {colour}'] {{ {name}: {_on_dark(colour)} !important }}"
        for colour in colours
        for name in ("fill", "stroke")
    ]
    style = "\n".join(["<style>@media (prefers-color-scheme: dark) {", *lines, "}</style>", ""])
    return svg.replace("</svg>", f"{style}</svg>")


_GROUND: Final = "#1e2129"
"""The ground of Material's dark scheme, which white becomes."""
_DARKEST, _LIGHTEST, _FAINTEST = 0.25, 0.95, 0.4
"""Lightness in OKLab of near white and of black on a dark page; the least of a colour that is not grey."""
_TO_LMS: Final = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_OKLAB: Final = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def _on_dark(colour: str) -> str:
    """Return a colour of the same hue with its lightness mirrored, so that what is near the ground stays near it."""
    if colour == "#ffffff":
        return _GROUND
    encoded = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    lightness, *hue = _TO_OKLAB @ np.cbrt(_TO_LMS @ linear)
    mirrored = _DARKEST + (1.0 - lightness) ** 0.75 * (_LIGHTEST - _DARKEST)
    if np.hypot(*hue) > 0.06:
        mirrored = max(mirrored, _FAINTEST)
    linear = np.linalg.solve(_TO_LMS, np.linalg.solve(_TO_OKLAB, np.array([mirrored, *hue])) ** 3).clip(0.0, 1.0)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * value):02x}" for value in encoded)


def png(drawing: Figure) -> str:
    """Return a PNG in base64, to embed in a page."""
    data = io.BytesIO()
    drawing.savefig(data, format="png", dpi=110)
    return base64.b64encode(data.getvalue()).decode("ascii")


def dots(axes: Axes, labels: Sequence[str], series: Sequence[tuple[str, Sequence[float]]]) -> None:
    """Draw a line per label and a dot per series: readable for more groups than bars."""
    places = range(len(labels))
    for place in places:
        here = [values[place] for _, values in series]
        axes.plot([min(here), max(here)], [place, place], color="#d5d9dd", linewidth=1.6, zorder=1)
    for (name, values), colour in zip(series, COLOURS, strict=False):
        axes.scatter(values, list(places), s=34, color=colour, label=name, zorder=3, edgecolor="white", linewidth=0.6)
    axes.set_yticks(list(places), labels)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def boxes(axes: Axes, values: Mapping[str, Array]) -> None:
    """Draw a box per entry: quartiles, whiskers from the 5th to the 95th percentile, mean as a diamond."""
    axes.boxplot(
        list(values.values()),
        orientation="horizontal",
        tick_labels=list(values),
        whis=(5, 95),
        showfliers=False,
        showmeans=True,
        patch_artist=True,
        widths=0.62,
        boxprops={"facecolor": "#cfe1ee", "edgecolor": COLOURS[0]},
        whiskerprops={"color": COLOURS[0]},
        capprops={"color": COLOURS[0]},
        medianprops={"color": COLOURS[0], "linewidth": 2},
        meanprops={"marker": "D", "markerfacecolor": COLOURS[1], "markeredgecolor": "white", "markersize": 5},
    )
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def legend(axes: Axes, **options: Any) -> None:
    """Draw the legend."""
    axes.legend(**{"handlelength": 1.6, "borderaxespad": 0.4, **options})


def describe(axes: Axes, title: str, *, x: str = "", y: str = "", legend_at: str | None = None) -> None:
    """Set the title, the labels of the axes and, where a place is given, the legend."""
    axes.set(title=title, xlabel=x, ylabel=y)
    if legend_at is not None:
        legend(axes, loc=legend_at)


def percent_axis(axes: Axes) -> None:
    """Write shares on the x axis in percent."""
    from matplotlib.ticker import FuncFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))


def log_tokens(axes: Axes, ticks: Sequence[float]) -> None:
    """Make the x axis logarithmic, with plain numbers."""
    axes.set_xscale("log")
    axes.set_xticks(list(ticks), [f"{tick:,g}" for tick in ticks])
    axes.minorticks_off()
