"""The logged traffic of a known engine: its fitted speed is the true one, and the gain is that of the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.simulator import EngineSpec, Fleet, Outcome, StepCost, simulate
from lengthwise.simulator.observed import LOGGED, TRUE, ObservedTraffic, observed_gain
from lengthwise.traffic.log import EngineReading, PredictorCounts
from lengthwise.traffic.reader import LoggedTraffic
from lengthwise.traffic.rows import RequestRow
from lengthwise.workloads import Workload

COST = StepCost(0.02, 0.02, 5e-5, 0.0, 0.003, 0.0)
SPEC = EngineSpec("true", COST, 400_000, max_num_seqs=4, prefix_caching=False)
BUSY = (EngineReading(1.0, "e", 4, 9), EngineReading(2.0, "e", 2, 0))


def served(n: int = 600, rate: float = 1.0, seed: int = 0, policy: str = "fcfs") -> Outcome:
    """Simulate an engine of known speed under Poisson arrivals of heavy-tailed lengths."""
    rng = np.random.default_rng(seed)
    workload = Workload.from_table(
        {
            "arrival_s": np.cumsum(rng.exponential(1 / rate, n)),
            "input_tokens": rng.integers(20, 400, n),
            "output_tokens": np.clip(np.exp(rng.normal(4.0, 0.9, n)).astype(np.int64), 1, 900),
        },
        name="synthetic",
    )
    return simulate(workload, Fleet((SPEC,)), policy, predictor="oracle")


def logged(
    outcome: Outcome, *, noise: float = 0.5, others: Sequence[EngineReading | PredictorCounts] = BUSY
) -> LoggedTraffic:
    """Return the log of a gateway in front of that engine, with predictions whose log error is `noise`."""
    rng = np.random.default_rng(1)
    mu = np.log(outcome.output_tokens) + rng.normal(0.0, noise, len(outcome))
    rows = [
        RequestRow(
            arrival_s=7.0 + float(outcome.arrival_s[i]),
            first_token_s=7.0 + float(outcome.first_token_s[i]),
            finished_s=7.0 + float(outcome.finished_s[i]),
            llm="m",
            engine="e",
            input_tokens=int(outcome.input_tokens[i]),
            input_bytes=4 * int(outcome.input_tokens[i]),
            output_tokens=int(outcome.output_tokens[i]),
            source="prior",
            predictor="fast",
            mu=float(mu[i]),
            sigma=noise,
            predictor_mu=float(mu[i]),
            predictor_sigma=noise,
        )
        for i in range(len(outcome))
    ]
    return LoggedTraffic.of([*rows, *others], "log")


def test_the_cost_of_the_engine_is_recovered_from_the_times_of_its_answers() -> None:
    outcome = served()
    found = observed_gain(logged(outcome), "log")
    cost = found.engine.spec.cost
    assert isinstance(cost, StepCost)
    assert cost.decode_base + 3 * cost.decode == pytest.approx(COST.decode_base + 3 * COST.decode, rel=0.05)
    assert found.engine.spec.max_num_seqs == 4
    assert abs(found.mismatch) < 0.05
    assert found.fcfs.e2e_s.p99 == pytest.approx(found.measured.e2e_s.p99, rel=0.1)
    assert found.load == pytest.approx(1.0, abs=0.4)


def test_the_gain_is_that_of_the_simulator_with_the_same_predictions() -> None:
    outcome = served(rate=1.4)
    found = observed_gain(logged(outcome), "log", policies=["sjf", "lengthwise"])
    assert [(run.policy, run.predictions) for run in found.runs] == [
        (policy, predictions) for policy in ("sjf", "lengthwise") for predictions in (LOGGED, TRUE)
    ]
    sjf, best = found.runs[:2]
    assert best.gain.ratio("e2e_mean").ratio < sjf.gain.ratio("e2e_mean").ratio < 0.9, (
        "with a long queue, shortest first lowers the mean"
    )
    assert best.captured_e2e == pytest.approx(1.0)
    assert 0.3 < sjf.captured_e2e < 1.0
    direct = simulate(
        ObservedTraffic.of(logged(outcome), "log").replay.workload,
        Fleet((found.engine.spec,)),
        "sjf",
        predictor="oracle",
    )
    np.testing.assert_equal(asdict(best.summary), asdict(direct.summary))  # windows without a request are NaN


def test_without_a_queue_there_is_no_gain_and_no_captured_share() -> None:
    found = observed_gain(logged(served(rate=0.1), others=()), "log")
    assert found.engine.slots_from.endswith("never seen with a queue")
    for run in found.runs:
        assert run.gain.ratio("e2e_mean").ratio == pytest.approx(1.0, abs=0.02)
        assert math.isnan(run.captured_e2e)


def test_a_given_engine_is_used_unchanged(tmp_path: Path) -> None:
    engine = tmp_path / "engine.yaml"
    engine.write_text(
        "cost: {family: linear, prefill_base: 0.02, decode_base: 0.02, prefill_token: 5.0e-5, decode: 0.003}\n"
        "kv_tokens: 400000\nmax_num_seqs: 4\nprefix_caching: false\n"
    )
    outcome = served()
    found = observed_gain(logged(outcome), "log", engine=str(engine))
    # The log begins at its first request, and the same engine gives the same times.
    assert found.fcfs.e2e_s.mean == pytest.approx(found.measured.e2e_s.mean, rel=1e-9)
    assert found.engine.answers == 0
    limited = observed_gain(logged(outcome), "log", engine=str(engine), max_num_seqs=2, kv_tokens=5000)
    assert (limited.engine.spec.max_num_seqs, limited.engine.spec.kv_tokens) == (2, 5000)
    assert limited.fcfs.e2e_s.mean > found.fcfs.e2e_s.mean


def test_predictions_are_scored_beside_history_and_the_best_constant() -> None:
    found = observed_gain(logged(served(), noise=0.3), "log")
    assert list(found.accuracy) == ["fast", "history of the LLM", "constant, known afterwards"]
    fast, history, constant = found.accuracy.values()
    assert fast.tau > 0.6
    assert math.isnan(constant.tau)
    assert abs(history.tau) < 0.15
    assert fast.mae < constant.mae <= history.mae
    # Normal errors of one sigma under a Student's t of 3.5: coverage is slightly above nominal at both levels.
    assert 0.5 < fast.coverage_50 < 0.6
    assert 0.9 < fast.coverage_90 < 1.0
    assert constant.coverage_50 == pytest.approx(0.5, abs=0.05)


def changed(log: LoggedTraffic, rows: Sequence[int], **changes: Any) -> LoggedTraffic:
    new = [row._replace(**changes) if i in rows else row for i, row in enumerate(log.rows)]
    return LoggedTraffic.of([*new, *log.engines, *log.predictors], log.origin)


def test_requests_that_cannot_be_replayed_are_counted_by_reason() -> None:
    log = logged(served(100))
    log = changed(log, range(3), outcome="engine_error", output_tokens=None)
    log = changed(log, range(3, 5), one_answer=False)
    log = changed(log, [5], outcome="cancelled", output_tokens=None)
    log = changed(log, [6], outcome="cancelled", censored=True, counted=True, output_tokens=3)
    log = changed(log, [7], input_tokens=None, input_bytes=400)
    log = changed(log, [8], censored=True)  # by the end of the context: its limit is unknown
    log = changed(log, [9], censored=True, max_tokens=1, output_tokens=1)
    found = observed_gain(log, "log")
    assert (found.requests, found.replayed, sorted(found.left_out.values())) == (100, 94, [1, 2, 3])
    assert (found.counted_answers, found.guessed_prompts, found.unsettled) == (1, 1, 2)
    assert found.accuracy["fast"].rows == 92
    prompts = ObservedTraffic.of(log, "log").replay.workload.input_tokens
    assert prompts[1] == 100, "four bytes per token, as in the other prompts"


def test_answers_that_are_not_streamed_are_replayed_without_a_first_token() -> None:
    log = changed(logged(served()), range(0, 600, 3), first_token_s=None)
    found = observed_gain(log, "log")
    assert found.replayed == 600
    assert abs(found.mismatch) < 0.15


def test_the_replay_uses_the_logged_prediction_delay_and_reported_memory() -> None:
    others = PredictorCounts(600, 600, 0, 0, 1.0, 0.25), EngineReading(1.0, "e", kv_tokens=4000, block_size=16)
    found = observed_gain(logged(served(), others=others), "log")
    assert found.prediction_delay_s == 0.25
    assert (found.engine.spec.kv_tokens, found.engine.memory_from) == (4000, "reported by the engine")


def test_too_little_data_is_an_error() -> None:
    with pytest.raises(InputError, match="10 answers of known length are too few"):
        observed_gain(logged(served(10)), "log")
    plain = changed(logged(served(50)), range(50), first_token_s=None)
    with pytest.raises(InputError, match="0 streamed answers of 8 or more tokens are too few to fit an engine"):
        observed_gain(plain, "log")
    with pytest.raises(InputError, match="there is no policy 'nope'"):
        observed_gain(logged(served(50)), "log", policies=["nope"])


@pytest.mark.parametrize(("policy", "matches"), [("sjf", True), (None, False), ("another.package:Policy", False)])
def test_the_replay_that_must_match_is_that_of_the_policy_that_served_the_traffic(
    policy: str | None, matches: bool
) -> None:
    log = logged(served(rate=1.4, policy="sjf"), noise=0.01)
    found = observed_gain(changed(log, range(600), policy=policy), "log", policies=())
    assert found.policy == ("sjf" if matches else "fcfs")
    assert (abs(found.mismatch) < 0.1) is matches
