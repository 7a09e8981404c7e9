from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import numpy as np
import pytest

from lengthwise.policies import Job
from lengthwise.routers import ROUTERS, Admitted, Event, Finished
from lengthwise.simulator import Fleet, RoundRobin, StepCost, simulate
from lengthwise.simulator.routing import Routed, speed_of
from lengthwise.workloads import Workload
from lengthwise.workloads.generators import DiscreteLengths, react_workload
from tests.simulator.builders import UNEVEN, engine, fleet, requests


def shared_prefixes(n: int = 200, rate: float = 40.0) -> Workload:
    return react_workload(requests=n, rate=rate, lengths=DiscreteLengths((1, 60), (0.5, 0.5)), seed=1, workloads=4)


def small(engines: int = 3) -> Fleet:
    return Fleet.parse(f"{engines}*mistral-7b@a6000").limited_to(max_num_seqs=8, kv_tokens=20_000)


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_serves_everybody_and_always_in_the_same_way(name: str) -> None:
    first, again = (simulate(shared_prefixes(), small(), router=name) for _ in range(2))
    assert not np.isnan(first.finish).any()
    assert first.finish.tobytes() == again.finish.tobytes()
    assert set(first.engine.tolist()) == {0, 1, 2}


def test_round_robin_by_name_is_the_one_that_deals_all_out_ahead() -> None:
    ahead, named = (simulate(shared_prefixes(), small(), router=router) for router in (RoundRobin, "round_robin"))
    assert ahead.finish.tobytes() == named.finish.tobytes()


class _Listening(Routed):
    """Round robin that is asked one by one, and writes down what it is told and when."""

    told: ClassVar[list[tuple[float, Event]]] = []

    def __init__(self, fleet: Fleet) -> None:
        super().__init__("round_robin", fleet, shared_prefixes(1))
        self.told.clear()
        self._since: list[Event] = []

    def choose(self, job: Job, now: float, among: Collection[int] | None = None) -> int:
        self.told.extend((now, event) for event in self._since)
        self._since.clear()
        return super().choose(job, now, among)

    def observe(self, event: Event) -> None:
        super().observe(event)
        self._since.append(event)


def test_a_router_is_told_what_has_happened_and_nothing_before_it_has() -> None:
    workload = requests([(10, 5)] * 60, np.linspace(0, 30, 60).tolist())
    outcome = simulate(workload, fleet(UNEVEN, engines=3, seqs=2), router=_Listening)
    assert all(event.now <= now for now, event in _Listening.told)
    finished = {event.job: event for _, event in _Listening.told if isinstance(event, Finished)}
    admitted = {event.job: event for _, event in _Listening.told if isinstance(event, Admitted)}
    assert {int(job) for job in finished} == set(np.flatnonzero(outcome.finish <= outcome.arrival[-1]).tolist())
    for job, event in finished.items():
        assert event.now == outcome.finish[int(job)]
        assert event.generated == 5
        assert event.ttft_s == outcome.first_token[int(job)] - outcome.arrival[int(job)]
        assert admitted[job].now == outcome.started[int(job)]


def test_being_watched_changes_nothing() -> None:
    blind, watched = (simulate(shared_prefixes(), small(), router=router) for router in (RoundRobin, _Listening))
    assert _Listening.told
    assert blind.finish.tobytes() == watched.finish.tobytes()


def test_speeds_are_read_off_a_cost_model() -> None:
    speed = speed_of(StepCost(0.002, 0.003, 1e-4, 1e-9, 1e-5, 1e-7))
    assert speed.prefill_pair_s == pytest.approx(1e-9)
    assert speed.prefill_token_s == pytest.approx(1e-4)
    assert speed.sequence_s == pytest.approx(1e-5 + 1e-7)  # a context of one token is one more
    assert speed.kv_token_s == pytest.approx(1e-7)
    assert speed.step_s == pytest.approx(0.003 + 1e-5 + 1e-7)


def test_a_router_that_knows_prefixes_finds_more_of_them_than_round_robin() -> None:
    workload = shared_prefixes(400)
    blind, ours = (simulate(workload, small(), router=router) for router in ("round_robin", "lengthwise"))
    assert ours.cached_tokens.sum() > blind.cached_tokens.sum()
    assert ours.summary.e2e_s.mean < blind.summary.e2e_s.mean


def test_engines_that_differ_get_what_they_can_do() -> None:
    slow, fast = StepCost(0.1, 0.1, 1e-3, 0.0, 1e-3, 0.0), StepCost(0.01, 0.01, 1e-4, 0.0, 1e-4, 0.0)
    mixed = Fleet((engine(slow, seqs=4), engine(fast, seqs=4)))
    outcome = simulate(requests([(10, 20)] * 100, np.linspace(0, 8, 100).tolist()), mixed, router="lengthwise")
    counts = np.bincount(outcome.engine, minlength=2)
    assert counts[1] > 4 * counts[0]
