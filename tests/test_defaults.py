"""What is simulated is what is deployed: the hosts have the same defaults, field by field, or a reason not to."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

from lengthwise.cli.plan import plan
from lengthwise.gateway import GatewayConfig
from lengthwise.policies.admission import JointAdmission
from lengthwise.simulator import simulate
from lengthwise.simulator.cluster import DEFAULT_LOAD, default_loads
from lengthwise.simulator.fleet import EngineSpec, Fleet
from lengthwise.simulator.live import SimulatedOptions
from lengthwise.simulator.planning import PLANNED, CapacitySearch
from lengthwise.simulator.sweep import Limits, SweepConfig
from lengthwise.vllm.embedded import EngineOptions

ENGINE = Fleet.parse("llama-3-8b@a100").engines[0]
OTHER_MEANING: dict[tuple[str, str], str] = {
    ("simulate", "policy"): "a study begins with the baseline, and published figures name their policies",
    ("simulated engine", "policy"): "stands for a stock vLLM, whose order is that of arrival",
    ("simulate", "router"): "a study begins with the baseline, and published figures name their routers",
    ("simulate", "predictor"): "a trace without prompts cannot have `fast`: then it is `history`",
    ("plan", "predictor"): "as for simulate",
    ("the command `plan`", "predictor"): "as for simulate",
    ("simulate", "learning"): "is part of the predictor's name (`memory+fast`), since its cost is another replay",
    ("simulated engine", "admission"): "an engine admits as vLLM does; the gateway's rule acts in front of it",
    ("simulate", "admission"): "an engine admits as vLLM does; the gateway's rule acts in front of it",
    ("engine", "slots"): "suits two CPU cores; on a GPU vLLM's default is used",
    ("simulated engine", "slots"): "vLLM's max_num_seqs for the GPU; the gateway holds requests back in front of it",
    ("simulate", "slots"): "vLLM's max_num_seqs for the GPU; the gateway holds requests back in front of it",
}
"""Where a host's default differs from that of `serve`, and why."""


def of_model(model: Any, field: str) -> Any:
    return model.model_fields[field].default


def of_call(function: Any, name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def of_field(kind: Any, name: str) -> Any:
    return next(each.default for each in fields(kind) if each.name == name)


def of_spec(field: str) -> Any:
    return of_field(EngineSpec, field)


DEFAULTS: dict[str, dict[str, Any]] = {
    "policy": {
        "serve": of_model(GatewayConfig, "policy"),
        "engine": of_model(EngineOptions, "policy"),
        "simulate": of_model(SweepConfig, "policy")[0],
        "simulated engine": of_model(SimulatedOptions, "policy"),
        "plan": PLANNED[-1],
    },
    "router": {
        "serve": GatewayConfig.model_validate({"engines": ["http://a:1", "http://b:1"]}).chosen_router,
        "simulate": of_model(SweepConfig, "router")[0],
        "plan": of_field(CapacitySearch, "router"),
        "the command `plan`": of_call(plan, "router"),
    },
    "predictor": {
        "serve": of_model(GatewayConfig, "predictor"),
        "engine": of_model(EngineOptions, "predictor"),
        "simulate": of_call(simulate, "predictor"),
        "plan": of_field(CapacitySearch, "predictor"),
        "the command `plan`": of_call(plan, "predictor"),
    },
    "learning": {
        "serve": of_model(GatewayConfig, "learning"),
        "engine": of_model(EngineOptions, "learning"),
        "simulate": None,
    },
    "admission": {
        "serve": "joint",
        "simulate": of_model(Limits, "admission") or ENGINE.admission,
        "simulated engine": of_spec("admission"),
    },
    "admission_quantile": {
        "serve": of_model(GatewayConfig, "admission_quantile"),
        "simulate": Fleet((ENGINE,)).limited_to(admission="joint").engines[0].chosen_quantile,
        "policies": JointAdmission(1).quantile,
    },
    "slots": {
        "serve": of_model(GatewayConfig, "in_flight"),
        "engine": of_model(EngineOptions, "max_num_seqs"),
        "simulate": of_model(Limits, "max_num_seqs") or ENGINE.max_num_seqs,
        "simulated engine": of_spec("max_num_seqs"),
    },
}


@pytest.mark.parametrize(("field", "host"), [(field, host) for field, hosts in DEFAULTS.items() for host in hosts])
def test_a_host_has_the_default_of_serve_or_a_reason(field: str, host: str) -> None:
    deployed, own = DEFAULTS[field]["serve"], DEFAULTS[field][host]
    assert (own != deployed) == ((host, field) in OTHER_MEANING), (own, deployed)


def test_every_reason_is_for_a_default_that_exists() -> None:
    assert all(host in DEFAULTS[field] for host, field in OTHER_MEANING)


@pytest.mark.parametrize(
    ("argument", "field", "default"),
    [
        ("prediction_delay_s", "prediction_delay", 0.0),
        ("decision_s", "decision_time", 0.0),
        ("seed", "seed", 0),
        ("requests", "requests", None),
        ("policy", "policy", "fcfs"),
        ("router", "router", "round_robin"),
    ],
)
def test_simulate_has_the_same_defaults_in_python_and_on_the_command_line(
    argument: str, field: str, default: object
) -> None:
    listed = of_model(SweepConfig, field)
    assert of_call(simulate, argument) == default == (listed[0] if isinstance(listed, list) else listed)


def test_castillo_arrives_at_the_same_load_in_python_and_on_the_command_line() -> None:
    sweep = {"workload": "castillo", "fleet": "1*llama-3-8b@a100"}
    ((_, plan),) = SweepConfig.model_validate(sweep).plans()
    assert list(plan.loads) == default_loads("castillo") == [DEFAULT_LOAD]
    ((_, at_rate),) = SweepConfig.model_validate({**sweep, "rate": 2.0}).plans()
    assert (list(at_rate.loads), list(at_rate.rates)) == ([], [2.0])
    assert default_loads("azure2023_conv") == []
