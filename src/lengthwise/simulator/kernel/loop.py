"""The event loop, and one step in vLLM's order: running requests are scheduled, waiting ones are admitted, all compute.

Between steps requests arrive, and decode steps in which nothing else happens are jumped over. A function that returns a
code returns 0, or the code of a question for the host; the engine's record holds where it continues.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lengthwise.compiled import inlined as compiled
from lengthwise.compiled import inlined_copies
from lengthwise.policies.queue import observe_rate
from lengthwise.simulator import costs
from lengthwise.simulator.kernel import admission, memory, policy, ranks, waiting
from lengthwise.simulator.kernel.access import (
    copy,
    engine_at,
    event_at,
    free_table_at,
    growth_at,
    progress_at,
    request_at,
    row_at,
    running_at,
    sample_at,
    waiting_at,
)
from lengthwise.simulator.kernel.records import (
    ADMITTING,
    ASK_ARRIVAL,
    ASK_HEAD_VICTIM,
    ASK_KEY,
    ASK_PREDICTION,
    ASK_VICTIM,
    BETWEEN_STEPS,
    COMPUTING,
    DONE,
    FULL,
    GO_ON,
    GROW,
    INDEFINITELY,
    NO_ANSWER,
    NONE,
    ON_PROGRESS,
    ON_TIME,
    PAUSED,
    PREEMPTING,
    RESERVATION,
    SCHEDULING,
    Record,
)

step_s, chunk_cost = compiled(costs.step_s), compiled(costs.chunk_cost)
(_observe_rate,) = inlined_copies(observe_rate)


@compiled
def add_event(engine: Record, event: int) -> None:
    """Record an admission or a finish."""
    event_at(engine, engine.n_events).value = event
    engine.n_events += 1


@compiled
def remove_running(engine: Record, position: int) -> None:
    """Remove a running request and free its memory."""
    running = running_at(engine, position)
    memory.give_back(engine, position)
    admission.release(engine, running.row)
    engine.n_running -= 1
    free_table_at(engine, engine.n_running).value = running.table
    for at in range(position, engine.n_running):
        copy(running_at(engine, at), running_at(engine, at + 1))
    engine.no_victim_for = NONE


@compiled
def preempt(engine: Record, position: int) -> int:
    """Preempt a running request; its tokens so far are computed again as part of its prompt."""
    running = running_at(engine, position)
    row = running.row
    request = request_at(engine, row)
    request.generated = running.tokens - request.prompt
    request.preemptions += 1
    progress = progress_at(engine, row)
    progress.max_computed = max(progress.max_computed, running.computed)
    engine.budget += running.scheduled
    engine.decisions += 1
    engine.decoding = 0
    remove_running(engine, position)
    memory.set_cached(engine, row)
    if engine.rekey == ON_PROGRESS:
        engine.asked_row = engine.pending = row
        return ASK_KEY
    waiting.push(engine, row)
    return 0


@compiled
def preempt_for_head(engine: Record) -> int:
    """Ask for a victim while the head of the queue cannot be admitted and the policy preempts."""
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
            if admission.blocked_steps(engine, row, tokens, cached, idle) == 0:
                return 0
        if engine.no_victim_for == row and (
            engine.preempt_check_interval == 0 or engine.steps_since_check < engine.preempt_check_interval
        ):
            return 0
        if policy.finds_victims(engine):
            position = ranks.head_victim(engine, row)
        elif engine.answer == NO_ANSWER:
            engine.asked_row = row
            return ASK_HEAD_VICTIM
        else:
            position, engine.answer = engine.answer, NO_ANSWER
        if position == NONE:
            engine.no_victim_for, engine.steps_since_check = row, 0
            return 0
        code = preempt(engine, position)
        if code:
            return code
    return 0


@compiled
def schedule_running(engine: Record) -> int:
    """Schedule the tokens of running requests; where memory runs out, victims are preempted."""
    while engine.cursor < engine.n_running and engine.budget > 0:
        if waiting.full(engine):
            return GROW
        running = running_at(engine, engine.cursor)
        if engine.want == 0:
            engine.want = min(running.tokens - running.computed, engine.budget)
        tokens = running.computed + engine.want
        if engine.n_running > 1 and admission.exceeds_reservation(engine, engine.cursor, tokens):
            victim = engine.cursor
        elif memory.grow(engine, engine.cursor, tokens):
            running.scheduled, engine.want = engine.want, 0
            engine.budget -= running.scheduled
            engine.cursor += 1
            continue
        elif engine.evicts_last:
            victim = engine.n_running - 1
        elif policy.finds_victims(engine):
            victim = ranks.victim(engine)
        elif engine.answer == NO_ANSWER:
            return ASK_VICTIM
        else:
            victim, engine.answer = engine.answer, NO_ANSWER
        if victim == engine.cursor:
            engine.want = 0
        elif victim < engine.cursor:
            engine.cursor -= 1
        engine.preempted += 1
        code = preempt(engine, victim)
        if code:
            return code
    return 0


@compiled
def admit(engine: Record) -> int:
    """Admit in the policy's order until budget, slots or memory run out; the head is never overtaken."""
    if engine.blocked_steps and engine.decoding and engine.rekey < ON_TIME:
        return 0
    while engine.budget > 0 and engine.n_running < engine.max_num_seqs and engine.n_waiting:
        code = waiting.refresh(engine)
        if code:
            return code
        row = waiting_at(engine, 0).row
        request = request_at(engine, row)
        tokens = request.prompt + request.generated
        cached, idle = memory.cached_blocks(engine, row, tokens)
        engine.blocked_steps = admission.blocked_steps(engine, row, tokens, cached, idle)
        if engine.blocked_steps:
            return 0
        if not engine.chunked_prefill and tokens - memory.ready(engine, row, cached) > engine.budget:
            return 0  # as in vLLM: a prompt that is not split waits for a step that holds all of it
        if engine.n_events == engine.events_size:
            return GROW
        waiting.pop(engine)
        start(engine, row, tokens, cached)
    return 0


@compiled
def start(engine: Record, row: int, tokens: int, cached: int) -> None:
    """Start a request with as many tokens as the budget allows."""
    request = request_at(engine, row)
    position = engine.n_running
    running = running_at(engine, position)
    running.row, running.tokens, running.left = row, tokens, request.output - request.generated
    running.computed = running.blocks = running.hashed = 0
    running.table = free_table_at(engine, position).value
    engine.n_running += 1
    memory.adopt(engine, position, cached)
    running.computed, request.transferred_kv_tokens = memory.ready(engine, row, cached), 0
    running.scheduled = min(tokens - running.computed, engine.budget)
    memory.grow(engine, position, running.computed + running.scheduled)
    admission.reserve(engine, row)
    engine.budget -= running.scheduled
    engine.decisions += 1
    engine.no_victim_for = NONE
    progress = progress_at(engine, row)
    progress.cached = running.computed
    request.recomputed += max(0, progress.max_computed - running.computed)
    if np.isnan(request.started):
        request.started = engine.now
        request.initial_cached = running.computed
    add_event(engine, row)


@compiled
def execute(engine: Record) -> int:
    """Compute the scheduled tokens; a request with all of its tokens computed generates the next one."""
    if engine.n_events + engine.n_running > engine.events_size:
        return GROW
    prefill = prefill_context = decodes = context = batch = 0
    chunks = 0.0
    engine.decoding = 1
    for position in range(engine.n_running):
        running = running_at(engine, position)
        if running.scheduled == 0:
            engine.decoding = 0
            continue
        end = running.computed + running.scheduled
        batch += 1
        if running.scheduled == 1 and running.computed > 0:
            decodes += 1
            context += end
        else:
            prefill += running.scheduled
            prefill_context += end
            chunks += chunk_cost(engine.cost, running.computed, end)
        running.computed = end
    took = (
        step_s(engine.cost, prefill, prefill_context, chunks, decodes, context, engine.shared_tokens, batch)
        + engine.decision_s * engine.decisions
    )
    engine.now += took
    engine.busy_s += took
    engine.block_seconds += took * (engine.n_blocks - engine.free)
    engine.steps += 1
    engine.steps_since_check += 1
    engine.blocked_steps = max(0, engine.blocked_steps - 1)
    position, settled = 0, engine.settled
    while position < engine.n_running:
        running = running_at(engine, position)
        scheduled, running.scheduled = running.scheduled, 0
        if scheduled and running.computed == running.tokens:
            request = request_at(engine, running.row)
            running.tokens += 1
            running.left -= 1
            engine.generated += 1
            if np.isnan(request.first_token):
                request.first_token = engine.now
            if running.left == 0:
                finish(engine, position)
                continue
        else:
            engine.decoding = 0
        position += 1
    if engine.settled > settled:
        _observe_rate(engine.rate, engine.now, engine.generated, engine.n_waiting > 0)
    return 0


@compiled
def finish(engine: Record, position: int) -> None:
    """Finish a request that has its last token."""
    row = running_at(engine, position).row
    request = request_at(engine, row)
    request.finish = engine.now
    request.generated = request.output
    remove_running(engine, position)
    add_event(engine, -1 - row)
    policy.finished(engine, row)
    engine.settled += 1
    engine.blocked_steps = 0


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
    # The last token is never computed and takes no memory.
    if total > engine.max_model_len or memory.blocks_for(total - 1, engine.block_size) > engine.n_blocks:
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
    if progress_at(engine, row).heap_index >= 0:
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
def _batch_changes_at(engine: Record) -> float:
    """Time of the next arrival or late prediction, if it can change the batch while decode steps are jumped over."""
    if engine.preempts or engine.reports_cached or engine.n_running < engine.max_num_seqs:
        return min(_arrival(engine), _prediction(engine))
    return float(np.inf)


@compiled
def _context(engine: Record) -> int:
    """Context tokens of the next step, if every running request computes one token."""
    context = engine.n_running
    for position in range(engine.n_running):
        context += running_at(engine, position).computed
    return int(context)


@compiled
def _count_growth(engine: Record, steps: int) -> None:
    """Count, for each of the next `steps`, the running requests that take a block of memory in it.

    After as many steps as a block has tokens it repeats.
    """
    steps = min(steps, engine.block_size)
    for step in range(steps):
        growth_at(engine, step).value = 0
    for position in range(engine.n_running):
        in_last_block = running_at(engine, position).computed % engine.block_size
        step = engine.block_size - in_last_block if in_last_block else 0
        if step < steps:
            growth_at(engine, step).value += 1


@compiled
def _jump(engine: Record, until: float) -> int:
    """Run decode steps in which nothing else happens; return how many.

    Times and sums are added up one by one, so that the outcome is to the last bit that of taking each.
    """
    batch, most = engine.n_running, _max_jump(engine)
    if most <= 0:
        return 0
    until = min(until, engine.sample_at, _batch_changes_at(engine))
    _count_growth(engine, most)
    now, done, context, used = engine.now, 0, _context(engine), engine.n_blocks - engine.free
    while done < most and now < until:
        took = step_s(engine.cost, 0, 0, 0.0, batch, context, engine.shared_tokens, batch)
        used += growth_at(engine, done % engine.block_size).value
        now += took
        engine.busy_s += took
        engine.block_seconds += took * used
        context += batch
        done += 1
    for position in range(batch):
        running = running_at(engine, position)
        running.computed += done
        running.tokens += done
        running.left -= done
        memory.grow(engine, position, running.computed)
    engine.now = now
    engine.steps += done
    engine.generated += done * batch
    engine.steps_since_check += done
    engine.blocked_steps = max(0, engine.blocked_steps - done)
    return done


@compiled
def next_event_s_of(engine: Record) -> float:
    """Return a time before which the engine admits and finishes no request, unless one more is sent to it.

    Called between steps: the end of the decode steps that can be jumped over; inf for an engine without requests.
    """
    if engine.n_reported < engine.n_events:  # the step that has just ended finished a request after the last report
        return float(request_at(engine, -1 - event_at(engine, engine.n_reported).value).finish)
    if engine.n_running == 0 and engine.n_waiting == 0:
        return float(max(engine.now, _arrival(engine)))  # a request may have arrived within the last step
    batch, context = engine.n_running, _context(engine)
    now, until = engine.now, _batch_changes_at(engine)
    for _ in range(_max_jump(engine)):
        if now >= until:
            break
        now += step_s(engine.cost, 0, 0, 0.0, batch, context, engine.shared_tokens, batch)
        context += batch
    return float(now)


@compiled
def report(engine: Record, number: int, until: float, found: NDArray[np.void], count: int) -> int:
    """Write events up to a time that were not reported before behind the first `count` of `found`.

    Return how many there are then; the length of `found` where they may not be all.
    """
    while engine.n_reported < engine.n_events and count < len(found):
        value = event_at(engine, engine.n_reported).value
        finished = value < 0
        row = -1 - value if finished else value
        request = request_at(engine, row)
        if finished and request.finish > until:
            break
        event = found[count]
        event.engine, event.row, event.finished = number, row, finished
        event.at_s = request.finish if finished else request.started
        event.generated, event.ttft_s = request.generated, request.first_token - request.arrival
        engine.n_reported += 1
        count += 1
    return count


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
    """Between steps: process arrivals, jump as far as possible, and begin the next"""
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
            code = preempt_for_head(engine)
        elif engine.phase == SCHEDULING:
            code = schedule_running(engine)
        elif engine.phase == ADMITTING:
            code = GO_ON if engine.preempted else admit(engine)
        else:
            code = execute(engine)
        if code:
            return code
        engine.phase = BETWEEN_STEPS if engine.phase == COMPUTING else engine.phase + 1


@compiled
def run_due(
    engines: NDArray[np.int64],
    next_event_s: NDArray[np.float64],
    first: int,
    last: int,
    until: float,
    found: NDArray[np.void],
) -> tuple[int, int, int]:
    """Run the engines from `first` up to `last` that may have events up to `until`; write those to `found`.

    `engines`: addresses. Return the code of the last engine that ran, its number, and how many events were written.
    Unless the code is DONE, all have run, the caller continues with that engine.
    """
    count = 0
    for number in range(first, last):
        if next_event_s[number] <= until:
            engine = engine_at(engines[number])
            engine.pause_at = INDEFINITELY
            code = run(engine, until)
            if code != DONE:
                return code, number, count
            count = report(engine, number, until, found, count)
            if count == len(found):
                return FULL, number, count
            next_event_s[number] = next_event_s_of(engine)
    return DONE, last, count
