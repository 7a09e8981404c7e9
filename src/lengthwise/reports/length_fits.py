"""Answer lengths by LLM or corpus: their statistics, and how well log-t and log-normal fit them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths.families import LOGNORMAL, LOGT
from lengthwise.lengths.fit import RowFits, fit_rows
from lengthwise.reports.page import Document
from lengthwise.reports.tables import Table, number, share, signed
from lengthwise.workloads import LengthSamples

By = Literal["llm", "corpus", "none"]
Mask = NDArray[np.bool_]

_MIN_SAMPLES: Final = 3


@dataclass(frozen=True)
class GroupFit:
    """The answers of one LLM, of one corpus, or all; a row is one prompt answered by one LLM."""

    group: str
    rows: int
    degenerate: float
    """Share of samples left out as degenerate: length >= 14,999, or > 8,499 where std > 2 mean."""
    mean: float
    """Mean over rows of the mean of a row's clean samples, in tokens."""
    std: float
    """Median over rows of the standard deviation of a row's clean samples, in tokens."""
    fitted: int
    """Rows with at least three clean samples of different lengths."""
    median: float
    """Median over fitted rows of the log-t's median exp(mu), in tokens."""
    sigma: float
    """Median over fitted rows of the log-t's sigma."""
    gain: float
    """Log probability per sample by the log-t of its row, minus log-normal's; above 0 log-t fits better."""


def fit_groups(samples: LengthSamples, *, by: By = "llm", report: Callable[[str, float], None]) -> list[GroupFit]:
    """Fit every row and summarise all rows, then each group; a capped sample is one of at least that length."""
    lengths, clean, capped = samples.lengths_matrix(), samples.clean_mask(), samples.capped_matrix()
    exact = np.where(clean & ~capped, lengths.astype(np.float64), np.nan)
    enough = (clean.sum(axis=1) >= _MIN_SAMPLES) & (np.fmax.reduce(exact, 1) > np.fmin.reduce(exact, 1))
    if not enough.any():
        raise InputError(
            f"no row has {_MIN_SAMPLES} clean samples of different lengths",
            source=samples.origin,
            hint="give more samples per prompt",
        )
    fits = []
    for place, family in enumerate((LOGNORMAL, LOGT)):
        report(f"fitting {family.name}", place / 2)
        fits.append(fit_rows(family, lengths[enough], clean[enough], (capped & clean)[enough]))
    normal, logt = fits
    members = {"all": np.ones(len(samples), bool)}
    if by != "none":
        group = np.array(samples.table[by].to_pylist(), object)
        members |= {name: group == name for name in sorted(set(group.tolist()))}
    return [_summary(name, lengths, clean, enough, member, logt, normal) for name, member in members.items()]


def _summary(
    name: str, lengths: NDArray[np.int64], clean: Mask, enough: Mask, member: Mask, logt: RowFits, normal: RowFits
) -> GroupFit:
    some = member & clean.any(axis=1)
    values = np.where(clean[some], lengths[some], np.nan)
    fitted, samples = member[enough], int(clean[member & enough].sum())
    mu, sigma, _ = logt.params[fitted].T

    def middle(column: NDArray[np.float64]) -> float:
        return float(np.median(column)) if len(column) else float("nan")

    return GroupFit(
        group=name,
        rows=int(member.sum()),
        degenerate=float(1 - clean[member].mean()),
        mean=float(np.nanmean(values, axis=1).mean()) if len(values) else float("nan"),
        std=middle(np.nanstd(values, axis=1)) if len(values) else float("nan"),
        fitted=int(fitted.sum()),
        median=middle(np.exp(mu)),
        sigma=middle(sigma),
        gain=float((logt.loglik - normal.loglik)[fitted].sum()) / samples if samples else float("nan"),
    )


def length_fits_document(found: list[GroupFit], origin: str, by: By) -> Document:
    """Return the table and the facts of `lengthwise lengths fit`."""
    rows = [
        (
            each.group,
            f"{each.rows:,}",
            share(each.degenerate),
            number(each.mean, 1),
            number(each.std, 1),
            number(each.median, 0),
            number(each.sigma, 3),
            signed(each.gain),
        )
        for each in found
    ]
    columns = (
        "" if by == "none" else by,
        "rows",
        "degenerate",
        "mean",
        "std",
        "log-t: median",
        "sigma",
        "over log-normal",
    )
    fitted = (
        f"Source: {origin}. Log-t (nu = 3.5) is fitted to each row by itself: {found[0].fitted:,} of "
        f"{found[0].rows:,} rows have {_MIN_SAMPLES} clean samples of different lengths."
    )
    notes = [
        fitted,
        "In tokens: the mean over rows, and the median over rows of std and of the fitted median.",
        "Left out as degenerate: length >= 14,999, or > 8,499 where std > 2 mean.",
        "over log-normal: log probability per sample, minus that by a log-normal; above 0 log-t fits better.",
    ]
    facts: dict[str, Any] = {"origin": origin, "by": by, "groups": [asdict(each) for each in found]}
    return Document("", [Table("Answer lengths", columns, rows, notes, frozenset({1}))], facts)
