"""Prefill and decode apart (Splitwise-like, as the length-aware extension of Preble proposes) against mixed engines.

The same fleet, arrivals, lengths and predictions: once with every engine doing both, once for each way to split it. In both
the router `lengthwise` chooses, in a split fleet once for each pool, and engines serve first come, first served. Load
is the share of what the mixed fleet can do. Then: what a better prediction at the end of prefill is worth to the second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from experiments.disaggregation.task import Served
from experiments.disaggregation.traffic import here, named
from lengthwise.errors import InputError
from lengthwise.simulator import Fleet
from lengthwise.simulator.grid_result import Measure, Statistic
from lengthwise.simulator.paired import Ratio, over_seeds
from lengthwise.simulator.tasks import TaskRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lengthwise.simulator.tasks import ResultCache, Workers

    Report = Callable[[str, float], None]

__all__ = ["COMPARED", "FIRST", "Arrangement", "Effort", "Study", "What", "study"]

What = tuple[Measure, Statistic]
"""A figure of latency."""

ENGINE: Final = "llama-3-8b@a100"
COMPARED: Final[tuple[What, ...]] = (
    ("ttft_s", "mean"),
    ("ttft_s", "p99"),
    ("tpot_s", "mean"),
    ("e2e_s", "mean"),
    ("e2e_s", "p99"),
    ("per_token_s", "mean"),
    ("per_token_s", "p99"),
)
FIRST: Final = "noisy:0.6"
"""What is predicted before the prompt is computed, where it is asked what a better prediction after it is worth."""
REFRESHED: Final = ("noisy:0.8", "oracle")
REFRESHED_LOAD: Final = 0.9


@dataclass(frozen=True)
class Effort:
    """How much is simulated. `prefills`: engines that compute prompts, of `engines` in all."""

    seeds: int = 5
    requests: int = 4200
    engines: int = 8
    loads: tuple[float, ...] = (0.5, 0.7, 0.9, 1.1)
    prefills: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise InputError(f"{self.seeds} seeds", field="seeds", hint="give at least 2: intervals are over seeds")
        if self.requests < 1:
            raise InputError(f"{self.requests} requests", field="requests", hint="give at least 1")

    @classmethod
    def quick(cls, seeds: int = 2, requests: int = 300) -> Effort:
        """Enough to see that it works; too few requests to load eight engines."""
        return cls(seeds, requests, loads=(0.9,), prefills=(2, 4))

    @property
    def fleet(self) -> str:
        """As `Fleet.parse` reads it."""
        return f"{self.engines}*{ENGINE}"


@dataclass(frozen=True)
class Arrangement:
    """One case at one load, engines mixed (`prefill` 0) or split, over all seeds.

    `ratios` are over the mixed fleet, or, where a prediction was refreshed, over the same split without: below 1 is better.
    """

    case: str
    load: float
    prefill: int
    refresh: str | None
    runs: tuple[dict[str, Any], ...]
    ratios: dict[What, Ratio]

    def mean(self, measure: str, statistic: str | None = None) -> float:
        """A figure averaged over the seeds; NaN where there is none."""
        values = [run[measure] if statistic is None else run[measure][statistic] for run in self.runs]
        return float(np.mean([np.nan if value is None else value for value in values]))


@dataclass(frozen=True)
class Study:
    """Everything measured. `sources`: what each case was drawn from."""

    effort: Effort
    gb_per_s: float
    slots: int
    sources: dict[str, str]
    split: tuple[Arrangement, ...]
    refreshed: tuple[Arrangement, ...]

    def of(self, case: str, load: float) -> list[Arrangement]:
        """The mixed fleet, then the split ones."""
        return [one for one in self.split if (one.case, one.load) == (case, load)]

    def best(self, case: str, load: float, what: What) -> Arrangement:
        """The split that does best by a figure."""
        return min(self.of(case, load)[1:], key=lambda one: one.ratios[what].ratio)


def study(
    effort: Effort,
    cache: ResultCache,
    workers: Workers,
    *,
    gb_per_s: float,
    cases: Sequence[str] | None = None,
    on_progress: Report | None = None,
) -> Study:
    """Run everything that the cache does not have."""
    cases = here() if cases is None else cases
    pieces = TaskRunner(cache, workers, on_progress)
    first = [Served(case, effort.requests, 0, effort.fleet, load) for case in cases for load in effort.loads]
    plain = [replace(one, prefill=n, gb_per_s=gb_per_s) for one in first for n in (0, *effort.prefills)]
    split = _arranged(pieces, "mixed and split", plain, effort.seeds, lambda one: replace(one, prefill=0))
    found = Study(effort, gb_per_s, Fleet.parse(effort.fleet).slots, {case: named(case) for case in cases}, split, ())
    load = min(effort.loads, key=lambda value: abs(value - REFRESHED_LOAD))
    kept = [
        replace(one, predictor=FIRST, prefill=found.best(one.case, load, ("e2e_s", "mean")).prefill, gb_per_s=gb_per_s)
        for one in first
        if one.load == load and one.case != "react"  # a coin cannot be foreseen a little better
    ]
    asked = [replace(one, refresh=name) for one in kept for name in (None, *REFRESHED)]
    refreshed = _arranged(pieces, "refreshed predictions", asked, effort.seeds, lambda one: replace(one, refresh=None))
    return replace(found, refreshed=refreshed)


def _arranged(
    pieces: TaskRunner, what: str, each: Sequence[Served], seeds: int, base: Callable[[Served], Served]
) -> tuple[Arrangement, ...]:
    """Every arrangement over all seeds, set against its base, which is one of them."""
    results = pieces.results(what, [replace(one, seed=seed) for one in each for seed in range(seeds)])
    runs = {one: tuple(results[place * seeds : (place + 1) * seeds]) for place, one in enumerate(each)}
    return tuple(
        Arrangement(one.case, one.load, one.prefill, one.refresh, runs[one], _ratios(runs[one], runs[base(one)]))
        for one in each
    )


def _ratios(ours: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]]) -> dict[What, Ratio]:
    if ours is base:
        return dict.fromkeys(COMPARED, Ratio(1.0, 1.0, 1.0))
    return {
        (measure, name): over_seeds([run[measure][name] for run in ours], [run[measure][name] for run in base])
        for measure, name in COMPARED
    }
