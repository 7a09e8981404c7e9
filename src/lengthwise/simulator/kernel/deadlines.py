"""The waiting requests of the policies `slo` and `ontime` in the order in which they are due.

Under `slo` that is the order of arrival: all have the same target, and the host asks the policy if one has its own
deadline. The rules are those of `policies.slo` and `policies.ontime`, compiled.
"""

from __future__ import annotations

import numpy as np

from lengthwise.compiled import inlined as compiled
from lengthwise.compiled import inlined_copies
from lengthwise.policies import ontime, slo
from lengthwise.policies.calibration import UNPREDICTED
from lengthwise.simulator.kernel import calibration
from lengthwise.simulator.kernel.access import (
    arrival_at,
    bin_at,
    by_deadline_at,
    calibration_at,
    cap_at,
    copy,
    limits_at,
    median_at,
    prediction_of,
    progress_at,
    request_at,
    target_at,
)
from lengthwise.simulator.kernel.records import SLO, Record

count_arrival, charge_chosen, _count_finished, _observe_latency, _remember = inlined_copies(
    slo.count_arrival, slo.charge_chosen, slo.count_finished, slo.observe_latency, slo.remember
)


@compiled
def _work_at(engine: Record, place: int) -> float:
    entry = by_deadline_at(engine, place)
    return float(calibration.calibrated_work(calibration_at(engine, 0), entry.median, entry.bin, entry.cap))


@compiled
def _waiting_slo(engine: Record, place: int) -> tuple[float, float, float, bool, int]:
    """The request at a place: see `policies.slo.waiting_at`."""
    entry, target_s = by_deadline_at(engine, place), target_at(engine, 0).target_s
    return entry.due + target_s, entry.median, _work_at(engine, place), entry.bin != UNPREDICTED, entry.order


@compiled
def _waiting_on_time(engine: Record, place: int) -> tuple[float, float, float, float, float, float, int]:
    """The request at a place: see `policies.ontime.waiting_at`."""
    entry = by_deadline_at(engine, place)
    limits, arrival = limits_at(engine, entry.row), arrival_at(engine, entry.row).value
    preemptions = float(request_at(engine, entry.row).preemptions)
    work = _work_at(engine, place)
    return arrival, limits.due, limits.per_token, limits.deadline, work, preemptions, entry.order


*_, _choose_slo = inlined_copies(slo.shortest_on_time, slo.leaves_slack, slo.choose, waiting_at=_waiting_slo)
_, _choose_on_time = inlined_copies(ontime.latest_start, ontime.choose, waiting_at=_waiting_on_time)


@compiled
def _fill(engine: Record, place: int, row: int) -> None:
    """Set the predicted length of a waiting request."""
    entry, at = by_deadline_at(engine, place), prediction_of(engine, row)
    entry.median, entry.cap, entry.bin = median_at(engine, at).value, cap_at(engine, at).value, bin_at(engine, at).value


@compiled
def finished(engine: Record, row: int) -> None:
    """Record a true length."""
    _count_finished(target_at(engine, 0), request_at(engine, row).output)
    calibration.finished(engine, row)


@compiled
def insert(engine: Record, row: int, order: int) -> None:
    """Add a request that waits, the last to join; `n_waiting` includes it already."""
    due = arrival_at(engine, row).value if engine.policy == SLO else limits_at(engine, row).due
    priority, place = request_at(engine, row).priority, engine.n_waiting - 1
    while place > 0:
        before = by_deadline_at(engine, place - 1)
        if before.priority < priority or (before.priority == priority and before.due <= due):
            break
        copy(by_deadline_at(engine, place), before)
        place -= 1
    entry = by_deadline_at(engine, place)
    entry.due, entry.row, entry.order, entry.priority = due, row, order, priority
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
def _select_slo(engine: Record, count: int) -> tuple[int, bool, bool]:
    """`Slo.select` among the first `count` requests."""
    state, rate, slots = target_at(engine, 0), engine.rate.per_s, engine.max_num_seqs
    learned = np.isnan(engine.policy_parameters[0])
    if rate > 0.0 and state.arrived:
        work = 0.0
        for place in range(count):
            work += _work_at(engine, place)
        _observe_latency(state, work, slots, rate, learned)
    return _choose_slo(engine, count, state.target_s, state.fcfs_s, state.credit, slots, rate, engine.now, learned)


@compiled
def select(engine: Record) -> int:
    """Row of the request to admit next, among those of the most urgent priority."""
    state, count = target_at(engine, 0), engine.n_waiting
    while by_deadline_at(engine, count - 1).priority > by_deadline_at(engine, 0).priority:
        count -= 1
    if engine.policy == SLO:
        place, charged, kept = _select_slo(engine, count)
    else:
        slots, rate = engine.max_num_seqs, engine.rate.per_s
        place, charged, kept = _choose_on_time(engine, count, state.credit, slots, rate, engine.now)
    _remember(state, _work_at(engine, place), charged, kept)
    return int(by_deadline_at(engine, place).row)
