"""The cost of sending a job to each engine, compiled: one pass over the fleet's numbers. See `Lengthwise`."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.routers.kernel.compiling import compiled, inlined

TERMS: Final = ("first_token", "urgency", "decode", "delay", "eviction", "overflow")

HELD, LOST, MISSED = 2, 3, 4  # columns of the prefix index's engines
_DOUBTS: Final = 10.0  # evictions to be seen before an engine's own share of regretted ones counts
_SURE: Final = 36.0  # variances: beyond, no overflow is to be feared
_PLACES: Final = 1.0 / 7.0  # of the urgency of prompts, that of waiting for a place: usually it counts twice in all
_FADES_S: Final = 30.0  # foreign load that no scrape confirms: its e-fold

# Columns of `loads`, in numbers: what was compiled from this file is good as long as this file is the same.
LIVE, RUNNING, ENDS, WAITING_TOKENS = 1, 2, 3, 4
CLOCK, BUSY_UNTIL, PROMPT_S, CONTEXT = 5, 7, 9, 10
PRIVATE, SPREAD, FOREIGN, SCRAPED_AT = 11, 12, 13, 14
PREFILL_TOKEN_S, PREFILL_PAIR_S, STEP_S, SEQUENCE_S = 16, 17, 18, 19
KV_TOKEN_S, MAX_NUM_SEQS, KV_TOKENS, BLOCK_TOKENS = 20, 21, 22, 23


@inlined
def terms_of(
    loads: NDArray[np.float64],
    index: NDArray[np.int64],
    slot: int,
    depth: int,
    now: float,
    prompt: float,
    tokens: float,
    spread: float,
    usual: float,
    urgency: float,
) -> tuple[float, float, float, float, float, float]:
    """The six terms for one engine, in seconds.

    In sums, not means: then nothing has to be divided where all can run at once, which is nearly always.
    """
    prefill_s, live, running = loads[slot, PREFILL_TOKEN_S], loads[slot, LIVE], loads[slot, RUNNING]
    sequence_s, kv_token_s = loads[slot, SEQUENCE_S], loads[slot, KV_TOKEN_S]
    uncached = max(1.0, prompt - depth * loads[slot, BLOCK_TOKENS])
    own_s = uncached * (prefill_s + loads[slot, PREFILL_PAIR_S] * (prompt + prompt - uncached))
    backlog = loads[slot, BUSY_UNTIL] - now
    # What those there still have to decode, all together.
    clock, left = loads[slot, CLOCK], 0.0
    if live > 0.0:
        if running > 0.0 and backlog < 0.0:
            contexts = loads[slot, CONTEXT] if running == live else loads[slot, CONTEXT] * running / live
            clock -= backlog / (loads[slot, STEP_S] + sequence_s * running + kv_token_s * contexts)
        left = max(live, loads[slot, ENDS] - running * clock + loads[slot, WAITING_TOKENS])
    answers = 0.5 * (left + tokens)
    contexts = loads[slot, CONTEXT] + prompt + tokens
    private = loads[slot, PRIVATE] + uncached + tokens - answers
    memory, places = loads[slot, KV_TOKENS], loads[slot, MAX_NUM_SEQS]
    # How many are there, how many of them run, and how many could.
    jobs, share = live, 1.0
    if loads[slot, FOREIGN] > 0.0:
        foreign = loads[slot, FOREIGN] * math.exp(-max(0.0, now - loads[slot, SCRAPED_AT]) / _FADES_S)
        jobs += foreign
        left += foreign * usual
        share = (jobs + 1.0) / (live + 1.0)
    batch, others, met = jobs + 1.0, jobs, min(left, tokens * jobs)
    wait = 0.0
    if jobs > 0.0 and (batch > places or batch * private > memory * (live + 1.0)):
        places = min(batch, max(1.0, min(places, memory * (live + 1.0) / private)))
        over, batch, others = batch - places, places, min(jobs, places)
        share, met = places / (live + 1.0), met * others / jobs
        step_s = loads[slot, STEP_S] + sequence_s * batch + kv_token_s * contexts * share
        wait = over * (left / jobs * step_s / places + loads[slot, PROMPT_S] / max(1.0, live))
    step_s = loads[slot, STEP_S] + sequence_s * batch + kv_token_s * contexts * share
    prompts = max(0.0, backlog)
    first_token = prompts + own_s + wait + step_s
    delay = others * own_s + met * (sequence_s + kv_token_s * (prompt + 0.5 * tokens))
    eviction = overflow = 0.0
    excess = index[slot, HELD] * loads[slot, BLOCK_TOKENS] + answers + uncached - memory
    if excess > 0.0:
        eviction = min(excess, uncached) * prefill_s * index[slot, MISSED] / (index[slot, LOST] + _DOUBTS)
    room, variance = memory - private * share, 1.0 + (loads[slot, SPREAD] + spread) * share
    if room * room < _SURE * variance:
        risk = 0.5 * math.erfc(room / math.sqrt(2.0 * variance))
        context = contexts / (live + 1.0)
        overflow = risk * context * (prefill_s + loads[slot, PREFILL_PAIR_S] * context) * (1.0 + others)
    return first_token, (urgency - 1.0) * (prompts + _PLACES * wait), tokens * step_s, delay, eviction, overflow


@inlined
def at_least(
    loads: NDArray[np.float64], slot: int, depth: int, now: float, prompt: float, tokens: float, urgency: float
) -> float:
    """What the cost cannot be below, quickly: all but what has to be divided. 0 where not all could run at once."""
    live = loads[slot, LIVE]
    uncached = max(1.0, prompt - depth * loads[slot, BLOCK_TOKENS])
    crowded = (
        live + 1.0 > loads[slot, MAX_NUM_SEQS] or loads[slot, PRIVATE] + uncached + tokens > loads[slot, KV_TOKENS]
    )
    if crowded or loads[slot, FOREIGN] > 0.0:
        return 0.0
    step_s = loads[slot, STEP_S] + loads[slot, SEQUENCE_S] * (live + 1.0)
    step_s += loads[slot, KV_TOKEN_S] * (loads[slot, CONTEXT] + prompt + tokens)
    backlog = max(0.0, loads[slot, BUSY_UNTIL] - now)
    own_s = uncached * (loads[slot, PREFILL_TOKEN_S] + loads[slot, PREFILL_PAIR_S] * (prompt + prompt - uncached))
    return urgency * backlog + (1.0 + live) * own_s + (1.0 + tokens) * step_s


@compiled
def cheapest(
    loads: NDArray[np.float64],
    index: NDArray[np.int64],
    depths: NDArray[np.int64],
    slots: NDArray[np.int64],
    now: float,
    prompt: float,
    tokens: float,
    spread: float,
    usual: float,
    urgency: float,
    terms: NDArray[np.float64],
) -> int:
    """The slot of the least cost, the first of equals; its terms are written to `terms`."""
    best, least = slots[0], math.inf
    for slot in slots:
        if at_least(loads, slot, depths[slot], now, prompt, tokens, urgency) >= least:
            continue
        each = terms_of(loads, index, slot, depths[slot], now, prompt, tokens, spread, usual, urgency)
        cost = each[0] + each[1] + each[2] + each[3] + each[4] + each[5]
        if cost < least:
            best, least = slot, cost
    each = terms_of(loads, index, best, depths[best], now, prompt, tokens, spread, usual, urgency)
    for number in range(6):
        terms[number] = each[number]
    return int(best)
