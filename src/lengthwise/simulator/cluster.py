"""A fleet of engines in virtual time: requests arrive, are routed, and are served to the last one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError, require_kind
from lengthwise.policies import Policy, make_policy
from lengthwise.routers import Router, StaticRouter, make_router
from lengthwise.simulator.engine import MakeEngine, SimulatedEngine, accelerated, engine_factory
from lengthwise.simulator.fleet import Fleet, FleetEvent, initially_absent, sorted_events
from lengthwise.simulator.outcome import EngineOutcome, Outcome
from lengthwise.simulator.predictions import RequestPredictions, default_predictor, learns, predict_workload
from lengthwise.simulator.routing import FleetRouter, RoutingTrace
from lengthwise.simulator.traffic import Traffic
from lengthwise.workloads import Workload
from lengthwise.workloads.traces import CASTILLO, Source

if TYPE_CHECKING:
    from lengthwise.simulator.disaggregated import Pools

Progress = Callable[[float], None]
Given = TypeVar("Given")

_DEFAULT_LOAD: Final = 0.9
_REPORT_EVERY: Final = 4096  # requests


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
    decode, with one router per pool; `refresh` predicts again at the end of prefill. With `explain` the
    outcome records the costs that the router compared. `on_progress` receives the share of settled requests from time
    to time.
    """
    fleet, policy = as_fleet(fleet), as_policy(policy)
    require_kind(router, (str, Router), "router", 'a router object or a name such as "least_load"')
    workload = as_workload(workload, fleet, rate=rate, load=load, requests=requests, seed=seed)
    check_seconds(prediction_delay_s=prediction_delay_s, decision_s=decision_s, routing_s=routing_s)
    accelerate = accelerated() if accelerate is None else accelerate
    report = on_progress or (lambda _share: None)
    if pools is not None:
        from lengthwise.simulator.disaggregated import serve_pools  # imports `simulate`

        pools.check(fleet, fleet_events=fleet_events, explain=explain, prediction_delay_s=prediction_delay_s)
        predictions = as_predictions(workload, fleet, predictor)
        decoded = predictions if refresh is None else as_predictions(workload, fleet, refresh)
        options: dict[str, Any] = {"decision_s": decision_s, "routing_s": routing_s, "accelerate": accelerate}
        return serve_pools(workload, fleet, pools, policy, router, (predictions, decoded), report, **options)
    events = sorted_events(fleet_events, len(fleet))
    check_any_fits(workload, fleet)
    used = uses_predictions(policy, router, fleet)
    predictions = as_predictions(workload, fleet, predictor, used=used)
    traffic = Traffic.of(
        workload, predictions, prediction_delay_s=prediction_delay_s, quantile=admission_quantile(fleet)
    )
    make = engine_factory(policy, traffic, decision_s=decision_s, accelerate=accelerate)
    routed = FleetRouter(router, fleet, workload, explain=explain)
    known: dict[str, Any] = {"predictor": predictions.predictor if used else None, "accelerated": accelerate}
    if isinstance(routed.router, StaticRouter) and not events:
        if routing_s:
            traffic.requests["arrival"] = decision_times(workload.arrival_s, routing_s)
        chosen, engines = _serve_statically(routed.router, fleet, make, traffic, report)
        return Outcome.of(workload, policy.name, traffic.requests, chosen, engines, **known)
    run = ClusterRun(routed, fleet, make, traffic, events=events, routing_s=routing_s)
    engines = run.serve(enumerate(workload.arrival_s.tolist()), report)
    if routed.costs is not None:
        known["trace"] = RoutingTrace.of(routed.costs, len(workload))
    known["resubmissions"] = run.resubmissions
    return Outcome.of(workload, policy.name, traffic.requests, run.chosen, engines, **known)


def _serve_statically(
    router: StaticRouter, fleet: Fleet, make_engine: MakeEngine, traffic: Traffic, report: Progress
) -> tuple[NDArray[np.int64], list[EngineOutcome]]:
    """Assign all requests, then simulate one engine after the other: no choice depends on what engines do."""
    n = len(traffic.requests)
    chosen = np.array(router.assign(n), np.int64)
    order = np.argsort(chosen, kind="stable")
    ends = np.searchsorted(chosen[order], np.arange(len(fleet)), side="right")
    outcomes, settled = [], 0
    for number, spec in enumerate(fleet.engines):
        engine = make_engine(spec)
        engine.submit(order[ends[number - 1] if number else 0 : ends[number]])
        while not engine.advance(settle=_REPORT_EVERY):
            report((settled + engine.settled) / n)
        settled += engine.settled
        report(settled / n)
        outcomes.append(engine.outcome())
    return chosen, outcomes


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
    if rate is None and load is None and workload == CASTILLO:
        load = _DEFAULT_LOAD
    own_arrivals = rate is None and load is None
    drawn = Source(workload, requests=requests).draws(own_arrivals=own_arrivals, slots=fleet.slots)(seed)
    if own_arrivals:
        return drawn
    if load is not None:
        rate = load * measure_capacity(drawn, fleet).requests_per_s
    if rate is None or not rate > 0:
        raise InputError(f"a rate of {rate} requests per second", field="rate", hint="give a number above 0")
    return at_rate(drawn, rate)


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

    To a predictor that learns from finished requests, a length is visible once its request has finished on this fleet
    under FCFS and round robin.
    """
    if predictor is None:
        predictor = default_predictor(workload) if used else "none"
    if isinstance(predictor, str):
        finish_s = simulate(workload, fleet, "fcfs", predictor="none").finish if learns(predictor) else None
        return predict_workload(workload, predictor, seed=seed, finish_s=finish_s, on_progress=on_progress)
    return _checked(predictor, RequestPredictions, "predictor", 'a name such as "fast", or RequestPredictions')


def uses_predictions(policy: Policy, router: object, fleet: Fleet) -> bool:
    """Whether policy, router or admission reads predictions."""
    if policy.uses_predictions or any(spec.admission != "prompt" for spec in fleet.engines):
        return True
    return bool(getattr(make_router(router) if isinstance(router, str) else router, "uses_predictions", True))


def _checked(value: object, kind: type[Given], field: str, hint: str) -> Given:
    require_kind(value, kind, field, hint)
    return cast("Given", value)


def check_seconds(**given: float) -> None:
    """Raise InputError for a duration that is negative or not finite."""
    for name, seconds in given.items():
        if not (math.isfinite(seconds) and seconds >= 0):
            raise InputError(f"{seconds:g} seconds", field=name, hint="a number of at least 0")


def check_any_fits(workload: Workload, fleet: Fleet) -> None:
    """Raise InputError if no request fits into any engine; single requests that do not fit are refused and counted."""
    if not any(spec.can_hold(workload.input_tokens, workload.output_tokens).any() for spec in set(fleet.engines)):
        largest = max(min(spec.max_model_len, spec.kv_tokens) for spec in fleet.engines)
        raise InputError(
            f"no request fits into an engine; the largest holds {largest} tokens",
            source=workload.name,
            field="fleet",
            hint="give engines with more KV memory, or shorter requests",
        )


def admission_quantile(fleet: Fleet) -> float | None:
    """Return the quantile at which engines predict lengths for admission; None if none of them does."""
    levels = {spec.admission_quantile for spec in fleet.engines if spec.admission != "prompt"}
    if len(levels) > 1:
        raise InputError(
            f"engines with different admission quantiles: {sorted(levels)}",
            field="admission_quantile",
            hint="give all engines of a fleet the same",
        )
    return levels.pop() if levels else None


_TIMES = ("started", "first_token", "finish")  # fields of a request that are unknown again after its engine failed
_PROGRESS = (
    "generated",
    "max_computed",
    "cached",
    "initial_cached",
    "granted_tokens",
    "retained",
    "round",
)  # and those that are 0 again


def decision_times(arrival: NDArray[np.float64], routing_s: float) -> NDArray[np.float64]:
    """Return when a router that takes `routing_s` per request has decided each, one after the other."""
    ends = arrival.copy()
    for row in range(len(ends)):
        ends[row] = max(ends[row], ends[row - 1] if row else 0.0) + routing_s
    return ends


class ClusterRun:
    """One run of a fleet behind a router.

    The router is a single server: it decides for one request after the other, which takes `routing_s` each, by what it
    knows at the start of the decision. The request reaches its engine at the end of it.
    """

    def __init__(
        self,
        router: FleetRouter,
        fleet: Fleet,
        make_engine: MakeEngine,
        traffic: Traffic,
        *,
        events: Sequence[FleetEvent] = (),
        routing_s: float = 0.0,
    ) -> None:
        self._router, self._fleet, self._make_engine, self._traffic = router, fleet, make_engine, traffic
        self._routing_s = routing_s
        self._events = deque(events)
        absent = initially_absent(events)
        self._engines = [None if number in absent else make_engine(spec) for number, spec in enumerate(fleet.engines)]
        for number in absent:
            router.down(number)
        self._draining: set[int] = set()
        self._past: list[list[EngineOutcome]] = [[] for _ in fleet.engines]
        self._resubmitted: deque[tuple[int, float]] = deque()  # requests, and when their engine failed
        self._router_free_at = 0.0
        n = len(traffic.requests)
        self.chosen = np.full(n, -1, np.int64)
        self.resubmissions = np.zeros(n, np.int64)

    def serve(self, arrivals: Iterable[tuple[int, float]], report: Progress) -> list[EngineOutcome]:
        """Serve requests, given as rows and arrivals in order of time, and report the share that is settled."""
        arriving, routed = deque(arrivals), 0
        while arriving or self._resubmitted or self._events:
            queues = [queue for queue in (self._resubmitted, arriving) if queue]
            first = min(queues, key=lambda queue: queue[0][1], default=None)
            if first is None or (self._events and self._events[0].at_s <= first[0][1]):
                self._apply_event()
            else:
                self._route(*first.popleft())
            routed += 1
            if routed % _REPORT_EVERY == 0:
                report(self._settled)
        for engine in self._engines:
            if engine is not None:
                engine.advance()
                report(self._settled)
        for number, engine in enumerate(self._engines):
            if engine is not None:
                self._past[number].append(engine.outcome())
        return [
            reduce(EngineOutcome.then, past) if past else self._make_engine(spec).outcome()
            for spec, past in zip(self._fleet.engines, self._past, strict=True)
        ]

    @property
    def _settled(self) -> float:
        """Share of requests that are finished or refused, without those of engines that failed."""
        return sum(engine.settled for engine in self._engines if engine is not None) / len(self.chosen)

    def _route(self, row: int, arrival: float) -> None:
        """Route one request as soon as the router is free and an engine accepts requests."""
        now = max(arrival, self._router_free_at)
        while self._events and (self._events[0].at_s <= now or not self._accepting()):
            now = max(now, self._events[0].at_s)
            self._apply_event()
        for number, engine in enumerate(self._engines):
            if engine is not None and not engine.idle:
                self._router.report(number, engine, self._traffic, now)
        number = self._router.choose(self._traffic.job(row), now, self._candidates(row))
        chosen = self._engines[number]
        if chosen is None:
            raise InputError(f"chose engine {number}, which is not up", source=self._router.router.name)
        chosen.advance(now)
        self._router_free_at = now + self._routing_s
        self.chosen[row] = number
        self._traffic.requests["arrival"][row] = self._reaches_at(row, number, chosen)
        chosen.submit(np.array([row]))

    def _candidates(self, row: int) -> list[int] | None:
        """Engines among which the router chooses; None: all that are up."""
        return self._accepting() if self._draining else None

    def _reaches_at(self, row: int, number: int, engine: SimulatedEngine) -> float:
        """When a request reaches the engine that has just been chosen."""
        return self._router_free_at

    def _accepting(self) -> list[int]:
        return [n for n, engine in enumerate(self._engines) if engine is not None and n not in self._draining]

    def _apply_event(self) -> None:
        event = self._events.popleft()
        number, engine = event.engine, self._engines[event.engine]
        if event.kind == "drain":
            self._draining.add(number)
            return
        self._draining.discard(number)
        if event.kind == "up" and engine is None:
            self._engines[number] = self._make_engine(self._fleet.engines[number])
            self._router.up(number)
        elif event.kind == "down" and engine is not None:
            self._router.report(number, engine, self._traffic, event.at_s)
            self._resubmit_unfinished(engine, event.at_s)
            self._past[number].append(engine.outcome())
            self._engines[number] = None
            self._router.down(number)

    def _resubmit_unfinished(self, engine: SimulatedEngine, now: float) -> None:
        """Reset the unfinished requests of a failed engine and queue them for routing."""
        requests = self._traffic.requests
        rows = np.sort(engine.unfinished(now))
        for name in _TIMES:
            requests[name][rows] = np.nan
        for name in _PROGRESS:
            requests[name][rows] = 0
        requests["heap_index"][rows] = -1
        self.resubmissions[rows] += 1
        self._resubmitted.extend((row, now) for row in rows.tolist())


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
    workload: Workload, fleet: Fleet, *, on_progress: Callable[[float], None] | None = None
) -> Capacity:
    """Simulate the same requests as one backlog and measure the rate."""
    backlog = workload.replace(arrival_s=np.zeros(len(workload)))
    outcome = simulate(backlog, fleet, "fcfs", predictor="oracle", on_progress=on_progress)
    rates = [_rate(outcome, number, spec.max_num_seqs) for number, spec in enumerate(fleet.engines)]
    steady = not any(math.isnan(rate) for rate in rates)
    rate = sum(rates) if steady else outcome.summary.requests_per_s
    return Capacity(rate, outcome.summary.requests, fleet.slots, steady)


def _rate(outcome: Outcome, engine: int, slots: int) -> float:
    """Requests per second while the engine's backlog lasts; NaN where it is too short."""
    here = (outcome.engine == engine) & ~np.isnan(outcome.finish)
    if here.sum() < 2 * slots:
        return math.nan
    last_admission = float(outcome.started[here].max())
    return int((outcome.finish[here] <= last_admission).sum()) / last_admission
