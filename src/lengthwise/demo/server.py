"""The demo in one process: simulated engines, two gateways and the page, each on a port of the loopback address."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lengthwise.client.simulated_server import SimulatedApp, listen
from lengthwise.demo.race import Race
from lengthwise.demo.traffic import RaceTraffic
from lengthwise.errors import InputError
from lengthwise.gateway.app import create_app
from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.dashboard import PAGE_HEADERS
from lengthwise.gateway.server import bind
from lengthwise.predictors.service import NO_PREDICTOR, QUICK
from lengthwise.simulator.grid import BASELINE
from lengthwise.simulator.live import LiveEngine, SimulatedOptions

FRAME_S: Final = 0.25
_CHUNK_S: Final = 1.0  # of a stream: progress is estimated, and each chunk costs CPU time in three servers
_MAX_VIEWERS: Final = 16
_LOCAL: Final = "127.0.0.1"
_PAGE: Final = Path(__file__).parent / "static"
_LOOK: Final = Path(__file__).parent.parent / "gateway" / "static" / "dashboard.css"
_FILES: Final[Mapping[str, tuple[Path, str]]] = {
    "/": (_PAGE / "index.html", "text/html"),
    "/dashboard.css": (_LOOK, "text/css"),
    "/demo.css": (_PAGE / "demo.css", "text/css"),
    "/demo.js": (_PAGE / "demo.js", "text/javascript"),
}


class _Server(uvicorn.Server):
    """One of several servers in a process: signals end the process's main task, not a server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Leave signals alone."""
        yield


@contextlib.asynccontextmanager
async def _serving(app: Any, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    """Serve an ASGI application on sockets that are bound."""
    config = uvicorn.Config(
        app, log_level="critical", access_log=False, ws="none", lifespan="on", server_header=False,
        proxy_headers=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=list(sockets)))
    try:
        while not server.started:
            if serving.done():
                await serving
                raise InputError("a server of the demo did not start", hint="see `lengthwise doctor`")
            await asyncio.sleep(0.005)
        yield
    finally:
        server.should_exit = True
        with contextlib.suppress(SystemExit):
            await serving


class DemoPage:
    """The page: static files, a stream of frames that all viewers share, and its controls."""

    def __init__(self, race: Race) -> None:
        self._race = race
        self._viewers: set[asyncio.Queue[bytes | None]] = set()
        self._ended = False

    @property
    def watched(self) -> bool:
        """Whether somebody watches."""
        return bool(self._viewers)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        files = [Route(path, self._file) for path in _FILES]
        return Starlette(
            routes=[*files, Route("/events", self._events), Route("/control", self._control, methods=["POST"])]
        )

    async def _file(self, request: Request) -> Response:
        path, kind = _FILES[request.url.path]
        return Response(path.read_bytes(), media_type=kind, headers=PAGE_HEADERS)

    async def _control(self, request: Request) -> Response:
        # A page of another host cannot send this type without asking first, which is not answered.
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return JSONResponse({"error": "send application/json"}, 415)
        try:
            wanted = json.loads(await request.body())
            if not isinstance(wanted, dict):
                raise InputError("send an object")
            await self._race.control(wanted)
        except ValueError as error:  # an InputError is one
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse({"ok": True})

    async def _events(self, _: Request) -> Response:
        if len(self._viewers) >= _MAX_VIEWERS:
            return JSONResponse({"error": f"{_MAX_VIEWERS} viewers watch, the most allowed"}, 503)
        headers = {"cache-control": "no-store"}
        return StreamingResponse(self._watch(), media_type="text/event-stream", headers=headers)

    async def _watch(self) -> AsyncIterator[bytes]:
        frames: asyncio.Queue[bytes | None] = asyncio.Queue(4)
        self._viewers.add(frames)
        try:
            yield _event("hello", self._race.hello()) + _event("frame", await self._race.frame())
            while not self._ended and (frame := await frames.get()) is not None:
                yield frame
            yield _event("bye", {})
        finally:
            self._viewers.discard(frames)

    async def run(self) -> None:
        """Send frames while somebody watches."""
        while True:
            await asyncio.sleep(FRAME_S)
            if self._viewers:
                self._send(_event("frame", await self._race.frame()))

    async def end(self) -> None:
        """Send the last frame, and let the viewers know that there are no more."""
        if self._viewers:
            self._send(_event("frame", await self._race.frame()))
        self._ended = True
        self._send(None)

    def _send(self, frame: bytes | None) -> None:
        for viewer in self._viewers:
            if frame is None or not viewer.full():  # a slow viewer misses frames
                while viewer.full():
                    viewer.get_nowait()
                viewer.put_nowait(frame)


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def run_demo(
    traffic: RaceTraffic,
    *,
    policy: str,
    port: int,
    seconds_s: float,
    once: bool,
    on_ready: Callable[[str], None],
    on_end: Callable[[Race], None],
    recording: Callable[[str], Awaitable[None]] | None = None,
) -> None:
    """Run races until Ctrl-C, or one; `on_ready` gets the page's URL, `on_end` every race that has ended or is stopped.

    `recording` is awaited beside the race with the page's URL.
    """
    ended = contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError)  # SIGINT, SIGTERM
    with contextlib.closing(bind(_LOCAL, port)) as sock, ended:
        asyncio.run(_run(traffic, policy, sock, seconds_s, once, on_ready, on_end, recording))


async def _run(
    traffic: RaceTraffic,
    policy: str,
    sock: socket.socket,
    seconds_s: float,
    once: bool,
    on_ready: Callable[[str], None],
    on_end: Callable[[Race], None],
    recording: Callable[[str], Awaitable[None]] | None,
) -> None:
    main = asyncio.current_task()
    assert main is not None  # noqa: S101
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    options = SimulatedOptions(model=traffic.model, chunk_s=_CHUNK_S)
    engines = [LiveEngine(spec, options, number) for number, spec in enumerate(traffic.fleet.engines * 2)]
    token = secrets.token_urlsafe(32)
    async with contextlib.AsyncExitStack() as stack:
        sockets = [stack.enter_context(contextlib.closing(each)) for each in listen(len(engines))]
        ports = [each.getsockname()[1] for each in sockets]
        await stack.enter_async_context(_serving(SimulatedApp(engines, ports), sockets))
        urls = []
        half = len(engines) // 2
        for name, predictor, own in ((BASELINE, NO_PREDICTOR, ports[:half]), (policy, QUICK, ports[half:])):
            config = _gateway(name, predictor, own, traffic, token)
            (gateway,) = [stack.enter_context(contextlib.closing(each)) for each in listen(1)]
            await stack.enter_async_context(_serving(create_app(config), [gateway]))
            urls.append(f"http://{_LOCAL}:{gateway.getsockname()[1]}")
        race = await stack.enter_async_context(Race(traffic, urls, token, policy, seconds_s))
        page = DemoPage(race)
        url = f"http://{_LOCAL}:{sock.getsockname()[1]}/"
        await stack.enter_async_context(_serving(page.app(), [sock]))
        on_ready(url)
        await _race(race, page, engines, url, once, on_end, recording)


async def _race(
    race: Race,
    page: DemoPage,
    engines: Sequence[LiveEngine],
    url: str,
    once: bool,
    on_end: Callable[[Race], None],
    recording: Callable[[str], Awaitable[None]] | None,
) -> None:
    """Run races, and the page beside them."""
    beside = [asyncio.create_task(page.run()), asyncio.create_task(_watch_lateness(race, engines))]
    if not once:
        beside.append(asyncio.create_task(_report_laps(race, on_end)))
    film = None if recording is None else asyncio.ensure_future(recording(url))
    try:
        while film is not None and not page.watched and not film.done():
            await asyncio.sleep(FRAME_S)  # until the browser is there
        await race.run(once=once)
        on_end(race)
        if film is not None:
            await film
    except asyncio.CancelledError:
        if race.state != "ended":
            on_end(race)
        raise
    finally:
        for task in (*beside, *([] if film is None else [film])):
            task.cancel()
        await asyncio.gather(*beside, *([] if film is None else [film]), return_exceptions=True)
        await page.end()


async def _report_laps(race: Race, on_end: Callable[[Race], None]) -> None:
    while True:
        lap = race.laps
        await race.ended.wait()
        on_end(race)
        while race.laps == lap:
            await asyncio.sleep(FRAME_S)


async def _watch_lateness(race: Race, engines: Sequence[LiveEngine]) -> None:
    """Record by how much this machine is behind the engines, in each race anew."""
    lap = 0
    while True:
        await asyncio.sleep(FRAME_S)
        if race.laps != lap:
            lap = race.laps
            for engine in engines:
                engine.late_s = 0.0
        race.late_s = max(engine.late_s for engine in engines)


def _gateway(policy: str, predictor: str, ports: Sequence[int], traffic: RaceTraffic, token: str) -> GatewayConfig:
    """Return the settings of a gateway that keeps nothing and learns nothing, so that every race begins alike."""
    slots = max(spec.max_num_seqs for spec in traffic.fleet.engines)
    return GatewayConfig.model_validate(
        {
            "engines": [
                {"url": f"http://{_LOCAL}:{port}", "in_flight": spec.max_num_seqs}
                for port, spec in zip(ports, traffic.fleet.engines, strict=True)
            ],
            "policy": policy,
            "predictor": predictor,
            "router": "round_robin" if len(ports) > 1 else None,  # needs no compiled code
            "learning": False,
            "state": "off",
            "in_flight": slots,
            "admin_token": token,
            "shutdown_timeout_s": 0,
        }
    )
