from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pytest

from lengthwise.errors import InputError
from lengthwise.simulator import Spread, simulate, summarise
from lengthwise.simulator.metrics import LatencyLimits
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


def test_a_limit_of_zero_is_an_error() -> None:
    with pytest.raises(InputError, match="above 0"):
        LatencyLimits(ttft_s=0.0)
