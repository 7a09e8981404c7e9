"""Series that coincide are both seen, and the legend says so."""

from __future__ import annotations

import math
from typing import Any

from lengthwise.reports.overlaps import with_overlaps_shown
from lengthwise.reports.page import Figure, axes, axis, html_page, panel, tokens_axis

TWO = axes([(axis("load"), axis("seconds"))] * 2, columns=2, titles=["mean", "p99"])


def series(name: str, y: list[float], place: int = 0, **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": name, "x": [*range(len(y))], "y": y, **panel(place), **more}


def names(data: list[dict[str, Any]]) -> list[str]:
    return [trace["name"] for trace in data]


def widths(data: list[dict[str, Any]]) -> list[float | None]:
    return [trace.get("line", {}).get("width") for trace in data]


def test_of_lines_that_coincide_the_later_is_narrower_and_the_legend_says_so() -> None:
    shown = with_overlaps_shown([series("fcfs", [1.0, 2.0]), series("sjf", [1.0, 2.0]), series("tie", [1.0, 9.0])], {})
    assert names(shown) == ["fcfs", "sjf (coincides with fcfs)", "tie"]
    assert widths(shown) == [6.0, 2.0, None]


def test_each_of_several_lines_is_narrower_than_the_one_below_it() -> None:
    shown = with_overlaps_shown([series(name, [1.0, 2.0]) for name in "abc"], {})
    assert names(shown) == ["a", "b (coincides with a)", "c (coincides with a)"]
    assert widths(shown) == [10.0, 6.0, 2.0]


def test_marks_differ_in_size_and_keep_colour_and_dashes() -> None:
    style: dict[str, Any] = {"line": {"dash": "dot"}, "marker": {"color": "red", "size": 8}, "mode": "lines+markers"}
    first, second = with_overlaps_shown([series(name, [1.0, 2.0], **style) for name in "ab"], {})
    assert first["marker"] == {"color": "red", "size": 13.0}
    assert second["marker"] == {"color": "red", "size": 8.0}
    assert first["line"] == {"dash": "dot", "width": 6.0}


def test_a_panel_is_named_where_lines_coincide_in_that_one_only() -> None:
    data = [series("fcfs", [1.0, 2.0]), series("fcfs", [1.0, 2.0], 1)]
    data += [series("sjf", [1.0, 2.0]), series("sjf", [3.0, 4.0], 1)]
    shown = with_overlaps_shown(data, TWO)
    assert names(shown)[2:] == ["sjf (coincides with fcfs in mean)"] * 2
    assert widths(shown) == [6.0, None, 2.0, None]
    same = with_overlaps_shown([*data[:3], series("sjf", [1.0, 2.0], 1)], TWO)
    assert names(same)[2:] == ["sjf (coincides with fcfs)"] * 2


def test_lines_coincide_where_no_reader_could_tell_them_apart() -> None:
    near, far = series("near", [1.0, 99.9]), series("far", [1.0, 97.0])
    assert names(with_overlaps_shown([series("a", [1.0, 100.0]), near, far], {}))[1:] == [
        "near (coincides with a)",
        "far",
    ]
    logarithmic = {"xaxis": axis(""), "yaxis": tokens_axis("")}  # there 1 and 1.1 are far apart
    low = [series("a", [1.0, 100.0]), series("b", [1.1, 100.0])]
    assert names(with_overlaps_shown(low, logarithmic)) == ["a", "b"]
    assert names(with_overlaps_shown(low, {})) == ["a", "b (coincides with a)"]


def test_a_fixed_axis_sets_what_is_near() -> None:
    data = [series("a", [0.50, 0.51]), series("b", [0.50, 0.512])]
    assert names(with_overlaps_shown(data, {})) == ["a", "b"]
    assert names(with_overlaps_shown(data, {"yaxis": {"range": [0, 1]}})) == ["a", "b (coincides with a)"]


def test_gaps_and_lengths_must_be_the_same() -> None:
    data = [series("a", [1.0, math.nan, 3.0]), series("b", [1.0, math.nan, 3.0]), series("c", [1.0, 3.0])]
    assert names(with_overlaps_shown(data, {})) == ["a", "b (coincides with a)", "c"]


def test_marks_in_rows_of_names_coincide_in_the_same_row_only() -> None:
    rows = [{**series(name, [0.0]), "x": [0.8], "y": [row]} for name, row in (("a", "r"), ("b", "r"), ("c", "s"))]
    assert names(with_overlaps_shown(rows, {})) == ["a", "b (coincides with a)", "c"]


def test_lines_for_orientation_areas_and_bars_are_left_as_they_are() -> None:
    data = [
        series("a", [1.0, 2.0]),
        series("equal", [1.0, 2.0], hoverinfo="skip"),
        series("area", [1.0, 2.0], fill="tonexty"),
        {**series("bar", [1.0, 2.0]), "type": "bar"},
        {"type": "scatter", "x": [0, 1], "y": [1.0, 2.0]},
    ]
    assert with_overlaps_shown(data, {}) == data


def test_the_page_says_it_in_the_legend_and_in_the_text_alternative() -> None:
    page = html_page("t", [], figures=[Figure("f", "", [series("fcfs", [1.0]), series("sjf", [1.0])], {})])
    assert '"name": "sjf (coincides with fcfs)"' in page
    assert "<li>sjf (coincides with fcfs): 0: 1</li>" in page
