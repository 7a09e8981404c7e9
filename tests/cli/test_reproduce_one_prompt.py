from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.engines.smollm2 import MODEL_NAME, model_folder
from lengthwise.workloads import LengthSamples
from tests.engines.need import need_vllm
from tests.gateway.engine import free_port

COMMAND = ["reproduce", "one_prompt"]


def answers(path: Path) -> Path:
    lengths = [40 + 7 * n % 90 for n in range(64)]
    row = {"corpus": ["one_prompt"], "prompt_id": ["0"], "llm": [MODEL_NAME], "input_tokens": [9]}
    LengthSamples.from_table({**row, "lengths": [lengths], "prompt": ["Hi"]}, origin="test").write(path)
    return path


def test_lengths_that_are_kept_are_not_asked_for_again(tmp_path: Path) -> None:
    kept = answers(tmp_path / "kept.parquet")
    nobody = f"http://127.0.0.1:{free_port()}"
    files = ["--plot", str(tmp_path / "one.png"), "--report", str(tmp_path / "one.html")]
    result = CliRunner().invoke(app, [*COMMAND, "Hi", "--url", nobody, "--answers", str(kept), *files])
    assert result.exit_code == 0, result.stderr
    assert "64 answers of SmolLM2-135M-Instruct to one prompt" in result.stdout
    assert (tmp_path / "one.png").stat().st_size > 10_000
    assert "<img" in (tmp_path / "one.html").read_text()
    told = json.loads(CliRunner().invoke(app, [*COMMAND, "--answers", str(kept), "--json"]).stdout)
    assert len(told["lengths"]) == 64
    assert {each["family"] for each in told["families"]} >= {"log-t, nu=3.5", "log-normal", "Weibull", "gamma", "GEV"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--url", "http://127.0.0.1:1"], "cannot be reached"),
        (["--report", "missing/one.html"], "no such folder"),
        (["--answers", "missing/a.parquet"], "no such folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    options: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LENGTHWISE_CACHE", str(tmp_path))
    result = CliRunner().invoke(app, [*COMMAND, *options])
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_embedded_llm_answers_one_prompt_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_vllm()
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / MODEL_NAME).symlink_to(model_folder())
    monkeypatch.setenv("LENGTHWISE_CACHE", str(cache))
    command = [
        *COMMAND,
        "Say hello.",
        "--generations",
        "24",
        "--max-tokens",
        "64",
        "--temperature",
        "1.2",
        "--json",
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (len(told["lengths"]), told["llm"]) == (24, MODEL_NAME)
    assert max(told["lengths"]) <= 64
    # Again: from the cache, without an engine.
    again = CliRunner().invoke(app, command)
    assert json.loads(again.stdout) == told
    assert "starting the embedded engine" not in again.stderr
