"""A request as a decision sees it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from lengthwise.lengths import (
    DEFAULT_CAP,
    TIE_NU,
    BaseDistribution,
    LengthDistribution,
    LogT,
    Point,
    student,
    wide_prior,
)
from lengthwise.policies.columns import SHORTEST
from lengthwise.policies.contract import Rounds

_TAIL: Final = 0.9  # the level of TIE's CVaR
_SIDE: Final = 0.16  # quantiles at this and its complement tell the spread of a prediction that is no log-t
_T_AT_SIDE: Final = student.isf(_SIDE, TIE_NU)


class _Held:
    """A prediction that a job goes by, cut at the most that the answer may have."""

    __slots__ = ("_both", "cut")

    def __init__(self, cut: LengthDistribution, both: tuple[float, float] | None = None) -> None:
        self.cut = cut
        self._both = both

    @property
    def both(self) -> tuple[float, float]:
        """Mean and CVaR."""
        if self._both is None:
            cut = self.cut
            self._both = (
                cut.mean_and_cvar(_TAIL) if isinstance(cut, BaseDistribution) else (cut.mean(), cut.cvar(_TAIL))
            )
        return self._both


@lru_cache(maxsize=1024)
def _without_prediction(cap: int) -> _Held:
    return _Held(wide_prior(max(1, cap)))


@dataclass(slots=True, eq=False)
class Job:
    """All that a decision may look at. Times in seconds on the host's own clock, lengths in tokens.

    `priority`: lower runs first, as in vLLM. `cached_tokens`: of the prompt, found in the engine's prefix cache.
    `preemptions`: how often it had to yield, to whatever.
    `in_round` is the job's round in `turns`, `charged` what it pays there, `credited` what it brings; set by the queue
    if a policy serves in turns. Taken from the prediction when it comes (without one, from the wide prior), all of the
    length cut at `cap`, the smaller of the prediction's and max_tokens: `mu` and `sigma`, those of the log-t that the
    prediction is (sigma 0: a certain length) or, for another family, that has its median and its quantiles at 16 and 84 %.
    Its mean and its CVaR are reckoned when first asked for: they are integrals, and many policies go without.
    """

    id: str
    arrival: float
    prompt_tokens: int = 0
    prediction: LengthDistribution | None = None
    max_tokens: int | None = None
    priority: int = 0
    deadline: float | None = None
    started: float | None = None
    generated: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    blocks: Sequence[int] = ()
    llm: str | None = None
    tenant: str | None = None
    session: str | None = None
    mu: float = field(init=False)
    sigma: float = field(init=False)
    cap: float = field(init=False)
    in_round: int = field(init=False, default=0)
    turns: Rounds | None = field(init=False, default=None)
    charged: int = field(init=False, default=0)
    credited: float = field(init=False, default=0.0)
    _held: _Held = field(init=False, repr=False)
    _first: _Held = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.update_prediction(self.prediction)
        self._first = self._held

    def update_prediction(self, prediction: LengthDistribution | None) -> None:
        """Take a new prediction about the whole answer; None falls back to the wide prior, never to short."""
        self.prediction = prediction
        if prediction is None:
            self._held = _without_prediction(DEFAULT_CAP if self.max_tokens is None else self.max_tokens)
        else:
            self._held = _Held(prediction.censored_at(self.max_tokens))
        self.mu, self.sigma = _log_t(self._held.cut)
        self.cap = self._held.cut.cap
        if not self.generated:
            self._first = self._held

    def told(
        self, *, mu: float, sigma: float, cap: float, expected: float, tail: float, initial_expected: float
    ) -> None:
        """Go by numbers of a prediction that were reckoned elsewhere, those of many jobs at once."""
        self.mu, self.sigma, self.cap = mu, sigma, cap
        self._first = _Held(self._held.cut, (initial_expected, math.nan))
        self._held = _Held(self._held.cut, (expected, tail))

    @property
    def expected(self) -> float:
        """Its mean."""
        return self._held.both[0]

    @property
    def tail(self) -> float:
        """Its CVaR at 0.9."""
        return self._held.both[1]

    @property
    def initial_expected(self) -> float:
        """The mean of the last prediction before the first token."""
        return self._first.both[0]

    @property
    def median(self) -> float:
        """The prediction as a single number."""
        return min(math.exp(self.mu), self.cap)

    @property
    def expected_remaining(self) -> float:
        """What the first prediction leaves to come, at least one token."""
        return max(1.0, self.expected - self.generated)


def _log_t(prediction: LengthDistribution) -> tuple[float, float]:
    """Return mu and sigma of the log-t that the prediction is, or that has its quantiles."""
    if isinstance(prediction, LogT) and prediction.nu == TIE_NU:
        return prediction.mu, prediction.sigma
    if isinstance(prediction, Point):
        return math.log(max(prediction.mean(), SHORTEST)), 0.0
    low, median, high = (math.log(max(prediction.quantile(q), SHORTEST)) for q in (_SIDE, 0.5, 1.0 - _SIDE))
    return median, (high - low) / (2.0 * _T_AT_SIDE)
