"""What is simulated is what is deployed: the hosts have the same defaults, field by field, or a reason not to."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from lengthwise import defaults
from lengthwise.cli import COMMANDS, _load
from lengthwise.client.batch import BatchPlan
from lengthwise.gateway import GatewayConfig
from lengthwise.policies.admission import JointAdmission
from lengthwise.simulator import simulate
from lengthwise.simulator.cluster import DEFAULT_LOAD, default_loads
from lengthwise.simulator.fleet import Fleet
from lengthwise.simulator.live import SimulatedOptions
from lengthwise.simulator.planning import CapacitySearch
from lengthwise.simulator.sweep import Limits, SweepConfig
from lengthwise.vllm.embedded import EngineOptions

ONE_DEFINITION: dict[str, Any] = {
    "policy": defaults.DEFAULT_POLICY,
    "router": defaults.DEFAULT_ROUTER,
    "predictor": defaults.DEFAULT_PREDICTOR,
    "slots": defaults.DEFAULT_SLOTS,
    "admission_quantile": defaults.ADMISSION_QUANTILE,
}
FIELDS = {
    "policy": "policy",
    "router": "router",
    "predictor": "predictor",
    "max_num_seqs": "slots",
    "in_flight": "slots",
    "admission_quantile": "admission_quantile",
}
"""Names of fields and options, and what they set."""
MODELS: tuple[type[BaseModel], ...] = (GatewayConfig, EngineOptions, BatchPlan, SweepConfig, Limits)
OTHERWISE: dict[tuple[str, str], Any] = {
    # Both compare with order of arrival.
    ("simulate", "policy"): ",".join(defaults.COMPARED_POLICIES),
    ("SweepConfig", "policy"): list(defaults.COMPARED_POLICIES),
    # A batch has no clients who wait, and its prompts repeat.
    ("batch", "predictor"): defaults.OFFLINE_PREDICTOR,
    ("BatchPlan", "predictor"): defaults.OFFLINE_PREDICTOR,
    ("EngineOptions", "max_num_seqs"): defaults.EMBEDDED_SLOTS,
    ("engine", "max_num_seqs"): defaults.EMBEDDED_SLOTS,
    # The predictor of the published measurements.
    ("bench", "predictor"): "default",
    ("probe train", "predictor"): "default",
}
"""What has another default, on purpose."""


def options() -> Iterator[tuple[str, str, Any]]:
    """Yield command, name and default of the options of the command line that set one of these."""

    def below(name: str, command: Any) -> Iterator[tuple[str, str, Any]]:
        for each in command.params:
            if each.param_type_name == "option" and each.name in FIELDS:
                yield name, each.name, each.default
        for inner in getattr(command, "commands", {}).values():
            yield from below(f"{name} {inner.name}", inner)

    for name in COMMANDS:
        yield from below(name, _load(name))


def fields() -> Iterator[tuple[str, str, Any]]:
    """Yield model, name and default of the settings that set one of these."""
    for model in MODELS:
        for name, field in model.model_fields.items():
            if name in FIELDS:
                yield model.__name__, name, field.default


FOUND = [*options(), *fields()]


@pytest.mark.parametrize(("host", "name", "default"), FOUND, ids=lambda value: str(value))
def test_a_default_is_the_one_definition_or_left_to_it(host: str, name: str, default: Any) -> None:
    if (host, name) in OTHERWISE:
        assert default == OTHERWISE[host, name]
    else:  # None and an empty list: resolved below
        assert default in (ONE_DEFINITION[FIELDS[name]], None, [])


def test_the_walk_meets_every_host_and_every_exception() -> None:
    met = {(host, name) for host, name, _ in FOUND}
    assert {("serve", "policy"), ("plan", "router"), ("simulate", "predictor"), ("engine", "max_num_seqs")} <= met
    assert met >= OTHERWISE.keys()


def test_what_plan_simulate_and_serve_leave_open_is_the_same() -> None:
    served = GatewayConfig.model_validate({"engines": ["http://a:1", "http://b:1"]})
    sweep = SweepConfig.model_validate({"workload": "castillo", "fleet": "2*llama-3-8b@h100"})
    ((source, simulated),) = sweep.plans()
    castillo = source.draws(own_arrivals=False, slots=2)(0).head(20)
    planned = CapacitySearch(castillo, simulated.fleet.engines[0], simulated.slo)
    assert (served.policy, served.chosen_router) == (simulated.policies[-1], *simulated.routers)
    assert planned.router == served.chosen_router
    assert [served.predictor] == list(simulated.with_predictors(castillo).predictors) == [planned.predictor]
    assert {each.max_num_seqs for each in simulated.fleet.engines} == {served.in_flight}
    joint = Fleet(simulated.fleet.engines).limited_to(admission="joint").engines[0].chosen_quantile
    assert joint == served.admission_quantile == JointAdmission(1).quantile


def test_an_engine_with_fewer_slots_keeps_them_and_what_is_given_wins() -> None:
    few = Fleet.parse("llama-3-8b@a100").limited_to(max_num_seqs=8)
    assert few.behind_gateway().slots == 8
    given = {"workload": "castillo", "fleet": "llama-3-8b@a100", "limits": {"max_num_seqs": 200}}
    ((_, plan),) = SweepConfig.model_validate(given).plans()
    assert plan.fleet.slots == 200


def test_engines_admit_as_vllm_does_and_the_gateway_in_front_by_all_memory_together() -> None:
    """The one default that differs: `simulate` and `plan` model the engine, and the gateway's rule precedes it."""
    ((_, plan),) = SweepConfig.model_validate({"workload": "castillo", "fleet": "llama-3-8b@a100"}).plans()
    assert {each.admission for each in plan.fleet.engines} == {"prompt"}
    assert GatewayConfig.model_validate({"engines": ["http://a:1"]}).admission_quantile > 0
    said = Limits.model_fields["admission"].description
    assert said is not None
    assert "the rule by which `serve` holds requests in front of its engines" in " ".join(said.split())
    assert "[default: prompt," in said


@pytest.mark.parametrize("policy", defaults.COMPARED_POLICIES)
def test_the_two_rules_of_admission_differ_only_where_memory_does_not_hold_the_slots(policy: str) -> None:
    fleet = Fleet.parse("llama-3-8b@a100").behind_gateway()
    for kv_tokens, differ in ((None, False), (4096, True)):
        engines = (fleet.limited_to(admission=rule, kv_tokens=kv_tokens) for rule in ("prompt", "joint"))
        vllm, gateway = (
            simulate("castillo", each, policy, load=1.5, requests=150, predictor="history", accelerate=False)
            for each in engines
        )
        assert (vllm.started_s.tolist() != gateway.started_s.tolist()) is differ


def test_a_simulated_engine_behind_a_gateway_stands_for_stock_vllm() -> None:
    assert SimulatedOptions.model_fields["policy"].default == "fcfs"


def of_call(function: Any, name: str) -> Any:
    return inspect.signature(function).parameters[name].default


@pytest.mark.parametrize(
    ("argument", "field", "default"),
    [
        ("prediction_delay_s", "prediction_delay", 0.0),
        ("decision_s", "decision_time", 0.0),
        ("seed", "seed", 0),
        ("requests", "requests", None),
    ],
)
def test_simulate_has_the_same_defaults_in_python_and_on_the_command_line(
    argument: str, field: str, default: object
) -> None:
    assert of_call(simulate, argument) == default == SweepConfig.model_fields[field].default


def test_castillo_arrives_at_the_same_load_in_python_and_on_the_command_line() -> None:
    sweep = {"workload": "castillo", "fleet": "1*llama-3-8b@a100"}
    ((_, plan),) = SweepConfig.model_validate(sweep).plans()
    assert list(plan.loads) == default_loads("castillo") == [DEFAULT_LOAD]
    ((_, at_rate),) = SweepConfig.model_validate({**sweep, "rate": 2.0}).plans()
    assert (list(at_rate.loads), list(at_rate.rates)) == ([], [2.0])
    assert default_loads("azure2023_conv") == []
