"""Heads of the encoder that papers train and the product does not: classes, mean and std, and a score to rank by.

CASTILLO's tables have classes of two lengths in five widths (`LengthClasses`) and errors in tokens (`Moments`).

Needs torch, NumPy and SciPy only, so that it also runs on a bare GPU machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

READINGS: Final = ("mean", "p99")
"""The lengths of a row's samples that CASTILLO's classes can be of."""
_P99_STEP: Final = 0.01
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


class LengthClasses:
    """Classes of the mean and of the P99 of a row's samples in several widths, each with a softmax of its own."""

    together = LOG_T.together

    def __init__(self, longest: float, widths: Sequence[int], readings: Sequence[str] = READINGS) -> None:
        self.tasks = [(reading, width, int(longest // width) + 1) for reading in readings for width in widths]

    @property
    def _size(self) -> int:
        return sum(count for _, _, count in self.tasks)

    @property
    def towers(self) -> tuple[int, ...]:
        """One tower."""
        return (self._size,)

    @property
    def order(self) -> range:
        """The logits, task by task."""
        return range(self._size)

    @property
    def centres(self) -> list[float]:
        """Equal classes."""
        return [0.0] * self._size

    @property
    def names(self) -> list[str]:
        """Of the tasks: reading and width."""
        return [f"{reading}/{width}" for reading, width, _ in self.tasks]

    def loss(self, outputs: Any, targets: Targets, weights: LossConfig) -> Any:
        """Mean of the tasks' cross-entropies."""
        lengths = {"mean": targets.mean, "p99": p99_of_samples(targets)}
        total, first = 0.0, 0
        for reading, width, count in self.tasks:
            place = torch.floor(lengths[reading] / width).long().clamp(max=count - 1).unsqueeze(-1)
            logits = functional.log_softmax(outputs[..., first : first + count], dim=-1)
            total = total - torch.gather(logits, -1, place).squeeze(-1)
            first += count
        return total / len(self.tasks)

    def predicted(self, outputs: NDArray[Any]) -> NDArray[np.int16]:
        """The most likely class of each task, (..., tasks)."""
        parts = np.split(outputs, np.cumsum([count for _, _, count in self.tasks])[:-1], axis=-1)
        return np.stack([part.argmax(axis=-1) for part in parts], axis=-1).astype(np.int16)

    def places_and_spreads(self, outputs: NDArray[Any]) -> tuple[NDArray[Any], None]:
        """The log of the expected length, by the middles of the first task's classes."""
        _, width, count = self.tasks[0]
        shares = softmax(outputs[..., :count].astype(np.float64), axis=-1)
        return np.log(np.maximum(shares @ ((np.arange(count) + 0.5) * width), 1.0)), None


class Moments:
    """Mean and std of repeated answers in tokens, standardised, by squared or absolute errors."""

    towers = (2,)
    order = (0, 1)
    centres = (0.0, 0.0)
    together = LOG_T.together

    def __init__(self, power: int, centre: Sequence[float], spread: Sequence[float]) -> None:
        self.power = power
        self.centre = tuple(map(float, centre))
        self.spread = tuple(map(float, spread))

    @property
    def names(self) -> list[str]:
        """Of what is predicted."""
        return ["mean", "std"]

    def loss(self, outputs: Any, targets: Targets, weights: LossConfig) -> Any:
        """Sum of both errors."""
        true = (targets.mean, torch.expm1(targets.log_std))
        each = [
            (outputs[..., at] - (value - self.centre[at]) / self.spread[at]).abs() ** self.power
            for at, value in enumerate(true)
        ]
        return each[0] + each[1]

    def predicted(self, outputs: NDArray[Any]) -> NDArray[np.float32]:
        """Mean and std in tokens, (..., 2)."""
        tokens = outputs.astype(np.float64) * self.spread + self.centre
        return np.asarray(np.maximum(tokens, 0.0), np.float32)

    def places_and_spreads(self, outputs: NDArray[Any]) -> tuple[NDArray[Any], None]:
        """The log mean."""
        return np.log(np.maximum(self.predicted(outputs)[..., 0].astype(np.float64), 1.0)), None


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


def p99_of_samples(targets: Targets) -> Any:
    """The 0.99 quantile of each pair's samples, interpolated: between the two largest of up to 100."""
    lengths = torch.where(targets.present, torch.exp(targets.log_lengths).round(), 0.0)
    count = targets.present.sum(-1)
    largest, second = torch.topk(functional.pad(lengths, (0, 1)), 2, dim=-1).values.unbind(-1)
    return torch.where(count > 1, largest - _P99_STEP * (count - 1) * (largest - second), largest)


def list_mle(score: Any, targets: Targets) -> Any:
    """ListMLE over the batch, within each LLM: the likelihood of the true order, longest first."""
    group = torch.where(targets.whole, torch.floor(targets.mean / _RANK_GROUP), -1.0)
    order = torch.argsort(group, dim=0, descending=True)
    known = torch.gather(targets.whole, 0, order)
    ranked = torch.where(known, torch.gather(score, 0, order), -1e4)
    rest = torch.flip(torch.logcumsumexp(torch.flip(ranked, [0]), dim=0), [0])
    loss = torch.where(known, rest - ranked, 0.0)
    return torch.zeros_like(score).scatter(0, order, loss)
