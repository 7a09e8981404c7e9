"""Whether the head of the queue may run now: vLLM's rule, and two that use predicted lengths."""

from __future__ import annotations

from lengthwise.compiled import inlined as compiled
from lengthwise.compiled import inlined_copies
from lengthwise.policies import admission as rules
from lengthwise.simulator.kernel.access import (
    copy,
    demand_at,
    predicted_lengths_at,
    progress_at,
    request_at,
    running_at,
)
from lengthwise.simulator.kernel.memory import blocks_for
from lengthwise.simulator.kernel.records import FUTURE_PEAK, INDEFINITELY, RESERVATION, Record

_predicted_remaining, _, _reserved_blocks, _sorted_peak = inlined_copies(
    rules.predicted_remaining, rules.blocks_for, rules.reserved_blocks, rules.sorted_peak, demand_at=demand_at
)


@compiled
def _reservation(engine: Record, row: int) -> int:
    """Blocks for the prompt and the granted answer, at most all."""
    progress = progress_at(engine, row)
    if not progress.granted_tokens:
        progress.granted_tokens = predicted_lengths_at(engine, row).lengths[0]
    prompt = request_at(engine, row).prompt
    return int(_reserved_blocks(prompt, progress.granted_tokens, engine.block_size, engine.n_blocks))


@compiled
def granted(engine: Record, row: int) -> int:
    """Tokens that a request's reservation covers."""
    return int(_reservation(engine, row) * engine.block_size)


@compiled
def _set_demand(engine: Record, place: int, row: int, tokens: int) -> None:
    demand, lengths = demand_at(engine, place), predicted_lengths_at(engine, row).lengths
    demand.tokens = tokens
    demand.remaining = _predicted_remaining(lengths, tokens - request_at(engine, row).prompt)


@compiled
def _peak(engine: Record, row: int, tokens: int) -> int:
    """Predicted peak of KV tokens if the request joins the running ones: `policies.admission.peak_kv_tokens`."""
    for position in range(engine.n_running):
        running = running_at(engine, position)
        _set_demand(engine, position, running.row, running.tokens)
    _set_demand(engine, engine.n_running, row, tokens)
    _longest_first(engine, engine.n_running + 1)
    return int(_sorted_peak(engine, engine.n_running + 1, engine.block_size))


@compiled
def _longest_first(engine: Record, size: int) -> None:
    """Sort the demands by tokens that remain, descending (Shell sort)."""
    moving = demand_at(engine, size)
    gap = size // 2
    while gap:
        for number in range(gap, size):
            copy(moving, demand_at(engine, number))
            at = number
            while at >= gap and demand_at(engine, at - gap).remaining < moving.remaining:
                copy(demand_at(engine, at), demand_at(engine, at - gap))
                at -= gap
            copy(demand_at(engine, at), moving)
        gap //= 2


@compiled
def blocked_steps(engine: Record, row: int, tokens: int, cached: int, idle: int) -> int:
    """Lower bound on the decode steps for which memory does not admit a request; 0: it may start now.

    `cached` of its blocks are in the cache, `idle` of those are free.
    """
    # The whole prompt must fit now, though blocks are taken chunk by chunk (scheduler_reserve_full_isl).
    if blocks_for(tokens, engine.block_size) - cached + idle > engine.free:
        return INDEFINITELY
    if engine.n_running == 0:
        return 0  # alone it may use all memory
    if engine.admission == FUTURE_PEAK:
        # With each step every running request is one token closer to its end: the peak falls by at most one token.
        return max(0, _peak(engine, row, tokens) - engine.n_blocks * engine.block_size)
    if engine.admission == RESERVATION and engine.reserved + _reservation(engine, row) > engine.n_blocks:
        return INDEFINITELY
    return 0


@compiled
def reserve(engine: Record, row: int) -> None:
    """Reserve memory for a request that starts, under RESERVATION."""
    if engine.admission == RESERVATION:
        engine.reserved += _reservation(engine, row)


@compiled
def release(engine: Record, row: int) -> None:
    """Release a reservation."""
    if engine.admission == RESERVATION:
        engine.reserved -= _reservation(engine, row)


@compiled
def exceeds_reservation(engine: Record, position: int, tokens: int) -> bool:
    """Whether a running request needs more than its reservation.

    It is then preempted and granted twice as many tokens (S3's supervisor).
    """
    row = running_at(engine, position).row
    if engine.admission != RESERVATION or blocks_for(tokens, engine.block_size) <= _reservation(engine, row):
        return False
    release(engine, row)
    progress_at(engine, row).granted_tokens *= 2
    reserve(engine, row)
    return True
