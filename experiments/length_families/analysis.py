"""Which distribution family the lengths of a data set follow: fits, goodness of fit, held-out likelihood, tails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from experiments.length_families.families import FAMILIES, LOGT_FREE
from experiments.length_families.goodness import (
    ConfidenceInterval,
    HeldOut,
    Hill,
    Power,
    held_out,
    hill,
    ks_critical,
    ks_passes_plain,
    ks_statistic,
    log_evidence,
    means_by_cluster,
    power,
    survival,
    unround,
)
from experiments.study import Report
from lengthwise.errors import InputError
from lengthwise.lengths.families import LOGNORMAL, LOGT, Family
from lengthwise.lengths.fit import RowFits, fit_rows
from lengthwise.workloads.length_samples import LengthSamples

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

DEEP_SHARE: Final = 0.01
"""The Hill estimate in tables uses this share of the values, the largest ones."""
_LONGEST: Final = 15_000.0  # tokens at which CASTILLO stopped; simulated answers stop there as well


@dataclass(frozen=True, eq=False)
class Tail:
    """One pooled set of values."""

    name: str
    count: int
    x: Array
    survival: Array
    hill: Hill
    alpha: tuple[float, float, float]
    """Hill estimate from the largest 1 % of the values, with its 95 % band."""


@dataclass(frozen=True, eq=False)
class Tails:
    """Lengths pooled per LLM, and lengths over their prompt's median: the data's and the simulated ones."""

    lengths_by_llm: tuple[Tail, ...]
    over_median: tuple[Tail, ...]
    """The data, then every prompt log-normal, then every prompt log-t."""


def pool_tails(
    lengths: Array,
    present: Mask,
    llm: NDArray[np.object_],
    params: Mapping[Family, Array],
    rng: np.random.Generator,
) -> Tails:
    """Pool the present lengths; `params` are the fits of the rows, from which lengths are simulated."""
    by_llm = [_tail(name, lengths[llm == name][present[llm == name]]) for name in sorted(set(llm.tolist()))]
    pooled = [_tail("data", _over_median(lengths, present))]
    for family, fitted in params.items():
        drawn = np.maximum(np.rint(family.draw(rng, fitted, lengths.shape[1])), 1.0)
        ended = present & (drawn < _LONGEST)
        pooled.append(_tail(f"every prompt {family.name}", _over_median(drawn, ended)))
    return Tails(tuple(by_llm), tuple(pooled))


def _over_median(lengths: Array, present: Mask) -> Array:
    filled = present.any(axis=1)
    lengths, present = lengths[filled], present[filled]
    middle = np.nanmedian(np.where(present, lengths, np.nan), axis=1, keepdims=True)
    return np.asarray((lengths / middle)[present], np.float64)


def _tail(name: str, values: Array) -> Tail:
    x, above = survival(values)
    curve = hill(values)
    return Tail(name, len(values), x, above, curve, curve.at(max(int(len(values) * DEEP_SHARE), 10)))


By = Literal["llm", "corpus", "none"]

PAPER_PASS: Final[Mapping[str, float]] = {LOGT_FREE.name: 0.931, LOGT.name: 0.906, LOGNORMAL.name: 0.603}
"""Share of prompts that pass KS at 5 %, as TIE reports it."""

MIN_SAMPLES: Final = 6  # clean ones per row: three on each side of a held-out split
NUS: Final = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0, 50.0)
REPEAT_COUNT, REPEAT_SPREAD = 4, 20.0


@dataclass(frozen=True)
class Effort:
    """How much is simulated: more of it makes the figures less noisy."""

    critical_draws: int = 2000
    """Rows simulated for each critical value of KS."""
    evidence_rows: int = 8000
    """Rows whose likelihood is integrated, drawn at random: a two-dimensional integral for each nu."""
    power_samples: tuple[int, ...] = (10, 20, 256)
    """Samples per simulated prompt: CASTILLO's, those TIE trains on, and those of TIE's figure 1."""
    power_prompts: int = 1000


FULL_EFFORT: Final = Effort()


@dataclass(frozen=True)
class FamilyResult:
    """One family on one group of rows."""

    family: str
    ks_plain: float
    """Share of rows with KS p > 0.05 as if the parameters had not been fitted: the paper's criterion."""
    ks_refitted: float
    """The same with critical values from a parametric bootstrap that refits; 95 % if the family were true."""
    held_out_gain: ConfidenceInterval
    """Log probability per sample by a fit to the other half of its row, minus log-normal's."""
    loglik_gain: float
    """Log probability per sample by a fit to the same samples, minus log-normal's."""
    median_shape: float
    """Median of the shape nu, k or xi; NaN if the family has none."""
    converged: float


@dataclass(frozen=True)
class GroupResult:
    """All families on one group of rows."""

    group: str
    rows: int
    prompts: int
    families: tuple[FamilyResult, ...]
    repeats: float
    """Share of rows with a spread above 20 tokens in which four or more samples are equal: an LLM that repeats itself.
    Every family here fits such repeats as a heavy tail (a sharp peak with outliers), which they are not."""
    evidence_rows: int
    evidence: tuple[ConfidenceInterval, ...]
    """Integrated log-likelihood per row of log-t minus log-normal's, for each nu of `NUS`."""

    @property
    def best_nu(self) -> float:
        """The nu of `NUS` with the largest likelihood of all rows of the group."""
        return NUS[int(np.argmax([gain.estimate for gain in self.evidence]))]


@dataclass(frozen=True)
class LengthFamilies:
    """Result of the study."""

    origin: str
    by: By
    rows: int
    samples_per_row: int
    left_out: Mapping[str, int]
    """Number of samples or rows left out, by rule."""
    nus: tuple[float, ...]
    groups: tuple[GroupResult, ...]
    """Groups of rows, `all` first."""
    power: tuple[Power, ...]
    tails: Tails


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows that remain after exclusion rules."""

    lengths: Array
    present: Mask
    prompt: NDArray[np.int64]
    llm: NDArray[np.object_]
    group: NDArray[np.object_]


@dataclass(frozen=True, eq=False)
class _Fitted:
    fits: RowFits
    plain: Mask
    refitted: Mask
    held_out: HeldOut


def study_families(
    samples: LengthSamples,
    *,
    by: By = "llm",
    seed: int = 0,
    effort: Effort = FULL_EFFORT,
    report: Report = lambda _what, _done: None,
) -> LengthFamilies:
    """Fit every family to every row's clean samples and compare them, over all rows and group by group."""
    rng = np.random.default_rng(seed)
    rows, left_out = _select(samples, by)
    fitted: dict[Family, _Fitted] = {}
    for i, family in enumerate(FAMILIES):
        stage = _Stage(report, f"fitting {family.name}", i * 0.1, 0.1, 3 * len(rows.lengths))
        fitted[family] = _fit(family, rows, rng, stage.advance, effort.critical_draws)
    usable = np.logical_and.reduce([result.held_out.usable for result in fitted.values()])
    left_out["rows in KS but not held out: one half of their samples has a single length"] = int((~usable).sum())

    report("integrating over location and scale", 0.6)
    evidence, chosen = _evidence(rows, fitted[LOGT].fits, rng, effort.evidence_rows)
    groups = [_summarise(name, member, rows, fitted, usable, evidence, chosen, rng) for name, member in _groups(rows)]
    typical = np.median(fitted[LOGNORMAL].fits.params, axis=0)
    stage = _Stage(report, "what few samples can show", 0.75, 0.23, 2 * len(effort.power_samples))
    powers = power(
        float(typical[0]),
        float(typical[1]),
        rng,
        samples=effort.power_samples,
        prompts=effort.power_prompts,
        advance=lambda: stage.advance(1),
    )
    report("tails", 0.98)
    tails = pool_tails(rows.lengths, rows.present, rows.llm, {f: fitted[f].fits.params for f in (LOGNORMAL, LOGT)}, rng)
    return LengthFamilies(
        origin=samples.origin,
        by=by,
        rows=len(rows.lengths),
        samples_per_row=rows.lengths.shape[1],
        left_out=left_out,
        nus=NUS,
        groups=tuple(groups),
        power=tuple(powers),
        tails=tails,
    )


class _Stage:
    """Convert finished rows to a fraction of the study."""

    def __init__(self, report: Report, what: str, start: float, length: float, rows: int) -> None:
        self._report, self._what, self._start, self._length, self._rows = report, what, start, length, rows
        self._done = 0
        report(what, start)

    def advance(self, rows: int) -> None:
        self._done += rows
        self._report(self._what, self._start + self._length * self._done / self._rows)


def _select(samples: LengthSamples, by: By) -> tuple[_Rows, dict[str, int]]:
    lengths = samples.lengths_matrix().astype(np.float64)
    clean = samples.clean_mask() & ~samples.capped_matrix()
    enough = clean.sum(axis=1) >= MIN_SAMPLES
    longest = np.max(lengths, axis=1, where=clean, initial=-np.inf)
    shortest = np.min(lengths, axis=1, where=clean, initial=np.inf)
    constant = enough & (longest == shortest)
    keep = enough & ~constant
    if not keep.any():
        raise InputError(
            f"no row has {MIN_SAMPLES} clean samples of different lengths",
            source=samples.origin,
            hint="give more samples per prompt",
        )
    left_out = {
        "samples that are degenerate (length >= 14,999, or > 8,499 where std > 2 mean) or capped": int((~clean).sum()),
        f"rows with fewer than {MIN_SAMPLES} clean samples": int((~enough).sum()),
        "rows whose clean samples all have one length: no spread to fit": int(constant.sum()),
    }
    llm = np.array(samples.table["llm"].to_pylist(), object)[keep]
    group = np.full(len(llm), "all", object)
    if by != "none":
        group = np.array(samples.table[by].to_pylist(), object)[keep]
    return _Rows(lengths[keep], clean[keep], samples.prompt_numbers()[keep], llm, group), left_out


def _groups(rows: _Rows) -> list[tuple[str, Mask]]:
    names = sorted(set(rows.group.tolist()) - {"all"})
    return [("all", np.ones(len(rows.lengths), bool)), *((name, rows.group == name) for name in names)]


def _fit(
    family: Family, rows: _Rows, rng: np.random.Generator, advance: Callable[[int], None], critical_draws: int
) -> _Fitted:
    fits = fit_rows(family, rows.lengths, rows.present, progress=advance)
    count = rows.present.sum(axis=1)
    plain = ks_passes_plain(ks_statistic(fits, rows.lengths, rows.present, width=0.0), count)
    statistic = ks_statistic(fits, rows.lengths, rows.present)
    refitted = np.zeros(len(count), bool)
    for n in np.unique(count):
        like = count == n
        draws = critical_draws if like.mean() > 0.01 else critical_draws // 4
        refitted[like] = statistic[like] <= ks_critical(family, fits.params, int(n), rng, draws=draws)
    return _Fitted(fits, plain, refitted, held_out(family, rows.lengths, rows.present, advance))


def _evidence(rows: _Rows, centre: RowFits, rng: np.random.Generator, most: int) -> tuple[Array, NDArray[np.intp]]:
    """Return the integrated log-likelihood minus log-normal's, as (chosen rows, nus)."""
    chosen = np.sort(rng.permutation(len(rows.lengths))[:most])
    x, present = unround(rows.lengths[chosen], rng), rows.present[chosen]
    normal = log_evidence(np.inf, x, present, centre[chosen])
    return np.column_stack([log_evidence(nu, x, present, centre[chosen]) - normal for nu in NUS]), chosen


def _summarise(
    name: str,
    member: Mask,
    rows: _Rows,
    fitted: Mapping[Family, _Fitted],
    usable: Mask,
    evidence: Array,
    chosen: NDArray[np.intp],
    rng: np.random.Generator,
) -> GroupResult:
    base = fitted[LOGNORMAL]
    scored = member & usable
    samples = rows.present.sum(axis=1)
    gains = np.column_stack([result.held_out.total - base.held_out.total for result in fitted.values()])
    held_out_gains = means_by_cluster(gains[scored], samples[scored], rows.prompt[scored], rng)
    results = [
        FamilyResult(
            family=family.name,
            ks_plain=float(result.plain[member].mean()),
            ks_refitted=float(result.refitted[member].mean()),
            held_out_gain=gain,
            loglik_gain=float((result.fits.loglik - base.fits.loglik)[member].sum() / samples[member].sum()),
            median_shape=float(np.median(result.fits.params[member, 2])) if family.shape_is_free else np.nan,
            converged=float(result.fits.converged[member].mean()),
        )
        for (family, result), gain in zip(fitted.items(), held_out_gains, strict=True)
    ]
    inside = member[chosen]
    ones = np.ones(int(inside.sum()), np.int64)
    curve = tuple(means_by_cluster(evidence[inside], ones, rows.prompt[chosen][inside], rng))
    prompts = len(np.unique(rows.prompt[member]))
    return GroupResult(
        group=name,
        rows=int(member.sum()),
        prompts=prompts,
        families=tuple(results),
        repeats=_repeats(rows.lengths[member], rows.present[member], base.fits.params[member]),
        evidence_rows=int(inside.sum()),
        evidence=curve,
    )


def _repeats(lengths: Array, present: Mask, lognormal: Array) -> float:
    wide = lognormal[:, 1] * np.exp(lognormal[:, 0]) > REPEAT_SPREAD
    x = np.sort(np.where(present, lengths, np.arange(lengths.shape[1]) - 1e9)[wide], axis=1)
    repeated = (x[:, REPEAT_COUNT - 1 :] == x[:, : 1 - REPEAT_COUNT]).any(axis=1)
    return float(repeated.mean()) if repeated.size else float("nan")
