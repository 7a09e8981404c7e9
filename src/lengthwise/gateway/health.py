"""Watches the engines: one that stops answering gets no new requests until it answers again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lengthwise.engines.client import EngineError
from lengthwise.engines.gauges import ask_metrics, read_gauges, read_memory

if TYPE_CHECKING:
    from lengthwise.gateway.dispatch import Dispatcher, Engine
    from lengthwise.gateway.metrics import Metrics


async def watch(dispatcher: Dispatcher, metrics: Metrics, *, interval_s: float, hold_timeout_s: float) -> None:
    """Ask every engine every `interval_s`, each on its own so that a slow one delays nobody."""
    async with asyncio.TaskGroup() as tasks:
        for engine in dispatcher.engines:
            tasks.create_task(_watch_engine(engine, dispatcher, metrics, interval_s))
        tasks.create_task(_give_up(dispatcher, interval_s, hold_timeout_s))


async def _watch_engine(engine: Engine, dispatcher: Dispatcher, metrics: Metrics, interval_s: float) -> None:
    tells = wanted = dispatcher.routes.router is not None
    while True:
        tells = tells or (wanted and not engine.up)  # one that has no figures is not asked again before it comes back
        try:
            await engine.client.check()
        except EngineError as error:
            if engine.up:
                metrics.failed(engine, error.kind)
            dispatcher.set_down(engine, error)
        else:
            dispatcher.set_up(engine)
            tells = tells and await _scrape(engine, dispatcher)
        await asyncio.sleep(interval_s)


async def _scrape(engine: Engine, dispatcher: Dispatcher) -> bool:
    """Let the router know how busy the engine says it is; False where it says nothing of that kind."""
    asked_at = dispatcher.clock()  # who is sent while the answer comes may not be in it
    told = await ask_metrics(engine.client)
    if not told:
        return told is not None
    if (memory := read_memory(told)) is not None:
        dispatcher.routes.holds(engine, memory.kv_tokens)
    gauges = read_gauges(told)
    if gauges is not None and engine.up:
        dispatcher.routes.scraped(engine, gauges, asked_at)
    return gauges is not None


async def _give_up(dispatcher: Dispatcher, interval_s: float, hold_timeout_s: float) -> None:
    while True:
        dispatcher.give_up(hold_timeout_s)
        await asyncio.sleep(min(interval_s, hold_timeout_s / 4) if hold_timeout_s else interval_s)
