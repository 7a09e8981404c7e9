"""TIE's experiments on simulated engines: online, its ablation, offline.

Every policy orders by the same predictions and meets the same arrivals and true lengths; the paper gives SSJF and LTR
predictors of their own. Its LMSYS-Chat-1M is not available here: CASTILLO's prompts stand for it, and beside them
synthetic traffic with the statistics that the paper reports (`traffic.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from experiments.study import Report, Run, SeededGrid
from experiments.tie import paper
from experiments.tie.traffic import AS_IN_PAPER, LogNormalPredictions, synthetic_traffic, weighted
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio, over_seeds
from lengthwise.simulator import Fleet, predict_workload, simulate
from lengthwise.simulator.grid import Cell, Draw, Grid, Metric, OfferedLoad, Plan, Statistic, run_grid
from lengthwise.simulator.predictions import RequestPredictions
from lengthwise.workloads import LengthSamples, Workload, castillo_workload

POLICIES: Final = ("fcfs", "sjf", "ltr", "tie", "lengthwise")
ABLATED: Final = {"E only": "tie:beta=0", "beta 0.1": "tie:beta=0.1", "beta 0.3": "tie:beta=0.3"}
"""The paper's variants that are a policy here; the log-normal is a different prediction."""
LOGNORMAL: Final = "log-normal"
WEIGHTED: Final = "E[X] / E[1/X]"
"""The key of `sjf` in the order that is best for latency per token."""
WEAKER: Final = tuple(f"noisy:{tau:g}" for tau in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
"""Predictions of increasing quality for SSJF, to find those that the paper's SSJF and LTR correspond to."""
LLM: Final = "llama-3.1-8b"
ENGINE: Final = "1*llama-3-8b@h100"
"""Of the fitted engines the one whose rates are nearest to the paper's, whose GPU is not known here."""
LARGE_LLM: Final = "meta-llama/Llama-3.3-70B-Instruct"
LARGE_ENGINE: Final = "1*llama-3-70b@4xh100"
"""By published numbers. The paper's 70B LLM and GPUs are not known here."""
LARGE_CORPORA: Final = {"ShareGPT": "test", "Alpaca": None}
"""Corpora of the paper's 70B table that CASTILLO has, and the split on which no shipped predictor is trained."""
OFFLINE_CORPUS: Final = "Alpaca"
LOW, HIGH = (round(rate / paper.implied_capacity(), 1) for rate in paper.RATES)
"""The loads that the paper's lowest and highest rate imply: 1.1 and 3.7."""


@dataclass(frozen=True)
class TieGrid(SeededGrid):
    """What is simulated."""

    requests: int = 2000
    loads: tuple[float, ...] = (0.7, 0.9, LOW, 1.5, 2.2, HIGH)
    pool: int = 6000
    """Offline: requests that arrive at once."""
    predictor: str = "default"
    """Predictions of the policies, beside true lengths."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {LOW, HIGH} <= set(self.loads):
            raise InputError(f"loads {self.loads}", field="loads", hint=f"{LOW:g} and {HIGH:g} are the paper's rates")


@dataclass(frozen=True, eq=False)
class Offline:
    """Runs in which all requests arrive at once."""

    grid: Grid
    """It has one offered load."""
    corpus: str
    samples: int
    """The number of finished requests that is timed: 3,000, or half of a smaller pool."""
    window_s: float
    """The time in which finished requests are counted: 3 minutes, scaled like `samples`."""


@dataclass(frozen=True, eq=False)
class TieResult:
    """All experiments. `online` and `synthetic` also hold the ablation.

    `large` has the answers of a 70B LLM at the highest load, by corpus; it is empty where the data has none.
    """

    origin: str
    predictor: str
    online: Grid
    synthetic: Grid
    large: Mapping[str, Grid]
    offline: Offline
    prompt_cv: tuple[float, float]
    """Standard deviation over mean of the answers to one prompt, averaged over prompts: CASTILLO, synthetic."""


def measure(run: Run, grid: TieGrid) -> TieResult:
    """Run everything on the length samples of one LLM."""
    samples = run.castillo()
    online = _online(samples, grid, run)
    synthetic, cv = _synthetic(grid, run)
    plan = Plan(fleet(), POLICIES, _predictors(grid), seeds=range(grid.seeds))
    return TieResult(
        origin=samples.origin,
        predictor=grid.predictor,
        online=online,
        synthetic=synthetic,
        large=_large(samples, grid, run),
        offline=offline_runs(samples, plan, grid.pool, run.part(0.8, 1.0, "offline, ")),
        prompt_cv=(within_prompts(samples.where(split="test"), LLM), cv),
    )


def offline_runs(samples: LengthSamples, plan: Plan, pool: int, report: Report) -> Offline:
    """Run a plan without loads on requests of `offline_rows` that arrive at once."""
    _, corpus = offline_rows(samples)
    wanted = min(paper.SAMPLES, pool // 2)
    found = run_grid(plan, at_once(samples, pool), on_progress=report)
    return Offline(found, corpus, wanted, paper.WINDOW_S * wanted / paper.SAMPLES)


def at_once(samples: LengthSamples, pool: int) -> Draw:
    """A function from a seed to requests of `offline_rows` that arrive at once."""
    draw = draws(offline_rows(samples)[0], pool)
    return lambda seed: draw(seed).replace(arrival_s=np.zeros(pool))


def fleet(engine: str = ENGINE) -> Fleet:
    """One engine with the paper's limits."""
    return Fleet.parse(engine).limited_to(max_num_seqs=paper.SLOTS, prefix_caching=False)


def draws(rows: LengthSamples, requests: int, llm: str = LLM) -> Draw:
    """A function from a seed to requests with the LLM's answers, one per second, cut as in the paper."""
    return lambda seed: castillo_workload(
        rows, llm, requests=requests, rate=1.0, seed=seed, max_tokens=paper.MAX_TOKENS
    )


def _predictors(grid: TieGrid) -> tuple[str, ...]:
    return tuple(dict.fromkeys((grid.predictor, "oracle")))


def _online(samples: LengthSamples, grid: TieGrid, run: Run) -> Grid:
    draw, seeds = draws(samples.where(split="test"), grid.requests), range(grid.seeds)
    plan = Plan(fleet(), POLICIES, _predictors(grid), loads=grid.loads, seeds=seeds)
    cells = run_grid(plan, draw, on_progress=run.part(0.0, 0.35, "online, "))
    drawn = [draw(seed) for seed in seeds]
    known = cells.predictions[grid.predictor]
    lognormal = [LogNormalPredictions.of(predictions) for predictions in known]
    cells = extend(cells, drawn, _variants(grid.predictor, known, lognormal), run.part(0.35, 0.45, "online, "))
    weaker = {
        ("sjf", name): [predict_workload(each, name, seed=seed) for each, seed in zip(drawn, seeds, strict=True)]
        for name in WEAKER
    }
    return extend(cells, drawn, weaker, run.part(0.45, 0.5, "online, "), offered_loads=[top(cells)])


def _synthetic(grid: TieGrid, run: Run) -> tuple[Grid, float]:
    """At the paper's lowest and highest rate; and the spread of answers to one prompt."""
    traffic = [synthetic_traffic(grid.requests, seed) for seed in range(grid.seeds)]
    plan = Plan(fleet(), POLICIES, ("oracle",), loads=(LOW, HIGH), seeds=range(grid.seeds))
    cells = run_grid(plan, lambda seed: traffic[seed].workload, on_progress=run.part(0.5, 0.6, "synthetic, "))
    known = [each.logt for each in traffic]
    variants = {
        **{(policy, AS_IN_PAPER): known for policy in POLICIES if policy != "fcfs"},
        **_variants(AS_IN_PAPER, known, [each.lognormal for each in traffic]),
    }
    cells = extend(cells, [each.workload for each in traffic], variants, run.part(0.6, 0.7, "synthetic, "))
    return cells, float(np.mean([each.prompt_cv for each in traffic]))


def _large(samples: LengthSamples, grid: TieGrid, run: Run) -> dict[str, Grid]:
    """The 70B LLM at the paper's highest rate, on the corpora that the data has."""
    plan = Plan(fleet(LARGE_ENGINE), POLICIES, (grid.predictor,), loads=(HIGH,), seeds=range(grid.seeds))
    found: dict[str, Grid] = {}
    for corpus, split in LARGE_CORPORA.items():
        if corpus in samples.corpora and LARGE_LLM in samples.llms:
            rows = samples.where(llm=LARGE_LLM, corpus=corpus, split=split)
            begin = 0.7 + 0.05 * len(found)
            report = run.part(begin, begin + 0.05, f"70B, {corpus}, ")
            found[corpus] = run_grid(plan, draws(rows, grid.requests, LARGE_LLM), on_progress=report)
    return found


Variants = Mapping[tuple[str, str], Sequence[RequestPredictions]]
"""Predictions that `run_grid` cannot make, one set per seed, by policy and name of the predictor."""


def _variants(predictor: str, known: Sequence[RequestPredictions], lognormal: Sequence[RequestPredictions]) -> Variants:
    """The ablation, and the order that is best for latency per token."""
    return {
        **{(policy, predictor): known for policy in ABLATED.values()},
        ("tie", LOGNORMAL): lognormal,
        ("sjf", WEIGHTED): [weighted(predictions) for predictions in known],
    }


def extend(
    grid: Grid,
    drawn: Sequence[Workload],
    variants: Variants,
    report: Report = lambda _what, _done: None,
    offered_loads: Sequence[OfferedLoad] | None = None,
) -> Grid:
    """Add the cells of variants to a grid, on the arrivals of its FCFS runs, at all offered loads or those given."""
    at = grid.offered_loads if offered_loads is None else offered_loads
    cells: list[Cell] = []
    for offered in at:
        fcfs = find(grid, "fcfs", "", offered).outcomes
        for (policy, predictor), predictions in variants.items():
            report(policy, len(cells) / (len(at) * len(variants)))
            outcomes = tuple(
                simulate(workload.replace(arrival_s=other.arrival_s), grid.fleet, policy, predictor=predicted)
                for workload, other, predicted in zip(drawn, fcfs, predictions, strict=True)
            )
            cells.append(Cell(offered, predictor, outcomes[0].policy, outcomes))
    added = {predictor: tuple(predictions) for (_, predictor), predictions in variants.items()}
    return replace(grid, cells=(*grid.cells, *cells), predictions={**grid.predictions, **added})


def top(grid: Grid) -> OfferedLoad:
    """The highest offered load."""
    return max(grid.offered_loads, key=lambda offered: offered.load)


def find(grid: Grid, policy: str, predictor: str, offered: OfferedLoad | None = None) -> Cell:
    """The cell of a policy, at the highest offered load if none is given; FCFS has no predictor."""
    wanted = (policy, None if policy == "fcfs" else predictor, top(grid) if offered is None else offered)
    return next(cell for cell in grid.cells if (cell.policy, cell.predictor, cell.offered) == wanted)


def over(cell: Cell, base: Cell, measure: Metric = "per_token_s", statistic: Statistic = "mean") -> Ratio:
    """The ratio of a statistic of two cells, paired by seed."""
    return over_seeds(cell.figures(measure, statistic), base.figures(measure, statistic))


def offline_rows(samples: LengthSamples) -> tuple[LengthSamples, str]:
    """The rows of the offline batch, and the name of their corpus.

    Alpaca as in the paper (no shipped predictor is trained on it); where it is missing, all test prompts.
    """
    if OFFLINE_CORPUS in samples.corpora:
        return samples.where(corpus=[OFFLINE_CORPUS]), OFFLINE_CORPUS
    return samples.where(split="test"), "all test prompts"


def within_prompts(samples: LengthSamples, llm: str) -> float:
    """Standard deviation over mean of the clean answers to one prompt, averaged over prompts."""
    rows = samples.where(llm=llm)
    lengths = np.where(rows.clean_mask(), np.minimum(rows.lengths_matrix(), paper.MAX_TOKENS), np.nan)
    lengths = lengths[(~np.isnan(lengths)).sum(axis=1) > 1]
    return float((np.nanstd(lengths, axis=1, ddof=1) / np.nanmean(lengths, axis=1)).mean())
