"""`lengthwise adapt`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.predictors.resolve import predictor_label
from tests.traffic.traffic_rows import made, write

runner = CliRunner()
pytestmark = pytest.mark.usefixtures("few_strengths")


def lengths(path: Path, rows: int, **columns: Any) -> str:
    table = {
        "prompt": [f"Write {'a long story' if i % 2 else 'one word'} about {i} things" for i in range(rows)],
        "length": [600 + 7 * i if i % 2 else 4 + i for i in range(rows)],
        "llm": ["me/Mine-7B"] * rows,
    }
    pq.write_table(pa.table({**table, **columns}), path)
    return str(path)


def test_a_new_llm_is_learned_and_predicted(tmp_path: Path) -> None:
    out = str(tmp_path / "mine.lw")
    result = runner.invoke(app, ["adapt", "fast", "--lengths", lengths(tmp_path / "a.parquet", 60), "-o", out])
    assert result.exit_code == 0, result.output
    assert "me/Mine-7B: 60 lengths of 60 prompts" in result.stdout
    assert "warning" not in result.stderr
    predicted = runner.invoke(app, ["predict", "Write one word", "--llm", "mine-7b", "--predictor", out, "--json"])
    assert json.loads(predicted.stdout)["quantiles"]["0.5"] > 0


def test_few_lengths_are_a_warning_on_stderr(tmp_path: Path) -> None:
    arguments = ["adapt", "fast", "--lengths", lengths(tmp_path / "a.parquet", 30), "-o", str(tmp_path / "m.lw")]
    result = runner.invoke(app, [*arguments, "--json", "--llm", "other/Name"])
    found = json.loads(result.stdout)
    assert found["report"]["llm"] == "other/Name"
    assert set(found["report"]["after"]) >= {"tau", "crps", "mae", "coverage_50", "coverage_90"}
    assert "warning: 30 lengths are few" in result.stderr


def test_bad_input_is_an_error_with_exit_code_2(tmp_path: Path) -> None:
    few, good = lengths(tmp_path / "few.parquet", 12), lengths(tmp_path / "good.parquet", 30)
    for model, file, out, message in (
        ("fast", few, "m.lw", "12 lengths of 12 prompts are too few"),
        ("fast", str(tmp_path / "none.parquet"), "m.lw", "no such file"),
        ("nothing", good, "m.lw", "predictor 'nothing' is not known"),
        ("fast", good, "no/such/m.lw", "no such folder"),
    ):
        result = runner.invoke(app, ["adapt", model, "--lengths", file, "-o", str(tmp_path / out)])
        assert result.exit_code == 2
        assert message in result.stderr
        assert len(result.stderr.strip().splitlines()) <= 2
        assert "Traceback" not in result.output


def test_adapting_to_a_traffic_log_prints_scores_before_and_after(tmp_path: Path) -> None:
    folder, out = write(tmp_path / "learn", made(200, shift=1.0)), tmp_path / "my.lw"
    result = runner.invoke(app, ["adapt", "fast", "--from", str(folder), "-o", str(out)])
    assert result.exit_code == 0, result.output
    for shown in ("adapted to traffic", "m, as it was", "m, without prompts: better", "my.lw"):
        assert shown in result.stdout
    result = runner.invoke(app, ["adapt", "fast", "--from", str(folder), "-o", str(out), "--json"])
    assert json.loads(result.stdout)["better"] == ["m"]


def test_a_file_that_is_not_better_is_refused_with_exit_code_1(tmp_path: Path) -> None:
    rows = made(120)
    rows[:90] = made(120, shift=3.0, seed=1)[:90]
    folder, out = write(tmp_path / "learn", rows), tmp_path / "my.lw"
    arguments = ["adapt", "fast", "--from", str(folder), "-o", str(out)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    assert "is not written: no LLM is predicted better; --force writes it" in result.stderr
    assert not out.exists()
    assert runner.invoke(app, [*arguments, "--force"]).exit_code == 0
    assert out.exists()


def test_the_folder_of_a_log_alone_is_enough_to_adapt_the_predictor_that_is_in_use(tmp_path: Path) -> None:
    folder = write(tmp_path / "learn", made(200, shift=1.0))
    result = runner.invoke(app, ["adapt", "--from", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    in_use = folder / "predictor.lw"
    first = predictor_label(in_use)
    found = json.loads(result.stdout)
    assert (found["out"], found["report"]["base"]) == (str(in_use), predictor_label("fast"))
    write(folder, made(200, shift=0.5, predictor=first))  # the gateway uses it now
    again = json.loads(runner.invoke(app, ["adapt", "--from", str(folder), "--json"]).stdout)
    assert (again["report"]["base"], again["written"]) == (first, True)
    assert predictor_label(in_use) != first
    write(folder, made(200, predictor="other@00000000"))
    result = runner.invoke(app, ["adapt", "--from", str(folder)])
    assert result.exit_code == 2
    assert "other@00000000, is not a packaged one" in result.stderr


def test_adapting_to_lengths_needs_a_predictor_and_a_file_to_write(tmp_path: Path) -> None:
    given = ["--lengths", lengths(tmp_path / "a.parquet", 60)]
    for arguments, message in ((["-o", "m.lw"], "no predictor to adapt"), (["fast"], "no file to write")):
        result = runner.invoke(app, ["adapt", *arguments, *given])
        assert (result.exit_code, message in result.stderr) == (2, True), result.output


def test_adapt_needs_exactly_one_source(tmp_path: Path) -> None:
    out = str(tmp_path / "m.lw")
    assert "give --lengths FILE or --from DIR" in runner.invoke(app, ["adapt", "fast", "-o", out]).stderr
