"""Admission by predicted KV memory: may a waiting request start without the running ones running out of memory?

Two rules, the same in every host, which know no clock and no engine. `PeakAdmission` is the future peak of LightLLM:
each answer has the length of a quantile. `JointAdmission` is a quantile of what all occupy together.

    limit = PeakAdmission(kv_tokens=16 * 4000, block_size=16, quantile=0.9)
    limit.admits(limit.demand(job), [limit.demand(other) for other in running])

`demand` turns a job into what the rule needs: the KV tokens it holds once admitted, and how many more it is predicted
to take. A host that keeps these numbers itself makes `KvDemand` values directly. `peak_kv_tokens` is the definition of
the peak; the simulator's compiled kernel computes the same number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from lengthwise.errors import InputError
from lengthwise.lengths import TIE_NU
from lengthwise.policies.job import Job

LENGTH_LEVELS: Final = 5
"""How many lengths `length_levels` returns for a request: four quantiles and the cap."""
_MAX_TOKENS: Final = 1 << 30
_MAX_LOG: Final = math.log(_MAX_TOKENS)
_STEPS: Final = np.unique(np.geomspace(1, 1 << 14, 64).astype(np.int64)).astype(np.float64)
"""Decode steps from now at which `joint_kv_tokens` looks."""
_T_GRID: Final = np.linspace(-12.0, 12.0, 4801)
_T_SURVIVAL: Final = stdtr(TIE_NU, -_T_GRID)
_LEAST_SIGMA: Final = 1e-5
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


def job_levels(job: Job, quantile: float) -> tuple[int, ...]:
    """Return `length_levels` of one job, without arrays: for hosts that decide once per request."""
    cap, mu, sigma = int(min(max(1.0, job.cap), _MAX_TOKENS)), job.mu, job.sigma
    lengths = [math.ceil(math.exp(min(mu + sigma * t, _MAX_LOG))) for t in _t_levels(quantile)]
    return (*[min(max(1, length), cap) for length in lengths], cap)


@lru_cache(maxsize=16)
def _t_levels(quantile: float) -> tuple[float, ...]:
    levels = 1.0 - (1.0 - quantile) * 0.5 ** np.arange(LENGTH_LEVELS - 1)
    return tuple(stdtrit(TIE_NU, levels).tolist())


def predicted_remaining(levels: Iterable[int], generated: int) -> int:
    """Return the tokens still to come by the lowest level that is not exceeded yet; 1 beyond all of them."""
    return next((int(length) - generated for length in levels if length > generated), 1)


def peak_kv_tokens(demands: Iterable[KvDemand], block_size: int = 1) -> int:
    """Return the most KV tokens that these requests occupy at one time if each is as long as predicted.

    peak = max over i of  i * remaining_i + sum over j <= i of held_j,     remaining_1 >= remaining_2 >= ...
    held = tokens + block_size - 1: the last block of a request may hold a single token.
    A request gives its memory back when it finishes, so memory peaks just before one of them does: then all that
    outlast it have grown by as many tokens as it had left.
    """
    peak = held = 0
    longest_first = sorted(demands, key=lambda demand: demand.remaining, reverse=True)
    for number, demand in enumerate(longest_first, start=1):
        held += demand.tokens + block_size - 1
        peak = max(peak, number * demand.remaining + held)
    return peak


@dataclass(frozen=True, slots=True)
class PeakAdmission:
    """Admit a request if the predicted peak of all requests, itself included, fits into `kv_tokens`.

    `kv_tokens` is the size of the KV cache (blocks * block_size), `quantile` the level of the prediction that counts:
    0.9 is exceeded by one answer in ten. An engine without running requests admits anything: a request that does not
    fit alone never will. The prompt must fit now, which the host checks: it alone knows which blocks are cached.
    """

    kv_tokens: int
    block_size: int = 1
    quantile: float = 0.9

    def __post_init__(self) -> None:
        if not 0.0 < self.quantile < 1.0:
            raise InputError(f"the admission quantile is {self.quantile}", hint="give a number between 0 and 1")
        if self.kv_tokens < 1 or self.block_size < 1:
            raise InputError(
                f"{self.kv_tokens} KV tokens in blocks of {self.block_size}", hint="give whole numbers above 0"
            )

    def demand(self, job: Job) -> KvDemand:
        """Return a job's demand by its prediction (without one, the wide prior)."""
        return self.demand_at(job, job_levels(job, self.quantile), job.generated)

    @staticmethod
    def demand_at(job: Job, levels: Sequence[int], generated: int) -> KvDemand:
        """Return the demand of a job whose `job_levels` are known, once it has so many answer tokens."""
        return KvDemand(job.prompt_tokens + generated, predicted_remaining(levels, generated))

    def excess(self, candidate: KvDemand, running: Sequence[KvDemand]) -> int:
        """Return by how many tokens the peak exceeds the KV cache, 0 if it does not.

        Each decode step of the running requests lowers the peak by at most one token, so a host need not ask again
        for so many steps unless a request finishes or a prediction changes.
        """
        if not running:
            return 0
        return max(0, peak_kv_tokens([*running, candidate], self.block_size) - self.kv_tokens)

    def admits(self, candidate: KvDemand, running: Sequence[KvDemand]) -> bool:
        """Return whether the candidate may start beside the running requests."""
        return self.excess(candidate, running) == 0


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
    sigma_, length = np.maximum(sigma_, _LEAST_SIGMA), generated_ + _STEPS
    now = np.where(generated_ > 0, _survival((np.log(np.maximum(generated_, 1.0) - 0.5) - mu_) / sigma_), 1.0)
    goes_on = np.minimum(1.0, _survival((np.log(length - 0.5) - mu_) / sigma_) / np.maximum(now, _BEYOND))
    goes_on = np.where(now < _BEYOND, 0.5 ** (_STEPS / np.maximum(generated_, 1.0)), goes_on)
    goes_on[length > cap_] = 0.0
    tokens = held_ + _STEPS
    mean = (goes_on * tokens).sum(axis=0)
    variance = (goes_on * (1.0 - goes_on) * tokens**2).sum(axis=0)
    return float((mean + sigmas * np.sqrt(variance)).max())


def _survival(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return P(T > t) of the t distribution, from a table."""
    return np.interp(t, _T_GRID, _T_SURVIVAL, left=1.0, right=0.0)


@dataclass(frozen=True, slots=True)
class JointAdmission:
    """Admit a request if a quantile of the KV memory that all requests take together, itself included, fits.

    `quantile` is of their sum at any future step, by its mean and variance: answers that are longer than predicted are
    made up for by shorter ones, so this admits more requests than a high quantile of each, at the same risk.
    An engine without running requests admits anything.
    """

    kv_tokens: int
    block_size: int = 1
    quantile: float = 0.995

    def admits(self, candidate: Job, running: Sequence[Job], generated: Sequence[float]) -> bool:
        """Return whether the candidate may start beside the running requests, which have so many answer tokens."""
        if not running:
            return True
        jobs, tokens = [*running, candidate], [*generated, candidate.generated]
        held = [job.prompt_tokens + n + self.block_size / 2 for job, n in zip(jobs, tokens, strict=True)]
        mu, sigma, cap = zip(*((job.mu, job.sigma, job.cap) for job in jobs), strict=True)
        sigmas = NormalDist().inv_cdf(self.quantile)
        return joint_kv_tokens(mu, sigma, cap, held, tokens, sigmas) <= self.kv_tokens
