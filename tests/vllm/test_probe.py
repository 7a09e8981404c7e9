"""Whether a probe can run inside vLLM, given its configuration; vLLM itself is not needed for the check."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lengthwise.errors import InputError
from lengthwise.predictors.probe import load_probe, write_probe
from lengthwise.vllm.refine import WORKER, refiner_for
from tests.predictors.test_probe import made_probe


def config(**changed: Any) -> Any:
    model = {"model": "/models/tiny", "served_model_name": "chat"}
    shape = {"get_hidden_size": lambda: 8, "get_total_num_hidden_layers": lambda: 3}
    parallel = {"worker_cls": WORKER, "pipeline_parallel_size": changed.pop("stages", 1)}
    return SimpleNamespace(
        model_config=SimpleNamespace(**model, **shape),
        parallel_config=SimpleNamespace(**parallel),
        **{"speculative_config": None, **changed},
    )


@pytest.fixture
def file(tmp_path: Path) -> str:
    probe = made_probe()
    write_probe(tmp_path / "tiny.lw", replace(probe, card={**probe.card, "predictor": "default"}))
    return str(tmp_path / "tiny.lw")


def test_without_a_probe_nothing_is_refined() -> None:
    assert refiner_for({}, config(), "fast") is None


def test_the_llm_may_be_served_under_another_name(file: str) -> None:
    refiner = refiner_for({"probe": file}, config(), "default")
    assert refiner is not None
    assert refiner.counts.readings == 0


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({"speculative_config": object()}, {}, "speculative decoding"),
        ({"stages": 2}, {}, "pipeline parallelism"),
        ({}, {"forced_lengths": {"llm": "x"}}, "forced lengths"),
    ],
)
def test_a_configuration_whose_states_are_missing_or_different_is_refused(
    file: str, changed: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        refiner_for({"probe": file, **options}, config(**changed), "fast")


def test_a_predictor_other_than_that_of_training_is_logged(file: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        refiner_for({"probe": file}, config(), "default")
        assert not caplog.records
        refiner_for({"probe": file}, config(), "fast")
    assert "trained with predictor 'default'" in caplog.text


def test_the_shipped_probe_is_found_by_its_name() -> None:
    model = SimpleNamespace(
        model="x", served_model_name="SmolLM2-135M-Instruct", get_hidden_size=lambda: 576,
        get_total_num_hidden_layers=lambda: 30,
    )  # fmt: skip
    assert refiner_for({"probe": "default"}, SimpleNamespace(**{**vars(config()), "model_config": model}), "default")
    assert load_probe("default").network.width == 576
