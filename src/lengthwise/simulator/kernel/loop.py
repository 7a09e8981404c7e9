"""The event loop: arrivals, steps, and jumps over decode steps in which nothing else happens."""

from __future__ import annotations

import numpy as np

from lengthwise.compiled import inlined as compiled
from lengthwise.simulator.kernel import admission, memory, policy, step, waiting
from lengthwise.simulator.kernel.access import copy, request_at, row_at, running_at, sample_at, waiting_at
from lengthwise.simulator.kernel.records import (
    ADMITTING,
    ASK_ARRIVAL,
    ASK_PREDICTION,
    BETWEEN_STEPS,
    COMPUTING,
    DONE,
    GO_ON,
    GROW,
    NO_ANSWER,
    NONE,
    ON_TIME,
    PAUSED,
    PREEMPTING,
    RESERVATION,
    SCHEDULING,
    Record,
)


@compiled
def _arrival(engine: Record) -> float:
    """Time of the next arrival."""
    if engine.arrived == engine.n_rows:
        return float(np.inf)
    return float(request_at(engine, row_at(engine, engine.arrived).value).arrival)


@compiled
def _prediction(engine: Record) -> float:
    """Time of the next late prediction, for a request that has arrived."""
    if engine.stages == 1 or engine.n_predicted == engine.arrived:
        return float(np.inf)
    return float(request_at(engine, row_at(engine, engine.n_predicted).value).arrival + engine.prediction_delay)


@compiled
def _receive_request(engine: Record) -> int:
    """Queue the next request, or refuse it if it can never fit."""
    row = row_at(engine, engine.arrived).value
    total = request_at(engine, row).prompt + request_at(engine, row).output
    # The last token is never computed and needs no slot.
    if total > engine.max_model_len or memory.needed(total - 1, engine.block_size) > engine.n_blocks:
        engine.refused += 1
        engine.settled += 1
    else:
        if waiting.full(engine):
            return GROW
        if engine.asked_row != row:
            memory.set_cached(engine, row)
            if engine.asks_on_arrival:
                engine.asked_row = row
                return ASK_ARRIVAL
        engine.asked_row = NONE
        policy.arrived(engine, row)
        waiting.push(engine, row)
    engine.arrived += 1
    return GO_ON


@compiled
def _receive_prediction(engine: Record) -> int:
    """Apply the next late prediction."""
    row = row_at(engine, engine.n_predicted).value
    if engine.asks_on_arrival and engine.asked_row != row:
        engine.asked_row = row
        return ASK_PREDICTION
    engine.asked_row = NONE
    policy.set_prediction(engine, row)
    if request_at(engine, row).heap_index >= 0:
        waiting.rekey_one(engine, row)
        engine.blocked_steps = 0
    engine.no_victim_for = NONE
    engine.n_predicted += 1
    return GO_ON


@compiled
def _receive(engine: Record) -> int:
    """Process arrivals and late predictions up to now, in the order of their times."""
    while True:
        arrival, prediction = _arrival(engine), _prediction(engine)
        if min(arrival, prediction) > engine.now:
            return GO_ON
        code = _receive_request(engine) if arrival <= prediction else _receive_prediction(engine)
        if code:
            return code


@compiled
def _max_jump(engine: Record) -> int:
    """Number of decode steps in which no request can finish, run out of memory or be admitted."""
    batch = engine.n_running
    if not (engine.decoding and batch):
        return 0
    # A sequence takes at most one block in as many steps as a block has tokens.
    most = engine.free // batch * engine.block_size
    for position in range(batch):
        running = running_at(engine, position)
        most = min(most, running.left - 1)
        if engine.admission == RESERVATION and batch > 1:
            most = min(most, admission.granted(engine, running.row) - running.computed)
    if engine.n_waiting == 0:
        return most
    if batch < engine.max_num_seqs:
        most = 0 if engine.rekey >= ON_TIME else min(most, engine.blocked_steps)
    if engine.preempts:
        if engine.no_victim_for != waiting_at(engine, 0).row:
            return 0
        if engine.preempt_check_interval:
            most = min(most, engine.preempt_check_interval - engine.steps_since_check)
    return most


@compiled
def _jump(engine: Record, until: float) -> int:
    """Run decode steps in which nothing else happens; return how many.

    Their durations are added up one by one, so that the outcome is to the last bit that of taking each step.
    """
    batch, most = engine.n_running, _max_jump(engine)
    if most <= 0:
        return 0
    until = min(until, engine.sample_at)
    if engine.preempts or engine.reports_cached or batch < engine.max_num_seqs:
        until = min(until, _arrival(engine), _prediction(engine))
    context = batch
    for position in range(batch):
        context += running_at(engine, position).computed
    now, done = engine.now, 0
    while done < most and now < until:
        now += step.step_s(engine.cost, 0, 0, 0.0, batch, context, engine.shared_tokens, batch)
        context += batch
        done += 1
    used_before = engine.n_blocks - engine.free
    for position in range(batch):
        running = running_at(engine, position)
        running.computed += done
        running.tokens += done
        running.left -= done
        memory.grow(engine, position, running.computed)
    took = now - engine.now
    engine.now = now
    engine.busy_s += took
    engine.block_seconds += took * 0.5 * (used_before + engine.n_blocks - engine.free)
    engine.steps += done
    engine.generated += done * batch
    engine.steps_since_check += done
    engine.blocked_steps = max(0, engine.blocked_steps - done)
    return done


@compiled
def _sample(engine: Record) -> None:
    """Record how full the engine is; when the samples are full, keep every other one and sample half as often."""
    if engine.now < engine.sample_at:
        return
    if engine.n_samples == engine.samples_size:
        engine.n_samples //= 2
        engine.sample_every *= 2
        for number in range(engine.n_samples):
            copy(sample_at(engine, number), sample_at(engine, 2 * number))
    sample = sample_at(engine, engine.n_samples)
    sample.time, sample.waiting, sample.running = engine.now, engine.n_waiting, engine.n_running
    sample.blocks = engine.n_blocks - engine.free
    engine.n_samples += 1
    engine.sample_at = engine.now + engine.sample_every


@compiled
def _begin_step(engine: Record) -> None:
    engine.phase = PREEMPTING if engine.preempts else SCHEDULING
    engine.cursor = engine.want = engine.decisions = engine.preempted = 0
    engine.budget = engine.max_num_batched_tokens
    engine.answer = NO_ANSWER


@compiled
def _between(engine: Record, until: float) -> int:
    """Between steps: process arrivals, jump as far as possible, and begin the next step."""
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
        code = _receive(engine)
        if code:
            return code
        _sample(engine)
        if (engine.n_running or engine.n_waiting) and _jump(engine, until) == 0:
            _begin_step(engine)
            return GO_ON


@compiled
def run(engine: Record, until: float) -> int:
    """Run every step that begins before `until`, and return why it stopped; called again, it continues."""
    while True:
        if engine.pending != NONE:
            waiting.push(engine, engine.pending)
            engine.pending = NONE
        if engine.phase == BETWEEN_STEPS:
            code = _between(engine, until)
            if code:
                return code
            continue
        if engine.phase == PREEMPTING:
            code = step.preempt_for_head(engine)
        elif engine.phase == SCHEDULING:
            code = step.schedule_running(engine)
        elif engine.phase == ADMITTING:
            code = GO_ON if engine.preempted else step.admit(engine)
        else:
            code = step.execute(engine)
        if code:
            return code
        engine.phase = BETWEEN_STEPS if engine.phase == COMPUTING else engine.phase + 1
