"""The engines of a gateway: they join and leave while it serves, and each is checked in a task of its own."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, Self

from lengthwise.client.client import EngineClient, EngineError
from lengthwise.client.kind import find_engine_kind
from lengthwise.client.scrape import fetch_metrics, read_gauges, read_memory
from lengthwise.defaults import DEFAULT_ROUTER
from lengthwise.errors import InputError
from lengthwise.gateway.config import EngineConfig, GatewayConfig
from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.engine_state import Breaker, EngineIdentity, GatewayEngine, Health
from lengthwise.gateway.metrics import Metrics
from lengthwise.gateway.retries import Retries
from lengthwise.gateway.routing import warm_router
from lengthwise.traffic.log import EngineReading, TrafficLog

_log = logging.getLogger(__name__)
_Reported = tuple[int | None, int | None, int | None, int | None]
_POLL_S: Final = 0.05
_ASK_AGAIN_S: Final = 30.0


class EngineFleet:
    """The connections to the engines and their health checks; open while it is used as an async context manager."""

    def __init__(
        self,
        config: GatewayConfig,
        dispatcher: Dispatcher,
        metrics: Metrics,
        make_client: Callable[..., EngineClient] = EngineClient,
        log: TrafficLog | None = None,
    ) -> None:
        """With `log`, what the engines report is written there when it changes."""
        self._log = log
        self._config = config
        self._make_client = make_client
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches: dict[int, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        # Before the first request, so that none goes to an engine that is down or serves another model.
        for engine in await asyncio.gather(*map(self._connect, self._config.engines)):
            self._join(engine)
        hold_s, interval_s = self._config.hold_timeout_s, self._config.health_interval_s

        async def expire() -> None:
            self._dispatcher.expire(hold_s)

        self._start(_repeat(expire, min(interval_s, hold_s / 4) if hold_s else interval_s))
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for engine in self._dispatcher.engines:
            await engine.client.close()

    def use(self, config: GatewayConfig) -> None:
        """Use these timeouts and limits for engines that join from now on."""
        self._config = config

    async def add(self, wanted: EngineConfig, *, replacing: str | None = None) -> GatewayEngine:
        """Connect to an engine and check it; it gets requests once it is up. InputError if it is there already.

        With `replacing`, the engine of that name leaves as this one joins, so that no waiting request is without one.
        """
        engine = await self._connect(wanted, replacing)
        try:
            await self._need_router()
            self._refuse_twice(engine, replacing)
        except BaseException:
            await engine.client.close()
            raise
        self._join(engine)
        if replacing is not None:
            self.remove(replacing)
        return engine

    def remove(self, name: str, timeout_s: float | None = None) -> asyncio.Task[None]:
        """Send no more requests to an engine. KeyError if there is none of that name.

        The returned task ends when the engine's running requests have ended; after `timeout_s` (`shutdown_timeout_s` of
        the configuration unless given) they are cut.
        """
        engine = self._dispatcher.remove_engine(name)
        return self._start(self._drain(engine, self._config.shutdown_timeout_s if timeout_s is None else timeout_s))

    async def _drain(self, engine: GatewayEngine, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await engine.drained.wait()
                self._watches[engine.number].cancel()
                while engine.client.open_answers:  # forwarded requests, which take no slot
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            cut = engine.client.open_answers
            _log.warning("%s leaves with %d running requests, which are cut", engine.name, cut)
        finally:
            self._watches.pop(engine.number).cancel()
            await engine.client.close()
            self._metrics.forget(engine)

    async def _connect(self, wanted: EngineConfig, replacing: str | None = None) -> GatewayEngine:
        """Open a client and check its engine once: whether it is up, and its models."""
        config, number = self._config, next(self._numbers)
        client = self._make_client(
            wanted.url,
            name=wanted.name or f"engine-{number}",
            api_key=None if wanted.api_key is None else wanted.api_key.get_secret_value(),
            connect_timeout_s=config.connect_timeout_s,
            silence_timeout_s=config.silence_timeout_s,
        )
        known = (
            EngineIdentity() if wanted.kind == "auto" else EngineIdentity(wanted.kind, f"{wanted.kind} (configured)")
        )
        engine = GatewayEngine(
            client,
            number,
            wanted.in_flight or config.in_flight,
            Health(config.health_failures, config.health_successes),
            Breaker(config.breaker_failures, config.breaker_s),
            known,
        )
        engine.retries = Retries(most=config.retries, share=config.retry_share, first=engine.slots)
        self._refuse_twice(engine, replacing)
        try:
            await client.open()
            if await self._check(engine):
                engine.models = await _models(engine)
                await self._identify(engine)
            else:
                engine.health.on_unreachable()
        except BaseException:
            await client.close()
            raise
        return engine

    def _join(self, engine: GatewayEngine) -> None:
        self._dispatcher.add_engine(engine)
        self._watches[engine.number] = self._start(_repeat(self._watch(engine), self._config.health_interval_s))

    def _refuse_twice(self, engine: GatewayEngine, replacing: str | None) -> None:
        for other in self._dispatcher.engines:
            if other.leaving or other.name == replacing:
                continue
            if other.client.url == engine.client.url:
                raise InputError(f"engine {other.client.url} is there already", hint="remove it first")
            if other.name == engine.name:
                raise InputError(f"an engine named {engine.name} is there already", hint="choose another name")

    def _watch(self, engine: GatewayEngine) -> Callable[[], Awaitable[None]]:
        """Return the periodic check of an engine: its health, its models, and its load where that is used."""
        dispatcher = self._dispatcher
        scrapes, replicas = True, 1
        logged: _Reported | None = None

        async def check() -> None:
            nonlocal scrapes, replicas, logged
            healthy = await self._check(engine)
            if (now := max(1, engine.client.replicas)) != replicas:
                dispatcher.set_slots(engine, max(1, engine.slots * now // replicas))
                replicas = now
            if healthy:  # before it is up, so that no request for another model is sent there
                if not _is_busy_plain_server(engine):
                    dispatcher.set_models(engine, await _models(engine))
                await self._identify(engine)
            dispatcher.on_check(engine, healthy=healthy)
            if not healthy:
                scrapes = True  # an engine without metrics is asked again once it was down
                engine.identity.doubt()
                return
            if scrapes:
                scrapes = await _scrape(engine, dispatcher)
                if self._log is not None and scrapes and (reported := _reported(engine)) != logged:
                    logged = reported
                    kv_use = None if engine.gauges is None else engine.gauges.kv_use
                    self._log.add(EngineReading(time.time(), engine.name, *reported, kv_use=kv_use))

        return check

    async def _identify(self, engine: GatewayEngine) -> None:
        """Find out what an engine is, unless that is known; one that does not answer is asked again later."""
        now = self._dispatcher.clock()
        if not engine.identity.is_asked(now):
            return
        try:
            found = await find_engine_kind(engine.client)
        except EngineError as error:
            _log.warning("%s: %s; nothing is added to its requests", engine.name, error)
            engine.identity.ask_again(now + _ASK_AGAIN_S)
            return
        engine.identity.find(found)
        _log.info("%s is %s", engine.name, found)

    async def _check(self, engine: GatewayEngine) -> bool:
        try:
            await engine.client.check()
        except EngineError as error:
            if engine.up:
                self._metrics.failed(engine, error.kind)
            return False
        return True

    async def _need_router(self) -> None:
        """Load the router for the second engine: with one there is no choice."""
        routes = self._dispatcher.routes
        if routes.router is None and self._dispatcher.engines:
            router = await asyncio.to_thread(warm_router, self._config.router or DEFAULT_ROUTER)
            if routes.router is None:
                routes.use(router, [engine for engine in self._dispatcher.engines if engine.up])

    def _start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _repeat(work: Callable[[], Awaitable[None]], interval_s: float) -> None:
    while True:
        try:
            await work()
        except Exception:  # the next check must follow, whatever an engine answers
            _log.exception("a check of an engine failed")
        await asyncio.sleep(interval_s)


async def _models(engine: GatewayEngine) -> frozenset[str] | None:
    """Return the models that an engine lists; None if it lists none, as one that asks for a client's key."""
    try:
        return frozenset(str(model["id"]) for model in await engine.client.models()) or None
    except EngineError:
        return engine.models


def _is_busy_plain_server(engine: GatewayEngine) -> bool:
    """Whether an engine is a plain OpenAI server that runs requests of ours, and its models are known.

    It is not asked for them again then: llama-cpp-python's server ends the answer that it generates when asked.
    """
    return bool(engine.jobs) and engine.models is not None and engine.identity.kind == "openai"


def _reported(engine: GatewayEngine) -> _Reported:
    """Return running and waiting requests, KV tokens and block size, as the engine has reported them."""
    gauges, memory = engine.gauges, engine.memory
    load = (None, None) if gauges is None else (gauges.running, gauges.waiting)
    return (*load, None, None) if memory is None else (*load, memory.kv_tokens, memory.block_size)


async def _scrape(engine: GatewayEngine, dispatcher: Dispatcher) -> bool:
    """Pass the engine's load and KV memory on; False if it reports neither."""
    own = engine.in_flight
    asked_at = dispatcher.clock()  # a request sent while the answer arrives may be missing in it
    metrics = await fetch_metrics(engine.client)
    if not metrics:
        return metrics is not None
    if (memory := read_memory(metrics)) is not None:
        dispatcher.set_memory(engine, memory)
    gauges = read_gauges(metrics)
    if gauges is not None:
        dispatcher.on_load(engine, gauges, asked_at, own)
    return gauges is not None
