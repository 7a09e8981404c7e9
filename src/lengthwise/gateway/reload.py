"""A new configuration for a running gateway: SIGHUP reads it, and no request is lost by the change."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

from lengthwise.engines.client import without_credentials
from lengthwise.errors import InputError

if TYPE_CHECKING:
    from lengthwise.gateway.config import EngineConfig, GatewayConfig
    from lengthwise.gateway.dispatch import Dispatcher, GatewayEngine
    from lengthwise.gateway.fleet import EngineFleet
    from lengthwise.gateway.model_names import ModelNames
    from lengthwise.gateway.tenants import Tenants

_log = logging.getLogger(__name__)

RELOADED: Final = frozenset(
    {"engines", "models", "tenants", "keys", "require_keys", "policy", "remote_control"}
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


class UsesConfig(Protocol):
    """A part of the gateway that reads its settings at each request."""

    def use(self, config: GatewayConfig) -> None:
        """Use these settings from now on."""


class Reloader:
    """Changes the configuration of a running gateway."""

    def __init__(
        self, config: GatewayConfig, tenants: Tenants, dispatcher: Dispatcher, fleet: EngineFleet, names: ModelNames
    ) -> None:
        self._config = config
        self._tenants = tenants
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._names = names
        self._changing = asyncio.Lock()
        self.users: list[UsesConfig] = [fleet]

    @asynccontextmanager
    async def on_signal(self, load: Callable[[], GatewayConfig] | None) -> AsyncIterator[None]:
        """Reload at each SIGHUP; outside the main thread, which alone receives signals, do nothing."""
        if load is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def reload() -> None:
            task = loop.create_task(self._load(load))
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
            for task in tasks:
                task.cancel()

    async def _load(self, load: Callable[[], GatewayConfig]) -> None:
        async with self._changing:
            try:
                await self.reload(await asyncio.to_thread(load))
            except InputError as error:
                _log.error("the configuration stays as it was: %s", error)
            except Exception:
                _log.exception("the configuration could not be changed")

    async def reload(self, config: GatewayConfig) -> None:
        """Use a configuration for requests from now on, waiting ones included."""
        old = self._config
        changed = {name for name in type(config).model_fields if getattr(config, name) != getattr(old, name)}
        if kept := sorted(changed - RELOADED):
            _log.warning("these settings change with a restart only: %s", ", ".join(kept))
        config = config.model_copy(update={name: getattr(old, name) for name in kept})
        self._tenants.use(config)
        self._config = config
        for user in self.users:
            user.use(config)
        self._names.use(config.models)
        self._dispatcher.max_waiting = config.max_waiting
        self._dispatcher.admission_quantile = config.admission_quantile
        if {"policy", "keys"} & changed:  # else a policy that was set at run time stays
            self._dispatcher.use(self._tenants.policy(config.policy))
        await self._change_engines(old, config)
        _log.warning("the configuration is reloaded: %s", ", ".join(sorted(changed - set(kept))) or "nothing changed")

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
