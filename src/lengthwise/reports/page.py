"""One self-contained HTML page of tables, pictures and Plotly figures: nothing is fetched."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lengthwise.reports.tables import Table, to_json

if TYPE_CHECKING:  # the simulator is an extra
    from lengthwise.simulator.paired import Ratio


def html_page(
    title: str, tables: Sequence[Table], *, figures: Sequence[Figure] = (), pictures: Mapping[str, str] | None = None
) -> str:
    """Return the page: figures, pictures (PNGs in base64 by title), then the tables."""
    shown = [
        f'<figure><img alt="{html.escape(name)}" src="data:image/png;base64,{data}"></figure>'
        for name, data in (pictures or {}).items()
    ]
    if figures:
        from plotly.offline import get_plotlyjs  # nearly 5 MB: only where a page is written

        drawn = (_drawn(figure, f"figure{i}") for i, figure in enumerate(figures))
        shown = [f"<script>{get_plotlyjs()}</script>", *drawn, *shown]
    body = "\n".join(table_html(table) for table in tables)
    return _PAGE.format(title=html.escape(title), shown="\n".join(shown), tables=body)


def table_html(table: Table) -> str:
    """Return one table with its title and notes."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = "\n".join(_row(row, begins=i in table.rule_before) for i, row in enumerate(table.rows))
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
    return f"<h2>{html.escape(table.title)}</h2><table><tr>{head}</tr>\n{rows}</table>{notes}"


def _row(row: Sequence[str], *, begins: bool) -> str:
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
    return f'<tr class="rule">{cells}</tr>' if begins else f"<tr>{cells}</tr>"


_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px/1.45 system-ui, sans-serif; color: #23292e; margin: 2rem auto; max-width: 1400px; padding: 0 1rem; }}
h2 {{ font-size: 1.05rem; margin-top: 2rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }}
th, td {{ padding: .25rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e3e6e9; }}
th:first-child, td:first-child {{ text-align: left; }}
tr.rule td {{ border-top: 2px solid #9aa3ab; }}
p {{ color: #5b6770; margin: .3rem 0; max-width: 75rem; }}
figure {{ margin: 1rem 0; }} img {{ max-width: 100%; }}
</style></head><body><h1>{title}</h1>
{shown}
{tables}
</body></html>
"""


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


_ABOVE: Final = {"x": 0, "y": 1.0, "xanchor": "left", "yanchor": "bottom", "yshift": 4, "showarrow": False}


@dataclass(frozen=True)
class Figure:
    """One figure: heading, explanation, traces and layout."""

    title: str
    text: str
    data: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    height: int = 420


def axis(title: str, **settings: Any) -> dict[str, Any]:  # noqa: ANN401  (Plotly's own)
    """An axis with a title; Plotly 3's JavaScript takes no bare string for one."""
    return {"title": {"text": title}, **settings}


def interval_bars(intervals: Sequence[Ratio]) -> dict[str, Any]:
    """Error bars from low to high: a trace's `error_x` or `error_y`."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [each.high - each.ratio for each in intervals],
        "arrayminus": [each.ratio - each.low for each in intervals],
        "thickness": 1,
    }


def panel(place: int) -> dict[str, Any]:
    """The axis names that put a trace into a panel, counted from 0."""
    return {f"{side}axis": side if place == 0 else f"{side}{place + 1}" for side in "xy"}


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
        place = {"xref": f"x{number} domain", "yref": f"y{number} domain", **_ABOVE}
        layout["annotations"].append({"text": f"<b>{html.escape(title)}</b>", **place})
    return layout


def _drawn(figure: Figure, name: str) -> str:
    layout = {**_LAYOUT, "height": figure.height, **figure.layout}
    # A name that contains "</script>" must not end the script.
    call = ", ".join(to_json(part).replace("</", "<\\/") for part in (figure.data, layout, {"responsive": True}))
    heading = f"<h2>{html.escape(figure.title)}</h2><p>{html.escape(figure.text)}</p>"
    return f'{heading}<div id="{name}"></div><script>Plotly.newPlot("{name}", {call});</script>'
