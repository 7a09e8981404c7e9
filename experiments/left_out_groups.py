"""Prompts of kinds that training left out: how well does the recipe of `fast` order and cover their lengths?

The groups of `workloads/datasets.py` and CASTILLO's code and chat corpora are left out in turn, with one fixed recipe:
the word tables, the networks and the widening of the spread are all fitted without the group. Beside it: the same
recipe on CASTILLO alone (on the other half of CASTILLO, for a group of CASTILLO). Both are trained on lengths only,
without a teacher. Last, the online calibration of the gateway on top, which observes each answer of the group.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.left_out import lacks_minilm, one_thread, stored_vectors
from experiments.study import Run, Study
from lengthwise.files import data_home
from lengthwise.lengths import log_t
from lengthwise.predictors.adapt import unknown_llms_unlogged
from lengthwise.predictors.contract import PredictionInput
from lengthwise.predictors.fast import FastPredictor
from lengthwise.predictors.learner import KnownPrompts, Learner
from lengthwise.predictors.text_regression import NOTHING
from lengthwise.reports.tables import Table, share, signed
from lengthwise.traffic.scores import PredictionScores
from lengthwise.training.data import SMOLLM2
from lengthwise.training.encoder.pack import MADE
from lengthwise.training.fast.train import (
    FastRecipe,
    FastTrainer,
    LeftOutPairs,
    capped,
    fit_widening,
    official_test,
    predicted,
    training_pairs,
)
from lengthwise.training.fast.word_tables import Vocabulary
from lengthwise.training.pairs import MIN_PROMPTS, PairTable, score_pairs
from lengthwise.workloads.datasets import CASTILLO_GROUPS

TARGET_TAU: Final = 0.08
"""Wanted gain of the mean tau over CASTILLO alone."""
TARGET_COVERAGE: Final = (0.85, 0.95)
ENOUGH_PROMPTS: Final = 500
"""A group with fewer prompts has no target for its coverage."""
OBSERVED: Final = 20
"""Answers of an LLM after which the intervals of online calibration are scored."""


@dataclass(frozen=True)
class LeftOutGroupsGrid:
    """The recipe, and how many trainings leave groups out."""

    parts: int = 0
    """Trainings that leave out a share of the groups outside CASTILLO each; 0: one training for each group."""
    prompts_per_group: int = 3_000
    """Most prompts of a group outside CASTILLO, drawn at random."""
    castillo_prompts: int = 0
    """Most prompts of CASTILLO, drawn at random; 0: all."""
    networks: int = 4
    epochs: int = 8
    ships: bool = True
    """Only sources of clear licences, as for the packaged predictor."""
    vectors: Path | None = None
    """File that stores the words' embeddings between runs."""
    seed: int = 0


@dataclass(frozen=True)
class LeftOutGroup:
    """One group: trained on CASTILLO alone, and on CASTILLO and the other groups."""

    group: str
    prompts: int
    alone: PredictionScores
    others: PredictionScores
    online: float
    """Coverage of 90 % intervals with online calibration."""


@dataclass(frozen=True)
class LeftOutGroupsResult:
    """One row per group, and the official test of CASTILLO by training."""

    grid: LeftOutGroupsGrid
    rows: tuple[LeftOutGroup, ...]
    official: Mapping[str, PredictionScores]
    widening: float
    """Fitted on all left-out groups, for a predictor that ships."""

    @property
    def gain(self) -> float:
        """Difference of the mean tau."""
        return float(np.nanmean([row.others.tau - row.alone.tau for row in self.rows]))


@unknown_llms_unlogged()  # most LLMs of a left-out group
def measure(run: Run, grid: LeftOutGroupsGrid) -> LeftOutGroupsResult:
    """Train without each group, and on CASTILLO alone; score both."""
    table, _ = _tables(grid)
    diverse = [name for name in table.groups if name not in (*CASTILLO_GROUPS, MADE) and table.in_groups([name]).any()]
    parts = [diverse[n :: grid.parts] for n in range(grid.parts)] if grid.parts else [[name] for name in diverse]

    def but(left_out: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in table.groups if name not in left_out)

    # By label: the groups that are trained on, and those that are scored.
    alone = {"CASTILLO alone": (tuple(CASTILLO_GROUPS), tuple(diverse))}
    without = {f"without {', '.join(part)}": (but(part), tuple(part)) for part in parts}
    shown = (*alone, *without)
    for name, other in itertools.permutations(CASTILLO_GROUPS):
        alone[f"{other} alone"] = ((other,), (name,))
        without[f"without {name}"] = (but([name]), (name,))
    every = alone | without
    vectors = stored_vectors(run, grid.vectors, table.texts)
    trained = run.each("trainings", train, [(grid, vectors, *each) for each in every.values()])
    found = dict(zip(every, trained, strict=True))

    def pairs(trainings: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> dict[str, LeftOutPairs]:
        return {
            name: LeftOutPairs(table.take(table.in_groups([name])), *map(np.array, found[label]["pairs"][name]))
            for label, (_, scored) in trainings.items()
            for name in scored
        }

    left, beside = pairs(without), pairs(alone)
    nu, rows = found["CASTILLO alone"]["nu"], []
    for name, own in left.items():
        widening = fit_widening([each for group, each in left.items() if group != name], nu)
        sigma, base = own.spread(widening), beside[name]
        online = online_coverage(own.table, own.mu, sigma, nu, grid.seed)
        scores = (score_pairs(base.table, base.mu, base.sigma, nu), score_pairs(own.table, own.mu, sigma, nu))
        rows.append(LeftOutGroup(name, len(own.table), *scores, online))
    official = {name: PredictionScores(**found[name]["official"]) for name in shown}
    return LeftOutGroupsResult(grid, tuple(rows), official, fit_widening(list(left.values()), nu))


def train(grid: LeftOutGroupsGrid, vectors: Path, learned: tuple[str, ...], others: tuple[str, ...]) -> dict[str, Any]:
    """Train on some groups; score on CASTILLO's official test, and predict the pairs of others."""
    table, test = _tables(grid)
    recipe = FastRecipe(networks=grid.networks, epochs=grid.epochs)
    trainer = FastTrainer(Vocabulary.stored(vectors, table.texts), recipe)
    with unknown_llms_unlogged(), one_thread():
        fitted = trainer.fit(table.take(table.in_groups(learned)), grid.seed)
        pairs = {name: LeftOutPairs.of(fitted, table.take(table.in_groups([name]))) for name in others}
        return {
            "official": asdict(official_scores(fitted, test)),
            "nu": fitted.calibration.nu,
            "pairs": {name: [column.tolist() for column in (p.mu, p.sigma, p.apart)] for name, p in pairs.items()},
        }


@lru_cache(maxsize=1)
def _tables(grid: LeftOutGroupsGrid) -> tuple[PairTable, PairTable]:
    """Return what is trained on or left out, and CASTILLO's official test; kept for this process's later trainings."""
    everything = training_pairs(ships=grid.ships)
    return sampled(everything.take(everything.trainable()), grid), official_test(everything)


def online_coverage(
    table: PairTable, mu: NDArray[np.float64], sigma: NDArray[np.float64], nu: float, seed: int = 0
) -> float:
    """Return the coverage of 90 % intervals with the gateway's online calibration, mean over LLMs.

    Each LLM has traffic of this table only: its prompts in random order, one answer each, predicted and then observed.
    The first OBSERVED answers and capped ones are not scored.
    """
    reach, known = log_t.isf(0.05, nu), KnownPrompts(mu, sigma, [NOTHING] * len(mu))
    rng = np.random.default_rng(seed)
    shares = []
    for llm in range(len(table.llms)):
        rows = rng.permutation(np.flatnonzero((table.llm == llm) & (table.lengths > 0).any(axis=1)))
        if len(rows) < MIN_PROMPTS:
            continue
        learner, inside = Learner(known, learning=False), []
        for number, row in enumerate(rows):
            sample = int((table.lengths[row] > 0).argmax())
            length, capped_answer = float(table.lengths[row, sample]), bool(table.censored[row, sample])
            request = PredictionInput(str(row), table.llms[llm])
            found = learner.predict([request])
            if number >= OBSERVED and not capped_answer:
                inside.append(abs(math.log(length) - found.mu[0]) <= reach * found.sigma[0])
            learner.observe(request, length, censored=capped_answer)
        if inside:
            shares.append(np.mean(inside))
    return float(np.mean(shares)) if shares else math.nan


def sampled(table: PairTable, grid: LeftOutGroupsGrid) -> PairTable:
    """At most `prompts_per_group` prompts of a group, and `castillo_prompts` of CASTILLO."""
    table = capped(table, grid.prompts_per_group, grid.seed)
    castillo = np.flatnonzero(table.in_groups(list(CASTILLO_GROUPS)))
    drawn = np.random.default_rng(grid.seed).permutation(castillo)
    left_out = drawn[grid.castillo_prompts :] if grid.castillo_prompts else drawn[:0]
    return table.take(~np.isin(np.arange(len(table)), left_out))


def official_scores(predictor: FastPredictor, test: PairTable) -> PredictionScores:
    """Return the scores on CASTILLO's official test, without SmolLM2's lengths."""
    return score_pairs(test, *predicted(predictor, test), only=[llm for llm in test.llms if llm != SMOLLM2])


def tables(found: LeftOutGroupsResult) -> list[Table]:
    """One row per group, and one for each training on the official test."""
    low, high = TARGET_COVERAGE
    columns = ["left out", "prompts", "LLMs", "tau, CASTILLO alone", "tau, with the other groups", "gain",
               "in 90 %, alone", "in 90 %", "in 90 %, online", "median error", "covered"]  # fmt: skip
    rows = [
        [
            row.group,
            str(row.prompts),
            str(row.others.llms),
            f"{row.alone.tau:.3f}",
            f"{row.others.tau:.3f}",
            signed(row.others.tau - row.alone.tau),
            share(row.alone.coverage_90),
            share(row.others.coverage_90),
            share(row.online),
            f"x{np.exp(row.others.log_error):.2f}",
            "–" if row.prompts < ENOUGH_PROMPTS else "yes" if low <= row.others.coverage_90 <= high else "no",
        ]
        for row in found.rows
    ]
    mean = [np.nanmean([[row.alone.tau, row.others.tau] for row in found.rows], axis=0)]
    rows += [["mean", "", "", f"{mean[0][0]:.3f}", f"{mean[0][1]:.3f}", signed(found.gain), "", "", "", "", ""]]
    grid = found.grid
    left = "one group" if grid.parts == 0 else f"every {grid.parts}th group"
    notes = [
        f"each training leaves out {left}; tau over LLMs with at least 30 prompts",
        f"at most {grid.prompts_per_group} prompts of a group, {grid.networks} networks, {grid.epochs} epochs",
        f"wanted: mean gain {TARGET_TAU:+.2f}; {low:.0%} to {high:.0%} covered from {ENOUGH_PROMPTS} prompts on",
        f"online: with the online calibration of each LLM, from answer {OBSERVED + 1} on",
        "median error: factor between predicted median and mean length",
        f"widening of the spread where networks disagree, fitted on all left-out groups: {found.widening:g}",
    ]
    official = [[name, f"{score.tau:.3f}", share(score.coverage_90)] for name, score in found.official.items()]
    return [
        Table("Groups of prompts left out of training", columns, rows, notes),
        Table("CASTILLO's official test, six corpora", ["training", "tau", "in 90 %"], official, []),
    ]


def _needs(_: LeftOutGroupsGrid) -> str | None:
    home = data_home()
    if home is None or not (home / "diverse" / "lengths.parquet").is_file():
        return "needs LENGTHWISE_DATA with castillo/, smollm2/ and diverse/"
    return lacks_minilm()


def answer(found: LeftOutGroupsResult) -> str:
    """What the other groups bring to one that is left out, and whether intervals hold there."""
    low, high = TARGET_COVERAGE
    large = [row for row in found.rows if row.prompts >= ENOUGH_PROMPTS]
    covered = sum(low <= row.others.coverage_90 <= high for row in large)
    online = sum(low <= row.online <= high for row in large)
    tau = float(np.nanmean([row.others.tau for row in found.rows]))
    words = f"{covered} of {len(large)} groups with {ENOUGH_PROMPTS} prompts or more"
    return (
        f"On a group that training left out, tau is {tau:.3f} on average; the other groups change it by "
        f"{found.gain:+.3f} ({TARGET_TAU:+.2f} wanted). 90 % intervals hold {low:.0%} to {high:.0%} in {words}, "
        f"with online calibration in {online}."
    )


STUDY: Study[LeftOutGroupsGrid, LeftOutGroupsResult] = Study(
    name="left_out_groups",
    title="Prompts of kinds left out of training",
    question="How well does `fast` predict prompts of kinds that it was not trained on?",
    source="CASTILLO and diverse prompts",
    grid=LeftOutGroupsGrid(),
    quick=LeftOutGroupsGrid(parts=2, prompts_per_group=100, castillo_prompts=500, networks=2, epochs=1),
    minutes=(20, 0.9),
    measure=measure,
    tables=tables,
    answer=answer,
    needs=_needs,
)
