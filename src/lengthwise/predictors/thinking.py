"""The switch of a request that says whether a reasoning LLM thinks before it answers, and how much.

Its forms: `reasoning_effort` and `reasoning` (OpenAI), `chat_template_kwargs` and `enable_thinking` (vLLM, SGLang),
`thinking` (Anthropic), `/think` and `/no_think` in the prompt (Qwen), and what chat templates make of them at the end
of a rendered prompt. An answer's length is that of its thinking and its text together, as engines report it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

Thinking = Literal["off", "on", "low", "medium", "high"]
"""`on`: it thinks, without a stated effort."""

LEVELS: Final[tuple[Thinking, ...]] = get_args(Thinking)

_EFFORTS: Final[dict[str, Thinking]] = {
    "none": "off", "off": "off", "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high",
    "max": "high",
}  # fmt: skip
_KINDS: Final[dict[str, Thinking]] = {"enabled": "on", "adaptive": "on", "disabled": "off"}
_IN_TEXT: Final = re.compile(r"(?<![\w/])/(no_)?think\b")
_TAIL: Final = re.compile(r"<think>\s*(</think>\s*)?$")
_EFFORT: Final = re.compile(r"\bReasoning: (low|medium|high)\b")
_TAIL_CHARACTERS: Final = 40
_HEAD_CHARACTERS: Final = 2_000


def thinking_of_fields(fields: Mapping[str, Any]) -> Thinking | None:
    """Return the switch in the fields of a request's body; None where it has none, or one that is not understood."""
    template = fields.get("chat_template_kwargs")
    template = template if isinstance(template, dict) else {}
    for value in (
        template.get("enable_thinking"), template.get("thinking"), fields.get("enable_thinking"),
        fields.get("reasoning_effort"), template.get("reasoning_effort"), fields.get("reasoning"),
        fields.get("thinking"),
    ):  # fmt: skip
        found = _switch(value)
        if found is not None:
            return found
    return None


def _switch(value: object) -> Thinking | None:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str):
        return _EFFORTS.get(value.lower())
    if isinstance(value, dict):
        kind = value.get("type")
        effort = _switch(value.get("effort"))
        if effort is None and isinstance(kind, str):
            return _KINDS.get(kind)
        return _switch(value.get("enabled")) if effort is None else effort
    return None


def understood(name: str | None) -> Thinking | None:
    """Return a state of the switch by its name; None for other names."""
    return next((level for level in LEVELS if level == name), None)


def thinking_of_text(text: str) -> Thinking | None:
    """Return the switch that a prompt states, the last one if there are several: "/think" or "/no_think"."""
    if "/think" not in text and "/no_think" not in text:
        return None
    found = _IN_TEXT.findall(text)
    return None if not found else "off" if found[-1] else "on"


def thinking_of_prompt(rendered: str) -> Thinking | None:
    """Return the switch in a prompt as a chat template renders it.

    An empty thought at its end switches thinking off, the beginning of one on; gpt-oss states its effort in the system
    prompt.
    """
    tail = _TAIL.search(rendered[-_TAIL_CHARACTERS:])
    if tail is not None:
        return "off" if tail[1] else "on"
    effort = _EFFORT.search(rendered[:_HEAD_CHARACTERS])
    return None if effort is None else _EFFORTS[effort[1]]
