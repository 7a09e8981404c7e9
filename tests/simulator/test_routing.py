"""Routers in a simulation: the events they receive, the time they take, and the costs they record."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.policies import Job
from lengthwise.routers import ROUTERS, Admitted, Decision, EngineId, Event, Finished, make_router
from lengthwise.routers.base import RoundRobin
from lengthwise.simulator import Fleet, StepCost, simulate
from lengthwise.simulator.outcome import engine_name, read_costs
from lengthwise.simulator.routing import (
    charged_times_s,
    routing_time_s,
    routing_times,
    speed_of,
    unmeasured_note,
)
from lengthwise.workloads import Workload
from lengthwise.workloads.generators import DiscreteLengths, into_sessions, react_workload
from tests.simulator.builders import UNEVEN, engine, fleet, requests

COMPARE_COSTS = ("least_outstanding", "least_load", "dynamo", "lengthwise")
OUTSIDE_ROUTER = "tests.conformance.outside_router:Alternate"


@cache
def shared_prefixes(n: int = 200, rate: float = 40.0) -> Workload:
    return react_workload(requests=n, rate=rate, lengths=DiscreteLengths((1, 60), (0.5, 0.5)), seed=1, workloads=4)


def small(engines: int = 3) -> Fleet:
    return Fleet.parse(f"{engines}*mistral-7b@a6000").limited_to(max_num_seqs=8, kv_tokens=20_000)


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_serves_all_requests_deterministically_and_explaining_changes_nothing(name: str) -> None:
    first, again, explained = (
        simulate(shared_prefixes(), small(), router=name, explain=explain) for explain in (False, False, True)
    )
    assert not np.isnan(first.finished_s).any()
    assert first.finished_s.tobytes() == again.finished_s.tobytes() == explained.finished_s.tobytes()
    assert set(first.engine.tolist()) == {0, 1, 2}
    assert first.trace is None
    assert (explained.trace is None) == (name == "round_robin"), "a static router compares nothing"
    for costs, chosen in zip(explained.trace.costs if explained.trace else (), explained.engine.tolist(), strict=False):
        assert costs is not None
        if name in COMPARE_COSTS:
            sums = {number: sum(terms.values()) for number, terms in costs.items()}
            assert set(sums) == {0, 1, 2}
            assert sums[chosen] == pytest.approx(min(sums.values()), rel=1e-9)
        else:
            assert list(costs) == [chosen]


def test_the_turns_of_a_session_stay_on_the_engine_that_holds_its_prefix() -> None:
    apart = shared_prefixes(rate=2.0).replace(tenant=None)
    turns = into_sessions(apart, turns=4, think_s=1.0, seed=0, closed_loop=True)
    engines = Fleet.parse("3*llama-3-8b@a100").limited_to(max_num_seqs=8)
    followed = np.flatnonzero(turns.next_turn >= 0)

    def stays(router: str) -> float:
        served_by = simulate(turns, engines, "sessions(fcfs)", predictor="oracle", router=router).engine
        return float((served_by[followed] == served_by[turns.next_turn[followed]]).mean())

    assert stays("round_robin") < 0.5
    assert stays("lengthwise") > 0.8


class RecordingRouter:
    """Round robin, called for each request, that records the events it has received at each choice."""

    name, uses_predictions = "recording", False

    def __init__(self) -> None:
        self._router = RoundRobin()
        self.engine_up, self.engine_down = self._router.engine_up, self._router.engine_down
        self.received: list[tuple[float, Event]] = []
        self._since: list[Event] = []

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        self.received.extend((now, event) for event in self._since)
        self._since.clear()
        return self._router.choose(job, now, among)

    def observe(self, event: Event) -> None:
        self._since.append(event)


def test_a_router_receives_events_after_they_happen_and_never_before() -> None:
    workload = requests([(10, 5)] * 60, np.linspace(0, 30, 60).tolist())
    router = RecordingRouter()
    outcome = simulate(workload, fleet(UNEVEN, engines=3, seqs=2), router=router)
    assert all(event.now <= now for now, event in router.received)
    finished = {event.job: event for _, event in router.received if isinstance(event, Finished)}
    admitted = {event.job: event for _, event in router.received if isinstance(event, Admitted)}
    assert {int(job) for job in finished} == set(np.flatnonzero(outcome.finished_s <= outcome.arrival_s[-1]).tolist())
    for job, event in finished.items():
        assert event.now == outcome.finished_s[int(job)]
        assert event.generated == 5
        assert event.ttft_s == outcome.first_token_s[int(job)] - outcome.arrival_s[int(job)]
        assert admitted[job].now == outcome.started_s[int(job)]


@pytest.mark.parametrize("policy", ["fcfs", "srpt:c=0.8", "hrrn"])
def test_routing_one_by_one_equals_assigning_all_requests_first(policy: str) -> None:
    rng = np.random.default_rng(3)
    lengths = [(int(p), int(o)) for p, o in zip(rng.integers(1, 60, 200), rng.integers(1, 40, 200), strict=True)]
    workload = requests(lengths, np.cumsum(rng.exponential(0.05, 200)).tolist())
    tight = fleet(UNEVEN, engines=3, seqs=3, blocks=60, caching=True)
    first, one_by_one = (
        simulate(workload, tight, policy, router=router) for router in ("round_robin", RecordingRouter())
    )
    assert first.to_table().equals(one_by_one.to_table())


def test_a_router_of_another_package_works_by_its_path_and_is_charged_the_default_time() -> None:
    outcome = simulate(shared_prefixes(40), small(2), router=OUTSIDE_ROUTER, explain=True)
    assert outcome.engine.tolist() == [0, 1] * 20
    assert charged_times_s([OUTSIDE_ROUTER], 8) == {OUTSIDE_ROUTER: routing_time_s(OUTSIDE_ROUTER, 8)}
    assert "has no measured time" in (unmeasured_note(OUTSIDE_ROUTER, 8) or "")
    assert unmeasured_note(OUTSIDE_ROUTER, 8, {OUTSIDE_ROUTER: 5.0}) is None
    assert unmeasured_note("e2:window=5", 8) is None


class UnknownEngineRouter:
    name, uses_predictions = "unknown", False

    def engine_up(self, engine: object) -> None: ...
    def engine_down(self, engine: object) -> None: ...
    def observe(self, event: Event) -> None: ...

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        return Decision("nowhere")


def test_a_router_that_chooses_an_unknown_engine_is_named() -> None:
    with pytest.raises(InputError, match="unknown: chose engine 'nowhere'"):
        simulate(requests([(2, 2)]), fleet(engines=2), router=UnknownEngineRouter())


def test_speeds_come_from_the_cost_model() -> None:
    speed = speed_of(StepCost(0.002, 0.003, 1e-4, 1e-9, 1e-5, 1e-7))
    assert speed.prefill_pair_s == pytest.approx(1e-9)
    assert speed.prefill_token_s == pytest.approx(1e-4)
    assert speed.sequence_s == pytest.approx(1e-5 + 1e-7)  # and a context of one token
    assert speed.kv_token_s == pytest.approx(1e-7)
    assert speed.step_s == pytest.approx(0.003 + 1e-5 + 1e-7)


def test_a_prefix_aware_router_has_more_cache_hits_than_round_robin() -> None:
    workload = shared_prefixes(400)
    static, ours = (
        simulate(workload, small(), router=router, predictor="oracle") for router in ("round_robin", "lengthwise")
    )
    assert ours.cached_tokens.sum() > static.cached_tokens.sum()
    assert ours.summary.e2e_s.mean < static.summary.e2e_s.mean


def test_a_faster_engine_gets_more_requests() -> None:
    slow, fast = StepCost(0.1, 0.1, 1e-3, 0.0, 1e-3, 0.0), StepCost(0.01, 0.01, 1e-4, 0.0, 1e-4, 0.0)
    mixed = Fleet((engine(slow, seqs=4), engine(fast, seqs=4)))
    outcome = simulate(requests([(10, 20)] * 100, np.linspace(0, 8, 100).tolist()), mixed, router="lengthwise")
    counts = np.bincount(outcome.engine, minlength=2)
    assert counts[1] > 4 * counts[0]


def test_written_costs_are_read_back_equal() -> None:
    outcome = simulate(shared_prefixes(), small(), router="lengthwise", explain=True)
    assert outcome.trace is not None
    columns = {name: column.to_pylist() for name, column in outcome.trace.columns().items()}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    made = [costs or {} for costs in outcome.trace.costs]
    written = [{engine_name(int(number)): cost for number, cost in costs.items()} for costs in made]
    assert [read_costs(row) for row in rows] == written


def test_every_router_is_measured_with_the_same_numbers_of_engines() -> None:
    measured = routing_times()
    assert measured["command"].startswith("python -m benchmarks.routing")
    assert set(measured["us"]) == set(ROUTERS)
    assert len({tuple(times) for times in measured["us"].values()}) == 1
    assert all(us > 0 for times in measured["us"].values() for us in times.values())


@given(st.sampled_from(list(ROUTERS)), st.integers(2, 4096))
def test_a_routing_time_is_interpolated_and_never_extrapolated(router: str, engines: int) -> None:
    known = {int(count): 1e-6 * us for count, us in routing_times()["us"][router].items()}
    seconds = routing_time_s(router, engines)
    assert min(known.values()) - 1e-12 <= seconds <= max(known.values()) + 1e-12
    for count, measured in known.items():
        assert routing_time_s(router, count) == pytest.approx(measured)
    if engines > max(known):
        assert seconds == pytest.approx(known[max(known)])


def test_given_times_take_precedence_over_measured_ones() -> None:
    names = ["e2:window=5", "lengthwise"]
    measured = {"e2": routing_time_s("e2", 8), "lengthwise": routing_time_s("lengthwise", 8)}
    assert charged_times_s(names, 8) == measured
    assert charged_times_s(names, 8, {"e2": 800}) == {**measured, "e2": pytest.approx(8e-4)}
    assert charged_times_s(names, 8, 0) == {"e2": 0.0, "lengthwise": 0.0}
    assert charged_times_s(names, 1) == {}, "one engine needs no router"
    with pytest.raises(InputError, match="there is no router 'e3'"):
        charged_times_s(names, 8, {"e3": 1.0})


def test_explaining_needs_no_costs_from_a_router_without_any() -> None:
    outcome = simulate(requests([(2, 2)] * 2), fleet(engines=2), router=make_router("random"), explain=True)
    assert outcome.trace is not None
    assert [list((costs or {}).values()) for costs in outcome.trace.costs] == [[{}], [{}]]
