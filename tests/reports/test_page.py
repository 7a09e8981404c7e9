"""The page design that all reports share."""

from __future__ import annotations

import pytest

from lengthwise.reports.page import COLOURS, Figure, Origin, colours, command_line, html_page
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
    assert '"name": "<\\/script>"' in page
    assert "<h2>a&lt;b</h2>" in page


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
