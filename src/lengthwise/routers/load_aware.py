"""Published routers by load and prefix: least outstanding, power of two, SMG, SGLang and Dynamo.

Each choice is one compiled pass over the engines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.compiled import compiled, inlined
from lengthwise.policies import Job, parameter
from lengthwise.routers.base import Choice, EngineNumbers
from lengthwise.routers.tracking import LedgerRouter, PrefixRouter

Floats = NDArray[np.float64]

_MATCH_THRESHOLD: Final = 0.3  # SGLang's
_RULES: Final = ("outstanding", "match", "held")  # of `cache_aware`

# Columns of a ledger's `loads` and of a prefix index's `engines`, repeated because the cache of compiled code does not
# notice changes of constants.
LIVE, RUNNING, CLOCK, STARTS, BUSY_UNTIL, UNCACHED, FOREIGN = 1, 2, 5, 6, 7, 8, 13
KV_USE, PREFILL_TOKEN_S, KV_TOKENS, BLOCK_TOKENS = 15, 16, 22, 23
HELD = 2


@inlined
def outstanding_on(loads: Floats, number: int) -> float:
    """Return the requests sent and not finished, with those that others sent as far as scrapes report them."""
    return float(loads[number, LIVE] + loads[number, FOREIGN])


@inlined
def cached_on(loads: Floats, number: int, depth: int, prompt: float) -> float:
    """Return the prompt tokens that an engine has cached; the last token is always computed."""
    return float(max(0.0, min(depth * loads[number, BLOCK_TOKENS], prompt - 1.0)))


@compiled
def fewest_outstanding(loads: Floats, numbers: EngineNumbers) -> tuple[int, float]:
    """Return the engine with the fewest outstanding requests (ties: the first), and how many."""
    best, fewest = numbers[0], math.inf
    for number in numbers:
        outstanding = outstanding_on(loads, number)
        if outstanding < fewest:
            best, fewest = number, outstanding
    return int(best), fewest


@compiled
def least_loaded(loads: Floats, numbers: EngineNumbers, prompt: float, pressure: float) -> tuple[int, float, float]:
    """Return the engine of the least cost of `least_load` (ties: the first) and its two terms."""
    best, best_queue, best_memory = numbers[0], math.inf, 0.0
    for number in numbers:
        answers = loads[number, RUNNING] * loads[number, CLOCK] - loads[number, STARTS]
        tokens = loads[number, UNCACHED] + answers  # this router enters nothing as cached
        queue = (tokens + prompt) * loads[number, PREFILL_TOKEN_S]
        use = loads[number, KV_USE]
        if math.isnan(use):
            use = tokens / loads[number, KV_TOKENS]
        use = min(use, 0.99)
        memory = pressure * use / (1.0 - use)
        if queue + memory < best_queue + best_memory:
            best, best_queue, best_memory = number, queue, memory
    return int(best), best_queue, best_memory


@compiled
def by_cache(
    loads: Floats,
    index: NDArray[np.int64],
    depths: NDArray[np.int64],
    numbers: EngineNumbers,
    prompt: float,
    absolute: float,
    relative: float,
) -> tuple[int, int, float]:
    """Return the engine that `cache_aware` chooses, the rule that decided, and its value for that engine."""
    fewest, most = math.inf, 0.0
    matching, match, matching_outstanding = numbers[0], -1.0, 0.0
    emptiest, held, emptiest_outstanding = numbers[0], np.int64(-1), 0.0
    shortest = numbers[0]
    for number in numbers:
        outstanding = outstanding_on(loads, number)
        most = max(most, outstanding)
        if outstanding < fewest:
            shortest, fewest = number, outstanding
        here = cached_on(loads, number, depths[number], prompt) / max(1.0, prompt)
        if here > match or (here == match and outstanding < matching_outstanding):
            matching, match, matching_outstanding = number, here, outstanding
        blocks = index[number, HELD]
        if held < 0 or blocks < held or (blocks == held and outstanding < emptiest_outstanding):
            emptiest, held, emptiest_outstanding = number, blocks, outstanding
    if most - fewest > absolute and most > relative * fewest:
        return int(shortest), 0, fewest
    if match > _MATCH_THRESHOLD:
        return int(matching), 1, match
    return int(emptiest), 2, float(held)


@compiled
def fewest_blocks(
    loads: Floats,
    depths: NDArray[np.int64],
    numbers: EngineNumbers,
    now: float,
    prompt: float,
    prefill_weight: float,
    active_weight: float,
) -> tuple[int, float, float, float]:
    """Return the engine of the least cost of `dynamo` (ties: the first) and its three terms."""
    best, best_prefill, best_decode, best_active = numbers[0], math.inf, 0.0, 0.0
    for number in numbers:
        size = loads[number, BLOCK_TOKENS]
        queued = max(0.0, loads[number, BUSY_UNTIL] - now) / max(1e-12, loads[number, PREFILL_TOKEN_S])
        new = prompt - cached_on(loads, number, depths[number], prompt)
        prefill = prefill_weight * max(0.0, queued + new) / size
        decode = (loads[number, UNCACHED] + new) / size
        active = active_weight * loads[number, LIVE]
        if prefill + decode + active < best_prefill + best_decode + best_active:
            best, best_prefill, best_decode, best_active = number, prefill, decode, active
    return int(best), best_prefill, best_decode, best_active


class LeastOutstanding(LedgerRouter):
    """The engine with the fewest requests that were sent and have not finished.

    cost = outstanding      (requests; ties: the first engine)
    Without `Finished` a request counts until it has had no event for an hour or a scrape reports fewer requests.
    """

    kind = "least_outstanding"
    compares_costs = True

    def pick(self, job: Job, now: float, numbers: EngineNumbers) -> Choice:
        """Return the minimum."""
        number, outstanding = self.form(fewest_outstanding)(self.ledger.loads, numbers)
        return number, {"outstanding": outstanding}


@dataclass(eq=False)
class PowerOfTwo(LedgerRouter):
    """The less loaded of two random engines.

    cost = outstanding, over two different live engines drawn with `seed` (0)      (requests; ties: the first drawn)
    Signals as for least_outstanding.
    """

    kind = "power_of_two"

    seed: float = parameter(0, minimum=0, maximum=2**32 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rng = np.random.default_rng(int(self.seed))

    def pick(self, job: Job, now: float, numbers: EngineNumbers) -> Choice:
        """Draw two, return the one with fewer outstanding requests."""
        first = int(self._rng.integers(len(numbers)))
        second = (first + 1 + int(self._rng.integers(len(numbers) - 1))) % len(numbers) if len(numbers) > 1 else first
        loads, drawn = self.ledger.loads, (numbers.item(first), numbers.item(second))
        outstanding = [loads.item(number, LIVE) + loads.item(number, FOREIGN) for number in drawn]
        best = int(outstanding[1] < outstanding[0])
        return drawn[best], {"outstanding": outstanding[best]}


@dataclass(eq=False)
class LeastLoad(LedgerRouter):
    """SMG's least_load: queued tokens by throughput, and a price on KV memory that is nearly full.

    cost = tokens / throughput + pressure * k / (1 - k)      (seconds)
    tokens: of prompts queued and in flight, this one included, and of answers so far, by the engine's clock.
    throughput: prompt tokens per second. k: share of KV memory in use as scraped (at most 0.99), else tokens in flight
    over KV memory. pressure: 0.15 s. Uses neither prefixes nor predicted lengths.
    """

    kind = "least_load"
    compares_costs = True

    pressure: float = parameter(0.15, minimum=0.0)

    def pick(self, job: Job, now: float, numbers: EngineNumbers) -> Choice:
        """Return the minimum."""
        loads, prompt = self.ledger.loads, float(job.prompt_tokens)
        number, queue, memory = self.form(least_loaded)(loads, numbers, prompt, float(self.pressure))
        return number, {"queue": queue, "memory": memory}


@dataclass(eq=False)
class CacheAware(PrefixRouter):
    """SGLang's cache_aware: the longest prefix match while engines are balanced, else the shortest queue.

    unbalanced if most - fewest > 64 and most > 1.5 * fewest outstanding: the fewest outstanding
    else if the longest match is over 0.3 of the prompt: the engine that has it (ties: the fewest outstanding)
    else: the engine with the fewest cached blocks (likewise)
    Without blocks nothing matches. Uses no predicted length.
    """

    kind = "cache_aware"

    absolute: float = parameter(64, minimum=0.0)
    relative: float = parameter(1.5, minimum=1.0)

    def pick(self, job: Job, now: float, numbers: EngineNumbers) -> Choice:
        """Choose by queue, by match or by cache size, in SGLang's order."""
        number, rule, value = self.form(by_cache)(
            self.ledger.loads,
            self.index.engines,
            self.depths,
            numbers,
            float(job.prompt_tokens),
            float(self.absolute),
            float(self.relative),
        )
        return number, {_RULES[rule]: value}


@dataclass(eq=False)
class Dynamo(PrefixRouter):
    """Dynamo's KV router: prompt blocks to compute, less the overlap, and blocks in use.

    cost = prefill * max(0, active_prefill + incoming - overlap) + decode_blocks + active * outstanding      (blocks)
    active_prefill: prompts sent and not yet computed, by the engine's speed. decode_blocks: of live requests, shared
    ones counted once, this one's included. prefill: 1. active: 0.
    Without blocks the overlap is 0. Uses no predicted length.
    """

    kind = "dynamo"
    compares_costs = True

    prefill: float = parameter(1.0, minimum=0.0)
    active: float = parameter(0.0, minimum=0.0)

    def pick(self, job: Job, now: float, numbers: EngineNumbers) -> Choice:
        """Return the minimum."""
        number, prefill, decode, active = self.form(fewest_blocks)(
            self.ledger.loads,
            self.depths,
            numbers,
            float(now),
            float(job.prompt_tokens),
            float(self.prefill),
            float(self.active),
        )
        return number, {"prefill": prefill, "decode": decode, "active": active}
