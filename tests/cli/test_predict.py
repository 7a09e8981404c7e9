"""`lengthwise predict`."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from lengthwise.cli.predict import predict
from lengthwise.errors import InputError

runner = CliRunner()
app = typer.Typer()
app.command()(predict)
PROMPT = "Introduce Nanjing University in China."


def test_it_prints_a_prediction_and_draws_it() -> None:
    result = runner.invoke(app, [PROMPT, "--llm", "meta-llama/Llama-3.2-3B-Instruct"])
    assert result.exit_code == 0, result.output
    for part in ("mean of repeated answers", "95% of answers within", "P99 class", "TIE score", "|", "#", "=="):
        assert part in result.stdout


def test_json_holds_what_the_table_shows() -> None:
    found = json.loads(runner.invoke(app, [PROMPT, "--llm", "llama-3.2-3B", "--json"]).stdout)
    levels = list(found["quantiles"].values())
    assert levels == sorted(levels)
    assert found["tie"]["0.1"] < found["tie"]["0.5"]
    assert found["predicted_p99_range"][0] == 200 * found["predicted_p99_class"]


def test_a_dash_reads_standard_input() -> None:
    given, piped = (
        runner.invoke(app, [text, "--llm", "llama-3.2-3B", "--json"], input=PROMPT).stdout for text in (PROMPT, "-")
    )
    assert given == piped


def test_max_tokens_bounds_the_prediction() -> None:
    options = ["--llm", "llama-3.2-3B", "--json", "--max-tokens", "20"]
    found = json.loads(runner.invoke(app, [PROMPT, *options]).stdout)
    assert found["quantiles"]["0.99"] == 20


def test_an_unknown_predictor_is_a_mistake_that_lists_the_known() -> None:
    result = runner.invoke(app, [PROMPT, "--llm", "llama-3.2-3B", "--predictor", "slow"])
    assert isinstance(result.exception, InputError)
    assert "fast" in str(result.exception)


@pytest.mark.parametrize("text", ["", "\x00\x01\x02", "?"])
def test_any_text_is_a_prompt(text: str) -> None:
    assert runner.invoke(app, [text, "--llm", "nobody/new"]).exit_code == 0
