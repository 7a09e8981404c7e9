"""Trains a probe from a folder of states: compares layers, trains on the best one, and scores all ways to predict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lengthwise.errors import InputError
from lengthwise.training.licences import LICENCES
from lengthwise.training.probe.compare import BUCKETS, Score, bucket_name, compare
from lengthwise.training.probe.learn import Correction, ProbeRecipe, Tried, fit, inputs_of, learn_correction, sweep
from lengthwise.training.probe.states import NOT_TRAINED

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from lengthwise.predictors.probe import Bins, Probe
    from lengthwise.training.probe.states import States

    Report = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class Trained:
    """Result of a training. `probe` has the prompt's prediction as an input; `plain`, for comparison, has not."""

    probe: Probe
    plain: Probe
    tried: list[Tried]
    """Layers on held-out training prompts, best first, with the prompt's prediction."""
    scores: list[Score]
    """On held-out prompts."""
    heat: dict[str, NDArray[np.float64]]
    """Heatmaps of the same (`compare.HEAT`): for each true bin the share predicted in each bin."""
    new_scores: list[Score]
    """On those of them that the predictor of the prompts was not trained on."""
    prompts: dict[str, int]
    correction: Correction
    """Correction of the prompts' predictions, learned from training answers and used in every score."""
    capped: float
    """Share of capped answers."""


def train_probe(states: States, bins: Bins, llm: str, *, recipe: ProbeRecipe, name: str, report: Report) -> Trained:
    """Compare the layers, train, score."""
    correction = learn_correction(states)
    states = correction.of(states)
    tested = states.where(states.tested)
    if not len(tested):
        raise InputError("no prompt is held out", hint="mark some as `test`: the probe is scored on them")
    joint = inputs_of(states, prompt=True)
    tried = sweep(states, bins, joint, recipe, report)
    layer = tried[0].layer
    alone = inputs_of(states, prompt=False)
    chosen = sweep(replace(states, layers={layer: states.layers[layer]}), bins, alone, recipe, report)[0]
    report(f"all training prompts, layer {layer}", 0.9)
    probe = replace(fit(states, states.trained, layer, bins, joint, recipe), smoothing=tried[0].smoothing, llm=llm)
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
        "says": "remaining tokens, from the LLM's hidden state, the tokens generated and the prompt's prediction",
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
            f"for {llm} only: hidden states of other LLMs or other weights give wrong predictions",
            f"answers were cut at {states.cap} tokens ({trained.capped:.1%} of them): longer answers are not predicted",
            "trained on one set of sampling settings; other temperatures and penalties give other lengths",
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
    """Round; None for NaN, which JSON does not have."""
    return None if np.isnan(value) else round(value, digits)
