"""How long an answer was, read from its bytes as they pass: what the engine says of it, and how it ended."""

from __future__ import annotations

import json
import re
from typing import Final

_TOKENS: Final = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
_PROMPT: Final = re.compile(rb'"prompt_tokens"\s*:\s*(\d+)')
_REASON: Final = re.compile(rb'"finish_reason"\s*:\s*"(\w+)"')
# A JSON string holds no bare quotes, so an answer that talks about these fields is not mistaken for them.
_WHOLE: Final = frozenset({b"stop", b"tool_calls", b"function_call"})
_DATA: Final = b"data:"


class Measure:
    """The length of one answer. With `hide_usage` the event that tells it is kept from the client, who did not ask."""

    def __init__(self, *, hide_usage: bool = False) -> None:
        self._hide_usage = hide_usage
        self._hid = False
        self._tokens: int | None = None
        self._prompt: int | None = None
        self._reasons: list[bytes] = []
        self._events = 0
        self._streams = False

    @property
    def length(self) -> tuple[int, bool] | None:
        """Tokens, and whether it was cut; None where nothing is known.

        A stream that broke off has at least as many tokens as events came, without the one that only opens it.
        """
        if self._tokens is not None and len(self._reasons) == 1:
            return self._tokens, self._reasons[0] not in _WHOLE
        if self._streams and not self._reasons and self._events > 1:
            return self._events - 1, True
        return None

    @property
    def told(self) -> bool:
        """Whether the engine told the tokens."""
        return self._tokens is not None

    @property
    def prompt_tokens(self) -> int | None:
        """Of the prompt, where the engine tells it."""
        return self._prompt

    @property
    def counted(self) -> int | None:
        """Tokens by the count of a stream's events, where nobody tells them: about one each."""
        return max(1, self._events - 1) if self._streams and self._events > 1 else None

    def whole(self, body: bytes) -> None:
        """An answer in one piece."""
        self._look(body)

    def lines(self, lines: bytes) -> bytes:
        """Whole lines of a stream; returns what the client gets of them."""
        self._streams = True
        self._events += lines.count(b"\n" + _DATA) + lines.startswith(_DATA)
        self._look(lines)
        if self._hide_usage and (self._hid or b'"usage"' in lines):
            return b"".join(line for line in lines.splitlines(keepends=True) if not self._hides(line))
        return lines

    def _look(self, data: bytes) -> None:
        if b'"finish_reason"' in data:
            self._reasons += _REASON.findall(data)
        if b'"completion_tokens"' in data:
            self._tokens = int(_TOKENS.findall(data)[-1])
        if b'"prompt_tokens"' in data and (told := _PROMPT.findall(data)):
            self._prompt = int(told[-1])

    def _hides(self, line: bytes) -> bool:
        """Whether this is the event that only tells the usage, or the blank line that ends it."""
        if self._hid and not line.strip():
            self._hid = False
            return True
        if line.startswith(_DATA) and b'"usage"' in line:
            self._hid = _only_usage(line[len(_DATA) :])
            return self._hid
        return False


def _only_usage(data: bytes) -> bool:
    try:
        event = json.loads(data)
    except ValueError:
        return False
    return isinstance(event, dict) and bool(event.get("usage")) and event.get("choices") == []
