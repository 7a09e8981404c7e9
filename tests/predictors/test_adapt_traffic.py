"""Adapting to a traffic log writes a model file only if it predicts better."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

from lengthwise.errors import InputError
from lengthwise.predictors import PredictionInput, load_predictor
from lengthwise.predictors.adapt import Observed, adapt_file
from lengthwise.predictors.adapt_traffic import adapt_traffic
from lengthwise.predictors.contract import as_logt
from lengthwise.predictors.model_file import read_model_file
from lengthwise.predictors.resolve import predictor_label
from lengthwise.traffic.rows import RequestRow
from tests.traffic.traffic_rows import PLAIN, made, traffic

pytestmark = pytest.mark.usefixtures("few_strengths")
STORY, WORD = "Write a long story about {} dragons.", "Name one animal with {} legs, in one word."


def with_text(n: int) -> list[RequestRow]:
    """Return rows with stories of 15 tokens and single words of 600, the opposite of what a predictor expects."""
    rng = np.random.default_rng(0)
    forms = rng.random(n) < 0.5
    tokens = np.exp(np.log(np.where(forms, 15, 600)) + 0.2 * rng.standard_normal(n)).astype(int)
    return [
        PLAIN._replace(
            arrival_s=1e9 + i,
            llm="me/Mine-7B",
            text=(STORY if forms[i] else WORD).format(i),
            output_tokens=int(tokens[i]),
        )
        for i in range(n)
    ]


def median(file: Path | str, text: str, llm: str, tenant: str | None = None) -> float:
    return float(as_logt(load_predictor(file).predict([PredictionInput(text, llm, tenant=tenant)])).mu[0])


def test_a_log_with_prompts_corrects_the_order_of_predictions(tmp_path: Path) -> None:
    out = tmp_path / "my.lw"
    found = adapt_traffic("fast", traffic(with_text(150)), out)
    (llm,) = found.llms
    assert llm.texts
    assert llm.better
    assert found.written
    assert llm.before.rows == llm.after.rows == 30
    assert llm.after.tau > 0.3 > llm.before.tau
    story, word = (median(out, text.format(7), "me/Mine-7B") for text in (STORY, WORD))
    assert story < word
    assert median(out, "Hi", "llama-3.1-8B") == median("fast", "Hi", "llama-3.1-8B"), "other LLMs are unchanged"
    assert read_model_file(out).card["traffic"][0]["better"]


def test_without_prompts_each_tenant_is_corrected(tmp_path: Path) -> None:
    rows = made(300, shift=1.0, tenant="a") + made(300, seed=1, shift=-1.0, tenant="b")
    out = tmp_path / "my.lw"
    found = adapt_traffic("fast", traffic(rows), out)
    (llm,) = found.llms
    assert not llm.texts
    assert llm.after.coverage_90 > 0.85 > llm.before.coverage_90
    base = median("fast", "Hi", "m")
    assert median(out, "Hi", "m", "a") == pytest.approx(base + 1.0, abs=0.15)
    assert median(out, "Hi", "m", "b") == pytest.approx(base - 1.0, abs=0.15)
    assert median(out, "Hi", "m") == pytest.approx(base, abs=0.3)
    assert median(out, "Hi", "other") == median("fast", "Hi", "other")


def test_corrections_of_a_corrected_file_add_up(tmp_path: Path) -> None:
    first, second = tmp_path / "first.lw", tmp_path / "second.lw"
    adapt_traffic("fast", traffic(made(200, shift=1.0)), first)
    adapt_traffic(first, traffic(made(200, shift=0.5, predictor=predictor_label(first))), second)
    assert median(second, "Hi", "m") == pytest.approx(median("fast", "Hi", "m") + 1.5, abs=0.2)


def test_a_model_that_is_not_better_is_not_written_unless_forced(tmp_path: Path) -> None:
    out = tmp_path / "my.lw"
    rows = made(120)  # the first 90 lengths are shifted, the last 30 as predicted
    rows[:90] = made(120, shift=3.0, seed=1)[:90]
    found = adapt_traffic("fast", traffic(rows), out)
    assert not found.written
    assert not found.llms[0].better
    assert not out.exists()
    assert adapt_traffic("fast", traffic(rows), out, force=True).written
    assert median(out, "Hi", "m") > median("fast", "Hi", "m")


def test_only_the_llms_that_get_better_are_changed(tmp_path: Path) -> None:
    good = made(200, shift=1.0, llm="good")
    bad = made(120, llm="bad")
    bad[:90] = made(120, shift=3.0, seed=1, llm="bad")[:90]
    out = tmp_path / "my.lw"
    found = adapt_traffic("fast", traffic([*good, *bad, *made(5, llm="rare")]), out)
    assert {each.llm: each.better for each in found.llms} == {"good": True, "bad": False}
    assert found.too_few == {"rare": 5}
    assert median(out, "Hi", "bad") == median("fast", "Hi", "bad")
    assert median(out, "Hi", "good") > median("fast", "Hi", "good") + 0.7


def test_an_llm_whose_answers_are_cut_off_does_not_stop_the_others(tmp_path: Path) -> None:
    cut = [row._replace(llm="cut", output_tokens=5, censored=True, finish_reason="length") for row in made(100)]
    out = tmp_path / "my.lw"
    found = adapt_traffic("fast", traffic([*cut, *made(200, shift=1.0)]), out)
    assert ([each.llm for each in found.llms], found.cut_off, found.written) == (["m"], ("cut",), True)
    with pytest.raises(InputError, match="made up: cut: 80 of 80 answers are cut off"):
        adapt_traffic("fast", traffic(cut), out)


def test_too_few_lengths_or_those_of_another_predictor_are_an_input_error(tmp_path: Path) -> None:
    for rows in (made(5), made(200, predictor="other.lw"), [row._replace(output_tokens=None) for row in made(50)]):
        with pytest.raises(InputError, match="too few lengths"):
            adapt_traffic("fast", traffic(rows), tmp_path / "my.lw")


def test_adapting_uses_one_thread(tmp_path: Path) -> None:
    used: list[set[int]] = []

    def note(*_: object) -> None:
        used.append({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"})

    texts = [f"prompt {i}" for i in range(30)]
    adapt_file(
        "fast", Observed.of("me/M", texts, [10 + i for i in range(30)], origin="x"), tmp_path / "a", progress=note
    )
    adapt_traffic("fast", traffic(with_text(60)), tmp_path / "b.lw", progress=note)
    assert len(used) > 4
    assert all(threads == {1} for threads in used)
