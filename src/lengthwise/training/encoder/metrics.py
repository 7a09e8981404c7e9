"""How good outputs are on prompts that were not trained on: tau, error, coverage. NumPy only.

These are what training watches; the figures on a model's card come from the evaluation of the served file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lengthwise.training.encoder import student_t

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.training.encoder.pack import Pack

    Floats = NDArray[np.float64]

_LEVELS = (0.5, 0.9)
_BLOCK = 512


@dataclass(frozen=True)
class Scores:
    """Means over the LLMs that are scored."""

    tau: float
    mae: float
    coverage: dict[str, float]
    by_llm: dict[str, float]


def kendall_tau(x: Floats, y: Floats) -> float:
    """Kendall's tau-b of two lists; NaN where one of them is constant."""
    agree = apart_x = apart_y = 0
    for start in range(0, len(x), _BLOCK):  # ten thousand prompts against each other would not fit into memory
        dx, dy = (np.sign(values[start : start + _BLOCK, None] - values).astype(np.int8) for values in (x, y))
        agree += int((dx * dy).sum(dtype=np.int64))
        apart_x, apart_y = apart_x + int(np.count_nonzero(dx)), apart_y + int(np.count_nonzero(dy))
    ties = np.sqrt(float(apart_x) * float(apart_y))
    return float(agree / ties) if ties else float("nan")


def score(
    mu: Floats,
    sigma: Floats | None,
    pack: Pack,
    prompts: NDArray[np.int64],
    *,
    leave_out: tuple[str, ...] = (),
    nu: float = student_t.NU,
) -> Scores:
    """Score medians exp(mu) and spreads (P, LLMs or more) on these prompts, within each LLM that has lengths of them.

    LLMs whose names hold one of `leave_out` are not counted in.
    """
    taus, errors, covered = {}, [], []
    for number, llm in enumerate(pack.llms):
        if any(word in llm for word in leave_out):
            continue
        lengths = pack.lengths[prompts, number].astype(np.float64)
        here = np.flatnonzero((lengths > 0).any(1))
        if len(here) < 3:
            continue
        lengths, at = lengths[here], prompts[here]
        mean = lengths.sum(1) / (lengths > 0).sum(1)
        taus[llm] = kendall_tau(mu[at, number], mean)
        errors.append(float(np.abs(np.exp(mu[at, number]) - mean).mean()))
        if sigma is not None:
            covered.append(coverage(lengths, mu[at, number], sigma[at, number], nu))
    coverages = {f"{level:g}": float(np.mean([c[i] for c in covered])) for i, level in enumerate(_LEVELS) if covered}
    return Scores(_mean(list(taus.values())), _mean(errors), coverages, taus)


def coverage(lengths: Floats, mu: Floats, sigma: Floats, nu: float = student_t.NU) -> list[float]:
    """Share of single samples inside the central 50 and 90 % intervals; 0 marks a sample that is not there."""
    t = np.abs((np.log(np.maximum(lengths, 1.0)) - mu[:, None]) / sigma[:, None])
    inside: list[float] = [
        float((t <= student_t.quantile(0.5 + level / 2, nu))[lengths > 0].mean()) for level in _LEVELS
    ]
    return inside


def as_row(scores: Scores) -> dict[str, Any]:
    """Round for a JSON line."""
    return {
        "tau": round(scores.tau, 4),
        "mae": round(scores.mae, 1),
        **{f"cover{level}": round(share, 3) for level, share in scores.coverage.items()},
    }


def _mean(values: list[float]) -> float:
    return float(np.nanmean(values)) if values else float("nan")
