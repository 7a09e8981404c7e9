"""Predictors by name and from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lengthwise.errors import InputError
from lengthwise.predictors.model_file import write_model_file
from lengthwise.predictors.resolve import best_packaged, load_predictor, packaged_predictors

CARD = {"kind": "fast", "name": "x", "data": "none", "licences": "none", "limits": "all"}


def test_a_packaged_name_and_its_file_are_the_same_predictor() -> None:
    path = packaged_predictors()["fast"]
    by_name, by_path, by_text = (load_predictor(one) for one in ("fast", path, str(path)))
    medians = {float(one.predict(["hi"], ["llama-3.2-3B"]).quantile(0.5)[0]) for one in (by_name, by_path, by_text)}
    assert len(medians) == 1


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"predictor 'slow' is not known; one of: .*fast"):
        load_predictor("slow")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match=r"nowhere\.lw: is not a file"):
        load_predictor("nowhere.lw")


def test_a_file_of_an_unknown_kind_is_named_with_the_kinds_there_are(tmp_path: Path) -> None:
    path = tmp_path / "odd.lw"
    write_model_file(path, CARD | {"kind": "oracle"}, {})
    with pytest.raises(InputError, match=r"odd\.lw, field 'kind': holds a predictor of kind 'oracle'; known: .*fast"):
        load_predictor(path)


def test_the_best_packaged_one_can_be_loaded() -> None:
    assert best_packaged() in packaged_predictors()


def test_prompts_need_as_many_llms() -> None:
    with pytest.raises(InputError, match="2 prompts for 1 LLMs"):
        load_predictor("fast").predict(["a", "b"], ["llama-3.2-3B"])
