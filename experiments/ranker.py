"""The packaged ranker: is a predictor that is trained for the order alone better for scheduling than one for lengths?

LTR (arXiv 2408.15792) trains a ranker by ListMLE. `rank` is one on the description that `fast` uses, so that `ltr` with
it beside `sjf` with `fast` is the paper's comparison with the same input. Beside the packaged files, both recipes are
trained here without a teacher, which `fast` had: with all kinds of prompts, and without some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np

from experiments.left_out import one_thread
from experiments.left_out_groups import LeftOutGroupsGrid, official_scores, sampled
from experiments.study import Run, SeededGrid, Study, table_of
from experiments.tie.study import LLM, draws, find, fleet, over
from lengthwise.errors import InputError
from lengthwise.files import data_home
from lengthwise.intervals import Ratio, over_seeds
from lengthwise.llm_names import resolve_llm
from lengthwise.predictors import load_predictor
from lengthwise.predictors.adapt import unknown_llms_unlogged
from lengthwise.predictors.fast import FastPredictor
from lengthwise.reports.tables import Table, multiple, share
from lengthwise.simulator.grid import Plan, run_grid
from lengthwise.traffic.scores import PredictionScores
from lengthwise.training.encoder.pack import MADE
from lengthwise.training.fast.train import (
    FastRecipe,
    FastTrainer,
    official_test,
    predicted,
    training_pairs,
)
from lengthwise.training.fast.word_tables import Vocabulary
from lengthwise.training.pairs import PairTable, score_pairs
from lengthwise.workloads import load_castillo
from lengthwise.workloads.datasets import CASTILLO_GROUPS

RECIPES: Final[Mapping[str, Literal["", "all", "kind"]]] = {
    "lengths": "",
    "order of all": "all",
    "order within a kind": "kind",
}
PAIRS: Final = {"ltr": "rank", "sjf": "fast"}
"""The policies that are compared, and the predictor of each."""
MEAN: Final = "mean over LLMs"


@dataclass(frozen=True)
class RankerGrid(SeededGrid):
    """The trainings without kinds, and the simulations."""

    parts: int = 2
    """Trainings that leave out a share of the kinds outside CASTILLO each; 0: none."""
    train: bool = True
    """Train the recipes; else only the packaged files are scored and simulated."""
    prompts_per_group: int = 2_500
    castillo_prompts: int = 0
    """Most prompts of CASTILLO; 0: all."""
    networks: int = 4
    epochs: int = 10
    loads: tuple[float, ...] = (1.1, 1.5)
    requests: int = 1_500
    llms: tuple[str, ...] = ()
    """Whose answers are simulated; none: all."""


@dataclass(frozen=True)
class Latency:
    """`ltr` with the ranker over `sjf` with `fast` on answers of an LLM at a load, and the latter over FCFS."""

    llm: str
    load: float
    tau: Mapping[str, float]
    e2e: Ratio
    p99: Ratio
    per_token: Ratio
    fcfs: Ratio


@dataclass(frozen=True)
class RankerResult:
    """Scores by predictor or recipe."""

    grid: RankerGrid
    official: Mapping[str, PredictionScores]
    left_out: Mapping[str, Mapping[str, float]]
    """tau by kind and recipe."""
    latency: tuple[Latency, ...]

    def mean(self, recipe: str) -> float:
        """Mean tau over kinds left out."""
        return float(np.nanmean([row[recipe] for row in self.left_out.values()]))


@unknown_llms_unlogged()
def measure(run: Run, grid: RankerGrid) -> RankerResult:
    """Score the packaged files, train both recipes, simulate."""
    test = _tables(grid)[1]
    official = {name: official_scores(_fast(name), test) for name in PAIRS.values()}
    kinds = _kinds(grid)
    outs = [(), *(tuple(kinds[part :: grid.parts]) for part in range(grid.parts))]
    trainings = [(recipe, out) for recipe in RECIPES for out in outs] if grid.train else []
    left: dict[str, dict[str, float]] = {name: {} for name in kinds if grid.parts and grid.train}
    trained = run.each("trainings", train, [(grid, recipe, out) for recipe, out in trainings])
    for (recipe, out), found in zip(trainings, trained, strict=True):
        if not out:
            official[f"{recipe}, no teacher"] = PredictionScores(**found["official"])
        for name in out:
            left[name][recipe] = found["tau"][name]
    return RankerResult(grid, official, left, _latencies(run, grid))


def train(grid: RankerGrid, recipe: str, out: tuple[str, ...]) -> dict[str, Any]:
    """Train a recipe without some kinds; return its scores on CASTILLO's official test, and tau on the kinds."""
    table, test = _tables(grid)
    how = FastRecipe(networks=grid.networks, epochs=grid.epochs, ranker=RECIPES[recipe])
    with unknown_llms_unlogged(), one_thread():
        fitted = FastTrainer(Vocabulary.of_packaged(_fast("fast")), how).fit(table.take(~table.in_groups(out)))
        tau = {}
        for name in out:
            own = table.take(table.in_groups([name]))
            tau[name] = score_pairs(own, *predicted(fitted, own)).tau
        return {"official": asdict(official_scores(fitted, test)), "tau": tau}


@lru_cache(maxsize=1)
def _tables(grid: RankerGrid) -> tuple[PairTable, PairTable]:
    """Return what is trained on, and CASTILLO's official test; kept for the later trainings of this process."""
    everything = training_pairs(ships=True)
    limits = LeftOutGroupsGrid(prompts_per_group=grid.prompts_per_group, castillo_prompts=grid.castillo_prompts)
    return sampled(everything.take(everything.trainable()), limits), official_test(everything)


def _kinds(grid: RankerGrid) -> list[str]:
    """Return the kinds outside CASTILLO."""
    table = _tables(grid)[0]
    return [name for name in table.groups if name not in (*CASTILLO_GROUPS, MADE) and table.in_groups([name]).any()]


def _fast(name: str) -> FastPredictor:
    found = load_predictor(name)
    if not isinstance(found, FastPredictor):
        raise InputError("is no network on words", source=name)
    return found


def _latencies(run: Run, grid: RankerGrid) -> tuple[Latency, ...]:
    samples = run.castillo()
    llms = [resolve_llm(name, samples.llms) for name in grid.llms] or samples.llms
    asked = (tuple(PAIRS.values()), grid.loads, grid.requests, grid.seeds)
    found = run.each("simulations", latencies, [(llm, *asked) for llm in llms])
    rows = [
        Latency(llm, load, row["tau"], *(Ratio(**row[name]) for name in ("e2e", "p99", "per_token", "fcfs")))
        for llm, by_load in zip(llms, found, strict=True)
        for load, row in zip(grid.loads, by_load["rows"], strict=True)
    ]
    means = [_mean([row for row in rows if row.load == load]) for load in grid.loads]
    return (*rows, *(means if len(llms) > 1 else ()))


def latencies(
    llm: str, predictors: tuple[str, ...], loads: tuple[float, ...], requests: int, seeds: int
) -> dict[str, Any]:
    """Simulate both policies, each on its own predictor, on the answers of an LLM."""
    plan = Plan(fleet(), ("fcfs", *PAIRS), predictors, loads=loads, seeds=range(seeds))
    found = run_grid(plan, draws(load_castillo().where(split="test"), requests, llm))
    rows = []
    for offered in found.offered_loads:
        fcfs, ltr, sjf = (find(found, policy, PAIRS.get(policy, ""), offered) for policy in ("fcfs", *PAIRS))
        ratios = {
            "e2e": over(ltr, sjf, "e2e_s"),
            "p99": over(ltr, sjf, "e2e_s", "p99"),
            "per_token": over(ltr, sjf, "per_token_s"),
            "fcfs": over(sjf, fcfs, "e2e_s"),
        }
        tau = {name: found.tau(name) for name in predictors}
        rows.append({"tau": tau, **{name: asdict(ratio) for name, ratio in ratios.items()}})
    return {"rows": rows}


def _mean(rows: Sequence[Latency]) -> Latency:
    """Return the mean over LLMs, with intervals over them."""

    def ratio(name: str) -> Ratio:
        return over_seeds([getattr(row, name).ratio for row in rows], [1.0] * len(rows))

    tau = {name: float(np.mean([row.tau[name] for row in rows])) for name in PAIRS.values()}
    return Latency(MEAN, rows[0].load, tau, *(ratio(name) for name in ("e2e", "p99", "per_token", "fcfs")))


def tables(found: RankerResult) -> list[Table]:
    """Scores, kinds left out, latency."""
    grid = found.grid
    official = table_of(
        "CASTILLO's official test, six corpora",
        list(found.official.items()),
        [
            ("trained for", lambda row: row[0]),
            ("tau", lambda row: f"{row[1].tau:.3f}"),
            ("MAE of the median", lambda row: f"{row[1].mae_median:.0f}"),
            ("in 50 %", lambda row: share(row[1].coverage_50)),
            ("in 90 %", lambda row: share(row[1].coverage_90)),
        ],
        [f"no teacher: {grid.networks} networks, {grid.epochs} epochs, not calibrated"],
    )
    scored = {name: row for name, row in found.left_out.items() if np.isfinite(list(row.values())).all()}
    rows = [[name, *(f"{row[recipe]:.3f}" for recipe in RECIPES)] for name, row in scored.items()]
    rows += [["mean", *(f"{found.mean(recipe):.3f}" for recipe in RECIPES)]] if rows else []
    left = Table("tau on kinds left out of training", ["kind", *RECIPES], rows, ["no teacher, tau within an LLM"])
    latency = table_of(
        "`ltr` with `rank` over `sjf` with `fast`",
        found.latency,
        [
            ("LLM", lambda row: row.llm.rsplit("/", 1)[-1]),
            ("load", lambda row: f"{row.load:g}"),
            ("tau", lambda row: ", ".join(f"{tau:.3f}" for tau in row.tau.values())),
            ("E2E", lambda row: row.e2e),
            ("E2E p99", lambda row: row.p99),
            ("per token", lambda row: row.per_token),
            ("sjf over FCFS, E2E", lambda row: row.fcfs),
        ],
        [
            f"{grid.requests:,} requests of CASTILLO's test, {grid.seeds} paired seeds; below 1 is better",
            "of means the intervals are over LLMs",
        ],
    )
    return [official, *([left] if rows else []), latency]


def _needs(_: RankerGrid) -> str | None:
    home = data_home()
    if home is None or not (home / "diverse" / "lengths.parquet").is_file():
        return "needs LENGTHWISE_DATA with castillo/, smollm2/ and diverse/"
    return None


def answer(found: RankerResult) -> str:
    """Whether the ranker is better."""
    last = found.latency[-1]
    return (
        f"On CASTILLO's test tau is {found.official['rank'].tau:.3f} with `rank` and {found.official['fast'].tau:.3f} "
        f"with `fast`. At load {last.load:g} `ltr` with the one has {multiple(last.e2e)} of the mean E2E of `sjf` with "
        f"the other, and {multiple(last.per_token)} of its time per token ({last.llm})."
    )


STUDY: Study[RankerGrid, RankerResult] = Study(
    name="ranker",
    title="A ranker on words",
    question="Is a predictor trained for the order alone better than one trained for lengths?",
    paper="LTR, arXiv 2408.15792",
    source="CASTILLO and diverse prompts",
    grid=RankerGrid(),
    quick=RankerGrid(
        seeds=3, parts=1, prompts_per_group=100, castillo_prompts=500, networks=1, epochs=1, requests=600, llms=(LLM,)
    ),
    minutes=(23, 0.7),
    measure=measure,
    tables=tables,
    answer=answer,
    needs=_needs,
)
