"""Changes to a running gateway, by which no request is lost: a new configuration (SIGHUP), a new model file.

A new version of the model file is verified, started and tried before it takes over.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from lengthwise.client.client import without_credentials
from lengthwise.errors import InputError
from lengthwise.files import file_version
from lengthwise.gateway.audit_log import AuditLog
from lengthwise.gateway.config import EngineConfig, GatewayConfig
from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.fleet import EngineFleet
from lengthwise.gateway.tenants import Tenants
from lengthwise.predictors.contract import PredictionInput, as_logt
from lengthwise.predictors.model_file import read_model_file
from lengthwise.predictors.resolve import predictor_label
from lengthwise.predictors.service import QUICK, PredictionService
from lengthwise.predictors.subprocess_predictor import SubprocessError, SubprocessPredictor

_log = logging.getLogger(__name__)

RELOADED: Final = frozenset(
    {"engines", "models", "classes", "tenants", "keys", "require_keys", "share_learning", "policy", "remote_control"}
    | {"engine_hosts"}
    | {"in_flight", "admission_quantile", "max_waiting", "max_body_bytes"}
    | {"stream_usage", "first_byte_timeout_s", "queue_timeout_s", "request_timeout_s", "enforce_deadlines"}
)
"""The settings that a reload changes; the others need a restart."""


class EarlyHangup:
    """A handler of SIGHUP while the gateway starts: the signal is remembered, and does not end the process."""

    def __init__(self) -> None:
        self.received = False

    def __call__(self, *_: object) -> None:
        """Remember the signal."""
        self.received = True

    @classmethod
    def handle(cls) -> None:
        """Handle SIGHUP in this way from now on, until the gateway serves and reloads."""
        if not isinstance(signal.getsignal(signal.SIGHUP), cls):
            signal.signal(signal.SIGHUP, cls())


class UsesConfig(Protocol):
    """A part of the gateway that acts when its settings change."""

    def use(self, config: GatewayConfig) -> None:
        """Use these settings from now on."""


class Reloader:
    """Changes the configuration of a running gateway."""

    def __init__(
        self,
        config: GatewayConfig,
        tenants: Tenants,
        dispatcher: Dispatcher,
        fleet: EngineFleet,
        users: Iterable[UsesConfig],
        audit: AuditLog | None = None,
    ) -> None:
        self._config = config
        self._tenants = tenants
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._audit = audit
        self._changing = asyncio.Lock()
        self.users: list[UsesConfig] = [fleet, *users]

    @asynccontextmanager
    async def on_signal(self, load: Callable[[], GatewayConfig] | None) -> AsyncIterator[None]:
        """Reload at each SIGHUP; outside the main thread, which alone receives signals, do nothing."""
        if load is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def reload() -> None:
            task = loop.create_task(self.reload(load))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        early = signal.getsignal(signal.SIGHUP)
        loop.add_signal_handler(signal.SIGHUP, reload)
        if isinstance(early, EarlyHangup) and early.received:
            reload()
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            signal.signal(signal.SIGHUP, early)  # the default would end the process before it has cleaned up
            for task in tasks:
                task.cancel()

    async def reload(self, load: Callable[[], GatewayConfig]) -> None:
        """Use the configuration that `load` returns for requests from now on, waiting ones included."""
        async with self._changing:
            try:
                await self._use(await asyncio.to_thread(load))
            except InputError as error:
                _log.error("the configuration stays as it was: %s", error)
            except Exception:
                _log.exception("the configuration could not be changed")

    async def _use(self, config: GatewayConfig) -> None:
        old = self._config
        changed = {name for name in type(config).model_fields if getattr(config, name) != getattr(old, name)}
        if kept := sorted(changed - RELOADED):
            _log.warning("these settings change with a restart only: %s", ", ".join(kept))
        config = config.model_copy(update={name: getattr(old, name) for name in kept})
        self._tenants.use(config)
        self._config = config
        for user in self.users:
            try:
                user.use(config)
            except InputError as error:  # of the certificate or the access log, which then stay open as they were
                _log.error("%s", error)
        self._dispatcher.max_waiting = config.max_waiting
        self._dispatcher.admission_quantile = config.admission_quantile
        if {"policy", "keys"} & changed:  # else a policy that was set at run time stays
            self._dispatcher.use(self._tenants.policy(config.policy))
        await self._change_engines(old, config)
        used = sorted(changed - set(kept))
        _log.warning("the configuration is reloaded: %s", ", ".join(used) or "nothing changed")
        if self._audit is not None:
            self._audit.reloaded({"settings": used})

    async def _change_engines(self, old: GatewayConfig, new: GatewayConfig) -> None:
        """Let engines join, then leave, so that a model that stays has an engine all the time."""
        running = {engine.client.url: engine for engine in self._dispatcher.engines if not engine.leaving}
        before = {without_credentials(section.url): section for section in old.engines}
        wanted = {without_credentials(section.url): section for section in new.engines}
        leaving = {engine.name for url, engine in running.items() if url not in wanted}
        joining = dict(_joining(wanted, before, running, leaving))
        for url, engine in running.items():
            slots = wanted[url].in_flight or new.in_flight if url in wanted else engine.slots
            if slots != engine.slots:
                self._dispatcher.set_slots(engine, slots)
        joined = await asyncio.gather(
            *(self._fleet.add(wanted[url], replacing=replaced) for url, replaced in joining.items()),
            return_exceptions=True,
        )
        for url, result in zip(joining, joined, strict=True):
            if isinstance(result, BaseException):
                _log.error("engine %s does not join: %s", url, result)
        for name in leaving - set(joining.values()):
            self._fleet.remove(name)


def _joining(
    wanted: dict[str, EngineConfig],
    before: dict[str, EngineConfig],
    running: dict[str, GatewayEngine],
    leaving: set[str],
) -> Iterator[tuple[str, str | None]]:
    """Yield the URLs of engines that join, and the name of the engine that each replaces."""
    for url, section in wanted.items():
        engine = running.get(url)
        if engine is None:
            yield url, section.name if section.name in leaving else None
        elif _identity(before.get(url, section)) != _identity(section):
            yield url, engine.name


def _identity(section: EngineConfig) -> tuple[object, ...]:
    return section.url, section.name, section.kind, section.api_key


_TRIALS: Final = tuple(PredictionInput(text, "llama-3.1-8B", 512) for text in ("", "Why is the sky blue?"))


class PredictorWatch:
    """Uses a model file whenever it changes. A file that cannot be used changes nothing; the log and /health say so."""

    def __init__(self, path: Path, predictions: PredictionService, *, in_use: bool) -> None:
        """`in_use`: whether the file as it is now is the predictor in use."""
        self._path = path
        self._predictions = predictions
        self._seen = file_version(path) if in_use else None
        self.in_use = str(path) if in_use else None
        """The file, once it is the predictor in use."""
        self._error: str | None = None
        self._since: float | None = None

    @property
    def state(self) -> dict[str, Any]:
        """What /health reports: the file, when it was last loaded (None: at the start), and the error since."""
        return {"file": str(self._path), "since": self._since, "error": self._error}

    async def run(self, every_s: float) -> None:
        """Look for a new version again and again."""
        while True:
            await self.check()
            await asyncio.sleep(every_s)

    async def check(self) -> None:
        """Use the file if it has changed."""
        version = file_version(self._path)
        if version is None or version == self._seen:
            return
        self._seen = version
        try:
            process, label = await asyncio.to_thread(_started, self._path, learning=self._predictions.learning)
        except (InputError, SubprocessError, OSError) as error:
            self._error = str(error)
            _log.error("the predictor stays %s; its new version is not used: %s", self._predictions.predictor, error)
            return
        if file_version(self._path) != version:  # replaced meanwhile: the next check takes the newer one
            await asyncio.to_thread(process.close)
            return
        self._predictions.use(process, label)
        self.in_use = str(self._path)
        self._error, self._since = None, round(time.time(), 3)
        _log.warning("the predictor is %s from now on", label)


def _started(path: Path, *, learning: bool) -> tuple[SubprocessPredictor, str]:
    """Start a process that has loaded the file and predicted with it."""
    read_model_file(path)
    label = predictor_label(path)
    process = SubprocessPredictor(str(path), QUICK, learning=learning)
    try:
        process.start()
        tried = as_logt(process.predict(_TRIALS))
        if not (np.isfinite(tried.mu).all() and (tried.sigma > 0).all()):
            raise InputError("predicts no lengths", source=path)
    except BaseException:
        process.close()
        raise
    return process, label
