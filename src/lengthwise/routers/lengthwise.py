"""The router of this project: one cost in seconds."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from lengthwise.policies import Job
from lengthwise.routers.base import Parameter, Picked, Slots
from lengthwise.routers.kernel.cost import TERMS, cheapest
from lengthwise.routers.ledger import still_to_come, variance
from lengthwise.routers.prefix_routing import PrefixRouting


class Lengthwise(PrefixRouting):
    """The engine where this job and those it meets lose the least time.

    cost = first_token + urgency + decode + delay + eviction + overflow      (seconds; the first of equals)

    first_token = prompts being computed + own prompt, less what is cached, + wait for a place + a step
    urgency     = 7 * prompts being computed + wait for a place: who comes next waits too; the tail of TTFT is theirs
    decode      = expected answer * step
    delay       = others * (own prompt, less what is cached + min(their answers' rest, own answer) * what a step grows)
    eviction    = cached tokens that must go for it * prefill time * share of such that had been of use
    overflow    = P(KV memory runs out) * (what a preempted job computes again, and how long the others wait for it)

    wait for a place = (jobs there + 1 - places) * (mean rest of an answer * step / places + a mean prompt), if above 0
    places = the smaller of max_num_seqs and KV memory / what a job holds half way through its answer
    step = a decode step with this job in the batch, by the engine's own speed
    Rests of answers are those of the ledger: predictions, given how far jobs have come.

    `urgency` (8) is how often prompts being computed count in all; the wait for a place counts 1 + (urgency - 1) / 7
    times. 1: each once; more holds the tail of TTFT.
    Without a prediction: the wide prior. Without blocks: nothing is cached. Without events: the engine's speed and the
    silence rule. Engines may differ in everything.
    """

    called = "lengthwise"
    parameters: ClassVar = {"urgency": Parameter(8.0, 1.0, 1000.0)}
    uses_predictions = weighs = True

    def __init__(self, **given: float) -> None:
        super().__init__(**given)
        self._terms = np.zeros(len(TERMS))
        self._usual = 0.0

    def pick(self, job: Job, now: float, slots: Slots) -> Picked:
        """The least cost."""
        tokens = still_to_come(job)
        prompt = float(job.prompt_tokens + job.generated)
        slot = cheapest(
            self.ledger.loads,
            self.index.engines,
            self.depths,
            slots,
            float(now),
            prompt,
            float(tokens),
            variance(job),
            self._usual_with(tokens),
            float(self.given["urgency"]),
            self._terms,
        )
        return slot, dict(zip(TERMS, self._terms.tolist(), strict=True))

    def send(self, job: Job, slot: int, now: float) -> None:
        """Count a job as sent, and as usual."""
        super().send(job, slot, now)
        self._usual = self._usual_with(still_to_come(job))

    def _usual_with(self, tokens: float) -> float:
        """What an answer is expected to have, by and large: foreign ones too."""
        return float(self._usual + 0.01 * (tokens - self._usual) if self._usual else tokens)
