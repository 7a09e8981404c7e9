"""The length of answers of /v1/responses and /v1/messages, whose streams have named events and no `[DONE]`."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final

from lengthwise.client.sse import count_deltas, payloads
from lengthwise.gateway.streaming import AnswerMeter, count_tokens

# A JSON string holds no bare quotes, so text that mentions these does not match.
_RESPONSE_END: Final = re.compile(rb'"type"\s*:\s*"response\.(?:completed|incomplete|failed)"')
_MESSAGE_USAGE: Final = re.compile(rb'"type"\s*:\s*"message_(?:start|delta|stop)"')
_SEQUENCE: Final = re.compile(rb'"sequence_number"\s*:\s*(\d{1,18})')
_MESSAGE_WHOLE: Final = frozenset({"end_turn", "stop_sequence", "tool_use"})


class _NamedEvents(AnswerMeter, ABC):
    """Measures by the events that a pattern finds; the others are only counted, about one token for each delta."""

    wanted: ClassVar[re.Pattern[bytes]]

    def __init__(self, *, hide_usage: bool = False) -> None:
        """`hide_usage` has no effect: these APIs always report their usage."""
        super().__init__()
        self._events = 1  # only deltas are counted, so none of them opens the stream

    def whole(self, body: bytes) -> bytes:
        """Measure an answer in one piece; the client receives it as it is."""
        self._answer(_object(body))
        return body

    def lines(self, lines: bytes) -> bytes:
        """Measure complete lines of a stream; the client receives all."""
        self._streams = True
        self._events += count_deltas(lines)
        if self.wanted.search(lines):
            for payload in payloads(lines):
                if self.wanted.search(payload):
                    self._event(_object(payload))
        return lines

    @abstractmethod
    def _answer(self, answer: dict[str, Any]) -> None:
        """Read the usage of an answer in one piece."""

    @abstractmethod
    def _event(self, event: dict[str, Any]) -> None:
        """Read the usage of an event of a stream."""

    def _read_usage(self, holder: dict[str, Any]) -> None:
        usage = holder.get("usage")
        if isinstance(usage, dict):
            self._tokens = count_tokens(usage, "output_tokens", self._tokens)
            self._prompt = count_tokens(usage, "input_tokens", self._prompt)

    def _read_end(self, *, whole: bool) -> None:
        self._reasons = [b"stop" if whole else b"length"]


class ResponsesMeter(_NamedEvents):
    """Measures an answer of /v1/responses: `usage.output_tokens`, censored where `status` is `incomplete`."""

    wanted = _RESPONSE_END

    def __init__(self, *, hide_usage: bool = False) -> None:
        super().__init__(hide_usage=hide_usage)
        self._latest = b""
        self._status: object = None
        self._seen_ids: dict[bytes, bytes] = {}
        self.response_id: str | None = None
        """The id under which the engine may store the answer."""
        self.seen_id: Callable[[str], str] | None = None
        """Returns the id that the client sees in place of the engine's, where they differ."""

    def whole(self, body: bytes) -> bytes:
        """Measure an answer in one piece; return it with the ids that the client sees."""
        return self._renamed(super().whole(body))

    @property
    def pending(self) -> bool:
        """Whether the engine has named the answer and not ended it."""
        unfinished = not self.done if self._status is None else self._status in ("queued", "in_progress")
        return unfinished and self.response_id is not None

    @property
    def next_event(self) -> int:
        """One more than the last sequence number."""
        numbers = _SEQUENCE.findall(self._latest)
        return int(numbers[-1]) + 1 if numbers else 0

    def lines(self, lines: bytes) -> bytes:
        """Measure complete lines of a stream; the client receives all, with the ids that it sees."""
        self._latest = lines
        if self.response_id is None and b'"response"' in lines:  # the first event holds the answer
            for payload in payloads(lines):
                self._identify(_object(payload).get("response"))
        return self._renamed(super().lines(lines))

    def _identify(self, answer: object) -> None:
        """Read the id of an answer. Not by a pattern: a client may have a field `id` of its own echoed."""
        if self.response_id is not None or not isinstance(answer, dict) or not isinstance(answer.get("id"), str):
            return
        self.response_id = answer["id"]
        for name in (self.response_id, answer.get("previous_response_id")):
            if self.seen_id is not None and isinstance(name, str):  # whole texts are replaced, not parts of texts
                self._seen_ids[json.dumps(name).encode()] = json.dumps(self.seen_id(name)).encode()

    def _renamed(self, data: bytes) -> bytes:
        for name, seen in self._seen_ids.items():
            data = data.replace(name, seen)
        return data

    def _answer(self, answer: dict[str, Any]) -> None:
        self._identify(answer)
        self._status = status = answer.get("status")
        if status in ("completed", "incomplete"):  # not one that runs in the background
            self._read_usage(answer)
            self._read_end(whole=status == "completed")

    def _event(self, event: dict[str, Any]) -> None:
        self.done = True
        answer = event.get("response")
        self._answer(answer if isinstance(answer, dict) else {})


class MessagesMeter(_NamedEvents):
    """Measures an answer of /v1/messages: `usage.output_tokens`, censored unless `stop_reason` is its own end."""

    wanted = _MESSAGE_USAGE

    def _answer(self, answer: dict[str, Any]) -> None:
        self._read_usage(answer)
        self._read_reason(answer)

    def _event(self, event: dict[str, Any]) -> None:
        if event.get("type") == "message_stop":
            self.done = True
        elif isinstance(message := event.get("message"), dict):
            usage = message.get("usage")
            if isinstance(usage, dict):  # the output tokens are not known yet
                self._prompt = count_tokens(usage, "input_tokens", self._prompt)
        else:
            self._read_usage(event)
            if isinstance(delta := event.get("delta"), dict):
                self._read_reason(delta)

    def _read_reason(self, holder: dict[str, Any]) -> None:
        if isinstance(reason := holder.get("stop_reason"), str):
            self._read_end(whole=reason in _MESSAGE_WHOLE)


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
