"""The one design of all HTML reports: verdict, origin, figures, tables, how to rerun. Nothing is fetched."""

from __future__ import annotations

import html
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from lengthwise.reports.tables import Table, to_json
from lengthwise.reports.verdict import Verdict
from lengthwise.version import install_line, package_version

if TYPE_CHECKING:  # it loads SciPy, which takes longer than most commands
    from lengthwise.intervals import Ratio

_SECRET: Final = ("--api-key", "--token")
_PASSWORD: Final = re.compile(r"://[^/@]+@")


@dataclass(frozen=True)
class Origin:
    """What a result was made with."""

    command: str
    version: str
    date: str
    hardware: str
    seed: str = ""

    @classmethod
    def here(cls, *, seed: object = "", hardware: str | None = None, command: str | None = None) -> Origin:
        """Return the origin of a result of this process; values of secret options are left out of the command."""
        return cls(
            command or command_line(["lengthwise", *sys.argv[1:]]),
            package_version(),
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            hardware or this_machine(),
            str(seed),
        )


def command_line(words: Sequence[str]) -> str:
    """Return the command as it is typed, with secrets replaced."""
    shown = list(words)
    for place, word in enumerate(words):
        option, equals, _ = word.partition("=")
        if option in _SECRET and equals:
            shown[place] = f"{option}=..."
        elif option in _SECRET and place + 1 < len(words):
            shown[place + 1] = "..."
    return shlex.join(_PASSWORD.sub("://...@", word) for word in shown)


@cache
def this_machine() -> str:
    """Return the processor, its cores and the memory of this machine."""
    try:
        memory = f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (OSError, ValueError):
        memory = ""
    return f"{processor_name()}, {os.cpu_count()} cores{memory}"


def processor_name() -> str:
    """Return the name of the processor of this machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@dataclass(frozen=True)
class Figure:
    """One figure: its title, how to read it, Plotly's traces and layout."""

    title: str
    text: str
    data: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    height: int = 420


@dataclass(frozen=True)
class Document:
    """A result as every command shows it: a verdict and tables, facts for JSON, and a page with figures."""

    title: str
    tables: Sequence[Table]
    facts: Any
    verdict: Verdict | None = None
    figures: Callable[[], Sequence[Figure]] = tuple
    """Called only for a page."""
    origin: Origin | None = None

    def html(self) -> str:
        """Return the page."""
        return html_page(self.title, self.tables, verdict=self.verdict, origin=self.origin, figures=self.figures())


def html_page(
    title: str,
    tables: Sequence[Table],
    *,
    verdict: Verdict | None = None,
    origin: Origin | None = None,
    figures: Sequence[Figure] = (),
    pictures: Mapping[str, str] | None = None,
) -> str:
    """Return the page: verdict and origin, figures, pictures (PNGs in base64 by title), tables, how to rerun."""
    shown = [
        f'<figure class="still"><img alt="{html.escape(name)}" src="data:image/png;base64,{data}"></figure>'
        for name, data in (pictures or {}).items()
    ]
    if figures:
        from plotly.offline import get_plotlyjs  # nearly 5 MB: only where a page is written

        drawn = (_drawn(figure, f"figure{i}") for i, figure in enumerate(figures))
        shown = [f"<script>{get_plotlyjs()}</script><script>{_DRAW}</script>", *drawn, *shown]
    body = "\n".join(table_html(table) for table in tables)
    subject = f'<p class="subject">{html.escape(title)}</p>' if verdict else ""
    verdict = verdict or Verdict(title)
    lead = f'<p class="lead">{html.escape(verdict.lead)}</p>' if verdict.lead else ""
    again = "" if origin is None else _rerun(origin)
    facts = "" if origin is None else _origin(origin)
    return _PAGE.format(
        title=html.escape(title),
        head=f"{subject}<h1>{html.escape(verdict.headline)}</h1>{lead}{facts}",
        style=_STYLE,
        shown="\n".join(shown),
        tables=body,
        rerun=again,
        sort=_SORT,
    )


def table_html(table: Table) -> str:
    """Return one table with its title and notes."""
    head = "".join(f'<th scope="col"><button type="button">{html.escape(name)}</button></th>' for name in table.columns)
    rows = "\n".join(_row(row, begins=i in table.rule_before) for i, row in enumerate(table.rows))
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
    body = f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>"
    return f'<section><h2>{html.escape(table.title)}</h2><div class="scroll">{body}</div>{notes}</section>'


def _row(row: Sequence[str], *, begins: bool) -> str:
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
    return f'<tr class="rule">{cells}</tr>' if begins else f"<tr>{cells}</tr>"


def _origin(origin: Origin) -> str:
    names = {"Command": origin.command, "Version": f"lengthwise {origin.version}", "Date": origin.date}
    names |= {"Seed": origin.seed or "none", "Hardware": origin.hardware}
    items = "".join(f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>" for name, value in names.items())
    return f"<dl>{items}</dl>"


def _rerun(origin: Origin) -> str:
    lines = f"{install_line('all', here=False)}  # lengthwise {origin.version}\n{origin.command}"
    return f"<section><h2>How to run it again</h2><pre>{html.escape(lines)}</pre></section>"


def _drawn(figure: Figure, name: str) -> str:
    layout = {"height": figure.height, **figure.layout}
    # A name that contains "</script>" must not end the script.
    call = ", ".join(to_json(part).replace("</", "<\\/") for part in (figure.data, layout))
    heading = f"<h2>{html.escape(figure.title)}</h2><p>{html.escape(figure.text)}</p>"
    label = html.escape(f"{figure.title}. {figure.text}")
    plot = f'<div id="{name}" role="img" aria-label="{label}"></div><script>drawFigure("{name}", {call});</script>'
    return f"<section>{heading}{plot}</section>"


BASELINE_COLOUR: Final = "#848d97"
COLOURS: Final = (
    BASELINE_COLOUR, "#1f77d0", "#d1495b", "#2a9d5c", "#e0902f", "#8a5cc2", "#17a2b8", "#a0694f", "#a8a820", "#e066b3",
    "#5b7f2b", "#b5449a", "#4f74b8", "#c7662a",
)  # fmt: skip
"""The first is grey, for the baseline; all are readable on white and on black."""
_POLICIES: Final = (
    "fcfs", "lengthwise", "sjf", "tie", "srpt", "gittins", "ltr", "sept", "hrrn", "boost", "preble", "bounded", "fair",
    "slo",
)  # fmt: skip
_OF_POLICY: Final = dict(zip(_POLICIES, COLOURS, strict=True))


def colours(names: Iterable[str], baseline: str = _POLICIES[0]) -> dict[str, str]:
    """Return a colour for each name: the baseline is grey, and a policy has the same colour in every report.

    Two names share a colour only where there are more names than colours.
    """
    wanted = list(dict.fromkeys(names))
    found = {baseline: BASELINE_COLOUR} if baseline in wanted else {}
    for name in sorted(wanted, key=len):  # a policy before the same one with settings
        usual = _OF_POLICY.get(name.partition(":")[0], BASELINE_COLOUR)
        if name not in found and usual not in (BASELINE_COLOUR, *found.values()):
            found[name] = usual
    for name in wanted:
        if name not in found:
            start = crc32(name.encode()) % (len(COLOURS) - 1)
            order = [COLOURS[1 + (start + step) % (len(COLOURS) - 1)] for step in range(len(COLOURS) - 1)]
            found[name] = next((colour for colour in order if colour not in found.values()), order[0])
    return found


_ABOVE: Final = {"x": 0, "y": 1.0, "xanchor": "left", "yanchor": "bottom", "yshift": 4, "showarrow": False}


def axis(title: str, **settings: Any) -> dict[str, Any]:  # Plotly's own
    """An axis with a title; Plotly 3's JavaScript takes no bare string for one."""
    return {"title": {"text": title}, **settings}


_RATIO_TICKS: Final = (
    0.02,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.7,
    0.8,
    0.9,
    1.0,
    1.1,
    1.25,
    1.5,
    2.0,
    3.0,
    5.0,
    10.0,
    20.0,
    50.0,
)
_RATIO_ENDS: Final = (0.8, 1.25)


def ratio_axis(title: str, values: Iterable[float]) -> dict[str, Any]:
    """A logarithmic axis around 1 that holds the values and never shows less than 0.8 to 1.25: noise looks small."""
    known = [value for value in values if math.isfinite(value) and value > 0]
    low, high = min([*known, _RATIO_ENDS[0]]) / 1.05, max([*known, _RATIO_ENDS[1]]) * 1.05
    ticks = [tick for tick in _RATIO_TICKS if low <= tick <= high]
    if len(ticks) > 8:
        ticks = [tick for tick in ticks if tick in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)]
    text = [f"{tick:g}" for tick in ticks]
    ends = [math.log10(low), math.log10(high)]
    return axis(title, type="log", range=ends, tickvals=ticks, ticktext=text)


def tokens_axis(title: str) -> dict[str, Any]:
    """A logarithmic axis of tokens, with whole numbers at 1, 2 and 5 times each power of ten."""
    ticks = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
    return axis(title, type="log", tickvals=ticks, ticktext=[f"{tick:,}" for tick in ticks])


def interval_bars(intervals: Sequence[Ratio]) -> dict[str, Any]:
    """Error bars from low to high: a trace's `error_x` or `error_y`."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [each.high - each.ratio for each in intervals],
        "arrayminus": [each.ratio - each.low for each in intervals],
        "thickness": 1.5,
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
        for name, settings in (("xaxis", x), ("yaxis", y)):
            layout[f"{name}{number}"] = {"zeroline": False, **settings}
        place = {"xref": f"x{number} domain", "yref": f"y{number} domain", **_ABOVE}
        layout["annotations"].append({"text": f"<b>{html.escape(title)}</b>", **place})
    return layout


_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title><style>{style}</style></head><body>
<header>{head}</header>
<main>
{shown}
{tables}
{rerun}
</main><script>{sort}</script>
</body></html>
"""
_STYLE: Final = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1f262c; --soft: #5b6770; --line: #e1e5e9; --rule: #9aa3ab;
  --panel: #f5f7f9; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181c; --ink: #e4e9ee; --soft: #a3aeb8; --line: #2c343b;
  --rule: #66717b; --panel: #1c2227; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 1180px; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0 0 .5rem; max-width: 60rem; }
.lead { color: var(--ink); font-size: 1.05rem; margin: 0 0 1rem; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .3rem; }
.subject, p, dt { color: var(--soft); } .subject { margin: 0 0 .3rem; } p { margin: .3rem 0; max-width: 60rem; }
dl { background: var(--panel); border-radius: .5rem; padding: .7rem 1rem; margin: 0; display: grid; gap: .3rem 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); }
dl div:first-child { grid-column: 1 / -1; } dt { font-size: .8rem; } dd { margin: 0; overflow-wrap: anywhere; }
dl div:first-child dd, pre { font-family: ui-monospace, monospace; font-size: .85rem; }
pre { background: var(--panel); border-radius: .5rem; padding: .7rem 1rem; overflow-x: auto; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
table:not(.sorted) tr.rule td { border-top: 2px solid var(--rule); }
figure { margin: 1rem 0; } img { max-width: 100%; } .still { background: #fff; border-radius: .5rem; }
@media (min-width: 641px) { dl div:last-child { grid-column: span 2; } }
@media (max-width: 640px) { body { margin: 1rem auto; } h1 { font-size: 1.2rem; }
  td:first-child { white-space: normal; min-width: 7rem; } }
"""
# Colours come from the style sheet, so that a change of the colour scheme redraws; narrow windows stack the panels.
_DRAW: Final = """
const figures = [];
function drawFigure(name, data, layout) { figures.push({name, data, layout}); show(figures[figures.length - 1]); }
function show(figure) {
  const css = getComputedStyle(document.documentElement), value = name => css.getPropertyValue(name).trim();
  const line = {gridcolor: value('--line'), linecolor: value('--line'), zerolinecolor: value('--rule'),
    automargin: true};
  const layout = structuredClone(figure.layout), width = document.getElementById(figure.name).clientWidth;
  const named = figure.data.filter(trace => trace.showlegend !== false && trace.name);
  const legendRows = Math.ceil(named.reduce((sum, trace) => sum + 50 + 7 * trace.name.length, 0) / (width - 80));
  const above = 34 + (named.length > 1 ? 12 + 28 * legendRows : 0);
  layout.template = {layout: {font: {family: 'system-ui, sans-serif', size: 12, color: value('--ink')},
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', xaxis: line, yaxis: line, hovermode: 'closest',
    margin: {l: 60, r: 20, t: above, b: 50}, hoverlabel: {bgcolor: value('--panel'), font: {color: value('--ink')}},
    legend: {orientation: 'h', yref: 'container', y: 1, yanchor: 'top'}}};
  layout.showlegend = named.length > 1;
  layout.height += above - 34;
  if (layout.grid && layout.grid.columns > 1 && width < 700) {
    const panels = Object.keys(layout).filter(name => name.startsWith('xaxis')).length;
    layout.height = above + panels * layout.height / layout.grid.rows;
    layout.grid.rows = panels; layout.grid.columns = 1;
    Object.keys(layout).filter(name => name.startsWith('yaxis')).forEach(name => {
      delete layout[name].showticklabels;
      if (layout[name].categoryarray) wrapLabels(layout, layout[name]);
    });
  }
  const options = {responsive: true, displayModeBar: false};
  Plotly.react(figure.name, structuredClone(figure.data), layout, options);
}
// Long names leave no space for the marks: names take two lines, and titles end at the right edge.
function wrapLabels(layout, axis) {
  const wrapped = name => {
    const breaks = Array.from(name.matchAll(/, /g), found => found.index + 1);
    if (!breaks.length) return name;
    const middle = breaks.reduce((a, b) => Math.abs(a - name.length / 2) <= Math.abs(b - name.length / 2) ? a : b);
    return name.slice(0, middle) + '<br>' + name.slice(middle + 1);
  };
  Object.assign(axis, {tickvals: axis.categoryarray, ticktext: axis.categoryarray.map(wrapped), tickfont: {size: 10}});
  layout.annotations.forEach(title => Object.assign(title, {x: 1, xanchor: 'right'}));
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => figures.forEach(show));
matchMedia('(max-width: 760px)').addEventListener('change', () => figures.forEach(show));
"""
_SORT: Final = """
const units = {ms: 1e-3, us: 1e-6};
function sortKey(text) {
  const found = text.replaceAll(',', '').match(/^\\s*([-+]?[0-9]*\\.?[0-9]+)\\s*(ms|us)?/);
  return found ? parseFloat(found[1]) * (units[found[2]] ?? 1) : null;
}
function compare(a, b) {
  const x = sortKey(a), y = sortKey(b);
  if (x !== null && y !== null) return x - y;
  return x === null && y === null ? a.localeCompare(b) : x === null ? 1 : -1;
}
document.querySelectorAll('th button').forEach(button => button.addEventListener('click', () => {
  const head = button.closest('th'), table = head.closest('table'), body = table.tBodies[0], place = head.cellIndex;
  const down = head.getAttribute('aria-sort') === 'ascending';
  table.querySelectorAll('th').forEach(other => other.removeAttribute('aria-sort'));
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  table.classList.add('sorted');
  const rows = Array.from(body.rows);
  rows.sort((a, b) => (down ? -1 : 1) * compare(a.cells[place].textContent, b.cells[place].textContent));
  body.append(...rows);
}));
"""
