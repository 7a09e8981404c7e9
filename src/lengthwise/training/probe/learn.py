"""Trains a probe with torch by the likelihood of the bin; a capped answer counts as "at least this long".

Before that, predictions from the prompts are recalibrated to the sampling settings of this LLM: a predictor that knows
it under other settings (no penalty, for example) is off by a factor. While serving, online calibration does this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import gammaln, stdtr
from torch import nn

from lengthwise.errors import InputError
from lengthwise.predictors.probe import CLIP, ENTROPY, NONE, PAPER, PROMPT, Probe, ProbeNetwork, Smoothing, features
from lengthwise.training.probe.compare import read_states_with
from lengthwise.training.small_network import Recipe, arrays, standardise, train_network

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lengthwise.predictors.probe import Bins
    from lengthwise.training.probe.states import States

    Floats = NDArray[np.float32]
    Mask = NDArray[np.bool_]

SMOOTHINGS: Final = (
    NONE,
    PAPER,
    *(Smoothing(carry, trust) for carry, trust in ((0.3, 0.7), (0.5, 0.5), (0.5, 0.7), (0.7, 0.3), (0.5, 1.0))),
)
"""Candidates, chosen on held-out prompts: none, the paper's, and those in which earlier readings fade."""
STARTS: Final = (0.0, 0.3, 0.5, 0.7)
"""Candidates for the share of the prompt's prediction in the first reading."""
_LEAST: Final = 1e-300
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


def sweep(
    states: States, bins: Bins, inputs: Sequence[str], recipe: ProbeRecipe, report: Callable[[str, float], None]
) -> list[Tried]:
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

        def loss(batch: Any, net: _Net = net) -> Any:  # noqa: ANN401
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

    def forward(self, x: Any) -> Any:  # noqa: ANN401
        state, extra = x[:, : -self.inputs], x[:, -self.inputs :]
        hidden = torch.relu(self.a(torch.cat([self.drop_input(state), extra], dim=1)))
        return self.b(self.drop(hidden)) + self.skip(extra)

    def arrays(self) -> dict[str, Floats]:
        return arrays(
            a=self.a.weight.T, a_bias=self.a.bias, b=self.b.weight.T, b_bias=self.b.bias, skip=self.skip.weight.T
        )  # fmt: skip


def _negative_log_likelihood(logits: Any, target: Any, cut: Any) -> Any:  # noqa: ANN401
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


@dataclass(frozen=True)
class Correction:
    """A recalibration of the predictions from the prompts: `mu <- shift + slope * mu`, `sigma <- factor * sigma`."""

    shift: float = 0.0
    slope: float = 1.0
    factor: float = 1.0

    def of(self, states: States) -> States:
        """Return the states with corrected predictions from their prompts."""
        return replace(states, mu=self.shift + self.slope * states.mu, sigma=self.factor * states.sigma)


def learn_correction(states: States) -> Correction:
    """Fit by maximum likelihood on the training answers; a capped answer is censored at the cap."""
    some = states.where(states.trained)
    first = np.unique(some.answer, return_index=True)[1]
    length, cut = np.log((some.generated + some.remaining)[first]), some.capped[first]
    mu, sigma = some.mu[first], some.sigma[first]

    def loss(numbers: Any) -> float:  # noqa: ANN401  (an array of scipy)
        shift, slope, spread = numbers
        scale = np.exp(spread) * sigma
        z = (length - shift - slope * mu) / scale
        ended = _log_density(z, some.nu) - np.log(scale)
        longer = np.log(np.maximum(stdtr(some.nu, -z), _LEAST))
        return -float(np.where(cut, longer, ended).mean())

    found = minimize(loss, np.array([0.0, 1.0, 0.0]), method="L-BFGS-B")
    shift, slope, spread = (float(number) for number in found.x)
    return Correction(shift, slope, float(np.exp(spread)))


def _log_density(z: Floats, nu: float) -> Floats:
    constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi)
    return np.asarray(constant - (nu + 1) / 2 * np.log1p(z * z / nu))
