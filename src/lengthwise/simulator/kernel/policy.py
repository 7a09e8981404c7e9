"""The compiled policies: what each does when a request arrives, gets its prediction, is admitted and finishes.

The rules are functions of `lengthwise.policies`, compiled here for the engine's memory. All other policies, and those
inside a wrapper, are asked by the host.
"""

from __future__ import annotations

import numpy as np

from lengthwise.compiled import inlined as compiled
from lengthwise.compiled import inlined_copies
from lengthwise.policies import arrival_order, lengthwise
from lengthwise.simulator.kernel import calibration, deadlines, ranks
from lengthwise.simulator.kernel.access import (
    arrival_at,
    groups_at,
    job_at,
    key_at,
    lanes_at,
    median_at,
    prediction_of,
    progress_at,
    request_at,
    target_at,
    waiting_at,
)
from lengthwise.simulator.kernel.records import (
    BOOST,
    GITTINS,
    HRRN,
    LENGTHWISE,
    ON_LEVEL,
    ONTIME,
    PREBLE,
    SLO,
    SRPT,
    STALE,
    Record,
)

_enter_group, _serve_group, _response_ratio_key, _boosted_arrival = inlined_copies(
    arrival_order.enter_group,
    arrival_order.serve_group,
    arrival_order.response_ratio_key,
    arrival_order.boosted_arrival,
)


@compiled
def _work_bin(work: float) -> int:
    return int(np.searchsorted(lengthwise.EDGES, work, "right"))


*_, _enter_lanes, _change_lane, _settle = inlined_copies(
    lengthwise.is_short,
    lengthwise.count_work,
    lengthwise.add_credit,
    lengthwise.choose_lane,
    lengthwise.enter_lanes,
    lengthwise.change_lane,
    lengthwise.settle,
    work_bin=_work_bin,
)


@compiled
def _by_deadline(engine: Record) -> bool:
    """Whether `deadlines` keeps the waiting requests."""
    return bool(engine.policy == SLO or engine.policy == ONTIME)


@compiled
def _change_prediction(engine: Record, row: int) -> None:
    """Apply a late prediction under `lengthwise`; a waiting request of another length gets a new round."""
    progress = progress_at(engine, row)
    old_median = median_at(engine, prediction_of(engine, row)).value
    progress.predicted = 1
    if progress.heap_index >= 0 and median_at(engine, prediction_of(engine, row)).value != old_median:
        old, (progress.counted, predicted) = progress.counted, calibration.work(engine, row)
        progress.round, progress.credited, progress.price = _change_lane(
            lanes_at(engine, 0), progress.counted, predicted, old, progress.round, progress.credited, progress.price
        )


@compiled
def arrived(engine: Record, row: int) -> None:
    """Set the round of a request that has arrived."""
    progress = progress_at(engine, row)
    progress.predicted = 0
    if engine.policy == LENGTHWISE:
        progress.counted, predicted = calibration.work(engine, row)
        progress.round, progress.credited, progress.price = _enter_lanes(
            lanes_at(engine, 0), progress.counted, predicted, engine.max_num_seqs
        )
    elif _by_deadline(engine):
        deadlines.count_arrival(target_at(engine, 0))
    elif engine.policy == PREBLE:
        progress.round = _enter_group(groups_at(engine, 0), progress.cached, request_at(engine, row).prompt)


@compiled
def set_prediction(engine: Record, row: int) -> None:
    """Apply a late prediction, also to a request's round."""
    if engine.policy == LENGTHWISE:
        _change_prediction(engine, row)
    progress_at(engine, row).predicted = 1
    if _by_deadline(engine):
        deadlines.set_prediction(engine, row)


@compiled
def joined(engine: Record, row: int, order: int) -> None:
    """Count a request that waits, new or preempted; `n_waiting` includes it already."""
    if _by_deadline(engine):
        deadlines.insert(engine, row, order)


@compiled
def admitted(engine: Record, row: int) -> None:
    """Count an admission; `n_waiting` is without the request already."""
    if _by_deadline(engine):
        deadlines.admitted(engine, row)
    elif engine.policy == PREBLE:
        _serve_group(groups_at(engine, 0), progress_at(engine, row).round)


@compiled
def finished(engine: Record, row: int) -> None:
    """Count a finished request."""
    if engine.policy == LENGTHWISE:
        progress = progress_at(engine, row)
        calibration.finished(engine, row)
        _settle(lanes_at(engine, 0), request_at(engine, row).output, progress.counted, progress.price)
    elif _by_deadline(engine):
        deadlines.finished(engine, row)


@compiled
def key(engine: Record, row: int) -> float:
    """The key of a request that waits, from its progress or from the columns that the host has filled."""
    request = request_at(engine, row)
    if engine.policy == BOOST:
        work = request.prompt - progress_at(engine, row).cached + request.generated
        horizon, scale = engine.policy_parameters[0], engine.policy_parameters[1]
        return float(_boosted_arrival(arrival_at(engine, row).value, work, horizon, scale))
    if engine.policy == SRPT or engine.policy == GITTINS:
        return ranks.rank(engine, row, request.generated)
    column = engine.column if engine.rekey == ON_LEVEL and engine.column != STALE else 0
    at = column * engine.stages * engine.requests_size + prediction_of(engine, row)
    return float(key_at(engine, at).value)


@compiled
def selects(engine: Record) -> bool:
    """Whether the head of the queue is found by `select`."""
    return bool(_by_deadline(engine) or engine.policy == HRRN)


@compiled
def select(engine: Record) -> int:
    """Row of the request to admit next."""
    if _by_deadline(engine):
        return deadlines.select(engine)
    best, smallest = waiting_at(engine, 0), np.inf
    for place in range(engine.n_waiting):
        entry = waiting_at(engine, place)
        if entry.priority > best.priority:
            continue
        expected = job_at(engine, prediction_of(engine, entry.row)).expected
        ratio = _response_ratio_key(arrival_at(engine, entry.row).value, expected, engine.now)
        if entry.priority < best.priority or ratio < smallest or (ratio == smallest and entry.order < best.order):
            best, smallest = entry, ratio
    return int(best.row)


@compiled
def finds_victims(engine: Record) -> bool:
    """Whether `ranks` finds the victims."""
    return bool(engine.policy == SRPT or engine.policy == GITTINS)
