"""`lengthwise predict`."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from lengthwise.cli.predict import predict
from lengthwise.errors import InputError
from lengthwise.predictors.castillo_api import predict_response_length

runner = CliRunner()
app = typer.Typer()
app.command()(predict)
PROMPT = "Introduce Nanjing University in China."


def test_predict_prints_median_interval_mean_and_p99() -> None:
    result = runner.invoke(app, [PROMPT, "--llm", "meta-llama/Llama-3.2-3B-Instruct"])
    assert result.exit_code == 0, result.output
    assert [line.split("  ")[0].strip() for line in result.stdout.splitlines()[:4]] == [
        "median",
        "90 % of answers",
        "mean",
        "P99",
    ]
    assert "==" in result.stdout
    assert "#" in result.stdout
    assert not any(part in result.stdout for part in ("TIE", "class", "std"))
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_details_have_consistent_classes_and_tie() -> None:
    result = runner.invoke(app, [PROMPT, "--llm", "llama-3.2-3B", "--details"])
    assert all(part in result.stdout for part in ("P99 class", "TIE by beta", "repeated answers"))
    assert max(map(len, result.stdout.splitlines())) <= 80
    found = json.loads(runner.invoke(app, [PROMPT, "--llm", "llama-3.2-3B", "--json", "--details"]).stdout)
    levels = list(found["quantiles"].values())
    assert levels == sorted(levels)
    assert found["tie"]["0.1"] < found["tie"]["0.5"]
    low, high = found["predicted_p99_range"]
    repeated = found["repeated_answers"]
    assert low <= repeated["mean"] + 1.6 * repeated["std"] < high


def test_the_class_stays_within_the_limit_of_the_answer() -> None:
    options = ["--llm", "llama-3.2-3B", "--json", "--details", "--bin-width", "10", "--max-tokens", "20"]
    found = json.loads(runner.invoke(app, [PROMPT, *options]).stdout)
    assert found["predicted_p99_range"] == [20, 30]


def test_the_command_and_castillos_function_agree() -> None:
    found = json.loads(runner.invoke(app, [PROMPT, "--llm", "llama-3.2-3B", "--json", "--details"]).stdout)
    called = predict_response_length(PROMPT, "llama-3.2-3B")
    repeated = found["repeated_answers"]
    assert (repeated["mean"], repeated["std"]) == pytest.approx((called["predicted_mean"], called["predicted_std"]))
    classes = predict_response_length(PROMPT, "llama-3.2-3B", "classification")
    assert found["predicted_p99_class"] == classes["predicted_p99_class"]


def test_the_old_name_of_the_details_names_the_new_one() -> None:
    with pytest.raises(InputError, match="--details"):
        runner.invoke(app, [PROMPT, "--explain"], catch_exceptions=False)


def test_a_dash_reads_standard_input() -> None:
    given, piped = (
        runner.invoke(app, [text, "--llm", "llama-3.2-3B", "--json"], input=PROMPT).stdout for text in (PROMPT, "-")
    )
    assert given == piped


def test_max_tokens_bounds_the_prediction() -> None:
    options = ["--llm", "llama-3.2-3B", "--json", "--max-tokens", "20"]
    found = json.loads(runner.invoke(app, [PROMPT, *options]).stdout)
    assert found["p99"] == found["quantiles"]["0.95"] == 20
    assert found["mean"] <= 20


@pytest.mark.parametrize("name", ["slow", ""])
def test_an_unknown_predictor_is_an_error_that_lists_the_known_ones(name: str) -> None:
    result = runner.invoke(app, [PROMPT, "--llm", "llama-3.2-3B", "--predictor", name])
    assert isinstance(result.exception, InputError)
    assert "fast" in str(result.exception)


@pytest.mark.parametrize("text", ["", "\x00\x01\x02", "?"])
def test_any_text_is_a_prompt(text: str) -> None:
    assert runner.invoke(app, [text, "--llm", "owner/unknown"]).exit_code == 0


@pytest.mark.parametrize("predictor", ["default", "fast"])
def test_without_an_llm_the_prediction_is_for_an_unknown_one_and_a_note_names_some_known(predictor: str) -> None:
    result = runner.invoke(app, [PROMPT, "--json", "--predictor", predictor])
    assert result.exit_code == 0
    assert "--llm" in result.stderr
    assert "Llama-3.2-3B" in result.stderr
    assert len(result.stderr) < 800, "fast knows some hundred LLMs"
    assert json.loads(result.stdout)["llm"] is None


@pytest.mark.parametrize("predictor", ["default", "fast"])
@pytest.mark.parametrize("text", ["Say only yes.", "", PROMPT, "zxq vbn wer"])
def test_median_mean_and_interval_are_of_one_distribution_and_never_0(predictor: str, text: str) -> None:
    result = runner.invoke(app, [text, "--json", "--predictor", predictor, "--llm", "llama-3.2-3B"])
    found = json.loads(result.stdout)
    low, high = found["interval_90"]
    assert 1.0 <= low <= found["median"] <= found["mean"] <= high
    assert found["median"] == found["quantiles"]["0.5"]


def test_a_prompt_unlike_the_training_data_is_said_to_be_so_and_wide() -> None:
    usual, odd = (
        json.loads(runner.invoke(app, [text, "--json", "--predictor", "fast", "--llm", "llama-3.2-3B"]).stdout)
        for text in ("Write a Python function that returns the sum of a list.", "xqzt vbnw kjhg qwrt zzxp")
    )
    assert (usual["novel"], usual["note"]) == (False, None)
    assert odd["novel"]
    assert odd["note"] == "unlike the prompts it was trained on: wide"
    assert odd["interval_90"][1] / odd["interval_90"][0] > 10 * usual["interval_90"][1] / usual["interval_90"][0]
