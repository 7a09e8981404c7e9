"""One simulation of the comparison: what is computed in a worker, and what its result depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from experiments.disaggregation.traffic import draw
from lengthwise.simulator import (
    Capacity,
    Fleet,
    KvLink,
    Outcome,
    Pools,
    RequestPredictions,
    measure_capacity,
    predict_workload,
    simulate,
    simulate_disaggregated,
)
from lengthwise.simulator.tasks import code_version, content_key, workload_digest

__all__ = ["POLICY", "ROUTER", "Served"]

POLICY: Final = "fcfs"
ROUTER: Final = "lengthwise"


@dataclass(frozen=True, slots=True)
class Served:
    """A case at a load, on a fleet of which so many engines compute prompts only; 0: all do both."""

    case: str
    requests: int
    seed: int
    fleet: str
    load: float
    prefill: int = 0
    gb_per_s: float = KvLink().gb_per_s
    predictor: str = "oracle"
    refresh: str | None = None

    @property
    def key(self) -> str:
        """By content."""
        return content_key(
            kind="disaggregation",
            code=code_version(),
            engines=[repr(engine) for engine in Fleet.parse(self.fleet).engines],
            workload=_digest(self.case, self.requests, self.seed),
            what=asdict(self),
            under=(POLICY, ROUTER, KvLink().latency_s),
        )

    def run(self) -> dict[str, Any]:
        """The run in a few numbers."""
        fleet, capacity = Fleet.parse(self.fleet), _capacity(self.case, self.requests, self.seed, self.fleet)
        drawn = draw(self.case, self.requests, self.seed)
        workload = drawn.replace(arrival_s=drawn.arrival_s / (self.load * capacity.requests_per_s))
        known = _predicted(self.case, self.requests, self.seed, self.predictor)
        if not self.prefill:
            outcome = simulate(workload, fleet, POLICY, router=ROUTER, predictor=known)
        else:
            pools = Pools(self.prefill, len(fleet) - self.prefill, KvLink(self.gb_per_s))
            anew = None if self.refresh is None else _predicted(self.case, self.requests, self.seed, self.refresh)
            outcome = simulate_disaggregated(
                workload, fleet, pools, POLICY, router=ROUTER, predictor=known, refresh=anew
            )
        return {
            "capacity_per_s": capacity.requests_per_s,
            "steady": capacity.steady,
            **outcome.summary.to_dict(),
            **_between(outcome),
        }


def _between(outcome: Outcome) -> dict[str, float | None]:
    """From the first token to decoding, on the mean of those who went on: seconds, and tokens of KV that were sent."""
    over = outcome.handover
    if over is None or not (went := over.engine >= 0).any():
        return {"transfer_s": None, "memory_s": None, "sent_tokens": None}
    return {
        "transfer_s": float(np.mean((over.arrived - outcome.first_token)[went])),
        "memory_s": float(np.mean((over.started - over.arrived)[went])),
        "sent_tokens": float(np.mean(over.sent_tokens[went])),
    }


@lru_cache(maxsize=64)
def _capacity(case: str, requests: int, seed: int, fleet: str) -> Capacity:
    return measure_capacity(draw(case, requests, seed), Fleet.parse(fleet))


@lru_cache(maxsize=16)
def _predicted(case: str, requests: int, seed: int, predictor: str) -> RequestPredictions:
    return predict_workload(draw(case, requests, seed), predictor, seed=seed)


@lru_cache(maxsize=256)
def _digest(case: str, requests: int, seed: int) -> str:
    return workload_digest(draw(case, requests, seed))
