"""Training of a probe from hidden states: layers are compared, the best one is trained on, all ways to predict scored.

The loss is the likelihood of the bin; a capped answer counts as "at least this long". Before that, predictions from the
prompts are recalibrated to the sampling settings of this LLM: a predictor that knows it under other settings (no
penalty, for example) is off by a factor. While serving, online calibration does this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lengthwise.errors import InputError
from lengthwise.predictors.probe import (
    CLIP,
    ENTROPY,
    NONE,
    PAPER,
    PROMPT,
    Bins,
    Probe,
    ProbeNetwork,
    Smoothing,
    features,
)
from lengthwise.training.data import LICENCES
from lengthwise.training.probe.errors_by_age import BUCKETS, Way, bucket_name, compare, read_states_with
from lengthwise.training.probe.states import NOT_TRAINED, Correction, States, learn_correction
from lengthwise.training.small_network import Recipe, arrays, standardise, train_network

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]
Report = Callable[[str, float], None]

SMOOTHINGS: Final = (
    NONE,
    PAPER,
    *(Smoothing(carry, trust) for carry, trust in ((0.3, 0.7), (0.5, 0.5), (0.5, 0.7), (0.7, 0.3), (0.5, 1.0))),
)
"""Candidates, chosen on held-out prompts: none, the paper's, and those in which earlier readings fade."""
STARTS: Final = (0.0, 0.3, 0.5, 0.7)
"""Candidates for the share of the prompt's prediction in the first reading."""
_HEAVIEST: Final = 8.0  # states that one row may represent, so that no answer dominates a batch


@dataclass(frozen=True)
class ProbeRecipe(Recipe):
    """Hyperparameters, chosen on held-out training prompts."""

    held_out: float = 0.2
    """Share of the training prompts on which layers and smoothing are chosen, before all are trained on."""
    seed: int = 0


@dataclass(frozen=True)
class Tried:
    """One layer on held-out training prompts: mean absolute error of the remaining length, and smoothed."""

    layer: int
    error: float
    smoothed: float
    smoothing: Smoothing


def inputs_of(states: States, *, prompt: bool) -> tuple[str, ...]:
    """Return the inputs of a probe, besides the state, that these states have."""
    return (*((PROMPT,) if prompt else ()), *((ENTROPY,) if states.entropy is not None else ()))


def sweep(states: States, bins: Bins, inputs: Sequence[str], recipe: ProbeRecipe, report: Report) -> list[Tried]:
    """Train on each layer with most of the training prompts and score it on the rest; best first."""
    trained, held_out = _split(states, recipe)
    once, tried = replace(recipe, networks=min(2, recipe.networks)), []
    for number, layer in enumerate(sorted(states.layers)):
        report(f"layer {layer}", number / (len(states.layers) + 1))
        probe = fit(states, trained, layer, bins, inputs, once)
        tried.append(_smoothed(states.where(held_out), probe))
    return sorted(tried, key=lambda one: one.smoothed)


def _smoothed(states: States, probe: Probe) -> Tried:
    """Choose the smoothing with the least mean absolute error of the median over all states of the answers."""
    readings, prior, weight = read_states_with(probe, states), states.prior(probe.bins), states.weight
    starts = STARTS if PROMPT in probe.inputs else STARTS[:1]
    errors = {}
    for smoothing in (replace(one, start=start) for one in SMOOTHINGS for start in starts):
        mass = smoothing.rows(probe.bins, readings, prior, states.answer, states.generated)
        point = probe.bins.quantile(mass, 0.5, states.cap - states.generated)
        errors[smoothing] = float(np.average(np.abs(point - states.remaining), weights=weight))
    best = min(errors, key=lambda smoothing: errors[smoothing])
    return Tried(probe.layer, errors[NONE], errors[best], best)


def fit(states: States, rows: Mask, layer: int, bins: Bins, inputs: Sequence[str], recipe: ProbeRecipe) -> Probe:
    """Train networks on these rows from different seeds, and return the probe that averages them."""
    if not rows.any():
        raise InputError(
            "no state to train on", hint="every prompt is held out, a test prompt or of an excluded corpus"
        )
    some = states.where(rows)
    state, scale = standardise(some.layers[layer].astype(np.float32), CLIP)
    entropy = np.zeros(len(some)) if some.entropy is None else some.entropy
    extra = features(inputs, some.generated, mu=some.mu, sigma=some.sigma, left=some.left(), entropy=entropy)
    x = torch.from_numpy(np.concatenate([state, extra], axis=1))
    target = torch.from_numpy(bins.of(some.remaining))
    weight = torch.from_numpy(np.minimum(some.weight, _HEAVIEST).astype(np.float32))
    cut = torch.from_numpy(some.capped)
    networks = []
    for number in range(recipe.networks):
        torch.manual_seed(recipe.seed * 100 + number)
        net = _Net(x.shape[1], extra.shape[1], len(bins), recipe)

        def loss(batch: Any, net: _Net = net) -> Any:
            each = _negative_log_likelihood(net(x[batch]), target[batch], cut[batch])
            return (each * weight[batch]).sum() / weight[batch].sum()

        train_network(net, len(x), loss, recipe)
        networks.append(ProbeNetwork.of({**scale, **net.arrays()}))
    return Probe(layer, bins, ProbeNetwork.mean(networks), tuple(inputs))


class _Net(nn.Module):  # type: ignore[misc]  # the type checker does not see torch
    def __init__(self, width: int, inputs: int, bins: int, recipe: ProbeRecipe) -> None:
        super().__init__()
        self.inputs = inputs
        self.a, self.b = nn.Linear(width, recipe.hidden), nn.Linear(recipe.hidden, bins)
        self.skip = nn.Linear(inputs, bins, bias=False)
        self.drop_input, self.drop = nn.Dropout(recipe.input_dropout), nn.Dropout(recipe.dropout)

    def forward(self, x: Any) -> Any:
        state, extra = x[:, : -self.inputs], x[:, -self.inputs :]
        hidden = torch.relu(self.a(torch.cat([self.drop_input(state), extra], dim=1)))
        return self.b(self.drop(hidden)) + self.skip(extra)

    def arrays(self) -> dict[str, Floats]:
        return arrays(
            a=self.a.weight.T, a_bias=self.a.bias, b=self.b.weight.T, b_bias=self.b.bias, skip=self.skip.weight.T
        )  # fmt: skip


def _negative_log_likelihood(logits: Any, target: Any, cut: Any) -> Any:
    """Negative log likelihood of the bin; for a capped answer, of that bin and all above."""
    log_mass = torch.log_softmax(logits, dim=1)
    exact = log_mass.gather(1, target[:, None])[:, 0]
    below = torch.arange(logits.shape[1]) < target[:, None]
    at_least = torch.logsumexp(log_mass.masked_fill(below, -1e9), dim=1)
    return -torch.where(cut, at_least, exact)


def _split(states: States, recipe: ProbeRecipe) -> tuple[Mask, Mask]:
    """Training and held-out rows, by hash of the prompt, so that the split is stable when prompts are added."""
    held_out = states.trained & (states.draw < recipe.held_out)
    if not held_out.any():
        raise InputError("too few prompts to hold some out", hint="collect more hidden states")
    return states.trained & ~held_out, held_out


@dataclass(frozen=True, eq=False)
class Trained:
    """Result of a training. `probe` has the prompt's prediction as an input; `plain`, for comparison, has not."""

    probe: Probe
    plain: Probe
    tried: list[Tried]
    """Layers on held-out training prompts, best first, with the prompt's prediction."""
    scores: list[Way]
    """On held-out prompts."""
    heat: dict[str, NDArray[np.float64]]
    """Heatmaps of the same (`compare.HEAT`): for each true bin the share predicted in each bin."""
    new_scores: list[Way]
    """On those of them that the predictor of the prompts was not trained on."""
    prompts: dict[str, int]
    correction: Correction
    """Correction of the prompts' predictions, learned from training answers and used in every score."""
    capped: float
    """Share of capped answers."""


def train_probe(states: States, bins: Bins, llm: str, *, recipe: ProbeRecipe, name: str, report: Report) -> Trained:
    """Compare the layers, train, score."""
    correction = learn_correction(states.where(states.trained))
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
        "figures": {way.name: _figures(way, buckets) for way in trained.scores},
        "figures_new": {way.name: _figures(way, buckets) for way in trained.new_scores},
        "limits": [
            f"for {llm} only: hidden states of other LLMs or other weights give wrong predictions",
            f"answers were cut at {states.cap} tokens ({trained.capped:.1%} of them): longer answers are not predicted",
            "trained on one set of sampling settings; other temperatures and penalties give other lengths",
        ],
    }


def _figures(way: Way, buckets: list[str]) -> dict[str, Any]:
    by_bucket = dict(zip(buckets, (_rounded(each.mae, 1) for each in way.by_age), strict=True))
    return {
        "mae": _rounded(way.overall.mae, 1),
        "tau": _rounded(way.overall.tau, 3),
        "covered_90": _rounded(way.overall.coverage_90, 3),
        **by_bucket,
    }


def _rounded(value: float, digits: int) -> float | None:
    """Round; None for NaN, which JSON does not have."""
    return None if np.isnan(value) else round(value, digits)
