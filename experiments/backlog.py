"""What the order of a backlog gains: a batch until its last answer, its first answers, and rollouts with barriers.

Simulated engines (Llama-3-8B on an A100), driven by `client.offline.Backlog`, as `lengthwise batch` and
`lengthwise.rollouts` drive real ones: an engine gets the next request when it has a free slot. The baseline is the same
in order of arrival. Lengths: CASTILLO's of Llama-3.1-8B cut at 4,096. For rollouts also lengths like those of reasoning
LLMs: log-normal with median 3,000 tokens, log standard deviation .6 between prompts and .6 between answers, cut at
16,384. Rollouts: an epoch is every prompt with eight answers, in steps; a step ends with its last answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.study import Run, SeededGrid, Study, table_of
from lengthwise.client.offline import Backlog
from lengthwise.client.rollouts import steps_of
from lengthwise.intervals import Ratio, over_seeds
from lengthwise.policies import Job, make_policy
from lengthwise.predictors.resolve import parse_predictor_spec
from lengthwise.reports.tables import Table, multiple
from lengthwise.simulator import Fleet, RequestPredictions, predict_workload
from lengthwise.simulator.acceleration import accelerated, engine_group
from lengthwise.simulator.predictions import noisy_medians, own_sigma
from lengthwise.simulator.traffic import Traffic
from lengthwise.workloads import Workload, castillo_workload, load_castillo

Floats = NDArray[np.float64]

ENGINE: Final = "llama-3-8b@a100"
LLM: Final = "meta-llama/Llama-3.1-8B-Instruct"
CUT: Final = 4096
FCFS: Final = "fcfs"
CASTILLO, REASONING = "CASTILLO", "reasoning-like"
REASONING_CUT: Final = 16_384
SAMPLES: Final = 8
LAST_EPOCH: Final = "last epoch"
TRUE: Final = "true"


@dataclass(frozen=True)
class BacklogGrid(SeededGrid):
    """Batches and rollouts."""

    seeds: int = 10
    requests: int = 8000
    engines: int = 8
    slots: int = 64
    predictors: tuple[str, ...] = ("noisy:0.55", "oracle")
    first: tuple[int, ...] = (1000, 4000)
    rollout_engines: tuple[int, ...] = (8, 2)
    rollout_prompts: int = 1024
    per_step: int = 64


@dataclass(frozen=True)
class Drained:
    """A backlog that has been answered."""

    finished_s: Floats
    """Of each request, by row."""
    predicted_s: float
    """The whole time, as predicted when a tenth was answered."""


def drain(
    workload: Workload, predictions: RequestPredictions, policy: str, *, engines: int, slots: int, lists: bool = False
) -> Drained:
    """Answer requests that all wait at 0; with `lists` each engine has its own, balanced by prediction beforehand."""
    traffic = Traffic.of(workload, predictions)
    fleet = Fleet.parse(f"{engines}*{ENGINE}").limited_to(max_num_seqs=slots)
    group = engine_group(fleet, make_policy(FCFS), traffic, accelerate=accelerated())
    jobs = [traffic.job(row) for row in range(len(workload))]
    if lists:
        owners = _lists(jobs, policy, engines=engines, slots=slots)
    else:
        owners = [Backlog(make_policy(policy), engines=engines, slots=slots)]
        for job in jobs:
            owners[0].push(job, 0.0)
    place = {job.id: owner for owner in owners for job in owner}
    for number in range(engines):
        group.start(number)
    now, done, predicted = 0.0, 0, float("nan")
    finished = np.full(len(jobs), np.nan)

    def send() -> None:
        for number, owner in enumerate(owners):
            while (found := owner.next(now)) is not None:
                job, engine = found
                row = int(job.id)
                traffic.requests["arrival"][row] = now
                group.submit(number if lists else engine, row, now)

    send()
    while done < len(jobs):
        now = max(np.nextafter(now, np.inf), float(group.next_event_s.min()))
        ended = [event for event in group.happened(now) if event[2]]
        for _, row, _, at_s, generated, _ in ended:
            place[str(row)].ended(str(row), at_s, generated)
            finished[row] = at_s
        done += len(ended)
        if done * 10 >= len(jobs) and np.isnan(predicted) and not lists:
            left_s = owners[0].left_s(now)
            predicted = now + (0.0 if left_s is None else left_s)
        if ended:
            send()
    return Drained(finished, predicted)


def _lists(jobs: Sequence[Job], policy: str, *, engines: int, slots: int) -> list[Backlog]:
    """Return a backlog for each engine, filled by predicted work before anything runs."""
    whole = Backlog(make_policy(policy), engines=engines, slots=len(jobs))
    owners = [Backlog(make_policy(policy), engines=1, slots=slots) for _ in range(engines)]
    for job in jobs:
        whole.push(job, 0.0)
    while (found := whole.next(0.0)) is not None:
        owners[found[1]].push(found[0], 0.0)
    return owners


def batch_seed(grid: BacklogGrid, seed: int) -> dict[str, Any]:
    """Answer one backlog in every order: makespan, time to the first answers, and the predicted makespan."""
    samples = load_castillo().where(llm=LLM)
    drawn = castillo_workload(samples, LLM, requests=grid.requests, rate=1.0, seed=seed, max_tokens=CUT)
    requests = drawn.replace(arrival_s=np.zeros(grid.requests))
    known = {name: predict_workload(requests, name, seed=seed) for name in grid.predictors}
    base = drain(requests, known[grid.predictors[0]], FCFS, engines=grid.engines, slots=grid.slots)
    found: dict[str, Any] = {FCFS: _times(base, grid)}
    for name, predictions in known.items():
        runs = {"lept": False, "lept, lists": True}
        for label, lists in runs.items():
            run = drain(requests, predictions, "lept", engines=grid.engines, slots=grid.slots, lists=lists)
            found[f"{label} {name}"] = _times(run, grid)
        for policy in ("sjf", "tie"):
            run = drain(requests, predictions, policy, engines=grid.engines, slots=grid.slots)
            found[f"{policy} {name}"] = _times(run, grid)
    return found


def _times(run: Drained, grid: BacklogGrid) -> list[float]:
    """Return the makespan, its prediction, and the times of the first answers."""
    ends = np.sort(run.finished_s)
    return [float(ends[-1]), run.predicted_s, *(float(ends[min(k, len(ends)) - 1]) for k in grid.first)]


@lru_cache(maxsize=2)
def _castillo() -> tuple[Floats, Floats]:
    samples = load_castillo().where(llm=LLM)
    whole = samples.clean_mask().all(axis=1)
    lengths = np.minimum(samples.lengths_matrix()[whole], CUT).astype(np.float64)
    return lengths, samples.table["input_tokens"].to_numpy()[whole].astype(np.float64)


def drawn_lengths(lengths: str, prompts: int, seed: int) -> tuple[Floats, Floats]:
    """Return nine answer lengths of each prompt, eight and one of the last epoch, and the prompts' tokens."""
    rng = np.random.default_rng([seed, 7])
    if lengths == CASTILLO:
        every, tokens = _castillo()
        rows = rng.permutation(len(every))[:prompts]
        return rng.permuted(every[rows], axis=1)[:, : SAMPLES + 1], tokens[rows]
    logs = np.log(3000.0) + 0.6 * rng.standard_normal((prompts, 1)) + 0.6 * rng.standard_normal((prompts, SAMPLES + 1))
    return np.clip(np.rint(np.exp(logs)), 1, REASONING_CUT), np.full(prompts, 200.0)


def predicted_lengths(lengths: Floats, predictor: str, seed: int) -> Floats:
    """Return the predicted median of each prompt; of true lengths each answer's own."""
    if predictor == TRUE:
        return lengths[:, :SAMPLES]
    if predictor == LAST_EPOCH:
        return lengths[:, SAMPLES]
    caps = np.full(len(lengths), float(REASONING_CUT))
    return noisy_medians(parse_predictor_spec(predictor), lengths.mean(axis=1), caps, seed)


def rollouts_seed(grid: BacklogGrid, lengths: str, engines: int, seed: int) -> dict[str, float]:
    """Return the time of an epoch: random steps in order of arrival, and what each prediction makes of it."""
    true, tokens = drawn_lengths(lengths, grid.rollout_prompts, seed)
    none = np.full(len(true), 1.0)
    found = {FCFS: epoch_s(true, tokens, none, FCFS, grid, engines, seed)}
    for predictor in (grid.predictors[0], LAST_EPOCH, TRUE):
        medians = predicted_lengths(true, predictor, seed)
        found[f"random {predictor}"] = epoch_s(true, tokens, medians, "lept", grid, engines, seed, like=False)
        found[f"like {predictor}"] = epoch_s(true, tokens, medians, "lept", grid, engines, seed)
        found[f"lists {predictor}"] = epoch_s(true, tokens, medians, "lept", grid, engines, seed, lists=True)
    return found


def epoch_s(
    true: Floats,
    tokens: Floats,
    medians: Floats,
    policy: str,
    grid: BacklogGrid,
    engines: int,
    seed: int,
    *,
    like: bool = True,
    lists: bool = False,
) -> float:
    """Return the seconds of an epoch whose steps wait for their last answer."""
    by = medians if medians.ndim == 1 else medians.max(axis=1)
    rng = np.random.default_rng([seed, 11])
    total = 0.0
    for rows in steps_of(by if like else np.zeros(len(by)), grid.per_step, rng):
        output = true[rows, :SAMPLES].ravel().astype(np.int64)
        step = Workload.from_table(
            {
                "arrival_s": np.zeros(len(output)),
                "input_tokens": np.repeat(tokens[rows], SAMPLES).astype(np.int64),
                "output_tokens": output,
            },
            name="step",
        )
        said = medians[rows].ravel() if medians.ndim == 2 else np.repeat(medians[rows], SAMPLES)
        exact = predict_workload(step, "oracle")
        spread = (
            np.zeros(len(said))
            if medians.ndim == 2
            else np.full(len(said), own_sigma(true[rows, :SAMPLES].ravel(), said))
        )
        predictions = replace(exact, mu=np.log(said), sigma=spread, cap=np.full(len(said), float(REASONING_CUT)))
        run = drain(step, predictions, policy, engines=engines, slots=grid.slots, lists=lists)
        total += float(run.finished_s.max())
    return total


@dataclass(frozen=True)
class Gain:
    """A setting and what it gains over FCFS."""

    setting: str
    order: str
    predictor: str
    gain: Ratio


@dataclass(frozen=True)
class BacklogResult:
    """What is measured."""

    grid: BacklogGrid
    makespan: list[Gain]
    first: list[Gain]
    error: Ratio
    """Predicted over real makespan of `lept`, when a tenth was answered."""
    rollouts: list[Gain]


def measure(run: Run, grid: BacklogGrid) -> BacklogResult:
    """Simulate all seeds."""
    seeds = range(grid.seeds)
    batches = run.each("batches", batch_seed, [(grid, seed) for seed in seeds])

    def gain(name: str, place: int) -> Ratio:
        return over_seeds([each[FCFS][place] for each in batches], [each[name][place] for each in batches])

    makespan, first = [], []
    for name in grid.predictors:
        labels = ("lept", "lept, lists")
        makespan += [Gain(f"{grid.requests:,}", label, name, gain(f"{label} {name}", 0)) for label in labels]
        for place, k in enumerate(grid.first, start=2):
            first += [Gain(f"{k:,}", policy, name, gain(f"{policy} {name}", place)) for policy in ("sjf", "tie")]
    named = f"lept {grid.predictors[0]}"
    error = over_seeds([each[named][1] for each in batches], [each[named][0] for each in batches])
    rollouts = []
    for lengths in (CASTILLO, REASONING):
        for engines in grid.rollout_engines:
            label = f"{lengths}, {engines} engines"
            found = run.each(label, rollouts_seed, [(grid, lengths, engines, seed) for seed in seeds])
            for predictor in (grid.predictors[0], LAST_EPOCH, TRUE):
                for order in ("random", "like", "lists"):
                    name = f"{order} {predictor}"
                    ratio = over_seeds([each[FCFS] for each in found], [each[name] for each in found])
                    rollouts.append(Gain(label, order, predictor, ratio))
    return BacklogResult(grid, makespan, first, error, rollouts)


_STEPS: Final = {"random": "random prompts", "like": "like lengths", "lists": "like lengths, lists made beforehand"}


def tables(found: BacklogResult) -> list[Table]:
    """Gains over FCFS, above 1 is better."""
    grid = found.grid
    place = f"{grid.engines} engines of {grid.slots} slots"
    return [
        table_of(
            f"A backlog of {grid.requests:,} on {place}: time to the last answer, FCFS over the order",
            found.makespan,
            [("order", lambda each: each.order), ("predictions", lambda each: each.predictor), ("gain", _gain)],
            [f"predicted over real time, when a tenth was answered ({grid.predictors[0]}): {multiple(found.error)}"],
        ),
        table_of(
            "The same backlog: time to the first K answers, FCFS over the order",
            found.first,
            [("K", lambda each: each.setting), ("order", lambda each: each.order),
             ("predictions", lambda each: each.predictor), ("gain", _gain)],
        ),
        table_of(
            f"Rollouts, {grid.per_step} prompts with {SAMPLES} answers a step: time of an epoch, FCFS over the order",
            found.rollouts,
            [("lengths", lambda each: each.setting), ("steps", lambda each: _STEPS[each.order]),
             ("predictions", lambda each: each.predictor), ("gain", _gain)],
            ["FCFS: random prompts in a step"],
            lambda each: each.setting,
        ),
    ]  # fmt: skip


def _gain(each: Gain) -> Ratio:
    return each.gain


def answer(found: BacklogResult) -> str:
    """The gain of a batch."""
    best = found.makespan[0]
    return f"Longest first ends a batch {best.gain.ratio:.2f} times sooner than FCFS ({best.predictor})."


STUDY: Study[BacklogGrid, BacklogResult] = Study(
    name="backlog",
    title="Batches and rollouts",
    question="What does the order of a backlog gain, for its last answer, its first ones, and steps with barriers?",
    source="CASTILLO",
    grid=BacklogGrid(),
    quick=BacklogGrid(
        seeds=2, requests=300, engines=2, slots=16, first=(50,), rollout_engines=(2,), rollout_prompts=24, per_step=8
    ),
    minutes=(8, 0.2),
    measure=measure,
    tables=tables,
    answer=answer,
)
