"""Trains a probe with torch: likelihood of the bin, an answer that was cut off counting as "at least so much"."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import nn

from lengthwise.errors import InputError
from lengthwise.predictors.probe.bins import ENTROPY, NONE, PAPER, PROMPT, Smoothing, features
from lengthwise.predictors.probe.probe import CLIP, Probe, ProbeNetwork
from lengthwise.training.probe.compare import said

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lengthwise.predictors.probe.bins import Bins
    from lengthwise.training.probe.states import States

    Floats = NDArray[np.float32]
    Mask = NDArray[np.bool_]

SMOOTHINGS: Final = (
    NONE,
    PAPER,
    *(Smoothing(carry, trust) for carry, trust in ((0.3, 0.7), (0.5, 0.5), (0.5, 0.7), (0.7, 0.3), (0.5, 1.0))),
)
"""Tried on held-out prompts: none, the paper's, and those in which what was read before fades."""
STARTS: Final = (0.0, 0.3, 0.5, 0.7)
"""Tried likewise, where the prompt's prediction is known: its share in the first reading."""
_HEAVIEST: Final = 8.0  # states that one row may stand for, so that no answer rules a batch


@dataclass(frozen=True)
class Recipe:
    """How to train; chosen on held-out training prompts."""

    hidden: int = 256
    dropout: float = 0.4
    input_dropout: float = 0.2
    epochs: int = 12
    batch: int = 128
    rate: float = 1e-3
    decay: float = 0.1
    networks: int = 3
    held_out: float = 0.2
    """Share of the training prompts on which layers and smoothing are chosen, before all are trained on."""
    seed: int = 0


@dataclass(frozen=True)
class Tried:
    """One layer on held-out training prompts: mean absolute error of what remains, before and after smoothing."""

    layer: int
    error: float
    smoothed: float
    smoothing: Smoothing


def inputs_of(states: States, *, prompt: bool) -> tuple[str, ...]:
    """What a probe can be told of these states."""
    return (*((PROMPT,) if prompt else ()), *((ENTROPY,) if states.entropy is not None else ()))


def sweep(
    states: States, bins: Bins, inputs: Sequence[str], recipe: Recipe, report: Callable[[str, float], None]
) -> list[Tried]:
    """Train each layer on most of the training prompts, and see how far off it is on the rest; best first."""
    trained, held_out = _divided(states, recipe)
    once, tried = replace(recipe, networks=min(2, recipe.networks)), []
    for number, layer in enumerate(sorted(states.layers)):
        report(f"layer {layer}", number / (len(states.layers) + 1))
        probe = fit(states, trained, layer, bins, inputs, once)
        tried.append(_smoothed(states.where(held_out), probe))
    return sorted(tried, key=lambda one: one.smoothed)


def _smoothed(states: States, probe: Probe) -> Tried:
    """Choose the smoothing with the least mean absolute error of the median over all states of the answers."""
    readings, prior, weight = said(states, probe), states.prior(probe.bins), states.weight
    starts = STARTS if PROMPT in probe.inputs else STARTS[:1]
    errors = {}
    for smoothing in (replace(one, start=start) for one in SMOOTHINGS for start in starts):
        mass = smoothing.rows(probe.bins, readings, prior, states.answer, states.generated)
        point = probe.bins.quantile(mass, 0.5, states.cap - states.generated)
        errors[smoothing] = float(np.average(np.abs(point - states.remaining), weights=weight))
    best = min(errors, key=lambda smoothing: errors[smoothing])
    return Tried(probe.layer, errors[NONE], errors[best], best)


def fit(states: States, rows: Mask, layer: int, bins: Bins, inputs: Sequence[str], recipe: Recipe) -> Probe:
    """Train some networks on some rows, and return the probe that says their mean."""
    if not rows.any():
        raise InputError("no state may be trained on", hint="every prompt is held out, a test prompt or not to be used")
    some = states.where(rows)
    raw = some.layers[layer].astype(np.float32)
    centre, spread = raw.mean(axis=0), raw.std(axis=0) + 1e-3
    entropy = np.zeros(len(some)) if some.entropy is None else some.entropy
    told = features(inputs, some.generated, mu=some.mu, sigma=some.sigma, left=some.left(), entropy=entropy)
    x = torch.from_numpy(np.concatenate([np.clip((raw - centre) / spread, -CLIP, CLIP), told], axis=1))
    target = torch.from_numpy(bins.of(some.remaining))
    weight = torch.from_numpy(np.minimum(some.weight, _HEAVIEST).astype(np.float32))
    cut = torch.from_numpy(some.capped)
    networks = []
    for number in range(recipe.networks):
        torch.manual_seed(recipe.seed * 100 + number)
        net = _Net(x.shape[1], told.shape[1], len(bins), recipe)
        _train(net, x, target, cut, weight, recipe)
        networks.append(ProbeNetwork.of({"centre": centre, "spread": spread, **net.arrays()}))
    return Probe(layer, bins, ProbeNetwork.mean(networks), tuple(inputs))


class _Net(nn.Module):  # type: ignore[misc]  # torch is an extra; its classes are not seen here
    def __init__(self, width: int, told: int, bins: int, recipe: Recipe) -> None:
        super().__init__()
        self.told = told
        self.a, self.b = nn.Linear(width, recipe.hidden), nn.Linear(recipe.hidden, bins)
        self.skip = nn.Linear(told, bins, bias=False)
        self.drop_input, self.drop = nn.Dropout(recipe.input_dropout), nn.Dropout(recipe.dropout)

    def forward(self, x: Any) -> Any:  # noqa: ANN401
        state, told = x[:, : -self.told], x[:, -self.told :]
        hidden = torch.relu(self.a(torch.cat([self.drop_input(state), told], dim=1)))
        return self.b(self.drop(hidden)) + self.skip(told)

    def arrays(self) -> dict[str, Floats]:
        found = {
            "a": self.a.weight.T, "a_bias": self.a.bias, "b": self.b.weight.T, "b_bias": self.b.bias,
            "skip": self.skip.weight.T,
        }  # fmt: skip
        return {name: value.detach().numpy().copy() for name, value in found.items()}


def _train(net: _Net, x: Any, target: Any, cut: Any, weight: Any, recipe: Recipe) -> None:  # noqa: ANN401
    optimiser = torch.optim.AdamW(net.parameters(), recipe.rate, weight_decay=recipe.decay)
    steps = recipe.epochs * -(-len(x) // recipe.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=steps, pct_start=0.1)
    for _ in range(recipe.epochs):
        for some in torch.randperm(len(x)).split(recipe.batch):
            each = _unlikely(net(x[some]), target[some], cut[some])
            loss = (each * weight[some]).sum() / weight[some].sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()


def _unlikely(logits: Any, target: Any, cut: Any) -> Any:  # noqa: ANN401
    """Minus log of the bin's probability; of one that was cut off, of that bin and all above."""
    log_mass = torch.log_softmax(logits, dim=1)
    exact = log_mass.gather(1, target[:, None])[:, 0]
    below = torch.arange(logits.shape[1]) < target[:, None]
    at_least = torch.logsumexp(log_mass.masked_fill(below, -1e9), dim=1)
    return -torch.where(cut, at_least, exact)


def _divided(states: States, recipe: Recipe) -> tuple[Mask, Mask]:
    """Training rows and held-out ones, by prompt: by hash, so that it does not move when prompts are added."""
    held_out = states.trained & (states.draw < recipe.held_out)
    if not held_out.any():
        raise InputError("too few prompts to hold some out", hint="collect more hidden states")
    return states.trained & ~held_out, held_out
