"""The waiting requests: a binary heap in the policy's order."""

from __future__ import annotations

import numpy as np

from lengthwise.compiled import inlined as compiled
from lengthwise.simulator.kernel import policy
from lengthwise.simulator.kernel.access import copy, level_at, progress_at, request_at, waiting_at
from lengthwise.simulator.kernel.records import (
    ASK_KEYS,
    ASK_LEVEL,
    ASK_SELECTION,
    NEVER,
    NO_ANSWER,
    NONE,
    ON_LEVEL,
    ON_TIME,
    SELECTED,
    STALE,
    Record,
)


@compiled
def _before(one: Record, other: Record) -> bool:
    if one.priority != other.priority:
        return bool(one.priority < other.priority)
    if one.round != other.round:
        return bool(one.round < other.round)
    if one.key != other.key:
        return bool(one.key < other.key)
    return bool(one.order < other.order)


@compiled
def _put(engine: Record, place: int, entry: Record) -> None:
    copy(waiting_at(engine, place), entry)
    progress_at(engine, entry.row).heap_index = place


@compiled
def _rise(engine: Record, place: int) -> int:
    """Move an entry up the heap; return its new index."""
    moving = waiting_at(engine, engine.waiting_size - 1)  # never an entry: see `full`
    copy(moving, waiting_at(engine, place))
    while place > 0:
        above = (place - 1) >> 1
        if not _before(moving, waiting_at(engine, above)):
            break
        _put(engine, place, waiting_at(engine, above))
        place = above
    _put(engine, place, moving)
    return place


@compiled
def _sink(engine: Record, place: int) -> None:
    """Move an entry down the heap."""
    moving = waiting_at(engine, engine.waiting_size - 1)
    copy(moving, waiting_at(engine, place))
    while True:
        below = 2 * place + 1
        if below >= engine.n_waiting:
            break
        if below + 1 < engine.n_waiting and _before(waiting_at(engine, below + 1), waiting_at(engine, below)):
            below += 1
        if not _before(waiting_at(engine, below), moving):
            break
        _put(engine, place, waiting_at(engine, below))
        place = below
    _put(engine, place, moving)


@compiled
def full(engine: Record) -> bool:
    """Whether the array cannot take one more entry."""
    return bool(engine.n_waiting + 1 >= engine.waiting_size)


@compiled
def push(engine: Record, row: int) -> None:
    """Add a request: after its equals, or before them if it was preempted."""
    request, entry = request_at(engine, row), waiting_at(engine, engine.n_waiting)
    engine.last_order += 1
    entry.order = -engine.last_order if request.preemptions else engine.last_order
    entry.key, entry.row = policy.key(engine, row), row
    entry.priority, entry.round = request.priority, progress_at(engine, row).round
    engine.n_waiting += 1
    _rise(engine, engine.n_waiting - 1)
    policy.joined(engine, row, engine.last_order)
    engine.blocked_steps = 0
    engine.keyed_at = -np.inf  # keys that go stale with time must be computed again


@compiled
def pop(engine: Record) -> int:
    """Remove and return the head of the queue."""
    row = int(waiting_at(engine, 0).row)
    progress_at(engine, row).heap_index = -1
    engine.n_waiting -= 1
    if engine.rekey == SELECTED:
        engine.keyed_at, engine.selected = -np.inf, NONE
    if engine.n_waiting:
        copy(waiting_at(engine, 0), waiting_at(engine, engine.n_waiting))
        _sink(engine, 0)
    policy.admitted(engine, row)
    return row


@compiled
def rekey_one(engine: Record, row: int) -> None:
    """Reorder a waiting request by its current round and key."""
    place = progress_at(engine, row).heap_index
    waiting_at(engine, place).key = policy.key(engine, row)
    waiting_at(engine, place).round = progress_at(engine, row).round
    _sink(engine, _rise(engine, place))
    if engine.rekey == SELECTED:
        engine.keyed_at = -np.inf


@compiled
def _put_first(engine: Record, row: int) -> None:
    """Make the selected request the head; the one selected before returns to its place."""
    if engine.selected != row and engine.selected != NONE:
        rekey_one(engine, engine.selected)
    engine.selected, engine.keyed_at = row, engine.now
    entry = waiting_at(engine, progress_at(engine, row).heap_index)
    entry.round, entry.key = -1, -np.inf
    _rise(engine, progress_at(engine, row).heap_index)


@compiled
def rekey_all(engine: Record) -> None:
    """Rebuild the heap with current keys."""
    for place in range(engine.n_waiting):
        entry = waiting_at(engine, place)
        entry.key = policy.key(engine, entry.row)
        progress_at(engine, entry.row).heap_index = place
    for place in range(engine.n_waiting // 2 - 1, -1, -1):
        _sink(engine, place)


@compiled
def refresh(engine: Record) -> int:
    """Make sure that keys are current; return 0 or the code of a question."""
    if engine.rekey == NEVER:
        return 0
    if engine.rekey == ON_LEVEL:
        pair = engine.n_waiting * (engine.max_num_seqs + 1) + engine.n_running
        known = level_at(engine, pair & (engine.levels_size - 1))
        if known.pair != pair:
            return ASK_LEVEL
        if known.column != engine.column:
            engine.column = known.column
            rekey_all(engine)
    elif engine.rekey == ON_TIME:
        if engine.now > engine.keyed_at:
            return ASK_KEYS
        if engine.column == STALE:
            engine.column = 0
            rekey_all(engine)
    elif engine.rekey == SELECTED and engine.now > engine.keyed_at:
        if policy.selects(engine):
            _put_first(engine, policy.select(engine))
            return 0
        if engine.answer == NO_ANSWER:
            return ASK_SELECTION
        _put_first(engine, engine.answer)
        engine.answer = NO_ANSWER
    return 0
