"""Training of a small network on the CPU: standardised inputs, AdamW on a one-cycle rate, several seeds averaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters, chosen on held-out training prompts."""

    hidden: int = 256
    dropout: float = 0.4
    input_dropout: float = 0.2
    epochs: int = 12
    batch: int = 128
    rate: float = 1e-3
    decay: float = 0.1
    networks: int = 3


def standardise(inputs: Floats, clip: float, plain: slice = slice(0)) -> tuple[Floats, dict[str, Floats]]:
    """Return inputs of mean 0 and std 1, clipped, and their `centre` and `spread`; columns `plain` stay as they are."""
    centre, spread = inputs.mean(axis=0), inputs.std(axis=0) + 1e-3
    centre[plain], spread[plain] = 0.0, 1.0
    return np.clip((inputs - centre) / spread, -clip, clip), {"centre": centre, "spread": spread}


def train_network(network: Any, rows: Any, loss: Callable[[Any], Any], recipe: Recipe) -> None:
    """Minimise `loss`, a function of row numbers, over a count of rows or these rows; the generator is torch's."""
    chosen = torch.arange(rows) if isinstance(rows, int) else rows
    optimiser = torch.optim.AdamW(network.parameters(), recipe.rate, weight_decay=recipe.decay)
    steps = recipe.epochs * -(-len(chosen) // recipe.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=steps, pct_start=0.1)
    for _ in range(recipe.epochs):
        for batch in torch.randperm(len(chosen)).split(recipe.batch):
            value = loss(chosen[batch])
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            schedule.step()


def arrays(**tensors: Any) -> dict[str, Floats]:
    """Return tensors as arrays of their own."""
    return {name: value.detach().numpy().copy() for name, value in tensors.items()}
