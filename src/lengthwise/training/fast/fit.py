"""Trains the network with torch on the likelihood of every sample, sample mean and std, and outputs of a teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import nn

from lengthwise.predictors.fast import CLIP, OUTPUTS, SIGMA_AT_ZERO, STD_BELOW_MEAN, FastNetwork
from lengthwise.training.encoder.losses import make_targets, negative_log_likelihood, student_logpdf
from lengthwise.training.small_network import Recipe, arrays, standardise, train_network

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_QUARTILES: Final = (-0.7, 0.0, 0.7)
"""Points of a teacher's prediction used as targets, in its sigmas: about its quartiles and its median."""


@dataclass(frozen=True, eq=False)
class Examples:
    """P prompts, L LLMs, up to K answers. A pair without lengths is learned from the teacher only.

    `lengths` (P, L, K) are 0 where missing, `censored` marks capped answers. `soft` (P, L, 4) is the output of a
    teacher: log median, log sigma, log mean and log std, NaN where there is none. `levels` is the usual log length of
    each LLM.
    """

    description: Floats
    lengths: NDArray[Any]
    censored: NDArray[np.bool_]
    soft: Floats
    name_features: Floats
    levels: NDArray[np.float64]


@dataclass(frozen=True)
class FastRecipe(Recipe):
    """Hyperparameters, chosen on held-out training prompts."""

    dropout: float = 0.3
    input_dropout: float = 0.1
    epochs: int = 20
    rate: float = 3e-3
    decay: float = 0.05
    joint: int = 96
    identity: int = 24
    unknown: float = 0.1
    soft_weight: float = 1.0


def fit_network(examples: Examples, recipe: FastRecipe, seed: int) -> FastNetwork:
    """Train networks from different seeds, and return the network that averages them."""
    inputs, scale = standardise(examples.description, CLIP)
    x, names = torch.from_numpy(inputs), torch.from_numpy(examples.name_features)
    lengths, soft, levels = (
        torch.from_numpy(np.asarray(column, np.float32))
        for column in (examples.lengths, examples.soft, examples.levels)
    )
    censored, llms = torch.from_numpy(examples.censored), len(examples.levels)
    networks = []
    for number in range(seed * recipe.networks, (seed + 1) * recipe.networks):
        torch.manual_seed(number)
        net = _Net(x.shape[1], llms, names.shape[1], recipe)

        def loss(rows: Any, net: _Net = net) -> Any:  # noqa: ANN401
            hidden = torch.rand(len(rows), llms) < recipe.unknown
            outputs = net(x[rows], torch.where(hidden, llms, torch.arange(llms)), names)
            return _loss(outputs, lengths[rows], censored[rows], soft[rows], levels, recipe.soft_weight)

        train_network(net, len(x), loss, recipe)
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

    def forward(self, x: Any, rows: Any, names: Any) -> Any:  # noqa: ANN401
        z = self.drop(torch.relu(self.a(self.drop_input(x))))
        # The parts of a prompt and of an LLM are computed once for each, not once for each pair.
        h = torch.relu(self.b(z)[:, None] + self.v(self.identity.weight)[rows] + self.v(self.k(names)))
        return self.c(self.drop(h)) + self.d(z)[:, None]

    def arrays(self) -> dict[str, Floats]:
        return arrays(
            a=self.a.weight.T, a_bias=self.a.bias, b=self.b.weight.T, b_bias=self.b.bias, v=self.v.weight.T,
            identity=self.identity.weight, k=self.k.weight.T, c=self.c.weight.T, d=self.d.weight.T,
            c_bias=self.c.bias,
        )  # fmt: skip


def _loss(y: Any, lengths: Any, censored: Any, soft: Any, levels: Any, soft_weight: float) -> Any:  # noqa: ANN401
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
    taught = (log_sigma[..., None] - student_logpdf(t)).mean(dim=2) + distance(soft[..., 0], soft[..., 2], soft[..., 3])
    return _mean(labelled, targets.weight) + soft_weight * _mean(taught, known)


def _mean(each: Any, where: Any) -> Any:  # noqa: ANN401
    return (each * where).sum() / where.sum().clamp(min=1.0)
