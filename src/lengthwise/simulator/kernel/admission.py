"""Whether the head of the queue may run now: vLLM's rule, and two that use predicted lengths."""

from __future__ import annotations

from lengthwise.compiled import inlined as compiled
from lengthwise.simulator.kernel.access import (
    copy,
    predicted_length_at,
    progress_at,
    request_at,
    running_at,
    scratch_at,
)
from lengthwise.simulator.kernel.memory import needed
from lengthwise.simulator.kernel.records import FUTURE_PEAK, INDEFINITELY, RESERVATION, Record


@compiled
def _predicted_left(engine: Record, row: int, generated: int) -> int:
    """Tokens left by the lowest predicted length that is not exceeded: `policies.admission.predicted_remaining`."""
    for level in range(engine.n_levels):
        length = predicted_length_at(engine, row * engine.n_levels + level).value
        if length > generated:
            return int(length - generated)
    return 1


@compiled
def _reservation(engine: Record, row: int) -> int:
    """Blocks for the prompt and the granted answer, at most all."""
    progress = progress_at(engine, row)
    if not progress.granted_tokens:
        progress.granted_tokens = predicted_length_at(engine, row * engine.n_levels).value
    # The last token is never computed and needs no slot.
    tokens = request_at(engine, row).prompt + progress.granted_tokens - 1
    return min(needed(tokens, engine.block_size), engine.n_blocks)


@compiled
def granted(engine: Record, row: int) -> int:
    """Tokens that a request's reservation covers."""
    return int(_reservation(engine, row) * engine.block_size)


@compiled
def _peak(engine: Record, row: int, tokens: int) -> int:
    """Predicted peak of KV tokens if the request joins the running ones: `policies.admission.peak_kv_tokens`."""
    for position in range(engine.n_running):
        running, entry = running_at(engine, position), scratch_at(engine, position)
        entry.left = _predicted_left(engine, running.row, running.tokens - request_at(engine, running.row).prompt)
        entry.tokens = running.tokens + engine.block_size - 1
    last = scratch_at(engine, engine.n_running)
    last.left = _predicted_left(engine, row, tokens - request_at(engine, row).prompt)
    last.tokens = tokens + engine.block_size - 1
    _longest_first(engine, engine.n_running + 1)
    peak = total = 0
    for number in range(engine.n_running + 1):
        entry = scratch_at(engine, number)
        total += entry.tokens
        peak = max(peak, entry.left * (number + 1) + total)
    return peak


@compiled
def _longest_first(engine: Record, size: int) -> None:
    """Sort the scratch array by tokens left, descending (Shell sort)."""
    moving = scratch_at(engine, size)
    gap = size // 2
    while gap:
        for number in range(gap, size):
            copy(moving, scratch_at(engine, number))
            at = number
            while at >= gap and scratch_at(engine, at - gap).left < moving.left:
                copy(scratch_at(engine, at), scratch_at(engine, at - gap))
                at -= gap
            copy(scratch_at(engine, at), moving)
        gap //= 2


@compiled
def blocked_steps(engine: Record, row: int, tokens: int, cached: int, idle: int) -> int:
    """Lower bound on the decode steps for which memory does not admit a request; 0: it may start now.

    `cached` of its blocks are in the cache, `idle` of those are free.
    """
    # The whole prompt must fit now, though blocks are taken chunk by chunk (scheduler_reserve_full_isl).
    if needed(tokens, engine.block_size) - cached + idle > engine.free:
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
    if engine.admission != RESERVATION or needed(tokens, engine.block_size) <= _reservation(engine, row):
        return False
    release(engine, row)
    progress_at(engine, row).granted_tokens *= 2
    reserve(engine, row)
    return True
