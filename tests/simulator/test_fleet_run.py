"""A run asks an engine what happened only when it may have an event, and the router cannot tell."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.policies import Job, make_policy
from lengthwise.routers import ROUTERS, Decision, EngineId, Event, make_router
from lengthwise.simulator import Fleet, predict_workload
from lengthwise.simulator.engine import EngineEvent, FleetEngines, ReadableGroup
from lengthwise.simulator.fleet import FleetEvent, sorted_events
from lengthwise.simulator.fleet_run import FleetRun, admission_quantile
from lengthwise.simulator.kernel.host import CompiledGroup
from lengthwise.simulator.routing import FleetRouter
from lengthwise.simulator.traffic import Traffic
from tests.simulator.builders import UNEVEN, engine, requests
from tests.simulator.test_compiled import Case, cases

EVENTS = [FleetEvent(0.1, 1, "drain"), FleetEvent(0.3, 1, "down"), FleetEvent(0.3, 2, "up"), FleetEvent(0.9, 1, "up")]


class PollingGroup(CompiledGroup):
    """The definition: every engine runs up to every moment at which it is asked."""

    def happened(self, until: float, only: int | None = None) -> list[EngineEvent]:
        for number, running in enumerate(self.engines):
            if running is not None:
                self.next_event_s[number] = -np.inf
        return super().happened(until, only)


class LoggedRouter:
    """A router with a log of every choice and event."""

    def __init__(self, spec: str) -> None:
        self._router = make_router(spec)
        self.name, self.uses_predictions = self._router.name, self._router.uses_predictions
        self.engine_up, self.engine_down = self._router.engine_up, self._router.engine_down
        self.log: list[object] = []

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        self.log.append((job.id, now, decision := self._router.choose(job, now, among)))
        return decision

    def observe(self, event: Event) -> None:
        self.log.append(event)
        self._router.observe(event)


def serve(
    kind: type[FleetEngines[Any]], case: Case, router: str, events: Sequence[FleetEvent], routing_s: float
) -> tuple[list[object], list[Any], Traffic]:
    """Return what the router saw and chose, the totals of engines, and the requests."""
    delay_s, decision_s = case.options["prediction_delay_s"], case.options["decision_s"]
    fleet = Fleet((*case.fleet.engines, case.fleet.engines[-1]))
    traffic = Traffic.of(
        case.workload,
        predict_workload(case.workload, case.predictor),
        prediction_delay_s=delay_s,
        quantile=admission_quantile(fleet),
    )
    group = kind(fleet, make_policy(case.policy), traffic, decision_s=decision_s)  # type: ignore[call-arg]
    logged = LoggedRouter(router)
    run = FleetRun(
        FleetRouter(logged, fleet, case.workload),
        group,
        traffic,
        events=sorted_events(events, len(fleet)),
        routing_s=routing_s,
    )
    outcomes = run.serve(enumerate(case.workload.arrival_s.tolist()), lambda share: None)
    totals = [(each.steps, each.busy_s, each.kv_mean, each.kv_peak, each.admissions.tolist()) for each in outcomes]
    return logged.log, totals, traffic


@settings(max_examples=60)
@given(cases(), st.sampled_from(list(ROUTERS)), st.booleans(), st.sampled_from([0.0, 0.004]))
def test_asking_engines_only_when_they_may_have_events_changes_nothing(
    case: Case, router: str, fails: bool, routing_s: float
) -> None:
    events = EVENTS if fails else ()
    (log, totals, ours), *others = (
        serve(kind, case, router, events, routing_s) for kind in (CompiledGroup, PollingGroup, ReadableGroup)
    )
    for their_log, their_totals, theirs in others:
        assert log == their_log
        assert totals == their_totals
        assert ours.requests.tobytes() == theirs.requests.tobytes()


def test_an_engine_that_decodes_is_not_asked_before_its_next_request_can_finish() -> None:
    workload = requests([(10, 500), (10, 1)], [0.0, 1.0])
    traffic = Traffic.of(workload, predict_workload(workload, "oracle"))
    group = CompiledGroup(Fleet((engine(UNEVEN, blocks=600),)), make_policy("fcfs"), traffic)
    decoding = group.start(0)
    group.submit(0, 0, 0.0)
    assert [(row, finished) for _, row, finished, *_ in group.happened(0.1)] == [(0, False)]
    steps = decoding.outcome().steps
    assert group.happened(1.0) == []
    assert decoding.outcome().steps == steps, "it stays behind in time"
    group.submit(0, 1, 1.0)
    assert [(row, finished) for _, row, finished, *_ in group.happened(1.5)] == [(1, False), (1, True)]


@pytest.mark.parametrize("kind", [CompiledGroup, ReadableGroup])
def test_an_engine_without_requests_has_no_next_event(kind: type[FleetEngines[Any]]) -> None:
    workload = requests([(10, 5)])
    group = kind(
        Fleet((engine(UNEVEN),)),
        make_policy("fcfs"),
        Traffic.of(workload, predict_workload(workload, "none")),  # type: ignore[call-arg]
    )
    group.start(0)
    assert np.isinf(group.next_event_s).all()
    group.submit(0, 0, 0.0)
    assert group.next_event_s.tolist() == [0.0]
    assert [finished for _, _, finished, *_ in group.happened(100.0)] == [False, True]
    assert np.isinf(group.next_event_s).all()
