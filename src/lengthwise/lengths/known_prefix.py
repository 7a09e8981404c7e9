"""A prediction about a whole answer, of which some tokens have come and only the rest is uncertain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths.contract import LengthDistribution
from lengthwise.lengths.distributions import BaseDistribution, Point


@dataclass(frozen=True)
class After(BaseDistribution):
    """`generated` tokens for certain, and then `rest`: what somebody who looked at that moment said was to come.

    The way back from a prediction about what remains to one about the whole, which is what a job holds. From `generated`
    on, `remaining` conditions `rest`; further back it knows that so much came.
    """

    rest: BaseDistribution
    generated: int

    def __post_init__(self) -> None:
        if self.generated < 0:
            raise InputError(f"generated is {self.generated}", hint="give the tokens that came so far, 0 or more")

    @property
    def cap(self) -> int:
        """What came, and the most that may follow."""
        return self.generated + int(self.rest.cap)

    def survival(self, tokens: float) -> float:
        """P(length > tokens): 1 below `generated`, then that of the rest."""
        return 1.0 if tokens < self.generated else self.rest.survival(self._into_rest(tokens))

    def _into_rest(self, tokens: float) -> float:
        """The largest rest whose sum with `generated` rounds to at most `tokens`.

        A plain difference may round to below an atom of the rest that lies exactly at `tokens`: 16.4 - 15 < 1.4.
        """
        rest = tokens - self.generated
        return rest + 0.5 * math.ulp(tokens) if rest > 0.0 else rest

    def censored_at(self, max_tokens: int | None) -> LengthDistribution:
        """The rest cut at what is left of the limit; a limit within what came is the length."""
        if max_tokens is None or max_tokens >= self.cap:
            return self
        if max_tokens <= self.generated:
            return Point(max_tokens, max_tokens)
        rest = self.rest.censored_at(max_tokens - self.generated)
        return After(rest, self.generated) if isinstance(rest, BaseDistribution) else rest

    def upper_quantile(self, p: float) -> float:
        """What came, and the rest that is outlived with probability p."""
        return self.generated + self.rest.upper_quantile(p)

    def nodes_above(self, tokens: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The rest's nodes, further out; and one on what came, for a rest that may be nothing."""
        lengths, weights = self.rest.nodes_above(max(0.0, tokens - self.generated))
        lengths = lengths + self.generated
        if tokens >= self.generated:
            return lengths, weights
        nothing = max(0.0, 1.0 - float(weights.sum()))
        return np.append(lengths, float(self.generated)), np.append(weights, nothing)
