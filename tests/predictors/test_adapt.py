"""Lengths are read and checked, and an adapted model file predicts the new LLM."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lengthwise.errors import InputError
from lengthwise.predictors import load_predictor, mixture
from lengthwise.predictors.adapt import AdaptReport, Observed, adapt_file, read_observed
from lengthwise.predictors.model_file import read_model_file
from lengthwise.workloads import LengthSamples, load_castillo

PROMPTS = [f"prompt {i}" for i in range(30)]


def write(path: Path, **columns: Any) -> Path:
    rows = {"prompt": PROMPTS, "length": list(range(1, 31)), "llm": ["me/Mine"] * 30} | columns
    pq.write_table(pa.table({name: value for name, value in rows.items() if value is not None}), path)
    return path


def test_parquet_csv_and_json_lines_are_read_alike(tmp_path: Path) -> None:
    parquet = read_observed(write(tmp_path / "a.parquet", capped=[i > 27 for i in range(30)]))
    (tmp_path / "a.csv").write_text(
        "prompt,length,llm,capped\n" + "".join(f"prompt {i},{i + 1},me/Mine,{str(i > 27).lower()}\n" for i in range(30))
    )
    lines = [{"prompt": f"prompt {i}", "length": i + 1, "llm": "me/Mine", "capped": i > 27} for i in range(30)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    for other in (read_observed(tmp_path / "a.csv"), read_observed(tmp_path / "a.jsonl")):
        assert other.llm == parquet.llm == "me/Mine"
        assert other.texts == parquet.texts
        assert other.lengths.tolist() == parquet.lengths.tolist()
        assert other.censored.sum() == parquet.censored.sum() == 2


def test_length_samples_written_by_collect_are_read(tmp_path: Path) -> None:
    samples = LengthSamples.from_table(
        {
            "corpus": ["c"] * 30,
            "prompt_id": PROMPTS,
            "llm": ["me/Mine"] * 30,
            "input_tokens": [5] * 30,
            "lengths": [[10, 20, 1024]] * 30,
            "capped": [[False, False, True]] * 30,
            "prompt": PROMPTS,
        },
        origin="made up",
    )
    samples.write(tmp_path / "s.parquet")
    found = read_observed(tmp_path / "s.parquet")
    assert (found.count, len(found.texts), found.censored.sum()) == (90, 30, 30)
    assert found.caps.tolist() == [1024.0] * 30


def test_answers_to_the_same_prompt_are_grouped(tmp_path: Path) -> None:
    found = read_observed(write(tmp_path / "a.parquet", prompt=[f"prompt {i // 2}" for i in range(30)]))
    assert len(found.texts) == 15
    assert found.lengths[0].tolist() == [1.0, 2.0]


def test_the_llm_is_read_from_the_file_or_given(tmp_path: Path) -> None:
    one = write(tmp_path / "one.parquet")
    assert read_observed(one, "other/Name").llm == "other/Name"
    two = write(tmp_path / "two.parquet", llm=["me/A-Instruct"] * 25 + ["me/B"] * 5)
    assert read_observed(two, "a").llm == "me/A-Instruct"
    assert read_observed(two, "a").count == 25
    for path, message in (
        (two, "holds lengths of 2 LLMs"),
        (write(tmp_path / "no.parquet", llm=None), "does not name the LLM"),
    ):
        with pytest.raises(InputError, match=message):
            read_observed(path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": None}, "field 'prompt': missing column"),
        ({"length": None}, "field 'length': missing column"),
        ({"length": [5] * 29 + [0]}, "row 30, field 'length': 0 is not a length"),
        ({"length": [5.5] * 30}, "row 1, field 'length'"),
        ({"prompt": [*PROMPTS[:-1], None]}, "row 30, field 'prompt': has no value"),
        ({"prompt": ["the same"] * 30}, "30 lengths of 1 prompts are too few"),
        ({"capped": [True] * 20 + [False] * 10}, "most of the answers were cut off"),
        ({"length": None, "lengths": [[1, 2]] * 29 + [[]]}, "row 30, field 'lengths'"),
        ({"length": None, "lengths": [[1, 2]] * 30, "capped": [[True]] * 30}, "is not as long as lengths"),
    ],
)
def test_invalid_columns_are_named(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_observed(write(tmp_path / "a.parquet", **columns))


@pytest.mark.parametrize("rows", [0, 19])
def test_fewer_than_twenty_lengths_are_refused(tmp_path: Path, rows: int) -> None:
    table = pq.read_table(write(tmp_path / "a.parquet")).slice(0, rows)
    pq.write_table(table, tmp_path / "b.parquet")
    with pytest.raises(InputError, match=f"{rows} lengths of {rows} prompts are too few; give at least 20"):
        read_observed(tmp_path / "b.parquet", "me/Mine")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{not json")
    (tmp_path / "a.parquet").write_text("not parquet")
    for name in ("a.jsonl", "a.parquet", "missing.parquet"):
        with pytest.raises(InputError, match=name):
            read_observed(tmp_path / name)


def test_twenty_lengths_are_enough() -> None:
    assert Observed.of("m", PROMPTS[:20], [5] * 20, origin="here").count == 20


NEW = "me/Mine-8B"


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    rows = load_castillo().where(llm="llama-3.1-8B").table["prompt"].to_pylist()
    return [text for text in dict.fromkeys(rows) if text][:80]


def observe(prompts: list[str], times: float, llm: str = NEW, seed: int = 0) -> Observed:
    """Return lengths of an LLM that are `times` those that fast predicts for a Llama."""
    mu = np.log(load_predictor("fast").predict(prompts, ["llama-3.1-8B"] * len(prompts)).quantile(0.5))
    drawn = np.exp(mu + np.log(times) + 0.2 * np.random.default_rng(seed).standard_normal(len(mu)))
    return Observed.of(llm, prompts, [max(1, round(x)) for x in drawn], origin="made up")


@pytest.fixture(scope="module")
def adapted(prompts: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AdaptReport]:
    out = tmp_path_factory.mktemp("adapted") / "mine.lw"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixture, "STRENGTHS", ((10.0, 30.0), (100.0, 1000.0)))  # fewer fits: faster
        return out, adapt_file("fast", observe(prompts, 3.0), out)


def test_held_out_prompts_are_predicted_better_than_for_an_unknown_llm(adapted: tuple[Path, AdaptReport]) -> None:
    _, report = adapted
    assert (report.llm, report.lengths, report.prompts, report.replaced) == (NEW, 80, 80, False)
    assert report.after.crps < report.before.crps / 1.5
    assert report.after.tau > report.before.tau - 0.05  # the order was known before, up to the noise of 80 prompts
    assert 0.75 <= report.after.coverage_90 <= 1.0


def test_the_adapted_file_predicts_the_llm_and_its_card_names_it(
    adapted: tuple[Path, AdaptReport], prompts: list[str]
) -> None:
    out, report = adapted
    mine, fast = load_predictor(out), load_predictor("fast")
    longer = mine.predict(prompts, ["mine-8b"] * 80).quantile(0.5)
    known = mine.predict(prompts, ["llama-3.1-8B"] * 80).quantile(0.5)
    assert np.median(longer / known) == pytest.approx(3.0, rel=0.15)
    assert known.tolist() == fast.predict(prompts, ["llama-3.1-8B"] * 80).quantile(0.5).tolist()
    entry = read_model_file(out).card["adapted"][NEW]
    assert entry["lengths"] == 80
    assert entry["after"]["crps"] == report.after.crps


def test_another_llm_is_added_and_the_same_one_is_replaced_without_a_warning(
    adapted: tuple[Path, AdaptReport],
    prompts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(mixture, "STRENGTHS", ((10.0, 30.0), (100.0, 1000.0)))  # fewer fits: faster
    caplog.set_level(logging.WARNING)
    second = adapt_file(adapted[0], observe(prompts, 0.5, "me/Terse"), tmp_path / "two.lw")
    assert not second.replaced
    third = adapt_file(tmp_path / "two.lw", observe(prompts, 6.0), tmp_path / "three.lw")
    assert third.replaced
    assert not caplog.records, "an unknown LLM is expected here"
    found = load_predictor(tmp_path / "three.lw")
    medians = {llm: np.median(found.predict(prompts, [llm] * 80).quantile(0.5)) for llm in (NEW, "me/Terse")}
    assert medians[NEW] / medians["me/Terse"] == pytest.approx(12.0, rel=0.3)
    assert set(read_model_file(tmp_path / "three.lw").card["adapted"]) == {NEW, "me/Terse"}


def test_an_adapted_file_predicts_without_torch_and_pyarrow(adapted: tuple[Path, AdaptReport]) -> None:
    code = (
        "import sys; from lengthwise.predictors import load_predictor\n"
        f"load_predictor(sys.argv[1]).predict(['write'], ['{NEW}'])\n"
        "assert not {'torch', 'transformers', 'pyarrow'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code, str(adapted[0])], check=True)
