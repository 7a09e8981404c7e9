"""Learning while serving, on kinds of prompts left out of training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.learning import (
    MIN_PROMPTS,
    STUDY,
    LearnedSource,
    LearningGrid,
    LearningResult,
    Scores,
    learned,
    model_for,
    read_sources,
    tables,
)
from lengthwise.errors import InputError
from lengthwise.predictors.contract import Description, PredictionInput
from lengthwise.predictors.learner import KnownPrompts
from lengthwise.traffic.scores import kendall_tau
from lengthwise.workloads.datasets import UNCLEAR_LICENCE


def diverse_rows(count: int, source: str, llm: str, finish: str = "stop") -> list[dict[str, object]]:
    return [
        {"prompt": f"prompt {number}", "model": llm, "output_tokens": number + 1, "finish": finish, "source": source}
        for number in range(count)
    ]


def test_a_source_is_the_llm_with_the_most_distinct_prompts(tmp_path: Path) -> None:
    rows = [
        *diverse_rows(MIN_PROMPTS, "large", "second"),
        *diverse_rows(MIN_PROMPTS + 1, "large", "first", "length"),
        *diverse_rows(3, "large", "first"),
        *diverse_rows(MIN_PROMPTS - 1, "small", "first"),
    ]
    (tmp_path / "diverse").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "diverse" / "lengths.parquet")
    found = read_sources(tmp_path)
    assert list(found) == ["large"]
    assert (found["large"].llm, len(found["large"].prompts)) == ("first", MIN_PROMPTS + 1)
    assert found["large"].inputs()[4].max_tokens == 5


def test_a_source_is_judged_by_the_model_trained_without_its_kind(tmp_path: Path) -> None:
    source = "teknium1/GPTeacher"
    assert model_for(source, "fast", None) == "fast"
    assert model_for(UNCLEAR_LICENCE[0], "fast", tmp_path) == "fast"
    with pytest.raises(InputError, match="train a model without gpteacher"):
        model_for(source, "fast", tmp_path)
    (tmp_path / "gpteacher.lw").touch()
    assert model_for(source, "fast", tmp_path) == str(tmp_path / "gpteacher.lw")


def test_each_request_is_predicted_before_its_answer_is_observed() -> None:
    rng = np.random.default_rng(0)
    topics = rng.integers(0, 4, 400)
    tokens = np.exp(4.0 + topics + 0.2 * rng.standard_normal(400)).astype(int).tolist()
    described = [Description(np.array([topic], np.int32), np.empty(0, np.float32)) for topic in topics]
    known = KnownPrompts(np.full(400, 5.0), np.ones(400), described)
    requests = [PredictionInput(str(number), "llm") for number in range(400)]
    found = learned(known, requests, tokens)
    assert found.mu[0] == 5.0
    assert kendall_tau(found.mu[200:], np.array(tokens[200:])) > 0.6
    changed = learned(known, requests, [*tokens[:-1], 1])
    assert changed.mu.tolist() == found.mu.tolist()


def test_the_page_shows_the_kept_rows() -> None:
    kept = json.loads(Path("experiments/results/learning.json").read_text())
    page = Path("docs/studies/learning.md").read_text()
    sources, castillo, latency = kept["tables"]
    for row in sources["rows"]:
        assert "| " + " | ".join(row[number] for number in (0, 1, 3, 4, 6, 7, 9, 10)) + " |" in page
    for row in latency["rows"]:
        if row[1:3] == ["1.1", "with learning over without"]:
            assert f"| {row[0]} | {row[1]} |" in page
            assert "| " + " | ".join(row[3:8]) + " |" in page
    assert f"({castillo['rows'][0][1].lstrip('0')} to {castillo['rows'][0][2].lstrip('0')} on the official test" in page
    mean = sources["rows"][-1]
    assert f"tau is {mean[7].lstrip('0')} on average, {mean[6].lstrip('0')} without learning" in page


def test_the_answer_names_the_mean_and_the_worst_source() -> None:
    sources = tuple(
        LearnedSource(name, "llm", 500, 0.0, Scores(0.2, 0.7, 0.2, 0.7), Scores(first, 0.9, 0.4, covered))
        for name, first, covered in (("a", 0.25, 0.88), ("b", 0.19, 0.93))
    )
    found = LearningResult(LearningGrid(orders=2), sources, (0.54, 0.5375, 100), ())
    assert [len(table.rows) for table in tables(found)] == [3, 1]
    answer = STUDY.output(found).verdict
    assert "tau is 0.400 on average over 2 sources, 0.200 without learning" in answer
    assert "changes by +0.020, on the worst source by -0.010" in answer
    assert "cover 88.0% to 93.0%" in answer
    assert "CASTILLO's test changes by -0.0025" in answer
