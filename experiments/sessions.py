"""Sessions of agents in a closed loop: the time of a session by policy, beside least attained service.

One simulated engine (Llama-3-8B on an A100, 16 slots), to drain; the same sessions, think times, lengths and
predictions (log error 0.7 of each turn's length) for every policy of a seed. CASTILLO turns: five kinds of agents with
on average 1, 2, 4, 8 and 16 turns (geometric), each as many sessions, a prompt of CASTILLO's test part per turn with
the lengths of Llama-3.1-8B cut at 2,048, 2 s of thinking. ReAct: `lengthwise.workloads.react_sessions`, 1 s of a tool.
How many turns are to come is not known: `sessions` learns it by kind.

What is possible: the same sessions 20 times as far apart, so that no one waits for another ("alone"), and two orders
that know the turns to come: the tokens of the session's rest, and those with a log error of 0.7 at each turn. A third
knows the mean rest of all sessions of the kind at this turn: what kind and turn tell, without error. They are not aged.
Above load 1 the queue grows while sessions arrive, so the gain grows with the number of requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments.study import Run, SeededGrid, Study, table_of
from lengthwise.intervals import Ratio, over_seeds
from lengthwise.policies import Fcfs, Job
from lengthwise.policies.protocol import Policy, Rounds, Slots, one_slot
from lengthwise.policies.wrappers import RoundsWrapper
from lengthwise.prefixes import BLOCK_TOKENS
from lengthwise.reports.tables import Table
from lengthwise.simulator import Fleet, measure_capacity, predict_workload, simulate
from lengthwise.workloads import Workload, castillo_workload, into_sessions, load_castillo, react_sessions

TURNS: Final = (1, 2, 4, 8, 16)
"""Mean turns of the kinds of agents of CASTILLO turns."""
ALONE, TRUE_REST, NOISY_REST = "alone", "true rest", "true rest, log error 0.7"
MEAN_REST: Final = "mean rest of its kind"
ATTAINED: Final = "least attained service"
_APART: Final = 20.0  # times the time between sessions, where they are alone
_REST_ERROR: Final = 0.7
_TOKENS_PER_ROUND: Final = 16


@dataclass(slots=True)
class _Attained:
    """Rounds by the tokens that a session was given so far; nothing is aged."""

    tokens: dict[str, int] = field(default_factory=dict)

    def enter(self, job: Job) -> int:
        return self.tokens.get(job.session or job.id, 0) // _TOKENS_PER_ROUND

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        return round_number

    def admitted(self, round_number: int) -> None:
        """Do nothing."""

    def finished(self, job: Job) -> None:
        name = job.session or job.id
        self.tokens[name] = self.tokens.get(name, 0) + job.generated


@dataclass(frozen=True)
class LeastAttained(RoundsWrapper):
    """The session with the fewest tokens so far first: needs no lengths, and starves long sessions."""

    def make_rounds(self) -> Rounds:
        """Return the tokens of sessions."""
        return _Attained()

    def rounds(self, slots: Slots = one_slot) -> Rounds:
        """Return the tokens of sessions: the inner policy has no rounds."""
        return self.make_rounds()


@dataclass(slots=True)
class _Rest:
    """Rounds by the rest of a session, known by row; nothing is aged."""

    rest: NDArray[np.float64]

    def enter(self, job: Job) -> int:
        return int(self.rest[int(job.id)]) // _TOKENS_PER_ROUND

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        return round_number

    def admitted(self, round_number: int) -> None:
        """Do nothing."""

    def finished(self, job: Job) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class LeastRest(RoundsWrapper):
    """The session with the least rest first, known beforehand: what `sessions` predicts."""

    rest: NDArray[np.float64]

    def make_rounds(self) -> Rounds:
        """Return the rest by row."""
        return _Rest(self.rest)

    def rounds(self, slots: Slots = one_slot) -> Rounds:
        """Return the rest by row: the inner policy has no rounds."""
        return self.make_rounds()


def rest_of_sessions(workload: Workload) -> NDArray[np.float64]:
    """Return the answer tokens of each turn and of those of its session after it, by row."""
    rest = workload.output_tokens.astype(np.float64)
    for row in range(len(workload) - 1, -1, -1):
        following = workload.next_turn[row]
        if following >= 0:
            rest[row] += rest[following]
    return rest


def mean_rest_of_kinds(workload: Workload) -> NDArray[np.float64]:
    """Return the mean rest of the sessions with a row's template at the row's turn, by row."""
    turn = np.ones(len(workload), np.int64)
    for row, following in enumerate(workload.next_turn.tolist()):
        if following >= 0:
            turn[following] = turn[row] + 1
    kind = np.unique(workload.table["template"].to_numpy(zero_copy_only=False).astype(str), return_inverse=True)[1]
    group = np.unique(np.column_stack((kind, turn)), axis=0, return_inverse=True)[1]
    return np.asarray((np.bincount(group, rest_of_sessions(workload)) / np.bincount(group))[group])


@dataclass(frozen=True)
class SessionsGrid(SeededGrid):
    """Seeds, requests, loads and policies."""

    seeds: int = 5
    requests: int = 10_000
    workloads: tuple[str, ...] = ("CASTILLO turns", "ReAct agents")
    loads: tuple[float, ...] = (0.95, 1.1)
    slots: int = 16
    predictor: str = "noisy:log=0.7"
    policies: tuple[str, ...] = ("lengthwise", ATTAINED, "sessions(fcfs)", MEAN_REST, NOISY_REST, TRUE_REST, ALONE)


def castillo_turns(requests: int, seed: int) -> Workload:
    """Return the sessions of all kinds of agents, at one request per second."""
    samples, per = load_castillo(split="test"), requests / sum(TURNS)
    parts = []
    for kind, turns in enumerate(TURNS):
        n, drawn = round(per * turns), [seed, kind]
        own = int(np.random.default_rng(drawn).integers(2**31))
        prompts = castillo_workload(samples, "llama-3.1-8b", requests=n, rate=n / requests, seed=own, max_tokens=2048)
        part = into_sessions(prompts, turns=turns, think_s=2.0, seed=own, closed_loop=True)
        names = [f"{kind}-{name}" for name in part.table["session"].to_pylist()]
        parts.append(part.replace(session=names, template=f"{turns} turns").table)
    table = pa.concat_tables(parts)
    order = np.argsort(table["arrival_s"].to_numpy(), kind="stable")
    return Workload.from_table(table.take(pa.array(order)), name="CASTILLO turns", block_size=BLOCK_TOKENS)


def sessions_seed(workload: str, load: float, seed: int, grid: SessionsGrid) -> dict[str, Any]:
    """Simulate all policies on one seed: mean, p50 and p99 of the time of a session (s), and the cached share."""
    fleet = Fleet.parse("llama-3-8b@a100").limited_to(max_num_seqs=grid.slots)
    if workload == "CASTILLO turns":
        requests = castillo_turns(grid.requests, seed)
    else:
        requests = react_sessions(sessions=max(1, grid.requests // 7), rate=1.0, seed=seed)
    rate = load * measure_capacity(requests, fleet).requests_per_s
    requests = requests.replace(arrival_s=requests.arrival_s / (rate / requests.rate))
    predictions = predict_workload(requests, grid.predictor, seed=seed)
    rest = rest_of_sessions(requests)
    error = np.exp(_REST_ERROR * np.random.default_rng(seed).standard_normal(len(rest)))
    policies: dict[str, Policy] = {
        ALONE: Fcfs(),
        ATTAINED: LeastAttained(Fcfs()),
        MEAN_REST: LeastRest(Fcfs(), mean_rest_of_kinds(requests)),
        TRUE_REST: LeastRest(Fcfs(), rest),
        NOISY_REST: LeastRest(Fcfs(), rest * error),
    }
    found = {}
    for label in ("fcfs", *grid.policies):
        offered = requests.replace(arrival_s=_APART * requests.arrival_s) if label == ALONE else requests
        outcome = simulate(offered, fleet, policies.get(label, label), predictor=predictions)
        times, cached = outcome.summary.session_s, outcome.cached_tokens.sum() / requests.input_tokens.sum()
        found[label] = [times.mean, times.p50, times.p99, float(cached)]
    return found


@dataclass(frozen=True)
class SessionTimes:
    """A policy on a workload at a load, over seeds; mean and p50: FCFS over the policy, p99: the policy over FCFS.

    `share`: of the seconds that the true rest saves of the mean, those that the policy saves; NaN where it saves none.
    `cached`: of the tokens of prompts, those in the prefix cache.
    """

    workload: str
    load: float
    policy: str
    seconds: float
    mean: Ratio
    p50: Ratio
    p99: Ratio
    share: float
    cached: float


def _share(fcfs: float, policy: float, true_rest: float) -> float:
    return (fcfs - policy) / (fcfs - true_rest) if fcfs > true_rest else math.nan


def measure(run: Run, grid: SessionsGrid) -> list[SessionTimes]:
    """Simulate every workload at every load."""
    found = []
    for workload in grid.workloads:
        for load in grid.loads:
            calls = [(workload, load, seed, grid) for seed in range(grid.seeds)]
            runs = run.each(f"{workload}, load {load}", sessions_seed, calls)
            base = np.transpose([each["fcfs"] for each in runs]).tolist()
            best = float(np.mean([each[TRUE_REST][0] for each in runs])) if TRUE_REST in grid.policies else math.nan
            for label in ("fcfs", *grid.policies):
                ours = np.transpose([each[label] for each in runs]).tolist()
                ratios = over_seeds(base[0], ours[0]), over_seeds(base[1], ours[1]), over_seeds(ours[2], base[2])
                seconds, share = float(np.mean(ours[0])), _share(float(np.mean(base[0])), float(np.mean(ours[0])), best)
                cached = float(np.mean(ours[3]))
                found.append(SessionTimes(workload, load, label, seconds, *ratios, share, cached))
    return found


def tables(found: list[SessionTimes]) -> list[Table]:
    """One table per workload."""
    columns: list[tuple[str, Callable[[SessionTimes], object]]] = [
        ("load", lambda at: f"{at.load:g}"),
        ("policy", lambda at: at.policy),
        ("mean", lambda at: f"{at.seconds:.1f} s"),
        ("mean, gain", lambda at: at.mean),
        ("p50, gain", lambda at: at.p50),
        ("p99", lambda at: at.p99),
        ("cached", lambda at: f"{at.cached:.0%}"),
        ("of true rest", lambda at: "-" if math.isnan(at.share) else f"{at.share:.0%}"),
    ]
    notes = [
        "Gains: FCFS over the policy; p99: the policy over FCFS; 95 % intervals over seeds.",
        "Cached: of the tokens of prompts, those in the prefix cache.",
        "Of true rest: of the seconds that the true rest saves of the mean, those that the policy saves.",
    ]
    return [
        table_of(name, [at for at in found if at.workload == name], columns, notes, lambda at: at.load)
        for name in dict.fromkeys(at.workload for at in found)
    ]


def answer(found: list[SessionTimes]) -> str:
    """The gain of `sessions` on each workload at each load."""
    ours = [at for at in found if at.policy.startswith("sessions")]
    parts = [
        f"{at.workload}, load {at.load:g}: {at.mean.ratio:.2f}x at p99 {at.p99.ratio:.2f}"
        + ("" if math.isnan(at.share) else f", {at.share:.0%} of what the true rest saves")
        for at in ours
    ]
    return f"Mean time of a session, FCFS over sessions: {'; '.join(parts)}."


STUDY: Study[SessionsGrid, list[SessionTimes]] = Study(
    name="sessions",
    title="Sessions of agents",
    question="How much sooner are the sessions of agents complete, ordered by the predicted rest of the session?",
    source="CASTILLO, ReAct",
    grid=SessionsGrid(),
    quick=SessionsGrid(seeds=2, requests=600, loads=(1.1,)),
    minutes=(7, 0.5),
    measure=measure,
    tables=tables,
    answer=answer,
)
