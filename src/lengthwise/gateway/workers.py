"""Several processes of one gateway on one port: a supervisor starts them, restarts those that die, and stops them.

They share the listening socket, so a connection goes to a worker that is free to accept it, and nothing else: each has
its own queue, router and predictor process. So that together they keep the configured limits, each gets its share of
them; what the engines report about their load reaches every worker alike. Changes by the admin API and reloads reach
all workers through the supervisor. /metrics of any worker has the metrics of all, by the label `worker`; the dashboard,
the queue and the explanations of any worker show all.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from lengthwise.errors import InputError
from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.reload import EarlyHangup
from lengthwise.gateway.server import run_gateway
from lengthwise.processes import die_with_parent

_log = logging.getLogger(__name__)
_ADMIN: Final = "/lengthwise/v1/"
_RESTART_S: Final = 1.0  # the least time between two starts of a worker
_SCOPE: Final = ("type", "asgi", "http_version", "server", "client", "scheme", "method", "root_path", "path")
_SCOPE_BYTES: Final = ("raw_path", "query_string", "headers")


@dataclass(frozen=True)
class _Ready:
    """A worker serves; `text` is what the engines are."""

    text: str


@dataclass(frozen=True)
class _Change:
    """A call of the admin API that changed one worker, to be repeated in the others."""

    scope: dict[str, Any]
    body: bytes


class _Worker:
    """The worker's side, as an ASGI middleware: it passes changes on."""

    def __init__(self, app: ASGIApp, link: Connection, starlette: Starlette) -> None:
        self._app = app
        self._link = link
        self._starlette = starlette
        self._tasks: set[asyncio.Task[None]] = set()
        self._fleet_changes = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["path"].startswith(_ADMIN) and scope["method"] not in ("GET", "HEAD"):
            await self._change(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._link.fileno(), self._take)
        try:
            await self._app(scope, receive, send)
        finally:
            loop.remove_reader(self._link.fileno())
            for task in self._tasks:
                task.cancel()

    async def _change(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, status = b"", 0

        async def reading() -> MutableMapping[str, Any]:
            nonlocal body
            message = await receive()
            body += message.get("body", b"")
            return message

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        await self._app(scope, reading, sending)
        if status < 400 and not scope["path"].endswith(("/predict", "/what-if")):
            self._link.send(_Change({name: scope[name] for name in (*_SCOPE, *_SCOPE_BYTES)}, body))

    async def _repeat(self, change: _Change) -> None:
        """Call the application as the client of another worker did; changes of the engines one after another.

        An engine that joins is connected to first, and what removes it must not come before. A policy does not wait.
        """
        if change.scope["path"].endswith("/policy"):
            await self._call(change)
        else:
            async with self._fleet_changes:
                await self._call(change)

    async def _call(self, change: _Change) -> None:

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": change.body, "more_body": False}

        async def ignore(_: MutableMapping[str, Any]) -> None:
            pass

        await self._app({**change.scope, "app": self._starlette}, receive, ignore)

    def _take(self) -> None:
        """Receive a configuration or a change of another worker."""
        try:
            message = self._link.recv()
        except (EOFError, OSError):  # the supervisor has ended
            asyncio.get_running_loop().remove_reader(self._link.fileno())
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if isinstance(message, _Change):
            self._start(self._repeat(message))
        else:
            self._start(self._starlette.state.reloader.reload(lambda: message))

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _work(number: int, config: GatewayConfig, sock: socket.socket, link: Connection, folder: Path) -> None:
    """Serve as one of several; the process of a worker."""
    die_with_parent()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor reloads

    def prepare(app: Starlette) -> None:
        app.state.exchange.join(folder, number)
        app.add_middleware(_Worker, link=link, starlette=app)

    run_gateway(config, sock, on_engines=lambda text: link.send(_Ready(text)), prepare=prepare)


@dataclass
class _Running:
    process: SpawnProcess
    link: Connection
    started: float
    ready: bool = False


class _Supervisor:
    def __init__(self, config: GatewayConfig, sock: socket.socket, folder: Path) -> None:
        self._config = config
        self._sock = sock
        self._folder = folder
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[int, _Running] = {}
        self._changes: list[_Change] = []  # for workers that start later
        self._signals: set[int] = set()

    def run(
        self,
        on_ready: Callable[[], None] | None,
        on_engines: Callable[[str], None] | None,
        load: Callable[[], GatewayConfig] | None,
    ) -> None:
        """Serve until SIGINT or SIGTERM."""
        woken, waker = socket.socketpair()
        waker.setblocking(False)
        before = signal.set_wakeup_fd(waker.fileno())
        handlers = {name: signal.signal(name, self._note) for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        early = handlers[signal.SIGHUP]
        if isinstance(early, EarlyHangup) and early.received:
            self._signals.add(signal.SIGHUP)
        try:
            for number in range(self._config.workers):
                self._start(number)
            announced = False
            while not self._signals & {signal.SIGTERM, signal.SIGINT}:
                self._wait(woken)
                if signal.SIGHUP in self._signals:
                    self._signals.discard(signal.SIGHUP)
                    self._reload(load)
                for text in self._messages():
                    if not announced and all(worker.ready for worker in self._workers.values()):
                        announced = True
                        if on_ready is not None:
                            on_ready()
                        if on_engines is not None:
                            on_engines(text)
                self._restart_dead(announced=announced)
        finally:
            self._stop()
            signal.set_wakeup_fd(before)
            for name, handler in handlers.items():
                signal.signal(name, handler)
            woken.close()
            waker.close()

    def _note(self, number: int, _: object) -> None:
        self._signals.add(number)

    def _start(self, number: int) -> None:
        ours, theirs = self._context.Pipe()
        arguments = (number, self._config.share_of(number), self._sock, theirs, self._folder)
        process = self._context.Process(target=_work, args=arguments, name=f"lengthwise-worker-{number}")
        process.start()
        theirs.close()
        self._workers[number] = _Running(process, ours, time.monotonic())

    def _wait(self, woken: socket.socket) -> None:
        alive = [worker for worker in self._workers.values() if worker.process.is_alive()]
        watched: list[Any] = [woken, *(worker.process.sentinel for worker in alive), *(worker.link for worker in alive)]
        timeout_s = None if len(alive) == len(self._workers) else _RESTART_S / 4
        if woken in wait(watched, timeout_s):
            woken.recv(1024)

    def _messages(self) -> list[str]:
        """Pass changes on; return the texts of workers that have become ready."""
        ready = []
        for number, worker in self._workers.items():
            with suppress(EOFError, OSError):  # it has died
                while worker.link.poll():
                    message = worker.link.recv()
                    if isinstance(message, _Ready):
                        worker.ready = True
                        ready.append(message.text)
                        self._send(worker, *self._changes)
                        continue
                    path = message.scope["path"]
                    if path.endswith("/policy"):  # the last one counts
                        self._changes = [change for change in self._changes if change.scope["path"] != path]
                    self._changes.append(message)
                    self._send_others(number, message)
        return ready

    def _send_others(self, number: int, message: _Change) -> None:
        for other, worker in self._workers.items():
            if other != number and worker.ready:
                self._send(worker, message)

    def _send(self, worker: _Running, *messages: object) -> None:
        with suppress(OSError):
            for message in messages:
                worker.link.send(message)

    def _reload(self, load: Callable[[], GatewayConfig] | None) -> None:
        if load is None:
            return
        try:
            config = load()
        except InputError as error:
            _log.error("the configuration stays as it was: %s", error)
            return
        except Exception:  # the workers must go on, whatever the file holds
            _log.exception("the configuration could not be changed")
            return
        self._config = config.model_copy(update={"workers": self._config.workers})
        self._changes.clear()
        for number, worker in self._workers.items():
            self._send(worker, self._config.share_of(number))

    def _restart_dead(self, *, announced: bool) -> None:
        for number, worker in list(self._workers.items()):
            if worker.process.is_alive():
                continue
            if not announced:
                raise InputError(f"worker {number} does not start", hint="the log names the cause")
            if time.monotonic() - worker.started >= _RESTART_S:
                _log.warning("worker %d ended with %s and is started again", number, worker.process.exitcode)
                worker.link.close()
                self._start(number)

    def _stop(self) -> None:
        for worker in self._workers.values():
            worker.process.terminate()
        until = time.monotonic() + self._config.drain_s + self._config.shutdown_timeout_s + 10
        for worker in self._workers.values():
            worker.process.join(max(0.1, until - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.link.close()


def run_workers(
    config: GatewayConfig,
    sock: socket.socket,
    on_ready: Callable[[], None] | None = None,
    *,
    on_engines: Callable[[str], None] | None = None,
    load: Callable[[], GatewayConfig] | None = None,
) -> None:
    """Serve with `config.workers` processes, as `run_gateway` does with one."""
    with tempfile.TemporaryDirectory(prefix="lengthwise-workers-") as folder:
        _Supervisor(config, sock, Path(folder)).run(on_ready, on_engines, load)
