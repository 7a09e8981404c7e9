"""The prefix-aware routers of SGLang and Dynamo."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from lengthwise.policies import Job
from lengthwise.routers.base import Parameter, Picked, Slots
from lengthwise.routers.kernel.loads import Load
from lengthwise.routers.prefix_routing import PrefixRouting

_MATCHED: Final = 0.3  # SGLang's threshold


class CacheAware(PrefixRouting):
    """SGLang's cache_aware: the best prefix while engines are in balance, the shortest queue when they are not.

    out of balance if most - fewest > 64 and most > 1.5 * fewest outstanding: the fewest outstanding
    else if the best match is over 0.3 of the prompt: the engine that has it (the fewest outstanding of equals)
    else: the engine whose cache holds the fewest blocks (likewise)
    Without blocks nothing matches. Looks at no length.
    """

    called = "cache_aware"
    parameters: ClassVar = {"absolute": Parameter(64), "relative": Parameter(1.5, 1.0)}

    def pick(self, job: Job, now: float, slots: Slots) -> Picked:
        """By queue, by match or by size, in SGLang's order."""
        outstanding = self.column(Load.LIVE, slots) + self.column(Load.FOREIGN, slots)
        most, fewest = outstanding.max(), outstanding.min()
        if most - fewest > self.given["absolute"] and most > self.given["relative"] * fewest:
            best = int(np.argmin(outstanding))
            return int(slots[best]), {"outstanding": float(outstanding[best])}
        match = self.cached_tokens(job, slots) / max(1, job.prompt_tokens)
        if match.max() > _MATCHED:
            best = int(np.lexsort((outstanding, -match))[0])
            return int(slots[best]), {"match": float(match[best])}
        held = self.index.held[slots]
        best = int(np.lexsort((outstanding, held))[0])
        return int(slots[best]), {"held": float(held[best])}


class Dynamo(PrefixRouting):
    """Dynamo's KV router: prompt blocks still to compute, the overlap credited, and blocks in use.

    cost = prefill * max(0, active_prefill + incoming - overlap) + decode_blocks + active * outstanding      (blocks)
    active_prefill: of prompts sent and not yet computed, by the engine's speed. decode_blocks: of live requests, shared
    ones counted once, this one's too. prefill: 1. active: 0.
    Without blocks the overlap is 0. Looks at no length.
    """

    called = "dynamo"
    weighs = True
    parameters: ClassVar = {"prefill": Parameter(1.0), "active": Parameter(0.0)}

    def pick(self, job: Job, now: float, slots: Slots) -> Picked:
        """The fewest blocks."""
        size = self.column(Load.BLOCK_TOKENS, slots)
        backlog_s = np.maximum(0.0, self.column(Load.BUSY_UNTIL, slots) - now)
        active = backlog_s / np.maximum(1e-12, self.column(Load.PREFILL_TOKEN_S, slots))
        new = job.prompt_tokens - self.cached_tokens(job, slots)
        prefill = self.given["prefill"] * np.maximum(0.0, active + new) / size
        decode = (self.column(Load.UNCACHED, slots) + new) / size
        outstanding = self.given["active"] * self.column(Load.LIVE, slots)
        best = int(np.argmin(prefill + decode + outstanding))
        terms = {"prefill": float(prefill[best]), "decode": float(decode[best]), "active": float(outstanding[best])}
        return int(slots[best]), terms
