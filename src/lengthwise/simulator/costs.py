"""How long one step of an engine takes, as a function of what is in the batch.

A cost model knows tokens and seconds; it knows nothing of requests, queues or memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class CostModel(Protocol):
    """Seconds per step. Another law (roofline, fitted, read from a file) takes `StepCost`'s place here."""

    def step_s(self, prefill_tokens: int, prefill_pairs: int, decodes: int, kv_tokens: int) -> float:
        """Return the duration of one step."""

    def decode_run(self, now: float, until: float, steps: int, decodes: int, kv_tokens: int) -> tuple[float, int]:
        """Run decode-only steps of one batch, each reading `decodes` more KV tokens than the one before.

        Up to `steps` of them, each beginning before `until`. Returns when the last one ended and how many
        there were; to the last bit what `step_s` added up step by step gives.
        """


@dataclass(frozen=True, slots=True)
class StepCost:
    """Linear step time with quadratic prefill attention.

    step = base + prefill_token * n + prefill_pair * q + decode * B + kv_token * K      (seconds)

    n: prompt tokens computed in this step. q: their share of n^2; a chunk from position c to e has
    e^2 - c^2, so that the chunks of a prompt add up to what it costs in one piece. B: sequences that compute
    one token over a context. K: tokens of those contexts, the new ones included. base: `decode_base` where
    anybody decodes, else `prefill_base`; it is mostly reading the weights, which a mixed step does once.
    """

    prefill_base: float
    decode_base: float
    prefill_token: float
    prefill_pair: float
    decode: float
    kv_token: float

    def step_s(self, prefill_tokens: int, prefill_pairs: int, decodes: int, kv_tokens: int) -> float:
        """Return the duration of one step."""
        base = self.decode_base if decodes else self.prefill_base
        prefill = self.prefill_token * prefill_tokens + self.prefill_pair * prefill_pairs
        return base + prefill + self.decode * decodes + self.kv_token * kv_tokens

    def decode_run(self, now: float, until: float, steps: int, decodes: int, kv_tokens: int) -> tuple[float, int]:
        """Add up step by step: a closed form would be faster still, but would round differently."""
        fixed, per_token = self.decode_base + self.decode * decodes, self.kv_token
        done = 0
        while done < steps and now < until:
            now += fixed + per_token * kv_tokens
            kv_tokens += decodes
            done += 1
        return now, done
