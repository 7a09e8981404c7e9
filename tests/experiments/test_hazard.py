from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments.hazard import GEOMETRIC, LOGT, MEASURED, STUDY, Answers, HazardGrid, Hazards, estimate_hazard, measure
from experiments.study import Run
from lengthwise.simulator.tasks import ResultCache
from tests.experiments.samples import check_output

ROWS, SAMPLES, LIMIT = 4000, 40, 1e6


def answers(lengths: NDArray[np.float64]) -> Answers:
    capped = lengths >= LIMIT
    return Answers(np.minimum(lengths, LIMIT), np.ones(lengths.shape, bool), capped, np.arange(len(lengths)), LIMIT)


def test_a_constant_rate_has_a_flat_hazard() -> None:
    rng = np.random.default_rng(0)
    found = estimate_hazard("x", "y", answers(np.ceil(rng.exponential(400.0, (ROWS, SAMPLES)))), 0)
    rates = [each.times_position.ratio / math.sqrt(each.begin * each.end) for each in found.bins if each.end <= 2.0]
    assert rates == pytest.approx([math.log(2)] * 6, rel=0.05)  # in medians of an exponential
    assert -0.15 < found.slope.ratio < 0.05  # the median of 39 other samples is not exact


def test_a_power_law_has_a_hazard_that_falls_as_one_over_position() -> None:
    rng = np.random.default_rng(0)
    lengths = np.ceil(100.0 * (1 - rng.random((ROWS, SAMPLES))) ** (-1 / 2.0))
    found = estimate_hazard("x", "y", answers(lengths), 0)
    assert found.slope.ratio == pytest.approx(-1.0, abs=0.1)
    tail = [each.times_position.ratio for each in found.bins if each.begin >= 1 and each.ends > 500]
    assert tail == pytest.approx([2.0] * len(tail), rel=0.1)


def test_a_capped_answer_counts_as_exposure_and_not_as_an_end() -> None:
    lengths = np.tile([50.0, 60.0, 70.0, 80.0, 90.0, LIMIT], (100, 1))
    found = estimate_hazard("x", "y", answers(lengths), 0)
    assert sum(each.ends for each in found.bins) == 500


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[Hazards]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LENGTHWISE_DATA", raising=False)
        return measure(Run(ResultCache(tmp_path_factory.mktemp("cache"))), HazardGrid(rows=300))


def test_each_source_has_its_controls_and_the_geometric_one_falls_least(small: list[Hazards]) -> None:
    slopes = {each.kind: each.slope.ratio for each in small}
    assert set(slopes) == {MEASURED, GEOMETRIC, "control: log-normal", LOGT}
    assert slopes[GEOMETRIC] == max(slope for slope in slopes.values() if not np.isnan(slope))


def test_tables_are_complete(small: list[Hazards]) -> None:
    check_output(STUDY.output(small))
