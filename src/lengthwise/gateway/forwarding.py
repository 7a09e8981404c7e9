"""Paths that are forwarded by model and not queued: embeddings, rerank, audio and the rest of /v1/*."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.types import Scope

from lengthwise.client.client import EngineError, EngineResponse, EngineUnreachableError
from lengthwise.gateway.access_log import shortened
from lengthwise.gateway.bodies import BODIES, check_elements
from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.endpoint import Endpoint, outcome_of
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.errors import ApiError, from_engine
from lengthwise.gateway.json_fields import edit_fields, edited
from lengthwise.gateway.metrics import Metrics
from lengthwise.gateway.model_names import MODEL_HEADER, ModelNames
from lengthwise.gateway.stored_responses import ResponseOwners
from lengthwise.gateway.streaming import AnswerMeter, BodyBudget, Caller, passed_headers, relay
from lengthwise.gateway.tenants import Lease
from lengthwise.traffic.rows import RequestOutcome

BARE_PATHS: Final = ("/pooling", "/classify", "/score", "/rerank", "/tokenize", "/detokenize")
"""Paths of vLLM outside /v1 that clients use."""

_CLOSED: Final = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/chat/completions/batch"})
"""Paths of vLLM under /v1 that administer it, or generate answers outside the queue and the limits of tenants."""

# No dot segments, no encoded slashes: a path cannot lead out of /v1 on an engine that normalises paths.
_PATH: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~:@+=-]+)+")
_METHODS: Final = frozenset({"GET", "POST", "DELETE"})
_BOUNDARY: Final = re.compile(rb'multipart/form-data\b.*\bboundary="?([^";]{1,70})', re.IGNORECASE | re.DOTALL)
_MODEL_PART: Final = re.compile(rb'content-disposition:[^\r\n]*;\s*name="?model"?\s*(?:\r|$)', re.IGNORECASE)
_MODELS: Final = "/v1/models"
_STORED: Final = "/v1/responses/"
_MAX_PART_HEAD: Final = 4096
_ENDPOINT: Final = "forwarded"  # one label for all paths: clients choose them


class _JsonModel(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    priority: Any = None


class _Model(NamedTuple):
    """The model that a request names, and where: in multipart a span of the body, else a field of the JSON."""

    name: str | None = None
    span: tuple[int, int] | None = None
    has_priority: bool = False

    def renamed(self, raw: bytes, name: str) -> bytes:
        if self.span is None:
            return edit_fields(raw, {"model": json.dumps(name).encode()})
        start, end = self.span
        return raw[:start] + name.encode() + raw[end:]


class Forwarding(Endpoint):
    """The ASGI application of the forwarded paths.

    A request is sent to the engine with the fewest forwarded requests that serves its model. One without a model
    (`GET /v1/responses/{id}`) goes to the engine that holds the answer, else to each in turn until one has it.
    """

    def __init__(
        self,
        config: GatewayConfig,
        dispatcher: Dispatcher,
        metrics: Metrics,
        budget: BodyBudget,
        *,
        names: ModelNames,
        owners: ResponseOwners,
    ) -> None:
        super().__init__(_ENDPOINT, config, dispatcher, metrics, budget)
        self._names = names
        self._owners = owners
        self._running: Counter[int] = Counter()

    def _check(self, scope: Scope) -> None:
        method, path = scope["method"], scope["path"]
        if not _PATH.fullmatch(path) or path in _CLOSED:
            raise ApiError(404, f"{method} {path[:100]}: there is no such path here", code="not_found")
        of_models = path == _MODELS or path.startswith(f"{_MODELS}/")  # reading is served by the gateway itself
        if method not in _METHODS or path in BODIES or of_models:
            allowed = {"allow": "POST" if path in BODIES else "GET" if of_models else ", ".join(sorted(_METHODS))}
            message = f"{method} {path[:100]}: this path does not take that method"
            raise ApiError(405, message, code="method_not_allowed", headers=allowed)

    async def _serve(
        self, scope: Scope, raw: bytes, caller: Caller, lease: Lease, request_id: bytes, began: float
    ) -> RequestOutcome:
        method, path, tenant = scope["method"], scope["path"], lease.tenant
        asked = _model_of(raw, caller.headers.get(b"content-type", b""))
        model = self._names.resolve(asked.name)
        if model is not None and model != asked.name:
            raw = await edited(raw, lambda raw: asked.renamed(raw, model))
            caller.extra_headers.append((MODEL_HEADER, model.encode()))
        if asked.has_priority and not tenant.may_set_priority:
            raw = await edited(raw, lambda raw: edit_fields(raw, {"priority": None}))
        each_in_turn = model is None and (method != "POST" or path.startswith(_STORED))
        engines = self._engines(path, model, tenant.name, needs_model=not each_in_turn)
        headers = [header for header in caller.forwarded_headers() if header[0] != b"x-request-id"]
        headers.append((b"x-request-id", request_id))
        failure: EngineError | None = None
        for number, engine in enumerate(engines, start=1):
            self._running[engine.number] += 1
            caller.log(llm=shortened(model), engine=engine.name)
            try:
                answer = await engine.client.forward(method, path + caller.query, raw, headers)
                try:
                    if each_in_turn and answer.status == 404 and number < len(engines):
                        continue
                    return await _pass(answer, caller, request_id)
                finally:
                    answer.close()
            except EngineUnreachableError as error:
                self._metrics.failed(engine, error.kind)
                failure = error
            except EngineError as error:
                self._metrics.failed(engine, error.kind)
                if not caller.answered:
                    raise from_engine(error) from error
                return "broken_stream"
            finally:
                self._running[engine.number] -= 1
        assert failure is not None  # noqa: S101  (there is an engine, and its answer returns)
        raise from_engine(failure) from failure

    def _engines(self, path: str, model: str | None, tenant: str, *, needs_model: bool) -> Sequence[GatewayEngine]:
        """Return the engines to try, in order."""
        if path.startswith(_STORED):
            owner = self._owners.find(path.removeprefix(_STORED).partition("/")[0], tenant)
            if owner is not None and owner.up:
                return [owner]
        engines = [engine for engine in self._dispatcher.engines if engine.serves(model) and not engine.leaving]
        if not engines:
            raise ApiError(
                404, f"the model '{(model or '')[:100]}' is not served here", param="model", code="model_not_found"
            )
        if model is None and needs_model and len({engine.models for engine in engines}) > 1:
            raise ApiError(400, "model: Field required", param="model", code="invalid_value")
        up = [engine for engine in engines if engine.up]
        if not up:
            raise ApiError(503, "no engine is up", code="no_engine")
        return sorted(up, key=lambda e: (e.breaker.state == "open", self._running[e.number], e.in_flight))


def _model_of(raw: bytes, content_type: bytes) -> _Model:
    """Return the model in a body; none where the engine finds the body invalid."""
    boundary = _BOUNDARY.match(content_type)
    if boundary is not None:
        return _model_of_form(raw, b"--" + boundary[1])
    check_elements(raw)
    try:
        body = _JsonModel.model_validate_json(raw)
    except ValidationError:
        return _Model()
    return _Model(body.model, None, "priority" in body.model_fields_set)


def _model_of_form(raw: bytes, delimiter: bytes) -> _Model:
    at = raw.find(delimiter)
    while at >= 0:
        start = at + len(delimiter)
        at = raw.find(delimiter, start)
        head_end = raw.find(b"\r\n\r\n", start, start + _MAX_PART_HEAD)
        if at >= 0 and start < head_end < at and _MODEL_PART.search(raw[start:head_end]):
            span = head_end + 4, max(head_end + 4, at - 2)
            return _Model(raw[slice(*span)].decode("utf-8", "replace"), span)
    return _Model()


async def _pass(answer: EngineResponse, caller: Caller, request_id: bytes) -> RequestOutcome:
    """Pass an answer on: JSON in one piece, events and anything else (audio) as it arrives."""
    if answer.is_stream or answer.is_json:
        await relay(answer, caller, request_id, AnswerMeter(), lambda: None)
    else:
        headers = [*passed_headers(answer), (b"x-request-id", request_id)]
        await caller.start(answer.status, headers)
        while data := await answer.chunk():
            await caller.write(data)
        await caller.write(b"", last=True)
    return outcome_of(answer.status)
