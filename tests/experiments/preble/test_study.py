"""The paper's experiment: who meets whom, what is kept, and what is concluded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.preble import paper
from experiments.preble.cells import Cell, Place, Run, find, places
from experiments.preble.said import behind_naive, by_true_lengths, ours_over_e2_length, ours_over_others
from experiments.preble.still import draw
from experiments.preble.study import BLIND, NAIVE_AND_E2, PREDICTING, Effort, PrebleStudy, study
from experiments.preble.traffic import LENGTHS, VARIED
from experiments.preble.view import html_report, plain, tables
from lengthwise.errors import InputError
from lengthwise.reports.tables import to_json
from lengthwise.simulator.tasks import ResultCache, TaskRunner
from tests.experiments.preble.conftest import PREDICTOR, SMALL, nobody

COIN = [*BLIND, *(f"{router} ({told})" for router in PREDICTING for told in ("oracle", "none"))]
TOLD = [*BLIND, *(f"{router} ({told})" for router in PREDICTING for told in ("oracle", PREDICTOR, "none"))]


def test_every_router_meets_the_same_requests_in_every_place(found: PrebleStudy) -> None:
    assert [(place.engines, place.at) for place in places(found.react)] == [(4, 32), (8, 32), (4, 64), (8, 64)]
    assert [place.workload for place in places(found.varied)] == list(LENGTHS[:-1])
    assert [(place.engines, place.at, place.unit) for place in places(found.shared)] == [(2, 0.9, "load")]
    varied = [*NAIVE_AND_E2, *COIN[len(BLIND) :]]
    for cells, runs in ((found.react, COIN), (found.varied, varied), (found.shared, TOLD)):
        for place in places(cells):
            here = [cell for cell in cells if cell.place == place]
            assert [str(cell.run) for cell in here] == runs
            offered = [tuple(seed["offered_per_s"] for seed in cell.seeds) for cell in here]
            assert len(set(offered)) == 1, "paired"
            assert len(set(offered[0])) == SMALL.seeds, "another workload for each seed"
            assert {seed["refused"] for cell in here for seed in cell.seeds} == {0}


def test_a_second_run_computes_nothing_and_tells_the_same(found: PrebleStudy, cache: Path) -> None:
    again = study(TaskRunner(ResultCache(cache), nobody), predictor=PREDICTOR, effort=SMALL)
    assert (again.found, again.computed) == (found.computed, 0)
    assert replace(again, found=found.found, computed=found.computed) == found


def test_more_engines_are_no_slower_and_short_answers_are_hardly_ever_live(found: PrebleStudy) -> None:
    for router in ("least_outstanding", "round_robin"):
        few, many = (find(found.react, Run(router), n, 64.0).mean("e2e_s") for n in (4, 8))
        assert many < few
    why = found.why[64.0]
    assert 0 <= why.decided_by_load <= 1
    assert 0 <= why.moved <= 1
    assert 0 < why.short_live < 0.5
    assert why.busiest >= 1
    assert min(why.moves, why.moves_told) >= 0
    assert set(found.drawn) == {1, 300}
    assert sum(found.drawn.values()) == pytest.approx(1)


def cell(run: Run, *per_token: float, place: Place | None = None) -> Cell:
    seeds = tuple(
        {name: {"mean": value, "p99": value} for name in ("per_token_s", "e2e_s", "ttft_s")} for value in per_token
    )
    return Cell(place or Place(VARIED, 8, 64.0), run, seeds)


def test_what_is_said_of_e2_and_of_ours_is_what_was_measured(found: PrebleStudy) -> None:
    runs = {
        Run("e2"): 0.2,
        Run("e2_length", "oracle"): 0.15,
        Run("e2_length", "none"): 0.2,
        Run("lengthwise", "oracle"): 0.075,
        Run("lengthwise", "none"): 0.1,
        **{Run(name): 0.4 for name in paper.NAIVE},
    }
    at = Place(VARIED, 16, 64.0)
    made = replace(
        found,
        react=tuple(cell(run, s, 2 * s, place=p) for p in (Place(VARIED, 8, 64.0), at) for run, s in runs.items()),
        shared=(cell(Run("e2"), 2.0, 2.0), cell(Run("lengthwise", PREDICTOR), 1.0, 1.0)),
    )
    assert by_true_lengths(made)[64.0].ratio == pytest.approx(0.75)
    ((claim, said, ratios),) = behind_naive(made)
    assert (claim.startswith("16 engines"), said) == (True, 1.6)
    assert [ratio.ratio for ratio in ratios.values()] == pytest.approx([0.5] * 3)
    (_, ours), _ = ours_over_e2_length(made)
    assert [ratio.ratio for ratio in ours] == pytest.approx([0.5] * 4)
    ((_, others),) = ours_over_others(made)
    assert [e2e.ratio for _, e2e, _ in others] == pytest.approx([0.5, 1.0])


def test_the_papers_figures_are_those_of_its_abstract() -> None:
    changes = [100 * (told / plain_e2 - 1) for plain_e2, told in paper.LATENCY_S.values()]
    assert changes == pytest.approx([-14.31, -28.89], abs=0.02)


def test_it_goes_to_tables_a_page_a_picture_and_json(found: PrebleStudy, tmp_path: Path) -> None:
    titles = [table.title for table in tables(found)]
    for title in (
        "Figure 1A: normalized latency (E2E over output tokens), mean, 8 engines",
        "Figures 1A and 1B in words",
        "Figure 1C: microseconds of a router for a request",
        "Figure 1D: variance of lengths",
        "Figure 2: E2 with true lengths, 8 engines",
        "Figure 3: lengths of the most variance",
        "CASTILLO behind shared prefixes",
    ):
        assert title in titles
    variance = tables(found)[titles.index("Figure 1D: variance of lengths")]
    assert [row[0] for row in variance.rows] == [
        f"8 engines, 64/s, {lengths}" for lengths in ("150", "1 or 150 or 300", "1 or 300")
    ]
    assert html_report(found).startswith("<!doctype html>")
    facts = json.loads(to_json(plain(found)))
    assert facts["paper"]["latency_s"]["64.0"] == [0.1427, 0.1223]
    assert len(facts["react"]) == len(found.react)
    assert len(facts["react"][0]["e2e_s_mean"]) == SMALL.seeds
    draw(found, tmp_path / "preble.png")
    assert (tmp_path / "preble.png").read_bytes().startswith(b"\x89PNG")


def test_one_seed_has_no_interval() -> None:
    with pytest.raises(InputError, match="at least 2"):
        Effort(seeds=1)
