"""Compared runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from lengthwise.reports.runs import ReportedRun, at_highest_load, judged, pooled
from lengthwise.reports.tables import to_json
from lengthwise.simulator.metrics import LatencyProfile
from tests.reports.builders import BASE_E2E, FCFS, GOOD, ONE, run


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


def test_the_top_level_is_the_highest_load_or_the_last_level_where_loads_are_unknown() -> None:
    high = run("sjf", ONE, load=1.1)
    assert at_highest_load([FCFS, high, GOOD]) == [high]
    unknown = [replace(each, load=math.nan, offered=offered) for each, offered in ((FCFS, "burst"), (GOOD, "steady"))]
    assert at_highest_load(unknown) == unknown[1:]


def test_a_verdict_is_about_the_first_place_which_is_named_only_beside_others() -> None:
    here, there = (replace(FCFS, place=place) for place in ("a on f", "b on f"))
    assert judged([here, there]) == [here]
    assert [each.place for each in judged([here])] == [""]


def test_a_run_is_named_with_its_router_and_predictor() -> None:
    assert FCFS.label == "fcfs"
    assert replace(GOOD, router="least_load").label == "lengthwise behind least_load, fast"
    assert replace(GOOD, predictor="oracle").label == "lengthwise, oracle (TRUE LENGTHS)"
    assert replace(GOOD, predictor="none").in_words == "lengthwise without predictions"


def test_a_figure_that_a_run_does_not_have_is_nan() -> None:
    assert math.isnan(FCFS.ratio("per_token_mean").ratio)
    assert math.isnan(ReportedRun.of({"policy": "x", "e2e_s": {"mean": None}}).latency["e2e_s"]["mean"])
