"""The classes of docs/extending.md work unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lengthwise.gateway.config import GatewayConfig
from lengthwise.policies import Policy, make_policy
from lengthwise.predictors.contract import PredictionInput
from lengthwise.predictors.resolve import resolve_predictor
from lengthwise.routers import make_router
from lengthwise.simulator import Fleet, simulate
from lengthwise.workloads import load_trace

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in re.findall(r"```python\n# (.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
        name, _, code = block.partition("\n")
        (tmp_path / name).write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def test_the_policy_orders_a_simulation_and_is_accepted_by_gateway_and_plug_in() -> None:
    policy = make_policy("my_policies:AgedShortest:rate=20")
    assert isinstance(policy, Policy)
    assert make_policy(policy.name) == policy
    trace = load_trace("azure_sample").head(200)
    outcome = simulate(trace, Fleet.parse("1*llama-3-8b@a100"), policy.name, predictor="history")
    assert outcome.summary.requests == 200
    assert (
        GatewayConfig.model_validate({"engines": ["http://127.0.0.1:1"], "policy": policy.name}).policy == policy.name
    )


def test_the_router_spreads_requests_evenly() -> None:
    trace = load_trace("azure_sample").head(200)
    router = make_router("my_routers:FewestSent")
    outcome = simulate(trace, Fleet.parse("4*llama-3-8b@a100"), "fcfs", router=router, predictor="history")
    counts = [int((outcome.engine == number).sum()) for number in range(4)]
    assert max(counts) - min(counts) <= 1


def test_the_predictor_follows_the_length_of_the_prompt() -> None:
    predictor = resolve_predictor("my_predictors:PromptLength")
    predictions = predictor.predict([PredictionInput("a b", "llm"), PredictionInput("a b " * 50, "llm")])
    assert predictions[0].quantile(0.5) == pytest.approx(4)
    assert predictions[1].quantile(0.5) == pytest.approx(200)
