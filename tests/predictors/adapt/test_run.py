"""From a model file and lengths to a model file that knows one LLM more."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lengthwise.predictors import load_predictor
from lengthwise.predictors.adapt import AdaptReport, Observed, adapt_file
from lengthwise.predictors.model_file import read_model_file
from lengthwise.workloads import load_castillo

NEW = "me/Mine-8B"


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    rows = load_castillo().where(llm="llama-3.1-8B").table["prompt"].to_pylist()
    return [text for text in dict.fromkeys(rows) if text][:80]


def observe(prompts: list[str], times: float, llm: str = NEW, seed: int = 0) -> Observed:
    """An LLM that answers `times` as long as the fast tier predicts of a Llama."""
    mu = np.log(load_predictor("fast").predict(prompts, ["llama-3.1-8B"] * len(prompts)).quantile(0.5))
    drawn = np.exp(mu + np.log(times) + 0.2 * np.random.default_rng(seed).standard_normal(len(mu)))
    return Observed.of(llm, prompts, [max(1, round(x)) for x in drawn], origin="made up")


@pytest.fixture(scope="module")
def adapted(prompts: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AdaptReport]:
    out = tmp_path_factory.mktemp("adapted") / "mine.lw"
    return out, adapt_file("fast", observe(prompts, 3.0), out)


def test_it_is_better_than_an_unknown_llm_on_prompts_it_did_not_learn_from(adapted: tuple[Path, AdaptReport]) -> None:
    _, report = adapted
    assert (report.llm, report.lengths, report.prompts, report.replaced) == (NEW, 80, 80, False)
    assert report.after.crps < report.before.crps / 1.5
    assert report.after.tau > report.before.tau - 0.05  # of 80 prompts: the order was known before, up to chance
    assert 0.75 <= report.after.coverage_90 <= 1.0


def test_the_file_knows_the_llm_and_its_card_says_so(adapted: tuple[Path, AdaptReport], prompts: list[str]) -> None:
    out, report = adapted
    mine, fast = load_predictor(out), load_predictor("fast")
    longer = mine.predict(prompts, ["mine-8b"] * 80).quantile(0.5)
    known = mine.predict(prompts, ["llama-3.1-8B"] * 80).quantile(0.5)
    assert np.median(longer / known) == pytest.approx(3.0, rel=0.15)
    assert known.tolist() == fast.predict(prompts, ["llama-3.1-8B"] * 80).quantile(0.5).tolist()
    said = read_model_file(out).card["adapted"][NEW]
    assert said["lengths"] == 80
    assert said["after"]["crps"] == report.after.crps


def test_another_llm_is_added_and_the_same_one_is_replaced(
    adapted: tuple[Path, AdaptReport], prompts: list[str], tmp_path: Path
) -> None:
    second = adapt_file(adapted[0], observe(prompts, 0.5, "me/Terse"), tmp_path / "two.lw")
    assert not second.replaced
    third = adapt_file(tmp_path / "two.lw", observe(prompts, 6.0), tmp_path / "three.lw")
    assert third.replaced
    found = load_predictor(tmp_path / "three.lw")
    medians = {llm: np.median(found.predict(prompts, [llm] * 80).quantile(0.5)) for llm in (NEW, "me/Terse")}
    assert medians[NEW] / medians["me/Terse"] == pytest.approx(12.0, rel=0.3)
    assert set(read_model_file(tmp_path / "three.lw").card["adapted"]) == {NEW, "me/Terse"}


def test_that_the_llm_is_not_known_is_not_warned_of(
    prompts: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        adapt_file("fast", observe(prompts[:20], 2.0), tmp_path / "a.lw")
    assert not caplog.records


def test_it_loads_without_torch(adapted: tuple[Path, AdaptReport]) -> None:
    code = (
        "import sys; from lengthwise.predictors import load_predictor\n"
        f"load_predictor(sys.argv[1]).predict(['write'], ['{NEW}'])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code, str(adapted[0])], check=True)
