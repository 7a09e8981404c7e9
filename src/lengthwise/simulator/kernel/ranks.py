"""The ranks of `srpt` and `gittins` at an age, compiled, and their victims: `policies.residual` and `.preemptive`.

Before its first token a request has the rank that the policy computed. The tables of `policies.residual` are one array:
by node z, survival and fall; by sigma its value and the fresh rank; by sigma and node integral, stretch and log rank.
"""

from __future__ import annotations

import math

import numpy as np

from lengthwise.compiled import inlined as compiled
from lengthwise.lengths import OUTLIVED_BELOW
from lengthwise.policies import preemptive, residual
from lengthwise.simulator.kernel.access import job_at, prediction_of, rank_table_at, request_at, running_at
from lengthwise.simulator.kernel.records import GITTINS, NONE, SRPT, Record

STEP, REACH, SIGMAS, NODES = residual.STEP, residual.REACH, residual.SIGMAS, residual.NODES
SIGMA_ONE, ABOVE_ANY_RANK = residual.SIGMA_ONE, preemptive.ABOVE_ANY_RANK
LAST_NODE = NODES - 1.001
Z_OF, SURVIVAL_OF, FALL_OF = 0, NODES, 2 * NODES
SIGMA_OF, FRESH_OF = 3 * NODES, 3 * NODES + SIGMAS
INTEGRAL_OF = 3 * NODES + 2 * SIGMAS
STRETCH_OF, LOG_RANK_OF = INTEGRAL_OF + SIGMAS * NODES, INTEGRAL_OF + 2 * SIGMAS * NODES


@compiled
def _table(engine: Record, place: int) -> float:
    return float(rank_table_at(engine, place).value)


@compiled
def _node(z: float) -> float:
    return min(max((math.asinh(z) + REACH) / STEP, 0.0), LAST_NODE)


@compiled
def _beyond(engine: Record, z: float, at: float) -> float:
    """Distance of z, which has its place at `at`, from the node before it."""
    inside = z if 0.0 < at < LAST_NODE else math.sinh(at * STEP - REACH)
    return inside - _table(engine, Z_OF + int(at))


@compiled
def _integral(engine: Record, at: float, beyond: float, sigma: int) -> float:
    cell = int(at)
    growth = (_table(engine, SIGMA_OF + sigma) - _table(engine, FALL_OF + cell)) * beyond
    place = sigma * NODES + cell
    return _table(engine, INTEGRAL_OF + place) + _table(engine, STRETCH_OF + place) * math.expm1(growth)


@compiled
def _integral_to(engine: Record, z: float, sigma: int) -> float:
    at = _node(z)
    return _integral(engine, at, _beyond(engine, z, at), sigma)


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
        spread = _table(engine, SIGMA_OF + sigma)
        z = (math.log(age) - known.mu) / spread
        at = _node(z)
        cell, beyond = int(at), _beyond(engine, z, at)
        reached = _table(engine, SURVIVAL_OF + cell) * math.exp(-_table(engine, FALL_OF + cell) * beyond)
        if reached >= OUTLIVED_BELOW:
            if np.isnan(known.cap_integral):
                known.cap_integral = _integral_to(engine, (math.log(cap) - known.mu) / spread, sigma)
            rest = max(known.cap_integral - _integral(engine, at, beyond, sigma), 0.0) / reached
            if engine.policy == GITTINS:
                low = _table(engine, LOG_RANK_OF + sigma * NODES + cell)
                high = _table(engine, LOG_RANK_OF + sigma * NODES + cell + 1)
                rest = min(rest, math.exp(low + (at - cell) * (high - low)))
            return float(known.median * rest)
    mean = _integral_to(engine, math.log(max(cap - age, 1.0) / age), SIGMA_ONE)
    if engine.policy == GITTINS:
        mean = min(mean, _table(engine, FRESH_OF + SIGMA_ONE))
    return age * mean


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
        initial, c = job_at(engine, prediction_of(engine, row)).initial_expected, engine.policy_parameters[2]
        return bool(age <= c * initial and (c > 1.0 or age < initial))
    return True


@compiled
def victim(engine: Record) -> int:
    """Position of the request to preempt when memory is short: the largest rank, the last among equals."""
    chosen, largest = 0, -np.inf
    for position in range(engine.n_running):
        score = rank(engine, running_at(engine, position).row, _age(engine, position))
        if not _may_preempt(engine, position):
            score -= ABOVE_ANY_RANK
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
    wanted = engine.policy_parameters[0] * rank(engine, row, request_at(engine, row).generated)
    return chosen if chosen != NONE and largest > wanted else NONE
