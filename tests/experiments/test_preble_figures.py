from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.preble_figures import (
    CHARGED,
    CUT,
    DRAINED,
    E2,
    LOR,
    STUDY,
    FiguresGrid,
    FiguresResult,
    claims,
    measure,
    routed,
    tables,
)
from experiments.routing import BY_PREFIX, FIXED, React, Routing
from experiments.study import Run
from lengthwise.simulator import Fleet, simulate
from lengthwise.simulator.tasks import ResultCache, Setting
from tests.experiments.samples import check_output

RATE = 64.0
GRID = FiguresGrid(seeds=2, engines=(8,), rates=(RATE,), seconds=6.0)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> FiguresResult:
    return measure(Run(ResultCache(tmp_path_factory.mktemp("cache"))), GRID)


def test_the_cut_counts_only_requests_that_finish_in_time() -> None:
    where = Setting(React("20:1", 192), Fleet.parse("2*mistral-7b@a6000"), 0)
    outcome = simulate(where.workload_at(RATE), where.fleet, "fcfs", router=LOR)
    cut_at_s = float(np.median(outcome.finished_s))
    both = routed(where, RATE, Routing(LOR), 0.0, cut_at_s)
    per_token = (outcome.finished_s - outcome.arrival_s) / outcome.output_tokens
    counted = outcome.finished_s <= cut_at_s
    assert both[DRAINED] == pytest.approx(per_token.mean())
    assert both[CUT] == pytest.approx(per_token[counted].mean())
    assert both["finished"] == pytest.approx(counted.mean())
    assert 0.4 < both["finished"] < 0.6


def test_a_cut_before_the_first_answer_has_no_latency() -> None:
    where = Setting(React(FIXED, 20), Fleet.parse("2*mistral-7b@a6000"), 0)
    assert math.isnan(routed(where, RATE, E2, 0.0, 0.1)[CUT])


def test_by_prefix_each_workload_has_one_length_and_all_differ() -> None:
    workload = React(BY_PREFIX, 400).draws(own_arrivals=False, slots=0)(0)
    tenants = np.array(workload.table["tenant"].to_pylist())
    lengths = [np.unique(workload.output_tokens[tenants == tenant]) for tenant in np.unique(tenants)]
    assert all(len(each) == 1 for each in lengths)
    assert sorted(int(each[0]) for each in lengths) == list(range(1, 299, 33))


def test_every_charge_and_lengths_by_prefix_are_run(found: FiguresResult) -> None:
    assert all(found.find(FIXED, 8, RATE, variant) is not None for variant in CHARGED)
    assert found.find(BY_PREFIX, 8, RATE, E2) is not None
    assert found.ratio(FIXED, 8, RATE, E2, Routing("unknown"), DRAINED) is None


def test_tables_and_claims_are_complete(found: FiguresResult) -> None:
    check_output(STUDY.output(found))


def test_every_charge_is_compared_with_none_and_ours_with_e2(found: FiguresResult) -> None:
    overhead = next(table for table in tables(found) if table.title.startswith("Figure 1C"))
    assert overhead.columns[-2:] == ("2 ms / none", "6 ms / none")
    statements = {claim.statement for claim in claims(found)}
    assert "8 engines, 64/s: lengthwise, no lengths, over e2" in statements
