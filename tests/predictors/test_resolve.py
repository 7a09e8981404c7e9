"""Predictors by name, from files, by dotted path and as entry points."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from lengthwise import specs
from lengthwise.errors import InputError
from lengthwise.predictors import LengthPredictor, PredictionInput
from lengthwise.predictors.history import History
from lengthwise.predictors.model_file import write_model_file
from lengthwise.predictors.resolve import (
    PredictorSpec,
    best_packaged,
    load_predictor,
    packaged_predictors,
    parse_predictor_spec,
    resolve_predictor,
)

CARD = {"kind": "fast", "name": "x", "data": "none", "licences": "none", "limits": "all"}
PLUGIN = "tests.predictors.guesses:Guess"


def test_specs_are_parsed() -> None:
    assert parse_predictor_spec("oracle") == PredictorSpec("oracle")
    assert parse_predictor_spec(" None ") == PredictorSpec("none")
    assert parse_predictor_spec("noisy:0.6") == parse_predictor_spec("noisy:tau=0.6") == PredictorSpec("noisy", tau=0.6)
    assert parse_predictor_spec("noisy:log=0.5") == PredictorSpec("noisy", log_error=0.5)
    assert parse_predictor_spec("History") == PredictorSpec("history")
    assert parse_predictor_spec("Memory") == parse_predictor_spec("memory+history") == PredictorSpec("memory")
    assert parse_predictor_spec("memory+fast") == PredictorSpec("memory", model="fast")
    assert parse_predictor_spec("memory+my/own.lw") == PredictorSpec("memory", model="my/own.lw")
    assert parse_predictor_spec("fast+learn") == PredictorSpec("learn", model="fast")
    assert parse_predictor_spec("my/own.lw+Learn") == PredictorSpec("learn", model="my/own.lw")
    assert parse_predictor_spec("memory+fast+learn") == PredictorSpec("learn", model="fast", memory=True)
    assert parse_predictor_spec("fast") == PredictorSpec("model", model="fast")
    assert parse_predictor_spec("Mine.lw") == PredictorSpec("model", model="Mine.lw")
    assert parse_predictor_spec("my/own") == PredictorSpec("model", model="my/own")
    assert parse_predictor_spec("ask:http://localhost:8000") == PredictorSpec("ask", model="http://localhost:8000")
    assert parse_predictor_spec(PLUGIN) == PredictorSpec("plugin", model=PLUGIN)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("oracl", "did you mean oracle"),
        ("fst", "did you mean fast"),
        ("", "known are oracle, none, probe, history, constant, constant-corpus, memory, noisy:TAU"),
        ("", "there is no predictor ''"),
        ("noisy", "does not state the noise"),
        ("noisy:", "does not state the noise"),
        ("noisy:1.2", "does not state the noise"),
        ("noisy:-0.1", "does not state the noise"),
        ("noisy:nan", "does not state the noise"),
        ("noisy:much", "does not state the noise"),
        ("noisy:log=-1", "does not state the noise"),
        ("oracle:0.5", "there is no predictor"),
        ("memory+oracle", "no prefix memory over 'oracle'"),
        ("memory+memory", "no prefix memory over 'memory'"),
        ("memory+fst", "did you mean fast"),
        ("memory+", "there is no predictor ''"),
        ("oracle+learn", "nothing to learn over 'oracle'"),
        ("memory+learn", "nothing to learn over 'memory'"),
        ("fst+learn", "did you mean fast"),
        ("+learn", "there is no predictor ''"),
    ],
)
def test_an_invalid_name_is_a_one_line_error(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_predictor_spec(spec)


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


def test_a_file_of_an_unknown_kind_is_an_error_that_lists_the_known_kinds(tmp_path: Path) -> None:
    path = tmp_path / "odd.lw"
    write_model_file(path, CARD | {"kind": "oracle"}, {})
    with pytest.raises(InputError, match=r"odd\.lw, field 'kind': holds a predictor of kind 'oracle'; known: .*fast"):
        load_predictor(path)


@pytest.mark.parametrize("name", ["fast", "default", "rank"])
def test_the_card_of_a_packaged_predictor_states_data_licences_and_limits(name: str) -> None:
    card = load_predictor(name).card
    assert card["name"] == name
    assert all(card[field] for field in ("data", "licences", "limits", "figures"))


def test_the_best_packaged_predictor_exists() -> None:
    assert best_packaged() in packaged_predictors()


def test_prompts_and_llms_must_have_the_same_number() -> None:
    with pytest.raises(InputError, match="2 prompts for 1 LLMs"):
        load_predictor("fast").predict(["a", "b"], ["llama-3.2-3B"])


def test_every_name_that_predicts_from_a_request_resolves_to_a_predictor() -> None:
    request = [PredictionInput("Say 7", "m")]
    for name, kind in (("history", History), (PLUGIN, LengthPredictor), ("fast", LengthPredictor)):
        predictor = resolve_predictor(name)
        assert isinstance(predictor, kind)
        assert len(predictor.predict(request)) == 1
    history = History()
    assert resolve_predictor(history) is history


@pytest.mark.parametrize("name", ["oracle", "noisy:0.6", "none"])
def test_predictors_of_simulations_are_refused_elsewhere(name: str) -> None:
    with pytest.raises(InputError, match="use it in a simulation"):
        resolve_predictor(name)


def test_a_plug_in_must_be_a_predictor() -> None:
    with pytest.raises(InputError, match=r"needs predict\(inputs\)"):
        resolve_predictor("pathlib:PurePath")
    with pytest.raises(InputError, match="no module 'my_package"):
        resolve_predictor("my_package.module:MyPredictor")


def test_an_entry_point_is_resolved_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("guess", PLUGIN, "lengthwise.predictors")
    monkeypatch.setattr(specs, "entry_points", lambda group: [point])
    assert type(resolve_predictor("guess")).__name__ == "Guess"


def test_a_predictor_prints_in_one_line() -> None:
    assert repr(History()) == "History(0 lengths, 0 LLMs)"
    for name in ("fast", "default", "rank"):
        assert re.fullmatch(rf"\w+Predictor\('\S*{name}\S*', \d+ LLMs\)", repr(load_predictor(name)))
