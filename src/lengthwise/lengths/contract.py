"""What every prediction about a length can be asked."""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from lengthwise.errors import InputError

DEFAULT_CAP: Final = 8192
"""Tokens; the cap where neither max_tokens nor the context left is known."""

OUTLIVED_BELOW: Final = 1e-9
"""A prediction whose survival is below this has been outlived: the answer ran longer than it allowed for."""


@runtime_checkable
class LengthDistribution(Protocol):
    """A prediction about how many tokens an answer has; immutable, in tokens, censored at `cap`.

    Censored means that the law is that of min(length, cap): the mass beyond the cap sits on it.
    """

    @property
    def cap(self) -> int:
        """The length at which the answer is cut off."""

    def mean(self) -> float:
        """Return the expected length."""

    def std(self) -> float:
        """Return the spread of the prediction about one answer: ignorance and sampling together."""

    def quantile(self, q: float) -> float:
        """Return the smallest length that is not outlived with probability at least q."""

    def survival(self, tokens: float) -> float:
        """Return P(length > tokens)."""

    def cvar(self, alpha: float) -> float:
        """Return the mean of the worst 1 - alpha: (1/(1-alpha)) * integral_alpha^1 quantile(u) du."""

    def remaining(self, generated: int) -> LengthDistribution:
        """Return what is still to come, given that `generated` tokens came and it has not stopped."""

    def censored_at(self, max_tokens: int | None) -> LengthDistribution:
        """Return the prediction for a request that allows at most `max_tokens`; None changes nothing."""


def check_probability(value: float, name: str) -> None:
    """Refuse a probability outside [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise InputError(f"{name} is {value}", hint="give a probability between 0 and 1")


def check_cap(cap: int, least: int = 1) -> None:
    """Refuse a cap that is not a whole number of at least `least` tokens."""
    if not (cap >= least and cap == int(cap)):
        raise InputError(f"the cap is {cap}", hint=f"give a whole number of tokens, at least {least}")
