"""The packaged ranker: scores for `ltr`, which are lengths for other policies, on the words of `fast`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.predictors import load_predictor
from lengthwise.predictors.fast import WORDS, FastPredictor
from lengthwise.predictors.model_file import SHARES, read_model_file, write_model_file
from lengthwise.predictors.resolve import packaged_predictors
from lengthwise.simulator import Fleet, simulate
from lengthwise.workloads import castillo_workload, load_castillo

LLAMA = "llama-3.1-8b"
PROMPTS = ("Say yes.", "What is the capital of France?", "Write a long story about a dragon and a knight.")


@pytest.fixture(scope="module")
def rank() -> FastPredictor:
    found = load_predictor("rank")
    assert isinstance(found, FastPredictor)
    return found


def test_scores_order_prompts_by_the_length_of_their_answers(rank: FastPredictor) -> None:
    assert np.all(np.diff(rank.predict(PROMPTS, [LLAMA] * len(PROMPTS)).mu) > 0.0)


def test_its_scores_are_lengths_in_tokens(rank: FastPredictor) -> None:
    found = rank.predict(PROMPTS, [LLAMA] * len(PROMPTS))
    assert np.all((found.quantile(0.05) < found.quantile(0.5)) & (found.quantile(0.5) < found.quantile(0.95)))
    assert 100.0 < found.quantile(0.5)[-1] < 3000.0


def test_the_file_is_small_since_it_shares_the_words_of_fast(rank: FastPredictor) -> None:
    path = packaged_predictors()["rank"]
    file = read_model_file(path)
    assert path.stat().st_size < 1.5e6
    assert not set(WORDS) & set(file.parts)
    assert file.card[SHARES]["of"] == "fast"
    assert rank.tables.words.shape == load_predictor("fast").tables.words.shape  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"of": "fast", "sha256": {"words.txt": "0"}}, "trained with the words of another 'fast'"),
        ({"of": "slow", "sha256": {}}, "shares parts that are not packaged"),
        ({"of": "fast", "sha256": {"none.txt": "0"}}, "shares parts that are not packaged"),
        (7, "shares parts that are not packaged"),
    ],
)
def test_parts_of_another_file_are_refused(shares: object, message: str, tmp_path: Path) -> None:
    file, path = read_model_file(packaged_predictors()["rank"]), tmp_path / "other.lw"
    write_model_file(path, {**file.card, SHARES: shares}, file.parts)
    with pytest.raises(InputError, match=message):
        load_predictor(path)


def test_ltr_with_it_serves_in_another_order_than_sjf_with_fast() -> None:
    workload = castillo_workload(load_castillo(split="test"), LLAMA, requests=60, rate=20.0, seed=0)
    fleet = Fleet.parse("1*llama-3-8b@a100").limited_to(max_num_seqs=4)
    ltr, sjf, fcfs = (
        simulate(workload, fleet, policy, predictor=predictor)
        for policy, predictor in (("ltr", "rank"), ("sjf", "fast"), ("fcfs", "none"))
    )
    assert not np.array_equal(ltr.finished_s, sjf.finished_s)
    assert ltr.summary.e2e_s.mean < fcfs.summary.e2e_s.mean
