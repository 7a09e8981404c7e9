"""Fits the network with torch: log-t likelihood of every sample, and the sample mean and std beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from lengthwise.lengths import TIE_NU
from lengthwise.predictors.fast.network import CLIP, SIGMA_AT_ZERO, STD_BELOW_MEAN, Network

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Examples:
    """Prompts x LLMs x samples. Where `clean` is all False for a prompt and LLM, that pair teaches nothing.

    `soft_mu` is a teacher's log median, NaN where there is none: the seam for distillation.
    """

    description: Floats
    lengths: NDArray[np.float64]
    clean: NDArray[np.bool_]
    name_features: Floats
    levels: NDArray[np.float64]
    soft_mu: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Recipe:
    """How to train; chosen on held-out training prompts."""

    hidden: int = 256
    joint: int = 96
    identity: int = 24
    dropout: float = 0.4
    input_dropout: float = 0.2
    unknown: float = 0.1
    epochs: int = 45
    batch: int = 64
    rate: float = 2e-3
    decay: float = 0.05
    soft_weight: float = 2.0


def fit_network(examples: Examples, recipe: Recipe, seeds: Sequence[int]) -> Network:
    """Train one network per seed and keep them as one."""
    centre = examples.description.mean(axis=0)
    spread = examples.description.std(axis=0) + 1e-3
    x = torch.from_numpy(np.clip((examples.description - centre) / spread, -CLIP, CLIP))
    trained = [_train(x, _Targets.of(examples), recipe, seed) for seed in seeds]
    return Network.of(
        {"centre": centre, "spread": spread} | {name: np.stack([one[name] for one in trained]) for name in trained[0]}
    )


@dataclass(frozen=True, eq=False)
class _Targets:
    logs: Any
    clean: Any
    has: Any
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
        soft = np.full(mean.shape, np.nan) if examples.soft_mu is None else examples.soft_mu
        columns = (
            np.log(np.maximum(lengths, 1.0)), clean / count[..., None], examples.clean.any(axis=2),
            np.log(np.maximum(mean, 1.0)), np.log(np.maximum(std, 1.0)), np.nan_to_num(soft), np.isfinite(soft),
            examples.levels, examples.name_features,
        )  # fmt: skip
        return cls(*(torch.from_numpy(np.asarray(column, np.float32)) for column in columns))


class _Net(nn.Module):  # type: ignore[misc]  # torch is an extra; its classes are not seen here
    def __init__(self, width: int, llms: int, names: int, recipe: Recipe) -> None:
        super().__init__()
        self.a = nn.Linear(width, recipe.hidden)
        self.b = nn.Linear(recipe.hidden + recipe.identity, recipe.joint)
        self.identity = nn.Embedding(llms + 1, recipe.identity)
        self.k = nn.Linear(names, recipe.identity, bias=False)
        self.c = nn.Linear(recipe.joint, 4)
        self.d = nn.Linear(recipe.hidden, 4, bias=False)
        self.drop_input, self.drop = nn.Dropout(recipe.input_dropout), nn.Dropout(recipe.dropout)

    def forward(self, x: Any, rows: Any, names: Any) -> Any:  # noqa: ANN401
        z = self.drop(torch.relu(self.a(self.drop_input(x))))
        who = self.identity(rows) + self.k(names)
        h = torch.relu(self.b(torch.cat([z[:, None].expand(-1, rows.shape[1], -1), who], dim=2)))
        return self.c(self.drop(h)) + self.d(z)[:, None]

    def arrays(self) -> dict[str, Floats]:
        hidden = self.a.out_features
        found = {
            "a": self.a.weight.T, "a_bias": self.a.bias, "b": self.b.weight[:, :hidden].T, "b_bias": self.b.bias,
            "v": self.b.weight[:, hidden:].T, "identity": self.identity.weight, "k": self.k.weight.T,
            "c": self.c.weight.T, "d": self.d.weight.T, "c_bias": self.c.bias,
        }  # fmt: skip
        return {name: value.detach().numpy().copy() for name, value in found.items()}


def _train(x: Any, targets: _Targets, recipe: Recipe, seed: int) -> dict[str, Floats]:  # noqa: ANN401
    torch.manual_seed(seed)
    llms = len(targets.levels)
    net = _Net(x.shape[1], llms, targets.names.shape[1], recipe)
    optimiser = torch.optim.AdamW(net.parameters(), recipe.rate, weight_decay=recipe.decay)
    steps = recipe.epochs * -(-len(x) // recipe.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=steps, pct_start=0.1)
    for some in _batches(len(x), recipe):
        dropped = torch.rand(len(some), llms) < recipe.unknown
        rows = torch.where(dropped, llms, torch.arange(llms))
        loss = _loss(net(x[some], rows, targets.names), targets, some, recipe)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return net.arrays()


def _batches(n: int, recipe: Recipe) -> Iterator[Any]:
    for _ in range(recipe.epochs):
        yield from torch.randperm(n).split(recipe.batch)


def _loss(y: Any, targets: _Targets, some: Any, recipe: Recipe) -> Any:  # noqa: ANN401
    mu = y[..., 0] + targets.levels
    log_sigma = (y[..., 1] + SIGMA_AT_ZERO).clamp(-4.0, 2.0)
    z = (targets.logs[some] - mu[..., None]) / log_sigma.exp()[..., None]
    likelihood = log_sigma[..., None] + (TIE_NU + 1.0) / 2.0 * torch.log1p(z * z / TIE_NU)
    each = (
        (likelihood * targets.clean[some]).sum(dim=2)
        + (mu - targets.log_mean[some]).abs()
        + 0.5 * (y[..., 2] + targets.levels - targets.log_mean[some]).abs()
        + 0.5 * (y[..., 3] + targets.levels - STD_BELOW_MEAN - targets.log_std[some]).abs()
    )
    has, soft_has = targets.has[some], targets.soft_has[some]
    taught = (recipe.soft_weight * (mu - targets.soft[some]).abs() * soft_has).sum() / soft_has.sum().clamp(min=1.0)
    return (each * has).sum() / has.sum().clamp(min=1.0) + taught
