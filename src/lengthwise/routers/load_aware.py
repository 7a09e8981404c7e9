"""Published routers by load and prefix: least outstanding, power of two, SMG, SGLang and Dynamo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies import Job, parameter
from lengthwise.routers import ledger
from lengthwise.routers.base import Choice, EngineNumbers
from lengthwise.routers.tracking import LedgerRouter, PrefixRouter

_MATCH_THRESHOLD: Final = 0.3  # SGLang's


def least(numbers: EngineNumbers, **terms: NDArray[np.float64]) -> Choice:
    """Return the number of the engine with the least sum of terms (ties: the first), and its terms."""
    best = int(np.argmin(sum(terms.values())))
    return int(numbers[best]), {name: float(term[best]) for name, term in terms.items()}


class LeastOutstanding(LedgerRouter):
    """The engine with the fewest requests that were sent and have not finished.

    cost = outstanding      (requests; ties: the first engine)
    Without `Finished` a request counts until it has had no event for an hour or a scrape reports fewer requests.
    """

    kind = "least_outstanding"
    compares_costs = True

    def pick(self, job: Job, now: float, numbers: EngineNumbers) -> Choice:
        """Return the minimum."""
        return least(numbers, outstanding=self.outstanding(numbers))


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
        drawn = numbers[[first, second]]
        return least(drawn, outstanding=self.outstanding(drawn))


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
        answers = self.column(ledger.RUNNING, numbers) * self.column(ledger.CLOCK, numbers) - self.column(
            ledger.STARTS, numbers
        )
        tokens = self.column(ledger.UNCACHED, numbers) + answers  # this router enters nothing as cached
        queue = (tokens + job.prompt_tokens) * self.column(ledger.PREFILL_TOKEN_S, numbers)
        scraped = self.column(ledger.KV_USE, numbers)
        use = np.minimum(np.where(np.isnan(scraped), tokens / self.column(ledger.KV_TOKENS, numbers), scraped), 0.99)
        memory = self.pressure * use / (1.0 - use)
        return least(numbers, queue=queue, memory=memory)


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
        outstanding = self.outstanding(numbers)
        most, fewest = outstanding.max(), outstanding.min()
        if most - fewest > self.absolute and most > self.relative * fewest:
            return least(numbers, outstanding=outstanding)
        match = self.cached_tokens(job, numbers) / max(1, job.prompt_tokens)
        if match.max() > _MATCH_THRESHOLD:
            best = int(np.lexsort((outstanding, -match))[0])
            return int(numbers[best]), {"match": float(match[best])}
        held = self.index.held[numbers]
        best = int(np.lexsort((outstanding, held))[0])
        return int(numbers[best]), {"held": float(held[best])}


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
        size = self.column(ledger.BLOCK_TOKENS, numbers)
        backlog_s = np.maximum(0.0, self.column(ledger.BUSY_UNTIL, numbers) - now)
        active = backlog_s / np.maximum(1e-12, self.column(ledger.PREFILL_TOKEN_S, numbers))
        new = job.prompt_tokens - self.cached_tokens(job, numbers)
        prefill = self.prefill * np.maximum(0.0, active + new) / size
        decode = (self.column(ledger.UNCACHED, numbers) + new) / size
        outstanding = self.active * self.column(ledger.LIVE, numbers)
        return least(numbers, prefill=prefill, decode=decode, active=outstanding)
