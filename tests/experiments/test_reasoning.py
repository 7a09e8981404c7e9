"""The study of reasoning on data with known distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.reasoning import (
    LIMIT,
    SENTENCE,
    STUDY,
    ReasoningPairs,
    ReasoningResult,
    compare,
    load_reasoning,
    pair,
    tables,
)
from lengthwise.errors import InputError
from lengthwise.predictors import PredictionInput
from lengthwise.predictors.contract import LogTPredictions
from lengthwise.workloads import LengthSamples, load_castillo
from tests.experiments.samples import check_output

SPREAD = 0.4
PROMPTS = 200


class IgnoresSentence:
    """Predicts the length without the sentence, and ignores the sentence."""

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        medians = [float(each.text.split()[0]) for each in inputs]
        return LogTPredictions.of(np.log(medians), SPREAD, [each.cap for each in inputs])


class UsesSentence(IgnoresSentence):
    """Predicts that the sentence doubles the length."""

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        longer = [np.log(2.0) if each.text.endswith("Think.") else 0.0 for each in inputs]
        blind = super().predict(inputs)
        return replace(blind, mu=blind.mu + longer)


def made_up(factor: float, limit: int = 100_000, *, prompts: int = PROMPTS) -> ReasoningPairs:
    """Return answers distributed as `IgnoresSentence` predicts, times `factor` with the sentence."""
    rng = np.random.default_rng(5)
    medians = np.round(np.exp(rng.normal(5.0, 0.7, prompts)))
    halves = []
    for times, sentence in ((1.0, ""), (factor, " Think.")):
        lengths = medians[:, None] * times * np.exp(SPREAD * rng.standard_t(3.5, (prompts, 8)))
        cut = np.clip(np.rint(lengths), 1, limit).astype(int)
        columns = {
            "corpus": ["a", "b"] * (prompts // 2) + ["a"] * (prompts % 2),
            "prompt_id": [str(number) for number in range(prompts)],
            "llm": ["m"] * prompts,
            "input_tokens": [9] * prompts,
            "prompt": [f"{median:.0f} {number}{sentence}" for number, median in enumerate(medians)],
            "lengths": cut.tolist(),
            "capped": (lengths >= limit).tolist(),
        }
        halves.append(LengthSamples.from_table(columns, origin="made up"))
    return pair(*halves, max_tokens=limit)


@pytest.fixture(scope="module")
def doubled() -> ReasoningResult:
    return compare(IgnoresSentence(), made_up(2.0), name="blind")


def test_a_predictor_that_ignores_the_sentence_predicts_a_ratio_of_1(doubled: ReasoningResult) -> None:
    ratio = doubled.ratios["all"]
    assert ratio.seen == pytest.approx(2.0, rel=0.1)
    assert ratio.low < ratio.seen < ratio.high
    assert ratio.predicted == pytest.approx(1.0)
    assert list(doubled.ratios) == ["all", "a", "b"]
    assert compare(UsesSentence(), made_up(2.0)).ratios["all"].predicted == pytest.approx(
        2.0, rel=0.05
    )  # the limit lowers it a little


def test_right_predictions_cover_and_are_exceeded_at_the_nominal_share(doubled: ReasoningResult) -> None:
    right = doubled.holding("plain", None)
    assert right.covered[0.5] == pytest.approx(0.5, abs=0.04)
    assert right.covered[0.9] == pytest.approx(0.9, abs=0.03)
    assert right.covered_predicted[0.9] == pytest.approx(0.9)
    assert right.above_tail == pytest.approx(right.above_tail_predicted, abs=0.02) == pytest.approx(0.05, abs=0.02)


def test_answers_twice_as_long_as_predicted_overrun_until_calibrated(doubled: ReasoningResult) -> None:
    before, wrong, after = (doubled.holding("steps", seen) for seen in (None, "plain", "steps"))
    assert before.above_tail > 0.2
    assert before.covered[0.9] < 0.8
    assert wrong.above_tail > 0.15
    assert after.above_tail < 0.08
    assert after.covered[0.9] == pytest.approx(0.9, abs=0.04)
    assert before.shift == 1.0
    assert after.shift == pytest.approx(2.0, rel=0.15)
    assert (before.observations, after.observations) == (0, 100)


def test_calibration_on_the_other_kind_lowers_coverage(doubled: ReasoningResult) -> None:
    assert doubled.holding("plain", "steps").covered[0.5] < doubled.holding("plain", None).covered[0.5] - 0.1


def test_predictions_that_know_the_median_order_prompts_well(doubled: ReasoningResult) -> None:
    for half in doubled.halves.values():
        assert 0.5 < half.tau_low < half.tau < half.tau_high
        assert 0.5 < half.tau_of_halves <= 1


def test_capped_answers_are_compared_with_predictions_of_the_same_cap() -> None:
    found = compare(IgnoresSentence(), made_up(1.0, limit=200))
    plain = found.holding("plain", None)
    assert plain.cut == pytest.approx(plain.cut_predicted, abs=0.03)
    assert found.halves["plain"].mean == pytest.approx(found.halves["plain"].predicted_mean, rel=0.05)
    assert (
        plain.covered_predicted[0.5] > 0.55
    )  # an interval that ends at the limit covers every answer that was capped there
    for level in (0.5, 0.9):
        assert plain.covered[level] == pytest.approx(plain.covered_predicted[level], abs=0.03)
    assert plain.above_tail_predicted < 0.04  # a quantile at the limit cannot be exceeded
    assert plain.above_tail == pytest.approx(plain.above_tail_predicted, abs=0.02)


def test_fewer_answers_than_requested_are_all_observed() -> None:
    found = compare(IgnoresSentence(), made_up(1.0, prompts=5), observations=1000)
    assert found.holding("plain", "plain").observations in (16, 24)  # half of five prompts, eight answers each


def test_the_same_seed_gives_the_same_and_one_prompt_is_too_few() -> None:
    pairs = made_up(2.0, prompts=20)
    a, b, c = (compare(IgnoresSentence(), pairs, seed=seed).holding("steps", "steps") for seed in (1, 1, 2))
    assert a == b != c
    with pytest.raises(InputError, match="one prompt only"):
        compare(IgnoresSentence(), made_up(1.0, prompts=1))


def test_the_packaged_pairs_are_shown_as_tables_and_a_page() -> None:
    class Constant(IgnoresSentence):
        def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
            return LogTPredictions.of(np.full(len(inputs), 5.0), 1.0, [each.cap for each in inputs])

    found = compare(Constant(), load_reasoning(), name="constant")
    lengths, ratios, holdings = tables(found)
    assert [row[0] for row in lengths.rows] == ["plain", "step by step"]
    assert [row[0] for row in ratios.rows] == ["all", "Apps", "BigCodeBench", "DS1000", "DollyDataset", "Mbpp"]
    assert [row[1] for row in holdings.rows] == ["nothing", "100 plain", "100 step by step"] * 2
    for table in (lengths, ratios, holdings):
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert np.isnan(found.halves["plain"].tau)
    assert lengths.rows[0][5:7] == ("–", "– to –")
    check_output(STUDY.output(found))


def answers(ids: list[str], **more: Any) -> LengthSamples:
    n = len(ids)
    rows = {"corpus": ["c"] * n, "prompt_id": ids, "llm": ["m"] * n, "input_tokens": [5] * n, "prompt": ids}
    return LengthSamples.from_table({**rows, "lengths": [[int(i), 2] for i in ids], **more}, origin="made up")


def test_the_packaged_pairs_are_castillos_test_prompts_with_and_without_the_sentence() -> None:
    pairs = load_reasoning()
    assert (len(pairs), pairs.max_tokens, pairs.plain.llms) == (60, LIMIT, ("SmolLM2-135M-Instruct",))
    castillo = load_castillo().where(split="test").table
    known = set(zip(*(castillo[name].to_pylist() for name in ("corpus", "prompt_id", "prompt")), strict=True))
    for half, sentence in ((pairs.plain, ""), (pairs.steps, SENTENCE)):
        names = zip(*(half.table[name].to_pylist() for name in ("corpus", "prompt_id", "prompt")), strict=True)
        for corpus, prompt_id, text in names:
            assert (corpus, prompt_id, text.removesuffix(f"\n\n{SENTENCE}")) in known
            assert text.endswith(SENTENCE) == bool(sentence)
        lengths, capped = half.lengths_matrix(), half.capped_matrix()
        assert lengths.shape == (60, 4)
        assert (lengths[capped] == LIMIT).all()
        assert lengths.max() <= LIMIT
    assert pairs.plain.table["prompt_id"].to_pylist() == pairs.steps.table["prompt_id"].to_pylist()


def test_both_halves_are_put_in_one_order_and_unpaired_prompts_left_out() -> None:
    pairs = pair(answers(["1", "2", "3"]), answers(["4", "3", "1"]), max_tokens=9)
    for half in (pairs.plain, pairs.steps):
        assert half.table["prompt_id"].to_pylist() == ["1", "3"]
        assert half.lengths_matrix().tolist() == [[1, 2], [3, 2]]


def test_halves_of_different_prompts_or_llms_are_refused() -> None:
    with pytest.raises(InputError, match="has no prompt in common with"):
        pair(answers(["1"]), answers(["1"], llm=["another"]), max_tokens=9)
