"""Engines fail, join and drain during a run: every request is served, by an engine that is up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.routers import ROUTERS
from lengthwise.simulator import Fleet, Outcome, simulate
from lengthwise.simulator.fleet import FleetEvent, parse_fleet_events
from tests.simulator.builders import UNEVEN, fleet, requests
from tests.simulator.test_routing import shared_prefixes

NAMES = ("round_robin", "lengthwise")


def small(engines: int = 3) -> Fleet:
    return Fleet.parse(f"{engines}*llama-3-8b@a100").limited_to(max_num_seqs=4, kv_tokens=20_000)


def down_intervals(engine: int, events: list[FleetEvent]) -> list[tuple[float, float]]:
    """Return the intervals in which an engine is not up."""
    spans, since = [], None
    first = next((event for event in events if event.engine == engine), None)
    if first is not None and first.kind == "up":
        since = 0.0
    for event in events:
        if event.engine == engine and event.kind == "down" and since is None:
            since = event.at_s
        elif event.engine == engine and event.kind == "up" and since is not None:
            spans.append((since, event.at_s))
            since = None
    return spans if since is None else [*spans, (since, np.inf)]


def check_laws(outcome: Outcome, events: list[FleetEvent]) -> None:
    """Every request is served to the end, on one engine, while that is up."""
    assert not np.isnan(outcome.finished_s).any()
    assert (outcome.started_s >= outcome.arrival_s).all()
    assert (outcome.first_token_s > outcome.started_s).all()
    assert (outcome.finished_s >= outcome.first_token_s).all()
    admitted = np.concatenate([engine.admissions for engine in outcome.engines])
    assert set(admitted.tolist()) == set(range(len(outcome)))
    for engine in range(len(outcome.engines)):
        here = outcome.engine == engine
        for begin, end in down_intervals(engine, events):
            # The whole service of a request after its last routing is on one side of the gap.
            assert ((outcome.finished_s[here] <= begin) | (outcome.started_s[here] >= end)).all()


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_serves_all_requests_deterministically_under_fleet_events(name: str) -> None:
    events = [
        FleetEvent(1.0, 0, "down"),
        FleetEvent(1.5, 2, "drain"),
        FleetEvent(2.5, 0, "up"),
        FleetEvent(3.0, 2, "up"),
    ]
    first, again = (simulate(shared_prefixes(), small(), router=name, fleet_events=events) for _ in range(2))
    check_laws(first, events)
    assert first.finished_s.tobytes() == again.finished_s.tobytes()
    assert first.resubmissions.sum() > 0
    assert first.resubmissions.tobytes() == again.resubmissions.tobytes()


@given(
    st.lists(
        st.builds(
            FleetEvent,
            st.sampled_from([0.0, 0.5, 1.0, 1.01, 2.0, 60.0]),
            st.integers(0, 2),
            st.sampled_from(["down", "up", "drain"]),
        ),
        max_size=8,
    ),
    st.sampled_from(NAMES),
    st.sampled_from([0.0, 0.05]),
    st.sampled_from(["fcfs", "srpt", "fair(fcfs)"]),
)
@settings(max_examples=40)
def test_any_sequence_of_events_keeps_the_laws(
    events: list[FleetEvent], router: str, routing_s: float, policy: str
) -> None:
    events = [*sorted(events, key=lambda event: event.at_s), FleetEvent(61.0, 1, "up")]
    workload = requests([(10, 1 + 7 * n % 40) for n in range(60)], np.linspace(0, 3, 60).tolist())
    served = simulate(
        workload,
        fleet(UNEVEN, engines=3, seqs=2),
        policy,
        router=router,
        fleet_events=events,
        routing_s=routing_s,
    )
    check_laws(served, events)
    assert (served.started_s - served.arrival_s >= routing_s - 1e-9).all()


def test_exactly_the_unfinished_requests_of_a_failed_engine_are_resubmitted() -> None:
    workload = requests([(10, 30)] * 40, np.linspace(0, 2, 40).tolist())
    without_events = simulate(workload, fleet(UNEVEN, engines=2, seqs=4), router="round_robin")
    at = 1.2
    failed = simulate(
        workload, fleet(UNEVEN, engines=2, seqs=4), router="round_robin", fleet_events=[FleetEvent(at, 0, "down")]
    )
    there = (without_events.engine == 0) & (without_events.arrival_s < at) & (without_events.finished_s > at)
    assert there.any()
    assert failed.resubmissions.tolist() == there.astype(int).tolist()
    assert (failed.engine[there] == 1).all()
    before = (without_events.engine == 0) & (without_events.finished_s <= at)
    assert before.any()
    assert (failed.finished_s[before] == without_events.finished_s[before]).all()
    assert failed.summary.resubmissions == there.sum()


def test_a_draining_engine_finishes_its_requests_and_accepts_no_more() -> None:
    workload = requests([(10, 30)] * 40, np.linspace(0, 2, 40).tolist())
    drained = simulate(
        workload, fleet(UNEVEN, engines=2, seqs=4), router="lengthwise", fleet_events=[FleetEvent(1.0, 0, "drain")]
    )
    here = drained.engine == 0
    assert not drained.resubmissions.any()
    assert (drained.arrival_s[here] < 1.0).all()
    assert (drained.finished_s[here] > 1.0).any()


def test_an_engine_that_joins_gets_requests_only_afterwards() -> None:
    joined = simulate(shared_prefixes(400), small(), router="lengthwise", fleet_events=[FleetEvent(4.0, 1, "up")])
    here = joined.engine == 1
    assert here.sum() > 20
    assert (joined.arrival_s[here] >= 4.0).all()


def test_requests_wait_while_no_engine_is_up() -> None:
    events = [FleetEvent(0.0, 0, "down"), FleetEvent(5.0, 0, "up")]
    outcome = simulate(
        requests([(10, 5)] * 4, [0.0, 1.0, 2.0, 6.0]), fleet(UNEVEN), router="lengthwise", fleet_events=events
    )
    assert (outcome.started_s[:3] >= 5.0).all()
    assert not outcome.resubmissions.any(), "they had not reached an engine"


def test_an_event_after_the_last_request_has_no_effect() -> None:
    late = [FleetEvent(1e6, 1, "down")]
    without_events, same = (
        simulate(shared_prefixes(), small(), router="e2", fleet_events=events) for events in ((), late)
    )
    assert without_events.finished_s.tobytes() == same.finished_s.tobytes()


def test_a_router_decides_for_one_request_at_a_time() -> None:
    workload = requests([(10, 5)] * 3, [0.0, 0.0, 1.0])
    for router in ("round_robin", "least_outstanding"):
        outcome = simulate(workload, fleet(UNEVEN, engines=3), router=router, routing_s=0.25)
        assert outcome.started_s.tolist() == [0.25, 0.5, 1.25]
        assert outcome.arrival_s.tolist() == [0.0, 0.0, 1.0]


def test_requests_queue_at_a_router_beyond_its_capacity() -> None:
    quick, slow = (simulate(shared_prefixes(), small(8), router="e2", routing_s=s) for s in (0.0, 0.05))
    assert slow.summary.ttft_s.mean > quick.summary.ttft_s.mean + 1.0, "40 requests a second, 20 decisions"


@pytest.mark.parametrize(
    ("text", "message"),
    [("3", "'3'"), ("x@1", "'x@1'"), ("-1@2", "'-1@2'"), ("1@-2", "'1@-2'"), ("1@nan", "'1@nan'")],
)
def test_a_malformed_event_is_an_error(text: str, message: str) -> None:
    with pytest.raises(InputError, match="as in 3@120") as error:
        parse_fleet_events("down", text)
    assert message in str(error.value)


def test_impossible_events_are_errors() -> None:
    workload, one = requests([(10, 5)]), fleet(UNEVEN)
    with pytest.raises(InputError, match="no engine 1"):
        simulate(workload, one, router="e2", fleet_events=[FleetEvent(0.0, 1, "down")])
    with pytest.raises(InputError, match="no engine is up in the end"):
        simulate(workload, one, router="e2", fleet_events=[FleetEvent(0.0, 0, "down")])
