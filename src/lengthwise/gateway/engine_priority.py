"""The policy's order as the one number that stock vLLM and SGLang order waiting requests by."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import Final

RECENT: Final = 256
"""Requests among which a request is ranked."""
SPREAD_S: Final = 10.0
"""Seconds between the first and the last rank: a request is overtaken by none that is sent later than that after it."""
_PER_S: Final = 10  # steps of the number
_CLASS: Final = 1 << 32  # of a request's own priority, which comes before the policy's order


class EnginePriority:
    """Maps a policy's order to a number that does not change while a request waits in an engine.

    number = 10 * (seconds since the first + 10 s * rank)       lower first
    rank   = share of the last 256 requests sent that are before it in the policy's order, 0 to 1

    The policy orders by (round, key) when a request is sent. A rank needs no unit, so any policy's key will do; under
    an order of arrival every request is the last, and the numbers rise with time. Because they rise, no request waits
    for ever: one of the last rank is before all that are sent 10 s later. A request's own `priority` comes first.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque()
        self._sorted: list[tuple[int, float]] = []
        self._first_s: float | None = None

    def number(self, order: tuple[int, float], priority: int, now: float) -> int:
        """Return the number of a request that is sent now, lower first."""
        if self._first_s is None:
            self._first_s = now
        rank = bisect_right(self._sorted, order) / len(self._sorted) if self._sorted else 1.0
        self._remember(order)
        return priority * _CLASS + round(_PER_S * (now - self._first_s + SPREAD_S * rank))

    def _remember(self, order: tuple[int, float]) -> None:
        self._recent.append(order)
        insort(self._sorted, order)
        if len(self._recent) > RECENT:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
