"""The loss of a head: one number per pair of prompt and LLM, of which the trainer takes the weighted mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch.nn import functional

from lengthwise.lengths.log_t import log_density
from lengthwise.predictors.encoder import MIN_LOG_SIGMA, mu_and_sigma

if TYPE_CHECKING:
    from lengthwise.training.encoder.config import LossConfig

NU: Final = 3.5  # TIE's
_REACH: Final = 12.0  # of the table of log survival; beyond, straight lines
_CELLS: Final = 1 << 14
_MEAN_UNIT: Final = 300.0  # tokens: a typical error, so that terms have similar size
_PAIR_SCALE: Final = 0.25
_MIN_PAIR_GAP: Final = 0.05  # log lengths closer than 5 % are ties: sampling noise


@dataclass(frozen=True, eq=False)
class Targets:
    """Targets of the pairs of a batch, (B, L, ...) each."""

    log_lengths: Any
    present: Any
    censored: Any
    mean: Any
    log_mean: Any
    log_std: Any
    fitted: Any
    weight: Any
    """(B, L): weight of the pair, 0 without lengths."""
    whole: Any
    """(B, L): has lengths, none of them capped, so that mean and std are those of whole answers."""
    soft: Any = None
    """(B, L, 4): a teacher's outputs, NaN where there are none."""
    fitted_variance: Any = (1.0, 1.0)
    """Of mu and log1p(sigma) over the training pairs."""


def make_targets(
    lengths: Any,  # tensors are Any without torch's types
    censored: Any,
    *,
    fitted: Any = None,
    prompt_weight: Any = 1.0,
    soft: Any = None,
    fitted_variance: Any = (1.0, 1.0),
) -> Targets:
    """Return the targets of lengths (B, L, K), 0 where missing; `prompt_weight` is (B, 1)."""
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
        fitted=fitted,
        weight=known * prompt_weight,
        whole=known & ~(censored & present).any(-1),
        soft=soft,
        fitted_variance=fitted_variance,
    )


def log_sigma(raw: Any) -> Any:
    """Bound the spread from below, smoothly."""
    return MIN_LOG_SIGMA + functional.softplus(raw - MIN_LOG_SIGMA)


class HeadKind(Protocol):
    """What a head predicts, and how it is trained. The product has one, `LOG_T`; studies bring their own."""

    @property
    def towers(self) -> Sequence[int]:
        """Outputs of each tower of the network."""

    @property
    def order(self) -> Sequence[int]:
        """The outputs, as places in the row of all towers' outputs."""

    @property
    def centres(self) -> Sequence[float]:
        """A typical value of each output, which a new network starts from."""

    @property
    def together(self) -> int:
        """Batches among which prompts are sorted by length, for little padding."""

    def loss(self, outputs: Any, targets: Targets, weights: LossConfig) -> Any:
        """Return the loss of each pair (B, L) against the sampled lengths."""

    def places_and_spreads(self, outputs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return what prompts are ranked by, and sigma where the head predicts one."""


class LogTHead:
    """A log-t, and mean and std of repeated answers: mu, log sigma, log mean, log std.

    Location and spread have separate towers, as in TIE: their gradients conflict.
    """

    towers = (2, 2)
    order = (0, 2, 1, 3)
    centres = (5.5, -1.0, 5.5, 4.0)
    together = 8

    def loss(self, outputs: Any, targets: Targets, weights: LossConfig) -> Any:
        """Return the weighted sum of the terms in `weights`."""
        mu, spread = outputs[..., 0], log_sigma(outputs[..., 1])
        loss = statistics_loss(outputs[..., 2], outputs[..., 3], targets, weights)
        if weights.nll:
            loss = loss + weights.nll * negative_log_likelihood(mu, spread, targets)
        if weights.fitted:
            loss = loss + weights.fitted * _fitted(mu, spread, targets, weights.fitted_sigma)
        if weights.pairwise:
            loss = loss + weights.pairwise * _pairwise(mu, targets)
        return loss

    def places_and_spreads(self, outputs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return mu and sigma."""
        return mu_and_sigma(outputs)


LOG_T: Final = LogTHead()


def negative_log_likelihood(mu: Any, spread: Any, targets: Targets) -> Any:
    """Return the mean over the samples of each pair; a capped sample is the event of a longer answer."""
    t = (targets.log_lengths - mu.unsqueeze(-1)) * torch.exp(-spread).unsqueeze(-1)
    each = -student_logpdf(t) + spread.unsqueeze(-1)
    each = torch.where(targets.censored, -student_logsf(t), each)
    count = targets.present.sum(-1).clamp(min=1)
    return torch.where(targets.present, each, 0.0).sum(-1) / count


def statistics_loss(log_mean: Any, log_std: Any, targets: Targets, weights: LossConfig) -> Any:
    """Absolute errors of mean and std, where no answer is capped."""
    mean = torch.exp(log_mean.clamp(max=9.7))
    loss = weights.log_mean * (log_mean - targets.log_mean).abs()
    loss = loss + weights.mean * (mean - targets.mean).abs() / _MEAN_UNIT
    loss = loss + weights.log_std * (log_std - targets.log_std).abs()
    return torch.where(targets.whole, loss, 0.0)


def _fitted(mu: Any, spread: Any, targets: Targets, sigma_weight: float) -> Any:
    """TIE: squared errors of mu and log1p(sigma), each z-scored, against maximum likelihood."""
    known = torch.isfinite(targets.fitted).all(-1) & targets.whole
    true_mu = torch.where(known, targets.fitted[..., 0], 0.0)
    true_sigma = torch.where(known, targets.fitted[..., 1], 0.0).clamp(min=0.0)
    place = (mu - true_mu) ** 2 / targets.fitted_variance[0]
    width = (torch.log1p(torch.exp(spread)) - torch.log1p(true_sigma)) ** 2 / targets.fitted_variance[1]
    return torch.where(known, place + sigma_weight * width, 0.0)


def _pairwise(mu: Any, targets: Targets) -> Any:
    """Logistic loss on the order of two prompts of one LLM, as in Kendall's tau; mean over the pairs of a prompt."""
    true = targets.log_mean.unsqueeze(0) - targets.log_mean.unsqueeze(1)
    predicted = mu.unsqueeze(0) - mu.unsqueeze(1)
    known = targets.whole.unsqueeze(0) & targets.whole.unsqueeze(1) & (true.abs() > _MIN_PAIR_GAP)
    loss = functional.softplus(-torch.sign(true) * predicted / _PAIR_SCALE)
    return torch.where(known, loss, 0.0).sum(1) / known.sum(1).clamp(min=1)


def soft_loss(outputs: Any, soft: Any) -> Any:
    """Return the distance to the outputs of a teacher per pair, 0 where there are none, and the mask of pairs."""
    known = torch.isfinite(soft).all(-1)
    aim = torch.where(known.unsqueeze(-1), soft, 0.0)
    compared = torch.stack([outputs[..., 0], log_sigma(outputs[..., 1]), outputs[..., 2], outputs[..., 3]], dim=-1)
    each = functional.smooth_l1_loss(compared, aim, beta=0.1, reduction="none").sum(-1)
    return torch.where(known, each, 0.0), known


def student_logpdf(t: Any) -> Any:
    """Log density of Student's t."""
    return float(log_density(0.0, NU)) - (NU + 1) / 2 * torch.log1p(t * t / NU)


def student_logsf(t: Any) -> Any:
    """Log P(T > t) of Student's t, differentiable.

    PyTorch has no incomplete beta function. With t = sqrt(nu) sinh(w) the tails of log survival are straight lines in
    w: a table over w, linearly interpolated, is good to 1e-6 and its slope is the true one.
    """
    table = _survival_table(t.dtype, t.device)
    w = torch.asinh(t / math.sqrt(NU))
    place = (w.clamp(-_REACH, _REACH) + _REACH) * (_CELLS / (2 * _REACH))
    low = place.detach().floor().clamp(0, _CELLS - 1)
    index = low.long()
    return torch.lerp(table[index], table[index + 1], place - low) - NU * torch.relu(w - _REACH)


@lru_cache(maxsize=8)
def _survival_table(dtype: Any, device: Any) -> Any:
    """The table on the device, cached: a copy on each call would stall a GPU."""
    w = np.linspace(-_REACH, _REACH, _CELLS + 1)
    return torch.as_tensor(stats.t.logsf(math.sqrt(NU) * np.sinh(w), NU), dtype=dtype, device=device)
