"""Every router under the same laws, with events that are late, duplicated, missing, wrong or out of order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.routing import RouterAdapter, warm_router
from lengthwise.policies import Job
from lengthwise.routers import (
    ROUTERS,
    Admitted,
    BaseRouter,
    EngineId,
    EngineInfo,
    Event,
    ExplainingRouter,
    Finished,
    NoEngineError,
    Router,
    Scraped,
    Speed,
    make_router,
)
from lengthwise.routers.tracking import LedgerRouter
from tests.conformance.strategies import jobs
from tests.routers.ledger_checks import check_empty, check_ledger

SPECS = (
    *ROUTERS,
    "random:seed=7",
    "cache_aware:absolute=1,relative=1",
    "dynamo:active=2",
    "e2:window=5,hits=0.1",
    "tests.conformance.outside_router:Alternate",
    "tests.conformance.outside_router:Alternate:repeat=2",
)
names = st.sampled_from(["a", "b", "c", 3])
infos = st.builds(
    EngineInfo,
    names,
    st.builds(Speed, st.sampled_from([1e-5, 1e-3]), st.sampled_from([0.01, 0.1])),
    kv_tokens=st.sampled_from([64, 640, 100_000]),
    max_num_seqs=st.integers(1, 4),
    caches=st.booleans(),
)
chains = st.lists(st.integers(0, 2), max_size=6).map(
    lambda path: [hash(tuple(path[: n + 1])) % 2**64 for n in range(len(path))]
)
tokens = st.integers(0, 3000)


class AnyRouter(RuleBasedStateMachine):
    """Engines join and leave; jobs are sent, with correct and wrong events.

    A twin, in which nothing is compiled, does the same to the last bit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.router: Router = make_router("random")
        self.twin: Router = make_router("random")
        self.up: dict[EngineId, EngineInfo] = {}
        self.sent: dict[str, EngineId] = {}
        self.events: list[Event] = []
        self.now = 0.0
        self.count = 0

    @initialize(spec=st.sampled_from(SPECS))
    def start(self, spec: str) -> None:
        self.router, self.twin = make_router(spec), make_router(spec)
        if isinstance(self.twin, BaseRouter):
            self.twin.interpret()
        assert self.router.name == spec

    @rule(info=infos)
    def engine_up(self, info: EngineInfo) -> None:
        for router in (self.router, self.twin):
            router.engine_up(info)
        self.up[info.id] = info

    @rule(name=names)
    def engine_down(self, name: EngineId) -> None:
        for router in (self.router, self.twin):
            router.engine_down(name)
        self.up.pop(name, None)
        self.sent = {job: engine for job, engine in self.sent.items() if engine != name}

    @rule(wait=st.sampled_from([0.0, 0.01, 1.0, 100.0]))
    def wait(self, wait: float) -> None:
        self.now += wait

    @rule(job=jobs(), blocks=chains, again=st.booleans(), some=st.none() | st.sets(names))
    def choose(self, job: Job, blocks: list[int], again: bool, some: set[EngineId] | None) -> None:
        if not (again and self.sent):
            self.count += 1
        job.id, job.blocks = str(self.count), blocks
        allowed = set(self.up) if some is None else some & set(self.up)
        if not allowed:
            with pytest.raises(NoEngineError):
                self.router.choose(job, self.now, some)
            return
        weighed = self.router.weigh(job, self.now, some) if isinstance(self.router, ExplainingRouter) else {}
        decision = self.router.choose(job, self.now, some)
        assert self.twin.choose(job, self.now, some) == decision
        assert decision.engine in allowed
        assert not weighed or set(weighed) == allowed
        if weighed:
            costs = {engine: sum(terms.values()) for engine, terms in weighed.items()}
            assert costs[decision.engine] == pytest.approx(min(costs.values()))
        assert all(value == value and abs(value) < float("inf") for value in decision.terms.values())
        self.sent[job.id] = decision.engine

    @precondition(lambda self: self.count)
    @rule(
        number=st.integers(1, 30),
        engine=names,
        right=st.booleans(),
        made=tokens,
        kind=st.sampled_from("af"),
        ago=st.floats(0, 9),
    )
    def event(self, number: int, engine: EngineId, right: bool, made: int, kind: str, ago: float) -> None:
        """Send an event about any job, from any engine, at any time; events about unknown jobs are ignored."""
        job = str(1 + number % self.count)
        if right:
            engine = self.sent.get(job, engine)
        if kind == "f":
            event: Event = Finished(job, engine, self.now - ago, made, ttft_s=0.1 if made % 2 else None)
            if self.sent.get(job) == engine:
                del self.sent[job]
        else:
            event = Admitted(job, engine, self.now - ago)
        self._observe(event)
        self.events.append(event)

    @precondition(lambda self: self.events)
    @rule(number=st.integers(0, 1000))
    def duplicate(self, number: int) -> None:
        event = self.events[number % len(self.events)]
        if isinstance(event, Finished) and self.sent.get(event.job) == event.engine:
            del self.sent[event.job]  # an event of an earlier attempt on that engine cannot be distinguished
        self._observe(event)

    @rule(engine=names, running=st.integers(0, 5), waiting=st.integers(0, 5), use=st.none() | st.floats(0, 1))
    def scrape(self, engine: EngineId, running: int, waiting: int, use: float | None) -> None:
        self._observe(Scraped(engine, self.now, running, waiting, use))
        if isinstance(self.router, LedgerRouter):
            self.sent = {job: there for job, there in self.sent.items() if job in self.router.ledger}

    def _observe(self, event: Event) -> None:
        for router in (self.router, self.twin):
            router.observe(event)

    @invariant()
    def counts_are_right(self) -> None:
        if isinstance(self.router, BaseRouter):
            assert set(self.router.numbers) == set(self.up)
        if isinstance(self.router, LedgerRouter):
            assert set(self.router.ledger._rows) == set(self.sent)
        check_ledger(self.router)

    def teardown(self) -> None:
        for job, engine in self.sent.items():
            self.router.observe(Finished(job, engine, self.now, 10))
        check_empty(self.router)


TestAnyRouter = AnyRouter.TestCase
TestAnyRouter.settings = settings(max_examples=60, stateful_step_count=40)


def test_a_router_of_another_package_works_in_the_gateway() -> None:
    spec = "tests.conformance.outside_router:Alternate:repeat=2"
    engines = ("http://127.0.0.1:1", "http://127.0.0.1:2")
    config = GatewayConfig.model_validate({"engines": engines, "router": spec, "state": "off"})
    assert config.chosen_router == spec
    router = warm_router(spec)
    assert isinstance(router, Router)
    assert not isinstance(router, ExplainingRouter)
    adapter = RouterAdapter(router)
    assert (adapter.name, adapter.uses_predictions) == (spec, False)
