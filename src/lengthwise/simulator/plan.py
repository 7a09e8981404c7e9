"""What a grid of simulations compares, checked at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from lengthwise.predictors.experimental import parse_predictor_spec
from lengthwise.routers import make_router
from lengthwise.simulator.cluster import check_seconds
from lengthwise.simulator.fleet import Fleet
from lengthwise.simulator.fleet_events import Change, in_order
from lengthwise.simulator.grid_result import BASELINE, USUAL_ROUTER
from lengthwise.simulator.metrics import Slo
from lengthwise.simulator.pools import Pools


@dataclass(frozen=True)
class Plan:
    """What is compared, checked at once. Rates or loads, not both; with neither, the workload's own arrivals."""

    fleet: Fleet
    policies: Sequence[str]
    predictors: Sequence[str] = ("oracle",)
    rates: Sequence[float] = ()
    loads: Sequence[float] = ()
    seeds: Sequence[int] = (0,)
    slo: Slo = field(default_factory=Slo)
    prediction_delay_s: float = 0.0
    decision_s: float = 0.0
    routers: Sequence[str] = (USUAL_ROUTER,)
    routing_s: Mapping[str, float] = field(default_factory=dict)
    """What a router takes for a request, by its name without parameters; nothing where it is not named."""
    changes: Sequence[Change] = ()
    explain: bool = False
    pools: Pools | None = None
    """Prefill and decode apart; None: every engine does both."""
    refresh: str | None = None
    """Who is asked again at the end of prefill, where that is apart; None: the first prediction stays."""

    def __post_init__(self) -> None:
        if self.rates and self.loads:
            raise InputError("both a rate and a load", field="load", hint="give one of --rate and --load")
        for name, values, unit in (("rate", self.rates, " requests per second"), ("load", self.loads, "")):
            for value in values:
                if not (np.isfinite(value) and value > 0):
                    raise InputError(f"a {name} of {value:g}{unit}", field=name, hint="give a number above 0")
        check_seconds(prediction_delay_s=self.prediction_delay_s, decision_s=self.decision_s)
        check_seconds(**{f"routing_s of {name}": seconds for name, seconds in self.routing_s.items()})
        in_order(self.changes, len(self.fleet))
        if not self.seeds:
            raise InputError("no seeds", field="seeds", hint="give at least 1")
        for policy in self.policies:
            make_policy(policy)
        for router in self.routers:
            make_router(router)
        for predictor in (*self.predictors, *(() if self.refresh is None else (self.refresh,))):
            parse_predictor_spec(predictor)
        self._check_pools()

    def _check_pools(self) -> None:
        if self.pools is None:
            if self.refresh is not None:
                hint = "give pools too, with --disaggregate"
                raise InputError("no prediction is refreshed where nothing is handed over", field="refresh", hint=hint)
            return
        self.pools.of(self.fleet)
        self.pools.token_s(self.fleet)
        if self.pools.decode_router is not None:
            make_router(self.pools.decode_router)
        for name, given in (
            ("down", self.changes),
            ("explain", self.explain),
            ("prediction-delay", self.prediction_delay_s),
        ):
            if given:
                raise InputError("is not simulated where prefill and decode are apart", field=name, hint="leave it out")

    @property
    def own_arrivals(self) -> bool:
        """Whether the workload's own arrivals are kept."""
        return not (self.rates or self.loads)

    @property
    def repeats(self) -> bool:
        """Whether seeds are to differ in more than noise."""
        return len(self.seeds) > 1 and not any(name.startswith("noisy") for name in self.predictors)

    @property
    def runs(self) -> list[tuple[str, str | None, str]]:
        """Router, predictor and policy of each cell of a level.

        FCFS looks at no prediction, so it is run once, and first, behind a router that looks at none either.
        """
        runs: list[tuple[str, str | None, str]] = []
        for router in self.routers:
            blind = [] if self._uses_predictions(router) else [policy for policy in self.policies if policy == BASELINE]
            others = [policy for policy in self.policies if policy not in blind]
            runs += [(router, None, policy) for policy in blind]
            runs += [(router, predictor, policy) for predictor in self.predictors for policy in others]
        return runs

    def _uses_predictions(self, router: str) -> bool:
        """Whether a router, or the one of the decode pool beside it, looks at predictions."""
        other = None if self.pools is None else self.pools.decode_router
        return any(make_router(name).uses_predictions for name in {router, other or router})
