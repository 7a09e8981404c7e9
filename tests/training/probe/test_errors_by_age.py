"""The shipped probe and its card."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.errors import InputError
from lengthwise.predictors.probe import SHIPPED, load_probe
from lengthwise.predictors.resolve import packaged_predictors
from lengthwise.training.probe.errors_by_age import JOINT_SMOOTH, PROMPT_ONLY, card_page, error_ratio
from lengthwise.training.probe.states import NOT_TRAINED
from lengthwise.vllm.smollm2 import MODEL_NAME
from tests.predictors.test_probe import made_probe

PAGE = Path(__file__).parents[3] / "docs" / "studies" / "probe-card.md"


def test_the_page_matches_the_shipped_file() -> None:
    assert PAGE.read_text(encoding="utf-8") == card_page(load_probe("default"), command="lengthwise probe card default")


def test_the_shipped_probe_is_of_the_embedded_llm_and_not_trained_on_excluded_corpora() -> None:
    probe = load_probe("default")
    assert probe.llm.endswith(MODEL_NAME)
    assert not set(NOT_TRAINED) & set(probe.card["data"]["corpora"])
    assert probe.card["data"]["prompts"]["held out"] > 100
    assert SHIPPED.stat().st_size < 2e6


def test_the_probe_is_not_among_the_prompt_predictors() -> None:
    assert "probe" not in packaged_predictors()
    with pytest.raises(InputError, match="probe 'mine' is not known"):
        load_probe("mine")


def test_the_error_ratio_is_read_from_the_card() -> None:
    figures = {PROMPT_ONLY: {"mae": 90.0}, JOINT_SMOOTH: {"mae": 60.0}}
    probe = made_probe()
    assert error_ratio(replace(probe, card={**probe.card, "figures": figures})) == 1.5
    with pytest.raises(InputError, match="no figures"):
        error_ratio(probe)


def test_a_card_with_few_entries_is_rendered() -> None:
    page = card_page(made_probe(("prompt", "entropy"), features=6), command="x")
    assert "the entropy of the next token" in page
    assert "## Limits" in page
    assert "## Held-out" not in page


def test_the_command_prints_the_card() -> None:
    done = CliRunner().invoke(app, ["probe", "card"])
    assert done.exit_code == 0, done.output
    assert re.search(r"^\| layer \| \d+", done.stdout, re.MULTILINE)
    assert JOINT_SMOOTH in done.stdout
    missing = CliRunner().invoke(app, ["probe", "card", "mine"])
    assert missing.exit_code == 2
