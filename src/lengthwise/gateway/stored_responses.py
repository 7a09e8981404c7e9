"""Which engine stores an answer of /v1/responses: later requests that name its id are for that engine."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from lengthwise.client.client import EngineError
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.errors import ApiError

MAX_OWNERS: Final = 1 << 16
"""Answers that are remembered; the least recently used are forgotten."""
_ASK_S: Final = 5.0


class ResponseOwners:
    """The engines and tenants of stored answers, by their id."""

    def __init__(self, most: int = MAX_OWNERS) -> None:
        self._most = most
        self._owners: OrderedDict[str, tuple[GatewayEngine, str]] = OrderedDict()

    def add(self, response_id: str, engine: GatewayEngine, tenant: str) -> None:
        """Record the engine and the tenant of an answer; that of another tenant stays its own.

        Some engines let a client choose the id of its answer.
        """
        if self._owners.get(response_id, (engine, tenant))[1] != tenant:
            return
        self._owners[response_id] = engine, tenant
        self._owners.move_to_end(response_id)
        if len(self._owners) > self._most:
            self._owners.popitem(last=False)

    def find(self, response_id: str, tenant: str) -> GatewayEngine | None:
        """Return the engine of an answer, if known and not leaving; ApiError 404 if it is another tenant's."""
        if response_id not in self._owners:
            return None
        engine, owner = self._owners[response_id]
        if owner != tenant:
            raise ApiError(404, f"the response '{response_id[:100]}' is not known here", code="not_found")
        self._owners.move_to_end(response_id)
        return None if engine.leaving else engine

    async def locate(
        self, response_id: str, tenant: str, engines: Sequence[GatewayEngine], headers: Sequence[tuple[bytes, bytes]]
    ) -> GatewayEngine | None:
        """Return the engine of an answer; where it is not known each is asked. None if none has it."""
        if (known := self.find(response_id, tenant)) is not None or not _is_id(response_id):
            return known
        held = await asyncio.gather(*(_holds(engine, response_id, headers) for engine in engines))
        owner = next((engine for engine, holds in zip(engines, held, strict=True) if holds), None)
        if owner is not None:
            self.add(response_id, owner, tenant)
        return owner


def _is_id(text: str) -> bool:
    """Whether a text can be one segment of a path."""
    return text.isascii() and text.replace("_", "").replace("-", "").isalnum() and len(text) <= 200


async def _holds(engine: GatewayEngine, response_id: str, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    try:
        async with asyncio.timeout(_ASK_S):
            answer = await engine.client.forward("GET", f"/v1/responses/{response_id}", b"", headers)
    except (EngineError, TimeoutError):
        return False
    answer.close()
    return answer.status == 200
