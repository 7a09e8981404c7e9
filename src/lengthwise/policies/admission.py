"""Admission by predicted KV memory: may a waiting request start without the running ones running out of memory?

Two rules, which know no clock and no engine. `peak_kv_tokens` is the future peak of LightLLM, where each answer has the
length of a quantile (`predicted_lengths`). `JointAdmission`, the rule of the gateway, is a quantile of what all occupy
together. With either, an engine without running requests admits anything: a request that does not fit alone never will.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from lengthwise.defaults import ADMISSION_QUANTILE
from lengthwise.lengths import TIE_NU, log_t
from lengthwise.policies.job import Job

PREDICTED_LENGTHS: Final = 5
"""How many lengths `predicted_lengths` returns for a request: four quantiles and the cap."""
LENGTH_QUANTILE: Final = 0.9
"""The first quantile of `predicted_lengths`, in every host."""
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


def predicted_lengths(mu: ArrayLike, sigma: ArrayLike, cap: ArrayLike, quantile: float) -> NDArray[np.int32]:
    """Return the predicted lengths of requests at ever higher quantiles, one row each, ending with the cap.

    quantiles = 1 - (1 - quantile) * 2^-i,  i = 0, 1, ...;  length = min(ceil(exp(mu + sigma * t_quantile)), cap)
    Each leaves half of the tail that the one before it leaves: about the prediction given that it is exceeded.
    """
    mu_, sigma_, cap_ = (np.atleast_1d(np.asarray(values, np.float64))[:, None] for values in (mu, sigma, cap))
    quantiles = 1.0 - (1.0 - quantile) * 0.5 ** np.arange(PREDICTED_LENGTHS - 1)
    lengths = np.exp(mu_ + sigma_ * stdtrit(TIE_NU, quantiles))
    return np.asarray(
        np.minimum(np.concatenate([np.clip(np.ceil(lengths), 1, cap_), cap_], axis=1), _MAX_TOKENS), np.int32
    )


# Rules on numbers: hosts call them, and the simulator's kernel compiles them.


def predicted_remaining(lengths: Iterable[int], generated: int) -> int:
    """Return the tokens still to come by the least predicted length above `generated`; 1 if there is none."""
    for length in lengths:
        if length > generated:
            return int(length - generated)
    return 1


def blocks_for(tokens: int, block_size: int) -> int:
    """Return the KV blocks that hold so many tokens."""
    return (tokens + block_size - 1) // block_size


def reserved_blocks(prompt_tokens: int, answer_tokens: int, block_size: int, kv_blocks: int) -> int:
    """Return the KV blocks of a prompt and an answer, at most all; the last token is never computed and takes none."""
    return min(blocks_for(prompt_tokens + answer_tokens - 1, block_size), kv_blocks)


def demand_at(demands: Any, place: int) -> Any:
    """Return one of several demands."""
    return demands[place]


def sorted_peak(demands: Any, count: int, block_size: int) -> int:
    """Return the peak of `peak_kv_tokens` for demands with the most remaining tokens first."""
    peak = held = 0
    for place in range(count):
        demand = demand_at(demands, place)
        held += demand.tokens + block_size - 1
        peak = max(peak, (place + 1) * demand.remaining + held)
    return peak


def peak_kv_tokens(demands: Iterable[KvDemand], block_size: int = 1) -> int:
    """Return the most KV tokens that these requests occupy at one time if each is as long as predicted.

    peak = max over i of  i * remaining_i + sum over j <= i of held_j,     remaining_1 >= remaining_2 >= ...
    held = tokens + block_size - 1: the last block of a request may hold a single token.
    A request gives its memory back when it finishes, so memory peaks just before one of them does: then all that
    outlast it have grown by as many tokens as it had left. Each decode step of the running requests lowers the peak by
    at most one token: one that exceeds the memory by n tokens need not be computed again for n steps, unless a request
    finishes or a prediction changes.
    """
    longest_first = sorted(demands, key=lambda demand: demand.remaining, reverse=True)
    return sorted_peak(longest_first, len(longest_first), block_size)


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
    quantile: float = ADMISSION_QUANTILE

    def admits(self, candidate: Job, running: Sequence[Job], generated: Sequence[float]) -> bool:
        """Return whether the candidate may start beside the running requests, which have so many answer tokens."""
        if not running:
            return True
        jobs, tokens = [*running, candidate], [*generated, candidate.generated]
        held = [job.prompt_tokens + n + self.block_size / 2 for job, n in zip(jobs, tokens, strict=True)]
        mu, sigma, cap = zip(*((job.mu, job.sigma, job.cap) for job in jobs), strict=True)
        sigmas = NormalDist().inv_cdf(self.quantile)
        return joint_kv_tokens(mu, sigma, cap, held, tokens, sigmas) <= self.kv_tokens
