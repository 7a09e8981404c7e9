"""Stored answers of /v1/responses: whose they are, by the id that clients see, which engine and session they are of."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from lengthwise.client.client import EngineError
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.errors import ApiError

MAX_OWNERS: Final = 1 << 16
"""Answers that are remembered; the least recently used are forgotten."""
_ASK_S: Final = 5.0
_MAX_SESSION: Final = 256
_TAG_DIGITS: Final = 32
_PURPOSE: Final = b"lengthwise stored response"


class ResponseIds:
    """The ids of stored answers as clients see them: the engine's, and a tag that only their tenant's requests pass.

    tag = HMAC-SHA256(secret, tenant | id), 128 bits in hex
    Every gateway with the secret can check it; without one it is random, and holds for this process alone.
    """

    def __init__(self, secret: str | None = None) -> None:
        self._secret = secrets.token_bytes(32) if secret is None else secret.encode()

    def tagged(self, response_id: str, tenant: str) -> str:
        """Return the id that a tenant sees; one that cannot be part of a path stays as it is, and names nothing."""
        return f"{response_id}_{self._tag(response_id, tenant)}" if _is_id(response_id) else response_id

    def engine_id(self, seen: str, tenant: str) -> str:
        """Return the engine's id of an answer that belongs to a tenant; ApiError 404 if it does not."""
        response_id, _, tag = seen.rpartition("_")
        if not _is_id(seen) or not hmac.compare_digest(tag, self._tag(response_id, tenant)):
            raise ApiError(404, f"the response '{seen[:100]}' is not known here", code="not_found")
        return response_id

    def _tag(self, response_id: str, tenant: str) -> str:
        named = b"\0".join([_PURPOSE, tenant.encode(), response_id.encode()])  # names and ids have no such byte
        return hmac.digest(self._secret, named, "sha256").hex()[:_TAG_DIGITS]


class ResponseOwners:
    """The engines that store answers, and the sessions that answers belong to, by the engine's id of each."""

    def __init__(self, most: int = MAX_OWNERS) -> None:
        self._most = most
        self._owners: OrderedDict[str, tuple[GatewayEngine, str]] = OrderedDict()

    def add(self, response_id: str, engine: GatewayEngine, session: str | None = None) -> None:
        """Record the engine of an answer and its session; without a name, an answer begins a session of its own."""
        self._owners[response_id] = engine, session or self.session(response_id)
        self._owners.move_to_end(response_id)
        if len(self._owners) > self._most:
            self._owners.popitem(last=False)

    def find(self, response_id: str) -> GatewayEngine | None:
        """Return the engine of an answer, if known and not leaving."""
        if response_id not in self._owners:
            return None
        self._owners.move_to_end(response_id)
        engine, _ = self._owners[response_id]
        return None if engine.leaving else engine

    def session(self, response_id: str) -> str:
        """Return the session of an answer: the id of the first answer of its chain, unless the client named it."""
        return self._owners[response_id][1] if response_id in self._owners else response_id[:_MAX_SESSION]

    async def locate(
        self, response_id: str, engines: Sequence[GatewayEngine], headers: Sequence[tuple[bytes, bytes]]
    ) -> GatewayEngine | None:
        """Return the engine of an answer; where it is not known each is asked. None if none has it."""
        if (known := self.find(response_id)) is not None or not _is_id(response_id):
            return known
        held = await asyncio.gather(*(_holds(engine, response_id, headers) for engine in engines))
        owner = next((engine for engine, holds in zip(engines, held, strict=True) if holds), None)
        if owner is not None:
            self.add(response_id, owner)
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
