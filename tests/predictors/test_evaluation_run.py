"""Which rows are evaluated, and what the baselines are fitted to."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lengthwise.errors import InputError
from lengthwise.predictors.baselines import ConstantPerLlm
from lengthwise.predictors.evaluation import evaluated_rows, open_predictor, run
from lengthwise.workloads import LengthSamples
from tests.predictors.rows import LLMS, known_rows


@pytest.fixture
def samples() -> LengthSamples:
    parts = [known_rows(30, seed=i, split=split)[0].table for i, split in enumerate(("train", "validate", "test"))]
    return LengthSamples.from_table(pa.concat_tables(parts), origin="made up")


def test_the_test_split_is_evaluated_and_the_others_are_fitted_to(samples: LengthSamples) -> None:
    rows, others = evaluated_rows(samples, None)
    assert rows.splits == ("test",)
    assert others is not None
    assert others.splits == ("train", "validate")
    prompts = [set(part.table["prompt_id"].to_pylist()) for part in (rows, others)]
    assert not prompts[0] & prompts[1]


def test_without_a_test_split_everything_is_evaluated(samples: LengthSamples) -> None:
    rows, others = evaluated_rows(samples.where(split="train"), None)
    assert len(rows) == 60
    assert others is None


def test_a_run_names_its_predictor_and_keeps_to_the_rows_asked_for(samples: LengthSamples) -> None:
    found = run("constant", samples, llm=[LLMS[0]], corpus=["long"])
    assert (found.predictor, found.rows) == ("constant", 15)
    assert set(found.subjects["constant"].by_llm) == {LLMS[0]}
    assert found.constants_from == "30 other rows"


def test_a_baseline_with_nothing_to_fit_to_says_so(samples: LengthSamples) -> None:
    with pytest.raises(InputError, match="no rows to fit 'constant' to"):
        run("constant", samples.where(split="test"))
    assert isinstance(open_predictor("constant", samples), ConstantPerLlm)


def test_an_unknown_split_is_refused(samples: LengthSamples) -> None:
    with pytest.raises(InputError, match="known: test, train, validate"):
        run("constant", samples, split="dev")
