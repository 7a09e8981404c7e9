"""Loss curves: how they are measured, read and shown."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.castillo import STUDY, CastilloGrid, CastilloResult, measure
from experiments.castillo.loss_curves import Curves, curve_tables, load_curves
from experiments.castillo.paper import compare
from experiments.castillo_training import LLAMAS, TRAININGS, TrainingRun, only, run
from experiments.study import Run
from lengthwise.errors import InputError
from lengthwise.predictors.baselines import ConstantPerLlm
from lengthwise.simulator.tasks import ResultCache
from lengthwise.workloads import load_castillo
from tests.experiments.samples import check_output


def made_up(train: list[float], held_out: list[float]) -> dict[str, Any]:
    """The same losses for every study."""
    rows = {
        study.name: [
            {"epoch": n + 1, "watched": {llm: {"train": _look(a), "held_out": _look(b)} for llm in study.watched}}
            for n, (a, b) in enumerate(zip(train, held_out, strict=True))
        ]
        for study in TRAININGS
    }
    return {"about": {"machine": "a test", "seconds": 1, "limit": 0}, "curves": rows}


def _look(loss: float) -> dict[str, float]:
    return {"loss": loss, "accuracy": 1 - loss / 10, "mae": 100 * loss}


def written(tmp_path: Path, tree: object) -> Curves:
    (tmp_path / "curves.json").write_text(json.dumps(tree))
    found = load_curves(tmp_path / "curves.json")
    assert found is not None
    return found


def test_every_figure_of_the_paper_has_a_study() -> None:
    assert {(study.head, llm) for study in TRAININGS for llm in study.watched} >= {
        ("classes", LLAMAS[0]),  # figure 6
        *(("regression", llm) for llm in LLAMAS),  # figures 9, A.1, A.2
    }
    assert len({study.name for study in TRAININGS}) == len(TRAININGS)


def test_overfitting_shows_as_a_rise_and_a_gap(tmp_path: Path) -> None:
    curves = written(tmp_path, made_up([3.0, 2.0, 1.0], [3.0, 2.5, 2.75]))
    (line, *_) = curves.of("classes", LLAMAS[0])
    assert (line.best, line.rise, line.gap) == (1, 0.25, 1.75)
    (table,) = curve_tables(curves)
    assert len(table.rows) == len(curves.lines)
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert table.rows[0][5:7] == ("+0.250", "+1.750")


def test_the_packaged_curves_can_be_read() -> None:
    curves = load_curves()
    assert curves is not None
    assert curves.trainings
    assert all(len(table.rows) > 0 for table in curve_tables(curves))


def test_a_small_version_is_called_one(tmp_path: Path) -> None:
    tree = made_up([1.0], [1.0])
    tree["about"]["limit"] = 8
    (table,) = curve_tables(written(tmp_path, tree))
    assert table.notes[-1] == "A small version: 8 short prompts."


def test_metrics_of_a_training_of_the_shipped_kind_are_shown(tmp_path: Path) -> None:
    row = {"train_loss": 2.0, "held_out_loss": 1.5, "tau": 0.5, "mae": 120.0, "cover0.9": 0.91}
    later = {"train_loss": 1.0, "held_out_loss": 1.75, "tau": 0.6, "mae": 100.0, "cover0.9": 0.8}
    training = {"name": "teacher", "settings": {"lr": 0.1}, "curves": [row, later]}
    curves = written(tmp_path, {"kept": "teacher", "results": [training, {"name": "ensemble", "scores": {}}]})
    (table,) = curve_tables(curves)
    assert table.rows == [
        (
            "teacher",
            "1 of 2",
            "2.000 / 1.500",
            "1.000 / 1.750",
            "+0.250",
            "0.500 / 0.600",
            "120.0 / 100.0",
            "91.0 / 80.0 %",
        )
    ]
    packaged = load_castillo()
    found = compare(ConstantPerLlm.fit(packaged.where(split=["train", "validate"])), packaged)
    assert STUDY.output(CastilloResult(found, curves)).html().count("data:image/png") == 2


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"about": {}, "curves": {"classes_plain": [{"epoch": 1}]}}'])
def test_a_file_without_curves_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "curves.json").write_text(content)
    with pytest.raises(InputError, match=r"curves\.json: holds no loss curves"):
        load_curves(tmp_path / "curves.json")
    with pytest.raises(InputError, match="cannot be read"):
        load_curves(tmp_path / "nothing.json")


def test_the_page_has_figure_7_always_and_the_loss_curves_where_there_are_some(tmp_path: Path) -> None:
    packaged = load_castillo()
    found = compare(ConstantPerLlm.fit(packaged.where(split=["train", "validate"])), packaged, name="constant")
    assert STUDY.output(CastilloResult(found, None)).html().count("data:image/png") == 1
    output = STUDY.output(CastilloResult(found, written(tmp_path, made_up([2.0, 1.0], [2.0, 1.5]))))
    check_output(output)
    page = output.html()
    assert page.count("data:image/png") == 4
    assert "Loss curves (figures 6, 9 and A.3)" in page


@pytest.mark.parametrize(("head", "figure"), [("bins", "accuracy"), ("mean_std", "mae"), ("logt", "mae")])
def test_a_study_looks_at_trained_and_held_out_prompts_alike(head: str, figure: str, tmp_path: Path) -> None:
    tiny = pytest.importorskip("tests.training.encoder.tiny")
    from lengthwise.training.encoder.run import prepare

    settings = {"kind": head, "bins": "width", "bin_width": 50, "bin_cap": 400}
    config = tiny.config(tmp_path, head=settings, optimiser={"epochs": 12, "ema": 0.9 if head == "logt" else 0.0})
    prepared = prepare(config)
    kind = {"bins": "classes", "mean_std": "regression", "logt": "logt"}[head]
    study = TrainingRun("tiny", kind, "", "Llama-3.1-8B", ("Llama-3.1-8B",))
    pack = only(prepared.pack, study.llm)
    assert not pack.lengths[:, ["Llama" not in llm for llm in pack.llms]].any()
    rows = run(study, prepared.network(), pack, config, prepared.edges, device="cpu", deadline=math.inf)
    looks = [row["watched"]["Llama-3.1-8B"] for row in rows]
    assert len(looks) > 3
    assert all(set(look[part]) == {"loss", figure} for look in looks for part in ("train", "held_out"))
    assert looks[-1]["train"]["loss"] < looks[0]["train"]["loss"]
    assert np.isfinite([look["held_out"]["loss"] for look in looks]).all()


def test_the_study_uses_the_given_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(made_up([2.0, 1.0], [2.0, 1.5])), encoding="utf-8")
    found = measure(Run(ResultCache(tmp_path / "cache")), CastilloGrid(predictor="constant", curves=path))
    assert found.curves is not None
    assert found.curves.lines[0].held_out == (2.0, 1.5)
    assert found.comparison.cells
    check_output(STUDY.output(found))
