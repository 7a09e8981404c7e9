"""AdamW over groups: the head at its own rate, the encoder's layers at rates that fall towards the bottom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lengthwise.training.encoder.network import LengthNetwork

if TYPE_CHECKING:
    from lengthwise.training.encoder.config import TrainingConfig


def make_optimiser(network: LengthNetwork, config: TrainingConfig, *, fused: bool) -> Any:  # noqa: ANN401
    """Make the optimiser; each group's `peak` is what its rate is warmed up to."""
    settings = config.optimiser
    layers = network.backbone.groups()
    rates = [settings.lr * settings.layer_decay ** (len(layers) - 1 - depth) for depth in range(len(layers))]
    head = [*network.identity.parameters(), *network.head.parameters()]
    groups = []
    for parameters, rate in [*zip(layers, rates, strict=True), (head, settings.head_lr)]:
        # Biases and norms are not shrunk: that would only move their zero.
        for decay, some in (
            (settings.weight_decay, [p for p in parameters if p.ndim > 1]),
            (0.0, [p for p in parameters if p.ndim <= 1]),
        ):
            if some:
                groups.append({"params": some, "lr": rate, "peak": rate, "weight_decay": decay})
    return torch.optim.AdamW(groups, fused=fused)


def set_dropout(network: LengthNetwork, share: float) -> None:
    """Set the encoder's dropout; the head keeps its own."""
    network.backbone.set_dropout(share)
