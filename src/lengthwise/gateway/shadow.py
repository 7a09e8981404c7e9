"""A proxy that only observes: requests pass at once, and predictions and measurements are logged.

It decides nothing: it has no queue, no order and no limit.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lengthwise.client.client import EngineClient, EngineError, without_credentials
from lengthwise.client.scrape import fetch_metrics, read_gauges, read_memory
from lengthwise.gateway.bodies import BODIES, CompletionBody, parse
from lengthwise.gateway.errors import ApiError, from_engine, internal_error_response
from lengthwise.gateway.server import run_app
from lengthwise.gateway.streaming import Caller, ClientGoneError, Measure, relay
from lengthwise.lengths import LengthDistribution, LogT, Point
from lengthwise.predictors.service import PredictionService, prediction_service
from lengthwise.traffic.rows import PredictionSource
from lengthwise.traffic.shadow_log import End, Entry, Gauges, Header, PredictorAccount, ShadowLog

_MAX_BYTES: Final = 1 << 30


@dataclass
class _Seen:
    """One observed request so far."""

    key: str
    arrival_s: float
    body: CompletionBody | None
    measure: Measure
    prompt_bytes: int
    history: LengthDistribution | None = None
    predicted: LengthDistribution | None = None
    first_token_s: float | None = None
    streamed: bool = False
    end: End = "left"


@dataclass
class ShadowProxy:
    """The ASGI application of the shadow."""

    client: EngineClient
    predictions: PredictionService
    log: ShadowLog
    stream_usage: bool = True
    clock: Callable[[], float] = time.monotonic
    began: float = field(default_factory=time.monotonic)
    """Time of the log's second 0."""
    _open: dict[str, _Seen] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request."""
        arrival_s = self.clock() - self.began
        caller = Caller(scope, receive, send)
        model = BODIES.get(scope["path"]) if scope["method"] == "POST" else None
        try:
            raw = await caller.body(_MAX_BYTES)
            with caller.present():
                if model is None:
                    await self._forward(scope, caller, raw, _Seen("", arrival_s, None, Measure(), len(raw)))
                else:
                    await self._watch(scope, caller, raw, model, arrival_s)
        except ApiError as error:
            await caller.fail(error, None)
        except ClientGoneError:
            pass

    async def _watch(
        self, scope: Scope, caller: Caller, raw: bytes, model: type[CompletionBody], arrival_s: float
    ) -> None:
        try:
            body = parse(model, raw)
        except ApiError:  # the engine reports it to the client
            body = None
        hide_usage = self.stream_usage and body is not None and body.lacks_usage
        if hide_usage:
            raw = CompletionBody.with_usage(raw)
        seen = _Seen(str(next(self._numbers)), arrival_s, body, model.measure(hide_usage=hide_usage), len(raw))
        self._predict(seen)
        try:
            await self._forward(scope, caller, raw, seen)
        finally:
            if seen.end == "left" and seen.measure.done:  # clients may close the connection at the last event
                seen.end = _end(seen.measure)
            self._ended(seen)

    def _predict(self, seen: _Seen) -> None:
        """Ask for a prediction, as the plug-in would; the request does not wait for it."""
        self._open[seen.key] = seen
        if seen.body is None:
            return
        seen.history = self.predictions.admit(seen.key, seen.body.llm, seen.body.limit)
        if seen.body.readable and seen.body.hint is None:
            self.predictions.ask(seen.key, seen.body.prediction_input)
        self.predictions.deliver(self._take)

    def _take(self, key: str, prediction: LengthDistribution) -> bool:
        seen = self._open[key]
        if prediction is not seen.history:  # which is passed where the predictor failed
            seen.predicted = prediction
        return True

    async def _forward(self, scope: Scope, caller: Caller, raw: bytes, seen: _Seen) -> None:
        path = scope["raw_path"].decode("latin-1") + caller.query
        try:
            answer = await self.client.forward(scope["method"], path, raw, caller.forwarded_headers())
            try:
                seen.streamed = answer.is_stream
                await relay(answer, caller, None, seen.measure, lambda: self._first(seen))
            finally:
                answer.close()
        except EngineError as error:
            seen.end = "broken"
            if not caller.answered:
                raise from_engine(error) from error
            return
        seen.end = "refused" if answer.status >= 400 else _end(seen.measure)

    def _first(self, seen: _Seen) -> None:
        if seen.streamed:
            seen.first_token_s = self.clock() - self.began

    def _ended(self, seen: _Seen) -> None:
        self.predictions.deliver(self._take)
        del self._open[seen.key]
        finished_s = self.clock() - self.began
        one = seen.body is not None and seen.body.one_answer
        tokens, cut = seen.measure.length or (None, False)
        self.predictions.ended(seen.key, tokens if one and seen.end != "refused" else None, censored=cut)
        self.log.add(_entry(seen, finished_s, tokens))


def _end(measure: Measure) -> End:
    if measure.length is None or not measure.reported:
        return "unmeasured"
    return "cut" if measure.length[1] else "whole"


def _entry(seen: _Seen, finished_s: float, tokens: int | None) -> Entry:
    body = seen.body
    source, mu, sigma = _prediction(seen)
    return Entry(
        arrival_s=round(seen.arrival_s, 6),
        finished_s=round(finished_s, 6),
        end=seen.end,
        llm="" if body is None else body.llm,
        streamed=seen.streamed,
        first_token_s=None if seen.first_token_s is None else round(seen.first_token_s, 6),
        prompt_tokens=seen.measure.prompt_tokens,
        prompt_bytes=seen.prompt_bytes,
        output_tokens=seen.measure.counted if tokens is None else tokens,
        exact=seen.measure.reported,
        one_answer=body is not None and body.one_answer,
        max_tokens=None if body is None else body.limit,
        source=source,
        prediction_mu=mu,
        prediction_sigma=sigma,
    )


def _prediction(seen: _Seen) -> tuple[PredictionSource, float | None, float | None]:
    """Return the prediction a scheduler would have used: the client's hint, else the predictor's, else history."""
    hint = None if seen.body is None else seen.body.prediction()
    known: dict[PredictionSource, LengthDistribution | None] = {
        "hint": hint,
        "predictor": seen.predicted,
        "history": seen.history,
    }
    for source, prediction in known.items():
        if isinstance(prediction, LogT):
            return source, prediction.mu, prediction.sigma
        if isinstance(prediction, Point):
            return source, math.log(max(1.0, prediction.mean())), 0.0
    return "prior", None, None


_SCRAPE_EVERY_S: Final = 1.0
_SILENCE_S: Final = 24 * 3600.0  # timeouts are left to client and engine
_SHUTDOWN_S: Final = 30


def create_shadow(
    url: str,
    log: ShadowLog,
    predictor: str = "fast",
    *,
    stream_usage: bool = True,
    scrape_every_s: float = _SCRAPE_EVERY_S,
) -> Starlette:
    """Return the proxy in front of the engine at `url`; `log` stays open while it serves."""
    client = EngineClient(url, name="the engine", silence_timeout_s=_SILENCE_S)
    predictions = prediction_service(predictor)
    proxy = ShadowProxy(client, predictions, log, stream_usage)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        predictions.warm()
        async with client:
            scrape = asyncio.create_task(_scrape(client, proxy, scrape_every_s))
            try:
                yield
            finally:
                scrape.cancel()
                await asyncio.wait([scrape])
                counts = predictions.counts
                age_s = round(counts.age_s / max(1, counts.answered), 6)
                figures = (counts.asked, counts.answered, counts.failed, counts.dropped, round(counts.cpu_s, 6))
                log.add(PredictorAccount(*figures, mean_age_s=age_s))
                predictions.close()

    return Starlette(
        routes=[Route("/{path:path}", proxy)],
        lifespan=lifespan,
        exception_handlers={Exception: internal_error_response},
    )


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
    with ShadowLog(path, Header(without_credentials(url), predictor, time.time())) as log:
        app = create_shadow(url, log, predictor, stream_usage=stream_usage)
        run_app(app, sock, shutdown_timeout_s=_SHUTDOWN_S, on_ready=on_ready)


async def _scrape(client: EngineClient, proxy: ShadowProxy, every_s: float) -> None:
    """Log the engine's load when it changes; stop if the engine reports none."""
    last: tuple[int, int] | None = None
    memory = False
    while True:
        metrics = await fetch_metrics(client)
        if metrics is None:
            return
        if not memory and (found := read_memory(metrics)) is not None:
            proxy.log.add(found)
            memory = True
        gauges = read_gauges(metrics)
        if gauges is not None and (gauges.running, gauges.waiting) != last:
            last = gauges.running, gauges.waiting
            proxy.log.add(Gauges(round(proxy.clock() - proxy.began, 3), *last, gauges.kv_use))
        await asyncio.sleep(every_s)
