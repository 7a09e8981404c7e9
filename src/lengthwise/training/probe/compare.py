"""How far off each way of knowing what remains is, by the tokens generated so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.predictors.probe.bins import NONE, PAPER, log_bins
from lengthwise.predictors.scores import kendall_tau

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.predictors.probe.probe import Probe
    from lengthwise.training.probe.states import States

    Floats = NDArray[np.float64]

BUCKETS: Final = ((0, 0), (1, 16), (17, 64), (65, 128), (129, 256), (257, None))
CONSTANT, BY_AGE = "constant", "median given age"
PROMPT_ONLY, PROMPT_BY_AGE = "prompt only, minus generated", "prompt only, given age"
PLAIN, SMOOTH, PAPER_SMOOTH = "probe", "probe + smoothing", "probe + TRAIL's smoothing"
JOINT, JOINT_SMOOTH = "joint", "joint + smoothing"
HEAT: Final = log_bins(1024, count=12)
"""Bins of the poster's heatmap of true against predicted lengths."""
_INTERVAL: Final = (0.05, 0.95)
_DRAWS: Final = 1000


@dataclass(frozen=True)
class Score:
    """One way of knowing, on the states of some prompts. Errors in tokens, of the median, by bucket and over all.

    Weighted so that every state of an answer counts alike, kept or not. A capped answer counts as ending at the cap.
    """

    name: str
    errors: tuple[float, ...]
    error: float
    taus: tuple[float, ...]
    tau: float
    covered: float
    """Share inside the central 90 % interval; NaN for a way that knows no interval."""
    over_joint: tuple[float, float, float]
    """Error over that of the joint prediction, smoothed, and its 95 % interval, prompts drawn again."""


def bucket_name(low: int, high: int | None) -> str:
    """The tokens generated in a bucket."""
    return f"{low} up" if high is None else str(low) if low == high else f"{low}-{high}"


def said(states: States, probe: Probe) -> Floats:
    """What the probe says of each state, before smoothing."""
    entropy = 0.0 if states.entropy is None else states.entropy
    told = {"mu": states.mu, "sigma": states.sigma, "left": states.left(), "entropy": entropy}
    return probe.probabilities(states.layers[probe.layer], states.generated, **told)


def heat(true: NDArray[np.int64], point: Floats, weight: Floats) -> Floats:
    """Return (true bin, said bin): of the states that truly have so much to come, the share said to have each."""
    counts = np.zeros((len(HEAT), len(HEAT)))
    np.add.at(counts, (HEAT.of(true), HEAT.of(point)), weight)
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-12))


def compare(states: States, learned: States, plain: Probe, joint: Probe) -> tuple[list[Score], dict[str, Floats]]:
    """Score every way on `states`, and draw their heatmaps; the two without a network learn from `learned`."""
    cap = states.cap - states.generated
    points = {
        CONSTANT: np.full(len(states), _median(learned.remaining, learned.weight)),
        BY_AGE: _by_age(states, learned),
        PROMPT_ONLY: np.maximum(np.minimum(np.exp(states.mu), states.cap) - states.generated, 1.0),
        PROMPT_BY_AGE: states.left(),
    }
    intervals = {PROMPT_BY_AGE: (states.left(_INTERVAL[0]), states.left(_INTERVAL[1]))}
    ways = {
        PLAIN: (plain, NONE), PAPER_SMOOTH: (plain, PAPER), SMOOTH: (plain, plain.smoothing),
        JOINT: (joint, NONE), JOINT_SMOOTH: (joint, joint.smoothing),
    }  # fmt: skip
    for name, (probe, smoothing) in ways.items():
        mass = smoothing.rows(
            probe.bins, said(states, probe), states.prior(probe.bins), states.answer, states.generated
        )
        points[name] = probe.bins.quantile(mass, 0.5, cap)
        low, high = (probe.bins.quantile(mass, q, cap) for q in _INTERVAL)
        intervals[name] = low, high
    best = points[JOINT_SMOOTH]
    scores = [_score(states, name, point, intervals.get(name), best) for name, point in points.items()]
    return scores, {name: heat(states.remaining, point, states.weight) for name, point in points.items()}


def _score(states: States, name: str, point: Floats, interval: tuple[Floats, Floats] | None, best: Floats) -> Score:
    off, true, weight = np.abs(point - states.remaining), states.remaining, states.weight
    errors, taus = [], []
    for low, high in BUCKETS:
        some = (states.generated >= low) & (states.generated <= (np.inf if high is None else high))
        errors.append(float(np.average(off[some], weights=weight[some])) if some.any() else np.nan)
        taus.append(kendall_tau(point[some], true[some]) if some.any() else np.nan)
    covered = np.nan
    if interval is not None:
        inside = (true >= np.floor(interval[0])) & (true <= np.ceil(interval[1]))
        covered = float(np.average(inside, weights=weight))
    overall = float(np.average(off, weights=weight))
    over = _over(states, off, np.abs(best - true))
    return Score(name, tuple(errors), overall, tuple(taus), kendall_tau(point, true), covered, over)


def _over(states: States, off: Floats, best: Floats) -> tuple[float, float, float]:
    """The ratio of two mean errors, and where 95 % of it lie when prompts are drawn again with all their answers."""
    _, prompt = np.unique(states.draw, return_inverse=True)
    sums = np.stack([np.bincount(prompt, states.weight * each) for each in (off, best)])
    drawn = np.random.default_rng(0).multinomial(sums.shape[1], np.full(sums.shape[1], 1 / sums.shape[1]), _DRAWS)
    above, below = sums @ drawn.T
    low, high = np.quantile(above / below, (0.025, 0.975))
    return float(sums[0].sum() / sums[1].sum()), float(low), float(high)


def _by_age(states: States, learned: States) -> Floats:
    """The median of what remained in training after about as many tokens: a fifth more or less."""
    found = np.empty(len(states))
    for age in np.unique(states.generated):
        near = np.abs(learned.generated - age) <= max(8.0, 0.2 * age)
        rows = near if near.any() else np.ones(len(learned), bool)
        found[states.generated == age] = _median(learned.remaining[rows], learned.weight[rows])
    return found


def _median(values: NDArray[np.int64], weights: Floats) -> float:
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(sums, sums[-1] / 2.0)])
