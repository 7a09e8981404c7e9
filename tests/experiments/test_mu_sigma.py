from __future__ import annotations

import numpy as np
import pytest

from experiments.mu_sigma import STUDY, MuSigmaGrid, MuSigmaResult, measure
from experiments.study import Run
from experiments.tie.traffic import synthetic_traffic
from lengthwise.errors import InputError
from lengthwise.simulator.tasks import ResultCache
from tests.experiments.samples import check_output


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> MuSigmaResult:
    grid = MuSigmaGrid(seeds=2, requests=300, correlations=(-0.8, 0.8), predictor="noisy:0.5")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LENGTHWISE_DATA", raising=False)
        return measure(Run(ResultCache(tmp_path_factory.mktemp("cache"))), grid)


@pytest.mark.parametrize("correlation", [-0.8, 0.0, 0.8])
def test_synthetic_prompts_have_the_given_correlation(correlation: float) -> None:
    traffic = synthetic_traffic(4000, 0, correlation)
    assert np.corrcoef(traffic.logt.mu, np.log(traffic.logt.sigma))[0, 1] == pytest.approx(0.78 * correlation, abs=0.06)


def test_tie_loses_where_short_answers_are_uncertain_and_not_where_long_ones_are(small: MuSigmaResult) -> None:
    negative, positive = small.swept
    assert negative.per_token.ratio > 1.5 > 1.2 > positive.per_token.ratio


def test_both_definitions_are_measured_and_differ(small: MuSigmaResult) -> None:
    negative = small.swept[0]
    assert 1.0 < negative.total.ratio < negative.per_token.ratio


def test_tie_equals_sjf_for_predictions_of_equal_width(small: MuSigmaResult) -> None:
    noisy, own = small.castillo
    assert noisy.per_token.ratio == pytest.approx(1.0, abs=0.1)
    assert own.per_token.ratio != noisy.per_token.ratio


def test_every_request_is_in_one_fifth(small: MuSigmaResult) -> None:
    medians = [each.median_tokens for each in small.fifths]
    assert medians == sorted(medians)
    assert len(medians) == 5


def test_tables_are_complete(small: MuSigmaResult) -> None:
    output = STUDY.output(small)
    assert " at -0.8, " in output.verdict
    check_output(output)


def test_a_correlation_beyond_one_is_refused() -> None:
    with pytest.raises(InputError, match=r"1\.5"):
        MuSigmaGrid(correlations=(1.5,))
