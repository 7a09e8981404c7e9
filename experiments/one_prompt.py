r"""One prompt answered 256 times: the spread that no predictor can remove, and the family it follows.

TIE (arXiv 2604.00499) opens with this figure: the lengths of 256 generations of one prompt of LMSYS-Chat-1M with the
fitted log-t. Here they are kept answers of SmolLM2-135M, or those that `lengthwise collect` wrote for any LLM, and the
other families are compared by likelihood. With the prompt in prompt.jsonl:

    lengthwise collect --prompts prompt.jsonl --samples 256 --max-tokens 1024 --temperature 0.7 --top-p 0.9 \
      --repetition-penalty 1.1 -o one.parquet
    python -m experiments run one_prompt --set answers=one.parquet
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from experiments.figures import COLOURS, GREY, figure, legend, save
from experiments.length_families.families import FAMILIES, GAMMA, WEIBULL
from experiments.length_families.goodness import ks_critical, ks_statistic
from experiments.study import Run, Study
from lengthwise.errors import InputError
from lengthwise.lengths import LengthDistribution
from lengthwise.lengths.families import LOGNORMAL, LOGT, Family
from lengthwise.lengths.fit import fit_rows
from lengthwise.predictors.contract import PredictionInput
from lengthwise.predictors.resolve import load_predictor
from lengthwise.reports.tables import Table, signed
from lengthwise.workloads import LengthSamples

Array = NDArray[np.float64]


KEPT: Final = Path(__file__).parent / "results" / "one_prompt.parquet"
"""256 answers of SmolLM2-135M-Instruct to one prompt; not the paper's, which is from LMSYS-Chat-1M."""
_CRITICAL_DRAWS: Final = 300


@dataclass(frozen=True, eq=False)
class FamilyFit:
    """One family fitted to the lengths of one prompt by maximum likelihood."""

    family: Family
    params: Array
    """Location, scale, shape."""
    loglik_gain: float
    """Log-likelihood of all lengths, less log-normal's."""
    aic_gain: float
    """The same minus one per free parameter: higher is better."""
    ks: float
    ks_passes: bool | None
    """At 5 %, with refitting accounted for; None where answers are cut off, as KS does not apply."""

    @property
    def name(self) -> str:
        """Name of the family."""
        return self.family.name

    def density(self, x: Array) -> Array:
        """Probability density per token."""
        return np.asarray(np.exp(self.family.logpdf(x[None, :], self.params[None, :]))[0])

    def survival(self, x: Array) -> Array:
        """P(length > x)."""
        return np.asarray(np.exp(self.family.logsf(x[None, :], self.params[None, :]))[0])


@dataclass(frozen=True, eq=False)
class OnePromptResult:
    """The answers, the fits and the predictions."""

    prompt: str
    llm: str
    limit: int
    lengths: Array
    capped: NDArray[np.bool_]
    fits: tuple[FamilyFit, ...]
    """Best first, by AIC."""
    predicted: dict[str, LengthDistribution]
    """Predictions of shipped predictors for this prompt."""

    def fit(self, name: str) -> FamilyFit:
        """The fit of one family."""
        return next(each for each in self.fits if each.name == name)


def analyse(
    samples: LengthSamples, limit: int, *, predictors: tuple[str, ...] = ("fast",), seed: int = 0
) -> OnePromptResult:
    """Fit every family to the one row of `samples`; `limit` is the max_tokens of its answers."""
    if len(samples) != 1:
        raise InputError(f"has {len(samples)} prompts", source=samples.origin, hint="give the answers to one")
    lengths = samples.lengths_matrix().astype(np.float64)
    capped = samples.capped_matrix()
    if len(np.unique(lengths[~capped])) < 3:
        raise InputError(
            f"{lengths.size} answers with {len(np.unique(lengths[~capped]))} different lengths have no spread to fit",
            source=samples.origin,
            hint="sample with a temperature above 0, more answers, or a higher max_tokens",
        )
    rng = np.random.default_rng(seed)
    base = float(fit_rows(LOGNORMAL, lengths, censored=capped).loglik[0])
    fits = [_fit(family, lengths, capped, base, rng) for family in FAMILIES]
    fits.sort(key=lambda each: each.aic_gain, reverse=True)
    prompt, llm = (str(samples.table[name][0].as_py()) for name in ("prompt", "llm"))
    inputs = [PredictionInput(prompt, llm, limit)]
    return OnePromptResult(
        prompt,
        llm,
        limit,
        lengths[0],
        capped[0],
        tuple(fits),
        {name: load_predictor(name).predict(inputs)[0] for name in predictors},
    )


def _fit(family: Family, lengths: Array, capped: NDArray[np.bool_], base: float, rng: np.random.Generator) -> FamilyFit:
    fits = fit_rows(family, lengths, censored=capped)
    gain = float(fits.loglik[0]) - base
    present = ~capped
    statistic = float(ks_statistic(fits, lengths, present)[0])
    passes = None
    if not capped.any():
        critical = ks_critical(family, fits.params, lengths.shape[1], rng, draws=_CRITICAL_DRAWS)
        passes = statistic <= critical
    extra = sum(family.free) - sum(LOGNORMAL.free)
    return FamilyFit(family, fits.params[0], gain, gain - extra, statistic, passes)


def _lengths(found: OnePromptResult) -> Table:
    x = found.lengths
    shares = (0.05, 0.25, 0.5, 0.75, 0.95)
    rows = [["answers", f"{x.mean():.0f}", *(f"{value:.0f}" for value in np.quantile(x, shares)), f"{x.max():.0f}"]]
    for name, prediction in found.predicted.items():
        quantiles = [f"{prediction.quantile(q):.0f}" for q in shares]
        rows.append([f"{name} predicts", f"{prediction.mean():.0f}", *quantiles, "–"])
    notes = [f"prompt: {found.prompt}", f"coefficient of variation {x.std() / x.mean():.2f}"]
    if found.capped.any():
        notes.append(f"{int(found.capped.sum())} answers are cut off at {found.limit:,} tokens and count as longer")
    columns = ["tokens", "mean", *(f"{100 * q:.0f} %" for q in shares), "longest"]
    return Table(f"{len(x)} answers of {found.llm} to one prompt", columns, rows, notes)


def _families(found: OnePromptResult) -> Table:
    rows = []
    for each in found.fits:
        location, scale, shape = (f"{value:.3f}" for value in each.params)
        passes = "–" if each.ks_passes is None else "passes" if each.ks_passes else "fails"
        free = shape if each.family.shape_is_free else "–"
        gains = [signed(each.loglik_gain, 2), signed(each.aic_gain, 2)]
        rows.append([each.name, *gains, f"{each.ks:.3f}", passes, location, scale, free])
    columns = ["family", "log-likelihood - log-normal's", "less parameters", "KS", "KS at 5 %", "location", "scale"]
    notes = ["by likelihood, minus one per free parameter (AIC / 2); KS with refitting accounted for"]
    return Table("Families by likelihood", [*columns, "shape"], rows, notes)


_BARS: Final = 40
_SHOWN: Final = (
    (LOGT, COLOURS[1], 2.4),
    (LOGNORMAL, COLOURS[0], 1.5),
    (WEIBULL, COLOURS[2], 1.1),
    (GAMMA, COLOURS[3], 1.1),
)


def draw(found: OnePromptResult, path: Path) -> None:
    """Write the figure."""
    prompt = textwrap.shorten(found.prompt, 60, placeholder="…")
    title = f"{len(found.lengths)} answers of {found.llm} to “{prompt}”"
    with figure(1, 2, size=(13.5, 4.8), title=title) as (drawing, axes):
        _histogram(axes[0], found)
        _tail(axes[1], found)
        save(drawing, path)


def _histogram(axes: Axes, found: OnePromptResult) -> None:
    """Bars and densities, as in the paper's figure; answers cut off are in the last bar."""
    top = min(float(found.limit), 1.15 * float(np.quantile(found.lengths[~found.capped], 0.995)))
    edges = np.linspace(0.0, top, _BARS + 1)
    weights = np.full(len(found.lengths), 1.0 / (len(found.lengths) * (edges[1] - edges[0])))
    axes.hist(np.minimum(found.lengths, top), bins=edges.tolist(), weights=weights, color="#cfe1ee", edgecolor="white")
    x = np.linspace(1.0, top, 500)
    for family, colour, width in _SHOWN:
        each = found.fit(family.name)
        label = f"{each.name} ({each.loglik_gain:+.1f})"
        axes.plot(x, each.density(x), color=colour, linewidth=width, label=label)
    for name, prediction in found.predicted.items():
        median, label = prediction.quantile(0.5), f"median that {name} predicts"
        axes.axvline(median, color=GREY, linestyle="--", linewidth=1.2, label=label)
    title = "Fitted families (log-likelihood over log-normal's)"
    axes.set(xlim=(0, top), xlabel="tokens of the answer", ylabel="density per token", title=title)
    legend(axes, loc="upper right")


def _tail(axes: Axes, found: OnePromptResult) -> None:
    """The share of answers that are longer, both axes logarithmic: where the families part."""
    n = len(found.lengths)
    whole = np.sort(found.lengths[~found.capped])
    beyond = 1.0 - np.arange(1, len(whole) + 1) / n
    # The lengths of truncated answers are not known: the empirical curve ends there.
    ends = np.append(whole, found.limit) if found.capped.any() else whole
    axes.plot(*_steps(ends, beyond), color="#22282d", linewidth=1.6, label="answers")
    x = np.geomspace(max(1.0, whole[0] * 0.7), found.limit, 400)
    for family, colour, width in _SHOWN:
        axes.plot(x, found.fit(family.name).survival(x), color=colour, linewidth=width, label=family.name)
    axes.set(xscale="log", yscale="log", ylim=(0.4 / n, 1.3))
    axes.set(xlabel="tokens", ylabel="share of answers that are longer", title="The tail")
    legend(axes, loc="lower left")


def _steps(x: NDArray[np.float64], y: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """A staircase that starts at 1 and falls to y[i] at x[i]; the last x only ends it: no logarithm shows a 0."""
    yield np.repeat(x, 2)[:-1]
    yield np.repeat(np.concatenate([[1.0], y[: len(x) - 1]]), 2)[1:]


@dataclass(frozen=True)
class OnePromptGrid:
    """The answers to one prompt."""

    answers: Path = KEPT
    """Lengths that `lengthwise collect` wrote (.parquet)."""
    max_tokens: int = 1024
    """Longer answers are cut, and count as longer."""
    seed: int = 0


def measure(_: Run, grid: OnePromptGrid) -> OnePromptResult:
    """Fit every family."""
    return analyse(LengthSamples.read(grid.answers), grid.max_tokens, seed=grid.seed)


def answer(found: OnePromptResult) -> str:
    """The families in the order of their fit."""
    order = ", ".join(f"{fit.name} {fit.aic_gain:+.1f}" for fit in found.fits)
    best = f"{found.fits[0].name} fits the {found.lengths.size} answers best"
    return f"{best}. Log-likelihood, less one per parameter, above log-normal's: {order}."


STUDY: Study[OnePromptGrid, OnePromptResult] = Study(
    name="one_prompt",
    title="Answers of one LLM to one prompt",
    question="Which family do the lengths of many answers to one prompt follow?",
    paper="TIE, arXiv 2604.00499, figure 1",
    source="kept answers of SmolLM2-135M, or an LLM of yours",
    grid=OnePromptGrid(),
    quick=OnePromptGrid(),
    minutes=(0.1, 0.1),
    serial=True,
    measure=measure,
    tables=lambda found: [_lengths(found), _families(found)],
    answer=answer,
    draw=draw,
)
