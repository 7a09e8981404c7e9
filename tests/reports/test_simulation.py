from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache

import plotly.graph_objects as go
import pytest

from lengthwise.reports.page import Figure, html_page
from lengthwise.reports.simulation import (
    cdfs,
    html_report,
    latency_against_load,
    length_heatmap,
    mean_against_tail,
    multiple,
    over_time,
    seconds,
    tables,
    waiting_by_length,
)
from lengthwise.reports.tables import to_json
from lengthwise.simulator.grid import Grid, Plan, run_grid
from lengthwise.simulator.paired import Ratio
from lengthwise.workloads import redraw
from tests.simulator.builders import UNEVEN, fleet, requests

FIGURES = (latency_against_load, mean_against_tail, cdfs, over_time, length_heatmap, waiting_by_length)


@cache
def grid(*, policies: tuple[str, ...] = ("fcfs", "sjf"), predictors: tuple[str, ...] = ("none", "oracle")) -> Grid:
    source = requests([(8, 3), (8, 40), (8, 12), (8, 90)] * 15)
    plan = Plan(fleet(UNEVEN, engines=2, seqs=2), policies, predictors, loads=(0.7, 1.4), seeds=(0, 1))
    return run_grid(plan, lambda seed: redraw(source, requests=60, rate=1.0, seed=seed))


def test_a_row_per_level_policy_and_predictor_in_every_table() -> None:
    for table in tables(grid()):
        assert list(table.columns[:3]) == ["policy", "predictor", "load"]
        assert [tuple(row[:3]) for row in table.rows] == [
            (*pair, load)
            for load in ("0.70", "1.40")
            for pair in (("fcfs", ""), ("sjf", "none"), ("sjf", "oracle (TRUE LENGTHS)"))
        ]
        assert table.rule_before == {3}
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_what_is_the_same_everywhere_is_in_the_title() -> None:
    table = tables(grid(predictors=("oracle",)))[-1]
    assert list(table.columns[:2]) == ["policy", "load"]
    assert table.title.endswith("predictions oracle (TRUE LENGTHS)")
    assert not any("gain" in column for column in table.columns)


def test_the_load_is_given_with_all_that_it_depends_on() -> None:
    notes = " ".join(tables(grid())[-1].notes)
    assert "n 60, slots 4, 2 seeds from 0, run to drain" in notes
    assert "possible under backlog (FCFS, round robin)" in notes


def test_without_fcfs_the_table_says_why_there_are_no_ratios() -> None:
    table = tables(grid(policies=("sjf",)))[-1]
    assert "fcfs is not among the policies" in table.notes[0]
    assert table.rows[0][3] == "–"


def test_a_note_says_where_hardly_any_request_waits() -> None:
    source = requests([(8, 3), (8, 40)] * 15)
    idle = run_grid(
        Plan(fleet(UNEVEN, seqs=8), ["fcfs", "sjf"], ["oracle"], rates=[0.01]),
        lambda seed: redraw(source, requests=20, rate=1.0, seed=seed),
    )
    assert any("Hardly any request waits at load 0.00" in note for note in tables(idle)[-1].notes)
    assert not any("Hardly any request" in note for note in tables(grid())[-1].notes if "1.40" in note)


def test_figures_read_well() -> None:
    assert [seconds(value) for value in (0.0123, 12.3, math.nan)] == ["12.3 ms", "12.30 s", "–"]
    assert multiple(Ratio(0.5, 0.4, 0.6)) == "0.500 [0.400, 0.600]"
    assert multiple(Ratio(1.0, 1.0, 1.0)) == "1"
    assert multiple(Ratio(0.9, 0.9, 0.9)) == "0.900 [0.900, 0.900]"
    assert multiple(Ratio.none()) == "–"


@pytest.mark.parametrize("draw", FIGURES)
@pytest.mark.parametrize("policies", [("fcfs", "sjf"), ("sjf",)])
def test_plotly_accepts_every_figure_and_each_holds_numbers(
    draw: Callable[[Grid], Figure], policies: tuple[str, ...]
) -> None:
    figure = draw(grid(policies=policies))
    data, layout = json.loads(to_json(figure.data)), json.loads(to_json(figure.layout))
    go.Figure({"data": data, "layout": layout})  # raises on a name or a value that Plotly does not know
    for trace in data:
        assert any(value is not None for value in trace["y"])
        assert f"xaxis{trace['xaxis'].removeprefix('x')}" in layout


def test_the_heatmap_counts_every_request_once_for_each_policy() -> None:
    for trace in json.loads(to_json(length_heatmap(grid()).data)):
        assert sum(share for row in trace["z"] for share in row if share is not None) == pytest.approx(1.0)


def test_the_fuller_a_cell_of_the_heatmap_the_darker_it_is() -> None:
    shades = [colour for _, colour in length_heatmap(grid()).layout["coloraxis"]["colorscale"]]
    light = [sum(int(shade[i : i + 2], 16) for i in (1, 3, 5)) for shade in shades]
    assert light == sorted(light, reverse=True)


def test_a_batch_has_no_load_to_speak_of() -> None:
    batch = requests([(8, 3), (8, 40), (8, 12)] * 5).replace(arrival_s=[0.0] * 15)
    found = run_grid(Plan(fleet(UNEVEN, seqs=2), ["fcfs", "sjf"], ["oracle"]), lambda _: batch)
    assert length_heatmap(found).text.startswith("All at once, predictions oracle (TRUE LENGTHS).")


def test_every_point_of_mean_against_tail_lies_inside_its_panel() -> None:
    figure = mean_against_tail(grid())
    for trace in figure.data:
        for side in ("x", "y"):
            low, high = figure.layout[f"{side}axis{trace[f'{side}axis'].removeprefix(side)}"]["range"]
            assert low < trace[side][0] < high


def test_the_queue_over_time_is_longer_under_fcfs_and_empty_in_the_end() -> None:
    fcfs, sjf = (trace for trace in json.loads(to_json(over_time(grid()).data)) if trace["yaxis"] == "y")
    assert fcfs["name"] == "fcfs"
    assert max(fcfs["y"]) > 0
    assert sjf["y"][-1] == fcfs["y"][-1] == 0


def test_the_page_needs_nothing_else() -> None:
    page = html_report(grid())
    assert page.count("Plotly.newPlot(") >= len(FIGURES)
    assert "<script src" not in page
    assert "<h2>Waiting time by predicted length</h2>" in page
    assert "gain captured" in page


def test_a_name_cannot_end_the_script() -> None:
    page = html_page("x", [], figures=[Figure("a<b", "", [{"type": "scatter", "name": "</script>"}], {})])
    assert '"name": "<\\/script>"' in page
    assert "<h2>a&lt;b</h2>" in page
