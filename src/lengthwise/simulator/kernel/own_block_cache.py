"""The prefix cache where nobody begins like another: what is left of each request, by its number of blocks.

Then only a request itself can find its blocks again, after a preemption, and the order of eviction needs no block by
name: blank blocks go first, then what is left of requests, longest freed first, of each its tail.
"""

from __future__ import annotations

from lengthwise.compiled import inlined as compiled
from lengthwise.simulator.kernel.access import request_at
from lengthwise.simulator.kernel.records import NONE, Record


@compiled
def keep(engine: Record, row: int, blocks: int) -> None:
    """Remember the full blocks of a request that gives its memory back; they are free from now on."""
    if blocks == 0:
        return
    request = request_at(engine, row)
    request.retained, request.retained_before, request.retained_after = blocks, engine.retained_last, NONE
    if engine.retained_last == NONE:
        engine.retained_first = row
    else:
        request_at(engine, engine.retained_last).retained_after = row
    engine.retained_last = row
    engine.n_retained += blocks


@compiled
def forget(engine: Record, row: int, blocks: int) -> None:
    """Forget so many blocks of what is left of a request."""
    request = request_at(engine, row)
    request.retained -= blocks
    engine.n_retained -= blocks
    if request.retained:
        return
    if request.retained_before == NONE:
        engine.retained_first = request.retained_after
    else:
        request_at(engine, request.retained_before).retained_after = request.retained_after
    if request.retained_after == NONE:
        engine.retained_last = request.retained_before
    else:
        request_at(engine, request.retained_after).retained_before = request.retained_before


@compiled
def take(engine: Record, blocks: int) -> None:
    """Make so many free blocks blank, as they are about to be taken."""
    lacking = blocks - (engine.free - engine.n_retained)
    while lacking > 0:
        row = engine.retained_first
        some = min(lacking, request_at(engine, row).retained)
        forget(engine, row, some)
        lacking -= some
