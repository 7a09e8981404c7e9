"""Admission by predicted peak KV memory: may a waiting request start without the running ones running out of memory?

The future-peak rule of LightLLM, the same in every host. It knows no clock and no engine:

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
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from lengthwise.errors import InputError
from lengthwise.lengths import TIE_NU
from lengthwise.policies.job import Job

ADMISSION_MARGIN: Final = 0.12
"""Share of KV memory that the gateway leaves free, for answers that are longer than predicted: their sum exceeds its
prediction by far less than each of them, so a margin with the median costs less throughput than a high quantile."""
LENGTH_LEVELS: Final = 5
"""How many lengths `length_levels` returns for a request: four quantiles and the cap."""
_MAX_TOKENS: Final = 1 << 30
_MAX_LOG: Final = math.log(_MAX_TOKENS)


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
