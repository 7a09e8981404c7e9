"""How many engines of a fleet compute prompts and how many decode, by the predicted work of both.

Like a router it is pure: a host counts the work, asks for the number, and moves engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_TANGENT_FROM: Final = 0.95  # utilisation


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """Predicted work per second, in engines that it keeps busy, and the seconds of one request on idle engines."""

    prefill: float
    decode: float
    prefill_s: float
    decode_s: float

    def latency_s(self, prefill: int, engines: int) -> float:
        """Return the predicted mean latency with `prefill` of `engines` for prompts."""
        return self.prefill_s * slowdown(self.prefill / prefill) + self.decode_s * slowdown(
            self.decode / (engines - prefill)
        )


def slowdown(utilisation: float) -> float:
    """Return 1 / (1 - u), that of processor sharing; from u = 0.95 on its tangent, so that overload has an order."""
    at = min(utilisation, _TANGENT_FROM)
    return 1.0 / (1.0 - at) + (utilisation - at) / (1.0 - at) ** 2


def prefill_engines(demand: PoolDemand, engines: int, current: int, margin: float = 0.1) -> int:
    """Return how many of at least two engines compute prompts; each pool has one.

        latency(p) = T_p slowdown(P / p) + T_d slowdown(D / (engines - p))

    P, D: work per second of `demand`, in engines; T_p, T_d: seconds of one request. The p of the least latency, the
    smallest of several, if that of the current p is more than `margin` above it (a share); else the current one.
    """
    best = min(range(1, engines), key=lambda count: demand.latency_s(count, engines))
    worth = demand.latency_s(current, engines) > (1.0 + margin) * demand.latency_s(best, engines)
    return best if worth else current
