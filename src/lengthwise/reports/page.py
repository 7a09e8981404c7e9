"""The one design of all HTML reports: verdict, origin, figures, tables, how to rerun. Nothing is fetched."""

from __future__ import annotations

import base64
import html
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from lengthwise.errors import InputError
from lengthwise.reports.overlaps import panel_title, with_overlaps_shown, without_tags
from lengthwise.reports.tables import Table, to_json
from lengthwise.reports.verdict import Verdict
from lengthwise.version import install_line, package_version

if TYPE_CHECKING:
    from jinja2 import Environment

    from lengthwise.intervals import Ratio  # it loads SciPy, which takes longer than most commands

_SECRET: Final = ("--api-key", "--token")
_STATIC: Final = Path(__file__).parent / "static"
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

    @property
    def plotly(self) -> dict[str, Any]:
        """Traces and layout for Plotly, which would read tags in the names of series and rows: they are escaped."""
        data = [{key: _escaped(value) if key in _NAMES else value for key, value in each.items()} for each in self.data]
        layout = {"height": self.height, **self.layout}
        for name, axis in self.layout.items():
            if isinstance(axis, dict) and "categoryarray" in axis:
                layout[name] = {**axis, "categoryarray": _escaped(axis["categoryarray"])}
        return {"data": data, "layout": layout}


_NAMES: Final = ("name", "x", "y")  # fields of a trace that may hold names


def _escaped(value: Any) -> Any:
    """Return a text, or the texts of a sequence, without tags of their own; numbers are left as they are."""
    if isinstance(value, str):
        return html.escape(value, quote=False)
    if isinstance(value, (list, tuple)):
        return [_escaped(each) for each in value]
    return value


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
    return (
        html_templates()
        .get_template("page.html")
        .render(
            title=title,
            tables=tables,
            verdict=verdict,
            origin=origin,
            install_line=install_line("all", here=False),
            figures=[replace(figure, data=with_overlaps_shown(figure.data, figure.layout)) for figure in figures],
            pictures=pictures or {},
        )
    )


def table_html(table: Table) -> str:
    """Return one table with its title and notes."""
    return html_templates().get_template("table.html").render(table=table)


@cache
def html_templates() -> Environment:
    """Return the templates of pages, in which what is shown is escaped; raises InputError without Jinja2."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined  # loaded for a page only
        from markupsafe import Markup
    except ModuleNotFoundError as error:
        raise InputError("HTML reports need Jinja2, which is not installed", hint=f"run: {install_line()}") from error
    templates = Environment(
        loader=PackageLoader("lengthwise.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # `tojson` escapes what could end a script.
    templates.policies |= {"json.dumps_function": to_json, "json.dumps_kwargs": {"indent": None}}

    def static(name: str) -> Markup:
        return Markup((_STATIC / name).read_text(encoding="utf-8"))  # noqa: S704  (a file of ours)

    def packed(name: str) -> str:
        return base64.b64encode((_STATIC / name).read_bytes()).decode()

    templates.globals |= {"numbers_of": numbers_of, "static": static, "packed": packed}
    return templates


def numbers_of(figure: Figure) -> list[str]:
    """Return what a figure shows as text: a line for each trace, with its points or, of many, some of them."""
    lines = []
    for number, trace in enumerate(figure.data):
        if trace.get("hoverinfo") == "skip" or "x" not in trace or "y" not in trace:
            continue
        name = trace.get("name") or f"series {number + 1}"
        above = panel_title(figure.layout, str(trace.get("xaxis", "x")))
        x, y = (_axis_title(figure.layout, str(trace.get(f"{side}axis", side))) for side in "xy")
        what = ", ".join(filter(None, (above, name)))
        if trace.get("type") == "heatmap":
            lines.append(f"{what}: {x} from {_ends(trace['x'])}, {y} from {_ends(trace['y'])}")
            continue
        step = -(-len(trace["x"]) // _MAX_POINTS) or 1
        points = "; ".join(_point(trace, at) for at in range(0, len(trace["x"]), step))
        axes_read = " by ".join(filter(None, (y, x)))
        lines.append(f"{what}{f' ({axes_read})' if axes_read else ''}: {points or 'nothing'}")
    return lines


def _point(trace: Mapping[str, Any], at: int) -> str:
    """Return a point as text: a number with its interval after the place, or after the name of a row."""
    x, y = trace["x"][at], trace["y"][at]
    place, value, error = (y, x, trace.get("error_x")) if isinstance(y, str) else (x, y, trace.get("error_y"))
    text = f"{_plain(place)}: {_plain(value)}"
    if not error:
        return text
    return f"{text} [{_plain(value - error['arrayminus'][at])}, {_plain(value + error['array'][at])}]"


def _ends(values: Sequence[Any]) -> str:
    known = list(values)
    return f"{_plain(min(known))} to {_plain(max(known))}" if known else "nothing"


def _axis_title(layout: Mapping[str, Any], name: str) -> str:
    return without_tags(layout.get(f"{name[0]}axis{name[1:]}", {}).get("title", {}).get("text", ""))


def _plain(value: object) -> str:
    if isinstance(value, float):
        return "nothing" if math.isnan(value) else f"{value:.3g}"
    return str(value)


_MAX_POINTS: Final = 8
"""Points of a trace that are stated in words."""
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
