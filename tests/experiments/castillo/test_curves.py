"""Loss curves of trainings: how they are read and shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from experiments.castillo import STUDY, CastilloGrid, measure
from experiments.castillo.loss_curves import Curves, curve_table, load_trainings
from experiments.castillo.rows import LLMS
from experiments.study import Run
from lengthwise.errors import InputError
from lengthwise.simulator.tasks import ResultCache
from tests.experiments.samples import check_output

ROW = {"train_loss": 2.0, "held_out_loss": 1.5, "tau": 0.5, "mae": 120.0, "cover0.9": 0.91}
LATER = {"train_loss": 1.0, "held_out_loss": 1.75, "tau": 0.6, "mae": 100.0, "cover0.9": 0.8}
TRAINING = {"name": "teacher", "settings": {"lr": 0.1}, "curves": [ROW, LATER]}


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({"kept": "teacher", "results": [TRAINING, {"name": "ensemble", "scores": {}}]}))
    return path


def test_the_packaged_curves_can_be_read() -> None:
    assert len(curve_table(load_trainings()).rows) == 5


def test_overfitting_is_a_rise_of_the_held_out_loss(metrics: Path) -> None:
    values = ("1 of 2", "2.000 / 1.500", "1.000 / 1.750", "+0.250", "0.500 / 0.600", "120.0 / 100.0", "91.0 / 80.0 %")
    assert curve_table(load_trainings(metrics)).rows == [("teacher", *values)]


def test_the_rise_of_a_papers_network_is_its_last_loss_over_its_smallest() -> None:
    about = {"llm": LLMS[0], "rule": "castillo", "target": "mean", "width": 200}
    rows = [
        {
            **about,
            "seed": seed,
            "epoch": epoch + 1,
            "held_loss": loss,
            "learn_loss": 0.1,
            "learn_metric": 1.0,
            "held_metric": 0.5,
        }
        for seed, losses in enumerate([(3.0, 2.0, 4.0), (3.0, 2.0, 2.0)])
        for epoch, loss in enumerate(losses)
    ]
    found = Curves.of(pa.Table.from_pylist(rows[::-1]), LLMS[0], "mean", 200)
    assert found.rises == pytest.approx(np.array([2.0, 1.0]))
    with pytest.raises(InputError, match="no loss curve"):
        Curves.of(pa.Table.from_pylist(rows), LLMS[1], "mean", 200)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"results": [{"curves": [{"epoch": 1}]}]}', None])
def test_a_file_without_curves_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "curves.json").write_text(content)
    with pytest.raises(InputError, match=r"curves\.json: holds no loss curves"):
        load_trainings(tmp_path / "curves.json")


def test_the_study_shows_tables_figure_7_and_the_given_curves(
    tmp_path: Path, metrics: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    found = measure(Run(ResultCache(tmp_path / "cache")), CastilloGrid(predictor="constant", curves=metrics))
    assert [training.name for training in found.trainings] == ["teacher"]
    output = STUDY.output(found)
    check_output(output)
    assert output.html().count("data:image/png") == 2
