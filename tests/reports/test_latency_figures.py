"""Figures of compared runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.intervals import Ratio
from lengthwise.reports.latency_figures import (
    figures,
    latency_by_length,
    latency_by_load,
    latency_over_time,
    ratio_intervals,
)
from lengthwise.reports.page import BASELINE_COLOUR, Figure
from lengthwise.reports.runs import ReportedRun
from lengthwise.reports.tables import to_json
from lengthwise.simulator.grid import USUAL_ROUTER
from tests.reports.builders import FCFS, GOOD, ONE, run


@pytest.mark.parametrize("draw", [latency_by_length, latency_over_time, ratio_intervals, latency_by_load])
@pytest.mark.parametrize("runs", [[FCFS, GOOD], [GOOD], [FCFS, GOOD, run("fcfs", ONE, predictor=None, load=1.1)]])
def test_plotly_accepts_every_figure(draw: Callable[[Sequence[ReportedRun]], Figure], runs: list[ReportedRun]) -> None:
    figure = draw(runs)
    data, layout = json.loads(to_json(figure.data)), json.loads(to_json(figure.layout))
    go.Figure({"data": data, "layout": layout})  # raises on a name or a value that Plotly does not know
    for trace in data:
        assert any(value is not None for value in trace["y"])
        assert f"xaxis{trace['xaxis'].removeprefix('x')}" in layout


@given(st.floats(0.99, 1.01), st.floats(0.0, 0.01))
def test_an_axis_of_ratios_has_a_minimum_range(middle: float, half: float) -> None:
    noisy = run("sjf", Ratio(middle, middle - half, middle + half))
    ends = ratio_intervals([FCFS, noisy]).layout["xaxis"]["range"]
    assert 10 ** ends[0] <= 0.8
    assert 10 ** ends[1] >= 1.25


@given(st.floats(0.01, 100.0))
def test_an_axis_of_ratios_holds_every_interval(middle: float) -> None:
    wide = run("sjf", Ratio(middle, middle / 2, middle * 2))
    ends = ratio_intervals([FCFS, wide]).layout["xaxis"]["range"]
    assert 10 ** ends[0] < middle / 2 < middle * 2 < 10 ** ends[1]


def test_a_policy_has_one_colour_in_every_figure_and_fcfs_is_grey() -> None:
    colours: dict[str, set[str]] = {}
    for runs in ([FCFS, GOOD], [GOOD, run("sjf", ONE), FCFS], [FCFS, GOOD, run("fcfs", ONE, predictor=None, load=1.1)]):
        for figure in figures(runs):
            for trace in figure.data:
                colours.setdefault(trace["name"].split(",")[0], set()).add(trace["line"]["color"])
    assert {name: len(found) for name, found in colours.items()} == {"fcfs": 1, "lengthwise": 1, "sjf": 1}
    assert colours["fcfs"] == {"#848d97"}


def test_only_the_baseline_is_grey() -> None:
    base, other, third = (replace(FCFS, router=router) for router in ("least_load", "lengthwise", USUAL_ROUTER))
    better = [replace(each, over_fcfs=GOOD.over_fcfs) for each in (other, third)]
    drawn = {trace["name"]: trace["line"]["color"] for trace in latency_by_length([base, *better]).data}
    assert [name for name, colour in drawn.items() if colour == BASELINE_COLOUR] == ["fcfs behind least_load"]
    assert len(set(drawn.values())) == 3
