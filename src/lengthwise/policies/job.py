"""A request as a decision sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from lengthwise.lengths import DEFAULT_CAP, TIE_NU, Belief, LogT, Point, student, wide_prior
from lengthwise.policies.columns import SHORTEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lengthwise.lengths import LengthDistribution
    from lengthwise.policies.contract import Rounds


_TAIL: Final = 0.9  # the level of TIE's CVaR
_SIDE: Final = 0.16  # quantiles at this and its complement tell the spread of a belief that is no log-t
_T_AT_SIDE: Final = student.isf(_SIDE, TIE_NU)


class _Held:
    """A belief that a job goes by, cut at the most that the answer may have."""

    __slots__ = ("_both", "cut")

    def __init__(self, cut: LengthDistribution, both: tuple[float, float] | None = None) -> None:
        self.cut = cut
        self._both = both

    @property
    def both(self) -> tuple[float, float]:
        """Mean and CVaR."""
        if self._both is None:
            cut = self.cut
            self._both = cut.mean_and_cvar(_TAIL) if isinstance(cut, Belief) else (cut.mean(), cut.cvar(_TAIL))
        return self._both


@lru_cache(maxsize=1024)
def _without_belief(cap: int) -> _Held:
    return _Held(wide_prior(max(1, cap)))


@dataclass(slots=True, eq=False)
class Job:
    """All that a decision may look at. Times in seconds on the host's own clock, lengths in tokens.

    `priority`: lower runs first, as in vLLM. `cached_tokens`: of the prompt, found in the engine's prefix cache.
    `preemptions`: how often it had to yield, to whatever.
    `in_round` is the job's round in `turns`, `charged` what it pays there, `credited` what it brings; set by the queue
    if a policy serves in turns. Taken from the belief when it comes (without one, from the wide prior), all of the
    length cut at `cap`, the smaller of the belief's and max_tokens: `mu` and `sigma`, those of the log-t that the
    belief is (sigma 0: a certain length) or, for another family, that has its median and its quantiles at 16 and 84 %.
    Its mean and its CVaR are reckoned when first asked for: they are integrals, and many policies go without.
    """

    id: str
    arrival: float
    prompt_tokens: int = 0
    belief: LengthDistribution | None = None
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
        self.believe(self.belief)
        self._first = self._held

    def believe(self, belief: LengthDistribution | None) -> None:
        """Take a new belief about the whole answer; None falls back to the wide prior, never to short."""
        self.belief = belief
        if belief is None:
            self._held = _without_belief(DEFAULT_CAP if self.max_tokens is None else self.max_tokens)
        else:
            self._held = _Held(belief.censored_at(self.max_tokens))
        self.mu, self.sigma = _log_t(self._held.cut)
        self.cap = self._held.cut.cap
        if not self.generated:
            self._first = self._held

    def told(self, *, mu: float, sigma: float, cap: float, expected: float, tail: float, foretold: float) -> None:
        """Go by numbers of a belief that were reckoned elsewhere, those of many jobs at once."""
        self.mu, self.sigma, self.cap = mu, sigma, cap
        self._first = _Held(self._held.cut, (foretold, math.nan))
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
    def foretold(self) -> float:
        """The mean of the last belief before the first token."""
        return self._first.both[0]

    @property
    def median(self) -> float:
        """The belief as a single number."""
        return min(math.exp(self.mu), self.cap)

    @property
    def expected_remaining(self) -> float:
        """What the first belief leaves to come, at least one token."""
        return max(1.0, self.expected - self.generated)


def _log_t(belief: LengthDistribution) -> tuple[float, float]:
    """Return mu and sigma of the log-t that the belief is, or that has its quantiles."""
    if isinstance(belief, LogT) and belief.nu == TIE_NU:
        return belief.mu, belief.sigma
    if isinstance(belief, Point):
        return math.log(max(belief.mean(), SHORTEST)), 0.0
    low, median, high = (math.log(max(belief.quantile(q), SHORTEST)) for q in (_SIDE, 0.5, 1.0 - _SIDE))
    return median, (high - low) / (2.0 * _T_AT_SIDE)
