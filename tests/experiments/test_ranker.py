"""The ranker's study: both recipes are scored on kinds that neither was trained on, and simulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments import ranker
from experiments.ranker import MEAN, RECIPES, STUDY, RankerGrid, measure
from experiments.study import Run
from lengthwise.predictors.fast import FastPredictor
from lengthwise.simulator.tasks import ResultCache
from lengthwise.training.fast.train import FastTrainer
from lengthwise.training.fast.word_tables import Vocabulary
from tests.experiments.samples import check_output
from tests.experiments.test_left_out_groups import pairs
from tests.training.fast.test_training import words


def test_both_recipes_are_trained_without_each_kind_and_ltr_is_simulated_beside_sjf(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fit, trained = FastTrainer.fit, []

    def watched(self: FastTrainer, *arguments: object) -> FastPredictor:
        trained.append(self.recipe.ranker)
        return fit(replace(self, recipe=replace(self.recipe, hidden=16, joint=8)), *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ranker, "training_pairs", lambda ships: pairs())
    monkeypatch.setattr(Vocabulary, "of_packaged", lambda _: words())
    monkeypatch.setattr(FastTrainer, "fit", watched)
    grid = RankerGrid(
        seeds=2, parts=2, networks=1, epochs=2, loads=(1.1,), requests=40, llms=("llama-3.1-8b", "gemma-3-4b")
    )
    found = measure(Run(ResultCache(tmp_path)), grid)
    check_output(STUDY.output(found))
    assert trained == [""] * 3 + ["all"] * 3 + ["kind"] * 3
    assert set(found.left_out) == {"chat", "writing"}
    assert set(found.official) == {"rank", "fast", *(f"{recipe}, no teacher" for recipe in RECIPES)}
    assert [row.llm.rsplit("/")[-1] for row in found.latency][-1] == MEAN
    assert len(found.latency) == 3
    assert found.latency[0].e2e.low <= found.latency[0].e2e.ratio <= found.latency[0].e2e.high
