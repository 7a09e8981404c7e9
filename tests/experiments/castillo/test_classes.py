"""A predictor as a classifier of lengths."""

from __future__ import annotations

from experiments.castillo.classes import class_table
from experiments.castillo.paper import CONSTANT, predict
from experiments.castillo.rows import rows_to_score, trained_on
from lengthwise.files import sample
from lengthwise.predictors.baselines import ConstantPredictor
from lengthwise.workloads import LengthSamples
from tests.predictors.rows import KnowsTheBin, known_rows


def test_a_constant_scores_as_the_constant_beside_it() -> None:
    samples = LengthSamples.read(sample("castillo.parquet"))
    rows, fitted = rows_to_score(samples), trained_on(samples)
    shown = class_table(predict(ConstantPredictor.fit(fitted), rows), rows, fitted, "again").rows
    assert [row[1] for row in shown] == ["again", CONSTANT] * 7
    assert [row[2:] for row in shown[::2]] == [row[2:] for row in shown[1::2]]


def test_histogram_predictions_are_scored() -> None:
    samples, mu = known_rows()
    shown = class_table(predict(KnowsTheBin(mu), samples), samples, samples, "knows").rows
    by_name = {row[0]: row for row in shown if row[0]}
    assert float(by_name["100 wide"][2].removesuffix(" %")) > 70
    assert float(by_name["100 wide"][-1]) > 0.8
    assert set(by_name) == {
        "50 wide",
        "100 wide",
        "200 wide",
        "500 wide",
        "1000 wide",
        "20 of equal mass",
        "mu-Serve's five",
    }
