"""The paper's requests, and CASTILLO's behind shared system prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

from experiments.preble import paper
from lengthwise.workloads import (
    DiscreteLengths,
    LengthSamples,
    Workload,
    behind_prefixes,
    castillo_workload,
    load_castillo,
    react_workload,
)
from lengthwise.workloads.arrivals import generator

VARIED: Final = "1:0.5,300:0.5"
"""Of all lengths up to 300 those with the most variance (the paper's figure 3)."""
LENGTHS: Final = ("150:1", "1:0.3333333334,150:0.3333333333,300:0.3333333333", VARIED)
"""Of the same mean with more and more variance: figure 1D, as its public code has it."""


@dataclass(frozen=True, slots=True)
class React:
    """ReAct prompts of ten workloads in random order, with lengths from a distribution.

    Prompts are not kept: nobody can read in them what a coin decides.
    """

    lengths: str
    requests: int
    name: ClassVar[str] = "react"

    def draws(self, *, own_arrivals: bool, slots: int) -> Callable[[int], Workload]:
        """At one request per second, whatever the fleet."""
        return lambda seed: _react(self, seed)


@lru_cache(maxsize=8)
def _react(about: React, seed: int) -> Workload:
    drawn = react_workload(
        workloads=paper.WORKLOADS,
        examples=paper.EXAMPLES,
        requests=about.requests,
        rate=1.0,
        lengths=DiscreteLengths.parse(about.lengths),
        seed=seed,
    )
    order = generator(seed, "order").permutation(about.requests)
    return drawn.take(order, arrival_s=drawn.arrival_s, prompt=None, max_tokens=paper.MAX_TOKENS)


@dataclass(frozen=True, slots=True)
class Shared:
    """CASTILLO's test prompts for one LLM, behind ten system prompts: the i-th comes 1/i as often as the first."""

    llm: str
    requests: int
    prefixes: int = 10
    prefix_tokens: int = 512
    name: ClassVar[str] = "castillo"

    def draws(self, *, own_arrivals: bool, slots: int) -> Callable[[int], Workload]:
        """At one request per second, whatever the fleet."""
        samples = castillo_prompts()

        def draw(seed: int) -> Workload:
            alone = castillo_workload(samples, self.llm, requests=self.requests, rate=1.0, seed=seed)
            return behind_prefixes(alone, prefixes=self.prefixes, tokens=self.prefix_tokens, seed=seed)

        return draw


@lru_cache(maxsize=1)
def castillo_prompts() -> LengthSamples:
    """CASTILLO's, read once; where it is not at hand, the sample that ships with the package."""
    return load_castillo(split="test")
