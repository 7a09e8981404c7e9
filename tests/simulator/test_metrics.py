from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.simulator import Spread, simulate, summarise
from lengthwise.simulator.metrics import LatencyLimits, load_kept
from lengthwise.traffic.rows import LIMITS
from tests.simulator.builders import fleet, requests


def test_latencies_follow_their_definitions() -> None:
    summary = summarise(
        arrival_s=np.array([0.0, 1.0]),
        first_token_s=np.array([1.0, 3.0]),
        finished_s=np.array([5.0, 3.0]),
        output_tokens=np.array([5, 1]),
        started_s=np.array([0.5, 2.0]),
    )
    assert summary.ttft_s.mean == 1.5
    assert summary.e2e_s.mean == 3.5
    assert summary.tpot_s == Spread(1.0, 1.0, 1.0, 1.0)  # an answer of one token has no TPOT
    assert summary.per_token_s.mean == 1.5  # 5/5 and 2/1
    assert summary.queueing_s.mean == 0.75
    assert summary.makespan_s == 5.0
    assert summary.requests_per_s == 0.4
    assert summary.output_tokens_per_s == 1.2


def test_the_time_of_a_session_runs_from_its_first_arrival_to_its_last_answer() -> None:
    workload = requests(
        [(4, 3), (4, 2), (4, 1), (4096, 1), (4, 1)],
        0.0,
        session=["a", "a", "b", "c", None],
        think_s=[None, 2.5, None, None, None],
    )
    outcome = simulate(workload, fleet(), accelerate=False)
    assert outcome.arrival_s.tolist() == [0.0, 5.5, 0.0, 0.0, 0.0]  # the answer at 3 s, and 2.5 s to think
    assert outcome.session_s[:2].tolist() == [7.5, 1.0]
    assert math.isnan(outcome.session_s[2])  # its only request is refused
    assert (outcome.summary.sessions, outcome.summary.session_s.mean) == (2, 4.25)


def test_a_request_that_waits_for_a_refused_one_is_refused() -> None:
    workload = requests([(4, 1), (4096, 1), (4, 1)], 0.0, session=["a"] * 3, think_s=[None, 1.0, 1.0])
    outcome = simulate(workload, fleet(), accelerate=False)
    assert np.isnan(outcome.finished_s).tolist() == [False, True, True]
    assert (outcome.summary.refused, outcome.summary.sessions) == (2, 0)


def test_percentiles_ignore_missing_values() -> None:
    spread = Spread.of(np.array([*range(101), math.nan], float))
    assert spread == Spread(50.0, 50.0, 90.0, 99.0)


def test_refused_requests_are_excluded_from_means() -> None:
    summary = summarise(
        arrival_s=np.array([0.0, 0.0]),
        first_token_s=np.array([1.0, math.nan]),
        finished_s=np.array([2.0, math.nan]),
        output_tokens=np.array([2, 1000]),
    )
    assert (summary.requests, summary.refused) == (1, 1)
    assert summary.output_tokens_per_s == 1.0
    assert summary.e2e_s.mean == 2.0
    assert math.isnan(summary.queueing_s.mean)


def test_a_run_that_serves_no_request_has_a_summary() -> None:
    missing = np.array([math.nan])
    summary = summarise(
        arrival_s=np.zeros(1), first_token_s=missing, finished_s=missing, output_tokens=np.ones(1, np.int64)
    )
    assert (summary.requests, summary.refused) == (0, 1)
    assert math.isnan(summary.requests_per_s)


def test_a_summary_is_json_without_nan() -> None:
    summary = simulate(requests([(2, 1)]), fleet()).summary.to_dict()
    assert json.loads(json.dumps(summary, allow_nan=False))["tpot_s"]["mean"] is None
    assert summary["e2e_s"]["mean"] == 1.0


def test_an_outcome_is_a_table_with_a_row_per_request() -> None:
    table = simulate(requests([(2, 3), (2, 1)]), fleet(), "sjf").to_table()
    assert table["policy"].to_pylist() == ["sjf", "sjf"]
    assert table["finished_s"].to_pylist() == [3.0, 1.0]
    assert table.schema.field("preemptions").type == pa.int64()


def test_goodput_requires_both_limits_and_one_token_has_no_tpot() -> None:
    met = LatencyLimits(ttft_s=1.0, tpot_s=0.1).met(
        arrival_s=np.zeros(5),
        first_token_s=np.array([1.0, 1.0, 1.5, 1.0, math.nan]),
        finished_s=np.array([2.0, 2.1, 1.6, 1.0, math.nan]),
        output_tokens=np.array([11, 11, 11, 1, 1]),
    )
    assert met.tolist() == [True, False, False, True, False]


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, -math.inf])
@pytest.mark.parametrize("name", ["ttft_s", "tpot_s", "e2e_s", "per_token_s"])
def test_a_limit_that_is_not_above_zero_is_an_error(name: str, limit: float) -> None:
    with pytest.raises(InputError, match="above 0"):
        LatencyLimits(**{name: limit})


def test_without_an_option_there_is_no_limit() -> None:
    none = LatencyLimits.given(None, None, None, None)
    assert (none.ttft_s, none.tpot_s, str(none)) == (math.inf, math.inf, "their own limits")
    assert str(LatencyLimits.given(2.0, None, None, 0.05)) == "TTFT at most 2 s, E2E per token at most 0.05 s"


def test_a_request_s_own_limit_replaces_that_of_all() -> None:
    workload = requests([(2, 3), (2, 3), (2, 3)]).replace(
        arrival_s=[0.0, 10.0, 20.0], e2e_limit_s=[2.5, None, 50.0], request_class=["chat", None, "batch"]
    )
    outcome = simulate(workload, fleet())
    assert outcome.finished_s.tolist() == [3.0, 13.0, 23.0]
    assert outcome.within(LatencyLimits.given(None, None, None, None)).tolist() == [False, True, True]
    assert outcome.within(LatencyLimits.given(None, None, 2.9, None)).tolist() == [False, False, True]
    assert outcome.is_of("chat").tolist() == [True, False, False]
    rows = outcome.to_table().select(["request_class", "e2e_limit_s", "ttft_limit_s"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [("chat", 2.5, None), (None, None, None), ("batch", 50.0, None)]


def test_an_outcome_without_limits_and_classes_has_no_such_columns() -> None:
    outcome = simulate(requests([(2, 3)]), fleet())
    assert not outcome.limits
    assert not outcome.is_of("chat").any()
    assert not {"request_class", *LIMITS} & set(outcome.to_table().column_names)


LOADS = st.lists(
    st.tuples(st.floats(0.1, 2.0), st.floats(0.0, 1.0)), min_size=1, max_size=8, unique_by=lambda at: at[0]
)


@given(LOADS, st.floats(0.01, 1.0))
def test_the_load_kept_is_between_the_last_that_attains_and_the_first_that_does_not(
    at: list[tuple[float, float]], level: float
) -> None:
    loads, shares = zip(*at, strict=True)
    kept = load_kept(loads, shares, level)
    attained = [load for load, share in sorted(at) if share >= level]
    failed = [load for load, share in sorted(at) if share < level]
    if failed and failed[0] == min(loads):
        assert math.isnan(kept)
    elif not failed:
        assert kept == max(loads)
    else:
        last = max(load for load in attained if load < failed[0])
        assert last - 1e-9 <= kept <= failed[0] + 1e-9


def test_the_load_kept_is_linear_between_two_loads() -> None:
    assert load_kept([0.9, 0.5, 1.1], [0.95, 1.0, 0.75], 0.9) == pytest.approx(0.95)
