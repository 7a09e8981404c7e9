"""Request bodies: validation, the prediction input and job made from them, and the body sent to the engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from lengthwise.client.request_classes import CLASS_FIELD, Priority
from lengthwise.gateway.errors import ApiError, invalid_field
from lengthwise.gateway.json_fields import LARGE_BODY, add_field, edit_fields, value_of
from lengthwise.gateway.json_outline import NotAnObjectError, Outline, TooComplexError, numbers_of, outline
from lengthwise.gateway.streaming import AnswerMeter
from lengthwise.gateway.usage import MessagesMeter, ResponsesMeter
from lengthwise.lengths import DEFAULT_CAP, Point
from lengthwise.policies import Job
from lengthwise.policies.job import LIMIT_FIELDS, declared_limit
from lengthwise.predictors import PredictionInput
from lengthwise.predictors.contract import render_chat
from lengthwise.predictors.prefix_memory import scopes_of
from lengthwise.predictors.thinking import Thinking, thinking_of_fields
from lengthwise.prefixes import BLOCK_BYTES, BLOCK_TOKENS, BYTES_PER_TOKEN, Scopes, hash_bytes, hash_tokens
from lengthwise.traffic.log import KEPT_CHARACTERS, kept_text

Validated = TypeVar("Validated", bound=BaseModel)

MAX_LENGTH: Final = 131_072
"""The most tokens that scheduling assumes for an answer, whatever a client declares."""

_MAX_ADMIN_BYTES: Final = 64 << 10

_MAX_NAME: Final = 256  # characters of a session's or template's name that policies identify it by
_MAX_ANSWERS: Final = 1 << 16  # that a request is charged for beforehand
_MAX_USER: Final = 256  # characters of a user's name that identify it; names stay in memory
_HINTED_PRIORITIES: Final = ("priority", "strict_priority")  # of Dynamo's nvext.agent_hints
_Model = Annotated[str, Field(max_length=4096)]  # as long as a path; names stay in memory where engines list no models
_Limit = Annotated[int, Field(ge=0, le=1 << 31)]
_Tokens = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(gt=0), AfterValidator(declared_limit)]
_HEADERS: Final = {name: b"x-lengthwise-" + name.replace("_", "-").encode() for name in LIMIT_FIELDS}
"""The headers with a client's latency limits, by the names of limits."""
_USAGE_PER_EVENT: Final = "continuous_usage_stats"  # of vLLM, beside `include_usage`
_KEPT: Final = 4 * KEPT_CHARACTERS  # bytes that hold what predictors read of either end of a prompt
_LONG_FIELDS: Final = frozenset({"prompt", "messages", "input", "instructions", "system", "tools"})
"""The fields that make a body large: of a large body the others are not read if they are long."""
_SWITCHES: Final = frozenset({"reasoning_effort", "reasoning", "thinking", "enable_thinking", "chat_template_kwargs"})
"""The fields in which a client says whether and how much the LLM is to think."""
_FIRST_ID: Final = re.compile(rb"\s*\d+\s*,")
_CLASS_HEADER: Final = b"x-lengthwise-request-class"


class _Part(BaseModel):
    # Other fields are for the engine: the body is forwarded as it came.
    model_config = ConfigDict(extra="ignore")


class _AgentHints(_Part):
    osl: _Tokens | None = None


class _Nvext(_Part):
    agent_hints: _AgentHints | None = None


class _VllmXargs(_Part):
    expected_tokens: _Tokens | None = None
    slo_s: _Seconds | None = None
    ttft_s: _Seconds | None = None
    per_token_s: _Seconds | None = None
    request_class: str | None = None


class _Digest(NamedTuple):
    """What is kept of a body's prompt and settings once a job is made of it."""

    readable: bool
    one_answer: bool
    answers: int
    lacks_usage: bool
    switch: Thinking | None
    template: str | None
    text: bytes | None
    """The rendered prompt, of a long one what predictors read; None if it is not one text."""


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
    priority: Priority | None = None
    user: str | None = None
    nvext: _Nvext | None = None
    vllm_xargs: _VllmXargs | None = None
    n: Any = None
    prompt: Any = None
    stream_options: Any = None
    metadata: Any = None
    store: Any = None
    # Switches for reasoning, which engines validate.
    reasoning_effort: Any = None
    reasoning: Any = None
    thinking: Any = None
    enable_thinking: Any = None
    chat_template_kwargs: Any = None

    # These are set by `_set`: as private attributes of pydantic, which finds them in Python, they take a sixth of the
    # CPU time of a request.
    _outline: ClassVar[Outline | None] = None  # of a large body: long values are not in the fields
    _text: ClassVar[bytes | None] = None  # the rendered prompt; of a large body its beginning and end
    _digest: ClassVar[_Digest | None] = None

    @property
    def switch(self) -> Thinking | None:
        """Whether and how much the LLM is asked to think, if the request says so."""
        if self._digest is not None:
            return self._digest.switch
        given = _SWITCHES & self.model_fields_set
        return thinking_of_fields({name: getattr(self, name) for name in given}) if given else None

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

    def job(self, job_id: str, now: float, headers: Mapping[bytes, bytes], *, limits: bool = True) -> Job:
        """Return the request as a job; `limits`: whether latency limits that the client declares count."""
        session, template = self._session(headers), self._template(headers)
        tokens, blocks = self._prefix()
        job = Job(
            job_id,
            now,
            prompt_tokens=tokens,
            blocks=blocks,
            prediction=self.prediction(),
            max_tokens=self.limit,
            priority=self.priority or 0,
            llm=self.model,
            tenant=None if self.end_user is None else self.end_user[:_MAX_USER],
            session=session,
            template=None if template is None else template[:_MAX_NAME],
            answers=min(self.answers, _MAX_ANSWERS),
        )
        if limits:
            job.use_limits(**_declared_limits(headers))
            if self.vllm_xargs is not None:
                job.use_limits(**{name: getattr(self.vllm_xargs, name) for name in LIMIT_FIELDS})
        return job

    def class_name(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Return the class that the client names."""
        header = headers.get(_CLASS_HEADER)
        if header is not None:
            return header.decode("latin-1")
        return None if self.vllm_xargs is None else self.vllm_xargs.request_class

    def scopes(self, job: Job, headers: Mapping[bytes, bytes]) -> Scopes:
        """Return the request's scopes in prefix memory."""
        template = self._template(headers)
        return scopes_of(self.llm, job.blocks, tenant=job.tenant, template=template, session=job.session)

    def _session(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Return the session that the client names, in a header or `metadata.session_id`."""
        header = headers.get(b"x-session-id")
        declared = self.metadata.get("session_id") if isinstance(self.metadata, dict) else None
        named = header.decode("latin-1") if header else declared
        return named[:_MAX_NAME] if isinstance(named, str) and named else None

    def _template(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Return the template that the client declares, in a header or `metadata`."""
        header = headers.get(b"x-lengthwise-template")
        return header.decode("latin-1") if header else self._declared_template

    @property
    def _declared_template(self) -> str | None:
        if self._digest is not None:
            return self._digest.template
        declared = self.metadata.get("template") if isinstance(self.metadata, dict) else None
        return declared if isinstance(declared, str) else None

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
        return self._is_text if self._digest is None else self._digest.readable

    @property
    def one_answer(self) -> bool:
        """Whether the reported tokens are those of one answer: to a prompt of token ids, too."""
        return self._has_one_answer if self._digest is None else self._digest.one_answer

    @property
    def repeatable(self) -> bool:
        """Whether it may be executed twice: its answer is not to be stored, nor generated in the background."""
        return not self.store

    @property
    def answers(self) -> int:
        """Answers that it asks for: `n` for each prompt."""
        if self._digest is not None:
            return self._digest.answers
        prompts = 1
        if not self.readable and not self._has_ids:
            if self._outline is not None:
                prompts = self._outline.prompts
            elif isinstance(self.prompt, list):
                prompts = len(self.prompt)
        return max(1, prompts) * (self.n if type(self.n) is int and self.n > 0 else 1)

    def text(self) -> str:
        """Return the prompt, of a long one what predictors read. Raises where it is not in the API's format."""
        if self._digest is not None:
            if self._digest.text is None:
                raise ValueError("the prompt is not one text")
            return self._digest.text.decode("utf-8", "replace")
        if self._text is None:
            rendered = self._rendered().encode()
            if self._outline is not None:
                rendered = _hash_text(self._outline.expand(rendered))[2]
            self._set(_text=rendered)
            return _read_of(rendered)
        return _read_of(self._text)

    def text_or_none(self) -> str | None:
        """Return the prompt; None if it is not one text, or not in the API's format, which the engine refuses."""
        try:
            return self.text() if self.readable else None
        except (AttributeError, LookupError, TypeError, ValueError):
            return None

    def use_outline(self, found: Outline) -> None:
        """Look long values up in the outline that the fields were read from."""
        self._set(_outline=found)

    def condense(self) -> None:
        """Let the objects of prompt, messages and settings go, and keep what is used of them.

        A body waits for as long as its request: as objects it would take many times its bytes.
        """
        text = self.text_or_none()
        if text is None:
            kept = None
        elif self._text is not None and len(self._text) < LARGE_BODY:
            kept = self._text
        else:
            kept = text.encode("utf-8", "replace")
        digest = _Digest(
            self.readable,
            self.one_answer,
            self.answers,
            self.lacks_usage,
            self.switch,
            self._declared_template,
            kept,
        )
        gone = dict.fromkeys(_untyped(type(self)) & self.model_fields_set) | {"store": bool(self.store)}
        self._set(**gone, _digest=digest, _outline=None, _text=None)

    def _set(self, **values: Any) -> None:
        self.__dict__.update(values)

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept of the prompt."""
        return 0 if self._digest is None or self._digest.text is None else len(self._digest.text)

    @property
    def _is_text(self) -> bool:
        return isinstance(self._only_prompt, str) and self._id_span is None

    @property
    def _has_one_answer(self) -> bool:
        return self.n in (None, 1) and (self.readable or self._has_ids)

    def _rendered(self) -> str:
        """The prompt as one text; long values of a large body are references of its outline."""
        return str(self._only_prompt)

    @property
    def _only_prompt(self) -> Any:
        alone = isinstance(self.prompt, list) and len(self.prompt) == 1
        return self.prompt[0] if alone else self.prompt

    def _prefix(self) -> tuple[int, Sequence[int] | NDArray[np.uint64]]:
        """Return the prompt's approximate tokens and its block hashes; nothing for an invalid prompt."""
        try:
            if self._outline is not None and (span := self._id_span) is not None:
                return _hash_ids(numbers_of(self._outline.raw, *span))
            if self._has_ids:
                return len(self._ids), hash_tokens(self._ids)
            if self.readable:
                if self._outline is not None:
                    size, blocks, text = _hash_text(self._outline.expand(self._rendered().encode()))
                    self._set(_text=text)
                    return size // BYTES_PER_TOKEN, blocks
                text = self._rendered().encode()
                self._set(_text=text)
                return len(text) // BYTES_PER_TOKEN, hash_bytes(text)
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError):  # the engine refuses it
            pass
        return 0, ()

    @property
    def _has_ids(self) -> bool:
        """Whether there is one prompt of token ids."""
        if (span := self._id_span) is not None and self._outline is not None:
            return _FIRST_ID.match(self._outline.raw, span[0] + 1) is not None
        return isinstance(self.prompt, list) and bool(self.prompt) and isinstance(next(iter(self._ids), None), int)

    @property
    def _id_span(self) -> tuple[int, int] | None:
        """Where a large body has a long array as its only prompt."""
        return None if self._outline is None else self._outline.is_array(self._only_prompt)

    @property
    def _ids(self) -> list[Any]:
        """A prompt of token ids, alone or as the only one."""
        alone = len(self.prompt) == 1 and isinstance(self.prompt[0], list)
        return list(self.prompt[0] if alone else self.prompt)

    def prediction_input(self, job: Job | None = None, headers: Mapping[bytes, bytes] | None = None) -> PredictionInput:
        """Return the input of a predictor; with a job, it has what prefix memory knows the request by."""
        if job is None:
            return PredictionInput(self.text(), self.llm, self.limit, thinking=self.switch)
        return PredictionInput(
            self.text(),
            self.llm,
            self.limit,
            blocks=job.blocks,
            tenant=job.tenant,
            template=self._template(headers or {}),
            session=job.session,
            thinking=self.switch,
        )

    def restrict(self, raw: bytes, *, priority: bool, lengths: bool, limits: bool) -> bytes:
        """Ignore what the client may not declare, and return the body without it.

        `priority`: whether `priority` counts, for Dynamo also as `nvext.agent_hints.priority` and `strict_priority`;
        and `request_class` and `priority` in `vllm_xargs`;
        `lengths`: whether `nvext.agent_hints.osl`, `vllm_xargs.expected_tokens` and `vllm_xargs.length_*` do; `limits`:
        whether `vllm_xargs.slo_s`, `ttft_s` and `per_token_s` do.
        """
        changes: dict[str, bytes | None] = {}
        if not priority and "priority" in self.model_fields_set:
            self.priority = changes["priority"] = None
            self.model_fields_set.discard("priority")  # the engine's own is added, not put in its place
        if self.vllm_xargs is not None and not (priority and lengths and limits):
            xargs = value_of(raw, "vllm_xargs")
            hidden = {name for name in xargs if not lengths and _is_length(name)}
            hidden |= {name for name in xargs if not limits and name in LIMIT_FIELDS}
            hidden |= {name for name in xargs if not priority and name in (CLASS_FIELD, "priority")}
            if hidden:
                self.vllm_xargs = self.vllm_xargs.model_copy(
                    update=dict.fromkeys(hidden & _VllmXargs.model_fields.keys())
                )
                kept = {name: value for name, value in xargs.items() if name not in hidden}
                changes["vllm_xargs"] = json.dumps(kept).encode()
        ignored = {*(() if lengths else ("osl",)), *(() if priority else _HINTED_PRIORITIES)}
        if ignored and "nvext" in self.model_fields_set:
            self.nvext = self.nvext if lengths else None
            nvext = value_of(raw, "nvext")
            hints = nvext.get("agent_hints") if isinstance(nvext, dict) else None
            if isinstance(hints, dict) and ignored & hints.keys():
                nvext["agent_hints"] = {name: value for name, value in hints.items() if name not in ignored}
                changes["nvext"] = json.dumps(nvext).encode()
        return edit_fields(raw, changes) if changes else raw

    def rename(self, raw: bytes, model: str) -> bytes:
        """Replace the model that the client named; return the body with it."""
        self.model = model
        return edit_fields(raw, {"model": json.dumps(model).encode()})

    def for_engine(self, raw: bytes, job: Job, now: float, *, prediction: bool, tenant: str | None = None) -> bytes:
        """Return the body with what our scheduler in vLLM reads in `vllm_xargs`.

        The job's prediction, if `prediction`, as `length_mu` and `length_sigma` (a log-t), else the client's hint as
        `expected_tokens`, unless the client sends its own; what is left of its limits as `slo_s`, `ttft_s` and
        `per_token_s`, its priority, the session and the template that it names, and the tenant whose answers it is
        learned from, which replace the client's.
        """
        xargs: dict[str, float] = {}
        if prediction:
            xargs = {"length_mu": round(job.mu, 4), "length_sigma": round(job.sigma, 4)}
        elif self.hint is not None and (self.vllm_xargs is None or self.vllm_xargs.expected_tokens is None):
            xargs = {"expected_tokens": round(job.expected, 1)}
        replaced: dict[str, float | str] = {name: round(value, 5) for name, value in job.limits_left(now).items()}
        if job.priority:
            replaced["priority"] = job.priority
        replaced |= {
            name: known
            for name, known in (("tenant", tenant), ("session", job.session), ("template", job.template))
            if known is not None
        }
        return self._with_xargs(raw, xargs, replaced) if xargs or replaced else raw

    def with_priority(self, raw: bytes, priority: int) -> bytes:
        """Return the body with another `priority`."""
        if "priority" not in self.model_fields_set:
            return add_field(raw, b'"priority":%d' % priority)
        return edit_fields(raw, {"priority": b"%d" % priority})

    def _with_xargs(self, raw: bytes, added: Mapping[str, float], replaced: Mapping[str, float | str]) -> bytes:
        if "vllm_xargs" not in self.model_fields_set:
            return add_field(raw, b'"vllm_xargs":' + json.dumps({**added, **replaced}).encode())
        sent: dict[str, Any] = value_of(raw, "vllm_xargs") or {}
        return edit_fields(raw, {"vllm_xargs": json.dumps({**added, **sent, **replaced}).encode()})

    @property
    def lacks_usage(self) -> bool:
        """Whether a stream is asked for without its usage; invalid `stream_options` are left to the engine."""
        if self._digest is not None:
            return self._digest.lacks_usage
        options = self.stream_options
        return self.stream is True and (options is None or (isinstance(options, dict) and not _reports_usage(options)))

    def with_usage(self, raw: bytes) -> bytes:
        """Return the body with the stream's usage asked for, once: other `stream_options` are kept."""
        if "stream_options" not in self.model_fields_set:
            return add_field(raw, b'"stream_options":{"include_usage": true}')
        options = value_of(raw, "stream_options") or {}
        asked = {name: value for name, value in options.items() if name != _USAGE_PER_EVENT}
        return edit_fields(raw, {"stream_options": json.dumps({**asked, "include_usage": True}).encode()})


class ChatBody(CompletionBody):
    """The fields of /v1/chat/completions that scheduling uses."""

    messages: list[Any]
    tools: Any = None

    @property
    def _is_text(self) -> bool:
        """True: the conversation is rendered as one text."""
        return True

    def _rendered(self) -> str:
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
    request_id: Any = None
    background: Any = None

    @property
    def repeatable(self) -> bool:
        """Whether it may be executed twice."""
        return not self.store and not self.background

    def condense(self) -> None:
        """Let the objects go; whether the response is generated in the background is kept."""
        background = self.background is True
        super().condense()
        self.background = background

    @property
    def declared_limit(self) -> int | None:
        """`max_output_tokens`, which includes reasoning."""
        return self.max_output_tokens

    @property
    def _is_text(self) -> bool:
        """Whether there is an input: a text or items, rendered as one text."""
        return isinstance(self.input, str | list)

    @property
    def _has_one_answer(self) -> bool:
        """True: the API has one answer for a request."""
        return True

    def _rendered(self) -> str:
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
    def _has_one_answer(self) -> bool:
        """True: the API has one answer for a request."""
        return True

    def _rendered(self) -> str:
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


def _reports_usage(options: Mapping[str, Any]) -> bool:
    """Whether `stream_options` ask for the usage, as engines read them."""
    return options.get("include_usage") in (True, "true", "True", "yes", "on", "1")


def _is_length(name: str) -> bool:
    return name == "expected_tokens" or name.startswith("length_")


def _declared_limits(headers: Mapping[bytes, bytes]) -> dict[str, float]:
    """Return the latency limits in a request's headers, clamped; ApiError 400 for one that is not a number above 0."""
    found = {}
    for name, header in _HEADERS.items():
        if header in headers:
            try:
                found[name] = declared_limit(headers[header].decode("latin-1"))
            except ValueError as error:
                raise ApiError(400, f"{header.decode()}: {error}", param=header.decode()) from None
    return found


def parse(model: type[Validated], raw: bytes) -> Validated:
    """Return the validated body, of a large one from its outline; ApiError 400 that names the invalid field."""
    try:
        if len(raw) < LARGE_BODY:
            return model.model_validate_json(raw)
        found = outline_of(model, raw)
        body = model.model_validate_json(found.json)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise ApiError(400, f"the body is not JSON: {first['msg']}", code="invalid_json") from None
        if not first["loc"]:
            raise ApiError(400, "the body must be a JSON object", code="invalid_type") from None
        raise invalid_field(error) from None
    if isinstance(body, CompletionBody):
        body.use_outline(found)
    return body


def outline_of(model: type[BaseModel], raw: bytes) -> Outline:
    """Return what of a large body is parsed for a model; ApiError 400 if its structure exceeds a limit."""
    untyped = _untyped(model)
    try:
        return outline(raw, model.model_fields.keys() - untyped, untyped & _LONG_FIELDS, untyped - _LONG_FIELDS)
    except TooComplexError as error:
        raise ApiError(400, f"the body has {error}", code="body_too_complex") from None
    except NotAnObjectError:
        raise ApiError(400, "the body is not a JSON object", code="invalid_json") from None


@cache
def _untyped(model: type[BaseModel]) -> frozenset[str]:
    """Return the fields of a model that hold any JSON."""
    return frozenset(name for name, field in model.model_fields.items() if field.annotation in (Any, list[Any]))


def _read_of(text: bytes) -> str:
    """Return of a prompt what predictors read: of a long one the beginning and the end."""
    if len(text) < LARGE_BODY:
        return text.decode("utf-8", "ignore")
    return kept_text(text[:_KEPT].decode("utf-8", "ignore") + "\n" + text[-_KEPT:].decode("utf-8", "ignore"))


def _hash_text(pieces: Iterable[bytes]) -> tuple[int, NDArray[np.uint64], bytes]:
    """Return the bytes of a text, its block hashes, and the text, of a long one its beginning and its end."""
    size, rest, begin, end = 0, b"", b"", b""
    hashes = [np.zeros(0, np.uint64)]
    for piece in pieces:
        size += len(piece)
        if len(begin) < _KEPT:
            begin += piece
        end = (end + piece)[-_KEPT:]
        rest += piece
        if full := len(rest) // BLOCK_BYTES * BLOCK_BYTES:
            before = int(hashes[-1][-1]) if len(hashes) > 1 else 0
            hashes.append(hash_bytes(rest[:full], before=before))
            rest = rest[full:]
    return size, np.concatenate(hashes), begin if len(begin) == size else begin + end


def _hash_ids(ids: Iterable[NDArray[np.int64]]) -> tuple[int, NDArray[np.uint64]]:
    """Return the number of token ids and their block hashes."""
    count, rest, hashes = 0, np.zeros(0, np.int64), [np.zeros(0, np.uint64)]
    for some in ids:
        count += len(some)
        rest = np.concatenate([rest, some])
        full = len(rest) // BLOCK_TOKENS * BLOCK_TOKENS
        if full:
            before = int(hashes[-1][-1]) if len(hashes) > 1 else 0
            hashes.append(hash_tokens(rest[:full], before=before))
            rest = rest[full:]
    return count, np.concatenate(hashes)


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
