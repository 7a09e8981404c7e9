"""The study of stated lengths, on prompts whose answers keep to them."""

from __future__ import annotations

import numpy as np

from experiments.learning import SourceRows
from experiments.stated import StatedGrid, StatedResult, score, tables


def test_reading_stated_lengths_orders_answers_that_keep_to_them() -> None:
    words = np.random.default_rng(0).integers(20, 2_000, 60)
    prompts = tuple(f"Tell me about the number {number} in {count} words." for number, count in enumerate(words))
    rows = SourceRows("made", "some-llm", prompts, np.rint(1.35 * words).astype(int), np.zeros(len(words), bool))
    found = score(rows, StatedGrid(predictor="fast", prompts=50))
    assert found.prompts == 50
    assert found.tau[1] > 0.9 > found.tau[0]
    (table,) = tables(StatedResult(StatedGrid(), (found, found)))
    assert len(table.rows) == 3
