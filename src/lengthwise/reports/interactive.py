"""Plotly figures in one HTML page, its JavaScript inside: the page needs no network.

A figure is Plotly's own JSON, written as plain dictionaries: traces (`data`) and `layout`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from lengthwise.reports.page import page_around
from lengthwise.reports.tables import Table, to_json

__all__ = ["COLOURS", "Figure", "axes", "axis", "interactive_page", "interval_bars", "panel"]

COLOURS: Final = (
    "#5b6770", "#1b6ca8", "#d1495b", "#2a9d5c", "#e0902f", "#7b4fa3", "#17a2b8", "#8c564b", "#bcbd22", "#e377c2",
)  # fmt: skip
"""The first is grey, for the baseline."""
_LAYOUT: Final[dict[str, Any]] = {
    "template": {"layout": {"colorway": list(COLOURS)}},
    "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#23292e"},
    "paper_bgcolor": "white",
    "plot_bgcolor": "white",
    "margin": {"l": 70, "r": 20, "t": 50, "b": 60},
    "hovermode": "closest",
    "legend": {"orientation": "h", "y": -0.18},
}


@dataclass(frozen=True)
class Figure:
    """One figure: what it shows, in a heading and a sentence or two, its traces and its layout."""

    title: str
    says: str
    data: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    height: int = 420


def axis(title: str, **settings: Any) -> dict[str, Any]:  # noqa: ANN401  (Plotly's own)
    """An axis with a title; Plotly 3's JavaScript takes no bare string for one."""
    return {"title": {"text": title}, **settings}


class Interval(Protocol):
    """A figure, and the interval it lies in."""

    @property
    def ratio(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def interval_bars(some: Sequence[Interval]) -> dict[str, Any]:
    """Error bars from low to high: a trace's `error_x` or `error_y`."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [each.high - each.ratio for each in some],
        "arrayminus": [each.ratio - each.low for each in some],
        "thickness": 1,
    }


def panel(place: int) -> dict[str, Any]:
    """What a trace says to be drawn in a panel, counted from 0."""
    number = "" if place == 0 else str(place + 1)
    return {"xaxis": f"x{number}", "yaxis": f"y{number}"}


def axes(
    panels: Sequence[tuple[dict[str, Any], dict[str, Any]]], *, columns: int, titles: Sequence[str]
) -> dict[str, Any]:
    """A layout of panels with an x and a y axis each, row by row; traces name theirs by `panel`."""
    rows = -(-len(panels) // columns)
    layout: dict[str, Any] = {"grid": {"rows": rows, "columns": columns, "pattern": "independent"}, "annotations": []}
    for i, ((x, y), title) in enumerate(zip(panels, titles, strict=True)):
        number = "" if i == 0 else str(i + 1)
        for axis, settings in (("xaxis", x), ("yaxis", y)):
            layout[f"{axis}{number}"] = {"gridcolor": "#e3e6e9", "zeroline": False, **settings}
        layout["annotations"].append(
            {
                "text": f"<b>{html.escape(title)}</b>",
                "xref": f"x{number} domain",
                "yref": f"y{number} domain",
                "x": 0,
                "y": 1.0,
                "xanchor": "left",
                "yanchor": "bottom",
                "yshift": 4,
                "showarrow": False,
            }
        )
    return layout


def interactive_page(title: str, figures: Sequence[Figure], tables: Sequence[Table]) -> str:
    """The page: figures first, then the tables."""
    from plotly.offline import get_plotlyjs  # nearly 5 MB: only where a page is written

    shown = "\n".join(_drawn(figure, f"figure{i}") for i, figure in enumerate(figures))
    return page_around(title, f"<script>{get_plotlyjs()}</script>\n{shown}", tables)


def _drawn(figure: Figure, name: str) -> str:
    layout = {**_LAYOUT, "height": figure.height, **figure.layout}
    # A name that holds "</script>" must not end the script.
    call = ", ".join(to_json(part).replace("</", "<\\/") for part in (figure.data, layout, {"responsive": True}))
    heading = f"<h2>{html.escape(figure.title)}</h2><p>{html.escape(figure.says)}</p>"
    return f'{heading}<div id="{name}"></div><script>Plotly.newPlot("{name}", {call});</script>'
