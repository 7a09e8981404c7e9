"""What decides whether TIE's score beats the median: the correlation of mu and sigma.

TIE's score grows with mu and with sigma. Where short answers are the uncertain ones (correlation below 0), adding the
tail moves them back in the queue; where long answers are, it moves back what belongs there. The paper does not report
its correlation. This study sweeps it on synthetic traffic with the paper's other statistics, and measures it in
CASTILLO, in the parameters of a prompt's own samples and in those that a predictor returns.

Latency per token is shown by both definitions: the mean over requests of E2E over output tokens, and the sum of E2E
over the sum of output tokens. Policies serve the same lengths, so a ratio of the second is the ratio of mean E2E.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from experiments.study import Run, SeededGrid, Study, predictions_by_prompt, table_of
from experiments.tie import paper
from experiments.tie.study import ENGINE, HIGH, LLM, draws, extend, find, fleet, over
from experiments.tie.traffic import AS_IN_PAPER, synthetic_traffic
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio
from lengthwise.lengths import TIE_NU
from lengthwise.lengths.families import logt_family
from lengthwise.lengths.fit import fit_rows
from lengthwise.reports.tables import Table, share
from lengthwise.simulator import RequestPredictions
from lengthwise.simulator.grid import Grid, Plan, run_grid
from lengthwise.workloads import LengthSamples, Workload

Floats = NDArray[np.float64]

OWN: Final = "fit to the prompt's samples"
"""Parameters that a predictor could at best return; the true length is one of the ten samples."""
SMALLEST_SIGMA: Final = 0.02
FIFTHS: Final = 5


@dataclass(frozen=True)
class MuSigmaGrid(SeededGrid):
    """What is simulated, at the load that the paper's highest rate implies."""

    requests: int = 2000
    correlations: tuple[float, ...] = (-0.8, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8)
    predictor: str = "default"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(-1.0 <= each <= 1.0 for each in self.correlations):
            raise InputError(f"{self.correlations}", field="correlations", hint="give numbers from -1 to 1")


@dataclass(frozen=True)
class Comparison:
    """TIE and SJF on the same predictions; correlations are Pearson's, of mu and ln sigma."""

    traffic: str
    of_prompts: float | None
    """As drawn; None where the prompts are real."""
    correlation: float
    """As predicted: noise of the predictions brings it nearer to 0."""
    per_token: Ratio
    """TIE over SJF, mean of E2E over output tokens."""
    total: Ratio
    """TIE over SJF, sum of E2E over sum of output tokens."""
    sjf: Ratio
    """SJF over FCFS, mean of E2E over output tokens."""
    tie: Ratio


@dataclass(frozen=True)
class Fifth:
    """Requests between two fifths of the predicted medians."""

    median_tokens: float
    sigma: float
    """As predicted, mean."""
    needed: float
    """Scale of the errors of ln length: their median size over that of a Student-t with scale 1."""
    sampling: float
    """Mean sigma of the prompts' own samples."""
    within_half: float
    """Share of true lengths in the central 50 % of their prediction."""


@dataclass(frozen=True)
class MuSigmaResult:
    """Everything measured."""

    grid: MuSigmaGrid
    origin: str
    swept: tuple[Comparison, ...]
    castillo: tuple[Comparison, ...]
    sampling: dict[str, float]
    """Correlation in the prompts' own samples, by LLM."""
    fifths: tuple[Fifth, ...]


def measure(run: Run, grid: MuSigmaGrid) -> MuSigmaResult:
    """The sweep, CASTILLO with two kinds of predictions, and where the predictor's sigma comes from."""
    test = run.castillo().where(split="test")
    swept = []
    for number, correlation in enumerate(grid.correlations):
        run.report(f"correlation {correlation:g}", 0.6 * number / len(grid.correlations))
        swept.append(_synthetic(grid, correlation))
    run.report("CASTILLO", 0.6)
    castillo, fifths = _castillo(grid, test)
    run.report("samples of all LLMs", 0.9)
    sampling = {llm: _sampling_correlation(test.where(llm=llm)) for llm in test.llms}
    return MuSigmaResult(grid, test.origin, tuple(swept), castillo, sampling, fifths)


def _synthetic(grid: MuSigmaGrid, correlation: float) -> Comparison:
    traffic = [synthetic_traffic(grid.requests, seed, correlation) for seed in range(grid.seeds)]
    plan = Plan(fleet(), ("fcfs",), ("oracle",), loads=(HIGH,), seeds=range(grid.seeds))
    base = run_grid(plan, lambda seed: traffic[seed].workload)
    predictions = [each.logt for each in traffic]
    return _compare("synthetic", correlation, base, [each.workload for each in traffic], AS_IN_PAPER, predictions)


def _castillo(grid: MuSigmaGrid, test: LengthSamples) -> tuple[tuple[Comparison, ...], tuple[Fifth, ...]]:
    draw, seeds = draws(test, grid.requests), range(grid.seeds)
    base = run_grid(Plan(fleet(), ("fcfs", "sjf"), (grid.predictor,), loads=(HIGH,), seeds=seeds), draw)
    drawn = [draw(seed) for seed in seeds]
    predicted = base.predictions[grid.predictor]
    rows = test.where(llm=LLM)
    own = dict(zip(rows.table["prompt"].to_pylist(), np.transpose(_own(rows)).tolist(), strict=True))
    fitted = [predictions_by_prompt(OWN, workload, own) for workload in drawn]
    comparisons = tuple(
        _compare("CASTILLO", None, base, drawn, name, predictions)
        for name, predictions in ((grid.predictor, predicted), (OWN, fitted))
    )
    lengths = np.concatenate([workload.output_tokens for workload in drawn])
    return comparisons, _fifths(lengths, predicted, fitted)


def _compare(
    traffic: str,
    of_prompts: float | None,
    base: Grid,
    drawn: Sequence[Workload],
    name: str,
    predictions: Sequence[RequestPredictions],
) -> Comparison:
    grid = extend(base, drawn, {(policy, name): predictions for policy in ("sjf", "tie")})
    fcfs, sjf, tie = (find(grid, policy, name) for policy in ("fcfs", "sjf", "tie"))
    mu, sigma = (np.concatenate([getattr(each, column) for each in predictions]) for column in ("mu", "sigma"))
    return Comparison(
        f"{traffic}, {name}",
        of_prompts,
        _correlation(mu, sigma),
        over(tie, sjf),
        over(tie, sjf, "e2e_s"),
        over(sjf, fcfs),
        over(tie, fcfs),
    )


def _correlation(mu: Floats, sigma: Floats) -> float:
    return float(np.corrcoef(mu, np.log(np.maximum(sigma, SMALLEST_SIGMA)))[0, 1])


def _sampling_correlation(rows: LengthSamples) -> float:
    mu, sigma = _own(rows)
    several = rows.clean_mask().sum(axis=1) > 1
    return _correlation(mu[several], sigma[several])


def _own(rows: LengthSamples) -> tuple[Floats, Floats]:
    """mu and sigma of each prompt's clean samples, by maximum likelihood; of equal samples sigma is the smallest."""
    lengths = np.minimum(rows.lengths_matrix(), paper.MAX_TOKENS)
    cut = lengths >= paper.MAX_TOKENS
    fits = fit_rows(logt_family(TIE_NU), lengths, rows.clean_mask(), cut)
    centre = np.log(np.maximum(rows.clean_mean(), 1.0))
    mu = np.where(fits.degenerate, centre, fits.params[:, 0])
    sigma = np.where(fits.degenerate, SMALLEST_SIGMA, np.maximum(fits.params[:, 1], SMALLEST_SIGMA))
    return mu, sigma


def _fifths(
    lengths: NDArray[np.int64], predicted: Sequence[RequestPredictions], fitted: Sequence[RequestPredictions]
) -> tuple[Fifth, ...]:
    mu, sigma = (np.concatenate([getattr(each, name) for each in predicted]) for name in ("mu", "sigma"))
    sampling = np.concatenate([each.sigma for each in fitted])
    off = np.abs(np.log(lengths) - mu)
    half = float(stdtrit(TIE_NU, 0.75))
    return tuple(
        Fifth(
            float(np.exp(np.median(mu[rows]))),
            float(sigma[rows].mean()),
            float(np.median(off[rows])) / half,
            float(sampling[rows].mean()),
            float((off[rows] <= half * sigma[rows]).mean()),
        )
        for rows in np.array_split(np.argsort(mu, kind="stable"), FIFTHS)
    )


def tables(found: MuSigmaResult) -> list[Table]:
    """The sweep with CASTILLO below it, the correlation by LLM, and the predictor's sigma."""
    main = paper.ONLINE[paper.MAIN]
    compared = table_of(
        "TIE over SJF by the correlation of mu and sigma",
        (*found.swept, *found.castillo),
        [
            ("traffic, predictions", lambda each: each.traffic),
            ("correlation", lambda each: None if each.of_prompts is None else f"{each.of_prompts:+.1f}"),
            ("as predicted", lambda each: f"{each.correlation:+.2f}"),
            ("tie / sjf, mean of E2E / tokens", lambda each: each.per_token),
            ("tie / sjf, total E2E / total tokens", lambda each: each.total),
            ("sjf / fcfs, mean of E2E / tokens", lambda each: each.sjf),
            ("tie / fcfs, mean of E2E / tokens", lambda each: each.tie),
        ],
        [
            (
                f"{ENGINE}, {paper.SLOTS} slots, no prefix cache; load {HIGH:g}, n {found.grid.requests:,} to drain, "
                f"{found.grid.seeds} seeds, paired, 95 % intervals. correlation: Pearson's, of mu and ln sigma."
            ),
            "All policies use the same predictions and serve the same lengths: a ratio of totals is that of mean E2E.",
            f"The paper has {main['tie'] / main['sjf']:.2f} for tie / sjf, with a predictor of its own for sjf.",
        ],
        group=lambda each: each.of_prompts is None,
    )
    by_llm = [[llm, f"{each:+.2f}"] for llm, each in found.sampling.items()]
    by_llm.append(["mean", f"{np.mean(list(found.sampling.values())):+.2f}"])
    fifths = table_of(
        f"The sigma of `{found.grid.predictor}` by predicted length, fifths of the requests",
        found.fifths,
        [
            ("predicted median, tokens", lambda each: f"{each.median_tokens:,.0f}"),
            ("sigma", lambda each: f"{each.sigma:.2f}"),
            ("needed", lambda each: f"{each.needed:.2f}"),
            ("sampling alone", lambda each: f"{each.sampling:.2f}"),
            ("in the central 50 %", lambda each: share(each.within_half)),
        ],
        ["needed: the scale of the errors of ln length. sampling alone: sigma of the prompt's own ten samples."],
    )
    return [
        compared,
        Table("Correlation in the samples of CASTILLO's test prompts", ("LLM", "mu and ln sigma"), by_llm),
        fifths,
    ]


def answer(found: MuSigmaResult) -> str:
    """TIE over SJF at both ends of the sweep, and on CASTILLO."""
    low, high = (f"{each.per_token.ratio:.2f} at {each.of_prompts:+.1f}" for each in (found.swept[0], found.swept[-1]))
    real = ", ".join(f"{each.per_token.ratio:.2f} on {each.traffic}" for each in found.castillo)
    return f"TIE over SJF on equal predictions, by the correlation of mu and sigma: {low}, {high}; {real}."


STUDY: Study[MuSigmaGrid, MuSigmaResult] = Study(
    name="mu_sigma",
    title="TIE over SJF, by the correlation of mu and sigma",
    question="For which traffic does TIE's score beat the median's order?",
    paper="TIE, arXiv 2604.00499",
    source="synthetic log-t traffic, CASTILLO",
    grid=MuSigmaGrid(),
    quick=MuSigmaGrid(seeds=3, requests=600, correlations=(-0.8, 0.0, 0.8), predictor="fast"),
    minutes=(5, 0.2),
    serial=True,
    measure=measure,
    tables=tables,
    answer=answer,
)
