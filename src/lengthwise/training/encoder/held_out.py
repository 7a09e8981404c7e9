"""What held-out prompts say about a network's outputs. NumPy only: nothing here needs the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lengthwise.predictors.calibration import Calibration, fit_calibration
from lengthwise.predictors.contract import LogTPredictions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.training.encoder.pack import Pack

    Array = NDArray[Any]

_KNOTS: Final = 65
_NO_CAP: Final = 10**9


def calibrate(mu: Array, sigma: Array, pack: Pack, prompts: Array) -> Calibration:
    """Calibrate mu and sigma (P, L + 1) of these prompts, cautiously; corpora count alike within an LLM.

    The row of the unknown LLM, the last one, is measured on the lengths of all LLMs.
    """
    place, llm = np.nonzero((pack.lengths[prompts] > 0).any(axis=2))
    row = prompts[place]
    names = [pack.llms[number] for number in llm]
    cell = llm * len(pack.corpora) + pack.corpus[row]
    cells = np.array([len(np.unique(cell[llm == number])) for number in range(len(pack.llms))])
    truth = {
        "lengths": pack.lengths[row, llm],
        "present": pack.lengths[row, llm] > 0,
        "censored": pack.censored[row, llm],
        "weights": np.bincount(llm)[llm] / (cells[llm] * np.bincount(cell)[cell]),
    }
    known = fit_calibration(LogTPredictions.of(mu[row, llm], sigma[row, llm], _NO_CAP), names, **truth, cautious=True)
    strange = fit_calibration(
        LogTPredictions.of(mu[row, -1], sigma[row, -1], _NO_CAP), [""] * len(row), **truth, cautious=True
    )
    return Calibration(strange.others, known.by_llm, known.nu)


def rank_knots(outputs: Array, pack: Pack, prompts: Array) -> Array:
    """Match quantiles of scores with quantiles of log mean lengths: the higher the score, the longer."""
    lengths = pack.lengths[prompts].astype(np.float64)
    here = (lengths > 0).any(-1)
    means = lengths.sum(-1)[here] / (lengths > 0).sum(-1)[here]
    levels = np.linspace(0, 1, _KNOTS)
    scores = np.quantile(outputs[prompts][:, :-1, 0][here], levels)
    return np.array([np.maximum.accumulate(scores + np.arange(_KNOTS) * 1e-9), np.quantile(np.log(means), levels)])
