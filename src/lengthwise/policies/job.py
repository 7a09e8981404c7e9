"""A request as a decision sees it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from lengthwise.lengths import DEFAULT_CAP, Belief, wide_prior

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lengthwise.lengths import LengthDistribution


_TAIL: Final = 0.9  # the level of TIE's CVaR


@lru_cache(maxsize=1024)
def _without_belief(cap: int) -> tuple[float, float]:
    return wide_prior(max(1, cap)).mean_and_cvar(_TAIL)


@dataclass(slots=True, eq=False)
class Job:
    """All that a decision may look at. Times in seconds on the host's own clock, lengths in tokens.

    `expected` and `tail` (the CVaR at 0.9) are taken from the belief once, when it comes; without a belief
    they are the wide prior's. `priority`: lower runs first, as in vLLM.
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
    blocks: Sequence[int] = ()
    llm: str | None = None
    tenant: str | None = None
    session: str | None = None
    expected: float = 0.0
    tail: float = 0.0

    def __post_init__(self) -> None:
        self.believe(self.belief)

    def believe(self, belief: LengthDistribution | None) -> None:
        """Take a new belief about the whole answer; None falls back to the wide prior, never to short."""
        self.belief = belief
        if belief is None:
            self.expected, self.tail = _without_belief(DEFAULT_CAP if self.max_tokens is None else self.max_tokens)
            return
        held = belief.censored_at(self.max_tokens)
        both = held.mean_and_cvar(_TAIL) if isinstance(held, Belief) else (held.mean(), held.cvar(_TAIL))
        self.expected, self.tail = both

    @property
    def expected_remaining(self) -> float:
        """What the first belief leaves to come, at least one token."""
        return max(1.0, self.expected - self.generated)
