"""A router of Lengthwise as the request router of a Ray Serve deployment.

    RequestRouterConfig(
        request_router_class="lengthwise.ray.request_router:LengthwiseRequestRouter",
        request_router_kwargs={"router": "lengthwise"},
    )

It runs in each process that holds a handle of the deployment, and chooses the replica for each call of that handle.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from lengthwise.client.scrape import EngineGauges, EngineMemory
from lengthwise.defaults import DEFAULT_ROUTER
from lengthwise.gateway.json_fields import LARGE_BODY
from lengthwise.gateway.routing import RouterAdapter, warm_router
from lengthwise.policies import Job
from lengthwise.ray.calls import AVOID, read_job, set_replicas


@dataclass(eq=False, slots=True)
class Replica:
    """A replica as the router sees it: a `gateway.routing.RoutedEngine`."""

    id: ReplicaID
    number: int
    slots: int
    memory: EngineMemory | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)
    jobs: set[str] = field(default_factory=set)
    ended: list[tuple[float, float]] = field(default_factory=list)
    """When each call that has ended since the last report was sent, and when it ended."""

    @property
    def name(self) -> str:
        """Its id in Ray's dashboard and metrics."""
        return str(self.id.unique_id)

    @property
    def in_flight(self) -> int:
        """Requests that this router has sent there."""
        return len(self.jobs)


@dataclass(eq=False, slots=True)
class _Sent:
    job: Job
    replica: Replica
    future: asyncio.Future[Any]
    at: float = field(default_factory=time.monotonic)


class LengthwiseRequestRouter(RequestRouter):
    """Chooses the replica with the least cost under a router of Lengthwise (docs/reference/routing.md).

    Job of a call: from an OpenAI body, either (method, path, bytes, ...) as the gateway sends it or an object with
    `messages` or `prompt`, as Ray Serve LLM passes it. Its prediction: `length_mu` and `length_sigma` in `vllm_xargs`,
    else the client's hint, else the wide prior.
    Load and KV memory: `record_routing_stats` of the replica, if it returns `running`, `waiting`, `kv_use`, `kv_tokens`
    and `block_size`; without them, the calls that this router has sent. Ray Serve delivers a report seconds later: with
    `at` (seconds since the epoch) in it, calls that have ended since are not mistaken for other clients' load.
    A call without a body goes to the replica with the fewest running calls.
    """

    def initialize_state(self, router: str = DEFAULT_ROUTER) -> None:
        """Make the router; `router` is its spec."""
        self.routes = RouterAdapter(warm_router(router))
        self._known: dict[ReplicaID, Replica] = {}
        self._numbers = itertools.count()
        self._sent: dict[str, _Sent] = {}
        self._deployment = self._deployment_id.app_name, self._deployment_id.name

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the chosen replica first, then the others, which Ray Serve uses if that one has become full."""
        if pending_request is None:
            return [candidate_replicas]
        avoid = pending_request.kwargs.get(AVOID, ())
        wanted = [each for each in candidate_replicas if each.replica_id.unique_id not in avoid] or candidate_replicas
        job = await self._job(pending_request)
        # Replicas may have gone meanwhile. If all are full, Ray Serve asks again until one is not.
        free = self.select_available_replicas(wanted) or wanted
        free = [each for each in free if each.replica_id in self._known]
        if job is None or not free:
            return [wanted]
        chosen = self.routes.choose(job, [self._known[each.replica_id] for each in free], time.monotonic())
        self._record(job, chosen, pending_request.future)
        first = [each for each in free if each.replica_id == chosen.id]
        return [first, [each for each in wanted if each.replica_id != chosen.id]]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Report replicas that are new or gone to the router, and the load of the others."""
        super().update_replicas(replicas)
        for gone in self._known.keys() - {each.replica_id for each in replicas}:
            self._down(gone)
        for each in replicas:
            known = self._known.get(each.replica_id)
            if known is None:
                known = Replica(each.replica_id, next(self._numbers), each.max_ongoing_requests)
                self._known[each.replica_id] = known
                self.routes.up(known)
            self._read_stats(known, each.routing_stats)
        set_replicas(self._deployment, len(self._known))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Remove the replica with its cached prefixes."""
        super().on_replica_actor_died(replica_id)
        self._down(replica_id)

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        """Correct the ledger where Ray Serve took another replica than the chosen one."""
        sent = self._sent.get(pending_request.metadata.internal_request_id)
        replica = self._known.get(replica_id)
        if sent is not None and replica is not None and sent.replica is not replica:
            self.routes.choose(sent.job, [replica], time.monotonic())
            self._record(sent.job, replica, sent.future)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Remove the request from the ledger."""
        sent = self._sent.get(internal_request_id)
        if sent is not None and sent.replica.id == replica_id:
            self._forget(internal_request_id)

    def _record(self, job: Job, replica: Replica, future: asyncio.Future[Any]) -> None:
        before = self._sent.get(job.id)
        if before is not None:
            before.replica.jobs.discard(job.id)
        if before is None or before.future is not future:
            # A call that is cancelled while it waits for a replica never completes there.
            future.add_done_callback(lambda done: self._forget(job.id) if done.cancelled() else None)
        replica.jobs.add(job.id)
        self._sent[job.id] = _Sent(job, replica, future)

    def _forget(self, job_id: str) -> None:
        sent = self._sent.pop(job_id, None)
        if sent is not None:
            now = time.monotonic()
            sent.replica.jobs.discard(job_id)
            if "at" in sent.replica.stats:
                sent.replica.ended.append((sent.at, now))
            self.routes.on_finished(sent.job, sent.replica, now, 0, None)

    def _down(self, replica_id: ReplicaID) -> None:
        replica = self._known.pop(replica_id, None)
        if replica is not None:
            set_replicas(self._deployment, len(self._known))
            self.routes.forget(replica)
            for job_id in list(replica.jobs):
                self._forget(job_id)

    def _read_stats(self, replica: Replica, stats: Mapping[str, Any]) -> None:
        if not stats or stats == replica.stats:
            return
        replica.stats = dict(stats)
        if "kv_tokens" in stats:
            memory = EngineMemory(int(stats["kv_tokens"]), int(stats["block_size"]))
            if memory != replica.memory:
                replica.memory = memory
                self.routes.up(replica)
        if "running" in stats:
            now = time.monotonic()
            at = now - max(0.0, time.time() - stats["at"]) if "at" in stats else now
            replica.ended = [each for each in replica.ended if each[1] > at]
            over = sum(sent <= at for sent, _ in replica.ended)
            gauges = EngineGauges(max(0, int(stats["running"]) - over), int(stats["waiting"]), stats.get("kv_use"))
            self.routes.on_metrics(replica, gauges, at)

    async def _job(self, pending_request: PendingRequest) -> Job | None:
        """Return the job of a call; the same one while it is routed again."""
        job_id = pending_request.metadata.internal_request_id
        sent = self._sent.get(job_id)
        if sent is not None and sent.future is pending_request.future:
            return sent.job
        args = pending_request.args
        large = len(args) > 2 and isinstance(args[2], bytes) and len(args[2]) >= LARGE_BODY
        return await asyncio.to_thread(read_job, job_id, args) if large else read_job(job_id, args)
