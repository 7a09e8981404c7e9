"""Routers at work in a simulation: told what each engine has done by the moment they choose, and nothing later."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lengthwise.routers import (
    Admitted,
    Costs,
    Decision,
    EngineInfo,
    Event,
    ExplainingRouter,
    Finished,
    Router,
    Speed,
    make_router,
)
from lengthwise.simulator.costs import CostModel
from lengthwise.simulator.fleet import Fleet
from lengthwise.simulator.spec import EngineSpec

if TYPE_CHECKING:
    from lengthwise.policies import Job
    from lengthwise.simulator.engine import SimulatedEngine
    from lengthwise.simulator.traffic import Traffic
    from lengthwise.workloads import Workload

_BLOCK_TOKENS = 64  # where a workload has no blocks, nobody asks
_PROMPT, _FAR, _BATCH, _CONTEXT = 1024, 32_768, 64, 1024  # where a cost model is measured


@runtime_checkable
class WatchingRouter(Protocol):
    """Chooses an engine and is told what engines do."""

    def choose(self, job: Job, now: float) -> int:
        """Return the engine for this job."""

    def observe(self, event: Event) -> None:
        """Learn what has happened."""


class Routed:
    """One of `lengthwise.routers` for a fleet whose engines it knows by their places in it."""

    def __init__(self, router: Router | str, fleet: Fleet, workload: Workload, *, explain: bool = False) -> None:
        """With `explain`, what every choice was made from is kept in `reasons`, by job."""
        self.reasons: dict[str, Costs] | None = {} if explain else None
        self.router = make_router(router) if isinstance(router, str) else router
        block_tokens = workload.block_size or _BLOCK_TOKENS
        self._infos = [engine_info(number, spec, block_tokens) for number, spec in enumerate(fleet.engines)]
        for number in range(len(fleet)):
            self.up(number)

    def up(self, engine: int) -> None:
        """Let the router know of an engine."""
        self.router.engine_up(self._infos[engine])

    def down(self, engine: int) -> None:
        """Let the router forget an engine."""
        self.router.engine_down(engine)

    def choose(self, job: Job, now: float, among: Collection[int] | None = None) -> int:
        """Ask the router."""
        return int(self.decide(job, now, among).engine)

    def decide(self, job: Job, now: float, among: Collection[int] | None = None) -> Decision:
        """The engine, and why."""
        if self.reasons is None:
            return self.router.choose(job, now, among)
        costs = self.router.weigh(job, now, among) if isinstance(self.router, ExplainingRouter) else {}
        decision = self.router.choose(job, now, among)
        self.reasons[job.id] = costs or {decision.engine: decision.terms}
        return decision

    def observe(self, event: Event) -> None:
        """Tell the router."""
        self.router.observe(event)


def engine_info(number: int, spec: EngineSpec, block_tokens: int) -> EngineInfo:
    """What a router may know of an engine before it serves anybody."""
    return EngineInfo(
        number,
        speed_of(spec.cost),
        kv_tokens=spec.kv_tokens,
        block_tokens=block_tokens,
        max_num_seqs=spec.max_num_seqs,
        caches=spec.prefix_caching,
    )


def speed_of(cost: CostModel) -> Speed:
    """A cost model as the five numbers that routers reckon with: slopes between a small and a large batch."""
    alone, many = cost.step_s(contexts=[1]), cost.step_s(contexts=[1] * _BATCH)
    far = cost.step_s(contexts=[_CONTEXT] * _BATCH)
    near_s, far_s = (cost.step_s(chunks=[(begin, begin + _PROMPT)]) for begin in (0, _FAR))
    pair_s = max(0.0, far_s - near_s) / (2 * _FAR * _PROMPT)
    prompt_s = near_s - cost.step_s(chunks=[(0, 1)])
    return Speed(
        prefill_token_s=max(0.0, prompt_s - pair_s * (_PROMPT**2 - 1)) / (_PROMPT - 1),
        step_s=alone,
        sequence_s=max(0.0, many - alone) / (_BATCH - 1),
        kv_token_s=max(0.0, far - many) / (_BATCH * (_CONTEXT - 1)),
        prefill_pair_s=pair_s,
    )


def tell(routes: WatchingRouter, number: int, engine: SimulatedEngine, traffic: Traffic, now: float) -> None:
    """Let an engine go on to this moment, and tell who has been admitted and who has finished by then."""
    engine.advance(now)
    requests = traffic.requests
    for row, finished in engine.happened(now):
        request = requests[row]
        if finished:
            when = float(request["finish"])
            ttft_s = float(request["first_token"] - request["arrival"])
            routes.observe(Finished(str(row), number, when, int(request["generated"]), ttft_s))
        else:
            routes.observe(Admitted(str(row), number, float(request["started"])))
