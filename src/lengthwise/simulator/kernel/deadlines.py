"""The policy `slo`, compiled: `policies.slo` on the engine's memory, for requests without a deadline of their own.

The rules of its state are compiled from there. `select` is written again: one pass over the waiting requests, sorted by
arrival, where the policy sorts columns.
"""

from __future__ import annotations

import numpy as np

from lengthwise.compiled import inlined as compiled
from lengthwise.compiled import inlined_copies
from lengthwise.policies import slo as policy
from lengthwise.simulator.kernel.access import (
    arrival_at,
    bin_at,
    by_arrival_at,
    copy,
    median_at,
    prediction_of,
    progress_at,
    request_at,
    target_at,
)
from lengthwise.simulator.kernel.records import NONE, Record

OWN_SERVICE, HEADROOM = policy.OWN_SERVICE, policy.HEADROOM
OVERLOADED_AT = policy.OVERLOADED_AT
_count_arrival, _charge_chosen, _record_length, _observe = inlined_copies(
    policy.count_arrival, policy.charge_chosen, policy.record_length, policy.observe_latency
)


@compiled
def _fill(engine: Record, place: int, row: int) -> None:
    """Set the length of a waiting request; a negative bin means the wide prior: see `host`."""
    entry, at = by_arrival_at(engine, place), prediction_of(engine, row)
    entry.median, number = median_at(engine, at).value, bin_at(engine, at).value
    entry.bin, entry.predicted = max(number, -1 - number), number >= 0


@compiled
def enter(engine: Record) -> None:
    """Count an arrival."""
    _count_arrival(target_at(engine, 0))


@compiled
def finished(engine: Record, row: int) -> None:
    """Record a true length."""
    at = prediction_of(engine, row)
    number = bin_at(engine, at).value
    median, place = median_at(engine, at).value, max(number, -1 - number)
    _record_length(target_at(engine, 0), median, place, request_at(engine, row).output)


@compiled
def insert(engine: Record, row: int, order: int) -> None:
    """Add a request that waits, the last to join; `n_waiting` includes it already."""
    arrival, place = arrival_at(engine, row).value, engine.n_waiting - 1
    while place > 0 and by_arrival_at(engine, place - 1).arrival > arrival:
        copy(by_arrival_at(engine, place), by_arrival_at(engine, place - 1))
        place -= 1
    entry = by_arrival_at(engine, place)
    entry.arrival, entry.row, entry.order, entry.priority = arrival, row, order, request_at(engine, row).priority
    _fill(engine, place, row)


@compiled
def _find(engine: Record, row: int) -> int:
    place = 0
    while by_arrival_at(engine, place).row != row:
        place += 1
    return place


@compiled
def admitted(engine: Record, row: int) -> None:
    """Remove the selected request and account for its work; `n_waiting` is without it already."""
    for place in range(_find(engine, row), engine.n_waiting):
        copy(by_arrival_at(engine, place), by_arrival_at(engine, place + 1))
    _charge_chosen(target_at(engine, 0))


@compiled
def set_prediction(engine: Record, row: int) -> None:
    """Apply a late prediction."""
    if progress_at(engine, row).heap_index >= 0:
        _fill(engine, _find(engine, row), row)


@compiled
def _observe_latency(engine: Record, priority: int) -> None:
    """Count what the requests that have arrived since the last call would take under FCFS."""
    state, work = target_at(engine, 0), 0.0
    if state.arrived and state.done > 0.0:
        for place in range(engine.n_waiting):
            entry = by_arrival_at(engine, place)
            if entry.priority == priority:
                work += entry.median * state.true_per_predicted[entry.bin]
        _observe(state, (work + engine.max_num_seqs * (state.all_true / state.done)) / engine.tokens_per_s)
    state.arrived = 0


@compiled
def _choose(engine: Record, place: int, oldest: bool) -> int:
    state, entry = target_at(engine, 0), by_arrival_at(engine, place)
    state.chosen_work, state.chosen_oldest = entry.median * state.true_per_predicted[entry.bin], oldest
    return int(entry.row)


@compiled
def _shortest_on_time(engine: Record, priority: int, target: float) -> int:
    """Place of the shortest request that can still be on time, the first to join among equals, or NONE."""
    state, slots_per_rate = target_at(engine, 0), engine.max_num_seqs / engine.tokens_per_s
    chosen = NONE
    for place in range(engine.n_waiting):
        entry = by_arrival_at(engine, place)
        service = entry.median * state.true_per_predicted[entry.bin] * slots_per_rate
        if entry.priority != priority or not entry.predicted or entry.arrival + target < engine.now + service:
            continue
        best = by_arrival_at(engine, max(chosen, 0))
        shorter = entry.median < best.median or (entry.median == best.median and entry.order < best.order)
        if chosen == NONE or shorter:
            chosen = place
    return chosen


@compiled
def select(engine: Record) -> int:
    """Row of the request to admit next: `Slo.select`."""
    state, rate, learned = target_at(engine, 0), engine.tokens_per_s, np.isnan(engine.policy_parameters[0])
    priority, oldest = by_arrival_at(engine, 0).priority, 0
    for place in range(1, engine.n_waiting):
        if by_arrival_at(engine, place).priority < priority:
            priority, oldest = by_arrival_at(engine, place).priority, place
    if rate <= 0.0:
        return _choose(engine, oldest, True)
    target, late = engine.policy_parameters[0], 0.0
    if learned:
        _observe_latency(engine, priority)
        target = state.target_s
    else:
        late = -OVERLOADED_AT * target
    slots_per_rate = engine.max_num_seqs / rate
    done, least, chosen, shortest = 0.0, np.inf, oldest, np.inf
    for place in range(oldest, engine.n_waiting):
        entry = by_arrival_at(engine, place)
        if entry.priority != priority:
            continue
        work = entry.median * state.true_per_predicted[entry.bin]
        service = work * slots_per_rate
        if entry.median < shortest and (place == oldest or (entry.predicted and HEADROOM * service <= least)):
            chosen, shortest = place, entry.median
        done += work
        slack = entry.arrival + target - engine.now - (done - work) / rate - OWN_SERVICE * service
        least = min(least, slack)
        if least < late:
            break  # no later request fits, and there is overload if a target is given
    if not learned and least < late:
        on_time = _shortest_on_time(engine, priority, target)
        first = by_arrival_at(engine, oldest)
        if on_time == NONE or state.credit >= first.median * state.true_per_predicted[first.bin]:
            return _choose(engine, oldest, True)
        return _choose(engine, on_time, False)
    state.credit = 0.0
    return _choose(engine, chosen, True)
