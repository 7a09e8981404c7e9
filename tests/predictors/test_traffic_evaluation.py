from __future__ import annotations

import math

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.predictors.traffic_evaluation import ALONE, HISTORY, SERVED, evaluate_traffic, score_rows
from tests.traffic.traffic_rows import PLAIN, made, traffic


def test_calibrated_predictions_have_nominal_coverage_and_beat_the_history() -> None:
    found = evaluate_traffic(traffic(made(2000)))
    served, history = found.overall[SERVED], found.overall[HISTORY]
    assert served.coverage_50 == pytest.approx(0.5, abs=0.04)
    assert served.coverage_90 == pytest.approx(0.9, abs=0.03)
    assert served.tau > 0.5
    assert math.isnan(history.tau), "all predictions are equal"
    assert served.log_error < history.log_error
    assert served.log_score > history.log_score
    assert found.calibration[0.9] == served.coverage_90


def test_scores_are_grouped_by_model_tenant_day_and_predictor() -> None:
    rows = made(1500, tenant="a") + made(500, seed=1, shift=1.5, tenant="b", predictor="my.lw")
    found = evaluate_traffic(traffic(rows))
    assert list(found.groups["tenant"]) == ["a", "b"], "the largest first"
    assert found.groups["tenant"]["a"][SERVED].coverage_90 > 0.85
    assert found.groups["tenant"]["b"][SERVED].coverage_90 < 0.6
    assert found.groups["predictor"]["my.lw"][SERVED].rows == 500
    days = found.groups["day"]
    assert list(days) == ["2001-09-09", "2001-09-10"]
    assert sum(scores[SERVED].rows for scores in days.values()) == 2000
    assert found.groups["model"]["m"] == found.overall


def test_tau_over_time_is_by_windows_of_answers_in_the_order_in_which_they_ended() -> None:
    rows = [
        row._replace(finished_s=row.arrival_s + 1, predictor_mu=5.0 - 0.001 * n, mu=5.0 if n < 300 else row.mu)
        for n, row in enumerate(made(700))
    ]
    late = rows[0]._replace(finished_s=rows[-1].arrival_s + 100, output_tokens=99_999)
    windows = evaluate_traffic(traffic([late, *rows[1:]])).windows
    assert [(each.first, each.last) for each in windows] == [(100 * n + 1, 100 * n + 100) for n in range(7)]
    taus = [each.scores[SERVED].tau for each in windows]
    assert all(math.isnan(tau) for tau in taus[:2]), "all are equal until it has learned"
    assert min(taus[4:6]) > 0.4
    assert abs(windows[5].scores[ALONE].tau) < 0.2
    assert windows[-1].until == late.finished_s
    assert len(evaluate_traffic(traffic(made(30))).windows) == 1
    assert len(evaluate_traffic(traffic(made(5000))).windows) == 20


def test_an_answer_at_its_limit_is_scored_and_a_cancelled_one_is_not() -> None:
    rows = made(50)
    cut = PLAIN._replace(max_tokens=90, output_tokens=90, censored=True, finish_reason="length")
    left = PLAIN._replace(output_tokens=3, censored=True, finish_reason=None, outcome="cancelled")
    failed = PLAIN._replace(output_tokens=None, finish_reason=None, outcome="engine_error")
    found = evaluate_traffic(traffic([*rows, cut, left, failed]))
    assert (found.requests, found.scored) == (53, 51)
    assert found.finish_reasons == {"stop": 50, "length": 1, "cancelled": 1, "engine_error": 1}
    assert evaluate_traffic(traffic([cut])).overall[SERVED].coverage_50 == 1.0, "its median, 148, is above the limit"


def test_the_log_score_is_the_density_or_for_a_censored_answer_the_survival() -> None:
    from scipy import stats

    rows = traffic([PLAIN, PLAIN._replace(censored=True, max_tokens=100)])
    z = (math.log(100) - 5.0) / 0.5
    expected = [stats.t.logpdf(z, 3.5) - math.log(0.5), stats.t.logsf(z, 3.5)]
    scored = [score_rows(rows.take(np.array([row])), rows.prediction[[row]]).log_score for row in (0, 1)]
    assert scored == pytest.approx(expected)


def test_rows_without_a_prediction_of_the_predictor_are_scored_as_served_only() -> None:
    rows = made(40)
    late = [
        row._replace(predictor_mu=None, predictor_sigma=None, source="history", mu=5.0, sigma=1.0)
        for row in made(10, seed=2)
    ]
    found = evaluate_traffic(traffic(rows + late))
    assert found.overall[SERVED].rows == 50
    assert found.overall[ALONE].rows == 40
    assert found.sources == {"predictor": 40, "history": 10}


def test_a_log_without_predictions_is_an_input_error() -> None:
    with pytest.raises(InputError, match="none of 1 requests has a prediction and a length"):
        evaluate_traffic(traffic([PLAIN._replace(mu=None, sigma=None)]))


def test_the_dict_holds_no_arrays() -> None:
    found = evaluate_traffic(traffic(made(30))).to_dict()
    assert not any(isinstance(value, np.ndarray) for value in found.values())
