"""A request as a scheduling decision sees it: one `Job`, or many as `JobColumns` under the same names."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthwise.lengths import (
    DEFAULT_CAP,
    TIE_NU,
    BaseDistribution,
    LengthDistribution,
    LogT,
    Point,
    log_t,
    wide_prior,
)

MIN_TOKENS: Final = 1e-3
"""Tokens; lengths below this are raised to it before their logarithm is taken."""
MIN_LIMIT_S: Final = 1e-3
MAX_LIMIT_S: Final = 86_400.0
"""Latency limits of a job lie in this range in every host, a millisecond to a day: hosts clamp what clients declare."""
LIMIT_FIELDS: Final = ("slo_s", "ttft_s", "per_token_s")
"""The names of limits in requests and configurations: seconds to the last token, to the first, of E2E per token."""
CVAR_ALPHA: Final = 0.9
"""Of `Job.tail`: the share of lengths below the tail, as in TIE."""
_LOWER: Final = 0.16  # quantiles at this and its complement give the spread of a prediction that is no log-t
_T_AT_LOWER: Final = log_t.isf(_LOWER, TIE_NU)


class _Moments:
    """A censored prediction with its mean and CVaR, which are computed when first read."""

    __slots__ = ("known", "prediction")

    def __init__(self, prediction: LengthDistribution, known: tuple[float, float] | None = None) -> None:
        self.prediction = prediction
        self.known = known

    @property
    def mean_and_cvar(self) -> tuple[float, float]:
        if self.known is None:
            law = self.prediction
            self.known = (
                law.mean_and_cvar(CVAR_ALPHA)
                if isinstance(law, BaseDistribution)
                else (law.mean(), law.cvar(CVAR_ALPHA))
            )
        return self.known


@lru_cache(maxsize=1024)
def _without_prediction(cap: int) -> _Moments:
    return _Moments(wide_prior(max(1, cap)))


@dataclass(slots=True, eq=False, repr=False)
class Job:
    """The scheduling view of a request. Times in seconds on the host's clock, lengths in tokens.

    `priority`: lower runs first, as in vLLM. `cached_tokens`: tokens of the prompt in the engine's prefix cache.
    `preemptions`: how often it was preempted, for any reason. `deadline`: when the answer should be complete.
    `ttft_limit_s`, `per_token_limit_s`: seconds to the first token, and of E2E per output token, that it may take;
    infinite: no limit of its own. `answers`: how many are generated, each of the predicted length.

    From the prediction (without one, the wide prior), censored at `cap`, the smaller of the prediction's cap and
    max_tokens: `mu` and `sigma` of the log-t that the prediction is (sigma 0: a certain length) or, for another family,
    of the log-t with its median and its quantiles at 16 and 84 %; `expected` (mean) and `tail` (CVaR at 0.9), which are
    integrals and computed when first read.

    Set by the queue under a policy with rounds: `rounds`, the state that gave the job its `round_number`; `charged`,
    the work charged there; under `lengthwise` also `counted`, its work, `credited`, the credit that it added, and
    `price`, the credit that it used. `used_tokens`: set by a host for a finished request with several answers, the
    tokens of its prompts and answers; it has no length of its own, and `generated` stays 0.
    """

    id: str
    arrival: float
    prompt_tokens: int = 0
    prediction: LengthDistribution | None = None
    max_tokens: int | None = None
    priority: int = 0
    deadline: float = math.inf
    ttft_limit_s: float = math.inf
    per_token_limit_s: float = math.inf
    started: float | None = None
    generated: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    blocks: Sequence[int] | NDArray[np.uint64] = ()
    llm: str | None = None
    tenant: str | None = None
    session: str | None = None
    template: str | None = None
    request_class: str | None = None
    answers: int = 1
    mu: float = field(init=False)
    sigma: float = field(init=False)
    cap: float = field(init=False)
    round_number: int = field(init=False, default=0)
    rounds: object | None = field(init=False, default=None)
    charged: int = field(init=False, default=0)
    used_tokens: int | None = field(init=False, default=None)
    counted: float = field(init=False, default=0.0)
    credited: float = field(init=False, default=0.0)
    price: float = field(init=False, default=0.0)
    _current: _Moments = field(init=False)
    _initial: _Moments = field(init=False)

    def __post_init__(self) -> None:
        self.update_prediction(self.prediction)
        self._initial = self._current

    def __repr__(self) -> str:
        known = "none" if self.prediction is None else f"{self.median:.0f} tokens"
        return (
            f"Job({self.id!r}, arrival={self.arrival:g}, prompt_tokens={self.prompt_tokens}, "
            f"generated={self.generated}, prediction={known})"
        )

    def update_prediction(self, prediction: LengthDistribution | None) -> None:
        """Set a new prediction of the whole answer; None falls back to the wide prior."""
        self.prediction = prediction
        if prediction is None:
            self._current = _without_prediction(DEFAULT_CAP if self.max_tokens is None else self.max_tokens)
        else:
            self._current = _Moments(prediction.censored_at(self.max_tokens))
        self.mu, self.sigma = _log_t_of(self._current.prediction)
        self.cap = self._current.prediction.cap
        if not self.generated:
            self._initial = self._current

    def use_limits(
        self, *, slo_s: float | None = None, ttft_s: float | None = None, per_token_s: float | None = None
    ) -> None:
        """Set the limits that the job does not have yet; None: no limit."""
        if slo_s is not None and math.isinf(self.deadline):
            self.deadline = self.arrival + slo_s
        if ttft_s is not None and math.isinf(self.ttft_limit_s):
            self.ttft_limit_s = ttft_s
        if per_token_s is not None and math.isinf(self.per_token_limit_s):
            self.per_token_limit_s = per_token_s

    @property
    def has_limits(self) -> bool:
        """Whether it has a latency limit."""
        return min(self.deadline, self.ttft_limit_s, self.per_token_limit_s) < math.inf

    @property
    def limits(self) -> dict[str, float]:
        """The limits that it has, in seconds, by the names of `RequestRow` and of a workload's columns."""
        found = {
            "ttft_limit_s": self.ttft_limit_s,
            "per_token_limit_s": self.per_token_limit_s,
            "e2e_limit_s": round(self.deadline - self.arrival, 6),  # not the noise of two clock times
        }
        return {name: limit for name, limit in found.items() if math.isfinite(limit)}

    def limits_left(self, now: float) -> dict[str, float]:
        """Return what is left of the job's limits now, by `LIMIT_FIELDS`, for an engine that it is sent to.

        Seconds; of the limit per token, the share of the time waited is taken by the predicted length.
        """
        waited = now - self.arrival
        left = {
            "slo_s": self.deadline - now,
            "ttft_s": self.ttft_limit_s - waited,
            "per_token_s": self.per_token_limit_s - waited / max(self.median, 1.0),
        }
        return {name: max(MIN_LIMIT_S, value) for name, value in left.items() if math.isfinite(value)}

    def set_prediction(
        self, *, mu: float, sigma: float, cap: float, expected: float, tail: float, initial_expected: float
    ) -> None:
        """Set the numbers of a prediction that a host has computed for many jobs at once."""
        self.mu, self.sigma, self.cap = mu, sigma, cap
        self._initial = _Moments(self._current.prediction, (initial_expected, math.nan))
        self._current = _Moments(self._current.prediction, (expected, tail))

    def compute_moments(self, of_log_t: Callable[[float, float, float], tuple[float, float]]) -> tuple[float, float]:
        """Return `expected` and `tail`; if not known yet, those of a log-t by a function of mu, sigma and cap."""
        moments = self._current
        if moments.known is None:
            law = moments.prediction
            if isinstance(law, LogT) and law.nu == TIE_NU and law.sigma <= log_t.STEEPEST_SIGMA:
                moments.known = of_log_t(float(law.mu), float(law.sigma), float(law.cap))
        return moments.known or moments.mean_and_cvar

    @property
    def expected(self) -> float:
        """The mean of the prediction."""
        return self._current.mean_and_cvar[0]

    @property
    def tail(self) -> float:
        """The CVaR of the prediction at 0.9."""
        return self._current.mean_and_cvar[1]

    @property
    def initial_expected(self) -> float:
        """The mean of the last prediction before the first token."""
        return self._initial.mean_and_cvar[0]

    @property
    def median(self) -> float:
        """The prediction as a single number."""
        return min(math.exp(self.mu), self.cap)


def declared_limit(value: Any) -> float:
    """Return a limit that a client declares, in seconds, clamped; ValueError if it is not a number above 0."""
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not seconds > 0.0:
        raise ValueError(f"{str(value)[:40]!r} is not a number of seconds above 0")
    return min(max(seconds, MIN_LIMIT_S), MAX_LIMIT_S)


def _log_t_of(prediction: LengthDistribution) -> tuple[float, float]:
    """Return mu and sigma of the log-t that the prediction is, or that shares its quantiles."""
    if isinstance(prediction, LogT) and prediction.nu == TIE_NU:
        return prediction.mu, prediction.sigma
    if isinstance(prediction, Point):
        return math.log(max(prediction.mean(), MIN_TOKENS)), 0.0
    low, median, high = (math.log(max(prediction.quantile(q), MIN_TOKENS)) for q in (_LOWER, 0.5, 1.0 - _LOWER))
    return median, (high - low) / (2.0 * _T_AT_LOWER)


@dataclass(frozen=True, slots=True)
class JobColumns:
    """The numbers of many jobs, float64, all of one length, so that one formula serves a `Job` and many."""

    arrival: NDArray[np.float64]
    expected: NDArray[np.float64]
    tail: NDArray[np.float64]
    mu: NDArray[np.float64]
    sigma: NDArray[np.float64]
    cap: NDArray[np.float64]
    initial_expected: NDArray[np.float64]
    prompt_tokens: NDArray[np.float64]
    generated: NDArray[np.float64]
    cached_tokens: NDArray[np.float64]
    priority: NDArray[np.float64]
    round_number: NDArray[np.float64]
    preemptions: NDArray[np.float64]
    deadline: NDArray[np.float64]
    ttft_limit_s: NDArray[np.float64]
    per_token_limit_s: NDArray[np.float64]

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> JobColumns:
        """Return the columns of jobs."""
        numbers = np.fromiter(chain.from_iterable(map(_NUMBERS, jobs)), np.float64)
        return cls(*numbers.reshape(-1, len(COLUMN_NAMES)).T.copy())

    @classmethod
    def filled(cls, *, arrival: ArrayLike, expected: ArrayLike, **others: ArrayLike) -> JobColumns:
        """Return columns from arrays or single numbers; what is left out is that of a certain length."""
        expected = np.asarray(expected, np.float64)
        certain = {
            "tail": expected,
            "initial_expected": expected,
            "mu": np.log(np.maximum(expected, MIN_TOKENS)),
            "cap": DEFAULT_CAP,
            **dict.fromkeys(("deadline", "ttft_limit_s", "per_token_limit_s"), math.inf),
        }
        columns = {**dict.fromkeys(COLUMN_NAMES, 0.0), **certain, "arrival": arrival, "expected": expected, **others}
        length = np.broadcast_shapes(*map(np.shape, columns.values()))
        return cls(**{name: np.broadcast_to(np.asarray(each, np.float64), length) for name, each in columns.items()})

    def __len__(self) -> int:
        return len(self.arrival)

    def __repr__(self) -> str:
        return f"JobColumns({len(self)} jobs)"

    def take(self, rows: NDArray[np.integer]) -> JobColumns:
        """Return the columns of the jobs in these rows; columns that are empty stay so."""
        columns = (getattr(self, name) for name in COLUMN_NAMES)
        return JobColumns(*(column[rows] if len(column) else column for column in columns))


COLUMN_NAMES: Final = tuple(field.name for field in fields(JobColumns))
_NUMBERS = attrgetter(*COLUMN_NAMES)


class WaitingColumns:
    """The numbers of waiting jobs, kept up to date as jobs come and go, so that a decision builds no columns.

    Only the named columns are kept; the others are empty, so that an expectation that is not read is not computed.
    """

    def __init__(self, names: Collection[str] = COLUMN_NAMES) -> None:
        self._names = ("priority", *(name for name in names if name != "priority"))
        self._read = attrgetter(*self._names, "id")  # the id: a tuple for a single name too
        self._numbers = np.empty((len(self._names), 64))
        self._ids: list[str] = []
        self._members: set[str] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def put(self, job: Job) -> None:
        """Add a job, or update its numbers if it is here."""
        if job.id in self._members:
            place = self._ids.index(job.id)
        else:
            place = len(self._ids)
            self._ids.append(job.id)
            self._members.add(job.id)
            if place == self._numbers.shape[1]:
                self._numbers = np.concatenate([self._numbers, np.empty_like(self._numbers)], axis=1)
        self._numbers[:, place] = self._read(job)[:-1]

    def discard(self, job_id: str) -> None:
        """Remove a job, if it is here."""
        if job_id in self._members:
            self._members.remove(job_id)
            place, last = self._ids.index(job_id), len(self._ids)
            self._numbers[:, place : last - 1] = self._numbers[:, place + 1 : last]
            del self._ids[place]

    def most_urgent(self) -> tuple[list[str], JobColumns]:
        """Return the jobs of the lowest priority number, in the order in which they joined, and their ids."""
        numbers, ids = self._numbers[:, : len(self._ids)], self._ids
        lowest = numbers[0].min()
        if numbers[0].max() > lowest:
            urgent = np.flatnonzero(numbers[0] == lowest)
            numbers, ids = numbers[:, urgent], [ids[place] for place in urgent]
        return ids, JobColumns(**{**_EMPTY_COLUMNS, **dict(zip(self._names, numbers, strict=True))})


_EMPTY_COLUMNS: Final = dict.fromkeys(COLUMN_NAMES, np.empty(0))
