"""The rows and samples that each rule keeps, and the lengths in the paper's tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from experiments.castillo.rows import LLMS, Truth, evaluated_parts, rows_of, trained_on
from lengthwise.errors import InputError
from lengthwise.workloads import LengthSamples
from tests.predictors.rows import known_rows


def samples_of(*lengths: list[int], corpus: str = "Mbpp", split: str = "test") -> LengthSamples:
    rows = len(lengths)
    return LengthSamples.from_table(
        {
            "corpus": [corpus] * rows,
            "split": [split] * rows,
            "prompt_id": [f"p{i}" for i in range(rows)],
            "llm": ["meta-llama/Llama-3.2-1B-Instruct"] * rows,
            "input_tokens": [10] * rows,
            "lengths": list(lengths),
            "prompt": [f"prompt {i}" for i in range(rows)],
        },
        origin="test",
    )


NEVER_ENDS = samples_of([100, 200, 15_001], [10, 20, 30])


def test_the_papers_rule_removes_the_row_and_castillos_only_the_sample() -> None:
    assert [len(Truth.of(NEVER_ENDS, rule)) for rule in ("all", "paper", "castillo")] == [2, 1, 2]
    assert Truth.of(NEVER_ENDS, "castillo").mean == pytest.approx([150, 20])
    assert Truth.of(NEVER_ENDS, "all").mean == pytest.approx([15_301 / 3, 20])
    assert Truth.of(NEVER_ENDS, "paper").keys == [("Mbpp", "p1")]


def test_a_sample_of_exactly_15000_tokens_does_not_exceed_the_papers_limit() -> None:
    samples = samples_of([15_000, 15_000, 15_000])
    assert len(Truth.of(samples, "paper")) == 1
    assert len(Truth.of(samples, "castillo")) == 0


def test_p99_is_the_interpolated_quantile_of_the_samples() -> None:
    truth = Truth.of(samples_of(list(range(10, 110, 10))))
    assert truth.p99 == pytest.approx([np.quantile(np.arange(10, 110, 10), 0.99)])


def test_alpaca_is_evaluated_on_all_its_splits_and_not_trained_on() -> None:
    parts = (samples_of([1], split="train"), samples_of([2]), samples_of([3], corpus="Alpaca", split="train"))
    both = LengthSamples(pa.concat_tables([part.table for part in parts]), origin="test")
    assert trained_on(both).lengths_matrix().tolist() == [[1]]
    assert [(table, part.lengths_matrix().tolist()) for table, _, part in evaluated_parts(both)] == [
        (2, [[2]]),
        (3, [[3]]),
    ]


def test_data_without_the_llamas_are_refused() -> None:
    samples, _ = known_rows()
    with pytest.raises(InputError, match=r"Llama-3\.2-1B"):
        rows_of(LLMS[0], samples)
