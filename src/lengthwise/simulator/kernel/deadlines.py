"""The waiting requests of the policy `slo` in order of their deadlines, for requests without a deadline of their own.

All have the same target, so that this is the order of arrival. The rules are those of `policies.slo`, compiled.
"""

from __future__ import annotations

import numpy as np

from lengthwise.compiled import inlined as compiled
from lengthwise.compiled import inlined_copies
from lengthwise.policies import slo
from lengthwise.simulator.kernel.access import (
    arrival_at,
    bin_at,
    by_deadline_at,
    copy,
    median_at,
    prediction_of,
    progress_at,
    request_at,
    target_at,
)
from lengthwise.simulator.kernel.records import Record

count_arrival, charge_chosen, _record_length, _work_of, _observe_latency, _remember = inlined_copies(
    slo.count_arrival, slo.charge_chosen, slo.record_length, slo.work_of, slo.observe_latency, slo.remember
)


@compiled
def _waiting_at(engine: Record, place: int) -> tuple[float, float, float, bool, int]:
    """The request at a place: see `policies.slo.waiting_at`."""
    entry, state = by_deadline_at(engine, place), target_at(engine, 0)
    work = _work_of(state, entry.median, entry.bin)
    return entry.arrival + state.target_s, entry.median, work, entry.predicted != 0, entry.order


_, _choose = inlined_copies(slo.shortest_on_time, slo.choose, waiting_at=_waiting_at)


@compiled
def _fill(engine: Record, place: int, row: int) -> None:
    """Set the length of a waiting request; a negative bin means the wide prior: see `host`."""
    entry, at = by_deadline_at(engine, place), prediction_of(engine, row)
    entry.median, number = median_at(engine, at).value, bin_at(engine, at).value
    entry.bin, entry.predicted = max(number, -1 - number), number >= 0


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
    arrival, priority, place = arrival_at(engine, row).value, request_at(engine, row).priority, engine.n_waiting - 1
    while place > 0:
        before = by_deadline_at(engine, place - 1)
        if before.priority < priority or (before.priority == priority and before.arrival <= arrival):
            break
        copy(by_deadline_at(engine, place), before)
        place -= 1
    entry = by_deadline_at(engine, place)
    entry.arrival, entry.row, entry.order, entry.priority = arrival, row, order, priority
    _fill(engine, place, row)


@compiled
def _find(engine: Record, row: int) -> int:
    place = 0
    while by_deadline_at(engine, place).row != row:
        place += 1
    return place


@compiled
def admitted(engine: Record, row: int) -> None:
    """Remove the selected request and account for its work; `n_waiting` is without it already."""
    for place in range(_find(engine, row), engine.n_waiting):
        copy(by_deadline_at(engine, place), by_deadline_at(engine, place + 1))
    charge_chosen(target_at(engine, 0))


@compiled
def set_prediction(engine: Record, row: int) -> None:
    """Apply a late prediction."""
    if progress_at(engine, row).heap_index >= 0:
        _fill(engine, _find(engine, row), row)


@compiled
def select(engine: Record) -> int:
    """Row of the request to admit next, among those of the most urgent priority: `Slo.select`."""
    state, rate, slots = target_at(engine, 0), engine.rate.per_s, engine.max_num_seqs
    count, learned = engine.n_waiting, np.isnan(engine.policy_parameters[0])
    while by_deadline_at(engine, count - 1).priority > by_deadline_at(engine, 0).priority:
        count -= 1
    if learned and rate > 0.0 and state.arrived:
        work = 0.0
        for place in range(count):
            work += _waiting_at(engine, place)[2]
        _observe_latency(state, work, slots, rate)
    place, charged, kept = _choose(engine, count, state.target_s, state.credit, slots, rate, engine.now, learned)
    _remember(state, _waiting_at(engine, place)[2], charged, kept)
    return int(by_deadline_at(engine, place).row)
