"""Series of a figure that coincide: drawn so that each is seen, and named in the legend."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import unescape
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Trace = Mapping[str, Any]
Panel = tuple[str, str]
"""The axes of a trace: x and y."""

_NEAR: Final = 0.005
"""Share of a panel's width and height within which two points are drawn over each other."""
_LINE_PX, _MARKER_PX = 2.0, 6.0  # Plotly's own
_LINE_STEP_PX, _MARKER_STEP_PX = 4.0, 5.0
_MAX_STEPS: Final = 4


def with_overlaps_shown(data: Sequence[Trace], layout: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the traces of a figure; those that coincide in a panel get narrower in the order in which they are drawn.

    So each is seen inside the one below it, whatever its colour and dashes. The name of a later one, in the legend and
    everywhere else, says with which it coincides, and in which panels unless it is in all.
    """
    shown = [dict(trace) for trace in data]
    drawn: dict[str, set[Panel]] = {}  # panels by name
    for trace in filter(_is_series, data):
        drawn.setdefault(trace["name"], set()).add(_panel(trace))
    covered: dict[str, dict[str, set[Panel]]] = {}  # panels by name and the name below it
    for group in _groups(data, layout):
        first = data[group[0]]
        for step, place in enumerate(reversed(group)):
            _widen(shown[place], min(step, _MAX_STEPS))
        for place in group[1:]:
            covered.setdefault(data[place]["name"], {}).setdefault(first["name"], set()).add(_panel(first))
    for trace in shown:
        if trace.get("name") in covered:
            name = trace["name"]
            parts = [
                f"{below}{'' if panels == drawn[name] else _in_panels(panels, layout)}"
                for below, panels in covered[name].items()
            ]
            trace["name"] = f"{name} (coincides with {', '.join(parts)})"
    return shown


def _groups(data: Sequence[Trace], layout: Mapping[str, Any]) -> list[list[int]]:
    """Return the places of traces that coincide, in the order in which they are drawn; none of a single trace."""
    groups: list[list[int]] = []
    for place, trace in enumerate(data):
        if not _is_series(trace):
            continue
        spans = {side: _span(data, layout, _panel(trace), side) for side in "xy"}
        for group in groups:
            first = data[group[0]]
            others = {data[each]["name"] for each in group}
            if (
                _panel(first) == _panel(trace)
                and trace["name"] not in others
                and _coincide(first, trace, spans, layout)
            ):
                group.append(place)
                break
        else:
            groups.append([place])
    return [group for group in groups if len(group) > 1]


def _is_series(trace: Trace) -> bool:
    """Whether a trace is lines or marks with a name; not a bar, an area or a line for orientation."""
    plain = trace.get("type", "scatter") == "scatter" and "fill" not in trace and trace.get("hoverinfo") != "skip"
    return plain and bool(trace.get("name")) and len(trace.get("x", ())) > 0


def _panel(trace: Trace) -> Panel:
    return str(trace.get("xaxis", "x")), str(trace.get("yaxis", "y"))


def _coincide(one: Trace, other: Trace, spans: Mapping[str, float], layout: Mapping[str, Any]) -> bool:
    for side, span in spans.items():
        a, b = (_positions(trace, layout, side) for trace in (one, other))
        if a is None or b is None:
            if list(one[side]) != list(other[side]):
                return False
        elif a.shape != b.shape or not np.allclose(a, b, rtol=0.0, atol=_NEAR * span, equal_nan=True):
            return False
    return True


def _span(data: Sequence[Trace], layout: Mapping[str, Any], panel: Panel, side: str) -> float:
    """Return the width or height of a panel in the units of its axis."""
    axis = _axis(layout, panel[side == "y"])
    if "range" in axis:
        return float(abs(axis["range"][1] - axis["range"][0]))
    here = [_positions(trace, layout, side) for trace in data if _is_series(trace) and _panel(trace) == panel]
    known = [found[np.isfinite(found)] for found in here if found is not None]
    if axis.get("rangemode") == "tozero":
        known.append(np.zeros(1))
    values = np.concatenate(known) if known else np.zeros(0)
    return float(np.ptp(values)) if len(values) else 0.0


def _positions(trace: Trace, layout: Mapping[str, Any], side: str) -> NDArray[np.float64] | None:
    """Return where the points of a trace are on an axis; None on an axis of names."""
    if any(isinstance(value, str) for value in trace[side]):
        return None
    values = np.array([np.nan if value is None else value for value in trace[side]], np.float64)
    if _axis(layout, _panel(trace)[side == "y"]).get("type") != "log":
        return values
    return np.log10(values, out=np.full(len(values), np.nan), where=values > 0)


def _axis(layout: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = layout.get(f"{name[0]}axis{name[1:]}", {})
    return found


def _widen(trace: dict[str, Any], steps: int) -> None:
    mode = trace.get("mode", "lines+markers")
    if "lines" in mode:
        line = trace.get("line", {})
        trace["line"] = {**line, "width": line.get("width", _LINE_PX) + _LINE_STEP_PX * steps}
    if "markers" in mode:
        marker = trace.get("marker", {})
        trace["marker"] = {**marker, "size": marker.get("size", _MARKER_PX) + _MARKER_STEP_PX * steps}


def _in_panels(panels: set[Panel], layout: Mapping[str, Any]) -> str:
    titles = [panel_title(layout, x) for x, _ in sorted(panels)]
    return f" in {' and '.join(titles)}" if all(titles) else ""


def panel_title(layout: Mapping[str, Any], axis_name: str) -> str:
    """Return the title above the panel of an x axis; empty if it has none."""
    titles = [each for each in layout.get("annotations", ()) if each.get("xref") == f"{axis_name} domain"]
    return without_tags(titles[0].get("text", "")) if titles else ""


def without_tags(text: str) -> str:
    """Return a text of Plotly, whose tags set how it looks, as plain text."""
    return unescape(re.sub(r"<[^>]+>", " ", text)).strip()
