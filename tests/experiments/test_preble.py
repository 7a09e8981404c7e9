from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.preble import (
    LENGTH_UNAWARE,
    PREDICTING,
    STUDY,
    PrebleGrid,
    PrebleResult,
    by_true_lengths,
    draw,
    measure,
    ours_over_e2_length,
    ours_over_others,
    tables,
)
from experiments.routing import (
    FIXED,
    LATENCY_S,
    VARIED,
    Cell,
    Place,
    React,
    Routing,
    Shared,
    castillo_prompts,
    find,
    places,
)
from experiments.study import Run
from lengthwise.simulator.tasks import ResultCache
from lengthwise.workloads import DiscreteLengths, Workload
from tests.experiments.samples import check_output

PREDICTOR = "noisy:0.5"
SMALL = PrebleGrid(
    seeds=2,
    engines=(4, 8),
    rates=(32.0, 64.0),
    seconds=1.0,
    least=40,
    loads=(0.9,),
    shared_engines=2,
    shared_slots=4,
    shared_requests=60,
    predictor=PREDICTOR,
)


@pytest.fixture(autouse=True, scope="module")
def packaged_sample() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LENGTHWISE_DATA", "")
        castillo_prompts.cache_clear()
        yield
    castillo_prompts.cache_clear()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> PrebleResult:
    return measure(Run(ResultCache(tmp_path_factory.mktemp("preble"))), SMALL)


RANDOM_LENGTHS = [
    *LENGTH_UNAWARE,
    *(f"{router} ({predictor})" for router in PREDICTING for predictor in ("oracle", "none")),
]
PREDICTED_LENGTHS = [
    *LENGTH_UNAWARE,
    *(f"{router} ({predictor})" for router in PREDICTING for predictor in ("oracle", PREDICTOR, "none")),
]


def test_every_router_gets_the_same_requests_in_every_place(found: PrebleResult) -> None:
    assert [(place.engines, place.at) for place in places(found.react)] == [(4, 32), (8, 32), (4, 64), (8, 64)]
    assert [(place.engines, place.at, place.unit) for place in places(found.shared)] == [(2, 0.9, "load")]
    for cells, runs in ((found.react, RANDOM_LENGTHS), (found.shared, PREDICTED_LENGTHS)):
        for place in places(cells):
            here = [cell for cell in cells if cell.place == place]
            assert [str(cell.run) for cell in here] == runs
            offered = [tuple(seed["offered_per_s"] for seed in cell.seeds) for cell in here]
            assert len(set(offered)) == 1, "paired"
            assert len(set(offered[0])) == SMALL.seeds, "another workload for each seed"
            assert {seed["refused"] for cell in here for seed in cell.seeds} == {0}


def test_more_engines_are_no_slower_and_short_answers_are_hardly_ever_live(found: PrebleResult) -> None:
    for router in ("least_outstanding", "round_robin"):
        few, many = (find(found.react, Routing(router), n, 64.0).mean("e2e_s", "mean") for n in (4, 8))
        assert many < few
    diagnosis = found.diagnosis[64.0]
    assert 0 <= diagnosis["decided_by_load"] <= 1
    assert 0 <= diagnosis["moved"] <= 1
    assert 0 < diagnosis["short_live"] < 0.5
    assert diagnosis["busiest"] >= 1
    assert min(diagnosis["moves"], diagnosis["moves_true_lengths"]) >= 0


def cell(run: Routing, *per_token: float, place: Place | None = None) -> Cell:
    seeds = tuple(
        {name: {"mean": value, "p99": value} for name in ("per_token_s", "e2e_s", "ttft_s")} for value in per_token
    )
    return Cell(place or Place(VARIED, 8, 64.0), run, seeds=seeds)


def test_ratios_of_e2_and_of_lengthwise_are_those_of_the_cells(found: PrebleResult) -> None:
    runs = {
        Routing("e2"): 0.2,
        Routing("e2_length", "oracle"): 0.15,
        Routing("e2_length", "none"): 0.2,
        Routing("lengthwise", "oracle"): 0.075,
        Routing("lengthwise", "none"): 0.1,
        Routing("random"): 0.4,
    }
    at, shared = Place(VARIED, 16, 64.0), Place("castillo", SMALL.shared_engines, 0.9, "load")
    made = replace(
        found,
        react=tuple(cell(run, s, 2 * s, place=p) for p in (Place(VARIED, 8, 64.0), at) for run, s in runs.items()),
        shared=(
            cell(Routing("e2"), 2.0, 2.0, place=shared),
            cell(Routing("lengthwise", PREDICTOR), 1.0, 1.0, place=shared),
        ),
    )
    assert by_true_lengths(made)[64.0].ratio == pytest.approx(0.75)
    (_, ours), _ = ours_over_e2_length(made)
    assert [ratio.ratio for ratio in ours] == pytest.approx([0.5] * 4)
    assert [e2e.ratio for _, e2e, _ in ours_over_others(made)] == pytest.approx([0.5, 1.0])


def test_the_papers_figures_are_those_of_its_abstract() -> None:
    changes = [100 * (true / plain_e2 - 1) for plain_e2, true in LATENCY_S.values()]
    assert changes == pytest.approx([-14.31, -28.89], abs=0.02)


def test_tables_page_static_figure_and_json_are_complete(found: PrebleResult, tmp_path: Path) -> None:
    titles = [table.title for table in tables(found)]
    for title in (
        "As figure 1A, with figure 2's lengths: normalized latency (E2E over output tokens), mean, 8 engines",
        "Figure 2: E2 with true lengths, 8 engines",
        "CASTILLO behind shared prefixes",
    ):
        assert title in titles
    check_output(STUDY.output(found))
    draw(found, tmp_path / "preble.png")
    assert (tmp_path / "preble.png").read_bytes().startswith(b"\x89PNG")


def drawn(source: React | Shared, seed: int = 0) -> Workload:
    return source.draws(own_arrivals=False, slots=0)(seed)


def test_react_has_ten_workloads_in_random_order_without_prompts() -> None:
    workload = drawn(React(VARIED, 200))
    tenants = workload.table["tenant"].to_pylist()
    assert sorted(set(tenants)) == sorted(f"workload-{n}" for n in range(10))
    assert tenants[:20] != [f"workload-{n % 10}" for n in range(20)]
    assert workload.table["prompt"].null_count == 200
    assert set(workload.table["max_tokens"].to_pylist()) == {300}
    first, *others = (workload.blocks(row) for row in range(200) if tenants[row] == tenants[0])
    shared = [int(np.sum(first[: len(each)] == each[: len(first)])) for each in others]
    assert set(shared) == {1897 // 64}
    assert drawn(React(VARIED, 200)) == workload != drawn(React(VARIED, 200), seed=1)


def test_lengths_of_most_variance_have_the_mean_of_the_fixed_ones() -> None:
    fixed, varied = (DiscreteLengths.parse(lengths) for lengths in (FIXED, VARIED))
    mean = [float(np.dot(each.lengths, each.probabilities)) for each in (fixed, varied)]
    assert mean == pytest.approx([150.0, 150.5])


def test_castillo_is_behind_ten_prefixes_with_test_prompts_only() -> None:
    workload = drawn(Shared("llama-3.1-8b", 200))
    prompts = workload.table["prompt"].to_pylist()
    heads, tails = zip(*((prompt[: 4 * 512], prompt[4 * 512 :]) for prompt in prompts), strict=True)
    assert len(set(heads)) == 10
    assert heads.count(max(set(heads), key=heads.count)) > 200 / 10, "some are more frequent"
    known = castillo_prompts().where(llm="llama-3.1-8b")
    assert set(known.table["split"].to_pylist()) == {"test"}
    assert set(tails) <= set(known.table["prompt"].to_pylist())
