"""`OnePrompt` as tables, and as a page."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.one_prompt.study import OnePrompt
from lengthwise.reports.page import html_page
from lengthwise.reports.tables import Table, signed

__all__ = ["html_report", "plain", "tables"]


def tables(found: OnePrompt) -> list[Table]:
    """The lengths, the families, and what was predicted without asking."""
    return [_lengths(found), _families(found)]


def html_report(found: OnePrompt) -> str:
    """One page: the picture and the tables."""
    from experiments.one_prompt.plot import picture  # Matplotlib takes half a second to load

    title = f"{len(found.lengths)} answers of {found.llm} to one prompt"
    return html_page(title, {title: picture(found)}, tables(found))


def plain(found: OnePrompt) -> dict[str, Any]:
    """For JSON."""
    return {
        "prompt": found.prompt,
        "llm": found.llm,
        "limit": found.limit,
        "lengths": found.lengths.astype(int).tolist(),
        "capped": found.capped.tolist(),
        "families": [
            {
                "family": each.name,
                "params": each.params,
                "loglik_gain": each.loglik_gain,
                "aic_gain": each.aic_gain,
                "ks": each.ks,
                "ks_passes": each.ks_passes,
            }
            for each in found.fits
        ],
        "predicted_median": {name: prediction.quantile(0.5) for name, prediction in found.predicted.items()},
    }


def _lengths(found: OnePrompt) -> Table:
    x = found.lengths
    shares = (0.05, 0.25, 0.5, 0.75, 0.95)
    rows = [["answers", f"{x.mean():.0f}", *(f"{value:.0f}" for value in np.quantile(x, shares)), f"{x.max():.0f}"]]
    for name, prediction in found.predicted.items():
        quantiles = [f"{prediction.quantile(q):.0f}" for q in shares]
        rows.append([f"{name} predicts", f"{prediction.mean():.0f}", *quantiles, "–"])
    notes = [f"prompt: {found.prompt}", f"coefficient of variation {x.std() / x.mean():.2f}"]
    if found.capped.any():
        notes.append(f"{int(found.capped.sum())} answers were cut off at {found.limit:,} tokens and count as longer")
    columns = ["tokens", "mean", *(f"{100 * q:.0f} %" for q in shares), "longest"]
    return Table(f"{len(x)} answers of {found.llm} to one prompt", columns, rows, notes)


def _families(found: OnePrompt) -> Table:
    rows = []
    for each in found.fits:
        location, scale, shape = (f"{value:.3f}" for value in each.params)
        passes = "–" if each.ks_passes is None else "passes" if each.ks_passes else "fails"
        free = shape if each.family.shape_is_free else "–"
        gains = [signed(each.loglik_gain, 2), signed(each.aic_gain, 2)]
        rows.append([each.name, *gains, f"{each.ks:.3f}", passes, location, scale, free])
    columns = ["family", "log-likelihood - log-normal's", "less parameters", "KS", "KS at 5 %", "location", "scale"]
    notes = ["by likelihood, a point off for each free parameter (AIC / 2); KS with refitting accounted for"]
    return Table("Which family these lengths follow", [*columns, "shape"], rows, notes)
