"""One step of an engine in vLLM's order: who runs goes first, then who waits is admitted, then all compute.

Each function returns 0, or the question that must be answered before it can go on; where it stands is in the engine.
"""

from __future__ import annotations

import numpy as np

from lengthwise.simulator.kernel import admission, memory, steptime, waiting
from lengthwise.simulator.kernel.access import (
    compiled,
    copy,
    event_at,
    free_table_at,
    request_at,
    running_at,
    waiting_at,
)
from lengthwise.simulator.kernel.records import (
    ASK_KEY,
    ASK_ROOM,
    ASK_VICTIM,
    GROW,
    NO_ANSWER,
    NOBODY,
    ON_PROGRESS,
    ON_TIME,
    Record,
)

step_s = compiled(steptime.step_s)
chunk_cost = compiled(steptime.chunk_cost)


@compiled
def note(engine: Record, event: int) -> None:
    """Write down who was admitted or finished."""
    event_at(engine, engine.n_events).value = event
    engine.n_events += 1


@compiled
def leave(engine: Record, position: int) -> None:
    """Take one out of those who run, its memory given back; the order of the others stays."""
    who = running_at(engine, position)
    memory.give_back(engine, position)
    admission.release(engine, who.row)
    engine.n_running -= 1
    free_table_at(engine, engine.n_running).value = who.table
    for at in range(position, engine.n_running):
        copy(running_at(engine, at), running_at(engine, at + 1))
    engine.room_asked = NOBODY


@compiled
def preempt(engine: Record, position: int) -> int:
    """Take the memory of one who runs; what it generated is kept, and computed again as part of its prompt."""
    who = running_at(engine, position)
    row = who.row
    request = request_at(engine, row)
    request.generated = who.tokens - request.prompt
    request.preemptions += 1
    request.reached = max(request.reached, who.computed)
    engine.budget += who.scheduled
    engine.decisions += 1
    engine.decoding = 0
    leave(engine, position)
    memory.look_up(engine, row)
    if engine.rekey == ON_PROGRESS:
        engine.asked = engine.pending = row
        return ASK_KEY
    waiting.push(engine, row)
    return 0


@compiled
def make_room(engine: Record) -> int:
    """Ask who yields to the first in line, where it cannot be admitted and the policy preempts."""
    while engine.n_waiting and engine.n_running:
        if waiting.full(engine):
            return GROW
        code = waiting.refresh(engine)
        if code:
            return code
        row = waiting_at(engine, 0).row
        if engine.n_running < engine.max_num_seqs:
            tokens = request_at(engine, row).prompt + request_at(engine, row).generated
            cached, idle = memory.cached_blocks(engine, row, tokens)
            if admission.steps_stuck(engine, row, tokens, cached, idle) == 0:
                return 0
        if engine.room_asked == row and (
            engine.preempt_check_interval == 0 or engine.room_age < engine.preempt_check_interval
        ):
            return 0
        if engine.answer == NO_ANSWER:
            engine.asked = row
            return ASK_ROOM
        position, engine.answer = engine.answer, NO_ANSWER
        if position == NOBODY:
            engine.room_asked, engine.room_age = row, 0
            return 0
        code = preempt(engine, position)
        if code:
            return code
    return 0


@compiled
def schedule_running(engine: Record) -> int:
    """Give each who runs its tokens; where memory runs out, victims yield."""
    while engine.cursor < engine.n_running and engine.budget > 0:
        if waiting.full(engine):
            return GROW
        who = running_at(engine, engine.cursor)
        if engine.want == 0:
            engine.want = min(who.tokens - who.computed, engine.budget)
        tokens = who.computed + engine.want
        if engine.n_running > 1 and admission.overdrawn(engine, engine.cursor, tokens):
            victim = engine.cursor
        elif memory.grow(engine, engine.cursor, tokens):
            who.scheduled, engine.want = engine.want, 0
            engine.budget -= who.scheduled
            engine.cursor += 1
            continue
        elif engine.answer == NO_ANSWER:
            return ASK_VICTIM
        else:
            victim, engine.answer = engine.answer, NO_ANSWER
        if victim == engine.cursor:
            engine.want = 0
        elif victim < engine.cursor:
            engine.cursor -= 1
        engine.yielded += 1
        code = preempt(engine, victim)
        if code:
            return code
    return 0


@compiled
def admit(engine: Record) -> int:
    """Admit in the policy's order until budget, slots or memory end; nobody overtakes who does not fit."""
    if engine.stuck and engine.decoding and engine.rekey != ON_TIME:
        return 0
    while engine.budget > 0 and engine.n_running < engine.max_num_seqs and engine.n_waiting:
        code = waiting.refresh(engine)
        if code:
            return code
        row = waiting_at(engine, 0).row
        request = request_at(engine, row)
        tokens = request.prompt + request.generated
        cached, idle = memory.cached_blocks(engine, row, tokens)
        engine.stuck = admission.steps_stuck(engine, row, tokens, cached, idle)
        if engine.stuck:
            return 0
        if not engine.chunks and tokens - memory.ready(engine, row, cached) > engine.budget:
            return 0  # as in vLLM: what is not computed in chunks waits for a step that holds it whole
        if engine.n_events == engine.events_size:
            return GROW
        waiting.pop(engine)
        begin(engine, row, tokens, cached)
    return 0


@compiled
def begin(engine: Record, row: int, tokens: int, cached: int) -> None:
    """Let a request run, as far as the budget reaches in this step."""
    request = request_at(engine, row)
    position = engine.n_running
    who = running_at(engine, position)
    who.row, who.tokens, who.left = row, tokens, request.output - request.generated
    who.computed = who.blocks = who.hashed = 0
    who.table = free_table_at(engine, position).value
    engine.n_running += 1
    memory.adopt(engine, position, cached)
    who.computed, request.brought = memory.ready(engine, row, cached), 0
    who.scheduled = min(tokens - who.computed, engine.budget)
    memory.grow(engine, position, who.computed + who.scheduled)
    admission.reserve(engine, row)
    engine.budget -= who.scheduled
    engine.decisions += 1
    engine.room_asked = NOBODY
    request.cached = who.computed
    request.recomputed += max(0, request.reached - who.computed)
    if np.isnan(request.started):
        request.started = engine.now
        request.found = who.computed
    note(engine, row)


@compiled
def execute(engine: Record) -> int:
    """Compute what is scheduled; whoever has caught up with its own tokens gets a new one."""
    if engine.n_events + engine.n_running > engine.events_size:
        return GROW
    prefill = prefill_context = decodes = context = batch = 0
    chunks = 0.0
    engine.decoding = 1
    for position in range(engine.n_running):
        who = running_at(engine, position)
        if who.scheduled == 0:
            engine.decoding = 0
            continue
        end = who.computed + who.scheduled
        batch += 1
        if who.scheduled == 1 and who.computed > 0:
            decodes += 1
            context += end
        else:
            prefill += who.scheduled
            prefill_context += end
            chunks += chunk_cost(engine.cost, who.computed, end)
        who.computed = end
    took = (
        step_s(engine.cost, prefill, prefill_context, chunks, decodes, context, engine.shared_tokens, batch)
        + engine.decision_s * engine.decisions
    )
    engine.now += took
    engine.busy_s += took
    engine.block_seconds += took * (engine.n_blocks - engine.free)
    engine.steps += 1
    engine.room_age += 1
    engine.stuck = max(0, engine.stuck - 1)
    position = 0
    while position < engine.n_running:
        who = running_at(engine, position)
        scheduled, who.scheduled = who.scheduled, 0
        if scheduled and who.computed == who.tokens:
            request = request_at(engine, who.row)
            who.tokens += 1
            who.left -= 1
            if np.isnan(request.first_token):
                request.first_token = engine.now
            if who.left == 0:
                finish(engine, position)
                continue
        else:
            engine.decoding = 0
        position += 1
    return 0


@compiled
def finish(engine: Record, position: int) -> None:
    """Let one go that has its last token."""
    row = running_at(engine, position).row
    request = request_at(engine, row)
    request.finish = engine.now
    request.generated = request.output
    leave(engine, position)
    note(engine, -1 - row)
    engine.settled += 1
    engine.stuck = 0
