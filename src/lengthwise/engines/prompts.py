"""From the token ids that an engine holds back to the one rendering of a request that predictors read.

An engine gets a chat as one text: the template's own words, its markers, and the turns between them. What the template
adds is learned from the tokenizer itself, by rendering turns whose words are known and looking at what stands around
them. So the text is `render_chat`'s of the same messages, as the gateway has it. A prompt that does not begin as the
template begins is a bare one: one user turn. Knows tokenizers, not vLLM.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, Protocol

from lengthwise.predictors.contract import render_chat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Render = Callable[..., str]

_SYSTEM, _USER, _ASSISTANT, _NEXT, _TOOL = "qzsystemqz", "qzuserqz", "qzassistantqz", "qznextqz", "qztoolqz"
_TOOLS: Final = [{"type": "function", "function": {"name": _TOOL, "description": _TOOL, "parameters": {}}}]

_PIECE: Final = 1024
"""Token ids decoded at once, about a millisecond: decoding holds Python's lock, and a prompt may have 100,000."""

_OVERLAP: Final = 8
_PAUSE_S: Final = 50e-6
_BROKEN: Final = "\ufffd"  # what decoding half a character gives

# In a template's escaped words. Some templates tell the LLM what day it is.
_DATE: Final = re.compile(r"\d{1,2} [A-Z][a-z]{2,8} \d{4}|[A-Z][a-z]{2,8} \d{1,2}, \d{4}|\d{4}\\?-\d{2}\\?-\d{2}")
_ANY_DATE: Final = r"[\\w ,-]{8,18}"
_TOOL_NAME: Final = re.compile(r'"name":\s*"([^"]+)"')
_ONLY_MARKUP: Final = re.compile(r"(\s|<[^<>]*>)*")


class Tokenizer(Protocol):
    """The part of an engine's tokenizer that is used."""

    def decode(self, ids: Any, skip_special_tokens: bool = ...) -> str: ...  # noqa: ANN401, D102

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...  # noqa: D102

    def apply_chat_template(self, messages: Any, tools: Any = ..., **options: Any) -> Any: ...  # noqa: ANN401, D102


@dataclass(frozen=True)
class ChatTemplate:
    """What a template puts before the first user turn, in the ways it may begin, and between the turns."""

    openings: tuple[re.Pattern[str], ...]
    to_assistant: str
    to_user: str

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatTemplate | None:
        """Learn the tokenizer's own template; None where it has none, or one without marks between turns."""

        def render(*turns: tuple[str, str], tools: Any = None) -> str:  # noqa: ANN401
            messages = [{"role": role, "content": content} for role, content in turns]
            text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
            # There and back, since some tokenizers do not give a text back as it was.
            return tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False)

        try:
            whole = render(("user", _USER), ("assistant", _ASSISTANT), ("user", _NEXT))
        except Exception:  # a template is a program, and may raise anything
            return None
        turns = re.split(f"{_USER}|{_ASSISTANT}|{_NEXT}", whole)
        if len(turns) != 4:
            return None
        _, asked, answered, end = turns
        # Before a new answer the template may say less than before one that is given, or more.
        to_assistant = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(asked, end, strict=False)))
        if not to_assistant.strip() or not answered.strip():
            return None
        return cls(tuple(_openings(render)), to_assistant, answered)

    def messages(self, text: str) -> tuple[list[dict[str, str]], list[str]] | None:
        """The turns of a rendered chat and the names of its tools; None where it does not begin like one."""
        begun = next((match for opening in self.openings if (match := opening.match(text))), None)
        if begun is None:
            return None
        told, rest = begun.groupdict(), text[begun.end() :]
        turns = [{"role": "system", "content": told["system"]}] if told.get("system") else []
        tools = told.get("tools") or ""
        # Where blank lines alone divide the tools from the user's words, they divide the tools too.
        while tools and (end := _json_end(rest, 0)) is not None and '"function"' in rest[:end]:
            tools, rest = tools + rest[:end], rest[end:].lstrip("\n")
        return [*turns, *self._after(rest)], _TOOL_NAME.findall(tools)

    def _after(self, rest: str) -> list[dict[str, str]]:
        turns: list[dict[str, str]] = []
        while True:
            said, mark, rest = rest.partition(self.to_assistant)
            turns.append({"role": "user", "content": said})
            said, more, rest = rest.partition(self.to_user)
            said = said.partition(self.to_assistant)[0]  # asked to answer again after an answer
            if more or not _ONLY_MARKUP.fullmatch(said):  # an answer, or the beginning of one given with the request
                turns.append({"role": "assistant", "content": said.strip()})
            if not (mark and more):
                return turns


@dataclass(frozen=True)
class PromptReader:
    """Reads token ids. Any list of ids that the tokenizer can decode is a prompt."""

    tokenizer: Tokenizer
    template: ChatTemplate | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> PromptReader:
        """A reader for this tokenizer and its chat template."""
        return cls(tokenizer, ChatTemplate.of(tokenizer))

    def read(self, ids: Sequence[int]) -> str:
        """The request as predictors read it."""
        if self.template is not None:
            chat = self.template.messages(self._decode(ids, special=True))
            if chat is not None:
                messages, tools = chat
                return render_chat(messages, [{"function": {"name": name}} for name in tools])
        return self._decode(ids, special=False)

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
            # Decoded after its forerunners, so that a space at its beginning is not taken for the text's.
            text.append(piece[len(self._plain(before, special)) :] if before else piece)
            start = end
            if start < len(ids):
                time.sleep(_PAUSE_S)
        return "".join(text)

    def _plain(self, ids: Sequence[int], special: bool) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=not special)


def _openings(render: Render) -> list[re.Pattern[str]]:
    """The ways a chat may begin, those with the most of the template's own words first."""
    found = []
    for tools in (_TOOLS, None):
        for system in ((), (("system", _SYSTEM),)):
            try:
                before = render(*system, ("user", _USER), tools=tools).partition(_USER)[0]
            except Exception:  # noqa: S112  (a template that knows no system turn, or no tools)
                continue
            pattern = _pattern(before, bool(system), bool(tools))
            if pattern is not None:
                found.append(pattern)
    return found


def _pattern(before: str, system: bool, tools: bool) -> re.Pattern[str] | None:
    """What stands before the first user turn, with the system turn and the tools left open."""
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
        if not end.strip():  # the template puts both into one turn, where nothing tells them apart
            return None
        literal = f"{start}(?P<system>.*?){end}"
    return re.compile(literal, re.DOTALL)


def _json_around(text: str, word: str) -> tuple[int, int] | None:
    """Where the JSON value that holds the word begins and ends."""
    at = text.find(word)
    ends = ((start, _json_end(text, start)) for start in range(max(at, 0)))
    return next(((start, end) for start, end in ends if end is not None and end > at), None)


def _json_end(text: str, start: int) -> int | None:
    """Where the JSON object or list that begins here ends; None where none begins."""
    if text[start : start + 1] not in ("[", "{"):
        return None
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None
