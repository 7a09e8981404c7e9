"""Prefill and decode in different pools: one engine computes the prompt, sends its KV, and another one decodes.

Nothing in the decode pool affects the prefill pool, so the pools are simulated one after the other. The first serves
every request as if its answer had one token; its finished requests, in order of time, are the input of the second.
Where engines change pools (`simulator.switching`), both are simulated in turn, from one moment of change to the next.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import Point
from lengthwise.policies import Job, Policy
from lengthwise.routers import Decision, EngineId, Router, make_router
from lengthwise.routers.base import RoundRobin
from lengthwise.routers.pool_sizes import prefill_engines
from lengthwise.simulator.acceleration import engine_group
from lengthwise.simulator.engine import FleetEngines, SimulatedEngine
from lengthwise.simulator.fleet import Fleet
from lengthwise.simulator.fleet_run import FleetRun, Progress, admission_quantile, check_any_fits, serve_fleet
from lengthwise.simulator.outcome import EngineOutcome, Handover, Move, Outcome
from lengthwise.simulator.predictions import RequestPredictions
from lengthwise.simulator.routing import FleetRouter, router_of
from lengthwise.simulator.switching import Roles, Switching, WorkMeter, joined
from lengthwise.simulator.traffic import Traffic
from lengthwise.workloads import Workload


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

    `decode_router` chooses among the latter; None: the same router as for prefill. With `switching` these numbers are
    those at the start.
    """

    prefill: int
    decode: int
    link: KvLink = field(default_factory=KvLink)
    decode_router: str | None = None
    switching: Switching | None = None

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

    def check(self, fleet: Fleet, **unsupported: object) -> None:
        """Raise InputError if the pools do not match a fleet, or for a set option that needs engines that do both."""
        self.of(fleet)
        self.token_s(fleet)
        if self.switching is not None and len(set(fleet.engines)) > 1:
            hint = "give a fleet of one kind of engine, or fixed pools"
            raise InputError("different engines cannot change pools", field="fleet", hint=hint)
        if self.decode_router is not None:
            make_router(self.decode_router)
        for name, value in unsupported.items():
            if value:
                raise InputError(
                    "is not supported with separate prefill and decode pools", field=name, hint="leave it out"
                )

    def __str__(self) -> str:
        return f"{self.prefill}:{self.decode}{'' if self.switching is None else ', switching'}"


class Transfers:
    """The network ports of all engines: each sends and each receives one request's KV at a time, in order."""

    def __init__(self, pools: Pools, token_s: float) -> None:
        self._token_s, self._latency_s = token_s, pools.link.latency_s
        every = pools.prefill + pools.decode
        self.sending_until: NDArray[np.float64] = np.zeros(every)
        self._receiving_until: NDArray[np.float64] = np.zeros(every)

    def send(self, source: int, target: int, tokens: int, now: float) -> float:
        """Return when `tokens`, ready at `now`, have arrived; never before an earlier transfer to the same engine."""
        begins = max(now, self.sending_until[source], self._receiving_until[target])
        self.sending_until[source] = self._receiving_until[target] = begins + tokens * self._token_s
        return float(self._receiving_until[target] + self._latency_s)


def serve_pools(
    workload: Workload,
    fleet: Fleet,
    pools: Pools,
    policy: Policy,
    router: Router | str,
    predictions: tuple[RequestPredictions, RequestPredictions],
    report: Progress,
    *,
    decision_s: float,
    routing_s: float,
    accelerate: bool,
) -> Outcome:
    """Serve prompts in one pool, and answers from the second token on in the other: `simulate` with `pools`.

    `predictions` are those before and after prefill. Each pool's router takes `routing_s` for each request. The
    outcome's `engine` is the one that computed the prompt; `handover` has the one that decoded.
    """
    if not isinstance(router, str):
        raise InputError("one router object for two pools", field="router", hint="give a name: each pool makes one")
    before, after = (fleet, fleet) if pools.switching else pools.of(fleet)
    token_s = pools.token_s(fleet)
    prompts = _prompts(workload, before, after)
    check_any_fits(workload, after)
    check_any_fits(prompts, before)
    # Answers take no memory here, whatever their predicted length.
    before = before.limited_to(admission="prompt")
    options: dict[str, Any] = {"decision_s": decision_s, "accelerate": accelerate}
    traffic = Traffic.of(workload, predictions[1], quantile=admission_quantile(after), generated=1)
    decoding = _DecodeRun(
        FleetRouter(pools.decode_router or router, after, workload, transfer_token_s=token_s, accelerate=accelerate),
        engine_group(after, policy, traffic, **options),
        traffic,
        Transfers(pools, token_s),
        routing_s,
    )
    prefill_router = _prefill_router(router, accelerate=accelerate)
    if pools.switching is None:
        first = serve_fleet(
            prompts,
            before,
            policy,
            prefill_router,
            predictions[0],
            lambda share: report(0.5 * share),
            routing_s=routing_s,
            **options,
        )
        return decoding.after(first, lambda share: report(0.5 + 0.5 * share))
    asked = Traffic.of(prompts, predictions[0])
    prefilling = FleetRun(
        FleetRouter(prefill_router, before, prompts, accelerate=accelerate),
        engine_group(before, policy, asked, **options),
        asked,
        routing_s=routing_s,
    )
    roles = Roles(prefilling, decoding, len(fleet), pools.prefill)
    expected = predictions[0].expected_and_tail()[0], predictions[1].expected_and_tail()[0]
    meter = WorkMeter(asked, traffic.requests, expected, fleet.engines[0], pools.switching.window_s)
    fits = before.engines[0].can_hold(prompts.input_tokens, prompts.output_tokens)
    parts = _serve_in_periods(prefilling, decoding, fits, roles, meter, pools.switching, report)
    known: dict[str, Any] = {"predictor": predictions[0].predictor, "accelerated": accelerate}
    first = Outcome.of(prompts, policy.name, asked.requests, prefilling.chosen, (), **known)
    engines = tuple(joined(*both) for both in zip(*parts, strict=True))
    return decoding.outcome(first, engines, moves=tuple(roles.moves))


def _serve_in_periods(
    prefilling: FleetRun,
    decoding: _DecodeRun,
    fits: NDArray[np.bool_],
    roles: Roles,
    meter: WorkMeter,
    switching: Switching,
    report: Progress,
) -> tuple[list[EngineOutcome], list[EngineOutcome]]:
    """Serve both pools from one moment of change to the next; return what the engines did in each.

    `fits`: whether an engine can hold a request; the others are refused.
    """
    requests, arrivals = prefilling.requests, prefilling.requests["arrival"].tolist()
    output = decoding.requests["output"]
    at, now, open_rows = 0, 0.0, np.empty(0, np.int64)
    decoding.sources = prefilling.chosen
    while at < len(arrivals) or len(open_rows):
        now, begin = now + switching.period_s, at
        while at < len(arrivals) and arrivals[at] < now:
            prefilling.route(at, arrivals[at])
            at += 1
        prefilling.run_until(now)
        open_rows = np.concatenate([open_rows, begin + np.flatnonzero(fits[begin:at])])
        finish = requests["finish"][open_rows]
        done = open_rows[finish <= now]
        open_rows = open_rows[~(finish <= now)]
        for row in done[np.argsort(requests["finish"][done], kind="stable")].tolist():
            if output[row] > 1:
                decoding.route(row, requests["finish"][row].item())
        decoding.run_until(now)
        roles.move_drained(now, decoding.transfers.sending_until)
        queued = open_rows[~(requests["started"][open_rows] <= now)]
        demand = meter.demand(now, queued, decoding.waiting(now))
        if demand is not None:
            roles.set_prefill(prefill_engines(demand, roles.engines, roles.prefill, switching.margin), now)
        report(0.9 * at / len(arrivals))
    first = prefilling.serve((), lambda _share: None)
    return first, decoding.serve((), lambda share: report(0.9 + 0.1 * share))


def _prompts(workload: Workload, before: Fleet, after: Fleet) -> Workload:
    """Return the requests with answers of one token; those that fit no decode engine get one that is refused."""
    lengths = workload.input_tokens, workload.output_tokens
    fits = np.any([spec.can_hold(*lengths) for spec in set(after.engines)], axis=0)
    too_long = max(spec.max_model_len for spec in before.engines)
    return workload.replace(output_tokens=np.where(fits, 1, too_long))


def _prefill_router(spec: str, *, accelerate: bool) -> Router:
    router = router_of(spec, accelerate=accelerate)
    return router if isinstance(router, RoundRobin) else _PrefillRouter(router)


class _PrefillRouter:
    """A router for engines that generate one token of each answer, whatever its predicted length."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.name, self.uses_predictions = router.name, router.uses_predictions
        self.engine_up, self.engine_down, self.observe = router.engine_up, router.engine_down, router.observe

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        job.update_prediction(Point(1, 1))
        return self._router.choose(job, now, among)


class _DecodeRun(FleetRun):
    """The decode pool: a request reaches its engine when the KV that the engine has not cached is transferred."""

    def __init__(
        self,
        router: FleetRouter,
        group: FleetEngines[Any],
        traffic: Traffic,
        transfers: Transfers,
        routing_s: float,
    ) -> None:
        super().__init__(router, group, traffic, routing_s=routing_s)
        self.transfers = transfers
        self.sources = self.chosen
        """The engine that computed each prompt; set before the first one is routed."""
        lengths = traffic.workload.input_tokens, traffic.workload.output_tokens
        by_spec = {spec: spec.can_hold(*lengths) for spec in set(group.fleet.engines)}
        self._fits = np.array([by_spec[spec] for spec in group.fleet.engines])
        self._fits_all = np.all(self._fits, axis=0)

    def after(self, first: Outcome, report: Progress) -> Outcome:
        """Decode the requests with more than one output token, in the order of their prefill, and join both pools."""
        self.sources = first.engine
        more = np.flatnonzero((self.requests["output"] > 1) & ~np.isnan(first.finished_s))
        rows = more[np.argsort(first.finished_s[more], kind="stable")]
        engines = self.serve(zip(rows.tolist(), first.finished_s[rows].tolist(), strict=True), report)
        report(1.0)
        return self.outcome(first, (*first.engines, *engines), len(first.engines))

    def outcome(
        self, first: Outcome, engines: tuple[EngineOutcome, ...], offset: int = 0, moves: tuple[Move, ...] = ()
    ) -> Outcome:
        """Join both pools, with the engines of both; `offset`: the number of the first engine here."""
        requests, workload = self._traffic.requests, self._traffic.workload
        decoded = self.chosen >= 0
        return replace(
            first,
            output_tokens=workload.output_tokens,
            finished_s=np.where(decoded, requests["finish"], first.finished_s),
            preemptions=first.preemptions + requests["preemptions"],
            recomputed_tokens=first.recomputed_tokens + requests["recomputed"],
            engines=engines,
            handover=Handover(
                engine=np.where(decoded, self.chosen + offset, -1),
                sent_tokens=np.where(decoded, requests["prompt"] - requests["missing_kv_tokens"], 0).astype(np.int64),
                arrived=np.where(decoded, requests["arrival"], np.nan),
                started=requests["started"].copy(),
                moves=moves,
            ),
        )

    def waiting(self, now: float) -> NDArray[np.int64]:
        """Return the requests that were sent here and have not been admitted by a time."""
        return np.flatnonzero((self.chosen >= 0) & ~(self.requests["started"] <= now))

    def _candidates(self, row: int) -> list[int] | None:
        accepting = super()._candidates(row)
        if self._fits_all[row]:
            return accepting
        return [number for number in accepting or self._accepting() if self._fits[number, row]]

    def _reaches_at(self, row: int, number: int, engine: SimulatedEngine, now: float) -> float:
        engine.advance(now)
        request, cached = self._traffic.requests[row], engine.cached_tokens(row)
        prompt = int(request["prompt"])
        request["transferred_kv_tokens"], request["missing_kv_tokens"] = prompt, cached
        return self.transfers.send(int(self.sources[row]), number, prompt - cached, self._router_free_at)
