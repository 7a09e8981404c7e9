"""Routers that look at counts alone, or at nothing."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from lengthwise.policies import Job
from lengthwise.routers.base import Parameter, Picked, Routing, Slots
from lengthwise.routers.kernel.loads import Load

_SEED = Parameter(0, 0, 2**32 - 1)


class Random(Routing):
    """Any engine, each as likely as the others.

    engine ~ uniform(live), from a generator with `seed` (0)
    Needs no signal.
    """

    called = "random"
    parameters: ClassVar = {"seed": _SEED}

    def __init__(self, **given: float) -> None:
        super().__init__(**given)
        self._rng = np.random.default_rng(int(self.given["seed"]))

    def pick(self, job: Job, now: float, slots: Slots) -> Picked:
        """Draw one."""
        return int(slots[self._rng.integers(len(slots))]), {}


class RoundRobin(Routing):
    """One after the other, whatever they have to do.

    engine = the next live one after the last chosen, in the order in which they came up
    Needs no signal.
    """

    called = "round_robin"

    def __init__(self, **given: float) -> None:
        super().__init__(**given)
        self._last = -1

    def pick(self, job: Job, now: float, slots: Slots) -> Picked:
        """The next in the circle."""
        self._last = int(slots[np.searchsorted(slots, self._last, side="right") % len(slots)])
        return self._last, {}


class LeastOutstanding(Routing):
    """The engine with the fewest requests that were sent and have not finished.

    cost = outstanding      (requests; the first of equals)
    Without `Finished` a request counts until it has been silent for an hour, or a scrape knows of fewer.
    """

    called = "least_outstanding"
    weighs = True

    def pick(self, job: Job, now: float, slots: Slots) -> Picked:
        """The fewest."""
        outstanding = self.column(Load.LIVE, slots) + self.column(Load.FOREIGN, slots)
        best = int(np.argmin(outstanding))
        return int(slots[best]), {"outstanding": float(outstanding[best])}


class PowerOfTwo(Routing):
    """The less busy of two engines that were drawn.

    cost = outstanding, over two different live engines drawn with `seed` (0)      (requests; the first drawn of equals)
    Signals as for least_outstanding.
    """

    called = "power_of_two"
    parameters: ClassVar = {"seed": _SEED}

    def __init__(self, **given: float) -> None:
        super().__init__(**given)
        self._rng = np.random.default_rng(int(self.given["seed"]))

    def pick(self, job: Job, now: float, slots: Slots) -> Picked:
        """Draw two, take the one with fewer."""
        first = int(self._rng.integers(len(slots)))
        second = (first + 1 + int(self._rng.integers(len(slots) - 1))) % len(slots) if len(slots) > 1 else first
        drawn = slots[[first, second]]
        outstanding = self.column(Load.LIVE, drawn) + self.column(Load.FOREIGN, drawn)
        best = int(np.argmin(outstanding))
        return int(drawn[best]), {"outstanding": float(outstanding[best])}


class LeastLoad(Routing):
    """SMG's least_load: tokens before it, and a price on KV memory that is nearly full.

    cost = tokens / throughput + pressure * k / (1 - k)      (seconds)
    tokens: of prompts, queued and in flight, this one's too, and of answers so far, by the engine's clock. throughput:
    prompt tokens per second. k: share of KV memory in use as scraped (at most 0.99), else tokens in flight over KV
    memory. pressure: 0.15 s. Looks at no prefix and no length.
    """

    called = "least_load"
    weighs = True
    parameters: ClassVar = {"pressure": Parameter(0.15)}

    def pick(self, job: Job, now: float, slots: Slots) -> Picked:
        """The least seconds."""
        answers = self.column(Load.RUNNING, slots) * self.column(Load.CLOCK, slots) - self.column(Load.BEGUN, slots)
        tokens = self.column(Load.UNCACHED, slots) + answers  # nothing counts as cached here
        queue = (tokens + job.prompt_tokens) * self.column(Load.PREFILL_TOKEN_S, slots)
        said = self.column(Load.KV_USE, slots)
        use = np.minimum(np.where(np.isnan(said), tokens / self.column(Load.KV_TOKENS, slots), said), 0.99)
        memory = self.given["pressure"] * use / (1.0 - use)
        best = int(np.argmin(queue + memory))
        return int(slots[best]), {"queue": float(queue[best]), "memory": float(memory[best])}
