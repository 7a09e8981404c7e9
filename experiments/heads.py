"""Heads of the encoder that papers train and the product does not: classes, mean and std, and a score to rank by.

Needs torch, NumPy and SciPy only, so that it also runs on a bare GPU machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch.nn import functional

from lengthwise.training.encoder.losses import LOG_T, HeadKind, Targets, statistics_loss

if TYPE_CHECKING:
    from lengthwise.training.encoder.config import LossConfig

_RANK_GROUP: Final = 10.0  # LTR (2408.15792) ranks lengths in groups of ten tokens


@dataclass(frozen=True, eq=False)
class Bins:
    """A logit for each class of lengths; `edges` are one more than classes."""

    edges: NDArray[Any]
    together = LOG_T.together

    @property
    def towers(self) -> tuple[int, ...]:
        """One tower."""
        return (len(self.edges) - 1,)

    @property
    def order(self) -> range:
        """The logits in the order of the classes."""
        return range(len(self.edges) - 1)

    @property
    def centres(self) -> list[float]:
        """Equal classes."""
        return [0.0] * (len(self.edges) - 1)

    def loss(self, outputs: Any, targets: Targets, weights: LossConfig) -> Any:
        """Cross-entropy with the class of the mean."""
        edges = torch.as_tensor(self.edges, device=outputs.device).float()
        place = torch.bucketize(targets.mean, edges[1:-1])
        return -torch.gather(functional.log_softmax(outputs, dim=-1), -1, place.unsqueeze(-1)).squeeze(-1)

    def places_and_spreads(self, outputs: NDArray[Any]) -> tuple[NDArray[Any], None]:
        """The log of the expected length, by the middles of the classes."""
        middles = (self.edges[:-1] + self.edges[1:]) / 2
        return np.log(np.maximum(softmax(outputs.astype(np.float64), axis=-1) @ middles, 1.0)), None


class MeanStd:
    """Log mean and log std of repeated answers, by absolute errors: a point regressor."""

    towers = (1, 1)
    order = (0, 1)
    centres = (5.5, 4.0)
    together = LOG_T.together

    def loss(self, outputs: Any, targets: Targets, weights: LossConfig) -> Any:
        """Absolute errors, weighted."""
        return statistics_loss(outputs[..., 0], outputs[..., 1], targets, weights)

    def places_and_spreads(self, outputs: NDArray[Any]) -> tuple[NDArray[Any], None]:
        """The log mean."""
        return outputs[..., 0].astype(np.float64), None


class Rank:
    """A score that is higher for a longer answer, by ListMLE."""

    towers = (1,)
    order = (0,)
    centres = (0.0,)
    together = 1
    """A list to rank is a batch: among prompts of similar length a ranker would not learn what length tells."""

    def loss(self, outputs: Any, targets: Targets, weights: LossConfig) -> Any:
        """ListMLE within each LLM."""
        return list_mle(outputs[..., 0], targets)

    def places_and_spreads(self, outputs: NDArray[Any]) -> tuple[NDArray[Any], None]:
        """The score."""
        return outputs[..., 0].astype(np.float64), None


HEADS: Final[Mapping[str, HeadKind]] = {"logt": LOG_T, "mean_std": MeanStd(), "rank": Rank()}
"""The heads that a variant of `scripts/gpu_train.py` may name."""


def list_mle(score: Any, targets: Targets) -> Any:
    """ListMLE over the batch, within each LLM: the likelihood of the true order, longest first."""
    group = torch.where(targets.whole, torch.floor(targets.mean / _RANK_GROUP), -1.0)
    order = torch.argsort(group, dim=0, descending=True)
    known = torch.gather(targets.whole, 0, order)
    ranked = torch.where(known, torch.gather(score, 0, order), -1e4)
    rest = torch.flip(torch.logcumsumexp(torch.flip(ranked, [0]), dim=0), [0])
    loss = torch.where(known, rest - ranked, 0.0)
    return torch.zeros_like(score).scatter(0, order, loss)
