"""The shadow as an application and on a port: the proxy, and beside it a look at the engine's own gauges."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.routing import Route

from lengthwise.engines.client import EngineClient
from lengthwise.engines.gauges import ask_metrics, read_gauges, read_memory
from lengthwise.engines.shadow_log import Account, Gauges, Header, Memory, ShadowLog
from lengthwise.gateway.errors import tell_bug
from lengthwise.gateway.server import run_app
from lengthwise.gateway.shadow.proxy import ShadowProxy
from lengthwise.predictors.service import PredictionService, prediction_service

_LOOK_EVERY_S: Final = 1.0
_SILENCE_S: Final = 24 * 3600.0  # who waits longer than the engine answers is for client and engine to say
_SHUTDOWN_S: Final = 30


def create_shadow(
    url: str, log: ShadowLog, predictor: str = "fast", *, stream_usage: bool = True, look_every_s: float = _LOOK_EVERY_S
) -> Starlette:
    """The proxy before the engine at `url`; `log` is open for as long as it serves."""
    client = EngineClient(url, silence_timeout_s=_SILENCE_S)
    predictions = prediction_service(predictor)
    proxy = ShadowProxy(client, predictions, log, stream_usage)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        predictions.warm()
        async with client:
            look = asyncio.create_task(_look(client, proxy, look_every_s))
            try:
                yield
            finally:
                look.cancel()
                await asyncio.wait([look])
                log.add(_account(predictions))
                predictions.close()

    return Starlette(routes=[Route("/{path:path}", proxy)], lifespan=lifespan, exception_handlers={Exception: tell_bug})


def run_shadow(
    url: str,
    sock: socket.socket,
    path: Path,
    *,
    predictor: str,
    stream_usage: bool,
    on_ready: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then let running requests finish, for at most 30 s; the log is in `path`."""
    with ShadowLog(path, Header(url, predictor, time.time())) as log:
        app = create_shadow(url, log, predictor, stream_usage=stream_usage)
        run_app(app, sock, shutdown_timeout_s=_SHUTDOWN_S, on_ready=on_ready)


async def _look(client: EngineClient, proxy: ShadowProxy, every_s: float) -> None:
    """Note how full the engine says it is whenever that has changed; one that tells nothing is left alone."""
    last: tuple[int, int] | None = None
    memory = False
    while True:
        told = await ask_metrics(client)
        if told is None:
            return
        if not memory and (found := read_memory(told)) is not None:
            proxy.log.add(Memory(found.kv_tokens, found.block_size))
            memory = True
        gauges = read_gauges(told)
        if gauges is not None and (gauges.running, gauges.waiting) != last:
            last = gauges.running, gauges.waiting
            proxy.log.add(Gauges(round(proxy.clock() - proxy.began, 3), *last, gauges.kv_use))
        await asyncio.sleep(every_s)


def _account(predictions: PredictionService) -> Account:
    counts = predictions.counts
    age = counts.age_s / counts.answered if counts.answered else 0.0
    return Account(counts.asked, counts.answered, counts.failed, counts.dropped, round(counts.cpu_s, 6), round(age, 6))
