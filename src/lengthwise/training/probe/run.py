"""Trains a probe from a folder of states: layers compared, the best one trained on everything, all ways scored."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lengthwise.errors import InputError
from lengthwise.training.licences import LICENCES
from lengthwise.training.probe.compare import BUCKETS, Score, bucket_name, compare
from lengthwise.training.probe.learn import Recipe, Tried, fit, inputs_of, sweep
from lengthwise.training.probe.prompts import Correction, learn_correction
from lengthwise.training.probe.states import NOT_TRAINED

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from lengthwise.predictors.probe.bins import Bins
    from lengthwise.predictors.probe.probe import Probe
    from lengthwise.training.probe.states import States

    Report = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of it. `probe` is told the prompt's prediction; `plain` is not, and stands in the comparison only."""

    probe: Probe
    plain: Probe
    tried: list[Tried]
    """Layers on held-out training prompts, best first, with the prompt's prediction."""
    scores: list[Score]
    """On held-out prompts."""
    heat: dict[str, NDArray[np.float64]]
    """The same as heatmaps (`compare.HEAT`): of each true bin, the share said to be in each."""
    new_scores: list[Score]
    """On those of them that the predictor of the prompts has not seen either."""
    prompts: dict[str, int]
    correction: Correction
    """Of the prompts' predictions, learned from training answers, in every score."""
    capped: float
    """Share of all answers that were cut off."""


def train_probe(states: States, bins: Bins, llm: str, *, recipe: Recipe, name: str, report: Report) -> Trained:
    """Compare the layers, train, score."""
    correction = learn_correction(states)
    states = correction.of(states)
    tested = states.where(states.tested)
    if not len(tested):
        raise InputError("no prompt is held out", hint="mark some as `test`, or nothing can be said of the probe")
    told = inputs_of(states, prompt=True)
    tried = sweep(states, bins, told, recipe, report)
    layer = tried[0].layer
    alone = inputs_of(states, prompt=False)
    chosen = sweep(replace(states, layers={layer: states.layers[layer]}), bins, alone, recipe, report)[0]
    report(f"all training prompts, layer {layer}", 0.9)
    probe = replace(fit(states, states.trained, layer, bins, told, recipe), smoothing=tried[0].smoothing, llm=llm)
    plain = replace(fit(states, states.trained, layer, bins, alone, recipe), smoothing=chosen.smoothing, llm=llm)
    learned, new = states.where(states.trained), states.where(states.tested & states.new_to_predictor)
    scores, heat = compare(tested, learned, plain, probe)
    new_scores = compare(new, learned, plain, probe)[0] if len(new) else []
    first = np.unique(states.answer, return_index=True)[1]
    trained = Trained(
        probe, plain, tried, scores, heat, new_scores,
        {"trained": _prompts(learned), "held out": _prompts(tested), "new": _prompts(new)},
        correction,
        float(states.capped[first].mean()),
    )  # fmt: skip
    return replace(trained, probe=replace(probe, card=_card(states, trained, llm, name)))


def _prompts(states: States) -> int:
    return len(np.unique(states.draw))


def _card(states: States, trained: Trained, llm: str, name: str) -> dict[str, Any]:
    corpora = sorted({str(corpus) for corpus in states.where(states.trained).corpus})
    buckets = [bucket_name(*bucket) for bucket in BUCKETS]
    return {
        "name": name,
        "says": "tokens still to come, from the LLM's hidden state, the tokens generated and the prompt's prediction",
        "llm": llm,
        "layer": trained.probe.layer,
        "predictor": states.predictor,
        "data": {
            "corpora": corpora,
            "prompts": trained.prompts,
            "prompts' predictions": {name: round(value, 4) for name, value in asdict(trained.correction).items()},
            "capped": round(trained.capped, 4),
            "cap": states.cap,
            "left out": ["official test prompts", *NOT_TRAINED],
        },
        "licences": {corpus: LICENCES.get(corpus, "unknown") for corpus in corpora},
        "layers": [asdict(one) for one in trained.tried],
        "figures": {score.name: _figures(score, buckets) for score in trained.scores},
        "figures_new": {score.name: _figures(score, buckets) for score in trained.new_scores},
        "limits": [
            f"for {llm} only: hidden states of another LLM, or of other weights of it, mean nothing to it",
            f"answers were cut at {states.cap} tokens ({trained.capped:.1%} of them): it knows of nothing longer",
            "one way of sampling; other temperatures and penalties give other lengths",
        ],
    }


def _figures(score: Score, buckets: list[str]) -> dict[str, Any]:
    by_bucket = dict(zip(buckets, (_rounded(error, 1) for error in score.errors), strict=True))
    return {
        "mae": _rounded(score.error, 1),
        "tau": _rounded(score.tau, 3),
        "covered_90": _rounded(score.covered, 3),
        **by_bucket,
    }


def _rounded(value: float, digits: int) -> float | None:
    """For JSON, which has no NaN."""
    return None if np.isnan(value) else round(value, digits)
