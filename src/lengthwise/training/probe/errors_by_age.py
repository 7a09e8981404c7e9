"""Errors of ways to predict the remaining length, by the tokens generated so far, and the card of a probe.

The card page contains only what the model file records, so that it is never edited by hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.intervals import draw_counts, interval
from lengthwise.predictors.probe import ENTROPY, NONE, PAPER, PROMPT, Probe, Smoothing, log_bins
from lengthwise.traffic.scores import Forecast, PredictionScores, score_predictions

if TYPE_CHECKING:
    from lengthwise.training.probe.states import States

    Floats = NDArray[np.float64]


BUCKETS: Final = ((0, 0), (1, 16), (17, 64), (65, 128), (129, 256), (257, None))
CONSTANT, BY_AGE = "constant", "median given age"
PROMPT_ONLY, PROMPT_BY_AGE = "prompt only, minus generated", "prompt only, given age"
PLAIN, SMOOTH, PAPER_SMOOTH = "probe", "probe + smoothing", "probe + TRAIL's smoothing"
JOINT, JOINT_SMOOTH = "joint", "joint + smoothing"
HEAT: Final = log_bins(1024, count=12)
"""Bins of the poster's heatmap of true against predicted lengths."""
_INPUTS: Final = {PROMPT: "the prediction from the prompt", ENTROPY: "the entropy of the next token"}
_MAE: Final = "mae"
_SHARES: Final = ("covered_90",)
_INTERVAL: Final = (0.05, 0.95)
_RESAMPLES: Final = 1000


@dataclass(frozen=True)
class Way:
    """One way to predict, on the states of some prompts, and its scores by bucket and over all.

    Weights make up for states that were not collected. A capped answer counts as ending at the cap.
    """

    name: str
    by_age: tuple[PredictionScores, ...]
    overall: PredictionScores
    """Without a coverage for a way without an interval."""
    over_joint: tuple[float, float, float]
    """MAE divided by that of the smoothed joint prediction, with a 95 % bootstrap interval over prompts."""


def bucket_name(low: int, high: int | None) -> str:
    """Return the label of a bucket of tokens generated."""
    return f"{low} up" if high is None else str(low) if low == high else f"{low}-{high}"


def read_states_with(probe: Probe, states: States) -> Floats:
    """Return the bin probabilities of each state, before smoothing."""
    entropy = 0.0 if states.entropy is None else states.entropy
    inputs = {"mu": states.mu, "sigma": states.sigma, "left": states.left(), "entropy": entropy}
    return probe.probabilities(states.layers[probe.layer], states.generated, **inputs)


def heat(true: NDArray[np.int64], point: Floats, weight: Floats) -> Floats:
    """Return (true bin, predicted bin): for each true bin the share of states predicted in each bin."""
    counts = np.zeros((len(HEAT), len(HEAT)))
    np.add.at(counts, (HEAT.of(true), HEAT.of(point)), weight)
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-12))


def compare(states: States, learned: States, plain: Probe, joint: Probe) -> tuple[list[Way], dict[str, Floats]]:
    """Return scores and heatmaps of every way on `states`; the two without a network learn from `learned`."""
    points = {
        CONSTANT: np.full(len(states), _median(learned.remaining, learned.weight)),
        BY_AGE: _by_age(states, learned),
    }
    ways = {
        PLAIN: (plain, NONE), PAPER_SMOOTH: (plain, PAPER), SMOOTH: (plain, plain.smoothing),
        JOINT: (joint, NONE), JOINT_SMOOTH: (joint, joint.smoothing),
    }  # fmt: skip
    return _all_scored(states, points, ways)


def compare_with_prompt(states: States, probe: Probe) -> tuple[list[Way], dict[str, Floats]]:
    """Return scores and heatmaps of the prompt's prediction and of a probe with it, which is smoothed."""
    return _all_scored(states, {}, {JOINT_SMOOTH: (probe, probe.smoothing)})


def _all_scored(
    states: States, points: Mapping[str, Floats], probes: Mapping[str, tuple[Probe, Smoothing]]
) -> tuple[list[Way], dict[str, Floats]]:
    """Score points without an interval, the prompt's prediction and probes, the last of which is the reference."""
    cap, intervals = states.cap - states.generated, {}
    points = {
        **points,
        PROMPT_ONLY: np.maximum(np.minimum(np.exp(states.mu), states.cap) - states.generated, 1.0),
        PROMPT_BY_AGE: states.left(),
    }
    intervals[PROMPT_BY_AGE] = states.left(_INTERVAL[0]), states.left(_INTERVAL[1])
    for name, (probe, smoothing) in probes.items():
        mass = smoothing.rows(
            probe.bins, read_states_with(probe, states), states.prior(probe.bins), states.answer, states.generated
        )
        points[name] = probe.bins.quantile(mass, 0.5, cap)
        low, high = (probe.bins.quantile(mass, q, cap) for q in _INTERVAL)
        intervals[name] = low, high
    found = [_scored(states, name, point, intervals.get(name), points[JOINT_SMOOTH]) for name, point in points.items()]
    return found, {name: heat(states.remaining, point, states.weight) for name, point in points.items()}


def _scored(states: States, name: str, point: Floats, interval: tuple[Floats, Floats] | None, best: Floats) -> Way:
    # A remaining length is a whole number; the ends of an interval are not.
    ends = {} if interval is None else {0.9: (np.floor(interval[0]), np.ceil(interval[1]))}
    forecast, true = Forecast.of_intervals(point, ends), states.remaining

    def score(rows: NDArray[np.bool_]) -> PredictionScores:
        return score_predictions(forecast.take(rows), true[rows], weights=states.weight[rows])

    ages = [(low, np.inf if high is None else high) for low, high in BUCKETS]
    by_age = tuple(score((states.generated >= low) & (states.generated <= high)) for low, high in ages)
    over = _over(states, np.abs(point - true), np.abs(best - true))
    return Way(name, by_age, score(np.ones(len(true), bool)), over)


def _over(states: States, off: Floats, best: Floats) -> tuple[float, float, float]:
    """Ratio of two mean errors with a 95 % bootstrap interval; prompts are drawn with all their answers."""
    _, prompt = np.unique(states.draw, return_inverse=True)
    sums = np.stack([np.bincount(prompt, states.weight * each) for each in (off, best)])
    above, below = sums @ draw_counts(sums.shape[1], seed=0, resamples=_RESAMPLES).T
    return (float(sums[0].sum() / sums[1].sum()), *interval(above / below))


def _by_age(states: States, learned: States) -> Floats:
    """Median of the remaining length in training after a similar number of tokens (within a fifth)."""
    found = np.empty(len(states))
    for age in np.unique(states.generated):
        near = np.abs(learned.generated - age) <= max(8.0, 0.2 * age)
        rows = near if near.any() else np.ones(len(learned), bool)
        found[states.generated == age] = _median(learned.remaining[rows], learned.weight[rows])
    return found


def _median(values: NDArray[np.int64], weights: Floats) -> float:
    return float(np.quantile(values, 0.5, weights=weights, method="inverted_cdf"))


def error_ratio(probe: Probe) -> float:
    """Return the error of the prompt-only prediction (minus tokens generated) divided by that of the probe.

    From the card: remaining length on held-out prompts, over all states. The paper reports 2.66 for its probe.
    """
    try:
        figures = probe.card["figures"]
        return float(figures[PROMPT_ONLY][_MAE]) / float(figures[JOINT_SMOOTH][_MAE])
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise InputError("its card has no figures", source="probe", hint="train it again") from error


def card_page(probe: Probe, *, command: str) -> str:
    """Return the card in Markdown; `command` is named as its origin."""
    return "\n".join(
        [
            f"# Card of the probe `{probe.card.get('name', '')}`",
            "",
            f"Written by `{command}` from the model file. [trail.md](trail.md) explains what a probe is for.",
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in _facts(probe).items()),
            "",
            *_figures(probe.card.get("figures", {}), "Held-out and official test prompts"),
            *_figures(probe.card.get("figures_new", {}), "Of these, prompts that the predictor was not trained on"),
            "## Limits",
            "",
            *(f"- {limit}" for limit in probe.card.get("limits", ())),
            "",
        ]
    )


def _facts(probe: Probe) -> dict[str, str]:
    card, smoothing = probe.card, probe.smoothing
    recorded = card.get("data")
    data: Mapping[str, Any] = recorded if isinstance(recorded, dict) else {}
    counts = data.get("prompts", {})
    inputs = ["the tokens generated", *(_INPUTS[name] for name in probe.inputs)]
    layers = ", ".join(f"{one['layer']} ({one['smoothed']:.1f})" for one in card.get("layers", ()))
    found = {
        "predicts": "the remaining tokens, from a hidden state of the LLM",
        "LLM": probe.llm,
        "layer": f"{probe.layer}" + (f"; error in tokens on held-out training prompts: {layers}" if layers else ""),
        "other inputs": ", ".join(inputs),
        "predictor of the prompt": f"`{card['predictor']}`" if card.get("predictor") else "not recorded",
        "read at": f"the end of prefill, then every {probe.every} tokens",
        "bins": f"{len(probe.bins)}, to {probe.bins.edges[-1]:,.0f} tokens",
        "smoothing": f"carry {smoothing.carry:g}, trust {smoothing.trust:g}, start {smoothing.start:g}",
        "prompts": (
            f"{counts.get('trained', 0):,} trained on, {counts.get('held out', 0):,} held out or official tests, "
            f"{counts.get('new', 0):,} of these not in the training data of the packaged predictors"
        ),
        "capped answers": f"{_cell('covered_90', data.get('capped'))}, at {data.get('cap', 0):,} tokens",
        "not trained on": ", ".join(data.get("left out", ())),
        "licences": ", ".join(f"{corpus} {licence}" for corpus, licence in card.get("licences", {}).items()),
    }
    return {name: text for name, text in found.items() if text}


def _figures(figures: Mapping[str, Mapping[str, Any]], title: str) -> list[str]:
    """A table of every way to predict, and the ratio of its error to that of the probe."""
    if not figures:
        return []
    columns = list(next(iter(figures.values())))
    named = {_MAE: "all", "covered_90": "in 90 %"}
    lines = [f"## {title}", "", "Mean absolute error of the remaining length in tokens, by tokens generated.", ""]
    order = [name for name in columns if name not in (_MAE, "tau", *_SHARES)] + [_MAE, "tau", *_SHARES]
    lines += ["| | " + " | ".join(named.get(name, name) for name in order) + " |", "|---" * (len(order) + 1) + "|"]
    for way, found in figures.items():
        lines.append(f"| {way} | " + " | ".join(_cell(name, found.get(name)) for name in order) + " |")
    best = figures.get(JOINT_SMOOTH, {}).get(_MAE)
    for way in (PROMPT_BY_AGE, PROMPT_ONLY):
        if best and way in figures:
            lines += ["", f'"{way}" has {figures[way][_MAE] / best:.2f} times the error of the probe.']
    return [*lines, ""]


def _cell(name: str, value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    return f"{100 * value:.1f} %" if name in _SHARES else f"{value:.3f}" if name == "tau" else f"{value:.1f}"
