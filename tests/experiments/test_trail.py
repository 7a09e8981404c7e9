"""TRAIL's scheduling on a simulated engine: predictions, measurements and claims."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.study import Run
from experiments.trail import (
    AGE,
    EVERY,
    KINDS,
    MAX_TOKENS,
    PAPER_ERROR_RATIO,
    PAPER_RATE,
    PROBES,
    PROMPT,
    STUDY,
    TRUTH,
    Probe,
    Probed,
    TrailGrid,
    TrailResult,
    mean_error,
    measure,
    point,
    probe_of_error,
    tables,
)
from lengthwise.intervals import Ratio
from lengthwise.policies import Job, JobColumns
from lengthwise.predictors.probe import load_probe
from lengthwise.simulator import predict_workload
from lengthwise.simulator.tasks import ResultCache
from lengthwise.training.probe.errors_by_age import error_ratio
from lengthwise.workloads import Workload, castillo_workload, load_castillo
from tests.experiments.samples import check_output

CAP = MAX_TOKENS
SMALL = TrailGrid(
    seeds=2, requests=80, limits=(0.0, 0.8), slots=(2,), loads=(0.9,), large=160, kv_tokens=3_000, predictor="noisy:0.5"
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> TrailResult:
    return measure(Run(ResultCache(tmp_path_factory.mktemp("cache"))), SMALL)


@pytest.fixture(scope="module")
def workload() -> Workload:
    samples = load_castillo().where(split="test")
    return castillo_workload(samples, "llama-3.1-8b", requests=300, rate=1.0, seed=3, max_tokens=CAP)


@pytest.mark.parametrize("error", [10.0, 60.0])
def test_the_stand_in_has_the_given_error(workload: Workload, error: float) -> None:
    probe = probe_of_error(workload, error, cap=CAP, seed=3)
    off = []
    for row in range(len(workload)):
        length = int(workload.output_tokens[row])
        ages = np.arange(1, length)
        jobs = JobColumns.filled(arrival=workload.arrival_s[row], expected=1.0, cap=CAP, generated=ages)
        off.append(np.abs(probe.remaining(jobs) - (length - ages)))
    assert np.concatenate(off).mean() == pytest.approx(error, rel=0.02)


def test_between_two_readings_the_last_reading_is_counted_down() -> None:
    wrong = np.log([[2.0, 0.5, 1.0]])
    probe = Probe(np.array([7.0]), np.array([40.0]), wrong)
    ages = np.arange(1, 36)
    remaining = probe.remaining(JobColumns.filled(arrival=7.0, expected=1.0, cap=CAP, generated=ages))
    first, second, third = remaining[:EVERY], remaining[EVERY : 2 * EVERY], remaining[2 * EVERY :]
    assert first.tolist() == [78.0 - n for n in range(EVERY)]  # 39 remaining, predicted as 78
    assert second[:3].tolist() == [11.5, 10.5, 9.5]
    assert second[-1] == 1.0, "a request predicted to be done has one token left"
    assert third.tolist() == [7.0, 6.0, 5.0]


def test_before_the_first_token_a_probed_request_is_ranked_by_its_prompt() -> None:
    probe = Probe(np.array([0.0]), np.array([40.0]), np.zeros((1, 3)))
    policy = Probed(c=0.8, probe=probe)
    job = Job("a", 0.0, prediction=None, max_tokens=CAP)
    assert policy.rank(job) == job.expected
    job.generated = 10
    assert policy.rank(job) == 30.0


def test_certain_predictions_have_the_same_error_at_every_age_until_they_are_exceeded() -> None:
    alike = Workload.from_table(
        {"arrival_s": [0.0, 1.0], "input_tokens": [1, 1], "output_tokens": [50, 50], "max_tokens": [CAP, CAP]}, name="x"
    )
    predictions = replace(predict_workload(alike, "oracle"), mu=np.log([60.0, 80.0]))
    assert mean_error(alike, predictions, CAP) == pytest.approx(20.0)
    assert mean_error(alike, point(predictions), CAP) == pytest.approx(20.0)


def test_predictions_refined_by_age_are_nearer_than_those_from_the_prompt(workload: Workload) -> None:
    predictions = predict_workload(workload, "noisy:0.4")
    assert mean_error(workload, predictions, CAP) < mean_error(workload, point(predictions), CAP)


def test_every_kind_of_prediction_is_served_at_every_c_with_and_without_a_cache(found: TrailResult) -> None:
    assert [(run.setting.caching, run.predictions, run.c) for run in found.over_c] == [
        (caching, kind, c) for caching in (False, True) for kind in KINDS for c in SMALL.limits
    ]
    assert {run.setting.rate for run in found.over_c} == {PAPER_RATE}
    assert [run.setting.load for run in found.where] == pytest.approx([0.9] * 4)
    assert found.errors[PROMPT] > found.errors[AGE] > 0 == found.errors[TRUTH]
    ratios = [found.errors[PROMPT] / found.errors[name] for name in PROBES]
    assert ratios == pytest.approx([error_ratio(load_probe("default")), PAPER_ERROR_RATIO])


def test_recomputed_tokens_are_counted_and_a_cache_saves_most_of_them(found: TrailResult) -> None:
    none, eager = ([run for run in found.where if run.c == c] for c in (0.0, 0.8))
    assert all(run.over_none == Ratio(1.0, 1.0, 1.0) for run in none)
    without, cached = eager
    assert without.preemptions > 0.02
    assert without.recomputed > 4 * cached.recomputed


def test_requests_are_preempted_for_memory_only_if_kv_memory_binds(
    found: TrailResult,
) -> None:
    enough, binding = ([run for run in runs if run.c == 0.0] for runs in (found.large, found.memory))
    assert all(run.preemptions == 0 for run in enough)
    assert all(run.preemptions > 0 and run.setting.kv_tokens == SMALL.kv_tokens for run in binding)


def test_tables_page_and_json_are_complete(found: TrailResult) -> None:
    titles = [table.title for table in tables(found)]
    assert titles[0] == "Remaining length: mean absolute error"
    assert "Over c at 14 requests/s, no prefix cache" in titles
    assert "is not a probe" in tables(found)[0].notes[1]
    check_output(STUDY.output(found))
    assert "Where preemption pays" in titles
