"""The left-out study adapts on prompts outside the training and scores on test prompts only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments import left_out
from experiments.left_out import (
    CORPORA,
    STUDY,
    KnownPredictions,
    LeftOut,
    LeftOutGrid,
    LeftOutResult,
    Prompts,
    leave_out,
    measure,
    split_rows,
)
from experiments.study import Run
from lengthwise.errors import InputError
from lengthwise.predictors import load_predictor
from lengthwise.predictors.fast import FastPredictor
from lengthwise.simulator.tasks import ResultCache
from lengthwise.traffic.scores import PredictionScores
from lengthwise.training.fast.train import FastTrainer
from lengthwise.training.pairs import PairTable
from lengthwise.workloads import LengthSamples
from tests.experiments.samples import check_output
from tests.training.fast.test_training import words

LLMS = ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-3B-Instruct", "google/gemma-3-4b-it")


def scored(tau: float, coverage_50: float, coverage_90: float) -> PredictionScores:
    return PredictionScores(tau=tau, coverage_50=coverage_50, coverage_90=coverage_90)


def samples(prompts: int = 1500) -> LengthSamples:
    rng = np.random.default_rng(0)
    mu = rng.normal(5.5, 0.8, prompts)
    columns: dict[str, list[object]] = {
        name: [] for name in ("corpus", "split", "prompt_id", "llm", "lengths", "prompt")
    }
    for i in range(prompts):
        for shift, llm in enumerate(LLMS):
            columns["corpus"].append(CORPORA[i % 6])
            columns["split"].append(("train", "validate", "test")[i % 3])
            columns["prompt_id"].append(f"p{i}")
            columns["llm"].append(llm)
            columns["lengths"].append([int(x) + 1 for x in np.exp(mu[i] + 0.3 * shift + 0.3 * rng.standard_t(3.5, 4))])
            columns["prompt"].append(f"{mu[i]:.4f} number {i}")
    return LengthSamples.from_table({**columns, "input_tokens": [5] * len(columns["llm"])}, origin="made up")


def known_predictions(prompts: Prompts) -> KnownPredictions:
    mu = np.array([float(text.split()[0]) for text in prompts.texts])
    return KnownPredictions(LLMS[1:], np.stack([mu, mu + 0.3, mu - 1.0], axis=1), np.full((len(mu), 3), 0.3), 3.5)


def test_pool_training_and_test_prompts_are_disjoint() -> None:
    rows = samples()
    prompts = Prompts.of(rows, "llama-3.1-8B")
    table = split_rows(rows)["rest"].table
    seen = set(zip(table["corpus"].to_pylist(), table["prompt_id"].to_pylist(), strict=True))
    assert len(seen) > 800
    pool = {key for key, test in zip(prompts.keys, prompts.test, strict=True) if not test}
    assert 100 <= len(pool) <= 250
    assert not pool & seen
    assert all(int(key[1][1:]) % 3 == 1 for key in pool)
    assert all(int(key[1][1:]) % 3 == 2 for key, test in zip(prompts.keys, prompts.test, strict=True) if test)


def test_an_adapted_llm_is_predicted_about_as_well_as_possible() -> None:
    prompts = Prompts.of(samples(6000), "llama-3.1-8B")
    best = scored(0.7, 0.5, 0.9)
    found = leave_out(known_predictions(prompts), prompts, best, lengths=60, draws=3)
    assert found.adapted.tau == pytest.approx(found.unknown.tau, abs=0.01)
    assert found.unknown.coverage_90 < 0.5
    assert 0.85 < found.adapted.coverage_90 < 0.95
    assert len({draw.coverage_90 for draw in found.draws}) == 3


def test_draws_are_reproducible() -> None:
    prompts = Prompts.of(samples(), "llama-3.1-8B")
    known = scored(0.7, 0.5, 0.9)
    first, second = (leave_out(known_predictions(prompts), prompts, known, lengths=20, draws=1) for _ in range(2))
    assert first == second


def test_the_target_is_met_by_both_tau_and_coverage() -> None:
    row = LeftOut("m", 180, 100, scored(0.6, 0.5, 0.9), scored(0.5, 0.5, 0.9), (scored(0.58, 0.5, 0.9),))
    assert row.met
    for draw in (scored(0.56, 0.5, 0.9), scored(0.58, 0.5, 0.84), scored(0.58, 0.5, 0.96)):
        assert not replace(row, draws=(draw,)).met


def test_a_predictor_that_knows_the_llm_and_a_pool_too_small_are_refused() -> None:
    prompts = Prompts.of(samples(), "llama-3.1-8B")
    with pytest.raises(InputError, match="this predictor knows"):
        KnownPredictions.by(load_predictor("fast"), prompts)
    with pytest.raises(InputError, match="to draw 5000 from"):
        leave_out(known_predictions(prompts), prompts, scored(0.7, 0.5, 0.9), lengths=5000)


def test_a_real_predictor_predicts_an_llm_it_was_not_trained_on() -> None:
    prompts = replace(Prompts.of(samples(), "llama-3.1-8B"), llm="me/Mine-8B")
    fast = load_predictor("fast")
    found = KnownPredictions.by(fast, prompts)
    assert found.llms == fast.llms
    assert found.mu.shape == found.sigma.shape == (len(prompts.texts), len(fast.llms) + 1)
    row = leave_out(found, prompts, scored(0.7, 0.5, 0.9), lengths=20, draws=1)
    assert row.llm == "me/Mine-8B"
    assert np.isfinite(row.adapted.tau)


def test_each_llm_is_left_out_of_a_training_and_known_to_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows, made, vectors = samples(900), words(), tmp_path / "words.npz"
    joined = np.frombuffer(b"\n".join(sorted(made.own)), np.uint8)
    np.savez(vectors, meaning=made.meaning, words=joined, own=joined)
    fit, learned = FastTrainer.fit, []

    def watched(self: FastTrainer, train: PairTable, seed: int = 0) -> FastPredictor:
        learned.append({train.llms[llm] for llm in train.llm})
        return fit(replace(self, recipe=replace(self.recipe, hidden=16, joint=8)), train, seed)

    monkeypatch.setattr(FastTrainer, "fit", watched)
    monkeypatch.setattr(left_out, "load_castillo", lambda: rows)
    monkeypatch.setattr(left_out, "load_samples", lambda _: rows)
    monkeypatch.setattr(Run, "castillo", lambda _: rows)
    left_out._table.cache_clear()
    grid = LeftOutGrid(networks=1, epochs=1, vectors=vectors, llms=LLMS[:2], lengths=(20,), draws=2)
    found = measure(Run(ResultCache(tmp_path)), grid)
    left_out._table.cache_clear()
    assert learned == [set(LLMS), {*LLMS[1:]}, {LLMS[0], LLMS[2]}]
    assert [row.llm for row in found.rows] == [*LLMS[:2]]
    assert all(len(row.draws) == 2 and row.known != row.unknown for row in found.rows)


def test_the_table_has_a_row_per_llm_and_without_data_the_study_names_its_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = LeftOut("m", 180, 100, scored(0.6, 0.5, 0.9), scored(0.5, 0.5, 0.9), (scored(0.58, 0.5, 0.9),))
    check_output(STUDY.output(LeftOutResult(LeftOutGrid(), (row,))))
    monkeypatch.setenv("LENGTHWISE_DATA", str(tmp_path))
    assert "LENGTHWISE_DATA with castillo/" in (STUDY.needs(LeftOutGrid()) or "")
