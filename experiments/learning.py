"""Learning while serving: how fast does a predictor learn the lengths of kinds of prompts left out of its training?

Every source of diverse prompts with 500 distinct prompts or more of one LLM: the LLM with the most, one answer per
prompt, in random orders. Each request is predicted, then its answer observed. tau and coverage are of the predictions
as they were made, in windows of answers. Beside it CASTILLO's official test, all LLMs mixed, and what learning is worth
in latency on simulated engines, where a length is visible once its request has finished.

A packaged predictor that was trained on a source is not judged by it: `models` names a folder with a model file for
each kind of prompts, trained without that kind (`KIND.lw`; docs/guides/training.md says how).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.study import Run, Study, table_of
from lengthwise.errors import InputError
from lengthwise.files import data_home, read_parquet_table
from lengthwise.intervals import Ratio, over_seeds
from lengthwise.predictors.adapt import unknown_llms_unlogged
from lengthwise.predictors.contract import LogTPredictions, PredictionInput, as_logt
from lengthwise.predictors.evaluation import prediction_inputs
from lengthwise.predictors.learner import KnownPrompts, Learner, describe
from lengthwise.predictors.resolve import resolve_predictor
from lengthwise.reports.tables import Table, share, signed
from lengthwise.simulator import Fleet, Outcome, measure_capacity, simulate
from lengthwise.simulator.cluster import as_predictions, at_rate
from lengthwise.traffic.scores import Forecast, score_predictions, tau_within
from lengthwise.workloads import Workload, load_castillo
from lengthwise.workloads.arrivals import generator, poisson
from lengthwise.workloads.datasets import GROUPS, UNCLEAR_LICENCE

Floats = NDArray[np.float64]

FILES: Final = ("lengths", "open_ended")
MIN_PROMPTS: Final = 500
FIRST: Final = 100
"""Answers of the first window."""
LEARNED: Final = 300
"""Answers before the last window."""
FCFS, ALONE, LEARNING, TRUE = "fcfs", "without", "with learning", "true lengths"
METRICS: Final = ("E2E", "per token", "TTFT", "E2E p99")
FLEET: Final = "4*llama-3-8b@a100"
SLOTS: Final = 8
TRAFFIC: Final = (
    "cimo-labs/cje (arena_sample)",
    "WildEval/ZeroEval",
    "TIGER-AI-Lab/MMLU-Pro",
    "vivek3141/ghostbuster-data",
    "teknium1/GPTeacher",
)
"""Sources of the latency table: chat, reasoning, knowledge, writing and instructions."""


@dataclass(frozen=True)
class LearningGrid:
    """The predictor that learns, and how much."""

    predictor: str = "fast"
    orders: int = 20
    answers: int = 600
    """Answers of an order, at most."""
    prompts: int = 2_000
    """Prompts of a source, at most, drawn at random."""
    models: Path | None = None
    """Folder of model files that were trained without a kind of prompts each."""
    castillo_orders: int = 5
    loads: tuple[float, ...] = (0.9, 1.1)
    seeds: int = 10
    """Of the latency table; 0: without it."""
    requests: int = 1_500


@dataclass(frozen=True, eq=False)
class SourceRows:
    """One answer to each distinct prompt, of one LLM."""

    source: str
    llm: str
    prompts: tuple[str, ...]
    tokens: NDArray[np.int64]
    censored: NDArray[np.bool_]

    def inputs(self) -> list[PredictionInput]:
        """Return the requests; an answer that was cut off had its length as the limit."""
        limits = [int(n) if cut else None for n, cut in zip(self.tokens, self.censored, strict=True)]
        return [PredictionInput(text, self.llm, limit) for text, limit in zip(self.prompts, limits, strict=True)]


@lru_cache(maxsize=1)
def read_sources(home: Path) -> dict[str, SourceRows]:
    """Return the sources with enough distinct prompts of one LLM; of each, the LLM with the most.

    Answers with hidden reasoning are left out: their length is not known.
    """
    rows: dict[tuple[str, str], dict[str, tuple[int, bool]]] = {}
    for name in FILES:
        path = home / "diverse" / f"{name}.parquet"
        table = read_parquet_table(path).to_pylist() if path.is_file() else []
        for row in table:
            if row["output_tokens"] and not row.get("maybe_hidden_reasoning"):
                found = rows.setdefault((row["source"], row["model"]), {})
                found.setdefault(row["prompt"], (int(row["output_tokens"]), row["finish"] == "length"))
    largest: dict[str, SourceRows] = {}
    for (source, llm), answers in rows.items():
        if len(answers) >= MIN_PROMPTS and (source not in largest or len(answers) > len(largest[source].prompts)):
            tokens, cut = (np.array(column) for column in zip(*answers.values(), strict=True))
            largest[source] = SourceRows(source, llm, tuple(answers), tokens, cut)
    return dict(sorted(largest.items()))


def full_data_home() -> Path:
    """Return the folder of the full data; InputError without one."""
    home = data_home()
    if home is None:
        raise InputError("no data", hint="set LENGTHWISE_DATA to a folder with diverse/ and castillo/")
    return home


def model_for(source: str, predictor: str, models: Path | None) -> str:
    """Return the predictor of a source: the model file that was trained without its kind, else the named one."""
    if models is None or source in UNCLEAR_LICENCE:  # no packaged predictor is trained on the latter
        return predictor
    (kind,) = [kind for kind, sources in GROUPS.items() if source in sources]
    file = models / f"{kind}.lw"
    if not file.is_file():
        raise InputError("is missing", source=file, hint=f"train a model without {kind}: docs/guides/training.md")
    return str(file)


def learned(known: KnownPrompts, requests: Sequence[PredictionInput], tokens: Sequence[int]) -> LogTPredictions:
    """Predict requests one after another, each with the answers of those before it."""
    learner = Learner(known)
    mu, sigma = [], []
    for request, length in zip(requests, tokens, strict=True):
        found = learner.predict([request])
        mu.append(float(found.mu[0]))
        sigma.append(float(found.sigma[0]))
        learner.observe(request, length, censored=request.max_tokens is not None and length >= request.max_tokens)
    return LogTPredictions.of(mu, sigma, [each.cap for each in requests])


def known_prompts(name: str, inputs: Sequence[PredictionInput]) -> KnownPrompts:
    """Predict and describe each request once."""
    with unknown_llms_unlogged():
        predictions, descriptions = describe(resolve_predictor(name), inputs)
    columns = as_logt(predictions)
    return KnownPrompts(columns.mu, columns.sigma, descriptions)


def source_scores(source: str, predictor: str, orders: int, answers: int, prompts: int) -> dict[str, Any]:
    """Score one source: by kind of prediction and window, the mean over orders of tau and coverage."""
    rows = read_sources(full_data_home())[source]
    drawn = np.random.default_rng(0).permutation(len(rows.prompts))[:prompts]
    inputs = [rows.inputs()[number] for number in drawn]
    tokens, censored = rows.tokens[drawn], rows.censored[drawn]
    known = known_prompts(predictor, inputs)
    asked = [PredictionInput(str(number), each.llm, each.max_tokens) for number, each in enumerate(inputs)]
    found: dict[str, list[list[float]]] = {"alone": [], "learned": []}
    for order in range(orders):
        rng = np.random.default_rng([order, 1])
        chosen = rng.permutation(len(asked))[:answers]
        requests, lengths, cut = [asked[number] for number in chosen], tokens[chosen], censored[chosen]
        columns = {"alone": known.predict(requests), "learned": learned(known, requests, lengths.tolist())}
        for kind, predictions in columns.items():
            forecast = Forecast.of(predictions, crps=False)
            first, last = np.arange(FIRST), np.arange(LEARNED, len(chosen))
            scores = [score_predictions(forecast.take(at), lengths[at], censored=cut[at]) for at in (first, last)]
            found[kind].append([value for each in scores for value in (each.tau, each.coverage_90)])
    means = {kind: np.mean(values, axis=0).tolist() for kind, values in found.items()}
    return {"llm": rows.llm, "prompts": len(rows.prompts), "cut": float(rows.censored.mean()), **means}


def castillo_scores(predictor: str, orders: int) -> dict[str, Any]:
    """Score the official test of CASTILLO, all LLMs mixed: tau of the median with the mean of a prompt's samples."""
    samples = load_castillo(split="test")
    samples = samples.where(corpus=[corpus for corpus in samples.corpora if corpus != "Alpaca"])
    inputs = prediction_inputs(samples, None)
    lengths, clean = samples.lengths_matrix(), samples.clean_mask()
    usable = np.flatnonzero(clean.any(axis=1))
    known = known_prompts(predictor, [inputs[row] for row in usable])
    llms = np.array([inputs[row].llm for row in usable], object)
    true = np.array([lengths[row][clean[row]].mean() for row in usable])
    asked = [PredictionInput(str(number), llm) for number, llm in enumerate(llms)]
    taus = []
    for order in range(orders):
        rng = np.random.default_rng([order, 2])
        chosen = rng.permutation(len(asked))
        tokens = [int(rng.choice(lengths[row][clean[row]])) for row in usable[chosen]]
        found = learned(known, [asked[number] for number in chosen], tokens)
        taus.append(tau_within(llms[chosen], found.mu, true[chosen]))
    return {"alone": tau_within(llms, known.mu, true), "learned": float(np.mean(taus)), "answers": len(usable)}


def _latency(outcome: Outcome) -> dict[str, float]:
    found = outcome.summary
    return {
        "E2E": found.e2e_s.mean,
        "per token": found.per_token_s.mean,
        "TTFT": found.ttft_s.mean,
        "E2E p99": found.e2e_s.p99,
    }


def latencies(source: str, predictor: str, load: float, requests: int, seed: int) -> dict[str, Any]:
    """Simulate one seed of a source's traffic: FCFS, and `lengthwise` with each kind of prediction."""
    rows = read_sources(full_data_home())[source]
    rng = np.random.default_rng([seed, 3])
    chosen = rng.permutation(len(rows.prompts))[:requests]
    drawn = Workload.from_table(
        {
            "arrival_s": poisson(len(chosen), 1.0, generator(seed, "arrivals")),
            "input_tokens": [max(1, len(rows.prompts[number]) // 4) for number in chosen],
            "output_tokens": rows.tokens[chosen],
            "prompt": [rows.prompts[number] for number in chosen],
            "llm": [rows.llm] * len(chosen),
        },
        name=source,
    )
    fleet = Fleet.parse(FLEET).limited_to(max_num_seqs=SLOTS)
    arriving = at_rate(drawn, load * measure_capacity(drawn, fleet).requests_per_s)
    found: dict[str, Any] = {FCFS: _latency(simulate(arriving, fleet, "fcfs", predictor="none"))}
    with unknown_llms_unlogged():
        for label, name in {ALONE: predictor, LEARNING: f"{predictor}+learn", TRUE: "oracle"}.items():
            predictions = as_predictions(arriving, fleet, name)
            outcome = simulate(arriving, fleet, "lengthwise", predictor=predictions)
            found[label] = {**_latency(outcome), "tau": predictions.tau}
    return found


class Scores(NamedTuple):
    """tau and coverage of 90 % intervals, in the first window and after LEARNED answers."""

    first_tau: float
    first_coverage: float
    tau: float
    coverage: float


@dataclass(frozen=True)
class LearnedSource:
    """One source."""

    source: str
    llm: str
    prompts: int
    cut: float
    alone: Scores
    learned: Scores


@dataclass(frozen=True)
class LearnedLatency:
    """`lengthwise` on one source and load with one kind of prediction, over FCFS or another kind."""

    source: str
    load: float
    kind: str
    base: str
    tau: float
    ratios: Mapping[str, Ratio]


@dataclass(frozen=True)
class LearningResult:
    """All tables."""

    grid: LearningGrid
    sources: tuple[LearnedSource, ...]
    castillo: tuple[float, float, int]
    """tau without and with learning, and answers of an order."""
    latency: tuple[LearnedLatency, ...]

    def mean(self, name: str, *, learned: bool = True) -> float:
        """Mean of a score over sources."""
        return float(np.mean([getattr(each.learned if learned else each.alone, name) for each in self.sources]))

    @property
    def lost(self) -> list[float]:
        """tau lost in the first window, by source; below 0 where it is gained."""
        return [each.alone.first_tau - each.learned.first_tau for each in self.sources]


def measure(run: Run, grid: LearningGrid) -> LearningResult:
    """Score every source, CASTILLO's test and latencies."""
    names = list(read_sources(full_data_home()))
    models = {name: model_for(name, grid.predictor, grid.models) for name in names}
    scored = run.each(
        "sources",
        source_scores,
        [(name, models[name], grid.orders, grid.answers, grid.prompts) for name in names],
    )
    sources = [
        LearnedSource(name, each["llm"], each["prompts"], each["cut"], Scores(*each["alone"]), Scores(*each["learned"]))
        for name, each in zip(names, scored, strict=True)
    ]
    (castillo,) = run.each("CASTILLO", castillo_scores, [(grid.predictor, grid.castillo_orders)])
    cells = [(source, load) for source in TRAFFIC for load in grid.loads if grid.seeds]
    arguments = [
        (source, models[source], load, grid.requests, seed) for source, load in cells for seed in range(grid.seeds)
    ]
    simulated = run.each("latency", latencies, arguments)
    latency = []
    for number, (source, load) in enumerate(cells):
        runs = simulated[number * grid.seeds : (number + 1) * grid.seeds]
        for kind, base in ((ALONE, FCFS), (LEARNING, FCFS), (TRUE, FCFS), (LEARNING, ALONE)):
            ratios = {
                metric: over_seeds([each[kind][metric] for each in runs], [each[base][metric] for each in runs])
                for metric in METRICS
            }
            tau = float(np.mean([each[kind]["tau"] for each in runs]))
            latency.append(LearnedLatency(source, load, kind, base, tau, ratios))
    return LearningResult(
        grid, tuple(sources), (castillo["alone"], castillo["learned"], castillo["answers"]), tuple(latency)
    )


def tables(found: LearningResult) -> list[Table]:
    """Sources, CASTILLO's test, and latencies."""
    grid = found.grid
    first, last = f"tau, first {FIRST}", f"tau, from {LEARNED}"
    columns = ["source", "LLM", "prompts", first, "learned", "change", last, "learned", "change", "in 90 %", "learned"]
    rows = [
        [
            each.source,
            each.llm,
            f"{each.prompts:,}",
            *_pair(each.alone.first_tau, each.learned.first_tau),
            *_pair(each.alone.tau, each.learned.tau),
            share(each.alone.coverage),
            share(each.learned.coverage),
        ]
        for each in found.sources
    ]
    means = {name: [found.mean(name, learned=learned) for learned in (False, True)] for name in Scores._fields}
    rows.append(
        ["mean", "", "", *_pair(*means["first_tau"]), *_pair(*means["tau"]), *(share(x) for x in means["coverage"])]
    )
    notes = [
        f"one answer per prompt, {grid.orders} random orders of at most {grid.answers}: predicted, then observed",
        f"coverage from answer {LEARNED} on; the limit of an answer that was cut off ends the interval",
        "the model of each source is trained without its kind of prompts"
        if grid.models
        else f"{grid.predictor} as packaged",
    ]
    alone, learned, answers = found.castillo
    castillo = Table(
        "CASTILLO's official test, six corpora, all LLMs mixed",
        ["answers", "tau", "learned", "change"],
        [[f"{answers:,}", *_pair(alone, learned)]],
        [f"mean over {grid.castillo_orders} orders"],
    )
    latency = table_of(
        "Latency of `lengthwise`, by kind of prediction",
        found.latency,
        [
            ("source", lambda each: each.source),
            ("load", lambda each: f"{each.load:g}"),
            ("predictions", lambda each: f"{each.kind} over {each.base}"),
            ("tau", lambda each: f"{each.tau:.3f}"),
            *((metric, _ratio(metric)) for metric in METRICS),
        ],
        [
            f"{grid.requests:,} requests, {FLEET}, {SLOTS} slots each, round robin, Poisson arrivals, run to drain",
            f"below 1 is better; 95 % intervals over {grid.seeds} seeds; tau is over all requests, the first included",
            "a length is visible to the learner once its request has finished under FCFS",
        ],
        group=lambda each: (each.source, each.load),
    )
    return [Table("Learning while serving", columns, rows, notes), castillo, *([latency] if found.latency else [])]


def _pair(before: float, after: float) -> list[str]:
    return [f"{before:.3f}", f"{after:.3f}", signed(after - before)]


def _ratio(metric: str) -> Callable[[LearnedLatency], Ratio]:
    return lambda each: each.ratios[metric]


def answer(found: LearningResult) -> str:
    """What learning brings, and what it costs at first."""
    covered = [each.learned.coverage for each in found.sources]
    alone, learned, _ = found.castillo
    return (
        f"After {LEARNED} answers tau is {found.mean('tau'):.3f} on average over {len(found.sources)} sources, "
        f"{found.mean('tau', learned=False):.3f} without learning. In the first {FIRST} answers it changes by "
        f"{-float(np.mean(found.lost)):+.3f}, on the worst source by {-max(found.lost):+.3f}. 90 % intervals cover "
        f"{min(covered):.1%} to {max(covered):.1%}. CASTILLO's test changes by {learned - alone:+.4f}."
    )


def _needs(_: LearningGrid) -> str | None:
    home = data_home()
    if home is None or not (home / "diverse" / "lengths.parquet").is_file():
        return "needs LENGTHWISE_DATA with castillo/ and diverse/"
    return None


STUDY: Study[LearningGrid, LearningResult] = Study(
    name="learning",
    title="Learning while serving",
    question="How fast does a predictor learn the lengths of new kinds of prompts, and what is that worth?",
    source="Diverse prompts and CASTILLO",
    grid=LearningGrid(),
    quick=LearningGrid(orders=1, prompts=400, castillo_orders=1, loads=(1.1,), seeds=2, requests=600),
    minutes=(12, 0.7),
    measure=measure,
    tables=tables,
    answer=answer,
    needs=_needs,
)
