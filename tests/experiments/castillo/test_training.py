"""Training of the paper's networks, and their stored predictions."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from experiments.castillo.loss_curves import Curves, paper_curve_table
from experiments.castillo.paper import CLASSIFIER, compare, tables, trained_name, trained_subjects
from experiments.castillo.rows import LLMS, WIDTHS, Truth, evaluated_parts
from experiments.castillo.training import Part, Recipe, Training, curves_table, predictions_table, run, train, trainings
from lengthwise.errors import InputError
from lengthwise.files import sample
from lengthwise.workloads import LengthSamples

RECIPE = Recipe(reduced=8, hidden=16, epochs=3)


def part(rows: int, seed: int) -> Part:
    """Rows whose length is 100 or 900 tokens, by the sign of the first number of the vector."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    mean = np.where(x[:, 0] > 0, 900.0, 100.0)
    return Part(x, np.zeros(rows, np.int64), mean, mean / 10, mean * 1.2)


@pytest.mark.parametrize(("target", "classes"), [("mean", (0, 4)), ("p99", (0, 5))])
def test_a_classifier_finds_the_bin_of_its_target(target: str, classes: tuple[int, int]) -> None:
    tested = part(100, 2)
    found = train(Training(LLMS[0], "castillo", target, 200, 0), part(400, 0), part(100, 1), tested, Recipe(epochs=10))
    wanted = np.where(tested.mean > 500, classes[1], classes[0])
    assert (found.predicted[:, 0] == wanted).mean() > 0.9
    assert found.curve[found.best]["held_loss"] == min(row["held_loss"] for row in found.curve)


def test_a_regression_finds_mean_and_std_in_tokens() -> None:
    tested = part(100, 2)
    found = train(Training(LLMS[0], "castillo", "squared", 0, 0), part(400, 0), part(100, 1), tested, Recipe(epochs=15))
    assert np.abs(found.predicted[:, 0] - tested.mean).mean() < 150
    assert np.abs(found.predicted[:, 1] - tested.std).mean() < 15


def test_the_same_seed_trains_the_same_network() -> None:
    training = Training(LLMS[0], "castillo", "mean", 200, 3)
    first, second = (train(training, part(100, 0), part(50, 1), part(50, 2), RECIPE) for _ in range(2))
    assert first.curve == second.curve


def test_every_llm_width_and_target_is_trained() -> None:
    found = {
        (training.llm, training.target, training.width)
        for training in trainings(seeds=1)
        if training.rule == "castillo"
    }
    assert found >= {(llm, target, width) for llm in LLMS for target in ("mean", "p99") for width in WIDTHS}


def test_kept_predictions_fill_the_tables() -> None:
    samples = LengthSamples.read(sample("castillo.parquet"))
    llamas = samples.where(llm=[name for name in samples.llms if "Llama" in name and "70B" not in name])
    keys = Truth.of(llamas, "all").keys
    vectors = {
        key: np.random.default_rng(i).normal(size=8).astype(np.float32) for i, key in enumerate(dict.fromkeys(keys))
    }
    some = [training for training in trainings(seeds=1) if training.target != "p99"]
    found = list(run(llamas, vectors, some, RECIPE))
    kept = predictions_table(llamas, found)
    assert len(kept) == sum(len(rows) for llm in LLMS for _, _, rows in evaluated_parts(llamas.where(llm=llm)))
    subjects = trained_subjects(kept, llamas)
    assert {subject.name for subject in subjects} == {
        trained_name(task, "own") for task in (CLASSIFIER, "regression, squared error", "regression, absolute error")
    }
    shown = tables(compare(subjects, llamas))
    assert [table.title[:7] for table in shown] == ["Table 2", "Table 4"]
    curves = curves_table(found)
    assert Curves.of(curves, LLMS[0], "mean", 200).held_loss.shape == (1, RECIPE.epochs)
    assert len(paper_curve_table(curves).rows) == 3 * 7
    with pytest.raises(InputError, match="of other rows"):
        trained_subjects(kept.slice(1), llamas)
