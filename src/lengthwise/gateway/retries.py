"""Retries of requests that no engine has begun to answer: which failures, how many, and after how long."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

REFUSED_STATUSES: Final = frozenset({429, 503})
"""Statuses by which an engine refuses a request without executing it: another one, or the same one later, may."""
FAILED_STATUSES: Final = frozenset({500, 502})
"""Statuses of an engine that failed, and may have executed the request: it is sent once more, to another engine."""

_FLOOR_PER_S: Final = 3.0  # retries that the budget grows by, without any requests
_MIN_FIRST: Final = 10  # retries at the start
_MIN_SAVED: Final = 100  # retries that are saved at most
_FIRST_WAIT_S: Final = 0.025  # of the exponential backoff with full jitter, as in Envoy
_MAX_WAIT_S: Final = 10.0  # for an engine that asks for more, its answer is passed on


class Retries:
    """Limits retries, for each request and of all that one engine fails or refuses.

    The budget of an engine begins with `first` (at least 10), so that all that run there may move when it fails, and
    grows by `share` for each request that is sent to it and by 3 for each second, up to 100 or `first`; a retry costs
    1. When every engine fails, retries thus add at most that share to the load, and engines that fail use up no
    retries of others.
    """

    def __init__(
        self,
        *,
        most: int,
        share: float,
        first: int = _MIN_FIRST,
        jitter: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._share = share
        self._jitter = jitter or random.Random()  # noqa: S311
        self._clock = clock
        self._saved: float = max(first, _MIN_FIRST)
        self._max_saved = max(first, _MIN_SAVED)
        self._saved_at = clock()

    def on_request(self) -> None:
        """Let the budget grow for a request that is sent to the engine."""
        self._saved = min(self._max_saved, self._saved + self._share)

    def wait_s(self, retries: int, retry_after_s: float | None = None) -> float | None:
        """Take a retry from the budget and return the seconds to wait before it; None if there is to be none.

        `retries` have been made for this request; `retry_after_s` is the wait that the engine asks for, if the same
        engine is to be asked again.
        """
        if retries >= self._most or (retry_after_s or 0.0) > _MAX_WAIT_S:
            return None
        now = self._clock()
        self._saved = min(self._max_saved, self._saved + _FLOOR_PER_S * (now - self._saved_at))
        self._saved_at = now
        if self._saved < 1.0:
            return None
        self._saved -= 1.0
        return (retry_after_s or 0.0) + self._jitter.uniform(0.0, _FIRST_WAIT_S * 2.0**retries)


def retry_after_s(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header; None without one, or for a date."""
    try:
        return max(0.0, float(header)) if header is not None else None
    except ValueError:
        return None
