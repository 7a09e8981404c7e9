"""One prompt asked 256 times: the spread that no predictor can remove, and the family it follows.

TIE (arXiv 2604.00499) opens with this picture: the lengths of 256 generations of one prompt of LMSYS-Chat-1M, with
the fitted log-t over them. Here any served LLM answers, and the other families stand beside it by likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.lengths.families import FAMILIES, LOGNORMAL
from lengthwise.lengths.fit import fit_rows
from lengthwise.lengths.goodness import ks_critical, ks_statistic
from lengthwise.predictors.contract import PredictionInput
from lengthwise.predictors.resolve import load_predictor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.lengths import LengthDistribution
    from lengthwise.lengths.families import Family
    from lengthwise.workloads import LengthSamples

    Array = NDArray[np.float64]

GENERATIONS: Final = 256
"""As in the paper's figure."""
PROMPT: Final = "Introduce Nanjing University in China."
"""Not the paper's own prompt, which is of LMSYS-Chat-1M, a data set that is not at hand here."""
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
    """The same with a point off for each free parameter: the better family has more."""
    ks: float
    ks_passes: bool | None
    """At 5 %, refitting accounted for; None where answers were cut off, and KS says nothing."""

    @property
    def name(self) -> str:
        """The family's."""
        return self.family.name

    def density(self, x: Array) -> Array:
        """Per token."""
        return np.asarray(np.exp(self.family.logpdf(x[None, :], self.params[None, :]))[0])

    def survival(self, x: Array) -> Array:
        """P(length > x)."""
        return np.asarray(np.exp(self.family.logsf(x[None, :], self.params[None, :]))[0])


@dataclass(frozen=True, eq=False)
class OnePrompt:
    """All of it."""

    prompt: str
    llm: str
    limit: int
    lengths: Array
    capped: NDArray[np.bool_]
    fits: tuple[FamilyFit, ...]
    """Best first, by AIC."""
    predicted: dict[str, LengthDistribution]
    """What shipped predictors predict of this prompt, unasked."""

    def fit(self, name: str) -> FamilyFit:
        """That of one family."""
        return next(each for each in self.fits if each.name == name)


def study_one_prompt(
    samples: LengthSamples, limit: int, *, predictors: tuple[str, ...] = ("fast",), seed: int = 0
) -> OnePrompt:
    """Fit every family to the one row of `samples`; `limit` is the max_tokens that its answers were cut at."""
    if len(samples) != 1:
        raise InputError(f"has {len(samples)} prompts", source=samples.origin, hint="give the answers to one")
    lengths = samples.lengths_matrix().astype(np.float64)
    capped = samples.capped_matrix()
    if len(np.unique(lengths[~capped])) < 3:
        raise InputError(
            f"{lengths.size} answers with {len(np.unique(lengths[~capped]))} different lengths have no spread to fit",
            source=samples.origin,
            hint="sample with a temperature above 0, more answers, or a higher --max-tokens",
        )
    rng = np.random.default_rng(seed)
    base = float(fit_rows(LOGNORMAL, lengths, censored=capped).loglik[0])
    fits = [_fit(family, lengths, capped, base, rng) for family in FAMILIES]
    fits.sort(key=lambda each: each.aic_gain, reverse=True)
    prompt, llm = (str(samples.table[name][0].as_py()) for name in ("prompt", "llm"))
    asked = [PredictionInput(prompt, llm, limit)]
    return OnePrompt(
        prompt,
        llm,
        limit,
        lengths[0],
        capped[0],
        tuple(fits),
        {name: load_predictor(name).predict(asked)[0] for name in predictors},
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
