"""Learning in a burst: does a burst's own answers mislead the learner?

The first answers to finish are the short ones. A simulated engine with the step times that were measured on an H200
(as in `slots`), 32 slots, nothing learned at the start; bursts of CASTILLO's test prompts with Llama-3.1-8B's lengths
at twice the capacity. The same requests under `lengthwise` with the packaged model alone, with one that learns from
answers as they finish, and with one that learns in the order in which requests started, as every host does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from experiments.frontier import LLM, Gains, figures, load_samples
from experiments.slots import CAP, LOAD, STEPS, fitted
from experiments.study import Call, Run, SeededGrid, Study, table_of
from lengthwise.reports.tables import Table, multiple
from lengthwise.simulator import EngineSpec, Fleet, measure_capacity, simulate
from lengthwise.simulator.cluster import at_rate
from lengthwise.simulator.predictions import predict_workload
from lengthwise.workloads import castillo_workload

ALONE: Final = "the model alone"
BY_END: Final = "learning, as answers finish"
BY_START: Final = "learning, in order of start"
ARMS: Final = (ALONE, BY_END, BY_START)


@dataclass(frozen=True)
class BurstLearningGrid(SeededGrid):
    """Bursts and predictors."""

    requests: tuple[int, ...] = (288,)
    predictors: tuple[str, ...] = ("fast", "default")
    slots: int = 32
    steps: Path = STEPS


def burst(requests: int, predictor: str, seed: int, fleet: Fleet) -> dict[str, Any]:
    """Simulate one burst under FCFS, and under `lengthwise` by each way of learning."""
    samples = load_samples(predictor)
    slots = fleet.engines[0].max_num_seqs
    backlog = castillo_workload(samples, LLM, requests=6 * slots, rate=1.0, seed=seed, max_tokens=CAP)
    drawn = castillo_workload(samples, LLM, requests=requests, rate=1.0, seed=seed, max_tokens=CAP)
    arriving = at_rate(drawn, LOAD * measure_capacity(backlog, fleet).requests_per_s)
    base = simulate(arriving, fleet, "fcfs", predictor="none")
    learned = {
        name: predict_workload(arriving, f"{predictor}+learn", started_s=started_s, finished_s=base.finished_s)
        for name, started_s in ((BY_END, base.finished_s), (BY_START, base.started_s))
    }
    predictions = {ALONE: predict_workload(arriving, predictor), **learned}
    found: dict[str, Any] = {"fcfs": figures(base)}
    found |= {name: figures(simulate(arriving, fleet, "lengthwise", predictor=predictions[name])) for name in ARMS}
    return {**found, "tau": [predictions[name].tau for name in ARMS]}


@dataclass(frozen=True)
class Learned:
    """A way of learning in one kind of burst, over seeds."""

    requests: int
    predictor: str
    arm: str
    tau: float
    gains: Gains


def measure(run: Run, grid: BurstLearningGrid) -> list[Learned]:
    """Simulate every burst."""
    engine: EngineSpec = replace(fitted(grid.steps), max_num_seqs=grid.slots)
    cells = [(requests, predictor) for requests in grid.requests for predictor in grid.predictors]

    def task(at: tuple[int, str], seed: int) -> Call:
        return Call(burst, (*at, seed, Fleet((engine,))))

    return [
        Learned(*at, arm, sum(each["tau"][place] for each in runs) / len(runs), Gains.of(runs, arm))
        for at, runs in run.by_seed("bursts", cells, grid.seeds, task).items()
        for place, arm in enumerate(ARMS)
    ]


def tables(found: Sequence[Learned]) -> list[Table]:
    """tau and gains by burst, predictor and way of learning."""
    return [
        table_of(
            "Learning in a burst",
            found,
            [
                ("requests", lambda at: at.requests),
                ("predictor", lambda at: at.predictor),
                ("", lambda at: at.arm),
                ("tau", lambda at: f"{at.tau:.2f}"),
                ("mean E2E", lambda at: multiple(at.gains.mean, 2)),
                ("per token", lambda at: multiple(at.gains.per_token, 2)),
                ("p99", lambda at: multiple(at.gains.p99, 2)),
            ],
            ["mean, per token: fcfs over `lengthwise`; p99: `lengthwise` over fcfs; 95 % intervals over seeds"],
        )
    ]


def answer(found: Sequence[Learned]) -> str:
    """What the order of learning is worth in the first burst."""
    alone, by_end, by_start = found[: len(ARMS)]
    return (
        f"Learned from as they finish, the answers of a burst of {alone.requests} requests change tau of "
        f"`{alone.predictor}` from {alone.tau:.2f} to {by_end.tau:.2f} and its gain on the mean from "
        f"{alone.gains.mean.ratio:.2f}x to {by_end.gains.mean.ratio:.2f}x; in order of start to {by_start.tau:.2f} and "
        f"{by_start.gains.mean.ratio:.2f}x."
    )


STUDY: Study[BurstLearningGrid, list[Learned]] = Study(
    name="burst_learning",
    title="Learning in a burst",
    question="Do a burst's own answers mislead the learner?",
    source="CASTILLO",
    grid=BurstLearningGrid(),
    quick=BurstLearningGrid(requests=(128,), predictors=("fast",), seeds=2),
    minutes=(4, 0.5),
    measure=measure,
    tables=tables,
    answer=answer,
)
