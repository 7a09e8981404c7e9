"""The request router by itself: replicas are stand-ins, Ray Serve's calls are made by hand."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'lengthwise[ray]'")

from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve.request_router import PendingRequest

from lengthwise.ray.calls import replica_counts
from lengthwise.ray.request_router import LengthwiseRequestRouter

DEPLOYMENT = DeploymentID(name="engine", app_name="tests")


class StandInReplica(SimpleNamespace):
    """Stands in for Ray Serve's RunningReplica."""

    def __init__(self, name: str, **stats: Any) -> None:
        super().__init__(
            replica_id=ReplicaID(name, DEPLOYMENT), max_ongoing_requests=4, routing_stats=stats, node_id="n"
        )

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return 0


def router(*replicas: StandInReplica, spec: str = "lengthwise") -> LengthwiseRequestRouter:
    made = LengthwiseRequestRouter(
        deployment_id=DEPLOYMENT,
        handle_source=DeploymentHandleSource.REPLICA,
        use_replica_queue_len_cache=True,
    )
    made.initialize_state(router=spec)
    made.update_replicas(list(replicas))
    return made


def call(name: str, prompt: str = "x", path: str = "/v1/completions", **kwargs: Any) -> PendingRequest:
    body = json.dumps({"prompt": prompt}).encode()
    return PendingRequest(("POST", path, body, []), kwargs, RequestMetadata(request_id=name, internal_request_id=name))


async def choose(made: LengthwiseRequestRouter, pending: PendingRequest) -> str:
    ranks = await made.choose_replicas(list(made.curr_replicas.values()), pending)
    return str(ranks[0][0].replica_id.unique_id)


def running(made: LengthwiseRequestRouter) -> dict[str, int]:
    return {each.name: each.in_flight for each in made._known.values()}


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_calls_spread_by_expected_work_and_return_to_their_prefix() -> None:
    async def test() -> None:
        made = router(StandInReplica("a"), StandInReplica("b"))
        first, second = await choose(made, call("1", "alpha " * 500)), await choose(made, call("2", "beta " * 500))
        assert {first, second} == {"a", "b"}
        for name, replica in (("1", first), ("2", second)):
            made.on_request_completed(ReplicaID(replica, DEPLOYMENT), name)
        assert running(made) == {"a": 0, "b": 0}
        assert await choose(made, call("3", "beta " * 500 + "?")) == second
        assert await choose(made, call("4", "alpha " * 500 + "?")) == first

    run(test())


def test_a_late_report_is_not_counted_as_foreign_load() -> None:
    async def test() -> None:
        idle = {"running": 0, "waiting": 0, "at": time.time()}
        made = router(StandInReplica("a", **idle), StandInReplica("b", **idle))
        first = await choose(made, call("1", "alpha " * 500))
        reported = {first: {"running": 1, "waiting": 0, "at": time.time()}}
        made.on_request_completed(ReplicaID(first, DEPLOYMENT), "1")
        made.update_replicas([StandInReplica(name, **reported.get(name, idle)) for name in "ab"])
        assert await choose(made, call("2", "alpha " * 500 + "?")) == first

    run(test())


def test_a_call_that_is_cancelled_while_it_waits_leaves_the_ledger() -> None:
    async def test() -> None:
        made, pending = router(StandInReplica("a")), call("1")
        for _ in range(3):  # as while all replicas are full
            await choose(made, pending)
        assert running(made) == {"a": 1}
        pending.future.cancel()
        await asyncio.sleep(0)
        assert running(made) == {"a": 0}

    run(test())


def test_a_call_keeps_its_prefix_while_every_replica_is_full() -> None:
    async def test() -> None:
        made = router(StandInReplica("a"), StandInReplica("b"))
        first = await choose(made, call("1", "alpha " * 500))
        for name in "ab":
            made.on_new_queue_len_info(ReplicaID(name, DEPLOYMENT), 4)
        made.on_request_completed(ReplicaID(first, DEPLOYMENT), "1")
        assert await choose(made, call("2", "alpha " * 500 + "?")) == first

    run(test())


def test_a_call_counts_where_ray_serve_sent_it() -> None:
    async def test() -> None:
        made, pending = router(StandInReplica("a"), StandInReplica("b")), call("1")
        chosen = await choose(made, pending)
        other = "b" if chosen == "a" else "a"
        made.on_request_routed(pending, ReplicaID(other, DEPLOYMENT), None)
        assert running(made) == {chosen: 0, other: 1}
        made.on_request_completed(ReplicaID(chosen, DEPLOYMENT), "1")  # the replica that had rejected it
        assert running(made)[other] == 1
        made.on_request_completed(ReplicaID(other, DEPLOYMENT), "1")
        assert running(made) == {"a": 0, "b": 0}

    run(test())


def test_a_removed_replica_takes_its_calls_out_of_the_ledger() -> None:
    async def test() -> None:
        a, b = StandInReplica("a"), StandInReplica("b")
        made = router(a)
        await choose(made, call("1"))
        made.update_replicas([a, b])
        assert replica_counts["tests", "engine"] == 2
        made.on_replica_actor_died(a.replica_id)
        assert running(made) == {"b": 0}
        assert replica_counts["tests", "engine"] == 1
        made.on_request_completed(a.replica_id, "1")
        assert await choose(made, call("2")) == "b"

    run(test())


def test_a_replica_that_failed_a_call_is_avoided_while_there_is_another() -> None:
    async def test() -> None:
        made = router(StandInReplica("a"), StandInReplica("b"))
        assert {await choose(made, call(str(n), avoid=("a",))) for n in range(3)} == {"b"}
        alone = router(StandInReplica("a"))
        assert await choose(alone, call("1", avoid=("a",))) == "a"

    run(test())


def test_a_call_without_a_completion_is_left_to_ray_serve() -> None:
    async def test() -> None:
        made = router(StandInReplica("a"), StandInReplica("b"))
        ranks = await made.choose_replicas(list(made.curr_replicas.values()), call("1", path="/v1/models"))
        assert [len(rank) for rank in ranks] == [2]
        assert running(made) == {"a": 0, "b": 0}

    run(test())


def test_a_replica_that_reports_full_kv_memory_is_avoided() -> None:
    async def test() -> None:
        full = StandInReplica("a", running=64, waiting=64, kv_use=1.0, kv_tokens=10_000, block_size=16)
        idle = StandInReplica("b", running=0, waiting=0, kv_use=0.0, kv_tokens=10_000, block_size=16)
        made = router(full, idle)
        assert await choose(made, call("1", "x" * 4000)) == "b"

    run(test())


@pytest.mark.parametrize("spec", ["round_robin", "power_of_two", "least_load"])
def test_any_router_can_be_used(spec: str) -> None:
    async def test() -> None:
        made = router(StandInReplica("a"), StandInReplica("b"), spec=spec)
        assert {await choose(made, call(str(n))) for n in range(20)} <= {"a", "b"}
        assert sum(running(made).values()) == 20

    run(test())
