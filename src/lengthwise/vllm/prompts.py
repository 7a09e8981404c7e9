"""Decode an engine's token ids into the text that predictors read.

An engine receives a chat as one text: the turns between the words and markers of the chat template. What the template
adds is learned from the tokenizer, by rendering known turns and comparing. The decoded messages are then rendered by
`render_chat`, so a predictor reads the same text in the engine as in the gateway. A prompt that does not start like
the template is a plain prompt: one user turn. Imports nothing of vLLM.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, Protocol

from lengthwise.predictors.contract import render_chat
from lengthwise.predictors.thinking import Thinking, thinking_of_prompt

Render = Callable[..., str]

_SYSTEM, _USER, _ASSISTANT, _NEXT, _TOOL = "qzsystemqz", "qzuserqz", "qzassistantqz", "qznextqz", "qztoolqz"
_TOOLS: Final = [{"type": "function", "function": {"name": _TOOL, "description": _TOOL, "parameters": {}}}]

_PIECE: Final = 1024
"""Token ids decoded at once, about a millisecond: decoding holds the GIL, and a prompt may have 100,000."""

_OVERLAP: Final = 8
_PAUSE_S: Final = 50e-6
_BROKEN: Final = "\ufffd"  # decoded from an incomplete character

# Dates in an escaped template: some templates state the current date.
_DATE: Final = re.compile(r"\d{1,2} [A-Z][a-z]{2,8} \d{4}|[A-Z][a-z]{2,8} \d{1,2}, \d{4}|\d{4}\\?-\d{2}\\?-\d{2}")
_ANY_DATE: Final = r"[\\w ,-]{8,18}"
_TOOL_NAME: Final = re.compile(r'"name":\s*"([^"]+)"')
_ONLY_MARKUP: Final = re.compile(r"(\s|<[^<>]*>)*")


class Tokenizer(Protocol):
    """The methods of an engine's tokenizer that are used."""

    def decode(self, ids: Any, skip_special_tokens: bool = ...) -> str: ...  # noqa: D102

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...  # noqa: D102

    def apply_chat_template(self, messages: Any, tools: Any = ..., **options: Any) -> Any: ...  # noqa: D102


@dataclass(frozen=True)
class ChatTemplate:
    """The text that a template puts before the first user turn (several variants) and between the turns."""

    openings: tuple[re.Pattern[str], ...]
    to_assistant: str
    to_user: str

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatTemplate | None:
        """Learn the tokenizer's template; None if it has none, or one without markers between turns."""

        def render(*turns: tuple[str, str], tools: Any = None) -> str:
            messages = [{"role": role, "content": content} for role, content in turns]
            text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
            # Encoded and decoded, because some tokenizers do not reproduce a text exactly.
            return tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False)

        try:
            whole = render(("user", _USER), ("assistant", _ASSISTANT), ("user", _NEXT))
        except Exception:  # a template is a program and may raise anything
            return None
        turns = re.split(f"{_USER}|{_ASSISTANT}|{_NEXT}", whole)
        if len(turns) != 4:
            return None
        _, before_answer, to_user, end = turns
        # The marker before a new answer may be shorter or longer than before a given one: take the common prefix.
        common = takewhile(lambda pair: pair[0] == pair[1], zip(before_answer, end, strict=False))
        to_assistant = "".join(character for character, _ in common)
        if not to_assistant.strip() or not to_user.strip():
            return None
        return cls(tuple(_openings(render)), to_assistant, to_user)

    def messages(self, text: str) -> tuple[list[dict[str, str]], list[str]] | None:
        """Return the turns of a rendered chat and the names of its tools; None if it does not start like a chat."""
        start = next((match for opening in self.openings if (match := opening.match(text))), None)
        if start is None:
            return None
        groups, rest = start.groupdict(), text[start.end() :]
        turns = [{"role": "system", "content": groups["system"]}] if groups.get("system") else []
        tools = groups.get("tools") or ""
        # If only blank lines separate the tools from the user turn, they also separate the tools from one another.
        while tools and (end := _json_end(rest, 0)) is not None and '"function"' in rest[:end]:
            tools, rest = tools + rest[:end], rest[end:].lstrip("\n")
        return [*turns, *self._split_turns(rest)], _TOOL_NAME.findall(tools)

    def _split_turns(self, rest: str) -> list[dict[str, str]]:
        turns: list[dict[str, str]] = []
        while True:
            question, mark, rest = rest.partition(self.to_assistant)
            turns.append({"role": "user", "content": question})
            answer, more, rest = rest.partition(self.to_user)
            answer = answer.partition(self.to_assistant)[0]  # without the prompt for another answer
            if more or not _ONLY_MARKUP.fullmatch(answer):  # an answer, or the start of one that the client gives
                turns.append({"role": "assistant", "content": answer.strip()})
            if not (mark and more):
                return turns


@dataclass(frozen=True)
class PromptReader:
    """Decodes prompts. Any list of ids that the tokenizer can decode is a prompt."""

    tokenizer: Tokenizer
    template: ChatTemplate | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> PromptReader:
        """Return a reader for this tokenizer and its chat template."""
        return cls(tokenizer, ChatTemplate.of(tokenizer))

    def read(self, ids: Sequence[int]) -> str:
        """Return the request as predictors read it."""
        return self.read_with_switch(ids)[0]

    def read_with_switch(self, ids: Sequence[int]) -> tuple[str, Thinking | None]:
        """Return the request as predictors read it, and its switch for reasoning as the template renders it."""
        if self.template is not None:
            rendered = self._decode(ids, special=True)
            chat = self.template.messages(rendered)
            if chat is not None:
                messages, tools = chat
                text = render_chat(messages, [{"function": {"name": name}} for name in tools])
                return text, thinking_of_prompt(rendered)
        return self._decode(ids, special=False), None

    def _decode(self, ids: Sequence[int], *, special: bool) -> str:
        text = []
        start = 0
        while start < len(ids):
            before = list(ids[max(0, start - _OVERLAP) : start])
            end = start + _PIECE
            piece = self._plain(before + list(ids[start:end]), special)
            while piece.endswith(_BROKEN) and end < min(len(ids), start + _PIECE + _OVERLAP):
                end += 1
                piece = self._plain(before + list(ids[start:end]), special)
            # Decoded together with the ids before it, so that a leading space is not dropped.
            text.append(piece[len(self._plain(before, special)) :] if before else piece)
            start = end
            if start < len(ids):
                time.sleep(_PAUSE_S)
        return "".join(text)

    def _plain(self, ids: Sequence[int], special: bool) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=not special)


def _openings(render: Render) -> list[re.Pattern[str]]:
    """Return the patterns with which a chat may start, the longest first."""
    found = []
    for tools in (_TOOLS, None):
        for system in ((), (("system", _SYSTEM),)):
            try:
                before = render(*system, ("user", _USER), tools=tools).partition(_USER)[0]
            except Exception:  # noqa: S112  (a template without system turns or tools)
                continue
            pattern = _pattern(before, bool(system), bool(tools))
            if pattern is not None:
                found.append(pattern)
    return found


def _pattern(before: str, system: bool, tools: bool) -> re.Pattern[str] | None:
    """Return a pattern of the text before the first user turn, with groups for the system turn and the tools."""
    parts = [before]
    if tools:
        place = _json_around(before, _TOOL)
        if place is None:
            return None
        parts = [before[: place[0]], before[place[1] :]]
    literal = "(?P<tools>.*?)".join(_DATE.sub(_ANY_DATE, re.escape(part).replace(r"\ ", " ")) for part in parts)
    if system:
        if literal.count(_SYSTEM) != 1:
            return None
        start, end = literal.split(_SYSTEM)
        if not end.strip():  # system and user share one turn without a separator
            return None
        literal = f"{start}(?P<system>.*?){end}"
    return re.compile(literal, re.DOTALL)


def _json_around(text: str, word: str) -> tuple[int, int] | None:
    """Return start and end of the JSON value that contains the word."""
    at = text.find(word)
    ends = ((start, _json_end(text, start)) for start in range(max(at, 0)))
    return next(((start, end) for start, end in ends if end is not None and end > at), None)


def _json_end(text: str, start: int) -> int | None:
    """Return the end of the JSON object or list that starts here; None if none does."""
    if text[start : start + 1] not in ("[", "{"):
        return None
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None
