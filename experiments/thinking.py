"""What does the prompt tell about the length of thinking and answer together, and what does a request's switch change?

LLMs that think visibly on the trick questions of MisguidedAttention (`$LENGTHWISE_DATA/diverse`, kind
`reasoning-visible`: tokens of thinking and answer), and two reasoning LLMs on prompts of Chatbot Arena's users
(`open_ended.parquet`: the visible answer only). For each LLM:

- within prompts: the share of the variance of log lengths that repeated answers to one prompt have. No predictor that
  reads the prompt can explain it.
- other LLMs: tau of the mean log length of the other LLMs' answers to the prompt, which no server has beforehand.
- tau and coverage of a predictor, before and after it learns: one answer per prompt in random orders, each predicted
  and then observed; scored from the 31st answer on. The packaged predictors are trained on these prompts.

LLMs that answered the same prompts with thinking and without: how much longer, and how well a learner predicts both,
mixed, with the switch in its input and without.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.study import Run, Study
from lengthwise.files import data_folder, read_parquet_table
from lengthwise.intervals import draw_rows, interval
from lengthwise.predictors.adapt import unknown_llms_unlogged
from lengthwise.predictors.contract import LogTPredictions, PredictionInput
from lengthwise.predictors.learner import Learner
from lengthwise.predictors.resolve import load_predictor
from lengthwise.predictors.thinking import Thinking
from lengthwise.reports.tables import Table, share
from lengthwise.traffic.scores import kendall_tau

Floats = NDArray[np.float64]

KIND: Final = "reasoning-visible"
REASONING_LLMS: Final = ("o3-mini-2025-01-31", "sky-t1-32b")
"""Of `open_ended.parquet`."""
PAIRS: Final[tuple[tuple[str, str, str], ...]] = (
    ("qwen3-235b-a22b", "qwen3-235b-a22b-nothink", "qwen3-235b-a22b-think"),
    ("qwen3-30b-a3b", "qwen3-30b-a3b-nothink", "qwen3-30b-a3b-think"),
    ("gemini-2.5-flash", "gemini-2.5-flash-preview-05-20", "gemini-2.5-flash-preview-05-20:thinking"),
    ("claude-3.7-sonnet", "claude-3.7-sonnet", "claude-3.7-thinking-4k"),
)
"""The LLM, and its name in the data without and with thinking."""
MIN_PROMPTS: Final = 30
FIRST_SCORED: Final = 30
_RESAMPLES: Final = 2000
_REACH: Final = (0.05, 0.95)


@dataclass(frozen=True)
class ThinkingGrid:
    """The predictor, and the random orders in which it learns."""

    predictor: str = "fast"
    orders: int = 10
    seed: int = 0


@dataclass(frozen=True, eq=False)
class LlmAnswers:
    """The answers of one LLM: for each prompt the tokens of one or more."""

    llm: str
    source: str
    prompts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]

    @property
    def log_mean(self) -> Floats:
        """Mean log length of each prompt."""
        return np.array([np.mean(np.log(each)) for each in self.tokens])

    def within(self) -> float:
        """Return the share of the variance of log lengths within prompts; NaN without repeated answers."""
        repeated = [np.log(each) for each in self.tokens if len(each) > 1]
        total = np.var(np.log(np.concatenate([np.array(each) for each in self.tokens])))
        return float(np.mean([each.var(ddof=1) for each in repeated]) / total) if repeated else math.nan


@dataclass(frozen=True)
class LlmScore:
    """What is known about one LLM's lengths."""

    llm: str
    source: str
    prompts: int
    median: float
    within: float
    tau_of_others: float
    ratio: float
    """Length over predicted median, geometric mean."""
    tau: float
    covered: float
    learned_tau: float
    learned_covered: float
    learned_ratio: float


@dataclass(frozen=True)
class SwitchScore:
    """One LLM with and without thinking on the same prompts."""

    llm: str
    prompts: int
    ratio: float
    low: float
    high: float
    """Length with thinking over length without: geometric mean over prompts, 90 % bootstrap interval."""
    tau: float
    """Between the two lengths of a prompt."""
    apart: float
    """Mean absolute log error of a learner with the switch in its input, both kinds of answers mixed."""
    together: float
    """That of a learner without it."""


@dataclass(frozen=True)
class ThinkingResult:
    """All LLMs."""

    grid: ThinkingGrid
    llms: tuple[LlmScore, ...]
    switches: tuple[SwitchScore, ...]


def load_thinking() -> dict[str, LlmAnswers]:
    """Return the answers of the LLMs of MisguidedAttention, thinking or not, and of the two of Chatbot Arena."""
    folder = data_folder("diverse", None, "the lengths of diverse prompts do not ship")
    columns = ["prompt", "model", "output_tokens", "kind", "source"]
    found: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    rows: list[dict[str, Any]] = read_parquet_table(folder / "lengths.parquet").select(columns).to_pylist()
    compared = {name for pair in PAIRS for name in pair[1:]}
    for row in rows:
        if row["output_tokens"] and (row["kind"] == KIND or row["model"] in compared) and "Misguided" in row["source"]:
            found[row["model"], "MisguidedAttention"][row["prompt"]].append(row["output_tokens"])
    for row in read_parquet_table(folder / "open_ended.parquet").select(columns).to_pylist():
        if row["output_tokens"] and row["model"] in REASONING_LLMS:
            found[row["model"], "Chatbot Arena, answer only"][row["prompt"]].append(int(row["output_tokens"]))
    return {
        llm: LlmAnswers(llm, source, tuple(by_prompt), tuple(map(tuple, by_prompt.values())))
        for (llm, source), by_prompt in found.items()
        if len(by_prompt) >= MIN_PROMPTS
    }


@unknown_llms_unlogged()
def measure(run: Run, grid: ThinkingGrid) -> ThinkingResult:
    """Score every LLM, and the pairs."""
    answers = load_thinking()
    without = {pair[1] for pair in PAIRS}
    llms = [answers[llm] for llm in sorted(answers) if llm not in without]
    scores = []
    for number, each in enumerate(llms):
        run.report(each.llm, number / len(llms))
        others = [other for other in llms if other.source == each.source and other.llm != each.llm]
        scores.append(score(each, others, grid))
    pairs = [(llm, answers[off], answers[on]) for llm, off, on in PAIRS if off in answers and on in answers]
    return ThinkingResult(grid, tuple(scores), tuple(switched(*pair, grid) for pair in pairs))


def score(own: LlmAnswers, others: Sequence[LlmAnswers], grid: ThinkingGrid) -> LlmScore:
    """Score the prompt, the other LLMs and the predictor, before and after it learns."""
    known = [dict(zip(other.prompts, other.log_mean, strict=True)) for other in others]
    of_others = [np.mean([each[prompt] for each in known if prompt in each] or [math.nan]) for prompt in own.prompts]
    y = own.log_mean
    inputs = [PredictionInput(prompt, own.llm) for prompt in own.prompts]
    shipped = load_predictor(grid.predictor).predict(inputs)
    low, high = (shipped.quantile(q) for q in _REACH)
    inside = [low[row] <= tokens <= high[row] for row, each in enumerate(own.tokens) for tokens in each]
    errors = y - np.log(shipped.quantile(0.5))
    learned = [_learned(grid, inputs, own.tokens, order) for order in range(grid.orders)]
    return LlmScore(
        llm=own.llm,
        source=own.source,
        prompts=len(own.prompts),
        median=float(np.median(np.concatenate([np.array(each) for each in own.tokens]))),
        within=own.within(),
        tau_of_others=kendall_tau(of_others, y),
        ratio=float(np.exp(errors.mean())),
        tau=kendall_tau(shipped.quantile(0.5), y),
        covered=float(np.mean(inside)),
        learned_tau=float(np.mean([kendall_tau(each.median, each.tokens) for each in learned])),
        learned_covered=float(np.mean(np.concatenate([each.inside for each in learned]))),
        learned_ratio=float(np.exp(np.mean(np.concatenate([each.errors for each in learned])))),
    )


@dataclass(frozen=True, eq=False)
class _Served:
    """Predictions that were made before each answer was observed."""

    median: Floats
    tokens: Floats
    inside: NDArray[np.bool_]

    @property
    def errors(self) -> Floats:
        return np.asarray(np.log(self.tokens / self.median))


def _learned(
    grid: ThinkingGrid, inputs: Sequence[PredictionInput], tokens: Sequence[Sequence[int]], order: int
) -> _Served:
    """Predict, then observe one answer of each input, in a random order; keep those from FIRST_SCORED on."""
    rng = np.random.default_rng([grid.seed, order])
    learner = Learner(load_predictor(grid.predictor))
    found = []
    for row in rng.permutation(len(inputs)):
        made: LogTPredictions = learner.predict([inputs[row]])
        length = int(rng.choice(np.array(tokens[row])))
        low, median, high = (float(made.quantile(q)[0]) for q in (_REACH[0], 0.5, _REACH[1]))
        found.append((median, float(length), low <= length <= high))
        learner.observe(inputs[row], length)
    kept = found[FIRST_SCORED:] if len(found) > FIRST_SCORED + 10 else found[len(found) // 2 :]
    median_, lengths, inside = zip(*kept, strict=True)
    return _Served(np.array(median_), np.array(lengths), np.array(inside, bool))


def switched(llm: str, off: LlmAnswers, on: LlmAnswers, grid: ThinkingGrid) -> SwitchScore:
    """Compare the answers to the prompts that both have, and learners on the mix of both."""
    plain, thought = (dict(zip(each.prompts, each.tokens, strict=True)) for each in (off, on))
    prompts = [prompt for prompt in off.prompts if prompt in thought]
    y = {name: np.array([np.mean(np.log(kept[prompt])) for prompt in prompts])
         for name, kept in (("off", plain), ("on", thought))}  # fmt: skip
    log_ratio = y["on"] - y["off"]
    drawn = draw_rows(len(prompts), seed=[grid.seed, 1], resamples=_RESAMPLES)
    low, high = interval(log_ratio[drawn].mean(axis=1), 0.9)
    tokens = [kept[prompt] for kept in (plain, thought) for prompt in prompts]
    states: list[Thinking] = ["off", "on"]
    with_switch = [PredictionInput(prompt, llm, thinking=state) for state in states for prompt in prompts]
    without = [PredictionInput(prompt, llm) for _ in states for prompt in prompts]
    errors = {
        name: float(np.mean([np.abs(_learned(grid, inputs, tokens, order).errors).mean()
                             for order in range(grid.orders)]))
        for name, inputs in (("apart", with_switch), ("together", without))
    }  # fmt: skip
    return SwitchScore(
        llm, len(prompts), float(np.exp(log_ratio.mean())), math.exp(low), math.exp(high),
        kendall_tau(y["off"], y["on"]), **errors,
    )  # fmt: skip


def tables(found: ThinkingResult) -> list[Table]:
    """Every LLM, and what the switch changes."""
    return [_llms(found), _switches(found.switches)]


def _llms(found: ThinkingResult) -> Table:
    rows = [
        (
            each.llm, each.source, f"{each.prompts:,}", f"{each.median:,.0f}", share(each.within),
            _number(each.tau_of_others), _number(each.tau), _number(each.learned_tau), share(each.covered),
            share(each.learned_covered), f"{each.ratio:.2f}", f"{each.learned_ratio:.2f}",
        )
        for each in found.llms
    ]  # fmt: skip
    columns = ("LLM", "source", "prompts", "median tokens", "within prompts", "tau, other LLMs", "tau", "tau, learned",
               "in 90 %", "in 90 %, learned", "ratio", "ratio, learned")  # fmt: skip
    learned = f"learned: one answer per prompt, {found.grid.orders} random orders, scored from the 31st answer on."
    notes = [
        f"Predictor {found.grid.predictor}. {learned}",
        "within prompts: share of the variance of log lengths between answers to the same prompt.",
        "ratio: length over predicted median, geometric mean.",
    ]
    return Table("LLMs that think: what the prompt tells", columns, rows, notes)


def _switches(found: Sequence[SwitchScore]) -> Table:
    rows = [
        (
            each.llm, f"{each.prompts:,}", f"{each.ratio:.1f}", f"{each.low:.1f} to {each.high:.1f}", _number(each.tau),
            f"{each.apart:.2f}", f"{each.together:.2f}",
        )
        for each in found
    ]  # fmt: skip
    columns = ("LLM", "prompts", "ratio", "90 % interval", "tau of both", "error, with the switch", "without")
    notes = [
        "ratio: length with thinking over length without, geometric mean over prompts; interval over prompts.",
        "error: mean absolute log error of a learner on both kinds of answers mixed, with and without the switch.",
    ]
    return Table("The same LLM with and without thinking", columns, rows, notes)


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def answer(found: ThinkingResult) -> str:
    """Say plainly how little the prompt tells."""
    thinking = [each for each in found.llms if not math.isnan(each.within)]
    mean = _means(thinking, ("within", "tau_of_others", "tau", "learned_tau", "covered", "learned_covered"))
    switch = _means(found.switches, ("apart", "together"))
    return (
        f"Of {len(thinking)} LLMs that think visibly, {mean['within']:.0%} of the variance of lengths is between "
        f"answers to the same prompt. What other LLMs wrote orders prompts with tau {mean['tau_of_others']:.2f}, the "
        f"text as {found.grid.predictor} reads it with {mean['tau']:.2f}, and with {mean['learned_tau']:.2f} after it "
        "has learned (packaged predictors are trained on these prompts). 90 % intervals hold "
        f"{mean['covered']:.0%}, after learning {mean['learned_covered']:.0%}. With the switch in its input, a "
        f"learner's log error on mixed traffic is {switch['apart']:.2f}, without it {switch['together']:.2f}."
    )


def _means(of: Sequence[object], names: Sequence[str]) -> Mapping[str, float]:
    return {name: float(np.nanmean([getattr(each, name) for each in of])) if of else math.nan for name in names}


STUDY: Study[ThinkingGrid, ThinkingResult] = Study(
    name="thinking",
    title="LLMs that think before they answer",
    question="What does the prompt tell about the length of thinking and answer, and what does the switch change?",
    paper="CASTILLO leaves it to future work",
    source="MisguidedAttention and Chatbot Arena ($LENGTHWISE_DATA/diverse)",
    grid=ThinkingGrid(),
    quick=ThinkingGrid(orders=2),
    minutes=(2, 0.5),
    serial=True,
    measure=measure,
    tables=tables,
    answer=answer,
)
