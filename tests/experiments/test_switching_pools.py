from __future__ import annotations

import numpy as np
import pytest

from experiments.study import Run
from experiments.switching_pools import (
    PREDICTIONS,
    STUDY,
    PoolsGrid,
    PoolsResult,
    best_fixed,
    changing,
    draw,
    measure,
    minutes_of,
)
from lengthwise.simulator.tasks import ResultCache
from lengthwise.workloads.traces import find_trace
from tests.experiments.samples import check_output

SMALL = PoolsGrid(seeds=2, seconds=20.0, engines=3, cases=("castillo",))
needs_traces = pytest.mark.skipif(
    any(find_trace(name).path is None for name in ("azure2023_conv", "azure2023_code")), reason="no traces"
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> PoolsResult:
    return measure(Run(ResultCache(tmp_path_factory.mktemp("cache"))), SMALL)


def test_changing_pools_are_compared_with_the_best_fixed_split_on_the_same_seeds(found: PoolsResult) -> None:
    ((case, load),) = found.cases()
    every = found.of(case, load)
    fixed = [one for one in every if one.task.prefill and not one.task.switching and one.task.predictor == "oracle"]
    assert [one.task.prefill for one in fixed] == [1, 2]
    best, ours = best_fixed(every), changing(every)
    assert best.mean("e2e_s", "mean") == min(one.mean("e2e_s", "mean") for one in fixed)
    assert best.ratios["e2e_s", "mean"].ratio == 1.0
    expected = np.divide(ours.values("e2e_s", "mean"), best.values("e2e_s", "mean"))
    assert ours.ratios["e2e_s", "mean"].ratio == pytest.approx(np.prod(expected) ** 0.5)
    assert all(changing(every, *given).task.prefill == 1 for given in PREDICTIONS)
    assert all(one.mean("moves") == 0 for one in every if not one.task.switching)


def test_tables_page_and_json_are_complete(found: PoolsResult) -> None:
    check_output(STUDY.output(found))
    assert "over the best fixed split: castillo at 0.8" in STUDY.output(found).verdict


@needs_traces
def test_a_trace_keeps_its_clock_and_both_traces_their_proportion() -> None:
    drawn, again = (draw("azure both", 60.0, 2, 0.5, 1) for _ in range(2))
    inside = minutes_of("azure both", 60.0, 1)
    assert drawn == again
    assert draw("azure both", 60.0, 2, 0.5, 2) != drawn
    counts = (np.histogram(each.arrival_s, 6, (0, 60))[0] / len(each) for each in (drawn, inside))
    assert np.abs(np.subtract(*counts)).max() < 0.12
    assert drawn.output_tokens.mean() == pytest.approx(inside.output_tokens.mean(), rel=0.3)
