"""What held-out prompts say about a network's beliefs: a shift of mu and a factor on sigma, for each LLM. NumPy only.

Split conformal: the factor is read off the empirical quantiles of |log length - mu| / sigma over prompts that were not
trained on, so that central intervals hold what they say on prompts like these, whatever the network got wrong. Corpora
count alike, however many prompts each has. nu is the one at which 50 and 90 % intervals are right at once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy import special

from lengthwise.lengths import TIE_NU
from lengthwise.predictors.encoder.readout import places_and_spreads

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.predictors.encoder.pack import Pack

    Array = NDArray[Any]

_LEVELS: Final = (0.5, 0.9)
_LEAST_PROMPTS: Final = 40
"""With fewer held-out prompts an LLM takes what all of them say together."""
_MOST_CUT: Final = 0.02
"""With more answers cut off, what is left of them says nothing of the middle: such an LLM is not shifted."""
_KNOTS: Final = 65
_NUS: Final = np.arange(2.5, 12.5, 0.5)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Per row of the identity table, the unknown LLM last. `knots` turn a rank head's scores into log lengths."""

    shift: Array
    scale: Array
    nu: float = TIE_NU
    knots: Array | None = None

    @classmethod
    def none(cls, rows: int) -> Calibration:
        """Beliefs as the network says them."""
        return cls(np.zeros(rows), np.ones(rows))

    def apply(self, outputs: Array, llm: Array, kind: str) -> tuple[Array, Array]:
        """Return mu and sigma of pairs from outputs (..., outputs) and rows of the table (...)."""
        place, spread = places_and_spreads(outputs, kind)
        if self.knots is not None:
            place = np.interp(place, self.knots[0], self.knots[1])
        spread = np.ones(place.shape) if spread is None else spread
        return place + self.shift[llm], spread * self.scale[llm]

    def to_json(self) -> bytes:
        """Write what `of_json` reads."""
        knots = None if self.knots is None else self.knots.tolist()
        tree = {"shift": self.shift.tolist(), "scale": self.scale.tolist(), "nu": self.nu, "knots": knots}
        return json.dumps(tree).encode()

    @classmethod
    def of_json(cls, data: bytes) -> Calibration:
        """Read what `to_json` wrote."""
        tree = json.loads(data)
        knots = None if tree["knots"] is None else np.array(tree["knots"])
        return cls(np.array(tree["shift"]), np.array(tree["scale"]), float(tree["nu"]), knots)


def calibrate(outputs: Array, kind: str, pack: Pack, prompts: Array) -> Calibration:
    """Fit to outputs (P, L + 1, outputs) on held-out prompts; the unknown row is measured on all LLMs at once."""
    rows = len(pack.llms) + 1
    if kind == "bins":
        return Calibration.none(rows)
    knots = _knots(outputs, pack, prompts) if kind == "rank" else None
    raw = Calibration(np.zeros(rows), np.ones(rows), knots=knots)
    place, spread = raw.apply(outputs[prompts], np.zeros(outputs[prompts].shape[:2], np.int64), kind)
    lengths = np.where(pack.censored[prompts], 0, pack.lengths[prompts]).astype(np.float64)
    weight = _corpora_alike(lengths, pack.corpus[prompts])
    off = np.log(np.maximum(lengths, 1.0)) - place[:, :-1, None]
    strange = np.log(np.maximum(lengths, 1.0)) - place[:, -1:, None]
    together = _corpora_alike(lengths, pack.corpus[prompts], each_llm=False)
    known = _place_and_width(off, spread[:, :-1, None], together)
    fits = [known] * (rows - 1) + [_place_and_width(strange, spread[:, -1:, None], together)]
    cut = pack.censored[prompts].sum((0, 2)) / np.maximum((pack.lengths[prompts] > 0).sum((0, 2)), 1)
    for number in range(rows - 1):
        if cut[number] > _MOST_CUT:
            fits[number] = (0.0, known[1])
        elif (lengths[:, number] > 0).any(-1).sum() >= _LEAST_PROMPTS:
            fits[number] = _place_and_width(off[:, number], spread[:, number, None], weight[:, number])
    nu = _tail(np.array([np.divide(*fit[1]) for fit in fits[:-1]]))
    widths = [fit[1] / special.stdtrit(nu, 0.5 + np.array(_LEVELS) / 2) for fit in fits]
    scale = np.array([max(float(width.mean()), 1e-2) for width in widths])
    return Calibration(np.array([fit[0] for fit in fits]), scale, nu, knots)


def _place_and_width(off: Array, spread: Array, weight: Array) -> tuple[float, Array]:
    """Median of what is off, and the quantiles of its distance from there in units of sigma."""
    here = weight > 0
    if not here.any():
        return 0.0, special.stdtrit(TIE_NU, 0.5 + np.array(_LEVELS) / 2)
    shift = float(_quantiles(off[here], weight[here], np.array([0.5]))[0])
    t = np.abs(off - shift)[here] / np.broadcast_to(spread, off.shape)[here]
    return shift, _quantiles(t, weight[here], np.array(_LEVELS))


def _tail(ratios: Array) -> float:
    """The nu whose 50 and 90 % intervals are in the ratio seen."""
    seen = float(np.median(ratios))
    theirs = special.stdtrit(_NUS, 0.75) / special.stdtrit(_NUS, 0.95)
    return float(_NUS[np.argmin(np.abs(theirs - seen))])


def _corpora_alike(lengths: Array, corpus: Array, *, each_llm: bool = True) -> Array:
    """Weights of samples (n, L, K) with the same sum for every corpus, within each LLM or over all; 0 for no sample."""
    here = (lengths > 0).astype(np.float64)
    for number in np.unique(corpus):
        mine = corpus == number
        here[mine] /= np.maximum(here[mine].sum(axis=(0, 2) if each_llm else None, keepdims=True), 1.0)
    return here


def _quantiles(values: Array, weight: Array, levels: Array) -> Array:
    """Quantiles of weighted values."""
    order = np.argsort(values)
    share = (np.cumsum(weight[order]) - 0.5 * weight[order]) / weight.sum()
    return np.interp(levels, share, values[order])


def _knots(outputs: Array, pack: Pack, prompts: Array) -> Array:
    """Match quantiles of scores with quantiles of log mean lengths: the higher the score, the longer."""
    lengths = pack.lengths[prompts].astype(np.float64)
    here = (lengths > 0).any(-1)
    means = lengths.sum(-1)[here] / (lengths > 0).sum(-1)[here]
    levels = np.linspace(0, 1, _KNOTS)
    scores = np.quantile(outputs[prompts][:, :-1, 0][here], levels)
    return np.array([np.maximum.accumulate(scores + np.arange(_KNOTS) * 1e-9), np.quantile(np.log(means), levels)])
