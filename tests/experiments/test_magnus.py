"""Magnus's predictor: a forest on embedding, application and size that learns from the answers it missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import magnus
from experiments.magnus import AGAIN, NOTHING, STATIC, STUDY, Forest, MagnusGrid, measure
from experiments.study import Run
from lengthwise.lengths import wide_prior
from lengthwise.predictors import load_predictor
from lengthwise.predictors.contract import PredictionInput
from lengthwise.predictors.fast import FastPredictor
from lengthwise.simulator.tasks import ResultCache
from lengthwise.workloads import load_castillo
from tests.experiments.samples import check_output

LLM = "llama-3.1-8b"


@pytest.fixture(scope="module")
def text() -> FastPredictor:
    found = load_predictor("fast")
    assert isinstance(found, FastPredictor)
    return found


def asked(number: int) -> PredictionInput:
    return PredictionInput(f"Number {number} of these requests.", LLM, template=("long", "short")[number % 2])


def test_it_learns_the_application_from_the_answers_that_it_missed(text: FastPredictor) -> None:
    forest = Forest(text, every=20, trees=20)
    assert forest.predict([asked(0)]).mu[0] == pytest.approx(wide_prior().mu)
    for number in range(60):
        forest.observe(asked(number), (900, 30)[number % 2])
    long, short = forest.predict([asked(60), asked(61)]).quantile(0.5)
    assert long == pytest.approx(900, rel=0.2)
    assert short == pytest.approx(30, rel=0.3)


def test_answers_within_ten_tokens_and_a_tenth_are_not_learned_from(text: FastPredictor) -> None:
    forest = Forest(text, every=1, trees=5)
    forest.fit([asked(number) for number in range(20)], [100.0] * 20)
    forest.observe(asked(21), 105)
    forest.observe(asked(22), 109)
    assert len(forest._rows) == 20
    forest.observe(asked(23), 130)
    forest.observe(asked(24), 60)
    assert len(forest._rows) == 22


def test_every_predictor_is_scored_on_the_same_streams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sample = load_castillo().where(llm=LLM)
    monkeypatch.setattr(magnus, "_castillo", lambda part: sample)
    found = measure(Run(ResultCache(tmp_path)), MagnusGrid(llms=1, orders=1, every=20, requests=60, trees=5))
    check_output(STUDY.output(found))
    by = {each.predictor: each for each in found}
    assert by[STATIC].tau > by[NOTHING].tau
    assert by[AGAIN].mae < by[NOTHING].mae
