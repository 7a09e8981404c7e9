"""TIE's experiments (arXiv 2604.00499) on simulated engines: online, its ablation, offline, and the heatmap.

Every policy orders by the same predictions and meets the same arrivals and true lengths; the paper gives SSJF and LTR
predictors of their own. Its LMSYS-Chat-1M is not at hand: CASTILLO's prompts stand for it, and beside them made-up
traffic as the paper describes its own (`traffic.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.tie import paper
from experiments.tie.predictions import LogNormalPredictions, weighted
from experiments.tie.runs import Run, also, offline_rows, top, within_prompts
from experiments.tie.traffic import AS_IN_PAPER, made_up
from lengthwise.errors import InputError
from lengthwise.simulator import Fleet, predict_workload
from lengthwise.simulator.grid import Plan, run_grid
from lengthwise.workloads import castillo_workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from lengthwise.simulator.grid_result import Grid
    from lengthwise.workloads import LengthSamples, Workload

    Report = Callable[[str, float], None]

__all__ = ["ABLATED", "HIGH", "LOGNORMAL", "LOW", "POLICIES", "Effort", "TieStudy", "study"]

POLICIES: Final = ("fcfs", "sjf", "ltr", "tie", "lengthwise")
ABLATED: Final = {"E only": "tie:beta=0", "beta 0.1": "tie:beta=0.1", "beta 0.3": "tie:beta=0.3"}
"""The paper's variants that are a policy here; the log-normal is another prediction."""
UNAGED: Final = "sept"
"""E only without aging."""
LOGNORMAL: Final = "log-normal"
WEIGHTED: Final = "E[X] / E[1/X]"
"""What `sjf` goes by where it is to be best for latency per token."""
WEAKER: Final = tuple(f"noisy:{tau:g}" for tau in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
"""Ever better predictions for SSJF, to see which the paper's SSJF and LTR correspond to."""
LLM: Final = "llama-3.1-8b"
ENGINE: Final = "1*llama-3-8b@h100"
"""Of the fitted engines the one whose rates come nearest to the paper's, whose GPU is not known here."""
LOW, HIGH = (round(rate / paper.implied_capacity(), 1) for rate in paper.RATES)
"""The loads that the paper's lowest and highest rate imply: 1.1 and 3.7."""


@dataclass(frozen=True)
class Effort:
    """How much is simulated."""

    seeds: int = 10
    requests: int = 2000
    loads: tuple[float, ...] = (0.7, 0.9, LOW, 1.5, 2.2, HIGH)
    pool: int = 6000
    """Offline: requests that come at once."""

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise InputError(f"{self.seeds} seeds", field="seeds", hint="give at least 2: intervals are over seeds")

    @classmethod
    def quick(cls, seeds: int = 3) -> Effort:
        """Enough to see the shape."""
        return cls(seeds=seeds, requests=600, loads=(0.9, LOW, HIGH), pool=1200)


@dataclass(frozen=True, eq=False)
class TieStudy:
    """All experiments. `online` and `made_up` also hold the ablation; `offline` has one level, all at once."""

    origin: str
    predictor: str
    online: Grid
    made_up: Grid
    offline: Grid
    offline_corpus: str
    samples: int
    """How many are waited for offline: 3,000, or half of a smaller pool."""
    window_s: float
    """How long is counted offline: 3 minutes, or as much less as `samples` is."""
    prompt_cv: tuple[float, float]
    """Spread of the answers to one prompt over their mean, averaged over prompts; and the same of what is made up."""


def study(
    samples: LengthSamples,
    *,
    predictor: str = "default",
    effort: Effort | None = None,
    on_progress: Report | None = None,
) -> TieStudy:
    """Run everything on the length samples of one LLM."""
    effort = Effort() if effort is None else effort
    predictors = tuple(dict.fromkeys((predictor, "oracle")))
    fleet = Fleet.parse(ENGINE).limited_to(max_num_seqs=paper.SLOTS, prefix_caching=False)
    batch, corpus = offline_rows(samples)
    wanted = min(paper.SAMPLES, effort.pool // 2)

    def draw(seed: int) -> Workload:
        drawn = castillo_workload(batch, LLM, requests=effort.pool, rate=1.0, seed=seed, max_tokens=paper.MAX_TOKENS)
        return drawn.replace(arrival_s=np.zeros(len(drawn)))

    online = _online(fleet, samples, predictors, effort, _part(on_progress, "online, ", 0.0, 0.5))
    made, cv = _made_up(fleet, effort, _part(on_progress, "made-up traffic, ", 0.5, 0.7))
    return TieStudy(
        origin=samples.origin,
        predictor=predictor,
        online=online,
        made_up=made,
        offline=run_grid(
            Plan(fleet, POLICIES, predictors, seeds=range(effort.seeds)),
            draw,
            on_progress=_part(on_progress, "offline, ", 0.7, 1.0),
        ),
        offline_corpus=corpus,
        samples=wanted,
        window_s=paper.WINDOW_S * wanted / paper.SAMPLES,
        prompt_cv=(within_prompts(samples.where(split="test"), LLM), cv),
    )


def _online(fleet: Fleet, samples: LengthSamples, predictors: tuple[str, ...], effort: Effort, report: Report) -> Grid:
    test, seeds = samples.where(split="test"), range(effort.seeds)

    def draw(seed: int) -> Workload:
        return castillo_workload(test, LLM, requests=effort.requests, rate=1.0, seed=seed, max_tokens=paper.MAX_TOKENS)

    plan = Plan(fleet, POLICIES, predictors, loads=effort.loads, seeds=seeds)
    grid = run_grid(plan, draw, on_progress=_part(report, "", 0.0, 0.7))
    drawn = [draw(seed) for seed in seeds]
    first = predictors[0]
    known = grid.predictions[first]
    runs = [Run(first, policy, known) for policy in (*ABLATED.values(), UNAGED)]
    runs.append(Run(LOGNORMAL, "tie", tuple(LogNormalPredictions.of(predictions) for predictions in known)))
    runs.append(Run(WEIGHTED, "sjf", tuple(weighted(predictions) for predictions in known)))
    grid = also(grid, drawn, runs, _part(report, "", 0.7, 0.9))
    weaker = [
        Run(
            name, "sjf", tuple(predict_workload(each, name, seed=seed) for each, seed in zip(drawn, seeds, strict=True))
        )
        for name in WEAKER
    ]
    return also(grid, drawn, weaker, _part(report, "", 0.9, 1.0), levels=[top(grid)])


def _made_up(fleet: Fleet, effort: Effort, report: Report) -> tuple[Grid, float]:
    """At the paper's lowest and highest rate; and the spread of answers to one prompt."""
    made = [made_up(effort.requests, seed) for seed in range(effort.seeds)]
    plan = Plan(fleet, POLICIES, loads=(LOW, HIGH), seeds=range(effort.seeds))
    grid = run_grid(plan, lambda seed: made[seed].workload, on_progress=_part(report, "", 0.0, 0.5))
    predicted = tuple(each.logt for each in made)
    others = [policy for policy in POLICIES if policy != "fcfs"]
    runs = [Run(AS_IN_PAPER, policy, predicted) for policy in (*others, *ABLATED.values(), UNAGED)]
    runs.append(Run(LOGNORMAL, "tie", tuple(each.lognormal for each in made)))
    runs.append(Run(WEIGHTED, "sjf", tuple(weighted(predictions) for predictions in predicted)))
    grid = also(grid, [each.workload for each in made], runs, _part(report, "", 0.5, 1.0))
    return grid, float(np.mean([each.prompt_cv for each in made]))


def _part(report: Report | None, what: str, begin: float, end: float) -> Report:
    def tell(now: str, done: float) -> None:
        if report is not None:
            report(what + now, begin + (end - begin) * done)

    return tell
