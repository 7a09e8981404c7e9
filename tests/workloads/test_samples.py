"""The packaged samples are small, credited and allowed by their licences."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lengthwise.files import sample
from lengthwise.workloads import LengthSamples, load_castillo, load_trace

FOLDER = sample("CREDITS.md").parent


def test_the_samples_are_under_two_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 2_000_000


def test_every_sample_is_credited() -> None:
    credits_text = (FOLDER / "CREDITS.md").read_text(encoding="utf-8")
    for path in FOLDER.iterdir():
        assert path.name == "CREDITS.md" or f"## {path.name}" in credits_text
    for corpus in load_castillo().corpora:
        assert f"| {corpus}:" in credits_text or f"| {corpus} |" in credits_text
    for licence in ("CC-BY-4.0", "CC-BY-SA-3.0", "CC-BY-SA-4.0", "Apache-2.0", "Permission is hereby granted"):
        assert licence in credits_text


def test_the_castillo_sample_has_all_llms_and_only_corpora_that_may_ship() -> None:
    samples = load_castillo()
    assert len(samples.llms) == 13
    assert samples.corpora == ("Apps", "BigCodeBench", "DS1000", "DollyDataset", "Mbpp")
    assert set(samples.splits) == {"train", "validate", "test"}
    assert samples.table["prompt"].null_count == 0
    prompts = Counter(samples.table["prompt_id"].to_pylist())
    assert set(prompts.values()) <= {12, 13}


@pytest.mark.parametrize("corpus", ["Apps", "BigCodeBench", "DS1000", "DollyDataset", "Mbpp"])
def test_each_corpus_has_test_and_training_prompts(corpus: str) -> None:
    rows = load_castillo().where(corpus=corpus, llm="llama-3.1-8b")
    by_split = Counter(rows.table["split"].to_pylist())
    assert by_split["test"] >= 30
    assert by_split["train"] + by_split["validate"] >= 30


def test_the_sample_is_a_subset_of_the_full_data(full_data: Path) -> None:
    packaged = LengthSamples.read(sample("castillo.parquet"))
    assert _cells(packaged) <= _cells(load_castillo(full_data / "castillo"))


def _cells(samples: LengthSamples) -> set[tuple[Any, ...]]:
    columns = (samples.table[name].to_pylist() for name in ("corpus", "split", "prompt_id", "llm", "prompt"))
    return set(zip(*columns, map(tuple, samples.lengths_matrix().tolist()), strict=True))


def test_the_packaged_trace_has_the_first_requests_of_azures(full_data: Path) -> None:
    assert full_data.is_dir()
    assert load_trace("azure2023_conv").head(2000) == load_trace("azure_sample")
