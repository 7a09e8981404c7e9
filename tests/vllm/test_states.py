"""Hidden states of a real vLLM: each belongs to the right request, by value, in steps that mix prefill and decode."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vllm.host import ANSWER

pytestmark = pytest.mark.engine


@pytest.fixture(params=["first runner", "second runner"])
def served(request: pytest.FixtureRequest) -> dict[str, Any]:
    runs = request.getfixturevalue("vllm_runs" if request.param == "first runner" else "second_runner")
    states = dict(runs["states"])
    assert states["second_runner"] == states["async_scheduling"] == (request.param == "second runner")
    return states


def test_some_steps_mix_prefill_and_decode(served: dict[str, Any]) -> None:
    mixed = [step for step in served["steps"] if step[0] and step[1] > 1]
    assert len(mixed) >= 5


def test_every_token_of_every_request_has_its_state(served: dict[str, Any]) -> None:
    reported = {(row["name"], row["generated"], row["layer"]) for row in served["rows"]}
    for name in served["requests"]:
        for layer in (10, 20):
            assert {generated for one, generated, of in reported if (one, of) == (name, layer)} == set(range(ANSWER))


def test_every_state_equals_that_of_transformers_for_the_same_tokens(served: dict[str, Any]) -> None:
    worst = max(served["rows"], key=lambda row: row["distance"])
    assert worst["distance"] < 0.01, worst
    # A state of another request would be noticed.
    assert min(row["others"] for row in served["rows"]) > 0.05


def test_every_state_has_the_entropy_of_the_token_sampled_from_it(served: dict[str, Any]) -> None:
    entropies = [row["entropy"] for row in served["rows"]]
    assert [row["entropy_reported"] for row in served["rows"]] == pytest.approx(entropies, abs=0.02)
    assert max(entropies) - min(entropies) > 1.0


def test_a_preempted_request_is_not_reported_twice(served: dict[str, Any]) -> None:
    (name,) = served["preempted"]
    reported = [row["generated"] for row in served["rows"] if row["name"] == name and row["layer"] == 20]
    assert reported == list(range(ANSWER))
