"""Request bodies: validation, the prediction input and job made from them, and the body sent to the engine."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from lengthwise.gateway.errors import ApiError, invalid_field
from lengthwise.gateway.json_fields import add_field, edit_fields
from lengthwise.gateway.streaming import AnswerMeter
from lengthwise.gateway.usage import MessagesMeter, ResponsesMeter
from lengthwise.lengths import DEFAULT_CAP, Point
from lengthwise.policies import Job
from lengthwise.predictors import PredictionInput
from lengthwise.predictors.contract import render_chat
from lengthwise.predictors.prefix_memory import scopes_of
from lengthwise.prefixes import BYTES_PER_TOKEN, Scopes, hash_bytes, hash_tokens

Validated = TypeVar("Validated", bound=BaseModel)

MAX_LENGTH: Final = 131_072
"""The most tokens that scheduling assumes for an answer, whatever a client declares."""

MAX_ELEMENTS: Final = 1 << 20
"""JSON elements of a body: token ids of a prompt, messages and their fields."""

_MAX_ADMIN_BYTES: Final = 64 << 10

_MAX_USER: Final = 256  # characters of a user's name that identify it; names stay in memory
_HINTED_PRIORITIES: Final = ("priority", "strict_priority")  # of Dynamo's nvext.agent_hints
_Model = Annotated[str, Field(max_length=4096)]  # as long as a path; names stay in memory where engines list no models
_Limit = Annotated[int, Field(ge=0, le=1 << 31)]
_Priority = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]
_Tokens = Annotated[float, Field(ge=0, allow_inf_nan=False)]


MIN_TARGET_S: Final = 1e-3
MAX_TARGET_S: Final = 86_400.0
"""A client's latency target is clamped to this range."""


class _Part(BaseModel):
    # Other fields are for the engine: the body is forwarded as it came.
    model_config = ConfigDict(extra="ignore")


class _AgentHints(_Part):
    osl: _Tokens | None = None


class _Nvext(_Part):
    agent_hints: _AgentHints | None = None


class _VllmXargs(_Part):
    expected_tokens: _Tokens | None = None


class CompletionBody(_Part):
    """The fields of /v1/completions that scheduling uses. The engine validates prompt, messages and tools."""

    meter: ClassVar[type[AnswerMeter]] = AnswerMeter
    """Measures the answer."""
    takes_priority: ClassVar[bool] = True
    """Whether engines read `priority` in this body."""

    model: _Model | None = None
    stream: bool | None = None
    max_tokens: _Limit | None = None
    max_completion_tokens: _Limit | None = None
    priority: _Priority | None = None
    user: str | None = None
    nvext: _Nvext | None = None
    vllm_xargs: _VllmXargs | None = None
    n: Any = None
    prompt: Any = None
    stream_options: Any = None
    metadata: Any = None

    @property
    def declared_limit(self) -> int | None:
        """The most tokens the answer may have, as the client declares it."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def limit(self) -> int | None:
        """The most tokens the answer may have for scheduling, if the client limits it."""
        limit = self.declared_limit
        return None if limit is None else min(max(1, limit), MAX_LENGTH)

    @property
    def hint(self) -> float | None:
        """The length the client expects; `vllm_xargs`, which the engine reads too, wins over `nvext`."""
        if self.vllm_xargs is not None and self.vllm_xargs.expected_tokens is not None:
            return self.vllm_xargs.expected_tokens
        hints = None if self.nvext is None else self.nvext.agent_hints
        return None if hints is None else hints.osl

    def prediction(self) -> Point | None:
        """Return the client's hint as a prediction, at most the answer's cap."""
        hint = self.hint
        return None if hint is None else Point.declared(hint, self.limit or DEFAULT_CAP)

    def job(self, job_id: str, now: float, headers: Mapping[bytes, bytes]) -> Job:
        """Return the request as a job."""
        session = headers.get(b"x-session-id")
        tokens, blocks = self._prefix()
        target_s = _latency_target(headers.get(b"x-lengthwise-slo-s"))
        return Job(
            job_id,
            now,
            prompt_tokens=tokens,
            blocks=blocks,
            prediction=self.prediction(),
            max_tokens=self.limit,
            priority=self.priority or 0,
            deadline=now + target_s,
            llm=self.model,
            tenant=None if self.end_user is None else self.end_user[:_MAX_USER],
            session=None if session is None else session.decode("latin-1"),
        )

    def scopes(self, job: Job, headers: Mapping[bytes, bytes]) -> Scopes:
        """Return the request's scopes in prefix memory. A client declares its template in a header or `metadata`."""
        header = headers.get(b"x-lengthwise-template")
        declared = self.metadata.get("template") if isinstance(self.metadata, dict) else None
        template = header.decode("latin-1") if header else declared if isinstance(declared, str) else None
        return scopes_of(self.llm, job.blocks, tenant=job.tenant, template=template, session=job.session)

    @property
    def end_user(self) -> str | None:
        """The user that the client names."""
        return self.user

    @property
    def llm(self) -> str:
        """The LLM asked for."""
        return self.model or ""

    @property
    def readable(self) -> bool:
        """Whether the prompt is one text: not token ids, nor several prompts."""
        return isinstance(self._only_prompt, str)

    @property
    def one_answer(self) -> bool:
        """Whether the reported tokens are those of one answer: to a prompt of token ids, too."""
        return self.n in (None, 1) and (self.readable or self._has_ids)

    def text(self) -> str:
        """The prompt."""
        return str(self._only_prompt)

    @property
    def _only_prompt(self) -> Any:
        alone = isinstance(self.prompt, list) and len(self.prompt) == 1
        return self.prompt[0] if alone else self.prompt

    def _prefix(self) -> tuple[int, Sequence[int] | NDArray[np.uint64]]:
        """Return the prompt's approximate tokens and its block hashes; nothing for an invalid prompt."""
        try:
            if self._has_ids:
                return len(self._ids), hash_tokens(self._ids)
            if self.readable:
                data = self.text().encode()
                return len(data) // BYTES_PER_TOKEN, hash_bytes(data)
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError):  # the engine refuses it
            pass
        return 0, ()

    @property
    def _has_ids(self) -> bool:
        """Whether there is one prompt of token ids."""
        return isinstance(self.prompt, list) and bool(self.prompt) and isinstance(next(iter(self._ids), None), int)

    @property
    def _ids(self) -> list[Any]:
        """A prompt of token ids, alone or as the only one."""
        alone = len(self.prompt) == 1 and isinstance(self.prompt[0], list)
        return list(self.prompt[0] if alone else self.prompt)

    def prediction_input(self, tenant: str | None = None) -> PredictionInput:
        """Return the input of a predictor; `tenant` is that of the request's key."""
        return PredictionInput(self.text(), self.llm, self.limit, tenant=tenant)

    def restrict(self, raw: bytes, *, priority: bool, lengths: bool) -> bytes:
        """Ignore what the client may not declare, and return the body without it.

        `priority`: whether `priority` counts, for Dynamo also as `nvext.agent_hints.priority` and `strict_priority`;
        `lengths`: whether `nvext.agent_hints.osl`, `vllm_xargs.expected_tokens` and `vllm_xargs.length_*` do.
        """
        changes: dict[str, bytes | None] = {}
        if not priority and "priority" in self.model_fields_set:
            self.priority = changes["priority"] = None
        if not lengths and "vllm_xargs" in self.model_fields_set:
            self.vllm_xargs = None
            xargs = json.loads(raw)["vllm_xargs"]
            if isinstance(xargs, dict) and any(map(_is_length, xargs)):
                kept = {name: value for name, value in xargs.items() if not _is_length(name)}
                changes["vllm_xargs"] = json.dumps(kept).encode()
        ignored = {*(() if lengths else ("osl",)), *(() if priority else _HINTED_PRIORITIES)}
        if ignored and "nvext" in self.model_fields_set:
            self.nvext = self.nvext if lengths else None
            nvext = json.loads(raw)["nvext"]
            hints = nvext.get("agent_hints") if isinstance(nvext, dict) else None
            if isinstance(hints, dict) and ignored & hints.keys():
                nvext["agent_hints"] = {name: value for name, value in hints.items() if name not in ignored}
                changes["nvext"] = json.dumps(nvext).encode()
        return edit_fields(raw, changes) if changes else raw

    def rename(self, raw: bytes, model: str) -> bytes:
        """Replace the model that the client named; return the body with it."""
        self.model = model
        return edit_fields(raw, {"model": json.dumps(model).encode()})

    def for_engine(self, raw: bytes, job: Job, now: float, *, prediction: bool) -> bytes:
        """Return the body with what our scheduler in vLLM reads in `vllm_xargs`; what the client sends there wins.

        The job's prediction, if `prediction`, as `length_mu` and `length_sigma` (a log-t), else the client's hint as
        `expected_tokens`; the time left to the deadline as `slo_s`.
        """
        xargs = {}
        if prediction:
            xargs = {"length_mu": round(job.mu, 4), "length_sigma": round(job.sigma, 4)}
        elif self.hint is not None and (self.vllm_xargs is None or self.vllm_xargs.expected_tokens is None):
            xargs = {"expected_tokens": round(job.expected, 1)}
        if math.isfinite(job.deadline):
            xargs["slo_s"] = round(max(MIN_TARGET_S, job.deadline - now), 3)
        return self._with_xargs(raw, xargs) if xargs else raw

    def with_priority(self, raw: bytes, priority: int) -> bytes:
        """Return the body with another `priority`."""
        if "priority" not in self.model_fields_set:
            return add_field(raw, b'"priority":%d' % priority)
        return edit_fields(raw, {"priority": b"%d" % priority})

    def _with_xargs(self, raw: bytes, xargs: Mapping[str, float]) -> bytes:
        if "vllm_xargs" not in self.model_fields_set:
            return add_field(raw, b'"vllm_xargs":' + json.dumps(xargs).encode())
        sent: dict[str, Any] = json.loads(raw)["vllm_xargs"] or {}
        return edit_fields(raw, {"vllm_xargs": json.dumps({**xargs, **sent}).encode()})

    @property
    def lacks_usage(self) -> bool:
        """Whether a stream is asked for without `stream_options`; a client's own are not changed."""
        return self.stream is True and "stream_options" not in self.model_fields_set

    @staticmethod
    def with_usage(raw: bytes) -> bytes:
        """Return the body with the stream's usage asked for."""
        return add_field(raw, b'"stream_options":{"include_usage":true}')


class ChatBody(CompletionBody):
    """The fields of /v1/chat/completions that scheduling uses."""

    messages: list[Any]
    tools: Any = None

    @property
    def readable(self) -> bool:
        """True: the conversation is rendered as one text."""
        return True

    def text(self) -> str:
        """The conversation, in the one rendering that predictors know."""
        return render_chat(self.messages, self.tools or ())


class ResponsesBody(CompletionBody):
    """The fields of /v1/responses that scheduling uses; a stored conversation (`previous_response_id`) is not in it."""

    meter: ClassVar[type[AnswerMeter]] = ResponsesMeter

    input: Any = None
    instructions: Any = None
    tools: Any = None
    max_output_tokens: _Limit | None = None
    previous_response_id: str | None = None

    @property
    def declared_limit(self) -> int | None:
        """`max_output_tokens`, which includes reasoning."""
        return self.max_output_tokens

    @property
    def readable(self) -> bool:
        """Whether there is an input: a text or items, rendered as one text."""
        return isinstance(self.input, str | list)

    @property
    def one_answer(self) -> bool:
        """True: the API has one answer for a request."""
        return True

    def text(self) -> str:
        """The instructions and the input items as a conversation."""
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        return render_chat([*system, *map(_message_of_item, items)], [_function(tool) for tool in self.tools or ()])

    @property
    def lacks_usage(self) -> bool:
        """False: the last event reports the usage."""
        return False


class MessagesBody(ChatBody):
    """The fields of /v1/messages, of Anthropic's API, that scheduling uses."""

    meter: ClassVar[type[AnswerMeter]] = MessagesMeter
    takes_priority: ClassVar[bool] = False

    system: Any = None
    metadata: Any = None

    @property
    def end_user(self) -> str | None:
        """`metadata.user_id`."""
        user = self.metadata.get("user_id") if isinstance(self.metadata, dict) else None
        return user if isinstance(user, str) else None

    @property
    def one_answer(self) -> bool:
        """True: the API has one answer for a request."""
        return True

    def text(self) -> str:
        """The system prompt and the messages as a conversation."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        turns = [turn for message in self.messages for turn in _turns_of_message(message)]
        return render_chat([*system, *turns], [_function(tool) for tool in self.tools or ()])

    @property
    def lacks_usage(self) -> bool:
        """False: the stream reports the usage."""
        return False


BODIES: Final[dict[str, type[CompletionBody]]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/responses": ResponsesBody,
    "/v1/messages": MessagesBody,
}
"""The body of each endpoint."""


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool in the format of chat completions; one that the engine brings is named by its type."""
    return {"function": {"name": tool.get("name") or tool.get("type", "?")}}


def _message_of_item(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an input item of /v1/responses as a chat message."""
    kind = item.get("type", "message")
    if kind == "function_call":
        return {"role": "assistant", "tool_calls": [{"function": {"name": item.get("name", "?")}}]}
    if kind == "function_call_output":
        return {"role": "tool", "content": item.get("output")}
    return item if kind == "message" else {"role": "assistant", "content": f"[{kind}]"}


def _turns_of_message(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a message of /v1/messages as chat messages: the results of tools are messages of their own there."""
    content = message.get("content")
    if not isinstance(content, list):
        return [message]
    turns: list[Mapping[str, Any]] = []
    parts: list[Any] = []
    calls: list[Any] = []
    for block in content:
        kind = block.get("type")
        if kind == "tool_result":
            turns.append({"role": "tool", "content": block.get("content") or ""})
        elif kind == "tool_use":
            calls.append({"function": {"name": block.get("name", "?")}})
        elif kind not in ("thinking", "redacted_thinking"):
            parts.append(block)
    if parts or calls:
        turns.append({"role": message.get("role", "user"), "content": parts or None, "tool_calls": calls})
    return turns


def _is_length(name: str) -> bool:
    return name == "expected_tokens" or name.startswith("length_")


def _latency_target(header: bytes | None) -> float:
    """Return the seconds in the header, clamped; infinity without one. ApiError 400 if it is not a number."""
    if header is None:
        return math.inf
    try:
        seconds = float(header)
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise ApiError(400, f"x-lengthwise-slo-s: {header.decode('latin-1')[:40]!r} is not a number of seconds")
    return min(max(seconds, MIN_TARGET_S), MAX_TARGET_S)


def check_elements(raw: bytes) -> None:
    """Raise ApiError 413 if a body may have so many JSON elements that parsing it would stop all other requests.

    Commas and colons are counted, those in texts too. The parser holds the interpreter's lock: a thread is no help.
    """
    if len(raw) > MAX_ELEMENTS and raw.count(b",") + raw.count(b":") > MAX_ELEMENTS:
        raise ApiError(413, f"the body has more than {MAX_ELEMENTS} JSON elements", code="body_too_complex")


def parse(model: type[CompletionBody], raw: bytes) -> CompletionBody:
    """Return the validated body; ApiError 400 that names the invalid field."""
    check_elements(raw)
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        if first["type"] == "json_invalid":
            raise ApiError(400, f"the body is not JSON: {first['msg']}", code="invalid_json") from None
        if not first["loc"]:
            raise ApiError(400, "the body must be a JSON object", code="invalid_type") from None
        raise invalid_field(error) from None


async def read_body(request: Request, limit: int = _MAX_ADMIN_BYTES) -> bytes:
    """Return the body; ApiError 413 if it is larger than `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > limit:
            raise ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
    return b"".join(parts)


async def read_model(
    request: Request, model: type[Validated], limit: int = _MAX_ADMIN_BYTES, code: str = "invalid_value"
) -> Validated:
    """Return the body as a model; ApiError 400 that names the invalid field."""
    raw = await read_body(request, limit)
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise invalid_field(error, code) from error
