"""Run a gateway on a port; fail before serving if the port or an engine is unavailable."""

# ruff: noqa: D102  (overrides of uvicorn's server)

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from types import FrameType
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette

from lengthwise.client.client import EngineClient, EngineError, without_credentials
from lengthwise.errors import InputError
from lengthwise.gateway.app import create_app
from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.http_protocol import (
    ConnectionLimits,
    LimitedProtocol,
    OpenConnections,
    TlsListener,
    file_limit,
    most_connections,
)
from lengthwise.gateway.reload import EarlyHangup

_KEEP_ALIVE_S: Final = 75  # longer than clients keep idle connections, so that the client closes first
_ASK_EVERY_S: Final = 0.5
_BACKLOG: Final = 2048
SWITCH_S: Final = 0.0005
"""For which the event loop waits for a thread that runs Python, as one that reads a large body; 5 ms in Python."""
_GC_THRESHOLD: Final = 20_000  # new objects, of about 50 concurrent requests


def bind(host: str, port: int) -> socket.socket:
    """Bind a port; 0 takes any free one. Connections are accepted from `run_gateway` on."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise InputError(f"there is no address '{host[:200]}'", source="--host") from error
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"port {port} of {host} is taken",
                hint="stop the process that listens there, or choose another with --port",
            ) from error
        raise InputError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return sock


def url_of(sock: socket.socket, host: str, *, tls: bool = False) -> str:
    """Return the URL of a bound socket under the host's name."""
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}"


def check_engines(urls: Sequence[str], *, wait_s: float = 0.0) -> list[str]:
    """Return once every engine answers, or after `wait_s` those that do not; InputError if none answers."""
    return asyncio.run(_check_engines(urls, wait_s))


async def _check_engines(urls: Sequence[str], wait_s: float) -> list[str]:
    until = time.monotonic() + wait_s
    while dead := [url for url in urls if not await _answers(url)]:
        if time.monotonic() >= until:
            if len(dead) < len(urls):
                return [without_credentials(url) for url in dead]
            one, named = len(dead) == 1, ", ".join(map(without_credentials, dead))
            raise InputError(
                f"{'engine' if one else 'engines'} {named} {'does' if one else 'do'} not answer",
                hint="start it, correct the URL, or give it time with --wait SECONDS",
            )
        await asyncio.sleep(_ASK_EVERY_S)
    return []


async def _answers(url: str) -> bool:
    async with EngineClient(url) as client:
        try:
            await client.check()
        except EngineError:
            return False
    return True


def run_gateway(
    config: GatewayConfig,
    sock: socket.socket | None = None,
    on_ready: Callable[[], None] | None = None,
    *,
    on_engines: Callable[[str], None] | None = None,
    load: Callable[[], GatewayConfig] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then let running requests finish, at most `shutdown_timeout_s`.

    `on_ready` is called when the port listens, `on_engines` with what the engines are once they were asked. With
    `load`, SIGHUP changes the configuration to what it returns.
    """
    if load is not None:
        EarlyHangup.handle()
    if sock is None:
        sock = bind(config.host, config.port)
    limits = limits_of(config)
    app, tls = create_app(config, load, on_engines), tls_context(config)
    if tls is not None:
        app.state.reloader.users.append(_Certificate(tls))
    run_app(
        app,
        sock,
        limits,
        drain_s=config.drain_s,
        shutdown_timeout_s=config.shutdown_timeout_s,
        on_ready=on_ready,
        tls=tls,
    )


def limits_of(config: GatewayConfig) -> ConnectionLimits:
    """Return the limits of connections in a configuration."""
    return ConnectionLimits(**{field.name: getattr(config, field.name) for field in fields(ConnectionLimits)})


def tls_context(config: GatewayConfig) -> ssl.SSLContext | None:
    """Return the TLS settings, if any; InputError if certificate and key cannot be used."""
    if config.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load_certificate(context, config)
    return context


def _load_certificate(context: ssl.SSLContext, config: GatewayConfig) -> None:
    assert config.tls_certificate is not None  # noqa: S101
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key, password=_no_password)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise InputError(
            f"certificate and key cannot be used: {error.strerror if isinstance(error, OSError) else error}",
            source=config.tls_certificate,
            hint="give PEM files that belong together, the key without a password",
        ) from error


def _no_password() -> str:
    raise ValueError("the key has a password")


class _Certificate:
    """Reads the certificate again at a reload, for connections from then on."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def use(self, config: GatewayConfig) -> None:
        _load_certificate(self._context, config)


def run_app(
    app: Starlette,
    sock: socket.socket,
    limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008  (frozen)
    *,
    drain_s: float = 0.0,
    shutdown_timeout_s: int,
    on_ready: Callable[[], None] | None = None,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve an application until SIGINT or SIGTERM, then let running requests finish."""
    fitting = most_connections(file_limit())
    limits = replace(limits, max_connections=min(fitting, limits.max_connections or fitting))
    try:
        sock.listen(_BACKLOG)
    except OSError as error:  # another process has bound the port at the same time, and listens already
        raise InputError(
            f"cannot listen on port {sock.getsockname()[1]}: {error.strerror}", hint="choose another with --port"
        ) from error
    if on_ready is not None:
        on_ready()
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="on",
        log_level="error",  # a warning for each request that is not HTTP would let clients fill the log
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the kill switch checks the peer address
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=shutdown_timeout_s,
    )
    config.load()
    config.ssl = tls
    server = LimitedServer(config, app, drain_s, limits)
    # Collections as rare as a server needs, and not of what is loaded now: they take 6 % of the time of small requests.
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(_GC_THRESHOLD, *gc.get_threshold()[1:])
    # uvicorn raises the signal again after its shutdown. SIGTERM would then end the process before callers could clean
    # up (the embedded engine).
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        server.run(sockets=[sock])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        sock.close()


class LimitedServer(uvicorn.Server):
    """uvicorn's server with limits of connections.

    After SIGTERM, it serves for `drain_s` more while the application is not ready; then it shuts down."""

    def __init__(self, config: uvicorn.Config, app: Starlette, drain_s: float, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self._app = app
        self._drain_s = drain_s
        self._limits = limits

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to shut down; at a second Ctrl-C end at once, without uvicorn's traceback of what is cut off."""
        super().handle_exit(sig, frame)
        if self.force_exit:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # the lifespan
        config, limits = self.config, self._limits
        connections = OpenConnections(limits)
        make = partial(
            LimitedProtocol, config, self.server_state, self.lifespan.state, limits=limits, connections=connections
        )
        for sock in sockets or ():
            if config.ssl is None:
                loop = asyncio.get_running_loop()
                self.servers.append(await loop.create_server(make, sock=sock, backlog=config.backlog))
            else:
                listener: Any = TlsListener(sock, config.ssl, partial(make, counted=True), limits, connections)
                self.servers.append(listener)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.draining = True
        if signal.SIGTERM in self._captured_signals:  # not after Ctrl-C: nothing sends requests to be moved elsewhere
            await asyncio.sleep(self._drain_s)
        await super().shutdown(sockets)


def _leave(*_: object) -> None:
    raise KeyboardInterrupt
