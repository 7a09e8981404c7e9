"""The packaged ranker: is a predictor that is trained for the order alone better for scheduling than one for lengths?

LTR (arXiv 2408.15792) trains a ranker by ListMLE. `rank` is one on the description that `fast` uses, so that `ltr` with
it beside `sjf` with `fast` is the paper's comparison with the same input. Beside the packaged files, both recipes are
trained here without a teacher, which `fast` had: with all kinds of prompts, and without some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from experiments.left_out_groups import LeftOutGroupsGrid, sampled
from experiments.study import Run, SeededGrid, Study, table_of
from experiments.tie.study import draws, find, fleet, over
from lengthwise.errors import InputError
from lengthwise.files import data_home
from lengthwise.intervals import Ratio
from lengthwise.predictors import load_predictor
from lengthwise.predictors.adapt import unknown_llms_unlogged
from lengthwise.predictors.fast import FastPredictor
from lengthwise.reports.tables import Table, share
from lengthwise.simulator.grid import Plan, run_grid
from lengthwise.traffic.scores import PredictionScores
from lengthwise.training.data import SMOLLM2
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
from lengthwise.workloads.datasets import CASTILLO_GROUPS

RECIPES: Final[Mapping[str, Literal["", "all", "kind"]]] = {
    "lengths": "",
    "order of all": "all",
    "order within a kind": "kind",
}
PAIRS: Final = {"ltr": "rank", "sjf": "fast"}
"""The policies that are compared, and the predictor of each."""


@dataclass(frozen=True)
class RankerGrid(SeededGrid):
    """The trainings without kinds, and the simulations."""

    parts: int = 2
    """Trainings that leave out a share of the kinds outside CASTILLO each; 0: none."""
    prompts_per_group: int = 2_500
    castillo_prompts: int = 0
    """Most prompts of CASTILLO; 0: all."""
    networks: int = 4
    epochs: int = 10
    loads: tuple[float, ...] = (0.9, 1.1, 1.5)
    requests: int = 1_500


@dataclass(frozen=True)
class Latency:
    """`ltr` with the ranker over `sjf` with `fast` at a load, and what the latter has over FCFS."""

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
    packaged = {name: _fast(name) for name in PAIRS.values()}
    everything = training_pairs(ships=True)
    test = official_test(everything)
    limits = LeftOutGroupsGrid(prompts_per_group=grid.prompts_per_group, castillo_prompts=grid.castillo_prompts)
    table = sampled(everything.take(everything.trainable()), limits)
    official = {name: _official(each, test) for name, each in packaged.items()}
    always = (*CASTILLO_GROUPS, MADE)
    kinds = [name for name in table.groups if name not in always and table.in_groups([name]).any()]
    left: dict[str, dict[str, float]] = {name: {} for name in kinds if grid.parts}
    trained = run.part(0.0, 0.8, "")
    for number, (recipe, ranker) in enumerate(RECIPES.items()):
        trainer = FastTrainer(
            Vocabulary.of_packaged(packaged["fast"]),
            FastRecipe(networks=grid.networks, epochs=grid.epochs, ranker=ranker),
        )
        official[f"{recipe}, no teacher"] = _official(trainer.fit(table), test)
        for part in range(grid.parts):
            out = kinds[part :: grid.parts]
            trained(f"{recipe}, without {', '.join(out)}", (number + part / grid.parts) / len(RECIPES))
            fitted = trainer.fit(table.take(~table.in_groups(out)))
            for name in out:
                own = table.take(table.in_groups([name]))
                left[name][recipe] = score_pairs(own, *predicted(fitted, own)).tau
    return RankerResult(grid, official, left, _latencies(run, grid))


def _fast(name: str) -> FastPredictor:
    found = load_predictor(name)
    if not isinstance(found, FastPredictor):
        raise InputError("is no network on words", source=name)
    return found


def _official(predictor: FastPredictor, test: PairTable) -> PredictionScores:
    return score_pairs(test, *predicted(predictor, test), only=[llm for llm in test.llms if llm != SMOLLM2])


def _latencies(run: Run, grid: RankerGrid) -> tuple[Latency, ...]:
    plan = Plan(fleet(), ("fcfs", *PAIRS), tuple(PAIRS.values()), loads=grid.loads, seeds=range(grid.seeds))
    found = run_grid(plan, draws(run.castillo().where(split="test"), grid.requests), on_progress=run.part(0.8, 1.0, ""))
    rows = []
    for offered in found.offered_loads:
        fcfs, ltr, sjf = (find(found, policy, PAIRS.get(policy, ""), offered) for policy in ("fcfs", *PAIRS))
        rows.append(
            Latency(
                offered.load,
                {name: found.tau(name) for name in PAIRS.values()},
                over(ltr, sjf, "e2e_s"),
                over(ltr, sjf, "e2e_s", "p99"),
                over(ltr, sjf, "per_token_s"),
                over(sjf, fcfs, "e2e_s"),
            )
        )
    return tuple(rows)


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
            ("load", lambda row: f"{row.load:g}"),
            ("tau", lambda row: ", ".join(f"{tau:.3f}" for tau in row.tau.values())),
            ("E2E", lambda row: row.e2e),
            ("E2E p99", lambda row: row.p99),
            ("per token", lambda row: row.per_token),
            ("sjf over FCFS, E2E", lambda row: row.fcfs),
        ],
        [f"{grid.requests:,} requests of CASTILLO's test, {grid.seeds} paired seeds; below 1 is better"],
    )
    return [official, *([left] if rows else []), latency]


def _needs(_: RankerGrid) -> str | None:
    home = data_home()
    if home is None or not (home / "diverse" / "lengths.parquet").is_file():
        return "needs LENGTHWISE_DATA with castillo/, smollm2/ and diverse/"
    return None


def answer(found: RankerResult) -> str:
    """Whether the ranker is better."""
    worst = max(found.latency, key=lambda row: row.load)
    return (
        f"On CASTILLO's test tau is {found.official['rank'].tau:.3f} with `rank` and {found.official['fast'].tau:.3f} "
        f"with `fast`; at load {worst.load:g} `ltr` with the one has {worst.e2e.ratio:.3f} "
        f"[{worst.e2e.low:.3f}, {worst.e2e.high:.3f}] of the mean E2E of `sjf` with the other."
    )


STUDY: Study[RankerGrid, RankerResult] = Study(
    name="ranker",
    title="A ranker on words",
    question="Is a predictor trained for the order alone better than one trained for lengths?",
    paper="LTR, arXiv 2408.15792",
    source="CASTILLO and diverse prompts",
    grid=RankerGrid(),
    quick=RankerGrid(seeds=3, prompts_per_group=200, castillo_prompts=1_000, networks=1, epochs=2, requests=600),
    minutes=(8, 1),
    serial=True,
    measure=measure,
    tables=tables,
    answer=answer,
    needs=_needs,
)
