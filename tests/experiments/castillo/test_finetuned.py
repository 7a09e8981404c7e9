"""What the fine-tuned networks predicted, as rows of the study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from experiments.castillo import finetuned
from experiments.castillo.paper import compare, trained_name, trained_subjects
from experiments.castillo.rows import LLMS, Truth, evaluated_parts, rows_of
from lengthwise.errors import InputError
from lengthwise.training.data import PromptTable
from lengthwise.workloads import LengthSamples, load_castillo

NAMES = ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-3B-Instruct")


def training(name: str, head: str, of: list[str], seed: int = 0, identity: int = 1) -> dict[str, Any]:
    settings = {"head": head, "network": "minilm", "identity": identity, "seed": seed}
    return {"name": name, "settings": settings, "llms": NAMES, "of": of, "curves": [], "scores": {}}


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> LengthSamples:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    return load_castillo()


def outputs(samples: LengthSamples) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the classes of the true means and P99s, and the true means and stds, as two trainings."""
    table = PromptTable.of(samples)
    places = [next(at for at, llm in enumerate(table.llms) if llm == name) for name in NAMES]
    lengths = table.lengths[:, places].astype(float)
    lengths[(lengths > 0).any(axis=-1) == 0] = 1.0  # an LLM's missing rows
    x = np.where(lengths > 0, lengths, np.nan)
    mean, std, p99 = np.nanmean(x, axis=-1), np.nanstd(x, axis=-1), np.nanquantile(x, 0.99, axis=-1)
    classes = np.stack([np.floor(mean / 200), np.floor(p99 / 200)], axis=-1)
    moments = np.stack([mean, std], axis=-1)
    results = [
        training("classes_0", "classes", ["mean/200", "p99/200"]),
        training("p99_0", "classes", ["p99/200"]),
        training("absolute_0", "absolute", ["mean", "std"], identity=0),
        {**training("tie_0", "logt", []), "settings": {"head": "logt", "seed": 0}},
    ]
    arrays = {"classes_0": classes, "p99_0": classes[..., 1:], "absolute_0": moments, "tie_0": np.zeros((len(x), 3, 4))}
    return results, {"prompts": np.arange(len(table)), **arrays}


def test_the_true_classes_and_moments_fill_the_tables_without_an_error(samples: LengthSamples) -> None:
    results, arrays = outputs(samples)
    kept = finetuned.rows_table(results, arrays, PromptTable.of(samples).about)
    subjects = trained_subjects(kept, samples)
    assert {subject.name for subject in subjects} == {
        trained_name("classifier", "minilm"),
        trained_name("classifier", "minilm-single"),
        trained_name("regression, absolute error", "minilm-anonymous"),
    }
    cells = compare(subjects, samples).cells
    accuracies = [cell.ours for cell in cells if cell.what == "Acc 200" and cell.subject.startswith("classifier")]
    assert accuracies == [100.0] * 9  # mean and P99 of the one, P99 of the other, for three LLMs
    errors = [cell.ours for cell in cells if cell.what == "MAE(mean)"]
    assert max(errors) <= 0.5  # kept as whole tokens


def test_only_test_rows_are_kept_and_all_of_them(samples: LengthSamples) -> None:
    results, arrays = outputs(samples)
    kept = finetuned.rows_table(results, arrays, PromptTable.of(samples).about)
    have = set(zip(*(kept[name].to_pylist() for name in ("llm", "corpus", "prompt_id")), strict=True))
    for llm in LLMS:
        for _, _, part in evaluated_parts(rows_of(llm, samples)):
            assert {(llm, *key) for key in Truth.of(part, "all").keys} <= have
    tested = {row["prompt_id"] for row in samples.where(split="test").table.to_pylist()}
    assert {ident for _, _, ident in have} <= tested


def test_a_folder_of_results_becomes_two_files(samples: LengthSamples, tmp_path: Path) -> None:
    results, arrays = outputs(samples)
    (tmp_path / "results.json").write_text(json.dumps(results))
    np.savez(tmp_path / "predictions.npz", **arrays)
    finetuned.keep(tmp_path, tmp_path)
    assert "minilm/castillo/mean/200/0" in pq.read_schema(tmp_path / finetuned.ROWS).names
    about = json.loads((tmp_path / finetuned.ABOUT).read_text())
    assert [each["name"] for each in about] == [each["name"] for each in results]


def test_a_later_training_is_added_to_those_that_are_kept(samples: LengthSamples, tmp_path: Path) -> None:
    results, arrays = outputs(samples)
    later = {**training("classes-mpnet_1", "classes", ["mean/200", "p99/200"], seed=1), "curves": [1]}
    later["settings"] = {**later["settings"], "network": "mpnet"}
    for found in (results, [later], [{**later, "curves": [2]}]):
        (tmp_path / "results.json").write_text(json.dumps(found))
        np.savez(tmp_path / "predictions.npz", **{**arrays, "classes-mpnet_1": arrays["classes_0"]})
        finetuned.keep(tmp_path, tmp_path)
    kept = pq.read_table(tmp_path / finetuned.ROWS)
    assert kept["mpnet/castillo/mean/200/1"].equals(kept["minilm/castillo/mean/200/0"])
    about = json.loads((tmp_path / finetuned.ABOUT).read_text())
    assert [each["name"] for each in about] == [*(each["name"] for each in results), "classes-mpnet_1"]
    assert about[-1]["curves"] == [2]


def test_results_without_a_network_of_the_paper_are_refused(samples: LengthSamples) -> None:
    with pytest.raises(InputError, match="no network of CASTILLO's paper"):
        finetuned.rows_table([], {"prompts": np.arange(3)}, PromptTable.of(samples).about)
