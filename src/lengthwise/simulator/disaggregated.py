"""Prefill and decode in different pools: one engine computes the prompt, sends its KV, and another one decodes.

Nothing in the decode pool affects the prefill pool, so the pools are simulated one after the other. The first serves
every request as if its answer had one token; its finished requests, in order of time, are the input of the second.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import Point
from lengthwise.policies import make_policy
from lengthwise.routers import Decision, EngineId, EngineInfo, Event, Router, StaticRouter, make_router
from lengthwise.simulator.cluster import admission_quantile, check_any_fits, check_seconds, simulate
from lengthwise.simulator.engine import SimulatedEngine, engine_factory
from lengthwise.simulator.fleet import Fleet
from lengthwise.simulator.inputs import as_predictions
from lengthwise.simulator.outcome import Handover
from lengthwise.simulator.predictions import RequestPredictions, predict_workload
from lengthwise.simulator.routing import FleetRouter
from lengthwise.simulator.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lengthwise.policies import Job, Policy
    from lengthwise.simulator.outcome import Outcome
    from lengthwise.workloads import Workload

    Progress = Callable[[float], None]

_REPORT_EVERY: Final = 1024  # requests


@dataclass(frozen=True, slots=True)
class KvLink:
    """The network between engines: a transfer takes latency_s + bytes / (1e9 * gb_per_s) seconds.

    The default is a port of 200 Gbit/s for each engine, and a millisecond to set up and acknowledge a transfer.
    """

    gb_per_s: float = 25.0
    latency_s: float = 1e-3

    def __post_init__(self) -> None:
        if not self.gb_per_s > 0:
            raise InputError(
                f"{self.gb_per_s:g} GB/s", field="kv-link", hint="give a number above 0; inf makes transfers free"
            )
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise InputError(f"a latency of {self.latency_s} s", field="kv-latency", hint="a number of at least 0")


@dataclass(frozen=True, slots=True)
class Pools:
    """The first `prefill` engines of a fleet compute prompts, the other `decode` engines decode.

    `decode_router` chooses among the latter; None: the same router as for prefill.
    """

    prefill: int
    decode: int
    link: KvLink = field(default_factory=KvLink)
    decode_router: str | None = None

    def __post_init__(self) -> None:
        if self.prefill < 1 or self.decode < 1:
            raise InputError(
                f"{self.prefill}:{self.decode}",
                field="disaggregate",
                hint="each pool needs an engine, as in 2:6; leave the option out for engines that do both",
            )

    @classmethod
    def parse(cls, text: str, *, link: KvLink | None = None, decode_router: str | None = None) -> Pools:
        """Parse "2:6"."""
        found = re.fullmatch(r"\s*(\d{1,6})\s*:\s*(\d{1,6})\s*", text)
        if found is None:
            raise InputError(
                f"'{text}'", field="disaggregate", hint="write PREFILL:DECODE, numbers of engines, as in 2:6"
            )
        return cls(int(found[1]), int(found[2]), KvLink() if link is None else link, decode_router)

    def of(self, fleet: Fleet) -> tuple[Fleet, Fleet]:
        """Return the two pools."""
        if self.prefill + self.decode != len(fleet):
            raise InputError(
                f"{self} are {self.prefill + self.decode} engines of a fleet of {len(fleet)}",
                field="disaggregate",
                hint=f"both must add up to {len(fleet)}",
            )
        return Fleet(fleet.engines[: self.prefill]), Fleet(fleet.engines[self.prefill :])

    def token_s(self, fleet: Fleet) -> float:
        """Return the transfer time of one token's KV without latency; all engines must use the same KV size."""
        sizes = {spec.kv_bytes_per_token for spec in fleet.engines}
        size = sizes.pop()
        if sizes:
            raise InputError(
                "engines with different KV bytes per token cannot hand requests over",
                field="fleet",
                hint="use one model for all engines",
            )
        if size is None:
            raise InputError(
                "has no KV size per token",
                source=fleet.engines[0].name,
                field="kv_bytes_per_token",
                hint="K and V of all layers in bytes, for example 131072",
            )
        return size / (1e9 * self.link.gb_per_s)

    def __str__(self) -> str:
        return f"{self.prefill}:{self.decode}"


class Transfers:
    """The network ports of all engines: each sends and each receives one request's KV at a time, in order."""

    def __init__(self, pools: Pools, token_s: float) -> None:
        self._token_s, self._latency_s = token_s, pools.link.latency_s
        self._sending_until: NDArray[np.float64] = np.zeros(pools.prefill)
        self._receiving_until: NDArray[np.float64] = np.zeros(pools.decode)

    def send(self, source: int, target: int, tokens: int, now: float) -> float:
        """Return when `tokens`, ready at `now`, have arrived; never before an earlier transfer to the same engine."""
        begins = max(now, self._sending_until[source], self._receiving_until[target])
        self._sending_until[source] = self._receiving_until[target] = begins + tokens * self._token_s
        return float(self._receiving_until[target] + self._latency_s)


def simulate_disaggregated(
    workload: Workload,
    fleet: Fleet,
    pools: Pools,
    policy: Policy | str = "fcfs",
    *,
    router: str = "round_robin",
    predictor: str | RequestPredictions | None = None,
    refresh: str | RequestPredictions | None = None,
    decision_s: float = 0.0,
    routing_s: float = 0.0,
    jump: bool = True,
    accelerate: bool | None = None,
    on_progress: Progress | None = None,
) -> Outcome:
    """Serve the workload to the last request: prompts in one pool, answers from the second token on in the other.

    `refresh` predicts again at the end of prefill; without it the prediction of `predictor` stays. The other options
    are those of `simulate`; each pool's router takes `routing_s` for each request. The outcome's `engine` is the one
    that computed the prompt; `handover` has the one that decoded.
    """
    policy = make_policy(policy) if isinstance(policy, str) else policy
    check_seconds(decision_s=decision_s, routing_s=routing_s)
    before, after = pools.of(fleet)
    token_s = pools.token_s(fleet)
    check_any_fits(workload, after)
    report = on_progress or (lambda _share: None)
    predictions = as_predictions(workload, predictor)
    first = simulate(
        _prompts(workload, before, after),
        # Answers take no memory here, whatever their predicted length.
        Fleet(tuple(replace(spec, admission="prompt") for spec in before.engines)),
        policy,
        router=_prefill_router(router),
        predictor=predictions,
        decision_s=decision_s,
        routing_s=routing_s,
        jump=jump,
        accelerate=accelerate,
        on_progress=lambda share: report(0.5 * share),
    )
    refreshed = (
        predictions if refresh is None else predict_workload(workload, refresh) if isinstance(refresh, str) else refresh
    )
    traffic = Traffic.of(workload, refreshed, quantile=admission_quantile(after), generated=1)
    make = engine_factory(policy, traffic, decision_s=decision_s, jump=jump, accelerate=accelerate)
    decoding = _Decoding(
        [make(spec) for spec in after.engines],
        FleetRouter(_DecodeRouter(make_router(pools.decode_router or router), token_s), after, workload),
        Transfers(pools, token_s),
        traffic,
        [spec.can_hold(workload.input_tokens, workload.output_tokens) for spec in after.engines],
    )
    decoding.serve(first, routing_s, lambda share: report(0.5 + 0.5 * share))
    return decoding.outcome(first, pools)


def _prompts(workload: Workload, before: Fleet, after: Fleet) -> Workload:
    """Return the requests with answers of one token; those that fit no decode engine get one that is refused."""
    lengths = workload.input_tokens, workload.output_tokens
    fits = np.any([spec.can_hold(*lengths) for spec in set(after.engines)], axis=0)
    too_long = max(spec.max_model_len for spec in before.engines)
    return workload.replace(output_tokens=np.where(fits, 1, too_long))


def _prefill_router(spec: str) -> Router:
    router = make_router(spec)
    return router if isinstance(router, StaticRouter) else _PrefillRouter(router)


class _WrappedRouter:
    """Passes everything on to another router."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.name, self.uses_predictions = router.name, router.uses_predictions

    def engine_up(self, engine: EngineInfo) -> None:
        self._router.engine_up(engine)

    def engine_down(self, engine: EngineId) -> None:
        self._router.engine_down(engine)

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        return self._router.choose(job, now, among)

    def observe(self, event: Event) -> None:
        self._router.observe(event)


class _PrefillRouter(_WrappedRouter):
    """A router for engines that generate one token of each answer, whatever its predicted length."""

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        job.update_prediction(Point(1, 1))
        return super().choose(job, now, among)


class _DecodeRouter(_WrappedRouter):
    """A router for engines that receive KV: the prefill of a prompt takes the transfer time of its KV."""

    def __init__(self, router: Router, token_s: float) -> None:
        super().__init__(router)
        self._token_s = token_s

    def engine_up(self, engine: EngineInfo) -> None:
        speed = replace(engine.speed, prefill_token_s=self._token_s, prefill_pair_s=0.0)
        super().engine_up(replace(engine, speed=speed))


class _Decoding:
    """The decode pool. `fits`: for each engine, which requests fit into it."""

    def __init__(
        self,
        engines: list[SimulatedEngine],
        router: FleetRouter,
        transfers: Transfers,
        traffic: Traffic,
        fits: list[NDArray[np.bool_]],
    ) -> None:
        self._engines, self._router, self._transfers = engines, router, transfers
        self._traffic, self._fits = traffic, np.array(fits)
        n = len(traffic.requests)
        self._chosen, self._sent = np.full(n, -1, np.int64), np.zeros(n, np.int64)

    def serve(self, first: Outcome, routing_s: float, report: Progress) -> None:
        """Route every request with more than one output token after its prefill, and decode to the last token."""
        more = np.flatnonzero((self._traffic.requests["output"] > 1) & ~np.isnan(first.finish))
        rows = more[np.argsort(first.finish[more], kind="stable")]
        router_free_at = 0.0
        for done, row in enumerate(rows.tolist()):
            now = max(float(first.finish[row]), router_free_at)
            router_free_at = now + routing_s
            self._route(row, int(first.engine[row]), now, router_free_at)
            if done % _REPORT_EVERY == 0:
                report(done / len(rows))
        for engine in self._engines:
            engine.advance()
        report(1.0)

    def _route(self, row: int, source: int, now: float, ready: float) -> None:
        """Choose by what is known at `now`; send the KV that the engine has not cached at `ready`."""
        for number, engine in enumerate(self._engines):
            if not engine.idle:
                self._router.report(number, engine, self._traffic, now)
        fitting = np.flatnonzero(self._fits[:, row])
        among = None if len(fitting) == len(self._engines) else fitting.tolist()
        number = self._router.choose(self._traffic.job(row), now, among)
        engine, requests = self._engines[number], self._traffic.requests
        engine.advance(now)
        prompt, cached = int(requests["prompt"][row]), engine.cached_tokens(row)
        requests["transferred_kv_tokens"][row], requests["missing_kv_tokens"][row] = prompt, cached
        requests["arrival"][row] = self._transfers.send(source, number, prompt - cached, ready)
        self._chosen[row], self._sent[row] = number, prompt - cached
        engine.submit(np.array([row]))

    def outcome(self, first: Outcome, pools: Pools) -> Outcome:
        """Return the outcome of both pools."""
        requests, decoded = self._traffic.requests, self._chosen >= 0
        return replace(
            first,
            output_tokens=self._traffic.workload.output_tokens,
            finish=np.where(decoded, requests["finish"], first.finish),
            preemptions=first.preemptions + requests["preemptions"],
            recomputed_tokens=first.recomputed_tokens + requests["recomputed"],
            engines=(*first.engines, *(engine.outcome() for engine in self._engines)),
            handover=Handover(
                engine=np.where(decoded, self._chosen + pools.prefill, -1),
                sent_tokens=self._sent,
                arrived=np.where(decoded, requests["arrival"], np.nan),
                started=requests["started"].copy(),
            ),
        )
