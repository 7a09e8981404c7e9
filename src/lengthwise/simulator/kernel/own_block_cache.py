"""The prefix cache where nobody begins like another: what is left of each request, by its number of blocks.

Then only a request itself can find its blocks again, after a preemption, and the order of eviction needs no block by
name: blank blocks go first, then what is left of requests, longest freed first, of each its tail.
"""

from __future__ import annotations

from lengthwise.simulator.kernel.access import compiled, request_at
from lengthwise.simulator.kernel.records import NOBODY, Record


@compiled
def keep(engine: Record, row: int, blocks: int) -> None:
    """Remember the full blocks of a request that gives its memory back; they are free from now on."""
    if blocks == 0:
        return
    request = request_at(engine, row)
    request.kept, request.kept_before, request.kept_after = blocks, engine.kept_last, NOBODY
    if engine.kept_last == NOBODY:
        engine.kept_first = row
    else:
        request_at(engine, engine.kept_last).kept_after = row
    engine.kept_last = row
    engine.n_kept += blocks


@compiled
def forget(engine: Record, row: int, blocks: int) -> None:
    """Forget so many blocks of what is left of a request."""
    request = request_at(engine, row)
    request.kept -= blocks
    engine.n_kept -= blocks
    if request.kept:
        return
    if request.kept_before == NOBODY:
        engine.kept_first = request.kept_after
    else:
        request_at(engine, request.kept_before).kept_after = request.kept_after
    if request.kept_after == NOBODY:
        engine.kept_last = request.kept_before
    else:
        request_at(engine, request.kept_after).kept_before = request.kept_before


@compiled
def take(engine: Record, blocks: int) -> None:
    """Make so many free blocks blank, as they are about to be taken."""
    lacking = blocks - (engine.free - engine.n_kept)
    while lacking > 0:
        row = engine.kept_first
        some = min(lacking, request_at(engine, row).kept)
        forget(engine, row, some)
        lacking -= some
