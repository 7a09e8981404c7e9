"""A pack on the training device: batches of prompts, and what the losses compare with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lengthwise.predictors.encoder.readout import log_size
from lengthwise.training.encoder.pack import TRAIN, Pack

_ROUND_TO = 32  # batch widths come in few sizes: fewer shapes for a GPU to plan for
_SORTED_TOGETHER = 8  # batches whose prompts are sorted by length among each other, so that little is padding


@dataclass(frozen=True, eq=False)
class Targets:
    """What is known of the pairs of a batch: (B, L, ...) each."""

    log_lengths: Any
    present: Any
    censored: Any
    mean: Any
    log_mean: Any
    log_std: Any
    fitted: Any
    weight: Any
    """(B, L): weight of the pair, 0 where nothing is known of it."""
    whole: Any
    """(B, L): known, and no answer cut off: mean and std are those of whole answers."""
    soft: Any = None
    """(B, L, 4): a teacher's outputs, NaN where it says nothing."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Prompts through the encoder, and their targets."""

    ids: Any
    mask: Any
    log_size: Any
    targets: Targets


class Tensors:
    """All of a pack as tensors on one device."""

    def __init__(self, pack: Pack, device: str, *, row_weight: str = "equal", soft: NDArray[Any] | None = None) -> None:
        self.pack = pack
        self.device = device
        ids, count = pack.padded()
        self.ids = torch.as_tensor(ids, device=device)
        self.count = torch.as_tensor(count, device=device)
        self.counts = count
        self.log_size = torch.as_tensor(log_size(pack.sizes), device=device)
        self._lengths = torch.as_tensor(pack.lengths.astype(np.float32), device=device)
        self._censored = torch.as_tensor(pack.censored, device=device)
        self._fitted = torch.as_tensor(pack.fitted.astype(np.float32), device=device)
        self._prompt_weight = torch.as_tensor(_prompt_weights(pack, row_weight), device=device)
        self._soft = None if soft is None else torch.as_tensor(soft.astype(np.float32), device=device)

    def batch(self, prompts: NDArray[np.int64]) -> Batch:
        """Return these prompts, padded to the longest of them."""
        at = torch.as_tensor(prompts, device=self.device)
        widest = int(self.counts[prompts].max())
        step = 1 if self.device == "cpu" else _ROUND_TO
        width = min(-(-widest // step) * step, self.ids.shape[1])
        mask = torch.arange(width, device=self.device) < self.count[at].unsqueeze(1)
        return Batch(self.ids[at, :width], mask, self.log_size[at], self._targets(at))

    def _targets(self, at: Any) -> Targets:  # noqa: ANN401  (tensors are Any without torch's types)
        lengths, censored = self._lengths[at], self._censored[at]
        present = lengths > 0
        count = present.sum(-1).clamp(min=1)
        mean = lengths.sum(-1) / count
        variance = (torch.where(present, lengths - mean.unsqueeze(-1), 0.0) ** 2).sum(-1) / count
        known = present.any(-1)
        return Targets(
            log_lengths=torch.log(lengths.clamp(min=1.0)),
            present=present,
            censored=censored,
            mean=mean,
            log_mean=torch.log(mean.clamp(min=1.0)),
            log_std=torch.log1p(variance.sqrt()),
            fitted=self._fitted[at],
            weight=known * self._prompt_weight[at].unsqueeze(1),
            whole=known & ~(censored & present).any(-1),
            soft=None if self._soft is None else self._soft[at],
        )

    def shuffled(self, prompts: NDArray[np.int64], size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield every prompt once, in random batches of prompts of like length."""
        order = rng.permutation(prompts)
        batches = []
        for first in range(0, len(order), size * _SORTED_TOGETHER):
            near = order[first : first + size * _SORTED_TOGETHER]
            near = near[np.argsort(self.counts[near], kind="stable")]
            batches += [near[start : start + size] for start in range(0, len(near), size)]
        yield from (batches[i] for i in rng.permutation(len(batches)))

    def in_order(self, prompts: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
        """Yield every prompt once, by length: for evaluation."""
        order = prompts[np.argsort(self.counts[prompts], kind="stable")]
        yield from (order[start : start + size] for start in range(0, len(order), size))


def _prompt_weights(pack: Pack, kind: str) -> NDArray[np.float32]:
    """Weights of mean 1 over the training prompts; `corpus` gives every corpus the same sum."""
    weights = np.ones(len(pack), np.float32)
    if kind != "equal":
        train = pack.part == TRAIN
        counts = np.bincount(pack.corpus[train], minlength=len(pack.corpora))
        share = counts / max(counts.sum(), 1)
        power = {"corpus": -1.0, "sqrt_corpus": -0.5}[kind]
        by_corpus = np.maximum(share, 1.0 / max(counts.sum(), 1)) ** power
        by_corpus /= (by_corpus * share).sum()
        weights = by_corpus[pack.corpus].astype(np.float32)
    return weights
