"""An engine's life: arrivals, steps, and leaps over steps in which nothing happens."""

from __future__ import annotations

import numpy as np

from lengthwise.simulator.kernel import admission, memory, step, waiting
from lengthwise.simulator.kernel.access import compiled, copy, request_at, row_at, running_at, sample_at, waiting_at
from lengthwise.simulator.kernel.records import (
    ADMITTING,
    ASK_ARRIVAL,
    ASK_PREDICTION,
    BETWEEN,
    COMPUTING,
    DONE,
    GO_ON,
    GOING_ON,
    GROW,
    MAKING_ROOM,
    NO_ANSWER,
    NOBODY,
    ON_TIME,
    PAUSED,
    RESERVATION,
    Record,
)


@compiled
def _arrival(engine: Record) -> float:
    """When the next request comes."""
    if engine.arrived == engine.n_rows:
        return float(np.inf)
    return float(request_at(engine, row_at(engine, engine.arrived).value).arrival)


@compiled
def _prediction(engine: Record) -> float:
    """When the next late prediction comes; it is about somebody who has come before."""
    if engine.stages == 1 or engine.n_predicted == engine.arrived:
        return float(np.inf)
    return float(request_at(engine, row_at(engine, engine.n_predicted).value).arrival + engine.prediction_delay)


@compiled
def _take_in(engine: Record) -> int:
    """Let the next request wait, or refuse it at once if it can never fit."""
    row = row_at(engine, engine.arrived).value
    total = request_at(engine, row).prompt + request_at(engine, row).output
    # The last token is never computed, so holds no slot.
    if total > engine.max_model_len or memory.needed(total - 1, engine.block_size) > engine.n_blocks:
        engine.refused += 1
        engine.settled += 1
    else:
        if waiting.full(engine):
            return GROW
        if engine.asked != row:
            memory.look_up(engine, row)
            if engine.asks_arrivals:
                engine.asked = row
                return ASK_ARRIVAL
        engine.asked = NOBODY
        waiting.push(engine, row)
    engine.arrived += 1
    return GO_ON


@compiled
def _learn(engine: Record) -> int:
    """Let the next late prediction count."""
    row = row_at(engine, engine.n_predicted).value
    if engine.asks_arrivals and engine.asked != row:
        engine.asked = row
        return ASK_PREDICTION
    engine.asked = NOBODY
    if request_at(engine, row).place >= 0:
        waiting.rekey_one(engine, row)
        engine.stuck = 0
    engine.room_asked = NOBODY
    engine.n_predicted += 1
    return GO_ON


@compiled
def _catch_up(engine: Record) -> int:
    """Take in all requests and predictions that have come by now, in the order in which they came."""
    while True:
        arrival, prediction = _arrival(engine), _prediction(engine)
        if min(arrival, prediction) > engine.now:
            return GO_ON
        code = _take_in(engine) if arrival <= prediction else _learn(engine)
        if code:
            return code


@compiled
def _most_steps(engine: Record) -> int:
    """How many decode steps can follow in which nobody finishes, finds memory short or can be admitted."""
    batch = engine.n_running
    if not (engine.jumps and engine.decoding and batch):
        return 0
    # A sequence takes at most one block in as many steps as a block has tokens.
    most = engine.free // batch * engine.block_size
    for position in range(batch):
        who = running_at(engine, position)
        most = min(most, who.left - 1)
        if engine.admission == RESERVATION and batch > 1:
            most = min(most, admission.granted(engine, who.row) - who.computed)
    if engine.n_waiting == 0:
        return most
    if batch < engine.max_num_seqs:
        most = 0 if engine.rekey == ON_TIME else min(most, engine.stuck)
    if engine.preempts:
        if engine.room_asked != waiting_at(engine, 0).row:
            return 0
        if engine.preempt_check_interval:
            most = min(most, engine.preempt_check_interval - engine.room_age)
    return most


@compiled
def _leap(engine: Record, until: float) -> int:
    """Run decode steps in which nothing else happens; how many there were.

    Their durations are added up one by one, so that the outcome is to the last bit that of taking each step.
    """
    batch, most = engine.n_running, _most_steps(engine)
    if most <= 0:
        return 0
    if engine.preempts or engine.looks_up or batch < engine.max_num_seqs:
        until = min(until, _arrival(engine), _prediction(engine))
    context = batch
    for position in range(batch):
        context += running_at(engine, position).computed
    now, done = engine.now, 0
    while done < most and now < until:
        now += step.step_s(engine.cost, 0, 0, 0.0, batch, context, engine.shared_tokens, batch)
        context += batch
        done += 1
    held = engine.n_blocks - engine.free
    for position in range(batch):
        who = running_at(engine, position)
        who.computed += done
        who.tokens += done
        who.left -= done
        memory.grow(engine, position, who.computed)
    took = now - engine.now
    engine.now = now
    engine.busy_s += took
    engine.block_seconds += took * 0.5 * (held + engine.n_blocks - engine.free)
    engine.steps += done
    engine.room_age += done
    engine.stuck = max(0, engine.stuck - done)
    return done


@compiled
def _sample(engine: Record) -> None:
    """Note now and then how full the engine is; when the notes are full, keep every other and note half as often."""
    if engine.now < engine.sample_at:
        return
    if engine.n_samples == engine.samples_size:
        engine.n_samples //= 2
        engine.sample_every *= 2
        for number in range(engine.n_samples):
            copy(sample_at(engine, number), sample_at(engine, 2 * number))
    note = sample_at(engine, engine.n_samples)
    note.time, note.waiting, note.running = engine.now, engine.n_waiting, engine.n_running
    note.blocks = engine.n_blocks - engine.free
    engine.n_samples += 1
    engine.sample_at = engine.now + engine.sample_every


@compiled
def _begin_step(engine: Record) -> None:
    engine.phase = MAKING_ROOM if engine.preempts else GOING_ON
    engine.cursor = engine.want = engine.decisions = engine.yielded = 0
    engine.budget = engine.max_num_batched_tokens
    engine.answer = NO_ANSWER


@compiled
def _between(engine: Record, until: float) -> int:
    """Between two steps: take in who has come, leap as far as possible, and begin the next step."""
    while True:
        if engine.settled >= engine.pause_at:
            return PAUSED
        if engine.n_running == 0 and engine.n_waiting == 0:
            arrival = _arrival(engine)
            if arrival >= until or engine.arrived == engine.n_rows:
                return DONE
            engine.now = max(engine.now, arrival)
        if engine.now >= until:
            return DONE
        code = _catch_up(engine)
        if code:
            return code
        _sample(engine)
        if (engine.n_running or engine.n_waiting) and _leap(engine, until) == 0:
            _begin_step(engine)
            return GO_ON


@compiled
def run(engine: Record, until: float) -> int:
    """Run every step that begins before `until`, and return why it stopped; called again, it goes on from there."""
    while True:
        if engine.pending != NOBODY:
            waiting.push(engine, engine.pending)
            engine.pending = NOBODY
        if engine.phase == BETWEEN:
            code = _between(engine, until)
            if code:
                return code
            continue
        if engine.phase == MAKING_ROOM:
            code = step.make_room(engine)
        elif engine.phase == GOING_ON:
            code = step.schedule_running(engine)
        elif engine.phase == ADMITTING:
            code = GO_ON if engine.yielded else step.admit(engine)
        else:
            code = step.execute(engine)
        if code:
            return code
        engine.phase = BETWEEN if engine.phase == COMPUTING else engine.phase + 1
