"""Admission by predicted KV memory: may a waiting request start without the running ones running out of memory?

Two rules, which know no clock and no engine. `peak_kv_tokens` is the future peak of LightLLM, where each answer has the
length of a quantile (`length_levels`); the simulator's compiled kernel computes the same number. `JointAdmission`, the
rule of the gateway, is a quantile of what all occupy together. With either, an engine without running requests admits
anything: a request that does not fit alone never will.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from lengthwise.lengths import TIE_NU, log_t
from lengthwise.policies.job import Job

LENGTH_LEVELS: Final = 5
"""How many lengths `length_levels` returns for a request: four quantiles and the cap."""
LENGTH_QUANTILE: Final = 0.9
"""The first quantile of `length_levels`, in every host."""
JOINT_QUANTILE: Final = 0.995
"""The quantile of `JointAdmission`, in every host."""
_MAX_TOKENS: Final = 1 << 30
_STEPS: Final = np.unique(np.geomspace(1, 1 << 14, 64).astype(np.int64)).astype(np.float64)
"""Decode steps from now at which `joint_kv_tokens` looks."""
_MIN_SIGMA: Final = 1e-5
_BEYOND: Final = 1e-3  # survival below which a prediction is refuted


@dataclass(frozen=True, slots=True)
class KvDemand:
    """KV tokens that a request holds now, and tokens that it is predicted still to generate (at least 1)."""

    tokens: int
    remaining: int


def length_levels(mu: ArrayLike, sigma: ArrayLike, cap: ArrayLike, quantile: float) -> NDArray[np.int32]:
    """Return the predicted lengths of requests at ever higher quantiles, one row each, ending with the cap.

    levels = 1 - (1 - quantile) * 2^-i,  i = 0, 1, ...;  length = min(ceil(exp(mu + sigma * t_level)), cap)
    Each level leaves half of the tail that the one before it leaves: about the prediction given that it is exceeded.
    """
    mu_, sigma_, cap_ = (np.atleast_1d(np.asarray(values, np.float64))[:, None] for values in (mu, sigma, cap))
    levels = 1.0 - (1.0 - quantile) * 0.5 ** np.arange(LENGTH_LEVELS - 1)
    lengths = np.exp(mu_ + sigma_ * stdtrit(TIE_NU, levels))
    return np.asarray(
        np.minimum(np.concatenate([np.clip(np.ceil(lengths), 1, cap_), cap_], axis=1), _MAX_TOKENS), np.int32
    )


def predicted_remaining(levels: Iterable[int], generated: int) -> int:
    """Return the tokens still to come by the lowest level that is not exceeded yet; 1 beyond all of them."""
    return next((int(length) - generated for length in levels if length > generated), 1)


def peak_kv_tokens(demands: Iterable[KvDemand], block_size: int = 1) -> int:
    """Return the most KV tokens that these requests occupy at one time if each is as long as predicted.

    peak = max over i of  i * remaining_i + sum over j <= i of held_j,     remaining_1 >= remaining_2 >= ...
    held = tokens + block_size - 1: the last block of a request may hold a single token.
    A request gives its memory back when it finishes, so memory peaks just before one of them does: then all that
    outlast it have grown by as many tokens as it had left. Each decode step of the running requests lowers the peak by
    at most one token: one that exceeds the memory by n tokens need not be computed again for n steps, unless a request
    finishes or a prediction changes.
    """
    peak = held = 0
    longest_first = sorted(demands, key=lambda demand: demand.remaining, reverse=True)
    for number, demand in enumerate(longest_first, start=1):
        held += demand.tokens + block_size - 1
        peak = max(peak, number * demand.remaining + held)
    return peak


def joint_kv_tokens(
    mu: ArrayLike, sigma: ArrayLike, cap: ArrayLike, held: ArrayLike, generated: ArrayLike, sigmas: float
) -> float:
    """Return the most KV tokens that requests occupy together at a future step, `sigmas` above the expectation.

    kv(s)  = sum of (held_i + s) over the answers i longer than generated_i + s, given that i is longer than generated_i
    result = max over s of  E[kv(s)] + sigmas * sd[kv(s)]

    Lengths are independent log-t. An answer that has outlived its prediction is half as likely to go on for as many
    tokens as it has.
    """
    mu_, sigma_, cap_, held_, generated_ = (
        np.asarray(values, np.float64)[:, None] for values in (mu, sigma, cap, held, generated)
    )
    sigma_, length = np.maximum(sigma_, _MIN_SIGMA), generated_ + _STEPS
    now = np.where(generated_ > 0, log_t.survival((np.log(np.maximum(generated_, 1.0) - 0.5) - mu_) / sigma_), 1.0)
    goes_on = np.minimum(1.0, log_t.survival((np.log(length - 0.5) - mu_) / sigma_) / np.maximum(now, _BEYOND))
    goes_on = np.where(now < _BEYOND, 0.5 ** (_STEPS / np.maximum(generated_, 1.0)), goes_on)
    goes_on[length > cap_] = 0.0
    tokens = held_ + _STEPS
    mean = (goes_on * tokens).sum(axis=0)
    variance = (goes_on * (1.0 - goes_on) * tokens**2).sum(axis=0)
    return float((mean + sigmas * np.sqrt(variance)).max())


@dataclass(frozen=True, slots=True)
class JointAdmission:
    """Admit a request if a quantile of the KV memory that all requests take together, itself included, fits.

    `quantile` is of their sum at any future step, by its mean and variance: answers that are longer than predicted are
    made up for by shorter ones, so this admits more requests than a high quantile of each, at the same risk.
    """

    kv_tokens: int
    block_size: int = 1
    quantile: float = JOINT_QUANTILE

    def admits(self, candidate: Job, running: Sequence[Job], generated: Sequence[float]) -> bool:
        """Return whether the candidate may start beside the running requests, which have so many answer tokens."""
        if not running:
            return True
        jobs, tokens = [*running, candidate], [*generated, candidate.generated]
        held = [job.prompt_tokens + n + self.block_size / 2 for job, n in zip(jobs, tokens, strict=True)]
        mu, sigma, cap = zip(*((job.mu, job.sigma, job.cap) for job in jobs), strict=True)
        sigmas = NormalDist().inv_cdf(self.quantile)
        return joint_kv_tokens(mu, sigma, cap, held, tokens, sigmas) <= self.kv_tokens
