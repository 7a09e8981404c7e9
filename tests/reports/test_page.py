"""The page design that all reports share."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import lengthwise
from lengthwise.cli.output import need_report
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio
from lengthwise.reports import page as page_module
from lengthwise.reports.page import (
    COLOURS,
    Document,
    Figure,
    Origin,
    axes,
    axis,
    colours,
    command_line,
    html_page,
    html_templates,
    interval_bars,
    numbers_of,
    panel,
    ratio_axis,
    table_html,
    tokens_axis,
)
from lengthwise.reports.tables import Table
from lengthwise.reports.verdict import Verdict

ORIGIN = Origin("lengthwise simulate castillo", "0.1.0", "2026-01-01 00:00 UTC", "8 cores", "3")


def test_the_page_has_verdict_origin_figures_tables_and_the_command_in_this_order() -> None:
    page = html_page(
        "w on f",
        [Table("Numbers", ("a",), [["1"]])],
        verdict=Verdict("It helps."),
        origin=ORIGIN,
        figures=[Figure("Chart", "", [], {})],
    )
    places = [
        page.index(text)
        for text in ("<h1>It helps.</h1>", "2026-01-01", "<h2>Chart</h2>", "<h2>Numbers</h2>", "How to run it again")
    ]
    assert places == sorted(places)
    assert all(text in page for text in ("lengthwise 0.1.0", "<dt>Seed</dt><dd>3", "8 cores", 'name="viewport"'))
    assert "prefers-color-scheme: dark" in page


def test_names_are_escaped_and_cannot_end_the_script() -> None:
    page = html_page("x", [], figures=[Figure("a<b", "", [{"type": "scatter", "name": "</script>"}], {})])
    (data,) = re.findall(r'data-figure="figure0">(.*?)</script>', page)
    assert json.loads(data)["data"] == [{"type": "scatter", "name": "&lt;/script&gt;"}]
    assert "<h2>a&lt;b</h2>" in page


def test_tags_in_the_names_of_series_and_rows_are_text_to_plotly_and_its_own_are_kept() -> None:
    layout = {"yaxis": {"categoryarray": ["<i>row</i>"]}, "annotations": [{"text": "<b>title</b>"}], "height": 7}
    trace = {"name": "<b>a</b>", "x": [1.5], "y": ["<i>row</i>"], "hovertemplate": "%{x}<br>"}
    assert Figure("", "", [trace], layout).plotly == {
        "data": [
            {"name": "&lt;b&gt;a&lt;/b&gt;", "x": [1.5], "y": ["&lt;i&gt;row&lt;/i&gt;"], "hovertemplate": "%{x}<br>"}
        ],
        "layout": {**layout, "yaxis": {"categoryarray": ["&lt;i&gt;row&lt;/i&gt;"]}},
    }


def test_without_jinja_the_error_names_it_before_any_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    html_templates.cache_clear()
    need_report(None)
    with pytest.raises(InputError, match="HTML reports need Jinja2, which is not installed; run: pip install"):
        need_report(tmp_path / "report.html")


@pytest.mark.parametrize(
    "options",
    [
        ["--api-key", "sk-1"],
        ["--api-key=sk-1"],
        ["--token", "sk-1"],
        ["--token=sk-1"],
        ["--url", "http://me:sk-1@host"],
    ],
)
def test_secrets_are_not_in_the_command(options: list[str]) -> None:
    shown = command_line(["lengthwise", "bench", *options, "--seed", "1"])
    assert "sk-1" not in shown
    assert shown.endswith("--seed 1")


def test_a_policy_has_the_same_colour_in_every_comparison() -> None:
    first, second = colours(["fcfs", "tie", "mine"]), colours(["sjf", "tie", "lengthwise"])
    assert first["tie"] == second["tie"]
    assert colours(["mine"]) == {"mine": colours(["mine", "other"])["mine"]}
    assert first["fcfs"] == COLOURS[0]


def test_names_in_one_figure_differ_in_colour() -> None:
    names = ["fcfs", "lengthwise", *(f"fcfs behind router{i}" for i in range(8))]
    assert len(set(colours(names).values())) == len(names)


def test_titles_cells_notes_and_origin_are_escaped() -> None:
    table = Table("<t>", ("<c>",), [["<r>"]], ["<n>"])
    origin = Origin("lengthwise <x>", "0.1.0", "today", "<cpu>")
    page = html_page("<title>", [table], verdict=Verdict("<v>.", ("<d>.",)), origin=origin)
    for name in ("t", "c", "r", "n", "x", "cpu", "v", "d"):
        assert f"&lt;{name}&gt;" in page
        assert f"<{name}>" not in page
    assert "<title>&lt;title&gt;</title>" in page


def test_the_sentences_after_the_headline_are_a_lead() -> None:
    page = html_page("x", [], verdict=Verdict("It helps.", ("By 20 %.", "At a price.")))
    assert '<h1>It helps.</h1>\n<p class="lead">By 20 %. At a price.</p>' in page
    assert '<p class="subject">x</p>' in page


def test_a_page_without_verdict_opens_with_its_title_and_without_figures_has_no_plotly() -> None:
    page = html_page("Only a title", [Table("Empty", ("a", "b"), [])])
    assert "<h1>Only a title</h1>" in page
    assert 'class="subject"' not in page
    assert "How to run it again" not in page
    assert "<tbody>\n</tbody>" in page
    assert len(page) < 20_000


def test_a_page_with_figures_is_small() -> None:
    page = html_page("x", [], figures=[Figure("Chart", "", [{"x": [1], "y": [2]}], {})])
    assert len(page.encode()) < 1_500_000


def test_plotly_is_in_the_page_with_its_licence_and_draws_all_that_reports_use() -> None:
    page = html_page("x", [], figures=[Figure("Chart", "", [], {})])
    packed = page.partition('id="plotly">')[2].partition("</script>")[0]
    script = gzip.decompress(base64.b64decode(packed)).decode()
    assert "Licensed under the MIT license" in script[:300]
    assert all(kind in script for kind in ("scatter", "bar", "heatmap"))
    assert "MIT License" in (Path(page_module.__file__).parent / "static" / "plotly-cartesian.LICENSE").read_text()


def test_a_figure_is_stated_in_numbers_with_panels_axes_and_intervals() -> None:
    layout = axes([(axis("load"), axis("seconds")), (axis(""), axis(""))], columns=2, titles=["mean", "over fcfs"])
    bars = interval_bars([Ratio(0.8, 0.7, 0.9)])
    data: list[dict[str, Any]] = [
        {"name": "sjf", "x": [0.7, 1.4], "y": [1.5, math.nan], **panel(0)},
        {"name": "sjf", "x": [0.8], "y": ["load 0.70"], "error_x": bars, **panel(1)},
        {"x": [0, 1], "y": [0, 1], "hoverinfo": "skip"},
        {"type": "heatmap", "name": "answers", "x": [1, 10], "y": [2, 20], "z": [[0, 1], [1, 0]]},
    ]
    assert numbers_of(Figure("f", "", data, layout)) == [
        "mean, sjf (seconds by load): 0.7: 1.5; 1.4: nothing",
        "over fcfs, sjf: load 0.70: 0.8 [0.7, 0.9]",
        "mean, answers: load from 1 to 10, seconds from 2 to 20",
    ]


def test_a_long_line_is_stated_by_some_of_its_points() -> None:
    (line,) = numbers_of(Figure("f", "", [{"x": list(range(1000)), "y": list(range(1000))}], {}))
    assert line.startswith("series 1: 0: 0; 125: 125")
    assert line.count(";") == 7


def test_a_figure_names_its_numbers_for_screen_readers_and_escapes_them() -> None:
    page = html_page("x", [], figures=[Figure("Chart", "", [{"name": "<b>", "x": [1], "y": [2]}], {})])
    assert 'aria-describedby="figure0-numbers"' in page
    assert '<figcaption id="figure0-numbers">' in page
    assert "<li>&lt;b&gt;: 1: 2</li>" in page


def test_a_document_makes_its_figures_only_for_a_page() -> None:
    made: list[str] = []

    def figures() -> list[Figure]:
        made.append("figure")
        return [Figure("Chart", "", [], {})]

    document = Document("t", [], {}, Verdict("It helps."), figures)
    assert made == []
    assert "<h2>Chart</h2>" in document.html()
    assert made == ["figure"]


def test_pictures_are_embedded_with_their_title() -> None:
    assert '<img alt="a&lt;b" src="data:image/png;base64,QUJD">' in html_page("x", [], pictures={"a<b": "QUJD"})


def test_a_row_that_begins_a_section_has_a_rule() -> None:
    shown = table_html(Table("t", ("a",), [["1"], ["2"]], rule_before=frozenset({1})))
    assert shown.count('<tr class="rule">') == 1
    assert shown.index("<td>1</td>") < shown.index('<tr class="rule"><td>2</td>')


def test_panels_have_an_axis_and_a_title_each() -> None:
    layout = axes([(axis("x"), axis("y"))] * 3, columns=2, titles=["a<b", "c", "d"])
    assert layout["grid"] == {"rows": 2, "columns": 2, "pattern": "independent"}
    assert {"xaxis", "xaxis2", "xaxis3", "yaxis", "yaxis2", "yaxis3"} <= set(layout)
    assert layout["annotations"][0]["text"] == "<b>a&lt;b</b>"
    assert [panel(place) for place in (0, 2)] == [{"xaxis": "x", "yaxis": "y"}, {"xaxis": "x3", "yaxis": "y3"}]


def test_an_axis_of_ratios_without_values_shows_the_least_range() -> None:
    ends = ratio_axis("", [math.nan, 0.0])["range"]
    assert [10**end for end in ends] == pytest.approx([0.8 / 1.05, 1.25 * 1.05])


def test_an_axis_of_many_ratios_has_few_ticks() -> None:
    assert len(ratio_axis("", [0.03, 30.0])["tickvals"]) <= 9
    assert ratio_axis("", [1.0])["ticktext"] == ["0.8", "0.9", "1", "1.1", "1.25"]


def test_an_axis_of_tokens_has_whole_numbers() -> None:
    assert tokens_axis("tokens")["ticktext"][:10] == ["1", "2", "5", "10", "20", "50", "100", "200", "500", "1,000"]


def test_bars_reach_from_low_to_high() -> None:
    bars = interval_bars([Ratio(1.0, 0.75, 1.5)])
    assert (bars["array"], bars["arrayminus"]) == ([0.5], [0.25])


def test_the_origin_of_a_result_of_this_process_names_version_machine_and_seed() -> None:
    origin = Origin.here(seed=3, command="lengthwise simulate")
    assert (origin.command, origin.version, origin.seed) == ("lengthwise simulate", lengthwise.__version__, "3")
    assert "cores" in origin.hardware
    assert origin.date.endswith(" UTC")
