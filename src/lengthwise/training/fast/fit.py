"""Trains the network with torch on the likelihood of every sample, sample mean and std, and outputs of a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lengthwise.predictors.fast import CLIP, OUTPUTS, SIGMA_AT_ZERO, STD_BELOW_MEAN, FastNetwork
from lengthwise.training.encoder.losses import make_targets, negative_log_likelihood, student_logpdf
from lengthwise.training.small_network import Recipe, arrays, standardise, train_network

Floats = NDArray[np.float32]

_QUARTILES: Final = (-0.7, 0.0, 0.7)
"""Points of a teacher's prediction used as targets, in its sigmas: about its quartiles and its median."""


@dataclass(frozen=True, eq=False)
class Examples:
    """P prompts, L LLMs, N pairs of both with up to K answers. A pair without lengths is learned from the teacher only.

    Pairs are sorted by `prompt`. `lengths` (N, K) are 0 where missing, `censored` marks capped answers. `soft` (N, 4)
    is the output of a teacher: log median, log sigma, log mean and log std, NaN where there is none. `levels` is the
    usual log length of each LLM, `identity` the number of its identity row, -1 if it is trained as an unknown one.
    """

    description: Floats
    prompt: NDArray[np.intp]
    llm: NDArray[np.intp]
    lengths: NDArray[Any]
    censored: NDArray[np.bool_]
    soft: Floats
    weight: NDArray[np.float64]
    name_features: Floats
    levels: NDArray[np.float64]
    identity: NDArray[np.intp]
    absent: Sequence[NDArray[np.bool_]] = ()
    """For each network in turn, the prompts that it is not trained on; () for none."""


@dataclass(frozen=True)
class FastRecipe(Recipe):
    """Hyperparameters, chosen on held-out training prompts."""

    dropout: float = 0.3
    input_dropout: float = 0.1
    epochs: int = 10
    rate: float = 3e-3
    decay: float = 0.05
    joint: int = 96
    identity: int = 24
    unknown: float = 0.1
    soft_weight: float = 1.0
    networks: int = 4


def fit_network(examples: Examples, recipe: FastRecipe, seed: int) -> FastNetwork:
    """Train networks from different seeds, each without its `absent` prompts; return the one that averages them."""
    inputs, scale = standardise(examples.description, CLIP)
    x, names = torch.from_numpy(inputs), torch.from_numpy(examples.name_features)
    lengths, soft, levels, weight = (
        torch.from_numpy(np.asarray(column, np.float32))
        for column in (examples.lengths, examples.soft, examples.levels, examples.weight)
    )
    llm, censored = torch.from_numpy(examples.llm), torch.from_numpy(examples.censored)
    known = int(examples.identity.max()) + 1
    identity = torch.from_numpy(np.where(examples.identity < 0, known, examples.identity))
    start = torch.from_numpy(np.searchsorted(examples.prompt, np.arange(len(x) + 1)))
    networks = []
    for number in range(seed * recipe.networks, (seed + 1) * recipe.networks):
        torch.manual_seed(number)
        net = _Net(x.shape[1], known, names.shape[1], recipe)

        def loss(rows: Any, net: _Net = net) -> Any:  # noqa: ANN401
            count = start[rows + 1] - start[rows]
            owner = torch.repeat_interleave(torch.arange(len(rows)), count)
            first = torch.cumsum(count, 0) - count
            at = start[rows][owner] + torch.arange(len(owner)) - first[owner]
            who, chance = llm[at], torch.rand(len(at))
            row = torch.where(chance < recipe.unknown, known, identity[who])
            # The name of an unknown LLM may state neither family nor size.
            features = torch.where((chance < recipe.unknown / 2)[:, None], names[-1], names[who])
            outputs = net(x[rows], owner, row, features)
            return _loss(outputs, lengths[at], censored[at], soft[at], levels[who], weight[at], recipe.soft_weight)

        left_out = examples.absent[number % len(examples.absent)] if examples.absent else np.zeros(len(x), bool)
        train_network(net, torch.from_numpy(np.flatnonzero(~left_out)), loss, recipe)
        networks.append(FastNetwork.of({**scale, **net.arrays()}))
    return FastNetwork.mean(networks)


class _Net(nn.Module):  # type: ignore[misc]  # the type checker does not see torch
    def __init__(self, width: int, llms: int, names: int, recipe: FastRecipe) -> None:
        super().__init__()
        self.a = nn.Linear(width, recipe.hidden)
        self.b = nn.Linear(recipe.hidden, recipe.joint)
        self.v = nn.Linear(recipe.identity, recipe.joint, bias=False)
        self.identity = nn.Embedding(llms + 1, recipe.identity)
        self.k = nn.Linear(names, recipe.identity, bias=False)
        self.c = nn.Linear(recipe.joint, OUTPUTS)
        self.d = nn.Linear(recipe.hidden, OUTPUTS, bias=False)
        self.drop_input, self.drop = nn.Dropout(recipe.input_dropout), nn.Dropout(recipe.dropout)

    def forward(self, x: Any, prompt: Any, row: Any, names: Any) -> Any:  # noqa: ANN401
        z = self.drop(torch.relu(self.a(self.drop_input(x))))
        # The part of a prompt is computed once, not once for each pair.
        h = torch.relu(self.b(z)[prompt] + self.v(self.identity.weight)[row] + self.v(self.k(names)))
        return self.c(self.drop(h)) + self.d(z)[prompt]

    def arrays(self) -> dict[str, Floats]:
        return arrays(
            a=self.a.weight.T, a_bias=self.a.bias, b=self.b.weight.T, b_bias=self.b.bias, v=self.v.weight.T,
            identity=self.identity.weight, k=self.k.weight.T, c=self.c.weight.T, d=self.d.weight.T,
            c_bias=self.c.bias,
        )  # fmt: skip


def _loss(
    y: Any,  # noqa: ANN401
    lengths: Any,  # noqa: ANN401
    censored: Any,  # noqa: ANN401
    soft: Any,  # noqa: ANN401
    levels: Any,  # noqa: ANN401
    weight: Any,  # noqa: ANN401
    soft_weight: float,
) -> Any:  # noqa: ANN401
    mu, log_sigma = y[..., 0] + levels, (y[..., 1] + SIGMA_AT_ZERO).clamp(-4.0, 2.0)
    log_mean, log_std = y[..., 2] + levels, y[..., 3] + levels - STD_BELOW_MEAN

    def distance(about: Any, mean: Any, std: Any) -> Any:  # noqa: ANN401
        return (mu - about).abs() + 0.5 * (log_mean - mean).abs() + 0.5 * (log_std - std).abs()

    targets = make_targets(lengths, censored)
    true_std = torch.log(torch.expm1(targets.log_std).clamp(min=1.0))
    labelled = negative_log_likelihood(mu, log_sigma, targets)
    labelled = labelled + distance(targets.log_mean, targets.log_mean, true_std) * targets.whole
    known = torch.isfinite(soft[..., 0])
    soft = soft.nan_to_num()
    points = soft[..., :1] + torch.exp(soft[..., 1:2]) * torch.tensor(_QUARTILES)
    t = (points - mu[..., None]) * torch.exp(-log_sigma)[..., None]
    taught = (log_sigma[..., None] - student_logpdf(t)).mean(dim=-1) + distance(
        soft[..., 0], soft[..., 2], soft[..., 3]
    )
    return _mean(labelled, targets.weight * weight) + soft_weight * _mean(taught, known * weight)


def _mean(each: Any, where: Any) -> Any:  # noqa: ANN401
    return (each * where).sum() / where.sum().clamp(min=1e-3)
