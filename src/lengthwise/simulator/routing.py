"""Routers in a simulation: what they know about engines, and the time they take.

The time of a router is what `python -m benchmarks.routing --write` measured on ReAct traffic and wrote to
`routing_times.json`, beside this file: microseconds of CPU time by router and number of engines, for the choice and all
events of a request. It is never the clock of the machine that simulates.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.policies import Job
from lengthwise.routers import (
    ROUTERS,
    Admitted,
    BaseRouter,
    Costs,
    EngineInfo,
    ExplainingRouter,
    Finished,
    Router,
    Speed,
    make_router,
)
from lengthwise.routers.compilation import announce_router
from lengthwise.simulator.costs import CostModel
from lengthwise.simulator.engine import EngineEvent
from lengthwise.simulator.fleet import Fleet
from lengthwise.specs import parse_spec, unknown_name
from lengthwise.workloads import Workload

ROUTING_TIMES_FILE: Final = Path(__file__).with_name("routing_times.json")

_BLOCK_TOKENS: Final = 64  # for a workload without blocks, where it has no effect
_PROMPT, _FAR, _BATCH, _CONTEXT = 1024, 32_768, 64, 1024  # tokens and sequences at which a cost model is sampled


class FleetRouter:
    """A router for the engines of a fleet, whose ids are their indices in it."""

    def __init__(
        self,
        router: Router | str,
        fleet: Fleet,
        workload: Workload,
        *,
        explain: bool = False,
        transfer_token_s: float | None = None,
        accelerate: bool = True,
    ) -> None:
        """With `explain`, the costs of every choice are recorded in `costs`, by job id.

        `accelerate`: whether a router given by name is compiled.

        `transfer_token_s`: seconds per prompt token where engines receive the KV of prompts and compute none.
        """
        self.costs: dict[str, Costs] | None = {} if explain else None
        self.router = router_of(router, accelerate=accelerate) if isinstance(router, str) else router
        self._infos: list[EngineInfo] = []
        for number, spec in enumerate(fleet.engines):
            speed = speed_of(spec.cost)
            if transfer_token_s is not None:
                speed = replace(speed, prefill_token_s=transfer_token_s, prefill_pair_s=0.0)
            info = EngineInfo(
                number,
                speed,
                kv_tokens=spec.kv_tokens,
                block_tokens=workload.block_size or _BLOCK_TOKENS,
                max_num_seqs=spec.max_num_seqs,
                caches=spec.prefix_caching,
            )
            self._infos.append(info)
            self.up(number)

    def up(self, engine: int) -> None:
        """Add an engine."""
        self.router.engine_up(self._infos[engine])

    def down(self, engine: int) -> None:
        """Remove an engine."""
        self.router.engine_down(engine)

    def choose(self, job: Job, now: float, among: Collection[int] | None = None) -> int:
        """Return the index of the chosen engine."""
        costs: Costs = {}
        if self.costs is not None and isinstance(self.router, ExplainingRouter):
            costs = self.router.weigh(job, now, among)
        decision = self.router.choose(job, now, among)
        if self.costs is not None:
            self.costs[job.id] = costs or {decision.engine: decision.terms}
        if not isinstance(decision.engine, int) or not 0 <= decision.engine < len(self._infos):
            raise InputError(f"chose engine {decision.engine!r}, which is not in the fleet", source=self.router.name)
        return decision.engine

    def report(self, events: Iterable[EngineEvent]) -> None:
        """Report the requests that engines have admitted and finished."""
        observe = self.router.observe
        for engine, row, finished, at_s, generated, ttft_s in events:
            if finished:
                observe(Finished(str(row), engine, at_s, generated, ttft_s))
            else:
                observe(Admitted(str(row), engine, at_s))


def router_of(spec: str, *, accelerate: bool) -> Router:
    """Return a fresh router: compiled, or in Python for the same choices."""
    router = make_router(spec)
    if accelerate:
        announce_router(spec)
    elif isinstance(router, BaseRouter):
        router.interpret()
    return router


@cache
def speed_of(cost: CostModel) -> Speed:
    """Return the five numbers of a router's speed model: slopes of the cost model between small and large batches."""
    alone, batch = cost.step_s(contexts=[1]), cost.step_s(contexts=[1] * _BATCH)
    far = cost.step_s(contexts=[_CONTEXT] * _BATCH)
    near_s, far_s = (cost.step_s(chunks=[(begin, begin + _PROMPT)]) for begin in (0, _FAR))
    pair_s = max(0.0, far_s - near_s) / (2 * _FAR * _PROMPT)
    prompt_s = near_s - cost.step_s(chunks=[(0, 1)])
    return Speed(
        prefill_token_s=max(0.0, prompt_s - pair_s * (_PROMPT**2 - 1)) / (_PROMPT - 1),
        step_s=alone,
        sequence_s=max(0.0, batch - alone) / (_BATCH - 1),
        kv_token_s=max(0.0, far - batch) / (_BATCH * (_CONTEXT - 1)),
        prefill_pair_s=pair_s,
    )


@cache
def routing_times() -> dict[str, Any]:
    """Return the measurement: `command`, `processor`, `traffic`, and `us` by router and number of engines."""
    found: dict[str, Any] = json.loads(ROUTING_TIMES_FILE.read_text(encoding="utf-8"))
    return found


def routing_time_s(router: str, engines: int) -> float:
    """Return the seconds that a router takes for a request, measured or, for an unmeasured router, by default.

    Between measured numbers of engines: linear in their logarithms; beyond: the nearest. The default is the median of
    the measured routers.
    """
    measured = routing_times()["us"]
    base = parse_spec(router, "router").base
    if base not in measured:
        return median(routing_time_s(name, engines) for name in measured)
    counts = np.log([float(count) for count in measured[base]])
    return 1e-6 * float(np.interp(np.log(engines), counts, list(measured[base].values())))


def charged_times_s(
    routers: Iterable[str], engines: int, given_us: Mapping[str, float] | float | None = None
) -> dict[str, float]:
    """Return the seconds charged per request, by router without parameters.

    `given_us`, microseconds for all routers or by name, takes precedence over the measurement. With one engine nothing
    is charged unless given.
    """
    bases = [parse_spec(router, "router").base for router in routers]
    if isinstance(given_us, (int, float)):
        return dict.fromkeys(bases, 1e-6 * given_us)
    for name in given_us or ():
        if name not in ROUTERS and name not in bases:
            error = unknown_name(name, "router", [*dict.fromkeys((*bases, *ROUTERS))])
            raise InputError(error.problem, field="routing-time", hint=error.hint)
    times = {base: routing_time_s(base, engines) for base in bases} if engines > 1 else {}
    return times | {name: 1e-6 * us for name, us in (given_us or {}).items()}


def unmeasured_note(router: str, engines: int, given_us: Mapping[str, float] | float | None = None) -> str | None:
    """Return a sentence for the output if a router is charged the default time; None if it was measured or given."""
    base = parse_spec(router, "router").base
    given = isinstance(given_us, (int, float)) or base in (given_us or {})
    if given or engines <= 1 or base in routing_times()["us"]:
        return None
    us = 1e6 * routing_time_s(base, engines)
    return f"router {base} has no measured time: {us:.0f} us per request assumed; set it with --routing-time {base}=US"
