"""Paths that are forwarded by model and not queued: embeddings, rerank, audio, stored responses."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict
from starlette.types import Scope

from lengthwise.client.client import EngineError, EngineResponse, EngineUnreachableError
from lengthwise.gateway.access_log import shortened
from lengthwise.gateway.bodies import BODIES, parse
from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.endpoint import Endpoint, outcome_of
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.errors import ApiError, from_engine
from lengthwise.gateway.json_fields import LARGE_BODY, edit_fields, edited
from lengthwise.gateway.metrics import Metrics
from lengthwise.gateway.model_names import MODEL_HEADER, ModelNames
from lengthwise.gateway.stored_responses import ResponseIds, ResponseOwners
from lengthwise.gateway.streaming import AnswerMeter, BodyBudget, Caller, count_tokens, passed_headers, relay
from lengthwise.gateway.tenants import Lease
from lengthwise.gateway.usage import ResponsesMeter
from lengthwise.traffic.rows import RequestOutcome

BARE_PATHS: Final = ("/pooling", "/classify", "/score", "/rerank", "/tokenize", "/detokenize")
"""Paths of vLLM outside /v1 that clients use."""

FORWARDED: Final = frozenset(
    f"/v1/{name}"
    for name in (
        *("embeddings", "rerank", "score", "moderations", "messages/count_tokens"),
        *("audio/speech", "audio/transcriptions", "audio/translations"),
    )
).union(BARE_PATHS)
"""What is forwarded, beside stored responses and the operator's `extra_paths`. Any other path is closed: engines have
paths that administer them, or generate outside the queue and the limits of tenants."""

# No dot segments, no encoded slashes: a path cannot lead out of /v1 on an engine that normalises paths.
_PATH: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~:@+=-]+)+")
_METHODS: Final = frozenset({"GET", "POST", "DELETE"})
_BOUNDARY: Final = re.compile(rb'multipart/form-data\b.*\bboundary="?([^";]{1,70})', re.IGNORECASE | re.DOTALL)
_MODEL_PART: Final = re.compile(rb'content-disposition:[^\r\n]*;\s*name="?model"?\s*(?:\r|$)', re.IGNORECASE)
_MODELS: Final = "/v1/models"
_STORED: Final = "/v1/responses/"
_OF_STORED: Final = re.compile(r"/v1/responses/[^/]+(?:/(?:cancel|input_items))?")
_FREE: Final = frozenset({"/v1/messages/count_tokens", "/tokenize", "/detokenize"})  # no LLM runs for them
_CHARGED_BYTES: Final = 3  # of a body that count as a token until the engine reports its usage
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


class _UsageMeter(AnswerMeter):
    """Measures the tokens of all that a request makes an engine read and write."""

    def __init__(self) -> None:
        super().__init__()
        self._total: int | None = None

    @property
    def used(self) -> int | None:
        """`usage.total_tokens`, else the tokens of prompt and answer; None if the engine reports none."""
        known = [count for count in (self.prompt_tokens, self.tokens) if count is not None]
        return self._total if self._total is not None else sum(known) if known else None

    def _read(self, event: dict[str, Any]) -> None:
        super()._read(event)
        if event:
            self._total = count_tokens(event["usage"], "total_tokens", self._total)


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
        ids: ResponseIds,
        owners: ResponseOwners,
    ) -> None:
        super().__init__(_ENDPOINT, config, dispatcher, metrics, budget)
        self._names = names
        self._ids = ids
        self._owners = owners
        self._running: Counter[int] = Counter()

    def _check(self, scope: Scope) -> None:
        method, path = scope["method"], scope["path"]
        if not _PATH.fullmatch(path) or not self._is_open(path):
            raise ApiError(404, f"{method} {path[:100]}: there is no such path here", code="not_found")
        of_models = path == _MODELS or path.startswith(f"{_MODELS}/")  # reading is served by the gateway itself
        if method not in _METHODS or path in BODIES or of_models:
            allowed = {"allow": "POST" if path in BODIES else "GET" if of_models else ", ".join(sorted(_METHODS))}
            message = f"{method} {path[:100]}: this path does not take that method"
            raise ApiError(405, message, code="method_not_allowed", headers=allowed)

    def _is_open(self, path: str) -> bool:
        if path in FORWARDED or path in BODIES or path == _MODELS or path.startswith(f"{_MODELS}/"):
            return True  # of the last three another method is refused
        extra = self._config.extra_paths
        listed = any(path == each or (each.endswith("/*") and path.startswith(each[:-1])) for each in extra)
        return listed or _OF_STORED.fullmatch(path) is not None

    async def _serve(
        self, scope: Scope, raw: bytes, caller: Caller, lease: Lease, request_id: bytes, began: float
    ) -> RequestOutcome:
        method, path, tenant = scope["method"], scope["path"], lease.tenant
        read = partial(_model_of, raw, caller.headers.get(b"content-type", b""))
        asked = read() if len(raw) < LARGE_BODY else await self._budget.read(tenant.name, read)
        del read
        model = self._names.resolve(asked.name)
        if model is not None and model != asked.name:
            raw = await edited(raw, lambda raw: asked.renamed(raw, model))
            caller.extra_headers.append((MODEL_HEADER, model.encode()))
        if asked.has_priority and not tenant.may_set_priority:
            raw = await edited(raw, lambda raw: edit_fields(raw, {"priority": None}))
        each_in_turn = model is None and (method != "POST" or path.startswith(_STORED))
        meter: AnswerMeter = _UsageMeter()
        if path.startswith(_STORED) and self._config.keys is not None:
            path, meter = self._own(path, tenant.name)
        engines = self._engines(path, model, needs_model=not each_in_turn)
        costs = path not in _FREE and not path.startswith(_STORED)
        if costs and lease.limits_tokens:
            is_form = _BOUNDARY.match(caller.headers.get(b"content-type", b"")) is not None
            lease.charge(0 if is_form else math.ceil(len(raw) / _CHARGED_BYTES))
        failed = True
        try:
            sent = self._send(method, path, raw, caller, request_id, meter, engines, model, each_in_turn=each_in_turn)
            outcome = await sent
            failed = outcome not in ("ok", "broken_stream")
            return outcome
        except asyncio.CancelledError:  # its client has left, and its engine may go on
            failed = False
            raise
        finally:
            if costs and isinstance(meter, _UsageMeter):
                lease.settle(0 if failed else meter.used)

    async def _send(
        self,
        method: str,
        path: str,
        raw: bytes,
        caller: Caller,
        request_id: bytes,
        meter: AnswerMeter,
        engines: Sequence[GatewayEngine],
        model: str | None,
        *,
        each_in_turn: bool,
    ) -> RequestOutcome:
        """Send a request to the first engine that can be reached and, with `each_in_turn`, has what it asks for."""
        headers = [header for header in caller.forwarded_headers() if header[0] != b"x-request-id"]
        headers.append((b"x-request-id", request_id))
        failure: EngineError | None = None
        for number, engine in enumerate(engines, start=1):
            self._running[engine.number] += 1
            caller.log(llm=shortened(model), engine=engine.name)
            try:
                answer = await engine.client.forward(
                    method, path + caller.query, raw, headers, resend=self._config.resend or method == "GET"
                )
                try:
                    if each_in_turn and answer.status == 404 and number < len(engines):
                        continue
                    return await _pass(answer, caller, request_id, meter)
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

    def _own(self, path: str, tenant: str) -> tuple[str, AnswerMeter]:
        """Return the engine's path of a stored answer, and a meter that shows its id; ApiError 404 if not its own."""
        seen, *rest = path.removeprefix(_STORED).split("/")
        meter = ResponsesMeter()
        meter.seen_id = partial(self._ids.tagged, tenant=tenant)
        return _STORED + "/".join([self._ids.engine_id(seen, tenant), *rest]), meter

    def _engines(self, path: str, model: str | None, *, needs_model: bool) -> Sequence[GatewayEngine]:
        """Return the engines to try, in order."""
        if path.startswith(_STORED):
            owner = self._owners.find(path.removeprefix(_STORED).partition("/")[0])
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
    if not _looks_like_json(raw):
        return _Model()
    try:
        body = parse(_JsonModel, raw)
    except ApiError as error:
        if error.code == "body_too_complex":
            raise
        return _Model()
    return _Model(body.model, None, "priority" in body.model_fields_set)


def _looks_like_json(raw: bytes) -> bool:
    return raw[:100].lstrip()[:1] == b"{"


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


async def _pass(answer: EngineResponse, caller: Caller, request_id: bytes, meter: AnswerMeter) -> RequestOutcome:
    """Pass an answer on: JSON in one piece, events and anything else (audio) as it arrives."""
    if answer.is_stream or answer.is_json:
        await relay(answer, caller, request_id, meter, lambda: None)
    else:
        headers = [*passed_headers(answer), (b"x-request-id", request_id)]
        await caller.start(answer.status, headers)
        while data := await answer.chunk():
            await caller.write(data)
        await caller.write(b"", last=True)
    return outcome_of(answer.status)
