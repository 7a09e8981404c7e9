"""`simulate` takes names and objects, and refuses anything else in one line."""

from __future__ import annotations

from typing import Any

import pytest

from lengthwise.errors import InputError
from lengthwise.simulator import default_predictor, engine, simulate
from tests.simulator.builders import UNEVEN, fleet, requests

WORKLOAD = requests([(10, 5), (10, 9), (10, 2)])


def test_a_fleet_and_a_workload_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_DATA", "")
    outcome = simulate("castillo", "2*llama-3-8b@a100", "sjf", requests=50, rate=5.0)
    assert len(outcome) == 50
    assert outcome.predictor == "fast"
    assert repr(outcome).startswith("Outcome(sjf, predictor fast: 50 requests")


@pytest.mark.parametrize(
    "wrong",
    [
        {"workload": 3},
        {"fleet": 8},
        {"policy": None},
        {"policy": dict},
        {"predictor": 0.5},
        {"rate": 3.0},
        {"workload": "castillo", "rate": 1.0, "load": 0.5},
    ],
)
def test_a_wrong_type_is_an_input_error(wrong: dict[str, Any]) -> None:
    given = {"workload": WORKLOAD, "fleet": fleet(), "policy": "fcfs", **wrong}
    with pytest.raises(InputError):
        simulate(given.pop("workload"), given.pop("fleet"), given.pop("policy"), **given)


def test_without_text_the_default_predictor_is_history_and_without_use_there_is_none() -> None:
    assert default_predictor(WORKLOAD) == "history"
    assert default_predictor(requests([(1, 1)], prompt=["hello"])) == "fast"
    assert simulate(WORKLOAD, fleet(), "sjf").predictor == "history"
    assert simulate(WORKLOAD, fleet(), "fcfs").predictor is None


def test_true_lengths_are_marked_wherever_an_outcome_is_shown() -> None:
    outcome = simulate(WORKLOAD, fleet(), "sjf", predictor="oracle")
    assert outcome.true_lengths
    assert "TRUE LENGTHS" in repr(outcome)
    assert "TRUE LENGTHS" in outcome._repr_html_()
    assert "\n" not in repr(outcome)


def test_without_numba_the_readable_engine_runs_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fast = simulate(WORKLOAD, fleet(UNEVEN), "sjf")
    engine.accelerated.cache_clear()
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    slow = simulate(WORKLOAD, fleet(UNEVEN), "sjf")
    engine.accelerated.cache_clear()
    assert "numba is not installed" in caplog.text
    assert (fast.accelerated, slow.accelerated) == (True, False)
    assert fast.finish.tolist() == slow.finish.tolist()
