"""Why the oracle's lengths change so little in E2: how often a length can decide, and how often it does.

E2 looks at loads only where several engines hold the longest known prefix, or where a prefix is new. Elsewhere the one
holder gets the request whatever anybody's length is, until balancing moves the prefix. And a load counts requests that
are live: of two lengths the short ones are seldom among them, so that the number of live requests already says how long
they are, and balancing comes to the same moves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthwise.simulator import Outcome, simulate
from lengthwise.simulator.tasks import Setting, code_version, content_key


@dataclass(frozen=True)
class Why:
    """E2 and E2 with true lengths on the same requests of one seed; shares are of all requests."""

    decided_by_load: float
    """Choices of E2 among several engines; the rest had one engine to go to."""
    moved: float
    """Requests that true lengths send elsewhere."""
    short_live: float
    """Share of one-token answers among those live: of all time that requests spend here, what theirs is."""
    busiest: float
    """Requests of the busiest engine over the mean: 1 is even."""
    moves: float
    """How often a workload went on at another engine, with E2."""
    moves_told: float
    """The same with true lengths."""


@dataclass(frozen=True, slots=True)
class WhyTask:
    """Both routers on a workload at a rate, without their own time, so that only choices differ."""

    where: Setting
    rate: float

    @property
    def key(self) -> str:
        """By content."""
        return content_key(kind="why e2", code=code_version(), where=self.where.key, rate=self.rate)

    def run(self) -> dict[str, Any]:
        """As `Why` has it."""
        workload = self.where.workload
        workload = workload.replace(arrival_s=workload.arrival_s / self.rate)
        plain, told = (
            simulate(workload, self.where.fleet, "fcfs", router=router, explain=True) for router in ("e2", "e2_length")
        )
        tenants = np.array(workload.table["tenant"].to_pylist())
        stay = plain.finish - plain.arrival
        counts = np.bincount(plain.engine, minlength=len(self.where.fleet))
        return asdict(
            Why(
                decided_by_load=_decided_by_load(plain),
                moved=float((plain.engine != told.engine).mean()),
                short_live=float(stay[workload.output_tokens == 1].sum() / stay.sum()),
                busiest=float(counts.max() / counts.mean()),
                moves=_moves(plain, tenants),
                moves_told=_moves(told, tenants),
            )
        )


def _moves(outcome: Outcome, tenants: NDArray[np.str_]) -> float:
    engines = [outcome.engine[tenants == tenant] for tenant in np.unique(tenants)]
    return float(sum((each[1:] != each[:-1]).sum() for each in engines))


def _decided_by_load(outcome: Outcome) -> float:
    weighed = outcome.reasons.weighed if outcome.reasons is not None else ()
    told = [terms for each in weighed if each is not None for terms in each.values()]
    return float(np.mean([terms.get("cost", 0.0) > 0.0 or terms.get("exploit") == 0.0 for terms in told]))
