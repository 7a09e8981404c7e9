"""Training of the fast predictor on a few synthetic prompts: outputs of a teacher, word tables and the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lengthwise.predictors import load_predictor
from lengthwise.predictors.encoder import EncoderPredictor
from lengthwise.predictors.fast import FEATURES, Reader
from lengthwise.training.fast.train import (
    Examples,
    FastRecipe,
    FastTrainer,
    LeftOutPairs,
    TeacherOutputs,
    calibrated,
    fit_network,
    fit_widening,
    list_loss,
    predicted,
)
from lengthwise.training.fast.word_tables import FOLDS, TOPICS, Vocabulary, learn_tables
from lengthwise.training.pairs import PairTable, score_pairs

LLMS = ("a/one-7B", "b/two-1B")
WORDS = [b"write", b"a", b"long", b"short", b"story", b"about", b"lamp", b"tree", b"of", b"the"]


def table(prompts: int = 300, seed: int = 0) -> PairTable:
    """Prompts of random words; "long" and "short" determine the length, and answers of LLM b are twice as long."""
    rng = np.random.default_rng(seed)
    texts, lengths = [], np.empty((prompts, 2, 10))
    for number in range(prompts):
        kind = (b"long", b"short", b"story")[number % 3]
        texts.append(b" ".join([*rng.choice(WORDS[4:], 6), kind, b"%d" % number]).decode())
        usual = {b"long": 800.0, b"short": 20.0, b"story": 200.0}[kind]
        lengths[number] = usual * np.array([[1.0], [2.0]]) * np.exp(0.15 * rng.standard_t(3.5, (2, 10)))
    flat = np.rint(np.maximum(lengths, 1.0)).astype(np.int32).reshape(2 * prompts, 10)
    return PairTable(
        tuple(texts), ("chat", "code"), np.arange(prompts) % 2, np.zeros(prompts, bool), LLMS,
        np.repeat(np.arange(prompts), 2), np.tile([0, 1], prompts), flat, np.zeros(flat.shape, bool),
    )  # fmt: skip


def taught(texts: Sequence[str]) -> TeacherOutputs:
    """A teacher that predicts the number of characters."""
    llms = (*LLMS, "c/three-3B")
    outputs = [[[len(text), -1.0, len(text), 1.0]] * len(llms) for text in texts]
    return TeacherOutputs(tuple(texts), llms, np.array(outputs, np.float32))


def test_outputs_of_a_teacher_are_its_predictions_for_the_llms_that_it_knows() -> None:
    teacher = load_predictor("default")
    assert isinstance(teacher, EncoderPredictor)
    known = teacher.llms[0]
    outputs = TeacherOutputs.of(teacher, ["Name a colour.", "Write a long story."], [known, "x/unknown"])
    assert outputs.llms == (known,)
    predictions = teacher.predict(["Write a long story.", "Name a colour."], [known, known])
    found = outputs.select(["Write a long story.", "Name a colour."], [known])[:, 0]
    np.testing.assert_allclose(np.exp(found[:, 0]), predictions.quantile(0.5), rtol=1e-3)
    np.testing.assert_allclose(np.exp(found[:, 2]), predictions.sample_mean, rtol=1e-5)


def test_outputs_are_selected_by_text_and_llm() -> None:
    outputs = taught(["one", "three", "eleven"])
    assert outputs.fingerprint() == taught(["one", "three", "eleven"]).fingerprint() != taught(["one"]).fingerprint()
    found = outputs.select(["three", "unknown", "one"], ["b/two-1B", "x/unknown", "a/one-7B"])
    np.testing.assert_array_equal(found[:, 0, 0], [5.0, np.nan, 3.0])
    assert np.isnan(found[:, 1]).all()


def test_training_descriptions_equal_served_ones_except_for_an_out_of_fold_guess() -> None:
    prompts, reader = table(), Reader.of(WORDS)
    pages = [reader.read(text) for text in prompts.texts]
    effect = np.random.default_rng(1).normal(size=len(pages))  # nothing to learn
    folds = np.arange(len(pages)) % FOLDS
    meaning = np.random.default_rng(2).normal(size=(reader.size, 3)).astype(np.float32)
    learned = learn_tables(pages, effect, meaning, folds, seed=0)
    described, served = learned.describe(pages, folds), np.stack([learned.tables.describe(page) for page in pages])
    guess = FEATURES + TOPICS
    others = np.delete(np.arange(served.shape[1]), guess)
    np.testing.assert_allclose(described[:, others], served[:, others], rtol=1e-3, atol=0.02)
    seen, unseen = (np.corrcoef(column[:, guess], effect)[0, 1] for column in (served, described))
    assert seen > 0.25
    assert unseen < 0.1


def test_the_first_guess_separates_long_from_short() -> None:
    prompts, reader = table(), Reader.of(WORDS)
    pages = [reader.read(text) for text in prompts.texts]
    effect = (prompts.log_mean() - prompts.levels()[prompts.llm]).reshape(-1, 2).mean(axis=1)
    folds = np.arange(len(pages)) % FOLDS
    learned = learn_tables(pages, effect, np.zeros((reader.size, 1), np.float32), folds, seed=0)
    assert np.corrcoef(learned.describe(pages, folds)[:, FEATURES + TOPICS], effect)[0, 1] > 0.9


def words() -> Vocabulary:
    reader = Reader.of(sorted(WORDS))
    meaning = np.random.default_rng(2).normal(size=(reader.size, 3)).astype(np.float32)
    return Vocabulary(reader, meaning, frozenset(WORDS))


def test_a_trained_predictor_has_tau_and_coverage_for_both_llms() -> None:
    trainer = FastTrainer(words(), FastRecipe(hidden=32, joint=16, networks=2, epochs=15))
    train, fresh = table(1000), table(150, seed=1)
    predictor, found = calibrated(trainer, train, 1.0, 0)
    assert predictor.llms == LLMS
    assert predictor.levels[1] - predictor.levels[0] == pytest.approx(np.log(2.0), abs=0.1)
    scored = score_pairs(fresh, *predicted(predictor, fresh))
    assert scored.tau > 0.6  # two thirds of the pairs differ in kind
    assert scored.coverage_90 > 0.8
    assert 0.85 < found["held_out"]["coverage_90"] < 0.99  # about 50 held-out prompts: cautious


def test_llms_with_few_prompts_train_the_unknown_llm() -> None:
    train = table(240)
    few = replace(train, llms=(*LLMS, "rare/llm-3B"), llm=np.where(np.arange(len(train.llm)) % 40 == 1, 2, train.llm))
    predictor = FastTrainer(words(), FastRecipe(hidden=8, joint=8, networks=1, epochs=1)).fit(few)
    assert predictor.llms == LLMS


def test_the_widening_covers_left_out_groups() -> None:
    prompts = table(120)
    mu = prompts.log_mean() + np.where(np.arange(len(prompts.prompt)) % 4 < 2, 1.0, -1.0)
    pairs = LeftOutPairs(prompts, mu, np.full(len(mu), 0.05), np.full(len(mu), 0.25))
    widening = fit_widening([pairs], 3.5)
    assert 0.5 <= widening <= 2.0
    assert score_pairs(prompts, mu, pairs.spread(0.0), 3.5).coverage_90 < 0.2


def test_a_teacher_adds_targets_to_pairs_and_pairs_of_its_own() -> None:
    prompts = table(60).take(np.arange(60))
    only = replace(prompts, prompt=prompts.prompt[::2], llm=prompts.llm[::2], lengths=prompts.lengths[::2],
                   censored=prompts.censored[::2])  # fmt: skip
    trainer = FastTrainer(words(), FastRecipe(hidden=8, joint=8, networks=1, epochs=1), taught(prompts.texts))
    assert trainer.fit(only).predict(["list the story"], [LLMS[1]]).mu[0] > 0.0


def test_a_vocabulary_is_stored_and_cut_to_the_words_of_the_texts(tmp_path: Path) -> None:
    path = tmp_path / "words.npz"
    joined = np.frombuffer(b"\n".join(sorted(WORDS)), np.uint8)
    np.savez(path, meaning=words().meaning, words=joined, own=joined)
    read = Vocabulary.stored(path, [])
    assert read.reader.rows == words().reader.rows
    rare = Vocabulary(read.reader, read.meaning, frozenset(WORDS[:2]))
    kept = rare.of_texts(["story"] * 3 + ["list"] * 2)
    assert set(kept.reader.rows) >= {*WORDS[:2], b"story"}
    assert b"list" not in kept.reader.rows
    np.testing.assert_array_equal(kept.meaning[kept.reader.rows[b"story"]], read.meaning[read.reader.rows[b"story"]])


def test_a_network_learns_from_labels_from_a_teacher_and_from_capped_answers() -> None:
    from lengthwise.llm_names import FEATURES as NAMES

    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3)).astype(np.float32)
    true = 5.0 + x[:, :1] + np.array([0.0, 1.0, 0.0])
    lengths = np.exp(true[..., None] + rng.normal(0.0, 0.1, (600, 3, 10)))
    lengths[:, 1] = 0.0  # the second LLM is known from the teacher only
    soft = np.full((600, 3, 4), np.nan, np.float32)
    soft[:, 1] = np.stack([true[:, 1], np.full(600, -2.0), true[:, 1], true[:, 1] - 2.0], axis=1)
    cut = np.zeros(lengths.shape, bool)
    cut[:, 2] = lengths[:, 2] > 150.0  # the third LLM is capped at 150 tokens
    lengths[:, 2] = np.minimum(lengths[:, 2], 150.0)
    pairs = np.arange(1800)
    examples = Examples(
        x, pairs // 3, pairs % 3, lengths.reshape(-1, 10), cut.reshape(-1, 10), soft.reshape(-1, 4), np.ones(1800),
        np.eye(4, NAMES, dtype=np.float32), np.full(3, 5.0), np.arange(3),
    )  # fmt: skip
    network = fit_network(examples, FastRecipe(hidden=32, joint=16, dropout=0.0, input_dropout=0.0, epochs=20), seed=0)
    for llm in range(3):
        bias = network.llm_bias(llm, examples.name_features[llm])
        found = []
        for row in x:
            hidden, direct = network.prompt(network.standardise(row))
            found.append(network.outputs(hidden + bias, direct)[0] + 5.0)
        error = np.array(found) - true[:, llm]
        inside = np.abs(x[:, 0]) < 1.0
        assert np.abs(error[inside]).mean() < 0.15, llm
    assert np.abs(error[(x[:, 0] > 0.3) & inside].mean()) < 0.2  # the third LLM is predicted above its cap


def test_the_list_loss_is_lower_for_the_right_order_and_ignores_other_kinds() -> None:
    place, kind = torch.tensor([5.0, 6.0, 4.0, 9.0]), torch.tensor([0, 0, 0, 1])

    def cost(*score: float) -> float:
        return float(list_loss(torch.tensor(score), place, kind, torch.arange(4), torch.ones(4)))

    assert cost(0.0, 1.0, -1.0, 0.0) < cost(0.0, 0.0, 0.0, 0.0) < cost(0.0, -1.0, 1.0, 0.0)
    assert cost(0.0, 1.0, -1.0, 7.0) == pytest.approx(cost(0.0, 1.0, -1.0, 0.0), abs=1e-5)


def test_a_ranker_orders_prompts_and_its_scores_are_calibrated_as_lengths() -> None:
    recipe = FastRecipe(hidden=32, joint=16, networks=2, epochs=15, ranker="kind")
    predictor, found = calibrated(FastTrainer(words(), recipe), table(1000), 0.0, 0)
    fresh = table(150, seed=1)
    scored = score_pairs(fresh, *predicted(predictor, fresh))
    assert scored.tau > 0.6
    assert scored.log_error < 0.7  # scores have no unit; the line gives them one
    assert 0.85 < found["held_out"]["coverage_90"] < 0.99
    assert np.ptp(predictor.predict(["lamp long", "tree short"], [LLMS[0]] * 2).sample_std) > 0.0


def test_given_word_tables_are_kept() -> None:
    trainer = FastTrainer(words(), FastRecipe(hidden=8, joint=8, networks=1, epochs=1))
    first = trainer.fit(table(240))
    vocabulary = replace(words(), reader=first.reader)
    again = replace(trainer, vocabulary=vocabulary, tables=first.tables).fit(table(240, seed=1))
    assert again.tables is first.tables
    assert again.reader is first.reader
