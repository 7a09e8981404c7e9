"""Training of the fast predictor on a few synthetic prompts: outputs of a teacher, word tables and the network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.predictors import LogTPredictions
from lengthwise.predictors.fast import FEATURES, Reader
from lengthwise.training.data import PromptTable
from lengthwise.training.fast.distillation_set import DistillationSet, TeacherOutputs, calibration, figures, levels
from lengthwise.training.fast.word_tables import FOLDS, TOPICS, learn_tables

LLMS = ("a/one-7B", "b/two-1B")
WORDS = [b"write", b"a", b"long", b"short", b"story", b"about", b"list", b"name", b"of", b"the"]


class CharacterCount:
    """A teacher that predicts the number of characters."""

    llms: tuple[str, ...] = (*LLMS, "c/three-3B")

    def outputs(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([[[len(text), 0.0, len(text), 1.0]] * (len(self.llms) + 1) for text in texts], np.float32)


def table(prompts: int = 300, seed: int = 0) -> PromptTable:
    """Prompts of random words; "long" and "short" determine the length, and answers of LLM b are twice as long."""
    rng = np.random.default_rng(seed)
    texts, lengths = [], np.empty((prompts, 2, 10))
    for number in range(prompts):
        kind = (b"long", b"short", b"story")[number % 3]
        texts.append(b" ".join([*rng.choice(WORDS[4:], 6), kind, b"%d" % number]).decode())
        usual = {b"long": 800.0, b"short": 20.0, b"story": 200.0}[kind]
        lengths[number] = usual * np.array([[1.0], [2.0]]) * np.exp(0.15 * rng.standard_t(3.5, (2, 10)))
    return PromptTable(
        pa.table({"prompt": texts}), LLMS, np.rint(lengths).astype(np.int16), np.zeros(lengths.shape, bool)
    )


def taught(texts: Sequence[str]) -> TeacherOutputs:
    return TeacherOutputs.of(CharacterCount(), texts)


def test_outputs_are_read_from_their_file_and_selected_by_text_and_llm(tmp_path: Path) -> None:
    outputs = taught(["one", "three", "eleven"])
    outputs.write(tmp_path / "outputs.parquet")
    read = TeacherOutputs.read(tmp_path / "outputs.parquet")
    assert read.fingerprint() == outputs.fingerprint() != taught(["one"]).fingerprint()
    found = read.select(["three", "unknown", "one"], ["b/two-1B", "x/unknown", "a/one-7B"])
    np.testing.assert_array_equal(found[:, 0, 0], [5.0, np.nan, 3.0])
    assert np.isnan(found[:, 1]).all()
    assert found[0, 2, 1] == pytest.approx(0.04, abs=0.01)  # raw log sigma, bounded from below as encoders do


def test_outputs_that_lack_a_prompt_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "outputs.parquet"
    taught(["one", "three"]).write(path)
    assert TeacherOutputs.read(path, ["three"]).texts == ("one", "three")
    with pytest.raises(InputError, match=r"outputs\.parquet: has no outputs for 1 prompts"):
        TeacherOutputs.read(path, ["one", "two"])


def test_a_file_without_outputs_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["one"]}), tmp_path / "plain.parquet")
    with pytest.raises(InputError, match=r"plain\.parquet: has no outputs of a teacher"):
        TeacherOutputs.read(tmp_path / "plain.parquet")


def test_selected_prompts_have_their_pieces_and_all_noise() -> None:
    data = DistillationSet.of(table(30), taught, seed=0)
    texts = data.prompts.column("prompt")
    assert np.isfinite(data.outputs.select((*texts, *data.pieces), LLMS)).all()
    part = data.rows(np.array([4, 9]))
    origin = dict(zip(data.pieces, data.origins, strict=True))
    assert part.prompts.column("prompt") == [texts[4], texts[9]]
    assert {origin[text] for text in part.pieces} <= {4, 9, 30}
    assert set(part.origins.tolist()) == {0, 1, 2}


def test_training_descriptions_equal_served_ones_except_for_an_out_of_fold_guess() -> None:
    prompts, reader = table(), Reader.of(WORDS)
    pages = [reader.read(text) for text in prompts.column("prompt")]
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
    pages = [reader.read(text) for text in prompts.column("prompt")]
    effect = (np.log(prompts.mean()) - levels(prompts)[:-1]).mean(axis=1)
    folds = np.arange(len(pages)) % FOLDS
    learned = learn_tables(pages, effect, np.zeros((reader.size, 1), np.float32), folds, seed=0)
    assert np.corrcoef(learned.describe(pages, folds)[:, FEATURES + TOPICS], effect)[0, 1] > 0.9


def test_calibrated_predictions_cover_their_nominal_share_and_figures_report_it() -> None:
    prompts = table()
    n = len(prompts) * len(LLMS)
    mu = np.log(prompts.mean()).ravel() + 0.3
    off = LogTPredictions.of(mu, np.full(n, 0.05), 10_000, sample_mean=np.exp(mu), sample_std=np.ones(n))
    unknown = LogTPredictions.of(mu - 1.0, np.full(n, 0.05), 10_000)
    adjustments = calibration(prompts, off, unknown)
    assert adjustments.others.shift == pytest.approx(0.7, abs=0.05)
    assert {round(one.shift, 1) for one in adjustments.by_llm.values()} == {-0.3}
    found = figures(prompts, adjustments.apply(off, list(LLMS) * len(prompts)), leave_out="b/two-1B")
    assert found["cover50"] == pytest.approx(0.5, abs=0.04)
    assert found["cover90"] == pytest.approx(0.9, abs=0.03)
    assert found["tau"] == found["by_llm"]["a/one-7B"]["tau"] == pytest.approx(1.0)


def test_a_network_learns_from_labels_from_a_teacher_and_from_capped_answers() -> None:
    pytest.importorskip("torch")
    from lengthwise.predictors.llm_names import FEATURES as NAMES
    from lengthwise.training.fast.fit import Examples, FastRecipe, fit_network

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
    examples = Examples(x, lengths, cut, soft, np.eye(3, NAMES, dtype=np.float32), np.full(3, 5.0))
    network = fit_network(examples, FastRecipe(hidden=32, joint=16, dropout=0.0, input_dropout=0.0, epochs=20), seed=0)
    for llm in range(3):
        who = network.llm_bias(llm, examples.name_features[llm])
        found = []
        for row in x:
            hidden, direct = network.prompt(network.standardise(row))
            found.append(network.outputs(hidden + who, direct)[0] + 5.0)
        error = np.array(found) - true[:, llm]
        inside = np.abs(x[:, 0]) < 1.0
        assert np.abs(error[inside]).mean() < 0.15, llm
    assert (
        np.abs(error[(x[:, 0] > 0.3) & inside].mean()) < 0.2
    )  # beyond the cap the third LLM is predicted longer, not at the cap
