"""What the studies of routers share: the traffic and settings of length-aware Preble, and cells of a router in a place.

Arango, Noori, Huang, Shahout, Yu: "Prefix and Output Length-Aware Scheduling for Efficient Online LLM Inference" (ICLR
2025 workshop on Sparsity in LLMs). Settings and values are the text's; where the public code (on GitHub,
inakineitor/preble at 99ea1db) is the source, the comment says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, Literal

import numpy as np

from lengthwise.simulator.routing import routing_time_s
from lengthwise.simulator.tasks import SeedResults, Setting, SimulationTask
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

PAPER: Final = "Arango et al., ICLR 2025 workshop on Sparsity in LLMs"
ENGINE: Final = "mistral-7b@a6000"
WORKLOADS: Final = 10
EXAMPLES: Final = 4
MAX_TOKENS: Final = 300
SECONDS: Final = 30.0
"""Seconds of arrivals, in the public code. There a run ends with them; ours runs to drain."""
VARIED: Final = "1:0.5,300:0.5"
"""Lengths up to 300 with the most variance (the paper's figure 3)."""
FIXED: Final = "150:1"
"""The same mean without variance (figures 1A to 1C)."""
BY_PREFIX: Final = "by prefix"
"""Each workload has its own length, from 1 to 298 in steps of 33."""
PAPER_ENGINES: Final = 8
"""Engines of figure 2."""
LATENCY_S: Final = {64.0: (0.1427, 0.1223), 128.0: (0.2559, 0.1820)}
"""Figure 2, mean normalized latency by requests per second: Preble, and with the oracle's lengths. One run each."""


@dataclass(frozen=True, slots=True)
class React:
    """ReAct prompts of ten workloads in random order, with lengths from a distribution or one for each workload.

    Prompts are dropped: they say nothing about lengths drawn at random.
    """

    lengths: str
    requests: int
    name: ClassVar[str] = "react"

    def draws(self, *, own_arrivals: bool, slots: int) -> Callable[[int], Workload]:
        """Draw at one request per second, for any fleet."""
        return lambda seed: _react(self, seed)


@lru_cache(maxsize=8)
def _react(about: React, seed: int) -> Workload:
    drawn = react_workload(
        workloads=WORKLOADS,
        examples=EXAMPLES,
        requests=about.requests,
        rate=1.0,
        lengths=DiscreteLengths.parse(FIXED if about.lengths == BY_PREFIX else about.lengths),
        seed=seed,
    )
    order = generator(seed, "order").permutation(about.requests)
    shuffled = drawn.take(order, arrival_s=drawn.arrival_s, prompt=None, max_tokens=MAX_TOKENS)
    if about.lengths != BY_PREFIX:
        return shuffled
    names, workload = np.unique(shuffled.table["tenant"].to_pylist(), return_inverse=True)
    return shuffled.replace(output_tokens=1 + workload * ((MAX_TOKENS - 1) // (len(names) - 1)))


@dataclass(frozen=True, slots=True)
class Shared:
    """CASTILLO's test prompts for one LLM, behind ten system prompts; the i-th is 1/i as frequent as the first."""

    llm: str
    requests: int
    prefixes: int = 10
    prefix_tokens: int = 512
    name: ClassVar[str] = "castillo"

    def draws(self, *, own_arrivals: bool, slots: int) -> Callable[[int], Workload]:
        """Draw at one request per second, for any fleet."""
        samples = castillo_prompts()

        def draw(seed: int) -> Workload:
            alone = castillo_workload(samples, self.llm, requests=self.requests, rate=1.0, seed=seed)
            return behind_prefixes(alone, prefixes=self.prefixes, tokens=self.prefix_tokens, seed=seed)

        return draw


@lru_cache(maxsize=1)
def castillo_prompts() -> LengthSamples:
    """CASTILLO's test split, read once; where it is missing, the sample that ships with the package."""
    return load_castillo(split="test")


@dataclass(frozen=True, slots=True)
class Place:
    """A workload (its lengths or its name) on engines, at a request rate or at a share of capacity."""

    workload: str
    engines: int
    at: float
    unit: Literal["requests/s", "load"] = "requests/s"


@dataclass(frozen=True, slots=True)
class Routing:
    """A router with its predictor, the order inside engines, and the charge per choice."""

    router: str
    predictor: str | None = None
    """None where it uses no lengths."""
    policy: str = "fcfs"
    charge_s: float | None = None
    """None: as measured here."""

    def __str__(self) -> str:
        return self.router if self.predictor is None else f"{self.router} ({self.predictor})"


@dataclass(frozen=True)
class Cell(SeedResults):
    """A router in a place: the summary of each seed's simulation."""

    place: Place
    run: Routing


def find(cells: Sequence[Cell], run: Routing, engines: int, at: float) -> Cell:
    """The cell of a router at a number of engines and a rate or load."""
    return next(cell for cell in cells if cell.run == run and (cell.place.engines, cell.place.at) == (engines, at))


def places(cells: Sequence[Cell]) -> list[Place]:
    """The distinct places of cells, in order."""
    return list(dict.fromkeys(cell.place for cell in cells))


def routing_task(where: Setting, rate: float, run: Routing) -> SimulationTask:
    """A router at a rate, FCFS inside engines, charged its measured time."""
    return SimulationTask(
        where,
        rate,
        policy="fcfs",
        router=run.router,
        predictor=run.predictor or "oracle",  # not used by routers without a predictor
        prediction_delay_s=0.0,
        decision_s=0.0,
        routing_s=routing_time_s(run.router, len(where.fleet)),
        fleet_events=(),
    )
