"""What `simulate` accepts: objects, or the names that the command line takes; any other type is an InputError."""

from __future__ import annotations

from typing import Final, TypeVar

from lengthwise.errors import InputError
from lengthwise.policies import Policy, make_policy
from lengthwise.routers import make_router
from lengthwise.simulator.fleet import Fleet
from lengthwise.simulator.predictions import RequestPredictions, default_predictor, predict_workload
from lengthwise.workloads import Workload
from lengthwise.workloads.traces import CASTILLO, Source

_DEFAULT_LOAD: Final = 0.9
Given = TypeVar("Given")


def as_fleet(fleet: Fleet | str) -> Fleet:
    """Return the fleet, parsed from a text such as "8*llama-3-8b@a100"."""
    if isinstance(fleet, str):
        return Fleet.parse(fleet)
    return _checked(fleet, Fleet, "fleet", 'a Fleet, or a text such as "8*llama-3-8b@a100"')


def as_policy(policy: Policy | str) -> Policy:
    """Return the policy, made from a name such as "tie" or "bounded(sjf)"."""
    if isinstance(policy, str):
        return make_policy(policy)
    if isinstance(policy, type) or not isinstance(policy, Policy):
        raise InputError(f"a {_kind(policy)}", field="policy", hint='give a policy object or a name such as "tie"')
    return policy


def as_workload(
    workload: Workload | str,
    fleet: Fleet,
    *,
    rate: float | None = None,
    load: float | None = None,
    requests: int | None = None,
    seed: int = 0,
) -> Workload:
    """Return the workload, or draw the one that a name stands for: "castillo", a trace or a file.

    `rate` (requests per second) or `load` (a share of the fleet's capacity) set how fast it arrives. Without them a
    trace keeps its own arrivals and CASTILLO, which has none, arrives at load 0.9.
    """
    if not isinstance(workload, str):
        if (rate, load, requests) != (None, None, None):
            hint = "they apply to a named workload; change a Workload with its own methods"
            raise InputError(
                "a rate, a load or a number of requests for a Workload object", field="workload", hint=hint
            )
        return _checked(workload, Workload, "workload", 'a Workload, or a name such as "castillo"')
    if rate is not None and load is not None:
        raise InputError("both a rate and a load", field="load", hint="give one of them")
    if rate is None and load is None and workload == CASTILLO:
        load = _DEFAULT_LOAD
    own_arrivals = rate is None and load is None
    drawn = Source(workload, requests=requests).draws(own_arrivals=own_arrivals, slots=fleet.slots)(seed)
    if own_arrivals:
        return drawn
    if load is not None:
        from lengthwise.simulator.cluster import measure_capacity  # imports `simulate`

        rate = load * measure_capacity(drawn, fleet).requests_per_s
    if rate is None or not rate > 0:
        raise InputError(f"a rate of {rate} requests per second", field="rate", hint="give a number above 0")
    return drawn.replace(arrival_s=drawn.arrival_s / rate)


def as_predictions(
    workload: Workload, predictor: str | RequestPredictions | None, *, used: bool = True
) -> RequestPredictions:
    """Return predictions for the workload by a predictor's name; None is the default one, or none if not `used`."""
    if predictor is None:
        predictor = default_predictor(workload) if used else "none"
    if isinstance(predictor, str):
        return predict_workload(workload, predictor)
    return _checked(predictor, RequestPredictions, "predictor", 'a name such as "fast", or RequestPredictions')


def uses_predictions(policy: Policy, router: object, fleet: Fleet) -> bool:
    """Whether policy, router or admission reads predictions."""
    if policy.uses_predictions or any(spec.admission != "prompt" for spec in fleet.engines):
        return True
    return bool(getattr(make_router(router) if isinstance(router, str) else router, "uses_predictions", True))


def _checked(value: object, kind: type[Given], field: str, hint: str) -> Given:
    if not isinstance(value, kind):
        raise InputError(f"a {_kind(value)}", field=field, hint=f"give {hint}")
    return value


def _kind(value: object) -> str:
    return value.__name__ if isinstance(value, type) else type(value).__name__
