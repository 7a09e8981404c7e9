"""MiniLM, 20 classes, Alpaca: reading, splitting, scoring, a small training, and the kept rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import alpaca20
from experiments.alpaca20 import AUTHORS, PAPER, RECIPES, STUDY, Alpaca20Grid, authors_prompt, read_alpaca, tokenise
from experiments.alpaca20_training import BINS, LONGEST, LengthClasses, authors_classes, fair_classes, score
from experiments.study import Run
from lengthwise.errors import InputError
from lengthwise.simulator.tasks import ResultCache


def write_alpaca(path: Path, count: int = 400) -> Path:
    """Write instructions that determine the length of the answer."""
    rng = np.random.default_rng(0)
    rows = []
    for long in rng.random(count) < 0.5:
        words = rng.integers(50, 200) if long else rng.integers(1, 20)
        instruction = f"write a {'long' if long else 'short'} story"
        rows.append({"instruction": instruction, "input": "", "output": "story " * int(words)})
    path.write_text(json.dumps(rows))
    return path


@pytest.mark.parametrize(
    ("instruction", "given_input", "prompt"),
    [
        ("Name a fish", "", "Name a fish."),
        ("Name a fish.", "", "Name a fish."),
        ("Sort", "3 1 2", "Sort. 3 1 2."),
        ("Sort:", "3 1 2", "Sort: 3 1 2"),
    ],
)
def test_prompts_are_written_as_the_authors_write_them(instruction: str, given_input: str, prompt: str) -> None:
    assert authors_prompt(instruction, given_input) == prompt


@given(st.lists(st.integers(3, LONGEST), min_size=60, max_size=400), st.integers(0, 9))
def test_every_row_is_in_one_part_and_every_length_in_one_class(lengths: list[int], seed: int) -> None:
    values = np.array(lengths, np.int64)
    fair, theirs = fair_classes(values, seed), authors_classes(values)
    parts = np.concatenate([fair.train, fair.validation, fair.test])
    assert sorted(parts.tolist()) == list(range(len(values)))
    their_parts = np.concatenate([theirs.train, theirs.validation, theirs.test])
    assert len(set(their_parts.tolist())) == len(their_parts)
    assert len(theirs.train) <= 0.31 * len(values)
    for found in (fair, theirs):
        own = found.classes(values)
        assert np.all((found.edges[own] < values) & (values <= found.edges[own + 1]))
        assert len(found.edges) <= BINS + 1


def test_certain_predictions_score_one_and_a_constant_has_no_correlation() -> None:
    lengths = np.random.default_rng(0).integers(3, LONGEST, 2000)
    found = fair_classes(lengths, 0)
    sure = np.eye(len(found.edges) - 1)[found.classes(lengths[found.test])]
    row = score(found, lengths, sure)
    assert row["scores"] == pytest.approx(dict.fromkeys(PAPER, 1.0))
    assert (row["constant"]["mcc"], row["constant"]["auroc"]) == (0.0, 0.5)
    assert np.sum(row["confusion"]) == len(found.test)


def test_auroc_is_scikit_learns_plain_mean_over_classes() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 8, 300)
    found = LengthClasses(np.arange(200), np.arange(0), np.arange(200, 300), np.array([0.0, 2, 3, 9]))
    predicted = rng.dirichlet([1.0, 1.0, 1.0], 100)
    true = found.classes(lengths[found.test])
    expected = metrics.roc_auc_score(true, predicted, multi_class="ovr")
    assert score(found, lengths, predicted)["scores"]["auroc"] == pytest.approx(expected)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    for name, text in {"a.json": '[{"prompt": 1}]', "b.json": "[", "c.jsonl": "hello", "d.json": "[]"}.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=rf"{name}: is not"):
            read_alpaca(tmp_path / name)
    with pytest.raises(InputError, match="missing"):
        STUDY.measure(Run(ResultCache(tmp_path)), Alpaca20Grid(data=str(tmp_path / "missing.json")))


def test_the_stand_in_has_lengths_for_answers_and_no_empty_ones(tmp_path: Path) -> None:
    rows = {"instruction": ["a", "b", "c"], "input": [""] * 3, "out_tokens": [4, 0, 900]}
    pq.write_table(pa.table(rows), tmp_path / "alpaca52k.parquet")
    found = read_alpaca(tmp_path / "alpaca52k.parquet")
    assert found == (["a.", "c."], [4, 900])


def test_the_kept_rows_show_every_score_and_name_the_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    finished = STUDY.run(STUDY.grid, ResultCache(tmp_path))
    trainings, compared = finished.output.tables
    assert {row[0] for row in trainings.rows} <= set(RECIPES)
    assert [float(row[1]) for row in compared.rows] == [*PAPER.values(), 4.8]  # over a random class of 20
    assert all("STAND-IN" in table.notes[0] for table in finished.output.tables)
    assert "STAND-IN" in finished.output.notes[0]


def test_both_trainings_learn_from_a_file_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = pytest.importorskip("tests.training.encoder.tiny")
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(
        "lengthwise.training.encoder.config.read_config",
        lambda _: tiny.config(tmp_path, identity={"features": False}, optimiser={"epochs": 4}),
    )
    backbone = tiny.write_backbone(tmp_path / "bert", "bert")
    cleaned = str(write_alpaca(tmp_path / "cleaned.json"))
    grid = Alpaca20Grid(data=cleaned, backbone=backbone, seeds=2, epochs=2)
    found = STUDY.measure(Run(ResultCache(tmp_path / "cache")), grid)
    assert not found.stand_in
    assert [(row["recipe"], row["seed"]) for row in found.runs[:2]] == [(AUTHORS, 42), (AUTHORS, 43)]
    assert len(found.runs) == 2 * len(RECIPES)
    # Two kinds of prompts: a network that learns separates them, a constant cannot.
    assert found.mean(alpaca20.OURS, "auroc").ratio > 0.6
    again = Run(ResultCache(tmp_path / "cache"))
    assert STUDY.measure(again, grid) == found
    assert again.counts == (6, 0)
    torch.set_num_threads(threads)


def test_answers_are_counted_in_wordpiece_tokens_and_truncated(tmp_path: Path) -> None:
    tiny = pytest.importorskip("tests.training.encoder.tiny")
    tokenizer = tiny.tokenizer().backend_tokenizer.to_str().encode()
    found = tokenise(["write a story", "why"], ["story " * 600, "story story"], tokenizer)
    assert [len(each) for each in found.tokens] == [3, 1]
    assert found.lengths.tolist() == [LONGEST, 2]
