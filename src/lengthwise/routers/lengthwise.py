"""The `lengthwise` router: one cost in seconds, compiled into one pass over the fleet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.compiled import compiled, inlined
from lengthwise.policies import Job, parameter
from lengthwise.routers.base import Choice, EngineNumbers
from lengthwise.routers.ledger import remaining_and_variance
from lengthwise.routers.tracking import PrefixRouter

TERMS: Final = ("first_token", "urgency", "decode", "delay", "eviction", "overflow")

HELD, LOST, MISSED = 2, 3, 4  # columns of the prefix index's `engines`
_EVICTION_PRIOR: Final = 10.0  # evictions assumed harmless before an engine's own share counts
_NO_OVERFLOW: Final = 36.0  # squared standard deviations of free memory beyond which the risk is taken as 0
_SLOT_URGENCY: Final = 1.0 / 7.0  # urgency of the wait for a slot, relative to that of prompts
_FOREIGN_DECAY_S: Final = 30.0  # e-folding time of foreign load that no scrape confirms

# Columns of a ledger's `loads`, repeated because the cache of compiled code does not notice changes of constants.
LIVE, RUNNING, ENDS, WAITING_TOKENS = 1, 2, 3, 4
CLOCK, BUSY_UNTIL, PROMPT_S, CONTEXT = 5, 7, 9, 10
PRIVATE, SPREAD, FOREIGN, SCRAPED_AT = 11, 12, 13, 14
PREFILL_TOKEN_S, PREFILL_PAIR_S, STEP_S, SEQUENCE_S = 16, 17, 18, 19
KV_TOKEN_S, MAX_NUM_SEQS, KV_TOKENS, BLOCK_TOKENS = 20, 21, 22, 23


@inlined
def terms_of(
    loads: NDArray[np.float64],
    index: NDArray[np.int64],
    number: int,
    depth: int,
    now: float,
    prompt: float,
    tokens: float,
    spread: float,
    mean_answer: float,
    urgency: float,
) -> tuple[float, float, float, float, float, float]:
    """Return the six terms for one engine, in seconds.

    Computed from sums, not means, so that the usual case (every job runs at once) needs no division.
    """
    prefill_s, live, running = loads[number, PREFILL_TOKEN_S], loads[number, LIVE], loads[number, RUNNING]
    sequence_s, kv_token_s = loads[number, SEQUENCE_S], loads[number, KV_TOKEN_S]
    uncached = max(1.0, prompt - depth * loads[number, BLOCK_TOKENS])
    own_s = uncached * (prefill_s + loads[number, PREFILL_PAIR_S] * (prompt + prompt - uncached))
    backlog = loads[number, BUSY_UNTIL] - now
    # Tokens that the jobs there have left to decode, in total.
    clock, left = loads[number, CLOCK], 0.0
    if live > 0.0:
        if running > 0.0 and backlog < 0.0:
            contexts = loads[number, CONTEXT] if running == live else loads[number, CONTEXT] * running / live
            clock -= backlog / (loads[number, STEP_S] + sequence_s * running + kv_token_s * contexts)
        left = max(live, loads[number, ENDS] - running * clock + loads[number, WAITING_TOKENS])
    answers = 0.5 * (left + tokens)
    contexts = loads[number, CONTEXT] + prompt + tokens
    private = loads[number, PRIVATE] + uncached + tokens - answers
    memory, places = loads[number, KV_TOKENS], loads[number, MAX_NUM_SEQS]
    # Jobs there, the share of them that runs, and how many could run.
    jobs, share = live, 1.0
    if loads[number, FOREIGN] > 0.0:
        foreign = loads[number, FOREIGN] * math.exp(-max(0.0, now - loads[number, SCRAPED_AT]) / _FOREIGN_DECAY_S)
        jobs += foreign
        left += foreign * mean_answer
        share = (jobs + 1.0) / (live + 1.0)
    batch, others, met = jobs + 1.0, jobs, min(left, tokens * jobs)
    wait = 0.0
    if jobs > 0.0 and (batch > places or batch * private > memory * (live + 1.0)):
        places = min(batch, max(1.0, min(places, memory * (live + 1.0) / private)))
        over, batch, others = batch - places, places, min(jobs, places)
        share, met = places / (live + 1.0), met * others / jobs
        step_s = loads[number, STEP_S] + sequence_s * batch + kv_token_s * contexts * share
        wait = over * (left / jobs * step_s / places + loads[number, PROMPT_S] / max(1.0, live))
    step_s = loads[number, STEP_S] + sequence_s * batch + kv_token_s * contexts * share
    prompts = max(0.0, backlog)
    first_token = prompts + own_s + wait + step_s
    delay = others * own_s + met * (sequence_s + kv_token_s * (prompt + 0.5 * tokens))
    eviction = overflow = 0.0
    excess = index[number, HELD] * loads[number, BLOCK_TOKENS] + answers + uncached - memory
    if excess > 0.0:
        eviction = min(excess, uncached) * prefill_s * index[number, MISSED] / (index[number, LOST] + _EVICTION_PRIOR)
    free, variance = memory - private * share, 1.0 + (loads[number, SPREAD] + spread) * share
    if free * free < _NO_OVERFLOW * variance:
        risk = 0.5 * math.erfc(free / math.sqrt(2.0 * variance))
        context = contexts / (live + 1.0)
        overflow = risk * context * (prefill_s + loads[number, PREFILL_PAIR_S] * context) * (1.0 + others)
    return first_token, (urgency - 1.0) * (prompts + _SLOT_URGENCY * wait), tokens * step_s, delay, eviction, overflow


@inlined
def lower_bound(
    loads: NDArray[np.float64], number: int, depth: int, now: float, prompt: float, tokens: float, urgency: float
) -> float:
    """Return a cheap lower bound of the cost, without divisions; 0 if not every job could run at once."""
    live = loads[number, LIVE]
    uncached = max(1.0, prompt - depth * loads[number, BLOCK_TOKENS])
    crowded = (
        live + 1.0 > loads[number, MAX_NUM_SEQS]
        or loads[number, PRIVATE] + uncached + tokens > loads[number, KV_TOKENS]
    )
    if crowded or loads[number, FOREIGN] > 0.0:
        return 0.0
    step_s = loads[number, STEP_S] + loads[number, SEQUENCE_S] * (live + 1.0)
    step_s += loads[number, KV_TOKEN_S] * (loads[number, CONTEXT] + prompt + tokens)
    backlog = max(0.0, loads[number, BUSY_UNTIL] - now)
    own_s = uncached * (loads[number, PREFILL_TOKEN_S] + loads[number, PREFILL_PAIR_S] * (prompt + prompt - uncached))
    return urgency * backlog + (1.0 + live) * own_s + (1.0 + tokens) * step_s


@compiled
def cheapest(
    loads: NDArray[np.float64],
    index: NDArray[np.int64],
    depths: NDArray[np.int64],
    numbers: NDArray[np.int64],
    now: float,
    prompt: float,
    tokens: float,
    spread: float,
    mean_answer: float,
    urgency: float,
    terms: NDArray[np.float64],
) -> int:
    """Return the number of the engine of the least cost (ties: the first) and write its terms to `terms`."""
    best, least = numbers[0], math.inf
    for number in numbers:
        if lower_bound(loads, number, depths[number], now, prompt, tokens, urgency) >= least:
            continue
        each = terms_of(loads, index, number, depths[number], now, prompt, tokens, spread, mean_answer, urgency)
        cost = each[0] + each[1] + each[2] + each[3] + each[4] + each[5]
        if cost < least:
            best, least = number, cost
    each = terms_of(loads, index, best, depths[best], now, prompt, tokens, spread, mean_answer, urgency)
    for term in range(6):
        terms[term] = each[term]
    return int(best)


@dataclass(eq=False)
class LengthwiseRouter(PrefixRouter):
    """The engine where this job and the jobs there lose the least time.

    cost = first_token + urgency + decode + delay + eviction + overflow      (seconds; ties: the first engine)

    first_token = prefill of queued prompts + prefill of this prompt's uncached part + wait for a slot + a step
    urgency     = 7 * prefill of queued prompts + wait for a slot: later requests wait too, and form the tail of TTFT
    decode      = expected answer * step
    delay       = others * prefill of the uncached part + their remaining tokens decoded beside this job * step growth
    eviction    = cached tokens evicted for it * prefill time * share of evicted blocks that had been reused
    overflow    = P(KV memory runs out) * (recomputation of a preempted job, and the wait of the others for it)

    wait for a slot = (jobs there + 1 - slots) * (mean remaining answer * step / slots + a mean prefill), if above 0
    slots = the smaller of max_num_seqs and KV memory / what a job occupies half way through its answer
    step = a decode step with this job in the batch, by the engine's speed
    Remaining answers are the ledger's: predictions, given the tokens generated so far.

    `urgency` (8) is the total weight of queued prompts; the wait for a slot has weight 1 + (urgency - 1) / 7. At 1 each
    counts once; more shortens the tail of TTFT.
    Without a prediction: the wide prior. Without blocks: nothing is cached. Without events: the engine's speed, and
    silent jobs are dropped. Engines may differ in speed, memory and slots.
    """

    kind = "lengthwise"
    uses_predictions = compares_costs = True

    urgency: float = parameter(8.0, minimum=1.0, maximum=1000.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._terms = np.zeros(len(TERMS))
        self._urgency = float(self.urgency)  # an int would be compiled as a second specialisation
        self._mean_answer = self._next_mean = 0.0

    def pick(self, job: Job, now: float, numbers: EngineNumbers) -> Choice:
        """Return the minimum."""
        tokens, spread = remaining_and_variance(job)
        prompt = float(job.prompt_tokens + job.generated)
        # The moving average of expected answers with this one, which stands for foreign requests too.
        mean = self._mean_answer
        self._next_mean = mean + 0.01 * (tokens - mean) if mean else tokens
        number = self.form(cheapest)(
            self.ledger.loads,
            self.index.engines,
            self.depths,
            numbers,
            float(now),
            prompt,
            tokens,
            spread,
            self._next_mean,
            self._urgency,
            self._terms,
        )
        return number, dict(zip(TERMS, self._terms.tolist(), strict=True))

    def send(self, job: Job, number: int, now: float) -> None:
        """Enter the job, and its length in the mean."""
        super().send(job, number, now)
        self._mean_answer = self._next_mean
