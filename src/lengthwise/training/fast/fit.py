"""Trains the network with torch on the likelihood of every sample, sample mean and std, and outputs of a teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import nn

from lengthwise.lengths import TIE_NU
from lengthwise.predictors.fast import CLIP, OUTPUTS, SIGMA_AT_ZERO, STD_BELOW_MEAN, FastNetwork
from lengthwise.training.encoder import student_t

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Doubles = NDArray[np.float64]
    Mask = NDArray[np.bool_]

_QUARTILES: Final = (-0.7, 0.0, 0.7)
"""Points of a teacher's prediction used as targets, in its sigmas: about its quartiles and its median."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Prompts x LLMs x samples. A pair for which `clean` is all False is learned from the teacher only.

    `cut` marks capped answers. `soft` (prompts, LLMs, 4) is the output of a teacher: log median, log sigma, log mean
    and log std, NaN where there is none. `levels` is the usual log length of each LLM.
    """

    description: Floats
    lengths: Doubles
    clean: Mask
    cut: Mask
    soft: Floats
    name_features: Floats
    levels: Doubles


@dataclass(frozen=True)
class FastRecipe:
    """Hyperparameters, chosen on held-out training prompts."""

    hidden: int = 256
    joint: int = 96
    identity: int = 24
    dropout: float = 0.3
    input_dropout: float = 0.1
    unknown: float = 0.1
    epochs: int = 20
    batch: int = 128
    rate: float = 3e-3
    decay: float = 0.05
    soft_weight: float = 1.0
    networks: int = 3


def fit_network(examples: Examples, recipe: FastRecipe, seed: int) -> FastNetwork:
    """Train networks from different seeds, and return the network that averages them."""
    centre = examples.description.mean(axis=0)
    spread = examples.description.std(axis=0) + 1e-3
    x = torch.from_numpy(np.clip((examples.description - centre) / spread, -CLIP, CLIP))
    targets, same = _Targets.of(examples), {"centre": centre, "spread": spread}
    seeds = range(seed * recipe.networks, (seed + 1) * recipe.networks)
    return FastNetwork.mean([FastNetwork.of({**same, **_train(x, targets, recipe, number)}) for number in seeds])


@dataclass(frozen=True, eq=False)
class _Targets:
    logs: Any
    share: Any
    cut: Any
    has: Any
    whole: Any
    log_mean: Any
    log_std: Any
    soft: Any
    soft_has: Any
    levels: Any
    names: Any

    @classmethod
    def of(cls, examples: Examples) -> _Targets:
        clean, lengths = examples.clean.astype(np.float64), examples.lengths
        count = np.maximum(clean.sum(axis=2), 1.0)
        mean = (lengths * clean).sum(axis=2) / count
        std = np.sqrt((np.square(lengths - mean[..., None]) * clean).sum(axis=2) / count)
        has, soft_has = examples.clean.any(axis=2), np.isfinite(examples.soft[..., 0])
        columns = (
            np.log(np.maximum(lengths, 1.0)), clean / count[..., None], examples.cut & examples.clean, has,
            has & ~(examples.cut & examples.clean).any(axis=2), np.log(np.maximum(mean, 1.0)),
            np.log(np.maximum(std, 1.0)), np.nan_to_num(examples.soft), soft_has, examples.levels,
            examples.name_features,
        )  # fmt: skip
        return cls(*(torch.from_numpy(np.asarray(column, np.float32)) for column in columns))


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
        found = {
            "a": self.a.weight.T, "a_bias": self.a.bias, "b": self.b.weight.T, "b_bias": self.b.bias,
            "v": self.v.weight.T, "identity": self.identity.weight, "k": self.k.weight.T,
            "c": self.c.weight.T, "d": self.d.weight.T, "c_bias": self.c.bias,
        }  # fmt: skip
        return {name: value.detach().numpy().copy() for name, value in found.items()}


def _train(x: Any, targets: _Targets, recipe: FastRecipe, seed: int) -> dict[str, Floats]:  # noqa: ANN401
    torch.manual_seed(seed)
    llms = len(targets.levels)
    net = _Net(x.shape[1], llms, targets.names.shape[1], recipe)
    optimiser = torch.optim.AdamW(net.parameters(), recipe.rate, weight_decay=recipe.decay)
    steps = recipe.epochs * -(-len(x) // recipe.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=steps, pct_start=0.1)
    for rows in _batches(len(x), recipe):
        hidden = torch.rand(len(rows), llms) < recipe.unknown
        identities = torch.where(hidden, llms, torch.arange(llms))
        loss = _loss(net(x[rows], identities, targets.names), targets, rows, recipe)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return net.arrays()


def _batches(n: int, recipe: FastRecipe) -> Iterator[Any]:
    for _ in range(recipe.epochs):
        yield from torch.randperm(n).split(recipe.batch)


def _loss(y: Any, targets: _Targets, rows: Any, recipe: FastRecipe) -> Any:  # noqa: ANN401
    mu, log_sigma = y[..., 0] + targets.levels, (y[..., 1] + SIGMA_AT_ZERO).clamp(-4.0, 2.0)
    log_mean, log_std = y[..., 2] + targets.levels, y[..., 3] + targets.levels - STD_BELOW_MEAN

    def distance(about: Any, mean: Any, std: Any) -> Any:  # noqa: ANN401
        return (mu - about).abs() + 0.5 * (log_mean - mean).abs() + 0.5 * (log_std - std).abs()

    def log_loss(logs: Any) -> Any:  # noqa: ANN401
        t = (logs - mu[..., None]) * torch.exp(-log_sigma)[..., None]
        return t, log_sigma[..., None] + (TIE_NU + 1.0) / 2.0 * torch.log1p(t * t / TIE_NU)

    mean, cut = targets.log_mean[rows], targets.cut[rows] > 0
    t, each = log_loss(targets.logs[rows])
    each = torch.masked_scatter(each, cut, -student_t.logsf(t[cut], TIE_NU))
    labelled = (each * targets.share[rows]).sum(dim=2) + distance(mean, mean, targets.log_std[rows]) * targets.whole[
        rows
    ]
    loss = _mean(labelled, targets.has[rows])
    if recipe.soft_weight:
        soft = targets.soft[rows]
        asked = soft[..., :1] + torch.exp(soft[..., 1:2]) * torch.tensor(_QUARTILES)
        taught = log_loss(asked)[1].mean(dim=2) + distance(soft[..., 0], soft[..., 2], soft[..., 3])
        loss = loss + recipe.soft_weight * _mean(taught, targets.soft_has[rows])
    return loss


def _mean(each: Any, where: Any) -> Any:  # noqa: ANN401
    return (each * where).sum() / where.sum().clamp(min=1.0)
