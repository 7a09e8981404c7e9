"""A benchmark of chains of thought of real LLMs: are they predicted, what do a few answers of the same LLM correct?

Chains are answers of LLMs that were asked to reason first (`$LENGTHWISE_DATA/diverse`): ZeroEval's mathematics without
and with LaTeX (GSM8K and MATH level 5, whose names the rows do not have: 602 prompts have LaTeX, of 721 of MATH),
outputs of programs and number sense, and MMLU-Pro with chain of thought. Reasoning that is hidden is left out. One
answer per prompt, LLMs with 200 prompts or more of a task. In random orders a learner observes answers of one LLM, and
predicts the prompts that are left. Beside it: the same predictor without learning, the history of the LLM's lengths
(the constant), and the other LLMs' lengths on the prompt, which no server has beforehand.

- Length generalisation: the learner observes short chains (mathematics without LaTeX) and predicts long ones.
- Overthinking: answers above the 95 % quantile, and above four times the predicted median.
- What overthinking costs: traffic of one LLM's mathematics on a simulated engine, with policies that use the median
  (`sjf`), price the tail (`tie`) or bound overtaking (`bounded`).

The packaged predictors are trained on most of these prompts. `--set predictor=FILE` takes one that is not.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.learning import full_data_home
from experiments.study import Run, Study, table_of
from lengthwise.files import data_home, read_parquet_table
from lengthwise.intervals import Ratio, draw_rows, interval, over_seeds
from lengthwise.predictors.adapt import unknown_llms_unlogged
from lengthwise.predictors.contract import LogTPredictions, PredictionInput, as_logt
from lengthwise.predictors.history import History
from lengthwise.predictors.learner import KnownPrompts, Learner, describe
from lengthwise.predictors.resolve import resolve_predictor
from lengthwise.reports.tables import Table
from lengthwise.simulator import Fleet, measure_capacity, simulate
from lengthwise.simulator.cluster import as_predictions, at_rate
from lengthwise.traffic.scores import kendall_tau
from lengthwise.workloads import Workload
from lengthwise.workloads.arrivals import generator, poisson
from lengthwise.workloads.datasets import normalise_llm

Floats = NDArray[np.float64]

SHORT, LONG = "maths, plain", "maths, LaTeX"
TASKS: Final[Mapping[tuple[str, str], str]] = {
    ("WildEval/ZeroEval", "math"): SHORT,
    ("WildEval/ZeroEval", "code-reasoning"): "program output",
    ("WildEval/ZeroEval", "reasoning"): "number sense",
    ("TIGER-AI-Lab/MMLU-Pro", "knowledge-mcq-cot"): "MMLU-Pro",
}
"""Task by source and kind; a prompt of mathematics that has LaTeX is of `LONG`."""
MIN_PROMPTS: Final = 200
POINTS: Final = (30, 100, 300)
"""Answers observed before the rest is predicted."""
OF_CONSTANT: Final = 100
CONSTANT: Final = f"constant, {OF_CONSTANT}"
FIRST: Final = 300
"""Short chains observed before long ones are predicted."""
MIN_SCORED: Final = 100
FAR: Final = 4.0
"""Times the predicted median, from which on an answer counts as overthinking."""
FLEET: Final = "llama-3-8b@a100"
SLOTS: Final = 8
FCFS: Final = "fcfs"
_REACH: Final = (0.05, 0.5, 0.95)
_RESAMPLES: Final = 2000
_LATEX: Final = re.compile(r"\\(?!\$)|\$(?!\s?[\d.,])")
"""A backslash, or a dollar sign that is not in front of a price."""


@dataclass(frozen=True)
class ChainsGrid:
    """The predictor, the random orders in which it learns, and the simulated traffic."""

    predictor: str = "fast"
    orders: int = 5
    llms: int = 0
    """LLMs of a task, at most, those with the most prompts; 0: all."""
    prompts: int = 600
    """Prompts of a task and LLM, at most, drawn at random."""
    load: float = 1.1
    policies: tuple[str, ...] = ("sjf", "tie", "bounded(sjf)", "bounded(tie)", "lengthwise")
    simulated: int = 60
    """LLMs whose traffic is simulated, at most; 0: none."""


@dataclass(frozen=True, eq=False)
class Chains:
    """One LLM's answers to the prompts of a task; an answer that was cut off has at least its length."""

    task: str
    llm: str
    prompts: tuple[str, ...]
    tokens: NDArray[np.int64]
    cut: NDArray[np.bool_]

    def take(self, rows: NDArray[np.intp]) -> Chains:
        """Return some of the answers."""
        return Chains(self.task, self.llm, tuple(self.prompts[row] for row in rows), self.tokens[rows], self.cut[rows])

    def and_then(self, other: Chains) -> Chains:
        """Return these answers followed by those of another task."""
        tokens, cut = np.concatenate([self.tokens, other.tokens]), np.concatenate([self.cut, other.cut])
        return Chains(f"{self.task}; {other.task}", self.llm, self.prompts + other.prompts, tokens, cut)

    @property
    def overthought(self) -> float:
        """The share of answers above FAR times their median."""
        return float(np.mean(self.tokens > FAR * np.median(self.tokens)))

    def inputs(self) -> list[PredictionInput]:
        """Return the requests."""
        return [PredictionInput(text, self.llm) for text in self.prompts]


class Score(NamedTuple):
    """How predictions of one LLM and task turned out."""

    tau: float
    covered: float
    """In the 90 % interval."""
    ratio: float
    """Length over predicted median, geometric mean."""
    off: float
    """The factor between both, which is at least 1."""
    above: float
    """Share above the 95 % quantile."""
    far: float
    """Share above FAR times the predicted median."""


def task_of(source: str, kind: str, prompt: str) -> str | None:
    """Return the task of a row, None if it is of none."""
    task = TASKS.get((source, kind))
    question = prompt.partition("## Instruction")[0]
    return LONG if task == SHORT and _LATEX.search(question) else task


@lru_cache(maxsize=1)
def read_chains(home: Path) -> dict[str, dict[str, Chains]]:
    """Return the chains of each task by LLM, those with the most prompts first."""
    found: dict[tuple[str, str], dict[str, tuple[int, bool]]] = defaultdict(dict)
    columns = ["prompt", "model", "output_tokens", "finish", "kind", "source", "maybe_hidden_reasoning"]
    rows: list[dict[str, Any]] = read_parquet_table(home / "diverse" / "lengths.parquet").select(columns).to_pylist()
    for row in rows:
        task = task_of(row["source"], row["kind"], row["prompt"])
        if task and row["output_tokens"] and not row["maybe_hidden_reasoning"]:
            answer_ = int(row["output_tokens"]), row["finish"] == "length"
            found[task, normalise_llm(row["model"])].setdefault(row["prompt"], answer_)
    tasks: dict[str, dict[str, Chains]] = defaultdict(dict)
    for (task, llm), answers in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        if len(answers) >= MIN_PROMPTS:
            tokens, cut = (np.array(column) for column in zip(*answers.values(), strict=True))
            tasks[task][llm] = Chains(task, llm, tuple(answers), tokens, cut)
    return {task: tasks[task] for task in (SHORT, LONG, *TASKS.values()) if task in tasks}


def score(made: LogTPredictions, tokens: NDArray[np.int64]) -> Score:
    """Score predictions against lengths."""
    low, median, high = (made.quantile(q) for q in _REACH)
    log_ratio = float(np.mean(np.log(tokens / median)))
    return Score(
        tau=kendall_tau(median, tokens),
        covered=float(np.mean((low <= tokens) & (tokens <= high))),
        ratio=math.exp(log_ratio),
        off=math.exp(abs(log_ratio)),
        above=float(np.mean(tokens > high)),
        far=float(np.mean(tokens > FAR * median)),
    )


@dataclass(frozen=True, eq=False)
class Read:
    """Chains whose prompts a predictor has read once, to be learned in many orders."""

    chains: Chains
    known: KnownPrompts
    sigma: Floats
    """Of an answer asked for before any is observed."""

    @classmethod
    def by(cls, predictor: str, chains: Chains) -> Read:
        """Predict and describe each request."""
        with unknown_llms_unlogged():
            predictions, descriptions = describe(resolve_predictor(predictor), chains.inputs())
        columns = as_logt(predictions)
        return cls(chains, KnownPrompts(columns.mu, columns.sigma, descriptions), columns.marginal().sigma)

    def learned(self, order: NDArray[np.intp], scored: NDArray[np.intp], points: Iterable[int]) -> dict[str, Score]:
        """Observe the answers in this order; score the predictions of others before, and at each of the points."""
        chains, points = self.chains, frozenset(points)
        asked = [PredictionInput(str(number), chains.llm) for number in range(len(chains.prompts))]
        rest, lengths = [asked[row] for row in scored], chains.tokens[scored]
        alone = LogTPredictions.of(self.known.mu[scored], self.sigma[scored], [each.cap for each in rest])
        found = {"0": score(alone, lengths)}
        learner, constant = Learner(self.known), History()
        for number, row in enumerate(order, 1):
            length, cut = int(chains.tokens[row]), bool(chains.cut[row])
            learner.observe(asked[row], length, censored=cut)
            constant.observe(chains.llm, length, censored=cut)
            if number in points:
                found[str(number)] = score(learner.predict(rest), lengths)
            if number == OF_CONSTANT:
                found[CONSTANT] = score(constant.predict(rest), lengths)
        return found


def task_scores(task: str, llm: str, predictor: str, orders: int, prompts: int) -> dict[str, list[float]]:
    """Score one LLM and task: for each number of answers, the mean over orders."""
    by_llm = read_chains(full_data_home())[task]
    chains = by_llm[llm].take(np.random.default_rng(0).permutation(len(by_llm[llm].prompts))[:prompts])
    read = Read.by(predictor, chains)
    fewest = min(prompts, *(len(each.prompts) for each in by_llm.values()))
    most = max(point for point in POINTS if point <= max(MIN_SCORED, fewest - MIN_SCORED))
    found = []
    for order in range(orders):
        rows = np.random.default_rng([order, 1]).permutation(len(chains.prompts))
        found.append(read.learned(rows[:most], rows[most:], POINTS))
    return _means(found)


def general_scores(llm: str, predictor: str, orders: int, prompts: int) -> dict[str, list[float]]:
    """Score predictions of an LLM's long chains after short ones, and after some long ones more."""
    tasks, rng = read_chains(full_data_home()), np.random.default_rng(0)
    short, long = (tasks[task][llm] for task in (SHORT, LONG))
    short, long = (each.take(rng.permutation(len(each.prompts))[:prompts]) for each in (short, long))
    both = short.and_then(long)
    read = Read.by(predictor, both)
    found = []
    for order in range(orders):
        rng = np.random.default_rng([order, 2])
        first = rng.permutation(len(short.prompts))[:FIRST]
        later = len(short.prompts) + rng.permutation(len(long.prompts))
        rows = np.concatenate([first, later[: POINTS[1]]])
        ends = [len(first) + more for more in (0, *POINTS[:2])]
        scores = read.learned(rows, later[POINTS[1] :], ends)
        names = zip(("0", "short", "short, 30", "short, 100"), (0, *ends), strict=True)
        found.append({name: scores[str(end)] for name, end in names})
    return _means(found)


def _means(found: Sequence[Mapping[str, Score]]) -> dict[str, list[float]]:
    return {name: np.mean([each[name] for each in found], axis=0).tolist() for name in found[0]}


def taus_of_others(chains: Mapping[str, Chains]) -> dict[str, float]:
    """Return for each LLM tau of its lengths with the mean log length of the others' answers to the prompt.

    Logs are centred for each LLM, since prompts are answered by different ones.
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    centred = {}
    for llm, each in chains.items():
        y = np.log(each.tokens)
        centred[llm] = y - y.mean()
        for prompt, value in zip(each.prompts, centred[llm], strict=True):
            sums[prompt][0] += value
            sums[prompt][1] += 1
    found = {}
    for llm, each in chains.items():
        totals, counts = np.array([sums[prompt] for prompt in each.prompts]).T
        with np.errstate(invalid="ignore"):
            found[llm] = kendall_tau((totals - centred[llm]) / np.where(counts > 1, counts - 1, np.nan), centred[llm])
    return found


def latencies(llm: str, predictor: str, policies: Sequence[str], load: float) -> dict[str, Any]:
    """Simulate an LLM's mathematics, short and long mixed; mean and p99 latency by policy and predictions."""
    tasks = read_chains(full_data_home())
    both = tasks[SHORT][llm].and_then(tasks[LONG][llm])
    both = both.take(np.random.default_rng(3).permutation(len(both.prompts)))
    drawn = Workload.from_table(
        {
            "arrival_s": poisson(len(both.prompts), 1.0, generator(0, "arrivals")),
            "input_tokens": [max(1, len(prompt) // 4) for prompt in both.prompts],
            "output_tokens": both.tokens,
            "prompt": list(both.prompts),
            "llm": [llm] * len(both.prompts),
        },
        name="chains of thought",
    )
    fleet = Fleet.parse(FLEET).limited_to(max_num_seqs=SLOTS)
    arriving = at_rate(drawn, load * measure_capacity(drawn, fleet).requests_per_s)
    with unknown_llms_unlogged():
        named = {name: as_predictions(arriving, fleet, spec) for name, spec in _predictions(predictor).items()}
    cells = [(policy, name) for name in ("alone", "learned") for policy in policies] + [("sjf", "true")]
    found = {f"{policy}, {name}": simulate(arriving, fleet, policy, predictor=named[name]) for policy, name in cells}
    found[FCFS] = simulate(arriving, fleet, FCFS, predictor="none")
    return {name: [each.summary.e2e_s.mean, each.summary.e2e_s.p99] for name, each in found.items()}


def _predictions(predictor: str) -> dict[str, str]:
    return {"alone": predictor, "learned": f"{predictor}+learn", "true": "oracle"}


@dataclass(frozen=True)
class Mean:
    """A figure's mean over LLMs, and its 90 % bootstrap interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Mean:
        """Return the mean of the values that are numbers."""
        each = np.array([value for value in values if np.isfinite(value)])
        if not len(each):
            return cls(np.nan, np.nan, np.nan)
        drawn = draw_rows(len(each), seed=0, resamples=_RESAMPLES)
        return cls(float(each.mean()), *interval(each[drawn].mean(axis=1), 0.9))


@dataclass(frozen=True)
class TaskScore:
    """One task, or what is learned across two: for each number of answers, means over LLMs."""

    task: str
    llms: int
    median: float
    """Tokens, median over LLMs of their medians."""
    others: Mean
    after: Mapping[str, Mapping[str, Mean]]
    """Figures by what was observed before."""


@dataclass(frozen=True)
class PolicyGain:
    """One policy with one kind of predictions over FCFS, on LLMs' traffic."""

    group: str
    policy: str
    llms: int
    mean: Ratio
    p99: Ratio


@dataclass(frozen=True)
class ChainsResult:
    """All tables."""

    grid: ChainsGrid
    tasks: tuple[TaskScore, ...]
    general: TaskScore
    gains: tuple[PolicyGain, ...]


def measure(run: Run, grid: ChainsGrid) -> ChainsResult:
    """Score every task and LLM, and simulate."""
    tasks = read_chains(full_data_home())
    chosen = {task: list(by_llm)[: grid.llms or None] for task, by_llm in tasks.items()}
    cells = [(task, llm) for task, llms in chosen.items() for llm in llms]
    arguments = [(*cell, grid.predictor, grid.orders, grid.prompts) for cell in cells]
    scored = dict(zip(cells, run.each("tasks", task_scores, arguments), strict=True))
    scores = []
    for task, llms in chosen.items():
        others = taus_of_others(tasks[task])
        medians = [float(np.median(tasks[task][llm].tokens)) for llm in llms]
        scores.append(_task(task, medians, [others[llm] for llm in llms], [scored[task, llm] for llm in llms]))
    both = [llm for llm in chosen.get(SHORT, []) if llm in chosen.get(LONG, [])]
    general = run.each("short to long", general_scores, [(llm, *arguments[0][2:]) for llm in both])
    medians = [float(np.median(tasks[LONG][llm].tokens)) for llm in both]
    simulated = run.each(
        "traffic", latencies, [(llm, grid.predictor, grid.policies, grid.load) for llm in both[: grid.simulated]]
    )
    order = np.argsort([-tasks[LONG][llm].overthought for llm in both[: grid.simulated]], kind="stable")
    most = [simulated[place] for place in order[: math.ceil(len(order) / 4)]]
    gains = _gains("all", simulated) + _gains("overthink most", most)
    return ChainsResult(grid, tuple(scores), _task(f"{SHORT} to {LONG}", medians, [], general), tuple(gains))


def _task(
    task: str, medians: Sequence[float], others: Sequence[float], found: Sequence[Mapping[str, Sequence[float]]]
) -> TaskScore:
    after = {
        name: {
            field: Mean.of(each[name][place] for each in found if name in each)
            for place, field in enumerate(Score._fields)
        }
        for name in dict.fromkeys(name for each in found for name in each)
    }
    return TaskScore(task, len(found), float(np.median(medians)), Mean.of(others), after)


def _gains(group: str, simulated: Sequence[Mapping[str, Sequence[float]]]) -> list[PolicyGain]:
    names = [name for name in (simulated[0] if simulated else ()) if name != FCFS]
    found = []
    for name in names:
        mean, p99 = (
            over_seeds([each[name][place] for each in simulated], [each[FCFS][place] for each in simulated])
            for place in (0, 1)
        )
        found.append(PolicyGain(group, name, len(simulated), mean, p99))
    return found


def tables(found: ChainsResult) -> list[Table]:
    """Tasks, short to long, and latencies."""
    grid = found.grid
    cells = [(each, name) for each in (*found.tasks, found.general) for name in each.after]
    scores = table_of(
        "Chains of thought",
        cells,
        [
            ("task", lambda cell: cell[0].task),
            ("LLMs", lambda cell: cell[0].llms),
            ("median tokens", lambda cell: f"{cell[0].median:,.0f}"),
            ("tau, other LLMs", lambda cell: _number(cell[0].others)),
            ("after", lambda cell: cell[1]),
            ("tau", _figure("tau", _number)),
            ("in 90 %", _figure("covered", _share)),
            ("ratio", _figure("ratio", _number)),
            ("off by", _figure("off", _number)),
            ("above 95 %", _figure("above", _share)),
            (f"above {FAR:g} medians", _figure("far", _share)),
        ],
        [
            f"predictor {grid.predictor}; {grid.orders} orders, at most {grid.prompts} prompts of an LLM",
            "means over LLMs, 90 % bootstrap intervals over LLMs",
            "after: answers of the LLM observed before; short: of mathematics without LaTeX, then with",
            "ratio: length over predicted median, geometric mean over prompts; off by: the factor between both",
        ],
        group=lambda cell: cell[0].task,
    )
    gains = table_of(
        "Traffic of one LLM's mathematics, over FCFS",
        found.gains,
        [
            ("traffic of", lambda each: each.group),
            ("LLMs", lambda each: each.llms),
            ("policy, predictions", lambda each: each.policy),
            ("E2E", lambda each: each.mean),
            ("E2E p99", lambda each: each.p99),
        ],
        [
            f"{FLEET}, {SLOTS} slots, load {grid.load:g}, Poisson arrivals, run to drain",
            "below 1 is better; 95 % intervals over LLMs",
            f"overthink most: the quarter with the largest share of long chains above {FAR:g} times their median",
        ],
        group=lambda each: each.group,
    )
    return [scores, *([gains] if found.gains else [])]


def _figure(name: str, text: Callable[[Mean], str]) -> Callable[[tuple[TaskScore, str]], str]:
    return lambda cell: text(cell[0].after[cell[1]][name])


def _number(value: Mean) -> str:
    return "–" if np.isnan(value.mean) else f"{value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _share(value: Mean) -> str:
    return f"{value.mean:.1%} [{value.low:.1%}, {value.high:.1%}]"


def answer(found: ChainsResult) -> str:
    """What learning corrects, and what short chains say about long ones."""

    def mean(name: str, field: str) -> float:
        return float(np.mean([each.after[name][field].mean for each in found.tasks]))

    general = found.general.after
    return (
        f"On {len(found.tasks)} tasks tau within an LLM is {mean('0', 'tau'):.2f} ({found.grid.predictor}; packaged "
        f"predictors are trained on these prompts), {mean('100', 'tau'):.2f} after 100 answers, and "
        f"{np.mean([each.others.mean for each in found.tasks]):.2f} for the other LLMs' lengths. 90 % intervals hold "
        f"{mean('0', 'covered'):.0%}, then {mean('100', 'covered'):.0%}; {mean('0', 'far'):.1%} of answers, then "
        f"{mean('100', 'far'):.1%}, are above {FAR:g} predicted medians. After short chains alone, long ones are "
        f"{general['short']['ratio'].mean:.2f} times their median, {general['short']['covered'].mean:.0%} covered; "
        f"after 30 long ones {general['short, 30']['ratio'].mean:.2f} and {general['short, 30']['covered'].mean:.0%}."
    )


def _needs(_: ChainsGrid) -> str | None:
    home = data_home()
    if home is None or not (home / "diverse" / "lengths.parquet").is_file():
        return "needs LENGTHWISE_DATA with diverse/"
    return None


STUDY: Study[ChainsGrid, ChainsResult] = Study(
    name="chains",
    title="Chains of thought of real LLMs",
    question="How well are the lengths of chains of thought predicted, and what do an LLM's own answers correct?",
    paper="CASTILLO leaves it to future work",
    source="ZeroEval and MMLU-Pro ($LENGTHWISE_DATA/diverse)",
    grid=ChainsGrid(),
    quick=ChainsGrid(orders=1, llms=4, prompts=400, simulated=2),
    minutes=(2, 0.3),
    measure=measure,
    tables=tables,
    answer=answer,
    needs=_needs,
)
