"""Rows of finished requests as a workload, and an engine fitted to their answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lengthwise.simulator import StepCost
from lengthwise.simulator.replay import Replay, fit_engine
from lengthwise.traffic.rows import RequestRow


def test_requests_are_replayed_in_order_of_arrival_from_the_first_one_on() -> None:
    rows = [
        RequestRow(107.0, finished_s=109.0, output_tokens=5, input_tokens=3, mu=1.0, sigma=0.5, llm="m", tenant="a"),
        RequestRow(
            105.0,
            first_token_s=106.0,
            finished_s=108.0,
            output_tokens=9000,
            input_tokens=4,
            max_tokens=9000,
            request_class="chat",
            ttft_limit_s=2.0,
        ),
    ]
    found = Replay.of_rows(rows, name="two")
    assert found.workload.arrival_s.tolist() == [0.0, 2.0]
    assert found.workload.input_tokens.tolist() == [4, 3]
    assert found.workload.table["max_tokens"].to_pylist() == [9000, None]
    assert found.workload.table["tenant"].to_pylist() == [None, "a"]
    assert found.workload.table["request_class"].to_pylist() == ["chat", None]
    assert found.workload.table["ttft_limit_s"].to_pylist() == [2.0, None]
    assert found.workload.table["e2e_limit_s"].null_count == 2
    assert found.finished_s.tolist() == [3.0, 4.0]
    assert found.streamed.tolist() == [True, False]
    assert found.predictions.cap.tolist() == [9000.0, 8192.0]
    assert math.isnan(found.predictions.mu[0])
    assert found.predictions.mu[1] == 1.0


def test_a_request_without_a_prediction_has_that_of_its_llms_history() -> None:
    rows = [RequestRow(0.0, output_tokens=1, input_tokens=1, history_mu=4.0, history_sigma=1.0, predictor="fast")]
    predictions = Replay.of_rows(rows, name="one").predictions
    assert (predictions.mu[0], predictions.sigma[0], predictions.predictor) == (4.0, 1.0, "fast")


def test_prompts_share_as_many_blocks_as_the_engine_found_in_its_prefix_cache() -> None:
    columns = {
        "arrival_s": [0.0, 1.0, 2.0],
        "output_tokens": [5] * 3,
        "input_tokens": [32, 70, 48],
        "cached_tokens": [math.nan, 32, 16],
    }
    first, second, third = Replay.of(columns, name="w", block_size=16).workload.table["block_hashes"].to_pylist()
    assert (len(first), len(second), len(third)) == (2, 4, 3)
    assert second[:1] == third[:1]
    assert len({*first, *second, *third}) == 8


def test_an_engine_of_varying_speed_is_fitted_by_its_mean_speed() -> None:
    """One answer at a time, each at its own speed: the mean is weighted by time."""
    rng = np.random.default_rng(2)
    now, rows = 0.0, []
    for _ in range(400):
        tokens, per_token = int(rng.integers(20, 200)), float(rng.choice([0.01, 0.05]))
        first, now = now + 0.01, now + 0.01 + per_token * (tokens - 1)
        rows.append(
            RequestRow(
                first - 0.01, first_token_s=first, finished_s=now, llm="m", input_tokens=10, output_tokens=tokens
            )
        )
    found = fit_engine(Replay.of_rows(rows, name="log"))
    assert found.answers == 400
    cost = found.spec.cost
    assert isinstance(cost, StepCost)
    assert cost.decode_base + cost.decode == pytest.approx(0.03, rel=0.1)
