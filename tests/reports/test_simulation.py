"""A grid of simulations as tables, as facts and as a page."""

from __future__ import annotations

import json
import math
from functools import cache

import pytest

from lengthwise.reports.latency_figures import figures
from lengthwise.reports.runs import ReportedRun
from lengthwise.reports.simulation import (
    facts,
    grid_document,
    runs_of,
    sweep_document,
    sweep_runs,
    sweep_tables,
    tables,
)
from lengthwise.reports.tables import to_json
from lengthwise.simulator import Pools
from lengthwise.simulator.grid import Grid, Plan, run_grid
from lengthwise.simulator.sweep import SweepResult
from lengthwise.workloads import redraw
from tests.simulator.builders import UNEVEN, fleet, requests


@cache
def grid(
    *,
    policies: tuple[str, ...] = ("fcfs", "sjf"),
    predictors: tuple[str, ...] = ("none", "oracle"),
    loads: tuple[float, ...] = (0.7, 1.4),
) -> Grid:
    source = requests([(8, 3), (8, 40), (8, 12), (8, 90)] * 15)
    plan = Plan(fleet(UNEVEN, engines=2, seqs=2), policies, predictors, loads=loads, seeds=(0, 1))
    return run_grid(plan, lambda seed: redraw(source, requests=60, rate=1.0, seed=seed))


def test_a_row_per_level_policy_and_predictor_in_every_table() -> None:
    for table in tables(grid()):
        if table.title.startswith("Load kept"):
            continue
        assert list(table.columns[:3]) == ["policy", "predictor", "load"]
        assert [tuple(row[:3]) for row in table.rows] == [
            (*pair, load)
            for load in ("0.70", "1.40")
            for pair in (("fcfs", ""), ("sjf", "none"), ("sjf", "oracle (TRUE LENGTHS)"))
        ]
        assert table.rule_before == {3}
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_load_that_keeps_each_share_is_a_row_per_policy() -> None:
    (table,) = [each for each in tables(grid()) if each.title.startswith("Load kept")]
    assert list(table.columns) == ["policy", "predictor", "90%", "95%", "99%"]
    assert [row[0] for row in table.rows] == ["fcfs", "sjf", "sjf"]
    kept = [[row[level] for level in ("0.9", "0.95", "0.99")] for row in facts(grid())["load_kept"]]
    for loads, row in zip(kept, table.rows, strict=True):
        assert row[2:] == [
            "–" if math.isnan(load) else f"≥ {load:.2f}" if load == 1.4 else f"{load:.2f}" for load in loads
        ]
    assert not [each for each in tables(grid(loads=(0.7,))) if each.title.startswith("Load kept")]


def test_classes_have_their_share_and_goodput_beside_all() -> None:
    source = requests([(8, 3), (8, 40)] * 15).replace(
        request_class=["chat", "batch"] * 15, e2e_limit_s=[20.0, None] * 15, arrival_s=[0.1 * row for row in range(30)]
    )
    found = run_grid(Plan(fleet(UNEVEN, seqs=2), ["fcfs", "sjf"], ["oracle"]), lambda _: source)
    (table,) = [each for each in tables(found) if each.title.startswith("Within limits, by class")]
    assert list(table.columns)[-4:] == ["batch in SLO", "batch goodput/s", "chat in SLO", "chat goodput/s"]
    assert "a request's own limits replace these" in table.notes[0]
    for cell, run in zip(found.cells, facts(found)["runs"], strict=True):
        by_class = run["by_class"]
        shares = [by_class[name]["within_slo"] for name in ("batch", "chat")]
        assert sum(shares) / 2 == pytest.approx(cell.within(found.slo))
        assert sum(each["goodput_per_s"] for each in by_class.values()) == pytest.approx(cell.goodput(found.slo))


def test_sessions_have_a_table_with_their_times_over_those_of_fcfs() -> None:
    source = requests([(8, 3), (8, 40)] * 15).replace(
        session=[f"s{row // 2}" for row in range(30)],
        think_s=[None, 0.5] * 15,
        arrival_s=[0.2 * (row // 2) for row in range(30)],
    )
    found = run_grid(Plan(fleet(UNEVEN, seqs=2), ["fcfs", "sjf"], ["oracle"]), lambda _: source)
    (table,) = [each for each in tables(found) if each.title.startswith("Time of a session")]
    assert list(table.columns)[-6:] == ["sessions", "mean", "p50", "p99", "mean over FCFS", "p99 over FCFS"]
    base, ours = (cell.outcomes[0].session_s for cell in found.cells)
    assert found.session_ratio(found.cells[1], "mean").ratio == pytest.approx(ours.mean() / base.mean())


def test_a_column_with_one_value_moves_to_the_title() -> None:
    table = tables(grid(predictors=("oracle",)))[-1]
    assert list(table.columns[:2]) == ["policy", "load"]
    assert table.title.endswith("predictions oracle (TRUE LENGTHS)")
    assert not any("gain" in column for column in table.columns)


def test_the_load_is_given_with_n_slots_seeds_and_capacity() -> None:
    notes = " ".join(tables(grid())[-1].notes)
    assert "n 60, slots 4, 2 seeds from 0, run to drain" in notes
    assert "possible under backlog (FCFS, round robin)" in notes


def test_without_fcfs_a_note_states_why_there_are_no_ratios() -> None:
    table = tables(grid(policies=("sjf",)))[-1]
    assert "fcfs is not among the policies" in table.notes[0]
    assert table.rows[0][3] == "–"


def test_a_note_states_the_loads_at_which_hardly_any_request_waits() -> None:
    source = requests([(8, 3), (8, 40)] * 15)
    idle = run_grid(
        Plan(fleet(UNEVEN, seqs=8), ["fcfs", "sjf"], ["oracle"], rates=[0.01]),
        lambda seed: redraw(source, requests=20, rate=1.0, seed=seed),
    )
    assert any("Hardly any request waits at load 0.00" in note for note in tables(idle)[-1].notes)
    assert not any("Hardly any request" in note for note in tables(grid())[-1].notes if "1.40" in note)


def test_a_batch_has_no_load() -> None:
    batch = requests([(8, 3), (8, 40), (8, 12)] * 5).replace(arrival_s=[0.0] * 15)
    found = runs_of(run_grid(Plan(fleet(UNEVEN, seqs=2), ["fcfs", "sjf"], ["oracle"]), lambda _: batch))
    assert {run.offered for run in found} == {"all at once"}
    assert all(math.isnan(run.load) for run in found)


def test_facts_hold_everything_that_the_figures_need() -> None:
    stored = [ReportedRun.of(run) for run in json.loads(to_json(facts(grid())))["runs"]]
    assert to_json([run.to_dict() for run in stored]) == to_json([run.to_dict() for run in runs_of(grid())])
    assert to_json(figures(stored)) == to_json(figures(runs_of(grid())))


def test_the_page_opens_with_the_verdict_and_is_self_contained() -> None:
    page = grid_document(grid()).html()
    assert page.index("<h1>") < page.index("Latency by output length") < page.index("Over FCFS, below 1 is better")
    assert "<h1>No difference beyond noise at load 1.40 between sjf without predictions and fcfs: mean E2E" in page
    assert "<script src" not in page
    assert "gain captured" in page


@pytest.mark.parametrize(("loads", "drawn"), [((1.4,), False), ((0.7, 1.4), True)])
def test_latency_by_load_is_drawn_for_several_loads_only(loads: tuple[float, ...], drawn: bool) -> None:
    titles = [each.title for each in figures(runs_of(grid(loads=loads)))]
    assert ("Latency by load" in titles) == drawn


def swept(policy: str, seed: int, e2e_s: float, *, load: float = 0.9, router: str = "round_robin") -> dict[str, object]:
    spread = {"mean": e2e_s, "p50": e2e_s, "p90": e2e_s, "p99": None}
    profile: dict[str, list[float]] = {"tokens": [], "e2e_s": [], "time_s": [], "waiting": [], "window_e2e_s": []}
    return {
        "workload": "w", "fleet": "f", "load": load, "rate": None, "router": router, "policy": policy, "seed": seed,
        "predictor": None, "profile": profile, **dict.fromkeys(("ttft_s", "tpot_s", "e2e_s", "per_token_s"), spread),
    }  # fmt: skip


SWEPT = [swept("fcfs", 0, 1.0), swept("sjf", 0, 0.5), swept("fcfs", 1, 3.0), swept("sjf", 1, 1.5)]


def test_a_sweep_is_a_table_per_workload_and_fleet_with_means_over_seeds() -> None:
    (table,) = sweep_tables(SWEPT)
    assert table.title == "w on f"
    assert list(table.columns[:2]) == ["load", "policy"]
    assert [row[:2] for row in table.rows] == [["0.90", "fcfs"], ["0.90", "sjf"]]
    assert table.rows[0][-1] == "1"
    assert table.rows[1][-1] == "0.50 [0.50, 0.50]"
    assert table.rows[1][table.columns.index("E2E mean")] == "1.00 s"
    assert table.rows[1][table.columns.index("E2E p99")] == "–", "null in JSON"
    assert table.notes == [
        "Means over 2 seeds; the last column is over the first of its load.",
        "router: round_robin",
        "predictor: –",
    ]


def test_the_runs_of_a_sweep_are_compared_with_the_fcfs_of_their_load() -> None:
    fcfs, sjf = sweep_runs(SWEPT)
    assert (fcfs.is_baseline, sjf.is_baseline) == (True, False)
    assert sjf.ratio("e2e_mean").ratio == pytest.approx(0.5)
    assert (sjf.place, sjf.offered, sjf.load) == ("w on f", "load 0.90", 0.9)
    (alone,) = sweep_runs([swept("sjf", 0, 1.0)])
    assert alone.over_fcfs == {}


def test_the_document_of_a_sweep_has_verdict_rows_and_counts() -> None:
    shown = sweep_document(SweepResult(SWEPT, from_cache=3, computed=1))
    assert shown.title == "w on f"
    assert shown.verdict is not None
    assert shown.verdict.headline.startswith("sjf lowers mean E2E by 50 %, median TTFT by 50 %")
    assert (shown.facts["from_cache"], len(shown.facts["rows"])) == (3, 4)


def test_pools_are_described_in_the_notes() -> None:
    source = requests([(8, 3), (8, 40)] * 10)
    engines = fleet(UNEVEN, engines=2, seqs=2, kv_bytes_per_token=1000)
    plan = Plan(engines, ["fcfs"], ["oracle"], rates=[1.0], pools=Pools(1, 1), refresh="none")
    notes = tables(run_grid(plan, lambda seed: redraw(source, requests=20, rate=1.0, seed=seed)))[-1].notes
    assert any(
        note.startswith("Prefill on 1 engines, decode on 1; KV goes over 25 GB/s and 1.0 ms of latency; predictions")
        for note in notes
    )
