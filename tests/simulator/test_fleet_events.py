"""Engines fail, join and drain in mid-run: nobody is lost, nobody is served by who is not there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.routers import ROUTERS
from lengthwise.simulator import Fleet, Outcome, RoundRobin, simulate
from lengthwise.simulator.fleet_events import Change, parse_changes
from lengthwise.simulator.routing import Routed
from tests.simulator.builders import UNEVEN, fleet, requests
from tests.simulator.test_routing import shared_prefixes

NAMES = ("round_robin", "lengthwise")


def small(engines: int = 3) -> Fleet:
    return Fleet.parse(f"{engines}*llama-3-8b@a100").limited_to(max_num_seqs=4, kv_tokens=20_000)


def gone(engine: int, changes: list[Change]) -> list[tuple[float, float]]:
    """When an engine is not there, from and to."""
    spans, since = [], None
    first = next((change for change in changes if change.engine == engine), None)
    if first is not None and first.kind == "up":
        since = 0.0
    for change in changes:
        if change.engine == engine and change.kind == "down" and since is None:
            since = change.at_s
        elif change.engine == engine and change.kind == "up" and since is not None:
            spans.append((since, change.at_s))
            since = None
    return spans if since is None else [*spans, (since, np.inf)]


def check_laws(outcome: Outcome, changes: list[Change]) -> None:
    """Everybody is served to the end, on one engine, while it is there; what was lost is counted."""
    assert not np.isnan(outcome.finish).any()
    assert (outcome.started >= outcome.arrival).all()
    assert (outcome.first_token > outcome.started).all()
    assert (outcome.finish >= outcome.first_token).all()
    admitted = np.concatenate([engine.admissions for engine in outcome.engines])
    assert set(admitted.tolist()) == set(range(len(outcome)))
    for engine in range(len(outcome.engines)):
        here = outcome.engine == engine
        for begin, end in gone(engine, changes):
            # All of a request's last stay lies on one side of the gap.
            assert ((outcome.finish[here] <= begin) | (outcome.started[here] >= end)).all()


@pytest.mark.parametrize("name", ROUTERS)
def test_whatever_comes_and_goes_everybody_is_served_and_always_in_the_same_way(name: str) -> None:
    changes = [Change(1.0, 0, "down"), Change(1.5, 2, "drain"), Change(2.5, 0, "up"), Change(3.0, 2, "up")]
    first, again = (simulate(shared_prefixes(), small(), router=name, changes=changes) for _ in range(2))
    check_laws(first, changes)
    assert first.finish.tobytes() == again.finish.tobytes()
    assert first.resubmissions.sum() > 0
    assert first.resubmissions.tobytes() == again.resubmissions.tobytes()


@given(
    st.lists(
        st.builds(
            Change,
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
@settings(max_examples=60, deadline=None)
def test_laws(changes: list[Change], router: str, routing_s: float, policy: str) -> None:
    changes = [*sorted(changes, key=lambda change: change.at_s), Change(61.0, 1, "up")]
    workload = requests([(10, 1 + 7 * n % 40) for n in range(60)], np.linspace(0, 3, 60).tolist())
    served = simulate(
        workload, fleet(UNEVEN, engines=3, seqs=2), policy, router=router, changes=changes, routing_s=routing_s
    )
    check_laws(served, changes)
    assert (served.started - served.arrival >= routing_s - 1e-9).all()


def test_who_was_there_and_not_finished_is_sent_anew_and_nobody_else() -> None:
    workload = requests([(10, 30)] * 40, np.linspace(0, 2, 40).tolist())
    calm = simulate(workload, fleet(UNEVEN, engines=2, seqs=4), router="round_robin")
    at = 1.2
    failed = simulate(workload, fleet(UNEVEN, engines=2, seqs=4), router="round_robin", changes=[Change(at, 0, "down")])
    there = (calm.engine == 0) & (calm.arrival < at) & (calm.finish > at)
    assert there.any()
    assert failed.resubmissions.tolist() == there.astype(int).tolist()
    assert (failed.engine[there] == 1).all()
    before = (calm.engine == 0) & (calm.finish <= at)
    assert before.any()
    assert (failed.finish[before] == calm.finish[before]).all()
    assert failed.summary.resubmissions == there.sum()


def test_an_engine_that_drains_finishes_what_it_has_and_takes_no_more() -> None:
    workload = requests([(10, 30)] * 40, np.linspace(0, 2, 40).tolist())
    drained = simulate(
        workload, fleet(UNEVEN, engines=2, seqs=4), router="lengthwise", changes=[Change(1.0, 0, "drain")]
    )
    here = drained.engine == 0
    assert not drained.resubmissions.any()
    assert (drained.arrival[here] < 1.0).all()
    assert (drained.finish[here] > 1.0).any()


def test_an_engine_that_joins_gets_nothing_before_and_its_share_after() -> None:
    joined = simulate(shared_prefixes(400), small(), router="lengthwise", changes=[Change(4.0, 1, "up")])
    here = joined.engine == 1
    assert here.sum() > 20
    assert (joined.arrival[here] >= 4.0).all()


def test_while_nobody_is_there_requests_wait() -> None:
    changes = [Change(0.0, 0, "down"), Change(5.0, 0, "up")]
    outcome = simulate(
        requests([(10, 5)] * 4, [0.0, 1.0, 2.0, 6.0]), fleet(UNEVEN), router="lengthwise", changes=changes
    )
    assert (outcome.started[:3] >= 5.0).all()
    assert not outcome.resubmissions.any(), "they had been nowhere"


def test_nothing_changes_where_nothing_happens_in_time() -> None:
    late = [Change(1e6, 1, "down")]
    calm, same = (simulate(shared_prefixes(), small(), router="e2", changes=changes) for changes in ((), late))
    assert calm.finish.tobytes() == same.finish.tobytes()


def test_a_router_that_takes_long_is_a_queue_of_its_own() -> None:
    workload = requests([(10, 5)] * 3, [0.0, 0.0, 1.0])
    for router in ("round_robin", "least_outstanding", RoundRobin):
        outcome = simulate(workload, fleet(UNEVEN, engines=3), router=router, routing_s=0.25)
        assert outcome.started.tolist() == [0.25, 0.5, 1.25]
        assert outcome.arrival.tolist() == [0.0, 0.0, 1.0]


def test_beyond_what_a_router_can_decide_its_queue_grows() -> None:
    quick, slow = (simulate(shared_prefixes(), small(8), router="e2", routing_s=s) for s in (0.0, 0.05))
    assert slow.summary.ttft_s.mean > quick.summary.ttft_s.mean + 1.0, "40 requests a second, 20 decisions"


@pytest.mark.parametrize(
    ("text", "told"),
    [("3", "'3'"), ("x@1", "'x@1'"), ("-1@2", "'-1@2'"), ("1@-2", "'1@-2'"), ("1@nan", "'1@nan'")],
)
def test_what_is_no_change_is_told(text: str, told: str) -> None:
    with pytest.raises(InputError, match="as in 3@120") as error:
        parse_changes("down", text)
    assert told in str(error.value)


class _Own(Routed):
    def __init__(self, fleet: Fleet) -> None:
        super().__init__("random", fleet, shared_prefixes(1))


def test_changes_that_cannot_be_are_told() -> None:
    workload, one = requests([(10, 5)]), fleet(UNEVEN)
    with pytest.raises(InputError, match="no engine 1"):
        simulate(workload, one, router="e2", changes=[Change(0.0, 1, "down")])
    with pytest.raises(InputError, match="no engine is up in the end"):
        simulate(workload, one, router="e2", changes=[Change(0.0, 0, "down")])
    with pytest.raises(InputError, match="name a router"):
        simulate(workload, one, router=_Own, changes=[Change(0.0, 0, "up")])
