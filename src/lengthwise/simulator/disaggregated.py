"""Prefill and decode apart: a prompt is computed in one pool, its KV is sent, the answer goes on in the other.

Nothing that happens in the decode pool reaches back to the first, so the pools are simulated one after the other. The
first serves everybody as if an answer had one token; what comes out of it, in order of time, goes into the second.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.lengths import Point
from lengthwise.policies import make_policy
from lengthwise.simulator.cluster import admission_quantile, check_seconds, check_somebody_fits, simulate
from lengthwise.simulator.engine import SimulatedEngine, engine_factory
from lengthwise.simulator.fleet import Fleet
from lengthwise.simulator.outcome import Handover
from lengthwise.simulator.pools import Transfers
from lengthwise.simulator.predictions import RequestPredictions, predict_workload
from lengthwise.simulator.routing import Routed, tell
from lengthwise.simulator.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

    from lengthwise.policies import Job, Policy
    from lengthwise.routers import Decision
    from lengthwise.simulator.outcome import Outcome
    from lengthwise.simulator.pools import Pools
    from lengthwise.workloads import Workload

    Progress = Callable[[float], None]

_BLIND: Final = "round_robin"
_REPORT_EVERY: Final = 1024  # requests


def simulate_disaggregated(
    workload: Workload,
    fleet: Fleet,
    pools: Pools,
    policy: Policy | str = "fcfs",
    *,
    router: str = _BLIND,
    predictor: str | RequestPredictions = "oracle",
    refresh: str | RequestPredictions | None = None,
    decision_s: float = 0.0,
    routing_s: float = 0.0,
    jump: bool = True,
    accelerate: bool | None = None,
    on_progress: Progress | None = None,
) -> Outcome:
    """Serve the workload to the last request, prompts in one pool and answers from the second token on in the other.

    What is predicted at the end of prefill is `refresh`, or still what `predictor` said. The other options are those of
    `simulate`; each pool's router takes `routing_s` for each request. The outcome's `engine` is the one that computed
    the prompt; who went on is in `handover`.
    """
    policy = make_policy(policy) if isinstance(policy, str) else policy
    check_seconds(decision_s=decision_s, routing_s=routing_s)
    before, after = pools.of(fleet)
    token_s = pools.token_s(fleet)
    check_somebody_fits(workload, after)
    report = on_progress or (lambda _share: None)
    predictions = predict_workload(workload, predictor) if isinstance(predictor, str) else predictor
    first = simulate(
        _prompts(workload, before, after),
        # An answer takes no memory here, whatever is predicted of it.
        Fleet(tuple(replace(spec, admission="prompt") for spec in before.engines)),
        policy,
        router=_BLIND if router == _BLIND else lambda pool: _PrefillRouted(router, pool, workload),
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
        _DecodeRouted(pools.decode_router or router, after, workload, token_s),
        Transfers(pools, token_s),
        traffic,
        [spec.can_hold(workload.input_tokens, workload.output_tokens) for spec in after.engines],
    )
    decoding.serve(first, routing_s, lambda share: report(0.5 + 0.5 * share))
    return decoding.outcome(first, pools)


def _prompts(workload: Workload, before: Fleet, after: Fleet) -> Workload:
    """The same requests with answers of one token; who could never decode gets one that no prefill engine takes."""
    lengths = workload.input_tokens, workload.output_tokens
    fits = np.any([spec.can_hold(*lengths) for spec in set(after.engines)], axis=0)
    too_long = max(spec.max_model_len for spec in before.engines)
    return workload.replace(output_tokens=np.where(fits, 1, too_long))


class _PrefillRouted(Routed):
    """A router for engines that make one token of each answer, whatever is predicted of it."""

    def decide(self, job: Job, now: float, among: Collection[int] | None = None) -> Decision:
        """The engine, and why."""
        job.update_prediction(Point(1, 1))
        return super().decide(job, now, among)


class _DecodeRouted(Routed):
    """A router for engines that are sent what others have computed: a prompt takes the time of its KV on the link."""

    def __init__(self, router: str, fleet: Fleet, workload: Workload, token_s: float) -> None:
        super().__init__(router, fleet, workload)
        for number, info in enumerate(self._infos):
            speed = replace(info.speed, prefill_token_s=token_s, prefill_pair_s=0.0)
            self._infos[number] = replace(info, speed=speed)
            self.up(number)


class _Decoding:
    """The second pool. `holds`: of each engine, which requests fit into it."""

    def __init__(
        self,
        engines: list[SimulatedEngine],
        routes: Routed,
        transfers: Transfers,
        traffic: Traffic,
        holds: list[NDArray[np.bool_]],
    ) -> None:
        self._engines, self._routes, self._transfers = engines, routes, transfers
        self._traffic, self._holds = traffic, np.array(holds)
        n = len(traffic.requests)
        self._chosen, self._sent = np.full(n, -1, np.int64), np.zeros(n, np.int64)

    def serve(self, first: Outcome, routing_s: float, report: Progress) -> None:
        """Route everybody whose prompt is computed and whose answer goes on, and decode to the last token."""
        more = np.flatnonzero((self._traffic.requests["output"] > 1) & ~np.isnan(first.finish))
        rows = more[np.argsort(first.finish[more], kind="stable")]
        free_at = 0.0  # the router
        for done, row in enumerate(rows.tolist()):
            now = max(float(first.finish[row]), free_at)
            free_at = now + routing_s
            self._route(row, int(first.engine[row]), now, free_at)
            if done % _REPORT_EVERY == 0:
                report(done / len(rows))
        for engine in self._engines:
            engine.advance()
        report(1.0)

    def _route(self, row: int, source: int, now: float, ready: float) -> None:
        """Choose by what is known now; what the engine has of the prompt need not be sent, the rest is when ready."""
        for number, engine in enumerate(self._engines):
            if not engine.idle:
                tell(self._routes, number, engine, self._traffic, now)
        could = np.flatnonzero(self._holds[:, row])
        among = None if len(could) == len(self._engines) else could.tolist()
        number = self._routes.choose(self._traffic.job(row), now, among)
        engine, requests = self._engines[number], self._traffic.requests
        engine.advance(now)
        prompt, here = int(requests["prompt"][row]), engine.cached_tokens(row)
        requests["transferred_kv_tokens"][row], requests["missing_kv_tokens"][row] = prompt, here
        requests["arrival"][row] = self._transfers.send(source, number, prompt - here, ready)
        self._chosen[row], self._sent[row] = number, prompt - here
        engine.submit(np.array([row]))

    def outcome(self, first: Outcome, pools: Pools) -> Outcome:
        """Both pools together."""
        requests, went = self._traffic.requests, self._chosen >= 0
        return replace(
            first,
            output_tokens=self._traffic.workload.output_tokens,
            finish=np.where(went, requests["finish"], first.finish),
            preemptions=first.preemptions + requests["preemptions"],
            recomputed_tokens=first.recomputed_tokens + requests["recomputed"],
            engines=(*first.engines, *(engine.outcome() for engine in self._engines)),
            handover=Handover(
                engine=np.where(went, self._chosen + pools.prefill, -1),
                sent_tokens=self._sent,
                arrived=np.where(went, requests["arrival"], np.nan),
                started=requests["started"].copy(),
            ),
        )
