"""Predictions for a workload: true lengths, true lengths with known noise, history, and a model."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lengthwise.errors import InputError
from lengthwise.lengths import DEFAULT_CAP, LogT, Point
from lengthwise.policies import Job
from lengthwise.predictors import PredictionInput, load_predictor
from lengthwise.predictors.history import History
from lengthwise.predictors.resolve import packaged_predictors
from lengthwise.simulator import predict_workload, simulate
from lengthwise.simulator.cluster import as_predictions
from lengthwise.simulator.predictions import learns
from lengthwise.workloads import Workload
from tests.simulator.builders import fleet, requests

LEARNER = "tests.conformance.outside_predictor:LastLength"


def castillo_like(n: int = 400, *, prompts: int = 100, llms: int = 1, seed: int = 0) -> Workload:
    """Repeated prompts, with the mean of their samples and one sample as the true length."""
    rng = np.random.default_rng(seed)
    which, llm = np.arange(n) % prompts, np.arange(n) % llms
    means = np.exp(rng.normal(5.5, 0.9, (prompts, llms)))[which, llm]
    return Workload.from_table(
        {
            "arrival_s": np.arange(n) * 0.1,
            "input_tokens": np.full(n, 30),
            "output_tokens": np.maximum(1, np.round(means * np.exp(0.2 * rng.standard_normal(n)))).astype(int),
            "sample_mean": means,
            "prompt": [f"Write about the number {number}." for number in which],
            "llm": [f"llm-{number}" for number in llm],
        },
        name="like castillo",
    )


def test_the_oracle_predicts_true_lengths_and_none_predicts_nothing() -> None:
    workload = requests([(3, 5), (3, 20_000), (3, 7)]).replace(max_tokens=[100, None, 7])
    predicted = predict_workload(workload, "oracle")
    assert list(predicted) == [Point(5, 100), Point(20_000, 20_000), Point(7, 7)]
    assert predicted.tau == 1.0
    none = predict_workload(workload, "none")
    assert list(none) == [None, None, None]
    assert math.isnan(none.tau)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=20))
def test_the_oracle_is_exact_for_any_length(lengths: list[int]) -> None:
    predicted = predict_workload(requests([(1, length) for length in lengths]), "oracle")
    assert [prediction.mean() for prediction in predicted if prediction is not None] == lengths
    assert predicted.expected_and_tail()[0].tolist() == lengths


@pytest.mark.parametrize("tau", [0.3, 0.6, 0.9])
def test_noise_is_on_the_mean_of_the_samples_and_tau_is_reported(tau: float) -> None:
    workload = castillo_like()
    predicted = predict_workload(workload, f"noisy:{tau}", seed=4)
    reached = stats.kendalltau(predicted.mu, workload.sample_mean).statistic
    assert reached == pytest.approx(tau, abs=0.01)
    assert predicted.tau == pytest.approx(reached, abs=1e-9)


def test_without_a_sample_mean_the_noise_is_on_the_true_length() -> None:
    workload = castillo_like()
    means = workload.sample_mean.tolist()
    some = workload.replace(sample_mean=means[:200] + [None] * 200)
    predicted = predict_workload(some, "noisy:log=0")
    assert np.exp(predicted.mu) == pytest.approx(np.r_[means[:200], workload.output_tokens[200:]])
    bare = workload.replace(sample_mean=None)
    predicted = predict_workload(bare, "noisy:0.6")
    assert stats.kendalltau(predicted.mu, bare.output_tokens).statistic == pytest.approx(0.6, abs=0.01)


def test_a_repeated_prompt_has_the_same_prediction() -> None:
    predicted = predict_workload(castillo_like(), "noisy:0.6")
    assert predicted.mu[:100].tolist() == predicted.mu[100:200].tolist()
    assert len(set(predicted.mu.tolist())) == 100


def test_tau_is_that_within_each_llm() -> None:
    workload = castillo_like(600, prompts=300, llms=2)
    shifted = np.where(np.arange(600) % 2, workload.sample_mean * 50, workload.sample_mean)
    predicted = predict_workload(workload.replace(sample_mean=shifted), "noisy:0.4")
    within = [stats.kendalltau(predicted.mu[llm::2], shifted[llm::2]).statistic for llm in (0, 1)]
    assert predicted.tau == pytest.approx(np.mean(within)) == pytest.approx(0.4, abs=0.01)


def test_predictions_are_the_same_for_the_same_seed_only() -> None:
    workload = castillo_like()
    a, b, c = (predict_workload(workload, "noisy:0.6", seed=seed).mu.tolist() for seed in (1, 1, 2))
    assert a == b != c


def test_history_uses_earlier_answers_only() -> None:
    workload = castillo_like(60, llms=2)
    predicted = predict_workload(workload, "history")
    history = History()
    for row in range(60):
        llm = f"llm-{row % 2}"
        assert predicted[row] == history.predict([PredictionInput("", llm)])[0]
        history.observe(llm, int(workload.output_tokens[row]))


def test_history_treats_a_truncated_answer_as_censored() -> None:
    cut = castillo_like(200).limited_to(100)
    whole = predict_workload(cut.replace(max_tokens=None), "history")
    assert predict_workload(cut, "history").mu[-1] > whole.mu[-1]


def tenants(n: int = 400, gap_s: float = 10.0) -> Workload:
    """One tenant with short answers, one with long ones; the blocks and sessions are always new."""
    rng = np.random.default_rng(5)
    return Workload.from_table(
        {
            "arrival_s": np.arange(n) * gap_s,
            "input_tokens": np.full(n, 130),
            "output_tokens": np.where(np.arange(n) % 2, 400, 40) + rng.integers(0, 20, n),
            "block_hashes": [[2 * row, 2 * row + 1] for row in range(n)],
            "tenant": ["long" if row % 2 else "short" for row in range(n)],
            "session": [str(row) for row in range(n)],
        },
        name="tenants",
        block_size=64,
    )


def test_memory_learns_the_lengths_of_each_tenant() -> None:
    found = predict_workload(tenants(), "memory")
    medians = np.exp(found.mu[200:])
    assert medians[::2] == pytest.approx(50, rel=0.2)
    assert medians[1::2] == pytest.approx(410, rel=0.2)


def test_memory_sees_a_length_only_once_its_request_has_finished() -> None:
    workload = tenants(20)
    late = predict_workload(workload, "memory", finished_s=np.full(20, 1e9))
    assert np.ptp(late.mu) == 0.0
    never = predict_workload(workload, "memory", finished_s=np.full(20, np.nan))
    assert np.ptp(never.mu) == 0.0
    # The first finishes between the arrivals of the fifth and the sixth, no other ever.
    finished_s = np.full(20, np.inf)
    finished_s[0] = 45.0
    one = predict_workload(workload, "memory", finished_s=finished_s)
    assert np.ptp(one.mu[:5]) == 0.0
    assert one.mu[6] < one.mu[0]
    assert np.ptp(predict_workload(tenants(20, gap_s=0.0), "memory").mu) == 0.0


def test_in_a_simulation_memory_learns_from_requests_finished_on_its_fleet() -> None:
    quick, slow = tenants(100, gap_s=30.0), tenants(100, gap_s=0.001)
    assert simulate(quick, fleet(), "sjf", predictor="memory").predictor == "memory"
    taus = [as_predictions(each, fleet(), "memory").tau for each in (quick, slow)]
    assert taus[0] > 0.3
    assert math.isnan(taus[1]) or taus[1] < 0.1


def test_memory_over_a_model_starts_from_the_models_prediction() -> None:
    workload = castillo_like(100)
    over, alone = predict_workload(workload, "memory+fast"), predict_workload(workload, "fast")
    assert over.mu[0] == pytest.approx(alone.mu[0])
    with pytest.raises(InputError, match="no prompt texts"):
        predict_workload(tenants(), "memory+fast")


def test_a_predictor_that_learns_sees_a_length_only_once_its_request_has_finished() -> None:
    workload = castillo_like(200)
    alone = predict_workload(workload, "fast")
    never = predict_workload(workload, "fast+learn", finished_s=np.full(200, np.inf))
    assert np.array_equal(never.mu, alone.mu)
    assert np.array_equal(never.sigma, alone.sigma)
    at_once = predict_workload(workload, "fast+learn", finished_s=workload.arrival_s)
    assert not np.array_equal(at_once.mu, alone.mu)


def test_a_predictor_of_another_package_learns_from_finished_requests_only() -> None:
    workload = castillo_like(200)  # 100 prompts, each twice
    never = predict_workload(workload, LEARNER, finished_s=np.full(200, np.inf))
    assert np.exp(never.mu) == pytest.approx(np.full(200, 100.0))
    at_once = predict_workload(workload, LEARNER, finished_s=np.nextafter(workload.arrival_s, np.inf))
    assert np.exp(at_once.mu[100:]) == pytest.approx(workload.output_tokens[:100])
    assert learns(LEARNER), "so that its fleet's finishing times are used"
    with pytest.raises(InputError, match="no prompt texts"):
        predict_workload(tenants(), LEARNER)


def test_a_model_reads_each_distinct_prompt_once() -> None:
    workload = castillo_like().replace(max_tokens=900)
    shares: list[float] = []
    predicted = predict_workload(workload, "fast", on_progress=shares.append)
    alone = load_predictor("fast").predict([PredictionInput("Write about the number 7.", "llm-0", 900, 30)])[0]
    for row in (7, 107):
        prediction = predicted[row]
        assert isinstance(prediction, LogT)
        assert prediction.cap == 900
        assert prediction.quantile(0.5) == pytest.approx(alone.quantile(0.5))
    assert shares == [1.0]  # 100 distinct prompts are one batch


def test_a_model_file_is_a_predictor(tmp_path: Path) -> None:
    path = tmp_path / "mine.lw"
    path.write_bytes(packaged_predictors()["fast"].read_bytes())
    workload = castillo_like(20)
    assert predict_workload(workload, str(path)).mu.tolist() == predict_workload(workload, "fast").mu.tolist()


def test_a_model_without_prompt_texts_is_an_error_that_names_the_alternatives() -> None:
    with pytest.raises(InputError, match=r"no prompt texts for predictor 'fast'.*oracle, noisy:TAU, history or none"):
        predict_workload(requests([(3, 5)]), "fast")


@pytest.mark.parametrize("spec", ["oracle", "none", "noisy:0.6", "noisy:log=2", "history"])
def test_vectorised_mean_and_tail_equal_those_of_each_job(spec: str) -> None:
    workload = castillo_like(60)
    workload = workload.replace(
        max_tokens=[None, 4000, 800] * 20, output_tokens=np.minimum(workload.output_tokens, 800)
    )
    predicted = predict_workload(workload, spec)
    limits = workload.table["max_tokens"].to_pylist()
    jobs = [
        Job("x", 0.0, prediction=prediction, max_tokens=limit)
        for prediction, limit in zip(predicted, limits, strict=True)
    ]
    expected, tail = predicted.expected_and_tail()
    assert expected == pytest.approx([job.expected for job in jobs], rel=1e-3)
    assert tail == pytest.approx([job.tail for job in jobs], rel=1e-3)


def test_predictions_can_be_shared_between_policies() -> None:
    workload, engines = castillo_like(80), fleet(seqs=4, budget=4096, blocks=2048)
    predicted = predict_workload(workload, "noisy:0.6")
    shared, named, none = (
        simulate(workload, engines, "sjf", predictor=each) for each in (predicted, "noisy:0.6", "none")
    )
    assert shared.started_s.tolist() == named.started_s.tolist() != none.started_s.tolist()


def test_an_empty_workload_has_no_predictions() -> None:
    empty = castillo_like(10).head(0)
    for spec in ("oracle", "none", "noisy:0.6", "history"):
        predicted = predict_workload(empty, spec)
        assert (len(predicted), list(predicted)) == (0, [])
        assert [len(column) for column in predicted.expected_and_tail()] == [0, 0]


def test_the_default_cap_is_not_raised_by_a_length_that_a_predictor_cannot_know() -> None:
    workload = castillo_like(20).replace(output_tokens=np.full(20, 3 * DEFAULT_CAP))
    assert set(predict_workload(workload, "fast").cap.tolist()) == {DEFAULT_CAP}
    assert set(predict_workload(workload, "oracle").cap.tolist()) == {3 * DEFAULT_CAP}


def test_learning_in_a_burst_is_not_misled_by_the_short_answers_that_finish_first() -> None:
    workload = castillo_like(300, prompts=300).replace(arrival_s=np.arange(300) * 0.05)
    # All run at once, each token takes 30 ms: while most arrive, only short ones finish.
    finished_s = workload.arrival_s + 0.03 * workload.output_tokens
    alone = predict_workload(workload, "fast").mu
    learned = predict_workload(workload, "fast+learn", finished_s=finished_s).mu
    assert (learned != alone).mean() > 0.2
    assert (learned - alone)[150:].mean() > -0.15
