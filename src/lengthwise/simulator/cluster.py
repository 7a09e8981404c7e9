"""`simulate`: serve a workload with a fleet, both given as objects or by name; and the capacity of a fleet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import numpy as np

from lengthwise.errors import InputError, require_kind
from lengthwise.policies import Policy, make_policy
from lengthwise.routers import Router
from lengthwise.simulator.acceleration import accelerated
from lengthwise.simulator.disaggregated import Pools, serve_pools
from lengthwise.simulator.fleet import Fleet, FleetEvent, sorted_events
from lengthwise.simulator.fleet_run import Progress, check_any_fits, serve_fleet, uses_predictions
from lengthwise.simulator.outcome import Outcome
from lengthwise.simulator.predictions import (
    RequestPredictions,
    check_before_prefill,
    default_predictor,
    learns,
    predict_workload,
)
from lengthwise.workloads import Workload
from lengthwise.workloads.traces import CASTILLO, Source

Given = TypeVar("Given")

DEFAULT_LOAD: Final = 0.9
"""Of a workload without arrivals of its own, where neither a rate nor a load is given."""


def simulate(
    workload: Workload | str,
    fleet: Fleet | str,
    policy: Policy | str = "fcfs",
    *,
    router: Router | str = "round_robin",
    predictor: str | RequestPredictions | None = None,
    rate: float | None = None,
    load: float | None = None,
    requests: int | None = None,
    seed: int = 0,
    prediction_delay_s: float = 0.0,
    decision_s: float = 0.0,
    routing_s: float = 0.0,
    fleet_events: Sequence[FleetEvent] = (),
    pools: Pools | None = None,
    refresh: str | RequestPredictions | None = None,
    explain: bool = False,
    accelerate: bool | None = None,
    on_progress: Progress | None = None,
) -> Outcome:
    """Serve the workload to the last request.

    `workload` and `fleet` are objects or names: "castillo", a trace or a file, with `rate` or `load`, `requests` and
    `seed`; "8*llama-3-8b@a100". Without `predictor`, `fast` predicts where the workload has text and `history` where it
    has none; "oracle" uses the TRUE LENGTHS, which the outcome states. `accelerate=False` runs the readable engine
    (`simulator.engine`) in place of the compiled one, for the same outcome; None compiles where Numba is installed.
    `router` is a spec of `make_router` or a fresh router. `predictor` is a name, or the result of `predict_workload`,
    which several policies can share. Predictions arrive `prediction_delay_s` after their requests; until then policies
    and routers use the wide prior. Each admission and each preemption delays its engine by `decision_s`. The router
    takes `routing_s` for each request, one after the other: a measured time, never that of this machine.
    `fleet_events` are engines that fail, join and drain. With `pools`, the first engines compute prompts and the others
    decode, with one router per pool; `refresh` predicts again at the end of prefill; "probe" has the true lengths with
    the error of the packaged probe's first reading. With `explain` the
    outcome records the costs that the router compared. `on_progress` receives the share of settled requests from time
    to time.
    """
    fleet, policy = as_fleet(fleet), as_policy(policy)
    require_kind(router, (str, Router), "router", 'a router object or a name such as "least_load"')
    workload = as_workload(workload, fleet, rate=rate, load=load, requests=requests, seed=seed)
    check_seconds(prediction_delay_s=prediction_delay_s, decision_s=decision_s, routing_s=routing_s)
    if isinstance(predictor, str):
        check_before_prefill([predictor])
    accelerate = accelerated() if accelerate is None else accelerate
    report = on_progress or (lambda _share: None)
    if pools is not None:
        if workload.has_think_times:
            hint = "let every engine do both, or leave out think_s"
            raise InputError("think times with pools of engines", source=workload.name, field="think_s", hint=hint)
        pools.check(fleet, fleet_events=fleet_events, explain=explain, prediction_delay_s=prediction_delay_s)
        predictions = as_predictions(workload, fleet, predictor)
        decoded = predictions if refresh is None else as_predictions(workload, fleet, refresh)
        options: dict[str, Any] = {"decision_s": decision_s, "routing_s": routing_s, "accelerate": accelerate}
        return serve_pools(workload, fleet, pools, policy, router, (predictions, decoded), report, **options)
    events = sorted_events(fleet_events, len(fleet))
    check_any_fits(workload, fleet)
    return serve_fleet(
        workload,
        fleet,
        policy,
        router,
        as_predictions(workload, fleet, predictor, used=uses_predictions(policy, router, fleet)),
        report,
        events=events,
        prediction_delay_s=prediction_delay_s,
        decision_s=decision_s,
        routing_s=routing_s,
        explain=explain,
        accelerate=accelerate,
    )


def as_fleet(fleet: Fleet | str) -> Fleet:
    """Return the fleet, parsed from a text such as "8*llama-3-8b@a100"."""
    if isinstance(fleet, str):
        return Fleet.parse(fleet)
    return _checked(fleet, Fleet, "fleet", 'a Fleet, or a text such as "8*llama-3-8b@a100"')


def as_policy(policy: Policy | str) -> Policy:
    """Return the policy, made from a name such as "tie" or "bounded(sjf)"."""
    if isinstance(policy, str):
        return make_policy(policy)
    require_kind(policy, Policy, "policy", 'a policy object or a name such as "tie"')
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
    require_kind(requests, (int, np.integer, type(None)), "requests", "a whole number")
    require_kind(seed, (int, np.integer), "seed", "a whole number")
    for name, number in (("rate", rate), ("load", load)):
        require_kind(number, (int, float, np.number, type(None)), name, "a number above 0")
    if rate is not None and load is not None:
        raise InputError("both a rate and a load", field="load", hint="give one of them")
    if rate is None and load is None:
        load = next(iter(default_loads(workload)), None)
    own_arrivals = rate is None and load is None
    drawn = Source(workload, requests=requests).draws(own_arrivals=own_arrivals, slots=fleet.slots)(seed)
    if own_arrivals:
        return drawn
    if load is not None:
        rate = load * measure_capacity(drawn, fleet).requests_per_s
    if rate is None or not rate > 0:
        raise InputError(f"a rate of {rate} requests per second", field="rate", hint="give a number above 0")
    return at_rate(drawn, rate)


def default_loads(workload: str) -> list[float]:
    """Return the loads of a named workload without a rate: one for CASTILLO, none for a trace, which has arrivals."""
    return [DEFAULT_LOAD] if workload == CASTILLO else []


def at_rate(workload: Workload, rate: float | None) -> Workload:
    """Return a workload of one request per second at `rate`; None keeps its arrivals."""
    return workload if rate is None else workload.replace(arrival_s=workload.arrival_s / rate)


def as_predictions(
    workload: Workload,
    fleet: Fleet,
    predictor: str | RequestPredictions | None,
    *,
    used: bool = True,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> RequestPredictions:
    """Return predictions for the workload by a predictor's name; None is the default one, or none if not `used`.

    A predictor that learns from finished requests does so as they start and finish on this fleet under FCFS and round
    robin.
    """
    if predictor is None:
        predictor = default_predictor(workload) if used else "none"
    if isinstance(predictor, str):
        ran = simulate(workload, fleet, "fcfs", predictor="none") if learns(predictor) else None
        started_s, finished_s = (None, None) if ran is None else (ran.started_s, ran.finished_s)
        return predict_workload(
            workload, predictor, seed=seed, started_s=started_s, finished_s=finished_s, on_progress=on_progress
        )
    return _checked(predictor, RequestPredictions, "predictor", 'a name such as "fast", or RequestPredictions')


def _checked(value: object, kind: type[Given], field: str, hint: str) -> Given:
    require_kind(value, kind, field, hint)
    return cast("Given", value)


def check_seconds(**given: float) -> None:
    """Raise InputError for a duration that is negative or not finite."""
    for name, seconds in given.items():
        if not (math.isfinite(seconds) and seconds >= 0):
            raise InputError(f"{seconds:g} seconds", field=name, hint="a number of at least 0")


@dataclass(frozen=True, slots=True)
class Capacity:
    """Requests per second under backlog: FCFS, round robin, all arrivals at 0, `requests` over `slots` slots.

    Each engine counts what it finishes while requests wait, so that the draining tail does not dilute the rate.
    `steady` is False where an engine has fewer than two requests per slot: the rate is then requests over makespan,
    which is too low.
    """

    requests_per_s: float
    requests: int
    slots: int
    steady: bool

    def load(self, offered_per_s: float) -> float:
        """The offered rate as a share of capacity."""
        return offered_per_s / self.requests_per_s


def measure_capacity(
    workload: Workload,
    fleet: Fleet,
    *,
    on_progress: Callable[[float], None] | None = None,
    accelerate: bool | None = None,
) -> Capacity:
    """Simulate the same requests as one backlog and measure the rate; `accelerate` as in `simulate`."""
    backlog = workload.replace(arrival_s=np.zeros(len(workload)), think_s=None)
    outcome = simulate(backlog, fleet, "fcfs", predictor="oracle", on_progress=on_progress, accelerate=accelerate)
    rates = [_rate(outcome, number, spec.max_num_seqs) for number, spec in enumerate(fleet.engines)]
    steady = not any(math.isnan(rate) for rate in rates)
    rate = sum(rates) if steady else outcome.summary.requests_per_s
    return Capacity(rate, outcome.summary.requests, fleet.slots, steady)


def _rate(outcome: Outcome, engine: int, slots: int) -> float:
    """Requests per second while the engine's backlog lasts; NaN where it is too short."""
    here = (outcome.engine == engine) & ~np.isnan(outcome.finished_s)
    if here.sum() < 2 * slots:
        return math.nan
    last_admission = float(outcome.started_s[here].max())
    return int((outcome.finished_s[here] <= last_admission).sum()) / last_admission
