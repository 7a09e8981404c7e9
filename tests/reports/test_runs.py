"""Compared runs: the verdict and the figures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.intervals import Ratio
from lengthwise.reports.page import BASELINE_COLOUR, Figure
from lengthwise.reports.runs import (
    ReportedRun,
    figures,
    judge,
    latency_by_length,
    latency_by_load,
    latency_over_time,
    pooled,
    price,
    ratio_intervals,
    verdict,
)
from lengthwise.reports.tables import to_json
from lengthwise.simulator.grid import USUAL_ROUTER
from lengthwise.simulator.metrics import LatencyProfile

ONE = Ratio(1.0, 1.0, 1.0)
BASE_E2E = tuple(float(each) for each in range(1, 11))


def run(
    policy: str, mean: Ratio, tail: float = 1.0, *, predictor: str | None = "fast", load: float = 0.9, short: float = 1
) -> ReportedRun:
    e2e = (short * BASE_E2E[0], *BASE_E2E[1:])
    return ReportedRun(
        policy,
        predictor,
        level=f"load {load:.2f}",
        load=load,
        latency={name: {"mean": 10 * mean.ratio, "p99": 30 * tail} for name in ("ttft_s", "e2e_s")},
        over_fcfs={"e2e_mean": mean, "e2e_p99": Ratio(tail, tail, tail), "ttft_mean": mean},
        profile=LatencyProfile(BASE_E2E, e2e, (1.0, 2.0), (3.0, 0.0), (4.0, math.nan)),
    )


FCFS = run("fcfs", ONE, predictor=None)
GOOD = run("lengthwise", Ratio(0.6, 0.55, 0.66), 1.05, short=0.25)


def test_the_verdict_names_gain_interval_tail_and_latency_by_length() -> None:
    assert verdict([FCFS, GOOD]) == (
        "lengthwise with the predictor fast lowers mean E2E by 40 % against fcfs at load 0.90 "
        "(95 % interval -45 % to -34 %). "
        "p99 E2E is 1.05 times that of fcfs. "
        "The shortest tenth of answers takes 0.25 times as long as under fcfs, the longest 1.00 times."
    )


@pytest.mark.parametrize(
    ("runs", "begins"),
    [
        ([FCFS, run("sjf", Ratio(0.99, 0.95, 1.02))], "No difference beyond noise at load 0.90"),
        ([FCFS, run("sjf", Ratio(1.2, 1.1, 1.3))], "Nothing is better than fcfs at load 0.90"),
        ([FCFS, run("sjf", Ratio(0.5, 0.4, 0.6), predictor="oracle")], "With TRUE LENGTHS, which no server has: sjf"),
        (
            [FCFS, GOOD, run("sjf", Ratio(0.5, 0.4, 0.6), predictor="oracle")],
            "lengthwise with the predictor fast lowers",
        ),
        ([FCFS, run("sjf", Ratio(0.5, 0.4, 0.6), 3.0), GOOD], "lengthwise with the predictor fast lowers"),
        ([FCFS], "Mean E2E of fcfs is 10.00 s at load 0.90; nothing is compared"),
        ([ReportedRun("sjf", latency={"e2e_s": {"mean": 2.0}})], "Mean E2E of sjf is 2.00 s."),
    ],
)
def test_the_verdict_without_a_clear_gain_states_that(runs: Sequence[ReportedRun], begins: str) -> None:
    assert verdict(runs).startswith(begins)


def test_a_high_tail_is_named_as_the_price() -> None:
    assert "The price: p99 E2E is 3.00 times" in verdict([FCFS, run("sjf", Ratio(0.5, 0.4, 0.6), 3.0)])


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


def test_the_baseline_is_grey_and_named_in_the_verdict() -> None:
    base, other, third = (replace(FCFS, router=router) for router in ("least_load", "lengthwise", USUAL_ROUTER))
    better = [replace(each, over_fcfs=GOOD.over_fcfs) for each in (other, third)]
    drawn = {trace["name"]: trace["line"]["color"] for trace in latency_by_length([base, *better]).data}
    assert [name for name, colour in drawn.items() if colour == BASELINE_COLOUR] == ["fcfs behind least_load"]
    assert len(set(drawn.values())) == 3
    assert "against fcfs behind least_load" in verdict([base, *better])


def test_seeds_are_averaged_by_length_and_the_first_is_shown_over_time() -> None:
    other = LatencyProfile(BASE_E2E, tuple(3 * each for each in BASE_E2E), (9.0,), (9.0,), (9.0,))
    both = pooled([GOOD.profile or other, other])
    assert both.e2e_s[1] == pytest.approx(2 * BASE_E2E[1])
    assert both.time_s == (1.0, 2.0)


def test_a_run_is_written_as_json_and_read_back() -> None:
    again = ReportedRun.of(json.loads(to_json(GOOD.to_dict())))
    assert again.label == GOOD.label
    assert again.over_fcfs == GOOD.over_fcfs
    assert again.profile is not None
    assert again.profile.waiting == (3.0, 0.0)
    assert math.isnan(again.profile.window_e2e_s[1])


@pytest.mark.parametrize(
    ("mean", "p99", "found"),
    [
        (Ratio(0.9, 0.8, 1.1), 1.0, "noise"),
        (Ratio(1.2, 1.1, 1.3), 1.0, "worse"),
        (Ratio(0.98, 0.97, 0.99), 1.0, "too small"),
        (Ratio(0.8, 0.7, 0.9), 1.05, "gain"),
        (Ratio(0.8, 0.7, 0.9), 1.2, "gain, worse tail"),
        (Ratio(0.8, math.nan, math.nan), 1.0, "gain"),
    ],
)
def test_a_policy_is_judged_by_the_interval_of_its_mean_then_by_its_tail(mean: Ratio, p99: float, found: str) -> None:
    assert judge(mean, Ratio(p99, p99, p99)) == found


def test_a_tail_more_than_a_tenth_worse_counts_against_a_policy() -> None:
    mean = Ratio(0.8, 0.7, 0.9)
    within, beyond = (price(mean, Ratio(tail, tail, tail)) for tail in (1.1, 2.2))
    assert [within, beyond] == pytest.approx([0.8, 1.6])
