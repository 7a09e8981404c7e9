"""`lengthwise train`."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from lengthwise.cli.train import train
from lengthwise.errors import InputError
from lengthwise.predictors.model_file import read_model_file
from tests.training.encoder import tiny

runner = CliRunner()
app = typer.Typer()
app.command()(train)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny.config(folder, optimiser={"epochs": 2}).model_dump(mode="json")))
    return path


def test_train_writes_one_file_and_its_curves_and_resumes(settings: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.lw"
    result = runner.invoke(app, [str(settings), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "held_out: tau" in result.stdout
    assert read_model_file(out).kind == "encoder"
    curves = tmp_path / "mine.training" / "seed-0" / "curves.jsonl"
    assert len(curves.read_text().splitlines()) == 2

    first = out.read_bytes()
    again = runner.invoke(app, [str(settings), "-o", str(out), "--resume"])
    assert again.exit_code == 0, again.output
    assert len(curves.read_text().splitlines()) == 2, "finished epochs are not repeated"
    assert out.read_bytes() == first


def test_weights_trained_elsewhere_are_exported(settings: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.lw", tmp_path / "b.lw"
    assert runner.invoke(app, [str(settings), "-o", str(first)]).exit_code == 0
    weights = tmp_path / "a.training" / "seed-0" / "weights.pt"
    result = runner.invoke(app, [str(settings), "-o", str(second), "--weights", str(weights)])
    assert result.exit_code == 0, result.output
    assert read_model_file(second).parts == read_model_file(first).parts


def test_unreadable_weights_are_an_error(settings: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pt"
    wrong.write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"wrong\.pt: .*; give the settings of that training"):
        runner.invoke(app, [str(settings), "--weights", str(wrong)], catch_exceptions=False)


def test_an_unknown_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("optimiser: {epoch: 3}")
    with pytest.raises(InputError, match=r"config\.yaml, field 'optimiser\.epoch': there is no field 'epoch'"):
        runner.invoke(app, [str(path)], catch_exceptions=False)


def test_a_missing_output_folder_is_an_error_before_training(settings: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: no such folder"):
        runner.invoke(app, [str(settings), "-o", str(tmp_path / "nowhere" / "x.lw")], catch_exceptions=False)
