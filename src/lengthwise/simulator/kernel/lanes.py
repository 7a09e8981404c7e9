"""The rounds of the policy `lengthwise`, compiled: `policies.lengthwise.Lanes` on the engine's memory, bit for bit."""

from __future__ import annotations

from lengthwise.compiled import inlined as compiled
from lengthwise.policies import lengthwise as policy
from lengthwise.simulator.kernel.access import bin_at, lanes_at, median_at, request_at
from lengthwise.simulator.kernel.records import LANE_BINS, Record

FAST_ROUND, FAST_WORK, SHORT_JOBS = policy.FAST_ROUND, policy.FAST_WORK_FRACTION, policy.SHORT_JOB_FRACTION
SHORT_WORK, MAX_OF_MEAN, MAX_CREDIT = policy.SHORT_WORK_FRACTION, policy.MAX_OF_MEAN, policy.MAX_CREDIT_JOBS
WINDOW, TOKENS_PER_ROUND, MAX_UNIT = float(policy.WINDOW_JOBS), policy.TOKENS_PER_ROUND, policy.MAX_UNIT


@compiled
def _place(engine: Record, row: int) -> int:
    """Index of a request in the arrays of lengths, by whether its prediction has arrived."""
    return int(request_at(engine, row).predicted * engine.requests_size + row)


@compiled
def _is_short(engine: Record, tokens: float, place: int) -> bool:
    lanes = lanes_at(engine, 0)
    if tokens * lanes.count > MAX_OF_MEAN * lanes.total:
        return False
    shorter = 0.0
    for number in range(place):
        shorter += lanes.jobs[number]
    if shorter + 0.5 * lanes.jobs[place] <= SHORT_JOBS * lanes.count:
        return True
    work = 0.0
    for number in range(place):
        work += lanes.work[number]
    return bool(work + 0.5 * lanes.work[place] <= SHORT_WORK * lanes.total)


@compiled
def _count(engine: Record, tokens: float, place: int, weight: float) -> None:
    lanes = lanes_at(engine, 0)
    lanes.jobs[place] += weight
    lanes.work[place] += weight * tokens
    lanes.count += weight
    lanes.total += weight * tokens
    if lanes.unit > MAX_UNIT:
        for number in range(LANE_BINS):
            lanes.jobs[number] /= lanes.unit
            lanes.work[number] /= lanes.unit
        lanes.all_predicted /= lanes.unit
        lanes.all_true /= lanes.unit
        lanes.short_predicted /= lanes.unit
        lanes.short_true /= lanes.unit
        lanes.total, lanes.count, lanes.unit = lanes.total / lanes.unit, lanes.count / lanes.unit, 1.0


@compiled
def _add_credit(engine: Record, tokens: float) -> float:
    lanes = lanes_at(engine, 0)
    before = lanes.credit
    lanes.credit = min(before + FAST_WORK * tokens, MAX_CREDIT * lanes.total / lanes.count)
    return float(max(0.0, lanes.credit - before))


@compiled
def _round(engine: Record, tokens: float, place: int, predicted: bool, ordinary: int) -> int:
    lanes = lanes_at(engine, 0)
    ratio = (lanes.short_true / lanes.short_predicted) / (lanes.all_true / lanes.all_predicted)
    price = tokens * max(1.0, ratio)
    if predicted and price <= lanes.credit and _is_short(engine, tokens, place):
        lanes.credit -= price
        return int(FAST_ROUND)
    return ordinary


@compiled
def enter(engine: Record, row: int) -> None:
    """Set the round of a request that has arrived."""
    request, lanes = request_at(engine, row), lanes_at(engine, 0)
    request.predicted = 0
    at = _place(engine, row)
    tokens, code = median_at(engine, at).value, bin_at(engine, at).value
    place, predicted = (code, True) if code >= 0 else (-1 - code, False)
    lanes.unit *= 1.0 + 1.0 / WINDOW
    lanes.clock += tokens / engine.max_num_seqs
    _count(engine, tokens, place, lanes.unit)
    request.credited = _add_credit(engine, tokens)
    request.round = _round(engine, tokens, place, predicted, 1 + int(lanes.clock / TOKENS_PER_ROUND))


@compiled
def set_prediction(engine: Record, row: int) -> None:
    """Apply a late prediction; a waiting request of another length gets a new round."""
    request, lanes = request_at(engine, row), lanes_at(engine, 0)
    before = median_at(engine, _place(engine, row)).value
    before_code = bin_at(engine, _place(engine, row)).value
    request.predicted = 1
    tokens, code = median_at(engine, _place(engine, row)).value, bin_at(engine, _place(engine, row)).value
    if request.heap_index < 0 or tokens == before:
        return
    place, predicted = (code, True) if code >= 0 else (-1 - code, False)
    _count(engine, before, before_code if before_code >= 0 else -1 - before_code, -lanes.unit)
    _count(engine, tokens, place, lanes.unit)
    lanes.credit -= request.credited
    ordinary = request.round
    if request.round == FAST_ROUND:
        lanes.credit += before
        ordinary = 1 + int(lanes.clock / TOKENS_PER_ROUND)
    request.credited = _add_credit(engine, tokens)
    request.round = _round(engine, tokens, place, predicted, ordinary)


@compiled
def finished(engine: Record, row: int) -> None:
    """Record the true length of a finished request."""
    request, lanes, at = request_at(engine, row), lanes_at(engine, 0), _place(engine, row)
    tokens, code = median_at(engine, at).value, bin_at(engine, at).value
    lanes.all_predicted += lanes.unit * tokens
    lanes.all_true += lanes.unit * request.output
    if _is_short(engine, tokens, code if code >= 0 else -1 - code):
        lanes.short_predicted += lanes.unit * tokens
        lanes.short_true += lanes.unit * request.output
