"""The state of an engine: when it is up, when its breaker opens, what its KV memory and other clients take."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.client.client import EngineClient
from lengthwise.client.kind import FoundEngine
from lengthwise.client.scrape import EngineGauges, EngineMemory
from lengthwise.gateway.engine_state import (
    Breaker,
    EngineIdentity,
    ForeignLoad,
    GatewayEngine,
    Health,
    KvUse,
    RecentSpeed,
)
from lengthwise.lengths import LogT
from lengthwise.policies import Job

MEMORY = EngineMemory(400, 16)


def job(name: str, prompt_tokens: int = 10, cap: int = 100) -> Job:
    return Job(name, 0.0, prompt_tokens, LogT(3.0, 1.0, cap), max_tokens=cap)


def engine(slots: int = 4) -> GatewayEngine:
    return GatewayEngine(EngineClient("http://127.0.0.1:1"), 0, slots)


def test_health_changes_only_after_enough_checks_in_a_row() -> None:
    health = Health(max_failures=3, min_successes=2)
    checks = [False, False, True, False, False, False, True, False, True, True]
    changed = [health.on_check(healthy=healthy) for healthy in checks]
    assert [n for n, change in enumerate(changed) if change] == [5, 9]
    assert health.up


def test_an_unreachable_engine_is_down_at_once_and_good_checks_before_do_not_count() -> None:
    health = Health(max_failures=3, min_successes=2)
    health.on_check(healthy=True)
    assert health.on_unreachable()
    assert not health.on_unreachable()
    assert not health.on_check(healthy=True)
    assert health.on_check(healthy=True)


def test_a_breaker_opens_after_failures_in_a_row_and_closes_by_an_answer() -> None:
    breaker = Breaker(max_failures=3, open_s=10.0)
    assert [breaker.on_failure(0.0) for _ in range(2)] == [False, False]
    assert not breaker.on_answer()
    assert [breaker.on_failure(0.0) for _ in range(3)] == [False, False, True]
    assert not breaker.passes(1.0)
    assert not breaker.on_healthy(9.9)
    assert breaker.on_healthy(15.0)
    half_open = breaker.state
    assert breaker.on_answer()
    assert (half_open, breaker.state) == ("half_open", "closed")
    assert breaker.passes(15.0)


@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_each_failed_trial_doubles_the_time_a_breaker_is_open_up_to_32_times(
    trials: int, jitter: random.Random
) -> None:
    breaker, now = Breaker(max_failures=1, open_s=1.0, jitter=jitter), 0.0
    assert breaker.on_failure(now)
    for trial in range(trials):
        least = 2.0 ** min(trial, 5)
        assert not breaker.on_healthy(now + least - 1e-6)
        now += 1.5 * least
        assert breaker.on_healthy(now)
        assert not breaker.on_failure(now), "it was half open"
        assert breaker.state == "open"


def test_a_half_open_breaker_leaves_the_share_of_slots_that_recent_answers_succeeded() -> None:
    busy, dead = engine(slots=8), engine(slots=8)
    for one, failures in ((busy, 12), (dead, 100)):
        one.breaker = Breaker(max_failures=5, open_s=1.0)
        for _ in range(failures):
            one.breaker.state = "closed"
            one.breaker.on_failure(0.0)
        assert one.breaker.on_healthy(1000.0)
        assert one.breaker.state == "half_open"
        while one.free:
            one.add_job(job(str(one.in_flight)))
    assert busy.in_flight >= 4, "36 refused requests leave three of them with at least 12 slots of 24"
    assert dead.in_flight == 1
    busy.breaker.on_answer()
    assert busy.free


@given(st.lists(st.booleans(), max_size=200))
def test_the_share_of_answers_that_succeeded_leaves_every_engine_a_slot_and_none_more_than_it_has(
    answers: list[bool],
) -> None:
    breaker = Breaker(max_failures=3)
    for good in answers:
        _ = breaker.on_answer() if good else breaker.on_failure(0.0)
        breaker.state = "half_open"
        assert 1 <= breaker.slots(8) <= 8


def test_a_pause_ends_by_itself_and_leaves_the_breaker_closed() -> None:
    breaker = Breaker()
    breaker.pause(5.0)
    assert (breaker.passes(4.9), breaker.passes(5.0), breaker.state) == (False, True, "closed")


def test_kv_memory_counts_jobs_once_and_those_that_ran_before_it_was_known() -> None:
    kv, jobs = KvUse(), [job("a"), job("b")]
    kv.add(jobs[0])
    assert kv.bound == 0
    assert kv.report(MEMORY, jobs)
    assert not kv.report(MEMORY, jobs)
    kv.add(jobs[1])
    both = kv.bound
    kv.remove(jobs[0])
    assert kv.bound == both / 2
    kv.remove(jobs[0])
    kv.remove(jobs[1])
    assert kv.bound == 0


def test_foreign_load_counts_once_two_reports_in_a_row_have_it() -> None:
    load = ForeignLoad()
    load.report(EngineGauges(6, 0, 0.5), 2, 20, MEMORY)
    assert (load.requests, load.kv_tokens) == (0, 0)
    load.report(EngineGauges(5, 0, 0.5), 2, 20, MEMORY)
    assert (load.requests, load.kv_tokens) == (3, 180)
    load.report(EngineGauges(2, 0, 0.5), 2, 20, MEMORY)
    assert (load.requests, load.kv_tokens) == (0, 0)


def test_speed_is_unknown_before_an_answer_and_follows_recent_answers() -> None:
    speed = RecentSpeed()
    assert (speed.tokens_per_s, speed.s_per_token) == (0.0, math.inf)
    for _ in range(200):
        speed.observe(2.0, 100)
    assert speed.tokens_per_s == pytest.approx(50.0)
    for _ in range(200):
        speed.observe(1.0, 100)
    assert speed.tokens_per_s == pytest.approx(100.0, rel=0.01)


def test_a_kind_that_was_found_is_asked_for_again_after_the_engine_was_down_and_a_configured_one_is_not() -> None:
    found, configured = EngineIdentity(), EngineIdentity("vllm", "vllm (configured)")
    assert found.is_asked(0.0)
    found.ask_again(30.0)
    assert (found.is_asked(29.9), found.is_asked(30.0)) == (False, True)
    found.find(FoundEngine("sglang"))
    for identity in (found, configured):
        assert not identity.is_asked(99.0)
        identity.doubt()
    assert (found.is_asked(99.0), configured.is_asked(99.0)) == (True, False)
    assert found.kind == "sglang"


def test_an_engine_that_preempts_has_slots_for_more_urgent_jobs() -> None:
    one = engine(slots=2)
    batch, urgent = job("batch"), job("urgent")
    batch.priority, urgent.priority = 5, 1
    one.add_job(batch)
    one.add_job(job("as urgent"))
    assert not one.has_slot_for(urgent)
    one.identity.find(FoundEngine("lengthwise", policy="fair(classes(lengthwise))"))
    assert one.has_slot_for(urgent)
    assert not one.has_slot_for(batch)
    one.add_job(urgent)
    assert not one.has_slot_for(urgent)
    one.leaving = True
    assert not one.has_slot_for(job("most urgent"))
    for policy in (None, "lengthwise", "bounded(tie)"):
        one.identity.find(FoundEngine("lengthwise", policy=policy))
        assert not one.identity.preempts_classes


def test_less_urgent_jobs_do_not_take_the_memory_of_an_engine_that_preempts_them() -> None:
    one = engine(slots=8)
    one.identity.find(FoundEngine("lengthwise", policy="classes(lengthwise)"))
    one.kv.report(EngineMemory(kv_tokens=100, block_size=16), ())
    for number in range(4):
        waiting = job(str(number))
        waiting.priority = 5
        one.add_job(waiting)
    assert one.admits(job("urgent"), 0.9, 0.0)
    one.identity.find(FoundEngine("lengthwise", policy="lengthwise"))
    assert not one.admits(job("urgent"), 0.9, 0.0)


def test_free_slots_are_those_that_no_client_uses_and_one_while_the_breaker_of_a_dead_engine_is_half_open() -> None:
    one = engine(slots=3)
    one.add_job(job("a"))
    free = [one.free]
    for running in (3, 3, 1, 1):
        one.on_load(EngineGauges(running, 0), 1, 0.0)
        free.append(one.free)
    assert free == [True, True, False, True, True]
    one.breaker = Breaker(max_failures=1, open_s=1.0)
    one.breaker.on_failure(0.0)
    one.breaker.share = 0.1
    one.breaker.on_healthy(2.0)
    free = [one.free]
    one.remove_job(job("a"))
    assert [*free, one.free] == [False, True]


def test_an_engine_admits_what_fits_beside_its_jobs_and_other_clients() -> None:
    one = engine()
    assert one.admits(job("a", 10_000, 10_000), 0.99, 0.0), "its memory is not known yet"
    one.kv.report(MEMORY, ())
    assert one.admits(job("a", 100, 100), 0.99, 0.0)
    one.add_job(job("a", 100, 100))
    assert one.admits(job("b", 100, 100), 0.99, 0.0)
    assert not one.admits(job("b", 300, 100), 0.99, 0.0)
    for _ in range(2):
        one.on_load(EngineGauges(3, 0, 1.0), 1, 0.0)
    assert not one.admits(job("b", 100, 100), 0.99, 0.0)
