"""A capacity plan as a table, a figure, facts and a page."""

from __future__ import annotations

import json
from functools import cache

from lengthwise.reports.page import Origin
from lengthwise.reports.planning import PlanReport
from lengthwise.reports.tables import to_json
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.planning import CapacitySearch, plan_seeds
from tests.simulator.builders import engine, requests

ORIGIN = Origin("lengthwise plan", "0.1.0", "today", "8 cores")


@cache
def report(
    *, seeds: int = 1, most: int = 4, policies: tuple[str, ...] = ("fcfs", "sjf"), predictor: str | None = "none"
) -> PlanReport:
    """Plan for a burst of 8 requests (6 in the second seed) of 10 s, with two slots and a limit of 15 s: 4 engines."""
    limits = LatencyLimits(float("inf"), float("inf"), 15.0)
    searches = [
        CapacitySearch(
            requests([(1, 10)] * (8 - 2 * seed)), engine(seqs=2), limits, 1.0, 1, most, "round_robin", predictor
        )
        for seed in range(seeds)
    ]
    return PlanReport(searches[0], plan_seeds(searches, policies), 1.0 if most < 4 else None)


def test_a_row_per_policy_with_engines_and_shares() -> None:
    table = report().table()
    assert [row[:3] for row in table.rows] == [["fcfs", "–", "4"], ["sjf", "none", "4"]]
    assert table.rows[0][3] == "100.0 %"
    assert table.rows[0][4].startswith("75.0 % ["), "with three engines, two of eight requests wait"
    assert "Target: 100 % of requests within E2E at most 15 s" in table.notes[0]


def test_with_several_seeds_the_range_of_engines_is_shown() -> None:
    found = report(seeds=2)
    assert found.table().rows[0][2] == "4 (3–4)"
    assert any("enough in all seeds" in note for note in found.table().notes)
    assert str(found.verdict).endswith("the lowest of 2 seeds (target 100 %); sjf needs as many.")


def test_too_few_engines_are_shown_as_more_than_the_most() -> None:
    found = report(most=3)
    assert found.table().rows[0][2] == "> 3"
    assert found.table().rows[0][4] == "–"
    assert "Without any queue 100.0 % of requests are within the limits." in found.table().notes


def test_true_lengths_are_named_in_table_verdict_and_facts() -> None:
    found = report(predictor="oracle")
    assert found.table().rows[1][1] == "oracle (TRUE LENGTHS)"
    assert found.table().notes[-1].startswith("TRUE LENGTHS")
    assert found.to_dict()["note"] == "TRUE LENGTHS"
    assert str(found.verdict).startswith("With TRUE LENGTHS, which no server has: 4 engines under fcfs")


def test_all_policies_are_compared_with_the_fewest_engines_that_any_needs() -> None:
    runs = report().runs
    assert [(run.policy, run.offered) for run in runs] == [("fcfs", "4 engines"), ("sjf", "4 engines")]
    assert runs[0].is_baseline
    assert runs[1].ratio("e2e_mean").ratio == 1.0, "equal requests"
    assert report(policies=("sjf",)).runs[0].over_fcfs == {}


def test_the_figure_has_a_mark_per_simulated_count_and_the_target() -> None:
    figure = report().figure()
    assert [trace["name"] for trace in figure.data] == ["fcfs", "sjf, none"]
    counts = [trial.engines for trial in report().plans[0].seeds[0].trials]
    assert figure.data[0]["x"] == counts
    assert figure.layout["shapes"][0]["y0"] == 1.0
    assert "bars: 95 % interval" in figure.text


def test_facts_hold_every_trial() -> None:
    found = json.loads(to_json(report().to_dict()))
    assert found["verdict"] == str(report().verdict)
    trials = found["plans"][0]["by_seed"][0]["trials"]
    assert [trial["engines"] for trial in trials] == sorted(trial["engines"] for trial in trials)
    assert {trial["engines"]: trial["attained"] for trial in trials}[4] == 1.0


def test_the_page_opens_with_the_verdict() -> None:
    page = report().document(ORIGIN).html()
    assert f"<h1>{report().verdict.headline}</h1>" in page
    assert page.index("How many engines are enough") < page.index("Fewest engines")
