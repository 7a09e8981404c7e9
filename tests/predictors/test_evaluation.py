"""Scores of predictors that know the true distribution, beside the baselines."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lengthwise.errors import InputError
from lengthwise.predictors.baselines import ConstantPredictor
from lengthwise.predictors.evaluation import CEILING, PER_BOTH, PER_LLM, PREDICTED_GROUPS, evaluate, evaluated_rows, run
from lengthwise.predictors.prefix_memory import MemoryPredictor
from lengthwise.reports.tables import to_json
from lengthwise.workloads import LengthSamples
from tests.conformance.outside_predictor import LastLength
from tests.predictors.rows import LLMS, Knows, KnowsTheBin, known_rows


def test_the_true_distribution_is_calibrated_and_near_the_ceiling() -> None:
    samples, mu = known_rows(prompts=300)
    found = evaluate(Knows(mu), samples, name="knows")
    mine, ceiling = (found.subjects[name].overall for name in ("knows", CEILING))
    assert mine.coverage_50 == pytest.approx(0.5, abs=0.02)
    assert mine.coverage_90 == pytest.approx(0.9, abs=0.015)
    assert mine.tau > 0.85
    assert mine.crps == pytest.approx(ceiling.crps, rel=0.05)
    assert mine.crps < min(found.subjects[name].overall.crps for name in (PER_LLM, PER_BOTH))


def test_too_narrow_predictions_undercover_and_keep_their_tau() -> None:
    samples, mu = known_rows()
    true, narrow = (evaluate(Knows(mu, sigma), samples).subjects["predictor"].overall for sigma in (0.2, 0.05))
    assert narrow.coverage_90 < 0.6
    assert narrow.width_90 < true.width_90
    assert narrow.tau == pytest.approx(true.tau)
    assert narrow.crps > true.crps


def test_constants_are_fitted_to_the_reference_rows() -> None:
    samples, mu = known_rows()
    longer = known_rows(split="train")[0].where(corpus="long")
    found = evaluate(Knows(mu), samples, reference=longer)
    inside = evaluate(Knows(mu), samples)
    assert found.subjects[PER_LLM].overall.mae_mean > inside.subjects[PER_LLM].overall.mae_mean
    assert found.constants_from == "60 other rows"
    assert "themselves" in inside.constants_from


def test_a_constant_has_no_tau_and_a_constant_per_corpus_has_one() -> None:
    samples, mu = known_rows()
    found = evaluate(Knows(mu), samples)
    assert math.isnan(found.subjects[PER_LLM].overall.tau)
    assert found.subjects[PER_BOTH].overall.tau > 0.3
    assert math.isnan(found.subjects[PER_BOTH].by_corpus["long"].tau)


def test_groups_hold_every_row_once() -> None:
    samples, mu = known_rows()
    mine = evaluate(Knows(mu), samples).subjects["predictor"]
    assert set(mine.by_llm) == set(LLMS)
    assert set(mine.by_corpus) == {"long", "short"}
    for groups in (mine.by_llm, mine.by_corpus, mine.by_predicted):
        assert sum(scores.rows for scores in groups.values()) == mine.overall.rows == len(samples)
    weighted = sum(scores.mae_mean * scores.rows for scores in mine.by_corpus.values()) / len(samples)
    assert mine.overall.mae_mean == pytest.approx(weighted)


def test_rows_are_grouped_by_predicted_median() -> None:
    samples, mu = known_rows()
    mine = evaluate(Knows(mu), samples).subjects["predictor"].by_predicted
    ends = [[float(end.replace(",", "")) for end in group.removesuffix(" tokens").split(" to ")] for group in mine]
    assert len(ends) == PREDICTED_GROUPS
    assert ends == sorted(ends)
    assert all(scores.coverage_50 == pytest.approx(0.5, abs=0.1) for scores in mine.values())
    constant = evaluate(ConstantPredictor.fit(samples.where(llm=LLMS[0])), samples.where(llm=LLMS[0]))
    assert len(constant.subjects["predictor"].by_predicted) == 1, "equal medians are one group"


def test_degenerate_samples_only_count_in_the_raw_error() -> None:
    samples, mu = known_rows()
    columns = samples.table.to_pydict()
    columns["lengths"][0] = [*columns["lengths"][0][:-1], 15_000]
    columns["lengths"][1] = [15_000] * 10
    degenerate = LengthSamples.from_table(columns, origin="made up")
    clean, raw = evaluate(Knows(mu), samples), evaluate(Knows(mu), degenerate)
    assert (raw.left_out, raw.subjects["predictor"].overall.rows) == (1, len(samples) - 1)
    assert raw.degenerate == pytest.approx(11 / (10 * len(samples)))
    assert raw.subjects["predictor"].overall.mae_mean < 2 * clean.subjects["predictor"].overall.mae_mean
    assert raw.subjects["predictor"].overall.raw_mae_mean > 100


def test_scores_do_not_depend_on_the_batch_size() -> None:
    samples, mu = known_rows()
    reported: list[tuple[str, float]] = []
    small = evaluate(Knows(mu), samples, batch=7, progress=lambda what, done: reported.append((what, done)))
    assert to_json(small.to_dict()) == to_json(evaluate(Knows(mu), samples).to_dict())
    assert small.predicted == pytest.approx([np.exp(mu[text]) for text in samples.table["prompt"].to_pylist()])
    assert [done for what, done in reported if what == "predictor"][-1] == 1.0


def test_histogram_predictions_are_scored() -> None:
    samples, mu = known_rows()
    mine = evaluate(KnowsTheBin(mu), samples).subjects["predictor"].overall
    assert math.isnan(mine.mae_std)
    assert mine.tau > 0.5


def test_a_baseline_given_as_predictor_has_the_scores_of_the_baseline() -> None:
    samples, _ = known_rows()
    for by_corpus, name in ((False, PER_LLM), (True, PER_BOTH)):
        found = evaluate(ConstantPredictor.fit(samples, by_corpus=by_corpus), samples, name="again")
        assert to_json(found.subjects["again"]) == to_json(found.subjects[name])


def test_the_dict_is_json_without_the_points_of_the_figure() -> None:
    samples, mu = known_rows()
    plain = json.loads(to_json(evaluate(Knows(mu), samples).to_dict()))
    assert "predicted" not in plain
    assert plain["subjects"][PER_LLM]["overall"]["tau"] is None
    assert set(plain["calibration"]) >= {"0.5", "0.9"}


def test_rows_without_text_cannot_be_predicted() -> None:
    samples, mu = known_rows(prompts=2)
    blank = LengthSamples.from_table(samples.table.drop_columns(["prompt"]), origin="made up")
    with pytest.raises(InputError, match="prompt"):
        evaluate(Knows(mu), blank)


@pytest.fixture
def samples() -> LengthSamples:
    parts = [known_rows(30, seed=i, split=split)[0].table for i, split in enumerate(("train", "validate", "test"))]
    return LengthSamples.from_table(pa.concat_tables(parts), origin="made up")


def test_the_test_split_is_evaluated_and_baselines_are_fitted_to_the_others(samples: LengthSamples) -> None:
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


def test_a_run_scores_the_selected_rows(samples: LengthSamples) -> None:
    found = run("constant", samples, llm=[LLMS[0]], corpus=["long"])
    assert (found.predictor, found.rows) == ("constant", 15)
    assert set(found.subjects["constant"].by_llm) == {LLMS[0]}
    assert found.constants_from == "30 other rows"


def test_a_baseline_without_rows_to_fit_is_an_error(samples: LengthSamples) -> None:
    with pytest.raises(InputError, match="no rows to fit 'constant' to"):
        run("constant", samples.where(split="test"))


def test_an_unknown_split_is_refused(samples: LengthSamples) -> None:
    with pytest.raises(InputError, match="known: test, train, validate"):
        run("constant", samples, split="dev")


def test_a_limit_keeps_every_llm_and_corpus(samples: LengthSamples) -> None:
    found = run("constant", samples, limit=12)
    assert found.rows == 12
    assert set(found.subjects["constant"].by_llm) == set(LLMS)
    assert set(found.subjects["constant"].by_corpus) == {"long", "short"}


def test_a_predictor_of_another_package_learns_from_each_row_after_it_is_scored() -> None:
    samples, _ = known_rows(prompts=60)
    equal = pa.array(["one"] * len(samples))
    table = samples.table.set_column(samples.table.column_names.index("prompt"), "prompt", equal)
    scores = evaluate(LastLength(), replace(samples, table=table), name="p").subjects["p"].overall
    assert not math.isnan(scores.tau), "the same prompt is predicted by the row before"


def test_prefix_memory_is_scored_on_each_row_before_it_observes_it() -> None:
    samples, _ = known_rows(prompts=200)
    prompts = [
        f"{'Answer in one word. ' * 20 if corpus == 'short' else 'Write an essay. ' * 20}{row}"
        for row, corpus in enumerate(samples.table["corpus"].to_pylist())
    ]
    table = samples.table.set_column(samples.table.column_names.index("prompt"), "prompt", pa.array(prompts))
    scores = evaluate(MemoryPredictor(), replace(samples, table=table), name="memory").subjects["memory"].overall
    assert scores.tau > 0.3
    assert 0.8 < scores.coverage_90 <= 1.0
