"""The model that serves a request: aliases and fallbacks of the configuration."""

from __future__ import annotations

from typing import Final

from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.dispatch import Dispatcher

MODEL_HEADER: Final = b"x-lengthwise-model"
"""The header of an answer that names the model where it is not the one that the client named."""


class ModelNames:
    """Resolves the names of models that clients use."""

    def __init__(self, config: GatewayConfig, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.use(config)

    def use(self, config: GatewayConfig) -> None:
        """Use the models of this configuration from now on."""
        self._models = config.models
        self.aliases = {alias: name for name, model in config.models.items() for alias in model.aliases}
        """The models by their aliases."""

    def resolve(self, name: str | None) -> str | None:
        """Return the model that serves a request: that of the alias, or its first fallback with an engine.

        A fallback is used while no engine of the model is up with its breaker closed. If no fallback has an engine
        either, the model itself is returned.
        """
        if name is None or not self._models:
            return name
        model = self.aliases.get(name, name)
        config = self._models.get(model)
        if config is None or not config.fallbacks or self._has_engine(model):
            return model
        fallbacks = (self.aliases.get(other, other) for other in config.fallbacks)
        return next((other for other in fallbacks if self._has_engine(other)), model)

    def limits(self, model: str | None) -> dict[str, float]:
        """Return the latency limits of a model, for requests that declare none."""
        config = self._models.get(model or "")
        return {} if config is None else config.limits

    def _has_engine(self, model: str) -> bool:
        engines = self._dispatcher.engines
        return any(e.up and not e.leaving and e.breaker.state != "open" and e.serves(model) for e in engines)
