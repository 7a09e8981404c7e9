"""The ranks of `srpt` and `gittins` at an age, compiled, and their victims: `policies.residual` and `.preemptive`.

Before its first token a request has the rank that the policy computed. The formulas and tables are those of
`lengths.log_t`.
"""

from __future__ import annotations

import numpy as np

from lengthwise.compiled import inlined as compiled
from lengthwise.compiled import inlined_copies
from lengthwise.lengths import OUTLIVED_BELOW, log_t
from lengthwise.policies import preemptive
from lengthwise.simulator.kernel.access import job_at, prediction_of, rank_table_at, request_at, running_at
from lengthwise.simulator.kernel.records import GITTINS, NONE, SRPT, Record

_eviction_score, _exceeds, _is_early = inlined_copies(
    preemptive.eviction_score, preemptive.exceeds, preemptive.is_early
)


@compiled
def _read(engine: Record, place: int) -> float:
    return float(rank_table_at(engine, place).value)


_place_of, _standard_age, _share_reached, _integral_to, _uncapped_rank, _, _outlived_rest = inlined_copies(
    log_t.place_of,
    log_t.standard_age,
    log_t.share_reached,
    log_t.integral_to,
    log_t.uncapped_rank,
    log_t.fresh_rank,
    log_t.outlived_rest,
    read=_read,
)


@compiled
def rank(engine: Record, row: int, age: int) -> float:
    """The rank of a request at an age in tokens: `residual.expected_remaining` or `residual.gittins_rank`."""
    known = job_at(engine, prediction_of(engine, row))
    if age <= 0:
        return float(known.fresh)
    sigma, cap = int(known.sigma_index), known.cap
    if sigma == NONE and known.expected > age:
        return float(known.expected - age)
    if age >= cap:
        return 0.0
    if sigma != NONE:
        t = _standard_age(engine, age, known.mu, sigma)
        at = _place_of(t)
        reached = _share_reached(engine, t, at)
        if reached >= OUTLIVED_BELOW:
            if np.isnan(known.cap_integral):
                end = _standard_age(engine, cap, known.mu, sigma)
                known.cap_integral = _integral_to(engine, end, _place_of(end), sigma)
            rest = max(known.cap_integral - _integral_to(engine, t, at, sigma), 0.0) / reached
            if engine.policy == GITTINS:
                rest = min(rest, _uncapped_rank(engine, at, sigma))
            return float(known.median * rest)
    return float(_outlived_rest(engine, age, cap, engine.policy == GITTINS))


@compiled
def _age(engine: Record, position: int) -> int:
    running = running_at(engine, position)
    return int(running.tokens - request_at(engine, running.row).prompt)


@compiled
def _may_preempt(engine: Record, position: int) -> bool:
    """Whether a running request may be preempted for a waiting one; parameters: margin, times, c."""
    row, age = running_at(engine, position).row, _age(engine, position)
    if request_at(engine, row).preemptions >= engine.policy_parameters[1]:
        return False
    if engine.policy == SRPT:
        initial = job_at(engine, prediction_of(engine, row)).initial_expected
        return bool(_is_early(age, initial, engine.policy_parameters[2]))
    return True


@compiled
def victim(engine: Record) -> int:
    """Position of the request to preempt when memory is short: the largest rank, the last among equals."""
    chosen, largest = 0, -np.inf
    for position in range(engine.n_running):
        own = rank(engine, running_at(engine, position).row, _age(engine, position))
        score = _eviction_score(own, _may_preempt(engine, position))
        if score >= largest:
            chosen, largest = position, score
    return chosen


@compiled
def head_victim(engine: Record, row: int) -> int:
    """Position of the request to preempt for a waiting one, or NONE."""
    chosen, largest = NONE, -np.inf
    for position in range(engine.n_running):
        running = running_at(engine, position)
        if request_at(engine, running.row).priority < request_at(engine, row).priority:
            continue
        if _may_preempt(engine, position):
            score = rank(engine, running.row, _age(engine, position))
            if score >= largest:
                chosen, largest = position, score
    wanted = rank(engine, row, request_at(engine, row).generated)
    return chosen if chosen != NONE and _exceeds(largest, wanted, engine.policy_parameters[0]) else NONE
